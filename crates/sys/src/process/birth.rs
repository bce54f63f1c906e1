//! Which process a number stands for: a number is another process's later, and stands for
//! nothing in another name space.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// When a process began, in clock ticks since the machine did; `None` where there is none of
/// that number, or it has ended and nobody has asked how. Its memory is gone then.
#[must_use]
pub fn began(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&stat);
    // Behind the name, which may hold anything: the state first, the start as the 20th.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}

/// The name space of process numbers that this process is in; 0 where that is not told.
#[must_use]
pub fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_has_begun_until_it_has_ended() {
        let own = began(std::process::id()).unwrap();
        assert!(own > 0 && namespace() > 0);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(began(child.id()).unwrap() >= own);
        child.kill().unwrap();
        // Nobody has asked how it ended: its number is not free yet.
        while began(child.id()).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(began(child.id()), None);
    }
}
