//! Decision of a seccomp filter installed by the program about a call.

use super::errno::refused;
use super::issue_call::{Arguments, issue};
use softswap_sys::exemption;
use softswap_sys::signals::Mask;

/// Asks the program's filter about a call that the engine is about to answer itself, or to issue by
/// its own instruction. Returns the result if the filter does not allow the call. To ask, the same
/// call is issued with arguments that have no effect.
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
