//! `softswap export` and `softswap stat --prometheus`: metrics for Prometheus.

use crate::common::is_installed;
use crate::support::control_client::{
    Program, WAIT_TIMEOUT, eventually, refused, stdout_of, wait_until,
};
use crate::support::{Running, softswap_with};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

struct Export {
    running: Running,
    address: String,
}

impl Export {
    fn start() -> Export {
        let mut export = softswap_with(&["export", "--listen", "127.0.0.1:0"]);
        let mut running = Running::start(&mut export);
        let address = running.wait_for_line("softswap: metrics at http://");
        let address = address.strip_suffix("/metrics").expect("a URL").to_string();
        Export { running, address }
    }

    /// Counts the entries in a `/proc` directory, such as `task` or `fd`.
    fn count(&self, what: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/{what}", self.running.id())).unwrap().count()
    }

    fn query(&self, method: &str, path: &str) -> (u32, String) {
        http(&self.address, method, path)
    }

    fn expect_metrics(&self) -> String {
        let (status, text) = self.query("GET", "/metrics");
        assert_eq!(status, 200);
        text
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream
}

/// Repeats a request that arrives too late: the server closes the connection.
fn response_to(address: &str, request: &str) -> String {
    wait_until("an answer", || {
        let mut stream = connect(address);
        let mut answer = String::new();
        let sent = stream.write_all(request.as_bytes());
        let read = stream.read_to_string(&mut answer);
        if answer.is_empty() { Err(format!("{sent:?}, {read:?}")) } else { Ok(answer) }
    })
}

fn http(address: &str, method: &str, path: &str) -> (u32, String) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let answer = response_to(address, &request);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
}

/// Returns the server's unacknowledged responses and unread requests, in bytes.
fn queues(client: &TcpStream) -> Option<(u64, u64)> {
    let port = |address: std::net::SocketAddr| format!(":{:04X}", address.port());
    let (own, other) = (port(client.peer_addr().ok()?), port(client.local_addr().ok()?));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines
        .into_iter()
        .find(|words| words.len() > 4 && words[1].ends_with(&own) && words[2].ends_with(&other))?;
    let (unsent, unread) = line[4].split_once(':')?;
    Some((u64::from_str_radix(unsent, 16).ok()?, u64::from_str_radix(unread, 16).ok()?))
}

