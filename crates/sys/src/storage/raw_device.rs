//! The block device below a swap file (`st_dev`, named in `/sys/dev/block`), for I/O that bypasses
//! the file system. It is opened without O_EXCL, which the file system holds.

use crate::descriptor::move_high;
use crate::file::{SwapFile, plain};
use crate::holders::mount_of;
use crate::memory::PAGE_SIZE;
use rustix::fs::{FileType, IFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;

/// Reasons not to write the device in place of the file. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    #[error("it is on {name}, {why}: only files on ext4 and xfs can be used raw")]
    FileSystem { name: String, why: &'static str },
    #[error(
        "its file system has blocks of {bytes} bytes, less than a page of {PAGE_SIZE}: make a \
         file system with blocks of a page"
    )]
    SmallBlocks { bytes: u64 },
    #[error(
        "its file system writes data to its journal first (data=journal), and could overwrite \
         pages with old content: mount it with data=ordered"
    )]
    Journaled,
    #[error("its file system has a second device for data (rtdev), so its blocks are ambiguous")]
    TwoDevices,
    #[error(
        "the device {}:{} of its file system has no entry in /sys/dev/block: mount /sys",
        number.0, number.1
    )]
    NoDevice { number: (u32, u32) },
    #[error("the device {path} is missing, or is another device: mount /dev")]
    NoNode { path: PathBuf },
    #[error(
        "the device {path} cannot be opened by this user ({}): run softswap as root, or as a \
         member of the group that may write the device (disk); in a container, allow the device",
        plain(cause)
    )]
    Denied { path: PathBuf, cause: io::Error },
    #[error(
        "the kernel allows no writes to the mounted device {path}: it was built without \
         CONFIG_BLK_DEV_WRITE_MOUNTED, or started with bdev_allow_write_mounted=0"
    )]
    MountedWrites { path: PathBuf },
    #[error("the device {path} is read-only")]
    ReadOnly { path: PathBuf },
    #[error("the device {path} refuses direct I/O in pages ({})", plain(cause))]
    NotDirect { path: PathBuf, cause: io::Error },
    #[error("the device {path} is zoned, so that its blocks cannot be written in any order")]
    Zoned { path: PathBuf },
    #[error("its file system cannot be examined ({})", plain(_0))]
    Io(#[from] io::Error),
}

impl From<Errno> for RawError {
    fn from(errno: Errno) -> RawError {
        RawError::Io(errno.into())
    }
}

/// Checks that the file system keeps blocks in place and writes directly to them. Returns its name.
pub fn check_file_system(file: impl AsFd) -> Result<&'static str, RawError> {
    let stat = rustix::fs::fstat(&file)?;
    let fs = rustix::fs::fstatfs(&file)?;
    let mount = mount_of(stat.st_dev);
    let name = match (fs.f_type, &mount) {
        // ext2 and ext3 have the same number.
        (EXT4, Some(mount)) if mount.file_system == "ext4" => "ext4",
        (XFS, Some(mount)) if mount.file_system == "xfs" => "xfs",
        _ => {
            let named = mount.map(|mount| mount.file_system);
            let (name, why) = refused_file_system(fs.f_type, named);
            return Err(RawError::FileSystem { name, why });
        }
    };
    let options = mount.map(|mount| mount.options).unwrap_or_default();
    let has = |text: &str, wanted: &str| text.split([',', '\n']).any(|it| it.starts_with(wanted));
    if name == "xfs" && has(&options, "rtdev=") {
        return Err(RawError::TwoDevices);
    }
    let block_bytes = u64::try_from(fs.f_bsize).unwrap_or(0);
    if block_bytes < PAGE_SIZE as u64 {
        return Err(RawError::SmallBlocks { bytes: block_bytes });
    }
    if name == "ext4" {
        // The mount table omits options that are defaults of the superblock.
        let all = sysfs_name(stat.st_dev)
            .and_then(|name| std::fs::read_to_string(format!("/proc/fs/ext4/{name}/options")).ok())
            .unwrap_or_default();
        let flags = rustix::fs::ioctl_getflags(&file)?;
        let is_journaled = has(&options, "data=journal") || has(&all, "data=journal");
        if is_journaled || flags.contains(IFlags::JOURNALING) {
            return Err(RawError::Journaled);
        }
    }
    Ok(name)
}

