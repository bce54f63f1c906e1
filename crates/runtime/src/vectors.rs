//! Calls that hide buffers behind pointers: iovec arrays and msghdr.
//!
//! The filter sees only the outermost pointer. If that one is managed the call
//! traps and is answered here; if it is not, the interposed functions look
//! inside before they let the call go.

use crate::guard::{Arguments, Pins, file_kind, issue};
use crate::real::{c_result, real};
use crate::start;
use libc::{iovec, mmsghdr, msghdr};
use softswap_engine::engine::Engine;

/// As many vectors as the kernel takes.
const MAX_VECTORS: usize = 1024;
/// Vectors, and a few structures around them.
const MAX_PINS: usize = MAX_VECTORS + 8;
/// The kernel cuts transfers here.
const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;
/// Messages handed on in one call.
const MAX_MESSAGES: usize = 64;

fn fault() -> isize {
    -(libc::EFAULT as isize)
}

/// How far a transfer over an iovec array has come.
#[derive(Clone, Copy, Default)]
struct Place {
    index: usize,
    /// Bytes done of the vector at `index`.
    skip: usize,
}

/// The part of an iovec array that one call transfers.
struct Piece {
    vectors: usize,
    count: usize,
    bytes: usize,
    /// Where the next piece begins; `None` when this one reaches the end.
    next: Option<Place>,
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

    /// Pins an array of vectors; whether the kernel could read all of it.
    fn add_array(&mut self, address: usize, count: usize) -> bool {
        let bytes = count.saturating_mul(size_of::<iovec>());
        self.pins.add(address, bytes, usize::MAX) == bytes
    }

    /// Copies the `count` vectors at `address`, which is pinned, from `from`
    /// on and pins their buffers, `most` managed bytes in all. `None` when
    /// they are too many.
    fn add(&mut self, address: usize, count: usize, from: Place, most: usize) -> Option<Piece> {
        let first = self.count;
        let mut left = most;
        let (mut bytes, mut next) = (0_usize, None);
        for index in from.index..count {
            // SAFETY: the program's array, pinned if managed.
            let vector = unsafe { (address as *const iovec).add(index).read_unaligned() };
            let skip = if index == from.index { from.skip } else { 0 };
            let base = (vector.iov_base as usize).wrapping_add(skip);
            let wanted = vector.iov_len.saturating_sub(skip);
            if left == 0 && wanted > 0 && start::is_managed(base) {
                next = Some(Place { index, skip });
                break;
            }
            let pinned = self.pins.add(base, wanted, left);
            let managed = start::is_managed(base);
            // Where nothing could be pinned, or what must go whole could not be
            // pinned whole, the kernel says EFAULT.
            let cut = managed && pinned > 0 && most != usize::MAX;
            let len = if cut { pinned } else { wanted };
            *self.vectors.get_mut(self.count)? = iovec { iov_base: base as *mut _, iov_len: len };
            self.count += 1;
            bytes = bytes.saturating_add(len);
            left = left.saturating_sub(if managed { len } else { 0 });
            if len < wanted {
                next = Some(Place { index, skip: skip + len });
                break;
            }
        }
        let vectors = self.vectors[first..].as_ptr() as usize;
        Some(Piece { vectors, count: self.count - first, bytes, next })
    }
}

/// Bytes in managed memory that the `count` vectors at `address` name.
fn managed_bytes(address: usize, count: usize) -> usize {
    let vector = |index| {
        // SAFETY: the program's array, pinned if managed.
        unsafe { (address as *const iovec).add(index).read_unaligned() }
    };
    (0..count)
        .map(vector)
        .filter(|vector| start::is_managed(vector.iov_base as usize))
        .fold(0, |sum, vector| sum.saturating_add(vector.iov_len))
}

/// The type of the socket `fd`; `None` when it is something else.
fn socket_type(fd: usize) -> Option<i32> {
    let mut kind = 0_i32;
    let mut len = size_of::<i32>() as u32;
    let (option, value) = (libc::SO_TYPE as usize, &raw mut kind as usize);
    let arguments = [fd, libc::SOL_SOCKET as usize, option, value, &raw mut len as usize, 0];
    (issue(libc::SYS_getsockopt, arguments) == 0).then_some(kind)
}

/// Whether a call over vectors goes on after a whole piece. A read does for
/// regular files only: anywhere else the next piece might wait for what never
/// comes.
fn goes_on(number: i64, fd: usize) -> bool {
    match number {
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => true,
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => file_kind(fd) == libc::S_IFREG,
        _ => false,
    }
}

