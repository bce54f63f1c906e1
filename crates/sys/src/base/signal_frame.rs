//! Signal frames: the state that the kernel writes for a handler and reads at its return.
//!
//! [`Frame`] copies the kernel's frame from the engine's stack to the stack on which Linux would
//! have put it, so that unwinders, debuggers and garbage collectors find it. [`start_handler`] then
//! changes the kernel's own frame, so that `rt_sigreturn` starts the handler.

use crate::signals::{Context, Mask};
use libc::{siginfo_t, stack_t, ucontext_t};
use std::ops::Range;

/// Bytes of a `ucontext_t` that the kernel writes.
const CONTEXT_BYTES: usize = 304;
const INFO_BYTES: usize = size_of::<siginfo_t>();
/// The return address, the context and the details: `struct rt_sigframe`.
const FRAME_BYTES: usize = size_of::<usize>() + CONTEXT_BYTES + INFO_BYTES;
const _: () = assert!(std::mem::offset_of!(ucontext_t, uc_sigmask) + 8 == CONTEXT_BYTES);

/// Alignment of the extended state, for XRSTOR.
const STATE_ALIGN: usize = 64;
/// Bytes of the state that FXSAVE writes.
const LEGACY_STATE_BYTES: usize = 512;
/// Bytes of the XSAVE header and of the word that marks the end of the area.
const MIN_EXTENSION_BYTES: usize = 64 + 4;
/// Offsets of mark and size of the extended state in the FXSAVE area: `struct _fpx_sw_bytes`.
const MAGIC_AT: usize = 464;
const EXTENDED_SIZE_AT: usize = 468;
const MAGIC: u32 = 0x4650_5853;
/// Upper bound of the extended state of any processor, in bytes.
const MAX_STATE_BYTES: usize = 64 << 10;

/// Returns address and length of the extended state of a context; length 0 if it has none.
fn extended_state(context: Context<'_>) -> (usize, usize) {
    // SAFETY: the context is valid.
    let state = unsafe { (*context.as_ptr()).uc_mcontext.fpregs } as usize;
    if state == 0 {
        return (0, 0);
    }
    let word = |at: usize| {
        // SAFETY: the kernel wrote the pointer, or will read the state there at the handler's
        // return. Both words are within the 512 bytes of an FXSAVE area.
        unsafe { ((state + at) as *const u32).read_unaligned() }
    };
    let len = match word(EXTENDED_SIZE_AT) as usize {
        _ if word(MAGIC_AT) != MAGIC => LEGACY_STATE_BYTES,
        len @ ..=MAX_STATE_BYTES if len >= LEGACY_STATE_BYTES + MIN_EXTENSION_BYTES => len,
        _ => LEGACY_STATE_BYTES,
    };
    (state, len)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    start: usize,
    /// Address and length of the extended state, at the upper end.
    state: (usize, usize),
}

impl Frame {
    /// Returns the position that the kernel would choose on a stack that is free below `top`.
    pub fn below(top: usize, context: Context<'_>) -> Frame {
        let (_, len) = extended_state(context);
        let state = top.wrapping_sub(len) & !(STATE_ALIGN - 1);
        let start = (state.wrapping_sub(FRAME_BYTES) & !15).wrapping_sub(size_of::<usize>());
        Frame { start, state: (state, len) }
    }

    pub fn range(&self) -> Range<usize> {
        self.start..self.state.0.wrapping_add(self.state.1)
    }

    fn context(&self) -> usize {
        self.start + size_of::<usize>()
    }

    fn info(&self) -> usize {
        self.context() + CONTEXT_BYTES
    }

    /// # Safety
    /// [`Frame::range`] is writable and not in use.
    pub unsafe fn write(
        &self,
        context: Context<'_>,
        info: &siginfo_t,
        stack: stack_t,
        restorer: usize,
    ) {
        let (state, len) = extended_state(context);
        let copy = self.context() as *mut ucontext_t;
        // SAFETY: the caller promises that the whole frame is writable. The sources are on the
        // engine's stack and do not overlap the frame.
        unsafe {
            let context = context.as_ptr().cast::<u8>();
            let info = std::ptr::from_ref(info).cast::<u8>();
            std::ptr::copy_nonoverlapping(context, copy.cast(), CONTEXT_BYTES);
            std::ptr::copy_nonoverlapping(info, self.info() as *mut u8, INFO_BYTES);
            if len > 0 {
                std::ptr::copy_nonoverlapping(state as *const u8, self.state.0 as *mut u8, len);
                (&raw mut (*copy).uc_mcontext.fpregs).write_unaligned(self.state.0 as *mut _);
            }
            (&raw mut (*copy).uc_stack).write_unaligned(stack);
            (self.start as *mut usize).write_unaligned(restorer);
        }
    }
}

