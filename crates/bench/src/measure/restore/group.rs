//! Memory cgroups of version 1 and 2. In version 2 a cgroup has memory limits only if its parent
//! enables the controller for its children. Except for the root, a parent with processes cannot.

use softswap_cli::refusal::{OrRefuse, plain};
use softswap_sys::memory_limits::{GroupVersion, Hierarchy, oom_kills_in};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const PREFIX: &str = "softswap-bench-";
const SUBTREE_CONTROL: &str = "cgroup.subtree_control";
const CONTROLLERS: &str = "cgroup.controllers";
const LIMIT: &str = "memory.max";
const SWAP_LIMIT: &str = "memory.swap.max";

pub(crate) fn with_memory(hierarchies: Vec<Hierarchy>) -> Option<Hierarchy> {
    let has_memory = |hierarchy: &Hierarchy| match hierarchy.version {
        GroupVersion::One => true,
        GroupVersion::Two => names_memory(&hierarchy.top.join(CONTROLLERS)),
    };
    hierarchies.into_iter().find(has_memory)
}

/// Returns possible parents, the best first. Only an attempt shows whether it is permitted.
pub(crate) fn parents(hierarchy: &Hierarchy) -> Vec<PathBuf> {
    let top = hierarchy.top.as_path();
    let around = match hierarchy.version {
        GroupVersion::One => None,
        GroupVersion::Two => Some(hierarchy.chain().skip(1).filter(|dir| *dir != top)),
    };
    [top].into_iter().chain(around.into_iter().flatten()).map(Path::to_path_buf).collect()
}

/// Returns true if the controller was disabled before.
pub(crate) fn enable_memory(parent: &Path) -> Result<bool, String> {
    if names_memory(&parent.join(SUBTREE_CONTROL)) {
        return Ok(false);
    }
    if !names_memory(&parent.join(CONTROLLERS)) {
        return Err(format!("its {CONTROLLERS} does not contain `memory`"));
    }
    fs::write(parent.join(SUBTREE_CONTROL), "+memory").map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => {
            "the memory controller cannot be enabled for its children, because processes are \
             directly in it; move them to a child group, or run the bench from another group"
                .to_string()
        }
        _ => format!("the memory controller cannot be enabled for its children: {}", plain(&error)),
    })?;
    Ok(true)
}

/// Keeps the controller if another benchmark or a cgroup with a limit depends on it.
pub(crate) fn disable_memory(parent: &Path) -> Result<(), String> {
    let file = parent.join(SUBTREE_CONTROL);
    let left = |why: String| format!("{why}; later run `echo -memory > {}`", file.display());
    let entries = fs::read_dir(parent).map_err(|error| left(plain(&error)))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            return Err(left(format!("{} belongs to another benchmark", name.display())));
        }
        let limit = fs::read_to_string(entry.path().join(LIMIT)).unwrap_or_default();
        if !matches!(limit.trim(), "" | "max") {
            return Err(left(format!("{} has a limit of {}", name.display(), limit.trim())));
        }
    }
    fs::write(&file, "-memory").map_err(|error| left(plain(&error)))
}

fn names_memory(list: &Path) -> bool {
    let names = fs::read_to_string(list).unwrap_or_default();
    names.split_whitespace().any(|name| name == "memory")
}