fn refused_file_system(magic: i64, mounted: Option<String>) -> (String, &'static str) {
    const MOVES: &str = "which moves the blocks of a file when they are written";
    const NO_DEVICE: &str = "which has no block device";
    let (name, why) = match magic {
        EXT4 => ("ext2 or ext3", "an older file system than ext4"),
        0x9123_683e => ("btrfs", MOVES),
        0xf2f5_2010 => ("f2fs", MOVES),
        0xca45_1a4e => ("bcachefs", MOVES),
        0x2fc1_2fc1 => ("zfs", MOVES),
        0x0102_1994 => ("tmpfs", NO_DEVICE),
        0x794c_7630 => ("overlay", NO_DEVICE),
        0x6573_5546 => ("fuse", "whose blocks only its server knows"),
        0x6969 => ("nfs", NO_DEVICE),
        0x0102_1997 => ("9p", NO_DEVICE),
        _ => ("", "which softswap does not know to keep blocks in place"),
    };
    match mounted {
        Some(mounted) if name.is_empty() || magic == EXT4 => (mounted, why),
        _ if name.is_empty() => ("an unknown file system".into(), why),
        _ => (name.into(), why),
    }
}

fn directory(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    format!("/sys/dev/block/{major}:{minor}").into()
}

fn sysfs_name(device: u64) -> Option<String> {
    let target = std::fs::canonicalize(directory(device)).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

fn node_of(device: u64) -> Result<PathBuf, RawError> {
    let number = (rustix::fs::major(device), rustix::fs::minor(device));
    let no_device = |_| RawError::NoDevice { number };
    let text = std::fs::read_to_string(directory(device).join("uevent")).map_err(no_device)?;
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let path = Path::new("/dev").join(name.ok_or(RawError::NoDevice { number })?);
    let is_it = rustix::fs::stat(&path).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode).is_block_device() && stat.st_rdev == device
    });
    if is_it { Ok(path) } else { Err(RawError::NoNode { path }) }
}

/// Returns an attribute of the device's queue; for a partition, of the queue of its disk.
fn queue(device: u64, name: &str) -> Option<String> {
    let places = ["queue", "../queue"].map(|it| directory(device).join(it).join(name));
    let text = places.iter().find_map(|place| std::fs::read_to_string(place).ok())?;
    Some(text.trim().to_owned())
}

pub fn open(device: u64) -> Result<SwapFile, RawError> {
    let path = node_of(device)?;
    if queue(device, "zoned").is_some_and(|zoned| zoned != "none") {
        return Err(RawError::Zoned { path });
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::DIRECT;
    let fd = match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::BUSY | Errno::TXTBSY) => return Err(RawError::MountedWrites { path }),
        Err(Errno::ROFS) => return Err(RawError::ReadOnly { path }),
        // EPERM comes from a container's list of devices.
        Err(Errno::ACCESS) if may_write(&path) => return Err(RawError::ReadOnly { path }),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => {
            return Err(RawError::Denied { path, cause: errno.into() });
        }
        Err(errno) => return Err(RawError::NotDirect { path, cause: errno.into() }),
    };
    let stat = rustix::fs::fstat(&fd)?;
    if !FileType::from_raw_mode(stat.st_mode).is_block_device() || stat.st_rdev != device {
        return Err(RawError::NoNode { path });
    }
    if rustix::fs::ioctl_blksszget(&fd)? as usize > PAGE_SIZE {
        return Err(RawError::NotDirect { path, cause: Errno::INVAL.into() });
    }
    // Opening can succeed although the device refuses writes.
    match rustix::io::pwrite(&fd, &[], 0) {
        Ok(_) => Ok(SwapFile::of(move_high(fd), true)),
        Err(Errno::PERM | Errno::ACCESS | Errno::ROFS) => Err(RawError::ReadOnly { path }),
        Err(errno) => Err(RawError::NotDirect { path, cause: errno.into() }),
    }
}

fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

pub fn open_below(file: &SwapFile) -> Result<SwapFile, RawError> {
    open(file.identity().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_move_blocks_are_refused_by_name() {
        for (magic, mounted, name) in [
            (0x9123_683e, None, "btrfs"),
            (0xf2f5_2010, Some("f2fs"), "f2fs"),
            (0x0102_1994, Some("tmpfs"), "tmpfs"),
            (EXT4, Some("ext3"), "ext3"),
            (0x1234, Some("ntfs3"), "ntfs3"),
            (0x1234, None, "an unknown file system"),
        ] {
            let (found, why) = refused_file_system(magic, mounted.map(String::from));
            assert!(found == name && !why.is_empty(), "{magic:x}");
        }
        let refused = check_file_system(std::fs::File::open("/proc/self/status").unwrap());
        assert!(matches!(refused, Err(RawError::FileSystem { .. })));
    }

    #[test]
    fn a_number_without_a_device_is_refused() {
        let refused = open(rustix::fs::makedev(0, 77)).unwrap_err();
        assert!(matches!(refused, RawError::NoDevice { number: (0, 77) }), "{refused}");
    }
}
