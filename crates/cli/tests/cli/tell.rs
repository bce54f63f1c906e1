//! `run --tell`: the memory that programs see, by every way that programs ask for it.

use crate::common::{assert_refused, json_file, run, skip, softswap, tool};
use crate::support::{Swapped, finish, plain, python};
use std::path::Path;
use std::process::Command;

const KIB_OF_3G: &str = "3145728";
const BYTES_OF_3G: &str = "3221225472";

/// The program sees 3 GiB.
fn seen_by(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let swapped = Swapped::within("64M").options(&["--tell", "3G", "--quiet"]);
    let report = swapped.run(program.as_ref(), arguments);
    report.ended.expect_success(&format!("{arguments:?}"));
    report.ended.stdout_text()
}

fn field(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.split_once(name)).unwrap_or_else(|| {
        panic!("{name:?} is missing in:\n{meminfo}");
    });
    line.1.trim().trim_end_matches(" kB").parse().unwrap()
}

fn machine_kib() -> u64 {
    field(&std::fs::read_to_string("/proc/meminfo").unwrap(), "MemTotal:")
}

fn group_files(names: [&str; 2]) -> Vec<String> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let files = [
        format!("/sys/fs/cgroup/memory/{}", names[0]),
        format!("/sys/fs/cgroup/{path}/{}", names[1]),
    ];
    files.into_iter().filter(|file| Path::new(file).exists()).collect()
}

#[test]
fn python_sees_advertised_memory_by_sysconf_sysinfo_and_raw_calls() {
    let text = "import ctypes, os\n\
        page = os.sysconf('SC_PAGE_SIZE')\n\
        print(os.sysconf('SC_PHYS_PAGES') * page)\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        print(libc.get_phys_pages() * page)\n\
        info = (ctypes.c_ulong * 32)()\n\
        assert libc.sysinfo(info) == 0\n\
        print(info[4])\n\
        info[4] = 0\n\
        if hasattr(os, 'uname') and os.uname().machine == 'x86_64':\n\
        \x20   assert libc.syscall(99, info) == 0\n\
        \x20   print(info[4])\n\
        assert libc.sysinfo(ctypes.c_void_p(8)) == -1 and ctypes.get_errno() == 14\n\
        free = os.sysconf('SC_AVPHYS_PAGES') * page\n\
        assert free <= 3 << 30, free\n";
    let seen = seen_by(python(), &["-c", text]);
    assert!(seen.lines().count() >= 3, "{seen}");
    assert!(seen.lines().all(|line| line == BYTES_OF_3G), "{seen}");
}

#[test]
fn shell_and_its_children_see_advertised_memory_in_meminfo() {
    let text = "read name kib unit < /proc/meminfo; echo $kib; cat /proc/meminfo | head -1";
    let seen = seen_by("sh", &["-c", text]);
    assert_eq!(seen.matches(KIB_OF_3G).count(), 2, "{seen}");
    if tool("free").is_some() {
        let seen = seen_by("free", &["-k"]);
        assert!(seen.lines().nth(1).unwrap().contains(KIB_OF_3G), "{seen}");
    }
    let text = "cd /proc/self && cat ../meminfo && cd /proc && exec cat meminfo";
    let seen = seen_by("sh", &["-c", text]);
    assert_eq!(seen.matches(&format!("MemTotal:        {KIB_OF_3G} kB")).count(), 2, "{seen}");
    assert_eq!(field(&seen, "SwapTotal:"), 0);
}

#[test]
fn nodes_and_control_group_show_advertised_memory() {
    for limit in group_files(["memory.limit_in_bytes", "memory.max"]) {
        assert_eq!(seen_by("cat", &[&limit]).trim(), BYTES_OF_3G, "{limit}");
    }
    for current in group_files(["memory.usage_in_bytes", "memory.current"]) {
        let used: u64 = seen_by("cat", &[&current]).trim().parse().unwrap();
        assert!(used <= 64 << 20, "{current}: {used}");
    }
    let node = "/sys/devices/system/node/node0/meminfo";
    if let Ok(plain) = std::fs::read_to_string(node) {
        let seen = field(&seen_by("cat", &[node]), "MemTotal:");
        let share = field(&plain, "MemTotal:") as f64 / machine_kib() as f64;
        let expected = share.min(1.0) * (3 << 20) as f64;
        assert!((seen as f64 / expected - 1.0).abs() < 0.05, "{seen} of {expected}");
    }
}

#[test]
fn used_memory_is_that_of_the_tree() {
    let text = "import os, subprocess\n\
        data = os.urandom(200 << 20)\n\
        print(open('/proc/meminfo').read())\n\
        print(subprocess.run(['cat', '/proc/meminfo'], capture_output=True, text=True).stdout)\n\
        assert max(data[::4096]) > 0\n";
    let seen = seen_by(python(), &["-c", text]);
    let (own, childs) = seen.split_at(seen.rfind("MemTotal:").unwrap());
    for meminfo in [own, childs] {
        let used = (3 << 20) - field(meminfo, "MemAvailable:");
        assert!((150 << 10..400 << 10).contains(&used), "{used} KiB used of:\n{meminfo}");
    }
}

