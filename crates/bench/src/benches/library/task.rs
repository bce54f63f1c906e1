//! The program that is measured: the same loops over the same bytes, wherever these lie.

use crate::measure::noise::{below, noise};
use crate::measure::task_pipe::send_json;
use clap::{Args, ValueEnum};
use softswap::{Advice, Pool, Region};
use softswap_cli::refusal::{Refusal, plain};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is done, in this order. The first writes all words, the last reads them all; the others
/// touch one word of a page.
pub(crate) const STEPS: [&str; 6] =
    ["fill", "sequential_read", "sequential_write", "random_read", "random_write", "scan"];

/// Where the bytes are that are touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
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

impl Place {
    pub(super) const ALL: [Place; 4] = [Place::Pool, Place::Run, Place::File, Place::KernelFile];

    pub(super) fn name(self) -> &'static str {
        match self {
            Place::Pool => "pool",
            Place::Run => "run",
            Place::File => "file",
            Place::KernelFile => "kernel_file",
        }
    }
}

/// The program that `bench library` runs; of no use by itself.
#[derive(Args)]
pub(crate) struct LibraryTaskArgs {
    #[arg(long)]
    place: Place,
    #[arg(long)]
    pages: usize,
    /// Of each step in no order
    #[arg(long)]
    touches: usize,
    #[arg(long)]
    seed: u64,
    /// The pool's budget in bytes
    #[arg(long)]
    memory: u64,
    #[arg(long)]
    dir: PathBuf,
}

/// The ns for a page of each step.
pub(crate) type Told = [f64; STEPS.len()];

/// Words by their places, wherever they lie.
trait Words {
    fn get(&self, at: usize) -> u64;
    fn set(&mut self, at: usize, word: u64);

    /// Says in which order they are touched from now on.
    fn advise(&mut self, _is_random: bool) {}
}

fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes.as_chunks().0[at])
}

fn set(bytes: &mut [u8], at: usize, word: u64) {
    bytes.as_chunks_mut().0[at] = word.to_ne_bytes();
}

impl Words for Vec<u8> {
    #[inline]
    fn get(&self, at: usize) -> u64 {
        get(self, at)
    }

    #[inline]
    fn set(&mut self, at: usize, word: u64) {
        set(self, at, word);
    }
}

impl Words for Region {
    #[inline]
    fn get(&self, at: usize) -> u64 {
        get(self, at)
    }

    #[inline]
    fn set(&mut self, at: usize, word: u64) {
        set(self, at, word);
    }

    fn advise(&mut self, is_random: bool) {
        let advice = if is_random { Advice::Random } else { Advice::Sequential };
        // A hint: where it is refused the loops are the same.
        let _ = Region::advise(self, .., advice);
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
        // A hint, as above.
        let _ = softswap_sys::shared::advise_order(self.0, is_random);
    }
}

const WORDS: usize = PAGE_SIZE / 8;
/// Of so many words of a page one is unlike all others: it packs to about a quarter.
const ONE_IN: usize = 4;

/// What a word of a page holds after `writes` rounds of writing.
fn word(page: usize, at: usize, writes: u64) -> u64 {
    match at {
        0 => page as u64 ^ writes << 32,
        at if at.is_multiple_of(ONE_IN) => noise((page * WORDS + at) as u64).next().unwrap_or(0),
        _ => page as u64,
    }
}

pub(crate) fn run(args: &LibraryTaskArgs) -> Result<ExitCode, Refusal> {
    let len = args.pages * PAGE_SIZE;
    let refused = |error: softswap::Error| Refusal::own(error.to_string());
    let told = match args.place {
        Place::Pool => {
            let builder = Pool::builder().memory_bytes(args.memory);
            let builder = builder.swap(&args.dir.to_string_lossy()).map_err(refused)?;
            let pool = builder.build().map_err(refused)?;
            work(args, pool.map(len).map_err(refused)?)?
        }
        Place::Run | Place::KernelFile => work(args, vec![0_u8; len])?,
        Place::File => {
            let path = args.dir.join("data");
            let words = softswap_sys::shared::map_new_file(&path, len / 8, 0)
                .map_err(|error| Refusal::own(format!("{}: {}", path.display(), plain(&error))))?;
            // It goes with the process.
            let _ = std::fs::remove_file(&path);
            work(args, Mapped(words))?
        }
    };
    send_json(&told)?;
    Ok(ExitCode::SUCCESS)
}

fn work(args: &LibraryTaskArgs, mut words: impl Words) -> Result<Told, Refusal> {
    let a_page = |start: u64, pages: usize| (now_ns() - start) as f64 / pages as f64;
    let mut told = Told::default();
    let start = now_ns();
    for page in 0..args.pages {
        (0..WORDS).for_each(|at| words.set(page * WORDS + at, word(page, at, 0)));
    }
    told[0] = a_page(start, args.pages);
    let mut writes = 0;
    let mut wrong = 0_usize;
    for (step, ns) in told[1..STEPS.len() - 1].iter_mut().enumerate() {
        let (is_random, is_write) = (step >= 2, step % 2 == 1);
        let touches = if is_random { args.touches } else { args.pages };
        let mut numbers = noise(args.seed + step as u64);
        words.advise(is_random);
        let start = now_ns();
        for at in 0..touches {
            let number = numbers.next().unwrap_or(0);
            let page = if is_random { below(number, args.pages as u64) as usize } else { at };
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
    let sum = (0..args.pages * WORDS).fold(0, |sum, at| words.get(at).wrapping_add(sum));
    told[STEPS.len() - 1] = a_page(start, args.pages);
    let mut expected = 0_u64;
    for page in 0..args.pages {
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
        return Ok(told);
    }
    Err(Refusal::own(format!(
        "{wrong} words are not what was written, {writes} writes are lost, the sum is {sum} and \
         should be {expected}"
    )))
}
