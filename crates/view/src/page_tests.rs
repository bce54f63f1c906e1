//! Tests of the page.

use super::*;
use crate::report::{Process, Tier, Tree, TreeHistory};
use std::collections::BTreeMap;

fn run(samples: usize, seconds: f64) -> Report {
    let at_s: Vec<f64> =
        (0..samples).map(|at| seconds * at as f64 / samples.max(2) as f64).collect();
    let rising: Vec<u64> = (0..samples as u64).map(|at| at * 1000).collect();
    let tier = Tier { count: 9, p50_ns: Some(2000), p99_ns: None };
    Report {
        program: vec!["/usr/bin/<script>".into(), "a & b".into()],
        wall_s: seconds,
        engine_started: true,
        faults: TIERS.map(|name| (name.to_string(), tier.clone())).into(),
        latencies: [("pool".to_string(), vec![(1000, 5), (4096, 4)])].into(),
        history: History {
            at_s,
            pool_pages: rising.clone(),
            faults: TIERS.map(|name| (name.to_string(), rising.clone())).into(),
            columns: columns(&rising),
            tree: None,
        },
        ..Report::default()
    }
}

fn columns(rising: &[u64]) -> Columns {
    Columns {
        budget_bytes: vec![64 << 20; rising.len()],
        used_bytes: rising.to_vec(),
        resident_bytes: rising.to_vec(),
        pool_bytes: rising.to_vec(),
        disk_bytes: rising.to_vec(),
        stalled_ns: rising.to_vec(),
        bytes_read: rising.to_vec(),
        bytes_written: rising.to_vec(),
    }
}

fn page_of(report: &Report) -> String {
    page(report, "{}")
}

#[test]
fn page_embeds_its_json() {
    let json = r#"{"schema": 1, "program": ["</script><b>"], "wall_s": 2.5}"#;
    let page = of(json).unwrap();
    let read = Report::read(json_in(&page).unwrap()).unwrap();
    assert_eq!((read.program, read.wall_s), (vec!["</script><b>".to_string()], 2.5));
    assert_eq!(page.matches("<script").count(), 1, "{page}");
    assert!(json_in("<!DOCTYPE html>\n<html></html>").is_none());
}

#[test]
fn page_has_every_plot_and_no_external_resource() {
    for (samples, seconds) in [(12, 1.0), (512, 86_400.0)] {
        let page = page_of(&run(samples, seconds));
        assert_eq!(page.matches("<svg").count(), 6, "{page}");
        assert_eq!(page.matches("</svg>").count(), 6);
        assert!(!page.contains("could not be drawn") && !page.contains("NaN"));
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt; a &amp; b"));
        // Legends are outside the SVG, for plots of several series.
        assert_eq!(page.matches("class=\"legend\"").count(), 3, "{page}");
        assert!(TIERS.iter().all(|tier| page.contains(&format!("<dt>{tier}</dt>"))));
        // The XML namespace is not a link.
        let addresses = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!addresses.contains("http:") && !addresses.contains("https:"));
        assert!(page.len() < 1 << 20, "{}", page.len());
    }
}

#[test]
fn page_shows_fault_mechanism_and_mappings() {
    let mappings = Some(Mappings { now: 9, peak: 16_061, limit: 58_977 });
    let fault_mechanism = Some("protection".to_string());
    let page = page_of(&Report { fault_mechanism, mappings, ..run(12, 1.0) });
    assert!(page.contains("<td>faults by</td><td>protection</td>"), "{page}");
    assert!(page.contains("<td>mappings</td><td>16,061 of at most 58,977</td>"), "{page}");
    assert!(!page.contains("UFFDIO_MOVE"));
}

#[test]
fn estimate_for_other_budgets_is_shown() {
    let returns = [("pool".to_string(), vec![(1024, 5_000)])].into();
    let report = Report {
        returns,
        budget_bytes: 64 << 20,
        pages_out: 20_000,
        stalled_ns: 1_000_000_000,
        ..run(20, 5.0)
    };
    let page = page_of(&report);
    assert!(page.contains("<li>with 96.0 MiB about "), "{page}");
    assert_eq!(page.matches("<svg").count(), 7);
    assert!(!page.contains("NaN"));
}

