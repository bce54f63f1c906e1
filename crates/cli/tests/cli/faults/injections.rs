//! The injected faults. Each kind starts a program and returns how it exited.

use super::places::{Disk, tool};
use super::victim::{End, May, Setting, Victim};
use crate::common::{Loop, is_root};
use crate::support::cgroup::ControlGroup;
use crate::support::control_client::wait_until;
use crate::support::disk_dir;
use crate::support::processes::send;
use softswap_testkit::random::Random;
use std::path::Path;
use std::time::Duration;

/// Number of injections, how the program exited, and its longest stall. An error: the fault cannot
/// be injected on this machine.
type Outcome = Result<(u64, End, Duration), String>;

pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) inject: fn(&mut Random) -> Outcome,
}

macro_rules! kinds {
    ($($name:ident),* $(,)?) => {
        pub(crate) const KINDS: &[Kind] =
            &[$(Kind { name: stringify!($name), inject: $name }),*];
    };
}

kinds! {
    stop_and_continue,
    freeze_group,
    kill_program,
    kill_softswap,
    kill_group,
    memory_group_shrinks,
    file_system_fills_up,
    read_only_remount,
    file_system_aborts,
    device_write_protected,
    device_loses_writes,
    device_loses_content,
    device_flakey,
    device_error,
    directory_vanishes,
    limits_from_the_start,
    limits_from_outside,
    next_run_at_once,
}

/// Injects at most `MAX` times in one run.
fn inject_repeatedly(
    victim: &mut Victim,
    random: &mut Random,
    mut apply_behaviour: impl FnMut(&mut Victim, &mut Random) -> Result<(), String>,
) -> Result<u64, String> {
    const MAX: u64 = 4;
    let mut times = 0;
    for _ in 0..1 + random.below(MAX) {
        victim.watch(random.milliseconds(10, 250));
        if victim.has_ended() {
            break;
        }
        apply_behaviour(victim, random)?;
        times += 1;
    }
    Ok(times)
}

fn finish(victim: Victim, times: u64, may: May) -> Outcome {
    let (end, pause) = victim.finish(may);
    Ok((times, end, pause))
}

/// The file system's own metadata may have taken this much.
const TABLES_BYTES: u64 = 2 << 20;

/// Also asserts that the run left no files.
fn expect_free(disk: &Disk, before_bytes: u64) {
    // io_uring's rings keep a swap file open until the kernel frees them. `softswap run` waits only
    // briefly for that, a killed one not at all.
    wait_until("the space is free", || match disk.free_bytes() {
        bytes if bytes + TABLES_BYTES >= before_bytes => Ok(()),
        bytes => Err(format!("{bytes} bytes are free, {before_bytes} were before")),
    });
    assert!(disk.is_empty(), "the run left files");
}

fn stop_and_continue(random: &mut Random) -> Outcome {
    let dir = disk_dir();
    let mut victim = Victim::under(&Setting::on(dir.path()));
    let times = inject_repeatedly(&mut victim, random, |victim, random| {
        // softswap continues to run while its program is stopped.
        let Some(program) = victim.program() else { return Ok(()) };
        send(program, libc::SIGSTOP);
        std::thread::sleep(random.milliseconds(1, 200));
        victim.send_to_all(libc::SIGCONT);
        victim.excuse();
        Ok(())
    })?;
    finish(victim, times, May::Continue)
}

fn freeze_group(random: &mut Random) -> Outcome {
    let freezer = ControlGroup::freezer()?;
    let dir = disk_dir();
    let shell = Some(freezer.join());
    let mut victim = Victim::under(&Setting { shell, ..Setting::on(dir.path()) });
    let times = inject_repeatedly(&mut victim, random, |victim, random| {
        freezer.freeze(true).expect("a freezer");
        std::thread::sleep(random.milliseconds(1, 300));
        freezer.freeze(false).expect("a freezer");
        victim.excuse();
        Ok(())
    })?;
    finish(victim, times, May::Continue)
}

