//! `softswap top` in a real terminal, emulated by tmux.

use crate::common::{copy_binaries, is_root, script};
use crate::support::control_client::{
    Program, eventually, refused, stdout_of, wait_for, wait_until,
};
use crate::support::processes::{children, send, stat_of};
use crate::support::{Running, compiled, softswap, softswap_with};
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const UNUSED_UID: u32 = 65_533;

struct Terminal {
    dir: TempDir,
}

impl Terminal {
    fn open(width: u16, height: u16) -> Option<Terminal> {
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("skipped: tmux is not installed");
            return None;
        }
        let terminal = Terminal { dir: tempfile::tempdir().unwrap() };
        let (width, height) = (width.to_string(), height.to_string());
        let place = terminal.dir.path().to_str().unwrap();
        let size = ["-x", &width, "-y", &height];
        let session = [&["new-session", "-d", "-c", place][..], &size, &["sh"]].concat();
        let started = terminal.tmux(&session);
        assert!(started.status.success(), "{started:?}");
        terminal.tmux(&["set-option", "-g", "window-size", "manual"]);
        terminal.tmux(&["resize-window", "-x", &width, "-y", &height]);
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let mut tmux = Command::new("tmux");
        tmux.args(["-u", "-f", "/dev/null", "-S"]).arg(self.dir.path().join("socket"));
        // The user's own shell may be `nologin`.
        tmux.args(arguments)
            .env("SHELL", "/bin/sh")
            .env("LANG", "C.UTF-8")
            .env("PS1", "$ ")
            .env_remove("TMUX");
        tmux.output().unwrap()
    }

    fn press(&self, keys: &[&str]) {
        let output = self.tmux(&[&["send-keys"], keys].concat());
        assert!(output.status.success(), "{output:?}");
    }

    /// Input typed before the prompt would be echoed twice, between other lines.
    fn command(&self, text: &str) {
        self.wait_until("a prompt", |screen| screen.trim_end().ends_with('$'));
        self.tmux(&["send-keys", "-l", text]);
        self.press(&["Enter"]);
    }

    fn ask(&self, arguments: &[&str]) -> String {
        String::from_utf8_lossy(&self.tmux(arguments).stdout).into_owned()
    }

    fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    fn variable(&self, name: &str) -> String {
        self.ask(&["display-message", "-p", &format!("#{{{name}}}")]).trim().to_string()
    }

    fn wait(&self, parts: &[&str]) -> String {
        let has_all = |screen: &str| parts.iter().all(|part| screen.contains(part));
        self.wait_until(&format!("{parts:?}"), has_all)
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        wait_until(what, || {
            let screen = self.screen();
            if is_so(&screen) { Ok(screen) } else { Err(format!("\n{screen}")) }
        })
    }

    /// Waits until `top` asks for confirmation.
    fn fill_in(&self, value: &str) {
        self.tmux(&["send-keys", "-l", value]);
        self.wait(&[&format!("{value}_")]);
        self.press(&["Enter"]);
        self.wait(&[&format!("to {value}?")]);
    }

    /// Then prints the exit status and the terminal's echo mode.
    fn top(&self, program: &Path, argument: &str) {
        let program = program.display();
        self.command(&format!(
            "clear; {program} top {argument}; echo left $?; stty -a | grep -o ' -\\?echo '"
        ));
    }

    fn pid_of_top(&self) -> i32 {
        wait_for("the PID of top", || below(self.variable("pane_pid").parse().ok()?, "softswap"))
    }

    /// Asserts that the terminal's mode is restored.
    fn expect_left(&self, status: i32) -> String {
        let screen = self.wait(&[&format!("left {status}\n")]);
        let screen = if screen.contains(" echo") { screen } else { self.wait(&[" echo"]) };
        assert!(!screen.contains(" -echo"), "{screen}");
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

fn below(pid: i32, name: &str) -> Option<i32> {
    match stat_of(pid)?.comm == name {
        true => Some(pid),
        false => children(pid).into_iter().find_map(|child| below(child, name)),
    }
}

#[test]
fn top_shows_resizes_and_sorts() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let program = Program::under_pressure(&[]);
    let pid = program.pid();
    terminal.top(&softswap(), &program.supervisor());
    let screen = terminal.wait(&[
        "softswap top: 1 tree, 1 process (0 asleep)",
        "of 32.0 MiB",
        "resident",
        "stalled",
        "STALL%",
        &pid,
        "awake",
    ]);
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines.len() <= 24 && lines[0].starts_with("softswap top:"), "{screen}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{screen}");
    assert!(!screen.contains("WRITE/S") && !screen.contains("standby"), "{screen}");
    terminal.wait(&["%  "]);
    terminal.tmux(&["resize-window", "-x", "200", "-y", "60"]);
    terminal.wait(&["WRITE/S", "standby"]);
    terminal.press(&["h"]);
    terminal.wait(&["this help", "Ctrl-Z suspends"]);
    terminal.press(&["x"]);
    terminal.press(&[">", "r"]);
    for (value, shown) in [("quick", "codec: "), ("lz4", "codec = lz4")] {
        terminal.press(&["c"]);
        terminal.wait(&["Change a setting", "codec of hog"]);
        terminal.fill_in(value);
        terminal.press(&["y"]);
        terminal.wait(&[shown]);
    }
    assert_eq!(stdout_of(&["ctl", &pid, "get", "codec"]), "lz4\n");
    terminal.press(&["m"]);
    terminal.wait(&["memory of the tree"]);
    terminal.fill_in("48M");
    terminal.press(&["n"]);
    terminal.wait(&["memory was not changed"]);
    assert_eq!(stdout_of(&["ctl", &program.supervisor(), "get", "memory"]), "32M\n");
    terminal.press(&["m"]);
    terminal.fill_in("99999G");
    terminal.press(&["y"]);
    terminal.wait(&["memory 99999G is "]);
    terminal.tmux(&["resize-window", "-x", "30", "-y", "8"]);
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    terminal.wait(&["softswap top: 1 tree", "STALL%"]);
    terminal.press(&["q"]);
    terminal.expect_left(0);
}

