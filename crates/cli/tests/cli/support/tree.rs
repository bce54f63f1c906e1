//! Process trees that share one budget.

use super::control_client::{query, wait_until};
use super::{Ended, LIMIT, Running, compiled};
use serde_json::Value;
use std::ffi::OsStr;
use std::process::Command;
use tempfile::TempDir;

pub(crate) const BUDGET: &str = "96M";
pub(crate) const BUDGET_BYTES: u64 = 96 << 20;

/// Process tree under `softswap run`, with its own socket directory.
pub(crate) struct Tree {
    pub(crate) running: Running,
    pub(crate) sockets: TempDir,
}

impl Tree {
    pub(crate) fn start<A: AsRef<OsStr>>(
        mut command: Command,
        options: &[&str],
        program: &[A],
    ) -> Tree {
        let sockets = tempfile::tempdir().unwrap();
        command.args(["run", "--reserve", "0"]).args(options).arg("--").args(program);
        command.env("SOFTSWAP_RUNTIME_DIR", sockets.path());
        Tree { running: Running::start(&mut command), sockets }
    }

    /// Starts a shell script in which `$0` is `hog`.
    pub(crate) fn of_hogs(command: Command, options: &[&str], script: &str) -> Tree {
        let hog = compiled("hog");
        let program = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), hog.as_os_str()];
        Tree::start(command, options, &program)
    }

    /// Starts two programs that each want nearly the whole budget, until [`Tree::finish`].
    pub(crate) fn of_two_hogs(command: Command) -> Tree {
        let script = "\"$0\" --mib 90 --seconds 0 & \"$0\" --mib 90 --seconds 0; wait";
        Tree::of_hogs(command, &["--memory", BUDGET], script)
    }

    /// Tells the hogs to exit, and waits for the tree.
    pub(crate) fn finish(self) -> Ended {
        std::fs::write(self.sockets.path().join("done"), "").unwrap();
        self.running.finish(LIMIT)
    }

    pub(crate) fn pid(&self) -> String {
        self.running.id().to_string()
    }

    pub(crate) fn wait_until_ready(&self, count: usize) {
        wait_until("ready", || {
            let output_of_case =
                String::from_utf8_lossy(&self.running.stdout_so_far()).into_owned();
            // Python without buffers writes the end of a line by a call of its own.
            let is_ready = output_of_case.matches("ready").count() == count;
            is_ready.then_some(()).ok_or_else(|| output_of_case + &self.running.stderr_so_far())
        });
    }

    pub(crate) fn stat(&self) -> Option<Value> {
        self.try_stat().ok()
    }

    /// Returns the tree's answer to `stat --json`, or a description of a different answer.
    pub(crate) fn try_stat(&self) -> Result<Value, String> {
        let output = query(&["stat", &self.pid(), "--json"]);
        let stat: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
        Some(stat["tree"].clone()).filter(Value::is_object).ok_or_else(|| stat.to_string())
    }

    pub(crate) fn answer(&self) -> Value {
        wait_until("an answer of the tree", || self.try_stat())
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

pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    // The process may have exited already.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Name of the helper process for clusters. The kernel keeps 15 characters.
pub(crate) const HELPER: &str = "softswap-remote";

/// Returns the live child of `parent` that has this name.
pub(crate) fn child_called(parent: i32, name: &str) -> Option<i32> {
    // The kernel lists children by the thread that forked them.
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).ok()?;
    let children = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    let numbers = children.iter().flat_map(|text| text.split_whitespace());
    numbers.filter_map(|number| number.parse().ok()).find(|number: &i32| {
        let own = std::fs::read_to_string(format!("/proc/{number}/comm"));
        own.is_ok_and(|own| own.trim_end() == name)
    })
}
