//! Raw swap files. Each test has its own file system on a loop device, and compares all other files
//! and the free space before and after. Needs root. `SOFTSWAP_RAW_KILLS` is the number of kills,
//! `SOFTSWAP_RAW_MOVES` that of runs whose file is attacked; `make test-long` uses 200 and 50.

use crate::common::area::{MIB, succeeds};
use crate::common::{
    Loop, assert_contains_all, assert_output, assert_refused, is_root, json_of, set_mode, skip,
    softswap, tool,
};
use crate::support::control_client::{eventually, wait_until};
use crate::support::processes::kill;
use crate::support::raw_image::{AREA_BYTES, FREE, Image, PIECE_BYTES, digest};
use crate::support::{
    LIMIT, Running, Swapped, compiled, disk_dir, finish, mix64, number, python, softswap_with,
};
use rustix::fs::{FallocateFlags, fallocate};
use serde_json::Value;
use softswap_sys::fiemap;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// `hog` swaps until it is killed.
const ENDLESS: [&str; 5] = ["--mib", "48", "--seconds", "100000", "--dirty"];

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn raw(area: &Path) -> Swapped {
    Swapped::within("24M").option("--codec=none").swap(format_args!("{},raw", area.display()))
}

fn check(area: &Path) -> Value {
    json_of(softswap().args(["swapon-check", "--raw", "--json"]).arg(area))
}

fn refused(area: &Path, parts: &[&str]) {
    assert_output(&raw(area).command("true", &[""; 0]).output().unwrap(), 2, parts);
}

/// Asserts that `run` and `doctor` agree.
fn doctor(area: &Path, option: &str) -> bool {
    let swap = format!("{}{option}", area.display());
    let output = softswap().args(["doctor", "--json", "--swap", &swap]).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut checks = found["checks"].as_array().unwrap().iter();
    let name = if option.is_empty() { "swap-file" } else { "swap-raw-file" };
    let is_ok = checks.find(|check| check["name"] == name).unwrap()["status"] == "ok";
    let run = Swapped::within("24M").swap(swap).command("true", &[""; 0]).output().unwrap();
    assert_eq!(run.status.success(), is_ok, "{}", String::from_utf8_lossy(&run.stderr));
    is_ok
}

fn is_immutable(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    rustix::fs::ioctl_getflags(&file).unwrap().contains(rustix::fs::IFlags::IMMUTABLE)
}

#[test]
fn programs_swap_to_the_blocks_of_a_fragmented_file() {
    for kind in ["ext4", "xfs"] {
        let Some(image) = Image::of(kind) else { continue };
        expect_programs_to_swap(image, 64);
    }
}

#[test]
#[ignore = "minutes: `make test-long` runs it"]
fn programs_swap_to_the_blocks_of_20_000_extents() {
    for kind in ["ext4", "xfs"] {
        let Some(image) = Image::sized(kind, 9 << 30, 4 << 30) else { continue };
        expect_programs_to_swap(image, 1024);
    }
}

#[test]
fn bench_compares_a_file_with_its_blocks() {
    let Some(image) = Image::sized("ext4", 512 * MIB, 300 * MIB) else { return };
    let area = image.make_area();
    let mut bench = softswap();
    bench.args(["bench", "extents", "--threads", "2", "--rounds", "1", "--json", "-", "--area"]);
    let found = json_of(bench.arg(&area));
    let extents = &found["areas"][0]["extents"];
    for key in [format!("fill_raw_{extents}_t2_vs_file"), format!("scan_raw_{extents}_t2_vs_file")]
    {
        assert!(found["ratios"][&key].as_f64() > Some(0.0), "{key}: {found}");
    }
    image.expect_clean();
}

fn expect_programs_to_swap(image: Image, memory_mib: u64) {
    let (image, area, before) = image.fragmented();
    let kind = image.kind;
    let extents = check(&area)["raw"]["extents"].as_u64().unwrap();
    assert!(extents >= image.area_bytes / PIECE_BYTES * 5 / 8, "{kind}: {extents} extents");
    for threads in ["1", "2", "8"] {
        let mib = memory_mib.to_string();
        let report = raw(&area).run_ok("threads", &["--threads", threads, "--mib", &mib]);
        let swapped_bytes = report.figure("disk_peak_bytes");
        assert!(swapped_bytes > memory_mib * MIB / 4, "{kind}: {}", report.figures);
        println!("{kind}: {extents} extents, {threads} threads, {swapped_bytes} bytes swapped");
    }
    assert!(!is_immutable(&area), "{kind}");
    assert!(image.foreign() == before, "another file has changed on {kind}");
    image.expect_clean();
}

