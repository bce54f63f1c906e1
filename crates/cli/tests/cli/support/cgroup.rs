//! Control groups (v1 or v2): a memory limit without kernel swap, or a freezer.

use softswap_sys::memory_limits::oom_kills_in;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// On drop, its processes are killed and it is removed.
pub(crate) struct ControlGroup {
    dir: PathBuf,
}

impl ControlGroup {
    pub(crate) fn limited_to(bytes: u64) -> Result<ControlGroup, String> {
        ControlGroup::create("memory", |group| {
            if group.is_second() {
                group.set("memory.max", &bytes.to_string())?;
                // The file is absent in a kernel without swap.
                let has_swap = group.dir.join("memory.swap.max").exists();
                return if has_swap { group.set("memory.swap.max", "0") } else { Ok(()) };
            }
            group.set("memory.limit_in_bytes", &bytes.to_string())?;
            // If the kernel does not account for swap, discourage swapping.
            let _ = group.set("memory.memsw.limit_in_bytes", &bytes.to_string());
            group.set("memory.swappiness", "0")
        })
    }

    pub(crate) fn freezer() -> Result<ControlGroup, String> {
        ControlGroup::create("freezer", |group| group.freeze(false))
    }

    /// Tries each mount with this controller until `set_up` succeeds.
    fn create(
        controller: &str,
        set_up: impl Fn(&ControlGroup) -> io::Result<()>,
    ) -> Result<ControlGroup, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !crate::common::is_root() {
            return Err("a control group needs root".into());
        }
        let mut reasons = Vec::new();
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, mount, kind, options, ..] = fields[..] else { continue };
            let is_first = kind == "cgroup" && options.split(',').any(|it| it == controller);
            if !is_first && kind != "cgroup2" {
                continue;
            }
            if !is_first {
                // Only the root cgroup may have processes and children with controllers. The
                // freezer of version 2 is no controller.
                let control = Path::new(mount).join("cgroup.subtree_control");
                let _ = fs::write(control, format!("+{controller}"));
            }
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("softswap-test-{}-{number}", std::process::id());
            let dir = Path::new(mount).join(name);
            let made = fs::create_dir(&dir).map(|()| ControlGroup { dir });
            match made.and_then(|group| set_up(&group).map(|()| group)) {
                Ok(group) => return Ok(group),
                Err(error) => reasons.push(format!("{mount}: {error}")),
            }
        }
        Err(format!("no control group for {controller} can be created: {}", reasons.join("; ")))
    }

    fn is_second(&self) -> bool {
        self.dir.join("cgroup.controllers").exists()
    }

    pub(crate) fn if_possible(bytes: u64) -> Option<ControlGroup> {
        ControlGroup::limited_to(bytes)
            .inspect_err(|why| eprintln!("without a control group: {why}"))
            .ok()
    }

    pub(crate) fn or_skip(bytes: u64) -> Option<ControlGroup> {
        ControlGroup::limited_to(bytes).inspect_err(|why| crate::common::skip(why)).ok()
    }

    pub(crate) fn limit_to(&self, bytes: u64) -> io::Result<()> {
        if self.is_second() {
            return self.set("memory.max", &bytes.to_string());
        }
        // In v1, the other limit may not exceed this one.
        let _ = self.set("memory.memsw.limit_in_bytes", &(1u64 << 40).to_string());
        self.set("memory.limit_in_bytes", &bytes.to_string())
    }

    pub(crate) fn freeze(&self, on: bool) -> io::Result<()> {
        if self.is_second() {
            return self.set("cgroup.freeze", if on { "1" } else { "0" });
        }
        self.set("freezer.state", if on { "FROZEN" } else { "THAWED" })
    }

    pub(crate) fn kill(&self) -> bool {
        self.set("cgroup.kill", "1").is_ok()
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a shell script that joins the group and runs its arguments.
    pub(crate) fn join(&self) -> String {
        format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.dir.display())
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.dir.join(file), value)
            .map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))
    }

    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &self.join(), "sh"]).arg(program);
        command
    }

    pub(crate) fn oom_kills(&self) -> u64 {
        let text = self.read_any(["memory.oom_control", "memory.events"]);
        text.and_then(|text| oom_kills_in(&text)).unwrap_or(0)
    }

    /// `None` if the kernel does not record it.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        self.read_any(["memory.peak", "memory.max_usage_in_bytes"])?.trim().parse().ok()
    }

    fn read_any(&self, files: [&str; 2]) -> Option<String> {
        files.into_iter().find_map(|file| fs::read_to_string(self.dir.join(file)).ok())
    }

    pub(crate) fn processes(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = self.freeze(false);
        // A group can be removed only after its last process has exited.
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

pub(crate) fn command_in(group: Option<&ControlGroup>, program: impl AsRef<OsStr>) -> Command {
    match group {
        Some(group) => group.command(program),
        None => Command::new(program),
    }
}
