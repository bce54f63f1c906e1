//! `softswap mkswap` and `swapon-check` on block devices and active swap. Most tests need root.

use crate::common::area::*;
use crate::common::{Loop, Mounted, assert_contains_all, bin_dir, is_root, skip, tool};
use crate::support::control_client::wait_until;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command as Std;

struct Active(PathBuf);

impl Active {
    fn on(path: &Path) -> Option<Active> {
        succeeds(tool("swapon")?.arg(path)).then(|| Active(path.to_path_buf()))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let _ = tool("swapoff").unwrap().arg(&self.0).status();
    }
}

/// The check runs in a mount namespace whose /proc/swaps is empty.
fn unlisted_check(path: &Path) -> Option<Std> {
    let within = |script: &str| {
        let mut command = tool("unshare")?;
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(bin_dir().join("softswap"));
        Some(command)
    };
    const HIDE: &str = "mount --bind /dev/null /proc/swaps";
    succeeds(&mut within(HIDE)?).then_some(())?;
    let mut command = within(&format!("{HIDE} && exec \"$@\""))?;
    command.arg("swapon-check").arg(path);
    Some(command)
}

#[test]
fn kernel_accepts_formatted_area_and_active_area_is_rejected() {
    let control = DataFile::of(2 * MIB);
    let Some(mut theirs) = tool("mkswap").filter(|_| is_root()) else {
        return skip("swapon needs root and mkswap");
    };
    assert!(succeeds(theirs.arg("-f").arg(&control.path)));
    // Swapping to a file may be forbidden, or unsupported by the file system.
    if Active::on(&control.path).is_none() {
        return skip("the kernel cannot swap to a file on this machine");
    }
    let data_file = DataFile::area(2 * MIB);
    let Some(active) = Active::on(&data_file.path) else {
        panic!("the kernel refuses the header of softswap");
    };
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    assert!(swaps.contains(data_file.text()), "{swaps}");
    let parts = ["active kernel swap", "not changed", "swapoff"];
    both_refused(&data_file.path, &parts);
    let other = data_file.dir.path().join("other");
    std::os::unix::fs::symlink(&data_file.path, &other).unwrap();
    check_refused(&other, &parts);
    // If /proc/swaps does not list the file, the kernel still refuses to open it for writing.
    match unlisted_check(&data_file.path) {
        None => skip("a new mount namespace cannot be created"),
        Some(check) => message(&mut assert_cmd::Command::from_std(check), &parts),
    }
    drop(active);
    found(&data_file.path);
}

/// Opens a device exclusively, as a file system or an array does.
fn hold(device: &Path) -> Option<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device).ok()
}

/// A child just forked by another test may still hold a copy of the descriptor.
fn release(holder: File, device: &Path) {
    drop(holder);
    wait_until("the device is free", || match hold(device) {
        Some(_) => Ok(()),
        None => Err(format!("{} is held", device.display())),
    });
}

#[test]
fn busy_device_is_rejected() {
    let data_file = DataFile::of(4 * MIB);
    let Some(device) = Loop::over(&data_file.path) else {
        return skip("no loop device is available");
    };
    check_refused(device.path(), &["no swap header", "softswap mkswap"]);
    formatted(device.path(), &["--label", "disk", "--uuid", UUID]);
    let facts = found(device.path());
    assert_eq!(facts["kind"], "device");
    assert_eq!(facts["usable_bytes"], 4 * MIB - 4096);
    assert_eq!((&facts["area"]["extents"], &facts["area"]["label"]), (&1.into(), &"disk".into()));
    let behind = ["the backing file of /dev/loop", "not changed", "losetup --detach"];
    both_refused(&data_file.path, &behind);

    let holder = hold(device.path()).unwrap();
    let parts = ["in use by another program", "not changed"];
    both_refused(device.path(), &parts);
    holder.lock().unwrap();
    check_refused(device.path(), &["is locked by another softswap", "not changed"]);
    release(holder, device.path());

    match Active::on(device.path()) {
        None => skip("the kernel cannot swap to a loop device on this machine"),
        Some(active) => {
            let parts = ["active kernel swap", "not changed", "swapoff"];
            both_refused(device.path(), &parts);
            drop(active);
        }
    }
    found(device.path());
}

#[test]
fn device_with_file_system_is_rejected() {
    let data_file = DataFile::of(8 * MIB);
    let Some(device) = Loop::over(&data_file.path) else {
        return skip("no loop device is available");
    };
    let Some(mut mkfs) = tool("mkfs.ext4") else { return skip("mkfs.ext4 is not installed") };
    assert!(succeeds(mkfs.arg("-q").arg("-F").arg(device.path())));
    let holds = ["contains an ext2/3/4 file system", "not changed", "--force"];
    check_refused(device.path(), &holds);
    mkswap_refused(device.path(), &[], &holds);
    // The kernel's tables escape blanks in mount points.
    let point = data_file.dir.path().join("mount point");
    std::fs::create_dir(&point).unwrap();
    if !succeeds(tool("mount").unwrap().arg(device.path()).arg(&point)) {
        return skip("mounts are not permitted");
    }
    let mounted = Mounted(point.clone());
    let parts = ["is mounted at", point.to_str().unwrap(), "not changed", "umount"];
    both_refused(device.path(), &parts);
    drop(mounted);
    formatted(device.path(), &["--force"]);
    if let Some(mut blkid) = tool("blkid") {
        let text = output_of(blkid.args(["-p", "-o", "export"]).arg(device.path()));
        assert_contains_all(&text, &["TYPE=swap\n"]);
    }
    found(device.path());
}

#[test]
fn write_protected_device_is_rejected() {
    let data_file = DataFile::area(2 * MIB);
    let Some(device) = Loop::with(&data_file.path, &["--read-only"]) else {
        return skip("no loop device is available");
    };
    both_refused(device.path(), &["is read-only", "for writing"]);
}
