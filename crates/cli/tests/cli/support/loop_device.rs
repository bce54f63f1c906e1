//! Block devices over files.

use std::path::Path;
use std::process::Command;

/// A loop device over `file`, detached when dropped.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    /// `None` where this user cannot have one.
    pub(crate) fn over(file: &Path) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(made.stdout).ok()?.trim().to_string();
        made.status.success().then_some(Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
