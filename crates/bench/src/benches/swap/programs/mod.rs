//! Whole programs: preparation and runs.

use crate::measure::managed_program::{Counters, read_into_page_cache};
use crate::measure::noise::noise;
use crate::measure::options::Named;
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use softswap_cli::control_client::{Process, cpu_s_of_children};
use softswap_cli::refusal::{OrRefuse, plain};
use softswap_sys::child::SignalQueue;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(5);
const MAX_RUN_TIME: Duration = Duration::from_secs(900);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Program {
    /// A large numeric sort in Python
    NumericSort,
    /// An analysis of an SQLite database in memory
    Sqlite,
    /// GNU sort of long lines that have words in common, in memory
    GnuSort,
    /// GNU sort of random text, in memory
    TextSort,
    /// A hash join, in C
    HashJoin,
    /// A random walk over a graph, in C
    GraphWalk,
}

#[derive(Clone)]
pub(crate) struct Ready {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// Read into the page cache before every run.
    pub(crate) input: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgramRun {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) digest: u64,
    pub(crate) peak_bytes: u64,
}

impl Program {
    /// Prepares the program to use about `bytes`. Fails if this machine lacks a requirement.
    pub(crate) fn make_ready(self, dir: &Path, bytes: u64) -> Result<Ready, String> {
        let ready = |path, arguments, input| Ready { name: self.name(), path, arguments, input };
        let goal = OsString::from(bytes.to_string());
        Ok(match self {
            Program::NumericSort => {
                let (python, script) = numeric_sort()?;
                ready(python, vec!["-c".into(), script.into(), goal], None)
            }
            Program::Sqlite => {
                let script = include_str!("database.py").into();
                ready(python()?, vec!["-c".into(), script, goal], None)
            }
            Program::GnuSort | Program::TextSort => {
                let input = dir.join(self.name());
                let file = File::create_new(&input).or_text(input.display())?;
                let write = if self == Program::GnuSort { write_lines } else { write_text };
                write(BufWriter::new(file), bytes).or_text(input.display())?;
                ready(gnu_sort()?, sort_arguments(&input, bytes), Some(input))
            }
            Program::HashJoin => {
                ready(compiled(dir, "hash_join", include_str!("hash_join.c"))?, vec![goal], None)
            }
            Program::GraphWalk => {
                let path = compiled(dir, "graph_walk", include_str!("graph_walk.c"))?;
                // Few enough steps for a disk to serve them in seconds.
                let steps = (bytes / 8192).to_string();
                ready(path, vec![goal, steps.into()], None)
            }
        })
    }
}

impl Ready {
    /// Returns `None` if the program has no option for threads.
    pub(super) fn on_threads(&self, threads: u32) -> Option<Ready> {
        let is_parallel = |a: &OsString| a.to_str().is_some_and(|a| a.starts_with(PARALLEL));
        let at = self.arguments.iter().position(is_parallel)?;
        let mut ready = self.clone();
        ready.arguments[at] = format!("{PARALLEL}{threads}").into();
        Some(ready)
    }

