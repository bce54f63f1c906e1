//! Long transfers under memory pressure write no plaintext, and a disk error corrupts nothing.

use crate::common::{copy_files, skip};
use crate::support::cgroup::{ControlGroup, command_in};
use crate::support::{Ended, compiled, finish, mix64, number, softswap};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// This content does not occur in the executable.
const MARKER: &[u8] = b"MARKED-MARKED-MARKED-MARKED-MARK";

/// The directory is outside `/tmp` and `/var/tmp` if possible: a test mounts its device over them.
fn scratch() -> TempDir {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let parent = if own.is_dir() { own } else { Path::new("/var/tmp") };
    let dir = tempfile::tempdir_in(parent).expect("a directory");
    copy_files(&[compiled("transfers")], dir.path());
    dir
}

/// `None` if this user can mount a file system.
fn skip_reason() -> Option<String> {
    let script = "mount -t tmpfs none /mnt && command -v mkfs.ext4 losetup";
    let tried = Command::new("unshare").args(["--mount", "sh", "-c", script]).output();
    match tried {
        Ok(tried) if tried.status.success() => None,
        Ok(tried) => Some(String::from_utf8_lossy(&tried.stderr).trim().to_string()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// Runs in its own mount namespace, if possible in a memory cgroup, so that the kernel writes back
/// and drops page cache. The script's first argument is softswap.
fn run(dir: &Path, script: &str, arguments: &[&str]) -> Ended {
    let group = ControlGroup::if_possible(160 << 20);
    let mut command = command_in(group.as_ref(), "unshare");
    command.args(["--mount", "sh", "-ec", script, "sh"]).arg(softswap());
    finish(command.args(arguments).current_dir(dir))
}

fn markers_in(path: &Path) -> usize {
    let mut file = File::open(path).expect("the device's file");
    let mut buffer = vec![0; MARKER.len() + (4 << 20)];
    let (mut kept, mut count) = (0, 0);
    loop {
        let got = file.read(&mut buffer[kept..]).expect("the device's file");
        if got == 0 {
            return count;
        }
        let end = kept + got;
        count += memchr::memmem::find_iter(&buffer[..end], MARKER).count();
        kept = (MARKER.len() - 1).min(end);
        buffer.copy_within(end - kept..end, 0);
    }
}

/// Puts the swap area, `/tmp` and `/var/tmp` on one device.
const ON_A_DEVICE: &str = "
    truncate -s 512M disk.img
    mkfs.ext4 -q -F disk.img
    mkdir -p mounted out
    device=$(losetup --find --show disk.img)
    trap 'losetup --detach $device' EXIT
    mount $device mounted
    chmod 1777 mounted
    mkdir mounted/swap
    here=$PWD softswap=$1
    for directory in /var/tmp /tmp; do
        case \" $here $softswap\" in *\" $directory/\"*) ;; *) mount --bind mounted $directory ;; esac
    done
    shift
    status=0
    $softswap run -q --memory 16M --swap $here/mounted/swap --reserve 64M \"$@\" \\
        -- $here/transfers $here/mounted $here/out || status=$?
    umount /tmp /var/tmp 2>/dev/null || true
    umount $here/mounted
    exit $status
";

#[test]
fn long_transfers_write_no_plaintext() {
    if let Some(why) = skip_reason() {
        return skip(&why);
    }
    let dir = scratch();
    let ended = run(dir.path(), ON_A_DEVICE, &[]);
    ended.expect_success("long transfers");
    assert_eq!(markers_in(&dir.path().join("disk.img")), 0, "unencrypted pages of the program");
    // Without encryption, the same search finds the markers.
    run(dir.path(), ON_A_DEVICE, &["--no-encrypt"]).expect_success("long transfers");
    assert!(markers_in(&dir.path().join("disk.img")) > 1000, "the swap area must be unencrypted");
}

/// The device of the area with the highest priority accepts some writes and then fails.
const ON_A_FAILING_DEVICE: &str = "
    softswap=$1 size=$2 first=$3 second=$4
    mkdir -p store mounted out other
    mount -t tmpfs -o size=${size}M none store
    truncate -s 2G store/disk.img
    mkfs.ext4 -q -F -E lazy_itable_init=1,nodiscard -O ^has_journal store/disk.img
    device=$(losetup --find --show store/disk.img)
    trap 'losetup --detach $device' EXIT
    mount $device mounted
    status=0
    $softswap run -q --memory 16M --swap $PWD/mounted,pri=$first --swap $PWD/other,pri=$second \\
        --reserve 64M -- $PWD/transfers $PWD/mounted $PWD/out || status=$?
    umount mounted || true
    exit $status
";

/// `SOFTSWAP_TRANSFERS_FAULTS` overrides it.
const FAULTS: u64 = 2;

#[test]
fn failing_disk_loses_no_transferred_byte() {
    if let Some(why) = skip_reason() {
        return skip(&why);
    }
    let count = number("SOFTSWAP_TRANSFERS_FAULTS", FAULTS);
    let seed = number("SOFTSWAP_FAULTS_SEED", 1);
    let (mut right, mut failed, mut stopped) = (0, 0, 0);
    for turn in 0..count {
        let dir = scratch();
        let chance = mix64(seed << 32 | turn);
        // The device accepts from the file system's metadata alone to more than all evicted data.
        let size = (4 + chance % 90).to_string();
        let (first, second) = if chance >> 32 & 1 == 0 { ("100", "1") } else { ("1", "100") };
        let ended = run(dir.path(), ON_A_FAILING_DEVICE, &[&size, first, second]);
        match (ended.status.code(), ended.status.signal()) {
            (Some(0), _) => right += 1,
            (Some(2), _) => failed += 1,
            (Some(code), _) if code > 2 && ended.stderr.contains("softswap: ") => stopped += 1,
            _ => panic!("a device of {size} MiB: {}\n{}", ended.status, ended.stderr),
        }
    }
    println!("{count} devices failed: {right} right, {failed} calls failed, {stopped} stopped");
}