/// Makes the return of the running handler start `handler`, with `frame` and `mask`.
///
/// # Safety
/// The frame was written, and `handler` is a signal handler.
pub unsafe fn start_handler(
    context: Context<'_>,
    frame: &Frame,
    signal: i32,
    handler: usize,
    mask: Mask,
) {
    /// TF, DF and RF, which the kernel clears for a handler.
    const CLEARED_FLAGS: usize = 0x100 | 0x400 | 0x1_0000;
    // SAFETY: a handler starts with these registers. The context is valid.
    unsafe {
        for (register, value) in [
            (libc::REG_RDI, signal as usize),
            (libc::REG_RSI, frame.info()),
            (libc::REG_RDX, frame.context()),
            (libc::REG_RAX, 0),
            (libc::REG_RSP, frame.start),
            (libc::REG_RIP, handler),
            (libc::REG_EFL, context.register(libc::REG_EFL) & !CLEARED_FLAGS),
        ] {
            context.set_register(register, value);
        }
        // Without this pointer the kernel gives the handler a fresh extended state.
        (*context.as_ptr()).uc_mcontext.fpregs = std::ptr::null_mut();
    }
    context.set_mask(mask);
}

/// Returns the highest place for [`copy_context`] on a stack that ends at `top`.
pub fn copy_place(context: Context<'_>, top: usize) -> usize {
    let (_, len) = extended_state(context);
    (((top - len) & !(STATE_ALIGN - 1)) - CONTEXT_BYTES) & !15
}

/// # Safety
/// [`copy_place`] returned `place` for this context. Nothing else uses the stack above `place`
/// while the copy is in use.
pub unsafe fn copy_context(context: Context<'_>, place: usize) -> Context<'static> {
    let copy = place as *mut ucontext_t;
    let (state, len) = extended_state(context);
    // SAFETY: `place` has space for the context, and for the state at the next multiple of its
    // alignment. The kernel reads both at the handler's return.
    unsafe {
        std::ptr::copy_nonoverlapping(context.as_ptr().cast::<u8>(), copy.cast(), CONTEXT_BYTES);
        if len > 0 {
            let at = (place + CONTEXT_BYTES).next_multiple_of(STATE_ALIGN);
            std::ptr::copy_nonoverlapping(state as *const u8, at as *mut u8, len);
            (*copy).uc_mcontext.fpregs = at as *mut _;
        }
        Context::of(copy)
    }
}

core::arch::global_asm!(
    ".hidden softswap_resume; .globl softswap_resume; .type softswap_resume, @function",
    "softswap_resume:",
    "mov rsp, rdi",
    "mov eax, {sigreturn}",
    "syscall",
    "ud2",
    ".size softswap_resume, . - softswap_resume",
    sigreturn = const libc::SYS_rt_sigreturn,
);

unsafe extern "C" {
    fn softswap_resume(context: Context<'_>) -> !;
}

/// Restores a context, as its handler's return would, and abandons all running frames.
///
/// # Safety
/// The kernel wrote `context`, for a handler that has not returned. No frame between here and that
/// handler holds anything to release.
pub unsafe fn resume(context: Context<'_>) -> ! {
    // SAFETY: the kernel reads the context at the stack pointer; the caller abandons the rest.
    unsafe { softswap_resume(context) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AnyBits;

    #[test]
    fn frame_is_aligned_like_a_function_entry() {
        let mut context: ucontext_t = AnyBits::zeroed();
        // SAFETY: `context` is like a handler's argument.
        let frame = Frame::below(0x10000, unsafe { Context::of(&raw mut context) });
        // At a function's entry the stack pointer is 8 bytes off a multiple of 16.
        assert_eq!(frame.range().start % 16, 8);
    }
}
