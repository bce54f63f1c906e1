//! Rewrites the kernel's files about memory.

use std::fmt::Write as _;

#[derive(Debug, Clone, Copy)]
pub(super) struct Advertised {
    pub(super) total_bytes: u64,
    pub(super) used_bytes: u64,
}

impl Advertised {
    pub(super) fn free_bytes(self) -> u64 {
        self.total_bytes.saturating_sub(self.used_bytes)
    }

    fn of_node(self, node_bytes: u64, machine_bytes: u64) -> Advertised {
        let part = |bytes: u64| {
            let bytes = u128::from(bytes) * u128::from(node_bytes);
            (bytes / u128::from(machine_bytes.max(1))) as u64
        };
        Advertised { total_bytes: part(self.total_bytes), used_bytes: part(self.used_bytes) }
    }
}

/// `None` for other files. `path` is the kernel's name of the file, `machine_bytes` the DRAM.
pub(super) fn rewritten(
    path: &str,
    text: &str,
    advertised: Advertised,
    machine_bytes: u64,
) -> Option<String> {
    let name = path.rsplit('/').next()?;
    let line = |bytes: u64| Some(format!("{bytes}\n"));
    match name {
        "meminfo" if path == "/proc/meminfo" => Some(machine(text, advertised)),
        "meminfo" if path.starts_with("/sys/devices/system/node/") => {
            node(text, advertised, machine_bytes)
        }
        _ if !path.starts_with("/sys/fs/cgroup/") => None,
        "memory.max" | "memory.limit_in_bytes" | "memory.memsw.limit_in_bytes" => {
            line(advertised.total_bytes)
        }
        "memory.current" | "memory.usage_in_bytes" | "memory.memsw.usage_in_bytes" => {
            line(advertised.used_bytes)
        }
        "memory.high" => Some("max\n".into()),
        "memory.swap.max" | "memory.swap.current" => line(0),
        _ => None,
    }
}

fn machine(text: &str, advertised: Advertised) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    text.lines().for_each(|line| push_line(&mut out, "", line, advertised));
    out
}

/// Rewrites `meminfo` of a node, each line of which starts with `Node N`.
fn node(text: &str, advertised: Advertised, machine_bytes: u64) -> Option<String> {
    let field = |line: &str| -> Option<u64> {
        line.rsplit_once("MemTotal:")?.1.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let node_kib = text.lines().find_map(field)?;
    let advertised = advertised.of_node(node_kib * 1024, machine_bytes);
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.lines() {
        let after = line.strip_prefix("Node ").and_then(|line| line.split_once(' '));
        let (node, field) = after?;
        push_line(&mut out, &format!("Node {node} "), field, advertised);
    }
    Some(out)
}

/// Other kinds of use are 0, because the engine does not distinguish them.
fn push_line(out: &mut String, prefix: &str, line: &str, advertised: Advertised) {
    const KEPT: [&str; 5] = ["Huge", "DirectMap", "Vmalloc", "Percpu", "HardwareCorrupted"];
    let Advertised { total_bytes, used_bytes } = advertised;
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    let bytes = match name {
        "MemTotal" | "CommitLimit" => total_bytes,
        "MemFree" | "MemAvailable" => advertised.free_bytes(),
        "MemUsed" | "AnonPages" | "Active" | "Active(anon)" | "Committed_AS" => used_bytes,
        _ if KEPT.iter().any(|kept| name.starts_with(kept)) || !value.ends_with(" kB") => {
            let _ = writeln!(out, "{prefix}{line}");
            return;
        }
        _ => 0,
    };
    let name = format!("{name}:");
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{prefix}{name:<15} {:>8} kB", bytes >> 10);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVERTISED: Advertised = Advertised { total_bytes: 6 << 30, used_bytes: 1 << 30 };
    const MACHINE: &str = "\
MemTotal:       24683520 kB
MemFree:         1000000 kB
MemAvailable:   23000000 kB
Buffers:           99999 kB
SwapTotal:       1048576 kB
HugePages_Total:       3
Hugepagesize:       2048 kB
";

    #[test]
    fn meminfo_shows_the_advertised_memory() {
        let text = rewritten("/proc/meminfo", MACHINE, ADVERTISED, 24_683_520 << 10).unwrap();
        assert_eq!(
            text,
            "\
MemTotal:        6291456 kB
MemFree:         5242880 kB
MemAvailable:    5242880 kB
Buffers:               0 kB
SwapTotal:             0 kB
HugePages_Total:       3
Hugepagesize:       2048 kB
"
        );
    }

    #[test]
    fn meminfo_of_a_node_shows_its_part() {
        let text = "Node 1 MemTotal:       500 kB\nNode 1 MemUsed:  7 kB\nNode 1 Dirty: 3 kB\n";
        let path = "/sys/devices/system/node/node1/meminfo";
        let text = rewritten(path, text, ADVERTISED, 1000 << 10).unwrap();
        assert!(text.starts_with("Node 1 MemTotal:        3145728 kB\n"), "{text}");
        assert!(text.contains("Node 1 MemUsed:          524288 kB"), "{text}");
        assert!(text.ends_with("Node 1 Dirty:                 0 kB\n"), "{text}");
    }

    #[test]
    fn limits_of_groups_are_changed_and_other_files_are_not() {
        let advertised = |path: &str| rewritten(path, "max\n", ADVERTISED, 1 << 34);
        assert_eq!(advertised("/sys/fs/cgroup/a/memory.max").unwrap(), "6442450944\n");
        assert_eq!(
            advertised("/sys/fs/cgroup/memory/memory.usage_in_bytes").unwrap(),
            "1073741824\n"
        );
        assert_eq!(advertised("/sys/fs/cgroup/memory.high").unwrap(), "max\n");
        for other in ["/sys/fs/cgroup/memory.stat", "/home/x/memory.max", "/proc/7/meminfo"] {
            assert_eq!(advertised(other), None, "{other}");
        }
    }
}
