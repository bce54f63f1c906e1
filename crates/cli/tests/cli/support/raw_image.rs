//! File systems in images, in which tests of raw swap files compare all other files.

use super::control_client::eventually;
use super::{disk_dir, softswap_with};
use crate::common::area::{MIB, output_of, succeeds};
use crate::common::{Loop, is_root, set_mode, skip, tool};
use rustix::fs::{FallocateFlags, fallocate};
use softswap_testkit::mounts;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) const AREA_BYTES: u64 = 64 * MIB;
/// Size of a foreign file, and so of a gap.
pub(crate) const PIECE_BYTES: u64 = 128 << 10;
/// The list of free blocks has this name among the digests of files.
pub(crate) const FREE: &str = "free blocks";

pub(crate) struct Image {
    pub(crate) device: PathBuf,
    /// Loop devices from top to bottom.
    _loops: Vec<Loop>,
    pub(crate) kind: &'static str,
    dir: TempDir,
    pub(crate) area_bytes: u64,
}

impl Image {
    pub(crate) fn of(kind: &'static str) -> Option<Image> {
        // mkfs.xfs refuses less than 300 MiB.
        let mib = if kind == "xfs" { 320 } else { 256 };
        Image::sized(kind, mib * MIB, AREA_BYTES)
    }

    pub(crate) fn sized(kind: &'static str, image_bytes: u64, area_bytes: u64) -> Option<Image> {
        let dir = disk_dir();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(image_bytes).unwrap();
        let Some(device) = Loop::over(&path).filter(|_| is_root()) else {
            skip("a file system of one's own needs root and a loop device");
            return None;
        };
        Image::on(device.path().to_owned(), vec![device], kind, dir, area_bytes)
    }

    pub(crate) fn on(
        device: PathBuf,
        loops: Vec<Loop>,
        kind: &'static str,
        dir: TempDir,
        area_bytes: u64,
    ) -> Option<Image> {
        let Some(mut mkfs) = tool(&format!("mkfs.{kind}")) else {
            skip(&format!("mkfs.{kind} is not installed"));
            return None;
        };
        // Small ext4 file systems have blocks of 1 KiB by default.
        let block_size: &[&str] = if kind == "ext4" { &["-b", "4096"] } else { &[] };
        assert!(succeeds(mkfs.arg("-q").args(block_size).arg(&device)));
        fs::create_dir(dir.path().join("mounted")).unwrap();
        let image = Image { device, _loops: loops, kind, dir, area_bytes };
        if image.mount(&[]) {
            return Some(image);
        }
        skip(&format!("{kind} cannot be mounted"));
        None
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// Only this test's thread sees the mount. A copy in the mount namespace of another process
    /// would keep the device busy.
    pub(crate) fn mount(&self, options: &[&str]) -> bool {
        let mut mount = tool("mount").unwrap();
        mounts::unshare().is_ok()
            && succeeds(mount.args(options).arg(&self.device).arg(self.root()))
    }

    pub(crate) fn unmount(&self) {
        eventually("the file system can be unmounted", || {
            succeeds(tool("umount").unwrap().arg(self.root()))
        });
    }

    /// Removes every second file, so that a file made afterwards has many extents.
    pub(crate) fn fragment(&self) {
        let content = |number: u64| {
            let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            word.repeat(PIECE_BYTES as usize / 8)
        };
        let mut count = 0;
        // Allocated first: ext4 and xfs would place written data later.
        let write = |number: u64| -> io::Result<()> {
            let mut file = allocate(&self.root().join(format!("foreign-{number}")), PIECE_BYTES)?;
            if number.is_multiple_of(2) { file.write_all(&content(number)) } else { Ok(()) }
        };
        while write(count).is_ok() {
            count += 1;
        }
        let _ = fs::remove_file(self.root().join(format!("foreign-{count}")));
        for number in (1..count).step_by(2) {
            fs::remove_file(self.root().join(format!("foreign-{number}"))).unwrap();
        }
        rustix::fs::sync();
    }

    /// Returns digests of the list of free blocks, and of all files but the area, from the device.
    pub(crate) fn foreign(&self) -> BTreeMap<PathBuf, u64> {
        self.unmount();
        let free = self.free_blocks();
        assert!(self.mount(&[]));
        let files = fs::read_dir(self.root()).unwrap().map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.is_file() && !path.ends_with("swap"));
        files
            .map(|path| {
                let content = fs::read(&path).unwrap();
                (path, digest(&content))
            })
            .chain([(PathBuf::from(FREE), free)])
            .collect()
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        let (name, arguments): (_, &[&str]) = match self.kind {
            "ext4" => ("dumpe2fs", &[]),
            _ => ("xfs_db", &["-r", "-c", "freesp -d"]),
        };
        let text = output_of(tool(name).unwrap().args(arguments).arg(&self.device));
        let is_list = |line: &&str| self.kind == "xfs" || line.contains("Free blocks: ");
        let lines: Vec<&str> = text.lines().filter(is_list).collect();
        assert!(!lines.is_empty(), "{text}");
        digest(lines.join("\n").as_bytes())
    }

    pub(crate) fn area(&self) -> PathBuf {
        self.root().join("swap")
    }

    pub(crate) fn allocate_area(&self) -> PathBuf {
        allocate(&self.area(), self.area_bytes).unwrap();
        set_mode(&self.area(), 0o600);
        self.area()
    }

    pub(crate) fn make_area(&self) -> PathBuf {
        let area = self.allocate_area();
        assert!(succeeds(softswap_with(&["mkswap", "--raw"]).arg(&area)));
        area
    }

    /// Returns the area, and the digests of the other files.
    pub(crate) fn fragmented(self) -> (Image, PathBuf, BTreeMap<PathBuf, u64>) {
        self.fragment();
        let (area, before) = (self.make_area(), self.foreign());
        (self, area, before)
    }

    pub(crate) fn expect_clean(self) {
        self.unmount();
        let check = match self.kind {
            "ext4" => ["e2fsck", "-fn"],
            _ => ["xfs_repair", "-n"],
        };
        let output = tool(check[0]).unwrap().arg(check[1]).arg(&self.device).output().unwrap();
        let text =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        assert!(output.status.success(), "{}", text.concat());
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = tool("chattr").map(|mut chattr| chattr.arg("-i").arg(self.area()).output());
        let _ = tool("umount").map(|mut umount| umount.arg("--lazy").arg(self.root()).output());
    }
}

pub(crate) fn allocate(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::create(path)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    Ok(file)
}

pub(crate) fn digest(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}
