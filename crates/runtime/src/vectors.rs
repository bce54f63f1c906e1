//! Calls that hide buffers behind pointers: iovec arrays and msghdr.
//!
//! The filter sees only the outermost pointer. If that one is managed the call
//! traps and is answered here; if it is not, the interposed functions look
//! inside before they let the call go.

use crate::guard::{Arguments, Pins, issue};
use crate::real::{c_result, real};
use crate::start;
use libc::{iovec, mmsghdr, msghdr};
use softswap_engine::engine::Engine;

/// As many vectors as the kernel takes.
const MAX_VECTORS: usize = 1024;
/// Vectors, and a few structures around them.
const MAX_PINS: usize = MAX_VECTORS + 8;
/// Messages handed on in one call.
const MAX_MESSAGES: usize = 64;

fn fault() -> isize {
    -(libc::EFAULT as isize)
}

/// A copy of an iovec array whose buffers are pinned.
struct Pinned<'e> {
    pins: Pins<'e, MAX_PINS>,
    vectors: [iovec; MAX_VECTORS],
    count: usize,
}

impl<'e> Pinned<'e> {
    fn new(engine: &'e Engine) -> Pinned<'e> {
        let empty = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Pinned { pins: Pins::new(engine), vectors: [empty; MAX_VECTORS], count: 0 }
    }

    /// Copies `count` vectors from `address` and pins their buffers, `most`
    /// bytes in all: what is beyond is cut off, as a short transfer.
    fn add(&mut self, address: usize, count: usize, most: usize) -> Option<(usize, usize)> {
        let first = self.count;
        let bytes = count * size_of::<iovec>();
        if self.pins.add(address, bytes, usize::MAX) < bytes {
            return None;
        }
        let mut left = most;
        for index in 0..count {
            // SAFETY: the program's array, pinned if managed.
            let vector = unsafe { (address as *const iovec).add(index).read_unaligned() };
            let pinned = self.pins.add(vector.iov_base as usize, vector.iov_len, left);
            let managed = start::is_managed(vector.iov_base as usize);
            // Where nothing could be pinned the kernel says EFAULT.
            let len = if managed && pinned > 0 { pinned } else { vector.iov_len };
            *self.vectors.get_mut(self.count)? = iovec { iov_base: vector.iov_base, iov_len: len };
            self.count += 1;
            left = left.saturating_sub(if managed { len } else { 0 });
            if left == 0 || len < vector.iov_len {
                break;
            }
        }
        Some((self.vectors[first..].as_ptr() as usize, self.count - first))
    }
}

pub(crate) fn answer_vectors(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let count = arguments[2];
    if count > MAX_VECTORS {
        return -(libc::EINVAL as isize);
    }
    let mut pinned = Pinned::new(engine);
    let Some((vectors, kept)) = pinned.add(arguments[1], count, engine.pin_limit_bytes()) else {
        return fault();
    };
    arguments[1] = vectors;
    arguments[2] = kept;
    if matches!(number, libc::SYS_process_vm_readv | libc::SYS_process_vm_writev) {
        let bytes = arguments[4].saturating_mul(size_of::<iovec>());
        if pinned.pins.add(arguments[3], bytes, usize::MAX) < bytes {
            return fault();
        }
    }
    issue(number, arguments)
}

/// Pins everything a message refers to and returns a copy that names the
/// copied vectors. A datagram goes whole or not at all, so nothing is cut off.
fn pin_message(pinned: &mut Pinned<'_>, address: usize) -> Option<msghdr> {
    let size = size_of::<msghdr>();
    if pinned.pins.add(address, size, size) < size {
        return None;
    }
    // SAFETY: the program's structure, pinned if managed.
    let mut message = unsafe { (address as *const msghdr).read_unaligned() };
    pinned.pins.add(message.msg_name as usize, message.msg_namelen as usize, usize::MAX);
    pinned.pins.add(message.msg_control as usize, message.msg_controllen, usize::MAX);
    if message.msg_iovlen > MAX_VECTORS {
        return Some(message);
    }
    let (vectors, kept) = pinned.add(message.msg_iov as usize, message.msg_iovlen, usize::MAX)?;
    message.msg_iov = vectors as *mut iovec;
    message.msg_iovlen = kept;
    Some(message)
}

/// Hands back what the kernel wrote into the copy of a message.
///
/// # Safety
/// `address` is the program's msghdr, pinned if managed.
unsafe fn return_message(address: usize, copy: &msghdr) {
    let original = address as *mut msghdr;
    // SAFETY: the caller's promise.
    unsafe {
        (*original).msg_namelen = copy.msg_namelen;
        (*original).msg_controllen = copy.msg_controllen;
        (*original).msg_flags = copy.msg_flags;
    }
}

pub(crate) fn answer_message(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let original = arguments[1];
    let mut pinned = Pinned::new(engine);
    let Some(mut message) = pin_message(&mut pinned, original) else { return fault() };
    arguments[1] = &raw mut message as usize;
    let result = issue(number, arguments);
    if number == libc::SYS_recvmsg && result >= 0 {
        // SAFETY: the program's own structure, pinned above.
        unsafe { return_message(original, &message) };
    }
    result
}

pub(crate) fn answer_messages(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let (original, count) = (arguments[1], arguments[2].min(MAX_MESSAGES));
    // SAFETY: all-zero is a valid mmsghdr.
    let mut copies: [mmsghdr; MAX_MESSAGES] = unsafe { std::mem::zeroed() };
    let mut pinned = Pinned::new(engine);
    let mut kept = 0;
    while kept < count {
        let at = original + kept * size_of::<mmsghdr>();
        match pin_message(&mut pinned, at) {
            Some(message) => copies[kept].msg_hdr = message,
            None if kept == 0 => return fault(),
            None => break,
        }
        // The last structure's tail: its length field is written too.
        pinned.pins.add(at, size_of::<mmsghdr>(), usize::MAX);
        kept += 1;
    }
    if number == libc::SYS_recvmmsg {
        pinned.pins.add(arguments[4], size_of::<libc::timespec>(), usize::MAX);
    }
    arguments[1] = copies.as_mut_ptr() as usize;
    arguments[2] = kept;
    let result = issue(number, arguments);
    for (index, copy) in copies.iter().enumerate().take(result.max(0) as usize) {
        let at = original + index * size_of::<mmsghdr>();
        // SAFETY: the program's own structures, pinned above.
        unsafe {
            (*(at as *mut mmsghdr)).msg_len = copy.msg_len;
            if number == libc::SYS_recvmmsg {
                return_message(at, &copy.msg_hdr);
            }
        }
    }
    result
}

/// Whether a call would hide managed memory from the filter: the array itself
/// is not managed (else it traps), but one of its buffers is.
///
/// # Safety
/// `vectors` has `count` elements.
unsafe fn hides(vectors: *const iovec, count: usize) -> bool {
    !start::is_managed(vectors as usize)
        && count <= MAX_VECTORS
        // SAFETY: the caller's promise.
        && (0..count).any(|i| start::is_managed(unsafe { (*vectors.add(i)).iov_base } as usize))
}

/// # Safety
/// `message` is a valid msghdr.
unsafe fn message_hides(message: *const msghdr) -> bool {
    if start::engine().is_none() || start::is_managed(message as usize) {
        return false;
    }
    // SAFETY: the caller's promise.
    let message = unsafe { &*message };
    let inside = [message.msg_name, message.msg_control, message.msg_iov.cast()];
    inside.iter().any(|pointer| start::is_managed(*pointer as usize))
        // SAFETY: the message's own array.
        || unsafe { hides(message.msg_iov, message.msg_iovlen) }
}

/// # Safety
/// As `readv(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: i32, vectors: *const iovec, count: i32) -> isize {
    real!(readv: fn(i32, *const iovec, i32) -> isize);
    // SAFETY: the caller's promise.
    match unsafe { plain(libc::SYS_readv, fd, vectors, count, [0; 3]) } {
        Some(result) => result,
        // SAFETY: the caller's promise.
        None => unsafe { readv()(fd, vectors, count) },
    }
}

