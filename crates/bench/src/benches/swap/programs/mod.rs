//! Whole programs: what they are, what they need, and how they are made ready.

use clap::ValueEnum;
use serde::Serialize;
use softswap_cli::refusal::plain;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::measure::noise::noise;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
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

/// A program that can be started.
#[derive(Clone)]
pub(crate) struct Ready {
    pub(crate) program: Program,
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// What it reads; brought into the page cache before every run.
    pub(crate) input: Option<PathBuf>,
}

impl Program {
    pub(crate) const ALL: [Program; 6] = [
        Program::NumericSort,
        Program::Sqlite,
        Program::GnuSort,
        Program::TextSort,
        Program::HashJoin,
        Program::GraphWalk,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Program::NumericSort => "numeric_sort",
            Program::Sqlite => "sqlite",
            Program::GnuSort => "gnu_sort",
            Program::TextSort => "text_sort",
            Program::HashJoin => "hash_join",
            Program::GraphWalk => "graph_walk",
        }
    }

    /// Makes the program ready to take about `bytes`; what it needs goes to
    /// `dir`. Or says what is missing here.
    pub(crate) fn make_ready(self, dir: &Path, bytes: u64) -> Result<Ready, String> {
        let ready = |path, arguments, input| Ready { program: self, path, arguments, input };
        let goal = || OsString::from(bytes.to_string());
        Ok(match self {
            Program::NumericSort => {
                let script = include_str!("numbers.py");
                ready(python()?, vec!["-c".into(), script.into(), goal()], None)
            }
            Program::Sqlite => {
                let script = include_str!("database.py");
                ready(python()?, vec!["-c".into(), script.into(), goal()], None)
            }
            Program::GnuSort => {
                let input = dir.join("lines");
                write_lines(&input, bytes).map_err(|error| plain(&error))?;
                ready(gnu_sort()?, sort_arguments(&input, bytes), Some(input))
            }
            Program::TextSort => {
                let input = dir.join("text");
                write_text(&input, bytes).map_err(|error| plain(&error))?;
                ready(gnu_sort()?, sort_arguments(&input, bytes), Some(input))
            }
            Program::HashJoin => {
                let path = compiled(dir, "hash_join", include_str!("hash_join.c"), &[])?;
                ready(path, vec![goal()], None)
            }
            Program::GraphWalk => {
                let path = compiled(dir, "graph_walk", include_str!("graph_walk.c"), &[])?;
                // Few enough that a disk serves them in seconds.
                let steps = (bytes / 8192).to_string();
                ready(path, vec![goal(), steps.into()], None)
            }
        })
    }
}

impl Ready {
    /// The same on so many threads, if it can be told.
    pub(super) fn on_threads(&self, threads: u32) -> Option<Ready> {
        let asked =
            |argument: &OsString| argument.to_str().is_some_and(|a| a.starts_with(PARALLEL));
        let at = self.arguments.iter().position(asked)?;
        let mut ready = self.clone();
        ready.arguments[at] = format!("{PARALLEL}{threads}").into();
        Some(ready)
    }
}

/// The interpreter itself: what lies on PATH may be a script that looks for it.
fn python() -> Result<PathBuf, String> {
    const WAY_OUT: &str = "install it (`apt install python3`)";
    let script = "import os, sys; print(os.path.realpath(sys.executable))";
    let output = Command::new("python3").args(["-c", script]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("python3: {}; {WAY_OUT}", plain(&error)))?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => Err(format!("python3 does not say where it is; {WAY_OUT}")),
        path => Ok(path.into()),
    }
}

fn gnu_sort() -> Result<PathBuf, String> {
    let output = Command::new("sort").arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("sort: {}", plain(&error)))?;
    if !String::from_utf8_lossy(&output.stdout).contains("GNU coreutils") {
        return Err("the sort here is not GNU's; install coreutils".into());
    }
    Ok("sort".into())
}

/// A line has 1 KiB, and sort takes about 80 bytes more for it.
const LINE_BYTES: u64 = 1024;
const BYTES_PER_LINE: u64 = LINE_BYTES + 80;

/// Numbers without pattern and a text that all lines share.
fn write_lines(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create_new(path)?);
    let shared = "and words that all lines share ".repeat(31);
    for number in noise(11).take((bytes / BYTES_PER_LINE) as usize) {
        let text = format!("{number:016x} {:016x} {shared}", number.rotate_left(7));
        writeln!(file, "{text:width$.width$}", width = LINE_BYTES as usize - 1)?;
    }
    file.flush()
}

/// What sort takes for a line of random text, measured: the line, and 60 bytes to find it by.
const BYTES_PER_TEXT_LINE: u64 = TEXT_LINE_BYTES + 60;
const TEXT_LINE_BYTES: u64 = 41;

/// Random hexadecimal digits and the line's number: half of each byte is noise, which zstd
/// packs and LZ4 does not.
fn write_text(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create_new(path)?);
    let mut digits = noise(12);
    for number in 0..bytes / BYTES_PER_TEXT_LINE {
        let [upper, lower] = [(); 2].map(|()| digits.next().unwrap_or(number));
        writeln!(file, "{upper:016x}{lower:016x} {number}")?;
    }
    file.flush()
}

const PARALLEL: &str = "--parallel=";

/// With a buffer that holds everything, so that it needs no files of its own.
fn sort_arguments(input: &Path, bytes: u64) -> Vec<OsString> {
    let buffer = bytes * 2;
    let dir = input.parent().unwrap_or(Path::new("/"));
    vec![
        format!("--buffer-size={buffer}b").into(),
        format!("{PARALLEL}2").into(),
        "--temporary-directory".into(),
        dir.into(),
        input.into(),
    ]
}

/// A program, or a library (`flags`), of a text in C.
pub(crate) fn compiled(
    dir: &Path,
    name: &str,
    text: &str,
    flags: &[&str],
) -> Result<PathBuf, String> {
    let (path, source) = (dir.join(name), dir.join(format!("{name}.c")));
    std::fs::write(&source, text).map_err(|error| plain(&error))?;
    let output =
        Command::new("gcc").arg("-O2").args(flags).arg("-o").args([&path, &source]).output();
    let output = output.map_err(|error| {
        format!("gcc: {}; install it (`apt install gcc libc6-dev`)", plain(&error))
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("gcc: {}", said.lines().next().unwrap_or("it failed")));
    }
    Ok(path)
}
