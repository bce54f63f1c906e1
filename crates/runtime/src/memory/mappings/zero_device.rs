//! Private mappings of `/dev/zero`, which are anonymous memory.

use crate::base::issue_call::{Arguments, engine_syscall};
use crate::memory::asleep::MIN_MANAGED_BYTES;
use softswap_sys::PAGE_SIZE;

/// Returns the arguments of the anonymous `mmap` that is equal to a private one of `/dev/zero`.
/// Returns any other call unchanged, and one that the kernel would refuse.
pub(super) fn as_anonymous(arguments: Arguments) -> Arguments {
    const LEFT: i32 = libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
    const FIXED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
    let [address, len, prot, flags, fd, offset] = arguments;
    let bits = flags as i32;
    let is_private = bits & (libc::MAP_TYPE | LEFT) == libc::MAP_PRIVATE;
    let is_large = len >= MIN_MANAGED_BYTES || bits & FIXED != 0;
    let is_code = prot as i32 & libc::PROT_EXEC != 0;
    if !is_private || !is_large || is_code || !offset.is_multiple_of(PAGE_SIZE) || !is_zero(fd) {
        return arguments;
    }
    [address, len, prot, flags | libc::MAP_ANONYMOUS as usize, usize::MAX, 0]
}

/// Returns true if a descriptor is open on `/dev/zero` and can be read.
fn is_zero(fd: usize) -> bool {
    const ZERO: libc::dev_t = libc::makedev(1, 5);
    // SAFETY: all-zero is a valid stat to write over.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    if engine_syscall(libc::SYS_fstat, [fd, &raw mut stat as usize, 0, 0, 0, 0]) != 0
        || stat.st_mode & libc::S_IFMT != libc::S_IFCHR
        || stat.st_rdev != ZERO
    {
        return false;
    }
    let opened = engine_syscall(libc::SYS_fcntl, [fd, libc::F_GETFL as usize, 0, 0, 0, 0]);
    let is_path = opened as i32 & libc::O_PATH != 0;
    opened >= 0 && !is_path && opened as i32 & libc::O_ACCMODE != libc::O_WRONLY
}
