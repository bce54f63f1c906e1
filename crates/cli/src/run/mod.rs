//! `softswap run`: resolves the settings, starts and supervises the program, prints the summary.

mod options;
mod remote;
pub(crate) mod sourced;
pub(crate) mod auto_memory;
pub(crate) mod areas;
mod tables;
mod advertised;
mod unknown_variables;
pub(crate) mod resolve;
mod sanitized;
pub(crate) mod program;
pub(crate) mod outside_budget;
mod release;
mod parking;
mod tree;
mod raw_watch;
mod tree_areas;
mod tree_sums;
mod history;
mod progress;
mod thrashing;
mod log;
pub(crate) mod unmanaged;
mod checks;
mod supervise;
pub(crate) mod figures;
mod killed;
mod report;

pub(crate) use options::RunArgs;

use crate::output::print_message;
use crate::output_file::OutputFile;
use crate::refusal::{OrRefuse, Refusal, plain};
use crate::tree_peaks::TreePeaks;
use crate::{control_client, library, machine};
use checks::{Found, Supervised};
use resolve::Resolved;
use softswap_engine::api::settings::{Config, ENV_PREFIX, MIN_MEMORY_BYTES, bases};
use softswap_engine::base::stats::{STATS_WORDS, Stats};
use softswap_sys::aslr::Bases;
use softswap_view::report::{OutsideBudget, Report};
use softswap_view::summary;
use softswap_view::units::{self, Amount};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use supervise::{Ending, Finished};
use tree_areas::{TreeAreas, start_helpers};

/// Checks a value that another run will use.
pub(crate) fn check_memory(text: &str) -> Result<(), String> {
    match (auto_memory::Bounds::parse(text), units::parse_amount(text)) {
        (Some(bounds), _) => bounds.map(drop),
        (None, Ok(Amount::Bytes(bytes))) if bytes < MIN_MEMORY_BYTES => Err(format!(
            "too little: the engine needs at least {} of DRAM",
            units::bytes(MIN_MEMORY_BYTES)
        )),
        (None, amount) => amount.map(drop),
    }
}

/// Checks a value that another run will use. Returns it with an absolute path.
pub(crate) fn absolute_area(text: &str) -> Result<String, String> {
    areas::parse(text)?;
    if areas::is_url(text) {
        return Ok(text.into());
    }
    // Options follow the path, so the text is absolute if the path is.
    let absolute = std::path::absolute(text).map_err(|error| plain(&error))?;
    Ok(absolute.to_string_lossy().into_owned())
}

/// The files and samples that get the figures of a run.
struct Outputs {
    reports: Vec<OutputFile>,
    log: Option<log::Log>,
    samples: history::Samples,
    is_quiet: bool,
    verbose: bool,
}

impl Outputs {
    /// Opens the files before the program starts, so that an unwritable path is refused early.
    fn open(args: &RunArgs, resolved: &Resolved) -> Result<Outputs, Refusal> {
        let Resolved { ref config, verbose, .. } = *resolved;
        let reports = report::open_all(&resolved.reports, resolved.log.as_deref())?;
        let before = || log::before(args, report::settings(config));
        let log = resolved.log.as_deref().map(|path| log::Log::open(path, before())).transpose()?;
        let samples = history::Samples::new(!config.quiet || !reports.is_empty());
        Ok(Outputs { reports, log, samples, is_quiet: config.quiet, verbose })
    }