/// Kills softswap and its program at the same time.
fn kill_all(running: Running) {
    kill(-running.id());
    let _ = running.finish(LIMIT);
}

#[test]
fn a_killed_program_leaves_other_files_and_the_next_check_removes_its_mark() {
    let kills = number("SOFTSWAP_RAW_KILLS", 8) / 2;
    let (mut random, mut marks) = (1, 0);
    for kind in ["ext4", "xfs"] {
        let Some(image) = Image::of(kind) else { continue };
        let (image, area, before) = image.fragmented();
        let swapped = raw(&area);
        for round in 0..kills {
            // Every second time the area is certainly in use.
            let running = if round % 2 == 0 {
                let running = swapped.start("hog", &ENDLESS);
                assert!(is_immutable(&area));
                running
            } else {
                Running::start(&mut swapped.command(compiled("hog"), &ENDLESS))
            };
            random = mix64(random);
            std::thread::sleep(Duration::from_millis(random % 500));
            kill_all(running);
            marks += u32::from(is_immutable(&area));
            eventually("the area is released", || {
                succeeds(softswap_with(&["swapon-check"]).arg(&area))
            });
            assert!(!is_immutable(&area));
        }
        check(&area);
        assert!(image.foreign() == before, "another file has changed");
        image.expect_clean();
    }
    println!("{kills} kills for each file system left {marks} marks");
}

