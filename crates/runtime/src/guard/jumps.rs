//! Signal masks saved for jumps: `sigsetjmp`, and contexts.
//!
//! The C library saves the kernel's mask, which lacks the engine's signals. The kernel does not use
//! the second word of a `sigset_t`. The runtime stores the engine's signals of the program's mask
//! there, with a mark that distinguishes the word from one that the program has written.

use crate::base::instance;
use crate::base::real::{Real, real};
use crate::memory::{pins, sleep_gate};
use crate::signals::pending;
use crate::signals::sets::engine_signals;
use crate::signals::virtual_mask;
use crate::signals::virtual_mask::set_and_deliver;
use softswap_sys::signals::Mask;
use std::ffi::c_void;

const MARK: u64 = 0x50f7_5a9e << 32;
const MARK_BITS: u64 = !0 << 32;

/// Bit of the runtime's word: the saved mask contained other signals than the engine's.
const HAD_OTHER_SIGNALS: u64 = 1;

type Words = [u64; 2];

// Layout of `jmp_buf`: <setjmp.h> and glibc's <jmpbuf-offsets.h>.
const STACK_POINTER_WORD: usize = 6;
const MASK_IS_SAVED_AT: usize = 64;
const MASK_AT: usize = 72;

const CONTEXT_MASK_AT: usize = std::mem::offset_of!(libc::ucontext_t, uc_sigmask);

/// # Safety
/// A `sigset_t` of the C library is at `at`.
unsafe fn store_mask(at: *mut u8) {
    // SAFETY: `at` points to a `sigset_t`, of whose words the kernel does not use the second.
    unsafe { at.cast::<u64>().add(1).write_unaligned(MARK | virtual_mask::get()) };
}

/// # Safety
/// See [`store_mask`].
unsafe fn stored_mask(at: *const u8) -> Option<Mask> {
    // SAFETY: `at` points to a `sigset_t`, of which two words can be read.
    let [_, second] = unsafe { at.cast::<Words>().read_unaligned() };
    (second & MARK_BITS == MARK).then_some(second & engine_signals())
}

/// Returns the stack pointer that a jump restores. The C library mangles it: rotated by 17 bits and
/// XORed with a word of the thread's control block.
///
/// # Safety
/// `buffer` is a `jmp_buf` that was set.
unsafe fn target_of(buffer: *const c_void) -> usize {
    // SAFETY: the word is within a `jmp_buf`, which has more than eight words.
    let hidden = unsafe { *buffer.cast::<u64>().add(STACK_POINTER_WORD) };
    let guard: u64;
    // SAFETY: the instruction only reads the thread's own control block (tcbhead_t).
    unsafe {
        core::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, pure));
    }
    (hidden.rotate_right(17) ^ guard) as usize
}

/// Prepares a jump: releases the guarded calls that it ends, and restores the saved emulated mask.
///
/// # Safety
/// `buffer` is a `jmp_buf` that was set.
unsafe fn jump(buffer: *const c_void) {
    if !instance::emulates_signals() {
        return;
    }
    // SAFETY: `buffer` is a `jmp_buf` that was set, and contains these words.
    unsafe {
        let target = target_of(buffer);
        pending::jump_to(target);
        sleep_gate::jump_to(target);
        pins::jump_to(target);
        let keeps_mask = buffer.byte_add(MASK_IS_SAVED_AT).cast::<i32>().read() != 0;
        if keeps_mask && let Some(mask) = stored_mask(buffer.byte_add(MASK_AT).cast()) {
            set_and_deliver(mask);
        }
    }
}

macro_rules! jumping {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(buffer: *mut c_void, value: i32) -> ! {
            real!($name: fn(*mut c_void, i32) -> !);
            // SAFETY: this is the C library's function of this name; the program passes the buffer.
            unsafe {
                jump(buffer);
                $name()(buffer, value)
            }
        }
    )*};
}

jumping! { longjmp _longjmp siglongjmp __longjmp_chk }

static SIGSETJMP: Real = Real::new(c"__sigsetjmp");
static GETCONTEXT: Real = Real::new(c"getcontext");
static SETCONTEXT: Real = Real::new(c"setcontext");
static SWAPCONTEXT: Real = Real::new(c"swapcontext");

unsafe extern "C" fn before_sigsetjmp(buffer: *mut u8, keeps_mask: i32) -> *const c_void {
    if keeps_mask != 0 && instance::emulates_signals() {
        // SAFETY: the program passes a valid jump buffer, which contains a `sigset_t` there.
        unsafe { store_mask(buffer.add(MASK_AT)) };
    }
    SIGSETJMP.get()
}

/// # Safety
/// `context` is valid.
unsafe fn adopt(context: *mut u8) {
    if !instance::emulates_signals() {
        return;
    }
    // SAFETY: the first word is the mask. In a kernel's context the second is only read.
    unsafe {
        let at = context.add(CONTEXT_MASK_AT);
        let word = at.cast::<u64>();
        let mask = word.read_unaligned();
        let wanted = match stored_mask(at) {
            // The program has emptied the mask since it was saved.
            Some(_) if mask == 0 && word.add(1).read_unaligned() & HAD_OTHER_SIGNALS != 0 => 0,
            kept => kept.unwrap_or(0) | mask & engine_signals(),
        };
        if mask & engine_signals() != 0 {
            word.write_unaligned(mask & !engine_signals());
            // Save the emulated mask for later uses, unless this is other data of a kernel context.
            let second = word.add(1).read_unaligned();
            if matches!(second, 0 | u64::MAX) || second & MARK_BITS == MARK {
                let others = if mask & !engine_signals() == 0 { 0 } else { HAD_OTHER_SIGNALS };
                word.add(1).write_unaligned(MARK | wanted | others);
            }
        }
        set_and_deliver(wanted);
    }
}

unsafe extern "C" fn before_getcontext(context: *mut u8) -> *const c_void {
    if instance::emulates_signals() {
        // SAFETY: the program passes a valid context.
        unsafe { store_mask(context.add(CONTEXT_MASK_AT)) };
    }
    GETCONTEXT.get()
}

unsafe extern "C" fn before_setcontext(context: *mut u8) -> *const c_void {
    // SAFETY: the program passes a valid context.
    unsafe { adopt(context) };
    SETCONTEXT.get()
}

unsafe extern "C" fn before_swapcontext(from: *mut u8, to: *mut u8) -> *const c_void {
    if instance::emulates_signals() {
        // SAFETY: the program passes two valid contexts.
        unsafe {
            store_mask(from.add(CONTEXT_MASK_AT));
            adopt(to);
        }
    }
    SWAPCONTEXT.get()
}

/// Calls `$before` and jumps to the C library's function, which saves the caller's frame: add none.
macro_rules! checked_tail_call {
    ($($name:ident: $before:ident;)*) => {$(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                before = sym $before,
            )
        }
    )*};
}

checked_tail_call! {
    __sigsetjmp: before_sigsetjmp;
    getcontext: before_getcontext;
    setcontext: before_setcontext;
    swapcontext: before_swapcontext;
}
