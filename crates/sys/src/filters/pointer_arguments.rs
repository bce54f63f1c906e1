//! Which arguments of which system calls are pointers, and to how much.
//!
//! The guard's filter looks at exactly these arguments, and the guard brings
//! in exactly these ranges. A call that is missing here is let through
//! unseen: with a swapped-out buffer it fails with EFAULT, it never sees
//! wrong data.
//!
//! Some are missing on purpose. Two cannot be issued from a signal handler: a
//! child of `clone3` would return from it on an empty stack, and what
//! `sigaltstack` sets is undone when the handler returns. `set_robust_list`
//! and `rseq` only store their pointer.

use libc::*;

/// What a pointer argument points to. Of vectors and messages the guard's `transfers` must know
/// the call, too; the runtime's `guard` has the table of what is taught where.
///
/// ```
/// use softswap_sys::pointer_arguments::{Pointee, pointers};
///
/// // read(fd, buffer, length): argument 1 points to as many bytes as argument 2 says.
/// assert_eq!(pointers(libc::SYS_read), [(1, Pointee::Bytes(2))]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointee {
    /// As many bytes as another argument says.
    Bytes(u8),
    /// A header of the given size, then as many bytes as another argument says.
    BytesPlus(u8, u16),
    /// As many elements of the given size as another argument says.
    Array(u8, u16),
    /// A structure (or a set of them) of at most this many bytes.
    Struct(u16),
    /// A string that ends with a zero byte.
    Text,
    /// An iovec array, as long as another argument says, and its buffers.
    Vectors(u8),
    /// A msghdr and all it refers to.
    Message,
    /// An mmsghdr array, as long as another argument says.
    Messages(u8),
    /// A zero-terminated array of strings (argv, envp).
    Texts,
    /// Memory that the call manages rather than reads or writes.
    Range,
}

impl Pointee {
    /// How many bytes that is, where the call's other arguments say so.
    ///
    /// ```
    /// use softswap_sys::pointer_arguments::Pointee;
    ///
    /// assert_eq!(Pointee::Bytes(2).byte_count(&[3, 0x1000, 80, 0, 0, 0]), Some(80));
    /// assert_eq!(Pointee::Text.byte_count(&[0x1000, 0, 0, 0, 0, 0]), None);
    /// ```
    #[must_use]
    pub fn byte_count(self, arguments: &[usize; 6]) -> Option<usize> {
        Some(match self {
            Pointee::Bytes(len) => arguments[len as usize],
            Pointee::BytesPlus(len, extra) => {
                arguments[len as usize].saturating_add(extra as usize)
            }
            Pointee::Array(count, size) => arguments[count as usize].saturating_mul(size as usize),
            Pointee::Struct(len) => len as usize,
            _ => return None,
        })
    }
}

/// A pointer argument: its index and what it points to.
///
/// ```
/// use softswap_sys::pointer_arguments::{Pointer, pointers};
///
/// let of_call: &[Pointer] = pointers(libc::SYS_getpid);
/// assert!(of_call.is_empty());
/// ```
pub type Pointer = (u8, Pointee);

use Pointee::{Array, Bytes, BytesPlus, Message, Messages, Range, Struct, Text, Texts, Vectors};

// Calls that the libc crate does not name yet.
const SYS_IO_PGETEVENTS: i64 = 333;
const SYS_CACHESTAT: i64 = 451;
const SYS_FUTEX_WAKE: i64 = 454;
const SYS_FUTEX_WAIT: i64 = 455;
const SYS_FUTEX_REQUEUE: i64 = 456;
const SYS_STATMOUNT: i64 = 457;
const SYS_LISTMOUNT: i64 = 458;
const SYS_LSM_GET_SELF_ATTR: i64 = 459;
const SYS_LSM_SET_SELF_ATTR: i64 = 460;
const SYS_LSM_LIST_MODULES: i64 = 461;
const SYS_SETXATTRAT: i64 = 463;
const SYS_GETXATTRAT: i64 = 464;
const SYS_LISTXATTRAT: i64 = 465;
const SYS_REMOVEXATTRAT: i64 = 466;
const SYS_OPEN_TREE_ATTR: i64 = 467;
const SYS_FILE_GETATTR: i64 = 468;
const SYS_FILE_SETATTR: i64 = 469;

