//! `aio_read` and related calls.

use super::aio_request::{ControlBlock, Event, List, Operation, Request};
use super::completion::{DONE, finish, notify};
use super::queue::{QUEUE, submit};
use crate::base::errno::fail;
use crate::base::instance;
use crate::base::real::real;
use libc::timespec;
use softswap_sys::futex;
use softswap_sys::raw;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// # Safety
/// See [`submit`].
unsafe fn submit_one(block: *mut ControlBlock, operation: Operation) -> i32 {
    // SAFETY: the program passes a control block that it does not use until the request is done.
    match unsafe { submit(block, operation, None) } {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

unsafe fn sync(operation: i32, block: *mut ControlBlock) -> i32 {
    let operation = match operation {
        libc::O_SYNC => Operation::Sync,
        libc::O_DSYNC => Operation::DataSync,
        _ => return fail(libc::EINVAL),
    };
    // SAFETY: the program passes a valid control block; any descriptor is allowed.
    unsafe {
        if libc::fcntl((*block).fd, libc::F_GETFL) == -1 {
            return fail(libc::EBADF);
        }
        submit_one(block, operation)
    }
}

/// # Safety
/// `block` is valid or null.
unsafe fn is_in_progress(block: *const ControlBlock) -> bool {
    // SAFETY: `block` is a control block of the program, valid or null.
    unsafe { block.as_ref() }
        .is_some_and(|block| block.error.load(Ordering::Acquire) == libc::EINPROGRESS)
}

unsafe fn suspend(list: *const *const ControlBlock, count: i32, time: *const timespec) -> i32 {
    let Ok(count) = usize::try_from(count) else { return fail(libc::EINVAL) };
    // SAFETY: `time` is a time of the program, valid or null.
    let time = unsafe { time.as_ref() };
    let end = time.map(|time| {
        // A negative time has already elapsed.
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let ns = seconds.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64);
        raw::now_ns().saturating_add(ns)
    });
    loop {
        let seen = DONE.load(Ordering::Acquire);
        // SAFETY: `at` is within the program's list of `count` blocks.
        let blocks = (0..count).map(|at| unsafe { *list.add(at) }).filter(|block| !block.is_null());
        // SAFETY: control blocks of the program; null ones are filtered out.
        let (busy, done) = blocks.fold((0, 0), |(busy, done), block| unsafe {
            if is_in_progress(block) { (busy + 1, done) } else { (busy, done + 1) }
        });
        if done > 0 || busy == 0 {
            return 0;
        }
        let left = end.map(|end| end.saturating_sub(raw::now_ns()));
        match futex::wait_for_program(&DONE, seen, left) {
            Err(libc::EINTR) => return fail(libc::EINTR),
            Err(libc::ETIMEDOUT) => return fail(libc::EAGAIN),
            _ => {}
        }
    }
}

unsafe fn cancel(fd: i32, block: *const ControlBlock) -> i32 {
    // SAFETY: any descriptor is allowed; the block is valid or null.
    unsafe {
        if libc::fcntl(fd, libc::F_GETFL) == -1 {
            return fail(libc::EBADF);
        }
        if !block.is_null() {
            if (*block).fd != fd {
                return fail(libc::EINVAL);
            }
            if !is_in_progress(block) {
                return libc::AIO_ALLDONE;
            }
        }
    }
    let matches = |request: &Request| {
        request.fd == fd && (block.is_null() || std::ptr::eq(request.block, block))
    };
    let (cancelled, is_busy) = QUEUE.with(|state| {
        let cancelled: Vec<_> = state.waiting.extract_if(.., |request| matches(request)).collect();
        (cancelled, state.busy.contains(&fd))
    });
    let some = !cancelled.is_empty();
    for request in cancelled {
        finish(request, Err(libc::ECANCELED));
    }
    match (some, is_busy) {
        (true, false) => libc::AIO_CANCELED,
        // `block` was still queued. The request in progress on `fd` is another one.
        (true, true) if !block.is_null() => libc::AIO_CANCELED,
        (_, true) => libc::AIO_NOTCANCELED,
        (false, false) => libc::AIO_ALLDONE,
    }
}

/// Waits until all requests of a list are done. Returns false if a signal interrupts.
fn wait_for(list: &List) -> bool {
    loop {
        let seen = DONE.load(Ordering::Acquire);
        if list.left.load(Ordering::Acquire) == 0 {
            return true;
        }
        if futex::wait_for_program(&DONE, seen, None) == Err(libc::EINTR) {
            return false;
        }
    }
}

unsafe fn submit_all(
    mode: i32,
    blocks: *const *mut ControlBlock,
    count: i32,
    event: *const Event,
) -> i32 {
    let waits = mode == libc::LIO_WAIT;
    if !waits && mode != libc::LIO_NOWAIT {
        return fail(libc::EINVAL);
    }
    // SAFETY: `event` is an event of the program, valid or null.
    let event = unsafe { event.as_ref() }.copied().filter(|_| !waits);
    // `left` counts the unfinished requests, plus one until all are submitted.
    let (left, has_failed) = (AtomicUsize::new(1), AtomicBool::new(false));
    let list = Arc::new(List { left, has_failed, event });
    let mut refused = None;
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: `at` is within the program's list of `count` blocks.
        let block = unsafe { *blocks.add(at) };
        // SAFETY: `block` is a control block of the program, valid or null.
        let Some(opcode) = (unsafe { block.as_ref() }).map(|block| block.opcode) else { continue };
        if opcode == libc::LIO_NOP {
            continue;
        }
        list.left.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the program passes a control block that it does not use until the request is
        // done.
        if let Err(error) = unsafe { submit(block, Operation::of(opcode), Some(list.clone())) } {
            list.left.fetch_sub(1, Ordering::Relaxed);
            refused = Some(error);
        }
    }
    if list.left.fetch_sub(1, Ordering::AcqRel) == 1
        && let Some(event) = &list.event
    {
        notify(event);
    }
    if waits && !wait_for(&list) {
        return fail(libc::EINTR);
    }
    match refused {
        Some(error) => fail(error),
        None if waits && list.has_failed.load(Ordering::Relaxed) => fail(libc::EIO),
        None => 0,
    }
}

