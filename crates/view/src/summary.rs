//! The closing summary of a run.

use crate::curve::Curve;
use crate::estimate::if_too_large;
use crate::heap_limits;
use crate::report::{Process, Report, TIERS};
use crate::sections::{Areas, Bounce, Polling, Pool};
use crate::units::{bytes, count, duration, nanoseconds, visible};
use softswap_engine::base::stats::StopReason;
use std::fmt::Write as _;
use std::time::Duration;

/// Larger parts of the budget are reported.
const NOTABLE_PART: u64 = 10;
/// Waits below this share are negligible.
const MIN_SHARE: f64 = 0.005;
/// Below this share the first line suggests no larger budget.
const NOTABLE_SHARE: f64 = 0.05;
/// Processes in the line about them, and in the table of details.
const NAMED: usize = 2;
const SHOWN: usize = 5;
const PARTS: usize = 3;
const SIGKILL: i32 = 9;
/// The runtime cannot start, and has printed the reason.
const RUNTIME_FAILURE: u8 = 125;

/// Empty if the program slept and there is nothing to report, or if the runtime could not start.
#[must_use]
pub fn text(report: &Report, is_verbose: bool) -> String {
    let outside = outside_budget(report, is_verbose);
    let has_slept = report.slept && report.stalled_ns_of_all() == 0;
    let heap = heap_limits::line(report);
    if could_not_start(report) && !is_verbose {
        return String::new();
    }
    if has_slept
        && outside.is_none()
        && heap.is_none()
        && report.outcome.kind == "exited"
        && !is_verbose
    {
        return String::new();
    }
    let mut lines = vec![format!("softswap: {}", verdict(report, has_slept, outside.is_some()))];
    let mut line = |label: &str, text: String| lines.push(format!("  {label:<9}  {text}"));
    if report.engine_started || report.stalled_ns_of_all() > 0 {
        line("budget", budget(report));
        line("peaks", peaks(report));
        processes(report).into_iter().for_each(|text| line("processes", text));
    }
    outside.into_iter().for_each(|text| line("UNMANAGED", text));
    heap.into_iter().for_each(|text| line("heap", text));
    errors(report).into_iter().for_each(|text| line("ERRORS", text));
    if is_verbose {
        details(report).into_iter().for_each(|(label, text)| line(label, text));
    }
    lines.join("\n") + "\n"
}

fn never_started(report: &Report) -> bool {
    !report.engine_started && !report.slept && report.stalled_ns_of_all() == 0
}

fn could_not_start(report: &Report) -> bool {
    never_started(report) && report.outcome.status == Some(RUNTIME_FAILURE)
}

fn verdict(report: &Report, has_slept: bool, has_unmanaged: bool) -> String {
    let ending = ending(report);
    let budget = bytes(report.budget_bytes);
    if could_not_start(report) {
        return format!("{ending}; softswap may have failed to start: see the messages of the run");
    }
    if never_started(report) {
        return format!(
            "{ending}; libsoftswap.so was not loaded into it, so it ran without a memory limit: \
             the messages of the run or `softswap doctor` show why, share/doc/softswap/limits.md lists \
             programs that run unmanaged"
        );
    }
    // Perhaps for lack of memory, even if the managed memory fitted.
    if has_slept && report.outcome.signal == Some(SIGKILL) {
        return ending;
    }
    if has_slept && has_unmanaged {
        return format!("{ending}; its managed memory fitted the budget of {budget}");
    }
    if has_slept {
        return format!(
            "{ending}; its memory fitted the budget of {budget}, so softswap had nothing to do"
        );
    }
    let advice = larger_budget(report).unwrap_or_default();
    format!("{ending}; {}{advice}", waited(report))
}

