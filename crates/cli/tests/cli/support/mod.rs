//! Helpers for tests of whole programs.

pub(crate) mod cgroup;
pub(crate) mod control_client;
pub(crate) mod processes;
pub(crate) mod raw_image;
pub(crate) mod steady;
pub(crate) mod tree;

use crate::common::{bin_dir, set_mode};
use control_client::{stdout_of, wait_until};
use processes::waits_of;
use serde_json::Value;
pub(crate) use softswap_testkit::random::mix64;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Only serves to detect hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(1500);

/// softswap refuses a cluster whose servers are slow, for example because of other load.
pub(crate) const TOO_SLOW: &str = "ms to read a page (median of";

pub(crate) fn softswap() -> PathBuf {
    let dir = bin_dir();
    for name in ["softswap", "libsoftswap.so"] {
        assert!(
            dir.join(name).is_file(),
            "{} is missing: run `cargo build --workspace` first",
            dir.join(name).display()
        );
    }
    dir.join("softswap")
}

pub(crate) fn sources() -> PathBuf {
    directory("SOFTSWAP_SOURCE_DIR", "../../tests/programs")
}

pub(crate) fn directory(variable: &str, in_source_tree: &str) -> PathBuf {
    let given = std::env::var_os(variable).map(PathBuf::from);
    given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(in_source_tree))
}

pub(crate) fn programs_in(dir: &Path) -> BTreeSet<String> {
    let files = std::fs::read_dir(dir).expect("the test programs").flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    names.filter_map(|name| Some(name.strip_suffix(".c")?.to_string())).collect()
}

/// Compiles `tests/programs/<name>.c` once per test executable.
pub(crate) fn compiled(name: &str) -> PathBuf {
    compiled_from(&sources(), name, name)
}

pub(crate) fn compiled_from(source_dir: &Path, name: &str, executable: &str) -> PathBuf {
    static DONE: OnceLock<Mutex<HashMap<String, PathBuf>>> = OnceLock::new();
    // Another program's compilation may have failed.
    let mut done = DONE.get_or_init(Mutex::default).lock().unwrap_or_else(|p| p.into_inner());
    if let Some(path) = done.get(executable) {
        return path.clone();
    }
    let own_tree = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = match std::env::var_os("SOFTSWAP_BIN_DIR") {
        None if own_tree.is_dir() => own_tree.to_path_buf(),
        _ => {
            let user = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("softswap-tests-{user}"))
        }
    };
    std::fs::create_dir_all(&dir).expect("a directory for compiled programs");
    let path = dir.join(executable);
    // Another test executable may be running the old file.
    let fresh = dir.join(format!("{executable}.{}", std::process::id()));
    let source = source_dir.join(format!("{name}.c"));
    if is_newer_than_sources(&path, source_dir, &source) {
        done.insert(executable.to_string(), path.clone());
        return path;
    }
    let place: &[&str] = if name.ends_with("_fixed") { &["-fno-pie", "-no-pie"] } else { &[] };
    let compiler = Command::new("gcc")
        .args(place)
        .args(["-O2", "-pthread", "-I"])
        .arg(sources())
        .arg("-o")
        .args([&fresh, &source])
        .args(["-ldl", "-lrt"])
        .output()
        .expect("gcc is installed");
    let errors = String::from_utf8_lossy(&compiler.stderr);
    assert!(compiler.status.success(), "{} does not compile:\n{errors}", source.display());
    std::fs::rename(&fresh, &path).expect("the compiled program");
    done.insert(executable.to_string(), path.clone());
    path
}

fn is_newer_than_sources(path: &Path, source_dir: &Path, source: &Path) -> bool {
    let changed = |path: &Path| std::fs::metadata(path).and_then(|it| it.modified()).ok();
    let Some(compiled) = changed(path) else { return false };
    let dirs = [source_dir.to_path_buf(), sources()];
    let files = dirs.iter().flat_map(std::fs::read_dir).flatten().flatten();
    let headers =
        files.map(|file| file.path()).filter(|it| it.extension().is_some_and(|it| it == "h"));
    headers.chain([source.to_path_buf()]).all(|it| changed(&it).is_some_and(|it| it < compiled))
}

