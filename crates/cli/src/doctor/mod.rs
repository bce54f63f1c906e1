//! `softswap doctor`: tests the features that softswap needs on this machine.

mod check;
mod seccomp_profile;
mod limits;
mod kernel;
mod cluster;
mod storage;
mod print;

use crate::output;
use crate::refusal::Refusal;
use check::{Diagnosis, Status};
use clap::Args;
use seccomp_profile::Runtime;
use std::path::PathBuf;
use std::process::ExitCode;

/// Test what this machine allows, and print how to get what is missing.
///
/// Everything is tried for real, with the rights of the caller, in ways
/// that leave nothing behind.
#[derive(Args)]
#[command(after_long_help = "\
Each check is one of
  ok       works
  note     works, and there is something to know
  missing  does not; softswap does something else instead, and a command can change it
  fatal    does not, and `softswap run` needs it

Exit status: 0 when `softswap run` will work, 1 when not, 2 for wrong usage.

With --profile nothing is tried: the profile goes to standard output, and what was added, and how to
use it, to standard error. The default of the runtime is read where that installs it, or from --from.

With --json: {\"schema\": 1, \"ok\": bool,
              \"checks\": [{\"name\", \"status\", \"detail\", \"instead\", \"fix\"}]};
`instead` and `fix` are null where there is nothing to say.")]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// The swap directory, cluster, or raw file, to try, written as for `softswap run`; may be given
    /// several times [default: SOFTSWAP_SWAP or /var/tmp]
    #[arg(long, value_name = "DIR")]
    swap: Vec<String>,

    /// Print a seccomp profile for a container: the runtime's default, with the calls allowed that
    /// make softswap faster
    #[arg(long, value_name = "RUNTIME", conflicts_with_all = ["json", "swap"])]
    profile: Option<Runtime>,

    /// The runtime's default profile; - reads standard input
    #[arg(long, value_name = "FILE", requires = "profile")]
    from: Option<PathBuf>,
}

/// Runs all checks and prints the results.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, Refusal> {
    if let Some(runtime) = args.profile {
        let profile = seccomp_profile::make(runtime, args.from.as_deref())?;
        output::print(&profile.json)?;
        eprint!("{}", profile.note);
        return Ok(ExitCode::SUCCESS);
    }
    let surroundings = limits::Surroundings::look();
    let mut checks = kernel::checks(&surroundings);
    checks.extend(limits::checks(&surroundings));
    checks.extend(storage::checks(&args.swap));
    let ok = checks.iter().all(|check| check.status != Status::Fatal);
    let diagnosis = Diagnosis { schema: 1, ok, checks };
    let text = if args.json {
        serde_json::to_string_pretty(&diagnosis).map_err(|error| Refusal::own(error.to_string()))?
    } else {
        print::table(&diagnosis, print::colour_wanted())
    };
    output::print(&text)?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