fn ending(report: &Report) -> String {
    let name = visible(report.name());
    let wall = duration(Duration::from_secs_f64(report.wall_s.clamp(0.0, 1e9)));
    let stopped = report.stop_reason.map(|reason| {
        StopReason::from_code(reason).map_or("the reason is unknown", StopReason::text)
    });
    let reported = match (stopped, report.outcome.status) {
        (Some(why), None) => return format!("{name} was stopped by softswap after {wall}: {why}"),
        // The program handled the signal that softswap sent.
        (Some(why), Some(_)) => format!("; softswap reported: {why}"),
        (None, _) => String::new(),
    };
    let is_managed = report.engine_started || report.slept;
    match (report.outcome.status, &report.outcome.signal_name) {
        (Some(0), _) => format!("{name} finished in {wall}{reported}"),
        (Some(status), _) => format!("{name} exited with status {status} after {wall}{reported}"),
        (None, Some(_)) if report.outcome.signal == Some(SIGKILL) && is_managed => format!(
            "{name} was killed by SIGKILL after {wall}, from outside softswap: `kill -9`, or the \
             kernel's OOM killer if a line above says so"
        ),
        (None, Some(signal)) => format!("{name} was killed by {} after {wall}", visible(signal)),
        (None, None) => {
            let pid = report.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            format!("{name}{pid} has been running for {wall}")
        }
    }
}

/// A share of the time, unless the sum over threads exceeds it.
fn waited(report: &Report) -> String {
    let stalled_ns = report.stalled_ns_of_all();
    match report.share_of_time(stalled_ns) {
        ..MIN_SHARE => "it hardly waited for memory".into(),
        share @ ..=1.0 => format!("it waited for memory {:.0} % of the time", share * 100.0),
        _ => format!("it waited {} for memory, added up over all threads", nanoseconds(stalled_ns)),
    }
}

/// Returns a budget that saves half of the waits, or the largest that fits, by the run's curve.
fn larger_budget(report: &Report) -> Option<String> {
    let is_notable = report.stalled_share() >= NOTABLE_SHARE;
    // The curve describes a fixed budget and a complete run of one process.
    let is_whole = report.outcome.status == Some(0) && report.history.at_s.len() > 2;
    // A process's part of the tree's budget changes.
    let budgets = &report.history.whole().budget_bytes;
    let is_fixed = report.budget_bytes == report.budget_peak_bytes
        && budgets.iter().all(|it| [0, report.budget_bytes].contains(it));
    let waits_alone = report.stalled_ns_of_all() <= report.stalled_ns / 10 * 11;
    if !is_notable || !is_whole || !is_fixed || !waits_alone {
        return None;
    }
    let largest_bytes = report.largest_budget();
    let (budget_bytes, spared) = Curve::of(report)?.halving(largest_bytes)?;
    let waits = match 1.0 - spared {
        0.55.. => &*format!("it would wait about {:.0} % less", spared * 100.0),
        0.4.. => "it would wait about half as long",
        0.28.. => "it would wait about a third as long",
        0.18.. => "it would wait about a fifth as long",
        0.07.. => "it would wait about a tenth as long",
        _ => "it would hardly wait",
    };
    let option = format!("; with --memory {}M {waits}", budget_bytes.div_ceil(1 << 20));
    Some(option + &if_too_large(largest_bytes, budget_bytes))
}

fn budget(report: &Report) -> String {
    let (budget, peak) = (bytes(report.budget_bytes), report.budget_peak_bytes);
    let once = match peak > report.budget_bytes {
        true => format!(" ({} once)", bytes(peak)),
        false => String::new(),
    };
    let used = bytes(report.used_peak_bytes_of_all());
    match report.tree.is_some() {
        // The mapped memory is only of the first process.
        true => format!("{budget}{once}, at most {used} used"),
        false => format!(
            "{budget}{once}, at most {used} used, for {} of mapped memory",
            bytes(report.mapped_peak_bytes)
        ),
    }
}

fn peaks(report: &Report) -> String {
    let resident = report.resident_peak_bytes_of_all();
    let pool = report.max_over_tree(report.pool_peak_bytes, |tree| &tree.pool_bytes);
    let disk = report.max_over_tree(report.disk_peak_bytes, |tree| &tree.disk_bytes);
    let [resident, pool, disk] = [resident, pool, disk].map(bytes);
    format!("resident {resident}, compressed in memory {pool}, on the disk {disk}")
}

