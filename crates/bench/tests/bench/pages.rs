//! `softswap analyze pages` and `softswap bench samefill`.

use crate::common::{assert_refused, softswap};
use crate::{assert_contains, json_of, names};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PAGE: usize = 4096;

/// OTHER pages contain another word, LATE ones differ in their last word, NOISE ones are
/// incompressible.
const PROGRAM: &str = "
import mmap, os, sys
zero, other, late, noise = 3000, 2000, 500, 1500
memory = mmap.mmap(-1, 4096 * (zero + other + late + noise), flags=mmap.MAP_PRIVATE)
for page in range(zero): memory[page * 4096] = 0
memory.seek(zero * 4096)
memory.write(b'\\x11\\x22\\x33\\x44\\x55\\x66\\x77\\x88' * 512 * other)
memory.write((b'\\x42' * 4095 + b'\\x43') * late)
memory.write(os.urandom(4096 * noise))
print('ready', flush=True)
sys.stdin.read()
";
const ZERO: u64 = 3000;
const OTHER: u64 = 2000;
const LATE: u64 = 500;
const NOISE: u64 = 1500;
/// Maximum of the interpreter's own pages.
const SLACK: u64 = 4000;

struct Running(Child);

impl Running {
    fn start() -> Running {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Running(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn may_read_others() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => true,
        "1" | "2" => crate::common::is_root(),
        _ => false,
    }
}

fn analyze(subject: impl AsRef<Path>) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["analyze", "pages"]).arg(subject.as_ref());
    command
}

fn number(found: &Value, key: &str) -> u64 {
    found[key].as_u64().unwrap_or_else(|| panic!("{key}: {found}"))
}

fn assert_about(found: &Value, key: &str, least: u64) {
    let value = number(found, key);
    assert!((least..least + SLACK).contains(&value), "{key}: {value} instead of {least}");
}

#[test]
fn the_pages_of_a_running_process_are_counted() {
    if !may_read_others() {
        return crate::common::skip("kernel.yama.ptrace_scope forbids it");
    }
    let running = Running::start();
    let found = json_of(analyze(running.pid()).arg("--all"));
    assert_eq!((&found["schema"], &found["analysis"]), (&1.into(), &"pages".into()));
    assert_eq!(found["kind"], "process");
    assert!(found["subject"].as_str().unwrap().contains(&running.pid()), "{found}");
    assert_about(&found, "pages", ZERO + OTHER + LATE + NOISE);
    assert_eq!(found["pages"], found["available_pages"]);
    assert_about(&found, "zero_pages", ZERO);
    assert_about(&found, "other_pages", OTHER);

    let checks = found["checks"].as_array().unwrap();
    let variants = ["forward", "backward", "last_first", "softswap"];
    assert_eq!(names(&found["checks"], "variant"), variants);
    assert!(checks.iter().all(|row| row["mbps"].as_f64().unwrap() > 0.0));
    let iterations = |at: usize| checks[at]["iterations"].as_f64();
    // Only `forward` reads these pages to the end.
    let pages = number(&found, "pages") as f64;
    let saved = (iterations(0).unwrap() - iterations(2).unwrap()) * pages;
    assert!(saved > (LATE * 509) as f64, "{saved}");
    assert_eq!(iterations(3), None);

    let codec = &found["codecs"][0];
    assert_eq!(codec["codec"], "lz4");
    let same_filled = number(&found, "zero_pages") + number(&found, "other_pages");
    assert_eq!(number(codec, "tried_pages"), number(&found, "pages") - same_filled);
    assert_about(codec, "packed_pages", LATE);
    assert_about(codec, "incompressible_pages", NOISE);
    let histogram = codec["histogram"].as_array().unwrap();
    let packed: u64 = histogram.iter().map(|size| number(size, "pages")).sum();
    assert_eq!(packed, number(codec, "packed_pages"));
    assert!(number(&histogram[0], "pages") >= LATE);
    assert_eq!(histogram.last().unwrap()["to_bytes"], 3072);
    assert!(!found["advice"]["reason"].as_str().unwrap().is_empty());
    assert!(["lz4", "zstd", "none"].contains(&found["advice"]["codec"].as_str().unwrap()));
}

#[test]
fn sample_covers_process_and_matches_dump() {
    if !may_read_others() {
        return crate::common::skip("kernel.yama.ptrace_scope forbids it");
    }
    let dir = tempfile::tempdir().unwrap();
    let dump = dir.path().join("pages");
    let running = Running::start();
    let sampled = json_of(analyze(running.pid()).args(["--sample", "700", "--save"]).arg(&dump));
    assert_eq!(sampled["pages"], 700);
    assert!(number(&sampled, "available_pages") >= 7000);
    assert!(sampled["notes"].to_string().contains("evenly spread"), "{sampled}");
    let share = sampled["zero_share"].as_f64().unwrap();
    assert!(share > 3000.0 / (7000.0 + SLACK as f64) - 0.01, "{share}");
    drop(running);

    let meta = fs::metadata(&dump).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (700 * 4096, 0o600));
    let again = json_of(&mut analyze(&dump));
    assert_eq!((&again["kind"], &again["pages"]), (&"dump".into(), &700.into()));
    for key in ["zero_pages", "other_pages", "same_filled_share"] {
        assert_eq!(again[key], sampled[key], "{key}");
    }
    for key in ["packed_pages", "packed_bytes", "histogram"] {
        assert_eq!(again["codecs"][0][key], sampled["codecs"][0][key], "{key}");
    }
    let output = analyze(&dump).assert().success();
    let parts =
        ["pages: 700", "last_first", "lz4: histogram", "incompressible_pages", "pool_percent"];
    assert_contains(&output.get_output().stdout, &parts);
}

