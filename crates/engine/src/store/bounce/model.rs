//! Loom models of taking and returning buffers, and of the release of a pool.

use super::*;
use loom::sync::Arc;
use loom::thread;
use softswap_sys::PAGE_SIZE;

fn pools(slots_per_area: usize, extra_slots: usize) -> Arc<BouncePools> {
    let extra_bytes = extra_slots * PAGE_SIZE;
    let shape = Shape { areas: 1, slots_per_area, reserve_slots: 0, extra_bytes };
    Arc::new(BouncePools::new(shape).unwrap())
}

fn use_one(pools: &BouncePools, pages: usize, mark: u8) -> bool {
    let Some(mut buffer) = pools.take(0, pages) else { return false };
    buffer[0] = mark;
    thread::yield_now();
    assert_eq!(buffer[0], mark, "another buffer has the same bytes");
    true
}

#[test]
fn threads_never_share_or_lose_slots() {
    loom::model(|| {
        let pools = pools(3, 0);
        let other = {
            let pools = Arc::clone(&pools);
            thread::spawn(move || use_one(&pools, 2, 1))
        };
        let mine = use_one(&pools, 2, 2);
        let theirs = other.join().unwrap();
        assert!(mine || theirs);
        assert_eq!(pools.usage().used, 0);
        assert!(pools.take(0, 3).is_some());
    });
}

#[test]
fn pool_is_removed_only_if_unused() {
    loom::model(|| {
        let pools = pools(1, 1);
        assert!(pools.grow(usize::MAX, 0));
        let held = pools.take(0, 1).unwrap();
        let taking = {
            let pools = Arc::clone(&pools);
            thread::spawn(move || use_one(&pools, 1, 3))
        };
        let gone = pools.release(1);
        let taken = taking.join().unwrap();
        // The search fails only if the pool is being released.
        assert!(taken || gone || pools.usage().misses == 1);
        assert_eq!(pools.take(0, 1).is_none(), gone);
        drop(held);
        if gone {
            assert_eq!(pools.extra_bytes(), 0);
            assert!(pools.grow(usize::MAX, 0));
        }
        let both = (pools.take(0, 1), pools.take(0, 1));
        assert!(both.0.is_some() && both.1.is_some());
    });
}
