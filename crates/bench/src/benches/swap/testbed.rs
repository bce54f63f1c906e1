//! Where the sides run: a directory, the kernel's swap areas, and a memory
//! control group for each run. All of it is the restorer's, so it goes however
//! this process ends.

use super::plan::Side;
use super::watch::{GroupWatch, Outside};
use crate::measure::restore::changes::Act;
use crate::measure::restore::group::MemoryGroup;
use crate::measure::restore::process::Restorer;
use crate::measure::restore::zram;
use softswap_cli::memory_limits::GroupVersion;
use softswap_cli::refusal::{Refusal, plain};
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
const ZSWAP_COUNTED: &str = "what zswap packs counts within the limit here (control groups of \
     version 2), so softswap has the same DRAM as kernel_zswap and runs once beside it";

pub(crate) struct Testbed {
    restorer: Restorer,
    /// For everything that needs a file; on the file system under test.
    pub(crate) dir: PathBuf,
    file: PathBuf,
    zram: Option<String>,
    /// As it was; all sides but zswap's run with it.
    page_cluster: String,
    /// Softswap runs without a group when there can be none.
    groups: Option<Groups>,
}

/// What control groups are like here.
#[derive(Debug, Clone, Copy)]
struct Groups {
    version: GroupVersion,
    /// What zswap packs counts in them.
    count_zswap: bool,
}

/// What runs in it is held to a limit, and may swap to one place.
pub(crate) struct Held {
    group: Option<MemoryGroup>,
    swap: Option<PathBuf>,
    watch: GroupWatch,
    /// The limit that the kernel passes: what zswap packs it counts in any case,
    /// because that is how it makes room.
    passed_limit_bytes: Option<u64>,
}

/// How a run kept to its limit, by the kernel's account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// `None` without a group.
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) oom_kills: u64,
    /// Packed pages that the kernel keeps in DRAM outside of the group, or in it
    /// beyond the limit.
    pub(crate) outside_bytes: u64,
    /// In the swap area of a side of the kernel's.
    pub(crate) swapped_bytes: u64,
}

impl Bounds {
    /// What the group held beyond its limit is told as what lies outside.
    fn within(self, limit_bytes: u64) -> Bounds {
        let beyond_bytes = self.peak_bytes.map_or(0, |peak| peak.saturating_sub(limit_bytes));
        Bounds {
            peak_bytes: self.peak_bytes.map(|peak| peak - beyond_bytes),
            outside_bytes: self.outside_bytes + beyond_bytes,
            ..self
        }
    }
}

impl Testbed {
    /// Prepares what `sides` need below `under`, with room for `bytes`. Sides
    /// that cannot be had are taken out, and `notes` say why.
    pub(crate) fn prepare(
        under: &Path,
        bytes: u64,
        sides: &mut Vec<Side>,
        notes: &mut Vec<String>,
    ) -> Result<Testbed, Refusal> {
        let mut restorer = Restorer::start().map_err(Refusal::own)?;
        let dir =
            restorer.ask(&Act::MakeDirectory { under: under.into() }).map_err(Refusal::own)?;
        let dir = PathBuf::from(dir);
        let file = dir.join("swapfile");
        let page_cluster = read_setting(PAGE_CLUSTER);
        let mut testbed = Testbed { restorer, dir, file, zram: None, page_cluster, groups: None };
        match testbed.try_a_group() {
            Ok(groups) => testbed.groups = Some(groups),
            Err(why) => {
                notes.push(format!(
                    "the kernel's sides were left out, and softswap runs without a control group: {why}"
                ));
                sides.retain(|side| *side == Side::Softswap);
            }
        }
        for side in std::mem::take(sides) {
            match testbed.make_ready(side, bytes)? {
                Ok(()) => sides.push(side),
                Err(why) => notes.push(format!("{} was left out: {why}", side.name())),
            }
        }
        if testbed.counts_zswap() && sides.contains(&Side::KernelZswap) {
            notes.push(ZSWAP_COUNTED.into());
        }
        Ok(testbed)
    }

