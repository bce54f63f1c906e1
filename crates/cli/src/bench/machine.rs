//! Where figures were measured.

use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The machine, as every benchmark states it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    cpu: String,
    cpus: usize,
    kernel: String,
    device: String,
}

impl Machine {
    /// This machine, and the device under `dir` on a file system of this kind.
    pub(super) fn with_device(dir: &Path, file_system: &str) -> Machine {
        let device = match block_device(dir) {
            Some(name) => format!("{file_system} on {name}"),
            None => file_system.to_string(),
        };
        let uname = rustix::system::uname();
        Machine {
            cpu: cpu(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: uname.release().to_string_lossy().into_owned(),
            device,
        }
    }

    /// In one line.
    pub(super) fn line(&self) -> String {
        let Machine { cpu, cpus, kernel, device } = self;
        format!("{cpu}, {cpus} CPUs, Linux {kernel}, {device}")
    }
}

fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let name = model.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or(std::env::consts::ARCH).to_string()
}

/// The block device that holds a directory, and what drives it.
fn block_device(dir: &Path) -> Option<String> {
    let number = fs::metadata(dir).ok()?.dev();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_it_is() {
        let machine = Machine::with_device(Path::new("/"), "ext4");
        assert!(machine.cpus > 0);
        assert!(machine.device.starts_with("ext4"));
        assert!(machine.line().contains(&machine.kernel));
    }
}
