//! `softswap ctl`: the settings of a running program.

use crate::control_client::{self, Process};
use crate::output::{print, print_message};
use crate::populate;
use crate::refusal::{FAILED, Refusal};
use crate::run::auto_memory::note_on_excess;
use crate::tree_report::{Parking, TreeReport};
use clap::{Args, Subcommand};
use softswap_engine::api::control_protocol::{Request, pairs};
use softswap_engine::api::live_settings::LIVE_SETTINGS;
use softswap_engine::api::settings::ENV_PREFIX;
use softswap_sys::memory_limits;
use softswap_view::units::{parse_size, visible};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

const PARK_INTERVAL: Duration = Duration::from_millis(50);

/// Read and change settings of a program that runs under softswap.
///
/// PID is that of a process, or of `softswap run`: then `memory` and `turns`
/// apply to the tree, and the other settings to the program that it has
/// started. A change takes effect with the next page and lasts until the program
/// exits. Programs that it starts do not inherit it.
#[derive(Args)]
#[command(after_long_help = after_help())]
pub(crate) struct CtlArgs {
    /// The process
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i32::MAX.into()))]
    pid: u32,

    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print a setting's value, or all settings
    #[command(after_long_help = "\
Examples:
  softswap ctl 4711 get
  softswap ctl 4711 get memory")]
    Get {
        /// The setting
        key: Option<String>,
    },
    /// Change a setting, and print it
    #[command(after_long_help = "\
Examples:
  softswap ctl 4711 set memory 700M
  softswap ctl 4711 set io.poll hybrid")]
    Set {
        /// The setting
        key: String,
        /// New value
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Swap memory in for a debugger or profiler, which cannot read swapped-out pages
    ///
    /// One request swaps in at most a quarter of the budget: `touched` is the length of that part.
    /// `all-stacks` swaps in 256 KiB of the stack of each waiting thread.
    #[command(after_long_help = "\
Examples:
  softswap ctl 4711 populate 0x7f5a3c000000 1048576
  softswap ctl 4711 populate all-stacks")]
    Populate {
        /// The first address, such as 0x7f0000001000, or all-stacks
        #[arg(value_parser = populate::from, value_name = "ADDRESS")]
        from: populate::From,
        /// The length in bytes; not with all-stacks
        #[arg(value_parser = populate::number)]
        len: Option<usize>,
    },
    /// Pause a program and all that it has started, and free their DRAM
    ///
    /// PID is that of `softswap run`. While their page faults wait, the processes write all of
    /// their memory to the swap areas; then they are stopped. These stay in DRAM: memory outside
    /// the budget, and that of forked children and their parents, of programs with seccomp filters
    /// of their own, of processes that were stopped before, of sleeping processes up to 64 MiB, and
    /// of a program that sleeps alone in a fixed budget.
    #[command(after_long_help = "\
Examples:
  softswap ctl 4711 park")]
    Park,
    /// Continue a parked program, and swap in what was in DRAM before
    #[command(after_long_help = "\
Examples:
  softswap ctl 4711 unpark")]
    Unpark,
}

fn after_help() -> String {
    let mut text = "\
Settings of a tree, with the PID of `softswap run` (`pgrep -x softswap`):
  memory          the DRAM budget of the tree: a size such as 700M; auto if it was started with
                  `--memory auto`
  turns           turns of the processes if the tree thrashes: auto or off

Settings of a process; with the PID of `softswap run`, of the program that it has started:
"
    .to_string();
    for setting in &LIVE_SETTINGS {
        let _ = writeln!(text, "  {:<15} {}: {}", setting.key, setting.meaning, setting.values);
    }
    text + "\n\
Examples:
  softswap ctl 4711 set memory 700M
  softswap ctl 4711 get
  softswap ctl 4711 park

Exit status: 0 if done, 1 if the program cannot be reached, 2 for an unknown key or an\n\
            invalid value; then nothing is changed."
}

/// Settings of the program, printed after those of its tree.
fn of_program(supervisor: &Process, request: &Request<'_>) -> String {
    let answer = control_client::query_program_of(supervisor, request);
    let body = answer.map_or_else(String::new, |(_, body)| body);
    let others = pairs(&body).filter(|(key, _)| !control_client::OF_TREE.contains(key));
    others.map(|(key, value)| format!("{key} {value}\n")).collect()
}

