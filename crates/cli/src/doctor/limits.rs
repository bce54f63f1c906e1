//! Checks of the process's environment: limits, control groups, containers.

use super::check::Check;
use super::seccomp_profile::Runtime;
use crate::control_client::Process;
use crate::run::auto_memory::fitting_bytes;
use rustix::process::{Resource, getrlimit};
use softswap_engine::codec::seal::Sealer;
use softswap_sys::memory_limits;
use softswap_view::units;
use std::fs;
use std::path::Path;

/// Linux's default of `vm.max_map_count`, which suffices.
const ENOUGH_MAPPINGS: u64 = 65_530;
/// Suffices for io_uring's rings, which kernels before 5.12 charge to the limit.
const ENOUGH_LOCKED_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Surroundings {
    container: Option<&'static str>,
    /// `Seccomp:` of /proc/self/status; 2 is a filter.
    seccomp_mode: Option<u64>,
    no_new_privs: bool,
    is_managed: bool,
    distribution: String,
}

impl Surroundings {
    pub(super) fn detect() -> Surroundings {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        Surroundings {
            container: container(),
            seccomp_mode: field("Seccomp:"),
            no_new_privs: field("NoNewPrivs:") == Some(1u64),
            is_managed: Process::read(std::process::id())
                .is_some_and(|process| process.is_managed() == Some(true)),
            distribution: distribution(&fs::read_to_string("/etc/os-release").unwrap_or_default()),
        }
    }

    pub(super) fn is_managed(&self) -> bool {
        self.is_managed
    }

    /// In a container, kernel settings must be changed on the host.
    pub(super) fn host_comment(&self) -> &'static str {
        if self.container.is_some() { "   # on the host" } else { "" }
    }

    pub(super) fn filtered(&self) -> bool {
        self.seccomp_mode == Some(2)
    }

    pub(super) fn sysctl(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
        Some(text.trim().to_string())
    }

    pub(super) fn newer_kernel(&self, version: &str) -> String {
        let command = match self.distribution.as_str() {
            "debian" => {
                "sudo apt install -t \"$(. /etc/os-release; echo $VERSION_CODENAME)-backports\" linux-image-amd64"
            }
            "ubuntu" => {
                "sudo apt install \"linux-generic-hwe-$(. /etc/os-release; echo $VERSION_ID)\""
            }
            "fedora" | "rhel" => "sudo dnf upgrade kernel",
            "arch" => "sudo pacman -Syu linux",
            "suse" => "sudo zypper update kernel-default",
            "alpine" => "sudo apk upgrade linux-lts",
            _ => {
                return format!(
                    "install Linux {version} or newer (`uname -r` prints the running version)"
                );
            }
        };
        format!("{command} && sudo reboot   # Linux {version} or newer")
    }

    pub(super) fn allowing_profile(&self) -> String {
        let runtime = match self.container {
            Some("docker") => Runtime::Docker,
            Some("podman") => Runtime::Podman,
            Some("kubernetes") => Runtime::Kubernetes,
            _ => return self.looser_container(),
        };
        // Podman installs its default profile as a file. Docker and containerd install none, so the
        // user must provide it.
        let (from, source) = match self.container {
            Some("podman") => ("", ""),
            _ => (
                " --from default.json",
                " (default.json: Docker's profile, share/doc/softswap/containers.md)",
            ),
        };
        format!(
            "1. on the host: softswap doctor --profile {}{from} > softswap.json{source}  2. {}",
            runtime.name(),
            runtime.usage()
        )
    }

    pub(super) fn looser_container(&self) -> String {
        match self.container {
            None if self.is_managed => "run `softswap doctor` outside of `softswap run`".into(),
            Some("podman") => "podman run --security-opt seccomp=unconfined ...".into(),
            Some("kubernetes") => {
                "in the pod: securityContext: {seccompProfile: {type: Unconfined}}".into()
            }
            Some("lxc") => "lxc config set NAME raw.lxc=\"lxc.seccomp.profile=\"".into(),
            Some("systemd-nspawn") => "systemd-nspawn --system-call-filter='userfaultfd io_uring_setup io_uring_enter io_uring_register seccomp' ...".into(),
            Some(_) => "docker run --security-opt seccomp=unconfined ...".into(),
            None => "start softswap without the inherited seccomp filter (in a systemd unit: \
                remove SystemCallFilter=)".into(),
        }
    }

    pub(super) fn more_address_space(&self) -> String {
        if getrlimit(Resource::As).current.is_some() {
            "ulimit -v unlimited".into()
        } else if getrlimit(Resource::Data).current.is_some() {
            "ulimit -d unlimited".into()
        } else {
            "sudo sysctl -w vm.overcommit_memory=1".into()
        }
    }
}

pub(super) fn checks(around: &Surroundings) -> Vec<Check> {
    vec![
        address_space(),
        locked_memory(),
        key(),
        overcommit(around),
        mappings(around),
        memory(),
        surroundings(around),
    ]
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or("unlimited".to_string(), units::bytes)
}

