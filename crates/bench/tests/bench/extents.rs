//! `softswap analyze extents`.

use crate::common::{assert_refused, softswap};
use crate::{assert_contains, json_of};
use serde_json::Value;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PIECE: u64 = 64 << 10;

fn analyze(path: &Path) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["analyze", "extents"]).arg(path);
    command
}

fn has_fiemap(dir: &Path) -> bool {
    let file = tempfile::tempfile_in(dir).unwrap();
    softswap_sys::fiemap::extents(file.as_fd()).is_ok()
}

#[test]
fn holes_and_extents_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    if !has_fiemap(dir.path()) {
        return crate::common::skip("no FIEMAP here");
    }
    let path = dir.path().join("data");
    let file = File::create(&path).unwrap();
    // Ten pieces with holes between them, and a hole at the start.
    for piece in 0..10 {
        file.write_all_at(&vec![7; PIECE as usize], (2 * piece + 1) * PIECE).unwrap();
    }
    file.set_len(21 * PIECE).unwrap();
    let found = json_of(&mut analyze(&path));
    assert_eq!((&found["schema"], &found["analysis"]), (&1.into(), &"extents".into()));
    assert_eq!(found["path"], path.to_str().unwrap());
    assert_eq!(found["file_bytes"], 21 * PIECE);
    assert_eq!(found["mapped_bytes"], 10 * PIECE);
    assert_eq!((&found["holes"], &found["hole_bytes"]), (&11.into(), &(11 * PIECE).into()));
    assert_eq!(found["extents"], 10);
    assert_eq!(found["mean_bytes"], PIECE as f64);
    assert_eq!((&found["smallest_bytes"], &found["largest_bytes"]), (&PIECE.into(), &PIECE.into()));
    assert_eq!(found["extents_per_gib"], 16384.0);
    assert_eq!(found["share_under_1mib"], 1.0);
    for key in ["unwritten_extents", "shared_extents", "unplaced_extents"] {
        assert_eq!(found[key], 0, "{key}");
    }
    let line = serde_json::json!({"from_bytes": PIECE, "extents": 10, "bytes": 10 * PIECE});
    assert_eq!(found["histogram"], serde_json::json!([line]));
    let json = dir.path().join("result.json");
    let output = analyze(&path).arg("--json").arg(&json).assert().success();
    let parts = ["holes: 11", "mean_bytes: 64.0 KiB", "share_under_1mib: 1", "from_bytes"];
    assert_contains(&output.get_output().stdout, &parts);
    let kept: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(kept["extents"], 10);
}

#[test]
fn unwritten_extents_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    if !has_fiemap(dir.path()) {
        return crate::common::skip("no FIEMAP here");
    }
    let path = dir.path().join("data");
    let file = File::create(&path).unwrap();
    let empty = json_of(&mut analyze(&path));
    assert_eq!((&empty["extents"], &empty["holes"]), (&0.into(), &0.into()));
    assert!(empty["mean_bytes"].is_null(), "{empty}");
    analyze(&path).assert().success();

    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 4 << 20).unwrap();
    let found = json_of(&mut analyze(&path));
    assert_eq!(found["unwritten_bytes"], 4 << 20);
    assert_eq!(found["unwritten_extents"], found["extents"]);
    assert_eq!(found["holes"], 0);
}

#[test]
fn files_without_extents_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    assert_refused(&mut analyze(dir.path()), 1, &["is a directory", "choose a file in it"]);
    assert_refused(&mut analyze(Path::new("/no/such/file")), 1, &["/no/such/file", "No such file"]);
    assert_refused(&mut analyze(Path::new("/dev/null")), 1, &["not a regular file"]);
    // A file system without FIEMAP.
    assert_refused(&mut analyze(Path::new("/proc/self/status")), 1, &["FIEMAP", "ext4"]);
    let fifo = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    assert_refused(&mut analyze(&fifo), 1, &["not a regular file"]);
    softswap().args(["analyze", "extents"]).assert().code(2);
    softswap().arg("analyze").assert().code(2);

    let secret = dir.path().join("secret");
    std::fs::write(&secret, b"x").unwrap();
    crate::common::set_mode(&secret, 0);
    let mut command = crate::common::as_unprivileged(dir.path());
    command.args(["analyze", "extents"]).arg(&secret);
    assert_refused(&mut command, 1, &["Permission denied", "as root"]);
}
