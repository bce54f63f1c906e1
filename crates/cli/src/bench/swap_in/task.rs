//! The program that is measured: threads write to random pages of more memory
//! than the budget holds. Every page's content is known at any time and
//! compared at the end.
//!
//! It runs under the preloaded runtime like any other program, and takes its
//! turns by lines on its standard streams: it says `filled`, waits for a line,
//! touches, says what that took, waits for a line, compares, says `same`.

use super::super::noise::{below, noise};
use crate::refusal::Refusal;
use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::reserve_u32;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

const WORDS: usize = PAGE_SIZE / 8;

/// The program that `bench swap-in` runs; of no use by itself.
#[derive(Args)]
pub(crate) struct TaskArgs {
    #[arg(long)]
    pages: usize,
    #[arg(long)]
    touches: usize,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    seed: u64,
    /// Damages a page before the comparison, which must notice.
    #[arg(long)]
    damage: bool,
}

/// What the touching took.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Took {
    pub(super) seconds: f64,
    /// User and system time of the whole process, reclaim included.
    pub(super) cpu_seconds: f64,
}

/// The pages of one thread, and how often it has written to each. The counts
/// lie in memory that is not managed.
struct Part<'m> {
    first: usize,
    words: &'m mut [u64],
    writes: &'m [AtomicU32],
}

pub(in super::super) fn run(args: &TaskArgs) -> Result<ExitCode, Refusal> {
    let no_memory = |error: std::io::Error| Refusal::own(format!("no memory: {error}"));
    let writes = reserve_u32(args.pages).map_err(no_memory)?;
    let mut memory = vec![0u64; (args.pages + 1) * WORDS];
    // The allocator puts its own words before the first; pages begin later.
    let gap = (PAGE_SIZE - memory.as_ptr() as usize % PAGE_SIZE) % PAGE_SIZE / 8;
    let words = &mut memory[gap..gap + args.pages * WORDS];
    let mut parts = split(words, writes, args.threads);

    on_each(&mut parts, |part, _| fill(part));
    say("filled")?;
    hear()?;
    let cpu_before = process_cpu_seconds();
    let touches = args.touches / parts.len().max(1);
    let seconds = on_each(&mut parts, |part, thread| {
        touch(part, touches, args.seed + thread as u64);
    });
    let took = Took { seconds, cpu_seconds: process_cpu_seconds() - cpu_before };
    say(&serde_json::to_string(&took).map_err(|error| Refusal::own(error.to_string()))?)?;
    hear()?;
    if args.damage {
        let last = parts.len() - 1;
        parts[last].words[WORDS / 2] ^= 1;
    }
    let wrong = parts.iter().find_map(first_wrong);
    match wrong {
        None => say("same").map(|()| ExitCode::SUCCESS),
        Some(page) => Err(Refusal::own(format!("page {page} does not hold what was written"))),
    }
}

fn split<'m>(words: &'m mut [u64], writes: &'m [AtomicU32], threads: usize) -> Vec<Part<'m>> {
    let each = writes.len().div_ceil(threads.max(1));
    let firsts = (0..).map(|part| part * each);
    let parts = words.chunks_mut(each * WORDS).zip(writes.chunks(each)).zip(firsts);
    parts.map(|((words, writes), first)| Part { first, words, writes }).collect()
}

/// Runs `body` on every part at the same time, in a thread each; the seconds
/// from their start to the end of the last.
fn on_each(parts: &mut [Part<'_>], body: impl Fn(&mut Part<'_>, usize) + Sync) -> f64 {
    let barrier = Barrier::new(parts.len() + 1);
    let (barrier, body) = (&barrier, &body);
    std::thread::scope(|scope| {
        for (thread, part) in parts.iter_mut().enumerate() {
            scope.spawn(move || {
                barrier.wait();
                body(part, thread);
                barrier.wait();
            });
        }
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        start.elapsed().as_secs_f64()
    })
}

