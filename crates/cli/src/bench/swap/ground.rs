//! Where the sides run: a directory, the kernel's swap areas, and a memory
//! control group for each run. All of it is the keeper's, so it goes however
//! this process ends.

use super::super::keeper::{Act, Keeper, zram};
use super::plan::Side;
use crate::refusal::{Refusal, plain};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ZSWAP: &str = "/sys/module/zswap/parameters";

pub(super) struct Ground {
    keeper: Keeper,
    /// For everything that needs a file; on the file system under test.
    pub(super) dir: PathBuf,
    file: PathBuf,
    zram: Option<String>,
    /// Softswap runs without a group when there can be none.
    has_groups: bool,
}

/// What runs in it is held to a limit, and may swap to one place.
pub(super) struct Held {
    group: Option<PathBuf>,
    swap: Option<PathBuf>,
    outside: Outside,
    /// What lay outside before.
    before_bytes: u64,
    outside_peak_bytes: u64,
    swapped_peak_bytes: u64,
}

/// Where the kernel keeps packed pages that it does not count.
enum Outside {
    Nowhere,
    Zram(String),
    Zswap,
}

/// How a run kept to its limit, by the kernel's account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// `None` without a group.
    pub(super) peak_bytes: Option<u64>,
    pub(super) oom_kills: u64,
    /// Packed pages that the kernel keeps in DRAM outside of the group.
    pub(super) outside_bytes: u64,
    /// In the swap area of a side of the kernel's.
    pub(super) swapped_bytes: u64,
}

impl Ground {
    /// Prepares what `sides` need below `under`, with room for `bytes`. Sides
    /// that cannot be had are taken out, and `notes` say why.
    pub(super) fn prepare(
        under: &Path,
        bytes: u64,
        sides: &mut Vec<Side>,
        notes: &mut Vec<String>,
    ) -> Result<Ground, Refusal> {
        let mut keeper = Keeper::start().map_err(Refusal::own)?;
        let dir = keeper.ask(&Act::MakeDirectory { under: under.into() }).map_err(Refusal::own)?;
        let dir = PathBuf::from(dir);
        let file = dir.join("swapfile");
        let mut ground = Ground { keeper, dir, file, zram: None, has_groups: false };
        match ground.try_a_group() {
            Ok(()) => ground.has_groups = true,
            Err(why) => {
                notes.push(format!(
                    "the kernel's sides were left out, and softswap runs without a control group: {why}"
                ));
                sides.retain(|side| *side == Side::Softswap);
            }
        }
        sides.retain(|side| match ground.make_ready(*side, bytes) {
            Ok(()) => true,
            Err(why) => {
                notes.push(format!("{} was left out: {why}", side.name()));
                false
            }
        });
        Ok(ground)
    }

    fn try_a_group(&mut self) -> Result<(), String> {
        let path =
            self.keeper.ask(&Act::MakeGroup { limit_bytes: Some(1 << 30), may_swap: true })?;
        self.keeper.ask(&Act::RemoveGroup { path: path.into() })?;
        Ok(())
    }

    fn make_ready(&mut self, side: Side, bytes: u64) -> Result<(), String> {
        if side == Side::Softswap {
            return Ok(());
        }
        self.keeper.ask(&Act::HoldSwap)?;
        match side {
            Side::Softswap => {}
            Side::KernelZram => {
                let name = self.keeper.ask(&Act::AddZram { bytes })?;
                let path = Path::new("/dev").join(&name);
                self.keeper.ask(&Act::Format { path })?;
                self.zram = Some(name);
            }
            Side::KernelFile | Side::Zswap => {
                if !self.file.exists() {
                    let path = self.file.clone();
                    self.keeper.ask(&Act::MakeSwapFile { path, bytes })?;
                }
                if side == Side::Zswap {
                    self.ask_zswap("enabled", "N")?;
                    // Where it has no lz4 it packs with what it is set to.
                    let _ = self.ask_zswap("compressor", zram::ALGORITHM);
                }
            }
        }
        Ok(())
    }

    fn ask_zswap(&mut self, name: &str, value: &str) -> Result<(), String> {
        let path = Path::new(ZSWAP).join(name);
        if !path.exists() {
            return Err("this kernel has no zswap".into());
        }
        self.keeper.ask(&Act::Set { path, value: value.into() }).map(drop)
    }

    /// Makes `side` the one that swaps, and a group of `limit_bytes`.
    pub(super) fn enter(&mut self, side: Side, limit_bytes: u64) -> Result<Held, Refusal> {
        let failed = |why| Refusal::own(format!("{}: {why}", side.name()));
        if side != Side::Softswap && Path::new(ZSWAP).exists() {
            let value = if side == Side::Zswap { "Y" } else { "N" };
            self.ask_zswap("enabled", value).map_err(failed)?;
        }
        let swap = match side {
            Side::Softswap => None,
            Side::KernelFile | Side::Zswap => Some(self.file.clone()),
            Side::KernelZram => self.zram.as_ref().map(|name| Path::new("/dev").join(name)),
        };
        let outside = match (side, &self.zram) {
            (Side::KernelZram, Some(name)) => Outside::Zram(name.clone()),
            (Side::Zswap, _) => Outside::Zswap,
            _ => Outside::Nowhere,
        };
        if let Some(path) = swap.clone() {
            self.keeper.ask(&Act::SwapOn { path }).map_err(failed)?;
        }
        let group = if self.has_groups {
            let may_swap = side != Side::Softswap;
            let act = Act::MakeGroup { limit_bytes: Some(limit_bytes), may_swap };
            Some(self.keeper.ask(&act).map_err(failed)?.into())
        } else {
            None
        };
        let before_bytes = outside.bytes();
        Ok(Held {
            group,
            swap,
            outside,
            before_bytes,
            outside_peak_bytes: 0,
            swapped_peak_bytes: 0,
        })
    }