    /// A group can be made where no program may join it.
    fn try_a_group(&mut self) -> Result<Groups, String> {
        let group = self.make_group(1 << 30, true)?;
        let groups = Groups { version: group.version, count_zswap: group.counts_zswap() };
        let joined = command_in(Some(&group), Vec::new(), Path::new("true")).output();
        self.restorer.ask(&Act::RemoveGroup { path: group.dir })?;
        match joined {
            Ok(output) if output.status.success() => Ok(groups),
            Ok(output) => Err(format!(
                "a control group can be made but not joined: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )),
            Err(error) => Err(plain(&error)),
        }
    }

    fn make_group(&mut self, limit_bytes: u64, may_swap: bool) -> Result<MemoryGroup, String> {
        let act = Act::MakeGroup { limit_bytes, may_swap };
        self.restorer.ask(&act).map(|path| MemoryGroup::at(path.into()))
    }

    /// Whether what zswap packs counts within the limit.
    pub(crate) fn counts_zswap(&self) -> bool {
        self.groups.is_some_and(|groups| groups.count_zswap)
    }

    /// Why a side cannot be had, if that is so. An area that stays on would serve the
    /// other sides, too: then there is no going on.
    fn make_ready(&mut self, side: Side, bytes: u64) -> Result<Result<(), String>, Refusal> {
        let area = match self.try_area(side, bytes) {
            Ok(area) => area,
            Err(why) => return Ok(Err(why)),
        };
        if let Some(path) = area {
            self.restorer.ask(&Act::SwapOff { path }).map_err(Refusal::own)?;
        }
        Ok(Ok(()))
    }

    /// Makes a side's area and swaps to it, for a moment: a container may have all that it
    /// takes and not be allowed to.
    fn try_area(&mut self, side: Side, bytes: u64) -> Result<Option<PathBuf>, String> {
        if side == Side::Softswap {
            return Ok(None);
        }
        self.restorer.ask(&Act::HoldSwap)?;
        self.make_area(side, bytes)?;
        let path = self.area_of(side).ok_or("it has no area")?;
        self.restorer.ask(&Act::SwapOn { path: path.clone() })?;
        Ok(Some(path))
    }

    fn make_area(&mut self, side: Side, bytes: u64) -> Result<(), String> {
        match side {
            Side::Softswap => {}
            Side::KernelZram => {
                let name = self.restorer.ask(&Act::AddZram { bytes })?;
                let path = Path::new("/dev").join(&name);
                self.restorer.ask(&Act::Format { path })?;
                self.zram = Some(name);
            }
            Side::KernelFile | Side::KernelZswap => {
                if !self.file.exists() {
                    let path = self.file.clone();
                    self.restorer.ask(&Act::MakeSwapFile { path, bytes })?;
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

    fn area_of(&self, side: Side) -> Option<PathBuf> {
        match side {
            Side::Softswap => None,
            Side::KernelFile | Side::KernelZswap => Some(self.file.clone()),
            Side::KernelZram => self.zram.as_ref().map(|name| Path::new("/dev").join(name)),
        }
    }

    fn ask_zswap(&mut self, name: &str, value: &str) -> Result<(), String> {
        let path = Path::new(ZSWAP).join(name);
        if !path.exists() {
            return Err("this kernel has no zswap".into());
        }
        self.restorer.ask(&Act::Set { path, value: value.into() }).map(drop)
    }

    fn ask_page_cluster(&mut self, side: Side) -> Result<(), String> {
        let value = match side {
            Side::KernelZswap => ZSWAP_PAGE_CLUSTER.into(),
            _ => self.page_cluster.clone(),
        };
        self.restorer.ask(&Act::Set { path: PAGE_CLUSTER.into(), value }).map(drop)
    }

    /// Makes `side` the one that swaps, and a group of `limit_bytes`.
    pub(crate) fn enter(&mut self, side: Side, limit_bytes: u64) -> Result<Held, Refusal> {
        let failed = |why| Refusal::own(format!("{}: {why}", side.name()));
        if side != Side::Softswap && Path::new(ZSWAP).exists() {
            let value = if side == Side::KernelZswap { "Y" } else { "N" };
            self.ask_zswap("enabled", value).map_err(failed)?;
        }
        if side != Side::Softswap {
            self.ask_page_cluster(side).map_err(failed)?;
        }
        let swap = self.area_of(side);
        let outside = match (side, &self.zram) {
            (Side::KernelZram, Some(name)) => Outside::Zram(name.clone()),
            (Side::KernelZswap, _) if !self.counts_zswap() => Outside::Zswap,
            _ => Outside::Nowhere,
        };
        if let Some(path) = swap.clone() {
            self.restorer.ask(&Act::SwapOn { path }).map_err(failed)?;
        }
        let group = match self.groups {
            Some(_) => Some(self.make_group(limit_bytes, side != Side::Softswap).map_err(failed)?),
            None => None,
        };
        let dir = group.as_ref().map(|group| group.dir.clone());
        let watch = GroupWatch::start(dir, swap.clone(), outside);
        let passes = side == Side::KernelZswap && self.counts_zswap();
        let passed_limit_bytes = passes.then_some(limit_bytes);
        Ok(Held { group, swap, watch, passed_limit_bytes })
    }

    /// Takes both away; what the kernel counted.
    pub(crate) fn leave(&mut self, held: Held) -> Result<Bounds, Refusal> {
        let Held { group, swap, watch, passed_limit_bytes } = held;
        let peaks = watch.end();
        let counted = group.as_ref().map_or(Ok(Bounds::default()), counted);
        let mut bounds = counted.map_err(Refusal::own)?;
        (bounds.outside_bytes, bounds.swapped_bytes) = (peaks.outside_bytes, peaks.swapped_bytes);
        if let Some(limit_bytes) = passed_limit_bytes {
            bounds = bounds.within(limit_bytes);
        }
        if let Some(group) = group {
            self.restorer.ask(&Act::RemoveGroup { path: group.dir }).map_err(Refusal::own)?;
        }
        if let Some(path) = swap {
            self.restorer.ask(&Act::SwapOff { path }).map_err(Refusal::own)?;
        }
        Ok(bounds)
    }

    /// Settings of the machine that the kernel's sides work with.
    pub(crate) fn settings(&self) -> serde_json::Map<String, serde_json::Value> {
        let as_is = |(name, path): (&str, &str)| (name.to_string(), read_setting(path).into());
        let ours = |(name, value): (&str, &str)| (name.to_string(), value.into());
        let read = [
            ("swappiness", "/proc/sys/vm/swappiness"),
            ("transparent_huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
            ("zswap_compressor", "/sys/module/zswap/parameters/compressor"),
            ("zswap_max_pool_percent", "/sys/module/zswap/parameters/max_pool_percent"),
        ];
        let version = match self.groups.map(|groups| groups.version) {
            None => "-",
            Some(GroupVersion::One) => "1",
            Some(GroupVersion::Two) => "2",
        };
        let set = [
            ("cgroup_version", version),
            ("page_cluster", self.page_cluster.as_str()),
            ("page_cluster_zswap", ZSWAP_PAGE_CLUSTER),
            ("zram_algorithm", zram::ALGORITHM),
        ];
        read.into_iter().map(as_is).chain(set.into_iter().map(ours)).collect()
    }
}

impl Held {
    /// A command that runs `program` in the group, with more in its environment.
    pub(crate) fn command(
        &self,
        environment: Vec<(OsString, OsString)>,
        program: &Path,
    ) -> Command {
        command_in(self.group.as_ref(), environment, program)
    }
}

fn command_in(
    group: Option<&MemoryGroup>,
    environment: Vec<(OsString, OsString)>,
    program: &Path,
) -> Command {
    let mut command = match group {
        None => Command::new("env"),
        Some(group) => {
            let mut shell = Command::new("/bin/sh");
            // The shell joins and then becomes the program. What it is to
            // preload comes after it, so that it runs without.
            shell.args(["-c", r#"echo $$ > "$0" && exec env "$@""#]);
            shell.arg(group.dir.join("cgroup.procs"));
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

/// What the kernel counted in a group.
fn counted(group: &MemoryGroup) -> Result<Bounds, String> {
    let (peak_bytes, oom_kills) = (group.peak_bytes()?, group.oom_kills()?);
    Ok(Bounds { peak_bytes, oom_kills, ..Bounds::default() })
}

fn read_setting(path: &str) -> String {
    fs::read_to_string(path).map_or("-".into(), |text| text.trim().to_string())
}
