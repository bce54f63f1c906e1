//! Explains a signal that killed the program, if softswap or its budget may be the cause.

use super::auto_memory::advised_bytes;
use softswap_engine::api::settings::MIN_MEMORY_BYTES;
use softswap_sys::memory_limits::{self, Hierarchy};
use softswap_view::report::Report;
use softswap_view::units::{bytes, visible};
use std::fs;
use std::path::{Path, PathBuf};

/// Cumulative count of OOM kills, in this process's control group or on the machine.
#[derive(Debug, Clone)]
struct Count {
    /// `None` for the machine.
    group: Option<PathBuf>,
    kills: u64,
}

#[derive(Debug)]
pub(super) struct OomKills {
    counts: Vec<Count>,
    available_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OomKilled {
    kills: u64,
    /// Set if a group's limit was reached.
    group: Option<PathBuf>,
    /// Limit of `group`, or the machine's DRAM.
    limit_bytes: u64,
    available_bytes: u64,
}

impl OomKills {
    pub(super) fn fitting_bytes(&self, outside_bytes: u64) -> u64 {
        advised_bytes(self.available_bytes, outside_bytes)
    }

    pub(super) fn read() -> OomKills {
        // A kill is counted in the group of the killed process, even if a parent's limit was
        // reached.
        let of_group = |hierarchy: Hierarchy| {
            let kills = count_in(&hierarchy.own.join(hierarchy.version.oom_file()))?;
            Some(Count { group: Some(hierarchy.own), kills })
        };
        let groups = memory_limits::hierarchies().into_iter().filter_map(of_group);
        let machine = count_in(Path::new("/proc/vmstat")).map(|kills| Count { group: None, kills });
        let counts = groups.chain(machine).collect();
        OomKills { counts, available_bytes: memory_limits::available().bytes }
    }

    pub(super) fn since(&self) -> Option<OomKilled> {
        let now = OomKills::read();
        let kills_since = |then: &Count| kills_since(then, &now.counts);
        let kills = self.counts.iter().map(kills_since).max().filter(|kills| *kills > 0)?;
        // A kill in a group is counted for the machine, too.
        let is_group = self.counts.iter().any(|then| then.group.is_some() && kills_since(then) > 0);
        let limits = is_group.then(memory_limits::group_limits).unwrap_or_default();
        let tightest = limits.into_iter().min_by_key(|group| group.limit_bytes);
        let dram_bytes = softswap_sys::memory::dram_bytes();
        let limit_bytes = tightest.as_ref().map_or(dram_bytes, |group| group.limit_bytes);
        let group = tightest.map(|group| group.dir);
        Some(OomKilled { kills, group, limit_bytes, available_bytes: self.available_bytes })
    }
}

fn kills_since(then: &Count, now: &[Count]) -> u64 {
    let now = now.iter().find(|it| it.group == then.group);
    now.map_or(0, |now| now.kills.saturating_sub(then.kills))
}

fn count_in(path: &Path) -> Option<u64> {
    memory_limits::oom_kills_in(&fs::read_to_string(path).ok()?)
}

impl OomKilled {
    /// If not in the group, the killed processes may be unrelated.
    pub(super) fn is_in_group(&self) -> bool {
        self.group.is_some()
    }

    /// `outside_bytes` is memory of the program outside its budget.
    pub(super) fn explain(&self, budget_bytes: u64, outside_bytes: u64) -> String {
        let limit = bytes(self.limit_bytes);
        let place = match &self.group {
            Some(dir) => format!("control group {} reached its limit of {limit}", dir.display()),
            None => format!("the machine ran out of its {limit} of DRAM"),
        };
        let killed = match self.kills {
            1 => "a process".to_string(),
            n => format!("{n} processes"),
        };
        let budget = bytes(budget_bytes);
        let cause = match budget_bytes > self.limit_bytes {
            true => format!("the budget of {budget} is larger than that"),
            false => format!(
                "the budget of {budget} does not include code, stacks and other memory outside it \
                 ({})",
                bytes(outside_bytes)
            ),
        };
        let fits_bytes = advised_bytes(self.available_bytes, outside_bytes);
        let advice = match fits_bytes >= MIN_MEMORY_BYTES && fits_bytes < budget_bytes {
            true => format!("use --memory auto, or --memory {}M", fits_bytes >> 20),
            false => "use --memory auto, or raise that limit".to_string(),
        };
        format!("the kernel killed {killed}: {place}; {cause}; {advice}")
    }
}

/// `None` if an earlier message has given the reason. `outside_bytes` is memory that the kernel
/// cannot drop.
pub(super) fn explain(figures: &Report, outside_bytes: u64, before: &OomKills) -> Option<String> {
    out_of_memory(figures, outside_bytes, before).or_else(|| unexplained(figures))
}

fn out_of_memory(figures: &Report, outside_bytes: u64, before: &OomKills) -> Option<String> {
    let killed = match (figures.outcome.signal, figures.outcome.status) {
        (Some(libc::SIGKILL), _) => before.since(),
        (_, Some(1..)) => before.since().filter(OomKilled::is_in_group),
        _ => None,
    }?;
    Some(killed.explain(figures.budget_peak_bytes.max(figures.budget_bytes), outside_bytes))
}

fn unexplained(figures: &Report) -> Option<String> {
    let signal = figures.outcome.signal?;
    // softswap has printed the stop reason, and the user knows of signals that `run` forwarded.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_counters_of_both_cgroup_versions_are_parsed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counts");
        for (text, kills) in [
            ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", Some(2)),
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", Some(5)),
            ("under_oom 0\n", None),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(count_in(&path), kills, "{text}");
        }
    }

    #[test]
    fn advised_budget_fits_limit() {
        const MIB: u64 = 1 << 20;
        let group = Some(PathBuf::from("/sys/fs/cgroup/job"));
        let killed =
            OomKilled { kills: 1, group, limit_bytes: 350 * MIB, available_bytes: 348 * MIB };
        let text = killed.explain(350 * MIB, 45 * MIB);
        assert!(text.contains("control group /sys/fs/cgroup/job"), "{text}");
        assert!(text.ends_with("use --memory auto, or --memory 271M"), "{text}");
        assert!(text.contains("350.0 MiB does not include code"), "{text}");
        let text = killed.explain(200 * MIB, 45 * MIB);
        assert!(text.ends_with("or raise that limit"), "{text}");
        let text = killed.explain(660 * MIB, 268 << 10);
        assert!(text.contains("the budget of 660.0 MiB is larger than that; use"), "{text}");
        assert!(text.ends_with(&format!("{}M", advised_bytes(348 * MIB, 0) >> 20)), "{text}");
    }
}
