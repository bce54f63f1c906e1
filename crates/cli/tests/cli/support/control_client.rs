//! Programs queried by `softswap stat` and `softswap ctl`.

use super::{Ended, Running, Swapped, compiled, python, softswap};
use crate::common::assert_output;
use serde_json::Value;
use softswap_engine::api::control_protocol::{Answer, MAX_ANSWER_BYTES, Request, Snapshot};
use softswap_engine::base::stats::Stats;
use softswap_sys::control_socket::{self, DIR_VARIABLE};
pub(crate) use softswap_testkit::waiting::{HANG_TIMEOUT as WAIT_TIMEOUT, eventually, wait_until};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;
use tempfile::TempDir;

/// Polls `look` until it returns a value.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    wait_until(what, || look().ok_or_else(String::new))
}

/// Program under `softswap run`, with its own socket directory.
pub(crate) struct Program {
    pub(crate) running: Running,
    pub(crate) sockets: TempDir,
    _swapped: Swapped,
}

impl Program {
    /// Starts the program and waits until it has printed `ready`.
    pub(crate) fn start<A: AsRef<OsStr>>(
        options: &[&str],
        program: &Path,
        arguments: &[A],
    ) -> Program {
        Program::start_in(Swapped::within("32M").options(options), program, arguments)
    }

    fn start_in<A: AsRef<OsStr>>(swapped: Swapped, program: &Path, arguments: &[A]) -> Program {
        let sockets = tempfile::tempdir().unwrap();
        let mut command = swapped.command(program, arguments);
        // A sleeping process does not answer.
        command.env(DIR_VARIABLE, sockets.path()).env("SOFTSWAP_AWAKE", "1");
        let running = Running::start(&mut command);
        let mut started = Program { running, sockets, _swapped: swapped };
        started.wait_for_line("ready");
        started
    }

    /// Starts a program that keeps touching more memory than its budget.
    pub(crate) fn under_pressure(options: &[&str]) -> Program {
        Program::start(options, &compiled("hog"), &["--mib", "64", "--seconds", "0"])
    }

    /// Starts the program of [`Program::under_pressure`] with a budget per process.
    pub(crate) fn under_pressure_by_itself() -> Program {
        let swapped = Swapped::within("32M").per_process();
        Program::start_in(swapped, &compiled("hog"), &["--mib", "64", "--seconds", "0"])
    }

    pub(crate) fn script(text: &str) -> Program {
        Program::start(&[], &python(), &["-c", text])
    }

    /// Waits for an output line that begins with `word` and returns its rest.
    pub(crate) fn wait_for_line(&mut self, word: &str) -> String {
        self.running.wait_for_line(word)
    }

    pub(crate) fn supervisor(&self) -> String {
        self.running.id().to_string()
    }

    pub(crate) fn pid(&self) -> String {
        program_stat(&self.supervisor())["pid"].to_string()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.sockets.path().join(format!("{}.sock", self.pid()))
    }

    /// Returns the names of the programs' sockets, without that of `softswap run`.
    pub(crate) fn names(&self) -> Vec<String> {
        let own = format!("{}.sock", self.supervisor());
        let entries = std::fs::read_dir(self.sockets.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| *name != own).collect()
    }

    /// Reads the counters directly from the control socket.
    pub(crate) fn stats(&self) -> Stats {
        let socket = self.socket();
        // A program waits only briefly for a request, so it is repeated on a busy machine.
        wait_until("the counters", || {
            let line = Request::Stat.line().unwrap();
            let answer = control_socket::connect(&socket, WAIT_TIMEOUT).and_then(|peer| {
                peer.write_all(line.as_bytes(), WAIT_TIMEOUT)?;
                peer.read_to_end(MAX_ANSWER_BYTES, WAIT_TIMEOUT)
            });
            let answer = answer.map_err(|error| error.to_string())?;
            match Answer::parse(&answer) {
                Answer::Ok(body) => Ok(Snapshot::parse(&body).unwrap().stats),
                _ if answer.is_empty() => Err("no answer".to_string()),
                other => panic!("{other:?}"),
            }
        })
    }

    pub(crate) fn expect_alive(&mut self) {
        assert!(!self.running.has_ended(), "the program has exited");
    }

    /// Requests a script's exit and waits for it.
    pub(crate) fn finish(self) -> Ended {
        std::fs::write(self.sockets.path().join("done"), "").unwrap();
        self.running.finish(WAIT_TIMEOUT)
    }
}

/// Runs the command. Repeats it if a process did not answer in time, as on a busy machine.
pub(crate) fn query(arguments: &[&str]) -> Output {
    let end = Instant::now() + WAIT_TIMEOUT;
    loop {
        let mut command = Command::new(softswap());
        let output = command.args(arguments).env_remove(DIR_VARIABLE).output().unwrap();
        let is_late = String::from_utf8_lossy(&output.stderr).contains("did not answer within");
        if !is_late || Instant::now() >= end {
            return output;
        }
    }
}

/// Returns the answer to `stat --json`, or the refusal's message.
pub(crate) fn try_stat(pid: &str) -> Result<Value, String> {
    let output = query(&["stat", pid, "--json"]);
    serde_json::from_slice(&output.stdout)
        .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Returns the answer to `stat --json` of the program of a `softswap run`, once the program has its
/// control socket.
pub(crate) fn program_stat(supervisor: &str) -> Value {
    wait_until("the program's answer", || {
        let stat = try_stat(supervisor)?;
        // Until the program answers, the supervisor answers for the tree.
        if stat.get("program").is_some() { Ok(stat) } else { Err(stat.to_string()) }
    })
}

pub(crate) fn stat(pid: &str) -> Value {
    serde_json::from_str(&stdout_of(&["stat", pid, "--json"])).unwrap()
}

/// Runs the command, which must succeed, and returns its standard output.
pub(crate) fn stdout_of(arguments: &[&str]) -> String {
    let output = query(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts that the command fails with `status` and a message that contains all `parts`.
pub(crate) fn refused(arguments: &[&str], status: i32, parts: &[&str]) {
    assert_output(&query(arguments), status, parts);
}
