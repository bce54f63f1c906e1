//! Checks of the kernel's features and of the address space for managed memory.

use super::check::Check;
use super::limits::Surroundings;
use crate::refusal::plain;
use softswap_sys::aslr::Bases;
use softswap_sys::faults::Faults;
use softswap_sys::probe::{self, Privilege};
use softswap_sys::window::WINDOW_SIZES;
use std::io;

pub(super) fn checks(surroundings: &Surroundings) -> Vec<Check> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let machine = uname.machine().to_string_lossy();
    let mut checks = vec![Check::ok("kernel", format!("Linux {release} on {machine}"))];
    checks.extend(userfaultfd(surroundings));
    checks.push(page_protection());
    checks.push(seccomp(surroundings));
    checks.push(io_uring(surroundings));
    checks.push(window(surroundings));
    checks
}

fn userfaultfd(around: &Surroundings) -> Vec<Check> {
    const USER: &str = "userfaultfd-user-mode";
    let offered = match probe::offered_features(Privilege::UserModeOnly) {
        Ok(offered) => offered,
        Err(error) => {
            let detail = format!("refused: {}", plain(&error));
            let fix = refused_call(around, &error, "5.11", "CONFIG_USERFAULTFD=y");
            let instead = "page faults are handled through page protection, which is slower";
            let check = match Faults::Protection.check() {
                Ok(()) => Check::missing(USER, detail, instead, fix),
                Err(_) => Check::fatal(USER, detail, fix),
            };
            return vec![check, privileged(around, false)];
        }
    };
    let mut checks =
        vec![Check::ok(USER, format!("allowed for this user (features {offered:#x})"))];
    checks.push(match probe::fault_as_sigbus() {
        Ok(()) => Check::ok("userfaultfd-sigbus", "a touch of a missing page raised SIGBUS"),
        Err(error) => Check::fatal(
            "userfaultfd-sigbus",
            format!("the test failed: {}", plain(&error)),
            around.newer_kernel("5.11"),
        ),
    });
    checks.push(match probe::move_page() {
        Ok(()) => Check::ok("userfaultfd-move", "a page was moved"),
        Err(error) => Check::missing(
            "userfaultfd-move",
            format!("the test failed: {}", plain(&error)),
            "pages are evicted by write-protect, copy and drop, at the cost of one copy per page",
            around.newer_kernel("6.8"),
        ),
    });
    checks.push(if offered & probe::FEATURE_WP_ASYNC != 0 {
        Check::ok("userfaultfd-wp-async", "offered")
    } else {
        Check::missing(
            "userfaultfd-wp-async",
            "not offered by this kernel",
            "softswap detects changed pages by write-protect faults, without a loss",
            around.newer_kernel("6.7"),
        )
    });
    checks.push(privileged(around, true));
    checks
}

fn page_protection() -> Check {
    const NAME: &str = "page-protection";
    match Faults::Protection.check() {
        Ok(()) => Check::ok(NAME, "inaccessible memory was filled through /proc/self/mem"),
        Err(error) => Check::missing(
            NAME,
            format!("the test failed: {}", plain(&error)),
            "no loss if userfaultfd is allowed, which softswap prefers",
            "mount -t proc proc /proc, and boot without proc_mem.force_override=never".to_string(),
        ),
    }
}

fn privileged(around: &Surroundings, is_call_allowed: bool) -> Check {
    const NAME: &str = "userfaultfd-privileged";
    let sysctl = around.sysctl("vm/unprivileged_userfaultfd");
    let shown = sysctl.as_deref().unwrap_or("absent");
    match (probe::offered_features(Privilege::KernelToo), probe::userfaultfd_device()) {
        (Ok(_), _) => Check::ok(NAME, format!("allowed (vm.unprivileged_userfaultfd = {shown})")),
        (Err(_), Ok(())) => Check::ok(NAME, "allowed by /dev/userfaultfd"),
        (Err(error), Err(_)) => Check::missing(
            NAME,
            format!("refused: {} (vm.unprivileged_userfaultfd = {shown})", plain(&error)),
            "page faults are handled in the faulting thread, and system calls with swapped-out \
             buffers by the system-call guard",
            if sysctl.is_some() && (is_call_allowed || !around.filtered()) {
                format!("sudo sysctl -w vm.unprivileged_userfaultfd=1{}", around.host_comment())
            } else {
                refused_call(around, &error, "5.2", "CONFIG_USERFAULTFD=y")
            },
        ),
    }
}

fn seccomp(around: &Surroundings) -> Check {
    match probe::seccomp_trap() {
        Ok(()) => Check::ok("seccomp", "a filter trapped a system call"),
        Err(error) => Check::fatal(
            "seccomp",
            format!("no filter can be installed: {}", plain(&error)),
            match around.filtered() {
                true => around.looser_container(),
                false => refused_call(around, &error, "4.14", "CONFIG_SECCOMP_FILTER=y"),
            },
        ),
    }
}

fn io_uring(around: &Surroundings) -> Check {
    let error = match probe::io_uring_nop() {
        Ok(()) => return Check::ok("io_uring", "a test operation completed"),
        Err(error) => error,
    };
    let disabled = around.sysctl("kernel/io_uring_disabled").filter(|value| value != "0");
    let fix = match (error.raw_os_error(), &disabled) {
        (_, Some(_)) => {
            format!("sudo sysctl -w kernel.io_uring_disabled=0{}", around.host_comment())
        }
        (Some(libc::ENOMEM), None) => "ulimit -l unlimited".to_string(),
        _ => refused_call(around, &error, "5.6", "CONFIG_IO_URING=y"),
    };
    let why =
        disabled.map_or(String::new(), |value| format!(" (kernel.io_uring_disabled = {value})"));
    Check::missing(
        "io_uring",
        format!("refused: {}{why}", plain(&error)),
        "pages are read and written by pread and pwrite",
        fix,
    )
}

fn window(around: &Surroundings) -> Check {
    let mut refused = None;
    let base = Bases::choose().window();
    for bytes in WINDOW_SIZES {
        let shown = softswap_view::units::bytes(bytes as u64);
        match (probe::reserve_window(base, bytes), &refused) {
            (Ok(()), None) => {
                return Check::ok("managed-window", format!("{shown} of address space reserved"));
            }
            (Ok(()), Some(error)) => {
                return Check::missing(
                    "managed-window",
                    format!("at most {shown} of address space can be reserved: {}", plain(error)),
                    "softswap manages only that much; memory beyond it has no limit and is not \
                     swapped",
                    around.more_address_space(),
                );
            }
            (Err(error), _) => refused = refused.or(Some(error)),
        }
    }
    let why = refused.as_ref().map(plain).unwrap_or_default();
    Check::fatal(
        "managed-window",
        format!(
            "not even {} of address space can be reserved: {why}",
            softswap_view::units::bytes(WINDOW_SIZES[WINDOW_SIZES.len() - 1] as u64)
        ),
        around.more_address_space(),
    )
}

/// The remedy is a looser seccomp filter or a kernel of `version`, for ENOSYS built with `option`.
fn refused_call(around: &Surroundings, error: &io::Error, version: &str, option: &str) -> String {
    match error.raw_os_error() {
        _ if around.filtered() => around.allowing_profile(),
        Some(libc::ENOSYS) => format!("a kernel with {option}: {}", around.newer_kernel(version)),
        _ => around.newer_kernel(version),
    }
}
