//! `softswap mkswap` and `swapon-check`: headers are compatible with the system's tools.

use crate::common::area::*;
use crate::common::{
    UNPRIVILEGED_UID, as_unprivileged, assert_contains_all, is_root, set_mode, skip, softswap, tool,
};
use serde_json::Value;
use std::fs::{File, read};
use std::path::Path;
use std::process::Command as Std;

#[test]
fn mkswap_header_is_accepted() {
    let data_file = DataFile::of(3 * MIB);
    let Some(mut theirs) = tool("mkswap") else { return skip("mkswap is not installed") };
    assert!(succeeds(theirs.args(["-f", "-L", "theirs", "-U", UUID]).arg(&data_file.path)));
    let facts = found(&data_file.path);
    assert_eq!(facts["kind"], "file");
    assert_eq!(facts["usable_bytes"], 3 * MIB - 4096);
    // A warning about the file system is allowed.
    let warnings = facts["warnings"].to_string();
    assert!(!warnings.contains("insecure") && !warnings.contains("not used"), "{facts}");
    let area = &facts["area"];
    assert_eq!((&area["label"], &area["uuid"]), (&"theirs".into(), &UUID.into()));
    assert_eq!((&area["pages"], &area["byte_order"]), (&768.into(), &"native".into()));
    assert_eq!(area["bad_pages"], Value::Array(Vec::new()));
    let output = check(&data_file.path).assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_contains_all(&text, &["(file) can be used: 3.0 MiB", "theirs", UUID, "768, of them 1"]);
}

#[test]
fn other_byte_order_is_accepted() {
    let data_file = DataFile::of(2 * MIB);
    let Some(mut theirs) = tool("mkswap") else { return skip("mkswap is not installed") };
    let theirs = theirs.args(["-f", "-L", "other", "-U", UUID, "--endianness=big"]);
    if !succeeds(theirs.arg(&data_file.path)) {
        skip("this mkswap has no --endianness; the test converts the header");
        let mut native = tool("mkswap").unwrap();
        assert!(succeeds(native.args(["-f", "-L", "other", "-U", UUID]).arg(&data_file.path)));
        let page = read(&data_file.path).unwrap();
        for at in (1024..1036).step_by(4) {
            let number: Vec<u8> = page[at..at + 4].iter().rev().copied().collect();
            data_file.put(at as u64, &number);
        }
    }
    let area = &found(&data_file.path)["area"];
    assert_eq!((&area["label"], &area["uuid"]), (&"other".into(), &UUID.into()));
    assert_eq!((&area["pages"], &area["byte_order"]), (&512.into(), &"other".into()));
}

#[test]
fn bad_pages_are_not_used() {
    let data_file = DataFile::area(2 * MIB);
    data_file.put(1032, &2_u32.to_le_bytes());
    data_file.put(1536, &[9, 0, 0, 0, 4, 0, 0, 0]);
    let facts = found(&data_file.path);
    assert_eq!(facts["area"]["bad_pages"], serde_json::json!([4, 9]));
    assert_eq!(facts["usable_bytes"], 2 * MIB - 3 * 4096);
}

#[test]
fn system_tools_recognise_our_header() {
    let data_file = DataFile::of(2 * MIB + 5000);
    let text = formatted(&data_file.path, &["--label", "0123456789abcdef", "--uuid", UUID]);
    let parts = [data_file.text(), "2.0 MiB (2097152 bytes)", "0123456789abcdef", UUID];
    assert_contains_all(&text, &parts);
    match tool("blkid") {
        None => skip("blkid is not installed"),
        Some(mut blkid) => {
            let text = output_of(blkid.args(["-p", "-o", "export"]).arg(&data_file.path));
            let uuid = format!("UUID={UUID}\n");
            let label = "LABEL=0123456789abcdef\n";
            assert_contains_all(&text, &["TYPE=swap\n", "VERSION=1\n", label, &uuid]);
        }
    }
    match tool("file") {
        None => skip("`file` is not installed"),
        Some(mut file) => {
            let text = output_of(file.arg(&data_file.path));
            assert_contains_all(&text, &["swap file", "version 1", "size 512 pages", UUID]);
        }
    }
}

#[test]
fn mkswap_writes_only_the_header() {
    let data_file = DataFile::of(2 * MIB);
    let text = formatted(&data_file.path, &[]);
    let content = read(&data_file.path).unwrap();
    assert!(content[..1024].iter().all(|&byte| byte == 0x5a));
    assert!(content[4096..].iter().all(|&byte| byte == 0x5a));
    assert_eq!(content.len() as u64, 2 * MIB);
    // The UUID is random unless it is given.
    assert!(text.contains("no label"), "{text}");
    let uuid = |path| found(path)["area"]["uuid"].as_str().unwrap().to_string();
    let first = uuid(&data_file.path);
    assert!(text.contains(&first), "{text}");
    formatted(&data_file.path, &["--force"]);
    assert_ne!(uuid(&data_file.path), first);
}

