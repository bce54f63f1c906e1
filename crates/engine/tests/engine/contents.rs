//! Pages of all contents survive eviction, and the engine stays within the budget.

use crate::common::{
    Content, Setup, UNENCODABLE, World, assert_holds, every_kind, random, write_all,
};
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::codec::Choice;
use softswap_sys::PAGE_SIZE;

fn with_and_without_move(test: impl Fn(Setup)) {
    for avoid_move in [false, true] {
        test(Setup { avoid_move, ..Setup::default() });
    }
}

#[test]
fn pages_of_every_kind_come_back_as_they_left() {
    with_and_without_move(|setup| {
        let world = World::new(&setup);
        let contents = every_kind(600);
        let memory = world.map_with(&contents);
        for _ in 0..3 {
            world.assert_survives(memory, &contents);
        }
        // One read from disk brings several.
        for (tier, least) in [(Tier::Filled, 300), (Tier::Pool, 300), (Tier::Disk, 30)] {
            let faults = world.engine.stats().faults(tier);
            assert!(faults >= least, "{faults} from {}", tier.name());
        }
        assert_eq!(world.count(Counter::UsesMove) == 0, setup.avoid_move);
    });
}

#[test]
fn a_changed_page_comes_back_changed() {
    with_and_without_move(|setup| {
        let world = World::new(&setup);
        let (old, mut new) = (every_kind(60), every_kind(60));
        new.reverse();
        let memory = world.map_with(&old);
        world.evict(memory);
        write_all(memory, &new);
        world.assert_survives(memory, &new);
    });
}

#[test]
fn a_word_that_no_entry_has_room_for_survives_without_compression_too() {
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
fn without_compression_the_pool_stays_empty() {
    let world = World::new(&Setup { codec: Choice::NONE, ..Setup::default() });
    let contents = every_kind(120);
    let memory = world.map_with(&contents);
    world.assert_survives(memory, &contents);
    assert_eq!(world.count(Counter::PagesPooled), 0);
}

#[test]
fn four_times_the_budget_fits_and_stays_within_it() {
    with_and_without_move(|setup| {
        let world = World::new(&setup);
        let contents = random(16 << 10);
        let memory = world.map_with(&contents);
        assert_holds(memory, &contents);
        assert!(world.resident(memory) * PAGE_SIZE < 16 << 20);
        assert!(world.count(Counter::DirectReclaims) > 0);
        world.assert_within_budget();
    });
}

#[test]
fn a_full_pool_passes_its_oldest_pages_on_to_the_disk() {
    with_and_without_move(|setup| {
        let world = World::new(&setup.all_offered());
        let contents: Vec<_> = (0..12_000).map(Content::Text).collect();
        let memory = world.map(contents.len());
        write_all(memory, &contents);
        let (pooled, written) =
            (world.count(Counter::PagesPooled), world.count(Counter::PagesWritten));
        assert!(pooled > 6_000 && written > 1_000, "{pooled} pooled, {written} written");
        assert_holds(memory, &contents);
        world.assert_within_budget();
    });
}
