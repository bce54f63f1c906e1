//! What happens while no bounce buffer is left.

mod common;

use common::{Setup, World, assert_holds, random};
use softswap_engine::page_in::Access;
use softswap_sys::PAGE_SIZE;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

#[test]
fn a_page_that_waits_for_a_buffer_comes_straight_back_when_it_is_touched() {
    let world = World::new(&Setup::default());
    let contents = random(64);
    let memory = world.map_with(&contents);
    let buffers = world.engine.buffers();
    let held: Vec<_> = std::iter::from_fn(|| buffers.take(0, 1)).collect();
    let lent: Vec<_> = std::iter::from_fn(|| buffers.take_transient(1)).collect();
    let lent_rest: Vec<_> = std::iter::from_fn(|| buffers.take_transient(64)).collect();
    assert!(!held.is_empty() && !lent.is_empty());
    thread::scope(|scope| {
        let reclaim = scope.spawn(|| world.engine.reclaim_now(20));
        while world.resident(memory) == memory.pages() {
            thread::yield_now();
        }
        // Until all of the batch is staged, and the first page wants a buffer.
        thread::sleep(Duration::from_millis(100));
        let (done, touched) = channel();
        let engine = Arc::clone(&world.engine);
        scope.spawn(move || {
            let page = |index| engine.fault(memory.address() + index * PAGE_SIZE, Access::Read);
            let brought = (0..memory.pages()).all(|index| page(index).is_ok());
            let _ = done.send(brought);
        });
        let all = touched.recv_timeout(Duration::from_secs(10));
        drop((held, lent, lent_rest));
        reclaim.join().unwrap();
        assert_eq!(all, Ok(true), "a touch waited for a buffer that its page needs not");
    });
    assert_holds(memory, &contents);
}
