//! Decision of a seccomp filter installed by the program about a call.

use super::errno::refused;
use super::issue_call::{Arguments, issue};
use softswap_sys::exemption;
use softswap_sys::signals::Mask;

/// Returns the result that the program's filter sets for a call, or `None` if the filter allows it.
/// Issues the same call with arguments that have no effect.
pub(crate) fn refusal(number: i64, arguments: Arguments) -> Option<isize> {
    if !exemption::is_in_force() {
        return None;
    }
    let mut harmless = arguments;
    let passed = match number {
        libc::SYS_mprotect
        | libc::SYS_pkey_mprotect
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munlock => {
            harmless[1] = 0;
            0
        }
        libc::SYS_mremap => {
            harmless[1] = 0;
            refused(libc::EINVAL)
        }
        libc::SYS_rt_sigaction => {
            harmless = [arguments[0], 0, 0, size_of::<Mask>(), 0, 0];
            0
        }
        libc::SYS_sigaltstack => {
            harmless = [0; 6];
            0
        }
        _ => return None,
    };
    let result = issue(number, harmless);
    (result != passed).then_some(result)
}
