//! Runs engine code on the thread's signal stack.
//!
//! A program's stack may be managed (a coroutine's, for example), and cannot be faulted in with
//! signals blocked. So code that blocks all signals switches to the signal stack, which is free.

use std::sync::OnceLock;

#[derive(Debug, Clone, Copy)]
pub struct Stacks {
    /// The upper end of this thread's signal stack if the address is on a managed stack.
    pub end_for: fn(usize) -> Option<usize>,
    /// Pins the frames from an address upward; returns the number of bytes.
    pub pin: fn(usize) -> usize,
    /// Unpins an address and number of bytes.
    pub unpin: fn(usize, usize),
}

static STACKS: OnceLock<Stacks> = OnceLock::new();

pub fn manage(stacks: Stacks) {
    STACKS.get_or_init(|| stacks);
}

/// Also returns the end of the stack to use; `None` if the caller's stack is not managed.
pub(crate) fn needed() -> Option<(&'static Stacks, usize)> {
    let stacks = STACKS.get()?;
    let local = 0_u8;
    (stacks.end_for)(&raw const local as usize).map(|end| (stacks, end))
}

core::arch::global_asm!(
    ".hidden softswap_call_on; .globl softswap_call_on; .type softswap_call_on, @function",
    "softswap_call_on:",
    ".cfi_startproc",
    "push rbp; .cfi_def_cfa_offset 16; .cfi_offset rbp, -16",
    "mov rbp, rsp; .cfi_def_cfa_register rbp",
    "mov rsp, rdi",
    "mov rdi, rsi",
    "mov rsi, rbp",
    "call rdx",
    "mov rsp, rbp",
    "pop rbp; .cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size softswap_call_on, . - softswap_call_on",
);

unsafe extern "C" {
    fn softswap_call_on(
        end: usize,
        argument: *mut u8,
        function: unsafe extern "C" fn(*mut u8, usize),
    );
}

struct Call<F, R> {
    body: Option<F>,
    result: Option<R>,
}

/// Passes `body` the lowest address in use on the caller's stack.
///
/// # Safety
/// `end` is a multiple of 16, and nothing uses the stack below it.
pub(crate) unsafe fn call_on<F: FnOnce(usize) -> R, R>(end: usize, body: F) -> R {
    unsafe extern "C" fn run<F: FnOnce(usize) -> R, R>(call: *mut u8, lowest_used: usize) {
        // SAFETY: `call` points to the `Call` of `call_on`, which outlives this function.
        let call = unsafe { &mut *call.cast::<Call<F, R>>() };
        call.result = call.body.take().map(|body| body(lowest_used));
    }
    let mut call = Call { body: Some(body), result: None };
    // SAFETY: the caller promises that the stack is free; `run` has the types of `call`.
    unsafe { softswap_call_on(end, (&raw mut call).cast(), run::<F, R>) };
    match call.result {
        Some(result) => result,
        None => std::process::abort(),
    }
}
