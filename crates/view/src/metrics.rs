//! Metrics in Prometheus's text format.

use crate::reading::Reading;
use crate::tree::{Process, Shared, State, Tree};
use softswap_engine::base::stats::{TIERS, bucket_floor};
use std::fmt::Write as _;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of buckets: 2^8 ns to 2^30 ns (about 1 s), every second exponent. Each is also a
/// bound of the engine's buckets.
const OCTAVES: std::ops::RangeInclusive<usize> = 8..=30;
const STEP: usize = 2;
const BUCKETS_PER_OCTAVE: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
}

struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&Reading) -> f64,
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Reading) -> f64) -> Metric {
    Metric { name, kind: Kind::Gauge, help, value }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Reading) -> f64) -> Metric {
    Metric { name, kind: Kind::Counter, help, value }
}

const METRICS: [Metric; 17] = [
    gauge("softswap_used_bytes", "DRAM that counts against the budget.", |it| it.used_bytes as f64),
    gauge("softswap_resident_bytes", "Resident pages of the program.", |it| {
        it.resident_bytes as f64
    }),
    gauge("softswap_pool_bytes", "DRAM that the compressed pool uses.", |it| it.pool_bytes as f64),
    gauge("softswap_pool_stored_bytes", "Compressed pages in the pool.", |it| {
        it.pool_stored_bytes as f64
    }),
    gauge("softswap_disk_bytes", "Swap slots in use.", |it| it.disk_bytes as f64),
    gauge("softswap_mapped_bytes", "Memory that the program has mapped.", |it| {
        it.mapped_bytes as f64
    }),
    gauge("softswap_mappings", "Mappings created by page protection.", |it| it.mappings as f64),
    gauge("softswap_mappings_limit", "Limit of softswap_mappings; 0 with userfaultfd.", |it| {
        it.mappings_limit as f64
    }),
    counter("softswap_stalled_seconds_total", "Time that threads waited for pages.", |it| {
        it.stalled_ns as f64 / 1e9
    }),
    counter("softswap_read_bytes_total", "Bytes read from swap areas.", |it| it.bytes_read as f64),
    counter("softswap_written_bytes_total", "Bytes written to swap areas.", |it| {
        it.bytes_written as f64
    }),
    counter("softswap_pages_out_total", "Pages swapped out.", |it| it.pages_out as f64),
    counter("softswap_pages_same_filled_total", "Pages swapped out that repeat one word.", |it| {
        it.pages_same_filled as f64
    }),
    counter("softswap_pages_pooled_total", "Pages swapped out to the compressed pool.", |it| {
        it.pages_pooled as f64
    }),
    counter("softswap_pages_incompressible_total", "Pages that did not compress.", |it| {
        it.pages_incompressible as f64
    }),
    counter("softswap_direct_reclaims_total", "Reclaims by threads of the program.", |it| {
        it.direct_reclaims as f64
    }),
    counter("softswap_errors_total", "Failed reads and writes, and damaged pages.", |it| {
        it.errors as f64
    }),
];

const LATENCY: &str = "softswap_fault_duration_seconds";

type OfTree = (&'static str, Kind, &'static str, fn(&Shared) -> u64);

const OF_TREES: [OfTree; 4] = [
    ("softswap_tree_budget_bytes", Kind::Gauge, "DRAM budget of a tree.", |it| it.budget_bytes),
    (
        "softswap_tree_granted_bytes",
        Kind::Gauge,
        "Part of the tree's budget that processes hold.",
        |it| it.granted_bytes,
    ),
    ("softswap_tree_turns_total", Kind::Counter, "Turns taken by processes of a tree.", |it| {
        it.turns
    }),
    ("softswap_tree_parked", Kind::Gauge, "1 if the tree is parked, otherwise 0.", |it| {
        it.is_parked.into()
    }),
];

#[must_use]
pub fn text(trees: &[Tree]) -> String {
    let mut text = String::new();
    let help = "Processes by state: awake, asleep (memory fits the budget), or silent (no answer).";
    write(&mut text, "softswap_processes", Kind::Gauge, help, trees.iter().flat_map(states));
    let budgets = all(trees).map(|(tree, it)| (labels(tree, it), it.budget_bytes as f64));
    let help = "DRAM budget of a process.";
    write(&mut text, "softswap_budget_bytes", Kind::Gauge, help, budgets);
    for (name, kind, help, value) in OF_TREES {
        let shared = trees.iter().filter_map(|tree| Some((tree.root, tree.shared.as_ref()?)));
        let values = shared.map(|(root, it)| (format!("root=\"{root}\""), value(it) as f64));
        write(&mut text, name, kind, help, values);
    }
    for Metric { name, kind, help, value } in &METRICS {
        let readings = all(trees).filter_map(|(tree, it)| Some((tree, it, it.reading()?)));
        let values = readings.map(|(tree, it, reading)| (labels(tree, it), value(reading)));
        write(&mut text, name, *kind, help, values);
    }
    latencies(&mut text, trees);
    text
}