fn processes(report: &Report) -> Option<String> {
    let tree = report.tree.as_ref()?;
    let is_large = |it: &&Process| it.used_peak_bytes > report.budget_bytes / NOTABLE_PART;
    let named = tree.largest.iter().filter(is_large).take(NAMED).map(|it| {
        let Process { pid, used_peak_bytes, stalled_ns, .. } = it;
        let (used, waited) = (bytes(*used_peak_bytes), nanoseconds(*stalled_ns));
        format!("; {} (pid {pid}) used {used} and waited {waited}", visible(&it.name))
    });
    let named = named.collect::<String>();
    let turns = match tree.turns {
        0 => String::new(),
        1 => ", in 1 turn".into(),
        turns => format!(", in {} turns", count(turns)),
    };
    Some(format!("up to {} at a time{turns}{named}", count(tree.processes_peak as u64)))
}

/// Clean file pages do not count, because the kernel drops them.
fn outside_budget(report: &Report, is_all_wanted: bool) -> Option<String> {
    let name = visible(report.name());
    let is_managed = report.engine_started || report.slept;
    let outside = report.outside_budget.filter(|_| is_managed).unwrap_or_default();
    let unmanaged = report.unmanaged.clone().unwrap_or_default();
    if outside.left_by_exec {
        let program = match &unmanaged.largest[..] {
            [program] => format!("{}, a program", visible(&program.name)),
            _ => "a program".into(),
        };
        return Some(format!(
            "{name} called exec with {program} without libsoftswap.so, which ran without a memory \
             limit"
        ));
    }
    let private = format!(
        "private memory of {name} (stacks, small mappings, changed pages of files, a heap that \
         follows the program's data, or mapped by system calls of its own, as Go does)"
    );
    let mut parts =
        vec![(outside.anonymous_bytes, private), (outside.shared_bytes, "shared memory".into())];
    let shown = unmanaged.largest.iter().take(PARTS);
    parts.extend(shown.map(|it| {
        (it.anonymous_peak_bytes, format!("{} (pid {}, no budget)", visible(&it.name), it.pid))
    }));
    let total = outside.undroppable_bytes() + unmanaged.anonymous_peak_bytes;
    let is_notable = total > report.budget_bytes / NOTABLE_PART;
    let is_shown = is_notable || (is_all_wanted && unmanaged.processes > 0);
    if !is_shown {
        return None;
    }
    parts.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
    // The largest part, and those from a twentieth on.
    let large = parts.iter().take(PARTS).enumerate();
    let large = large.filter(|(at, (size, _))| *at == 0 || *size > total / 20);
    let large = large.map(|(_, (size, what))| format!("{} {what}", bytes(*size)));
    let large = large.collect::<Vec<_>>().join(", ");
    let processes = match unmanaged.processes {
        0 | 1 => String::new(),
        many => format!(", with {} unmanaged processes", count(many)),
    };
    let total = bytes(total);
    Some(format!("at most {total} outside the budget{processes}, without a limit: {large}"))
}

fn errors(report: &Report) -> Vec<String> {
    let errors = [
        (report.write_errors, "writes failed (no page was lost)"),
        (report.read_errors, "reads failed"),
        (report.checksum_errors, "pages did not match their seal when they were read"),
        (report.areas.failed, "swap areas failed eight writes in a row; softswap uses them last"),
        (report.areas.retired_slots, "slots are out of service: they cannot be written"),
        (
            report.areas.discard_errors,
            "swap areas: discard failed and is now off for them; freed space stays allocated until \
             the run ends",
        ),
    ];
    let some = errors.into_iter().filter(|(n, _)| *n > 0);
    some.map(|(n, what)| format!("{} {what}", count(n))).collect()
}

