//! Named swap areas: creation, checks and refusals.

use super::{assert_refused, json_of, set_mode, softswap};
use serde_json::Value;
use std::fs::{File, OpenOptions, write};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command as Std;
use std::time::SystemTime;
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const UUID: &str = "8dd4db9a-ea4b-4f4d-9aa6-6d6a8e0e5c3f";

pub(crate) struct DataFile {
    pub(crate) dir: TempDir,
    pub(crate) path: PathBuf,
}

impl DataFile {
    pub(crate) fn of(bytes: u64) -> DataFile {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("swapfile");
        write(&path, vec![0x5a; bytes as usize]).unwrap();
        set_mode(&path, 0o600);
        DataFile { dir, path }
    }

    pub(crate) fn area(bytes: u64) -> DataFile {
        let data_file = DataFile::of(bytes);
        formatted(&data_file.path, &[]);
        data_file
    }

    pub(crate) fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }

    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        put(&self.path, offset, bytes);
    }
}

pub(crate) fn put(path: &Path, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

#[derive(PartialEq)]
pub(crate) struct State {
    content: Vec<u8>,
    modified: SystemTime,
    mode: u32,
    blocks: u64,
}

impl State {
    pub(crate) fn of(path: &Path) -> State {
        let mut content = Vec::new();
        let mut file = File::open(path).unwrap();
        // Delayed allocation assigns blocks now.
        let _ = file.sync_all();
        file.read_to_end(&mut content).unwrap();
        let meta = file.metadata().unwrap();
        let modified = meta.modified().unwrap();
        State { content, modified, mode: meta.permissions().mode(), blocks: meta.blocks() }
    }
}

pub(crate) fn mkswap(path: &Path, options: &[&str]) -> assert_cmd::Command {
    let mut command = softswap();
    command.arg("mkswap").args(options).arg(path);
    command
}

pub(crate) fn formatted(path: &Path, options: &[&str]) -> String {
    let output = mkswap(path, options).assert().success().get_output().clone();
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn check(path: &Path) -> assert_cmd::Command {
    let mut command = softswap();
    command.arg("swapon-check").arg(path);
    command
}

/// Also asserts that the check changes nothing.
pub(crate) fn found(path: &Path) -> Value {
    let before = State::of(path);
    let found = json_of(check(path).arg("--json"));
    assert!(before == State::of(path), "a check changed {}", path.display());
    assert_eq!((&found["schema"], &found["usable"]), (&1.into(), &true.into()), "{found}");
    found
}

pub(crate) fn message(command: &mut assert_cmd::Command, parts: &[&str]) {
    assert_refused(command, 2, parts);
}

pub(crate) fn check_refused(path: &Path, parts: &[&str]) {
    let before = State::of(path);
    message(&mut check(path), &[&[path.to_str().unwrap()], parts].concat());
    assert!(before == State::of(path), "a refused check changed {}", path.display());
}

pub(crate) fn mkswap_refused(path: &Path, options: &[&str], parts: &[&str]) {
    let before = State::of(path);
    message(&mut mkswap(path, options), &[&[path.to_str().unwrap()], parts].concat());
    assert!(before == State::of(path), "a refused mkswap changed {}", path.display());
}

pub(crate) fn both_refused(path: &Path, parts: &[&str]) {
    check_refused(path, parts);
    mkswap_refused(path, &["--force"], parts);
}

pub(crate) fn succeeds(command: &mut Std) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

pub(crate) fn output_of(command: &mut Std) -> String {
    String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
}
