//! The summary: one block for people, at the end of a run or during it.

use super::figures::{AreaFigures, BounceFigures, Figures, Outcome, PollingFigures, PoolFigures};
use super::oom_kills::{OomKilled, OomKills};
use super::unmanaged::UnmanagedPeaks;
use crate::control_client::visible;
use softswap_engine::base::stats::{StopReason, TIERS};
use softswap_view::units::{bytes, count, duration, nanoseconds};
use std::fmt::Write;
use std::time::Duration;

/// The block, ending in a newline.
pub(crate) fn text(figures: &Figures) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_head(&mut out, figures);
    if let Some(tree) = &figures.tree {
        out.push_str(&tree.for_people());
    }
    if let Some(unmanaged) = &figures.unmanaged {
        out.push_str(&unmanaged.for_people());
    }
    if !figures.engine_started {
        let _ = write_beside(&mut out, figures);
    } else {
        let _ = write_memory(&mut out, figures);
        let _ = write_beside(&mut out, figures);
        let _ = write_faults(&mut out, figures);
        let _ = write_traffic(&mut out, figures);
    }
    out
}

fn write_head(out: &mut String, figures: &Figures) -> std::fmt::Result {
    let program = figures.program.first().map_or("the program".to_string(), |it| visible(it));
    let wall = duration(Duration::from_secs_f64(figures.wall_s));
    match &figures.outcome {
        Outcome::Exited { status } => {
            writeln!(out, "softswap: {program} exited with status {status} after {wall}")?;
        }
        Outcome::Running { pid } => {
            writeln!(out, "softswap: {program} (pid {pid}) has been running for {wall}")?;
        }
        Outcome::Killed { signal, signal_name } => {
            writeln!(
                out,
                "softswap: {program} was ended by {signal_name} ({signal}) after {wall}"
            )?;
        }
    }
    let is_killed = matches!(figures.outcome, Outcome::Killed { signal: libc::SIGKILL, .. });
    if is_killed && (figures.slept || figures.engine_started) {
        writeln!(
            out,
            "  killed by SIGKILL from outside softswap: `kill -9`, or the kernel's OOM killer if \
             softswap says so above"
        )?;
    }
    if figures.slept && figures.tree.as_ref().is_some_and(|tree| tree.stalled_ns() > 0) {
        return writeln!(
            out,
            "  asleep   what it had itself fitted its budget of {}; what it started did not:",
            bytes(figures.budget_bytes)
        );
    }
    let is_notable = |it: &UnmanagedPeaks| it.is_notable(figures.budget_bytes);
    if figures.slept && figures.unmanaged.as_ref().is_some_and(is_notable) {
        return writeln!(
            out,
            "  asleep   what it had itself fitted its budget of {}; other processes had no budget",
            bytes(figures.budget_bytes)
        );
    }
    if figures.slept {
        return writeln!(
            out,
            "  asleep   what it had fitted its budget of {}: softswap had nothing to do",
            bytes(figures.budget_bytes)
        );
    }
    if !figures.engine_started {
        return writeln!(
            out,
            "  The runtime never came up in it: it had no managed memory and no limit. \
             `softswap doctor` tells what is missing, docs/limits.md which programs run so."
        );
    }
    if let Some(reason) = figures.stop_reason {
        let text = StopReason::from_code(reason).map_or("see its message above", StopReason::text);
        writeln!(out, "  stopped by softswap: {text}")?;
    }
    Ok(())
}

