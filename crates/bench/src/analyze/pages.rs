//! `softswap analyze pages`: same-filled and compressible pages of a program.

use super::advice::Advice;
use crate::measure::machine::Machine;
use crate::measure::options::Named;
use crate::measure::report::progress;
use crate::measure::sample::{Object, object, rotated};
use crate::pages::checks::{Check, Verdicts, mbps};
use crate::pages::packing::{CODECS, Packing, Workplace};
use crate::pages::{Count, Source};
use crate::pages::{Page, file, process};
use clap::Args;
use softswap_cli::refusal::{FAILED, OrRefuse, Refusal, plain};
use softswap_cli::units;
use softswap_sys::PAGE_SIZE;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// Timed passes over a chunk. Each starts with a different check.
const PASSES: usize = Check::ALL.len();

/// Print how many pages of a program repeat one word, and how well the others compress.
///
/// Reads the private writable memory of a process that is in DRAM, of a core
/// file, or a dump of pages. The process is neither stopped nor changed.
#[derive(Args)]
#[command(after_long_help = "\
A number is a PID; write ./NUMBER for a file of that name. Reading a process needs the same user or
root, and if kernel.yama.ptrace_scope is 1, root or its parent. Pages that the kernel or softswap has
swapped out are left out. Of a core file the segments of writable memory are read. The size of any
other file must be a multiple of 4096 bytes.

Checks for same-filled pages: forward compares word by word from the start, backward from the end;
last_first compares the last word with the first one, and continues as forward; softswap is the
engine's own, which compares many words at a time and so has no count. An iteration is one compared
word. MB/s count whole pages, even if the first word decided. Codecs get the pages that are not
same-filled; a page of more than 3072 compressed bytes counts as incompressible. One thread does all.

--save writes the examined pages to a file, for later or for another machine. The file contains the
memory of the program, including passwords; only its owner can read it (mode 0600).

With --json the result is one object with the keys of the tables, and schema (1) and analysis (pages).
ratio is the mean of the pages that compressed; cov is over four passes.

Examples:
  softswap analyze pages 4711
  softswap analyze pages --all --save before.pages 4711
  softswap analyze pages before.pages

Exit status: 0 if the pages were examined, 1 if they cannot be, 2 for wrong usage.")]
pub(crate) struct PagesArgs {
    /// A PID, a core file, or a dump of pages
    #[arg(value_name = "PID|FILE")]
    subject: PathBuf,

    /// Number of pages to read, evenly spread
    #[arg(long, value_name = "N", default_value_t = 65_536, conflicts_with = "all",
          value_parser = clap::value_parser!(u64).range(1..))]
    sample: u64,

    /// Read all pages
    #[arg(long)]
    all: bool,

    /// Read a file as a dump of pages, even if it looks like an ELF core
    #[arg(long)]
    raw: bool,

    /// Also write the pages to FILE, which must not exist
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

pub(super) fn examine(args: &PagesArgs) -> Result<Object, Refusal> {
    let source = open(&args.subject, args.raw)?;
    let mut dump = args.save.as_deref().map(SavedPages::create).transpose()?;
    let wanted = if args.all { u64::MAX } else { args.sample };
    let template = "{bar:40} {pos} of {len} pages, {eta} to go";
    let bar = progress(wanted.min(source.pages()), template);
    let (mut verdicts, mut workplace) = (Verdicts::default(), Workplace::new()?);
    let mut check_ns = Check::ALL.map(|_| [0; PASSES]);
    let mut packings = CODECS.map(|_| Packing::default());
    let read = source.read(wanted, |pages| {
        if let Some(dump) = &mut dump {
            dump.add(pages)?;
        }
        verdicts.add(&Verdicts::of(pages)?);
        for (pass, index) in
            (0..PASSES).flat_map(|pass| rotated(PASSES, pass).map(move |at| (pass, at)))
        {
            check_ns[index][pass] += Check::ALL[index].time_ns(pages);
        }
        for (codec, packing) in CODECS.into_iter().zip(&mut packings) {
            workplace.add(codec, pages, packing)?;
        }
        bar.inc(pages.len() as u64);
        Ok(())
    });
    bar.finish_and_clear();
    let count = read?;
    let mut notes = source.notes.clone();
    notes.extend(left_out(&source, count));
    if let Some(dump) = dump {
        notes.push(dump.keep()?);
    }
    let check_row = |check: Check| {
        verdicts.row(check, &check_ns[check as usize].map(|ns| mbps(verdicts.pages, ns)))
    };
    let packings: Vec<_> = CODECS.iter().map(|codec| codec.name).zip(packings).collect();
    let mut found = object! {
        schema: 1,
        analysis: "pages",
        subject: source.name,
        kind: source.kind.name(),
        machine: Machine::without_device(),
        available_pages: source.pages(),
        pages: verdicts.pages,
        zero_pages: verdicts.zero,
        other_pages: verdicts.other,
    };
    found.extend(verdicts.shares());
    found.extend(object! {
        checks: Check::ALL.map(check_row),
        codecs: packings.iter().map(codec_row).collect::<Vec<_>>(),
        advice: Advice::of(&packings),
        notes,
    });
    Ok(found)
}

