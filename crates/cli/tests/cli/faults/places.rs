//! Swap locations for the fault tests, removed on drop.

use crate::common::{Loop, Mounted, is_root};
use crate::support::disk_dir;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::{TempDir, TempPath};

const MIB: u64 = 1 << 20;

pub(crate) fn tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new("nice").arg(name).args(arguments).env("PATH", path).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{name} {}: {}", arguments.join(" "), text(&output.stderr)))
    }
}

/// ext4 on a loop device. The order of the fields is the order of their drops.
pub(crate) struct Disk {
    mounted: Option<Mounted>,
    pub(crate) device: Loop,
    pub(crate) image: PathBuf,
    point: PathBuf,
    /// The tmpfs that contains the image, if the disk has its own.
    tmpfs: Option<Mounted>,
    dir: TempDir,
}

impl Disk {
    pub(crate) fn of(mib: u64) -> Result<Disk, String> {
        Disk::made(mib, None)
    }

    /// Makes a sparse image with `storage_mib` of storage. Writes fail when that is used up.
    pub(crate) fn thin_provisioned(mib: u64, storage_mib: u64) -> Result<Disk, String> {
        Disk::made(mib, Some(storage_mib))
    }

    fn made(mib: u64, storage_mib: Option<u64>) -> Result<Disk, String> {
        if !is_root() {
            return Err("mounting needs root".into());
        }
        let dir = disk_dir();
        let [point, tmpfs_point] = ["mounted", "shelf"].map(|name| dir.path().join(name));
        std::fs::create_dir(&point).expect("a directory");
        std::fs::create_dir(&tmpfs_point).expect("a directory");
        let text = |path: &Path| path.display().to_string();
        let tmpfs = storage_mib.map(|mib| {
            let size = format!("size={mib}m");
            tool("mount", &["-t", "tmpfs", "-o", &size, "none", &text(&tmpfs_point)])
                .map(|_| Mounted(tmpfs_point.clone()))
        });
        let tmpfs = tmpfs.transpose()?;
        let image = tmpfs.as_ref().map_or(dir.path(), |tmpfs| &tmpfs.0).join("image");
        let made = File::create_new(&image).and_then(|file| file.set_len(mib * MIB));
        made.map_err(|error| error.to_string())?;
        let device =
            Loop::with(&image, &["--direct-io=off"]).ok_or("no loop device is available")?;
        // Otherwise the kernel writes metadata later, in the background.
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        tool("mkfs.ext4", &["-q", "-F", "-m", "0", "-E", options, &device.0])?;
        tool("mount", &["-o", "errors=remount-ro", &device.0, &text(&point)])?;
        let mounted = Some(Mounted(point.clone()));
        Ok(Disk { mounted, device, image, point, tmpfs, dir })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let space = rustix::fs::statvfs(&self.point).expect("a file system");
        space.f_bfree * space.f_frsize
    }

    pub(crate) fn is_empty(&self) -> bool {
        let entries = std::fs::read_dir(&self.point).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name() != "lost+found").count() == 0
    }

    /// The file is removed on drop.
    pub(crate) fn fill(&self) -> TempPath {
        let path = self.point.join("filler");
        let file = File::create(&path).expect("a file");
        let (mut at, mut step) = (0, 64 * MIB);
        while step >= 4096 {
            let flags = rustix::fs::FallocateFlags::empty();
            match rustix::fs::fallocate(&file, flags, at, step) {
                Ok(()) => at += step,
                Err(_) => step /= 2,
            }
        }
        TempPath::try_from_path(path).expect("an absolute path")
    }

    pub(crate) fn set_storage(&self, mib: u64) -> Result<(), String> {
        let tmpfs = self.tmpfs.as_ref().expect("the disk has its own tmpfs");
        let size = format!("remount,size={mib}m");
        tool("mount", &["-o", &size, &tmpfs.0.display().to_string()]).map(drop)
    }

    pub(crate) fn unmount_lazily(&mut self) -> Result<(), String> {
        tool("umount", &["--lazy", &self.point.display().to_string()])?;
        std::mem::forget(self.mounted.take());
        Ok(())
    }

    pub(crate) fn remount(&self, options: &str) -> Result<(), String> {
        let options = format!("remount,{options}");
        tool("mount", &["-o", &options, &self.point.display().to_string()]).map(drop)
    }

    /// This directory must outlive mounts of images stored in it.
    pub(crate) fn keeps(&self) -> &Path {
        self.dir.path()
    }
}
