//! Programs that managed programs start. A child is managed even if it clears or replaces
//! `LD_PRELOAD`, unless it cannot be (static, setuid).

use crate::common::{assert_contains_all, compile, is_installed, json_file, script, skip};
use crate::support::cgroup::{ControlGroup, command_in};
use crate::support::control_client::{eventually, try_stat};
use crate::support::{
    Ended, LIMIT, Running, Swapped, compiled, finish, plain, python, softswap, softswap_with,
    sources,
};
use std::process::Command;

const MANAGED: &str = r#"
import hashlib
block = bytearray(i * 167 % 251 for i in range(4096)) * (96 << 8)
print("managed" if "libsoftswap" in open("/proc/self/maps").read() else "UNMANAGED",
      hashlib.md5(block).hexdigest(), flush=True)
"#;

fn shell_command(options: &[&str], script: &str, arguments: &[&str]) -> Command {
    let mut command = softswap_with(&["run", "-q", "--memory", "48M"]);
    command.args(options).args(["--", "sh", "-c", script, "sh"]).args(arguments);
    command
}

fn shell(script: &str, arguments: &[&str]) -> Ended {
    finish(&mut shell_command(&[], script, arguments))
}

#[test]
fn child_without_environment_keeps_budget() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("managed.py");
    std::fs::write(&program, MANAGED).unwrap();
    let [python, program] = [python(), program].map(|path| path.display().to_string());
    let ways = [
        "export LD_PRELOAD=libm.so.6; \"$1\" \"$2\"",
        "LD_PRELOAD= \"$1\" \"$2\"",
        "env -u LD_PRELOAD \"$1\" \"$2\"",
        "env -i \"$1\" \"$2\"",
        "unset LD_PRELOAD; \"$1\" \"$2\"",
        "\"$1\" -c 'import subprocess, sys; subprocess.run(sys.argv[1:], env={})' \"$1\" \"$2\"",
        "\"$1\" -c 'import os, sys; os.execve(sys.argv[1], sys.argv[1:], {})' \"$1\" \"$2\"",
        "\"$1\" -c 'import os, sys; os.environ.clear(); os.system(\" \".join(sys.argv[1:]))' \
         \"$1\" \"$2\"",
        "\"$1\" -c 'import os, sys; sys.stdout.write(os.popen(\" \".join(sys.argv[1:])).read())' \
         \"$1\" \"$2\"",
    ];
    let expected = plain(&python, &[&program]).stdout_text().replace("UNMANAGED", "managed");
    for way in ways {
        // More than the budget and less than the program's memory.
        let group = ControlGroup::if_possible(96 << 20);
        let mut command = command_in(group.as_ref(), softswap());
        command.args(["run", "-q", "--memory", "48M", "--", "sh", "-c", way, "sh"]);
        let ended = finish(command.args([&python, &program]));
        ended.expect_success(way);
        assert_eq!(ended.stdout_text(), expected, "{way}");
    }
}

const EXECVEAT: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    char *none[] = {NULL};
    if (argc < 6)
        return 1;
    int at = open(argv[2], O_PATH), flags = atoi(argv[4]);
    if (!strcmp(argv[1], "function"))
        execveat(at, argv[3], argv + 5, none, flags);
    else
        syscall(SYS_execveat, at, argv[3], argv + 5, none, flags);
    return errno;
}
"#;

