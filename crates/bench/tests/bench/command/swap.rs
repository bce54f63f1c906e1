//! `softswap bench swap`: runs, and reversal of all changes.

use super::{assert_refused, exclusive_machine, has_zram, zram_devices};
use crate::common::{self, as_unprivileged, is_root, softswap, std_softswap};
use crate::{assert_contains, assert_empty, assert_header, json_of};
use serde_json::Value;
use softswap_testkit::waiting::eventually;
use std::path::Path;
use std::process::Stdio;

const SIDES: [&str; 5] =
    ["softswap", "softswap_same_dram", "kernel_file", "kernel_zram", "kernel_zswap"];

#[derive(Debug, PartialEq, Eq)]
struct Machine {
    zram: Vec<String>,
    swaps: String,
    zswap: Vec<String>,
    page_cluster: String,
    /// Only those whose restorer has exited, not those of a running benchmark.
    orphaned_groups: Vec<String>,
    subtree_control: String,
}

const GROUPS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

fn groups() -> Vec<String> {
    let entries = GROUPS.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("softswap-bench-")).collect()
}

fn restorer_has_exited(group: &str) -> bool {
    let pid = group.split('-').nth(2).unwrap_or_default();
    !Path::new("/proc").join(pid).exists()
}

impl Machine {
    /// Only swap areas below `dir`, because others may change.
    fn now(dir: &Path) -> Machine {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let names = |dir: &str| -> Vec<String> {
            let entries = std::fs::read_dir(dir).into_iter().flatten();
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
        };
        let zswap = "/sys/module/zswap/parameters";
        let mut settings = names(zswap);
        settings.sort();
        let dir = dir.canonicalize().unwrap().display().to_string();
        let swaps = read(Path::new("/proc/swaps"));
        Machine {
            zram: zram_devices(),
            swaps: swaps.lines().filter(|line| line.contains(&dir)).collect(),
            zswap: settings.iter().map(|name| read(&Path::new(zswap).join(name))).collect(),
            page_cluster: read(Path::new("/proc/sys/vm/page-cluster")),
            orphaned_groups: groups()
                .into_iter()
                .filter(|group| restorer_has_exited(group))
                .collect(),
            subtree_control: read(Path::new("/sys/fs/cgroup/cgroup.subtree_control")),
        }
    }
}

fn swap(dir: &Path, options: &[&str]) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["bench", "swap", "--quick", "--seconds", "0.02", "--working-set", "64M"]);
    command.args(["--threads", "1,2", "--swap"]).arg(dir).args(options);
    command
}

fn assert_swap_figures_are_plausible(found: &Value, sides: &[&str]) {
    assert_header(found, "swap");
    assert_eq!((&found["oom_kills"], &found["within_limits"]), (&0.into(), &true.into()));
    for row in found["rows"].as_array().unwrap() {
        let of = |name: &str| row[name].as_f64().unwrap();
        assert!(sides.contains(&row["side"].as_str().unwrap()), "{row}");
        assert!(of("touches_per_s") > 0.0 && 0.0 < of("p50_us") && of("p50_us") <= of("p99_us"));
        let limit = row["limit_bytes"].as_u64().unwrap();
        assert!(row["peak_bytes"].as_u64().is_none_or(|peak| peak <= limit), "{row}");
        let ours = row["side"].as_str().unwrap().starts_with("softswap");
        let outside = row["outside_bytes"].as_u64().unwrap();
        let in_all = row["dram_bytes"].as_u64();
        assert_eq!(in_all, row["peak_bytes"].as_u64().map(|peak| peak + outside), "{row}");
        assert_eq!(row["memory_bytes"].as_u64().is_some_and(|budget| budget < limit), ours);
        assert_eq!(row["came_through"], true, "{row}");
        assert!(ours || row["swapped_bytes"].as_u64().unwrap() > 0, "{row}");
    }
}