pub(crate) fn set_limits(
    version: GroupVersion,
    dir: &Path,
    limit_bytes: u64,
    may_swap: bool,
) -> Result<(), String> {
    let set = |file: &str, value: &str| {
        let written = fs::write(dir.join(file), value);
        written.or_text(format!("{file} of a control group cannot be set to {value}"))
    };
    let limit = limit_bytes.to_string();
    match version {
        GroupVersion::One => {
            set("memory.limit_in_bytes", &limit)?;
            if may_swap {
                return Ok(());
            }
            // Fails if the kernel does not account for swap. Then swappiness 0 avoids swapping.
            let _ = set("memory.memsw.limit_in_bytes", &limit);
            set("memory.swappiness", "0")
        }
        GroupVersion::Two => {
            if !dir.join(SWAP_LIMIT).exists() {
                return Err(format!(
                    "a control group has no {SWAP_LIMIT}: the kernel does not account for swap; \
                     use one with CONFIG_SWAP, booted without swapaccount=0"
                ));
            }
            set(LIMIT, &limit)?;
            if may_swap { Ok(()) } else { set(SWAP_LIMIT, "0") }
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct MemoryGroup {
    pub(crate) version: GroupVersion,
    pub(crate) dir: PathBuf,
}

impl MemoryGroup {
    pub(crate) fn at(dir: PathBuf) -> MemoryGroup {
        let is_second = dir.join(CONTROLLERS).exists();
        let version = if is_second { GroupVersion::Two } else { GroupVersion::One };
        MemoryGroup { version, dir }
    }

    /// Available in version 1, and in version 2 since Linux 5.19.
    pub(crate) fn peak_bytes(&self) -> Result<Option<u64>, String> {
        let text = match self.version {
            GroupVersion::One => self.read("memory.max_usage_in_bytes")?,
            GroupVersion::Two if !self.dir.join("memory.peak").exists() => return Ok(None),
            GroupVersion::Two => self.read("memory.peak")?,
        };
        Ok(text.trim().parse().ok())
    }

    pub(crate) fn oom_kills(&self) -> Result<u64, String> {
        Ok(oom_kills_in(&self.read(self.version.oom_file())?).unwrap_or(0))
    }

    /// zswap's compressed pages are charged in version 2 since Linux 5.19.
    pub(crate) fn counts_zswap(&self) -> bool {
        self.dir.join("memory.zswap.current").exists()
    }

    fn read(&self, file: &str) -> Result<String, String> {
        fs::read_to_string(self.dir.join(file)).or_text(format!("{file} of a control group"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    fn read(dir: &Path, file: &str) -> String {
        fs::read_to_string(dir.join(file)).unwrap()
    }

    #[test]
    fn memory_controller_is_enabled_once_and_disabled_when_unused() {
        let top = tempfile::tempdir().unwrap();
        write(top.path(), &[(CONTROLLERS, "cpu memory\n"), (SUBTREE_CONTROL, "cpu\n")]);
        assert_eq!(enable_memory(top.path()), Ok(true));
        // A plain file keeps the written text.
        assert_eq!(read(top.path(), SUBTREE_CONTROL), "+memory");
        write(top.path(), &[(SUBTREE_CONTROL, "cpu memory\n")]);
        assert_eq!(enable_memory(top.path()), Ok(false));

        let other = top.path().join(format!("{PREFIX}1-0"));
        fs::create_dir(&other).unwrap();
        let why = disable_memory(top.path()).unwrap_err();
        assert!(why.contains("-1-0 belongs to another") && why.contains("echo -memory"), "{why}");
        fs::remove_dir(other).unwrap();

        let service = top.path().join("service");
        write(&service, &[(LIMIT, "4096\n")]);
        let why = disable_memory(top.path()).unwrap_err();
        assert!(why.contains("service has a limit of 4096"), "{why}");
        write(&service, &[(LIMIT, "max\n")]);
        disable_memory(top.path()).unwrap();
        assert_eq!(read(top.path(), SUBTREE_CONTROL), "-memory");
    }

    #[test]
    fn group_without_swap_is_limited_to_dram() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path();
        set_limits(GroupVersion::One, dir, 4096, false).unwrap();
        for file in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] {
            assert_eq!(read(dir, file), "4096");
        }
        assert_eq!(read(dir, "memory.swappiness"), "0");

        let why = set_limits(GroupVersion::Two, dir, 4096, true).unwrap_err();
        assert!(why.contains("no memory.swap.max") && why.contains("swapaccount"), "{why}");
        write(dir, &[(SWAP_LIMIT, "max")]);
        set_limits(GroupVersion::Two, dir, 8192, true).unwrap();
        assert_eq!((read(dir, "memory.max"), read(dir, SWAP_LIMIT)), ("8192".into(), "max".into()));
        set_limits(GroupVersion::Two, dir, 8192, false).unwrap();
        assert_eq!(read(dir, SWAP_LIMIT), "0");
    }

    #[test]
    fn kernel_counters_are_parsed_for_both_cgroup_versions() {
        let top = tempfile::tempdir().unwrap();
        let (first, second) = (top.path().join("1"), top.path().join("2"));
        write(&first, &[("memory.max_usage_in_bytes", "12288\n")]);
        write(&first, &[("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")]);
        write(&second, &[(CONTROLLERS, "memory\n"), ("memory.zswap.current", "0\n")]);
        write(&second, &[("memory.events", "low 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n")]);
        let [first, second] = [first, second].map(MemoryGroup::at);
        assert_eq!((first.version, second.version), (GroupVersion::One, GroupVersion::Two));
        assert_eq!((first.peak_bytes(), first.oom_kills()), (Ok(Some(12288)), Ok(2)));
        assert_eq!((second.peak_bytes(), second.oom_kills()), (Ok(None), Ok(3)));
        assert_eq!((first.counts_zswap(), second.counts_zswap()), (false, true));
        write(&second.dir, &[("memory.peak", "4096\n")]);
        assert_eq!(second.peak_bytes(), Ok(Some(4096)));
        let missing = MemoryGroup::at(top.path().join("gone"));
        assert!(missing.oom_kills().unwrap_err().contains("memory.oom_control"));
    }
}
