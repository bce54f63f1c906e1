//! Programs whose pages are stored in several swap areas.

use crate::common::Loop;
use crate::support::{LIMIT, Running, Swapped, compiled, softswap};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn dirs<const N: usize>() -> [TempDir; N] {
    std::array::from_fn(|_| tempfile::tempdir_in("/var/tmp").expect("a directory on a disk"))
}

fn swap(dir: &TempDir, more: &str) -> String {
    format!("--swap={}{more}", dir.path().display())
}

#[test]
fn full_area_is_followed_by_next() {
    let [small, large] = dirs();
    let report = Swapped::within("32M")
        .option("--reserve=0")
        .option(swap(&large, ",pri=1"))
        .option(swap(&small, ":16M,pri=9"))
        .run_ok("hog", &["--pressure", "80", "--require-out"]);
    assert_eq!(report.figures["areas"]["count"], 2);
    // The large area grows by 64 MiB at a time.
    assert_eq!(report.figure("swap_file_bytes"), (16 + 64) * MIB);
    assert!(report.figure("disk_peak_bytes") > 16 * MIB, "{}", report.figures);
}

#[test]
fn equal_priority_areas_share_pages() {
    let [one, two] = dirs();
    let report = Swapped::within("32M")
        .option("--reserve=0")
        .option(swap(&one, ",pri=4,discard=pages"))
        .option(swap(&two, ",pri=4,poll=interrupt,discard=both"))
        .run_ok("hog", &["--pressure", "80", "--require-out"]);
    assert_eq!(report.figure("swap_file_bytes"), 2 * 64 * MIB, "both have grown");
    assert_eq!(report.figures["areas"]["discard_errors"], 0);
}

#[test]
fn full_areas_stop_the_program_with_message() {
    let [one, two] = dirs();
    let report = Swapped::within("32M")
        .option("--reserve=0")
        .option("--codec=none")
        .option(swap(&one, ":16M"))
        .option(swap(&two, ":16M"))
        .run(compiled("hog"), &["--pressure", "200"]);
    assert!(!report.ended.status.success());
    let stderr = &report.ended.stderr;
    assert!(stderr.contains("all 2 swap areas are full, with 32.0 MiB"), "{stderr}");
}

#[test]
fn many_areas_use_no_low_descriptors() {
    let dirs: [TempDir; 24] = dirs();
    let mut swapped = Swapped::within("64M").option("--reserve=0");
    for dir in &dirs {
        swapped = swapped.option(swap(dir, ""));
    }
    let hog = compiled("hog").display().to_string();
    let script = "exec \"$0\" --pressure 80";
    let mut command = swapped.command("sh", &["-c", script, &hog]);
    // softswap's own descriptors must not count against the program's limit.
    let limited = ["-c", "ulimit -Sn 256 && exec \"$@\"", "sh"];
    let mut shell = Command::new("sh");
    shell.args(limited).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    command = shell;
    Running::start(&mut command).finish(LIMIT).expect_ok("hog over 24 areas");
}

// ---- named areas ------------------------------------------------------------

fn swap_file(dir: &TempDir, mib: u64) -> PathBuf {
    let path = dir.path().join("swap");
    let file = File::create(&path).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, mib * MIB).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    stdout_of(&["mkswap", path.to_str().unwrap()]);
    path
}

