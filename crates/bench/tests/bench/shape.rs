//! Every benchmark's JSON is one object with `schema`, `bench`, `machine`, and all its ratios
//! under `ratios`, each named after what is divided.

use crate::common::softswap;
use serde_json::Value;

/// Each benchmark in its smallest form; some run with `--swap DIR` added.
const SMALLEST: [(&str, &[&str], bool); 14] = [
    (
        "ablation",
        &[
            "--mechanisms",
            "standby",
            "--patterns",
            "hot_set",
            "--working-set",
            "64M",
            "--seconds",
            "0.02",
            "--programs",
            "hash_join",
            "--program-size",
            "64M",
            "--rounds",
            "1",
        ],
        true,
    ),
    ("bounce", &["--rounds", "1", "--ms", "2"], true),
    ("extents", &["--tasks", "1", "--seconds", "0.001", "--rounds", "1", "--pieces", "100"], true),
    ("faults", &["--pages", "64"], true),
    (
        "fits",
        &["--rounds", "1", "--programs", "churn,starts", "--blocks", "1000", "--starts", "2"],
        false,
    ),
    ("io", &["--rounds", "1", "--seconds", "0.01", "--size", "2M", "--no-fio"], true),
    (
        "library",
        &["--rounds", "1", "--touches", "20", "--memory", "32M", "--places", "pool,run"],
        true,
    ),
    ("policy", &["--quick"], false),
    (
        "remote",
        &[
            "--rounds",
            "1",
            "--program-rounds",
            "1",
            "--memory",
            "16M",
            "--touches",
            "50",
            "--extents",
            "16",
            "--seconds",
            "0.05",
        ],
        true,
    ),
    ("samefill", &["--pages", "1024", "--rounds", "1"], false),
    ("swap", &["--quick", "--sides", "softswap", "--no-programs", "--threads", "1"], true),
    (
        "swap",
        &[
            "--quick",
            "--sides",
            "softswap",
            "--no-patterns",
            "--programs",
            "sqlite",
            "--program-size",
            "32M",
        ],
        true,
    ),
    ("swap-in", &["--memory", "16M", "--touches", "100", "--threads", "1", "--rounds", "1"], true),
    ("tree", &["--rounds", "1", "--seconds", "1", "--budget", "32"], true),
];

fn found(name: &str, options: &[&str], swaps: bool) -> Value {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut command = softswap();
    command.args(["bench", name]).args(options).args(["--json", "-"]);
    if swaps {
        command.arg("--swap").arg(dir.path());
    }
    let output = command.assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

/// All keys of an object and of what is in it.
fn keys(value: &Value, to: &mut Vec<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            to.push(key.clone());
            keys(value, to);
        }),
        Value::Array(all) => all.iter().for_each(|value| keys(value, to)),
        _ => {}
    }
}

fn assert_shape(name: &str, found: &mut Value) {
    assert_eq!((&found["schema"], &found["bench"]), (&2.into(), &name.into()));
    for key in ["cpu", "cpus", "kernel", "device"] {
        assert!(!found["machine"][key].is_null(), "{name}: the machine has no {key}");
    }
    let object = found.as_object_mut().unwrap();
    let ratios = object.remove("ratios").unwrap_or_else(|| panic!("{name} has no ratios"));
    for (key, value) in ratios.as_object().unwrap() {
        let sides: Vec<_> = key.split("_vs_").collect();
        assert!(sides.len() == 2 && !sides.contains(&""), "{name}: {key} is no name of a ratio");
        // A side that had no processor in so short a time has done nothing.
        assert!(value.is_null() || value.as_f64() >= Some(0.0), "{name}: {key} is {value}");
    }
    let mut others = Vec::new();
    keys(found, &mut others);
    let is_ratio = |key: &&String| {
        let words: Vec<_> = key.split('_').collect();
        words.contains(&"vs") || words.contains(&"ratio") || words.contains(&"slowdown")
    };
    assert_eq!(others.iter().find(is_ratio), None, "{name} has ratios elsewhere");
}

#[test]
fn every_benchmark_has_its_ratios_in_one_place_and_names_what_is_divided() {
    let has_redis = std::process::Command::new("redis-server").arg("--version").output().is_ok();
    for (name, options, swaps) in SMALLEST {
        if name == "remote" && !has_redis {
            eprintln!("skipped: redis-server is not installed");
            continue;
        }
        assert_shape(name, &mut found(name, options, swaps));
    }
}

#[test]
fn no_benchmark_is_left_out() {
    let help = softswap().args(["bench", "--help"]).assert().success();
    let help = String::from_utf8(help.get_output().stdout.clone()).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let mut names: Vec<_> = commands.lines().filter_map(|l| l.split_whitespace().next()).collect();
    names.retain(|name| *name != "help");
    let mut known = SMALLEST.map(|(name, _, _)| name).to_vec();
    known.dedup();
    assert_eq!(names, known);
}
