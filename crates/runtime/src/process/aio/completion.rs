//! Execution of a request, and notification of its completion.

use super::aio_request::{ControlBlock, Event, Operation, Request};
use super::worker_thread::start_thread;
use libc::c_void;
use softswap_sys::raw::{self, set_errno};
use softswap_sys::{futex, signals};
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of completed requests, as a futex for waiting threads.
pub(super) static DONE: AtomicU32 = AtomicU32::new(0);

pub(super) fn announce(word: &AtomicU32) {
    word.fetch_add(1, Ordering::AcqRel);
    futex::wake_all(word);
}

fn carry_out(request: &Request) -> Result<isize, i32> {
    let Request { fd, buffer, bytes, offset, .. } = *request;
    let buffer = buffer as *mut c_void;
    let positioned = || match request.operation {
        // SAFETY: the buffer is the program's; the kernel rejects a bad one.
        Operation::Read => unsafe { libc::pread64(fd, buffer, bytes, offset) },
        // SAFETY: the buffer is the program's; the kernel rejects a bad one.
        Operation::Write => unsafe { libc::pwrite64(fd, buffer, bytes, offset) },
        // SAFETY: any descriptor is allowed.
        Operation::Sync => unsafe { libc::fsync(fd) as isize },
        // SAFETY: any descriptor is allowed.
        Operation::DataSync => unsafe { libc::fdatasync(fd) as isize },
        Operation::Unknown => {
            set_errno(libc::EINVAL);
            -1
        }
    };
    let unpositioned = || match request.operation {
        // SAFETY: the buffer is the program's; the kernel rejects a bad one.
        Operation::Read => unsafe { libc::read(fd, buffer, bytes) },
        // SAFETY: the buffer is the program's; the kernel rejects a bad one.
        _ => unsafe { libc::write(fd, buffer, bytes) },
    };
    let result_or_error = |result: isize| {
        let error = std::io::Error::last_os_error().raw_os_error();
        if result >= 0 { Ok(result) } else { Err(error.unwrap_or(libc::EIO)) }
    };
    match result_or_error(positioned()) {
        // Pipes and sockets have no positions.
        Err(libc::ESPIPE) if matches!(request.operation, Operation::Read | Operation::Write) => {
            result_or_error(unpositioned())
        }
        result => result,
    }
}

pub(super) fn perform(request: Request) {
    let result = carry_out(&request);
    finish(request, result);
}

pub(super) fn finish(request: Request, result: Result<isize, i32>) {
    // SAFETY: the block belongs to this thread until `store_result` sets its error field.
    unsafe { store_result(request.block, result) };
    let all_done = request.list.filter(|list| {
        if result.is_err() {
            list.has_failed.store(true, Ordering::Relaxed);
        }
        list.left.fetch_sub(1, Ordering::AcqRel) == 1
    });
    announce(&DONE);
    notify(&request.event);
    if let Some(event) = all_done.and_then(|list| list.event) {
        notify(&event);
    }
}

/// # Safety
/// The block is valid, and no other thread uses it.
pub(super) unsafe fn store_result(block: *const ControlBlock, result: Result<isize, i32>) {
    // SAFETY: the block is valid, and no other thread uses it.
    unsafe {
        (&raw const (*block).result).cast_mut().write(result.unwrap_or(-1));
        (*block).error.store(result.err().unwrap_or(0), Ordering::Release);
    }
}

type Function = extern "C" fn(usize);

struct Call {
    function: Function,
    value: usize,
}

extern "C" fn call(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `notify` made this box for this thread.
    let Call { function, value } = *unsafe { Box::from_raw(argument.cast::<Call>()) };
    // Calls the runtime's interposed function.
    // SAFETY: all-zero is the empty set.
    unsafe {
        let none: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    function(value);
    std::ptr::null_mut()
}

pub(super) fn notify(event: &Event) {
    match event.notify {
        libc::SIGEV_SIGNAL => {
            let info = signals::asynchronous_info(event.signal, event.value);
            let (pid, signal) = (raw::current_process() as usize, event.signal as usize);
            let info = &raw const info as usize;
            // SAFETY: the kernel reads the local `info`; a process may send itself any siginfo_t.
            unsafe { raw::syscall(libc::SYS_rt_sigqueueinfo, [pid, signal, info, 0, 0, 0]) };
        }
        libc::SIGEV_THREAD if event.function != 0 => {
            // SAFETY: for SIGEV_THREAD the program stores a function in this field.
            let function = unsafe { std::mem::transmute::<usize, Function>(event.function) };
            let argument = Box::into_raw(Box::new(Call { function, value: event.value }));
            if !start_thread(call, argument.cast(), event.attributes as *const _) {
                // SAFETY: no thread was created that would use the box.
                drop(unsafe { Box::from_raw(argument) });
            }
        }
        _ => {}
    }
}
