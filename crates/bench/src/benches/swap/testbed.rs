//! A directory, the kernel's swap areas, and a memory cgroup for each run. The restorer creates
//! them, so that they are removed however this process exits.

use super::plan::Side;
use crate::measure::managed_program;
use crate::measure::options::Named;
use crate::measure::restore::Restorer;
use crate::measure::restore::changes::Action;
use crate::measure::restore::group::MemoryGroup;
use crate::measure::restore::zram;
use crate::measure::sample::{Object, object};
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_cli::units;
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory_limits::GroupVersion;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const ZSWAP: &str = "/sys/module/zswap/parameters";
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
/// No swap readahead for zswap: some kernels (for example 6.18) cannot reclaim decompressed pages
/// that were read ahead and never touched. They are dirty, and fill the cgroup.
const ZSWAP_PAGE_CLUSTER: &str = "0";
const ZSWAP_COUNTED: &str = "here the limit includes zswap's compressed pages (control groups of \
    version 2), so softswap and kernel_zswap use the same DRAM, and softswap_same_dram is not run \
    for it";

pub(crate) struct Testbed {
    restorer: Restorer,
    pub(crate) dir: PathBuf,
    file: PathBuf,
    zram: Option<String>,
    /// The machine's value, for all sides except zswap.
    page_cluster: String,
    /// `None` if no cgroup can be created. softswap then runs alone, without one.
    groups: Option<Groups>,
}

#[derive(Debug, Clone, Copy)]
struct Groups {
    version: GroupVersion,
    count_zswap: bool,
}

pub(crate) struct Held {
    group: Option<MemoryGroup>,
    swap: Option<PathBuf>,
    watch: GroupWatch,
    /// The limit, if charges for zswap during reclaim exceed it.
    exceeded_limit_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bounds {
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) oom_kills: u64,
    /// Compressed pages in DRAM outside the cgroup, or beyond its limit.
    pub(crate) outside_bytes: u64,
    pub(crate) swapped_bytes: u64,
}

impl Bounds {
    fn within(self, limit_bytes: u64) -> Bounds {
        let beyond_bytes = self.peak_bytes.map_or(0, |peak| peak.saturating_sub(limit_bytes));
        Bounds {
            peak_bytes: self.peak_bytes.map(|peak| peak - beyond_bytes),
            outside_bytes: self.outside_bytes + beyond_bytes,
            ..self
        }
    }

    pub(crate) fn check(&self, limit_bytes: u64) -> Result<(), String> {
        let limit = limit_bytes.next_multiple_of(PAGE_SIZE as u64);
        self.peak_bytes.filter(|peak| *peak > limit).map_or(Ok(()), |peak| {
            let (limit, peak) = (units::bytes(limit_bytes), units::bytes(peak));
            Err(format!("the control group with a limit of {limit} used {peak} at its peak"))
        })
    }
}

impl Testbed {
    /// Removes unsupported sides, with a note.
    pub(crate) fn prepare(
        under: &Path,
        bytes: u64,
        sides: &mut Vec<Side>,
        notes: &mut Vec<String>,
    ) -> Result<Testbed, Refusal> {
        let mut restorer = Restorer::start()?;
        let dir = restorer.request(&Action::MakeDirectory(under.into()));
        let dir = PathBuf::from(dir.map_err(Refusal::own)?);
        let file = dir.join("swapfile");
        let page_cluster = read_setting(PAGE_CLUSTER);
        let mut testbed = Testbed { restorer, dir, file, zram: None, page_cluster, groups: None };
        match testbed.try_a_group() {
            Ok(groups) => testbed.groups = Some(groups),
            Err(why) => {
                notes.push(format!(
                    "the kernel's swap is left out, and softswap runs without a control group: \
                     {why}"
                ));
                sides.retain(|side| side.is_softswap());
            }
        }
        for side in std::mem::take(sides) {
            match testbed.try_area(side, bytes) {
                Ok(area) => {
                    sides.push(side);
                    // The other sides would use it, too.
                    testbed.swap_off(area)?;
                }
                Err(why) => notes.push(format!("{} was left out: {why}", side.name())),
            }
        }
        if testbed.counts_zswap() && sides.contains(&Side::KernelZswap) {
            notes.push(ZSWAP_COUNTED.into());
        }
        Ok(testbed)
    }