/// Moves the offset of a positioned call on; -1 is the file's own.
fn advance(number: i64, arguments: &mut Arguments, done: usize) {
    let positioned = matches!(
        number,
        libc::SYS_preadv | libc::SYS_pwritev | libc::SYS_preadv2 | libc::SYS_pwritev2
    );
    if positioned && arguments[3] != usize::MAX {
        arguments[3] += done;
    }
}

pub(crate) fn answer_vectors(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let [fd, address, count, ..] = arguments;
    if count > MAX_VECTORS {
        return -(libc::EINVAL as isize);
    }
    let mut arrays = Pins::<2>::new(engine);
    let bytes = count * size_of::<iovec>();
    if arrays.add(address, bytes, usize::MAX) < bytes {
        return fault();
    }
    if matches!(number, libc::SYS_process_vm_readv | libc::SYS_process_vm_writev) {
        let bytes = arguments[4].saturating_mul(size_of::<iovec>());
        if arrays.add(arguments[3], bytes, usize::MAX) < bytes {
            return fault();
        }
    }
    let mut most = engine.pin_limit_bytes();
    if managed_bytes(address, count) > most
        && socket_type(fd).is_some_and(|kind| kind != libc::SOCK_STREAM)
    {
        // A datagram goes whole or not at all.
        most = usize::MAX;
    }
    let (mut total, mut place) = (0, Place::default());
    loop {
        let mut pinned = Pinned::new(engine);
        let Some(piece) = pinned.add(address, count, place, most) else { return fault() };
        arguments[1] = piece.vectors;
        arguments[2] = piece.count;
        let result = issue(number, arguments);
        if result < 0 {
            return if total > 0 { total } else { result };
        }
        total += result;
        match piece.next {
            Some(next)
                if result as usize == piece.bytes
                    && (total as usize) < MAX_TRANSFER_BYTES
                    && goes_on(number, fd) =>
            {
                place = next;
            }
            _ => return total,
        }
        advance(number, &mut arguments, result as usize);
    }
}

/// Pins a message and what surrounds its data; a copy of it.
fn pin_header(pinned: &mut Pinned<'_>, address: usize) -> Option<msghdr> {
    let size = size_of::<msghdr>();
    if pinned.pins.add(address, size, size) < size {
        return None;
    }
    // SAFETY: the program's structure, pinned if managed.
    let message = unsafe { (address as *const msghdr).read_unaligned() };
    pinned.pins.add(message.msg_name as usize, message.msg_namelen as usize, usize::MAX);
    pinned.pins.add(message.msg_control as usize, message.msg_controllen, usize::MAX);
    // Too many vectors are for the kernel to refuse.
    let named = message.msg_iovlen <= MAX_VECTORS;
    if named && !pinned.add_array(message.msg_iov as usize, message.msg_iovlen) {
        return None;
    }
    Some(message)
}

/// Pins a message's data as well, `most` bytes from `place`, and makes the
/// copy name the copied vectors; the bytes named and where the rest begins.
fn pin_data(
    pinned: &mut Pinned<'_>,
    message: &mut msghdr,
    place: Place,
    most: usize,
) -> Option<(usize, Option<Place>)> {
    if message.msg_iovlen > MAX_VECTORS {
        return Some((0, None));
    }
    let piece = pinned.add(message.msg_iov as usize, message.msg_iovlen, place, most)?;
    message.msg_iov = piece.vectors as *mut iovec;
    message.msg_iovlen = piece.count;
    Some((piece.bytes, piece.next))
}

/// Managed bytes of a message whose header is pinned.
fn message_bytes(message: &msghdr) -> usize {
    if message.msg_iovlen > MAX_VECTORS {
        return 0;
    }
    managed_bytes(message.msg_iov as usize, message.msg_iovlen)
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

/// A datagram goes whole or not at all. The data of a stream is cut into
/// pieces: sent while they are taken whole, received while there is more to
/// wait for (MSG_WAITALL) and no control data has come.
pub(crate) fn answer_message(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let [fd, original, flags, ..] = arguments;
    let sends = number == libc::SYS_sendmsg;
    let mut total = 0;
    let (mut place, mut most) = (Place::default(), usize::MAX);
    let mut received = None;
    loop {
        let mut pinned = Pinned::new(engine);
        let Some(mut message) = pin_header(&mut pinned, original) else { return fault() };
        let first = total == 0;
        if first
            && message_bytes(&message) > engine.pin_limit_bytes()
            && socket_type(fd) == Some(libc::SOCK_STREAM)
        {
            most = engine.pin_limit_bytes();
        }
        if sends && !first {
            message.msg_control = std::ptr::null_mut();
            message.msg_controllen = 0;
        }
        let Some((bytes, next)) = pin_data(&mut pinned, &mut message, place, most) else {
            return fault();
        };
        arguments[1] = &raw mut message as usize;
        arguments[2] = if sends { piece_flags(flags, first, next.is_none()) } else { flags };
        let result = issue(number, arguments);
        if result >= 0 {
            total += result;
            received = Some(message);
        }
        let goes_on = sends
            || message.msg_controllen == 0
                && flags & libc::MSG_WAITALL as usize != 0
                && flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) as usize == 0;
        match next {
            Some(next) if goes_on && result > 0 && result as usize == bytes => place = next,
            _ => {
                if let (false, Some(received)) = (sends, received) {
                    // SAFETY: the program's own structure, pinned above.
                    unsafe { return_message(original, &received) };
                }
                return if total > 0 { total } else { result };
            }
        }
    }
}

