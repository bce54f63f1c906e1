//! An engine over a simulated device, with real page faults. Each test creates its own fixture
//! ([`World`]), and uses the public interface and no unsafe code.
#![allow(dead_code, reason = "each test uses a part of it")]

use softswap_engine::api::engine::Engine;
use softswap_engine::api::settings::{Config, PoolLimit};
use softswap_engine::base::stats::{Counter, STATS_WORDS, Stats};
use softswap_engine::codec::Choice;
use softswap_engine::memory::context::PREFETCH_THREADS;
use softswap_engine::policy::mechanism::{Mechanism, Without};
use softswap_engine::store::swap::{Backing, Discard};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::reserve_u64;
use softswap_sys::touches::Served;
use softswap_sys::window::READ_WRITE;
use softswap_testkit::inline::serve_engine;
pub(crate) use softswap_testkit::random::mix64;
pub(crate) use softswap_testkit::waiting::{HANG_TIMEOUT, wait_until};
use softswap_testkit::{Memory, SimDevice};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) memory_mib: u64,
    pub(crate) swap_mib: Option<u64>,
    pub(crate) disk_mib: u64,
    pub(crate) codec: Choice,
    pub(crate) encrypt: bool,
    pub(crate) avoid_move: bool,
    pub(crate) spare_disk_mib: Option<u64>,
    pub(crate) discard: Discard,
    pub(crate) pool: PoolLimit,
    pub(crate) latency: Duration,
    pub(crate) without: Without,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            memory_mib: 16,
            swap_mib: None,
            disk_mib: 256,
            codec: Choice::LZ4,
            encrypt: true,
            avoid_move: false,
            spare_disk_mib: None,
            discard: Discard::None,
            // The automatic limit would make counts depend on time.
            pool: PoolLimit::Percent(40),
            latency: Duration::ZERO,
            without: Without::default(),
        }
    }
}

impl Setup {
    /// Disables admission control, so that a full pool writes its oldest pages back.
    pub(crate) fn all_offered(self) -> Setup {
        Setup { without: self.without.and(Mechanism::Admission), ..self }
    }
}

pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    pub(crate) disk: SimDevice,
    pub(crate) spare: Option<SimDevice>,
    _served: Served,
}

/// Returns two fixtures: one evicts by moving pages, one by copying.
pub(crate) fn worlds() -> impl Iterator<Item = World> {
    worlds_of(Setup::default())
}

pub(crate) fn worlds_of(setup: Setup) -> impl Iterator<Item = World> {
    [false, true]
        .into_iter()
        .map(move |avoid_move| World::new(&Setup { avoid_move, ..setup.clone() }))
}

impl World {
    pub(crate) fn new(setup: &Setup) -> World {
        let disk = SimDevice::with_latency(setup.disk_mib << 20, 42, setup.latency);
        let config = Config {
            memory_bytes: setup.memory_mib << 20,
            codec: setup.codec,
            encrypt: setup.encrypt,
            avoid_move: setup.avoid_move,
            pool: setup.pool,
            without: setup.without,
            ..Config::default()
        };
        let limit_bytes = setup.swap_mib.map(|mib| mib << 20);
        let spare = setup.spare_disk_mib.map(|mib| SimDevice::new(mib << 20, 43));
        let of = |disk: &SimDevice, limit_bytes, priority| Backing {
            priority,
            discard: setup.discard,
            ..Backing::growing(Box::new(disk.clone()), limit_bytes, 0)
        };
        let mut storage = vec![of(&disk, limit_bytes, 1)];
        storage.extend(spare.iter().map(|disk| of(disk, None, 0)));
        let stats = Stats::new(reserve_u64(STATS_WORDS).unwrap());
        let engine = Arc::new(Engine::start(&config, storage, stats).unwrap());
        let _served = serve_engine(&engine).unwrap();
        World { engine, disk, spare, _served }
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.engine.stats().get(counter)
    }

    pub(crate) fn map(&self, pages: usize) -> Memory {
        let len = pages * PAGE_SIZE;
        let address = self.engine.map(len, READ_WRITE).unwrap().expect("the window has free space");
        Memory::new(address, len).unwrap()
    }

    pub(crate) fn map_with(&self, contents: &[Content]) -> Memory {
        let memory = self.map(contents.len());
        write_all(memory, contents);
        memory
    }

    pub(crate) fn map_evicted(&self, contents: &[Content]) -> Memory {
        let memory = self.map_with(contents);
        self.evict(memory);
        memory
    }

    pub(crate) fn mapped(&self, contents: Vec<Content>) -> (Memory, Vec<Content>) {
        (self.map_with(&contents), contents)
    }

    pub(crate) fn evicted(&self, contents: Vec<Content>) -> (Memory, Vec<Content>) {
        (self.map_evicted(&contents), contents)
    }

