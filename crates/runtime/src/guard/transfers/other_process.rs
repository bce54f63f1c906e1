//! Reads of another process's memory (`process_vm_readv`), parts of which may be swapped out.
//!
//! The kernel cannot fault in the other process's pages, so the call fails with EFAULT or returns a
//! short count. If the other process is managed, it faults them in on request over its control
//! socket, and the call is repeated once.

use super::buffers::EMPTY;
use crate::base::{instance, uaccess};
use crate::memory::libc_memory::outside_the_window;
use libc::iovec;
use softswap_engine::api::control_protocol::{Answer, Request};
use softswap_sys::control_socket::{self, Peer};
use softswap_sys::{exemption, raw};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Timeout for the other process's answer; the same as that of `softswap ctl`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of attempts for each range. The other process closes a connection on which no
/// request arrives within 250 ms.
const ATTEMPTS: usize = 4;
/// Time without requests after a timeout, in nanoseconds: a tracer may have stopped the process.
const SILENCE_NS: u64 = 2_000_000_000;
const MAX_ANSWER_BYTES: usize = 256;
/// Maximum number of ranges of a call that is repeated.
const RANGES: usize = 16;

/// Time of [`raw::now_ns`] before which no process is asked, because one did not answer.
static RETRY_NS: AtomicU64 = AtomicU64::new(0);

/// Makes a call that reads `count` ranges of another process, and repeats it if pages were absent.
pub(super) fn read(pid: i32, theirs: usize, count: usize, call: impl Fn() -> isize) -> isize {
    let first = call();
    let may_be_absent = first >= 0 || errno() == libc::EFAULT;
    let is_managed = instance::engine().is_some() || instance::is_asleep();
    if !may_be_absent || !is_managed || exemption::is_in_force() || count > RANGES {
        return first;
    }
    let mut ranges = [EMPTY; RANGES];
    let ranges = &mut ranges[..count];
    let is_known = uaccess::get_user_array(theirs, ranges);
    let wanted = ranges.iter().fold(0, |sum: usize, range| sum.saturating_add(range.iov_len));
    let done = usize::try_from(first).unwrap_or(0);
    if !is_known || done >= wanted || raw::now_ns() < RETRY_NS.load(Ordering::Relaxed) {
        return first;
    }
    let answered =
        raw::preserving_errno(|| outside_the_window(|| request_pages(pid, ranges, done)));
    if !matches!(answered, Ok(true)) {
        if answered.is_err_and(|why| why.kind() == io::ErrorKind::TimedOut) {
            RETRY_NS.store(raw::now_ns() + SILENCE_NS, Ordering::Relaxed);
        }
        return first;
    }
    let second = call();
    if second < first {
        // The first call's bytes are still valid.
        return first;
    }
    second
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Asks a process to fault in ranges of its memory, except for the first `done` bytes. Returns
/// false if the process has no control socket, or refuses.
fn request_pages(pid: i32, ranges: &[iovec], mut done: usize) -> io::Result<bool> {
    let Some(path) = u32::try_from(pid).ok().and_then(socket_of) else { return Ok(false) };
    for range in ranges {
        let before = done.min(range.iov_len);
        done -= before;
        let (address, len) = (range.iov_base as usize + before, range.iov_len - before);
        let request = Request::Touch(address, len);
        let is_done = || match send_request(pid, &path, &request) {
            Err(why) if why.kind() == io::ErrorKind::TimedOut => Some(Err(why)),
            Ok(true) => Some(Ok(())),
            _ => None,
        };
        if len > 0 {
            let Some(done) = (0..ATTEMPTS).find_map(|_| is_done()) else { return Ok(false) };
            done?;
        }
    }
    Ok(true)
}

fn socket_of(pid: u32) -> Option<std::path::PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let dirs = control_socket::directories(|name| std::env::var_os(name), uid);
    let default = control_socket::fallback(uid);
    let paths = dirs.into_iter().chain([default]);
    paths.map(|dir| control_socket::socket_path(&dir, pid)).find(|path| path.exists())
}

fn send_request(pid: i32, path: &std::path::Path, request: &Request<'_>) -> io::Result<bool> {
    let Some(line) = request.line() else { return Ok(false) };
    let peer: Peer = control_socket::connect(path, ANSWER_TIMEOUT)?;
    // Another process may own a socket of that name.
    if peer.credentials()?.pid != pid {
        return Ok(false);
    }
    peer.write_all(line.as_bytes(), ANSWER_TIMEOUT)?;
    let answer = peer.read_to_end(MAX_ANSWER_BYTES, ANSWER_TIMEOUT)?;
    Ok(matches!(Answer::parse(&answer), Answer::Ok(_)))
}