#[test]
fn replaced_file_is_read_only_and_other_files_are_not_replaced() {
    let text = "import fcntl, os\n\
        fd = os.open('/proc/meminfo', os.O_RDONLY | os.O_CLOEXEC)\n\
        assert fcntl.fcntl(fd, fcntl.F_GETFD) == fcntl.FD_CLOEXEC\n\
        first = os.read(fd, 20)\n\
        os.lseek(fd, 0, 0)\n\
        assert os.read(fd, 20) == first\n\
        try:\n\
        \x20   os.write(fd, b'x')\n\
        \x20   raise SystemExit('written')\n\
        except OSError as error:\n\
        \x20   assert error.errno == 9\n\
        os.close(fd)\n\
        assert os.open('/dev/null', os.O_RDONLY) == fd\n\
        libc_fd = __import__('ctypes').CDLL(None).open(b'/proc/meminfo', os.O_RDONLY)\n\
        assert fcntl.fcntl(libc_fd, fcntl.F_GETFD) == 0\n\
        assert str(os.getpid()) in open('/proc/self/stat').read()\n\
        open('meminfo', 'w').write('MemTotal: 7 kB')\n\
        assert open('meminfo').read() == 'MemTotal: 7 kB'\n\
        mode = os.open('made', os.O_CREAT | os.O_WRONLY, 0o640)\n\
        assert os.stat('made').st_mode & 0o777 == 0o640, os.stat('made')\n\
        try:\n\
        \x20   open('/nowhere/at/all')\n\
        \x20   raise SystemExit('opened')\n\
        except FileNotFoundError:\n\
        \x20   print('ok')\n";
    let dir = tempfile::tempdir().unwrap();
    let text = format!("import os; os.chdir({:?}); os.umask(0)\n{text}", dir.path());
    assert_eq!(seen_by(python(), &["-c", &text]).trim(), "ok");
}

/// Prints the first bytes of the C library's functions that `--tell` redirects.
const CODE: &str = "import ctypes\n\
    libc = ctypes.CDLL('libc.so.6')\n\
    for name in ['sysinfo', 'open64', 'openat64']:\n\
    \x20   at = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value\n\
    \x20   print(name, ctypes.string_at(at, 16).hex())\n\
    print(open('/proc/meminfo').readline())\n";

#[test]
fn without_the_option_nothing_is_redirected_and_nothing_changes_outside() {
    let unchanged = plain(python(), &["-c", CODE]).stdout_text();
    assert_eq!(field(&unchanged, "MemTotal:"), machine_kib());
    for options in [&[][..], &["--tell", "off"]] {
        let swapped = Swapped::within("64M").option("-q").options(options);
        assert_eq!(swapped.run(python(), &["-c", CODE]).ended.stdout_text(), unchanged);
    }
    let changed = seen_by(python(), &["-c", CODE]);
    let lines = unchanged.lines().zip(changed.lines());
    assert_eq!(lines.filter(|(before, now)| before != now).count(), 4, "{changed}");
    // The child is started without softswap.
    let outside = Swapped::within("64M").options(&["-q", "--tell", "3G", "--children", "plain"]);
    let text = "cat /proc/meminfo; exit 0";
    let seen = outside.run("sh", &["-c", text]).ended.stdout_text();
    assert_eq!(field(&seen, "MemTotal:"), machine_kib());
}

#[test]
fn auto_is_budget_and_swap_areas_and_budget_is_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let seen = |options: &[&str]| {
        let output = run(dir.path()).args(options).args(["-q", "cat", "/proc/meminfo"]).output();
        field(&String::from_utf8(output.unwrap().stdout).unwrap(), "MemTotal:") >> 10
    };
    assert_eq!(seen(&["--tell", "budget"]), 64);
    let auto = seen(&["--tell", "auto"]);
    assert!((65..=6400).contains(&auto), "{auto} MiB");
    let area = format!("{}:100M", dir.path().display());
    let mut limited = softswap();
    limited.args(["run", "-q", "--memory", "64M", "--reserve", "0", "--tell", "auto", "--swap"]);
    let output = limited.args([&area, "cat", "/proc/meminfo"]).output().unwrap();
    assert_eq!(field(&String::from_utf8(output.stdout).unwrap(), "MemTotal:") >> 10, 164);

    let path = dir.path().join("report.json");
    run(dir.path()).args(["--tell", "1G", "--report"]).arg(&path).arg("true").assert().success();
    let report = json_file(&path);
    assert_eq!(report["advertised_bytes"].as_u64(), Some(1 << 30));
    assert!(report["usable_bytes"].as_u64() > Some(64 << 20));
    for wrong in ["1M", "much", "-1"] {
        assert_refused(run(dir.path()).args(["--tell", wrong, "true"]), 2, &["--tell", wrong]);
    }
}

#[test]
fn gnu_sort_sizes_its_buffer_by_advertised_memory() {
    let is_gnu = Command::new("sort").arg("--version").output();
    if !is_gnu.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).contains("GNU")) {
        return skip("GNU sort is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines");
    let text: String =
        (0..1_000_000_u64).map(|at| format!("{:08}\n", at * 7919 % 1_000_003)).collect();
    std::fs::write(&lines, text).unwrap();
    let peak = |tell: &str| {
        let swapped = Swapped::within("256M").options(&["-q", "--tell", tell]);
        let arguments = ["--parallel=1".as_ref(), "-T".as_ref(), dir.path(), &lines];
        let mut command = swapped.command("sort", &arguments);
        // A sleeping process has no figures.
        command.env("SOFTSWAP_AWAKE", "1");
        let report = swapped.report_of(finish(&mut command));
        report.ended.expect_success(tell);
        assert_eq!(report.ended.stdout.len(), 9_000_000);
        report.figure("used_peak_bytes")
    };
    let (small, large) = (peak("16M"), peak("3G"));
    assert!(small * 2 < large, "{small} and {large} bytes");
}
