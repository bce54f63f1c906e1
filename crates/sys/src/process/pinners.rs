//! Counts mappings by which asynchronous I/O or devices may access the program's memory.

use crate::descriptor::KeptFile;
use crate::own_descriptors;
use rustix::fd::{AsFd, AsRawFd};
use rustix::fs::SeekFrom;
use rustix::io::retry_on_intr;

#[derive(Debug)]
pub struct Mappings {
    file: KeptFile,
}

impl Mappings {
    pub fn open() -> Option<Mappings> {
        let file = KeptFile::open("/proc/self/maps").ok()?;
        // In a forked child the file would show the parent's mappings.
        own_descriptors::withhold(file.as_fd().as_raw_fd());
        Some(Mappings { file })
    }

    /// Counts mappings through which the kernel or a device may pin memory for longer than a call:
    /// io_uring, Linux's asynchronous I/O, devices. Only one thread at a time may call this.
    pub fn pinners(&self) -> Option<usize> {
        let mut text = [0; 8192];
        let (mut held, mut count) = (0, 0);
        rustix::fs::seek(&self.file, SeekFrom::Start(0)).ok()?;
        loop {
            let len = retry_on_intr(|| rustix::io::read(&self.file, &mut text[held..])).ok()?;
            if len == 0 {
                return Some(count + usize::from(is_pinner(&text[..held])));
            }
            let end = held + len;
            let mut start = 0;
            while let Some(line) = text[start..end].iter().position(|byte| *byte == b'\n') {
                count += usize::from(is_pinner(&text[start..start + line]));
                start += line + 1;
            }
            // A line longer than the buffer has a path that matches none of the patterns.
            let start = if start == 0 && end == text.len() { end } else { start };
            text.copy_within(start..end, 0);
            held = end - start;
        }
    }
}

/// Parses "7f00-7f01 rw-s 00000000 00:0f 2083 anon_inode:[io_uring]".
pub fn is_pinner(line: &[u8]) -> bool {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let Some(name) = fields.nth(5) else { return false };
    let is_memory = |name: &[u8]| name.starts_with(b"/dev/shm/") || name == b"/dev/zero";
    name == b"anon_inode:[io_uring]"
        || name == b"/[aio]"
        || (name.starts_with(b"/dev/") && !is_memory(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Ring;

    #[test]
    fn pinning_mappings_are_recognised() {
        let line = |name: &str| format!("7f00-7f01 rw-s 00000000 00:0f 2083       {name}");
        for name in ["anon_inode:[io_uring]", "/[aio] (deleted)", "/dev/nvidia0"] {
            assert!(is_pinner(line(name).as_bytes()), "{name}");
        }
        for name in ["", "[heap]", "/dev/zero (deleted)", "/dev/shm/x", "/a/dev/b", "/usr/aio"] {
            assert!(!is_pinner(line(name).as_bytes()), "{name}");
        }
    }

    #[test]
    fn new_ring_is_counted() {
        let Some(mappings) = Mappings::open() else { return };
        let Ok(first) = Ring::new(4) else { return };
        let before = mappings.pinners().unwrap();
        let second = Ring::new(4).unwrap();
        assert!(mappings.pinners().unwrap() > before);
        drop((first, second));
        assert!(mappings.pinners().unwrap() < before);
    }
}
