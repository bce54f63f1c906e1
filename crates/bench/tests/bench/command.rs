//! `softswap bench`: results, refusals, and removal of all files.

mod policy;
mod swap;

use crate::common::{is_root, softswap};
use crate::{assert_contains, assert_empty, assert_header, json_of, names};
use serde_json::Value;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

fn faults(swap: &Path) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["bench", "faults", "--pages", "64", "--swap"]).arg(swap);
    command
}

#[test]
fn faults_are_reported_as_one_json_object_and_as_a_table() {
    let (swap, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = results.path().join("faults.json");
    std::fs::write(&file, "x".repeat(100_000)).unwrap();
    let output = faults(swap.path()).arg("--json").arg(&file).assert().success();
    assert_contains(&output.get_output().stdout, &["fault_same_filled", "p99_us"]);
    let found: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_header(&found, "faults");
    let expected = "fault_zero_read fault_zero_write fault_same_filled fault_pool fault_disk \
        sigbus_copy copy device_read kernel_anonymous step_signal_entry step_entry step_fill \
        step_unpack step_install_protected step_signal_return";
    assert_eq!(names(&found["rows"], "variant").join(" "), expected);
    for row in found["rows"].as_array().unwrap() {
        let (p50, p99) = (row["p50_us"].as_f64().unwrap(), row["p99_us"].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99, "{row}");
        let count = row["count"].as_u64().unwrap();
        assert!(count >= 5 * 64 && count.is_multiple_of(64), "{row}");
    }
    assert!(found["differences"]["disk_minus_device_us"].is_f64());
    assert_empty(swap.path());
}

#[test]
fn invalid_values_are_rejected_before_measuring() {
    let swap = tempfile::tempdir().unwrap();
    let table: &[(&[&str], &[&str])] = &[
        (&["--pages", "0"], &["'0'", "--pages", "64..=16384"]),
        (&["--pages", "many"], &["'many'", "--pages"]),
        (
            &["--json", "/no/such/dir/x"],
            &["--json /no/such/dir/x", "cannot be written", "standard output"],
        ),
    ];
    for (options, parts) in table {
        let mut command = softswap();
        command.args(["bench", "faults", "--swap"]).arg(swap.path()).args(*options);
        assert_refused(&mut command, parts);
    }
    let parts = ["--swap", "/no/such/dir", "mkdir -p"];
    assert_refused(&mut faults(Path::new("/no/such/dir")), &parts);
    softswap().arg("bench").assert().code(2);
    softswap().args(["bench", "nonsense"]).assert().code(2);
    assert_empty(swap.path());
}

fn io(options: &[&str]) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["bench", "io", "--rounds", "1", "--seconds", "0.02"]).args(options);
    command
}

/// Later polls are longer if reads take longer.
const FIRST_POLL_US: f64 = 200.0;

/// Each thread may have waited for a read when counting started or stopped, so each counter may
/// differ by one for each thread.
fn assert_waited_as(mode: &str, counts: &Value, io_uring: bool, threads: u64, p50_us: f64) {
    let of = |name: &str| counts[name].as_u64().unwrap();
    let (considered, polled, slept) = (of("considered"), of("polled"), of("slept"));
    let most = |n: u64| n + threads;
    assert!(of("hit") <= most(polled) && polled <= most(considered), "{mode}: {counts}");
    assert!(of("overslept") <= most(slept) && slept <= most(considered), "{mode}: {counts}");
    match mode {
        "interrupt" => assert_eq!((polled, slept), (0, 0), "{counts}"),
        "hybrid" => {}
        "auto" => assert_eq!(slept, 0, "{counts}"),
        "poll" if io_uring => {
            assert!(considered <= most(polled) && slept == 0, "{counts}");
            // On a slow disk all polls may end before their reads.
            assert!(of("hit") > 0 || p50_us > FIRST_POLL_US, "{p50_us} us: {counts}");
        }
        _ => assert_eq!(slept, 0, "{counts}"),
    }
}

const OWN_ROWS: [&str; 6] = ["interrupt", "poll", "hybrid", "auto", "pread", "depth_32"];

