//! Without free bounce buffers, swap-ins still succeed, and page-outs wait.

use crate::common::{HANG_TIMEOUT, Setup, World, assert_holds, random, wait_until};
use softswap_engine::base::access::Access;
use softswap_engine::base::stats::Counter;
use softswap_engine::store::bounce::Buffer;
use softswap_sys::PAGE_SIZE;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

fn hold_all(world: &World) -> Vec<Buffer<'_>> {
    let buffers = world.engine.buffers();
    let pools = std::iter::from_fn(|| buffers.take(0, 1));
    let lent = std::iter::from_fn(|| buffers.take_transient(1));
    let held: Vec<_> = pools.chain(lent).collect();
    assert!(held.len() > 64 && buffers.take(1, 1).is_none());
    held
}

/// Returns the message about a thread's long wait. The caller holds all buffers.
fn long_wait(world: &World) -> String {
    wait_until("a thread waits for a buffer", || {
        let message = world.engine.buffers().full_message(1);
        message.ok_or_else(|| format!("{:?}", world.engine.buffers().usage()))
    })
}

#[test]
fn swap_in_works_without_free_buffers() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.evicted(random(1000));
    let held = hold_all(&world);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_holds(memory, &contents));
        }
    });
    assert!(world.count(Counter::PagesRead) >= 1000);
    drop(held);
    world.assert_survives(memory, &contents);
}

#[test]
fn pages_without_buffer_are_evicted_later() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.mapped(random(100));
    let held = hold_all(&world);
    let message = thread::scope(|scope| {
        let evicting = scope.spawn(|| world.evict(memory));
        let message = long_wait(&world);
        let (is_finished, written) = (evicting.is_finished(), world.count(Counter::PagesWritten));
        drop(held);
        assert_eq!((is_finished, written), (false, 0), "pages were evicted without a buffer");
        message
    });
    assert_holds(memory, &contents);
    assert!(message.contains("bounce buffers are full"), "{message}");
}

#[test]
fn added_bounce_pool_is_charged() {
    let world = World::new(&Setup::default());
    let buffers = world.engine.buffers();
    let used = || {
        world.engine.note_peaks();
        world.count(Counter::UsedPeakBytes)
    };
    let before = used();
    let held: Vec<_> = std::iter::from_fn(|| buffers.take(0, 1)).collect();
    assert!(buffers.wants_pool() && buffers.grow(usize::MAX, 0));
    let added = buffers.extra_bytes();
    assert!(added > 0 && added <= (16 << 20) / 32);
    assert_eq!(used(), before + added as u64);
    drop(held);
    buffers.release_idle(1 << 60);
    buffers.release_idle(1 << 61);
    assert_eq!(buffers.extra_bytes(), 0);
}

#[test]
fn page_waiting_for_buffer_is_rescued() {
    let world = World::new(&Setup::default());
    let (memory, contents) = world.mapped(random(64));
    let held = hold_all(&world);
    thread::scope(|scope| {
        let reclaim = scope.spawn(|| world.engine.reclaim_now(20));
        // When the thread waits for the first page's buffer, the whole batch is staged.
        long_wait(&world);
        assert!(world.resident(memory) < memory.pages(), "pages must be staged");
        let (done, touched) = channel();
        let engine = Arc::clone(&world.engine);
        scope.spawn(move || {
            let page = |index| engine.fault(memory.address() + index * PAGE_SIZE, Access::Read);
            let faulted_in = (0..memory.pages()).all(|index| page(index).is_ok());
            let _ = done.send(faulted_in);
        });
        let all = touched.recv_timeout(HANG_TIMEOUT);
        drop(held);
        reclaim.join().unwrap();
        assert_eq!(all, Ok(true), "a touch of a staged page must not wait for a buffer");
    });
    assert_holds(memory, &contents);
}