fn write_memory(out: &mut String, figures: &Figures) -> std::fmt::Result {
    let (budget, peak) = (figures.budget_bytes, figures.budget_peak_bytes);
    let percent = figures.used_peak_bytes as f64 * 100.0 / peak.max(1) as f64;
    let before = if peak == budget { String::new() } else { format!(" ({} once)", bytes(peak)) };
    writeln!(
        out,
        "  budget   {}{before}, at most {} used ({percent:.0}%), for {} of program memory",
        bytes(budget),
        bytes(figures.used_peak_bytes),
        bytes(figures.mapped_peak_bytes),
    )?;
    writeln!(
        out,
        "  peaks    resident {}, pool {}, disk {}",
        bytes(figures.resident_peak_bytes),
        bytes(figures.pool_peak_bytes),
        bytes(figures.disk_peak_bytes),
    )?;
    let ratio = match figures.compression_ratio {
        Some(ratio) => format!("compressed {ratio:.2} to 1"),
        None => "none compressed".to_string(),
    };
    match figures.same_filled_share {
        Some(share) => writeln!(
            out,
            "  pages    {} out, {:.1}% same-filled, {ratio}",
            count(figures.pages_out),
            share * 100.0
        ),
        None => writeln!(out, "  pages    none went out"),
    }
}

/// What is beside the budget, and in a sentence why, where it is much.
fn write_beside(out: &mut String, figures: &Figures) -> std::fmt::Result {
    let Some(beside) = figures.beside else { return Ok(()) };
    let percent = beside.total_bytes as f64 * 100.0 / figures.budget_bytes.max(1) as f64;
    let most = if figures.exit_status.is_some() { "at most " } else { "" };
    writeln!(
        out,
        "  beside   {most}{} outside of the budget ({percent:.0}% of it): private {}, shared {}, \
         code and files {}",
        bytes(beside.total_bytes),
        bytes(beside.anonymous_bytes),
        bytes(beside.shared_bytes),
        bytes(beside.file_bytes),
    )?;
    if beside.left_by_exec {
        return writeln!(
            out,
            "  UNMANAGED  it became, by exec, a program in which the runtime is not: that one \
             had no managed memory and no limit"
        );
    }
    if (figures.engine_started || figures.slept) && beside.is_notable(figures.budget_bytes) {
        let what = if figures.mapped_peak_bytes < beside.anonymous_bytes {
            "most of its memory is not managed"
        } else {
            "this part of its memory is not managed and has no limit"
        };
        writeln!(
            out,
            "  UNMANAGED  {what}: it may be stacks, mappings of less than 64 KiB, code, files, \
             changed pages of private file mappings, memory shared with others, or mappings by \
             system calls of the program's own, as Go does"
        )?;
    }
    Ok(())
}

/// Returns the message about processes that the kernel killed for memory, if the program failed.
pub(super) fn out_of_memory(figures: &Figures, before: &OomKills) -> Option<String> {
    let killed = match figures.outcome {
        Outcome::Killed { signal: libc::SIGKILL, .. } => before.since(),
        Outcome::Exited { status: 1.. } => before.since().filter(OomKilled::is_in_group),
        _ => None,
    }?;
    let outside = figures.beside.unwrap_or_default();
    // The kernel drops file pages by itself.
    let outside_bytes = outside.anonymous_bytes + outside.shared_bytes;
    Some(killed.explain(figures.budget_peak_bytes.max(figures.budget_bytes), outside_bytes))
}

/// Why a program was ended by a signal that the engine has to do with, where nobody has
/// said so yet: a line.
pub(super) fn unexplained(figures: &Figures) -> Option<String> {
    let Outcome::Killed { signal, .. } = figures.outcome else { return None };
    // With a reason there was a message, and what was passed on is the program's own.
    if !figures.engine_started || figures.stop_reason.is_some() || figures.signals_passed_on > 0 {
        return None;
    }
    let why = match signal {
        libc::SIGBUS => {
            "SIGBUS ended it while that signal was blocked or had another handler: it touched \
             a page that was out, or beyond the end of a file; if it should not have, please \
             report it, and use a larger --memory meanwhile"
        }
        libc::SIGSYS => {
            "SIGSYS ended it while that signal was blocked or had another handler: a system \
             call was given managed memory, or was forbidden by a filter of the program's or of \
             the container's"
        }
        _ => return None,
    };
    let program = figures.program.first().map_or("the program".to_string(), |it| visible(it));
    Some(format!("{program}: {why}"))
}

