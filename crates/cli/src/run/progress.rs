//! Progress line on the terminal. Nothing is written if standard error is not a terminal.
//!
//! The program may write to the same terminal at any time. So the line is drawn below the cursor's
//! line, the cursor is moved back, and the line is removed before each update. If the program has
//! written several lines since, fragments remain between them; right alignment makes them
//! recognizable.

use super::tree_sums::{TreeRates, TreeWatch};
use crate::tree_report::TreeReport;
use procfs::process::Process;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp, tcgetwinsize};
use softswap_engine::base::stats::{Counter, Stats};
use softswap_view::rates::{Done, Rates};
use softswap_view::reading::Reading;
use softswap_view::units::bytes;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_secs(1);
/// A program that swaps is reported once after this time.
const ONCE_AFTER: Duration = Duration::from_secs(10);
/// Width if the terminal reports none.
const WIDTH: usize = 80;
/// Erases from the cursor to the end of the screen.
const REMOVE: &str = "\x1b[J";
/// Moves the cursor down, which scrolls at the last line, and up again.
const MAKE_ROOM: &str = "\x1bD\x1b[A";
/// Saves the cursor, moves to the start of the next line, and selects faint characters.
const GO_BELOW: &str = "\x1b7\x1b[B\r\x1b[2m";
/// Restores the cursor and its attributes.
const GO_BACK: &str = "\x1b8";
/// Maximum part of the terminal's width that the line takes.
const SHARE: (usize, usize) = (3, 4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Nothing,
    Once,
    Always,
}

impl Wanted {
    pub(super) fn of(is_requested: bool, is_quiet: bool) -> Wanted {
        // A dumb terminal cannot erase a line.
        let is_dumb = std::env::var_os("TERM").is_some_and(|it| it == "dumb");
        match (std::io::stderr().is_terminal(), is_requested, is_quiet) {
            (true, true, _) if !is_dumb => Wanted::Always,
            (true, _, false) => Wanted::Once,
            _ => Wanted::Nothing,
        }
    }
}

pub(super) struct Progress {
    pid: u32,
    stats: Stats,
    wanted: Wanted,
    started: Instant,
    last: Option<(Duration, Done)>,
    watch: TreeWatch,
    is_shown: bool,
}

impl Progress {
    pub(super) fn new(pid: u32, stats: Stats, wanted: Wanted) -> Progress {
        let (last, watch, is_shown) = Default::default();
        Progress { pid, stats, wanted, started: Instant::now(), last, watch, is_shown }
    }

    /// Shows `tree` if it has several processes and any fault, otherwise the program.
    pub(super) fn poll(&mut self, tree: impl FnOnce() -> Option<TreeReport>) {
        let at = self.started.elapsed();
        let is_due = self.last.is_none_or(|(then, _)| at >= then + STEP);
        if self.wanted == Wanted::Nothing || !is_due {
            return;
        }
        let Some(now) = done(self.pid, &self.stats) else { return };
        let before = self.last.replace((at, now));
        let of_tree = self.watch.poll(at, tree());
        let Some((then, before)) = before else { return };
        // An editor, a pager or a shell at its prompt controls the screen.
        if !(is_in_front() && has_lines()) {
            return;
        }
        let rates = now.since(&before, at - then).rates();
        let is_asleep = self.stats.get(Counter::Asleep) != 0;
        let parts = match &of_tree {
            Some(rates) if rates.now.faults > 0 => parts_of_tree(at, rates),
            _ => parts(at, &now, &rates, is_asleep),
        };
        let has_swapped =
            now.reading.pages_out > 0 || of_tree.is_some_and(|rates| rates.now.faults > 0);
        match self.wanted {
            Wanted::Always => {
                let width = width();
                let line = within(&parts, width * SHARE.0 / SHARE.1);
                let before = width - line.len();
                let line = format!("\x1b[{before}C\x1b[D{line}");
                write(&format!("{REMOVE}{MAKE_ROOM}{GO_BELOW}{line}{GO_BACK}"));
                self.is_shown = true;
            }
            Wanted::Once if at >= ONCE_AFTER && has_swapped => {
                self.wanted = Wanted::Nothing;
                let line = parts.join(", ");
                write(&format!("{line}; `softswap top {}` shows more\n", self.pid));
            }
            Wanted::Once | Wanted::Nothing => {}
        }
    }

    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.is_shown) && is_in_front() {
            write(REMOVE);
        }
    }
}

fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// A background process may be stopped (SIGTTOU) if it writes to the terminal.
fn is_in_front() -> bool {
    tcgetpgrp(std::io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Full-screen programs read single keys instead of lines.
fn has_lines() -> bool {
    tcgetattr(std::io::stderr()).is_ok_and(|it| it.local_modes.contains(LocalModes::ICANON))
}

fn width() -> usize {
    let columns = tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { WIDTH } else { columns }
}

pub(super) fn done(pid: u32, stats: &Stats) -> Option<Done> {
    let stat = Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    let ticks = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    Some(Done {
        reading: Reading::of(stats),
        cpu: Duration::from_secs_f64(ticks),
        threads: u32::try_from(stat.num_threads).unwrap_or(1),
    })
}

fn parts(at: Duration, now: &Done, rates: &Rates, is_asleep: bool) -> Vec<String> {
    let Reading { used_bytes, budget_bytes, disk_bytes, .. } = now.reading;
    let mut parts = vec![
        format!("softswap: {} s", at.as_secs()),
        format!("{} of {}", bytes(used_bytes), bytes(budget_bytes)),
    ];
    if is_asleep {
        parts.push("asleep: its memory fits the budget".to_string());
        return parts;
    }
    let [disk, read, written] =
        [disk_bytes, rates.read_bytes as u64, rates.written_bytes as u64].map(bytes);
    parts.push(format!("stalled {:.0}%", rates.stalled * 100.0));
    parts.push(format!("{disk} on disk"));
    parts.push(format!("{:.0} faults/s", rates.returns()));
    parts.push(format!("read {read}/s"));
    parts.push(format!("written {written}/s"));
    parts
}

fn parts_of_tree(at: Duration, rates: &TreeRates) -> Vec<String> {
    let TreeRates { now, stalled_threads, returns_per_s } = rates;
    vec![
        format!("softswap: {} s", at.as_secs()),
        format!("{} of {}", bytes(now.used_bytes), bytes(now.budget_bytes)),
        format!("{stalled_threads:.1} threads stalled"),
        format!("{} processes", now.processes),
        format!("{returns_per_s:.0} faults/s"),
    ]
}

/// Leaves the last column free: writing to it wraps on some terminals.
fn within(parts: &[String], width: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let comma = if line.is_empty() { "" } else { ", " };
        if line.len() + comma.len() + part.len() >= width {
            break;
        }
        line = line + comma + part;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_shows_amount_and_time() {
        let reading =
            Reading { used_bytes: 60 << 20, budget_bytes: 64 << 20, ..Reading::default() };
        let done = Done { reading, cpu: Duration::ZERO, threads: 1 };
        let rates = Rates { stalled: 0.43, read_bytes: f64::from(3 << 20), ..Rates::default() };
        let all = parts(Duration::from_secs(12), &done, &rates, false);
        let text = within(&all, 200);
        assert!(text.starts_with("softswap: 12 s, 60.0 MiB of 64.0 MiB, stalled 43%"), "{text}");
        assert!(text.ends_with("read 3.0 MiB/s, written 0 B/s"), "{text}");
        let asleep = parts(Duration::ZERO, &done, &rates, true);
        assert!(within(&asleep, 80).ends_with("64.0 MiB, asleep: its memory fits the budget"));
    }

    #[test]
    fn narrow_terminal_shows_complete_fields() {
        let all = ["softswap: 1 s", "1 MiB of 2 MiB", "stalled 3%"].map(String::from);
        let full = "softswap: 1 s, 1 MiB of 2 MiB, stalled 3%";
        for (width, expected) in [
            (200, full),
            (full.len() + 1, full),
            (full.len(), "softswap: 1 s, 1 MiB of 2 MiB"),
            (20, "softswap: 1 s"),
            (13, ""),
            (1, ""),
        ] {
            assert_eq!(within(&all, width), expected, "{width}");
        }
    }
}
