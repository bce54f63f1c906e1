//! Event log of a run, a line of JSON for each event. The fault path writes nothing.

use super::options::RunArgs;
use super::progress::done;
use super::tree_sums::{TreeRates, TreeWatch};
use crate::refusal::{Refusal, plain};
use crate::tree_report::TreeReport;
use serde_json::{Value, json};
use softswap_engine::base::stats::{Counter, Stats, StopReason};
use softswap_view::rates::{Done, Rates};
use softswap_view::report::Tree;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const STEP: Duration = Duration::from_secs(1);
/// Share of the time waiting for pages at which pressure starts and ends.
const BEGINS_SHARE: f64 = 0.2;
const OVER_SHARE: f64 = 0.05;

const ERRORS: [(&str, Counter); 7] = [
    ("read", Counter::ReadErrors),
    ("write", Counter::WriteErrors),
    ("checksum", Counter::ChecksumErrors),
    ("unpack", Counter::DecompressErrors),
    ("discard", Counter::DiscardErrors),
    ("area_failed", Counter::AreasFailed),
    ("slot_retired", Counter::SlotsRetired),
];

pub(super) struct Log {
    file: File,
    before: Value,
    started: Instant,
    /// PID of the program: several runs may write to one file.
    pid: u32,
    is_failure_reported: bool,
    seen: Reported,
    watch: TreeWatch,
}

#[derive(Default)]
struct Reported {
    last: Option<(Duration, Done)>,
    is_awake: bool,
    has_memory_pressure: bool,
    is_full: bool,
    is_stopped: bool,
    is_parked: bool,
    budget_bytes: u64,
    errors: [u64; ERRORS.len()],
}

pub(super) fn before(args: &RunArgs, settings: impl serde::Serialize) -> Value {
    let words = args.program.iter().map(|word| word.to_string_lossy());
    json!({
        "softswap_version": env!("CARGO_PKG_VERSION"),
        "program": words.collect::<Vec<_>>(),
        "settings": settings,
    })
}

impl Log {
    pub(super) fn open(path: &Path, before: Value) -> Result<Log, Refusal> {
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(|error| {
            Refusal::usage(format!(
                "--log {}: the file cannot be written: {}; choose another path",
                path.display(),
                plain(&error)
            ))
        })?;
        let (pid, is_failure_reported, seen, watch) = Default::default();
        Ok(Log { file, before, started: Instant::now(), pid, is_failure_reported, seen, watch })
    }

    pub(super) fn start(&mut self, pid: u32) {
        self.started = Instant::now();
        self.pid = pid;
        let before = std::mem::take(&mut self.before);
        self.write("start", before);
    }

    pub(super) fn write(&mut self, event: &str, more: Value) {
        let at = self.started.elapsed();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = json!({
            "unix_s": unix.as_millis() as f64 / 1e3,
            "at_s": at.as_millis() as f64 / 1e3,
            "event": event,
            "pid": self.pid,
        });
        if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
            line.extend(more);
        }
        // In one write, because other processes may append to the same file. A full disk does not
        // stop the program.
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        if let Err(error) = written
            && !std::mem::replace(&mut self.is_failure_reported, true)
        {
            let why = plain(&error);
            let _ = writeln!(std::io::stderr(), "softswap: note: --log: events are missing: {why}");
        }
    }

    pub(super) fn poll_parked(&mut self, is_parked: bool) {
        if std::mem::replace(&mut self.seen.is_parked, is_parked) != is_parked {
            self.write(if is_parked { "parked" } else { "unparked" }, json!({}));
        }
    }

    pub(super) fn poll(
        &mut self,
        stats: &Stats,
        budget_bytes: Option<u64>,
        tree: impl FnOnce() -> Option<TreeReport>,
    ) {
        let at = self.started.elapsed();
        if self.seen.last.is_some_and(|(then, _)| at < then + STEP) {
            return;
        }
        let budget_bytes = budget_bytes.unwrap_or_else(|| stats.get(Counter::BudgetBytes));
        for (event, more) in self.seen.counted(stats, budget_bytes) {
            self.write(event, more);
        }
        let Some(now) = done(self.pid, stats) else { return };
        let before = self.seen.last.replace((at, now));
        let pressure = match (self.watch.poll(at, tree()), before) {
            // Descendants count as much as the program.
            (Some(rates), _) => {
                let stalled = rates.stalled_threads.min(1.0);
                self.seen.pressure(stalled, rates_of_tree(&rates))
            }
            (None, Some((then, before))) => {
                let rates = now.since(&before, at - then).rates();
                self.seen.pressure(rates.stalled, rates_of_program(&rates))
            }
            (None, None) => None,
        };
        pressure.into_iter().for_each(|(event, more)| self.write(event, more));
    }

    pub(super) fn end(
        &mut self,
        stats: &Stats,
        outcome: &impl serde::Serialize,
        tree: Option<&Tree>,
    ) {
        let events = self.seen.counted(stats, self.seen.budget_bytes);
        events.into_iter().for_each(|(event, more)| self.write(event, more));
        let get = |counter| stats.get(counter);
        let reason = StopReason::from_code(get(Counter::StopReason)).map(StopReason::text);
        let of_tree = tree.map(|tree| {
            json!({
                "processes_peak": tree.processes_peak,
                "turns": tree.turns,
                "used_peak_bytes": tree.used_peak_bytes,
                "faults": tree.faults(),
                "stalled_ns": tree.stalled_ns(),
            })
        });
        self.write(
            "end",
            json!({
                "outcome": outcome,
                "stop_reason": reason,
                "used_peak_bytes": get(Counter::UsedPeakBytes),
                "disk_peak_bytes": get(Counter::DiskPeakBytes),
                "pages_out": get(Counter::PagesOut),
                "stalled_ns": get(Counter::StalledNs),
                "tree": of_tree,
            }),
        );
    }
}

