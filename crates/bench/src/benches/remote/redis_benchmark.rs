//! `redis-benchmark`, which comes with the server: values as large as the store's.

use super::step::{Figure, Step};
use softswap_cli::refusal::{Refusal, plain};
use std::process::{Command, Stdio};

/// Keys that it spreads its values over.
const KEYS: u64 = 192;
/// Operations of the first run.
const LEAST: u64 = 400;
/// It looks four times a second whether it is done: on average it is by half of that earlier.
const LATE_S: f64 = 0.125;

/// Measures a step for so long at least.
pub(super) fn measure(
    ports: &[u16],
    step: Step,
    (depth, seconds): (usize, f64),
    (value_bytes, pages): (usize, u64),
) -> Result<Figure, Refusal> {
    let run = |step, operations| run(ports, step, depth, value_bytes, operations);
    if !step.is_write() {
        // What is got must have been set, all of it, and be of this size: keys come by chance.
        run(Step::WriteExtents, KEYS * 16)?;
    }
    // How many it does is to be said before.
    let mut operations = LEAST;
    loop {
        let found = run(step, operations)?;
        let took_s = operations as f64 / found.per_second - LATE_S;
        if took_s >= seconds || operations > u64::MAX / 8 {
            let rate = operations as f64 / took_s * pages as f64;
            return Ok(if step.is_latency() { found.p50_us } else { rate });
        }
        let more = (seconds * 1.2 / took_s.max(LATE_S)).clamp(1.5, 8.0);
        operations = (operations as f64 * more) as u64;
    }
}

/// What it says of its operations.
struct Found {
    per_second: f64,
    p50_us: f64,
}

fn run(
    ports: &[u16],
    step: Step,
    depth: usize,
    value_bytes: usize,
    operations: u64,
) -> Result<Found, Refusal> {
    let (test, title) = if step.is_write() { ("set", "\"SET\"") } else { ("get", "\"GET\"") };
    // It has no fewer connections than servers; one waits for its answer before it asks again.
    let connections = if depth == 1 { 1 } else { ports.len() };
    let pipelined = depth.div_ceil(connections);
    let mut command = Command::new("redis-benchmark");
    command.args(["--cluster", "--csv", "-h", "127.0.0.1", "-t", test]);
    let numbers = [
        ("-p", ports.first().copied().unwrap_or_default().into()),
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
