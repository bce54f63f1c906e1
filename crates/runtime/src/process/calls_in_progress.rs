//! System calls that are in progress while the process wakes. The filter has not checked them. So
//! their buffers are faulted in before the window is registered, and stay pinned until the thread's
//! next call through the guard.

use super::{own_threads, thread_exit};
use crate::base::errno::refused;
use crate::base::issue_call::{Arguments, engine_syscall};
use crate::base::{instance, uaccess};
use crate::signals::sets::engine_signals;
use crate::signals::{pending, user_mode};
use libc::{iovec, mmsghdr, msghdr};
use softswap_engine::api::engine::Engine;
use softswap_sys::pointer_lookup::{Pointee, pointers};
use softswap_sys::raw::{self, now_ns};
use softswap_sys::threads::{self, Activity};
use softswap_sys::{PAGE_SIZE, futex};
use std::io;

/// Longest wait for a thread that neither waits in a call nor answers a query, in nanoseconds.
const MAX_WAIT_NS: u64 = 1_000_000_000;
const FIRST_QUERY_NS: u64 = 500_000;
const RETRY_NS: u64 = 100_000_000;
/// Maximum length pinned of one buffer. If a call accesses more, it returns a short count, which
/// programs must expect of streams and sockets.
const MAX_BYTES: usize = 1 << 20;
const MAX_VECTORS: usize = 1024;

pub(crate) struct Buffer {
    thread: i32,
    address: usize,
    len: usize,
}

/// Waits until every thread can receive the engine's signals. Returns false on timeout.
pub(crate) fn all_have_entered() -> bool {
    let until_ns = now_ns() + MAX_WAIT_NS;
    loop {
        // A thread that a library created without the runtime is unknown, too. But unlike a thread
        // that is starting, it does not block the engine's signals.
        let has_entered = |thread: &i32| {
            pending::knows(*thread)
                || own_threads::is_own(*thread)
                || matches!(threads::activity(*thread), Ok(Activity::Exited))
                || threads::blocked(*thread).is_ok_and(|mask| mask & engine_signals() == 0)
        };
        if threads::all().is_ok_and(|all| all.iter().all(has_entered)) {
            return true;
        }
        if now_ns() > until_ns {
            return false;
        }
        futex::sleep_a_moment();
    }
}

/// Finds the buffers of calls in progress, after the filter is installed, and faults them in.
///
/// # Errors
/// If /proc cannot be read, if a thread neither waits in a call nor leaves the kernel, or if the
/// buffers exceed `most_bytes`.
pub(crate) fn find(most_bytes: usize) -> io::Result<Vec<Buffer>> {
    let all = threads::all()?;
    let own = raw::current_thread();
    let mut found = Vec::new();
    let mut add = |thread: i32, (number, arguments): (i64, Arguments)| {
        add_buffers(number, arguments, &mut |address, len| {
            let len = len.min(MAX_BYTES);
            if len > 0 && instance::is_in_window(address) {
                found.push(Buffer { thread, address, len });
            }
        });
    };
    let is_programs = |thread: &i32| *thread != own && !own_threads::is_own(*thread);
    await_all(all.iter().copied().filter(is_programs).collect(), &mut add)?;
    for thread in all {
        if let Some(call) = pending::nested_call_of(thread) {
            add(thread, call);
        }
    }
    // Fail instead of dropping buffers: data of a message would be lost.
    if found.iter().map(|buffer| buffer.len).sum::<usize>() > most_bytes {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    found.iter().for_each(|buffer| populate(buffer.address, buffer.len));
    Ok(found)
}

/// Waits until each thread has left the kernel or waits in a call, which is passed to `add`.
fn await_all(mut threads: Vec<i32>, add: &mut dyn FnMut(i32, (i64, Arguments))) -> io::Result<()> {
    user_mode::begin_round();
    let until_ns = now_ns() + MAX_WAIT_NS;
    let mut query_at_ns = now_ns() + FIRST_QUERY_NS;
    loop {
        threads.retain(|thread| match threads::activity(*thread) {
            Ok(Activity::Call { number, arguments }) => {
                add(*thread, (number, arguments));
                false
            }
            Ok(Activity::Exited) => false,
            Ok(Activity::Unknown) | Err(_) => !user_mode::has_answered(*thread),
        });
        let now = now_ns();
        if threads.is_empty() {
            return Ok(());
        }
        if now > until_ns {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if now > query_at_ns {
            threads.iter().copied().for_each(threads::question);
            query_at_ns = now + RETRY_NS;
        }
        futex::sleep_a_moment();
    }
}

/// The kernel has already read paths and arrays of vectors, so these are not added.
fn add_buffers(number: i64, arguments: Arguments, add: &mut dyn FnMut(usize, usize)) {
    for (index, pointee) in pointers(number) {
        let address = arguments[*index as usize];
        if let Some(len) = pointee.byte_count(&arguments) {
            add(address, len);
        }
        match *pointee {
            Pointee::Vectors(count) => add_vectors(address, arguments[count as usize], add),
            Pointee::Message => add_message(address, add),
            Pointee::Messages(count) => {
                let count = arguments[count as usize].min(MAX_VECTORS);
                add(address, count * size_of::<mmsghdr>());
                (0..count).for_each(|at| add_message(address + at * size_of::<mmsghdr>(), add));
            }
            _ => {}
        }
    }
}

fn add_vectors(address: usize, count: usize, add: &mut dyn FnMut(usize, usize)) {
    for at in 0..count.min(MAX_VECTORS) {
        let place = address.wrapping_add(at * size_of::<iovec>());
        let Some([base, len]) = uaccess::words(place) else { return };
        add(base, len);
    }
}

fn add_message(address: usize, add: &mut dyn FnMut(usize, usize)) {
    let Some(header) = uaccess::get_user::<msghdr>(address) else { return };
    add(address, size_of::<msghdr>());
    add(header.msg_name as usize, header.msg_namelen as usize);
    add(header.msg_control as usize, header.msg_controllen);
    add_vectors(header.msg_iov as usize, header.msg_iovlen, add);
}

fn populate(address: usize, len: usize) {
    let first = address & !(PAGE_SIZE - 1);
    let bytes = address + len - first;
    let advise =
        |advice: i32| engine_syscall(libc::SYS_madvise, [first, bytes, advice as usize, 0, 0, 0]);
    if len == 0
        || advise(libc::MADV_POPULATE_WRITE) == 0
        || advise(libc::MADV_POPULATE_READ) != refused(libc::EINVAL)
    {
        return;
    }
    // Kernels before 5.14 lack both. The call itself ends at the first page that is not accessible.
    for page in (first..first + bytes).step_by(PAGE_SIZE) {
        if !futex::fault_in_for_writing(page) && !uaccess::can_read(page) {
            return;
        }
    }
}

/// Pins the buffers in a new engine that is not published yet.
pub(crate) fn pin_buffers(engine: &Engine, buffers: &[Buffer]) {
    for buffer in buffers {
        thread_exit::pin_for_call(engine, buffer.thread, buffer.address, buffer.len);
    }
}
