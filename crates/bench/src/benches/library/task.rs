//! The measured program: the same loops over the same bytes in each place.

use crate::measure::managed_program::softswap_run;
use crate::measure::noise::{below, noise};
use crate::measure::region::{WORDS, on_threads};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, Object, object};
use crate::measure::task_pipe::{TaskPipe, send_json};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use softswap::{Advice, Pool, Region};
use softswap_cli::library::own_executable;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use softswap_sys::raw::now_ns;
use std::ffi::OsString;
use std::ops::DerefMut;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The first writes all words, the last reads all. The others touch one word per page.
pub(crate) const STEPS: [&str; 6] =
    ["fill", "sequential_read", "sequential_write", "random_read", "random_write", "scan"];

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
    touches: usize,
    seed: u64,
    memory_bytes: u64,
    dir: PathBuf,
    /// Threads of [`Place::Run`]. Each touches an equal part of the pages.
    pub(crate) threads: usize,
}

impl Task {
    /// Creates a task whose touches depend only on the round, not on the place.
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
        Task { place, pages, touches: touches as usize, seed, memory_bytes, dir, threads: 1 }
    }

    pub(crate) fn run(
        &self,
        command: Command,
        signals: &SignalQueue,
        kept: &[BorrowedFd<'_>],
    ) -> Result<StepTimes, Refusal> {
        let mut pipe = TaskPipe::start(command, "library-task", self, signals, kept)?;
        let times = pipe.receive_json()?;
        pipe.wait()?;
        Ok(times)
    }

    pub(crate) fn run_swapped(
        &self,
        areas: &[OsString],
        signals: &SignalQueue,
    ) -> Result<StepTimes, Refusal> {
        let mut command = softswap_run()?;
        command.args(areas.iter().flat_map(|area| [OsString::from("--swap"), area.clone()]));
        command.args(["--codec", "none"]).arg(format!("--memory={}", self.memory_bytes));
        command.arg("--").arg(own_executable()?);
        self.run(command, signals, &[])
    }
}

/// Time of each step in ns, divided by the pages that all threads touch.
pub(crate) type StepTimes = [f64; STEPS.len()];

pub(crate) fn step_rows<K>(
    cells: &[Cell<K, StepTimes>],
    columns: impl Fn(&K) -> Object,
) -> Vec<Object> {
    let row = |cell: &Cell<K, StepTimes>, at: usize| {
        let (step, ns) = (STEPS[at], |times: &StepTimes| times[at]);
        let mut row = columns(&cell.key);
        let (cov, count) = (cell.cov(ns), cell.rounds.len());
        row.extend(object! { step, ns: cell.median(ns), cov, count });
        row
    };
    cells.iter().flat_map(|cell| (0..STEPS.len()).map(move |at| row(cell, at))).collect()
}

pub(crate) fn step_ratios<K>(
    (one, other): (&Cell<K, StepTimes>, &Cell<K, StepTimes>),
    name: impl Fn(&str) -> String,
    log: &mut Log,
) {
    for (at, step) in STEPS.into_iter().enumerate() {
        log.ratio(name(step), one.ratio_to(other, |times| times[at]));
    }
}

trait Words {
    fn get(&self, at: usize) -> u64;
    fn set(&mut self, at: usize, word: u64);

    /// Advises the order of later touches. Errors are ignored.
    fn advise(&mut self, is_random: bool);
}

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

/// Every n-th word is random, so a page compresses to about a quarter.
const ONE_IN: usize = 4;

/// Returns the expected word after `writes` rounds of writing.
fn word(page: usize, at: usize, writes: u64) -> u64 {
    match at {
        0 => page as u64 ^ writes << 32,
        at if at.is_multiple_of(ONE_IN) => noise((page * WORDS + at) as u64).next().unwrap_or(0),
        _ => page as u64,
    }
}

pub(crate) fn run(args: &LibraryTaskArgs) -> Result<ExitCode, Refusal> {
    let task: Task = serde_json::from_str(&args.task).map_err(Refusal::own)?;
    let len = task.pages * PAGE_SIZE;
    let times = match task.place {
        Place::Pool => {
            let builder = Pool::builder().memory_bytes(task.memory_bytes);
            let builder = builder.swap(&task.dir.to_string_lossy()).map_err(Refusal::own)?;
            let pool = builder.build().map_err(Refusal::own)?;
            let advise = |region: &mut Region, is_random: bool| {
                let advice = if is_random { Advice::Random } else { Advice::Sequential };
                let _ = region.advise(.., advice);
            };
            work(&task, Bytes(pool.map(len).map_err(Refusal::own)?, advise))?
        }
        Place::Run | Place::KernelFile => in_threads(task, &mut vec![0_u8; len])?,
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

/// Touches equal parts in threads. Returns the mean of their times per page, divided by their
/// number.
fn in_threads(task: Task, bytes: &mut [u8]) -> Result<StepTimes, Refusal> {
    let threads = task.threads;
    let (pages, touches) = (task.pages / threads, task.touches / threads);
    let share = &Task { pages, touches, ..task };
    let parts = bytes.chunks_exact_mut(pages * PAGE_SIZE);
    let (_, times) = on_threads(parts, |part| work(share, Bytes(part, |_: &mut &mut [u8], _| ())));
    let times = times.into_iter().collect::<Result<Vec<StepTimes>, _>>()?;
    Ok(std::array::from_fn(|step| {
        times.iter().map(|of_thread| of_thread[step]).sum::<f64>() / (threads * threads) as f64
    }))
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
        "data corruption: {wrong} words differ from what was written, {writes} writes were lost, \
         the sum is {sum} instead of {expected}; please report this"
    )))
}