#[must_use]
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
    names.extend(OF_TREES.map(|(name, ..)| name));
    names.extend(["softswap_processes", "softswap_budget_bytes", LATENCY]);
    names
}

fn all(trees: &[Tree]) -> impl Iterator<Item = (&Tree, &Process)> {
    trees.iter().flat_map(|tree| tree.processes.iter().map(move |process| (tree, process)))
}

/// Writing to a String cannot fail, here and below.
fn write(
    text: &mut String,
    name: &str,
    kind: Kind,
    help: &str,
    samples: impl Iterator<Item = (String, f64)>,
) {
    let kind = match kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
    };
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "{name}{{{labels}}} {value}");
    }
}

fn labels(tree: &Tree, process: &Process) -> String {
    let (root, pid) = (tree.root, process.pid);
    format!("root=\"{root}\",pid=\"{pid}\",process=\"{}\"", escaped(&process.name))
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn states(tree: &Tree) -> [(String, f64); 3] {
    let count = |is: fn(&State) -> bool| {
        tree.processes.iter().filter(|process| is(&process.state)).count() as f64
    };
    let states = [
        ("awake", count(|state| matches!(state, State::Awake(_)))),
        ("asleep", count(|state| matches!(state, State::Asleep))),
        ("silent", count(|state| matches!(state, State::Silent(_)))),
    ];
    states.map(|(state, count)| (format!("root=\"{}\",state=\"{state}\"", tree.root), count))
}

/// Sums use the middle of each of the engine's buckets.
fn latencies(text: &mut String, trees: &[Tree]) {
    let help = "Duration of faults, by the tier of the page.";
    let _ = writeln!(text, "# HELP {LATENCY} {help}\n# TYPE {LATENCY} histogram");
    for (tree, process) in all(trees) {
        let Some(reading) = process.reading() else { continue };
        for (tier, counts) in TIERS.iter().zip(&process.latencies) {
            let labels = format!("{},tier=\"{}\"", labels(tree, process), tier.name());
            for octave in OCTAVES.step_by(STEP) {
                let bound = octave * BUCKETS_PER_OCTAVE;
                let below: u64 = counts.iter().take(bound).sum();
                let le = bucket_floor(bound) as f64 / 1e9;
                let _ = writeln!(text, "{LATENCY}_bucket{{{labels},le=\"{le}\"}} {below}");
            }
            let count: u64 = counts.iter().sum();
            let sum = reading.waited_ns[*tier as usize] as f64 / 1e9;
            let _ = writeln!(text, "{LATENCY}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(text, "{LATENCY}_sum{{{labels}}} {sum}");
            let _ = writeln!(text, "{LATENCY}_count{{{labels}}} {count}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::base::stats::{BUCKETS, bucket_of};

    fn tree() -> Tree {
        let mut latencies = vec![vec![0; BUCKETS]; TIERS.len()];
        latencies[4][bucket_of(3_000)] = 7;
        latencies[4][bucket_of(2_000_000_000)] = 1;
        let reading = Reading { stalled_ns: 2_500_000_000, used_bytes: 77, ..Reading::default() };
        let process = Process {
            pid: 8,
            name: "a \"name\"\\".into(),
            state: State::Awake(Box::new(reading)),
            budget_bytes: 64 << 20,
            latencies,
            ..Process::default()
        };
        let shared = Some(Shared { turns: 3, is_parked: true, ..Shared::default() });
        Tree { root: 7, shared, processes: vec![process], ..Tree::default() }
    }

    #[test]
    fn values_use_base_units_and_labels_are_escaped() {
        let text = text(&[tree()]);
        let labels = r#"root="7",pid="8",process="a \"name\"\\""#;
        for line in [
            format!("softswap_stalled_seconds_total{{{labels}}} 2.5"),
            format!("softswap_used_bytes{{{labels}}} 77"),
            "softswap_processes{root=\"7\",state=\"awake\"} 1".to_string(),
            "softswap_tree_turns_total{root=\"7\"} 3".to_string(),
            "softswap_tree_parked{root=\"7\"} 1".to_string(),
            format!("{LATENCY}_bucket{{{labels},tier=\"pool\",le=\"0.000001024\"}} 0"),
            format!("{LATENCY}_bucket{{{labels},tier=\"pool\",le=\"0.000004096\"}} 7"),
            format!("{LATENCY}_bucket{{{labels},tier=\"pool\",le=\"+Inf\"}} 8"),
            format!("{LATENCY}_count{{{labels},tier=\"pool\"}} 8"),
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is missing in:\n{text}");
        }
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn every_metric_is_declared_once() {
        for trees in [vec![], vec![tree()]] {
            let text = text(&trees);
            for name in names() {
                let declared = format!("# TYPE {name} ");
                assert_eq!(text.matches(&declared).count(), 1, "{name}");
            }
        }
        let metrics = METRICS.iter().map(|it| (it.name, it.kind));
        for (name, kind) in metrics.chain(OF_TREES.map(|(name, kind, ..)| (name, kind))) {
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
        }
    }
}
