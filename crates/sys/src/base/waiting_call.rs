//! A system call that a handler with blocked signals makes with the program's signals unblocked.
//!
//! A signal interrupts the call even if it arrives just before the call: [`interrupt`] moves the
//! interrupted thread past the call instruction, so that it does not wait.

use crate::raw;
use crate::signals::{Context, Mask};

/// Result if a signal arrived before the call, or the kernel would restart it: ERESTARTNOINTR.
pub const RESTART: isize = -513;

// Five pushed registers align the stack. Its lowest word holds the call's sixth argument, the word
// above it the mask to restore. rbx becomes 1 if a signal arrives.
core::arch::global_asm!(
    ".hidden softswap_waiting_call; .globl softswap_waiting_call; .type softswap_waiting_call, @function",
    "softswap_waiting_call:",
    ".cfi_startproc",
    "push rbx; .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16",
    "push r12; .cfi_adjust_cfa_offset 8; .cfi_offset r12, -24",
    "push r13; .cfi_adjust_cfa_offset 8; .cfi_offset r13, -32",
    "push r14; .cfi_adjust_cfa_offset 8; .cfi_offset r14, -40",
    "push r15; .cfi_adjust_cfa_offset 8; .cfi_offset r15, -48",
    "sub rsp, 16; .cfi_adjust_cfa_offset 16",
    "mov r12, rdi",
    "mov r13, rsi",
    "mov r14, r8",
    "mov r15, r9",
    "mov [rsp + 8], rcx",
    "xor ebx, ebx",
    "mov edi, {procmask}",
    "mov esi, {set}",
    "xor ecx, ecx",
    "mov r8d, 8",
    "xor r9d, r9d",
    "call r14",
    "mov rdi, r12",
    "mov rax, [r13 + 40]",
    "mov [rsp], rax",
    "mov rsi, [r13]",
    "mov rdx, [r13 + 8]",
    "mov rcx, [r13 + 16]",
    "mov r8, [r13 + 24]",
    "mov r9, [r13 + 32]",
    ".hidden softswap_waiting_call_check; .globl softswap_waiting_call_check",
    "softswap_waiting_call_check:",
    "test rbx, rbx",
    "jnz softswap_waiting_call_interrupted",
    "call r15",
    ".hidden softswap_waiting_call_made; .globl softswap_waiting_call_made",
    "softswap_waiting_call_made:",
    "jmp 3f",
    ".hidden softswap_waiting_call_interrupted; .globl softswap_waiting_call_interrupted",
    "softswap_waiting_call_interrupted:",
    "mov rax, {restart}",
    "3:",
    "mov r12, rax",
    "mov edi, {procmask}",
    "mov esi, {set}",
    "mov rdx, [rsp + 8]",
    "xor ecx, ecx",
    "mov r8d, 8",
    "xor r9d, r9d",
    "call r14",
    "mov rax, r12",
    "add rsp, 16; .cfi_adjust_cfa_offset -16",
    "pop r15; .cfi_adjust_cfa_offset -8",
    "pop r14; .cfi_adjust_cfa_offset -8",
    "pop r13; .cfi_adjust_cfa_offset -8",
    "pop r12; .cfi_adjust_cfa_offset -8",
    "pop rbx; .cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size softswap_waiting_call, . - softswap_waiting_call",
    procmask = const libc::SYS_rt_sigprocmask,
    set = const libc::SIG_SETMASK,
    restart = const RESTART,
);

unsafe extern "C" {
    fn softswap_waiting_call(
        number: usize,
        arguments: *const [usize; 6],
        open: *const Mask,
        closed: *const Mask,
        engines_gate: usize,
        gate: usize,
    ) -> isize;
    fn softswap_waiting_call_check();
    fn softswap_waiting_call_made();
    fn softswap_waiting_call_interrupted();
}

/// Makes a call with the mask `open`, then sets `closed`. On [`RESTART`] it must be repeated.
///
/// # Safety
/// The conditions of [`raw::syscall_for_program`] hold. Handlers that run meanwhile call
/// [`interrupt`].
pub unsafe fn waiting_call(
    number: i64,
    arguments: [usize; 6],
    open: Mask,
    closed: Mask,
    is_programs: bool,
) -> isize {
    let [engines, programs] = raw::gate_addresses();
    let gate = if is_programs { programs } else { engines };
    // SAFETY: the assembly follows the C calling convention and reads only these arguments. The
    // caller promises that the call is sound.
    unsafe {
        softswap_waiting_call(
            number as usize,
            &raw const arguments,
            &raw const open,
            &raw const closed,
            engines,
            gate,
        )
    }
}

/// Skips a call that [`waiting_call`] has not made yet, or that the kernel would restart.
///
/// # Safety
/// The handler of `context` has interrupted a [`waiting_call`].
pub unsafe fn interrupt(context: Context<'_>) {
    let at = context.register(libc::REG_RIP);
    let call_start = softswap_waiting_call_check as *const () as usize;
    let call_end = softswap_waiting_call_made as *const () as usize;
    // SAFETY: the assembly above continues with these values as if the call had been interrupted.
    unsafe {
        context.set_register(libc::REG_RBX, 1);
        if (call_start..call_end).contains(&at) {
            let after = softswap_waiting_call_interrupted as *const () as usize;
            context.set_register(libc::REG_RIP, after);
        } else if let Some(after) = raw::after_gate(at) {
            context.set_register(libc::REG_RIP, after);
            context.set_register(libc::REG_RAX, RESTART as usize);
        }
    }
}
