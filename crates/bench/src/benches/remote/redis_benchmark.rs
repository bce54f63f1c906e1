//! `redis-benchmark`, which comes with the server: values as large as the store's.

use super::step::{Figure, Step};
use softswap_cli::refusal::{Refusal, plain};
use std::process::{Command, Stdio};

/// Keys that it spreads its values over.
const KEYS: u64 = 192;
/// Operations of a run that is not a trial.
const LEAST: u64 = 200;

/// Measures a step for about so long.
pub(super) fn measure(
    port: u16,
    step: Step,
    (depth, seconds): (usize, f64),
    (value_bytes, pages): (usize, u64),
) -> Result<Figure, Refusal> {
    if !step.is_write() {
        // What is got must have been set.
        run(port, Step::WriteExtents, depth, value_bytes, KEYS * 8)?;
    }
    // How many it does is to be said before: a trial tells.
    let trial = run(port, step, depth, value_bytes, LEAST)?;
    let operations = ((trial.per_second * seconds) as u64).max(LEAST);
    let found = run(port, step, depth, value_bytes, operations)?;
    Ok(if step.is_latency() { found.p50_us } else { found.per_second * pages as f64 })
}

/// What it says of its operations.
struct Found {
    per_second: f64,
    p50_us: f64,
}

fn run(
    port: u16,
    step: Step,
    depth: usize,
    value_bytes: usize,
    operations: u64,
) -> Result<Found, Refusal> {
    let (test, title) = if step.is_write() { ("set", "\"SET\"") } else { ("get", "\"GET\"") };
    // Of those under way, as many as it likes best go over one connection.
    let pipelined = depth.min(16);
    let connections = (depth / pipelined).max(1);
    let mut command = Command::new("redis-benchmark");
    command.args(["--cluster", "--csv", "-h", "127.0.0.1", "-t", test]);
    let numbers = [
        ("-p", u64::from(port)),
        ("-d", value_bytes as u64),
        ("-r", KEYS),
        ("-n", operations),
        ("-P", pipelined as u64),
        ("-c", connections as u64),
    ];
    numbers.iter().for_each(|(name, number)| {
        command.args([name, number.to_string().as_str()]);
    });
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map_err(|error| {
        Refusal::own(format!("redis-benchmark does not start: {}", plain(&error)))
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    // "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms",…
    let line = text.lines().find(|line| line.starts_with(title)).unwrap_or_default();
    let number = |at: usize| line.split(',').nth(at)?.trim_matches('"').parse::<f64>().ok();
    match (number(1), number(4)) {
        (Some(per_second), Some(p50_ms)) => Ok(Found { per_second, p50_us: p50_ms * 1000.0 }),
        _ => Err(Refusal::own(format!("redis-benchmark said {text:?} instead of its figures"))),
    }
}
