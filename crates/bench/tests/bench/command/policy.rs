//! `softswap bench policy`: what it counts, and what it refuses.

use super::{assert_refused, json_of, softswap};
use serde_json::Value;
use std::path::{Path, PathBuf};

const POLICIES: [&str; 8] =
    ["fifo", "clock", "softswap", "lru", "s3_fifo", "optimum", "clock_ahead", "softswap_ahead"];

fn policy(options: &[&str]) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["bench", "policy", "--pages", "64"]).args(options);
    command
}

fn misses(found: &Value, trace: &str, percent: f64, variant: &str) -> u64 {
    let rows = found["rows"].as_array().unwrap().iter();
    let mut rows = rows.filter(|row| {
        row["trace"] == trace && row["memory_percent"] == percent && row["variant"] == variant
    });
    rows.next().unwrap()["misses"].as_u64().unwrap()
}

/// A trace as lackey writes it, of pages anywhere.
fn write_trace(dir: &Path, name: &str, pages: impl Iterator<Item = u64>) -> PathBuf {
    let lines = pages.map(|page| format!("I  04001000,3\n L {:x},8\n", (page << 12) + 0x7f00_0010));
    let text = format!("==1== Lackey\n{}==1== \n", lines.collect::<String>());
    std::fs::write(dir.join(name), text).unwrap();
    dir.join(name)
}