#[test]
fn exited_tree_stays_on_screen() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let program = Program::under_pressure(&[]);
    let pid: i32 = program.pid().parse().unwrap();
    terminal.top(&softswap(), &pid.to_string());
    terminal.wait(&["STALL%", "awake"]);
    send(pid, libc::SIGKILL);
    terminal.wait(&["has ended", "- of 32.0 MiB", "ended", "out -", "0 processes"]);
    assert!(!terminal.screen().contains("awake"), "{}", terminal.screen());
    terminal.press(&["m"]);
    terminal.wait(&["this tree has exited"]);
    terminal.press(&["C-c"]);
    terminal.expect_left(0);
}

#[test]
fn sleeping_process_is_shown_and_signal_restores_terminal() {
    let Some(terminal) = Terminal::open(100, 30) else { return };
    let mut sleeper = softswap_with(&["run", "--memory", "64M", "--", "sleep", "1000"]);
    let sleeper = Running::start(&mut sleeper);
    eventually("the program", || !children(sleeper.id()).is_empty());
    terminal.top(&softswap(), &sleeper.id().to_string());
    terminal.wait(&["0 awake, 1 asleep", "sleep 1000", "asleep: its memory fits its budget"]);
    terminal.press(&["c"]);
    terminal.wait(&["so it has no settings yet"]);
    send(terminal.pid_of_top(), libc::SIGTERM);
    terminal.expect_left(0);
}

#[test]
fn top_exits_without_terminal() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let program = Program::under_pressure(&[]);
    terminal.top(&softswap(), &program.supervisor());
    terminal.wait(&["STALL%", "awake"]);
    let top = terminal.pid_of_top();
    drop(terminal);
    eventually("the exit of top", || stat_of(top).is_none());
}

#[test]
fn progress_line_is_shown_only_on_terminal() {
    let Some(terminal) = Terminal::open(130, 30) else { return };
    let (softswap, hog) = (softswap(), compiled("hog"));
    let (softswap, hog) = (softswap.display(), hog.display());
    let options = "-q --progress --reserve 0 --memory 32M";
    let run = format!("{softswap} run {options} -- {hog} --mib 64 --seconds");
    terminal.command(&format!("clear; {run} 1000"));
    terminal.wait(&["of 32.0 MiB", "stalled", "on disk", "faults/s"]);
    terminal.press(&["C-c"]);
    terminal.command(&format!("clear; {run} 2 2>err >out; echo left $?"));
    terminal.wait(&["left 0\n"]);
    let screen = terminal.screen();
    assert!(!screen.contains("stalled"), "{screen}");
    let dir = terminal.variable("pane_current_path");
    assert_eq!(std::fs::read_to_string(Path::new(&dir).join("err")).unwrap(), "");
}

#[test]
fn progress_line_is_removed_at_exit() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let run = format!("{} run -q --progress --memory 64M -- sh -c", softswap().display());
    // Waits until at least `least` seconds have passed.
    let progress_seconds = |what: &str, least: u64| {
        wait_until("the progress line below the program's output", || {
            let screen = terminal.screen();
            let (before, line) = screen.split_once("softswap: ").ok_or_else(|| screen.clone())?;
            // The line is at the right, below the program's own line.
            let is_below = before.trim_end_matches(' ').ends_with(&format!("{what}\n"));
            assert!(!line.contains("softswap: "), "{screen}");
            let seconds = line.split_once(" s, ").and_then(|(seconds, _)| seconds.parse().ok());
            let is_it = is_below && before.ends_with("    ");
            seconds.filter(|seconds| is_it && *seconds >= least).ok_or_else(|| screen.clone())
        })
    };
    terminal.command(&format!("clear; {run} 'printf 52730; read x; printf 43747072; read x'"));
    let seconds: u64 = progress_seconds("52730", 0);
    progress_seconds("52730", seconds + 3);
    terminal.press(&["Enter"]);
    // The terminal ended the line, and the program began the next one.
    progress_seconds("52730\n43747072", 0);
    terminal.press(&["Enter"]);
    terminal.command("echo left $?");
    let screen = terminal.wait(&["\nleft 0\n"]);
    assert!(!screen.contains("softswap: "), "{screen}");
    assert!(screen.contains("52730\n43747072\n"), "{screen}");
}

