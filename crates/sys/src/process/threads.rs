//! Threads of this process, by the kernel's numbers.

use crate::futex;
use crate::raw;
use crate::signals::{self, Mask, SIGBUS, SIGSYS, siginfo_t};
use std::io;

/// What tells a signal that only interrupts: nobody else queues a SIGSYS with it.
const INTERRUPTS: usize = 0x736f_6674_7377_6170;
/// The same of one that asks a sleeping process to wake.
const WAKES: usize = 0x736f_6674_7761_6b65;
/// What tells a SIGBUS by which a thread is asked whether it is out of the kernel.
const ASKS: usize = 0x736f_6674_6173_6b73;

fn queue(thread: i32, info: &siginfo_t) {
    let signal = info.si_signo;
    let pid = raw::current_process() as usize;
    let args = [pid, thread as usize, signal as usize, std::ptr::from_ref(info) as usize, 0, 0];
    // SAFETY: the kernel reads one `siginfo_t` from `info`.
    unsafe { raw::syscall(libc::SYS_rt_tgsigqueueinfo, args) };
}

/// # Safety
/// `info` is what a handler was given.
unsafe fn has_value(info: *const siginfo_t, value: usize) -> bool {
    // SAFETY: details that a handler was given can be read, and do not change meanwhile.
    let info = unsafe { &*info };
    info.si_code == libc::SI_QUEUE && signals::queued_value(info) == value
}

/// Has the handler of SIGSYS in this thread find [`is_request_to_wake`], on the signal stack.
pub fn request_to_wake() {
    queue(raw::current_thread(), &signals::own_info(SIGSYS, WAKES));
}

/// Whether a SIGSYS came from [`request_to_wake`].
///
/// # Safety
/// `info` is what a handler was given.
#[must_use]
pub unsafe fn is_request_to_wake(info: *const siginfo_t) -> bool {
    // SAFETY: details that a handler was given can be read, and do not change meanwhile.
    signals::is_own(unsafe { &*info }, WAKES)
}

/// Interrupts the thread's system call, if it is in one that can be. The
/// handler of SIGSYS asks [`is_interruption`] and returns. The details may be lost
/// ([`signals::has_lost_details`]).
pub fn interrupt(thread: i32) {
    queue(thread, &signals::queued_info(SIGSYS, INTERRUPTS));
}

/// Whether a SIGSYS came from [`interrupt`].
///
/// # Safety
/// `info` is what a handler was given.
#[must_use]
pub unsafe fn is_interruption(info: *const siginfo_t) -> bool {
    // SAFETY: asked for above.
    unsafe { has_value(info, INTERRUPTS) }
}

/// Has the handler of SIGBUS in another thread find [`is_question`]. Not by SIGSYS: a call that
/// a filter has just trapped would be lost, as one of a kind is kept pending. A touch is
/// repeated. The details may be lost ([`signals::has_lost_details`]).
pub fn question(thread: i32) {
    queue(thread, &signals::queued_info(SIGBUS, ASKS));
}

/// Whether a SIGBUS came from [`question`].
///
/// # Safety
/// `info` is what a handler was given.
#[must_use]
pub unsafe fn is_question(info: *const siginfo_t) -> bool {
    // SAFETY: asked for above.
    unsafe { has_value(info, ASKS) }
}

/// What a thread does, as /proc tells of one that does not run.
///
/// ```
/// use softswap_sys::{raw, threads};
///
/// // It asks, by reading a file.
/// let activity = threads::activity(raw::current_thread()).unwrap();
/// assert!(matches!(activity, threads::Activity::Call { number: libc::SYS_read, .. }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It waits in this system call.
    Call {
        /// The call's number.
        number: i64,
        /// Its arguments.
        arguments: [usize; 6],
    },
    /// It runs, or waits for something else.
    Unknown,
    /// There is no such thread.
    Gone,
}

/// The numbers of this process's threads, as it has them itself.
///
/// # Errors
/// When /proc does not tell.
pub fn all() -> io::Result<Vec<i32>> {
    let names = names()?;
    if is_of_own_namespace() {
        return Ok(names);
    }
    // One that is gone by now has no number.
    Ok(names.into_iter().filter_map(|name| number_of(name).ok()).collect())
}

/// What /proc calls this process's threads.
fn names() -> io::Result<Vec<i32>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        names.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(names)
}

/// Whether /proc goes by this process's own numbers: one that was mounted outside of its name
/// space of processes has others.
fn is_of_own_namespace() -> bool {
    let name = std::fs::read_link("/proc/thread-self").ok();
    let name = name.as_deref().and_then(|path| path.file_name()?.to_str()?.parse::<i32>().ok());
    // Where that is not told there are no others to be had, either.
    name.is_none_or(|name| name == raw::current_thread())
}