#[test]
fn every_policy_is_counted_over_every_trace_and_the_optimum_is_the_least() {
    let found = json_of(&mut policy(&[]));
    assert_eq!((&found["schema"], &found["bench"]), (&2.into(), &"policy".into()));
    let traces = found["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 11);
    assert_eq!(found["rows"].as_array().unwrap().len(), 11 * 4 * POLICIES.len());
    for trace in traces {
        let name = trace["trace"].as_str().unwrap();
        let (pages, touches) = (trace["pages"].as_u64(), trace["touches"].as_u64().unwrap());
        for (percent, short) in [(12.5, 12), (25.0, 25), (50.0, 50), (75.0, 75)] {
            let of = |variant: &str| misses(&found, name, percent, variant);
            for variant in &POLICIES[..6] {
                assert!(of("optimum") <= of(variant) && of(variant) <= touches, "{variant}");
                assert!(pages <= Some(of(variant)), "{name}: {variant}");
            }
            for (rival, key) in [("fifo", "fifo"), ("optimum", "opt")] {
                let key = format!("misses_softswap_vs_{key}_{name}_{short}");
                let ratio = of("softswap") as f64 / of(rival) as f64;
                assert!((found["ratios"][&key].as_f64().unwrap() - ratio).abs() < 1e-9, "{key}");
            }
        }
    }
    for row in found["rows"].as_array().unwrap() {
        let sees = matches!(row["variant"].as_str().unwrap(), "lru" | "s3_fifo" | "optimum");
        assert_eq!(row["sees_hits"], sees, "{row}");
    }
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let rows = |seed: &str| json_of(&mut policy(&["--seed", seed]))["rows"].clone();
    assert_eq!(rows("3"), rows("3"));
    assert_ne!(rows("3"), rows("4"));
}

#[test]
fn a_recorded_trace_is_counted_too() {
    let dir = tempfile::tempdir().unwrap();
    let round: Vec<u64> = (0..8).map(|page| page * 1000).collect();
    let file = write_trace(dir.path(), "eight.trace", round.repeat(3).into_iter());
    let options = ["--only-traces", "--trace", file.to_str().unwrap()];
    let found = json_of(&mut policy(&options));
    let expected = serde_json::json!([{"trace": "eight", "pages": 8, "touches": 24}]);
    assert_eq!(found["traces"], expected);
    assert_eq!(misses(&found, "eight", 50.0, "fifo"), 24);
    // By hand: of each later round four pages are there still.
    assert_eq!(misses(&found, "eight", 50.0, "optimum"), 8 + 4 + 4);
    let table = policy(&options).assert().success();
    let table = String::from_utf8(table.get_output().stdout.clone()).unwrap();
    for part in ["eight", "told of every touch", "misses_softswap_vs_fifo: "] {
        assert!(table.contains(part), "{part:?} is missing in: {table}");
    }
}

#[test]
fn all_policies_are_simulated_over_what_softswap_recorded() {
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/sqlite.touches");
    let options = ["--only-traces", "--trace", recorded, "--without", "swap_cache,pool_copies"];
    let found = json_of(&mut policy(&options));
    let rows = found["simulated"].as_array().unwrap();
    let stalls = |without: &str| {
        let rows = rows.iter().filter(|row| row["without"] == without);
        rows.map(|row| row["stalled_ms"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let (with, without) = (stalls(""), stalls("swap_cache,pool_copies"));
    assert!(with.len() == 3 && with.is_sorted(), "less memory costs more: {with:?}");
    let ratio = found["ratios"]["stalled_without_vs_with_sqlite_25"].as_f64().unwrap();
    assert!((ratio - without[2] / with[2]).abs() < 1e-9);
    assert_eq!(json_of(&mut policy(&options))["simulated"], found["simulated"]);

    let dir = tempfile::tempdir().unwrap();
    let costs = dir.path().join("faults.json");
    let row = |variant: &str| serde_json::json!({"variant": variant, "p50_us": 1000.0});
    let names = ["fault_zero_write", "fault_same_filled", "fault_pool", "fault_disk"];
    let text = serde_json::json!({"rows": names.map(row)}).to_string();
    std::fs::write(&costs, text).unwrap();
    let options = [&options[..3], &["--costs", costs.to_str().unwrap()]].concat();
    let dear = json_of(&mut policy(&options));
    assert!(dear["simulated"][0]["stalled_ms"].as_f64() > Some(10.0 * with[0]));
}

#[test]
fn a_program_is_recorded_and_what_it_touched_simulated() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (lines, trace) = (dir.path().join("lines"), dir.path().join("sort.touches"));
    let text: String = (0..300_000_u64).map(|at| format!("{}\n", at * 7919 % 1_000_003)).collect();
    std::fs::write(&lines, text).unwrap();
    let mut command = softswap();
    command.args(["bench", "record", "--swap"]).arg(dir.path()).arg("--out").arg(&trace);
    command.args(["--", "sort", "-S", "64M", "--parallel=1", "-o", "/dev/null"]).arg(&lines);
    command.assert().success();
    let found = json_of(&mut policy(&["--only-traces", "--trace", trace.to_str().unwrap()]));
    assert!(found["traces"][0]["pages"].as_u64() > Some(1000), "{}", found["traces"]);
    assert_eq!(found["simulated"].as_array().unwrap().len(), 3);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "the recording is gone");

    std::fs::write(&trace, b"touches2 and so on").unwrap();
    let options = ["--only-traces", "--trace", trace.to_str().unwrap()];
    assert_refused(&mut policy(&options), &["sort.touches", "cut off"]);
    let mut failing = softswap();
    failing.args(["bench", "record", "--swap"]).arg(dir.path()).arg("--out").arg(&trace);
    assert_refused(failing.args(["--", "/no/such/program"]), &["/no/such/program"]);
}

#[test]
fn what_is_no_trace_is_refused_and_the_way_out_named() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.trace");
    std::fs::write(&bad, " L 1000,4\nhello\n").unwrap();
    let empty = dir.path().join("empty.trace");
    std::fs::write(&empty, "==1== nothing\n").unwrap();
    let taken = write_trace(dir.path(), "loop.trace", 0..3);
    let (bad, empty) = (bad.to_str().unwrap(), empty.to_str().unwrap());
    let table: &[(&[&str], &[&str])] = &[
        (&["--trace", bad], &["bad.trace: line 2", "hello", "--tool=lackey --trace-mem=yes"]),
        (&["--trace", empty], &["empty.trace", "no touch of memory"]),
        (&["--trace", "/no/such/file"], &["--trace /no/such/file", "cannot be read"]),
        (&["--trace", taken.to_str().unwrap()], &["\"loop\"", "another name"]),
        (&["--only-traces"], &["--trace"]),
        (&["--quick"], &["--quick", "--pages"]),
        (&["--json", "/no/such/dir/x"], &["--json", "cannot be written"]),
    ];
    for (options, parts) in table {
        assert_refused(&mut policy(options), parts);
    }
    assert_refused(softswap().args(["bench", "policy", "--pages", "7"]), &["--pages", "64..="]);
}
