//! `softswap analyze pages`: what softswap could make of a program's memory.

mod measured;
mod advice;
mod outcome;
mod save;

use crate::measure::machine::Machine;
use crate::measure::report::Output;
use crate::pages::open;
use crate::pages::packing::Workplace;
use crate::pages::source::{Count, Source};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use measured::Measured;
use outcome::PagesOutcome;
use save::SavedPages;
use softswap_cli::refusal::Refusal;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print how many pages of a program repeat one word, and how the others pack.
///
/// Reads the private writable memory of a process that is in DRAM, of a core
/// file, or a dump of pages. The process is neither stopped nor changed.
#[derive(Args)]
#[command(after_long_help = "\
A number is a process; a file of that name is ./NUMBER. Reading a process takes the same user or
root, and where kernel.yama.ptrace_scope is 1, root or its parent. What the kernel or softswap has
swapped out is left out. Of a core file the segments of writable memory are read. Anything else must
be a multiple of 4096 bytes long.

Checks: forward compares word by word from the start, backward from the end, last_first the last
word with the first one and then as forward; softswap is the engine's own, which compares many words
at a time and so has no count. An iteration is one word compared. MB/s are of whole pages, also where
one word decided. Codecs get the pages that are not same-filled; what packs to more than 3072 bytes
counts as incompressible. Everything is one thread's.

--save keeps what was examined, page after page, for later or for another machine. It holds whatever
the program holds, passwords too; the file is open to its owner only (mode 0600).

With --json: {\"schema\": 1, \"analysis\": \"pages\", \"subject\", \"kind\": process, core or dump,
\"machine\": {...}, \"available_pages\", \"pages\", \"zero_pages\", \"other_pages\", \"same_filled_share\",
\"zero_share\", \"other_share\", \"checks\": [{\"variant\", \"iterations\", \"mbps\", \"cov\"}], \"codecs\":
[{\"codec\", \"tried_pages\", \"packed_pages\", \"packed_share\", \"packed_bytes\", \"ratio\", \"pack_mbps\",
\"unpack_mbps\", \"histogram\": [{\"to_bytes\", \"pages\"}], \"incompressible_pages\"}], \"advice\":
{\"codec\", \"pool_percent\", \"reason\"}, \"notes\"}. ratio is of the pages that packed; cov is over four
passes.

Examples:
  softswap analyze pages 4711
  softswap analyze pages --all --save before.pages 4711
  softswap analyze pages before.pages

Exit status: 0 when the pages were examined, 1 when they cannot be, 2 for wrong usage.")]
pub(crate) struct PagesArgs {
    /// The number of a process, a core file, or a dump of pages
    #[arg(value_name = "PID|FILE")]
    subject: PathBuf,

    /// How many pages to read, evenly spread
    #[arg(long, value_name = "N", default_value_t = 65_536, conflicts_with = "all",
          value_parser = clap::value_parser!(u64).range(1..))]
    sample: u64,

    /// Read all pages
    #[arg(long)]
    all: bool,

    /// Take a file for a dump of pages, whatever it looks like
    #[arg(long)]
    raw: bool,

    /// Also keep the pages that were read in FILE, which must not exist
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &PagesArgs) -> Result<ExitCode, Refusal> {
    let source = open::subject(&args.subject, args.raw)?;
    let dump = args.save.as_deref().map(SavedPages::create).transpose()?;
    let output = Output::open(args.json.as_deref())?;
    output.finish(examine(args, source, dump))
}

fn examine(
    args: &PagesArgs,
    source: Source,
    mut dump: Option<SavedPages>,
) -> Result<PagesOutcome, Refusal> {
    let wanted = if args.all { u64::MAX } else { args.sample };
    let bar = progress(wanted.min(source.pages()));
    let (mut measured, mut workplace) = (Measured::default(), Workplace::new()?);
    let read = source.read(wanted, |pages| {
        if let Some(dump) = &mut dump {
            dump.add(pages)?;
        }
        measured.add(pages, &mut workplace)?;
        bar.inc(pages.len() as u64);
        Ok(())
    });
    bar.finish_and_clear();
    let count = read?;
    let mut notes = source.notes.clone();
    notes.extend(what_was_left(&source, count));
    if let Some(dump) = dump {
        notes.push(dump.keep()?);
    }
    Ok(PagesOutcome::new(&source, &measured, Machine::without_device(), notes))
}

/// A bar on standard error, where that is a terminal.
fn progress(pages: u64) -> ProgressBar {
    let bar = ProgressBar::new(pages);
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} pages, {eta} to go");
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

fn what_was_left(source: &Source, Count { read, lost }: Count) -> Vec<String> {
    let mut notes = Vec::new();
    if read + lost < source.pages() {
        notes.push(format!(
            "{read} of {} pages, evenly spread; --all reads all, --sample N more",
            source.pages()
        ));
    }
    if lost > 0 {
        notes.push(format!("{lost} pages went away before they were read"));
    }
    notes
}
