use super::entry::{Entry, PAYLOAD_LIMIT, SLOT_LIMIT};
use super::*;
use proptest::prelude::*;
use softswap_sys::primitive::AtomicU64;

fn in_slots() -> impl Strategy<Value = Place> {
    prop_oneof![
        (0..SLOT_LIMIT, any::<bool>())
            .prop_map(|(slot, is_incompressible)| Place::Slot { slot, is_incompressible }),
        (0..SLOT_LIMIT, 0..PART_LIMIT)
            .prop_map(|(slot, part)| Place::CompressedSlot { slot, part }),
    ]
}

fn slot_copies() -> impl Strategy<Value = SlotCopy> {
    in_slots().prop_filter_map("a slot", Place::in_slot)
}

fn copies() -> impl Strategy<Value = Option<StoredCopy>> {
    proptest::option::of(prop_oneof![
        slot_copies().prop_map(StoredCopy::Slot),
        (0..PAYLOAD_LIMIT).prop_map(StoredCopy::pooled),
    ])
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::Vacant),
        (0..=MAX_AGE, copies()).prop_map(|(age, copy)| Place::Resident { age, copy }),
        any::<u32>().prop_map(|frame| Place::Staged { frame }),
        (0..PAYLOAD_LIMIT).prop_map(|code| Place::SameFilled { code }),
        (0..PAYLOAD_LIMIT).prop_map(|handle| Place::Pool { handle }),
        in_slots(),
        Just(Place::Unmanaged),
    ]
}

proptest! {
    #[test]
    fn entry_contains_published_place(place in places()) {
        let words = [AtomicU64::new(0)];
        let table = PageTable::new(&words);
        table.claim(0).publish(place);
        prop_assert_eq!(table.load(0).place(), place);
        prop_assert!(!table.load(0).is_busy());
    }

    #[test]
    fn page_with_copy_is_evicted_to_it_and_not_pinned(
        copy in copies(), age in 0..=MAX_AGE,
    ) {
        let words = [AtomicU64::new(Entry::new(Place::Resident { age, copy }).0)];
        let table = PageTable::new(&words);
        prop_assert_eq!(table.load(0).is_protected(), copy.is_some());
        if let Some(slot) = copy.and_then(StoredCopy::in_slot) {
            prop_assert_eq!(slot.place().to_copy(), copy);
        }
        prop_assert_eq!(table.load(0).pins(), 0);
        prop_assert_eq!(table.try_pin(0), copy.is_none());
        table.unpin(0);
        // Only the age changes.
        while !table.age_down(0, table.load(0)) {}
        prop_assert_eq!(table.load(0).place(), Place::Resident { age: 0, copy });
    }
}

#[test]
fn claim_excludes_claims_and_pins() {
    let words = [AtomicU64::new(Entry::new(Place::resident(1)).0)];
    let table = PageTable::new(&words);
    let seen = table.load(0);
    let claim = table.try_claim(0, seen).unwrap();
    assert!(table.try_claim(0, seen).is_none());
    assert!(table.try_claim(0, table.load(0)).is_none());
    drop(claim);
    assert_eq!(table.load(0), seen);
    assert!(table.try_pin(0));
    assert_eq!(table.load(0).pins(), 1);
    // The pinned entry differs from `seen`, so reclaim's claim fails.
    assert!(table.try_claim(0, seen).is_none());
    table.unpin(0);
    table.unpin(0);
    assert_eq!(table.load(0), seen);
}

#[test]
fn page_is_claimed_only_at_its_place() {
    let staged = Place::Staged { frame: 3 };
    let words = [AtomicU64::new(Entry::new(staged).0)];
    let table = PageTable::new(&words);
    assert!(table.claim_at(0, Place::Staged { frame: 4 }).is_none());
    assert_eq!(table.claim_at(0, staged).unwrap().before().place(), staged);
    assert!(!table.load(0).is_busy());
    let elsewhere = table.claim(0);
    elsewhere.publish(Place::Vacant);
    let _claim = table.claim(0);
    assert!(table.claim_at(0, staged).is_none(), "a page elsewhere is not waited for");
}

#[test]
fn wait_for_claim_ends_when_page_leaves_its_place() {
    let staged = Place::Staged { frame: 3 };
    let words = [AtomicU64::new(Entry::new(staged).0)];
    let table = PageTable::new(&words);
    let discarding = table.claim(0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| table.claim_at(0, staged).is_none());
        discarding.publish(Place::Vacant);
        // The next claimer keeps the page until the waiter has ended.
        let faulting = table.claim(0);
        assert!(waiter.join().unwrap());
        drop(faulting);
    });
}

#[test]
fn age_counts_down_one_per_round() {
    let words = [AtomicU64::new(Entry::new(Place::resident(2)).0)];
    let table = PageTable::new(&words);
    assert!(!table.age_down(0, table.load(0)));
    assert!(!table.age_down(0, table.load(0)));
    assert!(table.age_down(0, table.load(0)));
}