    /// Joining may be forbidden even if creating is allowed.
    fn try_a_group(&mut self) -> Result<Groups, String> {
        let group = self.make_group(1 << 30, true)?;
        let groups = Groups { version: group.version, count_zswap: group.counts_zswap() };
        let joined = command_in(Some(&group), Vec::new(), Path::new("true")).output();
        self.restorer.request(&Action::RemoveGroup(group.dir))?;
        let joined = joined.or_text("/bin/sh")?;
        let errors = String::from_utf8_lossy(&joined.stderr);
        joined.status.success().then_some(groups).ok_or_else(|| {
            format!("a control group can be created but not joined: {}", errors.trim())
        })
    }

    fn make_group(&mut self, limit_bytes: u64, may_swap: bool) -> Result<MemoryGroup, String> {
        let act = Action::MakeGroup { limit_bytes, may_swap };
        self.restorer.request(&act).map(|path| MemoryGroup::at(path.into()))
    }

    pub(crate) fn counts_zswap(&self) -> bool {
        self.groups.is_some_and(|groups| groups.count_zswap)
    }

    /// A container may permit devices and settings, but forbid swapon.
    fn try_area(&mut self, side: Side, bytes: u64) -> Result<Option<PathBuf>, String> {
        if side.is_softswap() {
            return Ok(None);
        }
        self.restorer.request(&Action::HoldSwap)?;
        if side == Side::KernelZram {
            self.zram = Some(self.restorer.request(&Action::AddZram(bytes))?);
        } else if !self.file.exists() {
            self.restorer.request(&Action::MakeSwapFile(self.file.clone(), bytes))?;
        }
        if side == Side::KernelZswap {
            self.set_zswap("enabled", "N")?;
            // Without lz4, zswap uses its current compressor.
            let _ = self.set_zswap("compressor", zram::ALGORITHM);
        }
        let path = self.area_of(side).ok_or("the side has no swap area")?;
        self.restorer.request(&Action::SwapOn(path.clone()))?;
        Ok(Some(path))
    }

    fn swap_off(&mut self, area: Option<PathBuf>) -> Result<(), Refusal> {
        let off = area.map(|path| self.restorer.request(&Action::SwapOff(path)));
        off.transpose().map(drop).map_err(Refusal::own)
    }

    fn area_of(&self, side: Side) -> Option<PathBuf> {
        match side {
            Side::Softswap | Side::Protection => None,
            Side::KernelFile | Side::KernelZswap => Some(self.file.clone()),
            Side::KernelZram => self.zram.as_ref().map(|name| Path::new("/dev").join(name)),
        }
    }

    fn set_zswap(&mut self, name: &str, value: &str) -> Result<(), String> {
        let path = Path::new(ZSWAP).join(name);
        if !path.exists() {
            return Err("this kernel has no zswap".into());
        }
        self.restorer.request(&Action::Set(path, value.into())).map(drop)
    }

    /// Reads `files` first: otherwise the cgroup would be charged for what a run reads from the
    /// disk.
    pub(crate) fn enter(
        &mut self,
        side: Side,
        limit_bytes: u64,
        files: &[&Path],
    ) -> Result<Held, Refusal> {
        let failed = |why| Refusal::own(format!("{}: {why}", side.name()));
        for file in files {
            managed_program::read_into_page_cache(file).map_err(Refusal::own)?;
        }
        self.try_enter(side, limit_bytes).map_err(failed)
    }

    fn try_enter(&mut self, side: Side, limit_bytes: u64) -> Result<Held, String> {
        let swap = self.area_of(side);
        if let Some(path) = swap.clone() {
            let is_zswap = side == Side::KernelZswap;
            if Path::new(ZSWAP).exists() {
                self.set_zswap("enabled", if is_zswap { "Y" } else { "N" })?;
            }
            let value =
                if is_zswap { ZSWAP_PAGE_CLUSTER.into() } else { self.page_cluster.clone() };
            self.restorer.request(&Action::Set(PAGE_CLUSTER.into(), value))?;
            self.restorer.request(&Action::SwapOn(path))?;
        }
        let outside: Outside = match (side, self.zram.clone()) {
            (Side::KernelZram, Some(name)) => Box::new(move || zram::used_bytes(&name)),
            // Equal to pool_total_size, which not every kernel has.
            (Side::KernelZswap, _) if !self.counts_zswap() => {
                Box::new(|| kib_of("/proc/meminfo", "Zswap:", 1) << 10)
            }
            _ => Box::new(|| 0),
        };
        let group = match self.groups {
            Some(_) => Some(self.make_group(limit_bytes, !side.is_softswap())?),
            None => None,
        };
        let dir = group.as_ref().map(|group| group.dir.clone());
        let watch = GroupWatch::start(dir, swap.clone(), outside);
        let exceeds = side == Side::KernelZswap && self.counts_zswap();
        Ok(Held { group, swap, watch, exceeded_limit_bytes: exceeds.then_some(limit_bytes) })
    }

