//! Identity of a process, by which other processes decide that it is dead. PIDs are reused, so it
//! has the start time and the namespaces. [`crate::open_mark`] covers forked children.

use crate::{program_filter, raw};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

pub const NAMESPACE_BITS: u32 = 18;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIdentity {
    pub pid: u32,
    /// Start time in clock ticks since boot; 0 if unknown.
    pub start: u64,
    /// PID and time namespaces, in [`NAMESPACE_BITS`]: the kernel numbers namespaces in order.
    pub namespace: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// The process runs or is stopped.
    Alive,
    /// The process has exited (also as a zombie: its memory is freed), or its PID was reused.
    Dead,
    /// The process is in another namespace, no descriptor is free, or `/proc` is missing, of
    /// another namespace, or hides the process. Callers treat the process as alive.
    Unknown,
}

/// Identity of this process; the PID is 0 until `current` has determined the identity.
static PID: AtomicU32 = AtomicU32::new(0);
static START: AtomicU64 = AtomicU64::new(0);
static NAMESPACE: AtomicU32 = AtomicU32::new(0);

/// Clears the identity in a forked child, whose PID may be the same. Returns the parent's.
pub fn forget() -> Option<ProcessIdentity> {
    let pid = PID.swap(0, Acquire);
    let (start, namespace) = (START.load(Relaxed), NAMESPACE.load(Relaxed));
    (pid != 0).then_some(ProcessIdentity { pid, start, namespace })
}

impl ProcessIdentity {
    /// Returns `None` if the namespace is unknown. If only the start time is unknown, the PID
    /// identifies this process. The first call opens files: not while a fault is handled.
    pub fn current() -> Option<ProcessIdentity> {
        if let Some(me) = ProcessIdentity::known() {
            return Some(me);
        }
        let stat = fs::read("/proc/self/stat").unwrap_or_default();
        let start = parse_stat(&stat).map_or(0, |(.., start)| start);
        let me = ProcessIdentity { pid: raw::current_process(), start, namespace: namespace()? };
        START.store(me.start, Relaxed);
        NAMESPACE.store(me.namespace, Relaxed);
        PID.store(me.pid, Release);
        Some(me)
    }

    pub fn known() -> Option<ProcessIdentity> {
        let pid = raw::current_process();
        (PID.load(Acquire) == pid).then(|| {
            let (start, namespace) = (START.load(Relaxed), NAMESPACE.load(Relaxed));
            ProcessIdentity { pid, start, namespace }
        })
    }

    /// Returns the state. Without a start time, any process with the same PID counts as this one.
    pub fn liveness(&self) -> Liveness {
        if namespace() != Some(self.namespace) {
            return Liveness::Unknown;
        }
        // This check needs neither `/proc` nor a descriptor.
        if is_unused(self.pid) {
            return Liveness::Dead;
        }
        if !is_proc_of_own_namespace() {
            return Liveness::Unknown;
        }
        let stat = fs::read(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        match parse_stat(&stat) {
            // After the exit of the main thread alone, other threads run.
            Some(("Z" | "X", threads, _)) if threads <= 1 => Liveness::Dead,
            Some((.., start)) if start == self.start || self.start == 0 => Liveness::Alive,
            Some(_) => Liveness::Dead,
            // The process may have exited meanwhile.
            None if is_unused(self.pid) => Liveness::Dead,
            None => Liveness::Unknown,
        }
    }
}

fn namespace() -> Option<u32> {
    let inode = |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).ok().map(|it| it.ino());
    // Time namespaces exist since Linux 5.6.
    let time = inode("time").unwrap_or(0);
    let both = inode("pid")? ^ time.rotate_left(NAMESPACE_BITS / 2);
    Some((both & ((1 << NAMESPACE_BITS) - 1)) as u32)
}

fn is_unused(pid: u32) -> bool {
    let Ok(pid @ 1..) = i32::try_from(pid) else { return true };
    if program_filter::is_in_force() {
        return false;
    }
    // SAFETY: the call takes two numbers, and sends no signal.
    let sent = unsafe { raw::syscall(libc::SYS_kill, [pid as usize, 0, 0, 0, 0, 0]) };
    sent == -(libc::ESRCH as isize)
}

fn is_proc_of_own_namespace() -> bool {
    let own = fs::read_link("/proc/self").ok();
    own.and_then(|own| own.to_str()?.parse::<u32>().ok()) == Some(raw::current_process())
}

/// Parses `/proc/PID/stat`: returns the state, the number of threads and the start time.
fn parse_stat(stat: &[u8]) -> Option<(&str, u64, u64)> {
    // The name may contain any byte, including parentheses.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    Some((state, fields.nth(16)?.parse().ok()?, fields.nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe;
    use std::process::Command;

    #[test]
    fn process_is_alive_until_exit() {
        let me = ProcessIdentity::current().unwrap();
        assert!(me.start > 0 && ProcessIdentity::known() == Some(me));
        assert_eq!(me.liveness(), Liveness::Alive);
        assert_eq!(ProcessIdentity { start: 1, ..me }.liveness(), Liveness::Dead, "reused PID");
        let foreign = ProcessIdentity { namespace: me.namespace ^ 1, ..me };
        assert_eq!(foreign.liveness(), Liveness::Unknown);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let sleeper = ProcessIdentity { pid: child.id(), start: 0, ..me };
        assert_eq!(sleeper.liveness(), Liveness::Alive);
        assert!(raw::has_children());
        assert!(probe::holds_in_child(|| !raw::has_children()).unwrap());
        child.kill().unwrap();
        while sleeper.liveness() != Liveness::Dead {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(sleeper.liveness(), Liveness::Dead);
    }

    #[test]
    fn truncated_stat_is_rejected() {
        for text in ["", "12 (a name", "12 (a) name) S 1 2"] {
            assert_eq!(parse_stat(text.as_bytes()), None);
        }
        let fields = format!("{}3 0 ", "0 ".repeat(16));
        assert_eq!(parse_stat(format!("12 (a) S) Z {fields}77 0").as_bytes()), Some(("Z", 3, 77)));
        assert_eq!(
            parse_stat([b"12 (\xff) S ", fields.as_bytes(), b"5"].concat().as_slice()),
            Some(("S", 3, 5))
        );
    }
}
