//! `softswap bench policy`: figures and refusals.

use super::assert_refused;
use crate::common::softswap;
use crate::{assert_header, json_of};
use serde_json::Value;

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/sqlite.touches");

fn policy(trace: &str, options: &[&str]) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["bench", "policy", "--trace", trace]).args(options);
    command
}

fn stalls(found: &Value, without: &str) -> Vec<f64> {
    let rows = found["rows"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["without"] == without);
    rows.map(|row| row["stalled_ms"].as_f64().unwrap()).collect()
}

#[test]
fn recorded_trace_is_simulated_and_the_same_trace_gives_the_same_figures() {
    let options = ["--without", "swap_cache,pool_copies"];
    let found = json_of(&mut policy(RECORDED, &options));
    assert_header(&found, "policy");
    let (with, without) = (stalls(&found, ""), stalls(&found, "swap_cache,pool_copies"));
    assert!(with.len() == 3 && with.is_sorted(), "less memory must cost more: {with:?}");
    for row in found["rows"].as_array().unwrap() {
        assert!(row["stalled_ms"].as_f64() > Some(0.0), "{row}");
        assert!(row["zero_faults"].as_u64() <= row["pages"].as_u64(), "{row}");
    }
    for (at, percent) in [75, 50, 25].into_iter().enumerate() {
        let key = format!("stalled_without_vs_with_sqlite_{percent}");
        let ratio = found["ratios"][&key].as_f64().unwrap();
        assert!((ratio - without[at] / with[at]).abs() < 1e-9, "{key}");
    }
    assert_eq!(json_of(&mut policy(RECORDED, &options))["rows"], found["rows"]);
}

#[test]
fn recorded_program_is_simulated() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (lines, trace) = (dir.path().join("lines"), dir.path().join("sort.touches"));
    let text: String = (0..300_000_u64).map(|at| format!("{}\n", at * 7919 % 1_000_003)).collect();
    std::fs::write(&lines, text).unwrap();
    let mut command = softswap();
    command.args(["bench", "record", "--swap"]).arg(dir.path()).arg("--out").arg(&trace);
    command.args(["--", "sort", "-S", "64M", "--parallel=1", "-o", "/dev/null"]).arg(&lines);
    command.assert().success();
    let found = json_of(&mut policy(trace.to_str().unwrap(), &[]));
    assert!(found["rows"][0]["pages"].as_u64() > Some(1000), "{}", found["rows"]);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "the recording must be removed");

    std::fs::write(&trace, b"touches2 and so on").unwrap();
    let parts = ["sort.touches", "cut off", "bench record"];
    assert_refused(&mut policy(trace.to_str().unwrap(), &[]), &parts);
    let parts = ["--trace /no/such/file", "No such file"];
    assert_refused(&mut policy("/no/such/file", &[]), &parts);
    assert_refused(softswap().args(["bench", "policy"]), &["--trace"]);
    let parts = [RECORDED, "there is a trace \"sqlite\" already", "rename the file"];
    assert_refused(&mut policy(RECORDED, &["--trace", RECORDED]), &parts);
    let mut failing = softswap();
    failing.args(["bench", "record", "--swap"]).arg(dir.path()).arg("--out").arg(&trace);
    assert_refused(failing.args(["--", "/no/such/program"]), &["/no/such/program"]);
}