fn write_faults(out: &mut String, figures: &Figures) -> std::fmt::Result {
    writeln!(out, "  {:<8} {:>14} {:>10} {:>10}", "faults", "count", "p50", "p99")?;
    for tier in TIERS {
        let Some(row) = figures.faults.get(tier.name()) else {
            continue;
        };
        let time = |ns: Option<u64>| ns.map_or("-".to_string(), nanoseconds);
        let (p50, p99) = (time(row.p50_ns), time(row.p99_ns));
        let name = tier.name();
        writeln!(out, "    {name:<6} {:>14} {p50:>10} {p99:>10}", count(row.count))?;
    }
    Ok(())
}

fn write_traffic(out: &mut String, figures: &Figures) -> std::fmt::Result {
    let reached = match (figures.is_remote, figures.uses_io_uring, figures.uses_direct_io) {
        (true, ..) => "other machines",
        (false, true, true) => "io_uring, O_DIRECT",
        (false, true, false) => "io_uring, page cache",
        (false, false, true) => "pread/pwrite, O_DIRECT",
        (false, false, false) => "pread/pwrite, page cache",
    };
    let sealed = match (figures.encrypts, figures.key_unlocked) {
        (false, _) => "not encrypted",
        (true, false) => "encrypted",
        (true, true) => "encrypted, with a key that the kernel may swap out",
    };
    writeln!(
        out,
        "  disk     {} written, {} read ({reached}, {sealed})",
        bytes(figures.bytes_written),
        bytes(figures.bytes_read),
    )?;
    write_pool(out, &figures.pool)?;
    write_areas(out, &figures.areas)?;
    write_buffers(out, &figures.bounce)?;
    write_waits(out, &figures.polling)?;
    let reclaims = match figures.direct_reclaims {
        1 => "1 direct reclaim".to_string(),
        n => format!("{} direct reclaims", count(n)),
    };
    write!(out, "  stalled  {} over all threads, {reclaims}", nanoseconds(figures.stalled_ns))?;
    match figures.reclaimed_ahead {
        0 => writeln!(out)?,
        1 => writeln!(out, ", 1 batch taken out ahead of need")?,
        n => writeln!(out, ", {} batches taken out ahead of need", count(n))?,
    }
    let errors = [
        (figures.write_errors, "writes failed (no page was lost)"),
        (figures.read_errors, "reads failed"),
        (figures.checksum_errors, "pages did not match their seal when they came back"),
        (figures.areas.failed, "swap areas fail write after write"),
        (figures.areas.retired_slots, "slots are out of service: they cannot be written"),
        (figures.areas.discard_errors, "swap areas failed to discard; they are not asked again"),
    ];
    for (n, what) in errors.into_iter().filter(|&(n, _)| n > 0) {
        writeln!(out, "  ERRORS   {} {what}", count(n))?;
    }
    Ok(())
}

/// What became of compressed pages in memory, if anything did.
fn write_pool(out: &mut String, pool: &PoolFigures) -> std::fmt::Result {
    let mut parts = Vec::new();
    if pool.written_back_pages > 0 {
        parts.push(format!("{} pages went on to the disk", count(pool.written_back_pages)));
    }
    if pool.packed_slots > 0 {
        let share = pool.packed_pages as f64 / pool.packed_slots as f64;
        parts.push(format!("{share:.1} of them to a slot"));
    }
    if pool.unchanged_pages > 0 {
        parts.push(format!("{} left unchanged, not packed again", count(pool.unchanged_pages)));
    }
    if parts.is_empty() {
        return Ok(());
    }
    writeln!(out, "  pool     {}", parts.join(", "))
}