/// The `python3` on PATH may be a wrapper script.
pub(crate) fn python() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        let script = "import os, sys; print(os.path.realpath(sys.executable))";
        let output = Command::new("python3").args(["-c", script]).output().expect("python3");
        PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
    };
    FOUND.get_or_init(find).clone()
}

pub(crate) fn script(script: &str, arguments: &[&str]) -> Vec<OsString> {
    // -B writes no cache files in the source directory.
    let mut all = vec!["-B".into(), sources().join(script).into_os_string()];
    all.extend(arguments.iter().map(OsString::from));
    all
}

pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn expect_success(&self, what: &str) {
        assert!(
            self.status.success(),
            "{what}: {}\n--- end of stdout\n{}\n--- stderr\n{}",
            self.status,
            tail(&self.stdout_text()),
            tail(&self.stderr)
        );
    }

    pub(crate) fn expect_failure(&self, what: &str) {
        assert!(!self.status.success(), "{what}: success\n--- stderr\n{}", tail(&self.stderr));
    }

    /// Test programs print `ok …` last, after comparing all data.
    pub(crate) fn expect_ok(&self, what: &str) {
        self.expect_success(what);
        let stdout = self.stdout_text();
        let last = stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with("ok "), "{what}: the last line is not `ok ...`: {last:?}");
    }
}

fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(4000);
    let start = (start..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    &text[start..]
}

/// Killed with its process group on drop. Output is written to unlinked files, so no reader is
/// needed while the program runs.
pub(crate) struct Running {
    child: Child,
    stdout: File,
    stderr: File,
    name: String,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        let stdout = tempfile::tempfile().expect("a temporary file");
        let stderr = tempfile::tempfile().expect("a temporary file");
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().expect("a descriptor"))
            .stderr(stderr.try_clone().expect("a descriptor"));
        let name = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Running { child, stdout, stderr, name }
    }

    pub(crate) fn id(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn stdout_so_far(&self) -> Vec<u8> {
        read_all(&self.stdout)
    }

    pub(crate) fn stderr_so_far(&self) -> String {
        String::from_utf8_lossy(&read_all(&self.stderr)).into_owned()
    }

    pub(crate) fn has_printed(&self, line: &str) -> bool {
        String::from_utf8_lossy(&self.stdout_so_far()).lines().any(|it| it == line)
    }

    pub(crate) fn wait_for_output(&mut self, text: &str) {
        self.wait_for(&format!("output {text:?}"), |stdout| stdout.contains(text).then_some(()));
    }

    pub(crate) fn wait_for_line(&mut self, word: &str) -> String {
        self.wait_for(&format!("a line that begins with {word:?}"), |stdout| {
            let (lines, _) = stdout.rsplit_once('\n').unwrap_or_default();
            let rest = lines.lines().find_map(|line| line.strip_prefix(word));
            rest.map(|rest| rest.trim().to_string())
        })
    }

    fn wait_for<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        wait_until(what, || {
            // Checked before the output is read, for output written just before the exit.
            let has_ended = self.has_ended();
            let stdout = String::from_utf8_lossy(&self.stdout_so_far()).into_owned();
            let instead = || format!("{}: {stdout}\n{}", self.name, self.stderr_so_far());
            let found = find(&stdout);
            assert!(found.is_some() || !has_ended, "ended before {what}: {}", instead());
            found.ok_or_else(instead)
        })
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the state of a child").is_some()
    }

    pub(crate) fn finish(mut self, limit: Duration) -> Ended {
        let end = Instant::now() + limit;
        while !self.has_ended() {
            if Instant::now() > end {
                self.kill_group();
                panic!(
                    "{} did not exit within {limit:?}\n--- end of stdout\n{}\n--- stderr\n{}",
                    self.name,
                    tail(&String::from_utf8_lossy(&self.stdout_so_far())),
                    tail(&self.stderr_so_far()),
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self.child.wait().expect("the state of a child");
        Ended { status, stdout: self.stdout_so_far(), stderr: self.stderr_so_far() }
    }

    fn kill_group(&mut self) {
        processes::kill(-self.id());
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.child.try_wait().is_ok_and(|status| status.is_some()) {
            self.kill_group();
        }
    }
}

/// In a round the process blocks at most three times, and at most twice in a major fault.
pub(crate) fn wait_for_rounds(pid: i32, rounds: u64) {
    let (waits_before, faults_before) = waits_of(pid).expect("a process");
    wait_until("the process completes its rounds", || {
        let Some((waits, faults)) = waits_of(pid) else { panic!("process {pid} has exited") };
        let (waits, faults) = (waits - waits_before, faults - faults_before);
        let is_enough = waits >= rounds * 3 + faults * 2;
        let instead =
            || format!("the process has waited {waits} times, with {faults} major faults");
        is_enough.then_some(()).ok_or_else(instead)
    });
}

pub(crate) fn finish(command: &mut Command) -> Ended {
    Running::start(command).finish(LIMIT)
}

pub(crate) fn softswap_with(arguments: &[&str]) -> Command {
    let mut command = Command::new(softswap());
    command.args(arguments);
    command
}

pub(crate) fn number(variable: &str, by_default: u64) -> u64 {
    std::env::var(variable).map_or(by_default, |text| text.parse().expect(variable))
}

/// The directory is on a disk, for swap files.
pub(crate) fn disk_dir() -> TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a directory on a disk")
}

pub(crate) struct AreaFile {
    pub(crate) path: PathBuf,
    pub(crate) dir: TempDir,
}

impl AreaFile {
    pub(crate) fn new(mib: u64) -> AreaFile {
        let dir = disk_dir();
        let path = dir.path().join("swap");
        let file = File::create(&path).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, mib << 20).unwrap();
        set_mode(&path, 0o600);
        stdout_of(&["mkswap", path.to_str().unwrap()]);
        AreaFile { path, dir }
    }

    pub(crate) fn swapped(&self, memory: &str) -> Swapped {
        Swapped::within(memory).swap(self.path.display())
    }
}

