//! Reversible changes to the machine.

use super::group;
use super::zram::{self, ATTEMPTS, PAUSE, retried};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use softswap_cli::refusal::{OrRefuse, plain};
use softswap_engine::store::swap::header::Header;
use softswap_engine::store::swap::named::Storage;
use softswap_sys::memory_limits::{GroupVersion, hierarchies};
use softswap_testkit::kernel_swap::{HIGHEST_PRIORITY, swap_off, swap_on};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use uuid::Uuid;

/// Locked to change the kernel's swap. Every process may open it.
const LOCK: &str = "/proc/swaps";

/// One JSON object per line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Action {
    HoldSwap,
    /// The parent directory; the answer is the path of the new one.
    MakeDirectory(PathBuf),
    /// Also formats it. The answer is the device's name.
    AddZram(u64),
    MakeSwapFile(PathBuf, u64),
    SwapOn(PathBuf),
    SwapOff(PathBuf),
    Set(PathBuf, String),
    /// The answer is its directory.
    MakeGroup {
        limit_bytes: u64,
        may_swap: bool,
    },
    RemoveGroup(PathBuf),
}

pub(crate) type Answer = Result<String, String>;

#[derive(Debug, PartialEq, Eq)]
enum Change {
    Directory(PathBuf),
    Zram(u32),
    Swapping(PathBuf),
    Setting(PathBuf, String),
    /// Enabled by a v2 cgroup for its children.
    MemoryEnabled(PathBuf),
    Group(PathBuf),
}

#[derive(Default)]
pub(super) struct Changes {
    all: Vec<Change>,
    held: Option<File>,
}

impl Changes {
    pub(super) fn perform(&mut self, act: Action) -> Answer {
        let nothing = |()| String::new();
        match act {
            Action::HoldSwap => self.hold_swap().map(nothing),
            Action::MakeDirectory(under) => self.make_directory(&under),
            Action::AddZram(bytes) => {
                let number = zram::add()?;
                self.all.push(Change::Zram(number));
                zram::set_up(number, bytes)?;
                let name = format!("zram{number}");
                format(&Path::new("/dev").join(&name)).map(|()| name)
            }
            Action::MakeSwapFile(path, bytes) => {
                make_file(&path, bytes).or_text(path.display())?;
                format(&path).map(nothing)
            }
            Action::SwapOn(path) => {
                swap_on(&path, HIGHEST_PRIORITY)
                    .or_text(format!("`swapon {}` failed", path.display()))?;
                self.all.push(Change::Swapping(path));
                Ok(String::new())
            }
            Action::SwapOff(path) => self.undo_one(&Change::Swapping(path)).map(nothing),
            Action::Set(path, value) => self.set(path, &value).map(nothing),
            Action::MakeGroup { limit_bytes, may_swap } => self.make_group(limit_bytes, may_swap),
            Action::RemoveGroup(path) => self.undo_one(&Change::Group(path)).map(nothing),
        }
    }

    fn hold_swap(&mut self) -> Result<(), String> {
        if self.held.is_some() {
            return Ok(());
        }
        let file = File::open(LOCK).or_text(LOCK)?;
        let lock = || Ok(flock(&file, FlockOperation::NonBlockingLockExclusive)?);
        retried(lock, |_| true).map_err(|_| {
            let seconds = (PAUSE * ATTEMPTS).as_secs();
            format!(
                "another benchmark has used the kernel's swap for more than {seconds} s; wait \
                 until it exits"
            )
        })?;
        self.held = Some(file);
        Ok(())
    }

    fn make_directory(&mut self, under: &Path) -> Answer {
        let path = under.join(format!("softswap-bench-{}", Uuid::new_v4()));
        // Files in the directory may contain swapped pages.
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.or_text(format!("no directory can be created in {}", under.display()))?;
        self.all.push(Change::Directory(path.clone()));
        text_of(&path)
    }

    fn set(&mut self, path: PathBuf, value: &str) -> Result<(), String> {
        let failed = format!("{} cannot be set to {value}", path.display());
        let now = fs::read_to_string(&path).or_text(&failed)?.trim().to_string();
        let is_it = |change: &Change| matches!(change, Change::Setting(noted, _) if *noted == path);
        let is_noted = self.all.iter().any(is_it);
        if now != value {
            fs::write(&path, value).or_text(&failed)?;
        }
        if !is_noted {
            self.all.push(Change::Setting(path, now));
        }
        Ok(())
    }

