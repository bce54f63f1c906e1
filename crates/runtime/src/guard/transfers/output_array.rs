//! Arrays that the kernel fills in part: the result of the call is the number of elements.
//!
//! If such an array cannot be pinned, the kernel fills untouched memory outside the window, which
//! takes DRAM only for the elements that arrive.

use super::buffers;
use crate::base::errno::refused;
use crate::base::uaccess;
use crate::memory::pins::Pins;
use softswap_sys::PAGE_SIZE;
use softswap_sys::nested_pointer_table::SYS_IO_PGETEVENTS;

/// `None` if the call does not fill the array of its argument `index`.
fn element_bytes(number: i64, index: u8) -> Option<usize> {
    Some(match (number, index) {
        (libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2, 1) => {
            size_of::<libc::epoll_event>()
        }
        (libc::SYS_io_getevents | SYS_IO_PGETEVENTS, 3) => 32,
        (libc::SYS_getcwd, 0)
        | (
            libc::SYS_getdents
            | libc::SYS_getdents64
            | libc::SYS_readlink
            | libc::SYS_listxattr
            | libc::SYS_llistxattr
            | libc::SYS_flistxattr
            | libc::SYS_mq_timedreceive,
            1,
        )
        | (
            libc::SYS_readlinkat | libc::SYS_getxattr | libc::SYS_lgetxattr | libc::SYS_fgetxattr,
            2,
        ) => 1,
        _ => return None,
    })
}

pub(crate) struct OutputArray {
    original: usize,
    copy: usize,
    element_bytes: usize,
}

impl OutputArray {
    pub(crate) fn new<const N: usize>(
        pins: &mut Pins<'_, N>,
        number: i64,
        index: u8,
        original: usize,
        len: usize,
    ) -> Option<OutputArray> {
        let element_bytes = element_bytes(number, index)?;
        let len = len.checked_next_multiple_of(PAGE_SIZE)?;
        let copy = pins.keep_mapping(len, 0, || buffers::map_memory(len))?;
        Some(OutputArray { original, copy, element_bytes })
    }

    pub(crate) fn address(&self) -> usize {
        self.copy
    }

    /// Copies the elements to the program. Returns EFAULT if they cannot be written.
    pub(crate) fn hand_back(&self, result: isize) -> isize {
        let len = usize::try_from(result).unwrap_or(0) * self.element_bytes;
        // SAFETY: the kernel has written `len` bytes at `copy`, and nothing else refers to them.
        let filled = unsafe { std::slice::from_raw_parts(self.copy as *const u8, len) };
        if uaccess::copy_to_user(self.original, filled) { result } else { refused(libc::EFAULT) }
    }
}