#[test]
fn child_of_execveat_keeps_budget() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", dir.path(), "execveat", EXECVEAT, &[]) else {
        return skip("the C library has no execveat");
    };
    let [managed, link] = ["managed.py", "link"].map(|name| dir.path().join(name));
    std::fs::write(&managed, MANAGED).unwrap();
    std::os::unix::fs::symlink(python(), &link).unwrap();
    let [program, managed, python] =
        [program, managed, python()].map(|path| path.display().to_string());
    let expected = plain(&python, &[&managed]).stdout_text().replace("UNMANAGED", "managed");
    let (directory, name) = python.rsplit_once('/').unwrap();
    let itself = libc::AT_EMPTY_PATH.to_string();
    for way in ["function", "call"] {
        for (at, path, flags) in [(directory, name, "0"), (&python[..], "", &itself[..])] {
            let ended = shell("exec \"$@\"", &[&program, way, at, path, flags, &python, &managed]);
            ended.expect_success(way);
            assert_eq!(ended.stdout_text(), expected, "{way} {at} {path}");
        }
        let (at, flags) = (dir.path().display().to_string(), libc::AT_SYMLINK_NOFOLLOW.to_string());
        let arguments: [&str; 7] = [&program, way, &at, "link", &flags, &python, &managed];
        let ended = shell("\"$@\"; echo $?", &arguments);
        assert_eq!(ended.stdout_text(), format!("{}\n", libc::ELOOP), "{way}: {}", ended.stderr);
    }
}

#[test]
fn message_names_program_that_cannot_start() {
    let swap = tempfile::tempdir().unwrap();
    let directory = swap.path().join("pages").display().to_string();
    std::fs::create_dir(&directory).unwrap();
    let way = "mv \"$1\" \"$1.moved\"; \"$2\" -c 'bytearray(100 << 20)'; exit $?";
    let python = python().display().to_string();
    let ended = finish(&mut shell_command(&["--swap", &directory], way, &[&directory, &python]));
    assert_eq!(ended.status.code(), Some(125), "{}", ended.stderr);
    assert_contains_all(&ended.stderr, &["softswap: cannot start python", "(pid ", &directory]);
}

#[test]
fn program_sees_only_user_variables() {
    let script = "env | grep -E 'LD_PRELOAD|SOFTSWAP_RT'; \
                  LD_PRELOAD=libutil.so.1:$LD_PRELOAD env | grep -E 'LD_PRELOAD|SOFTSWAP_RT'";
    let ended = finish(shell_command(&[], script, &[]).env("LD_PRELOAD", "libm.so.6"));
    let expected = "LD_PRELOAD=libm.so.6\nLD_PRELOAD=libutil.so.1:libm.so.6\n";
    assert_eq!(ended.stdout_text(), expected, "{}", ended.stderr);
    let script = r#"
import os
print(os.popen("env | grep -cE 'LD_PRELOAD|SOFTSWAP_RT'").read().strip())
os.environ["ADDED"] = "1"
print(os.popen("env | grep -E '^ADDED='").read().strip())
libc = __import__("ctypes").CDLL(None)
print(libc.getenv(b"SOFTSWAP_RT_MEMORY"), libc.getenv(b"LD_PRELOAD"))
"#;
    let ended = shell("\"$1\" -c \"$2\"", &[&python().display().to_string(), script]);
    assert_eq!(ended.stdout_text(), "0\nADDED=1\n0 0\n", "{}", ended.stderr);
}

#[test]
fn ld_preload_order_is_kept() {
    let script = "LD_PRELOAD=libutil.so.1:$LD_PRELOAD cat /proc/self/environ | tr '\\0' '\\n' | \
                  grep LD_PRELOAD";
    let ended = finish(shell_command(&[], script, &[]).env("LD_PRELOAD", "libm.so.6"));
    let preloaded = ended.stdout_text();
    let entries: Vec<_> = preloaded.trim().split(['=', ':']).collect();
    assert!(
        matches!(entries[..], ["LD_PRELOAD", "libutil.so.1", library, "libm.so.6"]
            if library.ends_with("/libsoftswap.so")),
        "{preloaded}"
    );
}