    fn make_group(&mut self, limit_bytes: u64, may_swap: bool) -> Answer {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let hierarchy = group::with_memory(hierarchies()).ok_or(
            "there is no memory controller for control groups: mount one, \
             `mount -t cgroup2 cgroup2 /sys/fs/cgroup`, on a kernel that was booted without \
             cgroup_disable=memory",
        )?;
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("{}{}-{number}", group::PREFIX, std::process::id());
        let mut refused = Vec::new();
        for parent in group::parents(&hierarchy) {
            let path = parent.join(&name);
            let made = match hierarchy.version {
                GroupVersion::One => Ok(false),
                GroupVersion::Two => group::enable_memory(&parent),
            };
            let made = made.and_then(|is_new| {
                self.all.extend(is_new.then(|| Change::MemoryEnabled(parent.clone())));
                fs::create_dir(&path).map_err(|error| plain(&error))
            });
            match made {
                Ok(()) => {
                    self.all.push(Change::Group(path.clone()));
                    group::set_limits(hierarchy.version, &path, limit_bytes, may_swap)?;
                    return text_of(&path);
                }
                Err(why) => refused.push(format!("in {}: {why}", parent.display())),
            }
        }
        Err(format!("no control group can be created {}", refused.join("; ")))
    }

    fn undo_one(&mut self, change: &Change) -> Result<(), String> {
        let at = self.all.iter().rposition(|noted| noted == change);
        let at = at.ok_or_else(|| format!("{change:?} is not a change of this restorer"))?;
        undo(change)?;
        self.all.remove(at);
        Ok(())
    }

    /// Undoes the changes in reverse order. Returns the failures.
    pub(super) fn undo_all(mut self) -> Vec<String> {
        let mut failed = Vec::new();
        while let Some(change) = self.all.pop() {
            failed.extend(undo(&change).err());
        }
        failed
    }
}

fn undo(change: &Change) -> Result<(), String> {
    match change {
        Change::Directory(path) => {
            fs::remove_dir_all(path).or_text(format!("{} could not be removed", path.display()))
        }
        Change::Zram(number) => zram::remove(*number),
        Change::Swapping(path) => {
            // Pages may not be freed yet.
            retried(|| swap_off(path), |_| true)
                .or_text(format!("`swapoff {}` failed", path.display()))
        }
        Change::Setting(path, was) => {
            fs::write(path, was).or_text(format!("{} could not be reset to {was}", path.display()))
        }
        Change::MemoryEnabled(parent) => group::disable_memory(parent),
        Change::Group(path) => retried(|| remove_group(path), |_| true)
            .or_text(format!("{} could not be removed", path.display())),
    }
}

/// Fails until the last process has exited.
fn remove_group(path: &Path) -> io::Result<()> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    for pid in text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    fs::remove_dir(path)
}

fn make_file(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, bytes)?)
}

fn format(path: &Path) -> Result<(), String> {
    let mut storage = Storage::open(path).map_err(|error| error.to_string())?;
    let header = Header::new(storage.pages(), Uuid::new_v4().into_bytes(), Default::default());
    storage.format(&header).or_text(format!("{}: no swap header could be written", path.display()))
}

fn text_of(path: &Path) -> Answer {
    let text = path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_undone_and_settings_restored() {
        let dir = tempfile::tempdir().unwrap();
        let setting = dir.path().join("setting");
        fs::write(&setting, "60\n").unwrap();
        let mut changes = Changes::default();
        let made = changes.perform(Action::MakeDirectory(dir.path().into())).unwrap();
        fs::write(Path::new(&made).join("file"), "x").unwrap();
        for value in ["0", "100"] {
            let act = Action::Set(setting.clone(), value.into());
            changes.perform(act).unwrap();
            assert_eq!(fs::read_to_string(&setting).unwrap(), value);
        }
        let unknown = Action::SwapOff("/dev/other".into());
        assert!(changes.perform(unknown).unwrap_err().contains("not a change of this restorer"));
        assert_eq!(changes.undo_all(), Vec::<String>::new());
        assert_eq!(fs::read_to_string(&setting).unwrap(), "60");
        assert!(!Path::new(&made).exists());
    }
}
