//! The Python module `softswap`, in a directory like that of `pip install --target`.

use crate::common::{bin_dir, skip};
use crate::recipes::{blocks, command_in};
use crate::support::{disk_dir, finish};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");

struct Installed {
    python: &'static str,
    dir: TempDir,
}

impl Installed {
    /// Fails if there is no NumPy, or if the workspace is not built.
    fn new() -> Result<Installed, &'static str> {
        let has_numpy = |python: &&str| {
            let imported = Command::new(python).args(["-c", "import numpy"]).output();
            imported.is_ok_and(|output| output.status.success())
        };
        let pythons = ["python3", "/usr/bin/python3"];
        let python = pythons.into_iter().find(has_numpy).ok_or("no python3 has numpy")?;
        let module = bin_dir().join("lib_softswap.so");
        if !module.exists() {
            return Err("the Python module is not built");
        }
        let dir = disk_dir();
        let package = dir.path().join("softswap");
        std::fs::create_dir(&package).unwrap();
        for file in std::fs::read_dir(Path::new(SOURCES).join("python/softswap")).unwrap() {
            let file: PathBuf = file.unwrap().path();
            if file.extension().is_some_and(|it| it == "py") {
                std::fs::copy(&file, package.join(file.file_name().unwrap())).unwrap();
            }
        }
        symlink(module, package.join("_softswap.abi3.so")).unwrap();
        symlink(bin_dir(), dir.path().join("bin")).unwrap();
        Ok(Installed { python, dir })
    }

    fn expect_success(&self, arguments: &[&str], what: &str) {
        let mut command = command_in(self.dir.path(), self.python, arguments);
        // The pools swap to TMPDIR.
        command.env("PYTHONPATH", self.dir.path()).env("TMPDIR", self.dir.path());
        finish(&mut command).expect_success(what);
    }
}

#[test]
fn pool_tests_of_wheel_pass() {
    let installed = match Installed::new() {
        Ok(installed) => installed,
        Err(reason) => return skip(reason),
    };
    let tests = format!("{SOURCES}/tests/test_wheel.py");
    // The others need the files of a wheel.
    let command = "TheCommand.test_notebook_shows_memory";
    let repr = "TheCommand.test_repr_of_pool";
    installed.expect_success(&[&tests, "APool", command, repr], "the tests of the wheel");
}

#[test]
fn documented_python_runs() {
    let installed = match Installed::new() {
        Ok(installed) => installed,
        Err(reason) => return skip(reason),
    };
    for (page, text) in blocks("python tested") {
        installed.expect_success(&["-c", &text], &format!("{page}:\n{text}"));
    }
}
