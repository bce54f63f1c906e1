//! Where the sides run: a directory, the kernel's swap areas, and a memory
//! control group for each run. All of it is the keeper's, so it goes however
//! this process ends.

use super::super::keeper::{Act, Keeper, zram};
use super::plan::Side;
use super::watch::{Outside, Watch};
use crate::refusal::{Refusal, plain};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const ZSWAP: &str = "/sys/module/zswap/parameters";
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
/// For zswap. What it unpacks is dirty, and there are kernels (6.18 for one) in
/// which dirty pages that were read ahead and never touched cannot leave: the
/// group fills with them until the program is killed.
const ZSWAP_PAGE_CLUSTER: &str = "0";

pub(super) struct Ground {
    keeper: Keeper,
    /// For everything that needs a file; on the file system under test.
    pub(super) dir: PathBuf,
    file: PathBuf,
    zram: Option<String>,
    /// As it was; all sides but zswap's run with it.
    page_cluster: String,
    /// Softswap runs without a group when there can be none.
    has_groups: bool,
}

/// What runs in it is held to a limit, and may swap to one place.
pub(super) struct Held {
    group: Option<PathBuf>,
    swap: Option<PathBuf>,
    watch: Watch,
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
        let page_cluster = read_setting(PAGE_CLUSTER);
        let mut ground = Ground { keeper, dir, file, zram: None, page_cluster, has_groups: false };
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
            Side::KernelFile | Side::KernelZswap => {
                if !self.file.exists() {
                    let path = self.file.clone();
                    self.keeper.ask(&Act::MakeSwapFile { path, bytes })?;
                }
                if side == Side::KernelZswap {
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

    fn ask_page_cluster(&mut self, side: Side) -> Result<(), String> {
        let value = match side {
            Side::KernelZswap => ZSWAP_PAGE_CLUSTER.into(),
            _ => self.page_cluster.clone(),
        };
        self.keeper.ask(&Act::Set { path: PAGE_CLUSTER.into(), value }).map(drop)
    }

    /// Makes `side` the one that swaps, and a group of `limit_bytes`.
    pub(super) fn enter(&mut self, side: Side, limit_bytes: u64) -> Result<Held, Refusal> {
        let failed = |why| Refusal::own(format!("{}: {why}", side.name()));
        if side != Side::Softswap && Path::new(ZSWAP).exists() {
            let value = if side == Side::KernelZswap { "Y" } else { "N" };
            self.ask_zswap("enabled", value).map_err(failed)?;
        }
        if side != Side::Softswap {
            self.ask_page_cluster(side).map_err(failed)?;
        }
        let swap = match side {
            Side::Softswap => None,
            Side::KernelFile | Side::KernelZswap => Some(self.file.clone()),
            Side::KernelZram => self.zram.as_ref().map(|name| Path::new("/dev").join(name)),
        };
        let outside = match (side, &self.zram) {
            (Side::KernelZram, Some(name)) => Outside::Zram(name.clone()),
            (Side::KernelZswap, _) => Outside::Zswap,
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
        let watch = Watch::start(group.clone(), swap.clone(), outside);
        Ok(Held { group, swap, watch })
    }

    /// Takes both away; what the kernel counted.
    pub(super) fn leave(&mut self, held: Held) -> Result<Bounds, Refusal> {
        let Held { group, swap, watch } = held;
        let peaks = watch.end();
        let mut bounds = group.as_deref().map_or(Ok(Bounds::default()), counted)?;
        (bounds.outside_bytes, bounds.swapped_bytes) = (peaks.outside_bytes, peaks.swapped_bytes);
        if let Some(path) = group {
            self.keeper.ask(&Act::RemoveGroup { path }).map_err(Refusal::own)?;
        }
        if let Some(path) = swap {
            self.keeper.ask(&Act::SwapOff { path }).map_err(Refusal::own)?;
        }
        Ok(bounds)
    }

    /// Settings of the machine that the kernel's sides work with.
    pub(super) fn settings(&self) -> serde_json::Map<String, serde_json::Value> {
        let as_is = |(name, path): (&str, &str)| (name.to_string(), read_setting(path).into());
        let ours = |(name, value): (&str, &str)| (name.to_string(), value.into());
        let read = [
            ("swappiness", "/proc/sys/vm/swappiness"),
            ("transparent_huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
            ("zswap_compressor", "/sys/module/zswap/parameters/compressor"),
            ("zswap_max_pool_percent", "/sys/module/zswap/parameters/max_pool_percent"),
        ];
        let set = [
            ("page_cluster", self.page_cluster.as_str()),
            ("page_cluster_zswap", ZSWAP_PAGE_CLUSTER),
            ("zram_algorithm", zram::ALGORITHM),
        ];
        read.into_iter().map(as_is).chain(set.into_iter().map(ours)).collect()
    }
}

impl Held {
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
}

/// What the kernel counted in a group.
fn counted(group: &Path) -> Result<Bounds, Refusal> {
    let read = |file: &str| {
        fs::read_to_string(group.join(file))
            .map_err(|error| Refusal::own(format!("{file} of a group: {}", plain(&error))))
    };
    let kills = read("memory.oom_control")?;
    let kills = kills.lines().find_map(|line| line.strip_prefix("oom_kill "));
    Ok(Bounds {
        peak_bytes: read("memory.max_usage_in_bytes")?.trim().parse().ok(),
        oom_kills: kills.and_then(|count| count.trim().parse().ok()).unwrap_or(0),
        ..Bounds::default()
    })
}

fn read_setting(path: &str) -> String {
    fs::read_to_string(path).map_or("-".into(), |text| text.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preloaded_library_comes_after_the_shell() {
        let watch = Watch::start(None, None, Outside::Nowhere);
        let held = Held { group: Some("/group".into()), swap: None, watch };
        let command = held.command(vec![("LD_PRELOAD".into(), "x".into())], Path::new("/prog"));
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(words[2..], ["/group/cgroup.procs", "LD_PRELOAD=x", "/prog"]);
        assert!(command.get_envs().next().is_none());
    }
}