fn park(pid: u32) -> Result<String, Refusal> {
    control_client::query(pid, &Request::Park)?;
    loop {
        std::thread::sleep(PARK_INTERVAL);
        let (_, body) = control_client::query(pid, &Request::Stat)?;
        match TreeReport::parse(&body).and_then(|report| report.parked) {
            Some(parked) if parked.progress == Parking::Stopped => {
                return Ok(format!("{}\n", parked.for_people()));
            }
            Some(_) => {}
            None => {
                let why = format!("process {pid}: its tree was continued meanwhile");
                return Err(Refusal::new(FAILED, why));
            }
        }
    }
}

/// Refuses requests for a whole tree if `pid` is one of its processes.
fn check_is_tree(pid: u32, action: &Action) -> Result<(), Refusal> {
    let what = match action {
        Action::Park | Action::Unpark => "a tree is parked as a whole",
        Action::Set { key, .. } if key == "memory" => "it shares the budget of its tree",
        _ => return Ok(()),
    };
    let is_managed = |it: &Process| !it.is_softswap() && it.is_managed() == Some(true);
    let Some(process) = Process::read(pid).filter(is_managed) else { return Ok(()) };
    let variable = |name: &str| process.variable(&format!("{ENV_PREFIX}{name}"));
    let Some(supervisor) = variable("SUPERVISOR_PID") else { return Ok(()) };
    let remedy = match (variable("LEDGER_FD"), action) {
        (Some(_), _) => format!("give the PID of `softswap run`: {}", supervisor.display()),
        (None, Action::Set { .. }) => return Ok(()),
        (None, _) => "start it without --memory-per-process".to_string(),
    };
    Err(Refusal::usage(format!("process {pid}: {what}; {remedy}")))
}

pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    LIVE_SETTINGS.iter().map(|setting| setting.key).chain(["turns"])
}

/// Otherwise the program would refuse the setting, without naming those of the tree.
fn check_key_of_tree(pid: u32, key: &str) -> Result<(), Refusal> {
    let keys: Vec<&str> = keys().collect();
    let is_supervisor = Process::read(pid).is_some_and(|process| process.is_softswap());
    if key.is_empty() || keys.contains(&key) || !is_supervisor {
        return Ok(());
    }
    let near = keys.iter().find(|known| strsim::damerau_levenshtein(known, key) <= 2);
    let remedy = match near {
        Some(near) => format!("did you mean {near}?"),
        None => format!("the settings are {}", keys.join(", ")),
    };
    Err(Refusal::usage(format!("process {pid}: there is no setting {key:?}; {remedy}")))
}

pub(crate) fn note_if_too_large(pid: u32, process: &Process, text: &str) -> Option<String> {
    let budget_bytes = parse_size(text).ok()?;
    let members = match process.is_softswap() {
        true => {
            let (_, body) = control_client::query(process.pid, &Request::Stat).ok()?;
            TreeReport::parse(&body)?.processes.iter().map(|member| member.pid).collect()
        }
        false => vec![process.pid],
    };
    let resident: u64 = members.into_iter().filter_map(control_client::anonymous_bytes).sum();
    // The memory that the program has counts as available to it.
    let mut available = memory_limits::available_to(process.pid);
    available.bytes = (available.bytes + resident).min(available.capacity_bytes);
    let remedy = |mib| format!("`softswap ctl {pid} set memory {mib}M`");
    note_on_excess(&format!("memory {text}"), budget_bytes, &available, remedy)
}

pub(crate) fn ctl(args: &CtlArgs) -> Result<ExitCode, Refusal> {
    check_is_tree(args.pid, &args.action)?;
    if let Action::Get { key: Some(key) } | Action::Set { key, .. } = &args.action {
        check_key_of_tree(args.pid, key)?;
    }
    let request = match &args.action {
        Action::Get { key } => Request::Get(key.as_deref()),
        Action::Set { key, value } => Request::Set(key, value),
        Action::Populate { from, len } => {
            print(&populate::populate(args.pid, *from, *len)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        Action::Park => {
            print(&park(args.pid)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        Action::Unpark => Request::Unpark,
    };
    let (process, mut body) = control_client::query(args.pid, &request)?;
    if matches!(request, Request::Get(None)) {
        body.push_str(&of_program(&process, &request));
    }
    let mut text = String::new();
    for (key, value) in pairs(&body) {
        let _ = match request {
            Request::Get(Some(_)) => writeln!(text, "{}", visible(value)),
            _ => writeln!(text, "{} = {}", visible(key), visible(value)),
        };
    }
    if !text.is_empty() {
        print(&text)?;
    }
    if let Request::Set("memory", value) = request
        && let Some(note) = note_if_too_large(args.pid, &process, value)
    {
        print_message(&format!("softswap: note: {note}"));
    }
    Ok(ExitCode::SUCCESS)
}
