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
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {:?} {errors}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("\"budget_bytes\":16777216"), "{example}: {text}");
}

#[test]
fn examples_run_with_several_budgets() {
    for (example, size) in [("external_sort", "3000000"), ("hash_join", "700000"), ("matrix", "6")]
    {
        run(example, size);
    }
}
