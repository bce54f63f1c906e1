//! Description of the machine, and the load on it.

use super::sample::{Object, object};
use serde::Serialize;
use softswap_cli::machine;
use softswap_cli::swapdir::SwapDir;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
    device: String,
}

impl Machine {
    pub(crate) fn with(device: String) -> Machine {
        let found = machine::describe();
        let is_named = !found.processor.is_empty();
        let cpu = if is_named { found.processor } else { std::env::consts::ARCH.into() };
        Machine { cpu, cpus: found.processors, kernel: found.kernel, device }
    }

    pub(crate) fn with_file_system(path: &Path, file_system: &str) -> Machine {
        let on = block_device(path).map_or(String::new(), |name| format!(" on {name}"));
        Machine::with(format!("{file_system}{on}"))
    }

    pub(crate) fn with_dir(dir: &SwapDir) -> Machine {
        Machine::with_file_system(&dir.path, dir.file_system)
    }

    pub(crate) fn without_device() -> Machine {
        Machine::with("no device".into())
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    all: f64,
    busy: f64,
    stolen: f64,
    ours: f64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let ticks = |text: &str, skip: usize| -> Vec<f64> {
            text.split_whitespace().skip(skip).map(|word| word.parse().unwrap_or(0.0)).collect()
        };
        // user nice system idle iowait irq softirq steal; later fields are included in these.
        let all = ticks(stat.lines().next().unwrap_or_default(), 1);
        let of = |fields: &[usize]| fields.iter().filter_map(|at| all.get(*at)).sum::<f64>();
        // The name may contain any character: parse utime stime cutime cstime after its `)`.
        let own = ticks(own.rsplit_once(')').map_or("", |(_, rest)| rest), 11);
        Usage {
            all: of(&[0, 1, 2, 3, 4, 5, 6, 7]),
            busy: of(&[0, 1, 2]),
            stolen: of(&[7]),
            ours: own.iter().take(4).sum(),
        }
    }

    /// Returns shares of CPU time since `self`: unrelated processes and kernel threads, and the
    /// host.
    pub(crate) fn since(&self) -> Object {
        let now = Usage::now();
        let all = (now.all - self.all).max(1.0);
        let others = (now.busy - self.busy) - (now.ours - self.ours);
        object! {
            others_cpu_share: (others / all).max(0.0),
            stolen_cpu_share: (now.stolen - self.stolen) / all,
        }
    }
}

/// Appends the driver if it is virtio.
pub(crate) fn block_device(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let sys = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = sys.file_name()?.to_string_lossy().into_owned();
    let kind = if sys.to_string_lossy().contains("virtio") { " (virtio)" } else { "" };
    Some(name + kind)
}
