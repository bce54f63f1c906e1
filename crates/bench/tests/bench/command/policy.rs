//! `softswap bench policy`: figures and refusals.

use super::assert_refused;
use crate::common::softswap;
use crate::{assert_header, json_of};
use serde_json::Value;

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/sqlite.touches");

fn policy(options: &[&str]) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["bench", "policy", "--pages", "128"]).args(options);
    command
}

fn stalls(found: &Value, without: &str) -> Vec<f64> {
    let rows = found["rows"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["without"] == without);
    rows.map(|row| row["stalled_ms"].as_f64().unwrap()).collect()
}

#[test]
fn every_pattern_is_simulated_and_the_same_seed_gives_the_same_figures() {
    let found = json_of(&mut policy(&["--seed", "3"]));
    assert_header(&found, "policy");
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6 * 3);
    for row in rows {
        assert_eq!((&row["pages"], &row["zero_faults"]), (&128.into(), &128.into()), "{row}");
        assert!(row["stalled_ms"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(json_of(&mut policy(&["--seed", "3"]))["rows"], found["rows"]);
    assert_ne!(json_of(&mut policy(&["--seed", "4"]))["rows"], found["rows"]);
}

#[test]
fn recorded_trace_is_simulated_with_options() {
    let options = ["--only-traces", "--trace", RECORDED, "--without", "swap_cache,pool_copies"];
    let found = json_of(&mut policy(&options));
    let (with, without) = (stalls(&found, ""), stalls(&found, "swap_cache,pool_copies"));
    assert!(with.len() == 3 && with.is_sorted(), "less memory costs more: {with:?}");
    let ratio = found["ratios"]["stalled_without_vs_with_sqlite_25"].as_f64().unwrap();
    assert!((ratio - without[2] / with[2]).abs() < 1e-9);

    let dir = tempfile::tempdir().unwrap();
    let costs = dir.path().join("faults.json");
    let row = |variant: &str| serde_json::json!({"variant": variant, "p50_us": 1000.0});
    let names = ["fault_zero_write", "fault_same_filled", "fault_pool", "fault_disk"];
    let text = serde_json::json!({"rows": names.map(row)}).to_string();
    std::fs::write(&costs, text).unwrap();
    let options = [&options[..3], &["--costs", costs.to_str().unwrap()]].concat();
    assert!(stalls(&json_of(&mut policy(&options)), "")[0] > 10.0 * with[0]);
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
    let found = json_of(&mut policy(&["--only-traces", "--trace", trace.to_str().unwrap()]));
    assert!(found["rows"][0]["pages"].as_u64() > Some(1000), "{}", found["rows"]);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "the recording is gone");

    std::fs::write(&trace, b"touches2 and so on").unwrap();
    let options = ["--only-traces", "--trace", trace.to_str().unwrap()];
    assert_refused(&mut policy(&options), &["sort.touches", "cut off", "bench record"]);
    let mut failing = softswap();
    failing.args(["bench", "record", "--swap"]).arg(dir.path()).arg("--out").arg(&trace);
    assert_refused(failing.args(["--", "/no/such/program"]), &["/no/such/program"]);
}

#[test]
fn non_trace_files_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let taken = dir.path().join("loop.touches");
    std::fs::copy(RECORDED, &taken).unwrap();
    let table: &[(&[&str], &[&str])] = &[
        (&["--trace", "/no/such/file"], &["--trace /no/such/file", "No such file"]),
        (&["--trace", taken.to_str().unwrap()], &["\"loop\"", "rename the file"]),
        (&["--only-traces"], &["--trace"]),
        (&["--quick"], &["--quick", "--pages"]),
    ];
    for (options, parts) in table {
        assert_refused(&mut policy(options), parts);
    }
}
