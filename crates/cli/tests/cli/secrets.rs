//! Exposure of a program's memory: on disk and in core dumps.

use crate::common::area::MIB;
use crate::common::skip;
use crate::support::{AreaFile, Swapped, compiled, disk_dir, finish, python};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

const PLAINTEXT: &[u8] = b"this plaintext is known to the test";

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    memchr::memmem::find(bytes, wanted).is_some()
}

/// Returns the swap file's content, and true if the report states encryption.
fn left_by_a_run(options: &[&str]) -> (Vec<u8>, bool) {
    let file = AreaFile::new(48);
    let swapped = file.swapped("16M").options(&["-v", "--pool=1M"]).options(options);
    let report = swapped.run_ok("secrets", &[]);
    assert!(report.figure("bytes_written") > 4 * MIB, "{}", report.figures);
    // Whole pages, and compressed pages that share a slot.
    assert!(report.figures["pool"]["packed_slots"].as_u64() > Some(0), "{}", report.figures);
    let summary = &report.ended.stderr;
    let encrypts = report.figure("encrypts") == 1;
    assert_eq!(summary.contains("not encrypted"), !encrypts, "{summary}");
    (std::fs::read(&file.path).unwrap(), encrypts)
}

#[test]
fn disk_contains_no_plaintext() {
    let (left, encrypts) = left_by_a_run(&[]);
    assert!(encrypts && !contains(&left, PLAINTEXT), "{encrypts}");
    let (left, encrypts) = left_by_a_run(&["--no-encrypt"]);
    assert!(!encrypts && contains(&left, PLAINTEXT), "{encrypts}");
}

/// Memory locks are not inherited across fork.
#[test]
fn forked_child_keeps_key_locked() {
    let script = "\
import os
def locked():
    return [line for line in open('/proc/self/status') if line.startswith('VmLck')]
print(locked(), flush=True)
if os.fork() == 0:
    print(locked(), flush=True)
    os._exit(0)
os.wait()
";
    let dir = disk_dir();
    let swapped = Swapped::within("32M").swap(dir.path().display()).option("--awake");
    let report = swapped.run(python(), &["-c", script]);
    report.ended.expect_success("a program that forks");
    let stdout = report.ended.stdout_text();
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines[0], lines[1]);
    assert_eq!(lines[0].contains(" 0 kB"), report.figure("key_unlocked") == 1, "{stdout}");
}

/// As root the child runs as another user. A raw fork inherits no memory of the engine.
#[test]
fn child_has_no_key_of_later_parent_pages() {
    let dir = disk_dir();
    for (way, options) in [
        ("fork", &[][..]),
        ("fork", &["--no-io-uring"]),
        ("fork", &["--pool=1M"]),
        ("fork", &["--faults=protection"]),
        ("raw", &[]),
    ] {
        let swapped = Swapped::within("24M").swap(dir.path().display()).options(options);
        let report = swapped.run_ok("worker", &[way]);
        assert_eq!(report.ended.stdout_text(), "ok worker\n", "{way} {options:?}");
        assert!(report.figure("bytes_written") > 4 * MIB, "{}", report.figures);
    }
}

/// As root the child cannot open an area of its own. It can evict only pages that its parent has
/// stored: the clock's hand finds them after 190 MiB of others.
#[test]
#[ignore = "half a minute: `make test-long` runs it"]
fn child_without_an_area_evicts_stored_pages_behind_many_others() {
    let dir = disk_dir();
    let swapped = Swapped::within("192M").swap(dir.path().display());
    let report = swapped.run_ok("worker", &["fork", "512"]);
    assert_eq!(report.ended.stdout_text(), "ok worker\n");
}

