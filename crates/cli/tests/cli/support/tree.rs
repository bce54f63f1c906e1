//! Process trees that share one budget.

use super::cgroup::{ControlGroup, command_in};
use super::control_client::{try_stat, wait_until};
use super::{Ended, LIMIT, Running, compiled, python, softswap};
use serde_json::Value;
use std::ffi::OsStr;
use tempfile::TempDir;

pub(crate) const BUDGET: &str = "96M";
pub(crate) const BUDGET_BYTES: u64 = 96 << 20;

pub(crate) struct Tree {
    pub(crate) running: Running,
    pub(crate) sockets: TempDir,
}

impl Tree {
    pub(crate) fn start<A: AsRef<OsStr>>(options: &[&str], program: &[A]) -> Tree {
        Tree::start_in(None, options, program)
    }

    pub(crate) fn start_in<A: AsRef<OsStr>>(
        group: Option<&ControlGroup>,
        options: &[&str],
        program: &[A],
    ) -> Tree {
        let sockets = tempfile::tempdir().unwrap();
        let mut command = command_in(group, softswap());
        command.args(["run", "--reserve", "0"]).args(options).arg("--").args(program);
        command.env("SOFTSWAP_RUNTIME_DIR", sockets.path());
        Tree { running: Running::start(&mut command), sockets }
    }

    pub(crate) fn of_script(options: &[&str], script: &str) -> Tree {
        Tree::start(options, &[python().as_os_str(), "-c".as_ref(), script.as_ref()])
    }

    /// The script gets the path of `hog` as `$0`.
    pub(crate) fn of_hogs(group: Option<&ControlGroup>, options: &[&str], script: &str) -> Tree {
        let hog = compiled("hog");
        let program = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), hog.as_os_str()];
        Tree::start_in(group, options, &program)
    }

    /// Each program uses nearly all of the budget, and runs until [`Tree::finish`].
    pub(crate) fn of_two_hogs(group: Option<&ControlGroup>) -> Tree {
        let script = "\"$0\" --mib 90 --seconds 0 & \"$0\" --mib 90 --seconds 0; wait";
        Tree::of_hogs(group, &["--memory", BUDGET], script)
    }

    pub(crate) fn finish(self) -> Ended {
        std::fs::write(self.sockets.path().join("done"), "").unwrap();
        self.running.finish(LIMIT)
    }

    pub(crate) fn pid(&self) -> String {
        self.running.id().to_string()
    }

    pub(crate) fn wait_until_ready(&self, count: usize) {
        wait_until("ready", || {
            let stdout = String::from_utf8_lossy(&self.running.stdout_so_far()).into_owned();
            // Unbuffered Python writes the end of a line separately.
            let is_ready = stdout.matches("ready").count() == count;
            is_ready.then_some(()).ok_or_else(|| stdout + &self.running.stderr_so_far())
        });
    }

    /// An error is another answer, as text.
    pub(crate) fn try_stat(&self) -> Result<Value, String> {
        let stat = try_stat(&self.pid())?;
        Some(stat["tree"].clone()).filter(Value::is_object).ok_or_else(|| stat.to_string())
    }

    pub(crate) fn stat(&self) -> Value {
        wait_until("the tree's answer", || self.try_stat())
    }

    pub(crate) fn wait_for_answer(&self, what: &str, mut is_so: impl FnMut(&Value) -> bool) {
        wait_until(what, || {
            let stat = self.try_stat()?;
            if is_so(&stat) { Ok(()) } else { Err(stat.to_string()) }
        });
    }
}

pub(crate) fn bytes(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} is missing in {value}"))
}

pub(crate) fn processes(stat: &Value) -> &Vec<Value> {
    stat["processes"].as_array().unwrap()
}
