//! `softswap run --report`, `softswap report`, `softswap advise`.

use crate::common::area::succeeds;
use crate::common::{assert_contains_all, json_file, skip};
use crate::support::control_client::{refused, stdout_of, try_stat, wait_until};
use crate::support::{LIMIT, Running, compiled, finish, softswap_with, wait_for_rounds};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn run(dir: &Path, name: &str, memory: &str, seconds: &str) -> PathBuf {
    let path = dir.join(name);
    let options = ["run", "-q", "--reserve", "0", "--memory", memory, "--report"];
    let mut command = softswap_with(&options);
    command.arg(&path).arg("--swap").arg(dir).arg("--").arg(compiled("hog"));
    finish(command.args(["--mib", "64", "--seconds", seconds])).expect_success("hog");
    path
}

fn column(values: &Value) -> Vec<u64> {
    values.as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect()
}

#[test]
fn reports_are_shown_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let small = run(dir.path(), "small.json", "24M", "2");
    let large = run(dir.path(), "large.json", "256M", "1");
    let report = json_file(&small);
    let history = &report["history"];
    let rows = history["at_s"].as_array().unwrap().len();
    assert!((5..=513).contains(&rows), "{rows}");
    for name in ["used_bytes", "resident_bytes", "disk_bytes", "stalled_ns", "bytes_read"] {
        let values = column(&history[name]);
        assert_eq!(values.len(), rows, "{name}");
        assert!(values.iter().any(|value| *value > 0), "{name} is 0 throughout");
    }
    let budget = report["budget_bytes"].as_u64().unwrap();
    let used = column(&history["used_bytes"]);
    assert!(used.iter().all(|used| *used <= budget), "{used:?}");
    let faults = report["faults"]["disk"]["count"].as_u64();
    let disk = column(&history["faults"]["disk"]);
    assert!(disk.is_sorted() && disk.last().copied() == faults, "{disk:?}");
    let latencies = report["latencies"]["disk"].as_array().unwrap().iter();
    assert_eq!(latencies.map(|bucket| bucket[1].as_u64()).sum::<Option<u64>>(), faults);
    assert_eq!(report["settings"]["codec"], "auto");
    assert!(report["machine"]["processors"].as_u64() >= Some(1));

    let [small, large] = [small, large].map(|path| path.to_str().unwrap().to_string());
    let compared = stdout_of(&["report", &small, &large]);
    let line = compared.lines().find(|line| line.starts_with("budget")).unwrap();
    assert!(line.contains("24.0 MiB") && line.contains("256.0 MiB"), "{compared}");
    let page = dir.path().join("both.html");
    stdout_of(&["report", &small, &large, "--html", page.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&page).unwrap().matches("<svg").count(), 3);
    // The program waited in the small budget, and did not need all of the large one.
    let advice = stdout_of(&["advise", &small]);
    assert!(advice.contains("--memory "), "{advice}");
    let advice = stdout_of(&["advise", &large]);
    assert!(advice.contains("Change nothing") || advice.contains("A smaller budget"), "{advice}");

    // A larger slowdown needs at most as much memory.
    let size = |times: &str, report: &str| {
        let text = stdout_of(&["advise", "--slowdown", times, report]);
        text.trim_end().strip_suffix('M').unwrap().parse::<u64>().unwrap()
    };
    assert!((64..96).contains(&size("1.5", &large)), "{}", size("1.5", &large));
    assert!(size("100", &small) <= size("1.5", &small));
    let estimate = stdout_of(&["advise", "--slowdown", "1.5", "--json", &small]);
    let estimate: Value = serde_json::from_str(&estimate).unwrap();
    assert_eq!(estimate["memory_bytes"].as_u64(), Some(size("1.5", &small) << 20));
    assert_eq!(estimate["run_memory_bytes"].as_u64(), Some(24 << 20));
    assert!(estimate["slowdown"].as_f64() <= Some(1.51), "{estimate}");
    let advice: Value = serde_json::from_str(&stdout_of(&["advise", "--json", &small])).unwrap();
    assert!(advice["advice"][0]["what"].is_string(), "{advice}");
    refused(&["advise", "--slowdown", "1", &small], 2, &["--slowdown", "above 1"]);

    let summary = stdout_of(&["report", &small]);
    let is_short = summary.starts_with("softswap: hog finished in ") && !summary.contains("p99");
    assert!(is_short, "{summary}");
    assert_contains_all(&stdout_of(&["report", "-v", &small]), &["p99"]);
    refused(&["report"], 2, &["required"]);
    let wrong = dir.path().join("wrong.json");
    std::fs::write(&wrong, "{\"schema\": 9}").unwrap();
    refused(&["advise", wrong.to_str().unwrap()], 1, &["wrong.json", "schema 9", "--report FILE"]);
    refused(&["advise", "/nowhere/at/all"], 1, &["cannot be read"]);
}

/// Uses no network. Returns the document and the console output.
fn open(page: &Path) -> Option<(String, String)> {
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu"]);
    chromium.args(["--enable-logging=stderr", "--v=0"]);
    let profile = TempDir::new().unwrap();
    chromium.arg(format!("--user-data-dir={}", profile.path().display()));
    // An unreachable proxy blocks all network access.
    chromium.args(["--proxy-server=127.0.0.1:9", "--dump-dom"]);
    let output = chromium.arg(format!("file://{}", page.display())).output();
    let output = output.inspect_err(|_| skip("chromium is not installed")).ok()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((text(&output.stdout), text(&output.stderr)))
}