/// The calls with pointer arguments.
#[rustfmt::skip]
const CALLS: &[(i64, &[Pointer])] = &[
    // Files and descriptors.
    (SYS_read, &[(1, Bytes(2))]),
    (SYS_write, &[(1, Bytes(2))]),
    (SYS_pread64, &[(1, Bytes(2))]),
    (SYS_pwrite64, &[(1, Bytes(2))]),
    (SYS_readv, &[(1, Vectors(2))]),
    (SYS_writev, &[(1, Vectors(2))]),
    (SYS_preadv, &[(1, Vectors(2))]),
    (SYS_pwritev, &[(1, Vectors(2))]),
    (SYS_preadv2, &[(1, Vectors(2))]),
    (SYS_pwritev2, &[(1, Vectors(2))]),
    (SYS_vmsplice, &[(1, Vectors(2))]),
    (SYS_open, &[(0, Text)]),
    (SYS_openat, &[(1, Text)]),
    (SYS_openat2, &[(1, Text), (2, Bytes(3))]),
    (SYS_creat, &[(0, Text)]),
    (SYS_stat, &[(0, Text), (1, Struct(144))]),
    (SYS_lstat, &[(0, Text), (1, Struct(144))]),
    (SYS_fstat, &[(1, Struct(144))]),
    (SYS_newfstatat, &[(1, Text), (2, Struct(144))]),
    (SYS_statx, &[(1, Text), (4, Struct(256))]),
    (SYS_statfs, &[(0, Text), (1, Struct(120))]),
    (SYS_fstatfs, &[(1, Struct(120))]),
    (SYS_access, &[(0, Text)]),
    (SYS_faccessat, &[(1, Text)]),
    (SYS_faccessat2, &[(1, Text)]),
    (SYS_getdents, &[(1, Bytes(2))]),
    (SYS_getdents64, &[(1, Bytes(2))]),
    (SYS_getcwd, &[(0, Bytes(1))]),
    (SYS_chdir, &[(0, Text)]),
    (SYS_mkdir, &[(0, Text)]),
    (SYS_mkdirat, &[(1, Text)]),
    (SYS_rmdir, &[(0, Text)]),
    (SYS_unlink, &[(0, Text)]),
    (SYS_unlinkat, &[(1, Text)]),
    (SYS_rename, &[(0, Text), (1, Text)]),
    (SYS_renameat, &[(1, Text), (3, Text)]),
    (SYS_renameat2, &[(1, Text), (3, Text)]),
    (SYS_link, &[(0, Text), (1, Text)]),
    (SYS_linkat, &[(1, Text), (3, Text)]),
    (SYS_symlink, &[(0, Text), (1, Text)]),
    (SYS_symlinkat, &[(0, Text), (2, Text)]),
    (SYS_readlink, &[(0, Text), (1, Bytes(2))]),
    (SYS_readlinkat, &[(1, Text), (2, Bytes(3))]),
    (SYS_chmod, &[(0, Text)]),
    (SYS_fchmodat, &[(1, Text)]),
    (SYS_fchmodat2, &[(1, Text)]),
    (SYS_chown, &[(0, Text)]),
    (SYS_lchown, &[(0, Text)]),
    (SYS_fchownat, &[(1, Text)]),
    (SYS_truncate, &[(0, Text)]),
    (SYS_utime, &[(0, Text), (1, Struct(16))]),
    (SYS_utimes, &[(0, Text), (1, Struct(32))]),
    (SYS_futimesat, &[(1, Text), (2, Struct(32))]),
    (SYS_utimensat, &[(1, Text), (2, Struct(32))]),
    (SYS_mknod, &[(0, Text)]),
    (SYS_mknodat, &[(1, Text)]),
    (SYS_chroot, &[(0, Text)]),
    (SYS_pivot_root, &[(0, Text), (1, Text)]),
    (SYS_mount, &[(0, Text), (1, Text), (2, Text), (4, Struct(4096))]),
    (SYS_umount2, &[(0, Text)]),
    (SYS_fsopen, &[(0, Text)]),
    (SYS_fsconfig, &[(2, Text), (3, Struct(4096))]),
    (SYS_fspick, &[(1, Text)]),
    (SYS_open_tree, &[(1, Text)]),
    (SYS_OPEN_TREE_ATTR, &[(1, Text), (3, Bytes(4))]),
    (SYS_move_mount, &[(1, Text), (3, Text)]),
    (SYS_mount_setattr, &[(1, Text), (3, Bytes(4))]),
    (SYS_STATMOUNT, &[(0, Struct(32)), (1, Bytes(2))]),
    (SYS_LISTMOUNT, &[(0, Struct(32)), (1, Array(2, 8))]),
    (SYS_ustat, &[(1, Struct(32))]),
    (SYS_quotactl, &[(1, Text), (3, Struct(4096))]),
    (SYS_quotactl_fd, &[(3, Struct(4096))]),
    (SYS_swapon, &[(0, Text)]),
    (SYS_swapoff, &[(0, Text)]),
    (SYS_acct, &[(0, Text)]),
    (SYS_uselib, &[(0, Text)]),
    (SYS_CACHESTAT, &[(1, Struct(16)), (2, Struct(40))]),
    (SYS_FILE_GETATTR, &[(1, Text), (2, Bytes(3))]),
    (SYS_FILE_SETATTR, &[(1, Text), (2, Bytes(3))]),
    (SYS_sendfile, &[(2, Struct(8))]),
    (SYS_copy_file_range, &[(1, Struct(8)), (3, Struct(8))]),
    (SYS_splice, &[(1, Struct(8)), (3, Struct(8))]),
    (SYS_pipe, &[(0, Struct(8))]),
    (SYS_pipe2, &[(0, Struct(8))]),
    (SYS_ioctl, &[(2, Struct(4096))]),
    (SYS_fcntl, &[(2, Struct(64))]),
    (SYS_memfd_create, &[(0, Text)]),
    (SYS_getxattr, &[(0, Text), (1, Text), (2, Bytes(3))]),
    (SYS_lgetxattr, &[(0, Text), (1, Text), (2, Bytes(3))]),
    (SYS_fgetxattr, &[(1, Text), (2, Bytes(3))]),
    (SYS_setxattr, &[(0, Text), (1, Text), (2, Bytes(3))]),
    (SYS_lsetxattr, &[(0, Text), (1, Text), (2, Bytes(3))]),
    (SYS_fsetxattr, &[(1, Text), (2, Bytes(3))]),
    (SYS_listxattr, &[(0, Text), (1, Bytes(2))]),
    (SYS_llistxattr, &[(0, Text), (1, Bytes(2))]),
    (SYS_flistxattr, &[(1, Bytes(2))]),
    (SYS_removexattr, &[(0, Text), (1, Text)]),
    (SYS_lremovexattr, &[(0, Text), (1, Text)]),
    (SYS_fremovexattr, &[(1, Text)]),
    (SYS_SETXATTRAT, &[(1, Text), (3, Text), (4, Bytes(5))]),
    (SYS_GETXATTRAT, &[(1, Text), (3, Text), (4, Bytes(5))]),
    (SYS_LISTXATTRAT, &[(1, Text), (3, Bytes(4))]),
    (SYS_REMOVEXATTRAT, &[(1, Text), (3, Text)]),
    (SYS_inotify_add_watch, &[(1, Text)]),
    (SYS_fanotify_mark, &[(4, Text)]),
    (SYS_name_to_handle_at, &[(1, Text), (2, Struct(136)), (3, Struct(4))]),
    (SYS_open_by_handle_at, &[(1, Struct(136))]),
    (SYS_io_getevents, &[(3, Array(2, 32)), (4, Struct(16))]),
    (SYS_IO_PGETEVENTS, &[(3, Array(2, 32)), (4, Struct(16)), (5, Struct(16))]),
    (SYS_io_cancel, &[(1, Struct(64)), (2, Struct(32))]),
    (SYS_io_setup, &[(1, Struct(8))]),
    (SYS_io_submit, &[(2, Array(1, 8))]),
    (SYS_io_uring_setup, &[(1, Struct(120))]),
    (SYS_io_uring_enter, &[(4, Bytes(5))]),
    (SYS_io_uring_register, &[(2, Struct(4096))]),
    // Waiting for descriptors.
    (SYS_poll, &[(0, Array(1, 8))]),
    (SYS_ppoll, &[(0, Array(1, 8)), (2, Struct(16)), (3, Struct(8))]),
    (SYS_select, &[(1, Struct(128)), (2, Struct(128)), (3, Struct(128)), (4, Struct(16))]),
    (SYS_pselect6, &[(1, Struct(128)), (2, Struct(128)), (3, Struct(128)), (4, Struct(16)), (5, Struct(16))]),
    (SYS_epoll_wait, &[(1, Array(2, 12))]),
    (SYS_epoll_pwait, &[(1, Array(2, 12)), (4, Struct(8))]),
    (SYS_epoll_pwait2, &[(1, Array(2, 12)), (3, Struct(16)), (4, Struct(8))]),
    (SYS_epoll_ctl, &[(3, Struct(12))]),
    // Sockets.
    (SYS_connect, &[(1, Bytes(2))]),
    (SYS_bind, &[(1, Bytes(2))]),
    (SYS_accept, &[(1, Struct(128)), (2, Struct(4))]),
    (SYS_accept4, &[(1, Struct(128)), (2, Struct(4))]),
    (SYS_getsockname, &[(1, Struct(128)), (2, Struct(4))]),
    (SYS_getpeername, &[(1, Struct(128)), (2, Struct(4))]),
    (SYS_getsockopt, &[(3, Struct(4096)), (4, Struct(4))]),
    (SYS_setsockopt, &[(3, Bytes(4))]),
    (SYS_socketpair, &[(3, Struct(8))]),
    (SYS_sendto, &[(1, Bytes(2)), (4, Bytes(5))]),
    (SYS_recvfrom, &[(1, Bytes(2)), (4, Struct(128)), (5, Struct(4))]),
    (SYS_sendmsg, &[(1, Message)]),
    (SYS_recvmsg, &[(1, Message)]),
    (SYS_sendmmsg, &[(1, Messages(2))]),
    (SYS_recvmmsg, &[(1, Messages(2)), (4, Struct(16))]),
    // Processes and signals.
    (SYS_execve, &[(0, Text), (1, Texts), (2, Texts)]),
    (SYS_execveat, &[(1, Text), (2, Texts), (3, Texts)]),
    (SYS_wait4, &[(1, Struct(4)), (3, Struct(144))]),
    (SYS_waitid, &[(2, Struct(128)), (4, Struct(144))]),
    (SYS_getrusage, &[(1, Struct(144))]),
    (SYS_times, &[(0, Struct(32))]),
    (SYS_uname, &[(0, Struct(390))]),
    (SYS_sysinfo, &[(0, Struct(112))]),
    (SYS_getgroups, &[(1, Array(0, 4))]),
    (SYS_setgroups, &[(1, Array(0, 4))]),
    (SYS_getresuid, &[(0, Struct(4)), (1, Struct(4)), (2, Struct(4))]),
    (SYS_getresgid, &[(0, Struct(4)), (1, Struct(4)), (2, Struct(4))]),
    (SYS_getrlimit, &[(1, Struct(16))]),
    (SYS_setrlimit, &[(1, Struct(16))]),
    (SYS_prlimit64, &[(2, Struct(16)), (3, Struct(16))]),
    (SYS_rt_sigaction, &[(1, Struct(32)), (2, Struct(32))]),
    (SYS_rt_sigprocmask, &[(1, Struct(8)), (2, Struct(8))]),
    (SYS_rt_sigpending, &[(0, Struct(8))]),
    (SYS_rt_sigsuspend, &[(0, Struct(8))]),
    (SYS_rt_sigtimedwait, &[(0, Struct(8)), (1, Struct(128)), (2, Struct(16))]),
    (SYS_rt_sigqueueinfo, &[(2, Struct(128))]),
    (SYS_rt_tgsigqueueinfo, &[(3, Struct(128))]),
    (SYS_signalfd, &[(1, Struct(8))]),
    (SYS_signalfd4, &[(1, Struct(8))]),
    (SYS_pidfd_send_signal, &[(2, Struct(128))]),
    (SYS_capget, &[(0, Struct(8)), (1, Struct(24))]),
    (SYS_capset, &[(0, Struct(8)), (1, Struct(24))]),
    (SYS_prctl, &[(1, Struct(4096)), (2, Struct(4096)), (4, Text)]),
    (SYS_sched_setaffinity, &[(2, Bytes(1))]),
    (SYS_sched_getaffinity, &[(2, Bytes(1))]),
    (SYS_sched_setparam, &[(1, Struct(4))]),
    (SYS_sched_getparam, &[(1, Struct(4))]),
    (SYS_sched_setscheduler, &[(2, Struct(4))]),
    (SYS_sched_rr_get_interval, &[(1, Struct(16))]),
    (SYS_sched_setattr, &[(1, Struct(64))]),
    (SYS_sched_getattr, &[(1, Bytes(2))]),
    (SYS_getcpu, &[(0, Struct(4)), (1, Struct(4))]),
    (SYS_futex, &[(0, Struct(4)), (3, Struct(16)), (4, Struct(4))]),
    (SYS_futex_waitv, &[(0, Array(1, 24)), (3, Struct(16))]),
    (SYS_FUTEX_WAKE, &[(0, Struct(4))]),
    (SYS_FUTEX_WAIT, &[(0, Struct(4)), (4, Struct(16))]),
    (SYS_FUTEX_REQUEUE, &[(0, Struct(48))]),
    (SYS_get_robust_list, &[(1, Struct(8)), (2, Struct(8))]),
    (SYS_process_vm_readv, &[(1, Vectors(2)), (3, Array(4, 16))]),
    (SYS_process_vm_writev, &[(1, Vectors(2)), (3, Array(4, 16))]),
    (SYS_process_madvise, &[(1, Array(2, 16))]),
    (SYS_ptrace, &[(3, Struct(4096))]),
    (SYS_modify_ldt, &[(1, Bytes(2))]),
    (SYS_sethostname, &[(0, Bytes(1))]),
    (SYS_setdomainname, &[(0, Bytes(1))]),
    (SYS_getrandom, &[(0, Bytes(1))]),
    (SYS_syslog, &[(1, Bytes(2))]),
    (SYS_bpf, &[(1, Bytes(2))]),
    (SYS_perf_event_open, &[(0, Struct(256))]),
    (SYS_seccomp, &[(2, Struct(16))]),
    (SYS_landlock_create_ruleset, &[(0, Bytes(1))]),
    (SYS_landlock_add_rule, &[(2, Struct(16))]),
    (SYS_LSM_GET_SELF_ATTR, &[(1, Struct(4096)), (2, Struct(4))]),
    (SYS_LSM_SET_SELF_ATTR, &[(1, Bytes(2))]),
    (SYS_LSM_LIST_MODULES, &[(0, Struct(128)), (1, Struct(4))]),
    // Time.
    (SYS_clock_gettime, &[(1, Struct(16))]),
    (SYS_clock_settime, &[(1, Struct(16))]),
    (SYS_clock_getres, &[(1, Struct(16))]),
    (SYS_clock_nanosleep, &[(2, Struct(16)), (3, Struct(16))]),
    (SYS_clock_adjtime, &[(1, Struct(256))]),
    (SYS_adjtimex, &[(0, Struct(256))]),
    (SYS_nanosleep, &[(0, Struct(16)), (1, Struct(16))]),
    (SYS_gettimeofday, &[(0, Struct(16)), (1, Struct(8))]),
    (SYS_settimeofday, &[(0, Struct(16)), (1, Struct(8))]),
    (SYS_time, &[(0, Struct(8))]),
    (SYS_getitimer, &[(1, Struct(32))]),
    (SYS_setitimer, &[(1, Struct(32)), (2, Struct(32))]),
    (SYS_timer_create, &[(1, Struct(64)), (2, Struct(4))]),
    (SYS_timer_gettime, &[(1, Struct(32))]),
    (SYS_timer_settime, &[(2, Struct(32)), (3, Struct(32))]),
    (SYS_timerfd_settime, &[(2, Struct(32)), (3, Struct(32))]),
    (SYS_timerfd_gettime, &[(1, Struct(32))]),
    // System V and POSIX message queues, semaphores, keys.
    (SYS_msgsnd, &[(1, BytesPlus(2, 8))]),
    (SYS_msgrcv, &[(1, BytesPlus(2, 8))]),
    (SYS_msgctl, &[(2, Struct(128))]),
    (SYS_semop, &[(1, Array(2, 6))]),
    (SYS_semtimedop, &[(1, Array(2, 6)), (3, Struct(16))]),
    (SYS_semctl, &[(3, Struct(4096))]),
    (SYS_shmctl, &[(2, Struct(128))]),
    (SYS_mq_open, &[(0, Text), (3, Struct(64))]),
    (SYS_mq_unlink, &[(0, Text)]),
    (SYS_mq_timedsend, &[(1, Bytes(2)), (4, Struct(16))]),
    (SYS_mq_timedreceive, &[(1, Bytes(2)), (3, Struct(4)), (4, Struct(16))]),
    (SYS_mq_notify, &[(1, Struct(64))]),
    (SYS_mq_getsetattr, &[(1, Struct(64)), (2, Struct(64))]),
    (SYS_add_key, &[(0, Text), (1, Text), (2, Bytes(3))]),
    (SYS_request_key, &[(0, Text), (1, Text), (2, Text)]),
    (SYS_keyctl, &[(1, Struct(4096)), (2, Struct(4096)), (3, Struct(4096))]),
    // Memory: the engine answers for the window instead of the kernel.
    (SYS_mmap, &[(0, Range)]),
    (SYS_munmap, &[(0, Range)]),
    (SYS_mprotect, &[(0, Range)]),
    (SYS_pkey_mprotect, &[(0, Range)]),
    (SYS_mremap, &[(0, Range), (4, Range)]),
    (SYS_madvise, &[(0, Range)]),
    (SYS_mlock, &[(0, Range)]),
    (SYS_mlock2, &[(0, Range)]),
    (SYS_munlock, &[(0, Range)]),
    (SYS_msync, &[(0, Range)]),
    (SYS_mincore, &[(0, Range), (2, Struct(4096))]),
    (SYS_shmat, &[(1, Range)]),
    (SYS_mbind, &[(0, Range), (3, Struct(128))]),
    (SYS_get_mempolicy, &[(0, Struct(4)), (1, Struct(128))]),
    (SYS_set_mempolicy, &[(1, Struct(128))]),
    (SYS_migrate_pages, &[(2, Struct(128)), (3, Struct(128))]),
    (SYS_move_pages, &[(2, Array(1, 8)), (3, Array(1, 4)), (4, Array(1, 4))]),
];

