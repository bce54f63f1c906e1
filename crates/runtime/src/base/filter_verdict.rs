//! What a seccomp filter of the program's own says to a call.

use super::errno::refused;
use super::issue_call::{Arguments, issue};
use softswap_sys::exemption;
use softswap_sys::signals::Mask;

/// What the program's filter says to a call that the engine is about to answer, or to
/// make by its own instruction: the result, unless it lets it pass. The kernel is asked
/// by the same call about nothing.
pub(crate) fn refusal(number: i64, arguments: Arguments) -> Option<isize> {
    if !exemption::is_in_force() {
        return None;
    }
    let mut about_nothing = arguments;
    let passed = match number {
        libc::SYS_mprotect
        | libc::SYS_pkey_mprotect
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munlock => {
            about_nothing[1] = 0;
            0
        }
        libc::SYS_mremap => {
            about_nothing[1] = 0;
            refused(libc::EINVAL)
        }
        libc::SYS_rt_sigaction => {
            about_nothing = [arguments[0], 0, 0, size_of::<Mask>(), 0, 0];
            0
        }
        libc::SYS_sigaltstack => {
            about_nothing = [0; 6];
            0
        }
        _ => return None,
    };
    let result = issue(number, about_nothing);
    (result != passed).then_some(result)
}
