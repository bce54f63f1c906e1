//! Programs that cannot be executed are refused with a shell's exit status and the reason.

use crate::common::area::succeeds;
use crate::common::{
    self, EMPTY_PROGRAM, as_unprivileged, compile, is_root, run, script, set_mode, skip,
};
use std::path::Path;
use std::process::Command;

fn assert_refused(command: &mut assert_cmd::Command, status: i32, parts: &[&str]) {
    let text = common::assert_refused(command, status, parts);
    assert!(text.starts_with("softswap: "), "{text}");
}

fn refused(program: impl AsRef<Path>, status: i32, parts: &[&str]) {
    let swap = tempfile::tempdir().unwrap();
    assert_refused(run(swap.path()).arg("--").arg(program.as_ref()), status, parts);
}

#[test]
fn missing_program_exits_127() {
    refused("no-such-program-here", 127, &["no-such-program-here", "PATH", "install"]);
    refused("/no/such/program", 127, &["/no/such/program", "no such program"]);
    refused("", 127, &["empty"]);
}

#[test]
fn non_executable_file_exits_126() {
    let dir = tempfile::tempdir().unwrap();
    let file = script(dir.path(), "data", "text\n");
    set_mode(&file, 0o644);
    refused(&file, 126, &["data", "not executable", "chmod +x"]);
    refused(dir.path(), 126, &["is a directory"]);
    refused(script(dir.path(), "noise", "\x01\0\x02"), 126, &["exec format error"]);
}

#[test]
fn non_executable_file_in_path_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    set_mode(&script(dir.path(), "some-data", "text\n"), 0o644);
    let mut command = run(dir.path());
    command.env("PATH", dir.path()).args(["--", "some-data"]);
    assert_refused(&mut command, 126, &["some-data", "not executable"]);
}

#[test]
fn script_with_missing_interpreter_exits_126() {
    let dir = tempfile::tempdir().unwrap();
    let path = script(dir.path(), "lost", "#!/no/such/interpreter -x\n");
    refused(path, 126, &["lost", "/no/such/interpreter", "first line"]);
}

#[test]
fn static_program_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("cc", dir.path(), "fixed", EMPTY_PROGRAM, &["-static"]) else {
        return skip("no static C library");
    };
    refused(&program, 126, &["fixed", "statically linked", "preloading", "-static"]);
    let through = script(dir.path(), "through", &format!("#!{}\n", program.display()));
    refused(through, 126, &["through", "its interpreter", "statically linked"]);
}

#[test]
fn static_program_without_glibc_is_distinguished() {
    let dir = tempfile::tempdir().unwrap();
    let reason = "statically linked without glibc, as with musl";
    let parts = ["alone", reason, "x86_64-unknown-linux-gnu"];
    let start = "void _start(void) { for (;;); }\n";
    for (compiler, source, options) in
        [("cc", start, &["-static", "-nostdlib"][..]), ("musl-gcc", EMPTY_PROGRAM, &["-static"])]
    {
        match compile(compiler, dir.path(), "alone", source, options) {
            Some(program) => refused(program, 126, &parts),
            None => skip(&format!("no {compiler}")),
        }
    }
}

#[test]
fn go_program_is_recognised_by_its_note() {
    let dir = tempfile::tempdir().unwrap();
    // The build ID note of Go's linker, without a Go toolchain.
    let source = r#"
__asm__(".section .note.go.buildid, \"a\", @note\n.long 4, 4, 4\n.asciz \"Go\"\n"
        ".byte 0\n.ascii \"abcd\"\n.text\n.globl _start\n_start: jmp _start\n");
"#;
    let parts = ["gopher", "is a Go program", "CGO_ENABLED=1"];
    let options = ["-static", "-nostdlib"];
    let Some(program) = compile("cc", dir.path(), "gopher", source, &options) else {
        return skip("no C compiler");
    };
    refused(&program, 126, &parts);
    let main = dir.path().join("main.go");
    std::fs::write(&main, "package main\nfunc main() {}\n").unwrap();
    let mut go = Command::new("go");
    go.args(["build", "-ldflags=-s -w"]).env("CGO_ENABLED", "0").env("HOME", dir.path());
    go.env("GOFLAGS", "-mod=mod").env("GOCACHE", dir.path().join("cache"));
    match succeeds(go.arg("-o").arg(&program).arg(&main)) {
        true => refused(&program, 126, &parts),
        false => skip("no Go compiler"),
    }
}

#[test]
fn program_for_another_libc_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let musl = ["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"];
    let Some(program) = compile("cc", dir.path(), "other", EMPTY_PROGRAM, &musl) else {
        return skip("no C compiler");
    };
    refused(program, 126, &["other", "musl", "glibc build"]);
}

#[test]
fn setuid_program_is_rejected() {
    if is_root() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("raised");
        std::fs::copy("/bin/true", &program).unwrap();
        std::os::unix::fs::chown(&program, Some(crate::common::UNPRIVILEGED_UID), None).unwrap();
        set_mode(&program, 0o4755);
        return refused(
            &program,
            126,
            &["raised", "setuid", "65534", "ignores", "copy without the setuid bit"],
        );
    }
    let candidates = ["/usr/bin/passwd", "/usr/bin/su", "/bin/su", "/usr/bin/mount"];
    let is_setuid = |path: &&&str| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o4000 != 0)
    };
    if rustix::thread::no_new_privs().unwrap_or(false) {
        return skip("set-user-id has no effect under no_new_privs");
    }
    match candidates.iter().find(is_setuid) {
        Some(program) => refused(program, 126, &["setuid", "ignores", "copy"]),
        None => skip("no setuid program here"),
    }
}

#[test]
fn program_with_file_capabilities_is_rejected_for_users() {
    if !is_root() {
        return skip("only root can give a file capabilities");
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("capable");
    std::fs::copy("/bin/true", &program).unwrap();
    set_mode(&program, 0o755);
    // Version 2 with the effective flag; CAP_NET_BIND_SERVICE permitted.
    let words: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&program, "security.capability", &bytes, flags).is_err() {
        return skip("the file system keeps no capabilities");
    }
    let swap = tempfile::tempdir().unwrap();
    set_mode(swap.path(), 0o777);
    let mut command = as_unprivileged(dir.path());
    command.args(["run", "--reserve", "0", "--swap"]).arg(swap.path()).arg("--").arg(&program);
    assert_refused(
        &mut command,
        126,
        &["capable", "file capabilities", "copy without the capabilities"],
    );
}
