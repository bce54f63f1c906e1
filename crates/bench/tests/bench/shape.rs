//! The JSON of every benchmark is one object with `schema`, `bench` and `machine`, and with all
//! ratios under `ratios`, named after numerator and denominator.

use crate::common::softswap;
use crate::{assert_header, json_of};
use serde_json::Value;

/// Arguments of each benchmark's smallest run. A directory is appended after `--swap`.
const SMALLEST: [&str; 14] = [
    "ablation --mechanisms standby --patterns hot_set --working-set 64M --seconds 0.02 \
     --programs hash_join --program-size 64M --rounds 1 --swap",
    "bounce --rounds 1 --ms 2 --swap",
    "extents --tasks 1 --seconds 0.001 --rounds 1 --swap",
    "faults --pages 64 --swap",
    "fits --rounds 1 --programs churn,starts --blocks 1000 --starts 2",
    "io --rounds 1 --seconds 0.01 --size 2M --no-fio --swap",
    "library --rounds 1 --touches 20 --memory 32M --places pool,run --swap",
    concat!("policy --trace ", env!("CARGO_MANIFEST_DIR"), "/traces/node.touches"),
    "remote --rounds 1 --program-rounds 1 --memory 16M --touches 50 --extents 16 --seconds 0.05 \
     --swap",
    "samefill --pages 1024 --rounds 1",
    "swap --quick --sides softswap --no-programs --threads 1 --swap",
    "swap --quick --sides softswap --no-patterns --programs sqlite --program-size 32M --swap",
    "swap-in --memory 16M --touches 100 --threads 1 --rounds 1 --swap",
    "tree --rounds 1 --seconds 1 --budget 32 --swap",
];

fn name_of(smallest: &str) -> &str {
    smallest.split_whitespace().next().unwrap()
}

fn found(smallest: &str) -> Value {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut command = softswap();
    command.arg("bench").args(smallest.split_whitespace());
    if smallest.ends_with("--swap") {
        command.arg(dir.path());
    }
    json_of(&mut command)
}

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
    assert_header(found, name);
    let object = found.as_object_mut().unwrap();
    let ratios = object.remove("ratios").unwrap_or_else(|| panic!("{name} has no ratios"));
    for (key, value) in ratios.as_object().unwrap() {
        let sides: Vec<_> = key.split("_vs_").collect();
        assert!(sides.len() == 2 && !sides.contains(&""), "{name}: {key} is no name of a ratio");
        // A side without CPU time in the short run has no value.
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
fn every_benchmark_reports_named_ratios() {
    let has_redis = std::process::Command::new("redis-server").arg("--version").output().is_ok();
    for smallest in SMALLEST {
        if name_of(smallest) == "remote" && !has_redis {
            eprintln!("skipped: redis-server is not installed");
            continue;
        }
        assert_shape(name_of(smallest), &mut found(smallest));
    }
}

#[test]
fn every_benchmark_is_covered() {
    let help = softswap().args(["bench", "--help"]).assert().success();
    let help = String::from_utf8(help.get_output().stdout.clone()).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let mut names: Vec<_> = commands.lines().filter_map(|l| l.split_whitespace().next()).collect();
    names.retain(|name| *name != "help");
    let mut known = SMALLEST.map(name_of).to_vec();
    known.dedup();
    assert_eq!(names, known);
}
