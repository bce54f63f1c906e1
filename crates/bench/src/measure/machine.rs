//! Where figures were measured.

use serde::Serialize;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The machine, as every benchmark states it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
    device: String,
}

impl Machine {
    /// This machine, and the device under `path` on a file system of this kind.
    pub(crate) fn with_device(path: &Path, file_system: &str) -> Machine {
        Machine::with(match block_device(path) {
            Some(name) => format!("{file_system} on {name}"),
            None => file_system.to_string(),
        })
    }

    /// This machine, and a block device as such.
    pub(crate) fn with_bare_device(path: &Path) -> Machine {
        Machine::with(block_device(path).unwrap_or_else(|| path.display().to_string()))
    }

    /// This machine, for what needs no device.
    pub(crate) fn without_device() -> Machine {
        Machine::with("no device".into())
    }

    fn with(device: String) -> Machine {
        let uname = rustix::system::uname();
        Machine {
            cpu: cpu(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: uname.release().to_string_lossy().into_owned(),
            device,
        }
    }
}

/// The processors' time so far, to tell later who else used it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    all: f64,
    busy: f64,
    stolen: f64,
    ours: f64,
}

/// Who used the processors over some time, as shares of all of it.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Disturbance {
    /// Neither this process nor what it started; kernel threads are others.
    pub(crate) others_cpu_share: f64,
    /// What a virtual machine was not given by its host.
    pub(crate) stolen_cpu_share: f64,
}

impl Usage {
    pub(crate) fn now() -> Usage {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let ticks = |text: &str, skip: usize| -> Vec<f64> {
            text.split_whitespace().skip(skip).map(|word| word.parse().unwrap_or(0.0)).collect()
        };
        // user nice system idle iowait irq softirq steal; what follows counts twice.
        let all = ticks(stat.lines().next().unwrap_or_default(), 1);
        let of = |fields: &[usize]| fields.iter().filter_map(|at| all.get(*at)).sum::<f64>();
        // Behind the name, which may hold anything: utime stime cutime cstime.
        let own = ticks(own.rsplit_once(')').map_or("", |(_, rest)| rest), 11);
        Usage {
            all: of(&[0, 1, 2, 3, 4, 5, 6, 7]),
            busy: of(&[0, 1, 2]),
            stolen: of(&[7]),
            ours: own.iter().take(4).sum(),
        }
    }

    /// What happened since.
    pub(crate) fn since(&self) -> Disturbance {
        let now = Usage::now();
        let all = (now.all - self.all).max(1.0);
        let others = (now.busy - self.busy) - (now.ours - self.ours);
        Disturbance {
            others_cpu_share: (others / all).max(0.0),
            stolen_cpu_share: (now.stolen - self.stolen) / all,
        }
    }
}

fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let name = model.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or(std::env::consts::ARCH).to_string()
}

/// The block device that a path names or lies on, and what drives it.
fn block_device(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let sys = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = sys.file_name()?.to_string_lossy().into_owned();
    let kind = if sys.components().any(|part| part.as_os_str().to_string_lossy().contains("virtio"))
    {
        " (virtio)"
    } else {
        ""
    };
    Some(name + kind)
}