    /// Forks in name only: no child process exists.
    pub(crate) fn fork(&self) {
        let quiesced = self.engine.quiesce();
        self.engine.before_fork(&quiesced).unwrap();
        self.engine.child_made(&quiesced, self.engine.child_reads_slots(&quiesced));
        drop(quiesced);
    }

    pub(crate) fn map_clean(&self, contents: &[Content]) -> Memory {
        let memory = self.map_with(contents);
        self.assert_survives(memory, contents);
        assert_eq!(self.resident(memory), contents.len());
        memory
    }

    pub(crate) fn resident(&self, memory: Memory) -> usize {
        let mut residency = vec![0; memory.pages()];
        self.engine.residency(memory.address(), &mut residency).unwrap();
        residency.iter().filter(|resident| **resident == 1).count()
    }

    pub(crate) fn evict(&self, memory: Memory) {
        for _ in 0..100 {
            if self.resident(memory) == 0 {
                return;
            }
            self.engine.reclaim_now(100);
        }
        panic!("{} of {} pages were not evicted", self.resident(memory), memory.pages());
    }

    pub(crate) fn evict_and_write_back(&self, memory: Memory) {
        self.evict(memory);
        for _ in 0..100 {
            self.engine.reclaim_now(100);
        }
    }

    pub(crate) fn assert_survives(&self, memory: Memory, contents: &[Content]) {
        self.evict(memory);
        assert_holds(memory, contents);
    }

    pub(crate) fn assert_within_budget(&self) {
        let (peak, budget) = (self.count(Counter::UsedPeakBytes), self.count(Counter::BudgetBytes));
        assert!(peak > 0 && peak <= budget, "{peak} bytes used of {budget}");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Zero,
    Repeated(u64),
    Text(u64),
    /// Compressible to less than a quarter.
    Sparse(u64),
    /// Sixteen letters in random order. LZ4 cannot compress them; entropy coding halves them.
    Digits(u64),
    Random(u64),
}

/// A word that no page entry can encode, so a page of it is stored like others.
pub(crate) const UNENCODABLE: u64 = 0x0123_4567_89ab_cdef;

impl Content {
    pub(crate) fn bytes(self) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        match self {
            Content::Zero => {}
            Content::Repeated(word) => each_word(&mut page, |_| word),
            Content::Text(seed) => {
                let line = |at| format!("{:016x} says much the same\n", mix64(seed << 8 | at));
                let text: String = (0..=PAGE_SIZE as u64 / 35).map(line).collect();
                page.copy_from_slice(&text.as_bytes()[..PAGE_SIZE]);
            }
            Content::Sparse(seed) => {
                each_word(&mut page, |at| if at % 8 == 0 { mix64(seed ^ at << 40) } else { 7 });
            }
            Content::Digits(seed) => {
                let digits = |at| format!("{:016x}", mix64(seed << 9 | at));
                let text: String = (0..PAGE_SIZE as u64 / 16).map(digits).collect();
                page.copy_from_slice(text.as_bytes());
            }
            Content::Random(seed) => each_word(&mut page, |at| mix64(seed ^ at << 40)),
        }
        page
    }
}

fn each_word(page: &mut [u8; PAGE_SIZE], word: impl Fn(u64) -> u64) {
    for (at, bytes) in (0..).zip(page.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word(at).to_ne_bytes());
    }
}

pub(crate) fn every_kind(count: u64) -> Vec<Content> {
    (0..count)
        .map(|page| match page % 6 {
            0 => Content::Zero,
            1 => Content::Repeated(page << 12),
            2 => Content::Repeated(1.5f64.to_bits()),
            3 => Content::Repeated(UNENCODABLE ^ page << 20),
            4 => Content::Text(page),
            _ => Content::Random(page),
        })
        .collect()
}

pub(crate) fn sparse(count: u64) -> Vec<Content> {
    (0..count).map(Content::Sparse).collect()
}

pub(crate) fn random(count: u64) -> Vec<Content> {
    (0..count).map(Content::Random).collect()
}

pub(crate) fn write_all(memory: Memory, contents: &[Content]) {
    for (page, content) in contents.iter().enumerate() {
        assert!(memory.write_bytes(page * PAGE_SIZE, &content.bytes()), "page {page} refused");
    }
}

pub(crate) fn page_of(memory: Memory, page: usize) -> Option<[u8; PAGE_SIZE]> {
    let mut bytes = [0xee; PAGE_SIZE];
    memory.read_bytes(page * PAGE_SIZE, &mut bytes).then_some(bytes)
}

pub(crate) fn assert_holds(memory: Memory, contents: &[Content]) {
    for (page, content) in contents.iter().enumerate() {
        match page_of(memory, page) {
            Some(bytes) => assert!(bytes == content.bytes(), "page {page} is not {content:?}"),
            None => panic!("page {page} ({content:?}) was refused"),
        }
    }
}

