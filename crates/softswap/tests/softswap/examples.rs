//! Runs the examples, each with several times the memory of its pool.

use std::process::Command;

fn run(example: &str, size: &str) {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(example);
    if !program.exists() {
        println!("skipped: {example} is not built");
        return;
    }
    let output = Command::new(program).args([size, "16M"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {:?} {text}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"budget_bytes\":16777216"));
}

#[test]
fn external_sort() {
    run("external_sort", "3000000");
}

#[test]
fn hash_join() {
    run("hash_join", "700000");
}

#[test]
fn matrix() {
    run("matrix", "6");
}
