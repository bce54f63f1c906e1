//! System calls issued from one known instruction.
//!
//! The guard's filter (see [`crate::seccomp`]) lets calls from this
//! instruction pass whatever their arguments are, so this is the way in which
//! the engine itself names addresses in the managed window, and in which the
//! guard re-issues a call after bringing its buffers in.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the fault and guard paths are written for x86_64");

core::arch::global_asm!(
    ".hidden softswap_raw_syscall",
    ".globl softswap_raw_syscall",
    ".type softswap_raw_syscall, @function",
    "softswap_raw_syscall:",
    ".cfi_startproc",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "mov r8, r9",
    "mov r9, [rsp + 8]",
    "syscall",
    ".hidden softswap_raw_syscall_return",
    ".globl softswap_raw_syscall_return",
    "softswap_raw_syscall_return:",
    "ret",
    ".cfi_endproc",
    ".size softswap_raw_syscall, . - softswap_raw_syscall",
);

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
}

/// Issues a system call; the result is the kernel's own (negative: -errno).
/// `errno` is not touched and the call is no cancellation point.
///
/// # Safety
/// As the system call itself: pointers must be valid for what it does, and it
/// must not take away memory that Rust code refers to.
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the assembly follows the C calling convention and clobbers only
    // what both that and the kernel allow (rcx, r11, rax are caller-saved);
    // the call's own effects are the caller's promise.
    unsafe { softswap_raw_syscall(number as usize, a, b, c, d, e, f) }
}

/// The instruction pointer that the kernel sees for calls made by [`syscall`].
#[must_use]
pub fn exempt_instruction_pointer() -> u64 {
    softswap_raw_syscall_return as *const () as u64
}

/// Turns a kernel result into `io::Result`.
pub fn check(result: isize) -> std::io::Result<usize> {
    if result < 0 {
        Err(std::io::Error::from_raw_os_error(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// The index of the CPU this thread runs on; a hint, stale as soon as read.
#[must_use]
pub fn current_cpu() -> usize {
    // SAFETY: sched_getcpu has no preconditions; it reads the thread's rseq
    // area or asks the vDSO.
    unsafe { libc::sched_getcpu() }.max(0) as usize
}

/// Monotonic time in nanoseconds, by the vDSO.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs `body` and restores the thread's `errno` afterwards, as a signal
/// handler must.
pub fn preserving_errno<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: __errno_location returns this thread's errno, always valid.
    let saved = unsafe { *libc::__errno_location() };
    let result = body();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = saved };
    result
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: i32) {
    // SAFETY: as in `preserving_errno`.
    unsafe { *libc::__errno_location() = value };
}

/// Writes `text` to standard error, whole or as far as the kernel takes it.
pub fn write_stderr(text: &[u8]) {
    let mut rest = text;
    while !rest.is_empty() {
        let args = [2, rest.as_ptr() as usize, rest.len(), 0, 0, 0];
        // SAFETY: write(2) reads `rest`, which is valid for its length.
        let written = unsafe { syscall(libc::SYS_write, args) };
        if written <= 0 {
            return;
        }
        rest = &rest[written as usize..];
    }
}