/// Reads the file into `memory`. Retries short reads: the kernel tears down the io_uring rings of
/// an earlier test asynchronously, which interrupts system calls of the thread that created them.
pub(crate) fn fill_from(memory: Memory, file: &std::fs::File) {
    let mut done = 0;
    while done < memory.len() {
        let read = memory.part(done, memory.len() - done).read_from(file).unwrap();
        assert!(read > 0, "{done} of {}", memory.len());
        done += read;
    }
}

pub(crate) fn assert_zero(memory: Memory) {
    assert_holds(memory, &vec![Content::Zero; memory.pages()]);
}

#[track_caller]
pub(crate) fn until(world: &World, mut holds: impl FnMut() -> bool) {
    until_in_rounds(world, |_| holds());
}

/// Reclaims until `holds` returns true and four rounds have moved no page of a failed area.
#[track_caller]
pub(crate) fn until_all_have_moved(world: &World, mut holds: impl FnMut() -> bool) {
    let (mut last, mut since) = (0, 0);
    until_in_rounds(world, |rounds| {
        let moved = world.count(Counter::PagesMoved);
        if moved != last {
            (last, since) = (moved, rounds);
        }
        rounds >= since + 4 && holds()
    });
}

/// Runs background reclaim until `holds`, which gets the number of rounds begun, returns true.
#[track_caller]
fn until_in_rounds(world: &World, mut holds: impl FnMut(u64) -> bool) {
    let caller = std::panic::Location::caller().to_string();
    let (done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            world.engine.run_reclaim(|| {
                rounds.fetch_add(1, Ordering::AcqRel);
                !done.load(Ordering::Acquire)
            });
        });
        // End the thread even if `holds` panics. Otherwise the scope would wait for it forever.
        let _end = Finally(|| {
            done.store(true, Ordering::Release);
            world.engine.wake_background();
        });
        let counts = || {
            let of = |name, counter| format!("{name} {}", world.count(counter));
            [
                of("used bytes", Counter::UsedBytes),
                of("budget bytes", Counter::BudgetBytes),
                of("pages out", Counter::PagesOut),
                of("pages moved", Counter::PagesMoved),
                of("discarded bytes", Counter::DiscardedBytes),
            ]
            .join(", ")
        };
        wait_until(&caller, || match holds(rounds.load(Ordering::Acquire)) {
            true => Ok(()),
            false => Err(counts()),
        });
    });
}

struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Size in bytes of the part of each page that one thread writes.
pub(crate) const LINE: usize = 64;

/// Runs `work` in eight threads, and background reclaim. Calls `meanwhile` every millisecond.
pub(crate) fn in_threads(world: &World, work: impl Fn(usize) + Sync, mut meanwhile: impl FnMut()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| world.engine.run_reclaim(|| !done.load(Ordering::Acquire)));
        let work = &work;
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || work(thread))).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            meanwhile();
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Release);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
}

/// Runs four threads that read random pages, and reclaim every 100 steps.
pub(crate) fn read_in_threads(
    world: &World,
    (memory, contents): (Memory, &[Content]),
    steps: u64,
    also: impl Fn(u64, u64) + Sync,
) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let also = &also;
            scope.spawn(move || {
                for step in 0..steps {
                    let page = mix64(thread << 32 | step) as usize % contents.len();
                    let found = page_of(memory, page).unwrap();
                    assert!(found == contents[page].bytes(), "page {page}");
                    also(thread, step);
                    if step % 100 == 0 {
                        world.engine.reclaim_now(4);
                    }
                }
            });
        }
    });
}

/// Reads the thread's part of random pages, and writes it in one of `one_in` steps. Each part must
/// have the thread's last value, or else the original content.
pub(crate) fn read_and_write(
    world: &World,
    (memory, contents): (Memory, &[Content]),
    thread: usize,
    one_in: u64,
) {
    let word = |content: &Content| {
        let bytes = content.bytes();
        u64::from_ne_bytes(bytes.as_chunks().0[thread * LINE / 8])
    };
    let mut expected: Vec<_> = contents.iter().map(word).collect();
    for step in 0..15_000 {
        let chance = mix64((thread << 32 | step) as u64);
        let page = (chance >> 8) as usize % memory.pages();
        let at = page * PAGE_SIZE + thread * LINE;
        let wanted = &mut expected[page];
        assert!(memory.read(at) == Some(*wanted), "page {page}");
        match chance % one_in {
            0 => {
                *wanted = chance | 1;
                assert!(memory.write(at, *wanted));
            }
            1 if thread == 0 => {
                world.engine.reclaim_now(1);
            }
            _ => {}
        }
    }
}

pub(crate) fn prefetch<'s>(
    scope: &'s thread::Scope<'s, '_>,
    world: &'s World,
    done: &'s AtomicBool,
) {
    for index in 0..PREFETCH_THREADS {
        scope.spawn(move || world.engine.run_prefetch(index, || !done.load(Ordering::Relaxed)));
    }
}

pub(crate) fn with_prefetch(world: &World, body: impl FnOnce()) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        prefetch(scope, world, &done);
        let result = catch_unwind(AssertUnwindSafe(body));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    });
}
