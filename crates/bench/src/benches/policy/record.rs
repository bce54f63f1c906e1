//! `softswap bench record`: records a program's touches as traces for `bench policy`.

use super::recorded::convert::convert;
use super::recorded::{Event, Recorded};
use crate::measure::managed_program::managed;
use crate::measure::task_pipe::signals;
use clap::Args;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_cli::{library, units};
use softswap_engine::api::settings::{AreaSpec, Config, MIN_MEMORY_BYTES, PoolLimit};
use softswap_engine::base::stats::Counter;
use softswap_engine::codec::Choice;
use softswap_engine::policy::mechanism::{Mechanism, Without};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus};
use std::time::Duration;

/// Mechanisms that would hide touches.
const OFF: [Mechanism; 6] = [
    Mechanism::RefaultDistance,
    Mechanism::Readahead,
    Mechanism::FaultReadahead,
    Mechanism::OffsetPrefetch,
    Mechanism::FaultAround,
    Mechanism::Standby,
];

const INTERVAL: Duration = Duration::from_millis(20);

/// Record which pages a program touches.
///
/// For developers. The program runs with so little memory that only touches of the last few MiB are
/// missing. Programs that it starts are not recorded.
#[derive(Args)]
pub(crate) struct RecordArgs {
    /// The file for the trace
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// A directory on a disk for the program's pages and the recording
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Touches to skip; the trace begins with the pages that exist after them
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,

    /// Touches that the trace has at most; then the program is killed
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    most: usize,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn config(swap: &Path, recording: &Path) -> Config {
    Config {
        memory_bytes: MIN_MEMORY_BYTES,
        areas: vec![AreaSpec::new(swap)],
        pool: PoolLimit::Percent(0),
        codec: Choice::Fixed(None),
        encrypt: false,
        manage_children: false,
        without: OFF.into_iter().fold(Without::default(), Without::and),
        record: recording.to_string_lossy().into_owned(),
        ..Config::default()
    }
}

pub(crate) fn run(args: &RecordArgs) -> Result<ExitCode, Refusal> {
    let recording = args.swap.join(format!("softswap-recording-{}", std::process::id()));
    let found = record(args, &recording);
    let _ = std::fs::remove_file(&recording);
    let trace = found?;
    let written = trace.to_bytes().and_then(|bytes| {
        std::fs::write(&args.out, &bytes)?;
        Ok(bytes.len())
    });
    let bytes = written.or_usage(format!("{}: cannot be written", args.out.display()))?;
    let touches = trace.events.iter().filter(|event| matches!(event, Event::Touch { .. })).count();
    println!(
        "{}: {} touches of {} pages, {} bytes",
        args.out.display(),
        units::count(touches as u64),
        units::count(trace.pages.into()),
        units::count(bytes as u64)
    );
    Ok(ExitCode::SUCCESS)
}

fn record(args: &RecordArgs, recording: &Path) -> Result<Recorded, Refusal> {
    let config = config(&args.swap, recording);
    let (counters, mut command) = managed(&args.program[0], &config, &library::find()?)?;
    command.args(&args.program[1..]);
    let signals = signals()?;
    signals.prepare(&mut command, &[counters.fd()]);
    let name = args.program[0].to_string_lossy();
    let mut child = command.spawn().or_usage(format!("{name}: cannot be run"))?;
    let status = wait_for(&mut child, recording, args.skip.saturating_add(args.most));
    let status = status.or_own("cannot wait for the program")?;
    counters.expect_engine()?;
    if counters.stats.get(Counter::PagesReadAhead) != 0 {
        return Err(Refusal::own(
            "pages were read ahead, so the trace would lack touches: it is not stored; please \
             report this",
        ));
    }
    if status.is_some_and(|status| !status.success()) {
        return Err(Refusal::own("the program failed, so the trace is not stored"));
    }
    let words = File::open(recording).ok().map(words);
    let trace = words.and_then(|words| convert(words, args.skip, args.most));
    trace.ok_or_else(|| {
        Refusal::own(
            "the engine has recorded no touches; choose a program that uses more than 8 MiB",
        )
    })
}

/// Kills the program after `touches` touches, and returns `None`.
fn wait_for(child: &mut Child, recording: &Path, touches: usize) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let count = File::open(recording).ok().and_then(|file| words(file).nth(1)).unwrap_or(0);
        // A second event may follow a touch, with its page's content.
        if count / 2 > touches as u64 {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(INTERVAL);
    }
}

fn words(file: File) -> impl Iterator<Item = u64> {
    let mut reader = BufReader::new(file);
    std::iter::from_fn(move || {
        let mut word = [0; 8];
        let read: io::Result<()> = reader.read_exact(&mut word);
        read.ok().map(|()| u64::from_le_bytes(word))
    })
}
