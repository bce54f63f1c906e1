//! Masks of waiting calls issued by number. The kernel gets them without the engine's signals.

use crate::base::issue_call::Arguments;
use crate::base::uaccess;
use crate::signals::sets::engine_signals;
use crate::signals::temporary_mask;
use softswap_sys::nested_pointer_table::SYS_IO_PGETEVENTS;
use softswap_sys::signals::Mask;

/// Returns the mask's argument, and true if it points to a pair of the mask's address and size.
fn position_of_mask(number: i64) -> Option<(usize, bool)> {
    match number {
        libc::SYS_rt_sigsuspend => Some((0, false)),
        libc::SYS_ppoll => Some((3, false)),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some((4, false)),
        libc::SYS_pselect6 | SYS_IO_PGETEVENTS => Some((5, true)),
        _ => None,
    }
}

pub(crate) struct StrippedMask {
    mask: Mask,
    /// Address of the mask, and its size in bytes.
    pair: [usize; 2],
}

impl StrippedMask {
    pub(crate) const fn new() -> StrippedMask {
        StrippedMask { mask: 0, pair: [0; 2] }
    }

    /// If a pointer cannot be read, the call is unchanged and the kernel reports the error.
    pub(crate) fn substitute(&mut self, number: i64, arguments: &mut Arguments) {
        let Some((at, is_pair)) = position_of_mask(number) else { return };
        let mut from = arguments[at];
        if is_pair {
            if from == 0 {
                return;
            }
            let Some(pair) = uaccess::get_user::<[usize; 2]>(from) else { return };
            self.pair = pair;
            from = pair[0];
        }
        if from == 0 {
            return;
        }
        let Some(mask) = uaccess::get_user::<Mask>(from) else { return };
        self.mask = mask & !engine_signals();
        temporary_mask::record(self.mask);
        let stripped = &raw const self.mask as usize;
        if is_pair {
            self.pair[0] = stripped;
            arguments[at] = self.pair.as_ptr() as usize;
        } else {
            arguments[at] = stripped;
        }
    }
}

impl Drop for StrippedMask {
    fn drop(&mut self) {
        temporary_mask::forget();
    }
}
