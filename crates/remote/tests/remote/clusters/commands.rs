//! `softswap-remote check`, `ls` and `gc`.

use super::job::{Job, block_on, new_run};
use super::test_cluster::{TestCluster, single_server, test_cluster};
use assert_cmd::Command;
use serde_json::Value;
use softswap_remote::check::examine;
use softswap_remote::url::Url;
use softswap_testkit::waiting::wait_until;
use std::process::Output;

fn softswap_remote(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.env_remove("SOFTSWAP_REMOTE_PASSWORD").args(arguments);
    command
}

fn program() -> std::path::PathBuf {
    let directory = std::env::var_os("SOFTSWAP_BIN_DIR").map_or_else(
        || std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_path_buf(),
        Into::into,
    );
    directory.join("softswap-remote")
}

fn json(arguments: &[&str]) -> Value {
    let output = softswap_remote(arguments).arg("--json").output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Part of the refusal of a slow server. Servers are also slow on a busy machine.
const SLOW: &str = "ms to read a page";

fn refusals(test_cluster: &TestCluster, options: &str) -> String {
    let url = Url::parse(&test_cluster.secure_url(options)).unwrap();
    let mut refusals = block_on(examine(&url)).unwrap().refusals;
    refusals.retain(|refusal| !refusal.contains(SLOW));
    refusals.join("\n")
}

fn refusals_of_command(url: &str) -> Vec<String> {
    let found = json(&["check", url]);
    let refusals = found["result"]["refusals"].as_array().unwrap();
    let texts = refusals.iter().map(|refusal| refusal.as_str().unwrap().to_string());
    texts.filter(|text| !text.contains(SLOW)).collect()
}

fn check(url: &str) -> Output {
    let is_only_slow = |text: &str| {
        let mut refusals = text.lines().filter(|line| line.starts_with("REFUSED: ")).peekable();
        refusals.peek().is_some() && refusals.all(|line| line.contains(SLOW))
    };
    wait_until("the servers are not slow", || {
        let output = softswap_remote(&["check", url]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if is_only_slow(&text) { Err(text) } else { Ok(output) }
    })
}

#[test]
fn evicting_cluster_is_rejected() {
    let Some(test_cluster) = test_cluster() else { return };
    assert_eq!(refusals(&test_cluster, "&size=100M"), "");
    let small = refusals(&test_cluster, "&size=10G");
    assert!(small.contains("does not fit") && small.contains("maxmemory"), "{small}");
    let node = &test_cluster.nodes[test_cluster.primaries()[0]];
    node.set("maxmemory-policy", "allkeys-lru");
    let evicting = refusals(&test_cluster, "");
    assert!(evicting.contains("noeviction") && evicting.contains("127.0.0.1"), "{evicting}");
    let found = refusals_of_command(&test_cluster.secure_url(""));
    assert!(found.first().is_some_and(|why| why.contains("allkeys-lru")), "{found:?}");
    node.set("maxmemory-policy", "noeviction");

    let output = check(&test_cluster.secure_url(""));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("the cluster can be used"), "{text}");
    assert!(text.contains("all primaries are on 127.0.0.1"), "{text}");
}

#[test]
fn single_server_requires_local_disk() {
    let Some(server) = single_server() else { return };
    let found = refusals_of_command(&server.url("&single=1&copies=local&wait=1"));
    assert!(found.first().is_some_and(|why| why.contains("no replica")), "{found:?}");
    let refused = check(&server.url(""));
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("single=1&copies=local"), "{why}");
    let found = refusals_of_command(&server.url("&size=100M&single=1&copies=local"));
    assert!(found.is_empty(), "{found:?}");
    assert!(server.node.is_primary());
}