    pub(crate) fn remove_cgroup(&mut self, held: Held) -> Result<Bounds, Refusal> {
        let Held { group, swap, watch, exceeded_limit_bytes } = held;
        let mut bounds = watch.stop();
        if let Some(group) = group {
            bounds.peak_bytes = group.peak_bytes().map_err(Refusal::own)?;
            bounds.oom_kills = group.oom_kills().map_err(Refusal::own)?;
            self.restorer.request(&Action::RemoveGroup(group.dir)).map_err(Refusal::own)?;
        }
        self.swap_off(swap)?;
        Ok(exceeded_limit_bytes.map_or(bounds, |limit_bytes| bounds.within(limit_bytes)))
    }

    pub(crate) fn settings(&self) -> Object {
        let version = match self.groups.map(|groups| groups.version) {
            None => "-",
            Some(GroupVersion::One) => "1",
            Some(GroupVersion::Two) => "2",
        };
        let zswap = |name: &str| read_setting(&format!("{ZSWAP}/{name}"));
        object! {
            swappiness: read_setting("/proc/sys/vm/swappiness"),
            transparent_huge_pages: read_setting("/sys/kernel/mm/transparent_hugepage/enabled"),
            zswap_compressor: zswap("compressor"),
            zswap_max_pool_percent: zswap("max_pool_percent"),
            cgroup_version: version,
            page_cluster: self.page_cluster,
            page_cluster_zswap: ZSWAP_PAGE_CLUSTER,
            zram_algorithm: zram::ALGORITHM,
        }
    }
}

impl Held {
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
        None => managed_program::command("env"),
        Some(group) => {
            let mut shell = managed_program::command("/bin/sh");
            // The shell joins the cgroup, and only `env` sets LD_PRELOAD.
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

fn read_setting(path: &str) -> String {
    fs::read_to_string(path).map_or("-".into(), |text| text.trim().to_string())
}

const PAUSE: Duration = Duration::from_millis(5);
/// Reads of the cgroup's statistics for each read of memory outside it, which changes slowly.
const OUTSIDE_EVERY: usize = 4;

type Outside = Box<dyn Fn() -> u64 + Send>;

/// Returns a number: the `word` of the line that begins with `first`.
fn kib_of(path: &str, first: &str, word: usize) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(first));
    line.and_then(|line| line.split_whitespace().nth(word)?.parse().ok()).unwrap_or(0)
}

/// Reads the statistics of a cgroup, and of compressed pages outside it, until stopped.
///
/// The kernel's sides need the reads. Reclaim decides by a cgroup's statistics whether to
/// deactivate pages, and the kernel updates them every few seconds or when they are read. If a
/// program fills its cgroup sooner, its pages are active while the statistics say the opposite.
/// Reclaim then scans no page, and the kernel OOM-kills the program.
struct GroupWatch {
    until: Sender<()>,
    thread: JoinHandle<Bounds>,
}

impl GroupWatch {
    fn start(group: Option<PathBuf>, swap: Option<PathBuf>, outside: Outside) -> GroupWatch {
        let (until, ended) = channel();
        let thread = std::thread::spawn(move || {
            let before_bytes = outside();
            let mut peaks = Bounds::default();
            for at in 0.. {
                if let Some(group) = &group {
                    let _ = fs::read(group.join("memory.stat"));
                }
                let last = ended.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout);
                if last || at % OUTSIDE_EVERY == 0 {
                    let more = outside().saturating_sub(before_bytes);
                    peaks.outside_bytes = peaks.outside_bytes.max(more);
                    // name, kind, size, used
                    let used = |path: &Path| Some(kib_of("/proc/swaps", path.to_str()?, 3) << 10);
                    let used = swap.as_deref().and_then(used).unwrap_or(0);
                    peaks.swapped_bytes = peaks.swapped_bytes.max(used);
                }
                if last {
                    break;
                }
            }
            peaks
        });
        GroupWatch { until, thread }
    }

    fn stop(self) -> Bounds {
        drop(self.until);
        self.thread.join().unwrap_or_default()
    }
}
