//! Pages of streams are written to disk without compression, while the disk accepts them.

use crate::common::{Content, Setup, World, page_of, wait_until, with_prefetch};
use softswap_engine::api::settings::PoolLimit;
use softswap_engine::base::stats::Counter;
use softswap_engine::store::io::Operation;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::EIO;
use softswap_testkit::Memory;
use softswap_testkit::sim_device::Fault;

const PAGES: usize = 4000;

fn content(page: usize, pass: u64) -> Content {
    Content::Text(page as u64 + pass * PAGES as u64)
}

fn verify_and_rewrite(memory: Memory, pass: u64) {
    for page in 0..PAGES {
        let found = page_of(memory, page).unwrap_or_else(|| panic!("page {page} was refused"));
        assert!(found == content(page, pass).bytes(), "page {page}, pass {pass}");
        assert!(memory.write_bytes(page * PAGE_SIZE, &content(page, pass + 1).bytes()));
    }
}

/// Runs `body` once pages bypass the pool, for which the engine must have measured costs.
fn once_pages_pass(setup: &Setup, body: impl FnOnce(&World, Memory, u64)) {
    let world = World::new(setup);
    let (memory, _) = world.mapped((0..PAGES).map(|page| content(page, 0)).collect());
    with_prefetch(&world, || {
        let mut passes = 0;
        wait_until("a page bypasses the pool", || {
            if world.count(Counter::PoolPassed) > 0 {
                return Ok(());
            }
            verify_and_rewrite(memory, passes);
            passes += 1;
            let of = |counter| world.count(counter);
            let (pooled, written) = (of(Counter::PagesPooled), of(Counter::PagesWritten));
            Err(format!("after {passes} passes {pooled} pages pooled, {written} written"))
        });
        body(&world, memory, passes);
    });
    world.assert_within_budget();
}

#[test]
fn stream_larger_than_pool_bypasses_it() {
    let setup = Setup { memory_mib: 8, pool: PoolLimit::Bytes(1 << 20), ..Setup::default() };
    once_pages_pass(&setup, |_, memory, passes| {
        (passes..passes + 4).for_each(|pass| verify_and_rewrite(memory, pass));
    });
}

#[test]
fn full_disk_falls_back_to_pool() {
    let setup = Setup { memory_mib: 12, pool: PoolLimit::Bytes(1 << 20), ..Setup::default() };
    once_pages_pass(&setup, |world, memory, passes| {
        world.disk.fail(Operation::Write, world.disk.counts().writes, u64::MAX, Fault::Errno(EIO));
        // All pages fit in the pool in compressed form.
        world.engine.set_pool_limit(PoolLimit::Percent(80));
        (passes..passes + 3).for_each(|pass| verify_and_rewrite(memory, pass));
        assert!(world.count(Counter::WriteErrors) > 0, "the engine must have tried to write");
    });
}
