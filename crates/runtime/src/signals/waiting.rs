//! Calls that install a signal mask while they wait, and calls that wait for a signal.
//!
//! The kernel gets masks without the engine's signals, because a handler may touch an absent page
//! during the wait. A thread that waits for an engine signal first takes a held one. One sent
//! during the wait arrives through the kernel, or by a poke from another thread's handler.

use super::pending::is_poke;
use super::sets::{bits, engine_signals, set_of};
use super::virtual_mask::set_and_deliver;
use super::{pending, temporary_mask, virtual_mask};
use crate::base::instance;
use crate::base::real::real;
use libc::{sigset_t, timespec};
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, siginfo_t};
use std::cell::Cell;

/// Mask for the kernel while a call waits. The thread's emulated mask is that of the call.
struct WaitMask {
    set: Option<sigset_t>,
    before: Mask,
    /// True if a held signal was delivered, so that the call fails with EINTR.
    delivered: bool,
}

impl WaitMask {
    /// # Safety
    /// `set` is valid or null.
    unsafe fn new(set: *const sigset_t) -> WaitMask {
        let before = virtual_mask::get();
        // SAFETY: `set` is a set of the program, valid or null.
        let waited_for = unsafe { set.as_ref() }.map(|set| unsafe { bits(set) });
        let Some(waited_for) = waited_for.filter(|_| instance::emulates_signals()) else {
            // SAFETY: `set` is a set of the program, valid or null.
            return WaitMask { set: unsafe { set.as_ref() }.copied(), before, delivered: false };
        };
        virtual_mask::set(waited_for & engine_signals());
        let unblocked = before & !waited_for;
        let delivered = unblocked != 0 && virtual_mask::release(unblocked);
        WaitMask { set: Some(set_of(waited_for & !engine_signals())), before, delivered }
    }

    fn pointer(&self) -> *const sigset_t {
        self.set.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
    }