#[test]
fn comparison_with_kernel_swap_restores_the_system() {
    let _alone = exclusive_machine();
    let dir = tempfile::tempdir().unwrap();
    let before = Machine::now(dir.path());
    let options = ["--no-programs", "--patterns", "random_read,hot_set"];
    let found = json_of(&mut swap(dir.path(), &options));
    // Wait, because another benchmark may be running.
    eventually("the changes are undone", || Machine::now(dir.path()) == before);
    assert_empty(dir.path());
    assert_swap_figures_are_plausible(&found, &SIDES);
    let notes = found["notes"].to_string();
    if notes.contains("left out") {
        return common::skip(&notes);
    }
    let counts_zswap = notes.contains("the limit includes zswap's compressed pages");
    let mut pairs = vec![
        "softswap_vs_kernel_file",
        "softswap_vs_kernel_zram",
        "softswap_vs_kernel_zswap",
        "softswap_same_dram_vs_kernel_zram",
    ];
    pairs.extend((!counts_zswap).then_some("softswap_same_dram_vs_kernel_zswap"));
    for pattern in ["random_read", "hot_set"] {
        for pair in &pairs {
            for suffix in ["", "_t2", "_50", "_50_t2"] {
                let key = format!("{pattern}_{pair}{suffix}");
                assert!(found["ratios"][&key].as_f64().is_some_and(|ratio| ratio > 0.0), "{key}");
            }
        }
    }
    let rows = found["rows"].as_array().unwrap();
    for rival in rows {
        let of = |row: &Value, name: &str| row[name].as_u64().unwrap();
        if of(rival, "outside_bytes") > 0 {
            let same = rows.iter().find(|row| {
                let keys = ["data", "share_percent", "pattern", "threads"];
                row["side"] == "softswap_same_dram" && keys.iter().all(|key| row[key] == rival[key])
            });
            let limit = of(rival, "limit_bytes") + of(rival, "outside_bytes");
            assert_eq!(of(same.unwrap(), "limit_bytes"), limit / 4096 * 4096);
        }
    }
}

#[test]
fn program_is_measured_with_equal_total_dram() {
    let _alone = exclusive_machine();
    let dir = tempfile::tempdir().unwrap();
    let options = ["--no-patterns", "--programs", "hash_join", "--program-size", "64M"];
    let found = json_of(&mut swap(dir.path(), &options));
    assert_empty(dir.path());
    let notes = found["notes"].to_string();
    if notes.contains("left out") {
        return common::skip(&notes);
    }
    let counts_zswap = notes.contains("the limit includes zswap's compressed pages");
    let keeps_outside = |rival| rival == "kernel_zram" || rival == "kernel_zswap" && !counts_zswap;
    let rows = found["programs"].as_array().unwrap();
    let row_of = |side: &str, same_dram_as: Value| {
        rows.iter().find(|row| row["side"] == side && row["same_dram_as"] == same_dram_as).unwrap()
    };
    for rival in ["kernel_file", "kernel_zram", "kernel_zswap"] {
        let theirs = row_of(rival, Value::Null);
        // The kernel may OOM-kill its own sides.
        if theirs["came_through"] != true {
            continue;
        }
        let ratio = |who: &str| found["ratios"][format!("hash_join_{who}_vs_{rival}_50")].as_f64();
        assert!(ratio("softswap") > Some(0.0), "{notes}");
        assert_eq!(ratio("softswap_same_dram").is_some(), keeps_outside(rival), "{rival}: {notes}");
        if !keeps_outside(rival) {
            continue;
        }
        let ours = row_of("softswap_same_dram", rival.into());
        let of = |row: &Value, name: &str| row[name].as_u64().unwrap();
        let all = of(theirs, "limit_bytes") + of(theirs, "outside_bytes");
        assert_eq!(of(ours, "limit_bytes"), all / 4096 * 4096);
        assert!(of(ours, "peak_bytes") <= all, "{ours}");
    }
}

