//! Pages in a file: the writable memory of a core file, or a raw dump of pages.

use super::{Run, Source, SourceKind};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef, elf};
use rustix::fs::OFlags;
use softswap_cli::refusal::{FAILED, Refusal, plain};
use softswap_sys::PAGE_SIZE;
use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;
const DEVICE: &str = "is a device; copy its content to a file (`dd bs=4096`), and give that file";

pub(crate) fn open(path: &Path, raw: bool) -> Result<Source, Refusal> {
    let name = path.display().to_string();
    let refuse = |why: &str| Refusal::new(FAILED, format!("{name}: {why}"));
    let (file, bytes) = regular(path, DEVICE, "; give a PID, a core file or a raw dump")?;
    if bytes == 0 {
        return Err(refuse("is empty; give a core file or a raw dump that contains pages"));
    }
    let (kind, runs, notes) = match if raw { None } else { core(&file, bytes) } {
        Some(found) => {
            let Core { runs, skipped_bytes } = found.map_err(|why| refuse(&why))?;
            let cut = "of its writable memory are missing or are not whole pages, and are left out";
            let note = format!("{} {cut}", softswap_cli::units::bytes(skipped_bytes));
            (SourceKind::Core, runs, if skipped_bytes > 0 { vec![note] } else { Vec::new() })
        }
        None => (SourceKind::Dump, dump(bytes).map_err(|why| refuse(&why))?, Vec::new()),
    };
    Ok(Source { kind, name, file, runs, notes })
}

/// Returns the file and its length. `device` explains why a device cannot be used, `missing` how to
/// replace a missing file.
pub(crate) fn regular(path: &Path, device: &str, missing: &str) -> Result<(File, u64), Refusal> {
    let refuse = |why: &str| Refusal::new(FAILED, format!("{}: {why}", path.display()));
    let failed = |error: io::Error| {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => missing,
            io::ErrorKind::PermissionDenied => "; run this as its owner, or as root",
            _ => "",
        };
        refuse(&format!("cannot be opened: {}{remedy}", plain(&error)))
    };
    let check = |kind: FileType| match kind {
        _ if kind.is_file() => Ok(()),
        _ if kind.is_dir() => Err(refuse("is a directory; choose a file in it")),
        _ if kind.is_block_device() || kind.is_char_device() => Err(refuse(device)),
        _ => Err(refuse("is not a regular file; choose one")),
    };
    // Opening a device or a pipe may have side effects.
    check(std::fs::metadata(path).map_err(failed)?.file_type())?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let file = file.map_err(failed)?;
    // The path may have been replaced since the first check.
    let opened = file.metadata().map_err(failed)?;
    check(opened.file_type())?;
    Ok((file, opened.len()))
}

fn dump(bytes: u64) -> Result<Vec<Run>, String> {
    match (bytes / PAGE_BYTES, bytes % PAGE_BYTES) {
        (pages, 0) => Ok(vec![Run { position: 0, pages }]),
        (_, over) => Err(format!(
            "is not a core file (ELF), and its {bytes} bytes are not a multiple of {PAGE_BYTES}, \
             so it is not a dump of whole pages; if it is a dump, cut {over} bytes off with \
             `truncate -s -{over}`"
        )),
    }
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) runs: Vec<Run>,
    pub(crate) skipped_bytes: u64,
}

/// Returns `None` if it is not an ELF file.
pub(crate) fn core(file: impl io::Read + io::Seek, bytes: u64) -> Option<Result<Core, String>> {
    let cache = ReadCache::new(file);
    match FileKind::parse(&cache) {
        Ok(FileKind::Elf64) => Some(writable::<elf::FileHeader64<Endianness>, _>(&cache, bytes)),
        Ok(FileKind::Elf32) => Some(writable::<elf::FileHeader32<Endianness>, _>(&cache, bytes)),
        _ => None,
    }
}

fn writable<'a, Elf, R>(data: R, bytes: u64) -> Result<Core, String>
where
    Elf: FileHeader<Endian = Endianness>,
    R: ReadRef<'a>,
{
    let damaged = |_| {
        "is an ELF file whose headers are damaged or cut short; save the core again, or read it \
         as a dump of pages with --raw"
            .to_string()
    };
    let header = Elf::parse(data).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    if header.e_type(endian) != elf::ET_CORE {
        return Err(
            "is an ELF file but no core file (a program, a library); give a core file, as `gcore \
             PID` saves, or read it as a dump of pages with --raw"
                .into(),
        );
    }
    let mut found = Core { runs: Vec::new(), skipped_bytes: 0 };
    for segment in header.program_headers(endian, data).map_err(damaged)? {
        let is_writable = segment.p_flags(endian).contains(elf::PF_W);
        if segment.p_type(endian) == elf::PT_LOAD && is_writable {
            found.add(
                segment.p_offset(endian).into(),
                segment.p_filesz(endian).into(),
                segment.p_memsz(endian).into(),
                bytes,
            );
        }
    }
    match found.runs.is_empty() {
        true => Err("is a core file without writable memory in it; check the process's \
                     /proc/PID/coredump_filter, and save it again"
            .into()),
        false => Ok(found),
    }
}

impl Core {
    fn add(&mut self, position: u64, file_bytes: u64, memory_bytes: u64, bytes: u64) {
        let stored = file_bytes.min(bytes.saturating_sub(position));
        let pages = stored / PAGE_BYTES;
        let skipped = memory_bytes.saturating_sub(pages * PAGE_BYTES);
        self.skipped_bytes = self.skipped_bytes.saturating_add(skipped);
        if pages > 0 {
            self.runs.push(Run { position, pages });
        }
    }
}
