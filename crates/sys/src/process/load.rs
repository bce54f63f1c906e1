//! Reads the number of runnable threads from /proc/loadavg.

use crate::descriptor::KeptFile;

#[derive(Debug)]
pub struct Load {
    file: KeptFile,
    processors: u32,
}

impl Load {
    pub fn open() -> Option<Load> {
        // SAFETY: the function takes and returns a number.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let processors = u32::try_from(online).ok()?;
        let load = Load { file: KeptFile::open("/proc/loadavg").ok()?, processors };
        load.runnable().map(|_| load)
    }

    /// Returns the number of processors that are online, even if this process may not use them all.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    pub fn runnable(&self) -> Option<u32> {
        parse(self.file.read(&mut [0; 128])?)
    }
}

/// Parses "0.31 2.08 2.71 2/345 6789": returns the number before the slash.
pub fn parse(text: &[u8]) -> Option<u32> {
    let fourth = std::str::from_utf8(text).ok()?.split(' ').nth(3)?;
    fourth.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runnable_count_is_parsed() {
        assert_eq!(parse(b"0.31 2.08 2.71 12/345 6789\n"), Some(12));
        for bad in [&b""[..], b"0.31 2.08", b"0.31 2.08 2.71 345", b"0 0 0 x/3", b"\xff 1 1 1/1"] {
            assert_eq!(parse(bad), None);
        }
    }
}