/// Defines each function under both its names. Without an engine the C library's function runs.
macro_rules! calls {
    ($($name:ident, $other:ident = $body:path, ($($arg:ident: $ty:ty),*);)*) => {$(
        calls! { @one $name, $body, ($($arg: $ty),*) }
        calls! { @one $other, $body, ($($arg: $ty),*) }
    )*};
    (@one $name:ident, $body:path, ($($arg:ident: $ty:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
            real!($name: fn($($ty),*) -> i32);
            if instance::awake().is_some() {
                // SAFETY: the program passes the arguments of this function.
                return unsafe { $body($($arg),*) };
            }
            // SAFETY: this is the C library's function of this name; the program passes the
            // arguments.
            unsafe { $name()($($arg),*) }
        }
    };
}

unsafe fn read(block: *mut ControlBlock) -> i32 {
    // SAFETY: the program passes a control block that it does not use until the request is done.
    unsafe { submit_one(block, Operation::Read) }
}

unsafe fn write(block: *mut ControlBlock) -> i32 {
    // SAFETY: the program passes a control block that it does not use until the request is done.
    unsafe { submit_one(block, Operation::Write) }
}

calls! {
    aio_read, aio_read64 = read, (block: *mut ControlBlock);
    aio_write, aio_write64 = write, (block: *mut ControlBlock);
    aio_fsync, aio_fsync64 = sync, (operation: i32, block: *mut ControlBlock);
    aio_suspend, aio_suspend64 = suspend,
        (list: *const *const ControlBlock, count: i32, time: *const timespec);
    aio_cancel, aio_cancel64 = cancel, (fd: i32, block: *const ControlBlock);
    lio_listio, lio_listio64 = submit_all,
        (mode: i32, blocks: *const *mut ControlBlock, count: i32, event: *const Event);
}