/// # Safety
/// As `writev(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: i32, vectors: *const iovec, count: i32) -> isize {
    real!(writev: fn(i32, *const iovec, i32) -> isize);
    // SAFETY: the caller's promise.
    match unsafe { plain(libc::SYS_writev, fd, vectors, count, [0; 3]) } {
        Some(result) => result,
        // SAFETY: the caller's promise.
        None => unsafe { writev()(fd, vectors, count) },
    }
}

/// Answers a call over iovecs that hides managed buffers; `None` when it does
/// not, and the C library may do it.
///
/// # Safety
/// `vectors` has `count` elements.
unsafe fn plain(
    number: i64,
    fd: i32,
    vectors: *const iovec,
    count: i32,
    rest: [usize; 3],
) -> Option<isize> {
    let engine = start::engine()?;
    // SAFETY: the caller's promise.
    if count <= 0 || !unsafe { hides(vectors, count as usize) } {
        return None;
    }
    let [d, e, f] = rest;
    let arguments = [fd as usize, vectors as usize, count as usize, d, e, f];
    Some(c_result(answer_vectors(engine, number, arguments)))
}

/// Defines the positioned calls, which differ in name and number only.
macro_rules! positioned {
    ($($name:ident $number:ident;)*) => {$(
        /// # Safety
        /// As the system call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fd: i32, vectors: *const iovec, count: i32, offset: i64,
        ) -> isize {
            real!($name: fn(i32, *const iovec, i32, i64) -> isize);
            // SAFETY: the caller's promise.
            match unsafe { plain(libc::$number, fd, vectors, count, [offset as usize, 0, 0]) } {
                Some(result) => result,
                // SAFETY: the caller's promise.
                None => unsafe { $name()(fd, vectors, count, offset) },
            }
        }
    )*};
}

