//! The measured program: the same loops over the same bytes in each place.

use crate::measure::failure::{OrRefuse, own};
use crate::measure::noise::{below, noise};
use crate::measure::task_pipe::send_json;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use softswap::{Advice, Pool, Region};
use softswap_cli::refusal::Refusal;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;
use std::ops::DerefMut;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Names of the steps, in order. The first writes all words, the last reads all words. The others touch one
/// word per page.
pub(crate) const STEPS: [&str; 6] =
    ["fill", "sequential_read", "sequential_write", "random_read", "random_write", "scan"];

/// Location of the touched bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
pub(crate) enum Place {
    /// In a region of a pool
    Pool,
    /// On the heap under `softswap run`
    Run,
    /// In a mapping of a file
    File,
    /// On the heap, with a swap file of the kernel
    KernelFile,
}

/// The program that `bench library` and `bench remote` run; for internal use.
#[derive(Args)]
pub(crate) struct LibraryTaskArgs {
    task: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    place: Place,
    pages: usize,
    /// Touches of each random step.
    touches: usize,
    seed: u64,
    memory_bytes: u64,
    dir: PathBuf,
}

impl Task {
    /// Within a round the touches are the same for all places.
    pub(crate) fn new(
        place: Place,
        region_bytes: u64,
        touches: u32,
        round: usize,
        memory_bytes: u64,
        dir: PathBuf,
    ) -> Task {
        let pages = region_bytes as usize / PAGE_SIZE;
        let seed = 1000 * (round as u64 + 1);
        Task { place, pages, touches: touches as usize, seed, memory_bytes, dir }
    }
}

/// Time of each step in ns per page.
pub(crate) type StepTimes = [f64; STEPS.len()];

/// Indexed access to words.
trait Words {
    fn get(&self, at: usize) -> u64;
    fn set(&mut self, at: usize, word: u64);

    /// Gives a hint about the order of later touches. May fail.
    fn advise(&mut self, is_random: bool);
}

/// Memory with a function for hints.
struct Bytes<M, A>(M, A);

impl<M: DerefMut<Target = [u8]>, A: Fn(&mut M, bool)> Words for Bytes<M, A> {
    #[inline]
    fn get(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0.as_chunks().0[at])
    }

    #[inline]
    fn set(&mut self, at: usize, word: u64) {
        self.0.as_chunks_mut().0[at] = word.to_ne_bytes();
    }

    fn advise(&mut self, is_random: bool) {
        (self.1)(&mut self.0, is_random);
    }
}

struct Mapped(&'static [AtomicU64]);

impl Words for Mapped {
    #[inline]
    fn get(&self, at: usize) -> u64 {
        self.0[at].load(Relaxed)
    }

    #[inline]
    fn set(&mut self, at: usize, word: u64) {
        self.0[at].store(word, Relaxed);
    }

    fn advise(&mut self, is_random: bool) {
        let _ = softswap_sys::shared::advise_order(self.0, is_random);
    }
}

const WORDS: usize = PAGE_SIZE / 8;
/// Spacing of words that differ from all others. A page then compresses to about a quarter.
const ONE_IN: usize = 4;

/// Returns the expected word of a page after `writes` rounds of writing.
fn word(page: usize, at: usize, writes: u64) -> u64 {
    match at {
        0 => page as u64 ^ writes << 32,
        at if at.is_multiple_of(ONE_IN) => noise((page * WORDS + at) as u64).next().unwrap_or(0),
        _ => page as u64,
    }
}

pub(crate) fn run(args: &LibraryTaskArgs) -> Result<ExitCode, Refusal> {
    let task: Task = serde_json::from_str(&args.task).map_err(own)?;
    let len = task.pages * PAGE_SIZE;
    let times = match task.place {
        Place::Pool => {
            let builder = Pool::builder().memory_bytes(task.memory_bytes);
            let builder = builder.swap(&task.dir.to_string_lossy()).map_err(own)?;
            let pool = builder.build().map_err(own)?;
            let advise = |region: &mut Region, is_random: bool| {
                let advice = if is_random { Advice::Random } else { Advice::Sequential };
                let _ = region.advise(.., advice);
            };
            work(&task, Bytes(pool.map(len).map_err(own)?, advise))?
        }
        Place::Run | Place::KernelFile => work(&task, Bytes(vec![0_u8; len], |_: &mut _, _| ()))?,
        Place::File => {
            let path = task.dir.join("data");
            let words = softswap_sys::shared::map_new_file(&path, len / 8, 0);
            let words = words.or_own(path.display())?;
            // The mapping keeps the file's content until the process exits.
            let _ = std::fs::remove_file(&path);
            work(&task, Mapped(words))?
        }
    };
    send_json(&times)?;
    Ok(ExitCode::SUCCESS)
}

fn work(task: &Task, mut words: impl Words) -> Result<StepTimes, Refusal> {
    let a_page = |start: u64, pages: usize| (now_ns() - start) as f64 / pages as f64;
    let mut times = StepTimes::default();
    let start = now_ns();
    for page in 0..task.pages {
        (0..WORDS).for_each(|at| words.set(page * WORDS + at, word(page, at, 0)));
    }
    times[0] = a_page(start, task.pages);
    let mut writes = 0;
    let mut wrong = 0_usize;
    for (step, ns) in times[1..STEPS.len() - 1].iter_mut().enumerate() {
        let (is_random, is_write) = (step >= 2, step % 2 == 1);
        let touches = if is_random { task.touches } else { task.pages };
        let mut numbers = noise(task.seed + step as u64);
        words.advise(is_random);
        let start = now_ns();
        for at in 0..touches {
            let number = numbers.next().unwrap_or(0);
            let page = if is_random { below(number, task.pages as u64) as usize } else { at };
            let first = words.get(page * WORDS);
            wrong += usize::from(first & 0xffff_ffff != page as u64);
            if is_write {
                words.set(page * WORDS, page as u64 ^ ((first >> 32) + 1) << 32);
                writes += 1;
            }
        }
        *ns = a_page(start, touches);
    }
    words.advise(false);
    let start = now_ns();
    let sum = (0..task.pages * WORDS).fold(0, |sum, at| words.get(at).wrapping_add(sum));
    times[STEPS.len() - 1] = a_page(start, task.pages);
    let mut expected = 0_u64;
    for page in 0..task.pages {
        let first = words.get(page * WORDS);
        let written = first >> 32;
        writes -= written as usize;
        for at in 0..WORDS {
            let right = word(page, at, written);
            expected = expected.wrapping_add(right);
            wrong += usize::from(words.get(page * WORDS + at) != right);
        }
    }
    if wrong == 0 && writes == 0 && sum == expected {
        return Ok(times);
    }
    Err(Refusal::own(format!(
        "{wrong} words are not what was written, {writes} writes are lost, the sum is {sum} and \
         should be {expected}"
    )))
}