    /// Adds the arguments, LC_ALL and the standard streams to `command`.
    pub(crate) fn run(
        &self,
        mut command: Command,
        signals: &SignalQueue,
        counters: &Counters,
    ) -> Result<ProgramRun, String> {
        if let Some(input) = &self.input {
            read_into_page_cache(input)?;
        }
        command.args(&self.arguments).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        signals.prepare(&mut command, &[counters.fd()]);
        let (start, cpu_before) = (Instant::now(), cpu_s_of_children());
        let mut child = command.spawn().map_err(|error| plain(&error))?;
        let (exited, wait) = channel::<()>();
        let (pid, id) = (Pid::from_child(&child), child.id());
        let watch = std::thread::spawn(move || {
            let mut peak_bytes = peak_of(id);
            while wait.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                peak_bytes = peak_bytes.max(peak_of(id));
                if start.elapsed() > MAX_RUN_TIME {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            peak_bytes
        });
        let ended = output_and_status(&mut child);
        let seconds = start.elapsed().as_secs_f64();
        drop(exited);
        let peak_bytes = watch.join().unwrap_or(0);
        let (digest, status) = ended.map_err(|error| plain(&error))?;
        let cpu_seconds = cpu_s_of_children().zip(cpu_before).map_or(0.0, |(now, then)| now - then);
        match status.success() {
            true => Ok(ProgramRun { seconds, cpu_seconds, digest, peak_bytes }),
            false if seconds > MAX_RUN_TIME.as_secs_f64() => {
                Err(format!("it was killed after {} s", MAX_RUN_TIME.as_secs()))
            }
            false => Err(format!("it failed: {status}")),
        }
    }
}

fn output_and_status(child: &mut Child) -> io::Result<(u64, std::process::ExitStatus)> {
    let (mut hasher, mut room) = (DefaultHasher::new(), vec![0; 1 << 16]);
    if let Some(mut output) = child.stdout.take() {
        loop {
            match output.read(&mut room)? {
                0 => break,
                count => hasher.write(&room[..count]),
            }
        }
    }
    Ok((hasher.finish(), child.wait()?))
}

fn peak_of(pid: u32) -> u64 {
    let resident = Process::read(pid).and_then(|process| process.resident);
    resident.map_or(0, |resident| resident.peak_bytes)
}

/// python3 on PATH may be a wrapper script, so this returns the interpreter itself.
fn python() -> Result<PathBuf, String> {
    const REMEDY: &str = "install it (`apt install python3`)";
    let script = "import os, sys; print(os.path.realpath(sys.executable))";
    let output = Command::new("python3").args(["-c", script]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("python3: {}; {REMEDY}", plain(&error)))?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => Err(format!("python3 does not print its path; {REMEDY}")),
        path => Ok(path.into()),
    }
}

pub(crate) fn numeric_sort() -> Result<(PathBuf, &'static str), String> {
    Ok((python()?, include_str!("numbers.py")))
}

fn gnu_sort() -> Result<PathBuf, String> {
    let output = Command::new("sort").arg("--version").stdin(Stdio::null()).output();
    if !String::from_utf8_lossy(&output.or_text("sort")?.stdout).contains("GNU coreutils") {
        return Err("the sort here is not GNU's; install coreutils".into());
    }
    Ok("sort".into())
}

/// sort needs about 80 bytes more for each line.
const LINE_BYTES: u64 = 1024;
const BYTES_PER_LINE: u64 = LINE_BYTES + 80;

fn write_lines(mut file: BufWriter<File>, bytes: u64) -> io::Result<()> {
    let shared = "and words that all lines share ".repeat(31);
    for number in noise(11).take((bytes / BYTES_PER_LINE) as usize) {
        let text = format!("{number:016x} {:016x} {shared}", number.rotate_left(7));
        writeln!(file, "{text:width$.width$}", width = LINE_BYTES as usize - 1)?;
    }
    file.flush()
}

/// Memory of sort for such a line: the line and 60 bytes (measured).
const BYTES_PER_TEXT_LINE: u64 = TEXT_LINE_BYTES + 60;
const TEXT_LINE_BYTES: u64 = 41;

/// Half of each byte is random, so zstd compresses the lines and LZ4 does not.
fn write_text(mut file: BufWriter<File>, bytes: u64) -> io::Result<()> {
    let mut digits = noise(12);
    for number in 0..bytes / BYTES_PER_TEXT_LINE {
        let [upper, lower] = [(); 2].map(|()| digits.next().unwrap_or(number));
        writeln!(file, "{upper:016x}{lower:016x} {number}")?;
    }
    file.flush()
}

const PARALLEL: &str = "--parallel=";

/// The buffer is large enough that sort needs no temporary files.
fn sort_arguments(input: &Path, bytes: u64) -> Vec<OsString> {
    let dir = input.parent().unwrap_or(Path::new("/"));
    vec![
        format!("--buffer-size={}b", bytes * 2).into(),
        format!("{PARALLEL}2").into(),
        "--temporary-directory".into(),
        dir.into(),
        input.into(),
    ]
}

pub(crate) fn compiled(dir: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let (path, source) = (dir.join(name), dir.join(format!("{name}.c")));
    fs::write(&source, text).or_text(source.display())?;
    let output = Command::new("gcc").args(["-O2", "-o"]).args([&path, &source]).output();
    let output = output.map_err(|error| {
        format!("gcc: {}; install it (`apt install gcc libc6-dev`)", plain(&error))
    })?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("gcc: {}", errors.lines().next().unwrap_or("it failed")));
    }
    Ok(path)
}
