//! Programs whose pages are stored in several swap areas.

use crate::common::area::MIB;
use crate::common::{Loop, assert_contains_all, skip};
use crate::support::control_client::stdout_of;
use crate::support::{
    AreaFile, LIMIT, Report, Swapped, compiled, disk_dir, finish, softswap, softswap_with,
};
use std::fs::File;
use std::process::Command;
use tempfile::TempDir;

/// `hog` swaps until it is killed.
const ENDLESS: [&str; 4] = ["--mib", "64", "--seconds", "0"];

fn dirs<const N: usize>() -> [TempDir; N] {
    std::array::from_fn(|_| disk_dir())
}

fn swapped(memory: &str, areas: &[(&TempDir, &str)]) -> Swapped {
    let swapped = Swapped::within(memory).option("--reserve=0");
    areas.iter().fold(swapped, |swapped, (dir, options)| {
        swapped.swap(format_args!("{}{options}", dir.path().display()))
    })
}

fn run_hog(swapped: &Swapped) -> Report {
    swapped.run_ok("hog", &["--pressure", "80", "--require-out"])
}

#[test]
fn full_area_is_followed_by_next() {
    let [small, large] = dirs();
    let report = run_hog(&swapped("32M", &[(&large, ",pri=1"), (&small, ":16M,pri=9")]));
    assert_eq!(report.figures["areas"]["count"], 2);
    // The large area grows by 64 MiB at a time.
    assert_eq!(report.figure("swap_file_bytes"), (16 + 64) * MIB);
    assert!(report.figure("disk_peak_bytes") > 16 * MIB, "{}", report.figures);
}

#[test]
fn equal_priority_areas_share_pages() {
    let [one, two] = dirs();
    let second = ",pri=4,poll=interrupt,discard=both";
    let report = run_hog(&swapped("32M", &[(&one, ",pri=4,discard=pages"), (&two, second)]));
    assert_eq!(report.figure("swap_file_bytes"), 2 * 64 * MIB, "both areas must have grown");
    assert_eq!(report.figures["areas"]["discard_errors"], 0);
}

#[test]
fn full_areas_stop_the_program_with_message() {
    let [one, two] = dirs();
    let swapped = swapped("32M", &[(&one, ":16M"), (&two, ":16M")]).option("--codec=none");
    let report = swapped.run(compiled("hog"), &["--pressure", "200"]);
    report.ended.expect_failure("hog");
    let stderr = &report.ended.stderr;
    assert!(stderr.contains("all 2 swap areas (32.0 MiB) are full"), "{stderr}");
}

#[test]
fn many_areas_use_no_low_descriptors() {
    let dirs: [TempDir; 24] = dirs();
    let swapped = swapped("64M", &dirs.each_ref().map(|dir| (dir, "")));
    let hog = compiled("hog").display().to_string();
    let script = "exec \"$0\" --pressure 80";
    let command = swapped.command("sh", &["-c", script, &hog]);
    // softswap's own descriptors must not count against the program's limit.
    let limited = ["-c", "ulimit -Sn 256 && exec \"$@\"", "sh"];
    let mut shell = Command::new("sh");
    shell.args(limited).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    finish(&mut shell).expect_ok("hog over 24 areas");
}

#[test]
fn swap_file_and_directory_are_used_together() {
    let (area, dir) = (AreaFile::new(16), disk_dir());
    let file = &area.path;
    let head = std::fs::read(file).unwrap()[..4096].to_vec();
    let swapped = swapped("32M", &[(&dir, ",pri=1")]);
    let report = run_hog(&swapped.swap(format_args!("{},pri=9", file.display())));
    // The named area counts with the size that it has at exit.
    let bytes = report.figure("swap_file_bytes");
    assert!((64 * MIB..=(16 + 64) * MIB).contains(&bytes), "{bytes}");
    let after = std::fs::read(file).unwrap();
    assert!(after[..4096] == head, "the header was overwritten");
    assert!(after[4096..].iter().any(|byte| *byte != 0), "no page was stored in the file");
    assert_contains_all(&stdout_of(&["swapon-check", file.to_str().unwrap()]), &["can be used"]);
}

#[test]
fn named_area_without_run_is_exclusive_to_one_process() {
    let file = AreaFile::new(64);
    let mut command = Command::new("sh");
    let library = softswap().with_file_name("libsoftswap.so");
    command.args(["-c", "sleep 0; true"]).env("LD_PRELOAD", library);
    command.env("SOFTSWAP_RT_MEMORY", (32 << 20).to_string());
    command.env("SOFTSWAP_RT_SWAP_0", format!(",,,none,{}", file.path.display()));
    let ended = finish(&mut command);
    ended.expect_success("a shell with its own area");
    assert!(ended.stderr.contains("is locked by another softswap"), "{}", ended.stderr);
}

#[test]
fn forked_child_uses_next_directory() {
    let [small, large] = dirs();
    let swapped = swapped("16M", &[(&small, ":32M,pri=9"), (&large, ",pri=1")]);
    swapped.run_ok("children", &["--mib", "24", "--pressure", "40", "--require-out"]);
}

#[test]
fn swap_file_in_use_is_rejected() {
    let file = AreaFile::new(64);
    let swapped = file.swapped("32M");
    let _first = swapped.start("hog", &ENDLESS);
    let path = file.path.to_str().unwrap();
    let second = finish(&mut softswap_with(&["run", "--swap", path, "--", "true"]));
    assert_eq!(second.status.code(), Some(2));
    assert!(second.stderr.contains("is locked by another softswap"), "{}", second.stderr);
}

#[test]
fn truncated_swap_file_stops_program_with_message() {
    let file = AreaFile::new(256);
    let swapped = file.swapped("32M");
    let program = swapped.start("hog", &ENDLESS);
    File::options().write(true).open(&file.path).unwrap().set_len(4096).unwrap();
    let ended = program.finish(LIMIT);
    ended.expect_failure("hog");
    let stderr = &ended.stderr;
    let causes = ["could not be read back", "wrong data for slot"];
    assert!(causes.iter().any(|cause| stderr.contains(cause)), "{stderr}");
}

#[test]
fn device_is_discarded_before_use() {
    let dir = disk_dir();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0x5a; 64 << 20]).unwrap();
    let Some(device) = Loop::over(&image) else { return skip("no loop device is available") };
    stdout_of(&["mkswap", &device.0]);
    let swapped = Swapped::within("32M").swap(format_args!("{},discard=both", device.0));
    let report = run_hog(&swapped);
    assert_eq!(report.figures["areas"]["discard_errors"], 0);
    let discarded = report.figures["areas"]["discarded_bytes"].as_u64();
    assert!(discarded >= Some(64 * MIB - 4096), "{discarded:?}");
    // If the file below supports holes, the device's previous content was discarded.
    let content = std::fs::read(&image).unwrap();
    let old = content[4096..].chunks(4096).filter(|page| page.iter().all(|b| *b == 0x5a)).count();
    assert_eq!(old, 0, "pages with the device's previous content");
    stdout_of(&["swapon-check", &device.0]);
}