#[test]
fn login_failure_is_explained() {
    let Some(test_cluster) = test_cluster() else { return };
    let (port, tls_port) = (test_cluster.nodes[0].port, test_cluster.nodes[0].tls_port);
    let ca = test_cluster.file("ca.pem").display().to_string();
    for (url, status, part) in [
        (format!("redis://127.0.0.1:{port}"), 1, "password"),
        ("redis://127.0.0.1:1".to_string(), 1, "cannot be reached: Connection refused; start"),
        (format!("redis://127.0.0.1:{tls_port}"), 1, "rediss://"),
        (format!("rediss://127.0.0.1:{port}?ca={ca}"), 1, "redis://"),
        ("redis://user:secret@127.0.0.1".to_string(), 2, "SOFTSWAP_REMOTE_PASSWORD"),
        (test_cluster.secure_url("").replace("ca.pem", "node.key"), 1, "node.key"),
        (test_cluster.secure_url("&deadline=2s"), 0, ""),
    ] {
        let output = check(&url);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{url}: {text}");
        assert!(text.contains(part) && !text.contains("secret"), "{url}: {text}");
    }
}

#[test]
fn stale_runs_are_listed_and_removed() {
    let Some(test_cluster) = test_cluster() else { return };
    let url = test_cluster.secure_url("");
    let (living, dead) = (new_run(), new_run());
    let names = [&living, &dead].map(|run| format!("{:016x}", run.id));
    block_on(async {
        let mut job = Job::new(&url, living).await.unwrap();
        job.write(0, 100).await.unwrap();
        let mut abandoned = Job::new(&url, dead).await.unwrap();
        abandoned.write(0, 100).await.unwrap();
        drop(abandoned);
        for node in test_cluster.primary_nodes() {
            for key in node.keys(&format!("*:{}:lease", names[1])) {
                node.send(&["DEL", &key]);
            }
        }
        let listed = json(&["ls", &url]);
        let runs = listed["result"].as_array().unwrap();
        assert_eq!(runs.len(), 2, "{listed}");
        let by_name = |name: &String| runs.iter().find(|run| run["run"] == name.as_str()).unwrap();
        assert_eq!(by_name(&names[0])["lease"]["pid"], std::process::id());
        assert_eq!(by_name(&names[0])["extents"], 8);
        assert!(by_name(&names[1])["lease"].is_null());

        let would_remove = json(&["gc", "--dry-run", &url]);
        assert_eq!(would_remove["result"][0]["run"], names[1].as_str());
        softswap_remote(&["gc", &url]).assert().success();
        let listed = json(&["ls", &url]);
        assert_eq!(listed["result"].as_array().unwrap().len(), 1, "{listed}");
        job.read_all().await.unwrap();

        softswap_remote(&["gc", "--run", "12", &url]).assert().code(1);
        drop(job);
        softswap_remote(&["gc", "--run", &names[0], &url]).assert().success();
        assert_eq!(json(&["ls", &url])["result"].as_array().unwrap().len(), 0);
    });
}

#[test]
fn missing_server_rights_are_reported_at_start() {
    let Some(test_cluster) = test_cluster() else { return };
    let all = "~softswap:* +@read +@write +@connection +info +cluster|nodes +client +wait +asking";
    let refused = |rights: &str| {
        for node in &test_cluster.nodes {
            let mut rule = vec!["ACL", "SETUSER", "swapper", "reset", "on", ">word"];
            rule.extend(rights.split(' '));
            node.send(&rule);
        }
        let file = test_cluster.file("word");
        std::fs::write(&file, "word\n").unwrap();
        let url = test_cluster.plain_url("").replacen("redis://", "redis://swapper@", 1);
        let url =
            url.replace(&*test_cluster.file("password").to_string_lossy(), &file.to_string_lossy());
        let output = check(&url);
        (!output.status.success()).then(|| String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(refused(all), None);
    for (without, command) in [
        (" -setrange", "setrange"),
        (" -scan", "scan"),
        (" -client|kill", "client|kill"),
        (" -unlink", "unlink"),
        (" -asking", "asking"),
    ] {
        let why = refused(&format!("{all}{without}")).expect(command);
        assert!(why.contains(command) && why.contains("~softswap:*"), "{command}: {why}");
    }
}
