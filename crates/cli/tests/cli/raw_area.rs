//! Raw swap files: `--swap FILE,raw`. Each test has its own file system on a loop device, and
//! compares all other files in it before and after. Needs root.

use crate::common::area::{MIB, succeeds};
use crate::common::{Loop, assert_contains_all, is_root, json_of, set_mode, skip, softswap, tool};
use crate::support::control_client::{eventually, wait_until};
use crate::support::processes::{children, kill};
use crate::support::{LIMIT, Running, Swapped, compiled, disk_dir, softswap_with};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Size of the image: mkfs.xfs refuses less than 300 MiB.
const IMAGE_BYTES: u64 = 320 * MIB;
const AREA_BYTES: u64 = 64 * MIB;
/// Size of a foreign file, and so of a gap.
const PIECE_BYTES: u64 = 128 << 10;

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// A mounted file system in an image.
struct Image {
    device: Option<Loop>,
    kind: &'static str,
    dir: TempDir,
}

impl Image {
    fn of(kind: &'static str) -> Option<Image> {
        let Some(mut mkfs) = tool(&format!("mkfs.{kind}")).filter(|_| is_root()) else {
            skip(&format!("a file system of one's own needs root and mkfs.{kind}"));
            return None;
        };
        let dir = disk_dir();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(IMAGE_BYTES).unwrap();
        let Some(device) = Loop::over(&path) else {
            skip("no loop device is available");
            return None;
        };
        // Small ext4 file systems have blocks of 1 KiB by default.
        let block_size: &[&str] = if kind == "ext4" { &["-b", "4096"] } else { &[] };
        assert!(succeeds(mkfs.arg("-q").args(block_size).arg(device.path())));
        fs::create_dir(dir.path().join("mounted")).unwrap();
        let image = Image { device: Some(device), kind, dir };
        if image.mount(&[]) {
            return Some(image);
        }
        skip(&format!("{kind} cannot be mounted"));
        None
    }

    fn device(&self) -> &Path {
        self.device.as_ref().unwrap().path()
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    fn mount(&self, options: &[&str]) -> bool {
        let mut mount = tool("mount").unwrap();
        succeeds(mount.args(options).arg(self.device()).arg(self.root()))
    }

    fn unmount(&self) {
        eventually("the file system can be unmounted", || {
            succeeds(tool("umount").unwrap().arg(self.root()))
        });
        // Another test's mount namespace may have a copy of the mount.
        wait_until("the file system is mounted nowhere", || {
            let exclusively = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
            let opened = rustix::fs::open(self.device(), exclusively, Mode::empty());
            opened.map(drop).map_err(|error| error.to_string())
        });
    }

    /// Fills the file system with files, and removes every second one, so that a file made
    /// afterwards has many extents.
    fn fragment(&self) {
        let content = |number: u64| {
            let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            word.repeat(PIECE_BYTES as usize / 8)
        };
        let mut count = 0;
        while fs::write(self.root().join(format!("foreign-{count}")), content(count)).is_ok() {
            count += 1;
        }
        let _ = fs::remove_file(self.root().join(format!("foreign-{count}")));
        for number in (1..count).step_by(2) {
            fs::remove_file(self.root().join(format!("foreign-{number}"))).unwrap();
        }
        rustix::fs::sync();
    }

    /// Returns the digests of all files but the area, read from the device.
    fn foreign(&self) -> BTreeMap<PathBuf, u64> {
        self.unmount();
        assert!(self.mount(&[]));
        let files = fs::read_dir(self.root()).unwrap().map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.is_file() && !path.ends_with("swap"));
        files
            .map(|path| {
                let content = fs::read(&path).unwrap();
                (path, digest(&content))
            })
            .collect()
    }

    fn area(&self) -> PathBuf {
        self.root().join("swap")
    }

