//! Two programs that compete for DRAM, one with a hot set and one that streams: with one shared
//! budget, and with half of it for each.

use super::options::TreeArgs;
use crate::benches::swap::programs::compiled;
use crate::measure::managed_program::{softswap_run, temporary_directory};
use crate::measure::object::{Object, object};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, take_turns};
use softswap_cli::refusal::{OrRefuse, Refusal};
use std::path::Path;
use std::process::Stdio;

struct Rates {
    hot: f64,
    stream: f64,
}

impl Rates {
    fn total(&self) -> f64 {
        self.hot + self.stream
    }
}

/// Returns a row for each budget.
pub(super) fn measure(args: &TreeArgs, log: &mut Log) -> Result<Vec<Object>, Refusal> {
    let dir = temporary_directory()?;
    let program = compiled(dir.path(), "touch", include_str!("touch.c")).map_err(Refusal::own)?;
    let mut cells = ["shared", "halves"].map(Cell::new);
    take_turns(&mut cells, args.common.rounds, |budget, _| {
        one_run(args, &program, *budget == "shared")
    })?;
    let [shared, halves] = &cells;
    log.ratio("hot_shared_vs_halves", shared.ratio_to(halves, |rates| rates.hot));
    log.ratio("stream_shared_vs_halves", shared.ratio_to(halves, |rates| rates.stream));
    log.ratio("total_shared_vs_halves", shared.ratio_to(halves, Rates::total));
    let rows = cells.iter().map(|cell| {
        object! {
            budget: cell.key,
            hot_per_s: cell.median(|rates| rates.hot),
            stream_per_s: cell.median(|rates| rates.stream),
            total_per_s: cell.median(Rates::total),
            total_cov: cell.cov(Rates::total),
            count: cell.rounds.len(),
        }
    });
    Ok(rows.collect())
}

/// Runs both programs concurrently.
fn one_run(args: &TreeArgs, program: &Path, is_shared: bool) -> Result<Rates, Refusal> {
    let (budget, seconds) = (args.budget, args.seconds.as_secs_f64());
    let memory = match is_shared {
        true => format!("--memory={budget}M"),
        false => format!("--memory-per-process={}M", budget / 2),
    };
    let [hot, stream] = [budget / 4 * 3, budget / 2 * 3];
    let script = format!(
        "\"$0\" hot {hot} {seconds} & \"$0\" stream {stream} {seconds}; s=$?; wait $! && exit $s"
    );
    let mut command = softswap_run()?;
    command.arg("--swap").arg(&args.common.swap).args([&memory, "--", "sh", "-c", &script]);
    command.arg(program).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().or_own("softswap run")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
    };
    match (output.status.success(), rate("hot"), rate("stream")) {
        (true, Some(hot), Some(stream)) => Ok(Rates { hot, stream }),
        _ => Err(Refusal::own(format!("the two programs failed: {}", output.status))),
    }
}