impl Reported {
    fn counted(&mut self, stats: &Stats, budget_bytes: u64) -> Vec<(&'static str, Value)> {
        let mut events = Vec::new();
        let is_awake = stats.get(Counter::Version) != 0;
        if is_awake && !self.is_awake {
            events.push(("awake", json!({ "used_bytes": stats.get(Counter::UsedBytes) })));
        }
        self.is_awake |= is_awake;
        let before = std::mem::replace(&mut self.budget_bytes, budget_bytes);
        if before != 0 && before != budget_bytes {
            events
                .push(("budget", json!({ "budget_bytes": budget_bytes, "before_bytes": before })));
        }
        let reason = StopReason::from_code(stats.get(Counter::StopReason));
        // Stored copies are freed before anything is refused; without copies, nearly no slot is
        // free.
        let (had, used) = (stats.get(Counter::SwapFileBytes), stats.get(Counter::DiskPeakBytes));
        let is_exhausted = had > 0 && used >= had - had / 16;
        let is_full = stats.get(Counter::CopiesShed) > 0
            || (reason == Some(StopReason::OutOfMemory) && is_exhausted);
        if is_full && !self.is_full {
            self.is_full = true;
            events.push(("area_full", json!({ "disk_bytes": stats.get(Counter::DiskPeakBytes) })));
        }
        for ((kind, counter), seen) in ERRORS.iter().zip(&mut self.errors) {
            let count = stats.get(*counter);
            let more = count.saturating_sub(std::mem::replace(seen, count));
            if more > 0 {
                events.push(("error", json!({ "kind": kind, "count": more, "total": count })));
            }
        }
        if let Some(reason) = reason
            && !std::mem::replace(&mut self.is_stopped, true)
        {
            events.push(("error", json!({ "kind": "stopped", "reason": reason.text() })));
        }
        events
    }

    fn pressure(&mut self, stalled: f64, more: Value) -> Option<(&'static str, Value)> {
        let has_memory_pressure =
            stalled >= if self.has_memory_pressure { OVER_SHARE } else { BEGINS_SHARE };
        if std::mem::replace(&mut self.has_memory_pressure, has_memory_pressure)
            == has_memory_pressure
        {
            return None;
        }
        Some((if has_memory_pressure { "pressure" } else { "pressure_over" }, more))
    }
}

fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn rates_of_program(rates: &Rates) -> Value {
    json!({
        "stalled_share": round(rates.stalled),
        "returns_per_s": round(rates.returns()),
        "read_bytes_per_s": round(rates.read_bytes),
        "written_bytes_per_s": round(rates.written_bytes),
    })
}

fn rates_of_tree(rates: &TreeRates) -> Value {
    json!({
        "stalled_share": round(rates.stalled_threads.min(1.0)),
        "returns_per_s": round(rates.returns_per_s),
        "processes": rates.now.processes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::base::stats::STATS_WORDS;
    use softswap_sys::memory::reserve_u64;

    fn names(events: &[(&'static str, Value)]) -> Vec<&'static str> {
        events.iter().map(|(event, _)| *event).collect()
    }

    #[test]
    fn counted_events_are_logged_once() {
        let stats = Stats::new(reserve_u64(STATS_WORDS).unwrap());
        let mut seen = Reported::default();
        assert!(seen.counted(&stats, 64).is_empty());
        stats.set(Counter::Version, 1);
        stats.set(Counter::ReadErrors, 2);
        assert_eq!(names(&seen.counted(&stats, 64)), ["awake", "error"]);
        assert!(seen.counted(&stats, 64).is_empty());
        stats.set(Counter::ReadErrors, 5);
        let events = seen.counted(&stats, 32);
        assert_eq!(names(&events), ["budget", "error"]);
        assert_eq!((&events[1].1["count"], &events[1].1["total"]), (&json!(3), &json!(5)));
        stats.set(Counter::SwapFileBytes, 16 << 20);
        stats.set(Counter::DiskPeakBytes, (16 << 20) - 4096);
        stats.set(Counter::StopReason, StopReason::OutOfMemory as u64);
        assert_eq!(names(&seen.counted(&stats, 32)), ["area_full", "error"]);
        assert!(seen.counted(&stats, 32).is_empty());
    }

    #[test]
    fn pressure_start_and_end_are_logged_once() {
        let mut seen = Reported::default();
        let logged =
            [0.1, 0.3, 0.1, 0.9, 0.01, 0.1].map(|stalled| seen.pressure(stalled, Value::Null));
        let events = logged.map(|it| it.map(|(event, _)| event));
        assert_eq!(events, [None, Some("pressure"), None, None, Some("pressure_over"), None]);
    }
}