#[test]
fn dump_is_never_overwritten_and_removed_on_failure() {
    let dir = tempfile::tempdir().unwrap();
    let (dump, kept) = (dir.path().join("dump"), dir.path().join("kept"));
    fs::write(&dump, vec![0; 3 * PAGE]).unwrap();
    fs::write(&kept, "precious").unwrap();
    assert_refused(analyze(&dump).arg("--save").arg(&kept), 2, &["not overwritten", "another"]);
    assert_eq!(fs::read(&kept).unwrap(), b"precious");
    let missing = dir.path().join("no/such");
    assert_refused(analyze(&dump).arg("--save").arg(&missing), 2, &["cannot be created"]);

    // `--json` is checked before `--save` is created.
    let fresh = dir.path().join("fresh");
    let mut command = analyze(&dump);
    command.arg("--save").arg(&fresh).args(["--json", "/no/such/dir/x"]);
    assert_refused(&mut command, 2, &["--json"]);
    assert!(!fresh.exists());
}

/// Segments are `(flags, pages in the file, pages in memory)`.
fn core(segments: &[(u32, &[u8], usize)], kind: u16) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| bytes.extend_from_slice(part));
    let half = |value: u16| value.to_le_bytes();
    put(&[&half(kind), &half(62), &1_u32.to_le_bytes(), &[0; 8], &64_u64.to_le_bytes(), &[0; 8]]);
    put(&[&[0; 4], &half(64), &half(56), &half(segments.len() as u16), &[0; 6]]);
    let mut offset = 4096_u64;
    for (flags, content, memory_pages) in segments {
        let sizes = [0, 0, content.len() as u64, (memory_pages * PAGE) as u64, 4096];
        put(&[&1_u32.to_le_bytes(), &flags.to_le_bytes(), &offset.to_le_bytes()]);
        sizes.iter().for_each(|size| put(&[&size.to_le_bytes()]));
        offset += content.len() as u64;
    }
    bytes.resize(PAGE, 0);
    segments.iter().for_each(|(_, content, _)| bytes.extend_from_slice(content));
    bytes
}

const CORE: u16 = 4;
const READ_WRITE: u32 = 6;
const READ_EXEC: u32 = 5;

#[test]
fn only_writable_core_segments_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("core");
    let data = [vec![0; 2 * PAGE], vec![7; PAGE]].concat();
    let code = vec![0; 5 * PAGE];
    let segments: &[(u32, &[u8], usize)] =
        &[(READ_EXEC, &code, 5), (READ_WRITE, &data, 4), (READ_WRITE, &[9; PAGE], 1)];
    let bytes = core(segments, CORE);
    fs::write(&path, &bytes).unwrap();
    let found = json_of(&mut analyze(&path));
    assert_eq!((&found["kind"], &found["pages"]), (&"core".into(), &4.into()));
    assert_eq!((&found["zero_pages"], &found["other_pages"]), (&2.into(), &2.into()));
    assert_eq!(found["codecs"][0]["tried_pages"], 0);
    assert!(found["codecs"][0]["ratio"].is_null());
    assert!(found["notes"].to_string().contains("4.0 KiB"), "{}", found["notes"]);

    // Truncated, as by a limit on core size.
    fs::write(&path, &bytes[..bytes.len() - 2 * PAGE]).unwrap();
    let found = json_of(&mut analyze(&path));
    assert_eq!(found["pages"], 2);
    assert!(found["notes"].to_string().contains("missing"), "{}", found["notes"]);

    // With --raw the headers count as pages, too.
    fs::write(&path, &bytes).unwrap();
    assert_eq!(json_of(analyze(&path).arg("--raw"))["pages"], 10);
    fs::write(&path, core(&segments[..1], CORE)).unwrap();
    assert_refused(&mut analyze(&path), 1, &["without writable memory", "coredump_filter"]);
    fs::write(&path, core(segments, 2)).unwrap();
    assert_refused(&mut analyze(&path), 1, &["no core file", "gcore", "--raw"]);
    fs::write(&path, &bytes[..100]).unwrap();
    assert_refused(&mut analyze(&path), 1, &["damaged or cut short", "--raw"]);
}