/// `SOFTSWAP_ADVERSARY_SECONDS` is the time for which the child attacks.
#[test]
fn a_child_with_the_source_opens_no_page_that_was_sealed_after_the_fork() {
    let dir = disk_dir();
    let path = dir.path().to_str().unwrap();
    let seconds = std::env::var("SOFTSWAP_ADVERSARY_SECONDS").unwrap_or("0".to_string());
    let swapped = || Swapped::within("16M").options(&["--codec=none", "--pool=0"]).swap(path);
    let arguments = ["--swap", path, "--seconds", &seconds];
    let report = swapped().run(compiled("adversary"), &arguments);
    if report.ended.status.code() == Some(3) {
        return skip("the processor has no instructions for AES");
    }
    report.ended.expect_ok("adversary");
    // Without encryption, the same search finds the pages.
    let ended = swapped().option("--no-encrypt").run(compiled("adversary"), &arguments).ended;
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("times in file {path}")), "{}", ended.stderr);
}

fn core_in(dir: &Path) -> Option<File> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let is_core = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("core");
    let core = entries.into_iter().find(|entry| is_core(&entry.file_name()))?;
    Some(File::open(core.path()).unwrap())
}

/// The pieces overlap.
fn each_piece(file: &File, mut look: impl FnMut(&[u8])) {
    const OVERLAP: u64 = 64;
    let mut buffer = vec![0; 4 << 20];
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)).unwrap();
        at = start;
        while at < end {
            let len = buffer.len().min((end - at) as usize);
            file.read_exact_at(&mut buffer[..len], at).unwrap();
            look(&buffer[..len]);
            at += if at + len as u64 == end { len as u64 } else { len as u64 - OVERLAP };
        }
    }
}

/// Returns round keys of the cipher and tables of the tag, without lengths and pointers.
fn parts_of_key(mapping: &[u8]) -> HashSet<[u8; 16]> {
    let windows = (0..mapping.len() - 15).step_by(4).map(|at| &mapping[at..at + 16]);
    let looks_random = |bytes: &&[u8]| bytes.iter().collect::<HashSet<_>>().len() >= 11;
    windows.filter(looks_random).map(|bytes| bytes.try_into().unwrap()).collect()
}

#[test]
fn core_dump_excludes_key() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if !pattern.starts_with("core") {
        return skip(&format!("core dumps are written to another place: {}", pattern.trim()));
    }
    let dir = disk_dir();
    let key = dir.path().join("key");
    let swapped = Swapped::within("16M").swap(dir.path().display());
    let mut command = swapped.command(compiled("secrets"), &[key.as_os_str()]);
    let ended = finish(command.current_dir(dir.path()));
    match (ended.status.code(), ended.status.signal()) {
        (Some(3), _) => return skip("the key cannot be locked on this machine"),
        (Some(4), _) => return skip("core dumps are disabled on this machine"),
        (_, Some(6)) => {}
        _ => panic!("{}: {}", ended.status, ended.stderr),
    }
    let parts = parts_of_key(&std::fs::read(&key).unwrap());
    assert!(parts.len() >= 60, "{} parts are too few for a key", parts.len());
    let core = core_in(dir.path()).expect("a core dump");
    let dumped: [u8; 64] = std::array::from_fn(|at| (at * 37 + 11) as u8);
    let (mut bytes, mut is_dumped, mut found) = (0, false, 0);
    // The table excludes most positions of the dump quickly.
    let begins: HashSet<[u8; 2]> = parts.iter().map(|part| [part[0], part[1]]).collect();
    let mut may_begin = vec![false; 1 << 16];
    begins.iter().for_each(|two| may_begin[usize::from(u16::from_ne_bytes(*two))] = true);
    each_piece(&core, |piece| {
        bytes += piece.len();
        is_dumped |= contains(piece, &dumped);
        let windows = piece.windows(16).step_by(4);
        found += windows
            .filter(|at| may_begin[usize::from(u16::from_ne_bytes([at[0], at[1]]))])
            .filter(|at| parts.contains(*at))
            .count();
    });
    assert!(is_dumped, "{bytes} bytes of a dump without the program's data");
    assert_eq!(found, 0, "parts of the key are in {bytes} bytes of a dump");
}