/// The flags for one piece of a message that is sent: urgent data is its last
/// byte, and a connection is opened by the first piece.
fn piece_flags(flags: usize, first: bool, last: bool) -> usize {
    let mut flags = flags;
    if !last {
        flags &= !((libc::MSG_OOB | libc::MSG_EOR) as usize);
    }
    if !first {
        flags &= !(libc::MSG_FASTOPEN as usize);
    }
    flags
}

/// Answers for the first message alone.
fn answer_first_message(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let original = arguments[1] as *mut mmsghdr;
    arguments[2] = arguments[3] & !(libc::MSG_WAITFORONE as usize);
    let single = if number == libc::SYS_recvmmsg { libc::SYS_recvmsg } else { libc::SYS_sendmsg };
    let result = answer_message(engine, single, arguments);
    if result < 0 {
        return result;
    }
    // SAFETY: the program's own structure; a touch brings it in.
    unsafe { (*original).msg_len = result as u32 };
    1
}

pub(crate) fn answer_messages(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let (original, count) = (arguments[1], arguments[2].min(MAX_MESSAGES));
    // SAFETY: all-zero is a valid mmsghdr.
    let mut copies: [mmsghdr; MAX_MESSAGES] = unsafe { std::mem::zeroed() };
    let mut pinned = Pinned::new(engine);
    let (mut kept, mut bytes) = (0, 0_usize);
    while kept < count {
        let at = original + kept * size_of::<mmsghdr>();
        let message = pin_header(&mut pinned, at).and_then(|mut message| {
            bytes = bytes.saturating_add(message_bytes(&message));
            // What is too much for one call, but one message, goes on its own.
            if kept > 0 && bytes > engine.pin_limit_bytes() {
                return None;
            }
            let is_long = bytes > engine.pin_limit_bytes();
            if !is_long {
                pin_data(&mut pinned, &mut message, Place::default(), usize::MAX)?;
            }
            Some((message, is_long))
        });
        match message {
            Some((_, true)) => {
                drop(pinned);
                return answer_first_message(engine, number, arguments);
            }
            Some((message, false)) => copies[kept].msg_hdr = message,
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

/// Counts beyond what the kernel takes are for it to refuse.
fn signed(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(-1)
}

/// # Safety
/// As `vmsplice(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(
    fd: i32,
    vectors: *const iovec,
    count: usize,
    flags: u32,
) -> isize {
    real!(vmsplice: fn(i32, *const iovec, usize, u32) -> isize);
    let rest = [flags as usize, 0, 0];
    // SAFETY: the caller's promise.
    match unsafe { plain(libc::SYS_vmsplice, fd, vectors, signed(count), rest) } {
        Some(result) => result,
        // SAFETY: the caller's promise.
        None => unsafe { vmsplice()(fd, vectors, count, flags) },
    }
}

/// Defines the calls that copy between processes. Only our own side can be
/// brought in.
macro_rules! between_processes {
    ($($name:ident $number:ident;)*) => {$(
        /// # Safety
        /// As the system call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: libc::pid_t,
            ours: *const iovec,
            count: libc::c_ulong,
            theirs: *const iovec,
            their_count: libc::c_ulong,
            flags: libc::c_ulong,
        ) -> isize {
            type Count = libc::c_ulong;
            real!($name: fn(libc::pid_t, *const iovec, Count, *const iovec, Count, Count) -> isize);
            let rest = [theirs as usize, their_count as usize, flags as usize];
            // SAFETY: the caller's promise.
            match unsafe { plain(libc::$number, pid, ours, signed(count as usize), rest) } {
                Some(result) => result,
                // SAFETY: the caller's promise.
                None => unsafe { $name()(pid, ours, count, theirs, their_count, flags) },
            }
        }
    )*};
}

between_processes! {
    process_vm_readv SYS_process_vm_readv;
    process_vm_writev SYS_process_vm_writev;
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
