//! Helpers shared by the tests of the command.
#![allow(dead_code, reason = "benchmarks use a part of it")]

pub(crate) mod area;
pub(crate) mod terminal;

use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Std, Output, Stdio};

pub(crate) const UNPRIVILEGED_UID: u32 = 65_534;

/// Returns `SOFTSWAP_BIN_DIR`, or the parent of cargo's directory of test executables.
pub(crate) fn bin_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("SOFTSWAP_BIN_DIR") {
        return dir.into();
    }
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().parent().unwrap().to_path_buf()
}

/// The command does not inherit `SOFTSWAP_` variables.
pub(crate) fn std_softswap() -> Std {
    let mut command = Std::new(bin_dir().join("softswap"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SOFTSWAP_") {
            command.env_remove(name);
        }
    }
    if let Some(library) = std::env::var_os("SOFTSWAP_LIBRARY") {
        command.env("SOFTSWAP_LIBRARY", library);
    }
    command
}

pub(crate) fn softswap() -> assert_cmd::Command {
    assert_cmd::Command::from_std(std_softswap())
}

pub(crate) fn std_run(swap: &Path) -> Std {
    let mut command = std_softswap();
    command.args(["run", "--memory", "64M", "--reserve", "0", "--swap"]).arg(swap);
    command
}

pub(crate) fn run(swap: &Path) -> assert_cmd::Command {
    assert_cmd::Command::from_std(std_run(swap))
}

pub(crate) fn assert_contains_all(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// Also asserts that standard output is empty. Returns the message.
pub(crate) fn assert_refused(
    command: &mut assert_cmd::Command,
    status: i32,
    parts: &[&str],
) -> String {
    assert_output(&command.output().unwrap(), status, parts)
}

pub(crate) fn assert_output(output: &Output, status: i32, parts: &[&str]) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_contains_all(&text, parts);
    assert!(output.stdout.is_empty(), "softswap must write to standard error only");
    text
}

pub(crate) fn json_of(command: &mut assert_cmd::Command) -> Value {
    serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
}

pub(crate) fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Copies the binaries to `dir` first if the test runs as root.
pub(crate) fn as_unprivileged(dir: &Path) -> assert_cmd::Command {
    if !is_root() {
        return softswap();
    }
    copy_binaries(dir);
    assert_cmd::Command::from_std(std_unprivileged(dir))
}

pub(crate) fn copy_binaries(dir: &Path) {
    set_mode(dir, 0o755);
    let names = ["softswap", "softswap-bench", "libsoftswap.so"];
    copy_files(&names.map(|name| bin_dir().join(name)), dir);
}

/// By `cp`: a file open for writing cannot be executed, and a child forked by another test would
/// inherit the descriptor.
pub(crate) fn copy_files(files: &[PathBuf], dir: &Path) {
    assert!(Std::new("cp").args(files).arg(dir).status().unwrap().success());
}

pub(crate) fn std_unprivileged(binaries: &Path) -> Std {
    let mut command = Std::new(binaries.join("softswap"));
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .uid(UNPRIVILEGED_UID)
        .gid(UNPRIVILEGED_UID)
        .current_dir("/");
    command
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

pub(crate) fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    // By a child, for the same reason as in `copy_files`.
    let mut writer = Std::new("sh");
    writer.args(["-c", "cat >\"$0\""]).arg(&path).stdin(Stdio::piped());
    let mut writer = writer.spawn().unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
    set_mode(&path, 0o755);
    path
}

pub(crate) const EMPTY_PROGRAM: &str = "int main(void) { return 0; }\n";

pub(crate) fn compile(
    compiler: &str,
    dir: &Path,
    name: &str,
    source: &str,
    options: &[&str],
) -> Option<PathBuf> {
    let [source_file, path] = ["source.c", name].map(|name| dir.join(name));
    std::fs::write(&source_file, source).unwrap();
    let mut command = Std::new(compiler);
    let built = command.arg("-o").arg(&path).arg(&source_file).args(options).output().ok()?;
    built.status.success().then_some(path)
}

/// If not, notes that the rest of the test is skipped.
pub(crate) fn is_installed(program: &str) -> bool {
    let is_found = Std::new(program).arg("--version").output().is_ok();
    if !is_found {
        skip(&format!("{program} is not installed"));
    }
    is_found
}

pub(crate) fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn over(file: &Path) -> Option<Loop> {
        Loop::with(file, &[])
    }

    pub(crate) fn with(file: &Path, options: &[&str]) -> Option<Loop> {
        let mut command = tool("losetup")?;
        let output = command.args(["--find", "--show"]).args(options).arg(file).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_string();
        (output.status.success() && !name.is_empty()).then_some(Loop(name))
    }

    pub(crate) fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The kernel keeps the flag of a detached device for its next user.
        if let Some(mut command) = tool("blockdev") {
            let _ = command.args(["--setrw", &self.0]).output();
        }
        let _ = tool("losetup").unwrap().args(["--detach", &self.0]).status();
    }
}

/// A killed process may keep the mount busy for a moment.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = tool("umount").unwrap().arg("--lazy").arg(&self.0).status();
    }
}

/// Also searches the `sbin` directories, which are not in every PATH.
pub(crate) fn tool(name: &str) -> Option<Std> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|place| place.join(name)).find(|path| path.is_file()).map(Std::new)
}