fn killed(random: &mut Random, kill: impl FnOnce(&mut Victim)) -> Outcome {
    let disk = Disk::of(256).ok();
    let dir = disk_dir();
    let before_bytes = disk.as_ref().map_or(0, Disk::free_bytes);
    let swap = disk.as_ref().map_or(dir.path(), Disk::path);
    let mut victim = Victim::under(&Setting::on(swap));
    victim.watch(random.milliseconds(1, 700));
    kill(&mut victim);
    let outcome = finish(victim, 1, May::Killed(libc::SIGKILL));
    assert_eq!(std::fs::read_dir(dir.path()).map_or(0, Iterator::count), 0, "the run left files");
    if let Some(disk) = disk {
        expect_free(&disk, before_bytes);
    }
    outcome
}

fn kill_program(random: &mut Random) -> Outcome {
    killed(random, |victim| {
        if let Some(program) = victim.program() {
            send(program, libc::SIGKILL);
        }
    })
}

fn kill_softswap(random: &mut Random) -> Outcome {
    killed(random, |victim| victim.send(libc::SIGKILL))
}

fn kill_group(random: &mut Random) -> Outcome {
    let freezer = ControlGroup::freezer()?;
    let dir = disk_dir();
    let shell = Some(freezer.join());
    let mut victim = Victim::under(&Setting { shell, ..Setting::on(dir.path()) });
    victim.watch(random.milliseconds(1, 500));
    // Without `cgroup.kill` the processes are killed one by one, while frozen.
    if random.below(2) == 0 || !freezer.kill() {
        freezer.freeze(true).expect("a freezer");
        victim.send_to_all(libc::SIGKILL);
        freezer.freeze(false).expect("a freezer");
        victim.excuse();
    }
    finish(victim, 1, May::Killed(libc::SIGKILL))
}

/// Lowers the limit below the program's usage, so that the OOM killer runs in the group.
fn memory_group_shrinks(random: &mut Random) -> Outcome {
    let group = ControlGroup::limited_to(256 << 20)?;
    let dir = disk_dir();
    let shell = Some(group.join());
    let mut victim = Victim::under(&Setting { shell, ..Setting::on(dir.path()) });
    victim.watch(random.milliseconds(20, 500));
    // The kernel refuses a limit for which it cannot reclaim enough memory immediately.
    let mib = 4 + random.below(20);
    let _ = group.limit_to(mib << 20);
    victim.watch(random.milliseconds(20, 300));
    let _ = group.limit_to(256 << 20);
    victim.excuse();
    finish(victim, 1, May::Killed(libc::SIGKILL))
}

fn file_system_fills_up(random: &mut Random) -> Outcome {
    let disk = Disk::of(160)?;
    let before_bytes = disk.free_bytes();
    let options: &[&str] = if random.below(2) == 0 { &["--codec=none"] } else { &[] };
    let setting = Setting { options, mib: 100, ..Setting::on(disk.path()) };
    let mut victim = Victim::under(&setting);
    let times = inject_repeatedly(&mut victim, random, |victim, random| {
        let filler = disk.fill();
        victim.watch(random.milliseconds(10, 1200));
        drop(filler);
        Ok(())
    })?;
    let outcome = finish(victim, times, May::StopWithMessage);
    expect_free(&disk, before_bytes);
    outcome
}

fn read_only_remount(random: &mut Random) -> Outcome {
    let disk = Disk::of(160)?;
    let mut victim = Victim::under(&Setting::on(disk.path()));
    let mut refused = String::new();
    let times = inject_repeatedly(&mut victim, random, |_, _| {
        // A file open for writing prevents a read-only remount.
        if let Err(why) = disk.remount("ro") {
            refused = why;
        }
        Ok(())
    })?;
    let outcome = finish(victim, times, May::StopWithMessage);
    let _ = disk.remount("rw");
    if times > 0 && !refused.contains("busy") {
        assert!(refused.is_empty(), "{refused}");
    }
    outcome
}

/// Aborts the file system as after a metadata error: all writes then fail.
fn file_system_aborts(random: &mut Random) -> Outcome {
    let disk = Disk::of(160)?;
    let mut victim = Victim::under(&Setting { mib: 60, ..Setting::on(disk.path()) });
    victim.watch(random.milliseconds(1, 600));
    disk.remount("abort")?;
    victim.watch(random.milliseconds(10, 1000));
    finish(victim, 1, May::StopWithMessage)
}

