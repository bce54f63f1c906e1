//! Issues system calls: the program's, which its own filters judge, and the engine's.

use super::real::Real;
use softswap_sys::raw;
use std::ffi::c_char;

pub(crate) type Arguments = [usize; 6];

pub(crate) fn padded<const N: usize>(given: [usize; N]) -> Arguments {
    std::array::from_fn(|index| given.get(index).copied().unwrap_or(0))
}

/// Handles a call as the kernel would. Returns its result or a negative error number.
pub(crate) type Answer = fn(Arguments) -> isize;

#[inline]
pub(crate) fn issue(number: i64, arguments: Arguments) -> isize {
    // SAFETY: the program makes this call with these arguments, so the effects on its memory are
    // intended. The kernel rejects bad pointers.
    unsafe { raw::syscall_for_program(number, arguments) }
}

#[inline]
pub(crate) fn engine_syscall(number: i64, arguments: Arguments) -> isize {
    // SAFETY: the engine's calls write only to locals, descriptors, or memory that the runtime has
    // mapped for itself. The kernel rejects bad pointers.
    unsafe { raw::syscall(number, arguments) }
}

pub(crate) static SYSCALL: Real = Real::new(c"syscall");

/// Issues a call through the C library, as the program would: its pointers may be managed, and the
/// call may trap. Returns the kernel's result.
pub(crate) fn pass_on(number: i64, [a, b, c, d, e, f]: Arguments) -> isize {
    type Call = unsafe extern "C" fn(i64, usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: the C library's `syscall` has this signature.
    let call: Call = unsafe { std::mem::transmute(SYSCALL.get()) };
    // SAFETY: the program makes this call with these arguments.
    match unsafe { call(number, a, b, c, d, e, f) } {
        -1 => -(std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as isize),
        result => result,
    }
}

unsafe extern "C" {
    // Start of this library and end of its code, defined by the linker.
    static __ehdr_start: c_char;
    static etext: c_char;
}

/// Returns true if an address is in this library: such calls are the engine's.
pub(crate) fn is_our_own(caller: usize) -> bool {
    (&raw const __ehdr_start as usize..&raw const etext as usize).contains(&caller)
}

macro_rules! answered_by {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $result:ty: $answer:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $result {
            let answer: crate::base::issue_call::Answer = $answer;
            let arguments = crate::base::issue_call::padded([$($arg as usize),*]);
            crate::base::errno::c_result(answer(arguments)) as $result
        }
    )*};
}
pub(crate) use answered_by;
