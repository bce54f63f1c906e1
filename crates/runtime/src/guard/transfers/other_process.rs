//! Copies from and to another process's memory, parts of which may be swapped out.
//!
//! The kernel cannot fault in the other process's pages, so the call fails or returns a short
//! count. A managed process faults them in on request over its control socket; if it is this
//! process, they are pinned. The rest is then copied piece by piece. A forked child has no control
//! socket.

use crate::base::errno::refused;
use crate::base::issue_call::{Arguments, engine_syscall};
use crate::base::{instance, uaccess};
use crate::memory::libc_memory::outside_the_window;
use crate::memory::pins::Pins;
use libc::iovec;
use softswap_engine::api::control_protocol::{Answer, Request};
use softswap_engine::base::access::Access;
use softswap_sys::control_socket::{self, Peer};
use softswap_sys::{exemption, raw};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Timeout for the other process's answer; the same as that of `softswap ctl`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts per request: the other process closes a connection without a request after 250 ms.
const ATTEMPTS: usize = 4;
/// Time without requests after a timeout: a tracer may have stopped the other process.
const SILENCE_NS: u64 = 2_000_000_000;
const MAX_ANSWER_BYTES: usize = 256;
/// Maximum length of a piece for the first attempt, and after one and two without progress: the
/// other process may evict the start of a long piece before its end is read.
const PIECE_BYTES: [usize; 3] = [1 << 20, 64 << 10, 4 << 10];

/// Time of [`raw::now_ns`] before which no process is asked, because one did not answer.
static RETRY_NS: AtomicU64 = AtomicU64::new(0);

/// The ranges of a call that are not copied yet.
struct Ranges {
    first: iovec,
    /// Address and length of the array of the ranges after the first.
    rest: usize,
    count: usize,
}

impl Ranges {
    fn new(array: usize, count: usize) -> Ranges {
        Ranges { first: super::buffers::EMPTY, rest: array, count }
    }

    fn first(&mut self) -> Option<iovec> {
        while self.first.iov_len == 0 {
            self.count = self.count.checked_sub(1)?;
            self.first = uaccess::get_user(self.rest)?;
            self.rest += size_of::<iovec>();
        }
        Some(self.first)
    }

    fn skip(&mut self, mut bytes: usize) {
        while bytes > 0
            && let Some(first) = self.first()
        {
            let len = bytes.min(first.iov_len);
            self.first.iov_base = first.iov_base.wrapping_byte_add(len);
            self.first.iov_len -= len;
            bytes -= len;
        }
    }
}

/// Copies by `call`, and continues after pages that were absent.
pub(super) fn copy(
    number: i64,
    arguments: Arguments,
    call: impl Fn(i64, Arguments) -> isize,
) -> isize {
    let first = call(number, arguments);
    let may_be_absent = first >= 0 || first == refused(libc::EFAULT);
    if !may_be_absent || instance::engine().is_none() && !instance::is_asleep() {
        return first;
    }
    let (name, access) = match number {
        libc::SYS_process_vm_writev => ("process_vm_writev", Access::Write),
        _ => ("process_vm_readv", Access::Read),
    };
    let [pid, own, own_count, theirs, their_count, flags] = arguments;
    let mut done = first.max(0) as usize;
    let (mut own, mut theirs) = (Ranges::new(own, own_count), Ranges::new(theirs, their_count));
    own.skip(done);
    theirs.skip(done);
    let mut attempts = PIECE_BYTES.iter();
    while let (Some(mut here), Some(mut there)) = (own.first(), theirs.first())
        && let Some(most) = attempts.next()
    {
        let len = here.iov_len.min(there.iov_len).min(*most);
        let source =
            Source { call: name, access, pid: pid as i32, address: there.iov_base as usize, len };
        let mut continue_with = |len| {
            (here.iov_len, there.iov_len) = (len, len);
            call(number, [pid, &raw const here as usize, 1, &raw const there as usize, 1, flags])
        };
        let moved = match source.is_own() {
            true => source.pinned(&mut continue_with),
            false => match continue_with(len) {
                moved if moved == refused(libc::EFAULT) => {
                    let is_brought_in = source.is_brought_in();
                    if !is_brought_in {
                        source.report();
                    }
                    is_brought_in.then(|| continue_with(len))
                }
                moved => Some(moved),
            },
        };
        match moved {
            Some(moved) if moved > 0 => {
                done += moved as usize;
                own.skip(moved as usize);
                theirs.skip(moved as usize);
                attempts = PIECE_BYTES.iter();
            }
            Some(moved) if moved == refused(libc::EFAULT) => {}
            _ => break,
        }
    }
    if done > 0 { done as isize } else { first }
}

