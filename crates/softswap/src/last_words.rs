//! Why a touch cannot be served, told from a signal handler: nothing is allocated.

use softswap_engine::core::errors::FaultError;
use softswap_sys::raw;
use std::fmt::Write;

struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

/// Says on standard error why the page at `address` cannot be had.
pub(crate) fn say(address: usize, error: &FaultError) {
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = writeln!(line, "softswap: the page at {address:#x} of a region cannot be had: {error}");
    raw::write_stderr(&line.bytes[..line.len]);
}