fn read_all(file: &File) -> Vec<u8> {
    // The writer appends at the offset of the other open file description.
    std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("the output")
}

pub(crate) fn plain<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[A]) -> Ended {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(program);
    command.args(arguments).env("TMPDIR", dir.path());
    finish(&mut command)
}

pub(crate) struct Swapped {
    memory: String,
    is_per_process: bool,
    options: Vec<OsString>,
    cgroup: Option<cgroup::ControlGroup>,
    dir: TempDir,
}

pub(crate) struct Report {
    pub(crate) ended: Ended,
    pub(crate) figures: Value,
}

impl Swapped {
    pub(crate) fn within(memory: &str) -> Swapped {
        Swapped {
            memory: memory.to_string(),
            is_per_process: false,
            options: Vec::new(),
            cgroup: None,
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    pub(crate) fn per_process(mut self) -> Swapped {
        self.is_per_process = true;
        self
    }

    pub(crate) fn option(mut self, option: impl Into<OsString>) -> Swapped {
        self.options.push(option.into());
        self
    }

    pub(crate) fn options(mut self, options: &[&str]) -> Swapped {
        self.options.extend(options.iter().map(OsString::from));
        self
    }

    /// `area` is a path or URL, with its options.
    pub(crate) fn swap(self, area: impl Display) -> Swapped {
        self.option(format!("--swap={area}"))
    }

    pub(crate) fn in_group(mut self, group: cgroup::ControlGroup) -> Swapped {
        self.cgroup = Some(group);
        self
    }

    fn report_path(&self) -> PathBuf {
        self.dir.path().join("report.json")
    }

    pub(crate) fn command<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: &[A],
    ) -> Command {
        let mut command = cgroup::command_in(self.cgroup.as_ref(), softswap());
        let memory = if self.is_per_process { "--memory-per-process" } else { "--memory" };
        command
            .args(["run", memory, &self.memory, "--report"])
            .arg(self.report_path())
            .args(&self.options)
            .arg("--")
            .arg(program)
            .args(arguments)
            .env("TMPDIR", self.dir.path());
        command
    }

    /// The test program prints `ready`.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Running {
        let mut running = Running::start(&mut self.command(compiled(program), arguments));
        running.wait_for_line("ready");
        running
    }

