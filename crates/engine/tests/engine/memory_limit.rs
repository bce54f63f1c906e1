//! Changes of the budget while pages are evicted and faulted in.

use crate::common::{
    Setup, World, assert_holds, every_kind, in_threads, random, read_and_write, sparse, until,
};
use softswap_engine::api::live_settings;
use softswap_engine::api::settings::PoolLimit;
use softswap_engine::base::stats::Counter;

const PAGES: u64 = 16_384;

fn limit(world: &World) -> String {
    live_settings::get(&world.engine, "memory").unwrap()
}

fn set(world: &World, limit: &str) -> Result<(), String> {
    live_settings::set(&world.engine, "memory", limit)
}

fn has_applied(world: &World, requested: &str) -> bool {
    world.engine.note_peaks();
    let [used, budget] = [Counter::UsedBytes, Counter::BudgetBytes].map(|it| world.count(it));
    limit(world) == requested && used <= budget
}

#[test]
fn moving_limit_loses_no_page() {
    for pool in [PoolLimit::Auto, PoolLimit::Percent(40)] {
        let world = World::new(&Setup { memory_mib: 32, disk_mib: 512, pool, ..Setup::default() });
        let (memory, contents) = world.mapped(every_kind(PAGES));
        // Some limits are above the one at the start.
        let mut limits = ["12M", "64M", "10M", "128M", "24M"].iter().cycle();
        let mut requested = "32M";
        in_threads(
            &world,
            |thread| read_and_write(&world, (memory, &contents), thread, 4),
            || {
                if has_applied(&world, requested) {
                    requested = limits.next().unwrap();
                    set(&world, requested).unwrap();
                }
            },
        );
        set(&world, "12M").unwrap();
        until(&world, || has_applied(&world, "12M"));
    }
}

#[test]
fn derived_limits_follow_budget() {
    let world = World::new(&Setup { memory_mib: 16, ..Setup::default() });
    set(&world, "256M").unwrap();
    let (memory, contents) = world.mapped(sparse(PAGES));
    assert_eq!(world.count(Counter::PagesOut), 0, "the larger budget holds all pages");
    world.engine.note_peaks();
    // The limit is in whole slabs of 64 KiB.
    assert_eq!(world.count(Counter::PoolLimitBytes) >> 16, ((256 << 20) / 100 * 40) >> 16);
    world.assert_survives(memory, &contents);
    set(&world, "16M").unwrap();
    until(&world, || has_applied(&world, "16M"));
    assert_eq!(
        world.count(Counter::PoolLimitBytes),
        6_684_672,
        "the pool's limit must be that of the start again"
    );
    assert_holds(memory, &contents);
}

#[test]
fn too_small_limit_is_rejected_with_minimum() {
    let world = World::new(&Setup { memory_mib: 64, ..Setup::default() });
    for (requested, part) in [
        ("1M", "give at least"),
        ("banana", "give one such as 64M or 2G"),
        ("50%", "give one such as 64M or 2G"),
        ("64", "give one such as 64M or 2G"),
    ] {
        let refused = set(&world, requested).unwrap_err();
        assert!(refused.starts_with("memory: ") && refused.contains(part), "{refused}");
    }
    let memory = world.map_with(&random(2048));
    // Lock only 4 MiB: users can typically lock 8 MiB, and the encryption key takes some of it.
    world.engine.lock_range(memory.address(), 4 << 20).unwrap();
    let refused = set(&world, "12M").unwrap_err();
    assert!(refused.contains("locked 4M") && refused.contains("at least 16M"), "{refused}");
    assert_eq!(limit(&world), "64M");
    world.engine.unlock_all().unwrap();
    set(&world, "16M").unwrap();
    until(&world, || has_applied(&world, "16M"));
}

#[test]
fn unreachable_limit_is_cancelled_and_reported() {
    let world = World::new(&Setup { memory_mib: 64, swap_mib: Some(4), ..Setup::default() });
    let (memory, contents) = world.mapped(random(8192));
    set(&world, "16M").unwrap();
    until(&world, || limit(&world).starts_with("64M (a lower limit failed"));
    assert_holds(memory, &contents);
    set(&world, "65M").unwrap();
    assert_eq!(limit(&world), "65M");
}
