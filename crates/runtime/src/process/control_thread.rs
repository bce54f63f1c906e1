//! The control socket: a thread that answers `softswap stat`, `softswap ctl` and `softswap
//! record`.
//!
//! The thread has a table of descriptors of its own. So the program neither
//! sees the socket nor can close it, a forked child does not inherit it, and
//! a client that is taken in never gets a number that the program expects to
//! get next. Where anything is refused the program runs on without a socket.

use super::{descriptors, tree};
use crate::base::{fault_samples, instance, large_blocks, python_frames, uaccess};
use softswap_engine::door::control_protocol::{self as protocol, Request};
use softswap_engine::door::engine::Engine;
use softswap_sys::control_socket::{self, Listener};
use softswap_sys::{PAGE_SIZE, futex, raw, signals};
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long the program's end waits for a socket that is just being made.
const LAST_WAIT_NS: u64 = 200_000_000;
/// Between attempts when the kernel has no memory for another client.
const PAUSE: Duration = Duration::from_millis(100);

/// What the thread needs to know, from before the program could change it.
struct Plan {
    /// The variables that name directories, as far as they are set.
    variables: Vec<(&'static str, OsString)>,
    started: Instant,
}

static PLAN: OnceLock<Plan> = OnceLock::new();

/// The socket's name in the file system.
struct Name {
    /// In engine memory: a system call takes it from there whatever stack the
    /// program ends on.
    path: Option<CString>,
    /// The process ends: no name may appear any more.
    ending: bool,
}

static NAME: Mutex<Name> = Mutex::new(Name { path: None, ending: false });
/// The process that the name belongs to; what is forked from it has copies of
/// all this, but not the socket.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The name, within a time: a program's end does not wait for a file system
/// that does not answer. Without a system call that is given an address: this
/// may be a managed stack, with all signals blocked.
fn name_within(ns: u64) -> Option<MutexGuard<'static, Name>> {
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

/// Notes what the thread needs to know.
pub(crate) fn prepare() {
    let set = |name| Some((name, std::env::var_os(name)?));
    let variables = control_socket::DIR_VARIABLES.into_iter().filter_map(set).collect();
    PLAN.get_or_init(|| Plan { variables, started: Instant::now() });
    OWNER.store(raw::current_process(), Ordering::Relaxed);
}

/// What the thread does, for as long as it is to go on.
pub(crate) fn serve(goes_on: fn() -> bool) {
    let (Some(engine), Some(plan)) = (instance::engine(), PLAN.get()) else { return };
    if !descriptors::leave_table() {
        return;
    }
    let lookup =
        |wanted: &str| Some(plan.variables.iter().find(|(name, _)| *name == wanted)?.1.clone());
    // Of the user that the process belongs to now.
    let Some(listener) = open(&control_socket::directories(lookup, own_uid())) else { return };
    while goes_on() {
        match listener.accept() {
            // Whatever became of it, the next one is served.
            Ok(client) => {
                let answer = |request: Request<'_>| carry_out(engine, plan.started, request);
                drop(protocol::converse(&client, own_uid(), answer));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    drop(listener);
    take_name();
}

/// Takes the socket's name away: nobody answers it any more.
fn take_name() {
    let mut name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = name.path.take() {
        let _ = rustix::fs::unlink(path.as_c_str());
    }
}

/// The socket in the first directory that takes one.
fn open(dirs: &[PathBuf]) -> Option<Listener> {
    let mut name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
    if name.ending {
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
        return Err("memory: it shares one budget with its tree; set that of `softswap run`".into());
    }
    if let Request::Sample(every, python) = request {
        let mut told = fault_samples::take(every, python);
        told.codes = python_frames::codes(engine, &told.samples);
        told.blocks = large_blocks::around(told.samples.iter().map(|sample| sample.address));
        return Ok(told.text());
    }
    protocol::carry_out(engine, started.elapsed(), request)
}

/// Brings in memory for a debugger, which calls this in a thread of a program that it has stopped:
/// the control thread is stopped, too. At most a quarter of the budget. Returns how many bytes from
/// the address on can be read.
#[unsafe(no_mangle)]
pub extern "C" fn softswap_bring_in(address: usize, len: usize) -> usize {
    let Some(engine) = instance::engine() else { return len };
    let len = len.min(engine.half_of_budget_bytes() / 2);
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

/// Takes the socket's name away when the process ends by itself, and its seat. Whoever
/// meets a name that was left by one that was killed removes it.
extern "C" fn remove_name() {
    tree::leave();
    if OWNER.load(Ordering::Relaxed) != raw::current_process() {
        return;
    }
    // Signals are blocked, because a handler may call `_exit`, too.
    signals::with_all_blocked(|| {
        let Some(mut name) = name_within(LAST_WAIT_NS) else { return };
        name.ending = true;
        if let Some(path) = name.path.take() {
            let _ = rustix::fs::unlink(path.as_c_str());
        }
    });
}

/// Shells leave this way, without destructors, and there are many of them.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: i32) -> ! {
    remove_name();
    loop {
        // SAFETY: ends the process, which is what the caller wants.
        unsafe { raw::syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// As [`_exit`].
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C library's name")]
pub extern "C" fn _Exit(status: i32) -> ! {
    _exit(status)
}
