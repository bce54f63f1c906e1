//! The resident pages of a process: private writable mappings from `maps`, residency from
//! `pagemap`. The process is not stopped, so pages are read at different times, and freed ones are
//! skipped.

use super::{Run, Source, SourceKind};
use softswap_cli::control_client::{Process, own_uid};
use softswap_cli::refusal::{FAILED, Refusal, plain};
use softswap_sys::PAGE_SIZE;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;

const ENTRY_BYTES: usize = 8;
const ENTRIES: usize = 1 << 16;

// Bits of an entry, from the kernel's documentation.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

pub(crate) fn open(text: &str) -> Result<Source, Refusal> {
    let found = text.parse().ok().and_then(Process::read).filter(|found| !found.has_ended());
    let process = found.ok_or_else(|| {
        Refusal::new(
            FAILED,
            format!(
                "no process has PID {text} (`pgrep -a NAME` lists PIDs); to read a file of that \
                 name, give ./{text}"
            ),
        )
    })?;
    let (pid, name) = (process.pid, format!("process {} ({})", process.pid, process.name));
    let refuse = |why: &str| Refusal::new(FAILED, format!("{name}: {why}"));
    if process.is_kernel_thread() {
        return Err(refuse(
            "is a kernel thread, which has no user memory; give the PID of a program",
        ));
    }
    let path = |file: &str| format!("/proc/{pid}/{file}");
    let failed = |what: &str, error: &io::Error| refuse(&explain(&process, what, error));
    let maps = fs::read_to_string(path("maps")).map_err(|e| failed("its memory map", &e))?;
    let file = File::open(path("mem")).map_err(|e| failed("its memory", &e))?;
    let pagemap = File::open(path("pagemap")).map_err(|e| failed("its page map", &e))?;
    let read_map = |bytes: &mut [u8], position| pagemap.read_at(bytes, position);
    let resident = resident(read_map, private_writable(&maps))
        .map_err(|error| failed("its page map", &error))?;
    if resident.runs.is_empty() {
        return Err(refuse(
            "has no private writable memory in DRAM; it has just exited, or all of it is swapped out",
        ));
    }
    let Resident { runs, swapped } = resident;
    let note = format!("{swapped} pages that the kernel has swapped out are left out");
    let notes = if swapped > 0 { vec![note] } else { Vec::new() };
    Ok(Source { kind: SourceKind::Process, name, file, runs, notes })
}

fn explain(process: &Process, what: &str, error: &io::Error) -> String {
    let own = own_uid();
    let refused = matches!(error.kind(), ErrorKind::PermissionDenied);
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let another = own != 0 && own != process.uid;
    let because = match (refused, scope.trim()) {
        (false, _)
            if error.kind() == ErrorKind::NotFound && Process::read(process.pid).is_some() =>
        {
            "; the kernel lacks CONFIG_PROC_PAGE_MONITOR: save a core file (`gcore`) and analyze \
             that"
        }
        (false, _) => "; the process may have just exited",
        (true, _) if another => "; run this command as that user, or as root",
        (true, "3") => {
            ", because kernel.yama.ptrace_scope is 3 until the next boot; save a core file, and \
             analyze that"
        }
        (true, "1" | "2") if own != 0 => {
            ", because of kernel.yama.ptrace_scope; run this as root, or set it to 0 with `sysctl -w`"
        }
        (true, _) if own != 0 => {
            "; the process forbids it (setuid, PR_SET_DUMPABLE); run this command as root"
        }
        (true, _) => {
            ", although softswap runs as root: CAP_SYS_PTRACE is missing, as in a container \
             (`--cap-add SYS_PTRACE`), or a security module forbids it"
        }
    };
    let owner = (another && refused).then(|| {
        format!(
            ", because the process belongs to uid {} and softswap runs as uid {own}",
            process.uid
        )
    });
    format!("{what} cannot be read: {}{}{because}", plain(error), owner.unwrap_or_default())
}

pub(crate) fn private_writable(maps: &str) -> impl Iterator<Item = Range<u64>> {
    maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let permissions = rest.as_bytes();
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        (permissions.get(1) == Some(&b'w') && permissions.get(3) == Some(&b'p'))
            .then_some(number(start)?..number(end)?)
    })
}

#[derive(Debug, Default)]
pub(crate) struct Resident {
    pub(crate) runs: Vec<Run>,
    pub(crate) swapped: u64,
}

impl Resident {
    fn add(&mut self, address: u64, entry: u64) {
        self.swapped += u64::from(entry & SWAPPED != 0);
        // File pages that were never written are not private.
        if entry & PRESENT == 0 || entry & OF_FILE != 0 {
            return;
        }
        match self.runs.last_mut() {
            Some(run) if run.position + run.pages * PAGE_SIZE as u64 == address => run.pages += 1,
            _ => self.runs.push(Run { position: address, pages: 1 }),
        }
    }
}

pub(crate) fn resident(
    mut read_at: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    ranges: impl Iterator<Item = Range<u64>>,
) -> io::Result<Resident> {
    let mut found = Resident::default();
    let mut bytes = vec![0; ENTRIES * ENTRY_BYTES];
    for range in ranges {
        let mut address = range.start;
        while address < range.end {
            let left = ((range.end - address) / PAGE_SIZE as u64).min(ENTRIES as u64) as usize;
            let position = address / PAGE_SIZE as u64 * ENTRY_BYTES as u64;
            let got = read_at(&mut bytes[..left * ENTRY_BYTES], position)?;
            if got < ENTRY_BYTES {
                // The process has exited.
                break;
            }
            let (entries, _) = bytes[..got].as_chunks::<ENTRY_BYTES>();
            for entry in entries {
                found.add(address, u64::from_ne_bytes(*entry));
                address += PAGE_SIZE as u64;
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_writable_mappings_count() {
        let maps = "\
55d0-55d2 r-xp 00000000 fd:00 1 /bin/true
55d2-55d4 rw-p 00000000 fd:00 1 /bin/true
6000-6001 rw-s 00000000 00:05 9 /dev/zero (deleted)
7000-8000 rw-p 00000000 00:00 0 [heap]
9000-9001 rwxp 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
";
        let found: Vec<_> = private_writable(maps).collect();
        assert_eq!(found, [0x55d2..0x55d4, 0x7000..0x8000, 0x9000..0x9001]);
    }

    #[test]
    fn anonymous_resident_pages_form_runs() {
        let mut found = Resident::default();
        let entries = [PRESENT, PRESENT | 5, 0, SWAPPED, PRESENT | OF_FILE, PRESENT];
        for (at, entry) in entries.into_iter().enumerate() {
            found.add(0x7000 + (at * PAGE_SIZE) as u64, entry);
        }
        let runs = [Run { position: 0x7000, pages: 2 }, Run { position: 0xc000, pages: 1 }];
        assert_eq!((found.runs.as_slice(), found.swapped), (&runs[..], 1));
    }

    #[test]
    fn written_pages_of_this_process_are_found() {
        let mine = vec![0x6b_u8; 64 * PAGE_SIZE];
        let source = open(&std::process::id().to_string()).unwrap();
        let mut found = 0;
        source
            .read(u64::MAX, |pages| {
                found += pages.iter().filter(|page| page.0.iter().all(|b| *b == 0x6b)).count();
                Ok(())
            })
            .unwrap();
        assert!(found >= 63, "{found}");
        drop(mine);
    }
}
