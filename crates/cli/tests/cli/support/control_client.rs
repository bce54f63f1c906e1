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

pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    wait_until(what, || look().ok_or_else(String::new))
}

pub(crate) struct Program {
    pub(crate) running: Running,
    pub(crate) sockets: TempDir,
    _swapped: Swapped,
}

impl Program {
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

    pub(crate) fn under_pressure(options: &[&str]) -> Program {
        Program::start(options, &compiled("hog"), &["--mib", "64", "--seconds", "0"])
    }

    pub(crate) fn under_pressure_by_itself() -> Program {
        let swapped = Swapped::within("32M").per_process();
        Program::start_in(swapped, &compiled("hog"), &["--mib", "64", "--seconds", "0"])
    }

    pub(crate) fn script(text: &str) -> Program {
        Program::start(&[], &python(), &["-c", text])
    }

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

    /// Excludes the socket of `softswap run`.
    pub(crate) fn names(&self) -> Vec<String> {
        let own = format!("{}.sock", self.supervisor());
        let entries = std::fs::read_dir(self.sockets.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| *name != own).collect()
    }

    pub(crate) fn stats(&self) -> Stats {
        let socket = self.socket();
        // A program waits only briefly for a request.
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

    pub(crate) fn finish(self) -> Ended {
        std::fs::write(self.sockets.path().join("done"), "").unwrap();
        self.running.finish(WAIT_TIMEOUT)
    }
}

/// Repeats the command if a process does not answer in time, as on a busy machine.
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

/// An error is the refusal's message.
pub(crate) fn try_stat(pid: &str) -> Result<Value, String> {
    let output = query(&["stat", pid, "--json"]);
    serde_json::from_slice(&output.stdout)
        .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Waits until the program has its control socket.
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

pub(crate) fn stdout_of(arguments: &[&str]) -> String {
    let output = query(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn refused(arguments: &[&str], status: i32, parts: &[&str]) {
    assert_output(&query(arguments), status, parts);
}
