//! Shape of every benchmark's JSON: `schema`, `bench`, `machine`, and `ratios`.

use crate::common::softswap;
use crate::{assert_empty, assert_header, command, json_of, pages};
use serde_json::Value;

type Check = fn(&Value);

/// Small runs. A directory is appended after `--swap`.
const SMALL: [(&str, Check); 14] = [
    (
        "ablation --mechanisms standby --patterns hot_set --working-set 64M --seconds 0.02 \
         --programs hash_join --program-size 64M --rounds 1 --swap",
        |_| (),
    ),
    ("bounce --rounds 2 --ms 5 --swap", command::assert_bounce),
    ("faults --pages 64 --swap", |_| ()),
    ("faults --faults protection --pages 64 --swap", |_| ()),
    ("fits --rounds 1 --programs churn,starts --blocks 1000 --starts 2", |_| ()),
    ("io --rounds 1 --seconds 0.02 --size 2M --no-fio --swap", command::assert_io),
    ("library --rounds 1 --touches 20 --memory 32M --places pool,run --swap", |_| ()),
    (concat!("policy --trace ", env!("CARGO_MANIFEST_DIR"), "/traces/node.touches"), |_| ()),
    (
        "remote --rounds 1 --program-rounds 1 --memory 16M --touches 50 --extents 16 \
         --seconds 0.05 --swap",
        |_| (),
    ),
    ("samefill --pages 8192 --rounds 2", pages::assert_samefill),
    ("swap --quick --sides softswap --no-programs --threads 1 --swap", |_| ()),
    (
        "swap --quick --sides softswap --no-patterns --programs sqlite --program-size 32M --swap",
        |_| (),
    ),
    ("swap-in --memory 16M --rounds 1 --touches 400 --threads 1,3 --swap", command::assert_swap_in),
    ("tree --rounds 1 --seconds 1 --budget 32 --swap", |_| ()),
];

fn name_of(small: &str) -> &str {
    small.split_whitespace().next().unwrap()
}

fn found(small: &str) -> Value {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut command = softswap();
    command.arg("bench").args(small.split_whitespace());
    if small.ends_with("--swap") {
        command.arg(dir.path());
    }
    let found = json_of(&mut command);
    assert_empty(dir.path());
    found
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
        // No CPU time in the short run.
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
fn every_benchmark_reports_its_figures_and_named_ratios() {
    let has_redis = std::process::Command::new("redis-server").arg("--version").output().is_ok();
    for (small, assert_figures) in SMALL {
        if name_of(small) == "remote" && !has_redis {
            eprintln!("skipped: redis-server is not installed");
            continue;
        }
        eprintln!("{small}");
        let mut found = found(small);
        assert_figures(&found);
        assert_shape(name_of(small), &mut found);
    }
}

#[test]
fn every_benchmark_is_covered() {
    let help = softswap().args(["bench", "--help"]).assert().success();
    let help = String::from_utf8(help.get_output().stdout.clone()).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let mut names: Vec<_> = commands.lines().filter_map(|l| l.split_whitespace().next()).collect();
    // `extents` needs its own file system: the tests of raw areas run it.
    names.retain(|name| !["help", "extents"].contains(name));
    let mut known = SMALL.map(|(small, _)| name_of(small)).to_vec();
    known.dedup();
    assert_eq!(names, known);
}
