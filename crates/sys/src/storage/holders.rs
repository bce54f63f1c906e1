//! Finds the current use of a file or block device, as the kernel reports it. The result explains
//! errors only: the use may change, and other mount namespaces are not visible.

use crate::raw;
use rustix::fs::{FileType, Stat};
use std::fmt;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Use {
    Mounted(PathBuf),
    ActiveSwap,
    /// A volume or an array uses the device.
    HeldBy(String),
    /// A loop device uses the file as its backing file.
    Behind(String),
    Part(String, Box<Use>),
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(point) => write!(f, "mounted at {}", point.display()),
            Self::ActiveSwap => f.write_str("active kernel swap"),
            Self::HeldBy(name) => write!(f, "held by {name}"),
            Self::Behind(name) => write!(f, "the backing file of /dev/{name}"),
            Self::Part(name, of) => write!(f, "in use: its partition {name} is {of}"),
        }
    }
}

impl Use {
    /// Returns the command that ends the use; `None` for the root file system.
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Mounted(point) if point.as_path() == Path::new("/") => return None,
            Self::Mounted(point) => format!("unmount it with `umount {}`", point.display()),
            Self::ActiveSwap => "disable it with `swapoff`".into(),
            Self::HeldBy(name) => format!("remove {name}"),
            Self::Behind(name) => format!("detach it with `losetup --detach /dev/{name}`"),
            Self::Part(_, of) => return of.remedy(),
        })
    }
}

pub fn use_of_path(path: &Path) -> Option<Use> {
    use_of(&rustix::fs::stat(path).ok()?)
}

pub fn use_of(stat: &Stat) -> Option<Use> {
    if is_active_swap(stat) {
        return Some(Use::ActiveSwap);
    }
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => use_of_device(stat.st_rdev).or_else(|| use_of_part(stat.st_rdev)),
        FileType::RegularFile => loop_device_on(stat).map(Use::Behind),
        _ => None,
    }
}

fn use_of_device(device: u64) -> Option<Use> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    if let Some(point) = mount_point_of(device, &mounts) {
        return Some(Use::Mounted(point));
    }
    names_in(&sysfs(device).join("holders")).next().map(Use::HeldBy)
}

fn use_of_part(disk: u64) -> Option<Use> {
    names_in(&sysfs(disk)).find_map(|name| {
        let part = sysfs(disk).join(&name);
        part.join("partition").exists().then_some(())?;
        let number = std::fs::read_to_string(part.join("dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let used = if is_swap_device(device) { Use::ActiveSwap } else { use_of_device(device)? };
        Some(Use::Part(name, Box::new(used)))
    })
}

fn sysfs(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    format!("/sys/dev/block/{major}:{minor}").into()
}

fn names_in(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

pub fn mount_point_of(device: u64, mounts: &[u8]) -> Option<PathBuf> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    mounts.split(|&byte| byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        // Some file systems (btrfs) have numbers of their own; only the source names the device.
        let source = || unescaped(fields.get(dash + 2)?);
        let is_mounted_here = *fields.get(2)? == number.as_bytes()
            || source().is_some_and(|path| path.starts_with("/dev") && is_device(&path, device));
        is_mounted_here.then(|| unescaped(fields.get(4)?))?
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) file_system: String,
    pub(crate) options: String,
}

pub(crate) fn mount_of(device: u64) -> Option<Mount> {
    mount_in(device, &std::fs::read_to_string("/proc/self/mountinfo").ok()?)
}

fn mount_in(device: u64, mounts: &str) -> Option<Mount> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (before.split(' ').nth(2)? == number).then_some(())?;
        let mut fields = after.split(' ');
        let file_system = fields.next()?.to_owned();
        Some(Mount { file_system, options: fields.nth(1)?.to_owned() })
    })
}

fn is_device(path: &Path, device: u64) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode).is_block_device() && stat.st_rdev == device
    })
}

/// Returns active swap files and devices, except files removed or in another mount namespace.
fn swaps() -> impl Iterator<Item = PathBuf> {
    let text = std::fs::read("/proc/swaps").unwrap_or_default();
    let lines: Vec<Vec<u8>> = text.split(|&b| b == b'\n').skip(1).map(<[u8]>::to_vec).collect();
    lines.into_iter().filter_map(|line| {
        unescaped(line.split(|byte| byte.is_ascii_whitespace()).next()?)
            .filter(|path| path.is_absolute())
    })
}

fn is_swap_device(device: u64) -> bool {
    swaps().any(|path| is_device(&path, device))
}