    /// Completes the figures, prints them, and writes the files.
    fn end(mut self, mut figures: Report, stats: &Stats, oom_kills: &killed::OomKills) {
        self.log.iter_mut().for_each(|log| log.end(stats, &figures.outcome, figures.tree.as_ref()));
        figures.history = self.samples.end(stats, figures.tree.as_ref());
        let outside = figures.outside_budget.as_ref();
        let outside_bytes = outside.map_or(0, OutsideBudget::undroppable_bytes);
        figures.largest_budget_bytes = Some(oom_kills.fitting_bytes(outside_bytes) >> 20 << 20);
        if let Some(why) = killed::explain(&figures, outside_bytes, oom_kills) {
            print_message(&format!("softswap: {why}"));
        }
        if !self.is_quiet {
            let summary = summary::text(&figures, self.verbose);
            // An error, such as a closed pipe, must not change the program's exit status.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), summary.as_bytes());
        }
        self.reports.into_iter().for_each(|file| report::write(file, &figures));
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Refusal> {
    let mut resolved = resolve::resolve(args, |name| std::env::var(name).ok())?;
    let program = program::find(&args.program[0])?;
    let library = library::find()?;
    let sanitizer = sanitized::sanitizer_of(&program);
    resolved.notes.extend(sanitizer.map(|found| sanitized::note(&args.program[0], found)));
    let remotes = std::mem::take(&mut resolved.common.remotes);
    let helpers = start_helpers(remotes, &mut resolved.notes)?;
    let mut outputs = Outputs::open(args, &resolved)?;
    if !resolved.config.quiet {
        print_notes(&resolved.notes);
    }

    let (stats_fd, words) = softswap_sys::shared::create(STATS_WORDS)
        .or_own("cannot create the shared memory for counters")?;
    let mut config = resolved.config;
    config.stats_fd = Some(stats_fd.as_raw_fd());
    config.supervisor_pid = i32::try_from(std::process::id()).ok();
    config.bases = Some(addresses());
    let (auto, parks_on_stop) = (resolved.auto, resolved.parks_on_stop);
    let make_tree = || tree::Tree::make(config.memory_bytes, auto, config.turns, parks_on_stop);
    let mut tree = (!resolved.is_per_process).then(make_tree).transpose()?;
    config.ledger_fd = tree.as_ref().map(tree::Tree::number);
    let stats = Stats::new(words);
    let mut areas = TreeAreas::make(resolved.common.named, helpers, &mut config, &stats)?;
    let mut command = Command::new(&program);
    command.arg0(&args.program[0]).args(&args.program[1..]);
    set_environment(&mut command, sanitizer.is_none().then_some((&config, &library)));

    let oom_kills = killed::OomKills::read();
    let started = Instant::now();
    let mut space = release::Space::of(&config.areas);
    let supervised = Supervised {
        stats,
        stats_fd: stats_fd.as_fd(),
        space: &mut space,
        tree: tree.as_mut(),
        areas: &mut areas,
        samples: &mut outputs.samples,
        log: outputs.log.as_mut(),
        progress: progress::Wanted::of(resolved.progress, config.quiet),
        is_quiet: config.quiet,
        is_all_managed: config.manage_children && sanitizer.is_none(),
        largest_budget_bytes: oom_kills.fitting_bytes(0),
    };
    let Finished { ending, found, signals } = supervise::run(command, supervised)?;
    let wall = started.elapsed();
    let peaks = tree.map(tree::Tree::end);
    control_client::sweep();
    space.wait_until_free(&stats);
    areas.release();
    let mut figures = closing_figures(args, &config, &stats, ending, wall, found, peaks);
    figures.usable_bytes = Some(resolved.usable_bytes);
    outputs.end(figures, &stats, &oom_kills);
    match ending {
        Ending::Exited(status) => Ok(ExitCode::from(status)),
        Ending::Killed(signal) => signals.die_by(signal),
    }
}

fn print_notes(notes: &[String]) {
    for note in notes.iter().chain(&control_client::note()) {
        print_message(&format!("softswap: note: {note}"));
    }
}

/// A nested run uses the outer run's addresses, because it inherits the outer seccomp filter. They
/// are read from /proc: the runtime has removed the variable from `environ`.
fn addresses() -> Bases {
    let this = control_client::Process::read(std::process::id());
    let variable =
        |name: &str| this.as_ref()?.variable(&format!("{ENV_PREFIX}{name}"))?.into_string().ok();
    bases(&variable).unwrap_or_else(Bases::choose)
}

/// The runtime must parse no text written by the user, so it gets the resolved configuration.
/// `managed` is `None` for a program without the runtime.
fn set_environment(command: &mut Command, managed: Option<(&Config, &Path)>) {
    library::remove_variables(command);
    // Only the helpers need the password.
    command.env_remove(softswap_remote::secret::VARIABLE);
    let Some((config, library)) = managed else {
        library::remove_preload(command);
        return;
    };
    let variables = config.to_env().into_iter();
    command.envs(variables.map(|(name, value)| (format!("{ENV_PREFIX}{name}"), value)));
    command.env("LD_PRELOAD", library::preloading(library));
}

fn closing_figures(
    args: &RunArgs,
    config: &Config,
    stats: &Stats,
    ending: Ending,
    wall: Duration,
    found: Found,
    peaks: Option<TreePeaks>,
) -> Report {
    let mut figures = figures::gather(
        args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        figures::outcome_of(ending),
        wall,
        config.memory_bytes,
        stats,
        found.outside_budget,
    );
    if let Some(peaks) = peaks {
        figures.budget_bytes = peaks.tree.budget_bytes;
        figures.budget_peak_bytes = peaks.tree.budget_peak_bytes;
        // The tree itself is only reported if it had other processes than the program.
        figures.tree = (!peaks.is_of_one()).then_some(peaks.tree);
    }
    figures.cpu_s = control_client::cpu_s_of_children();
    figures.threads_peak = found.threads_peak;
    figures.unmanaged = found.unmanaged.filter(|it| it.processes > 0);
    figures.advertised_bytes = Some(config.advertised_bytes);
    figures.settings = report::settings(config);
    figures.machine = Some(machine::describe());
    figures
}
