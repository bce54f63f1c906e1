//! Faults in buffers of system calls that are in the memory of pools, because the kernel cannot
//! wait for an absent page.
//!
//! A filter ([`crate::seccomp`]) traps calls with a pointer into the *guarded range*, which
//! contains all windows of such memory. The handler pins the pages ([`Resolver::hold`]), reissues
//! the call from the gate, and unpins them. Large transfers are split if the kernel could split
//! them too.
//!
//! Unlike the preloaded runtime, this detects no buffers behind structures in other memory
//! (`readv`, `sendmsg`). A signal handler that jumps out of a call leaves its pages pinned.
//!
//! The filter survives exec, but the kernel never chooses addresses in the range by itself.
//!
//! [`Resolver::hold`]: crate::touches::Resolver::hold

use crate::chained::Before;
use crate::pointer_lookup::{Pointee, buffer_of, pointers};
use crate::signals::{self, Context, Mask, SIGSYS, TrappedCall, siginfo_t};
use crate::touches::{Hold, with_resolver};
use crate::{aslr, proc_maps, raw, seccomp, window};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Locked during the installation of the filter.
static GUARDED: Mutex<Option<Range<usize>>> = Mutex::new(None);
/// 0 if there is none.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
static BEFORE: Before = Before::new();
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
/// The thread that tests if a call is trapped; 0 if none.
static PROBING: AtomicI32 = AtomicI32::new(0);
static PROBED: AtomicBool = AtomicBool::new(false);

/// With its zero byte.
const TEXT_BYTES: usize = 4096;

type Arguments = [usize; 6];

/// Returns the range for windows of guarded memory. The first call installs the filter for all
/// threads until the process exits. Fails with `AddrNotAvailable` if no range is free,
/// `Unsupported` if another filter or handler receives the traps or the thread blocks SIGSYS.
pub fn guarded_range() -> io::Result<Range<usize>> {
    let mut guarded = GUARDED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(range) = &*guarded {
        return Ok(range.clone());
    }
    // The kernel kills a process if the signal of a trap is blocked.
    if signals::current_mask() & signals::bit(SIGSYS) != 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // The filter contains the gate's address.
    window::place_gate();
    if !IS_INSTALLED.swap(true, Ordering::AcqRel) {
        // The call may sleep for long, so the program's handlers must be able to interrupt it.
        BEFORE.install(SIGSYS, on_sigsys, 0, libc::SA_NODEFER)?;
    }
    let is_free = |range: &Range<usize>| {
        let found = proc_maps::mappings(range.clone(), false);
        found.is_ok_and(|found| found.is_empty()) && !is_trapped(range.start, Caller::Gate)
    };
    let range = aslr::areas().find(is_free).ok_or(io::ErrorKind::AddrNotAvailable)?;
    LEN.store(range.len(), Ordering::Relaxed);
    START.store(range.start, Ordering::Release);
    let filter = seccomp::build(range.start, range.len(), raw::exempt_instruction_pointer());
    seccomp::install(&filter)?;
    if !is_trapped(range.start, Caller::Program) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    *guarded = Some(range.clone());
    Ok(range)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    Gate,
    Program,
}

fn is_trapped(address: usize, caller: Caller) -> bool {
    PROBED.store(false, Ordering::Relaxed);
    PROBING.store(raw::current_thread(), Ordering::Relaxed);
    let arguments = [address, 0, 0, 0];
    // SAFETY: access(2) only reads the string, and fails if that is unreadable.
    unsafe {
        match caller {
            Caller::Program => raw::syscall_through_guard(libc::SYS_access, arguments),
            Caller::Gate => raw::syscall(libc::SYS_access, [address, 0, 0, 0, 0, 0]),
        }
    };
    PROBING.store(0, Ordering::Relaxed);
    PROBED.load(Ordering::Relaxed)
}

fn is_guarded(address: usize) -> bool {
    let start = START.load(Ordering::Acquire);
    start != 0 && address.wrapping_sub(start) < LEN.load(Ordering::Relaxed)
}

extern "C" fn on_sigsys(signal: i32, info: &mut siginfo_t, context: Context<'_>) {
    raw::preserving_errno(|| {
        let call = TrappedCall::of(info, context);
        if call.by_filter && PROBING.load(Ordering::Relaxed) == raw::current_thread() {
            PROBED.store(true, Ordering::Relaxed);
            // SAFETY: a filter has trapped the call.
            unsafe { TrappedCall::set_result(context, -(libc::EFAULT as isize)) };
            return;
        }
        let is_programs = call.by_filter && !raw::is_in_gate(call.caller);
        if !is_programs || !call.arguments.iter().any(|argument| is_guarded(*argument)) {
            BEFORE.pass_on(signal, info, context, false);
            return;
        }
        let TrappedCall { number, arguments, .. } = call;
        let result = Call { number, arguments, open: !context.mask() }.handle();
        // SAFETY: a filter has trapped the call.
        unsafe { TrappedCall::set_result(context, result) };
    });
}

struct Held {
    address: usize,
    len: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.len > 0 {
            with_resolver(self.address, |resolver| resolver.release(self.address, self.len));
        }
    }
}

