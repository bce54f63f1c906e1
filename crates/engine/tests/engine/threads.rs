//! With many threads and concurrent reclaim, each page has the content that its owner wrote last.

use crate::common::{
    Content, Setup, World, assert_holds, in_threads, mix64, page_of, random, worlds_of,
};
use softswap_engine::base::stats::{Counter, Tier};
use softswap_engine::store::io::Operation;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno::EIO;
use softswap_sys::window::READ_WRITE;
use softswap_testkit::Memory;
use softswap_testkit::sim_device::Fault;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const PAGES: usize = 1200;
const STEPS: u64 = 6000;

fn content(number: u64) -> Content {
    match number % 8 {
        0 => Content::Zero,
        1 => Content::Repeated(number),
        2..=4 => Content::Text(number),
        _ => Content::Random(number),
    }
}

struct Owner<'w> {
    world: &'w World,
    memory: Memory,
    expected: Vec<Content>,
    chance: u64,
}

impl<'w> Owner<'w> {
    fn new(world: &'w World, seed: u64) -> Owner<'w> {
        let expected = vec![Content::Zero; PAGES];
        Owner { world, memory: world.map(PAGES), expected, chance: seed << 32 }
    }

    fn roll(&mut self) -> u64 {
        self.chance += 1;
        mix64(self.chance)
    }

    fn check(&self, page: usize) {
        let holds = page_of(self.memory, page);
        assert!(holds.is_some_and(|bytes| bytes == self.expected[page].bytes()), "page {page}");
    }

    fn step(&mut self) {
        let (what, number) = (self.roll() % 100, self.roll());
        let page = self.roll() as usize % PAGES;
        let run = (self.roll() as usize % 40).min(PAGES - page);
        let (start, len) = (self.memory.address() + page * PAGE_SIZE, run.max(1) * PAGE_SIZE);
        let engine = &self.world.engine;
        match what {
            0..45 => self.check(page),
            45..95 => {
                self.check(page);
                self.expected[page] = content(number);
                assert!(self.memory.write_bytes(page * PAGE_SIZE, &self.expected[page].bytes()));
            }
            95..97 => {
                engine.discard(start, len).unwrap();
                self.expected[page..page + len / PAGE_SIZE].fill(Content::Zero);
            }
            97..98 => {
                engine.unmap(start, len).unwrap();
                assert!(engine.map_at(start, len, READ_WRITE, true).unwrap());
                self.expected[page..page + len / PAGE_SIZE].fill(Content::Zero);
            }
            98..99 => {
                let pinned = engine.pin(start, len, usize::MAX).unwrap();
                self.check(page);
                engine.unpin(start, pinned);
            }
            _ => {
                engine.protect(start, len, 1).unwrap();
                assert!(!self.memory.write(page * PAGE_SIZE, 1));
                self.check(page);
                engine.protect(start, len, READ_WRITE).unwrap();
            }
        }
    }
}

#[test]
fn threads_find_their_own_writes() {
    for world in worlds_of(Setup { memory_mib: 12, ..Setup::default() }) {
        let work = |number: usize| {
            let mut owner = Owner::new(&world, number as u64);
            (0..STEPS).for_each(|_| owner.step());
            (0..PAGES).for_each(|page| owner.check(page));
        };
        in_threads(&world, work, || {});
        let stats = world.engine.stats();
        for tier in [Tier::Zero, Tier::SameFilled, Tier::Pool, Tier::Disk] {
            assert!(stats.faults(tier) > 100, "{}: {}", tier.name(), stats.faults(tier));
        }
        world.assert_within_budget();
    }
}

#[test]
fn quiesce_stops_all_but_forking_thread() {
    let world = World::new(&Setup { memory_mib: 12, ..Setup::default() });
    let memory = world.map(200);
    let work = |number: usize| {
        let mut owner = Owner::new(&world, number as u64);
        for step in 0..STEPS / 4 {
            owner.step();
            // Two threads fork, also one immediately after the other.
            if number < 2 && step % 100 == 0 {
                let quiesced = world.engine.quiesce();
                (0..200).for_each(|page| assert!(memory.write(page * PAGE_SIZE, step)));
                assert_eq!(world.resident(memory), 200);
                drop(quiesced);
            }
        }
        (0..PAGES).for_each(|page| owner.check(page));
    };
    in_threads(&world, work, || {});
}

#[test]
fn threads_see_newest_value_of_shared_pages() {
    for world in worlds_of(Setup { memory_mib: 8, ..Setup::default() }) {
        let memory = world.map(64);
        let written: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        let (filler, contents) = world.mapped(random(64));
        let write = |number: usize| {
            for step in 1..2000 {
                let page = mix64((number as u64) << 32 | step) as usize % 64;
                // Each thread has its own word in every page, so all threads write the same pages.
                let at = page * PAGE_SIZE + number * 8;
                match number {
                    0 => {
                        world.engine.reclaim_now(1);
                    }
                    1 => {
                        assert!(memory.write(at, written[page].fetch_add(1, Ordering::SeqCst) + 1))
                    }
                    _ => {
                        let word = (step << 8) | number as u64;
                        assert!(memory.write(at, word));
                        assert_eq!(memory.read(at), Some(word));
                        let least = written[page].load(Ordering::SeqCst).saturating_sub(1);
                        let seen = memory.read(page * PAGE_SIZE + 8);
                        assert!(seen.is_some_and(|word| word >= least), "{seen:?} < {least}");
                    }
                }
            }
        };
        // Without background reclaim: only the first thread evicts pages.
        thread::scope(|scope| {
            for number in 0..8 {
                let write = &write;
                scope.spawn(move || write(number));
            }
        });
        assert_holds(filler, &contents);
    }
}

#[test]
fn concurrent_discard_shows_content_or_zeroes() {
    for world in worlds_of(Setup { memory_mib: 8, ..Setup::default() }) {
        let memory = world.map(128);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let (world, done) = (&world, &done);
            scope.spawn(move || {
                for step in 0..3000u64 {
                    let page = mix64(step) as usize % 128;
                    let content = Content::Random(page as u64).bytes();
                    assert!(memory.write_bytes(page * PAGE_SIZE, &content));
                    let start = memory.address() + mix64(!step) as usize % 120 * PAGE_SIZE;
                    world.engine.discard(start, 8 * PAGE_SIZE).unwrap();
                    world.engine.reclaim_now(1);
                }
                done.store(true, Ordering::Relaxed);
            });
            for reader in 0..3u64 {
                scope.spawn(move || {
                    let mut step = reader << 32;
                    while !done.load(Ordering::Relaxed) {
                        step += 1;
                        let page = mix64(step) as usize % 128;
                        let word = memory.read(page * PAGE_SIZE + 800);
                        let written = u64::from_ne_bytes(
                            *Content::Random(page as u64).bytes()[800..].first_chunk().unwrap(),
                        );
                        assert!(word == Some(0) || word == Some(written), "{word:?}");
                    }
                });
            }
        });
        world.assert_within_budget();
    }
}

#[test]
fn occasional_write_errors_are_tolerated() {
    let world = World::new(&Setup { memory_mib: 12, disk_mib: 512, ..Setup::default() });
    world.disk.fail_at_random(Operation::Write, 9, Fault::Errno(EIO));
    let work = |number: usize| {
        let mut owner = Owner::new(&world, 100 + number as u64);
        (0..STEPS / 2).for_each(|_| owner.step());
        (0..PAGES).for_each(|page| owner.check(page));
    };
    in_threads(&world, work, || {});
    assert!(world.count(Counter::WriteErrors) > 0);
    world.assert_within_budget();
}
