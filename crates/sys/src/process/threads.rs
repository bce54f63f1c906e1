//! Threads of this process, by their kernel IDs.

use crate::futex;
use crate::raw;
use crate::signals::{self, Mask, SIGBUS, SIGSYS, siginfo_t};
use std::io;

/// Value of a SIGSYS that only interrupts; no other code queues a SIGSYS with this value.
const INTERRUPTS: usize = 0x736f_6674_7377_6170;
/// Value of a SIGSYS that asks a sleeping process to wake.
const WAKES: usize = 0x736f_6674_7761_6b65;
/// Value of a SIGBUS by which a thread shows that it is not in the kernel.
const STATE_QUERY: usize = 0x736f_6674_6173_6b73;

fn queue(thread: i32, info: &siginfo_t) {
    let signal = info.si_signo;
    let pid = raw::current_process() as usize;
    let args = [pid, thread as usize, signal as usize, std::ptr::from_ref(info) as usize, 0, 0];
    // SAFETY: the kernel reads one `siginfo_t` from `info`.
    unsafe { raw::syscall(libc::SYS_rt_tgsigqueueinfo, args) };
}

fn has_value(info: &siginfo_t, value: usize) -> bool {
    info.si_code == libc::SI_QUEUE && signals::queued_value(info) == value
}

/// Sends this thread a SIGSYS, whose handler ([`is_request_to_wake`]) runs on the signal stack.
pub fn request_to_wake() {
    queue(raw::current_thread(), &signals::own_info(SIGSYS, WAKES));
}

pub fn is_request_to_wake(info: &siginfo_t) -> bool {
    signals::is_own(info, WAKES)
}

/// Interrupts the thread's system call. Details may be lost ([`signals::has_lost_details`]).
pub fn interrupt(thread: i32) {
    queue(thread, &signals::queued_info(SIGSYS, INTERRUPTS));
}

pub fn is_interruption(info: &siginfo_t) -> bool {
    has_value(info, INTERRUPTS)
}

/// Sends a SIGBUS, not a SIGSYS: only one signal of a kind can be pending, so a trapped call could
/// be lost. A lost fault does no harm, because the access is repeated. Details may be lost
/// ([`signals::has_lost_details`]).
pub fn question(thread: i32) {
    queue(thread, &signals::queued_info(SIGBUS, STATE_QUERY));
}

pub fn is_question(info: &siginfo_t) -> bool {
    has_value(info, STATE_QUERY)
}

/// Activity of a thread that does not run, as /proc reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    Call {
        number: i64,
        arguments: [usize; 6],
    },
    /// The thread runs, or waits for another reason.
    Unknown,
    Exited,
}

/// Returns the IDs of this process's threads in its own PID namespace.
pub fn all() -> io::Result<Vec<i32>> {
    let names = names()?;
    if is_of_own_namespace() {
        return Ok(names);
    }
    // A thread that has exited since has no ID.
    Ok(names.into_iter().filter_map(|name| number_of(name).ok()).collect())
}

/// Returns the IDs of this process's threads in /proc.
fn names() -> io::Result<Vec<i32>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        names.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(names)
}

/// Returns false if /proc was mounted outside this PID namespace: then it uses other IDs.
fn is_of_own_namespace() -> bool {
    let name = std::fs::read_link("/proc/thread-self").ok();
    let name = name.as_deref().and_then(|path| path.file_name()?.to_str()?.parse::<i32>().ok());
    // If the link cannot be read, /proc cannot convert IDs either, so assume that they match.
    name.is_none_or(|name| name == raw::current_thread())
}

