//! Processes of a running tree, as the kernel shows them.

use procfs::process::{Process, Stat};
use std::fs::File;

/// The kernel keeps 15 characters of a process's name.
pub(crate) const HELPER: &str = "softswap-remote";

pub(crate) fn stat_of(pid: i32) -> Option<Stat> {
    Process::new(pid).ok()?.stat().ok()
}

pub(crate) fn parent(pid: i32) -> Option<i32> {
    stat_of(pid).map(|stat| stat.ppid)
}

pub(crate) fn all_with(is_wanted: impl Fn(&Stat) -> bool) -> Vec<i32> {
    let processes = procfs::process::all_processes().expect("/proc").flatten();
    let stats = processes.filter_map(|process| process.stat().ok());
    stats.filter(is_wanted).map(|stat| stat.pid).collect()
}

pub(crate) fn children(parent: i32) -> Vec<i32> {
    all_with(|stat| stat.ppid == parent)
}

pub(crate) fn child_called(parent: i32, name: &str) -> Option<i32> {
    all_with(|stat| stat.ppid == parent && stat.comm == name).pop()
}

/// Returns the main thread's waits, and the major faults of the process, which may be waits.
pub(crate) fn waits_of(pid: i32) -> Option<(u64, u64)> {
    let process = Process::new(pid).ok()?;
    let waits = process.status().ok()?.voluntary_ctxt_switches?;
    Some((waits, process.stat().ok()?.majflt))
}

pub(crate) fn shared_memory(pid: i32, variable: &str) -> File {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let (_, number) = environment.split_once(variable).unwrap();
    let number = number.split('\0').next().unwrap();
    File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{number}")).unwrap()
}

/// The process may have exited already.
pub(crate) fn send(pid: i32, signal: i32) {
    let _ = softswap_sys::child::send(pid, signal);
}

pub(crate) fn kill(pid: i32) {
    send(pid, libc::SIGKILL);
}