#[test]
fn children_plain_runs_children_unmanaged() {
    let count = "grep -c softswap-window /proc/self/maps; tr '\\0' '\\n' < /proc/self/environ | \
                 grep -c SOFTSWAP_RT_MEMORY=.";
    let switched_off = "SOFTSWAP_RT_MEMORY= cat /proc/self/environ | tr '\\0' '\\n' | \
                        grep -c SOFTSWAP_RT_MEMORY=.";
    let ended = shell(switched_off, &[]);
    assert_eq!(ended.stdout_text(), "0\n", "{}", ended.stderr);
    let options = ["--children", "plain"];
    let ended = finish(&mut shell_command(&options, "env -i sh -c \"$1\"", &[count]));
    assert_eq!(ended.stdout_text(), "0\n0\n", "{}", ended.stderr);
}

/// The C library closes these descriptors by instructions of its own.
#[test]
fn child_of_posix_spawn_with_closefrom_shares_the_budget() {
    let script = r#"
import ctypes, os, sys
c = ctypes.CDLL(None)
kept, closed, late = (os.open("/dev/null", os.O_RDONLY) for _ in range(3))
os.set_inheritable(kept, True)
os.set_inheritable(closed, True)
actions, pid = ctypes.create_string_buffer(256), ctypes.c_int()
c.posix_spawn_file_actions_init(actions)
c.posix_spawn_file_actions_adddup2(actions, 1, late)
c.posix_spawn_file_actions_addclosefrom_np(actions, closed)
child = """
import os, sys
for number in sys.argv[1:]:
    print(os.path.exists("/proc/self/fd/" + number))
block = bytearray(os.urandom(1 << 20)) * 64
print("libsoftswap" in open("/proc/self/maps").read(), flush=True)
"""
arguments = [sys.executable, "-c", child] + [str(number) for number in (kept, closed, late)]
argv = (ctypes.c_char_p * 7)(*[argument.encode() for argument in arguments], None)
environ = ctypes.c_void_p.in_dll(c, "environ")
failed = c.posix_spawn(ctypes.byref(pid), argv[0], actions, None, argv, environ)
print(failed, os.waitpid(pid.value, 0)[1])
"#;
    let ended = shell("\"$1\" -c \"$2\"", &[&python().display().to_string(), script]);
    assert_eq!(ended.stdout_text(), "True\nFalse\nFalse\nTrue\n0 0\n", "{}", ended.stderr);
    assert_eq!(ended.stderr, "");
}

#[test]
fn variables_of_mimalloc_do_not_reach_softswap() {
    let mut command = shell_command(&[], "echo done", &[]);
    let ended = finish(command.envs([("MIMALLOC_VERBOSE", "1"), ("MIMALLOC_SHOW_STATS", "1")]));
    assert_eq!((ended.stdout_text(), &ended.stderr[..]), ("done\n".into(), ""));
}

#[test]
fn program_with_foreign_loader_runs_unmanaged() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let bare = ["-static", "-nostdlib", "-ffreestanding"];
    let compile = |name: &str, source: &str, options: &[&str]| {
        let source = std::fs::read_to_string(sources().join(source)).unwrap();
        let options = [&["-O2", "-fno-stack-protector"][..], options].concat();
        compile("gcc", dir, name, &source, &options).expect("a program").display().to_string()
    };
    let loader = compile("ld-other-x86_64.so.1", "foreign_loader.c", &bare);
    let option = format!("-Wl,--dynamic-linker={loader}");
    let program = compile("program", "emulated.c", &[&option]);
    let script = script(dir, "script", &format!("#! {program} argument\n"));
    let python = python().display().to_string();
    for way in [
        "\"$1\"; echo $?",
        "env \"$1\"; echo $?",
        "\"$2\" -c 'import os, sys; print(os.waitstatus_to_exitcode(os.waitpid(\
         os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)[1]))' \"$1\"",
        "\"$2\" -c 'import os, sys; print(os.waitstatus_to_exitcode(os.waitpid(\
         os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ), 0)[1]))' \"$1\"",
    ] {
        for program in [&program, &script.display().to_string()] {
            let ended = shell(way, &[program, &python]);
            assert_eq!(ended.stdout_text(), "free\n7\n", "{way}: {}", ended.stderr);
            assert_eq!(ended.stderr, "", "{way}");
        }
    }
}