fn value(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let line = text.lines().find(|line| {
        let rest = line.strip_prefix(name);
        let is_it = rest.is_some_and(|rest| rest.starts_with(['{', ' ']));
        is_it && labels.iter().all(|label| line.contains(label))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Repeats `fetch`: a process that answers too late has no figures.
fn metrics_of(pid: &str, mut fetch: impl FnMut() -> String) -> String {
    let label = format!("pid=\"{pid}\"");
    wait_until("figures of the process", || {
        let text = fetch();
        let has_figures = value(&text, "softswap_used_bytes", &[&label]).is_some();
        if has_figures { Ok(text) } else { Err(text) }
    })
}

fn metrics_of_tree(number: &str, pid: &str) -> String {
    metrics_of(pid, || stdout_of(&["stat", number, "--prometheus"]))
}

#[test]
fn metrics_equal_program_counters() {
    let program = Program::under_pressure(&[]);
    let pid = program.pid();
    let export = Export::start();
    let label = format!("pid=\"{pid}\"");
    let text = metrics_of(&pid, || export.expect_metrics());
    assert_eq!(value(&text, "softswap_budget_bytes", &[&label]), Some(f64::from(32 << 20)));
    let used = value(&text, "softswap_used_bytes", &[&label]).unwrap();
    assert!(used > 0.0 && used <= f64::from(32 << 20), "{used}");
    let root = format!("root=\"{}\"", program.supervisor());
    assert_eq!(value(&text, "softswap_processes", &[&root, "state=\"awake\""]), Some(1.0));
    let out = |text: &str| value(text, "softswap_pages_out_total", &[&label]);
    let before = out(&text).unwrap();
    eventually("more pages out", || out(&export.expect_metrics()) > Some(before));
    let counts = ["zero", "pool", "disk"].map(|tier| {
        let tier = format!("tier=\"{tier}\"");
        let of = |name: &str, more: &str| {
            let name = format!("softswap_fault_duration_seconds_{name}");
            value(&text, &name, &[&label, &tier, more]).unwrap()
        };
        assert_eq!(of("count", ""), of("bucket", "le=\"+Inf\""));
        of("count", "")
    });
    assert!(counts.iter().sum::<f64>() > 0.0);
    // Both PIDs name the same tree.
    for number in [&pid, &program.supervisor()] {
        let text = metrics_of_tree(number, &pid);
        let has_one = text.matches("softswap_used_bytes{").count() == 1;
        assert!(out(&text) > Some(0.0) && has_one, "{text}");
    }
}

#[test]
fn invalid_http_requests_are_rejected() {
    let export = Export::start();
    assert_eq!(export.query("GET", "/").0, 200);
    assert_eq!(export.query("GET", "/secrets").0, 404);
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(export.query(method, "/metrics").0, 405);
    }
    refused(
        &["export", "--listen", &export.address],
        1,
        &["Address already in use; use another port"],
    );
    refused(&["export", "--listen", "here"], 2, &["invalid value 'here'"]);
    refused(&["export", "--listen", "localhost:10187"], 2, &["such as 127.0.0.1:10187"]);
    // An address reserved for documentation (TEST-NET-1).
    refused(&["export", "--listen", "192.0.2.1:10187"], 1, &["192.0.2.1", "no such address"]);
    refused(&["stat", &std::process::id().to_string(), "--prometheus"], 1, &["is not managed"]);
}

#[test]
fn arbitrary_input_gets_one_answer() {
    let export = Export::start();
    let status = |request: &str| {
        let answer = response_to(&export.address, request);
        answer.split(' ').nth(1).map(str::to_string).unwrap_or_else(|| panic!("{answer:?}"))
    };
    // The server neither waits for an announced body nor allocates memory for it.
    for length in ["99999999999", "9223372036854775807"] {
        let request = format!("GET / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        assert_eq!(status(&request), "200");
    }
    assert_eq!(status("POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nbody"), "405");
    assert_eq!(status("GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"), "400");
    let large = "x".repeat(100_000);
    assert_eq!(status(&format!("GET / HTTP/1.1\r\nLarge: {large}\r\n\r\n")), "431");
    assert_eq!(status(&format!("GET /{large} HTTP/1.1\r\n\r\n")), "431");
    // The first bytes of a TLS handshake.
    assert_eq!(status("\u{16}\u{3}\u{1}\0\u{1}"), "400");
    let head = response_to(&export.address, "HEAD / HTTP/1.1\r\n\r\n");
    assert_eq!(head.split("\r\n\r\n").nth(1), Some(""));
    export.expect_metrics();
}

#[test]
fn slow_client_does_not_block_others() {
    let export = Export::start();
    let mut slow_client = connect(&export.address);
    slow_client.set_nonblocking(true).unwrap();
    let requests = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    // Until the socket buffers are full. A server that answers every request then blocks.
    let (mut last, mut looks_alike) = (None, 0);
    wait_until("the server's send buffer is full", || {
        let is_open = match slow_client.write(requests.as_bytes()) {
            Ok(0) => false,
            Ok(_) => return Err("the server still accepts requests".to_string()),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        let now = queues(&slow_client);
        looks_alike = if now == last { looks_alike + 1 } else { 0 };
        last = now;
        let stands_still = now.is_some_and(|(unsent, unread)| unsent > 0 && unread > 0);
        match !is_open || (stands_still && looks_alike >= 10) {
            true => Ok(()),
            false => Err(format!("{now:?}")),
        }
    });
    for _ in 0..10 {
        export.expect_metrics();
    }
    drop(slow_client);
}

#[test]
fn idle_connections_are_closed() {
    let export = Export::start();
    export.expect_metrics();
    let descriptors = export.count("fd");
    // More than the server accepts, half of them with an incomplete request.
    let mut idle: Vec<TcpStream> = (0..600).map(|_| connect(&export.address)).collect();
    for stream in idle.iter_mut().step_by(2) {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:");
    }
    export.expect_metrics();
    // The number of threads does not grow with the connections.
    assert!(export.count("task") <= 2, "{}", export.count("task"));
    for stream in &mut idle {
        // `read` does not repeat an interrupted call.
        match stream.read_to_end(&mut Vec::new()) {
            Ok(bytes) => assert_eq!(bytes, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    eventually("descriptors are closed", || export.count("fd") <= descriptors);
    assert!(export.count("task") <= 2, "{}", export.count("task"));
}

#[test]
fn promtool_accepts_metrics() {
    if !is_installed("promtool") {
        return;
    }
    let program = Program::under_pressure(&[]);
    let pid = program.pid();
    let text = metrics_of_tree(&pid, &pid);
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn expressions() -> Vec<String> {
    let dashboard = include_str!("../../../../docs/grafana-dashboard.json");
    let board: Value = serde_json::from_str(dashboard).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let texts = targets.map(|target| target["expr"].as_str().unwrap());
    texts.map(|text| text.replace("$__rate_interval", "20s").replace("$root", ".*")).collect()
}

#[test]
fn dashboard_uses_existing_metrics() {
    let program = Program::under_pressure(&[]);
    let pid = program.pid();
    let text = metrics_of_tree(&pid, &pid);
    let all = expressions();
    assert!(all.len() >= 12, "{all:?}");
    for expression in &all {
        let is_part = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
        let words = expression.split(|sign| !is_part(sign));
        let names: Vec<&str> = words.filter(|word| word.starts_with("softswap_")).collect();
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            assert!(value(&text, name, &["root="]).is_some(), "{name} of {expression}: {text}");
        }
        assert!(!expression.contains('$'), "{expression}");
    }
    if !is_installed("promtool") {
        return;
    }
    let rules: Vec<Value> =
        all.iter().map(|it| json!({"record": "softswap:panel", "expr": it})).collect();
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    let dir = tempfile::tempdir().unwrap();
    let check = |rules: String| {
        // JSON is valid YAML.
        let path = dir.path().join("rules.yml");
        std::fs::write(&path, rules).unwrap();
        Command::new("promtool").args(["check", "rules", "--lint=none"]).arg(path).output().unwrap()
    };
    let output = check(rules.to_string());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = check(rules.to_string().replace("rate(", "rate(("));
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn prometheus_scrapes_the_exporter() {
    if !is_installed("prometheus") {
        return;
    }
    let program = Program::under_pressure(&[]);
    let (export, dir) = (Export::start(), tempfile::tempdir().unwrap());
    let config = dir.path().join("prometheus.yml");
    let address = &export.address;
    let scrape = format!(
        "scrape_configs:\n- job_name: softswap\n  scrape_interval: 1s\n  static_configs:\n  - targets: [\"{address}\"]\n"
    );
    std::fs::write(&config, scrape).unwrap();
    // Outside the kernel's range of ephemeral ports.
    let own = format!("127.0.0.1:{}", 10_000 + std::process::id() % 20_000);
    let mut prometheus = Command::new("prometheus");
    prometheus
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
        .arg(format!("--web.listen-address={own}"));
    let _prometheus = Running::start(&mut prometheus);
    let query =
        format!("/api/v1/query?query=softswap_used_bytes%7Bpid%3D%22{}%22%7D", program.pid());
    eventually("a sample", || {
        TcpStream::connect(&own).is_ok() && {
            let (status, text) = http(&own, "GET", &query);
            status == 200 && text.contains("\"job\":\"softswap\"")
        }
    });
    for expression in expressions() {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        eventually(&expression, || {
            let (status, text) = http(&own, "GET", &format!("/api/v1/query?query={encoded}"));
            assert_eq!(status, 200, "{expression}: {text}");
            text.contains("\"value\":")
        });
    }
}
