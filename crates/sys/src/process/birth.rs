//! Which process a number stands for: a number is another process's later, and stands for
//! nothing in another name space.

use crate::{program_filter, raw};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// So many bits has [`namespace`].
pub const NAMESPACE_BITS: u32 = 18;

/// What is seen of a process by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It runs, or is stopped, and began so many clock ticks after the machine.
    Began(u64),
    /// There is none of that number, or it has ended and nobody has asked how. Its memory is
    /// gone.
    Ended,
    /// There is one of that number, and no more is told: no descriptor is free, or `/proc` is
    /// not mounted, hides it, or is another name space's.
    Unknown,
}

/// What is seen of a process. That there is none the kernel says without `/proc`, and without
/// a descriptor.
#[must_use]
pub fn look(pid: u32) -> Seen {
    if is_nobodys(pid) {
        return Seen::Ended;
    }
    if !is_proc_of_own_numbers() {
        return Seen::Unknown;
    }
    match fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => told_by(&stat),
        // It may have ended meanwhile.
        Err(_) if is_nobodys(pid) => Seen::Ended,
        Err(_) => Seen::Unknown,
    }
}

/// When this process began; `None` where that is not told.
#[must_use]
pub fn own() -> Option<u64> {
    // Its own, whose name space `/proc` may be of.
    match told_by(&fs::read("/proc/self/stat").ok()?) {
        Seen::Began(start) => Some(start),
        _ => None,
    }
}

/// The name spaces of process numbers and of times that this process is in, in
/// [`NAMESPACE_BITS`]: the kernel numbers name spaces one after the other. `None` where that is
/// not told.
#[must_use]
pub fn namespace() -> Option<u32> {
    let number = |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).ok().map(|it| it.ino());
    // Before Linux 5.6 there is one time for all.
    let times = number("time").unwrap_or(0);
    let both = number("pid")? ^ times.rotate_left(NAMESPACE_BITS / 2);
    Some((both & ((1 << NAMESPACE_BITS) - 1)) as u32)
}

/// Whether there certainly is no process of that number.
fn is_nobodys(pid: u32) -> bool {
    let Ok(pid @ 1..) = i32::try_from(pid) else { return true };
    // By the program's own filter that may be forbidden.
    if program_filter::is_in_force() {
        return false;
    }
    // SAFETY: takes two numbers, and sends no signal.
    let sent = unsafe { raw::syscall(libc::SYS_kill, [pid as usize, 0, 0, 0, 0, 0]) };
    sent == -(libc::ESRCH as isize)
}

/// Whether numbers in `/proc` are those of this process's name space.
fn is_proc_of_own_numbers() -> bool {
    let own = fs::read_link("/proc/self").ok();
    own.and_then(|own| own.to_str()?.parse::<u32>().ok()) == Some(raw::current_process())
}

fn told_by(stat: &[u8]) -> Seen {
    let text = String::from_utf8_lossy(stat);
    let told = || {
        // Behind the name, which may hold anything: the state first, the start as the 20th.
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?;
        let start = fields.nth(18)?.parse().ok()?;
        Some(if matches!(state, "Z" | "X") { Seen::Ended } else { Seen::Began(start) })
    };
    told().unwrap_or(Seen::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_has_begun_until_it_has_ended() {
        let own = own().unwrap();
        assert!(own > 0 && namespace().is_some());
        assert_eq!(look(std::process::id()), Seen::Began(own));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let Seen::Began(start) = look(child.id()) else { panic!("it runs") };
        assert!(start >= own);
        child.kill().unwrap();
        // Nobody has asked how it ended: its number is not free yet.
        while look(child.id()) != Seen::Ended {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(look(child.id()), Seen::Ended);
    }

    #[test]
    fn what_is_not_told_is_not_taken_for_an_end() {
        assert_eq!(told_by(b""), Seen::Unknown);
        assert_eq!(told_by(b"12 (a name"), Seen::Unknown);
        assert_eq!(told_by(b"12 (a) name) S 1 2"), Seen::Unknown);
        let fields = "0 ".repeat(18);
        assert_eq!(told_by(format!("12 (a) S) S {fields}77 0").as_bytes()), Seen::Began(77));
        assert_eq!(told_by(format!("12 (a) S) Z {fields}77 0").as_bytes()), Seen::Ended);
    }
}