    fn call(self, call: impl FnOnce(*const sigset_t) -> i32) -> i32 {
        let result = if self.delivered {
            raw::set_errno(libc::EINTR);
            -1
        } else {
            if let Some(set) = &self.set {
                // SAFETY: `set` is a valid set.
                temporary_mask::record(unsafe { bits(set) });
            }
            let result = call(self.pointer());
            temporary_mask::forget();
            result
        };
        if self.before != virtual_mask::get() {
            raw::preserving_errno(|| set_and_deliver(self.before));
        }
        result
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigsuspend(set: *const sigset_t) -> i32 {
    real!(sigsuspend: fn(*const sigset_t) -> i32);
    // SAFETY: the C library's function of this name; the program passes the arguments.
    unsafe { WaitMask::new(set).call(|set| sigsuspend()(set)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sigsuspend(set: *const sigset_t) -> i32 {
    // SAFETY: another name of this function; the arguments are the program's.
    unsafe { sigsuspend(set) }
}

/// Implements `sigpause(3)`, with a mask or a signal to unblock.
#[unsafe(no_mangle)]
pub extern "C" fn __sigpause(mask_or_signal: i32, is_signal: i32) -> i32 {
    let mask = if is_signal == 0 {
        Mask::from(mask_or_signal as u32)
    } else if signals::SIGNALS.contains(&mask_or_signal) {
        (signals::current_mask() | virtual_mask::get()) & !signals::bit(mask_or_signal)
    } else {
        raw::set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: the set is a local.
    unsafe { sigsuspend(&set_of(mask)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn sigpause(mask: i32) -> i32 {
    __sigpause(mask, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn __xpg_sigpause(signal: i32) -> i32 {
    __sigpause(signal, 1)
}

macro_rules! masked {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty,)* set: *const sigset_t) -> i32 {
            real!($name: fn($($ty,)* *const sigset_t) -> i32);
            // SAFETY: the C library's function of this name; the program passes the arguments.
            unsafe { WaitMask::new(set).call(|set| $name()($($arg,)* set)) }
        }
    )*};
}

type Descriptors = *mut libc::fd_set;

masked! {
    ppoll(fds: *mut libc::pollfd, count: libc::nfds_t, time: *const timespec);
    pselect(count: i32, read: Descriptors, write: Descriptors, except: Descriptors, time: *const timespec);
    epoll_pwait(fd: i32, events: *mut libc::epoll_event, count: i32, timeout: i32);
    epoll_pwait2(fd: i32, events: *mut libc::epoll_event, count: i32, time: *const timespec);
}

/// # Safety
/// The rules of `ppoll(2)` apply, for an array of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    time: *const timespec,
    set: *const sigset_t,
    len: usize,
) -> i32 {
    type Fds = *mut libc::pollfd;
    real!(__ppoll_chk: fn(Fds, libc::nfds_t, *const timespec, *const sigset_t, usize) -> i32);
    // SAFETY: the C library's function of this name; the program passes the arguments.
    unsafe { WaitMask::new(set).call(|set| __ppoll_chk()(fds, count, time, set, len)) }
}

const NO_TIMEOUT: timespec = timespec { tv_sec: i64::MAX, tv_nsec: 0 };
const ZERO_TIMEOUT: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

thread_local! {
    /// Timeout of a wait for the engine's signals. A handler that holds one sets it to zero,
    /// because it may run after the thread has checked for held signals and before it waits.
    static TIMEOUT: Cell<timespec> = const { Cell::new(ZERO_TIMEOUT) };
}

pub(super) fn recheck_held_signals() {
    TIMEOUT.set(ZERO_TIMEOUT);
}

/// Handles a poke for `signal`. Returns true if this thread can take the signal now.
pub(super) fn handle_poke(signal: i32) -> bool {
    recheck_held_signals();
    let takes = virtual_mask::get() & signals::bit(signal) == 0 && !pending::takes_no_signals();
    if !takes && !pending::is_waiting_for(signal) {
        pending::pass_on(signal);
    }
    takes
}

/// Waits for `set`, of which `waited_for` are the engine's. Safety: as `sigtimedwait(2)`.
unsafe fn wait_with_engine_signals(
    set: *const sigset_t,
    waited_for: Mask,
    info: *mut siginfo_t,
    time: *const timespec,
    wait: impl Fn(*const sigset_t, *mut siginfo_t, *const timespec) -> i32,
) -> i32 {
    // SAFETY: the caller's pointer is valid or null.
    let timeout = unsafe { time.as_ref() }.copied();
    loop {
        TIMEOUT.set(timeout.unwrap_or(NO_TIMEOUT));
        pending::wait_for(waited_for);
        let mut got: siginfo_t = softswap_sys::AnyBits::zeroed();
        let result = match virtual_mask::take_held(waited_for) {
            Some((signal, held)) => {
                got = held;
                signal
            }
            None => wait(set, &raw mut got, TIMEOUT.with(Cell::as_ptr)),
        };
        let timed_out =
            result == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
        raw::preserving_errno(|| pending::wait_for(0));
        let is_poke = result > 0 && is_poke(&got);
        // A poke or the zero timeout has ended the wait: check for held signals again.
        if is_poke || timed_out && virtual_mask::held() & waited_for != 0 {
            continue;
        }
        // SAFETY: the caller's pointer is valid or null.
        if let Some(info) = unsafe { info.as_mut() }.filter(|_| result > 0) {
            *info = got;
        }
        return result;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigtimedwait(
    set: *const sigset_t,
    info: *mut siginfo_t,
    time: *const timespec,
) -> i32 {
    real!(sigtimedwait: fn(*const sigset_t, *mut siginfo_t, *const timespec) -> i32);
    // SAFETY: the program passes a valid set; `info` and `time` are valid or null.
    unsafe {
        let waited_for = bits(set) & virtual_mask::get();
        if waited_for == 0 || !instance::emulates_signals() {
            return sigtimedwait()(set, info, time);
        }
        wait_with_engine_signals(set, waited_for, info, time, |set, info, time| {
            sigtimedwait()(set, info, time)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> i32 {
    // SAFETY: the program passes a valid set; `info` is writable or null.
    unsafe { sigtimedwait(set, info, std::ptr::null()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwait(set: *const sigset_t, signal: *mut i32) -> i32 {
    // SAFETY: the program passes a valid set and a writable `signal`.
    unsafe {
        loop {
            let got = sigtimedwait(set, std::ptr::null_mut(), std::ptr::null());
            if got > 0 {
                signal.write(got);
                return 0;
            }
            match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) | None => {}
                Some(error) => return error,
            }
        }
    }
}