#[test]
fn file_contents_are_overwritten_only_with_force() {
    let data_file = DataFile::of(2 * MIB);
    for (name, offset, magic) in [
        ("an ext2/3/4 file system", 0x438, &b"\x53\xef"[..]),
        ("an XFS file system", 0, b"XFSB"),
        ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
        ("a partition table", 0x1fe, b"\x55\xaa"),
        ("a partition table", 0x200, b"EFI PART"),
        ("a hibernated system", 4086, b"S1SUSPEND\0"),
    ] {
        data_file.put(offset, magic);
        mkswap_refused(&data_file.path, &[], &["contains", name, "not changed", "--force"]);
        if offset != 0x1fe {
            let parts = ["contains", name, "not changed", "softswap mkswap --force"];
            check_refused(&data_file.path, &parts);
        }
        formatted(&data_file.path, &["--force"]);
        found(&data_file.path);
        mkswap_refused(&data_file.path, &[], &["contains a swap area", "not changed", "--force"]);
        data_file.put(4086, &[0; 10]);
    }
}

#[test]
fn sparse_file_is_rejected() {
    let data_file = DataFile::of(0);
    File::options().write(true).open(&data_file.path).unwrap().set_len(4 * MIB).unwrap();
    let parts = ["has a hole at byte 0", &format!("fallocate -l {} ", 4 * MIB), "dd"];
    mkswap_refused(&data_file.path, &["--force"], &parts);
    let data_file = DataFile::area(4 * MIB);
    let file = File::options().write(true).open(&data_file.path).unwrap();
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    if rustix::fs::fallocate(&file, flags, MIB, 64 << 10).is_err() {
        return skip("this file system does not support holes");
    }
    let parts = [&format!("has a hole at byte {MIB}"), "fallocate", "dd"];
    both_refused(&data_file.path, &parts);
}

#[test]
fn fallocated_file_is_accepted() {
    let data_file = DataFile::of(0);
    let file = File::options().write(true).open(&data_file.path).unwrap();
    let claimed = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 4 * MIB);
    let tells = softswap_sys::fiemap::extents(std::os::fd::AsFd::as_fd(&file)).is_ok();
    if claimed.is_err() || !tells {
        return skip("this file system does not preallocate storage or does not report it");
    }
    formatted(&data_file.path, &[]);
    let facts = found(&data_file.path);
    assert!(facts["area"]["extents"].as_u64() >= Some(1), "{facts}");
}

#[test]
fn reflinked_file_is_rejected() {
    let data_file = DataFile::area(2 * MIB);
    let copy = data_file.dir.path().join("copy");
    if !succeeds(Std::new("cp").arg("--reflink=always").arg(&data_file.path).arg(&copy)) {
        return skip("this file system has no reflinks");
    }
    let parts = ["shares storage with another file", "reflink", "fallocate"];
    check_refused(&data_file.path, &parts);
    mkswap_refused(&copy, &["--force"], &parts);
}

#[test]
fn locked_area_is_rejected() {
    let data_file = DataFile::area(2 * MIB);
    let holder = File::open(&data_file.path).unwrap();
    holder.lock().unwrap();
    let parts = ["is locked by another softswap", "not changed", "wait until"];
    both_refused(&data_file.path, &parts);
    holder.unlock().unwrap();
    found(&data_file.path);
}

#[test]
fn truncated_file_is_rejected_and_grown_file_accepted() {
    let data_file = DataFile::area(4 * MIB);
    let file = File::options().append(true).open(&data_file.path).unwrap();
    file.set_len(3 * MIB).unwrap();
    let size = (4 * MIB).to_string();
    check_refused(&data_file.path, &["has 768 pages", "shorter", "1024 pages", &size, "--force"]);
    std::io::Write::write_all(&mut &file, &vec![0; 2 * MIB as usize]).unwrap();
    let facts = found(&data_file.path);
    assert_eq!(facts["area"]["pages"], 1024);
    let parts = ["larger than the size in its swap header", "1.0 MiB are not used"];
    assert_contains_all(&facts["warnings"].to_string(), &parts);
}

#[test]
fn wrong_sizes_are_rejected() {
    for bytes in [0, 1, 4096, 40_960, 2 * MIB - 1] {
        let data_file = DataFile::of(bytes);
        let parts = [&format!("{bytes} bytes"), "at least 2.0 MiB", "fallocate -l SIZE"];
        both_refused(&data_file.path, &parts);
    }
    let data_file = DataFile::area(4 * MIB);
    data_file.put(1028, &510_u32.to_le_bytes());
    check_refused(
        &data_file.path,
        &["only 2.0 MiB (2093056 bytes)", "at least 2.0 MiB", "softswap mkswap --force"],
    );
}