#[test]
fn targets_without_pages_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let table: &[(PathBuf, &[&str])] = &[
        (dir.path().into(), &["is a directory", "a file in it"]),
        ("/no/such/file".into(), &["/no/such/file", "No such file", "give a PID"]),
        ("/dev/null".into(), &["is a device", "dd"]),
        (file("empty", b""), &["is empty"]),
        (file("odd", &[0; PAGE + 1]), &["4097 bytes", "4096", "truncate -s -1"]),
        ("0".into(), &["no process has PID 0", "./0"]),
        ("4194305".into(), &["no process has PID 4194305", "pgrep"]),
        ("99999999999999999999".into(), &["no process has PID"]),
    ];
    for (subject, parts) in table {
        assert_refused(&mut analyze(subject), 1, parts);
    }
    let fifo = dir.path().join("pipe");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, 0o600.into(), 0).unwrap();
    assert_refused(&mut analyze(&fifo), 1, &["not a regular file"]);
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        assert_refused(&mut analyze("2"), 1, &["kthreadd", "kernel thread"]);
    }
    let dump = file("dump", &[0; PAGE]);
    assert_refused(analyze(&dump).args(["--sample", "0"]), 2, &["--sample"]);
    assert_refused(analyze(&dump).args(["--sample", "5", "--all"]), 2, &["--all"]);
    assert_refused(analyze("1").arg("--raw"), 2, &["--raw", "./1"]);
    assert_refused(softswap().args(["analyze", "pages"]), 2, &["PID|FILE"]);
    let mut command = softswap();
    fs::copy(&dump, dir.path().join("1")).unwrap();
    command.current_dir(dir.path()).args(["analyze", "pages", "./1"]);
    assert_eq!(json_of(&mut command)["pages"], 1);
}

#[test]
fn target_of_another_user_is_rejected_with_reason() {
    if !crate::common::is_root() {
        // Process 1 belongs to root.
        let status = fs::read_to_string("/proc/1/status").unwrap_or_default();
        if status.contains("Uid:\t0\t") {
            assert_refused(&mut analyze("1"), 1, &["uid 0", "as root"]);
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start();
    let mut command = crate::common::as_unprivileged(dir.path());
    command.args(["analyze", "pages"]).arg(running.pid());
    assert_refused(&mut command, 1, &["belongs to uid 0", "uid 65534", "as root"]);

    let secret = dir.path().join("secret");
    fs::write(&secret, [0; PAGE]).unwrap();
    crate::common::set_mode(&secret, 0o600);
    let mut command = crate::common::as_unprivileged(dir.path());
    command.args(["analyze", "pages"]).arg(&secret);
    assert_refused(&mut command, 1, &["Permission denied", "as root"]);
}

pub(crate) fn assert_samefill(found: &Value) {
    assert_eq!((&found["rounds"], &found["pages"]), (&2.into(), &found["together"]["pages"]));
    let dumps = found["dumps"].as_array().unwrap();
    let names = names(&found["dumps"], "dump");
    for name in ["numeric_sort", "sqlite", "gnu_sort", "graph_walk", "mix"] {
        let left_out = found["notes"].to_string().contains(&format!("{name} is left out"));
        assert_eq!(names.contains(&name), !left_out, "{name}: {}", found["notes"]);
    }
    for dump in dumps.iter().chain([&found["together"]]) {
        assert!((0.0..=1.0).contains(&dump["same_filled_share"].as_f64().unwrap()));
        assert!(number(dump, "collected_pages") > 100, "{dump}");
        for row in dump["checks"].as_array().unwrap() {
            assert!(row["mbps"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["in_cache_mbps"].as_f64().unwrap() > 0.0, "{row}");
            let is_softswap = row["variant"] == "softswap";
            assert_eq!(row["iterations"].is_null(), is_softswap, "{row}");
        }
    }
    let suffixes =
        names.iter().map(|name| format!("_{name}")).chain(["".into(), "_programs".into()]);
    for suffix in suffixes {
        for name in [
            "iterations_last_first_vs_forward",
            "throughput_last_first_vs_forward",
            "throughput_softswap_vs_last_first",
            "throughput_softswap_vs_last_first_in_cache",
        ] {
            let ratio = found["ratios"][format!("{name}{suffix}")].as_f64();
            assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{name}{suffix}");
        }
    }
    // By construction: 23 % same-filled, and 10 % that only `forward` reads to the end.
    let mix = found["ratios"]["iterations_last_first_vs_forward_mix"].as_f64().unwrap();
    assert!((0.68..0.72).contains(&mix), "{mix}");
}

#[test]
fn missing_programs_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = softswap();
    command.args(["bench", "samefill", "--pages", "1024", "--rounds", "1"]);
    let found = json_of(command.env("PATH", dir.path()));
    let parts =
        ["graph_walk is left out", "apt install gcc", "numeric_sort is left out", "python3"];
    assert_contains(found["notes"].to_string().as_bytes(), &parts);
    assert_eq!(found["dumps"].as_array().unwrap().len(), 1);
    assert_eq!(found["dumps"][0]["pages"], 1024);
    assert!(found["ratios"]["throughput_softswap_vs_last_first_programs"].is_null());
}
