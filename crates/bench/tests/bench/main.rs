//! Tests of the benchmark commands, in one executable.

#[path = "../../../cli/tests/cli/common/mod.rs"]
mod common;

mod command;
mod extents;
mod pages;
mod shape;

use serde_json::Value;
use std::path::Path;

fn json_of(command: &mut assert_cmd::Command) -> Value {
    let output = command.args(["--json", "-"]).assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

fn names<'v>(rows: &'v Value, key: &str) -> Vec<&'v str> {
    rows.as_array().unwrap().iter().map(|row| row[key].as_str().unwrap()).collect()
}

fn assert_empty(dir: &Path) {
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}

fn assert_header(found: &Value, bench: &str) {
    assert_eq!((&found["schema"], &found["bench"]), (&3.into(), &bench.into()));
    for key in ["cpu", "cpus", "kernel", "device"] {
        assert!(!found["machine"][key].is_null(), "{bench}: the machine has no {key}");
    }
}

fn assert_contains(text: &[u8], parts: &[&str]) {
    common::assert_contains_all(&String::from_utf8_lossy(text), parts);
}