/// The number that the thread has for itself which /proc calls so.
fn number_of(name: i32) -> io::Result<i32> {
    // One for each name space, its own last.
    let numbers = field(name, "NSpid:")?;
    let own = numbers.split_ascii_whitespace().next_back().and_then(|number| number.parse().ok());
    own.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// What /proc calls a thread.
fn name_of(thread: i32) -> io::Result<i32> {
    if is_of_own_namespace() {
        return Ok(thread);
    }
    let is_it = |name: &i32| number_of(*name).is_ok_and(|number| number == thread);
    let gone = || io::Error::from_raw_os_error(libc::ENOENT);
    names()?.into_iter().find(is_it).ok_or_else(gone)
}

/// The signals that a thread of this process blocks.
///
/// ```
/// use softswap_sys::{raw, signals, threads};
///
/// let mask = threads::blocked(raw::current_thread()).unwrap();
/// assert_eq!(mask & signals::bit(libc::SIGBUS), 0);
/// ```
///
/// # Errors
/// When /proc does not tell.
pub fn blocked(thread: i32) -> io::Result<Mask> {
    let digits = status(thread, "SigBlk:")?;
    Mask::from_str_radix(&digits, 16).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// What a thread of this process does.
///
/// # Errors
/// When /proc does not tell.
pub fn activity(thread: i32) -> io::Result<Activity> {
    let read = |name| std::fs::read_to_string(format!("/proc/self/task/{name}/syscall"));
    match name_of(thread).and_then(read) {
        Ok(text) => Ok(parse_activity(&text)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            Ok(Activity::Gone)
        }
        // Of a first thread that has ended only root is told more.
        Err(_) if status(thread, "State:").is_ok_and(|state| state.starts_with(['Z', 'X'])) => {
            Ok(Activity::Gone)
        }
        Err(error) => Err(error),
    }
}

/// What the line of a thread's status says that begins with `title`.
fn status(thread: i32, title: &str) -> io::Result<String> {
    field(name_of(thread)?, title)
}

/// As [`status`], of the thread that /proc calls so.
fn field(name: i32, title: &str) -> io::Result<String> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{name}/status"))?;
    let field = text.lines().find_map(|line| line.strip_prefix(title));
    field.map(|rest| rest.trim().to_string()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// "running", "-1 SP PC", or "NUMBER A B C D E F SP PC".
fn parse_activity(text: &str) -> Activity {
    let mut fields = text.split_ascii_whitespace();
    let number = fields.next().and_then(|field| field.parse::<i64>().ok());
    // The first thread, which has ended before the others.
    if number == Some(-1) && fields.clone().all(|field| field == "0x0") {
        return Activity::Gone;
    }
    let Some(number) = number.filter(|number| *number >= 0) else { return Activity::Unknown };
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        let digits = fields.next().and_then(|field| field.strip_prefix("0x"));
        match digits.and_then(|digits| usize::from_str_radix(digits, 16).ok()) {
            Some(value) => *argument = value,
            None => return Activity::Unknown,
        }
    }
    Activity::Call { number, arguments }
}

/// Waits until a thread that ends by itself is gone for the kernel, too.
pub fn wait_until_gone(thread: i32) {
    let pid = raw::current_process() as usize;
    let still_there = || {
        // SAFETY: signal 0 is never delivered; the call only tells whether it could be.
        unsafe { raw::syscall(libc::SYS_tgkill, [pid, thread as usize, 0, 0, 0, 0]) == 0 }
    };
    let mut turns = 0;
    while thread != 0 && still_there() {
        futex::relax(&mut turns);
    }
}

/// What the kernel calls this thread, up to the first 0; for the first one, its program.
#[must_use]
pub fn own_name() -> [u8; 16] {
    let mut name = [0; 16];
    let place = name.as_mut_ptr() as usize;
    // SAFETY: the kernel writes 16 bytes at most, into `name`.
    let _ =
        unsafe { raw::syscall(libc::SYS_prctl, [libc::PR_GET_NAME as usize, place, 0, 0, 0, 0]) };
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_in_a_call_is_seen_with_its_arguments() {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let mut byte = [0_u8; 3];
        let at = byte.as_mut_ptr() as usize;
        std::thread::scope(|scope| {
            let (told, number) = std::sync::mpsc::channel();
            scope.spawn(move || {
                told.send(raw::current_thread()).unwrap();
                // SAFETY: three bytes that outlive the thread.
                unsafe { libc::read(ends[0], at as *mut _, 3) }
            });
            let thread = number.recv().unwrap();
            assert!(all().unwrap().contains(&thread));
            let call = loop {
                match activity(thread).unwrap() {
                    Activity::Call { number: libc::SYS_read, arguments } => break arguments,
                    _ => std::thread::yield_now(),
                }
            };
            assert_eq!((call[0], call[1], call[2]), (ends[0] as usize, at, 3));
            // SAFETY: a byte to be read.
            assert_eq!(unsafe { libc::write(ends[1], c"x".as_ptr().cast(), 1) }, 1);
        });
        assert_eq!(byte[0], b'x');
        assert_eq!(parse_activity("running\n"), Activity::Unknown);
        assert_eq!(parse_activity("-1 0x0 0x0\n"), Activity::Gone);
        assert_eq!(parse_activity("-1 0x7ffc 0x7f00\n"), Activity::Unknown);
    }
}
