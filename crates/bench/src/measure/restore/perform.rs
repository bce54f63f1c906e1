//! Changing the machine, each change noted so that it can be put back.

use super::request::{Act, Answer};
use super::undo::{Change, Undo};
use super::{group, zram};
use softswap_cli::memory_limits::{GroupVersion, Hierarchy, hierarchies};
use softswap_cli::refusal::plain;
use softswap_engine::store::swap::header::Header;
use softswap_engine::store::swap::named::Storage;
use softswap_sys::kernel_swap::{HIGHEST_PRIORITY, swap_on};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Every process may lock it, and it is the same one for all.
const LOCK: &str = "/proc/swaps";
/// How long another restorer may take before this one gives up.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
const LOCK_PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn perform(act: Act, undo: &mut Undo) -> Answer {
    let nothing = |()| String::new();
    match act {
        Act::HoldSwap => hold_swap(undo).map(nothing),
        Act::MakeDirectory { under } => make_directory(&under, undo),
        Act::AddZram { bytes } => add_zram(bytes, undo),
        Act::MakeSwapFile { path, bytes } => {
            make_file(&path, bytes).map_err(|why| format!("{}: {why}", path.display()))?;
            format(&path).map(nothing)
        }
        Act::Format { path } => format(&path).map(nothing),
        Act::SwapOn { path } => {
            swap_on(&path, HIGHEST_PRIORITY)
                .map_err(|e| format!("`swapon {}` failed: {}", path.display(), plain(&e)))?;
            undo.note(Change::Swapping(path));
            Ok(String::new())
        }
        Act::SwapOff { path } => undo.one(&Change::Swapping(path)).map(nothing),
        Act::Set { path, value } => set(path, &value, undo),
        Act::MakeGroup { limit_bytes, may_swap } => make_group(limit_bytes, may_swap, undo),
        Act::RemoveGroup { path } => undo.one(&Change::Group(path)).map(nothing),
    }
}

fn hold_swap(undo: &mut Undo) -> Result<(), String> {
    use rustix::fs::{FlockOperation, flock};
    if undo.held.is_some() {
        return Ok(());
    }
    let file = File::open(LOCK).map_err(|error| format!("{LOCK}: {}", plain(&error)))?;
    let end = Instant::now() + LOCK_PATIENCE;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > end {
            return Err(format!(
                "another benchmark changes the kernel's swap for more than {} s: wait until it \
                 has ended",
                LOCK_PATIENCE.as_secs()
            ));
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    undo.held = Some(file);
    Ok(())
}

fn make_directory(under: &Path, undo: &mut Undo) -> Answer {
    let path = under.join(format!("softswap-bench-{}", Uuid::new_v4()));
    let failed = |error: io::Error| {
        format!("no directory can be made in {}: {}", under.display(), plain(&error))
    };
    fs::create_dir(&path).map_err(failed)?;
    // Swapped pages may lie in it.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    undo.note(Change::Directory(path.clone()));
    fs::set_permissions(&path, mode).map_err(failed)?;
    text_of(&path)
}

fn add_zram(bytes: u64, undo: &mut Undo) -> Answer {
    let number = zram::add()?;
    undo.note(Change::Zram(number));
    zram::set_up(number, bytes)?;
    Ok(format!("zram{number}"))
}

fn make_file(path: &Path, bytes: u64) -> Result<(), String> {
    use rustix::fs::{FallocateFlags, fallocate};
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| plain(&error))?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(|error| plain(&error.into()))
}

fn format(path: &Path) -> Result<(), String> {
    let mut storage = Storage::open(path).map_err(|error| error.to_string())?;
    let header = Header {
        // At most 2^32 pages: the last one's number fits.
        last_page: (storage.pages() - 1) as u32,
        bad_pages: Vec::new(),
        uuid: Uuid::new_v4().into_bytes(),
        label: Default::default(),
        is_swapped: false,
    };
    let failed = |error| format!("{}: no swap header could be written: {error}", path.display());
    storage.format(&header).map_err(|error| failed(plain(&error)))
}

fn set(path: PathBuf, value: &str, undo: &mut Undo) -> Answer {
    let failed = |e: io::Error| format!("{} cannot be {value}: {}", path.display(), plain(&e));
    let now = fs::read_to_string(&path).map_err(failed)?.trim().to_string();
    if undo.was(&path).is_none() {
        undo.note(Change::Setting { path: path.clone(), was: now.clone() });
    }
    if now != value {
        fs::write(&path, value).map_err(failed)?;
    }
    Ok(now)
}

fn make_group(limit_bytes: Option<u64>, may_swap: bool, undo: &mut Undo) -> Answer {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let hierarchy = group::with_memory(hierarchies()).ok_or(
        "there is no memory controller for control groups: mount one, \
         `mount -t cgroup2 cgroup2 /sys/fs/cgroup`, on a kernel that was booted without \
         cgroup_disable=memory",
    )?;
    let number = NEXT.fetch_add(1, Relaxed);
    let name = format!("{}{}-{number}", group::PREFIX, std::process::id());
    let path = add_group(&hierarchy, &name, undo)?;
    group::hold_to(hierarchy.version, &path, limit_bytes, may_swap)?;
    text_of(&path)
}

/// An empty group in the first place that takes one.
fn add_group(hierarchy: &Hierarchy, name: &str, undo: &mut Undo) -> Result<PathBuf, String> {
    let mut refused = Vec::new();
    for parent in group::parents(hierarchy) {
        let path = parent.join(name);
        let made = hand_down_memory(hierarchy.version, &parent, undo)
            .and_then(|()| fs::create_dir(&path).map_err(|error| plain(&error)));
        match made {
            Ok(()) => {
                undo.note(Change::Group(path.clone()));
                return Ok(path);
            }
            Err(why) => refused.push(format!("in {}: {why}", parent.display())),
        }
    }
    Err(format!("no control group can be made {}", refused.join("; ")))
}

fn hand_down_memory(version: GroupVersion, parent: &Path, undo: &mut Undo) -> Result<(), String> {
    if version == GroupVersion::Two && group::hand_down_memory(parent)? {
        undo.note(Change::MemoryHandedDown(parent.into()));
    }
    Ok(())
}

fn text_of(path: &Path) -> Answer {
    let text = path.to_str().ok_or_else(|| format!("{} is not text", path.display()))?;
    Ok(text.to_string())
}