/// Moves parts of 2 MiB of a file, those to which softswap writes next, to up to 18 donors, and
/// overwrites each donor at once. Arguments: the file, the donors' prefix, a file that ends this.
const MOVE: &str = r#"
import fcntl, mmap, os, struct, sys, time
PAGE, PAGES, FIRST, DONORS, MOVE_EXT = 4096, 512, 12, 18, 0xc028660f
area, donor, end = sys.argv[1:]
own = mmap.mmap(-1, PAGES * PAGE)
own.write(b"\x5a" * len(own))
donors = []
for number in range(DONORS):
    donors.append(os.open(f"{donor}-{number}", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    os.posix_fallocate(donors[-1], PAGES * (number + FIRST) * PAGE, len(own))
moved = 0
while moved < DONORS and not os.path.exists(end):
    time.sleep(0.001)
    try:
        source = os.open(area, os.O_RDWR)
    except PermissionError:
        continue
    try:
        fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        first = PAGES * (moved + FIRST)
        for at in range(first, first + PAGES, 32):
            fcntl.ioctl(source, MOVE_EXT, struct.pack("iIQQQQ", 0, donors[moved], at, at, 32, 0))
        os.pwrite(donors[moved], own, first * PAGE)
        moved += 1
    os.close(source)
print(moved)
"#;

impl Image {
    fn start_mover(&self) -> Child {
        let mut command = Command::new(python());
        command.args(["-c", MOVE]).arg(self.area());
        command.args(["donor", "end"].map(|name| self.root().join(name)));
        let mover = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("the donors exist", || self.root().join("donor-17").exists());
        mover
    }

    /// Asserts that softswap wrote to no donor, and changed no other file.
    fn expect_intact_donors(self, mover: Child, before: &BTreeMap<PathBuf, u64>) -> usize {
        File::create(self.root().join("end")).unwrap();
        let mover = mover.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&mover.stdout);
        let moves: usize = text.trim().parse().unwrap_or_else(|_| panic!("{mover:?}"));
        let mut after = self.foreign();
        for number in 0..18 {
            let found = after.remove(&self.root().join(format!("donor-{number}")));
            let hole = vec![0; (number + 12) * 2 * MIB as usize];
            let own = digest(&[hole, vec![0x5a; 2 * MIB as usize]].concat());
            assert!(found == Some(own) || number >= moves, "donor {number} has changed");
        }
        after.remove(&self.root().join("end"));
        expect_same_files(after, before);
        self.expect_clean();
        moves
    }
}

/// Compares all files except for the list of free blocks.
fn expect_same_files(mut after: BTreeMap<PathBuf, u64>, before: &BTreeMap<PathBuf, u64>) {
    after.insert(FREE.into(), before[Path::new(FREE)]);
    assert!(after == *before, "another file has changed");
}

#[test]
fn a_file_whose_blocks_move_at_the_start_is_refused() {
    let Some(image) = Image::of("ext4") else { return };
    let (image, area, before) = image.fragmented();
    let mover = image.start_mover();
    let mut refused = 0;
    for _ in 0..number("SOFTSWAP_RAW_MOVES", 3) {
        let ended = finish(&mut raw(&area).command(compiled("threads"), &["--mib", "48"]));
        match ended.status.code() {
            Some(2) => {
                assert!(ended.stderr.contains("cannot be used raw"), "{}", ended.stderr);
                refused += 1;
            }
            _ => ended.expect_ok("threads"),
        }
    }
    let moves = image.expect_intact_donors(mover, &before);
    println!("{moves} moves, {refused} refusals");
}

fn blocks(path: &Path) -> Vec<(u64, u64)> {
    let extents = fiemap::extents(File::open(path).unwrap().as_fd()).unwrap();
    extents.iter().map(|extent| (extent.logical, extent.physical)).collect()
}

/// The program must have no other area.
fn expect_cause_reported(running: Running) {
    let ended = running.finish(LIMIT);
    assert!(ended.stderr.contains("softswap swapon-check --raw"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("replace the device"), "{}", ended.stderr);
}

fn wait_for_stop(running: &Running) {
    wait_until("the message", || {
        let errors = running.stderr_so_far();
        errors.contains("moved or freed blocks").then_some(()).ok_or(errors)
    });
}

#[test]
fn moved_blocks_stop_the_area_before_another_file_changes() {
    for kind in ["ext4", "xfs"] {
        let Some(image) = Image::of(kind) else { continue };
        let (image, area, before) = image.fragmented();
        let other = image.root().join("foreign-0");
        // A program that opened the file before could move its blocks later.
        let opened = File::options().write(true).open(&area).unwrap();
        refused(&area, &["another program has opened it", "fuser -v"]);
        drop(opened);
        let swapped = raw(&area);
        let running = swapped.start("hog", &ENDLESS);
        // The immutable flag prevents changes by programs that do not remove it.
        assert!(fs::rename(&area, image.root().join("moved")).is_err());
        assert!(fs::rename(&other, &area).is_err());
        assert!(fs::copy(&other, &area).is_err());
        assert!(fs::remove_file(&area).is_err());
        let placed = blocks(&area);
        let defragmenter = if kind == "ext4" { "e4defrag" } else { "xfs_fsr" };
        match tool(defragmenter) {
            Some(mut defragment) => drop(defragment.arg(&area).output().unwrap()),
            None => skip(&format!("{defragmenter} is not installed")),
        }
        assert!(blocks(&area) == placed);
        let stderr = running.stderr_so_far();
        assert!(!stderr.contains("moved or freed blocks"), "{stderr}");
        let mover = (kind == "ext4").then(|| image.start_mover());
        let mut chattr = tool("chattr").expect("e2fsprogs");
        assert!(succeeds(chattr.arg("-i").arg(&area)));
        if let Some(mover) = mover {
            wait_for_stop(&running);
            expect_cause_reported(running);
            println!("{} moves", image.expect_intact_donors(mover, &before));
            continue;
        }
        // Another file gets the freed blocks.
        let file = File::options().write(true).open(&area).unwrap();
        fallocate(&file, PUNCH, 0, AREA_BYTES).unwrap();
        let (stolen, content) = (image.root().join("stolen"), vec![0x5a; AREA_BYTES as usize / 2]);
        fs::write(&stolen, &content).unwrap();
        File::open(&stolen).unwrap().sync_all().unwrap();
        drop(file);
        wait_for_stop(&running);
        expect_cause_reported(running);
        let mut after = image.foreign();
        assert_eq!(after.remove(&stolen), Some(digest(&content)));
        expect_same_files(after, &before);
        image.expect_clean();
    }
}

#[test]
fn a_copy_that_shares_blocks_stops_the_area() {
    let Some(image) = Image::of("xfs") else { return };
    let area = image.make_area();
    let running = raw(&area).start("hog", &ENDLESS);
    let copy = image.root().join("copy");
    if !succeeds(Command::new("cp").arg("--reflink=always").arg(&area).arg(&copy)) {
        return skip("this xfs has no reflinks");
    }
    wait_for_stop(&running);
    let content = digest(&fs::read(&copy).unwrap());
    expect_cause_reported(running);
    assert!(!is_immutable(&area));
    assert_eq!(digest(&fs::read(&copy).unwrap()), content);
    image.expect_clean();
}

#[test]
fn files_on_a_partition_of_a_loop_device_over_another_are_used_in_place() {
    const SECTOR_BYTES: u64 = 512;
    let dir = disk_dir();
    let path = dir.path().join("image");
    // Foreign data is in front of the partition and behind it.
    let (begin, end) = (8 * MIB, 168 * MIB);
    let foreign = vec![0xa5; begin as usize];
    File::create(&path).unwrap().write_all_at(&foreign, 0).unwrap();
    File::options().write(true).open(&path).unwrap().write_all_at(&foreign, end).unwrap();
    let outer = Loop::over(&path).filter(|_| is_root());
    let inner = outer.as_ref().and_then(|it| Loop::with(it.path(), &["--partscan"]));
    let Some((outer, inner)) = outer.zip(inner) else {
        return skip("a loop device over another needs root and two loop devices");
    };
    let partition = PathBuf::from(format!("{}p1", inner.0));
    let sectors = [begin, end - begin].map(|bytes| (bytes / SECTOR_BYTES).to_string());
    let is_added = tool("addpart")
        .is_some_and(|mut addpart| succeeds(addpart.arg(inner.path()).arg("1").args(sectors)));
    if !is_added || !partition.exists() {
        return skip("addpart is not installed, or loop devices have no partitions here");
    }
    let image = Image::on(partition, vec![inner, outer], "ext4", dir, AREA_BYTES);
    let Some(image) = image else { return };
    let (area, before) = (image.make_area(), image.foreign());
    raw(&area).run_ok("threads", &["--mib", "64"]);
    assert!(image.foreign() == before);
    rustix::fs::sync();
    let content = fs::read(&path).unwrap();
    assert!(content[..begin as usize] == foreign && content[end as usize..] == foreign);
    image.expect_clean();
}

#[test]
fn files_with_unwritten_or_shared_blocks_are_refused() {
    let Some(image) = Image::of("xfs") else { return };
    let area = image.make_area();
    check(&area);
    // Extents that were never written, holes, and extents that another file shares.
    image.allocate_area();
    assert!(succeeds(softswap_with(&["mkswap"]).arg(&area)));
    refused(&area, &["cannot be used raw", "never written", "mkswap --raw --force"]);
    assert_eq!([doctor(&area, ""), doctor(&area, ",raw")], [true, false]);
    assert!(succeeds(softswap_with(&["mkswap", "--raw", "--force"]).arg(&area)));
    assert_eq!([doctor(&area, ""), doctor(&area, ",raw")], [true, true]);
    let file = File::options().write(true).open(&area).unwrap();
    fallocate(&file, PUNCH, 8 * MIB, MIB).unwrap();
    drop(file);
    refused(&area, &["hole"]);
    File::create(&area).unwrap().set_len(AREA_BYTES).unwrap();
    let mut command = softswap();
    assert_refused(command.args(["mkswap", "--raw", "--force"]).arg(&area), 2, &["hole"]);
    fs::remove_file(&area).unwrap();
    image.allocate_area();
    refused(&area, &["no swap header", "mkswap --raw --force"]);
    assert!(!doctor(&area, ",raw"));
    image.make_area();
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
    rustix::fs::sync();
    assert!(succeeds(tool("blockdev").unwrap().arg("--setro").arg(&image.device)));
    refused(&area, &["is read-only"]);
    assert!(succeeds(tool("blockdev").unwrap().arg("--setrw").arg(&image.device)));
    image.unmount();
    assert!(image.mount(&["-o", "ro"]));
    refused(&area, &["is read-only"]);
    image.unmount();
    assert!(image.mount(&[]));
    // A device is always raw.
    let Some(second) = Loop::over(&area) else { return skip("no second loop device") };
    assert!(succeeds(softswap_with(&["mkswap", "--force"]).arg(second.path())));
    refused(second.path(), &["leave out `raw`"]);
    refused(&area, &["/dev/loop"]);
}

/// The messages must name the file system, and the files must not change. Unmounts it.
fn expect_unfit(mounted: &Path, file_system: &str) {
    let path = mounted.join("swap");
    // Written, so that the file has no holes.
    fs::write(&path, vec![0; 8 * MIB as usize]).unwrap();
    set_mode(&path, 0o600);
    let attempts = || {
        let commands =
            [&["mkswap", "--raw"][..], &["mkswap", "--raw", "--force"], &["swapon-check", "--raw"]];
        let mut outputs =
            commands.map(|it| softswap_with(it).arg(&path).output().unwrap()).to_vec();
        outputs.push(raw(&path).command("true", &[""; 0]).output().unwrap());
        outputs
    };
    let mut outputs = attempts();
    let content = fs::read(&path).unwrap();
    let is_formatted = succeeds(softswap_with(&["mkswap"]).arg(&path));
    let formatted = fs::read(&path).unwrap();
    outputs.extend(attempts());
    let after = fs::read(&path).unwrap();
    assert!(succeeds(tool("umount").unwrap().arg(mounted)));
    assert!(is_formatted && formatted == after && content.iter().all(|byte| *byte == 0));
    for (attempt, output) in outputs.into_iter().enumerate() {
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        // The header is found before the file system, and only `--force` overwrites it.
        if attempt == 4 {
            continue;
        }
        assert_contains_all(&text, &[&format!("it is on {file_system}, "), "ext4 and xfs"]);
        assert!(!text.contains("softswap mkswap"), "{text}");
    }
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