/// What became of the areas' storage, if anything did.
fn write_areas(out: &mut String, areas: &AreaFigures) -> std::fmt::Result {
    let AreaFigures { count: areas_count, pages_moved, discarded_bytes, shrunk_bytes, .. } = *areas;
    let unchanged = areas.unchanged_pages;
    let mut parts = Vec::new();
    if areas_count > 1 {
        parts.push(format!("{areas_count} in use"));
    }
    if unchanged > 0 {
        parts.push(format!("{} pages left unchanged, not written again", count(unchanged)));
    }
    if pages_moved > 0 {
        parts.push(format!("{} pages brought from failed ones elsewhere", count(pages_moved)));
    }
    if discarded_bytes > 0 {
        parts.push(format!("{} discarded", bytes(discarded_bytes)));
    }
    if shrunk_bytes > 0 {
        parts.push(format!("{} given back by shrinking", bytes(shrunk_bytes)));
    }
    if parts.is_empty() {
        return Ok(());
    }
    writeln!(out, "  areas    {}", parts.join(", "))
}

/// What was done about too few bounce buffers, if there ever were.
fn write_buffers(out: &mut String, bounce: &BounceFigures) -> std::fmt::Result {
    if bounce.misses == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "  buffers  {} times none was free: {} made for one use, {} pools added, {} released",
        count(bounce.misses),
        count(bounce.lent),
        count(bounce.pools_grown),
        count(bounce.pools_released),
    )
}

/// How pages from the disk were waited for, if there were any.
fn write_waits(out: &mut String, polling: &PollingFigures) -> std::fmt::Result {
    let PollingFigures { considered, polled, hit, slept, overslept, .. } = *polling;
    if considered == 0 {
        return Ok(());
    }
    write!(out, "  waits    {} for pages, ", count(considered))?;
    match polled {
        0 => write!(out, "none polled for")?,
        _ => {
            let how =
                if polling.device_polling { "asking the device" } else { "watching the ring" };
            let share = |part: u64, whole: u64| 100.0 * part as f64 / whole as f64;
            let (polled_share, hit_share) = (share(polled, considered), share(hit, polled));
            write!(out, "{polled_share:.0}% polled for ({how}), {hit_share:.0}% of them seen")?;
        }
    }
    if slept > 0 {
        write!(out, "; {} slept on, {} overslept", count(slept), count(overslept))?;
    }
    write!(out, "; {} of CPU time", nanoseconds(polling.wait_cpu_ns))?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::super::supervise::Ending;
    use super::*;
    use softswap_engine::base::stats::{Counter, STATS_WORDS, Stats, Tier};
    use std::sync::atomic::AtomicU64;

    fn stats() -> Stats {
        Stats::new(Box::leak((0..STATS_WORDS).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>()))
    }

    fn gather(ending: Ending, stats: &Stats) -> Figures {
        let wall = Duration::from_millis(1_500);
        Figures::gather(vec!["prog".into()], Outcome::of(ending), wall, 1 << 30, stats, None)
    }

    #[test]
    fn a_runtime_that_never_came_up_is_said() {
        let text = text(&gather(Ending::Exited(3), &stats()));
        assert!(text.starts_with("softswap: prog exited with status 3 after 1.50 s\n"), "{text}");
        assert!(text.contains("never came up") && text.contains("softswap doctor"), "{text}");
    }

    #[test]
    fn every_figure_the_summary_promises_is_there() {
        let stats = stats();
        stats.set(Counter::Version, 1);
        stats.set(Counter::PagesOut, 1_000);
        stats.set(Counter::PagesSameFilled, 125);
        stats.set(Counter::PagesPooled, 300);
        stats.set(Counter::PooledBytes, 300 * 1_024);
        stats.set(Counter::BytesWritten, 3 << 30);
        stats.record_fault(Tier::Disk, 80_000);
        let text = text(&gather(Ending::Killed(libc::SIGKILL), &stats));
        for part in [
            "ended by SIGKILL (9)",
            "budget   1.0 GiB",
            "12.5% same-filled",
            "compressed 4.00 to 1",
            "3.0 GiB written",
            "disk                1",
            "p50",
            "p99",
            "stalled",
            "0 direct reclaims",
            "(pread/pwrite, page cache, not encrypted)",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        stats.set(Counter::IsRemote, 1);
        let text = super::text(&gather(Ending::Exited(0), &stats));
        assert!(text.contains("(other machines, not encrypted)"), "{text}");
    }
}