pub(crate) fn assert_io(found: &Value) {
    assert_eq!((&found["bytes"], &found["rounds"]), (&(2 << 20).into(), &1.into()));
    assert!(found["device_polling"].is_boolean());
    assert_eq!(names(&found["rows"], "variant"), OWN_ROWS);
    assert!(found["fio"].is_null() && found["ratios"]["latency_softswap_vs_fio_poll"].is_null());
    assert!(found["notes"].to_string().contains("fio is left out"), "{}", found["notes"]);
    let rows = found["rows"].as_array().unwrap();
    for row in rows {
        let of = |name: &str| row[name].as_f64().unwrap();
        assert!(0.0 < of("p50_us") && of("p50_us") <= of("p99_us"), "{row}");
        assert!(of("mb_per_s") > 0.0 && of("cpu_us") >= 0.0, "{row}");
        assert!(of("count") > 0.0 && of("depth") >= 1.0 && of("cov") >= 0.0, "{row}");
    }
    for key in ["latency_interrupt_vs_poll", "latency_hybrid_vs_poll"] {
        assert!(found["ratios"][key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert!(found["timer_overshoot_us"].as_f64().unwrap() > 0.0);
    for counts in found["modes"].as_array().unwrap() {
        let mode = counts["mode"].as_str().unwrap();
        assert!(counts["considered"].as_u64().unwrap() > 0, "{mode}: {counts}");
        let row = rows.iter().find(|row| row["variant"] == mode).unwrap();
        let (io_uring, p50_us) = (found["io_uring"].as_bool(), row["p50_us"].as_f64());
        assert_waited_as(mode, counts, io_uring.unwrap(), 0, p50_us.unwrap());
    }
}

#[test]
fn existing_file_is_only_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    let content: Vec<u8> = (0..3 << 20).map(|n: u32| (n >> 10) as u8).collect();
    std::fs::write(&file, &content).unwrap();
    let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
    let output = io(&["--size", "2M", "--no-fio"]).arg(&file).assert().success();
    let parts = ["hybrid", "cpu_us", "latency_interrupt_vs_poll", "2.0 MiB of", "overslept"];
    assert_contains(&output.get_output().stdout, &parts);
    assert!(std::fs::read(&file).unwrap() == content);
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), modified);
}

fn with_fio(command: &mut assert_cmd::Command, dir: &Path, text: &str) {
    crate::common::script(dir, "fio", text);
    command.env("PATH", format!("{}:/usr/bin:/bin", dir.display()));
}

const SOME_FIO: &str = r#"#!/bin/sh
case "$*" in
    --version) echo fio-9.99; exit ;;
    *--ioengine=io_uring*--hipri*) echo "Operation not supported" >&2; exit 1 ;;
    *--readonly*) ;;
    *) echo "this would write" >&2; exit 1 ;;
esac
for word; do
    case "$word" in --filename=*) test -r "${word#*=}" || exit 1 ;; esac
done
side='"total_ios": 100, "io_bytes": 409600, "runtime": 20, "lat_ns": {"mean": 60000,
    "percentile": {"50.000000": 50000, "99.000000": 90000}}'
echo "{\"jobs\": [{\"error\": 0, \"usr_cpu\": 10, \"sys_cpu\": 40, \"job_runtime\": 20,
    \"read\": {$side}, \"write\": {$side}}]}"
"#;

