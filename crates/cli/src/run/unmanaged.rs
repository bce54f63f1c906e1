//! Processes of the tree without the runtime: static or setuid programs, programs for another
//! loader, and programs started without LD_PRELOAD.

use super::program;
use crate::control_client::{self, own_uid};
use softswap_view::report::{Unmanaged, UnmanagedProcess};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Samples without the runtime after which a process counts as unmanaged.
const SAMPLES_WITHOUT_RUNTIME: u32 = 2;
const KEPT: usize = 100;
/// The pause after a sample is this multiple of its duration.
const SHARE: u32 = 50;

/// exec changes the stack or the file, and PIDs are reused.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    started: u64,
    stack: u64,
    file: (u64, u64),
}

impl Identity {
    /// exec sets the file before the stack. If neither can be read, the process is another user's.
    fn is_incomplete(&self) -> bool {
        self.stack == 0 && self.file != (0, 0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Managed,
    Unmanaged,
    Without(u32),
}

pub(super) struct Search {
    program: u32,
    known: HashMap<u32, (Identity, Verdict)>,
    now: Vec<UnmanagedProcess>,
    peaks: Unmanaged,
    next_check: Instant,
}

impl Search {
    pub(super) fn new(program: u32) -> Search {
        let (known, now, peaks) = Default::default();
        Search { program, known, now, peaks, next_check: Instant::now() }
    }

    /// `members` are the PIDs that hold a share of the tree's budget. Returns the processes newly
    /// found to be unmanaged.
    pub(super) fn poll(&mut self, members: &[u32]) -> Vec<UnmanagedProcess> {
        let start = Instant::now();
        if start < self.next_check {
            return Vec::new();
        }
        let mut todo: Vec<u32> =
            [self.program].iter().chain(self.known.keys()).chain(members).copied().collect();
        let (mut known, mut now, mut new) = (HashMap::new(), Vec::new(), Vec::new());
        while let Some(pid) = todo.pop() {
            if known.contains_key(&pid) {
                continue;
            }
            let before = self.known.get(&pid).copied();
            let Some((identity, verdict)) = classify(pid, before) else { continue };
            known.insert(pid, (identity, verdict));
            todo.extend(control_client::listed_children(pid).unwrap_or_default());
            if verdict != Verdict::Unmanaged {
                continue;
            }
            let Some(mut process) = measure(pid) else { continue };
            let last = self.now.iter().find(|it| it.pid == pid);
            let last = last.filter(|_| before.is_some_and(|(it, _)| it == identity));
            let peak = last.map_or(0, |it| it.anonymous_peak_bytes);
            process.anonymous_peak_bytes = process.anonymous_bytes.max(peak);
            if last.is_none() {
                new.push(process.clone());
            }
            now.push(process);
        }
        (self.known, self.now) = (known, now);
        self.update_peaks(&new);
        self.next_check = Instant::now() + (start.elapsed() * SHARE).max(Duration::from_millis(20));
        new
    }

    fn update_peaks(&mut self, new: &[UnmanagedProcess]) {
        let peaks = &mut self.peaks;
        peaks.processes += new.len() as u64;
        peaks.largest.extend_from_slice(new);
        for process in &self.now {
            // PIDs are reused, so the latest entry with this PID is the process's.
            let known = peaks.largest.iter_mut().rev().find(|it| it.pid == process.pid);
            known.into_iter().for_each(|it| it.clone_from(process));
        }
        let all = self.now.iter().map(|it| it.anonymous_bytes).sum();
        peaks.anonymous_peak_bytes = peaks.anonymous_peak_bytes.max(all);
        if peaks.largest.len() > 2 * KEPT {
            peaks.largest.sort_by_key(|it| std::cmp::Reverse(it.anonymous_peak_bytes));
            peaks.largest.truncate(KEPT);
        }
    }

    pub(super) fn now(&self) -> &[UnmanagedProcess] {
        &self.now
    }

    pub(super) fn end(mut self) -> Unmanaged {
        self.peaks.largest.sort_by_key(|it| std::cmp::Reverse(it.anonymous_peak_bytes));
        self.peaks.largest.truncate(KEPT);
        self.peaks.largest.iter_mut().for_each(|it| it.anonymous_bytes = 0);
        self.peaks
    }
}

/// `None` if the process has exited.
fn identify(pid: u32) -> Option<Identity> {
    let stat = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    if matches!(stat.state, 'Z' | 'X') {
        return None;
    }
    let exe = std::fs::metadata(format!("/proc/{pid}/exe"));
    let file = exe.map_or((0, 0), |it| (it.dev(), it.ino()));
    Some(Identity { started: stat.starttime, stack: stat.startstack, file })
}

fn classify(pid: u32, before: Option<(Identity, Verdict)>) -> Option<(Identity, Verdict)> {
    let identity = identify(pid)?;
    let before = before.filter(|(known, _)| *known == identity).map(|(_, verdict)| verdict);
    let samples = match before {
        Some(verdict @ (Verdict::Managed | Verdict::Unmanaged)) => {
            return Some((identity, verdict));
        }
        Some(Verdict::Without(samples)) => samples,
        None => 0,
    };
    let process = control_client::Process::read(pid)?;
    let verdict = match process.is_managed() {
        // Another user's process is a setuid program, for which the loader ignores LD_PRELOAD.
        None if process.uid != own_uid() && own_uid() != 0 => Verdict::Unmanaged,
        None => Verdict::Managed,
        Some(_) if program::never_loads_libraries(&format!("/proc/{pid}/exe")) => {
            Verdict::Unmanaged
        }
        Some(true) => Verdict::Managed,
        Some(false) if !is_loaded(pid) => Verdict::Without(0),
        Some(false) if samples + 1 >= SAMPLES_WITHOUT_RUNTIME => Verdict::Unmanaged,
        Some(false) => Verdict::Without(samples + 1),
    };
    let after = identify(pid)?;
    // If exec has replaced the program meanwhile, the verdict may be about either.
    let is_certain = after == identity && !identity.is_incomplete();
    Some((after, if is_certain { verdict } else { Verdict::Without(0) }))
}

/// Preloaded libraries are mapped before the C library.
fn is_loaded(pid: u32) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&maps).contains("/libc.so.6")
}

pub(super) fn note(process: &UnmanagedProcess) -> String {
    let UnmanagedProcess { pid, name, .. } = process;
    format!(
        "{name} (pid {pid}) runs unmanaged: its memory is outside the budget; the report lists all \
         such processes, share/doc/softswap/limits.md lists programs that cannot be managed"
    )
}

fn measure(pid: u32) -> Option<UnmanagedProcess> {
    let control_client::Process { name, resident, .. } = control_client::Process::read(pid)?;
    let anonymous_bytes = resident?.anonymous_bytes;
    Some(UnmanagedProcess { pid, name, anonymous_bytes, anonymous_peak_bytes: anonymous_bytes })
}
