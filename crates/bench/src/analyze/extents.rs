//! `softswap analyze extents`: where a file system keeps a file, and what
//! finding a page of it costs.

use super::outcome::{ExtentsOutcome, LookupsOutcome, Summary};
use crate::extent_maps::layout::Layout;
use crate::extent_maps::lookups::Lookups;
use crate::extent_maps::maps::{Maps, Nodes};
use crate::measure::machine::Machine;
use crate::measure::report::Output;
use clap::Args;
use rustix::fs::OFlags;
use softswap_cli::refusal::{FAILED, Refusal, plain};
use softswap_cli::swapdir;
use softswap_sys::fiemap::{self, FileExtent};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const ROUNDS: usize = 5;
const LOOKUP_TIME: Duration = Duration::from_millis(10);

/// Print in how many pieces a file lies, and what finding a page of it costs.
///
/// The file system says where the file is (FIEMAP); the file is not read or
/// changed. What it still has to write is written first.
#[derive(Args)]
#[command(after_long_help = "\
The look-ups are those of `softswap bench extents`, over the extents of this file: a linked list
with one cursor, a red-black tree, softswap's own map. Pieces that touch on the device count as one
extent there.

With --json: {\"schema\": 1, \"analysis\": \"extents\", \"path\", \"file_system\", \"machine\": {...},
\"file_bytes\", \"mapped_bytes\", \"hole_bytes\", \"holes\", \"extents\", \"mean_bytes\", \"smallest_bytes\",
\"largest_bytes\", \"extents_per_gib\", \"share_under_1mib\", \"unwritten_extents\", \"unwritten_bytes\",
\"shared_extents\", \"shared_bytes\", \"unplaced_extents\", \"unplaced_bytes\", \"histogram\":
[{\"from_bytes\", \"extents\", \"bytes\"}], \"lookups\": {\"extents\", \"rows\": [{\"variant\", \"random_ns\",
\"random_extent_ns\", \"sequential_ns\", \"cov\", \"bytes\", \"bytes_per_extent\"}]} or null, \"notes\"}. A
line of the histogram holds extents from `from_bytes` to less than twice as much. share_under_1mib is
of the mapped bytes. Unplaced are extents whose place is not fixed or not their own (inline,
compressed, encrypted, not allocated yet); over a file with such there are no look-ups.

Exit status: 0 when the file was examined, 1 when it cannot be, 2 for wrong usage.")]
pub(crate) struct ExtentsArgs {
    /// The file
    path: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &ExtentsArgs) -> Result<ExitCode, Refusal> {
    let (file, file_bytes) = open(&args.path)?;
    let extents = extents_of(&args.path, &file)?;
    let output = Output::open(args.json.as_deref())?;
    output.finish(examine(&args.path, file_bytes, &extents))
}

fn refuse(path: &Path, why: &str) -> Refusal {
    Refusal::new(FAILED, format!("{}: {why}", path.display()))
}

fn open(path: &Path) -> Result<(File, u64), Refusal> {
    let failed = |error: &std::io::Error| {
        let way_out = match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                "; asking where a file lies takes the right to read it: run this as its owner or \
                 as root"
            }
            _ => "",
        };
        refuse(path, &format!("cannot be opened: {}{way_out}", plain(error)))
    };
    // Opening a device or a pipe may already do something.
    let kind = std::fs::metadata(path).map_err(|error| failed(&error))?.file_type();
    if !kind.is_file() {
        return Err(refuse(path, not_a_file(kind)));
    }
    let mut options = std::fs::OpenOptions::new();
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.read(true).custom_flags(flags.bits() as i32).open(path);
    let file = file.map_err(|error| failed(&error))?;
    let meta = file.metadata().map_err(|error| failed(&error))?;
    match meta.is_file() {
        true => Ok((file, meta.len())),
        false => Err(refuse(path, not_a_file(meta.file_type()))),
    }
}

fn not_a_file(kind: std::fs::FileType) -> &'static str {
    if kind.is_dir() {
        "is a directory; name one file in it"
    } else if kind.is_block_device() {
        "is a block device, which lies in one piece by itself; name a file"
    } else {
        "is not a regular file; only those have extents"
    }
}

fn extents_of(path: &Path, file: &File) -> Result<Vec<FileExtent>, Refusal> {
    fiemap::extents(file.as_fd()).map_err(|error| {
        let file_system = swapdir::file_system_of(path);
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL | libc::ENOSYS) => refuse(
                path,
                &format!(
                    "its file system ({file_system}) does not tell where it keeps files (FIEMAP); \
                     ext4, XFS, btrfs and f2fs do"
                ),
            ),
            _ => refuse(path, &format!("its extents cannot be had: {}", plain(&error))),
        }
    })
}

fn examine(
    path: &Path,
    file_bytes: u64,
    extents: &[FileExtent],
) -> Result<ExtentsOutcome, Refusal> {
    let summary = Summary::of(file_bytes, extents);
    let file_system = swapdir::file_system_of(path);
    let mut notes = Vec::new();
    let mut lookups = None;
    let layout = Layout::of_file(extents);
    if summary.unplaced_extents > 0 {
        notes.push("some extents have no fixed place of their own: no look-ups".into());
    } else if layout.pages == 0 {
        notes.push("there is no page to look up".into());
    } else {
        lookups = Some(measure(&layout)?);
    }
    Ok(ExtentsOutcome {
        schema: 1,
        analysis: "extents",
        path: path.display().to_string(),
        file_system,
        machine: Machine::with_device(path, file_system),
        summary,
        lookups,
        notes,
    })
}

fn measure(layout: &Layout) -> Result<LookupsOutcome, Refusal> {
    let nodes = Nodes::of(layout);
    let maps = Maps::new(layout, &nodes)?;
    let mut lookups = Lookups::default();
    for round in 0..ROUNDS {
        lookups.measure_round(&maps, round, LOOKUP_TIME);
    }
    Ok(LookupsOutcome { extents: layout.extents.len(), rows: lookups.rows(&maps) })
}