#[test]
fn damaged_headers_are_rejected() {
    for (offset, number, part) in [
        (1024, 2, "version 2"),
        (1028, 0, "describes an empty area"),
        (1032, 638, "638 bad pages, but at most 637 fit"),
        (1032, 1, "lists page 0 as bad, but the area has only pages 1 to 511"),
        (4086, 0, "has no swap header"),
    ] {
        let data_file = DataFile::area(2 * MIB);
        data_file.put(offset, &u32::to_le_bytes(number));
        check_refused(&data_file.path, &[part, "softswap mkswap"]);
    }
    let data_file = DataFile::area(2 * MIB);
    data_file.put(4086, b"SWAP-SPACE");
    check_refused(&data_file.path, &["version 0"]);
    let data_file = DataFile::of(2 * MIB);
    data_file.put((64 << 10) - 10, b"SWAPSPACE2");
    check_refused(&data_file.path, &["pages of 64 KiB", "pages of 4 KiB"]);
    mkswap_refused(&data_file.path, &[], &["a swap area for pages of 64 KiB"]);
}

#[test]
fn unwritable_area_is_rejected() {
    let data_file = DataFile::area(2 * MIB);
    set_mode(&data_file.path, 0o444);
    let before = State::of(&data_file.path);
    let nobody = |command: &str| {
        let mut softswap = as_unprivileged(data_file.dir.path());
        softswap.arg(command).arg(&data_file.path);
        softswap
    };
    let parts = [data_file.text(), "may not be read and written by this user", "permissions"];
    message(&mut nobody("swapon-check"), &parts);
    message(nobody("mkswap").arg("--force"), &parts);
    assert!(before == State::of(&data_file.path));
}

#[test]
fn world_readable_swap_file_is_reported() {
    let data_file = DataFile::of(2 * MIB);
    set_mode(&data_file.path, 0o644);
    let output = mkswap(&data_file.path, &[]).assert().success().get_output().clone();
    let text = String::from_utf8(output.stderr).unwrap();
    let insecure = "insecure permissions 0644";
    assert_contains_all(&text, &[insecure, &format!("chmod 0600 {}", data_file.text())]);
    assert_contains_all(&found(&data_file.path)["warnings"].to_string(), &[insecure]);
    set_mode(&data_file.path, 0o600);
    let output = mkswap(&data_file.path, &["--force"]).assert().success().get_output().clone();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains("insecure"), "{text}");
    if is_root() {
        std::os::unix::fs::chown(&data_file.path, Some(UNPRIVILEGED_UID), None).unwrap();
        let warnings = found(&data_file.path)["warnings"].to_string();
        assert_contains_all(&warnings, &["belongs to user 65534", "chown 0"]);
    }
}

#[test]
fn invalid_targets_and_values_are_rejected() {
    let data_file = DataFile::of(2 * MIB);
    let pipe = data_file.dir.path().join("pipe");
    assert!(succeeds(Std::new("mkfifo").arg(&pipe)));
    for (path, parts) in [
        (Path::new("/no/such/file"), ["does not exist", "fallocate -l SIZE /no/such/file"]),
        (Path::new("/dev/null"), ["is a character device", "a file or a block device"]),
        (&pipe, ["is a pipe", "a file or a block device"]),
        (data_file.dir.path(), ["is a directory", "a file or a block device"]),
    ] {
        message(&mut mkswap(path, &[]), &parts);
        if !path.is_dir() {
            message(&mut check(path), &parts);
        }
    }
    for (options, parts) in [
        (["--label", "0123456789abcdefg"], ["has 17 bytes", "at most 16"]),
        (["--uuid", "banana"], ["banana", "not a UUID"]),
        (["--uuid", ""], ["--uuid", "not a UUID"]),
        (["--banana", "1"], ["--banana", "--help"]),
    ] {
        let before = State::of(&data_file.path);
        message(&mut mkswap(&data_file.path, &options), &parts);
        assert!(before == State::of(&data_file.path));
    }
    message(softswap().arg("mkswap"), &["PATH"]);
    message(softswap().arg("swapon-check"), &["PATH"]);
}

#[test]
fn directory_is_checked_like_in_run() {
    let dir = tempfile::tempdir().unwrap();
    let output = check(dir.path()).arg("--json").output().unwrap();
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    if facts["usable"] == false {
        return skip("the disk is nearly full");
    }
    assert_eq!(facts["kind"], "directory");
    assert!(facts["usable_bytes"].as_u64() > Some(0), "{facts}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    set_mode(&closed, 0o555);
    message(as_unprivileged(dir.path()).arg("swapon-check").arg(&closed), &["not writable"]);
}

#[test]
fn rejection_is_also_reported_as_json() {
    let data_file = DataFile::of(2 * MIB);
    let output = check(&data_file.path).arg("--json").assert().code(2).get_output().clone();
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&facts["schema"], &facts["usable"]), (&1.into(), &false.into()));
    let why = facts["refusal"].as_str().unwrap();
    assert_contains_all(why, &["has no swap header", "softswap mkswap"]);
    assert_contains_all(&String::from_utf8(output.stderr).unwrap(), &[why]);
}