    /// The program may exit with any status.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: &[A],
    ) -> Report {
        self.report_of(finish(&mut self.command(program, arguments)))
    }

    pub(crate) fn report_of(&self, ended: Ended) -> Report {
        let text = std::fs::read(self.report_path()).unwrap_or_default();
        let figures = serde_json::from_slice(&text).unwrap_or_else(|error| {
            panic!("no report ({error}); {}, stderr:\n{}", ended.status, ended.stderr)
        });
        Report { ended, figures }
    }

    /// The test program must print `ok`, evict pages and report no errors.
    pub(crate) fn run_ok(&self, program: &str, arguments: &[&str]) -> Report {
        let report = self.run(compiled(program), arguments);
        report.ended.expect_ok(program);
        report.expect_healthy(program);
        report
    }
}

impl Report {
    /// Flags are 0 or 1.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let value = &self.figures[name];
        value
            .as_u64()
            .or(value.as_bool().map(u64::from))
            .unwrap_or_else(|| panic!("the report has no figure {name:?}: {}", self.figures))
    }

    /// The engine must have evicted pages, kept the budget, and met no I/O error.
    pub(crate) fn expect_healthy(&self, what: &str) {
        assert_eq!(self.figure("engine_started"), 1, "{what}: ran without the engine");
        assert!(self.figure("pages_out") > 0, "{what}: no page was evicted: {}", self.figures);
        let (used, budget) = (self.figure("used_peak_bytes"), self.figure("budget_bytes"));
        assert!(used > 0 && used <= budget, "{what}: {used} bytes used of a budget of {budget}");
        for errors in ["read_errors", "write_errors", "checksum_errors"] {
            assert_eq!(self.figure(errors), 0, "{what}: {errors}");
        }
    }

    pub(crate) fn killed_by(&self) -> Option<i32> {
        self.ended.status.signal()
    }
}

pub(crate) fn write_random_lines(path: &Path, bytes: u64) {
    use std::io::Write;
    let mut file = std::io::BufWriter::with_capacity(1 << 20, File::create(path).expect("a file"));
    let mut written = 0;
    let mut state = 1;
    while written < bytes {
        state = mix64(state);
        // Records of 400 to 1040 characters that differ in the first ones.
        let (second, third) = (mix64(!state), mix64(state ^ 1));
        let rest = format!("{second:016x}{third:016x}").repeat(32);
        let line = format!("{state:016x}{:.*}\n", 384 + (state % 640) as usize, rest);
        file.write_all(line.as_bytes()).expect("space for random lines");
        written += line.len() as u64;
    }
    file.flush().expect("space for random lines");
}

/// Compares results with and without softswap.
pub(crate) fn compare_sort(swapped: &Swapped, bytes: u64) -> Report {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let [input, expected, got] = ["input", "expected", "got"].map(|name| dir.path().join(name));
    write_random_lines(&input, bytes);
    let arguments = |output: &Path| {
        let options = ["-S", "2G", "--parallel=2", "-T"].map(OsString::from);
        let paths = [dir.path(), Path::new("-o"), output, &input].map(OsString::from);
        options.into_iter().chain(paths).collect::<Vec<_>>()
    };
    let mut command = Command::new("sort");
    command.args(arguments(&expected)).env("LC_ALL", "C");
    finish(&mut command).expect_success("plain sort");

    let mut command = swapped.command("sort", &arguments(&got));
    command.env("LC_ALL", "C");
    let ended = finish(&mut command);
    ended.expect_success("sort under softswap");
    finish(Command::new("cmp").args([&expected, &got])).expect_success("cmp of both outputs");
    let report = swapped.report_of(ended);
    report.expect_healthy("sort");
    report
}
