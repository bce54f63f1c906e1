//! System calls issued from two fixed instructions, the *gates*.
//!
//! The guard's filter ([`crate::seccomp`]) allows every call from either gate. The first is for the
//! engine's own calls, which the program's filters allow too ([`crate::exemption`]). The second is
//! for calls of the program, which these filters judge, once their buffers are resident.
//!
//! A filter survives exec, so all programs of a tree have their gates at the same address. It is
//! random, chosen once per tree ([`crate::aslr`]).
//!
//! Security: an attacker who controls the program counter can jump to a gate, past any check before
//! it. That gains nothing if the program has no filter; otherwise the engine's gate gains only the
//! calls and arguments that the exemption lists.

use crate::page::PAGE_SIZE;
use crate::program_filter;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the fault and guard paths are written for x86_64");

/// Defines the same function under two names, [`APART`] bytes apart.
macro_rules! gates {
    ($($name:literal)*) => {
        core::arch::global_asm!(
            ".p2align 7",
            $(
                ".p2align 6",
                concat!(".hidden ", $name, "; .globl ", $name, "; .type ", $name, ", @function"),
                concat!($name, ":"),
                ".cfi_startproc",
                "mov rax, rdi",
                "mov rdi, rsi",
                "mov rsi, rdx",
                "mov rdx, rcx",
                "mov r10, r8",
                "mov r8, r9",
                "mov r9, [rsp + 8]",
                "syscall",
                concat!(".hidden ", $name, "_return; .globl ", $name, "_return"),
                concat!($name, "_return:"),
                "ret",
                ".cfi_endproc",
                concat!(".hidden ", $name, "_end; .globl ", $name, "_end"),
                concat!($name, "_end:"),
                concat!(".size ", $name, ", . - ", $name),
            )*
        );
    };
}

gates! { "softswap_raw_syscall" "softswap_program_syscall" }

/// Offset of the program's gate from the engine's: one bit, so that a filter compares once.
pub const APART: usize = 64;

unsafe extern "C" {
    fn softswap_raw_syscall(
        number: usize,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> isize;
    fn softswap_raw_syscall_return();
    fn softswap_program_syscall_end();
}

type Gate = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;

/// Address of the gate page; 0 while calls come from the library's own code.
static GATE: AtomicUsize = AtomicUsize::new(0);

fn gate(offset: usize) -> Gate {
    let start = match GATE.load(Ordering::Relaxed) {
        0 => softswap_raw_syscall as *const () as usize,
        address => address,
    };
    // SAFETY: the engine's function is at `start` and the program's is `APART` bytes after it, both
    // in the library's code and in the copy on the gate page. Only functions of this module call
    // this, with these two offsets.
    unsafe { std::mem::transmute::<usize, Gate>(start + offset) }
}

/// Returns the kernel's result (negative: -errno). Does not change `errno`; no cancellation point.
///
/// # Safety
/// The call's effect on this process's memory is sound: it writes, maps and unmaps only memory to
/// which no Rust code refers. If memory is not mapped, the kernel returns EFAULT.
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the assembly follows the C calling convention; the kernel changes only rcx, r11 and
    // rax, which are caller-saved. The caller promises that the call's effect on memory is sound.
    unsafe { gate(0)(number as usize, a, b, c, d, e, f) }
}

/// # Safety
/// The call's effect on this process's memory is sound: it writes, maps and unmaps only memory to
/// which no Rust code refers. If memory is not mapped, the kernel returns EFAULT.
pub unsafe fn syscall_for_program(number: i64, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the assembly follows the C calling convention; the kernel changes only rcx, r11 and
    // rax, which are caller-saved. The caller promises that the call's effect on memory is sound.
    unsafe { gate(APART)(number as usize, a, b, c, d, e, f) }
}