#[test]
fn full_screen_program_hides_progress_line() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let all = terminal.dir.path().join("all");
    let pipe = format!("cat > {}", all.display());
    terminal.tmux(&["pipe-pane", &pipe]);
    // The first second lets an update in progress finish.
    let script = "stty -icanon; sleep 1; echo be''gun; sleep 3; echo ov''er; stty icanon; \
                  sleep 1000";
    let run = format!("{} run -q --progress --memory 64M", softswap().display());
    terminal.command(&format!("clear; {run} -- sh -c \"{script}\""));
    terminal.wait(&["over", "softswap: "]);
    let written = wait_for("the program's output", || {
        let written = std::fs::read_to_string(&all).ok()?;
        written.rsplit_once("over\r\n").is_some_and(|it| it.1.contains(" s, ")).then_some(written)
    });
    let (_, meanwhile) = written.split_once("begun\r\n").unwrap();
    let (meanwhile, _) = meanwhile.split_once("over\r\n").unwrap();
    assert_eq!(meanwhile, "");
    terminal.press(&["C-c"]);
}

#[test]
fn top_stops_and_continues_by_signal() {
    let Some(terminal) = Terminal::open(80, 24) else { return };
    let program = Program::under_pressure(&[]);
    terminal.command(&format!("clear; {} top {}", softswap().display(), program.supervisor()));
    terminal.wait(&["STALL%", "awake"]);
    let top = terminal.pid_of_top();
    for by_key in [false, true] {
        match by_key {
            true => terminal.press(&["C-z"]),
            false => send(top, libc::SIGTSTP),
        }
        eventually("the terminal's own screen", || terminal.variable("alternate_on") == "0");
        terminal.command("echo here; stty -a | grep -o ' -\\?icanon '");
        let screen = terminal.wait(&["\nhere\n icanon"]);
        assert!(!screen.contains("STALL%"), "{screen}");
        assert_eq!(terminal.variable("cursor_flag"), "1");
        terminal.command("clear; fg");
        terminal.wait(&["STALL%", "awake"]);
        assert_eq!(
            (terminal.variable("alternate_on"), terminal.variable("cursor_flag")),
            ("1".into(), "0".into())
        );
    }
    terminal.press(&["h"]);
    terminal.wait(&["this help"]);
    terminal.press(&["x", "q"]);
    // Input typed before the exit would go to `top`.
    eventually("the exit of top", || terminal.variable("alternate_on") == "0");
    terminal.command("echo left; stty -a | grep -o ' -\\?echo '");
    terminal.wait(&["\nleft\n echo"]);
}

#[test]
fn top_reports_why_it_cannot_run() {
    if let Some(terminal) = Terminal::open(100, 30) {
        terminal.command(&format!("clear; TERM=dumb {} top; echo left $?", softswap().display()));
        let parts = ["TERM names a terminal without one", "prints figures each second", "left 1\n"];
        terminal.wait(&parts);
    }
    refused(&["top"], 1, &["needs a terminal", "softswap stat PID"]);
    let Some(terminal) = Terminal::open(100, 30) else { return };
    terminal.top(&softswap(), &std::process::id().to_string());
    terminal.wait(&["is not managed by softswap; start it with `softswap run`", "left 1"]);
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    copy_binaries(dir.path());
    let program = Program::under_pressure(&[]);
    let text = format!(
        "#!/bin/sh\nexec setpriv --reuid={UNUSED_UID} --regid={UNUSED_UID} --clear-groups {} \"$@\"\n",
        dir.path().join("softswap").display()
    );
    let lonely = script(dir.path(), "lonely", &text);
    terminal.top(&lonely, &program.pid());
    terminal.wait(&["belongs to uid 0; run this command as that user, or as root", "left 1"]);
    terminal.top(&lonely, "");
    terminal.wait(&["No program of yours runs under softswap"]);
    terminal.press(&["Escape"]);
    terminal.expect_left(0);
}

#[test]
fn stopped_run_clears_progress_line() {
    let Some(terminal) = Terminal::open(100, 24) else { return };
    let run = format!("{} run -q --progress --memory 64M -- sh -c", softswap().display());
    terminal.command(&format!("clear; {run} 'read x'"));
    terminal.wait(&["softswap: ", " s, "]);
    terminal.press(&["C-z"]);
    let screen = terminal.wait(&["Stopped"]);
    assert!(!screen.contains("softswap: "), "{screen}");
    terminal.command("fg");
    terminal.wait(&["softswap: "]);
    terminal.press(&["Enter"]);
    terminal.command("echo left $?");
    let screen = terminal.wait(&["\nleft 0\n"]);
    assert!(!screen.contains("softswap: "), "{screen}");
}