    /// Takes both away; what the kernel counted.
    pub(super) fn leave(&mut self, held: Held) -> Result<Bounds, Refusal> {
        let bounds = held.bounds()?;
        if let Some(path) = held.group {
            self.keeper.ask(&Act::RemoveGroup { path }).map_err(Refusal::own)?;
        }
        if let Some(path) = held.swap {
            self.keeper.ask(&Act::SwapOff { path }).map_err(Refusal::own)?;
        }
        Ok(bounds)
    }
}

impl Outside {
    fn bytes(&self) -> u64 {
        match self {
            Outside::Nowhere => 0,
            Outside::Zram(name) => zram::kept(name).map_or(0, |kept| kept.used_bytes),
            Outside::Zswap => {
                let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
                let line = meminfo.lines().find_map(|line| line.strip_prefix("Zswap:"));
                let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
                kib.unwrap_or(0) << 10
            }
        }
    }
}

impl Held {
    /// Looks at what lies elsewhere now.
    pub(super) fn look(&mut self) {
        let now = self.outside.bytes().saturating_sub(self.before_bytes);
        self.outside_peak_bytes = self.outside_peak_bytes.max(now);
        if let Some(path) = &self.swap {
            self.swapped_peak_bytes = self.swapped_peak_bytes.max(used_of(path));
        }
    }

    /// A command that runs `program` in the group, with more in its environment.
    pub(super) fn command(
        &self,
        environment: Vec<(OsString, OsString)>,
        program: &Path,
    ) -> Command {
        let mut command = match &self.group {
            None => Command::new("env"),
            Some(group) => {
                let mut shell = Command::new("/bin/sh");
                // The shell joins and then becomes the program. What it is to
                // preload comes after it, so that it runs without.
                shell.args(["-c", r#"echo $$ > "$0" && exec env "$@""#]);
                shell.arg(group.join("cgroup.procs"));
                shell
            }
        };
        command.args(environment.into_iter().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        }));
        command.arg(program);
        command
    }

    fn bounds(&self) -> Result<Bounds, Refusal> {
        let swapped_bytes = self.swapped_peak_bytes;
        let outside_bytes = self.outside_peak_bytes;
        let Some(group) = &self.group else {
            return Ok(Bounds { outside_bytes, swapped_bytes, ..Bounds::default() });
        };
        let read = |file: &str| {
            fs::read_to_string(group.join(file))
                .map_err(|error| Refusal::own(format!("{file} of a group: {}", plain(&error))))
        };
        let kills = read("memory.oom_control")?;
        let kills = kills.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(Bounds {
            peak_bytes: read("memory.max_usage_in_bytes")?.trim().parse().ok(),
            oom_kills: kills.and_then(|count| count.trim().parse().ok()).unwrap_or(0),
            outside_bytes,
            swapped_bytes,
        })
    }
}

/// What of an area is in use, by /proc/swaps.
fn used_of(path: &Path) -> u64 {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let line = swaps.lines().find(|line| line.split_whitespace().next() == path.to_str());
    // Name, kind, size, used.
    let kib = line.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Settings of the machine that all sides of the kernel's work with.
pub(super) fn settings() -> serde_json::Map<String, serde_json::Value> {
    let read =
        |path: &str| fs::read_to_string(path).map_or("-".into(), |text| text.trim().to_string());
    [
        ("page_cluster", "/proc/sys/vm/page-cluster"),
        ("swappiness", "/proc/sys/vm/swappiness"),
        ("transparent_huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ("zswap_compressor", "/sys/module/zswap/parameters/compressor"),
        ("zswap_max_pool_percent", "/sys/module/zswap/parameters/max_pool_percent"),
    ]
    .into_iter()
    .map(|(name, path)| (name.to_string(), read(path).into()))
    .chain([("zram_algorithm".to_string(), zram::ALGORITHM.into())])
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preloaded_library_comes_after_the_shell() {
        let held = Held {
            group: Some("/group".into()),
            swap: None,
            outside: Outside::Nowhere,
            before_bytes: 0,
            outside_peak_bytes: 0,
            swapped_peak_bytes: 0,
        };
        let command = held.command(vec![("LD_PRELOAD".into(), "x".into())], Path::new("/prog"));
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words[2..], ["/group/cgroup.procs", "LD_PRELOAD=x", "/prog"]);
        assert!(command.get_envs().next().is_none());
    }
}