    fn allocate_area(&self) -> PathBuf {
        let file = File::create(self.area()).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, AREA_BYTES).unwrap();
        set_mode(&self.area(), 0o600);
        self.area()
    }

    fn make_area(&self) -> PathBuf {
        let area = self.allocate_area();
        assert!(succeeds(softswap_with(&["mkswap", "--raw"]).arg(&area)));
        area
    }

    /// Returns a fragmented file system, its area, and the digests of its other files.
    fn fragmented(kind: &'static str) -> Option<(Image, PathBuf, BTreeMap<PathBuf, u64>)> {
        let image = Image::of(kind)?;
        image.fragment();
        let (area, before) = (image.make_area(), image.foreign());
        Some((image, area, before))
    }

    /// Checks the file system's own structures.
    fn expect_clean(self) {
        self.unmount();
        let check = match self.kind {
            "ext4" => ["e2fsck", "-fn"],
            _ => ["xfs_repair", "-n"],
        };
        let output = tool(check[0]).unwrap().arg(check[1]).arg(self.device()).output().unwrap();
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

fn digest(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

fn raw(area: &Path) -> Swapped {
    Swapped::within("24M").option("--codec=none").swap(format_args!("{},raw", area.display()))
}

/// Returns what `swapon-check --raw` finds.
fn check(area: &Path) -> Value {
    json_of(softswap().args(["swapon-check", "--raw", "--json"]).arg(area))
}

/// Asserts that softswap refuses to use a file by its blocks, and names the reason.
fn refused(area: &Path, parts: &[&str]) {
    let output = raw(area).command("true", &[""; 0]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_contains_all(&text, parts);
}

fn is_immutable(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    rustix::fs::ioctl_getflags(&file).unwrap().contains(rustix::fs::IFlags::IMMUTABLE)
}

#[test]
fn programs_swap_to_the_blocks_of_a_fragmented_file() {
    for kind in ["ext4", "xfs"] {
        let Some((image, area, before)) = Image::fragmented(kind) else { continue };
        let found = check(&area);
        let extents = found["raw"]["extents"].as_u64().unwrap();
        assert!(extents >= AREA_BYTES / PIECE_BYTES / 2, "{kind}: {extents} extents");
        for threads in ["1", "2", "8"] {
            let report = raw(&area).run_ok("threads", &["--threads", threads, "--pressure", "48"]);
            assert!(report.figure("disk_peak_bytes") > 8 * MIB, "{kind}: {}", report.figures);
        }
        assert!(!is_immutable(&area), "{kind}");
        assert!(image.foreign() == before, "another file has changed on {kind}");
        image.expect_clean();
    }
}

/// Starts a program that swaps until it is killed.
fn endless(swapped: &Swapped) -> Running {
    let arguments = ["--mib", "48", "--seconds", "100000"];
    let mut running = Running::start(&mut swapped.command(compiled("hog"), &arguments));
    running.wait_for_line("ready");
    running
}

/// Kills softswap and its program at the same time.
fn kill_all(running: &Running) {
    let program = children(running.id());
    program.into_iter().chain([running.id()]).for_each(kill);
}

#[test]
fn a_killed_program_leaves_other_files_and_the_next_check_removes_its_mark() {
    for kind in ["ext4", "xfs"] {
        let Some((image, area, before)) = Image::fragmented(kind) else { continue };
        let swapped = raw(&area);
        for _ in 0..4 {
            let running = endless(&swapped);
            assert!(is_immutable(&area));
            kill_all(&running);
            let _ = running.finish(LIMIT);
            eventually("the area is released", || {
                succeeds(softswap_with(&["swapon-check", "--raw"]).arg(&area))
            });
            assert!(!is_immutable(&area));
        }
        assert!(image.foreign() == before, "another file has changed");
        image.expect_clean();
    }
}

#[test]
fn moved_blocks_stop_the_area_before_another_file_changes() {
    for kind in ["ext4", "xfs"] {
        let Some((image, area, before)) = Image::fragmented(kind) else { continue };
        let swapped = raw(&area);
        let running = endless(&swapped);
        // The immutable flag prevents changes of the file by programs that do not remove it.
        assert!(fs::rename(&area, image.root().join("other")).is_err());
        assert!(File::options().write(true).open(&area).is_err());
        let mut chattr = tool("chattr").expect("e2fsprogs");
        assert!(succeeds(chattr.arg("-i").arg(&area)));
        let file = File::options().write(true).open(&area).unwrap();
        fallocate(&file, PUNCH, 0, AREA_BYTES).unwrap();
        // Another file gets the freed blocks.
        let stolen = image.root().join("stolen");
        wait_until("the message", || {
            let errors = running.stderr_so_far();
            errors.contains("moved or freed blocks").then_some(()).ok_or(errors)
        });
        fs::write(&stolen, vec![0x5a; AREA_BYTES as usize / 2]).unwrap();
        drop(file);
        kill_all(&running);
        let _ = running.finish(LIMIT);
        let mut after = image.foreign();
        assert_eq!(after.remove(&stolen), Some(digest(&vec![0x5a; AREA_BYTES as usize / 2])));
        assert!(after == before, "another file has changed");
        image.expect_clean();
    }
}

#[test]
fn files_with_unwritten_or_shared_blocks_are_refused() {
    let Some(image) = Image::of("xfs") else { return };
    let area = image.make_area();
    check(&area);
    // Extents that were never written, holes, and extents that another file shares.
    image.allocate_area();
    assert!(succeeds(softswap_with(&["mkswap"]).arg(&area)));
    refused(&area, &["cannot be used raw", "never written", "mkswap --raw"]);
    image.make_area();
    let file = File::options().write(true).open(&area).unwrap();
    fallocate(&file, PUNCH, 8 * MIB, MIB).unwrap();
    drop(file);
    refused(&area, &["hole"]);
    fs::remove_file(&area).unwrap();
    image.make_area();
    // A program that has the file open for writing could move its blocks later.
    let file = File::options().write(true).open(&area).unwrap();
    refused(&area, &["another program has opened it", "fuser -v"]);
    drop(file);
    check(&area);
    assert!(!is_immutable(&area));
    let copy = image.root().join("copy");
    if succeeds(Command::new("cp").arg("--reflink=always").arg(&area).arg(&copy)) {
        refused(&area, &["shares storage with another file"]);
        fs::remove_file(copy).unwrap();
    }
    assert!(!is_immutable(&area));
    // Data that is no swap area is overwritten only on request.
    let data = image.root().join("data");
    fs::write(&data, [vec![0; MIB as usize], vec![b'x'; 3 * MIB as usize]].concat()).unwrap();
    let before = fs::read(&data).unwrap();
    let output = softswap_with(&["mkswap", "--raw"]).arg(&data).output().unwrap();
    assert_contains_all(&String::from_utf8_lossy(&output.stderr), &["contains data", "--force"]);
    assert!(output.status.code() == Some(2) && fs::read(&data).unwrap() == before);
    fs::remove_file(data).unwrap();
    // A device is always raw.
    let Some(second) = Loop::over(&area) else { return skip("no second loop device") };
    assert!(succeeds(softswap_with(&["mkswap", "--force"]).arg(second.path())));
    refused(second.path(), &["leave out `raw`"]);
    refused(&area, &["/dev/loop"]);
    drop(second);
    image.unmount();
    assert!(image.mount(&["-o", "ro"]));
    refused(&area, &["swap"]);
}

/// Unmounts a file system after asserting that `mkswap --raw` refuses a new file in it, names the
/// file system, and leaves the file as it is.
fn expect_unfit(mounted: &Path, file_system: &str) {
    let path = mounted.join("swap");
    // Written, so that the file has no holes.
    fs::write(&path, vec![0; 8 * MIB as usize]).unwrap();
    set_mode(&path, 0o600);
    let output = softswap_with(&["mkswap", "--raw"]).arg(&path).output().unwrap();
    let content = fs::read(&path).unwrap();
    assert!(succeeds(tool("umount").unwrap().arg(mounted)));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_contains_all(&text, &[&format!("it is on {file_system}, "), "ext4 and xfs"]);
    assert!(content.iter().all(|byte| *byte == 0), "the file has changed");
}

#[test]
fn file_systems_without_fixed_blocks_are_refused_by_name() {
    let Some(image) = Image::of("ext4") else { return };
    let dir = |name: &str| {
        let path = image.root().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let mounts: [(&str, &[&str]); 2] =
        [("tmpfs", &[]), ("overlay", &["-o", "lowerdir=lower,upperdir=upper,workdir=work"])];
    let [_lower, _upper, _work] = ["lower", "upper", "work"].map(dir);
    for (kind, options) in mounts {
        let mounted = dir(kind);
        let mut mount = tool("mount").unwrap();
        mount.current_dir(image.root()).args(["-t", kind, kind]).args(options);
        if !succeeds(mount.arg(&mounted)) {
            skip(&format!("{kind} cannot be mounted"));
            continue;
        }
        expect_unfit(&mounted, kind);
    }
    image.expect_clean();
}

#[test]
fn files_of_a_file_system_in_user_space_are_refused() {
    let Some(mut fuse) = tool("fuse2fs").filter(|_| is_root() && Path::new("/dev/fuse").exists())
    else {
        return skip("a file system in user space needs root, fuse2fs and /dev/fuse");
    };
    let dir = disk_dir();
    let (image, mounted) = (dir.path().join("image"), dir.path().join("mounted"));
    File::create(&image).unwrap().set_len(64 * MIB).unwrap();
    fs::create_dir(&mounted).unwrap();
    assert!(succeeds(tool("mkfs.ext4").unwrap().arg("-q").arg(&image)));
    if !succeeds(fuse.arg(&image).arg(&mounted)) {
        return skip("fuse2fs cannot mount an image");
    }
    expect_unfit(&mounted, "fuse");
}
