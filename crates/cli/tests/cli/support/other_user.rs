//! Running as a user without rights.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

pub(crate) const NOBODY: u32 = 65_534;

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Copies of what a user without rights needs to run.
pub(crate) fn binaries_for_all() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["softswap", "libsoftswap.so"] {
        std::fs::copy(super::binaries().join(name), dir.path().join(name)).unwrap();
    }
    dir
}

pub(crate) fn as_nobody(binaries: &Path) -> Command {
    let mut command = Command::new(binaries.join("softswap"));
    command.env_clear().env("PATH", "/usr/bin:/bin").uid(NOBODY).gid(NOBODY).current_dir("/");
    command
}