#[test]
fn sparse_and_large_reports_are_rendered() {
    let empty = page_of(&Report { slept: true, ..Report::default() });
    assert!(empty.contains("before the first sample") && !empty.contains("<svg"));
    let process = |pid| Process { pid, name: format!("p{pid}"), ..Process::default() };
    let left_out = LeftOut { processes: 30, ..LeftOut::default() };
    let tree = Tree { largest: (0..100).map(process).collect(), left_out, ..Tree::default() };
    let page = page_of(&Report { tree: Some(tree), ..run(20, 5.0) });
    assert!((0..100).all(|pid| page.contains(&format!("<td>p{pid}</td>"))));
    assert!(page.contains("<p>30 more processes are not shown, with 0 faults"));
}

fn tree_of_a_shell() -> Report {
    let rising: Vec<u64> = (0..20).map(|at| at * 1000).collect();
    let by_tier: BTreeMap<_, _> = TIERS.map(|name| (name.to_string(), rising.clone())).into();
    let stalled_ns = rising.iter().map(|at| at * 1_000_000).collect();
    let history = TreeHistory {
        columns: Columns { stalled_ns, ..columns(&rising) },
        processes: vec![3; 20],
        faults: rising,
        faults_by_tier: by_tier,
    };
    let tree = Tree {
        processes_peak: 3,
        faults_by_tier: TIERS.map(|name| (name.to_string(), 123_456)).into(),
        ..Tree::default()
    };
    let alone = run(20, 5.0);
    Report {
        program: vec!["bash".into()],
        tree: Some(tree),
        faults: TIERS.map(|name| (name.to_string(), Tier::default())).into(),
        latencies: BTreeMap::new(),
        history: History { tree: Some(history), ..alone.history },
        ..alone
    }
}

#[test]
fn tree_page_shows_first_process_only_if_active() {
    let page = page_of(&tree_of_a_shell());
    for title in ["DRAM of the tree", "On the disk", "Faults by tier", "Traffic of the disk"] {
        assert!(page.contains(&format!("<figcaption>{title}</figcaption>")), "{title}");
    }
    assert_eq!((page.matches("<svg").count(), page.matches("NaN").count()), (5, 0));
    let number = count(123_456);
    assert_eq!(page.matches(&format!("<td>{number}</td>")).count(), TIERS.len(), "{page}");
    assert!(page.contains("<td>disk</td>") && page.contains("faults of all processes"));
    for title in ["Pages swapped out", "io_uring", "first process", "How long faults took"] {
        assert!(!page.contains(title), "{title}");
    }
    let shell = run(20, 5.0);
    let busy = Report {
        faults: shell.faults,
        latencies: shell.latencies,
        pages_out: 8,
        ..tree_of_a_shell()
    };
    let page = page_of(&busy);
    assert_eq!(page.matches("<svg").count(), 6);
    for title in [
        "<h2>Faults, of the first process (bash)</h2>",
        "<h2>How long faults took, by tier, of the first process (bash)</h2>",
        "<h2>Pages swapped out, of the first process (bash)</h2>",
        "<td>io_uring, of the first process (bash)</td>",
    ] {
        assert!(page.contains(title), "{title} in {page}");
    }
}

#[test]
fn older_tree_report_is_rendered() {
    let mut report = tree_of_a_shell();
    report.tree.as_mut().unwrap().faults_by_tier.clear();
    let tree = report.history.tree.as_mut().unwrap();
    let all = std::mem::take(&mut tree.columns);
    let Columns { budget_bytes, used_bytes, stalled_ns, .. } = all;
    tree.columns = Columns { budget_bytes, used_bytes, stalled_ns, ..Columns::default() };
    tree.faults_by_tier.clear();
    let page = page_of(&report);
    assert_eq!(page.matches("<svg").count(), 3);
    assert!(page.contains("Faults on swapped-out pages") && !page.contains("NaN"));
    assert!(!page.contains("<h2>Faults</h2>"), "{page}");
}

#[test]
fn rates_are_computed_between_samples() {
    let rates = rate("a", &[0.0, 2.0, 2.0, 3.0, 4.0], &[0, 100, 100, 110, 4]);
    assert_eq!(rates.points, [(2.0, 50.0), (3.0, 10.0), (4.0, 4.0)]);
    let shares = stalled("b", &[0.0, 1.0, 2.0], &[0, 500_000_000, 9_000_000_000]);
    assert_eq!(shares.points, [(1.0, 0.5), (2.0, 1.0)]);
}

#[test]
fn names_are_escaped() {
    assert_eq!(
        escaped("a<b>\u{1b}[31m\u{202e}c\u{2066}"),
        "a&lt;b&gt;\u{fffd}[31m\u{fffd}c\u{fffd}"
    );
}