/// All call numbers in the table lie below.
pub const MAX_NUMBER: usize = 470;

/// The pointer arguments of a call; empty when it has none (or is unknown).
#[must_use]
pub fn pointers(number: i64) -> &'static [Pointer] {
    CALLS.iter().find(|(n, _)| *n == number).map_or(&[], |(_, pointers)| *pointers)
}

/// Which argument of a call that moves data is its buffer; the next one is its length.
#[must_use]
pub fn buffer_of(number: i64) -> Option<usize> {
    match number {
        libc::SYS_getrandom => Some(0),
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_recvfrom
        | libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_sendto => Some(1),
        _ => None,
    }
}

/// For every call number below [`MAX_NUMBER`]: bit i set when argument i is a pointer.
#[must_use]
pub fn pointer_masks() -> [u8; MAX_NUMBER] {
    let mut masks = [0u8; MAX_NUMBER];
    for (number, pointers) in CALLS {
        for (argument, _) in *pointers {
            masks[*number as usize] |= 1 << argument;
        }
    }
    masks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_listed_once_and_within_range() {
        let mut numbers: Vec<i64> = CALLS.iter().map(|(n, _)| *n).collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|w| w[0] < w[1]));
        assert!(numbers.iter().all(|n| (0..MAX_NUMBER as i64).contains(n)));
    }

    #[test]
    fn lengths_refer_to_other_arguments_that_are_not_pointers() {
        for (number, pointers) in CALLS {
            for (argument, pointee) in *pointers {
                if let Bytes(length)
                | BytesPlus(length, _)
                | Array(length, _)
                | Vectors(length)
                | Messages(length) = pointee
                {
                    assert_ne!(argument, length, "call {number}");
                    assert!(!pointers.iter().any(|(a, _)| a == length), "call {number}");
                }
            }
        }
    }
}
