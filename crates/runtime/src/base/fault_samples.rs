//! Page faults sampled for `softswap record`: instruction, page, waiting time, and the words of the
//! stack needed to unwind it.
//!
//! While sampling is on, the faulting thread records one fault in N in its signal handler, in a
//! ring, without locks, allocation or waiting. If the ring's next entry is still in use, the fault
//! counts as missed. The kernel copies the stack, so a bad address is an error, not a fault.
//! Sampling stops if no request comes.

use super::python_frames;
use super::uaccess::copy_by_kernel;
use softswap_engine::api::control_protocol::Python;
use softswap_engine::api::fault_samples::{FaultSample, FaultSamples, Toucher};
use softswap_engine::base::stats::Tier;
use softswap_sys::signals::{Context, Registers};
use softswap_sys::{proc_maps, raw};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

const RING_ENTRIES: usize = 128;
/// 8 KiB of stack per sample.
const STACK_WORDS: usize = 1024;
/// Time after the last request until sampling stops.
const LEASE_NS: u64 = 2_000_000_000;
/// Approximate limit of an answer in bytes. The next request returns further samples.
const MAX_ANSWER_BYTES: usize = 128 << 10;

/// One in this many faults is sampled; 0: none.
static EVERY: AtomicU32 = AtomicU32::new(0);
static FAULTS: AtomicU32 = AtomicU32::new(0);
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Number of faults represented by samples whose entry was in use.
static MISSED: AtomicU64 = AtomicU64::new(0);
static UNTIL_NS: AtomicU64 = AtomicU64::new(0);
static RING: OnceLock<Box<[RingEntry]>> = OnceLock::new();

const EMPTY: u32 = 0;
const CLAIMED: u32 = 1;
const FULL: u32 = 2;

#[derive(Clone, Copy)]
#[repr(usize)]
enum Word {
    Faults,
    Tier,
    Toucher,
    Waited,
    Address,
    Instruction,
    Stack,
    Frame,
    StackBytes,
    PythonFrames,
}

const WORDS: usize = Word::PythonFrames as usize + 1;

struct RingEntry {
    state: AtomicU32,
    words: [AtomicU64; WORDS],
    stack: [AtomicU64; STACK_WORDS],
    python: [AtomicU64; python_frames::MAX_FRAMES],
}

#[derive(Clone, Copy)]
pub(crate) struct Due {
    every: u32,
    since_ns: u64,
}

#[inline]
pub(crate) fn due() -> Option<Due> {
    match EVERY.load(Relaxed) {
        0 => None,
        every => due_of(every),
    }
}

/// Selects faults by multiples of the golden ratio (Weyl sequence), so that no period of the
/// program coincides with the samples.
#[cold]
fn due_of(every: u32) -> Option<Due> {
    const GOLDEN: u32 = 0x9e37_79b9;
    let number = FAULTS.fetch_add(1, Relaxed).wrapping_mul(GOLDEN);
    if number > u32::MAX / every {
        return None;
    }
    let since_ns = raw::now_ns();
    if since_ns > UNTIL_NS.load(Relaxed) {
        EVERY.store(0, Relaxed);
        return None;
    }
    Some(Due { every, since_ns })
}

#[cold]
pub(crate) fn record(due: Due, address: usize, toucher: Toucher, tier: Tier, context: Context<'_>) {
    let waited_ns = raw::now_ns() - due.since_ns;
    let at = NEXT.fetch_add(1, Relaxed) as usize % RING_ENTRIES;
    let entry = RING.get().map(|ring| &ring[at]);
    let claimed = entry
        .filter(|entry| entry.state.compare_exchange(EMPTY, CLAIMED, Acquire, Relaxed).is_ok());
    let Some(entry) = claimed else {
        MISSED.fetch_add(u64::from(due.every), Relaxed);
        return;
    };
    let Registers { instruction, stack, frame } = context.registers();
    let bytes = match stack.is_multiple_of(8) {
        true => copy_by_kernel(stack, entry.stack.as_ptr() as *mut u8, size_of_val(&entry.stack)),
        false => 0,
    };
    let python = python_frames::record(&entry.python);
    for (word, value) in [
        (Word::Faults, u64::from(due.every)),
        (Word::Tier, tier as u64),
        (Word::Toucher, toucher as u64),
        (Word::Waited, waited_ns),
        (Word::Address, address as u64),
        (Word::Instruction, instruction as u64),
        (Word::Stack, stack as u64),
        (Word::Frame, frame as u64),
        (Word::StackBytes, u64::try_from(bytes).unwrap_or(0)),
        (Word::PythonFrames, python as u64),
    ] {
        entry.words[word as usize].store(value, Relaxed);
    }
    entry.state.store(FULL, Release);
}

/// Takes the samples so far, and starts sampling one fault in `every` (0: none). New samples
/// include the frames of the interpreter `python`. Called by a thread of the engine.
pub(crate) fn take(every: u32, python: Option<Python>) -> FaultSamples {
    let ring = RING.get_or_init(|| {
        let word = || AtomicU64::new(0);
        let entry = || RingEntry {
            state: AtomicU32::new(EMPTY),
            words: std::array::from_fn(|_| word()),
            stack: std::array::from_fn(|_| word()),
            python: std::array::from_fn(|_| word()),
        };
        (0..RING_ENTRIES).map(|_| entry()).collect()
    });
    let is_code = |mapping: &proc_maps::Mapping| mapping.protection & libc::PROT_EXEC != 0;
    let all = proc_maps::mappings(0..usize::MAX, false).unwrap_or_default();
    let code: Vec<_> = all.into_iter().filter(is_code).map(|mapping| mapping.range).collect();
    let mut result = FaultSamples { missed: MISSED.swap(0, Relaxed), ..FaultSamples::default() };
    let mut bytes = 0;
    for entry in ring.iter().filter(|entry| entry.state.load(Acquire) == FULL) {
        if bytes > MAX_ANSWER_BYTES {
            break;
        }
        let sample = entry.sample(&code);
        entry.state.swap(EMPTY, AcqRel);
        bytes += sample.as_ref().map_or(0, |sample| sample.line().len());
        result.samples.extend(sample);
    }
    python_frames::set_interpreter(python);
    UNTIL_NS.store(raw::now_ns() + LEASE_NS, Relaxed);
    EVERY.store(every, Relaxed);
    result
}

impl RingEntry {
    fn sample(&self, code: &[Range<usize>]) -> Option<FaultSample> {
        let word = |word: Word| self.words[word as usize].load(Relaxed);
        let (stack, bytes) = (word(Word::Stack), word(Word::StackBytes));
        let is_code = |address: u64| {
            let after = code.partition_point(|range| range.end as u64 <= address);
            code.get(after).is_some_and(|range| range.contains(&(address as usize)))
        };
        let is_address = |word: u64| (stack..stack + bytes).contains(&word) || is_code(word);
        let words = self.stack.iter().take(bytes as usize / 8).zip(0_u16..);
        let words = words.map(|(word, distance)| (distance, word.load(Relaxed)));
        Some(FaultSample {
            faults: word(Word::Faults),
            tier: *softswap_engine::base::stats::TIERS.get(word(Word::Tier) as usize)?,
            toucher: *[Toucher::Read, Toucher::Write, Toucher::Call]
                .get(word(Word::Toucher) as usize)?,
            waited_ns: word(Word::Waited),
            address: word(Word::Address),
            instruction: word(Word::Instruction),
            stack,
            frame: word(Word::Frame),
            words: words.filter(|(_, word)| is_address(*word)).collect(),
            python: python_frames::frames(&self.python[..word(Word::PythonFrames) as usize]),
        })
    }
}