#[test]
fn failed_fio_jobs_are_omitted() {
    let (swap, bin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = io(&["--swap", swap.path().to_str().unwrap(), "--size", "2M"]);
    with_fio(&mut command, bin.path(), SOME_FIO);
    let found = json_of(&mut command);
    assert_eq!(found["fio"], "fio-9.99");
    let variants = names(&found["rows"], "variant");
    for name in ["fio_io_uring", "fio_psync", "fio_sqthread_poll", "fio_depth_32"] {
        assert!(variants.contains(&name), "{name} is missing in {variants:?}");
    }
    assert!(!variants.contains(&"fio_io_uring_hipri"), "{variants:?}");
    assert!(found["notes"].to_string().contains("Operation not supported"), "{}", found["notes"]);
    let row = found["rows"].as_array().unwrap().iter().find(|row| row["by"] == "fio").unwrap();
    assert_eq!((&row["p50_us"], &row["cpu_us"]), (&50.0.into(), &100.0.into()));
    for key in ["latency_softswap_vs_fio_interrupt", "latency_softswap_vs_fio_poll"] {
        assert!(found["ratios"][key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert_empty(swap.path());
}

fn assert_refused(command: &mut assert_cmd::Command, parts: &[&str]) {
    crate::common::assert_refused(command, 2, parts);
}

#[test]
fn unsuitable_files_are_rejected_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (small, data) = (place("small"), place("data"));
    std::fs::write(&small, b"abc").unwrap();
    std::fs::write(&data, vec![7; 2 << 20]).unwrap();
    let here = dir.path().to_str().unwrap();
    let table: &[(&[&str], &[&str])] = &[
        (&["/no/such/file"], &["/no/such/file", "No such file", "block device"]),
        (&[here], &["is a directory", "--swap"]),
        (&["/dev/null"], &["neither a file nor a block device"]),
        (&[&small], &["too small", "1.0 MiB"]),
        (&[&data, "--size", "100K"], &["too small"]),
        (&["--size", "100K", "--swap", here], &["--size", "too small"]),
        (&["--size", "banana"], &["banana", "not a size"]),
        (&[&data, "--seconds", "0"], &["--seconds", "0.001"]),
        (&[&data, "--rounds", "0"], &["--rounds", "1..="]),
    ];
    for (options, parts) in table {
        assert_refused(softswap().args(["bench", "io"]).args(*options), parts);
    }
    assert!(std::fs::read(&data).unwrap() == vec![7; 2 << 20]);
}

pub(crate) fn assert_bounce(found: &Value) {
    for workload in ["small", "big", "fourway"] {
        for against in ["vs_pool_first", "vs_itself"] {
            for device in ["", "_device"] {
                let name = format!("{workload}_area_first_{against}{device}");
                assert!(found["ratios"][&name].as_f64() > Some(0.0), "{name}: {found}");
            }
        }
    }
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * 3 * 2);
    for row in rows {
        assert!(row["mib_per_s"].as_f64() > Some(0.0) && row["count"] == 2, "{row}");
        assert!(row["areas_visited"].as_f64() >= Some(1.0) && row["cov"].is_f64(), "{row}");
    }
    let single_server = found["alone"].as_array().unwrap();
    let threads: Vec<_> =
        single_server.iter().map(|row| row["threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [1, 2, 4, 8]);
    assert!(single_server.iter().all(|row| row["ns"].as_f64() > Some(0.0)), "{found}");
}

fn swap_in(swap: &Path, options: &[&str]) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["bench", "swap-in", "--memory", "16M", "--rounds", "1", "--touches", "400"]);
    command.arg("--swap").arg(swap).args(options);
    command
}

pub(crate) fn assert_swap_in(found: &Value) {
    assert_eq!(found["region_bytes"], 64 << 20);
    let modes = ["interrupt", "poll", "hybrid", "auto"];
    let expected: Vec<_> = ["1", "3"]
        .iter()
        .flat_map(|threads| modes.map(|mode| format!("{mode}_t{threads}")))
        .collect();
    assert_eq!(names(&found["rows"], "variant"), expected);
    for row in found["rows"].as_array().unwrap() {
        let of = |name: &str| row[name].as_f64().unwrap();
        assert!(of("seconds") > 0.0 && of("cpu_seconds") > 0.0, "{row}");
        assert!(0.0 < of("fault_p50_us") && of("fault_p50_us") <= of("fault_p99_us"), "{row}");
        // Three of four touches fault from disk.
        assert!((150.0..=400.0).contains(&of("faults")) && of("considered") > 0.0, "{row}");
        let io_uring = found["io_uring"].as_bool().unwrap();
        let threads = row["threads"].as_u64().unwrap();
        let mode = row["mode"].as_str().unwrap();
        assert_waited_as(mode, row, io_uring, threads, of("fault_p50_us"));
    }
    for mode in &modes[1..] {
        for threads in [1, 3] {
            let key = format!("swapin_interrupt_vs_{mode}_t{threads}");
            assert!(found["ratios"][&key].as_f64().unwrap() > 0.0, "{key}");
        }
    }
}

#[test]
fn swap_in_benchmark_detects_damaged_page() {
    let swap = tempfile::tempdir().unwrap();
    let output = swap_in(swap.path(), &["--threads", "2", "--damage"]).assert().code(125);
    assert_contains(&output.get_output().stderr, &["differs from what was written"]);
    assert_empty(swap.path());
}

#[test]
fn invalid_swap_in_benchmark_is_rejected() {
    let swap = tempfile::tempdir().unwrap();
    let table: &[(&[&str], &[&str])] = &[
        (&["--region", "8M"], &["--region", "nothing would be swapped"]),
        (&["--threads", "0"], &["--threads", "1..="]),
        (&["--threads", "1,many"], &["--threads", "many"]),
    ];
    for (options, parts) in table {
        assert_refused(&mut swap_in(swap.path(), options), parts);
    }
    let small = &["bench", "swap-in", "--memory", "1M"];
    assert_refused(softswap().args(small), &["--memory", "too little", "8.0 MiB"]);
    assert_empty(swap.path());
}

/// Devices and cgroups affect the whole machine.
fn exclusive_machine() -> MutexGuard<'static, ()> {
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn zram_devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("zram")).collect();
    names.sort();
    names
}

fn has_zram() -> bool {
    is_root() && Path::new("/sys/class/zram-control/hot_add").exists()
}
