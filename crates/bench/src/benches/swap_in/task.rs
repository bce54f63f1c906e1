//! The program that is measured: threads write to random pages of more memory
//! than the budget holds. Every page's content is known at any time and
//! compared at the end.
//!
//! It runs under the preloaded runtime like any other program, and takes its
//! turns by lines on its standard streams: it says `filled`, waits for a line,
//! touches, says what that took, waits for a line, compares, says `same`.

use crate::measure::noise::{below, noise};
use crate::measure::region::{Noise, Region, WORDS, on_threads};
use crate::measure::task_pipe::{process_cpu_seconds, receive, send, send_json};
use clap::Args;
use serde::{Deserialize, Serialize};
use softswap_cli::refusal::{Refusal, plain};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

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

pub(crate) fn run(args: &TaskArgs) -> Result<ExitCode, Refusal> {
    let region = Region::filled(args.pages, &Noise)
        .map_err(|error| Refusal::own(format!("no memory: {}", plain(&error))))?;
    send("filled")?;
    receive()?;
    let cpu_before = process_cpu_seconds();
    let (seconds, _) = on_threads(args.threads, |thread| touch(&region, args, thread));
    send_json(&Took { seconds, cpu_seconds: process_cpu_seconds() - cpu_before })?;
    receive()?;
    if args.damage {
        region.word(args.pages - 1, WORDS / 2).fetch_xor(1, Relaxed);
    }
    match region.first_wrong(&Noise) {
        None => send("same").map(|()| ExitCode::SUCCESS),
        Some(page) => Err(Refusal::own(format!("page {page} does not hold what was written"))),
    }
}

/// One word to one page at a time, at random; each thread has pages of its own.
fn touch(region: &Region, args: &TaskArgs, thread: usize) {
    let each = region.pages().div_ceil(args.threads);
    let first = thread * each;
    let pages = region.pages().saturating_sub(first).min(each) as u64;
    let touches = if pages == 0 { 0 } else { args.touches / args.threads };
    for number in noise(args.seed + thread as u64).take(touches) {
        region.write(first + below(number, pages) as usize);
    }
}