/// With page protection the kernel reads absent pages as zeroes, so request the word first.
pub(in crate::guard) fn access_word(
    pid: i32,
    address: usize,
    access: Access,
    ptrace: impl Fn() -> isize,
) -> isize {
    if !instance::is_in_window(address) {
        return ptrace();
    }
    let source = Source { call: "ptrace", access, pid, address, len: size_of::<usize>() };
    let errno = raw::errno();
    for _ in 0..ATTEMPTS {
        let is_brought_in = source.is_brought_in();
        raw::set_errno(errno);
        let result = ptrace();
        // A word that was read may look like an error, but then `errno` is 0.
        if result != -1 || raw::errno() != libc::EIO {
            return result;
        }
        if !is_brought_in {
            source.report();
            return result;
        }
    }
    ptrace()
}

/// A piece of the process that the call names.
struct Source {
    call: &'static str,
    access: Access,
    pid: i32,
    address: usize,
    len: usize,
}

impl Source {
    /// Returns true if the process is this one, named by the ID of any of its threads.
    fn is_own(&self) -> bool {
        let own = raw::current_process() as usize;
        let call = [own, self.pid as usize, 0, 0, 0, 0];
        let has_thread = || engine_syscall(libc::SYS_tgkill, call) == 0;
        self.pid as usize == own || !exemption::is_in_force() && has_thread()
    }

    /// Calls `then` with the pinned length. The other half of the limit is for its own buffers.
    fn pinned(&self, then: impl FnOnce(usize) -> isize) -> Option<isize> {
        let engine = instance::engine()?;
        let mut pins = Pins::<1>::new(engine);
        if !engine.contains(self.address) {
            return Some(then(self.len));
        }
        let (tried, _) = pins.add_some(self.address, self.len.min(engine.call_limit_bytes() / 2));
        Some(then(tried))
    }

    fn is_brought_in(&self) -> bool {
        if exemption::is_in_force() || raw::now_ns() < RETRY_NS.load(Ordering::Relaxed) {
            return false;
        }
        let answered = raw::preserving_errno(|| outside_the_window(|| self.request_pages()));
        if answered.as_ref().is_err_and(|why| why.kind() == io::ErrorKind::TimedOut) {
            RETRY_NS.store(raw::now_ns() + SILENCE_NS, Ordering::Relaxed);
        }
        matches!(answered, Ok(true))
    }

    /// Returns false if the process has no control socket, or refuses.
    fn request_pages(&self) -> io::Result<bool> {
        let Some(path) = u32::try_from(self.pid).ok().and_then(socket_of) else { return Ok(false) };
        let request = Request::Touch(self.address, self.len, self.access);
        for _ in 0..ATTEMPTS {
            match send_request(self.pid, &path, &request) {
                Err(why) if why.kind() == io::ErrorKind::TimedOut => return Err(why),
                Ok(true) => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Reports the first call for mapped memory that a managed process did not fault in.
    fn report(&self) {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        let is_news = || !IS_REPORTED.load(Ordering::Relaxed) && self.may_be_swapped_out();
        if !raw::preserving_errno(|| outside_the_window(is_news))
            || IS_REPORTED.swap(true, Ordering::Relaxed)
        {
            return;
        }
        raw::write_stderr_fmt(format_args!(
            "softswap: {} fails or ends early: softswap cannot fault in memory of process {}, \
             which does not answer; a forked child answers only after exec \
             (share/doc/softswap/limits.md)\n",
            self.call, self.pid
        ));
    }

    fn may_be_swapped_out(&self) -> bool {
        let Ok(maps) = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)) else {
            return false;
        };
        let is_there = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).ok());
            Some((start?..end?).contains(&self.address))
        };
        maps.contains("/libsoftswap.so") && maps.lines().any(|line| is_there(line) == Some(true))
    }
}

fn socket_of(pid: u32) -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let dirs = control_socket::directories(|name| std::env::var_os(name), uid);
    let default = control_socket::fallback(uid);
    let paths = dirs.into_iter().chain([default]);
    paths.map(|dir| control_socket::socket_path(&dir, pid)).find(|path| path.exists())
}

fn send_request(pid: i32, path: &Path, request: &Request<'_>) -> io::Result<bool> {
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
