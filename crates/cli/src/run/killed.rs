//! Explains a signal that killed the program, if softswap or its budget may be the cause.

use super::oom_kills::{OomKilled, OomKills};
use softswap_view::report::Report;
use softswap_view::units::visible;

/// Returns the reason in one line; `None` if an earlier message has given it. `outside_bytes` is
/// memory outside the budget that the kernel cannot drop. `before` holds the kernel's counts at the
/// start.
pub(super) fn explain(figures: &Report, outside_bytes: u64, before: &OomKills) -> Option<String> {
    out_of_memory(figures, outside_bytes, before).or_else(|| unexplained(figures))
}

/// Returns a message if the program failed and the kernel killed processes for lack of memory.
fn out_of_memory(figures: &Report, outside_bytes: u64, before: &OomKills) -> Option<String> {
    let killed = match (figures.outcome.signal, figures.outcome.status) {
        (Some(libc::SIGKILL), _) => before.since(),
        (_, Some(1..)) => before.since().filter(OomKilled::is_in_group),
        _ => None,
    }?;
    Some(killed.explain(figures.budget_peak_bytes.max(figures.budget_bytes), outside_bytes))
}

/// Returns the reason for a signal that no message explains.
fn unexplained(figures: &Report) -> Option<String> {
    let signal = figures.outcome.signal?;
    // With a stop reason, softswap has printed a message. A signal that `softswap run` received and
    // forwarded was sent by the user.
    if !figures.engine_started || figures.stop_reason.is_some() || figures.signals_passed_on > 0 {
        return None;
    }
    let why = match signal {
        libc::SIGBUS => {
            "SIGBUS killed it while that signal was blocked or had another handler: it touched a \
             swapped-out page, or memory beyond the end of a mapped file; if it maps no files, \
             please report this; a larger --memory may avoid it"
        }
        libc::SIGSYS => {
            "SIGSYS killed it while that signal was blocked or had another handler: a system call \
             had a buffer in managed memory, or a seccomp filter of the program or of the \
             container forbade the call"
        }
        _ => return None,
    };
    let program = figures.program.first().map_or("the program".to_string(), |it| visible(it));
    Some(format!("{program}: {why}"))
}