/// Runs softswap, which must succeed, and returns its standard output.
fn stdout_of(arguments: &[&str]) -> String {
    let output = Command::new(softswap()).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn swap_file_and_directory_are_used_together() {
    let [named, dir] = dirs();
    let file = swap_file(&named, 16);
    let head = std::fs::read(&file).unwrap()[..4096].to_vec();
    let report = Swapped::within("32M")
        .option("--reserve=0")
        .option(format!("--swap={},pri=9", file.display()))
        .option(swap(&dir, ",pri=1"))
        .run_ok("hog", &["--pressure", "80", "--require-out"]);
    // The named area counts with the size that it has at exit.
    let bytes = report.figure("swap_file_bytes");
    assert!((64 * MIB..=(16 + 64) * MIB).contains(&bytes), "{bytes}");
    let after = std::fs::read(&file).unwrap();
    assert!(after[..4096] == head, "the header was touched");
    assert!(after[4096..].iter().any(|byte| *byte != 0), "nothing was ever stored there");
    assert!(stdout_of(&["swapon-check", file.to_str().unwrap()]).contains("can be used"));
}

#[test]
fn named_area_without_run_is_exclusive_to_one_process() {
    let [named] = dirs();
    let file = swap_file(&named, 64);
    let mut command = Command::new("sh");
    let library = softswap().with_file_name("libsoftswap.so");
    command.args(["-c", "sleep 0; true"]).env("LD_PRELOAD", library);
    command.env("SOFTSWAP_RT_MEMORY", (32 << 20).to_string());
    command.env("SOFTSWAP_RT_SWAP_0", format!(",,,none,{}", file.display()));
    let ended = Running::start(&mut command).finish(LIMIT);
    ended.expect_success("a shell, which has it");
    assert!(ended.stderr.contains("is locked by another softswap"), "{}", ended.stderr);
}

#[test]
fn forked_child_uses_next_directory() {
    let [small, large] = dirs();
    Swapped::within("16M")
        .option("--reserve=0")
        .option(swap(&small, ":32M,pri=9"))
        .option(swap(&large, ",pri=1"))
        .run_ok("children", &["--mib", "24", "--pressure", "40", "--require-out"]);
}

#[test]
fn swap_file_in_use_is_rejected() {
    let [named] = dirs();
    let file = swap_file(&named, 64);
    let swapped = Swapped::within("32M").option(format!("--swap={}", file.display()));
    let arguments = ["--mib", "64", "--seconds", "0"];
    let mut first = Running::start(&mut swapped.command(compiled("hog"), &arguments));
    first.wait_for_line("ready");
    let second = Command::new(softswap())
        .args(["run", "--swap", file.to_str().unwrap(), "--", "true"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(stderr.contains("is locked by another softswap"), "{stderr}");
}

#[test]
fn truncated_swap_file_stops_program_with_message() {
    let [named] = dirs();
    let file = swap_file(&named, 256);
    let swapped = Swapped::within("32M").option(format!("--swap={}", file.display()));
    let arguments = ["--mib", "64", "--seconds", "0"];
    let mut program = Running::start(&mut swapped.command(compiled("hog"), &arguments));
    program.wait_for_line("ready");
    File::options().write(true).open(&file).unwrap().set_len(4096).unwrap();
    let ended = program.finish(LIMIT);
    assert!(!ended.status.success());
    let stderr = &ended.stderr;
    let causes = ["could not be read back", "wrong data for slot"];
    assert!(causes.iter().any(|cause| stderr.contains(cause)), "{stderr}");
}

#[test]
fn device_is_discarded_before_use() {
    let [dir] = dirs();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0x5a; 64 << 20]).unwrap();
    let Some(device) = Loop::over(&image) else {
        return eprintln!("skipped: no loop device is to be had");
    };
    stdout_of(&["mkswap", &device.0]);
    let report = Swapped::within("32M")
        .option(format!("--swap={},discard=both", device.0))
        .run_ok("hog", &["--pressure", "80", "--require-out"]);
    assert_eq!(report.figures["areas"]["discard_errors"], 0);
    let discarded = report.figures["areas"]["discarded_bytes"].as_u64();
    assert!(discarded >= Some(64 * MIB - 4096), "{discarded:?}");
    // If the file below supports holes, the device's previous content was discarded.
    let content = std::fs::read(&image).unwrap();
    let old = content[4096..].chunks(4096).filter(|page| page.iter().all(|b| *b == 0x5a)).count();
    assert_eq!(old, 0, "pages of what the device held before");
    stdout_of(&["swapon-check", &device.0]);
}