fn is_active_swap(stat: &Stat) -> bool {
    if FileType::from_raw_mode(stat.st_mode).is_block_device() {
        return is_swap_device(stat.st_rdev);
    }
    swaps().any(|path| {
        rustix::fs::stat(path)
            .is_ok_and(|swap| (swap.st_dev, swap.st_ino) == (stat.st_dev, stat.st_ino))
    })
}

fn loop_device_on(stat: &Stat) -> Option<String> {
    names_in(Path::new("/sys/block")).filter(|name| name.starts_with("loop")).find_map(|name| {
        let place = Path::new("/sys/block").join(&name).join("loop/backing_file");
        let mut path = std::fs::read(place).ok()?;
        path.truncate(path.strip_suffix(b"\n").map_or(path.len(), <[u8]>::len));
        let by_path = rustix::fs::stat(std::ffi::OsString::from_vec(path));
        let by_path = by_path.map(|backing| (backing.st_dev, backing.st_ino)).ok();
        // The path is that of another mount namespace, or of a name that was removed.
        let backing = || by_path.or_else(|| backing_of(&name));
        (backing()? == (stat.st_dev, stat.st_ino)).then_some(name)
    })
}

/// Returns device and inode of the backing file, if this process may open the loop device.
fn backing_of(name: &str) -> Option<(u64, u64)> {
    const LOOP_GET_STATUS64: usize = 0x4c05;
    /// Size of `struct loop_info64`, which begins with these two numbers.
    const WORDS: usize = 232 / size_of::<u64>();
    let device = std::fs::File::open(Path::new("/dev").join(name)).ok()?;
    let mut info = [0_u64; WORDS];
    let args =
        [device.as_raw_fd() as usize, LOOP_GET_STATUS64, info.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: for a loop device, the kernel writes a `struct loop_info64` to `info`. Other drivers
    // do not know the request.
    raw::check(unsafe { raw::syscall(libc::SYS_ioctl, args) }).ok()?;
    Some((info[0], info[1]))
}

/// Decodes a path in the kernel's tables, which encode blanks and the like as `\040`.
fn unescaped(field: &[u8]) -> Option<PathBuf> {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|digits| byte == b'\\' && is_octal(digits));
        match octal {
            Some(digits) => {
                path.push(digits.iter().fold(0_u8, |sum, digit| (sum << 3) | (digit - b'0')));
                rest = &after[3..];
            }
            None => {
                path.push(byte);
                rest = after;
            }
        }
    }
    (!path.is_empty()).then(|| std::ffi::OsString::from_vec(path).into())
}

fn is_octal(digits: &[u8]) -> bool {
    digits.iter().all(|digit| (b'0'..=b'7').contains(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_device_number() {
        let mounts = b"22 1 0:20 / /proc rw - proc proc rw\n\
            23 1 254:3 / /mnt/a\\040b\\134 rw,noatime shared:1 - ext4 /dev/vdc rw\n\
            24 1 254:4 / /srv rw - ext4 /dev/vdd rw\n";
        let point = |minor| mount_point_of(rustix::fs::makedev(254, minor), mounts);
        assert_eq!(point(3), Some("/mnt/a b\\".into()));
        assert_eq!(point(4), Some("/srv".into()));
        assert_eq!(point(5), None);
        assert_eq!(mount_point_of(0, b"garbage\n\n- - - -"), None);
        let mounts = std::str::from_utf8(mounts).unwrap();
        let mount = mount_in(rustix::fs::makedev(254, 3), mounts).unwrap();
        assert_eq!((&*mount.file_system, &*mount.options), ("ext4", "rw"));
        assert_eq!(mount_in(rustix::fs::makedev(254, 5), mounts), None);
    }

    #[test]
    fn every_use_has_description_and_remedy() {
        let table = [
            (Use::Mounted("/mnt".into()), "mounted at /mnt", "umount /mnt"),
            (Use::ActiveSwap, "active kernel swap", "swapoff"),
            (Use::HeldBy("dm-0".into()), "held by dm-0", "dm-0"),
            (
                Use::Behind("loop3".into()),
                "the backing file of /dev/loop3",
                "losetup --detach /dev/loop3",
            ),
        ];
        for (used, what, remedy) in table {
            assert_eq!(used.to_string(), what);
            assert!(used.remedy().unwrap().contains(remedy), "{used}");
            let part = Use::Part("sda1".into(), Box::new(used));
            assert!(part.to_string().ends_with(&format!("sda1 is {what}")), "{part}");
            assert!(part.remedy().unwrap().contains(remedy), "{part}");
        }
        assert_eq!(Use::Mounted("/".into()).remedy(), None);
    }

    #[test]
    fn unused_file_has_no_holder() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        assert_eq!(use_of_path(&path), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(use_of_path(&path), None);
    }
}
