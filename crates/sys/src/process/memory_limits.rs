//! Memory available to this process: on the machine, within its memory control groups (v1, v2).

use crate::memory::dram_bytes;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory that is available now without swapping by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    pub bytes: u64,
    /// DRAM, or the limit of the control group that allows the least.
    pub capacity_bytes: u64,
    pub because: String,
    pub is_group: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLimit {
    pub dir: PathBuf,
    pub limit_bytes: u64,
    /// Memory used by the group, minus the file cache that the kernel drops first.
    pub used_bytes: u64,
}

pub fn available() -> Available {
    available_within(group_limits())
}

pub fn available_to(pid: u32) -> Available {
    available_within(hierarchies_with(&pid.to_string()).iter().flat_map(limits_in).collect())
}

fn available_within(groups: Vec<GroupLimit>) -> Available {
    let bytes = available_on_machine();
    let machine = Available {
        bytes,
        capacity_bytes: dram_bytes(),
        because: "MemAvailable in /proc/meminfo".into(),
        is_group: false,
    };
    groups.into_iter().fold(machine, |least, group| {
        let bytes = group.limit_bytes.saturating_sub(group.used_bytes);
        if bytes < least.bytes {
            let because = format!("memory limit of control group {}", group.dir.display());
            Available { bytes, capacity_bytes: group.limit_bytes, because, is_group: true }
        } else {
            least
        }
    })
}

pub fn available_on_machine() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field_kib(&meminfo, "MemAvailable:").unwrap_or_else(dram_bytes)
}

pub fn group_limits() -> Vec<GroupLimit> {
    hierarchies().iter().flat_map(limits_in).collect()
}

pub fn hierarchies() -> Vec<Hierarchy> {
    hierarchies_with("self")
}

fn hierarchies_with(pid: &str) -> Vec<Hierarchy> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    hierarchies_of(&read("/proc/self/mountinfo"), &read(&format!("/proc/{pid}/cgroup")))
}

/// A mounted control group hierarchy, and this process's place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    pub version: GroupVersion,
    pub top: PathBuf,
    pub own: PathBuf,
}

impl Hierarchy {
    pub fn chain(&self) -> impl Iterator<Item = &Path> {
        self.own.ancestors().take_while(|dir| dir.starts_with(&self.top))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupVersion {
    One,
    Two,
}

impl GroupVersion {
    /// Returns the name of the file that counts the OOM kills in a group.
    pub fn oom_file(self) -> &'static str {
        match self {
            GroupVersion::One => "memory.oom_control",
            GroupVersion::Two => "memory.events",
        }
    }
}

/// Returns the OOM kills in the text of [`GroupVersion::oom_file`] or of /proc/vmstat.
pub fn oom_kills_in(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

pub fn hierarchies_of(mountinfo: &str, membership: &str) -> Vec<Hierarchy> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        let version = match controllers {
            "" => GroupVersion::Two,
            list if list.split(',').any(|name| name == "memory") => GroupVersion::One,
            _ => return None,
        };
        let (top, own) = locate(mountinfo, version, group)?;
        Some(Hierarchy { version, top, own })
    };
    membership.lines().filter_map(of_line).collect()
}

fn limits_in(hierarchy: &Hierarchy) -> Vec<GroupLimit> {
    hierarchy.chain().filter_map(|dir| limit_in(dir, hierarchy.version)).collect()
}

/// Returns the mount point of the hierarchy and the directory of `group` in it.
fn locate(mountinfo: &str, version: GroupVersion, group: &str) -> Option<(PathBuf, PathBuf)> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let fits = match version {
            GroupVersion::One => kind == "cgroup" && options.split(',').any(|o| o == "memory"),
            GroupVersion::Two => kind == "cgroup2",
        };
        if !fits {
            return None;
        }
        // Inside a container only the subtree `root` is mounted.
        let inside = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        let point = PathBuf::from(point);
        let dir = point.join(inside.strip_prefix("/").unwrap_or(inside));
        Some((point, dir))
    })
}

fn limit_in(dir: &Path, version: GroupVersion) -> Option<GroupLimit> {
    let (limit, usage, cache) = match version {
        GroupVersion::One => {
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        }
        GroupVersion::Two => ("memory.max", "memory.current", "inactive_file "),
    };
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit_bytes = number(limit)?;
    if limit_bytes >= 1 << 60 {
        return None; // v1 reports a huge number for no limit
    }
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let cache_bytes = field(&stat, cache).unwrap_or(0);
    let used_bytes = number(usage).unwrap_or(0).saturating_sub(cache_bytes);
    Some(GroupLimit { dir: dir.to_path_buf(), limit_bytes, used_bytes })
}

fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn field_kib(text: &str, name: &str) -> Option<u64> {
    field(text, name).map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits_of(mountinfo: &str, membership: &str) -> Vec<GroupLimit> {
        hierarchies_of(mountinfo, membership).iter().flat_map(limits_in).collect()
    }

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn cgroup_v2_limits_are_found_up_to_mount() {
        let top = tempfile::tempdir().unwrap();
        let point = top.path().display();
        write(top.path(), &[]);
        write(
            &top.path().join("a"),
            &[
                ("memory.max", "1000000\n"),
                ("memory.current", "400000\n"),
                ("memory.stat", "anon 1\ninactive_file 100000\n"),
            ],
        );
        write(&top.path().join("a/b"), &[("memory.max", "max\n"), ("memory.current", "5\n")]);
        let mounts = format!("30 23 0:26 / {point} rw,relatime - cgroup2 cgroup2 rw\n");
        let limits = limits_of(&mounts, "0::/a/b\n");
        let dir = top.path().join("a");
        assert_eq!(limits, [GroupLimit { dir, limit_bytes: 1_000_000, used_bytes: 300_000 }]);
    }

    #[test]
    fn cgroup_v1_limits_are_found_in_container() {
        let top = tempfile::tempdir().unwrap();
        let point = top.path().display();
        write(
            top.path(),
            &[("memory.limit_in_bytes", "2000\n"), ("memory.usage_in_bytes", "500\n")],
        );
        let mounts = format!("31 23 0:27 /docker/x {point} ro - cgroup cgroup rw,memory\n");
        let limits = limits_of(&mounts, "5:cpu:/\n4:memory:/docker/x\n");
        assert_eq!(limits.len(), 1);
        assert_eq!((limits[0].limit_bytes, limits[0].used_bytes), (2000, 500));
    }
}