#[test]
fn unprivileged_bench_measures_softswap_only() {
    let _alone = exclusive_machine();
    let (home, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    common::set_mode(dir.path(), 0o777);
    let mut command = as_unprivileged(home.path());
    if is_root() {
        // The library is next to the copied command.
        let library = common::bin_dir().join("libsoftswap.so");
        std::fs::copy(library, home.path().join("libsoftswap.so")).unwrap();
    }
    command.args(["bench", "swap", "--quick", "--seconds", "0.02", "--working-set", "64M"]);
    command.args(["--threads", "1", "--patterns", "random_write", "--program-size", "64M"]);
    command.args(["--programs", "hash_join", "--swap"]).arg(dir.path());
    let found = json_of(&mut command);
    assert_swap_figures_are_plausible(&found, &["softswap"]);
    let notes = found["notes"].to_string();
    // Without a cgroup all kernel sides are left out together, otherwise one by one.
    assert!(
        ["the kernel's swap is", "kernel_file was"]
            .iter()
            .any(|who| notes.contains(&format!("{who} left out"))),
        "{notes}"
    );
    if !notes.contains("hash_join") {
        assert!(found["ratios"]["hash_join_softswap_vs_in_memory_100"].as_f64().unwrap() > 0.0);
        assert!(found["ratios"]["hash_join_softswap_vs_best_kernel"].is_null());
    }
    assert_empty(dir.path());
}

#[test]
fn swap_benchmark_detects_damaged_page() {
    let _alone = exclusive_machine();
    let dir = tempfile::tempdir().unwrap();
    let options = ["--damage", "--no-programs", "--sides", "softswap", "--patterns", "hot_set"];
    let output = swap(dir.path(), &options).assert().code(125);
    assert_contains(&output.get_output().stderr, &["differs from what was written"]);
    assert_empty(dir.path());
}

#[test]
fn invalid_swap_benchmark_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let table: &[(&[&str], &[&str])] = &[
        (&["--working-set", "16M"], &["--working-set", "too small", "64M or more"]),
        (&["--program-size", "16M"], &["--program-size", "too small", "64M or more"]),
        (&["--program-size", "9T"], &["--program-size", "available", "give less"]),
        (&["--seconds", "0"], &["--seconds", "0.001"]),
        (&["--sides", "moon"], &["--sides", "moon", "kernel_zram"]),
        (&["--patterns", "x"], &["--patterns", "random_read"]),
        (&["--programs", "x"], &["--programs", "gnu_sort"]),
    ];
    for (options, parts) in table {
        let mut command = softswap();
        command.args(["bench", "swap", "--quick", "--swap"]).arg(dir.path()).args(*options);
        assert_refused(&mut command, parts);
    }
    assert_empty(dir.path());
}

#[test]
fn killed_swap_bench_restores_the_system() {
    if !has_zram() {
        return common::skip("zram is not available");
    }
    let _alone = exclusive_machine();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let dir = tempfile::tempdir().unwrap();
        let before = Machine::now(dir.path());
        let groups_before = groups();
        let mut command = std_softswap();
        command.args(["bench", "swap", "--no-programs", "--sides", "kernel_zram,kernel_zswap"]);
        command.arg("--swap").arg(dir.path());
        let mut bench = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut ended = None;
        eventually("the benchmark creates a control group", || {
            ended = bench.try_wait().unwrap();
            ended.is_some() || groups().iter().any(|group| !groups_before.contains(group))
        });
        if ended.is_some() {
            return common::skip("no memory control group can be created");
        }
        softswap_sys::child::send(bench.id() as i32, signal).unwrap();
        assert!(bench.wait().unwrap().code().is_none(), "signal {signal}");
        eventually("the changes are undone", || {
            Machine::now(dir.path()) == before
                && std::fs::read_dir(dir.path()).unwrap().count() == 0
        });
    }
}