fn address_space() -> Check {
    let limit = getrlimit(Resource::As).current;
    match limit {
        None => Check::ok("limit-address-space", "RLIMIT_AS is unlimited"),
        Some(bytes) => Check::missing(
            "limit-address-space",
            format!("RLIMIT_AS is {}", units::bytes(bytes)),
            "softswap manages only that much; memory beyond it has no limit and is not swapped",
            "ulimit -v unlimited".into(),
        ),
    }
}

fn locked_memory() -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    let detail = format!("RLIMIT_MEMLOCK is {}", limit_text(limit));
    if limit.is_none_or(|bytes| bytes >= ENOUGH_LOCKED_BYTES) {
        return Check::ok("limit-locked-memory", detail);
    }
    Check::missing(
        "limit-locked-memory",
        detail,
        "if that is too little for io_uring, pages are read and written by pread and pwrite",
        "ulimit -l unlimited".into(),
    )
}

/// Each program creates and locks a key at its start.
fn key() -> Check {
    const NAME: &str = "encryption-key";
    match Sealer::encrypting() {
        Ok(sealer) if sealer.is_key_unlocked() => Check::missing(
            NAME,
            "a key was created, but could not be locked in memory",
            "the key stays in unlocked memory; the kernel may write it to its own swap area, \
             where it could decrypt softswap's files",
            "ulimit -l unlimited".into(),
        ),
        Ok(_) => Check::ok(NAME, "a key was created and locked in memory"),
        Err(error) => Check::fatal(NAME, error.to_string(), "softswap run --no-encrypt ...".into()),
    }
}

fn overcommit(around: &Surroundings) -> Check {
    match around.sysctl("vm/overcommit_memory").as_deref() {
        Some("2") => Check::missing(
            "overcommit",
            "vm.overcommit_memory = 2: all reserved memory is charged",
            "softswap manages only what the commit limit allows; memory beyond it has no limit and \
             is not swapped",
            "sudo sysctl -w vm.overcommit_memory=0".into(),
        ),
        Some(mode) => Check::ok("overcommit", format!("vm.overcommit_memory = {mode}")),
        None => Check::ok("overcommit", "vm.overcommit_memory cannot be read here"),
    }
}

fn mappings(around: &Surroundings) -> Check {
    let value = around.sysctl("vm/max_map_count");
    let shown = value.as_deref().unwrap_or("not readable here");
    let detail = format!("vm.max_map_count = {shown}");
    match value.as_deref().and_then(|value| value.parse::<u64>().ok()) {
        Some(count) if count < ENOUGH_MAPPINGS => Check::missing(
            "limit-mappings",
            detail,
            "programs with more mappings get ENOMEM from mmap and mprotect",
            format!("sudo sysctl -w vm.max_map_count={ENOUGH_MAPPINGS}"),
        ),
        _ => Check::ok("limit-mappings", detail),
    }
}

fn memory() -> Check {
    let available = memory_limits::available();
    let mut detail = format!(
        "{} of {} available by {}",
        units::bytes(available.bytes),
        units::bytes(softswap_sys::memory::dram_bytes()),
        available.because
    );
    for group in memory_limits::group_limits() {
        detail +=
            &format!("; limit {} in {}", units::bytes(group.limit_bytes), group.dir.display());
    }
    detail += &format!("; use --memory auto, or at most --memory {}M", fitting_bytes() >> 20);
    Check::ok("memory", detail)
}

fn surroundings(around: &Surroundings) -> Check {
    let mode = match around.seccomp_mode {
        Some(0) => "no seccomp filter inherited",
        Some(2) => "a seccomp filter inherited",
        _ => "seccomp mode unknown",
    };
    let privileges = if around.no_new_privs { ", no_new_privs set" } else { "" };
    let container = around.container.unwrap_or("none detected");
    let detail = format!("{container}; {mode}{privileges}");
    match around.is_managed {
        true => Check::note(
            "container",
            format!(
                "{detail}; this command itself runs under `softswap run`, so these checks report \
                 its filter and limits; run it outside of `softswap run` to test the machine"
            ),
        ),
        false => Check::ok("container", detail),
    }
}

fn container() -> Option<&'static str> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("kubernetes");
    }
    if Path::new("/run/.containerenv").exists() {
        return Some("podman");
    }
    if Path::new("/.dockerenv").exists() {
        return Some("docker");
    }
    let named = std::env::var("container").ok();
    let named = named.or_else(|| fs::read_to_string("/run/systemd/container").ok())?;
    match named.trim() {
        "" => None,
        "docker" => Some("docker"),
        "podman" => Some("podman"),
        "lxc" | "lxc-libvirt" => Some("lxc"),
        "systemd-nspawn" => Some("systemd-nspawn"),
        _ => Some("container"),
    }
}

/// Uses ID and then ID_LIKE.
fn distribution(os_release: &str) -> String {
    const KNOWN: [&str; 7] = ["debian", "ubuntu", "fedora", "rhel", "arch", "suse", "alpine"];
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim_matches('"').to_string()
    };
    let names = format!("{} {}", value("ID="), value("ID_LIKE="));
    let found = names.split_whitespace().find(|name| KNOWN.contains(name));
    found.unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_recognised_by_family() {
        assert_eq!(distribution("NAME=x\nID=debian\n"), "debian");
        assert_eq!(distribution("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"), "ubuntu");
        assert_eq!(distribution("ID=plan9\n"), "");
    }
}
