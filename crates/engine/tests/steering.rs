//! A thread that does little but wait for pages is moved to other processors, and
//! may run where it might before.

mod common;
use common::{Content, Setup, World, assert_holds};
use softswap_engine::base::stats::Counter;
use softswap_engine::store::io::poll::mode::Mode;
use softswap_sys::PAGE_SIZE;
use softswap_sys::load::Load;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const PAGES: usize = 300;
/// They lie apart, so that none brings others along.
const STEP_BYTES: usize = 4 * PAGE_SIZE;

fn world() -> World {
    let world = World::new(&Setup::default());
    // No polling: these pages are there at once.
    world.engine.knobs().for_each(|knobs| knobs.set_mode(Mode::Interrupt));
    world
}

/// Writes pages, has them leave, and reads them one by one.
fn wait_for_pages(world: &World, seed: u64) {
    let memory = world.map(PAGES * STEP_BYTES / PAGE_SIZE);
    let part = |at: usize| memory.part(at * STEP_BYTES, PAGE_SIZE);
    let contents: Vec<_> = (seed..).take(PAGES).map(Content::Random).collect();
    for (at, content) in contents.iter().enumerate() {
        assert!(part(at).write_bytes(0, &content.bytes()));
    }
    world.evict(memory);
    for (at, content) in contents.iter().enumerate() {
        assert_holds(part(at), std::slice::from_ref(content));
    }
    world.engine.unmap(memory.address(), memory.len()).unwrap();
}

fn allowed() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn a_thread_that_waits_is_moved_and_stays_as_free_as_it_was() {
    let before = allowed();
    let Some(load) = Load::open() else { return eprintln!("skipped: /proc does not tell") };
    let online = load.processors() as usize;
    if before < 2 || before < online {
        return eprintln!("skipped: only {before} of {online} processors");
    }
    let world = world();
    let start = Instant::now();
    for seed in 0.. {
        wait_for_pages(&world, seed);
        if world.count(Counter::IoSteered) > 0 {
            break;
        }
        // Others may want all processors all the time, or take them from this machine.
        // What is decided when is for the tests of `places`.
        if start.elapsed() > Duration::from_secs(20) {
            return eprintln!("skipped: no processor was idle when a thread was to be moved");
        }
    }
    assert_eq!(allowed(), before);
}

#[test]
fn no_thread_is_moved_where_that_is_off() {
    let world = world();
    world.engine.steers().store(false, Relaxed);
    (0..4).for_each(|seed| wait_for_pages(&world, seed));
    assert_eq!(world.count(Counter::IoSteered), 0);
}