/// What fills a page: no two are alike, and none can be compressed.
fn content(page: usize) -> impl Iterator<Item = u64> {
    noise(page as u64)
}

/// The word that the write with this number leaves in a page, and where.
fn word_of(page: usize, write: u32) -> (usize, u64) {
    let number = noise((page as u64) << 32 | u64::from(write) | 1 << 63).next().unwrap_or(0);
    (below(number, WORDS as u64) as usize, number)
}

fn fill(part: &mut Part<'_>) {
    for (page, words) in (part.first..).zip(part.words.chunks_exact_mut(WORDS)) {
        words.iter_mut().zip(content(page)).for_each(|(word, number)| *word = number);
    }
}

/// One word to one page at a time, at random.
fn touch(part: &mut Part<'_>, touches: usize, seed: u64) {
    let pages = part.writes.len() as u64;
    for number in noise(seed).take(touches) {
        let index = below(number, pages) as usize;
        let write = part.writes[index].fetch_add(1, Relaxed);
        let (at, word) = word_of(part.first + index, write);
        part.words[index * WORDS + at] = word;
    }
}

/// The first page that does not hold its content and all writes to it.
fn first_wrong(part: &Part<'_>) -> Option<usize> {
    let mut expected = [0; WORDS];
    let pages = (part.first..).zip(part.words.chunks_exact(WORDS)).zip(part.writes);
    for ((page, words), writes) in pages {
        expected.iter_mut().zip(content(page)).for_each(|(word, number)| *word = number);
        for write in 0..writes.load(Relaxed) {
            let (at, word) = word_of(page, write);
            expected[at] = word;
        }
        if words != expected {
            return Some(page);
        }
    }
    None
}

fn say(line: &str) -> Result<(), Refusal> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    said.map_err(|error| Refusal::own(format!("nobody listens: {error}")))
}

fn hear() -> Result<(), Refusal> {
    match std::io::stdin().lock().read_line(&mut String::new()) {
        Ok(count) if count > 0 => Ok(()),
        _ => Err(Refusal::own("this program is started by `softswap bench swap-in`")),
    }
}

fn process_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 21;

    fn with_parts(threads: usize, body: impl FnOnce(&mut [Part<'_>])) {
        let writes: Vec<AtomicU32> = (0..PAGES).map(|_| AtomicU32::new(0)).collect();
        let mut words = vec![0; PAGES * WORDS];
        let mut parts = split(&mut words, &writes, threads);
        assert_eq!(parts.iter().map(|part| part.writes.len()).sum::<usize>(), PAGES);
        on_each(&mut parts, |part, _| fill(part));
        on_each(&mut parts, |part, thread| touch(part, 100, thread as u64));
        body(&mut parts);
    }

    #[test]
    fn what_was_written_is_found_again() {
        for threads in [1, 2, 8] {
            with_parts(threads, |parts| {
                assert_eq!(parts.iter().find_map(first_wrong), None);
                let writes = parts.iter().flat_map(|part| part.writes);
                let count: u32 = writes.map(|count| count.load(Relaxed)).sum();
                assert_eq!(count as usize, parts.len() * 100);
            });
        }
    }

    #[test]
    fn a_lost_write_and_a_wrong_bit_are_noticed() {
        with_parts(3, |parts| {
            let part = &mut parts[1];
            let index = part.writes.iter().position(|count| count.load(Relaxed) > 0).unwrap();
            part.writes[index].fetch_add(1, Relaxed);
            assert_eq!(first_wrong(part), Some(part.first + index));
            part.writes[index].fetch_sub(1, Relaxed);
            assert_eq!(first_wrong(part), None);
            part.words[WORDS + 7] ^= 1 << 40;
            assert_eq!(first_wrong(part), Some(part.first + 1));
        });
    }

    #[test]
    fn pages_differ() {
        assert!(!content(1).take(WORDS).eq(content(2).take(WORDS)));
        assert!(word_of(1, 0) != word_of(1, 1) && word_of(1, 0) != word_of(2, 0));
    }
}
