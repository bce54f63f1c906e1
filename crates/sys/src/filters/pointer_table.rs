//! Every system call of Linux 6.18 for x86_64, with its pointer arguments and the bytes behind
//! each.
//!
//! The guard's filter checks exactly these arguments, and the guard faults in exactly these ranges.
//! Newer calls are ignored: with a swapped-out buffer they fail with EFAULT.

use crate::pointee::{Class, Pointee};
use Class::{Described, Interposed, NoPointer, Refused};
use Pointee::{
    Array, Bits, Bytes, BytesPlus, LengthInNext, Message, Messages, Range, Request, SizeBehind,
    Struct, Text, Texts, TraceData, Vectors,
};
use libc::*;

// Calls that the libc crate does not define yet.
pub const SYS_IO_PGETEVENTS: i64 = 333;
const SYS_URETPROBE: i64 = 335;
const SYS_UPROBE: i64 = 336;
const SYS_CACHESTAT: i64 = 451;
const SYS_MAP_SHADOW_STACK: i64 = 453;
const SYS_FUTEX_WAKE: i64 = 454;
const SYS_FUTEX_WAIT: i64 = 455;
pub const SYS_FUTEX_REQUEUE: i64 = 456;
const SYS_STATMOUNT: i64 = 457;
const SYS_LISTMOUNT: i64 = 458;
const SYS_LSM_GET_SELF_ATTR: i64 = 459;
pub const SYS_LSM_SET_SELF_ATTR: i64 = 460;
const SYS_LSM_LIST_MODULES: i64 = 461;
pub const SYS_SETXATTRAT: i64 = 463;
pub const SYS_GETXATTRAT: i64 = 464;
const SYS_LISTXATTRAT: i64 = 465;
const SYS_REMOVEXATTRAT: i64 = 466;
const SYS_OPEN_TREE_ATTR: i64 = 467;
const SYS_FILE_GETATTR: i64 = 468;
const SYS_FILE_SETATTR: i64 = 469;

