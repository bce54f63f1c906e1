//! Pages of all contents survive eviction, and the engine remains within the budget.

use crate::common::{
    Content, Setup, UNENCODABLE, World, assert_holds, every_kind, random, worlds, worlds_of,
    write_all,
};
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::codec::Choice;
use softswap_sys::PAGE_SIZE;

#[test]
fn pages_of_every_kind_round_trip() {
    for (world, avoid_move) in worlds().zip([false, true]) {
        assert_eq!(world.count(Counter::UsesMove) == 0, avoid_move);
        let (memory, contents) = world.mapped(every_kind(600));
        for _ in 0..3 {
            world.assert_survives(memory, &contents);
        }
        // One read from the disk faults in several pages.
        for (tier, least) in [(Tier::SameFilled, 300), (Tier::Pool, 300), (Tier::Disk, 30)] {
            let faults = world.engine.stats().faults(tier);
            assert!(faults >= least, "{faults} from {}", tier.name());
        }
    }
}

#[test]
fn uncodable_fill_word_survives_without_compression() {
    for codec in [Choice::LZ4, Choice::NONE] {
        let world = World::new(&Setup { codec, ..Setup::default() });
        let contents = [Content::Repeated(UNENCODABLE); 40];
        let memory = world.map_with(&contents);
        world.assert_survives(memory, &contents);
        assert!(world.count(Counter::PagesSameFilled) >= 40);
        assert_eq!(world.count(Counter::PagesWritten) == 0, codec != Choice::NONE);
    }
}

#[test]
fn four_budgets_fit_within_budget() {
    for world in worlds() {
        let (memory, contents) = world.mapped(random(16 << 10));
        assert_holds(memory, &contents);
        assert!(world.resident(memory) * PAGE_SIZE < 16 << 20);
        assert!(world.count(Counter::DirectReclaims) > 0);
        world.assert_within_budget();
    }
}

#[test]
fn full_pool_writes_back_oldest_pages() {
    for world in worlds_of(Setup::default().all_offered()) {
        let contents: Vec<_> = (0..12_000).map(Content::Text).collect();
        let memory = world.map(contents.len());
        write_all(memory, &contents);
        let (pooled, written) =
            (world.count(Counter::PagesPooled), world.count(Counter::PagesWritten));
        assert!(pooled > 6_000 && written > 1_000, "{pooled} pooled, {written} written");
        assert_holds(memory, &contents);
        world.assert_within_budget();
    }
}