positioned! {
    preadv SYS_preadv;
    preadv64 SYS_preadv;
    pwritev SYS_pwritev;
    pwritev64 SYS_pwritev;
}

/// Defines `preadv2` and `pwritev2` likewise.
macro_rules! positioned_with_flags {
    ($($name:ident $number:ident;)*) => {$(
        /// # Safety
        /// As the system call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fd: i32, vectors: *const iovec, count: i32, offset: i64, flags: i32,
        ) -> isize {
            real!($name: fn(i32, *const iovec, i32, i64, i32) -> isize);
            let rest = [offset as usize, 0, flags as usize];
            // SAFETY: the caller's promise.
            match unsafe { plain(libc::$number, fd, vectors, count, rest) } {
                Some(result) => result,
                // SAFETY: the caller's promise.
                None => unsafe { $name()(fd, vectors, count, offset, flags) },
            }
        }
    )*};
}

positioned_with_flags! {
    preadv2 SYS_preadv2;
    preadv64v2 SYS_preadv2;
    pwritev2 SYS_pwritev2;
    pwritev64v2 SYS_pwritev2;
}

/// # Safety
/// As `sendmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: i32, message: *const msghdr, flags: i32) -> isize {
    real!(sendmsg: fn(i32, *const msghdr, i32) -> isize);
    // SAFETY: the caller's promise.
    if unsafe { message_hides(message) }
        && let Some(engine) = start::engine()
    {
        let arguments = [fd as usize, message as usize, flags as usize, 0, 0, 0];
        return c_result(answer_message(engine, libc::SYS_sendmsg, arguments));
    }
    // SAFETY: the caller's promise.
    unsafe { sendmsg()(fd, message, flags) }
}

/// # Safety
/// As `recvmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: i32, message: *mut msghdr, flags: i32) -> isize {
    real!(recvmsg: fn(i32, *mut msghdr, i32) -> isize);
    // SAFETY: the caller's promise.
    if unsafe { message_hides(message) }
        && let Some(engine) = start::engine()
    {
        let arguments = [fd as usize, message as usize, flags as usize, 0, 0, 0];
        return c_result(answer_message(engine, libc::SYS_recvmsg, arguments));
    }
    // SAFETY: the caller's promise.
    unsafe { recvmsg()(fd, message, flags) }
}

/// # Safety
/// `messages` has `count` elements.
unsafe fn any_hides(messages: *const mmsghdr, count: u32) -> bool {
    !start::is_managed(messages as usize)
        // SAFETY: the caller's promise.
        && (0..count as usize).any(|i| unsafe { message_hides(&raw const (*messages.add(i)).msg_hdr) })
}

/// # Safety
/// As `sendmmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: i32, messages: *mut mmsghdr, count: u32, flags: i32) -> i32 {
    real!(sendmmsg: fn(i32, *mut mmsghdr, u32, i32) -> i32);
    // SAFETY: the caller's promise.
    if unsafe { any_hides(messages, count) }
        && let Some(engine) = start::engine()
    {
        let arguments = [fd as usize, messages as usize, count as usize, flags as usize, 0, 0];
        return c_result(answer_messages(engine, libc::SYS_sendmmsg, arguments)) as i32;
    }
    // SAFETY: the caller's promise.
    unsafe { sendmmsg()(fd, messages, count, flags) }
}

/// # Safety
/// As `recvmmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: i32,
    messages: *mut mmsghdr,
    count: u32,
    flags: i32,
    time: *mut libc::timespec,
) -> i32 {
    real!(recvmmsg: fn(i32, *mut mmsghdr, u32, i32, *mut libc::timespec) -> i32);
    // SAFETY: the caller's promise.
    if unsafe { any_hides(messages, count) }
        && let Some(engine) = start::engine()
    {
        let arguments =
            [fd as usize, messages as usize, count as usize, flags as usize, time as usize, 0];
        return c_result(answer_messages(engine, libc::SYS_recvmmsg, arguments)) as i32;
    }
    // SAFETY: the caller's promise.
    unsafe { recvmmsg()(fd, messages, count, flags, time) }
}
