//! Progress of the test program `steady`, which verifies and rewrites its pages continuously.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

pub(crate) const THREADS: u64 = 2;
const STRIDE_BYTES: u64 = 64;

/// Contains the time of each thread's last step.
pub(crate) struct Beat(File);

impl Beat {
    pub(crate) fn create(dir: &Path, command: &mut Command) -> Beat {
        let path = dir.join("beat");
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.expect("a file");
        file.set_len(THREADS * STRIDE_BYTES).expect("a longer file");
        command.args(["--threads", &THREADS.to_string(), "--beat"]).arg(path);
        Beat(file)
    }

    /// Returns 0 before the first step, otherwise the time in ns.
    pub(crate) fn last_step(&self, thread: u64) -> u64 {
        let mut word = [0; 8];
        let read = self.0.read_exact_at(&mut word, thread * STRIDE_BYTES);
        if read.is_ok() { u64::from_le_bytes(word) } else { 0 }
    }

    /// A step counts if it was begun after this time, and completed.
    pub(crate) fn is_after(&self, time_ns: u64) -> bool {
        (0..THREADS).all(|thread| self.last_step(thread) > time_ns)
    }
}
