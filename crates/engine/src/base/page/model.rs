//! Loom model: all interleavings of claimers, waiters and pins.

use super::entry::Entry;
use super::*;
use loom::sync::Arc;
use loom::thread;
use softswap_sys::primitive::{AtomicU64, Ordering};

fn table(words: &Arc<Vec<AtomicU64>>) -> PageTable<'_> {
    PageTable::new(words)
}

fn one(place: Place) -> Arc<Vec<AtomicU64>> {
    Arc::new(vec![AtomicU64::new(Entry::new(place).0)])
}

#[test]
fn missing_page_is_faulted_in_once_without_lost_wakeup() {
    loom::model(|| {
        let words = one(Place::Slot { slot: 7, is_incompressible: true });
        let reads = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let fault = |words: Arc<Vec<AtomicU64>>, reads: Arc<loom::sync::atomic::AtomicUsize>| {
            move || loop {
                let table = table(&words);
                let seen = table.wait(0);
                if seen.is_resident() {
                    return;
                }
                assert_eq!(seen.place(), Place::Slot { slot: 7, is_incompressible: true });
                if let Some(claim) = table.try_claim(0, seen) {
                    reads.fetch_add(1, Ordering::Relaxed);
                    claim.publish(Place::resident(1));
                    return;
                }
            }
        };
        let other = thread::spawn(fault(words.clone(), reads.clone()));
        fault(words.clone(), reads.clone())();
        other.join().unwrap();
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        assert!(!table(&words).load(0).is_busy());
    });
}

#[test]
fn page_is_never_pinned_and_evicted() {
    loom::model(|| {
        let words = one(Place::resident(0));
        let other = {
            let words = words.clone();
            thread::spawn(move || {
                let table = table(&words);
                let seen = table.load(0);
                if !seen.is_busy()
                    && seen.is_resident()
                    && seen.pins() == 0
                    && let Some(claim) = table.try_claim(0, seen)
                {
                    claim.publish(Place::Staged { frame: 3 });
                }
            })
        };
        let table = table(&words);
        if table.try_pin(0) {
            assert!(table.load(0).is_resident());
            table.unpin(0);
        } else {
            assert_eq!(table.load(0).place(), Place::Staged { frame: 3 });
        }
        other.join().unwrap();
    });
}

#[test]
fn page_rescued_during_write_stays_resident() {
    loom::model(|| {
        let words = one(Place::Staged { frame: 3 });
        let writer = {
            let words = words.clone();
            thread::spawn(move || {
                // The write is complete: publish the slot unless the page was rescued.
                let table = table(&words);
                let staged = Entry::new(Place::Staged { frame: 3 });
                match table.try_claim(0, staged) {
                    Some(claim) => {
                        claim.publish(Place::Slot { slot: 9, is_incompressible: true });
                        true
                    }
                    None => false,
                }
            })
        };
        let table = table(&words);
        let claim = table.claim(0);
        let rescued = claim.before().place() == Place::Staged { frame: 3 };
        claim.publish(Place::resident(2));
        let written = writer.join().unwrap();
        assert!(!(rescued && written));
        assert!(table.load(0).is_resident());
    });
}

#[test]
fn written_page_is_never_evicted_to_its_copy() {
    loom::model(|| {
        let copy = Place::Slot { slot: 7, is_incompressible: true }.to_copy();
        let words = one(Place::Resident { age: 0, copy });
        let evictor = {
            let words = words.clone();
            thread::spawn(move || {
                let table = table(&words);
                let seen = table.load(0);
                if seen.is_protected()
                    && let Some(claim) = table.try_claim(0, seen)
                {
                    claim.publish(Place::Slot { slot: 7, is_incompressible: true });
                }
            })
        };
        let table = table(&words);
        let claim = table.claim(0);
        let was = claim.before().place();
        assert!(was.copy() == copy || was == Place::Slot { slot: 7, is_incompressible: true });
        // Unprotected: the copy is invalid now.
        claim.publish(Place::resident(1));
        assert!(table.try_pin(0));
        evictor.join().unwrap();
        assert_eq!(table.load(0).place(), Place::resident(1));
        assert_eq!(table.load(0).pins(), 1);
    });
}
