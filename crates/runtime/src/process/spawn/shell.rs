//! `popen` and `system`, which start a shell: `popen` by the C library, `system` by `posix_spawn`.

use super::argument_copies::{Copies, Readable};
use super::carried;
use super::environment::{environment, with_environment};
use super::fork_safe_mutex::ForkSafeMutex;
use super::posix_spawn::posix_spawn;
use crate::base::errno::refused;
use crate::base::instance;
use crate::base::real::real;
use crate::memory::libc_memory::outside_the_window;
use crate::memory::sleep_gate;
use crate::process::tree_asleep;
use softswap_sys::raw;
use softswap_sys::signals::{self, Action, with_spare_stack};
use std::ffi::{c_char, c_void};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    real!(popen: fn(*const c_char, *const c_char) -> *mut c_void);
    tree_asleep::note_child_created();
    // SAFETY: `command` and `mode` are C strings, as `popen` requires of its caller.
    unsafe {
        if !instance::emulates_signals() && !carried::is_set() {
            return popen()(command, mode);
        }
        let _inside = sleep_gate::enter();
        let engine = instance::engine();
        let mut readable = Readable::new();
        let environment_bytes = readable.strings_bytes(environment());
        let capacity = readable.text_bytes(command) + carried::environment_bytes(environment_bytes);
        let Some(mut copies) = Copies::with_capacity(capacity) else {
            raw::set_errno(libc::ENOMEM);
            return std::ptr::null_mut();
        };
        let command = copies.copy_text(command);
        // Outside the window: the child accesses the stream and its actions with all signals
        // blocked. It also uses the caller's frames, and inherits the caller's mask.
        let call = || with_spare_stack(|| popen()(command, mode));
        let start = || with_environment(engine, || outside_the_window(call));
        carried::with_shown(&mut copies, start).unwrap_or_else(|| {
            raw::set_errno(libc::ENOMEM);
            std::ptr::null_mut()
        })
    }
}

/// The C library's function also waits for the command, and the environment would stay pinned for
/// that time. So this starts the shell by `posix_spawn`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> i32 {
    real!(system: fn(*const c_char) -> i32);
    tree_asleep::note_child_created();
    // SAFETY: `command` is a C string or null, as `system` requires of its caller.
    unsafe {
        if !instance::emulates_signals() && !carried::is_set() {
            return system()(command);
        }
        if command.is_null() {
            // Tests for a shell, like the C library.
            return i32::from(system_by_spawn(c"exit 0".as_ptr()) == 0);
        }
        system_by_spawn(command)
    }
}

/// Returns the status, or -1. Neither signals nor cancellation interrupt the wait: a cancelled
/// thread would not restore the signal actions.
fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = -1;
    loop {
        // Issued through the guard, because this stack may be managed and absent.
        // SAFETY: `status` is valid; there is no rusage.
        let waited = unsafe {
            let args = [pid as usize, &raw mut status as usize, 0, 0];
            raw::syscall_through_guard(libc::SYS_wait4, args)
        };
        if waited == pid as isize {
            return status;
        }
        if waited != refused(libc::EINTR) {
            raw::set_errno(-waited as i32);
            return -1;
        }
    }
}

struct Ignoring {
    count: usize,
    /// Actions of SIGINT and SIGQUIT before the first active call; the last one restores them.
    previous: [Action; 2],
}

const IGNORED: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];
static IGNORING: ForkSafeMutex<Ignoring> =
    ForkSafeMutex::new(Ignoring { count: 0, previous: [Action::DEFAULT; 2] });

fn begin_ignoring() -> [Action; 2] {
    IGNORING.with(|ignoring| {
        if ignoring.count == 0 {
            let ignore = Action { handler: libc::SIG_IGN, ..Action::DEFAULT };
            for (signal, previous) in IGNORED.iter().zip(&mut ignoring.previous) {
                // SAFETY: no handler is installed.
                let before = unsafe { signals::change_action(*signal, Some(&ignore)) };
                *previous = before.unwrap_or(Action::DEFAULT);
            }
        }
        ignoring.count += 1;
        ignoring.previous
    })
}

fn end_ignoring() {
    IGNORING.with(|ignoring| {
        ignoring.count -= 1;
        if ignoring.count == 0 {
            for (signal, previous) in IGNORED.iter().zip(&ignoring.previous) {
                // SAFETY: the kernel returned this action for this signal.
                let _ = unsafe { signals::change_action(*signal, Some(previous)) };
            }
        }
    });
}

/// # Safety
/// `command` is a C string.
unsafe fn system_by_spawn(command: *const c_char) -> i32 {
    // As POSIX requires, SIGINT and SIGQUIT are ignored and SIGCHLD is blocked until the command
    // has exited. SAFETY: `command` is the caller's C string; all other objects are locals,
    // initialised before use.
    unsafe {
        let previous = begin_ignoring();
        let mut block: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut block);
        libc::sigaddset(&raw mut block, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const block, &raw mut before);

        let mut defaults: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut defaults);
        for (signal, action) in IGNORED.iter().zip(&previous) {
            if action.handler != libc::SIG_IGN {
                libc::sigaddset(&raw mut defaults, *signal);
            }
        }
        let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
        libc::posix_spawnattr_init(&raw mut attributes);
        libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const before);
        libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const defaults);
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        libc::posix_spawnattr_setflags(&raw mut attributes, flags as i16);

        let argv = [c"sh".as_ptr(), c"-c".as_ptr(), c"--".as_ptr(), command, std::ptr::null()];
        let mut pid = 0;
        let failed = posix_spawn(
            &raw mut pid,
            c"/bin/sh".as_ptr(),
            std::ptr::null(),
            &raw const attributes,
            argv.as_ptr(),
            environment(),
        );
        let status = if failed == 0 {
            wait_for(pid)
        } else {
            const SHELL_FAILED: i32 = 127 << 8;
            raw::set_errno(failed);
            SHELL_FAILED
        };
        let error = raw::errno();
        libc::posix_spawnattr_destroy(&raw mut attributes);
        end_ignoring();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        raw::set_errno(error);
        status
    }
}
