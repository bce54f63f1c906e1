//! Processes that the kernel killed for memory during a run, and the budget that avoids it.

use crate::memory_limits::{self, GroupVersion, Hierarchy};
use softswap_engine::api::settings::MIN_MEMORY_BYTES;
use softswap_view::units::bytes;
use std::fs;
use std::path::{Path, PathBuf};

/// The kernel's count of OOM kills, in this process's control group or on the machine.
#[derive(Debug, Clone)]
struct Count {
    /// `None` for the machine.
    group: Option<PathBuf>,
    kills: u64,
}

/// The counts at the start of a run.
#[derive(Debug)]
pub(super) struct OomKills(Vec<Count>);

/// Kills during a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OomKilled {
    kills: u64,
    /// The control group with the lowest limit, if a group's limit was reached.
    group: Option<PathBuf>,
    /// Its limit, or the machine's DRAM.
    limit_bytes: u64,
}

impl OomKills {
    pub(super) fn read() -> OomKills {
        // A kill is counted in the group of the killed process, even if a parent's limit was
        // reached.
        let of_group = |hierarchy: Hierarchy| {
            let name = match hierarchy.version {
                GroupVersion::One => "memory.oom_control",
                GroupVersion::Two => "memory.events",
            };
            let kills = count_in(&hierarchy.own.join(name))?;
            Some(Count { group: Some(hierarchy.own), kills })
        };
        let groups = memory_limits::hierarchies().into_iter().filter_map(of_group);
        let machine = count_in(Path::new("/proc/vmstat")).map(|kills| Count { group: None, kills });
        OomKills(groups.chain(machine).collect())
    }

    /// Returns the kills since the counts were read, if any.
    pub(super) fn since(&self) -> Option<OomKilled> {
        let now = OomKills::read();
        let kills_since = |then: &Count| kills_since(then, &now.0);
        let kills = self.0.iter().map(kills_since).max().filter(|kills| *kills > 0)?;
        // A kill in a group is counted for the machine, too.
        let is_group = self.0.iter().any(|then| then.group.is_some() && kills_since(then) > 0);
        let limits = is_group.then(memory_limits::group_limits).unwrap_or_default();
        let tightest = limits.into_iter().min_by_key(|group| group.limit_bytes);
        let dram_bytes = softswap_sys::memory::dram_bytes();
        let limit_bytes = tightest.as_ref().map_or(dram_bytes, |group| group.limit_bytes);
        Some(OomKilled { kills, group: tightest.map(|group| group.dir), limit_bytes })
    }
}

fn kills_since(then: &Count, now: &[Count]) -> u64 {
    let now = now.iter().find(|it| it.group == then.group);
    now.map_or(0, |now| now.kills.saturating_sub(then.kills))
}

fn count_in(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

impl OomKilled {
    /// Returns true if the killed processes were in this process's control group. Processes killed
    /// on the machine may be unrelated.
    pub(super) fn is_in_group(&self) -> bool {
        self.group.is_some()
    }

    /// Returns the message: the number of killed processes, the limit, and a budget that fits.
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
        // A tenth is left for other processes of the group.
        let fits_bytes = (self.limit_bytes - self.limit_bytes / 10).saturating_sub(outside_bytes);
        let advice = match fits_bytes >= MIN_MEMORY_BYTES && fits_bytes < budget_bytes {
            true => format!("use --memory auto, or --memory {}M", fits_bytes >> 20),
            false => "use --memory auto, or raise that limit".to_string(),
        };
        format!(
            "the kernel killed {killed}: {place}; the budget of {} does not include code, stacks \
             and other memory outside it ({}); {advice}",
            bytes(budget_bytes),
            bytes(outside_bytes)
        )
    }
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
        let killed = OomKilled { kills: 1, group, limit_bytes: 350 * MIB };
        let text = killed.explain(350 * MIB, 45 * MIB);
        assert!(text.contains("control group /sys/fs/cgroup/job"), "{text}");
        assert!(text.ends_with("use --memory auto, or --memory 270M"), "{text}");
        let text = killed.explain(200 * MIB, 45 * MIB);
        assert!(text.ends_with("or raise that limit"), "{text}");
    }
}