fn details(report: &Report) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(tree) = &report.tree {
        let shown = tree.largest.len().min(SHOWN);
        let mut left_out = tree.left_out;
        for process in &tree.largest[shown..] {
            left_out.processes += 1;
            left_out.faults += process.faults;
            left_out.stalled_ns += process.stalled_ns;
        }
        let mut table = process_table(&tree.largest[..shown]);
        if left_out.processes > 0 {
            let (processes, faults) = (count(left_out.processes), count(left_out.faults));
            let stalled = nanoseconds(left_out.stalled_ns);
            // Writing to a String cannot fail.
            let _ = write!(
                table,
                "\n    and {processes} more, with {faults} faults, {stalled} stalled"
            );
        }
        lines.push(("tree", table));
    }
    if let Some(outside) = &report.outside_budget {
        let [all, private, shared, files] = [
            outside.total_bytes,
            outside.anonymous_bytes,
            outside.shared_bytes,
            outside.file_bytes,
        ]
        .map(bytes);
        let most = if report.outcome.kind == "running" { "" } else { "at most " };
        lines.push((
            "outside",
            format!(
                "{most}{all} outside the budget: private {private}, shared {shared}, code and \
                 files {files}"
            ),
        ));
    }
    if report.engine_started {
        lines.push(("pages", pages(report)));
        lines.push(("faults", fault_table(report)));
        lines.extend(mechanism(report).map(|text| ("touches", text)));
        lines.push(("disk", traffic(report)));
        lines.extend(pool(&report.pool).map(|text| ("pool", text)));
        lines.extend(areas(&report.areas).map(|text| ("areas", text)));
        lines.extend(buffers(&report.bounce).map(|text| ("buffers", text)));
        lines.extend(waits(&report.polling).map(|text| ("waits", text)));
        lines.push(("stalled", stalls(report)));
    }
    lines
}

#[must_use]
pub fn process_table(processes: &[Process]) -> String {
    let (title, used) = ("process", "at most used");
    let mut text = format!(
        "{title:<14} {:>8} {:>10} {used:>12} {:>12} {:>10}",
        "pid", "granted", "faults", "waited"
    );
    for process in processes {
        let Process { pid, granted_bytes, used_peak_bytes, faults, stalled_ns, .. } = process;
        let (granted, peak) = (bytes(*granted_bytes), bytes(*used_peak_bytes));
        let (faults, stalled) = (count(*faults), nanoseconds(*stalled_ns));
        let name = visible(&process.name);
        let _ = write!(
            text,
            "\n    {name:<23} {pid:>8} {granted:>10} {peak:>12} {faults:>12} {stalled:>10}"
        );
    }
    text
}

fn pages(report: &Report) -> String {
    let Some(same_filled) = report.same_filled_share else { return "none swapped out".into() };
    let ratio = match report.compression_ratio {
        Some(ratio) => format!("compressed {ratio:.2} to 1"),
        None => "none compressed".to_string(),
    };
    let out = count(report.pages_out);
    format!("{out} swapped out, {:.1} % same-filled, {ratio}", same_filled * 100.0)
}

fn fault_table(report: &Report) -> String {
    let mut text = format!("{:>16} {:>10} {:>10}", "count", "p50", "p99");
    for tier in TIERS {
        let Some(row) = report.faults.get(tier) else { continue };
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_string(), nanoseconds);
        let (p50, p99) = (time(row.p50_ns), time(row.p99_ns));
        let _ = write!(text, "\n    {tier:<9} {:>15} {p50:>10} {p99:>10}", count(row.count));
    }
    text
}

/// How faults reach softswap, and the mappings' peak and limit.
fn mechanism(report: &Report) -> Option<String> {
    let name = report.fault_mechanism.as_ref()?;
    let mappings = report.mappings.map_or_else(String::new, |it| {
        let [peak, limit] = [it.peak, it.limit].map(count);
        format!("; at most {peak} mappings, the limit is {limit}")
    });
    Some(format!("of absent pages reach softswap by {}{mappings}", visible(name)))
}