fn directory_vanishes(random: &mut Random) -> Outcome {
    let dir = disk_dir();
    let swap = dir.path().join("swap");
    std::fs::create_dir(&swap).expect("a directory");
    let is_mounted = random.below(2) == 0 && is_root();
    let mut disk = is_mounted.then(|| Disk::of(160)).transpose()?;
    let place = disk.as_ref().map_or(swap.as_path(), Disk::path).to_path_buf();
    let mut victim = Victim::under(&Setting::on(&place));
    victim.wait_started();
    victim.watch(random.milliseconds(1, 300));
    match &mut disk {
        Some(disk) => disk.unmount_lazily()?,
        None => std::fs::remove_dir(&swap).map_err(|error| error.to_string())?,
    }
    victim.watch(random.milliseconds(10, 500));
    finish(victim, 1, May::Continue)
}

fn device_write_protected(random: &mut Random) -> Outcome {
    let disk = Disk::of(160)?;
    let mut victim = Victim::under(&Setting { mib: 60, ..Setting::on(disk.path()) });
    let times = inject_repeatedly(&mut victim, random, |victim, random| {
        tool("blockdev", &["--setro", &disk.device.0])?;
        victim.watch(random.milliseconds(10, 400));
        tool("blockdev", &["--setrw", &disk.device.0]).map(drop)
    })?;
    finish(victim, times, May::StopWithMessage)
}

/// The device's storage is smaller than its size, and later becomes large enough.
fn device_loses_writes(random: &mut Random) -> Outcome {
    let disk = Disk::thin_provisioned(160, 24 + random.below(30))?;
    let mut victim = Victim::under(&Setting { mib: 60, ..Setting::on(disk.path()) });
    let mut storage_mib = 80;
    let times = inject_repeatedly(&mut victim, random, |victim, random| {
        victim.watch(random.milliseconds(10, 400));
        storage_mib += 20;
        disk.set_storage(storage_mib)
    })?;
    finish(victim, times, May::StopWithMessage)
}

fn device_loses_content(random: &mut Random) -> Outcome {
    let disk = Disk::of(160)?;
    let mut victim = Victim::under(&Setting { mib: 60, ..Setting::on(disk.path()) });
    victim.wait_ready();
    let image = std::fs::File::options().write(true).open(&disk.image);
    let image = image.map_err(|error| error.to_string())?;
    let times = inject_repeatedly(&mut victim, random, |_, random| {
        use rustix::fs::FallocateFlags as Flags;
        let at = (20 + random.below(120)) << 20;
        let flags = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
        rustix::fs::fallocate(&image, flags, at, (1 + random.below(8)) << 20)
            .map_err(|error| error.to_string())
    })?;
    finish(victim, times, May::StopWithMessage)
}

/// `table` replaces the device-mapper table while the program runs.
fn mapped(random: &mut Random, table: fn(&mut Random, &str) -> String) -> Outcome {
    tool("dmsetup", &["version"]).map_err(|_| "this kernel has no device-mapper".to_string())?;
    let disk = Disk::of(160)?;
    let target = Mapper::over(&disk)?;
    let mut victim = Victim::under(&Setting { mib: 60, ..Setting::on(target.path()) });
    let times = inject_repeatedly(&mut victim, random, |victim, random| {
        target.load(&table(random, &target.device.0))?;
        victim.watch(random.milliseconds(10, 400));
        target.load(&format!("linear {} 0", target.device.0))
    })?;
    finish(victim, times, May::StopWithMessage)
}

fn device_flakey(random: &mut Random) -> Outcome {
    mapped(random, |random, device| {
        let (up, down) = (random.below(2), 1 + random.below(2));
        format!("flakey {device} 0 {up} {down} 1 error_writes")
    })
}

fn device_error(random: &mut Random) -> Outcome {
    mapped(random, |_, _| "error".to_string())
}

/// Has its own file system. Unmounted and removed on drop.
struct Mapper {
    name: String,
    device: Loop,
    sectors: String,
    point: tempfile::TempDir,
}

impl Mapper {
    fn over(disk: &Disk) -> Result<Mapper, String> {
        let image = disk.keeps().join("mapped");
        let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(160 << 20).map_err(|error| error.to_string())?;
        let device = Loop::over(&image).ok_or("no loop device is available")?;
        let name = format!("softswap-test-{}", std::process::id());
        let mapper =
            Mapper { name, device, sectors: (160u64 << 11).to_string(), point: disk_dir() };
        let table = format!("0 {} linear {} 0", mapper.sectors, mapper.device.0);
        tool("dmsetup", &["create", &mapper.name, "--table", &table])?;
        let path = format!("/dev/mapper/{}", mapper.name);
        tool("mkfs.ext4", &["-q", "-F", "-m", "0", &path])?;
        tool("mount", &[&path, &mapper.point.path().display().to_string()])?;
        Ok(mapper)
    }

