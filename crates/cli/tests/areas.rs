//! Programs whose pages go to several swap areas.

mod support;

use support::{Swapped, compiled};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn dirs<const N: usize>() -> [TempDir; N] {
    std::array::from_fn(|_| tempfile::tempdir_in("/var/tmp").expect("a directory on a disk"))
}

/// `--swap` for a directory, with what follows it.
fn swap(dir: &TempDir, more: &str) -> String {
    format!("--swap={}{more}", dir.path().display())
}

#[test]
fn what_the_first_area_has_no_room_for_goes_to_the_next() {
    let [small, large] = dirs();
    let report = Swapped::within("32M")
        .option("--reserve=0")
        .option(swap(&large, ",pri=1"))
        .option(swap(&small, ":16M,pri=9"))
        .run_ok("hog", &["--pressure", "80", "--require-out"]);
    assert_eq!(report.figures["areas"]["count"], 2);
    // The large one grows by 64 MiB at a time.
    assert_eq!(report.figure("swap_file_bytes"), (16 + 64) * MIB);
    assert!(report.figure("disk_peak_bytes") > 16 * MIB, "{}", report.figures);
}

#[test]
fn areas_of_one_priority_share_the_pages() {
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
fn when_all_areas_are_full_the_program_is_told_so() {
    let [one, two] = dirs();
    let report = Swapped::within("32M")
        .option("--reserve=0")
        .option("--codec=none")
        .option(swap(&one, ":16M"))
        .option(swap(&two, ":16M"))
        .run(compiled("hog"), &["--pressure", "200"]);
    assert!(!report.ended.status.success());
    let stderr = &report.ended.stderr;
    assert!(stderr.contains("all 2 swap areas are full, with 33554432 bytes"), "{stderr}");
}
