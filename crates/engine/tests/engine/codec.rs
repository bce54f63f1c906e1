//! Pages keep their content with any codec, and while the codec changes.

use crate::common::{Content, Setup, World, assert_holds, every_kind, mix64, page_of, write_all};
use softswap_engine::base::stats::Counter;
use softswap_engine::codec::{Choice, Compressor};
use softswap_sys::PAGE_SIZE;
use softswap_testkit::waiting::eventually;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn zstd(level: i8) -> Choice {
    Choice::Fixed(Some(Compressor::Zstd { level }))
}

#[test]
fn every_kind_of_page_survives_every_codec() {
    for codec in [Choice::Auto, Choice::LZ4, zstd(1), zstd(9), zstd(-5), Choice::NONE] {
        let world = World::new(&Setup { codec, ..Setup::default() });
        let (memory, contents) = world.mapped(every_kind(600));
        world.assert_survives(memory, &contents);
        assert_eq!(world.count(Counter::PagesPooled) > 0, codec != Choice::NONE, "{codec}");
        assert_eq!(world.count(Counter::DecompressErrors), 0);
    }
}

#[test]
fn pages_of_previous_codec_stay_readable() {
    let world = World::new(&Setup::default());
    let contents: Vec<_> = (0..200).map(Content::Text).collect();
    let choices = [Choice::LZ4, zstd(1), Choice::NONE, zstd(3)];
    let memories = choices.map(|codec| {
        world.engine.codec().set(codec);
        world.map_evicted(&contents)
    });
    // Three of the four codecs compress pages.
    assert_eq!(world.count(Counter::PagesPooled), 600);
    memories.into_iter().for_each(|memory| assert_holds(memory, &contents));
}

#[test]
fn zstd_compresses_text_smaller_than_lz4() {
    let bytes_of = |codec| {
        let world = World::new(&Setup { codec, ..Setup::default() });
        world.evicted((0..200).map(Content::Text).collect());
        world.count(Counter::PooledBytes)
    };
    assert!(bytes_of(zstd(1)) < bytes_of(Choice::LZ4));
}

#[test]
fn incompressible_pages_are_counted_and_written() {
    for codec in [Choice::Auto, Choice::LZ4, zstd(1)] {
        let world = World::new(&Setup { codec, ..Setup::default() });
        let (memory, contents) = world.mapped(crate::common::random(100));
        world.assert_survives(memory, &contents);
        assert!(world.count(Counter::PagesIncompressible) >= 100);
        assert!(world.count(Counter::PagesWritten) >= 100);
        assert_eq!(world.count(Counter::PagesPooled), 0);
    }
}

#[test]
fn zstd_memory_is_charged() {
    let world = World::new(&Setup { codec: zstd(1), ..Setup::default() });
    // The memory is 1.5 times the budget, so faults evict pages.
    let (memory, contents) = world.mapped((0..6000).map(Content::Text).collect());
    assert_holds(memory, &contents);
    world.assert_within_budget();
}

fn content(thread: u64, page: usize, turn: u64) -> Content {
    let seed = mix64(thread << 48 | (page as u64) << 24 | turn);
    match seed % 8 {
        0 => Content::Random(seed >> 8),
        1 => Content::Repeated(seed),
        _ => Content::Text(seed >> 8),
    }
}

fn rewrite(world: &World, thread: u64, stop: &AtomicBool) {
    const PAGES: usize = 2000;
    let memory = world.map(PAGES);
    let contents: Vec<_> = (0..PAGES).map(|page| content(thread, page, 0)).collect();
    write_all(memory, &contents);
    let mut turns = vec![0; PAGES];
    for step in 0.. {
        if stop.load(Relaxed) {
            break;
        }
        let page = mix64(thread << 32 | step) as usize % PAGES;
        let bytes = page_of(memory, page).unwrap();
        let expected = content(thread, page, turns[page]);
        assert!(bytes == expected.bytes(), "page {page} of thread {thread} is not {expected:?}");
        turns[page] += 1;
        let next = content(thread, page, turns[page]).bytes();
        assert!(memory.write_bytes(page * PAGE_SIZE, &next));
    }
    let contents: Vec<_> =
        turns.iter().enumerate().map(|(page, turn)| content(thread, page, *turn)).collect();
    assert_holds(memory, &contents);
}

#[test]
fn pages_are_intact_while_codec_changes() {
    let world = World::new(&Setup::default());
    let stop = AtomicBool::new(false);
    let evicted = || world.count(Counter::PagesOut);
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let (world, stop) = (&world, &stop);
            scope.spawn(move || rewrite(world, thread, stop));
        }
        let choices = [Choice::LZ4, zstd(1), Choice::NONE, zstd(5), zstd(-5), Choice::Auto];
        for choice in choices.into_iter().cycle().take(200) {
            world.engine.codec().set(choice);
            let before = evicted();
            eventually("pages are evicted", || evicted() > before + 10);
        }
        stop.store(true, Relaxed);
    });
    assert!(world.count(Counter::PagesPooled) > 0 && world.count(Counter::PagesWritten) > 0);
    assert_eq!(world.count(Counter::DecompressErrors), 0);
}
