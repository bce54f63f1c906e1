//! Memory cgroup of a given size without kernel swap (v1 or v2).

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Child cgroup. Its processes are killed and it is removed on drop.
pub(crate) struct MemoryGroup {
    dir: PathBuf,
}

impl MemoryGroup {
    /// Creates a group limited to `bytes`, or returns the reason why that is impossible.
    pub(crate) fn limited_to(bytes: u64) -> Result<MemoryGroup, String> {
        if !crate::common::is_root() {
            return Err("a memory control group needs root".into());
        }
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| e.to_string())?;
        let mut reasons = Vec::new();
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(mount), Some(kind), Some(options)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let made = match kind {
                "cgroup" if options.split(',').any(|o| o == "memory") => {
                    first(Path::new(mount), bytes)
                }
                "cgroup2" => second(Path::new(mount), bytes),
                _ => continue,
            };
            match made {
                Ok(group) => return Ok(group),
                Err(error) => reasons.push(format!("{mount}: {error}")),
            }
        }
        Err(format!("no memory control group can be created: {}", reasons.join("; ")))
    }

    /// Creates a limited group for a test that also runs without one. Prints the reason if a group
    /// is impossible.
    pub(crate) fn if_possible(bytes: u64) -> Option<MemoryGroup> {
        MemoryGroup::limited_to(bytes)
            .inspect_err(|why| eprintln!("without a control group: {why}"))
            .ok()
    }

    /// Creates a limited group for a test that needs it. Notes that the test is skipped if a group
    /// is impossible.
    pub(crate) fn or_skip(bytes: u64) -> Option<MemoryGroup> {
        MemoryGroup::limited_to(bytes).inspect_err(|why| crate::common::skip(why)).ok()
    }

    fn create_in(parent: &Path) -> io::Result<MemoryGroup> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("softswap-test-{}-{number}", std::process::id()));
        fs::create_dir(&dir)?;
        Ok(MemoryGroup { dir })
    }

    pub(crate) fn limit_to(&self, bytes: u64) -> io::Result<()> {
        let is_first = self.dir.join("memory.limit_in_bytes").exists();
        if !is_first {
            return self.set("memory.max", &bytes.to_string());
        }
        // In v1, `memory.memsw.limit_in_bytes` is raised first, because the other limit may not
        // exceed it.
        let _ = self.set("memory.memsw.limit_in_bytes", &(1u64 << 40).to_string());
        self.set("memory.limit_in_bytes", &bytes.to_string())
    }

    /// File to which a process writes its PID to join.
    pub(crate) fn members_file(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.dir.join(file), value)
            .map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))
    }

    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", r#"echo $$ > "$0" && exec "$@""#])
            .arg(self.dir.join("cgroup.procs"))
            .arg(program);
        command
    }

    pub(crate) fn oom_kills(&self) -> u64 {
        let read = |file: &str| fs::read_to_string(self.dir.join(file)).ok();
        let text = read("memory.oom_control").or_else(|| read("memory.events")).unwrap_or_default();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    pub(crate) fn processes(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A cgroup can be removed only after its last process has exited.
        for _ in 0..500 {
            self.processes().into_iter().for_each(super::processes::kill);
            if fs::remove_dir(&self.dir).is_ok() || !self.dir.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} could not be removed", self.dir.display());
    }
}

/// Returns a command that runs the program in `group`, if there is one.
pub(crate) fn command_in(group: Option<&MemoryGroup>, program: impl AsRef<OsStr>) -> Command {
    match group {
        Some(group) => group.command(program),
        None => Command::new(program),
    }
}

fn first(mount: &Path, bytes: u64) -> io::Result<MemoryGroup> {
    let group = MemoryGroup::create_in(mount)?;
    group.set("memory.limit_in_bytes", &bytes.to_string())?;
    // Allow no swap if the kernel accounts for it. Otherwise discourage swapping.
    let _ = group.set("memory.memsw.limit_in_bytes", &bytes.to_string());
    group.set("memory.swappiness", "0")?;
    Ok(group)
}

fn second(mount: &Path, bytes: u64) -> io::Result<MemoryGroup> {
    // Only the root cgroup may contain processes and children with controllers.
    let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
    let group = MemoryGroup::create_in(mount)?;
    group.set("memory.max", &bytes.to_string())?;
    // Absent if the kernel has no swap support.
    if group.dir.join("memory.swap.max").exists() {
        group.set("memory.swap.max", "0")?;
    }
    Ok(group)
}
