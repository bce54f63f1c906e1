//! `softswap top`: shows all programs under softswap on the terminal.

use crate::control_client::{self, own_uid};
use crate::ctl::note_if_too_large;
use crate::discover::TreeCollector;
use crate::refusal::{FAILED, OrRefuse, Refusal};
use clap::Args;
use softswap_engine::api::control_protocol::{Request, pairs};
use softswap_engine::api::settings::ENV_PREFIX;
use softswap_view::top::{Options, show};
use softswap_view::units::visible;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Watch programs that run under softswap.
///
/// Shows their memory in DRAM, compressed and on the disk, how often they wait for pages, and for
/// which share of the time. Keys change settings; h lists them.
#[derive(Args)]
#[command(after_long_help = "\
Users see their own programs, and root sees all. There are no colours if NO_COLOR is set, and only
ASCII characters if the locale is not UTF-8.

Examples:
  softswap top
  softswap top 4711

Exit status: 0, or 1 if the process does not exist or runs without softswap, if standard output is
not a terminal with a cursor (TERM=dumb has none), or if there is no terminal to read keys from.")]
pub(crate) struct TopArgs {
    /// Only the tree of this process: that of `softswap run`, or of a program in it
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i32::MAX.into()))]
    pid: Option<u32>,
}

pub(crate) fn top(args: &TopArgs) -> Result<ExitCode, Refusal> {
    if !std::io::stdout().is_terminal() || !reads_terminal() {
        return Err(Refusal::new(
            FAILED,
            "`softswap top` needs a terminal; `softswap stat PID` prints figures",
        ));
    }
    if std::env::var_os("TERM").is_some_and(|it| it == "dumb") {
        return Err(Refusal::new(
            FAILED,
            "`softswap top` needs a cursor, and TERM names a terminal without one; `softswap stat \
             PID --every 1` prints figures each second",
        ));
    }
    let mut collector = TreeCollector::new();
    // Collecting all trees is slower but explains why a PID is wrong.
    let root = |pid| root_of(pid).map_or_else(|| collector.tree_of(pid).map(|tree| tree.root), Ok);
    let only = args.pid.map(root).transpose()?;
    let options = Options {
        user: if own_uid() == 0 { "any user" } else { "yours" }.into(),
        only,
        no_color: std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty()),
        ascii: !is_utf8(|name| std::env::var(name).ok()),
    };
    show(move || collector.trees(), set, options).or_status(FAILED, "the terminal failed")?;
    Ok(ExitCode::SUCCESS)
}

/// Uses the controlling terminal if standard input is none, as below `xargs`.
fn reads_terminal() -> bool {
    std::io::stdin().is_terminal()
        || std::fs::File::open("/dev/tty")
            .is_ok_and(|terminal| rustix::stdio::dup2_stdin(&terminal).is_ok())
}

fn set(pid: u32, key: &str, value: &str) -> Result<String, String> {
    let (process, body) = control_client::query(pid, &Request::Set(key, value))
        .map_err(|refusal| refusal.to_string())?;
    let changed = pairs(&body).map(|(key, value)| format!("{key} = {}", visible(value)));
    let note = match key {
        "memory" => note_if_too_large(pid, &process, value),
        _ => None,
    };
    Ok(changed.chain(note).collect::<Vec<_>>().join(", "))
}

/// Reads environments only, because the processes might be too busy to answer.
fn root_of(pid: u32) -> Option<u32> {
    let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
    let children = process.task_main_thread().ok()?.children().unwrap_or_default();
    let root = |pid: u32| {
        let process = control_client::Process::read(pid).filter(|it| !it.has_ended())?;
        let root = process.variable(&format!("{ENV_PREFIX}SUPERVISOR_PID"))?;
        let root: u32 = root.to_str()?.parse().ok()?;
        (process.is_managed() == Some(true)).then_some(root)
    };
    root(pid).or_else(|| children.into_iter().find_map(root).filter(|root| *root == pid))
}

/// Uses the first locale variable that is set.
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable);
    let first = locale.into_iter().find(|value| !value.is_empty()).unwrap_or_default();
    let first = first.to_ascii_lowercase();
    first.contains("utf-8") || first.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::is_utf8;

    #[test]
    fn first_set_locale_variable_applies() {
        let by = |all: &'static str, lang: &'static str| {
            is_utf8(|name| match name {
                "LC_ALL" => Some(all.into()),
                "LANG" => Some(lang.into()),
                _ => None,
            })
        };
        assert!(by("", "en_GB.UTF-8") && by("C.utf8", "C"));
        assert!(!by("C", "en_GB.UTF-8") && !by("", "") && !is_utf8(|_| None));
    }
}