    fn path(&self) -> &Path {
        self.point.path()
    }

    fn load(&self, table: &str) -> Result<(), String> {
        let table = format!("0 {} {table}", self.sectors);
        tool("dmsetup", &["suspend", "--noflush", "--nolockfs", &self.name])?;
        let loaded = tool("dmsetup", &["load", &self.name, "--table", &table]);
        tool("dmsetup", &["resume", &self.name])?;
        loaded.map(drop)
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = tool("umount", &["--lazy", &self.point.path().display().to_string()]);
        let _ = tool("dmsetup", &["remove", "--force", "--retry", &self.name]);
    }
}

/// Name, minimum, maximum, and the signal that Linux sends if the limit is exceeded.
const LIMITS: [(&str, u64, u64, i32); 10] = [
    ("--as", 1 << 20, 64 << 30, libc::SIGKILL),
    ("--data", 1 << 20, 512 << 20, libc::SIGKILL),
    ("--stack", 64 << 10, 16 << 20, libc::SIGSEGV),
    ("--nproc", 1, 64, libc::SIGKILL),
    ("--fsize", 0, 128 << 20, libc::SIGXFSZ),
    ("--memlock", 0, 64 << 20, libc::SIGKILL),
    ("--nofile", 3, 64, libc::SIGKILL),
    ("--core", 0, 1 << 20, libc::SIGKILL),
    ("--cpu", 1, 2, libc::SIGXCPU),
    ("--sigpending", 0, 64, libc::SIGKILL),
];

fn a_limit(random: &mut Random) -> (String, i32) {
    let (name, least, most, signal) = LIMITS[random.below(LIMITS.len() as u64) as usize];
    let span = (most / least.max(1)).max(2).ilog2() as u64 + 1;
    let value = (least.max(1) << random.below(span)).clamp(least, most);
    (format!("{name}={value}:"), signal)
}

/// A program that cannot start must fail as without softswap, with a message.
fn limits_from_the_start(random: &mut Random) -> Outcome {
    tool("prlimit", &["--version"])?;
    let dir = disk_dir();
    let (limit, signal) = a_limit(random);
    let shell = Some(format!("exec prlimit {limit} \"$@\""));
    let mut victim = Victim::under(&Setting { shell, ..Setting::on(dir.path()) });
    victim.watch(random.milliseconds(100, 500));
    let (end, pause) = victim.finish_under_limit(signal, &limit);
    Ok((1, end, pause))
}

fn limits_from_outside(random: &mut Random) -> Outcome {
    tool("prlimit", &["--version"])?;
    let dir = disk_dir();
    let mut victim = Victim::under(&Setting::on(dir.path()));
    victim.wait_started();
    let (mut signal, mut all) = (libc::SIGKILL, String::new());
    for _ in 0..4 {
        victim.watch(random.milliseconds(1, 100));
        let (limit, its_signal) = a_limit(random);
        if let Some(program) = victim.program() {
            let _ = tool("prlimit", &["--pid", &program.to_string(), &limit]);
            all += &limit;
        }
        if its_signal != libc::SIGKILL {
            signal = its_signal;
            break;
        }
    }
    victim.watch(random.milliseconds(10, 300));
    let (end, pause) = victim.finish_under_limit(signal, &all);
    Ok((1, end, pause))
}

/// The resources of the first run must also be free.
fn next_run_at_once(random: &mut Random) -> Outcome {
    let disk = Disk::of(112)?;
    let before_bytes = disk.free_bytes();
    let mut last = (End::Completed, Duration::ZERO);
    for _ in 0..2 {
        let setting = Setting { options: &["--codec=none"], mib: 60, ..Setting::on(disk.path()) };
        let mut victim = Victim::under(&setting);
        victim.wait_ready();
        let is_killed = random.below(2) == 0;
        if is_killed && let Some(program) = victim.program() {
            send(program, libc::SIGKILL);
        }
        last = victim.finish(if is_killed { May::Killed(libc::SIGKILL) } else { May::Continue });
        expect_free(&disk, before_bytes);
    }
    Ok((2, last.0, last.1))
}