#[test]
fn html_report_renders_completely() {
    let dir = tempfile::tempdir().unwrap();
    let page = run(dir.path(), "page.html", "24M", "1");
    let name = page.to_str().unwrap();
    assert_contains_all(&stdout_of(&["report", name]), &["hog finished in "]);
    assert!(!stdout_of(&["advise", name]).is_empty());
    let again = dir.path().join("again.html");
    stdout_of(&["report", name, "--html", again.to_str().unwrap()]);
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&page).unwrap());
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.len() < 1 << 20, "{}", text.len());
    // The plot for other budgets needs refaults, whose number depends on the machine.
    let plots = text.matches("<svg").count();
    assert!((6..=7).contains(&plots), "{plots}");
    // A sleeping process has hardly any data for plots.
    let asleep = dir.path().join("asleep.html");
    let second = dir.path().join("asleep.json");
    let mut command = softswap_with(&["run", "-q", "--memory", "64M", "--report"]);
    command.arg(&asleep).arg("--report").arg(&second).args(["--", "true"]);
    finish(&mut command).expect_success("true");
    assert_eq!(json_file(&second)["slept"], true);
    let text = std::fs::read_to_string(&asleep).unwrap();
    assert!(text.contains("its memory fitted the budget of 64.0 MiB"), "{text}");
    for (page, plots) in [(&page, plots), (&asleep, text.matches("<svg").count())] {
        let Some((dom, console)) = open(page) else { return };
        assert_eq!(dom.matches("<svg").count(), plots, "{console}");
        assert!(!console.contains("CONSOLE"), "{console}");
        assert_contains_all(&dom, &["</html>", "Settings and machine"]);
    }
}

#[test]
fn shell_report_includes_children() {
    let dir = tempfile::tempdir().unwrap();
    let [report, page] = ["shell.json", "shell.html"].map(|name| dir.path().join(name));
    let mut command =
        softswap_with(&["run", "-q", "--reserve", "0", "--memory", "24M", "--report"]);
    command.arg(&report).arg("--swap").arg(dir.path()).args(["--", "sh", "-c"]);
    command.arg("\"$0\" --mib 64 --seconds 2 & wait $!").arg(compiled("hog"));
    finish(&mut command).expect_success("a shell with a child");
    stdout_of(&["report", report.to_str().unwrap(), "--html", page.to_str().unwrap()]);
    let report = json_file(&report);
    assert!(report["pages_out"] == 0 && report["faults"]["disk"]["count"] == 0, "{report}");
    let tree = &report["tree"];
    let disk = tree["faults_by_tier"]["disk"].as_u64().unwrap();
    assert!(disk > 0 && tree["faults_by_tier"]["zero"].as_u64() > Some(0), "{tree}");
    let columns = &report["history"]["tree"];
    let rows = report["history"]["at_s"].as_array().unwrap().len();
    for name in ["resident_bytes", "disk_bytes", "bytes_read", "bytes_written"] {
        let values = column(&columns[name]);
        assert!(values.len() == rows && values.iter().any(|it| *it > 0), "{name}: {columns}");
    }
    let seen = column(&columns["faults_by_tier"]["disk"]);
    assert!(seen.is_sorted() && seen.last() > Some(&0) && seen.last() <= Some(&disk), "{seen:?}");
    let page = std::fs::read_to_string(&page).unwrap();
    for title in ["DRAM of the tree", "On the disk", "Faults by tier", "Traffic of the disk"] {
        assert!(page.contains(&format!("<figcaption>{title}</figcaption>")), "{title}");
    }
    assert!(page.contains("faults of all processes") && !page.contains("Pages swapped out"));
}

#[test]
fn large_tree_report_counts_omitted_processes() {
    const PROCESSES: usize = 110;
    let dir = tempfile::tempdir().unwrap();
    let [page, report] = ["tree.html", "tree.json"].map(|name| dir.path().join(name));
    // Each process waits for a line, until the test has seen all processes.
    let lines = dir.path().join("lines");
    assert!(succeeds(Command::new("mkfifo").arg(&lines)));
    let script = format!(
        "i=0; while [ $i -lt {PROCESSES} ]; do i=$((i+1)); (read line <{0}) & done; wait",
        lines.display()
    );
    for path in [&page, &report] {
        let options = ["run", "-q", "--awake", "--reserve", "0", "--memory", "512M", "--report"];
        let mut command = softswap_with(&options);
        command.arg(path).arg("--swap").arg(dir.path()).args(["--", "sh", "-c", &script]);
        let running = Running::start(&mut command);
        wait_until("all processes", || {
            let stat = try_stat(&running.id().to_string())?;
            match stat["tree"]["processes"].as_array().map_or(0, Vec::len) {
                some if some > PROCESSES => Ok(()),
                some => Err(format!("{some} processes")),
            }
        });
        wait_for_rounds(running.id(), 3);
        let mut writer = File::options().read(true).write(true).open(&lines).unwrap();
        writer.write_all(&[b'\n'; PROCESSES]).unwrap();
        running.finish(LIMIT).expect_success("sh");
    }
    let tree = &json_file(&report)["tree"];
    let kept = tree["largest"].as_array().unwrap().len() as u64;
    assert!(tree["processes_peak"].as_u64() >= Some(PROCESSES as u64), "{tree}");
    assert_eq!(kept, 100);
    assert!(kept + tree["left_out"]["processes"].as_u64().unwrap() > PROCESSES as u64, "{tree}");
    let Some((dom, console)) = open(&page) else { return };
    assert!(!console.contains("CONSOLE"), "{console}");
    let (_, processes) = dom.split_once("<h2>Processes</h2>").unwrap();
    let (processes, _) = processes.split_once("<h2>Settings").unwrap();
    assert_eq!(processes.matches("<tr>").count(), 1 + 100, "{processes}");
    assert!(processes.contains(" more processes are not shown, with "), "{processes}");
}