#[derive(Clone, Copy)]
struct Call {
    number: i64,
    arguments: Arguments,
    /// Signals that the program does not block.
    open: Mask,
}

impl Call {
    fn handle(&self) -> isize {
        let buffer = buffer_of(self.number).filter(|at| is_guarded(self.arguments[*at]));
        let mut held = [const { None }; 6];
        for (index, pointee) in pointers(self.number) {
            let index = usize::from(*index);
            if buffer == Some(index) || !is_guarded(self.arguments[index]) {
                continue;
            }
            match self.hold_argument(index, *pointee) {
                Ok(kept) => held[index] = kept,
                Err(refused) => return refused,
            }
        }
        buffer.map_or_else(|| self.issue(), |at| self.transfer(at))
    }

    /// Fails beyond the limit. The kernel itself reports unmapped memory.
    fn hold_argument(&self, index: usize, pointee: Pointee) -> Result<Option<Held>, isize> {
        let (address, arguments) = (self.arguments[index], &self.arguments);
        let several = |count: u8, each: usize| arguments[usize::from(count)].saturating_mul(each);
        let len = match pointee {
            // The kernel neither reads nor writes this range.
            Pointee::Range => return Ok(None),
            Pointee::Text => TEXT_BYTES - address % TEXT_BYTES,
            Pointee::Texts => TEXT_BYTES,
            Pointee::Message => size_of::<libc::msghdr>(),
            Pointee::Messages(count) => several(count, size_of::<libc::mmsghdr>()),
            Pointee::Vectors(count) => several(count, size_of::<libc::iovec>()),
            other => other.byte_count(arguments).unwrap_or(0),
        };
        let held = self.hold(address, len)?;
        let is_all = held.len == len || !is_in_window(address + held.len);
        if is_all { Ok(Some(held)) } else { Err(-(libc::ENOMEM as isize)) }
    }

    /// Pins as many bytes as the limit allows.
    fn hold(&self, address: usize, len: usize) -> Result<Held, isize> {
        loop {
            match with_resolver(address, |resolver| resolver.hold(address, len, self.open)) {
                None => return Ok(Held { address, len: 0 }),
                Some(Hold::Bytes(len)) => return Ok(Held { address, len }),
                // The program's handler ran when the mask was restored.
                Some(Hold::Signal) => {}
                Some(Hold::Refused(errno)) => return Err(-(errno as isize)),
            }
        }
    }

    fn issue(&self) -> isize {
        // SAFETY: the program itself has made this call with these arguments.
        unsafe { raw::syscall_for_program(self.number, self.arguments) }
    }

    /// Pins a buffer piece by piece: all of it, or as much as one call may transfer.
    fn transfer(&self, at: usize) -> isize {
        let (address, len) = (self.arguments[at], self.arguments[at + 1]);
        let (mut done, mut pieces) = (0, None);
        loop {
            let held = match self.hold(address + done, len - done) {
                Ok(held) => held,
                Err(refused) => return if done > 0 { done as isize } else { refused },
            };
            let piece = if held.len == 0 { len - done } else { held.len };
            let pieces = *pieces
                .get_or_insert_with(|| if piece < len { self.pieces() } else { Pieces::AsNeeded });
            if piece < len && pieces == Pieces::None {
                return -(libc::ENOBUFS as isize);
            }
            let result = self.piece(at, done, address + done, piece).issue();
            drop(held);
            if result < 0 {
                return if done > 0 { done as isize } else { result };
            }
            done += result as usize;
            if (result as usize) < piece || done >= len || pieces == Pieces::One {
                return done as isize;
            }
        }
    }

    fn piece(&self, at: usize, done: usize, address: usize, len: usize) -> Call {
        let mut call = *self;
        call.arguments[at] = address;
        call.arguments[at + 1] = len;
        if matches!(self.number, libc::SYS_pread64 | libc::SYS_pwrite64) {
            call.arguments[3] = self.arguments[3].wrapping_add(done);
        }
        call
    }

    fn pieces(&self) -> Pieces {
        let fd = self.arguments[0];
        let is_stream = || raw::socket_option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM);
        let kind = raw::file_status(fd).map_or(0, |status| status.st_mode & libc::S_IFMT);
        let writes = matches!(self.number, libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto);
        let waits_for_all = self.number == libc::SYS_recvfrom
            && self.arguments[3] & libc::MSG_WAITALL as usize != 0;
        match kind {
            _ if self.number == libc::SYS_getrandom => Pieces::AsNeeded,
            libc::S_IFREG | libc::S_IFBLK => Pieces::AsNeeded,
            libc::S_IFSOCK if writes && !is_stream() => Pieces::None,
            _ if writes || waits_for_all => Pieces::AsNeeded,
            // A second piece would wait for data that may not come.
            _ => Pieces::One,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pieces {
    /// The kernel may transfer less than requested.
    One,
    AsNeeded,
    /// A message is sent whole.
    None,
}

fn is_in_window(address: usize) -> bool {
    with_resolver(address, |_| ()).is_some()
}