#[test]
fn unmanaged_child_is_reported_with_memory() {
    let dir = tempfile::tempdir().unwrap();
    let text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
                int main() { char *block = malloc(64 << 20); memset(block, 1, 64 << 20); \
                puts(\"ready\"); fflush(stdout); return getchar() == EOF ? block[5] - 1 : 2; }";
    let Some(program) = compile("gcc", dir.path(), "block", text, &["-static"]) else {
        return skip("no static C library is installed");
    };
    let [log, report] = ["log", "report.json"].map(|name| dir.path().join(name));
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut command = softswap_with(&["run", "--memory", "48M", "--log"]);
    command.arg(&log).arg("--report").arg(&report);
    command.args(["--", "sh", "-c", "\"$1\" < \"$2\"; exit $?", "sh"]).args([&program, &fifo]);
    let running = Running::start(&mut command);
    let input = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    eventually("the process and its memory", || {
        let stat = try_stat(&running.id().to_string()).unwrap_or_default();
        stat["tree"]["unmanaged"][0]["anonymous_bytes"].as_u64() >= Some(64 << 20)
    });
    drop(input);
    let ended = running.finish(LIMIT);
    ended.expect_success("block");
    let parts =
        ["note: block (pid ", "its managed memory fitted the budget", "  UNMANAGED  at most 64."];
    assert_contains_all(&ended.stderr, &parts);
    let report = json_file(&report);
    let largest = &report["unmanaged"]["largest"][0];
    assert_eq!(largest["name"], "block", "{report}");
    assert!(largest["anonymous_peak_bytes"].as_u64() >= Some(64 << 20), "{report}");
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("\"event\":\"unmanaged\"").count(), 1, "{log}");
}

#[test]
fn musl_program_runs_unmanaged() {
    if !is_installed("musl-gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "int puts(const char *); int main() { puts(\"musl\"); return 3; }";
    let program = compile("musl-gcc", dir.path(), "hello", source, &[]).expect("a program");
    let program = program.display().to_string();
    for children in ["managed", "plain"] {
        let options = ["--children", children];
        let ended = finish(&mut shell_command(&options, "\"$1\"; echo $?", &[&program]));
        assert_eq!(ended.stdout_text(), "musl\n3\n", "{children}");
        assert_eq!(ended.stderr, "", "{children}");
    }
}

const HAS_BUDGET: &str = r#"
block = bytearray(i * 167 % 251 for i in range(4096)) * (96 << 8)
rss = next(int(line.split()[1]) for line in open("/proc/self/status") if "RssAnon" in line)
print("managed" if rss < 80 << 10 else "unmanaged")
"#;

#[test]
fn program_under_emulator_runs_unmanaged() {
    let [emulated, python] = [compiled("emulated"), python()].map(|it| it.display().to_string());
    for mechanism in ["auto", "userfaultfd", "protection"] {
        for (words, expected) in [
            (&["emulator"][..], "unmanaged\n"),
            // Like a kernel without the system call.
            (&[], if mechanism == "userfaultfd" { "unmanaged\n" } else { "managed\n" }),
        ] {
            let program = [words, &[&python, "-c", HAS_BUDGET]].concat();
            let words = [&["-c", "\"$@\"", "sh", &emulated], &program[..]].concat();
            let run = Swapped::within("48M").options(&["--faults", mechanism]);
            let ended = run.run("sh", &words).ended;
            ended.expect_success(mechanism);
            assert_eq!(ended.stdout_text(), expected, "{mechanism}, {program:?}");
        }
    }
    if !is_installed("valgrind") {
        return;
    }
    let ended = shell("valgrind -q echo hi", &[]);
    ended.expect_success("valgrind");
    assert_eq!((ended.stdout_text().as_str(), ended.stderr.as_str()), ("hi\n", ""));
}
