//! `softswap doctor`: tests the features that softswap needs on this machine.

mod check;
mod seccomp_profile;
mod limits;
mod kernel;
mod cluster;
mod storage;

use crate::output;
use crate::refusal::Refusal;
use check::{Diagnosis, Status};
use clap::Args;
use seccomp_profile::Runtime;
use std::path::PathBuf;
use std::process::ExitCode;

/// First and last line inside a run, whose seccomp filter forbids calls that `run` needs.
const INSIDE: &str = "This command runs inside `softswap run`, so its results do not hold for the \
    machine: run `softswap doctor` outside.";

/// Test the features that softswap needs on this machine, and print how to enable missing ones.
///
/// Each feature is used once, with the rights of the caller. The tests remove their files.
#[derive(Args)]
#[command(after_long_help = "\
Each check is one of
  ok       works
  note     works, with a remark
  missing  not available: softswap uses the substitute after `instead`, and the command after
           `fix` enables the feature
  fatal    not available, and `softswap run` needs it

Examples:
  softswap doctor
  softswap doctor --swap /scratch

Exit status: 0 if `softswap run` can work, 1 if not, 2 for wrong usage.

With --profile nothing is tested. The command prints the profile to standard output, and the added
calls and the option that uses the profile to standard error. It reads the default profile from the
place where the runtime installs it, or from --from.

With --json: {\"schema\": 1, \"ok\": bool,
              \"checks\": [{\"name\", \"status\", \"detail\", \"instead\", \"fix\"}]};
`instead` and `fix` are null if they do not apply.")]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// The directory, file, device or cluster to test, written as for `softswap run`; may be given
    /// several times [default: SOFTSWAP_SWAP, the settings file, or /var/tmp]
    #[arg(long, value_name = "DIR")]
    swap: Vec<String>,

    /// Print a seccomp profile for a container: the runtime's default, which also allows the
    /// system calls that make softswap faster
    #[arg(long, value_name = "RUNTIME", conflicts_with_all = ["json", "swap"])]
    profile: Option<Runtime>,

    /// The runtime's default profile; - reads standard input
    #[arg(long, value_name = "FILE", requires = "profile")]
    from: Option<PathBuf>,
}

pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Refusal> {
    if let Some(runtime) = args.profile {
        let profile = seccomp_profile::make(runtime, args.from.as_deref())?;
        output::print(&profile.json)?;
        output::print_message(profile.note.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let surroundings = limits::Surroundings::detect();
    let mut checks = kernel::checks(&surroundings);
    checks.extend(limits::checks(&surroundings));
    if surroundings.is_managed() {
        // Commands for the machine do not change the run's filter and limits.
        checks.iter_mut().filter_map(|check| check.fix.as_mut()).for_each(|fix| {
            *fix = "run `softswap doctor` outside of `softswap run`".into();
        });
    }
    checks.extend(storage::checks(&args.swap));
    let ok = checks.iter().all(|check| check.status != Status::Fatal);
    let diagnosis = Diagnosis { schema: 1, ok, checks };
    let text = if args.json {
        serde_json::to_string_pretty(&diagnosis).map_err(Refusal::own)?
    } else {
        let table = check::table(&diagnosis, check::is_colour_enabled());
        if surroundings.is_managed() { format!("{INSIDE}\n\n{table}{INSIDE}\n") } else { table }
    };
    output::print(&text)?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
