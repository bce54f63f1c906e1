//! Hides the engine's descriptors from the program.
//!
//! Calls on their numbers fail with EBADF, and calls that close a range skip them, except for the
//! program's own system-call instructions. If such an instruction closes them, memory stays
//! registered, and each write checks that the descriptor still refers to its file. But evicted
//! pages are lost, and the program is stopped when it touches one.

use crate::base::errno::{c_result, refused};
use crate::base::instance;
use crate::base::issue_call::{Arguments, answered_by, engine_syscall, issue};
use crate::base::real::real;
use crate::memory::sleep_gate;
use rustix::fs::{Mode, OFlags, RawDir};
use softswap_sys::{descriptor, own_descriptors};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

const NOT_OPEN: isize = refused(libc::EBADF);
const NO_SUCH_CALL: isize = refused(libc::ENOSYS);

pub(super) fn is_engine_descriptor(fd: i32) -> bool {
    own_descriptors::contains(fd) && !instance::is_plain()
}

fn close_around(first: u32, last: u32, flags: u32) -> isize {
    let mut from = first;
    while from <= last {
        let kept = own_descriptors::next_from(from).filter(|kept| *kept <= last);
        let end = kept.map_or(last, |kept| kept.saturating_sub(1));
        if kept != Some(from) {
            let arguments = [from as usize, end as usize, flags as usize, 0, 0, 0];
            let result = issue(libc::SYS_close_range, arguments);
            if result < 0 {
                return result;
            }
        }
        let Some(next) = kept.unwrap_or(last).checked_add(1) else { break };
        from = next;
    }
    0
}

/// Calls `action` for each open descriptor from `first` on except the engine's. Does not allocate.
pub(super) fn for_each_open(first: u32, mut action: impl FnMut(i32)) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || rustix::fs::open(c"/proc/thread-self/fd", flags, Mode::empty());
    let list = descriptor::with_raised_limit(open)?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&list, &mut buffer);
    while let Some(entry) = entries.next() {
        let number = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|number| *number >= first as i32) else { continue };
        if number != list.as_raw_fd() && !is_engine_descriptor(number) {
            action(number);
        }
    }
    Ok(())
}

/// For kernels without `close_range` (before 5.9).
fn close_listed(first: u32) -> io::Result<()> {
    for_each_open(first, |number| {
        issue(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]);
    })
}

/// Returns the highest number of the engine's descriptors, if it is at least `first`.
pub(super) fn last_hidden_from(first: u32) -> Option<u32> {
    if instance::is_plain() { None } else { own_descriptors::last_from(first) }
}

/// Leaves only the engine's descriptors open for this thread. It then keeps no file of the program
/// open, and can still fault in pages. Returns false if the kernel refuses.
pub(crate) fn unshare_descriptors() -> bool {
    match close_around(0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) {
        NO_SUCH_CALL => {
            let flags = libc::CLONE_FILES as usize;
            engine_syscall(libc::SYS_unshare, [flags, 0, 0, 0, 0, 0]) == 0
                && close_listed(0).is_ok()
        }
        result => result >= 0,
    }
}

fn answer_close_range(arguments: Arguments) -> isize {
    let [first, last, flags, ..] = arguments.map(|argument| argument as u32);
    // Waking opens descriptors, so the process must not wake during this call.
    let _inside = sleep_gate::enter();
    if first > last || instance::is_plain() {
        return issue(libc::SYS_close_range, arguments);
    }
    close_around(first, last, flags)
}

fn not_open(_arguments: Arguments) -> isize {
    NOT_OPEN
}

pub(crate) fn answer_for(number: i64, a: usize, b: usize) -> Option<fn(Arguments) -> isize> {
    let is_hidden = match number {
        libc::SYS_close_range => return Some(answer_close_range),
        libc::SYS_close | libc::SYS_dup | libc::SYS_fcntl | libc::SYS_fstat => {
            is_engine_descriptor(a as i32)
        }
        libc::SYS_dup2 | libc::SYS_dup3 => {
            is_engine_descriptor(a as i32) || is_engine_descriptor(b as i32)
        }
        _ => false,
    };
    is_hidden.then_some(not_open)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: i32) -> i32 {
    real!(close: fn(i32) -> i32);
    if is_engine_descriptor(fd) {
        return c_result(NOT_OPEN) as i32;
    }
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    unsafe { close()(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: i32) {
    let first = first.max(0) as u32;
    if answer_close_range([first as usize, u32::MAX as usize, 0, 0, 0, 0]) == NO_SUCH_CALL {
        let _inside = sleep_gate::enter();
        // As in the C library, the function reports no errors.
        let _ = close_listed(first);
    }
}

fn duplicate(number: i64, arguments: Arguments) -> isize {
    let _inside = sleep_gate::enter();
    let is_engine_descriptor =
        is_engine_descriptor(arguments[0] as i32) || is_engine_descriptor(arguments[1] as i32);
    if is_engine_descriptor { NOT_OPEN } else { issue(number, arguments) }
}

fn duplicate_lowest(arguments: Arguments) -> isize {
    let is_hidden = is_engine_descriptor(arguments[0] as i32);
    if is_hidden { NOT_OPEN } else { issue(libc::SYS_dup, arguments) }
}

answered_by! {
    close_range(first: u32, last: u32, flags: i32) -> i32: answer_close_range;
    dup(old: i32) -> i32: duplicate_lowest;
    dup2(old: i32, new: i32) -> i32: |arguments| duplicate(libc::SYS_dup2, arguments);
    dup3(old: i32, new: i32, flags: i32) -> i32: |arguments| duplicate(libc::SYS_dup3, arguments);
}

macro_rules! query {
    ($name:ident($($argument:ident),*)) => {
        /// # Safety
        /// As the C library's function of the same name. If a command of `fcntl` has no third
        /// argument, its register has an arbitrary value.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: i32, $($argument: usize),*) -> i32 {
            real!($name: fn(i32, $(query!(@word $argument)),*) -> i32);
            if is_engine_descriptor(fd) {
                return c_result(NOT_OPEN) as i32;
            }
            // SAFETY: this is the C library's function of this name; the program passes the
            // arguments.
            unsafe { $name()(fd, $($argument),*) }
        }
    };
    (@word $argument:ident) => { usize };
}

query!(fcntl(command, argument));
query!(fcntl64(command, argument));
query!(fstat(status));
query!(fstat64(status));