fn traffic(report: &Report) -> String {
    let reached = match (report.is_remote, report.uses_io_uring, report.uses_direct_io) {
        (true, ..) => "other machines",
        (false, true, true) => "io_uring, O_DIRECT",
        (false, true, false) => "io_uring, page cache",
        (false, false, true) => "pread/pwrite, O_DIRECT",
        (false, false, false) => "pread/pwrite, page cache",
    };
    let sealed = match (report.encrypts, report.key_unlocked) {
        (false, _) => "not encrypted",
        (true, false) => "encrypted",
        (true, true) => "encrypted; the kernel may swap the key out",
    };
    let [written, read] = [report.bytes_written, report.bytes_read].map(bytes);
    format!("{written} written, {read} read ({reached}, {sealed})")
}

/// Omits parts whose number is 0.
fn joined(parts: &[(u64, String)]) -> Option<String> {
    let some: Vec<&str> =
        parts.iter().filter(|(number, _)| *number > 0).map(|(_, part)| part.as_str()).collect();
    (!some.is_empty()).then(|| some.join(", "))
}

fn pool(pool: &Pool) -> Option<String> {
    let Pool { written_back_pages, packed_pages, packed_slots, copies, .. } = pool;
    let to_a_slot = *packed_pages as f64 / (*packed_slots).max(1) as f64;
    let unchanged = copies.unchanged_pages;
    joined(&[
        (*written_back_pages, format!("{} pages written back", count(*written_back_pages))),
        (*packed_slots, format!("{to_a_slot:.1} of them per slot")),
        (unchanged, format!("{} dropped unchanged, not compressed again", count(unchanged))),
    ])
}

fn areas(areas: &Areas) -> Option<String> {
    let Areas { count: number, pages_moved, discarded_bytes, shrunk_bytes, copies, .. } = areas;
    let unchanged = copies.unchanged_pages;
    joined(&[
        (number.saturating_sub(1), format!("{number} in use")),
        (unchanged, format!("{} pages dropped unchanged, not written again", count(unchanged))),
        (*pages_moved, format!("{} pages moved from failed ones", count(*pages_moved))),
        (*discarded_bytes, format!("{} discarded", bytes(*discarded_bytes))),
        (*shrunk_bytes, format!("{} returned by shrinking", bytes(*shrunk_bytes))),
    ])
}

fn buffers(bounce: &Bounce) -> Option<String> {
    (bounce.misses > 0).then(|| {
        format!(
            "no free buffer {}: {} temporary buffers, {} pools added, {} released",
            counted(bounce.misses, "time", "times"),
            count(bounce.lent),
            count(bounce.pools_grown),
            count(bounce.pools_released),
        )
    })
}

fn waits(polling: &Polling) -> Option<String> {
    let Polling { considered, polled, hit, slept, overslept, .. } = polling;
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole as f64;
    let queue = if polling.device_polling { "the device" } else { "the completion queue" };
    let polled = match *polled {
        0 => "none polled".to_string(),
        polled => format!(
            "{:.0} % polled {queue}, {:.0} % of these completed while polling",
            share(polled, *considered),
            share(*hit, polled)
        ),
    };
    let slept = match *slept {
        0 => String::new(),
        slept => format!(
            "; hybrid polling slept for {}, too long for {}",
            count(slept),
            count(*overslept)
        ),
    };
    let cpu = nanoseconds(polling.wait_cpu_ns);
    (*considered > 0)
        .then(|| format!("{} for pages, {polled}{slept}; {cpu} of CPU time", count(*considered)))
}

fn counted(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{} {many}", count(number)),
    }
}

fn stalls(report: &Report) -> String {
    let reclaims = counted(report.direct_reclaims, "direct reclaim", "direct reclaims");
    let ahead = match report.reclaimed_ahead {
        0 => String::new(),
        number => format!(", {} reclaimed ahead of need", counted(number, "batch", "batches")),
    };
    format!("{} over all threads, {reclaims}{ahead}", nanoseconds(report.stalled_ns))
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