/// Returns `None` for unused numbers. Most calls of the same shape share a line.
#[expect(non_upper_case_globals, reason = "names of the libc crate")]
pub(crate) const fn class(number: i64) -> Option<Class> {
    Some(match number {
        SYS_open | SYS_creat | SYS_access | SYS_chdir | SYS_mkdir | SYS_rmdir | SYS_unlink
        | SYS_chmod | SYS_chown | SYS_lchown | SYS_truncate | SYS_mknod | SYS_chroot
        | SYS_umount2 | SYS_fsopen | SYS_swapon | SYS_swapoff | SYS_acct | SYS_uselib
        | SYS_memfd_create | SYS_mq_unlink | SYS_delete_module => Described(&[(0, Text)]),
        SYS_sendmsg | SYS_recvmsg => Described(&[(1, Message)]),
        SYS_openat | SYS_faccessat | SYS_faccessat2 | SYS_mkdirat | SYS_unlinkat | SYS_fchmodat
        | SYS_fchmodat2 | SYS_fchownat | SYS_mknodat | SYS_fspick | SYS_open_tree
        | SYS_fremovexattr | SYS_finit_module => Described(&[(1, Text)]),
        SYS_inotify_add_watch => Described(&[(1, Text)]),
        SYS_reboot => Described(&[(3, Text)]),
        SYS_fanotify_mark => Described(&[(4, Text)]),
        SYS_poll => Described(&[(0, Array(1, 8))]),
        SYS_getcwd | SYS_sethostname | SYS_setdomainname | SYS_getrandom => {
            Described(&[(0, Bytes(1))])
        }
        SYS_landlock_create_ruleset => Described(&[(0, Bytes(1))]),
        SYS_sysinfo => Described(&[(0, Struct(112))]),
        SYS_adjtimex => Described(&[(0, Struct(256))]),
        SYS_times => Described(&[(0, Struct(32))]),
        SYS_uname => Described(&[(0, Struct(390))]),
        SYS_FUTEX_WAKE => Described(&[(0, Struct(4))]),
        SYS_perf_event_open => Described(&[(0, Struct(4096))]),
        SYS_FUTEX_REQUEUE => Described(&[(0, Struct(48))]),
        SYS_pipe | SYS_pipe2 | SYS_rt_sigpending | SYS_rt_sigsuspend | SYS_time => {
            Described(&[(0, Struct(8))])
        }
        SYS_rename | SYS_link | SYS_symlink | SYS_pivot_root | SYS_removexattr
        | SYS_lremovexattr => Described(&[(0, Text), (1, Text)]),
        SYS_symlinkat => Described(&[(0, Text), (2, Text)]),
        SYS_getgroups | SYS_setgroups => Described(&[(1, Array(0, 4))]),
        SYS_epoll_wait => Described(&[(1, Array(2, 12))]),
        SYS_process_madvise => Described(&[(1, Array(2, 16))]),
        SYS_semop => Described(&[(1, Array(2, 6))]),
        SYS_set_mempolicy => Described(&[(1, Bits(2))]),
        SYS_read | SYS_write | SYS_pread64 | SYS_pwrite64 | SYS_getdents | SYS_getdents64
        | SYS_flistxattr | SYS_connect | SYS_bind | SYS_sched_getattr | SYS_modify_ldt
        | SYS_syslog | SYS_bpf | SYS_lookup_dcookie => Described(&[(1, Bytes(2))]),
        SYS_LSM_SET_SELF_ATTR => Described(&[(1, Bytes(2))]),
        SYS_msgsnd | SYS_msgrcv => Described(&[(1, BytesPlus(2, 8))]),
        SYS_sendmmsg => Described(&[(1, Messages(2))]),
        SYS_fstatfs => Described(&[(1, Struct(120))]),
        SYS_open_by_handle_at => Described(&[(1, Struct(136))]),
        SYS_fstat | SYS_getrusage => Described(&[(1, Struct(144))]),
        SYS_getrlimit | SYS_setrlimit | SYS_clock_gettime | SYS_clock_settime
        | SYS_clock_getres => Described(&[(1, Struct(16))]),
        SYS_sched_rr_get_interval => Described(&[(1, Struct(16))]),
        SYS_clock_adjtime => Described(&[(1, Struct(256))]),
        SYS_ustat | SYS_getitimer | SYS_timer_gettime | SYS_timerfd_gettime => {
            Described(&[(1, Struct(32))])
        }
        // Operations that set a register take a value: the filter allows them.
        SYS_arch_prctl => Described(&[(1, Struct(32))]),
        SYS_sched_setparam | SYS_sched_getparam => Described(&[(1, Struct(4))]),
        SYS_sched_setattr => Described(&[(1, Struct(4096))]),
        SYS_mq_notify => Described(&[(1, Struct(64))]),
        SYS_signalfd | SYS_signalfd4 => Described(&[(1, Struct(8))]),
        SYS_renameat | SYS_renameat2 | SYS_linkat | SYS_move_mount | SYS_REMOVEXATTRAT => {
            Described(&[(1, Text), (3, Text)])
        }
        SYS_readv | SYS_writev | SYS_preadv | SYS_pwritev | SYS_preadv2 | SYS_pwritev2
        | SYS_vmsplice => Described(&[(1, Vectors(2))]),
        SYS_kexec_load => Described(&[(2, Array(1, 32))]),
        SYS_io_submit => Described(&[(2, Array(1, 8))]),
        SYS_sched_setaffinity | SYS_sched_getaffinity => Described(&[(2, Bytes(1))]),
        SYS_ioctl => Described(&[(2, Request(1))]),
        SYS_rt_sigqueueinfo | SYS_msgctl | SYS_shmctl => Described(&[(2, Struct(128))]),
        SYS_pidfd_send_signal => Described(&[(2, Struct(128))]),
        SYS_seccomp | SYS_landlock_add_rule => Described(&[(2, Struct(16))]),
        SYS_sched_setscheduler => Described(&[(2, Struct(4))]),
        SYS_io_uring_register => Described(&[(2, Struct(4096))]),
        SYS_fcntl => Described(&[(2, Struct(64))]),
        SYS_sendfile => Described(&[(2, Struct(8))]),
        SYS_kexec_file_load => Described(&[(3, Bytes(2))]),
        SYS_setsockopt => Described(&[(3, Bytes(4))]),
        SYS_epoll_ctl => Described(&[(3, Struct(12))]),
        SYS_rt_tgsigqueueinfo => Described(&[(3, Struct(128))]),
        SYS_quotactl_fd => Described(&[(3, Struct(4096))]),
        // Up to 32,000 semaphores of 16 bits.
        SYS_semctl => Described(&[(3, Struct(64000))]),
        SYS_socketpair => Described(&[(3, Struct(8))]),
        SYS_io_uring_enter => Described(&[(4, Bytes(5))]),
        SYS_kcmp => Described(&[(4, Struct(12))]),
        SYS_init_module => Described(&[(0, Bytes(1)), (2, Text)]),
        SYS_readlink | SYS_listxattr | SYS_llistxattr => Described(&[(0, Text), (1, Bytes(2))]),
        SYS_statfs => Described(&[(0, Text), (1, Struct(120))]),
        SYS_stat | SYS_lstat => Described(&[(0, Text), (1, Struct(144))]),
        SYS_utime => Described(&[(0, Text), (1, Struct(16))]),
        SYS_utimes => Described(&[(0, Text), (1, Struct(32))]),
        SYS_request_key => Described(&[(0, Text), (1, Text), (2, Text)]),
        SYS_execve => Described(&[(0, Text), (1, Texts), (2, Texts)]),
        SYS_mq_open => Described(&[(0, Text), (3, Struct(64))]),
        SYS_openat2 | SYS_readlinkat | SYS_FILE_GETATTR | SYS_FILE_SETATTR | SYS_fgetxattr
        | SYS_fsetxattr => Described(&[(1, Text), (2, Bytes(3))]),
        SYS_newfstatat => Described(&[(1, Text), (2, Struct(144))]),
        SYS_futimesat | SYS_utimensat => Described(&[(1, Text), (2, Struct(32))]),
        SYS_sysfs => Described(&[(1, Text), (2, Struct(4096))]),
        SYS_execveat => Described(&[(1, Text), (2, Texts), (3, Texts)]),
        SYS_OPEN_TREE_ATTR | SYS_mount_setattr | SYS_LISTXATTRAT => {
            Described(&[(1, Text), (3, Bytes(4))])
        }
        SYS_quotactl => Described(&[(1, Text), (3, Struct(4096))]),
        SYS_statx => Described(&[(1, Text), (4, Struct(256))]),
        // The next argument is a length, 0 or a descriptor.
        SYS_fsconfig => Described(&[(2, Text), (3, LengthInNext(4))]),
        SYS_futex_waitv => Described(&[(0, Array(1, 24)), (3, Struct(16))]),
        SYS_LSM_LIST_MODULES => Described(&[(0, Struct(128)), (1, Struct(4))]),
        SYS_nanosleep => Described(&[(0, Struct(16)), (1, Struct(16))]),
        SYS_gettimeofday | SYS_settimeofday => Described(&[(0, Struct(16)), (1, Struct(8))]),
        SYS_LISTMOUNT => Described(&[(0, Struct(32)), (1, Array(2, 8))]),
        SYS_STATMOUNT => Described(&[(0, Struct(32)), (1, Bytes(2))]),
        SYS_getcpu => Described(&[(0, Struct(4)), (1, Struct(4))]),
        SYS_FUTEX_WAIT => Described(&[(0, Struct(4)), (4, Struct(16))]),
        SYS_capget | SYS_capset => Described(&[(0, Struct(8)), (1, Struct(24))]),
        SYS_getxattr | SYS_lgetxattr | SYS_setxattr | SYS_lsetxattr | SYS_add_key => {
            Described(&[(0, Text), (1, Text), (2, Bytes(3))])
        }
        SYS_epoll_pwait => Described(&[(1, Array(2, 12)), (4, Struct(8))]),
        SYS_semtimedop => Described(&[(1, Array(2, 6)), (3, Struct(16))]),
        SYS_sendto => Described(&[(1, Bytes(2)), (4, Bytes(5))]),
        SYS_mq_timedsend => Described(&[(1, Bytes(2)), (4, Struct(16))]),
        SYS_recvmmsg => Described(&[(1, Messages(2)), (4, Struct(16))]),
        SYS_accept | SYS_accept4 | SYS_getsockname | SYS_getpeername => {
            Described(&[(1, Struct(128)), (2, Struct(4))])
        }
        SYS_CACHESTAT => Described(&[(1, Struct(16)), (2, Struct(40))]),
        SYS_rt_sigaction | SYS_setitimer => Described(&[(1, Struct(32)), (2, Struct(32))]),
        SYS_wait4 => Described(&[(1, Struct(4)), (3, Struct(144))]),
        SYS_LSM_GET_SELF_ATTR => Described(&[(1, Struct(4096)), (2, Struct(4))]),
        SYS_io_cancel => Described(&[(1, Struct(64)), (2, Struct(32))]),
        SYS_timer_create => Described(&[(1, Struct(64)), (2, Struct(4))]),
        SYS_mq_getsetattr => Described(&[(1, Struct(64)), (2, Struct(64))]),
        SYS_rt_sigprocmask | SYS_get_robust_list => Described(&[(1, Struct(8)), (2, Struct(8))]),
        SYS_copy_file_range | SYS_splice => Described(&[(1, Struct(8)), (3, Struct(8))]),
        SYS_SETXATTRAT | SYS_GETXATTRAT => Described(&[(1, Text), (3, Text), (4, Bytes(5))]),
        SYS_process_vm_readv | SYS_process_vm_writev => {
            Described(&[(1, Vectors(2)), (3, Array(4, 16))])
        }
        SYS_migrate_pages => Described(&[(2, Bits(1)), (3, Bits(1))]),
        SYS_waitid => Described(&[(2, Struct(128)), (4, Struct(144))]),
        SYS_prlimit64 | SYS_clock_nanosleep => Described(&[(2, Struct(16)), (3, Struct(16))]),
        SYS_timer_settime | SYS_timerfd_settime => Described(&[(2, Struct(32)), (3, Struct(32))]),
        SYS_ptrace => Described(&[(2, Struct(64)), (3, TraceData)]),
        SYS_io_getevents => Described(&[(3, Array(2, 32)), (4, Struct(16))]),
        SYS_getsockopt => Described(&[(3, SizeBehind(4)), (4, Struct(4))]),
        SYS_mount => Described(&[(0, Text), (1, Text), (2, Text), (4, Struct(4096))]),
        SYS_prctl => Described(&[(1, Struct(4096)), (2, Struct(4096)), (4, Text)]),
        SYS_name_to_handle_at => Described(&[(1, Text), (2, Struct(136)), (3, Struct(8))]),
        SYS_ppoll => Described(&[(0, Array(1, 8)), (2, Struct(16)), (3, Struct(8))]),
        SYS_get_mempolicy => Described(&[(0, Struct(4)), (1, Bits(2)), (3, Struct(1))]),
        SYS_getresuid | SYS_getresgid => {
            Described(&[(0, Struct(4)), (1, Struct(4)), (2, Struct(4))])
        }
        SYS_futex => Described(&[(0, Struct(4)), (3, Struct(16)), (4, Struct(4))]),
        SYS_rt_sigtimedwait => Described(&[(0, Struct(8)), (1, Struct(128)), (2, Struct(16))]),
        SYS_epoll_pwait2 => Described(&[(1, Array(2, 12)), (3, Struct(16)), (4, Struct(8))]),
        SYS_mq_timedreceive => Described(&[(1, Bytes(2)), (3, Struct(4)), (4, Struct(16))]),
        SYS_recvfrom => Described(&[(1, Bytes(2)), (4, Struct(128)), (5, Struct(4))]),
        SYS_move_pages => Described(&[(2, Array(1, 8)), (3, Array(1, 4)), (4, Array(1, 4))]),
        SYS_IO_PGETEVENTS => Described(&[(3, Array(2, 32)), (4, Struct(16)), (5, Struct(16))]),
        SYS_select => Described(&[(1, Bits(0)), (2, Bits(0)), (3, Bits(0)), (4, Struct(16))]),
        SYS_keyctl => Described(&[
            (1, Struct(4096)),
            (2, LengthInNext(3)),
            (3, Struct(4096)),
            (4, Struct(4096)),
        ]),
        SYS_pselect6 => {
            Described(&[(1, Bits(0)), (2, Bits(0)), (3, Bits(0)), (4, Struct(16)), (5, Struct(16))])
        }
        SYS_io_setup => Refused(ENOSYS, &[(1, Struct(8))]),
        SYS_io_uring_setup => Refused(EPERM, &[(1, Struct(120))]),
        // The engine handles these for the window.
        SYS_mmap | SYS_munmap | SYS_mprotect | SYS_pkey_mprotect | SYS_madvise | SYS_mlock
        | SYS_mlock2 | SYS_munlock | SYS_msync | SYS_mseal | SYS_remap_file_pages => {
            Described(&[(0, Range)])
        }
        SYS_set_mempolicy_home_node => Described(&[(0, Range)]),
        SYS_shmat => Described(&[(1, Range)]),
        SYS_mremap => Described(&[(0, Range), (4, Range)]),
        SYS_mincore => Described(&[(0, Range), (2, Struct(4096))]),
        SYS_mbind => Described(&[(0, Range), (3, Bits(4))]),
        // A child of `clone` would return on an empty stack. The handler's return undoes
        // `sigaltstack`. The kernel uses the others' pointer when the thread exits.
        SYS_clone | SYS_clone3 | SYS_sigaltstack | SYS_set_robust_list | SYS_set_tid_address
        | SYS_rseq => Interposed,
        SYS_close | SYS_lseek | SYS_brk | SYS_rt_sigreturn | SYS_sched_yield | SYS_shmget
        | SYS_dup | SYS_dup2 | SYS_pause | SYS_alarm | SYS_getpid | SYS_socket | SYS_shutdown
        | SYS_listen | SYS_fork | SYS_vfork | SYS_exit | SYS_kill | SYS_semget | SYS_shmdt
        | SYS_msgget | SYS_flock | SYS_fsync | SYS_fdatasync | SYS_ftruncate | SYS_fchdir
        | SYS_fchmod | SYS_fchown | SYS_umask | SYS_getuid | SYS_getgid | SYS_setuid
        | SYS_setgid | SYS_geteuid | SYS_getegid | SYS_setpgid | SYS_getppid | SYS_getpgrp
        | SYS_setsid | SYS_setreuid | SYS_setregid | SYS_setresuid | SYS_setresgid
        | SYS_getpgid | SYS_setfsuid | SYS_setfsgid | SYS_getsid | SYS_personality
        | SYS_getpriority | SYS_setpriority | SYS_mlockall | SYS_munlockall | SYS_vhangup
        | SYS_sync | SYS_iopl | SYS_ioperm | SYS_gettid | SYS_readahead | SYS_tkill
        | SYS_io_destroy | SYS_epoll_create | SYS_restart_syscall | SYS_fadvise64
        | SYS_timer_getoverrun | SYS_timer_delete | SYS_exit_group | SYS_tgkill
        | SYS_ioprio_set | SYS_ioprio_get | SYS_inotify_init | SYS_inotify_rm_watch
        | SYS_unshare | SYS_tee | SYS_sync_file_range | SYS_timerfd_create | SYS_eventfd
        | SYS_fallocate | SYS_eventfd2 | SYS_epoll_create1 | SYS_dup3 | SYS_inotify_init1
        | SYS_fanotify_init | SYS_syncfs | SYS_setns | SYS_userfaultfd | SYS_membarrier
        | SYS_pkey_alloc | SYS_pkey_free | SYS_fsmount | SYS_pidfd_open | SYS_close_range
        | SYS_pidfd_getfd | SYS_memfd_secret | SYS_process_mrelease | SYS_MAP_SHADOW_STACK
        | SYS_URETPROBE | SYS_UPROBE => NoPointer,
        SYS_sched_getscheduler
        | SYS_sched_get_priority_max
        | SYS_sched_get_priority_min
        | SYS_landlock_restrict_self => NoPointer,
        // Not implemented on x86_64 (ENOSYS).
        SYS__sysctl | 174 | 177 | 178 | SYS_nfsservctl | SYS_getpmsg | SYS_putpmsg
        | SYS_afs_syscall | SYS_tuxcall | SYS_security | SYS_set_thread_area
        | SYS_get_thread_area | SYS_epoll_ctl_old | SYS_epoll_wait_old | SYS_vserver => NoPointer,
        _ => return None,
    })
}

/// Exclusive upper bound.
pub const MAX_NUMBER: usize = 470;