/// Converts a thread's ID in /proc to its ID in this process's PID namespace.
fn number_of(name: i32) -> io::Result<i32> {
    // One ID for each namespace, the innermost last.
    let numbers = field(name, "NSpid:")?;
    let own = numbers.split_ascii_whitespace().next_back().and_then(|number| number.parse().ok());
    own.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn name_of(thread: i32) -> io::Result<i32> {
    if is_of_own_namespace() {
        return Ok(thread);
    }
    let is_it = |name: &i32| number_of(*name).is_ok_and(|number| number == thread);
    let not_found = || io::Error::from_raw_os_error(libc::ENOENT);
    names()?.into_iter().find(is_it).ok_or_else(not_found)
}

/// Returns true for a thread that the kernel has created for an io_uring.
pub fn is_io_worker(thread: i32) -> bool {
    status(thread, "Name:").is_ok_and(|name| name.starts_with("iou-"))
}

pub fn blocked(thread: i32) -> io::Result<Mask> {
    let digits = status(thread, "SigBlk:")?;
    Mask::from_str_radix(&digits, 16).map_err(|_| io::ErrorKind::InvalidData.into())
}

pub fn activity(thread: i32) -> io::Result<Activity> {
    let read = |name| std::fs::read_to_string(format!("/proc/self/task/{name}/syscall"));
    match name_of(thread).and_then(read) {
        Ok(text) => Ok(parse_activity(&text)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            Ok(Activity::Exited)
        }
        // Once the main thread has exited, only root may read its system call.
        Err(_) if status(thread, "State:").is_ok_and(|state| state.starts_with(['Z', 'X'])) => {
            Ok(Activity::Exited)
        }
        Err(error) => Err(error),
    }
}

fn status(thread: i32, title: &str) -> io::Result<String> {
    field(name_of(thread)?, title)
}

fn field(name: i32, title: &str) -> io::Result<String> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{name}/status"))?;
    let field = text.lines().find_map(|line| line.strip_prefix(title));
    field.map(|rest| rest.trim().to_string()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Parses "running", "-1 SP PC", or "NUMBER A B C D E F SP PC".
fn parse_activity(text: &str) -> Activity {
    let mut fields = text.split_ascii_whitespace();
    let number = fields.next().and_then(|field| field.parse::<i64>().ok());
    // The main thread, which has exited before the others.
    if number == Some(-1) && fields.clone().all(|field| field == "0x0") {
        return Activity::Exited;
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

pub fn any_runnable(counts: impl Fn(i32) -> bool) -> bool {
    let is_running = |name: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{name}/stat"));
        // The name before the state may contain any character.
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R')))
    };
    let is_of_own_namespace = is_of_own_namespace();
    let number = |name: i32| if is_of_own_namespace { Ok(name) } else { number_of(name) };
    let mut running = names().unwrap_or_default().into_iter().filter(is_running);
    running.any(|name| number(name).is_ok_and(&counts))
}

pub fn wait_until_exited(thread: i32) {
    let pid = raw::current_process() as usize;
    let exists = || {
        // SAFETY: signal 0 is never delivered; the call only reports whether the thread exists.
        unsafe { raw::syscall(libc::SYS_tgkill, [pid, thread as usize, 0, 0, 0, 0]) == 0 }
    };
    let mut turns = 0;
    while thread != 0 && exists() {
        futex::relax(&mut turns);
    }
}

/// Returns the name, padded with zeroes. The main thread has the program's.
pub fn own_name() -> [u8; 16] {
    let mut name = [0; 16];
    let place = name.as_mut_ptr() as usize;
    // SAFETY: the kernel writes at most 16 bytes to `name`.
    let _ =
        unsafe { raw::syscall(libc::SYS_prctl, [libc::PR_GET_NAME as usize, place, 0, 0, 0, 0]) };
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_thread_shows_its_call() {
        let mut ends = [0; 2];
        // SAFETY: the array has space for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let mut byte = [0_u8; 3];
        let at = byte.as_mut_ptr() as usize;
        std::thread::scope(|scope| {
            let (sender, number) = std::sync::mpsc::channel();
            scope.spawn(move || {
                sender.send(raw::current_thread()).unwrap();
                // SAFETY: the kernel writes to three bytes that outlive the thread.
                unsafe { libc::read(ends[0], at as *mut _, 3) }
            });
            let thread = number.recv().unwrap();
            assert!(all().unwrap().contains(&thread));
            assert!(raw::thread_count().unwrap() >= 2);
            let this = raw::current_thread();
            assert!(any_runnable(|number| number == this));
            let mask = signals::bit(libc::SIGINT);
            signals::with_blocked(mask, || {
                assert_eq!(
                    (signals::current_mask(), blocked(raw::current_thread()).unwrap()),
                    (mask, mask)
                );
            });
            let call = loop {
                match activity(thread).unwrap() {
                    Activity::Call { number: libc::SYS_read, arguments } => break arguments,
                    _ => std::thread::yield_now(),
                }
            };
            assert_eq!((call[0], call[1], call[2]), (ends[0] as usize, at, 3));
            // SAFETY: the kernel reads one byte of the string.
            assert_eq!(unsafe { libc::write(ends[1], c"x".as_ptr().cast(), 1) }, 1);
        });
        assert_eq!(byte[0], b'x');
        assert_eq!(parse_activity("running\n"), Activity::Unknown);
        assert_eq!(parse_activity("-1 0x0 0x0\n"), Activity::Exited);
        assert_eq!(parse_activity("-1 0x7ffc 0x7f00\n"), Activity::Unknown);
    }
}
