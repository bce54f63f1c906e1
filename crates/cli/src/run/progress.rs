//! How the program fares, on the terminal while it runs. Nothing is written where standard error
//! is no terminal: what reads it there wants the program's own words.

use procfs::process::Process;
use softswap_engine::base::stats::{Counter, Stats};
use softswap_view::rates::{Done, Rates};
use softswap_view::reading::Reading;
use softswap_view::units::bytes;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Between two lines.
const STEP: Duration = Duration::from_secs(1);
/// When a program that swaps is told so once.
const ONCE_AFTER: Duration = Duration::from_secs(10);
/// To the beginning of the line, and nothing behind it.
const ANEW: &str = "\r\x1b[K";

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Nothing,
    /// One line, once it has swapped for a while.
    Once,
    /// A line a second, each in place of the one before.
    Always,
}

impl Wanted {
    pub(super) fn of(is_asked_for: bool, is_quiet: bool) -> Wanted {
        match (std::io::stderr().is_terminal(), is_asked_for, is_quiet) {
            (true, true, _) => Wanted::Always,
            (true, false, false) => Wanted::Once,
            _ => Wanted::Nothing,
        }
    }
}

/// Looks how a program fares.
pub(super) struct Progress {
    pid: u32,
    stats: Stats,
    wanted: Wanted,
    started: Instant,
    last: Option<(Duration, Done)>,
    has_written: bool,
}

impl Progress {
    pub(super) fn new(pid: u32, stats: Stats, wanted: Wanted) -> Progress {
        Progress { pid, stats, wanted, started: Instant::now(), last: None, has_written: false }
    }

    /// Writes what there is to say now, if anything is.
    pub(super) fn look(&mut self) {
        let at = self.started.elapsed();
        let is_due = self.last.is_none_or(|(then, _)| at >= then + STEP);
        if self.wanted == Wanted::Nothing || !is_due {
            return;
        }
        let Some(now) = done(self.pid, &self.stats) else { return };
        let before = self.last.replace((at, now));
        let Some((then, before)) = before else { return };
        let rates = now.since(&before, at - then).rates();
        let is_asleep = self.stats.get(Counter::Asleep) != 0;
        match self.wanted {
            Wanted::Always => self.write(&format!("{ANEW}{}", line(at, &now, &rates, is_asleep))),
            Wanted::Once if at >= ONCE_AFTER && now.reading.pages_out > 0 => {
                self.wanted = Wanted::Nothing;
                let line = line(at, &now, &rates, is_asleep);
                self.write(&format!("{line}; `softswap top {}` shows more\n", self.pid));
            }
            Wanted::Once | Wanted::Nothing => {}
        }
    }

    /// The terminal is the program's again.
    pub(super) fn end(&mut self) {
        if self.wanted == Wanted::Always && self.has_written {
            self.write(ANEW);
        }
    }

    fn write(&mut self, text: &str) {
        // A reader that has gone away is no trouble.
        let _ = std::io::stderr().write_all(text.as_bytes());
        self.has_written = true;
    }
}

/// What a process has done so far.
pub(super) fn done(pid: u32, stats: &Stats) -> Option<Done> {
    let stat = Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    let ticks = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    Some(Done {
        reading: Reading::of(stats),
        cpu: Duration::from_secs_f64(ticks),
        threads: u32::try_from(stat.num_threads).unwrap_or(1),
    })
}

fn line(at: Duration, now: &Done, rates: &Rates, is_asleep: bool) -> String {
    let Reading { used_bytes, budget_bytes, disk_bytes, .. } = now.reading;
    let (seconds, used, budget) = (at.as_secs(), bytes(used_bytes), bytes(budget_bytes));
    if is_asleep {
        return format!("softswap: {seconds} s, {used} of {budget}, asleep: all of it fits");
    }
    let [disk, read, written] =
        [disk_bytes, rates.read_bytes as u64, rates.written_bytes as u64].map(bytes);
    format!(
        "softswap: {seconds} s, {used} of {budget}, {disk} on disk, stalled {:.0}%, {:.0} faults/s, \
         read {read}/s, written {written}/s",
        rates.stalled * 100.0,
        rates.returns(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_and_how_long() {
        let reading =
            Reading { used_bytes: 60 << 20, budget_bytes: 64 << 20, ..Reading::default() };
        let done = Done { reading, cpu: Duration::ZERO, threads: 1 };
        let rates = Rates { stalled: 0.43, read_bytes: f64::from(3 << 20), ..Rates::default() };
        let text = line(Duration::from_secs(12), &done, &rates, false);
        assert!(text.contains("12 s, 60.0 MiB of 64.0 MiB"), "{text}");
        assert!(text.contains("stalled 43%") && text.contains("read 3.0 MiB/s"), "{text}");
        assert!(line(Duration::ZERO, &done, &rates, true).contains("asleep"));
    }
}
