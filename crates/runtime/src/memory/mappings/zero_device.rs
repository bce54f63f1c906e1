//! Private mappings of `/dev/zero`, which are anonymous memory.

use crate::base::issue_call::Arguments;
use crate::memory::asleep::MIN_MANAGED_BYTES;
use softswap_sys::{PAGE_SIZE, raw};

/// Returns other calls, and calls that the kernel would refuse, unchanged.
pub(super) fn as_anonymous(arguments: Arguments) -> Arguments {
    const OTHER_KINDS: i32 = libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
    const FIXED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
    let [address, len, prot, flags, fd, offset] = arguments;
    let bits = flags as i32;
    let is_private = bits & (libc::MAP_TYPE | OTHER_KINDS) == libc::MAP_PRIVATE;
    let is_large = len >= MIN_MANAGED_BYTES || bits & FIXED != 0;
    let is_code = prot as i32 & libc::PROT_EXEC != 0;
    if !is_private
        || !is_large
        || is_code
        || !offset.is_multiple_of(PAGE_SIZE)
        || !is_zero_device(fd)
    {
        return arguments;
    }
    [address, len, prot, flags | libc::MAP_ANONYMOUS as usize, usize::MAX, 0]
}

fn is_zero_device(fd: usize) -> bool {
    const ZERO: libc::dev_t = libc::makedev(1, 5);
    raw::file_status(fd)
        .is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == ZERO)
        && raw::open_flags(fd).is_some_and(|flags| {
            flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_WRONLY
        })
}