fn open(subject: &Path, raw: bool) -> Result<Source, Refusal> {
    let number = subject.to_str().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    match number.filter(|text| !text.is_empty()) {
        Some(pid) if raw => Err(Refusal::usage(format!(
            "--raw is for files, but {pid} is a PID; write ./{pid} for a file of that name"
        ))),
        Some(pid) => process::open(pid),
        None => file::open(subject, raw),
    }
}

fn codec_row((codec, packing): &(&'static str, Packing)) -> Object {
    object! {
        codec,
        tried_pages: packing.tried,
        packed_pages: packing.packed,
        packed_share: packing.packed_share(),
        packed_bytes: packing.packed_bytes,
        ratio: packing.ratio(),
        pack_mbps: packing.pack_mbps(),
        unpack_mbps: packing.unpack_mbps(),
        histogram: packing.lines(),
        incompressible_pages: packing.incompressible(),
    }
}

fn left_out(source: &Source, Count { read, lost }: Count) -> Vec<String> {
    let mut notes = Vec::new();
    if read + lost < source.pages() {
        notes.push(format!(
            "{read} of {} pages, evenly spread; --all reads all, --sample N more",
            source.pages()
        ));
    }
    if lost > 0 {
        notes.push(format!("{lost} pages were freed before they were read"));
    }
    notes
}

/// The file of `--save`, removed on drop unless complete.
struct SavedPages {
    path: TempPath,
    file: BufWriter<File>,
    pages: u64,
}

impl SavedPages {
    /// Never overwrites a file, which may be the only copy of its content.
    fn create(path: &Path) -> Result<SavedPages, Refusal> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| {
            let why = match error.kind() {
                ErrorKind::AlreadyExists => {
                    "the file exists and is not overwritten; choose another path, or remove it"
                        .into()
                }
                _ => format!("the file cannot be created: {}; choose another path", plain(&error)),
            };
            Refusal::usage(format!("--save {}: {why}", path.display()))
        })?;
        let path = TempPath::try_from_path(path).or_own("--save")?;
        Ok(SavedPages { path, file: BufWriter::new(file), pages: 0 })
    }

    fn add(&mut self, pages: &[Page]) -> Result<(), Refusal> {
        self.pages += pages.len() as u64;
        let written = pages.iter().try_for_each(|page| self.file.write_all(&page.0));
        written.map_err(|error| self.failed(&error))
    }

    fn keep(mut self) -> Result<String, Refusal> {
        self.file.flush().map_err(|error| self.failed(&error))?;
        let bytes = units::bytes(self.pages * PAGE_SIZE as u64);
        let path = self.path.keep().map_err(Refusal::own)?;
        Ok(format!("{bytes} of pages are in {}", path.display()))
    }

    fn failed(&self, error: &std::io::Error) -> Refusal {
        let remedy = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                "; choose a file on another disk, or read fewer pages with --sample N"
            }
            _ => "",
        };
        let (shown, why) = (self.path.display(), plain(error));
        Refusal::new(FAILED, format!("--save {shown}: cannot be written: {why}{remedy}"))
    }
}
