//! Thread that serves the control socket: `softswap stat`, `softswap ctl` and `softswap record`.
//!
//! The thread has its own table of descriptors. So the program neither sees the socket nor can
//! close it, and no client takes a descriptor number that the program expects next. If the socket
//! cannot be created, the program runs without one.

use super::{descriptors, tree};
use crate::base::{fault_samples, instance, large_blocks, python_frames, uaccess};
use softswap_engine::api::control_protocol::{self as protocol, Request};
use softswap_engine::api::engine::Engine;
use softswap_sys::control_socket::{self, Listener};
use softswap_sys::{PAGE_SIZE, futex, raw, signals};
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Longest wait at exit for the lock of [`NAME`]: another thread may be creating the socket.
const EXIT_WAIT_NS: u64 = 200_000_000;
/// Pause between attempts if the kernel has no memory for another client.
const PAUSE: Duration = Duration::from_millis(100);

/// State recorded at start, before the program can change it.
struct Plan {
    /// Values of those [`control_socket::DIR_VARIABLES`] that are set.
    variables: Vec<(&'static str, OsString)>,
    started: Instant,
}

static PLAN: OnceLock<Plan> = OnceLock::new();

struct Name {
    /// In engine memory, so that a system call can read it at exit on any stack.
    path: Option<CString>,
    is_exiting: bool,
}

static NAME: Mutex<Name> = Mutex::new(Name { path: None, is_exiting: false });
/// PID of the process that owns the name. A forked child has a copy of the name, but no socket.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Exit must not wait for a file system that does not respond. Makes no system call with a pointer:
/// the stack may be managed, and all signals are blocked.
fn lock_name_within(ns: u64) -> Option<MutexGuard<'static, Name>> {
    let (until, mut turns) = (raw::now_ns() + ns, 0);
    loop {
        match NAME.try_lock() {
            Ok(name) => return Some(name),
            Err(TryLockError::Poisoned(name)) => return Some(name.into_inner()),
            Err(TryLockError::WouldBlock) if raw::now_ns() > until => return None,
            Err(TryLockError::WouldBlock) => futex::relax(&mut turns),
        }
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn prepare() {
    let set = |name| Some((name, std::env::var_os(name)?));
    let variables = control_socket::DIR_VARIABLES.into_iter().filter_map(set).collect();
    PLAN.get_or_init(|| Plan { variables, started: Instant::now() });
    OWNER.store(raw::current_process(), Ordering::Relaxed);
}

pub(crate) fn serve(keep_running: fn() -> bool) {
    let (Some(engine), Some(plan)) = (instance::engine(), PLAN.get()) else { return };
    if !descriptors::unshare_descriptors() {
        return;
    }
    let lookup =
        |wanted: &str| Some(plan.variables.iter().find(|(name, _)| *name == wanted)?.1.clone());
    // The process's current user may differ from the one at start.
    let Some(listener) = open(&control_socket::directories(lookup, own_uid())) else { return };
    while keep_running() {
        match listener.accept() {
            // An error of one client does not end the thread.
            Ok(client) => {
                let answer = |request: Request<'_>| carry_out(engine, plan.started, request);
                drop(protocol::converse(&client, own_uid(), answer));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    drop(listener);
    remove_socket_name();
}

fn remove_socket_name() {
    let mut name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = name.path.take() {
        let _ = rustix::fs::unlink(path.as_c_str());
    }
}

fn open(dirs: &[PathBuf]) -> Option<Listener> {
    let mut name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
    if name.is_exiting {
        return None;
    }
    let (uid, pid) = (own_uid(), raw::current_process());
    if !control_socket::is_own_number(uid) {
        return None;
    }
    let listener = dirs.iter().find_map(|dir| Listener::open(dir, uid, pid).ok())?;
    name.path = CString::new(listener.path().as_os_str().as_bytes()).ok();
    Some(listener)
}

fn carry_out(engine: &Engine, started: Instant, request: Request<'_>) -> Result<String, String> {
    if matches!(request, Request::Set("memory", _)) && tree::is_shared() {
        return Err(
            "memory: this process shares the budget of its tree; set the tree's budget with the \
             PID of `softswap run`"
                .into(),
        );
    }
    if let Request::Sample(every, python) = request {
        let mut samples = fault_samples::take(every, python);
        samples.codes = python_frames::codes(engine, &samples.samples);
        samples.blocks =
            large_blocks::containing(samples.samples.iter().map(|sample| sample.address));
        return Ok(samples.text());
    }
    protocol::carry_out(engine, started.elapsed(), request)
}

/// Faults in memory for a debugger, at most a quarter of the budget. The debugger calls this in a
/// stopped program, whose control thread is stopped, too. Returns the number of readable bytes.
#[unsafe(no_mangle)]
pub extern "C" fn softswap_bring_in(address: usize, len: usize) -> usize {
    let Some(engine) = instance::engine() else { return len };
    let len = len.min(engine.bring_in_limit_bytes());
    let page = |at: usize| at & !(PAGE_SIZE - 1);
    let mut done = 0;
    while done < len && uaccess::can_read(address.wrapping_add(done)) {
        let at = address.wrapping_add(done);
        done += PAGE_SIZE - (at - page(at));
    }
    done.min(len)
}

#[used]
#[unsafe(link_section = ".fini_array")]
static ON_EXIT: extern "C" fn() = remove_name;

/// If the process is killed instead, the next process that finds the name removes it.
extern "C" fn remove_name() {
    tree::release_at_exit();
    if OWNER.load(Ordering::Relaxed) != raw::current_process() {
        return;
    }
    // A handler that calls `_exit` would wait for the name lock that this thread holds.
    signals::with_all_blocked(|| {
        let Some(mut name) = lock_name_within(EXIT_WAIT_NS) else { return };
        name.is_exiting = true;
        if let Some(path) = name.path.take() {
            let _ = rustix::fs::unlink(path.as_c_str());
        }
    });
}

/// Programs such as shells exit by this call, without destructors.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: i32) -> ! {
    remove_name();
    loop {
        // SAFETY: exits the process, as requested.
        unsafe { raw::syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C library's name")]
pub extern "C" fn _Exit(status: i32) -> ! {
    _exit(status)
}
