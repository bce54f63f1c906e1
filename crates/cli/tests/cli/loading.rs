//! Loading the runtime into programs: other preloaded libraries, deep-bound plug-ins, sanitizers,
//! and programs' exits.

use crate::common::{compile, is_installed, script, skip};
use crate::support::control_client::wait_until;
use crate::support::{Ended, Running, Swapped, finish, softswap_with};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Programs {
    dir: tempfile::TempDir,
}

macro_rules! source {
    ($name:literal) => {
        include_str!(concat!("../../../../tests/loading/", $name, ".c"))
    };
}

impl Programs {
    fn new() -> Programs {
        Programs { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn try_to_compile(&self, source: &str, name: &str, options: &[&str]) -> bool {
        let options = [&["-O1", "-pthread"][..], options].concat();
        compile("gcc", self.dir.path(), name, source, &options).is_some()
    }

    fn compile(&self, source: &str, name: &str, options: &[&str]) -> PathBuf {
        assert!(self.try_to_compile(source, name, options), "{name} does not compile");
        self.path(name)
    }
}

fn plainly(program: &Path, words: &[&str]) -> Ended {
    finish(Command::new(program).args(words))
}

fn managed(options: &[&str], program: &Path, words: &[&str]) -> Ended {
    finish(softswap_with(&["run", "-q"]).args(options).arg("--").arg(program).args(words))
}

fn observed(ended: &Ended) -> String {
    format!("{}{}", ended.stdout_text(), ended.status)
}

/// Compares runs with ample memory, with little memory, and started awake.
fn expect_equal(program: &Path, words: &[&str]) {
    let plain = plainly(program, words);
    for options in
        [["--memory", "256M"].as_slice(), &["--memory", "24M"], &["--memory=24M", "--awake"]]
    {
        let ended = managed(options, program, words);
        assert_eq!(observed(&ended), observed(&plain), "{options:?}: {}", ended.stderr);
    }
}

#[test]
fn heap_overrun_does_not_prevent_exit() {
    let programs = Programs::new();
    let overrun = programs.compile(source!("overrun"), "overrun", &["-O0"]);
    expect_equal(&overrun, &[]);
    let script = format!("{}; true", overrun.display());
    let options = ["--memory=24M", "--children=plain"];
    let ended = managed(&options, Path::new("sh"), &["-c", &script]);
    assert_eq!(ended.stdout_text(), "ok\n", "{}", ended.stderr);
}

#[test]
fn allocator_may_precede_in_fixed_position_executable() {
    let programs = Programs::new();
    let fixed = programs.compile(source!("fixed"), "fixed", &["-no-pie", "-fno-pie", "-O1"]);
    let wrapper = programs.compile(source!("wrapper"), "wrapper.so", &["-shared", "-fPIC", "-ldl"]);
    // Like the start scripts of profilers and allocators.
    let (wrapper, fixed) = (wrapper.display(), fixed.display());
    let text =
        format!("#!/bin/sh\nLD_PRELOAD={wrapper}${{LD_PRELOAD:+:$LD_PRELOAD}} exec {fixed}\n");
    let start = script(programs.dir.path(), "start", &text);
    expect_equal(Path::new("/bin/sh"), &[start.to_str().expect("a path")]);
}

#[test]
fn calls_of_deep_bound_library_reach_runtime() {
    let programs = Programs::new();
    let plugin = "softswap-test-deep-plugin.so";
    programs.compile(source!("deep_plugin"), plugin, &["-shared", "-fPIC"]);
    // The library is only in the caller's own search path.
    let options = ["-ldl", "-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags"];
    let deep = programs.compile(source!("deep"), "deep", &options);
    expect_equal(&deep, &[]);
}

/// A thread that blocks the engine's signals would keep the engine from starting.
#[test]
fn plug_in_may_create_threads_bypassing_runtime() {
    let programs = Programs::new();
    let options = ["-shared", "-fPIC", "-ldl"];
    let plugin = programs.compile(source!("own_thread_plugin"), "plugin.so", &options);
    let program = programs.compile(source!("own_thread"), "own_thread", &["-ldl"]);
    let plugin = plugin.to_str().expect("a path");
    expect_equal(&program, &[plugin]);
    let report = Swapped::within("24M").run(&program, &[plugin]);
    assert!(report.figure("pages_out") > 0, "{}", report.figures);
}

/// heaptrack's library starts such a thread.
#[test]
fn threads_of_constructors_use_managed_memory() {
    let programs = Programs::new();
    let options = ["-shared", "-fPIC", "-pthread"];
    let library = programs.compile(source!("early_thread_library"), "libearly.so", &options);
    let search = format!("-Wl,-rpath,{}", programs.dir.path().display());
    let options = [library.to_str().expect("a path"), &search];
    let program = programs.compile(source!("early_thread"), "early_thread", &options);
    expect_equal(&program, &[]);
    let report = Swapped::within("24M").run::<&str>(&program, &[]);
    assert!(report.figure("pages_out") > 0, "{}", report.figures);
}

#[test]
fn program_functions_may_call_library_aliases() {
    let programs = Programs::new();
    let program = programs.compile(source!("forwarder"), "forwarder", &["-rdynamic", "-ldl"]);
    expect_equal(&program, &[]);
}

/// This also holds for a sleeping process, and for linked and opened libraries.
#[test]
fn memory_of_inline_syscalls_is_managed() {
    const RESIDENT_MIB: &str = "40";
    let programs = Programs::new();
    let unwinder = ["-Wl,--no-as-needed", "-lgcc_s"];
    let library = [["-shared", "-fPIC"], unwinder].concat();
    let library = programs.compile(source!("inline_calls"), "libinline.so", &library);
    let library = library.to_str().expect("a path");
    let search = format!("-Wl,-rpath,{}", programs.dir.path().display());
    let linked = ["-Wl,--no-as-needed", library, &search, "-ldl"];
    let linked = programs.compile(source!("inline_user"), "linked", &linked);
    let opens = programs.compile(source!("inline_user"), "opens", &["-ldl"]);
    for (program, name) in [(&linked, ""), (&opens, library)] {
        expect_equal(program, &[name]);
        let plain = plainly(program, &[name]);
        let ended = managed(&["--memory", "24M"], program, &[name, RESIDENT_MIB]);
        assert_eq!(observed(&ended), observed(&plain), "{name}: {}", ended.stderr);
    }
}

#[test]
fn sanitized_programs_report_the_same_errors() {
    let programs = Programs::new();
    for options in [
        ["-fsanitize=address"].as_slice(),
        &["-fsanitize=thread"],
        &["-fsanitize=thread", "-static-libtsan"],
        &["-fsanitize=leak"],
    ] {
        let name = options.concat();
        if programs.try_to_compile(source!("sanitized"), &name, options) {
            expect_as_plainly(&programs.path(&name));
        } else {
            skip(&format!("gcc has no {options:?}"));
        }
    }
}

/// Also compares a program that a managed shell starts.
fn expect_as_plainly(program: &Path) {
    for words in [[].as_slice(), &["freed"]] {
        let plain = plainly(program, words);
        let script = format!("{} {}; exit $?", program.display(), words.join(" "));
        let itself = managed(&["--memory=64M"], program, words);
        let started = managed(&["--memory=64M", "--awake"], Path::new("/bin/sh"), &["-c", &script]);
        for ended in [itself, started] {
            let stderr = &ended.stderr;
            assert_eq!(observed(&ended), observed(&plain), "{program:?} {words:?}: {stderr}");
            let has_report = |ended: &Ended| ended.stderr.contains("SUMMARY: ");
            assert_eq!(has_report(&ended), has_report(&plain), "{}", ended.stderr);
        }
    }
}

struct Target {
    running: Running,
    /// PID; address and length of the data, and of a part of the stack.
    words: Vec<String>,
}

impl Target {
    fn start(programs: &Programs) -> Target {
        let target = programs.compile(source!("target"), "target", &["-g"]);
        let file = programs.path("words");
        let mut command = softswap_with(&["run", "-q", "--memory", "24M", "--"]);
        let mut running = Running::start(command.arg(target).arg(&file));
        wait_until("the target's words", || {
            assert!(!running.has_ended(), "{}", running.stderr_so_far());
            if file.exists() { Ok(()) } else { Err(running.stderr_so_far()) }
        });
        let text = std::fs::read_to_string(&file).expect("the target's words");
        Target { running, words: text.split_whitespace().map(str::to_string).collect() }
    }

    fn words(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }
}

#[test]
fn process_vm_readv_faults_in_remote_pages() {
    let programs = Programs::new();
    let mut target = Target::start(&programs);
    let reader = programs.compile(source!("reader"), "reader", &[]);
    // The kernel by itself reads resident pages only.
    let alone = plainly(&reader, &target.words());
    assert!(!alone.stdout_text().starts_with("unread 0,"), "{}", alone.stdout_text());
    for options in [["--memory", "64M"].as_slice(), &["--memory=64M", "--awake"]] {
        let ended = managed(options, &reader, &target.words());
        let expected = "unread 0, wrong 0, nowhere -1 Bad address\n";
        assert_eq!(ended.stdout_text(), expected, "{options:?}: {}", ended.stderr);
    }
    assert!(!target.running.has_ended(), "{}", target.running.stderr_so_far());
}

#[test]
fn memory_is_faulted_in_on_request_up_to_quarter_of_budget() {
    let programs = Programs::new();
    let target = Target::start(&programs);
    let [pid, address, len, ..] = target.words()[..] else { panic!("{:?}", target.words) };
    let populate = |len: &str| {
        finish(&mut softswap_with(&["ctl", pid, "populate", address, len])).stdout_text()
    };
    assert_eq!(populate("0x10000"), "touched = 65536\n");
    assert_eq!(populate(len), format!("touched = {}\n", 6 << 20));
    for wrong in ["all-stacks", "stacks"] {
        let ended = finish(&mut softswap_with(&["ctl", pid, "populate", wrong, "1"]));
        assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    }
}

#[test]
fn stacks_in_managed_memory_are_faulted_in_on_request() {
    let programs = Programs::new();
    let target = Target::start(&programs);
    let [pid, _, _, stack, len] = target.words()[..] else { panic!("{:?}", target.words) };
    let reader = programs.compile(source!("reader"), "reader", &[]);
    let read = || plainly(&reader, &[pid, stack, len]).stdout_text();
    assert!(!read().starts_with("unread 0,"), "the stack was not swapped out");
    let ended = finish(&mut softswap_with(&["ctl", pid, "populate", "all-stacks"]));
    assert!(ended.stdout_text().starts_with("stacks = "), "{}", ended.stderr);
    assert!(read().starts_with("unread 0, wrong 0,"), "{}: {}", ended.stdout_text(), read());
}

#[test]
fn gdb_reads_swapped_out_memory() {
    let programs = Programs::new();
    let mut target = Target::start(&programs);
    let script = programs.path("libsoftswap.so-gdb.py");
    std::fs::write(&script, include_str!("../../../../packaging/libsoftswap.so-gdb.py"))
        .expect("the script for gdb");
    // The last byte of page 77. gdb splits arguments at blanks.
    let page = "data[319487]";
    let source = format!("source {}", script.display());
    let bring_in = format!("softswap-in &{page} 1");
    let print = format!("print {page}");
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch", "-p", &target.words[0]]);
    for command in [&source, &bring_in, &print] {
        gdb.args(["-ex", command]);
    }
    if !is_installed("gdb") {
        return;
    }
    let ended = finish(&mut gdb);
    if ended.stderr.contains("ptrace: ") || ended.stderr.contains("Python") {
        return skip(&format!("gdb cannot attach, or has no Python: {}", ended.stderr));
    }
    assert!(ended.stdout_text().contains("= 77 'M'"), "{}\n{}", ended.stdout_text(), ended.stderr);
    assert!(!target.running.has_ended(), "{}", target.running.stderr_so_far());
}