/// Issues a system call outside the gates: with managed addresses it traps into the guard.
///
/// # Safety
/// The call's effect on this process's memory is sound: it writes, maps and unmaps only memory to
/// which no Rust code refers. If memory is not mapped, the kernel returns EFAULT.
#[inline(never)]
pub unsafe fn syscall_through_guard(number: i64, args: [usize; 4]) -> isize {
    let result;
    // SAFETY: the kernel changes rax, rcx and r11, as declared, and the guard restores all
    // registers but rax. The caller promises that the call's effect on memory is sound.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Stands for the calling thread in place of a pidfd: `PIDFD_SELF_THREAD` of Linux 6.14.
pub(crate) const PIDFD_SELF: i32 = -10000;

/// Marks [`request_pages`]'s call for exempted filters, in an argument that the kernel ignores.
pub(crate) const REQUEST_PAGES_MARK: usize = 0x736f_6674_7061_6765;

/// Faults in pages of the program. The guard faults in managed ones, on any stack of the caller.
pub fn request_pages(address: usize, len: usize, advice: i32) -> isize {
    if !matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE) {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: both kinds of advice change no byte, like a touch. Unmapped memory returns ENOMEM.
    unsafe {
        syscall_through_guard(
            libc::SYS_madvise,
            [address, len, advice as usize, REQUEST_PAGES_MARK],
        )
    }
}

pub fn is_write_request(third: usize, fourth: usize) -> bool {
    third == libc::MADV_POPULATE_WRITE as usize && fourth == REQUEST_PAGES_MARK
}

/// Copies the gates to `address`, once. Returns false if the address is taken.
pub(crate) fn place_gate(address: usize) -> bool {
    if GATE.load(Ordering::Relaxed) != 0 {
        return true;
    }
    let start = softswap_raw_syscall as *const () as usize;
    let len = softswap_program_syscall_end as *const () as usize - start;
    let page = PAGE_SIZE;
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as usize;
    // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
    let mapped = unsafe { syscall(libc::SYS_mmap, [address, page, prot, flags, usize::MAX, 0]) };
    if mapped != address as isize {
        return false;
    }
    let executable = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    // SAFETY: the code is `len` bytes long, less than a page, and contains no relative addresses.
    // The page was mapped just now, so nothing else refers to it.
    let protected = unsafe {
        std::ptr::copy_nonoverlapping(start as *const u8, address as *mut u8, len);
        syscall(libc::SYS_mprotect, [address, page, executable, 0, 0, 0])
    };
    if protected == 0 {
        GATE.store(address, Ordering::Release);
    }
    protected == 0
}

/// Returns the instruction pointer that the kernel reports for a call through the engine's gate.
pub fn exempt_instruction_pointer() -> u64 {
    let start = softswap_raw_syscall as *const () as u64;
    let after = softswap_raw_syscall_return as *const () as u64;
    gate(0) as usize as u64 + (after - start)
}

/// Returns true if `address`, as the kernel reports it for a call, is in a gate.
pub fn is_in_gate(address: u64) -> bool {
    address & !(APART as u64) == exempt_instruction_pointer()
}

pub(crate) fn gate_addresses() -> [usize; 2] {
    [gate(0) as usize, gate(APART) as usize]
}

/// If `address` is in a gate before its call was made, returns the address after the call.
pub(crate) fn after_gate(address: usize) -> Option<usize> {
    let len = (exempt_instruction_pointer() as usize) - gate(0) as usize;
    let is_before = |start: &usize| (*start..*start + len).contains(&address);
    gate_addresses().into_iter().find(is_before).map(|start| start + len)
}

/// Returns the size of the argument of an `ioctl` in bytes, as the request contains it (_IOC_SIZE).
pub(crate) fn ioctl_bytes(request: usize) -> usize {
    request >> 16 & 0x3fff
}

pub fn check(result: isize) -> std::io::Result<usize> {
    if result < 0 {
        Err(std::io::Error::from_raw_os_error(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// Returns the index of the CPU that this thread runs on: a hint, stale as soon as read.
pub fn current_cpu() -> usize {
    // SAFETY: the function takes no arguments; it reads the thread's rseq area or calls the vDSO.
    unsafe { libc::sched_getcpu() }.max(0) as usize
}

/// Returns the calling thread's ID. Not cached, so it is right in a forked child too.
pub fn current_thread() -> i32 {
    // SAFETY: the call takes no arguments and only returns a number.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) as i32 }
}

pub fn current_process() -> u32 {
    // SAFETY: the call takes no arguments and only returns a number.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as u32 }
}

/// Returns the parent's process ID; 0 or less if the parent is not visible.
pub fn parent_process() -> i32 {
    // SAFETY: the call takes no arguments and only returns a number.
    unsafe { syscall(libc::SYS_getppid, [0; 6]) as i32 }
}

/// Returns true if this process has children, including exited ones that were not reaped.
pub fn has_children() -> bool {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    let args = [libc::P_ALL as usize, 0, 0, options as usize, 0, 0];
    // SAFETY: without an address for details the call writes nothing.
    unsafe { syscall(libc::SYS_waitid, args) == 0 }
}

/// Returns the number of threads of this process, or `None` without /proc.
pub fn thread_count() -> Option<usize> {
    const PATH: &std::ffi::CStr = c"/proc/self/task";
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    let args =
        [libc::AT_FDCWD as usize, PATH.as_ptr() as usize, stat.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel reads `PATH`, a C string, and writes one `stat` to `stat`.
    let is_done = unsafe { syscall(libc::SYS_newfstatat, args) == 0 };
    // SAFETY: the successful call has written `stat`. The directory has a link for each thread, and
    // two more (its name and `.`).
    is_done.then(|| unsafe { stat.assume_init() }.st_nlink.saturating_sub(2) as usize)
}

/// Returns the monotonic time in ns, by the vDSO.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the function writes one `timespec` to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the CPU time that a thread of this process has used, in ns; 0 without such a thread.
pub fn cpu_ns_of(thread: i32) -> u64 {
    /// Clock of one thread, and its CPU time in ns, as in the kernel's `posix-timers.h`.
    const THREAD_CPU: libc::clockid_t = 4 | 2;
    clock_ns(!thread << 3 | THREAD_CPU)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // A system call, because the vDSO does not read CPU-time clocks.
    // SAFETY: the kernel writes one `timespec` to `time`.
    unsafe {
        syscall(libc::SYS_clock_gettime, [clock as usize, &raw mut time as usize, 0, 0, 0, 0])
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn preserving_errno<R>(body: impl FnOnce() -> R) -> R {
    let saved = errno();
    let result = body();
    set_errno(saved);
    result
}

pub fn set_errno(value: i32) {
    // SAFETY: the C library returns the address of this thread's own `errno`.
    unsafe { *libc::__errno_location() = value };
}

pub fn errno() -> i32 {
    // SAFETY: the C library returns the address of this thread's own `errno`.
    unsafe { *libc::__errno_location() }
}

/// Device and inode number of standard error at start; all zero before [`record_stderr`].
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
const NO_FILE: [u64; 2] = [u64::MAX; 2];

fn identity(fd: usize) -> [u64; 2] {
    file_status(fd).map_or(NO_FILE, |stat| [stat.st_dev, stat.st_ino])
}

pub fn file_status(fd: usize) -> std::io::Result<libc::stat> {
    let mut stat: libc::stat = crate::AnyBits::zeroed();
    // SAFETY: the kernel writes one `struct stat` to `stat`.
    check(unsafe { syscall(libc::SYS_fstat, [fd, &raw mut stat as usize, 0, 0, 0, 0]) })?;
    Ok(stat)
}

pub fn open_flags(fd: usize) -> Option<i32> {
    // SAFETY: the call takes no pointers.
    let flags = unsafe { syscall(libc::SYS_fcntl, [fd, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    (flags >= 0).then_some(flags as i32)
}

pub fn socket_option(fd: usize, option: i32) -> Option<i32> {
    let (mut value, mut len) = (0_i32, size_of::<i32>() as u32);
    let (at, level) = (&raw mut value as usize, libc::SOL_SOCKET as usize);
    let args = [fd, level, option as usize, at, &raw mut len as usize, 0];
    // SAFETY: the kernel reads `len`, and writes at most `len` bytes to `value`, and to `len`.
    (unsafe { syscall(libc::SYS_getsockopt, args) } == 0).then_some(value)
}

/// Records the file of standard error, so that messages never go to a later file of descriptor 2.
/// The file is not kept open: the reader of a pipe waits until all writers have closed it.
pub fn record_stderr() {
    let [device, number] = identity(2);
    STDERR[0].store(device, Ordering::Relaxed);
    STDERR[1].store(number, Ordering::Relaxed);
}

/// Like [`write_stderr`], without allocating. Cuts the text off after 1 KiB.
pub fn write_stderr_fmt(text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 1024], len: 0 };
    let _ = fmt::Write::write_fmt(&mut line, text);
    write_stderr(&line.bytes[..line.len]);
}

struct Line {
    bytes: [u8; 1024],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let space = &mut self.bytes[self.len..];
        let taken = text.len().min(space.len());
        space[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

/// Writes a message to the file that was standard error at start or, if that is closed, to the
/// terminal. Under the program's own filter no terminal is opened: the filter may kill the process.
pub fn write_stderr(text: &[u8]) {
    let noted = [STDERR[0].load(Ordering::Relaxed), STDERR[1].load(Ordering::Relaxed)];
    if noted == [0; 2] || (noted != NO_FILE && identity(2) == noted) {
        return write_to(2, text);
    }
    if program_filter::is_in_force() {
        return;
    }
    let path = c"/dev/tty".as_ptr() as usize;
    let flags = (libc::O_WRONLY | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: the kernel reads a C string and opens a new descriptor.
    let terminal =
        unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]) };
    if terminal >= 0 {
        write_to(terminal as usize, text);
        // SAFETY: the descriptor was opened just now and is not used elsewhere.
        unsafe { syscall(libc::SYS_close, [terminal as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Signals that a write raises: no reader, file size limit, terminal of a foreground process.
const RAISED_BY_WRITES: u64 =
    1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1) | 1 << (libc::SIGTTOU - 1);

/// Raises no signal, except under the program's own filter, which may not allow these calls.
fn write_to(fd: usize, text: &[u8]) {
    if program_filter::is_in_force() {
        return write_all(fd, text);
    }
    const SIZE: usize = size_of::<u64>();
    let (mut mask, mut pending) = (0_u64, 0_u64);
    let at = |set: &u64| std::ptr::from_ref(set) as usize;
    let block = [libc::SIG_BLOCK as usize, at(&RAISED_BY_WRITES), &raw mut mask as usize, SIZE];
    let [how, set, old, size] = block;
    // SAFETY: the kernel reads and writes signal sets of this size; the mask is restored below.
    let is_blocked = unsafe {
        syscall(libc::SYS_rt_sigpending, [&raw mut pending as usize, SIZE, 0, 0, 0, 0]);
        syscall(libc::SYS_rt_sigprocmask, [how, set, old, size, 0, 0]) == 0
    };
    write_all(fd, text);
    if is_blocked {
        take_raised(RAISED_BY_WRITES & !pending, mask);
    }
}

/// A separate function, so that the sets are stored just before the calls: during a write the stack
/// can be evicted, and the kernel does not wait for its pages.
#[inline(never)]
fn take_raised(raised: u64, mask: u64) {
    const SIZE: usize = size_of::<u64>();
    let at = |set: &u64| std::ptr::from_ref(set) as usize;
    let no_wait = [0_u64; 2];
    // SAFETY: the kernel reads a signal set and a time, and restores the mask that it returned.
    unsafe {
        while syscall(
            libc::SYS_rt_sigtimedwait,
            [at(&raised), 0, no_wait.as_ptr() as usize, SIZE, 0, 0],
        ) > 0
        {}
        syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, at(&mask), 0, SIZE, 0, 0]);
    }
}

fn write_all(fd: usize, text: &[u8]) {
    let mut rest = text;
    while !rest.is_empty() {
        let args = [fd, rest.as_ptr() as usize, rest.len(), 0, 0, 0];
        // SAFETY: the kernel reads `rest.len()` bytes from `rest`.
        let written = unsafe { syscall(libc::SYS_write, args) };
        if written <= 0 {
            return;
        }
        rest = &rest[written as usize..];
    }
}
