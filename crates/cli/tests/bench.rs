//! `softswap bench`: what it prints, what it refuses, and that nothing stays.

mod common;
use common::softswap;
use std::path::Path;

fn faults(swap: &Path) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["bench", "faults", "--pages", "64", "--swap"]).arg(swap);
    command
}

fn assert_empty(dir: &Path) {
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}

#[test]
fn faults_are_reported_as_one_json_object() {
    let swap = tempfile::tempdir().unwrap();
    let output = faults(swap.path()).args(["--json", "-"]).assert().success();
    let found: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!((&found["schema"], &found["bench"]), (&1.into(), &"faults".into()));
    for key in ["cpu", "kernel", "device"] {
        assert!(!found["machine"][key].as_str().unwrap().is_empty(), "{key}");
    }
    let rows = found["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["variant"].as_str().unwrap()).collect();
    let expected = [
        "fault_zero_read",
        "fault_zero_write",
        "fault_same_filled",
        "fault_pool",
        "fault_disk",
        "sigbus_copy",
        "copy",
        "device_read",
        "kernel_anonymous",
    ];
    assert_eq!(names, expected);
    for row in rows {
        let (p50, p99) = (row["p50_us"].as_f64().unwrap(), row["p99_us"].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99, "{row}");
        let count = row["count"].as_u64().unwrap();
        assert!(count >= 5 * 64 && count.is_multiple_of(64), "{row}");
    }
    assert!(found["ratios"]["disk_minus_device_us"].is_f64());
    assert_empty(swap.path());
}

#[test]
fn with_a_file_for_the_json_the_table_is_printed_too() {
    let (swap, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = results.path().join("faults.json");
    std::fs::write(&file, "x".repeat(100_000)).unwrap();
    let output = faults(swap.path()).arg("--json").arg(&file).assert().success();
    let table = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(table.contains("fault_same_filled") && table.contains("p99 us"), "{table}");
    let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(found["rows"].as_array().unwrap().len(), 9);
    assert_empty(swap.path());
}

#[test]
fn bad_values_are_refused_before_anything_is_measured() {
    let swap = tempfile::tempdir().unwrap();
    let dir = swap.path().to_str().unwrap();
    let table: &[(&[&str], &[&str])] = &[
        (&["--pages", "0", "--swap", dir], &["'0'", "--pages", "64..=16384"]),
        (&["--pages", "many", "--swap", dir], &["'many'", "--pages"]),
        (&["--swap", "/no/such/dir"], &["--swap", "/no/such/dir", "mkdir -p"]),
        (
            &["--json", "/no/such/dir/x", "--swap", dir],
            &["--json /no/such/dir/x", "cannot be written", "standard output"],
        ),
    ];
    for (options, parts) in table {
        let output = softswap().args(["bench", "faults"]).args(*options).assert().code(2);
        let text = String::from_utf8(output.get_output().stderr.clone()).unwrap();
        for part in *parts {
            assert!(text.contains(part), "{part:?} is missing in: {text}");
        }
        assert!(output.get_output().stdout.is_empty());
    }
    softswap().arg("bench").assert().code(2);
    softswap().args(["bench", "nonsense"]).assert().code(2);
    assert_empty(swap.path());
}
