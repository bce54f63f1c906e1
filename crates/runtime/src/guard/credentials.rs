//! Calls that change a thread's rights or environment: credentials, capabilities, namespaces,
//! filters, and per-thread settings of `prctl`.
//!
//! Linux changes only the calling thread, and refuses some of these calls in a multi-threaded
//! process. So the engine's threads exit before each of them, and start again after it with the
//! caller's rights ([`engine_threads`]). Calls that the C library makes in all threads (`setuid`
//! and related ones) apply to the engine's threads, too.

use super::filter_install;
use super::pinned_call::issue_pinned;
use crate::base::errno::c_result;
use crate::base::issue_call::{Answer, Arguments, engine_syscall, is_our_own};
use crate::base::real::real;
use crate::base::{instance, uaccess};
use crate::memory::sleep_gate;
use crate::process::engine_threads;
use softswap_sys::nested_pointer_table::{SYS_LSM_SET_SELF_ATTR, structure_of};
use std::ffi::c_void;

/// Refused, as by a kernel without KSM: a merged page loses its protection (Linux 6.18).
const PR_SET_MEMORY_MERGE: i32 = 67;

/// Returns true if an option of `prctl` changes the rights of the calling thread only.
fn concerns_threads(option: usize) -> bool {
    matches!(
        option as i32,
        libc::PR_SET_KEEPCAPS
            | libc::PR_CAPBSET_DROP
            | libc::PR_SET_SECUREBITS
            | libc::PR_SET_NO_NEW_PRIVS
            | libc::PR_CAP_AMBIENT
            | libc::PR_SET_SPECULATION_CTRL
    )
}

fn without_engine_threads<const NUMBER: i64>(arguments: Arguments) -> isize {
    engine_threads::without(|| issue_pinned(NUMBER, arguments))
}

fn keyctl(arguments: Arguments) -> isize {
    const JOIN_SESSION_KEYRING: usize = 1;
    match arguments[0] {
        JOIN_SESSION_KEYRING => without_engine_threads::<{ libc::SYS_keyctl }>(arguments),
        _ => issue_pinned(libc::SYS_keyctl, arguments),
    }
}

fn control(arguments: Arguments) -> isize {
    match arguments[0] as i32 {
        libc::PR_SET_SECCOMP => filter_install::set_by_prctl(arguments),
        libc::PR_GET_SECCOMP => filter_install::mode(arguments),
        PR_SET_MEMORY_MERGE if arguments[1] != 0 => -(libc::EINVAL as isize),
        _ if concerns_threads(arguments[0]) => {
            without_engine_threads::<{ libc::SYS_prctl }>(arguments)
        }
        _ => issue_pinned(libc::SYS_prctl, arguments),
    }
}

pub(crate) fn answer_for(number: i64) -> Option<Answer> {
    let answer = answer_of(number)?;
    // Wake first: the rights after the call may not suffice for starting an engine.
    instance::awake().map(|_| answer)
}

fn answer_of(number: i64) -> Option<Answer> {
    Some(match number {
        libc::SYS_prctl => control,
        libc::SYS_seccomp => filter_install::set,
        libc::SYS_capset => without_engine_threads::<{ libc::SYS_capset }>,
        libc::SYS_unshare => without_engine_threads::<{ libc::SYS_unshare }>,
        libc::SYS_setns => without_engine_threads::<{ libc::SYS_setns }>,
        libc::SYS_setuid => without_engine_threads::<{ libc::SYS_setuid }>,
        libc::SYS_setgid => without_engine_threads::<{ libc::SYS_setgid }>,
        libc::SYS_setreuid => without_engine_threads::<{ libc::SYS_setreuid }>,
        libc::SYS_setregid => without_engine_threads::<{ libc::SYS_setregid }>,
        libc::SYS_setresuid => without_engine_threads::<{ libc::SYS_setresuid }>,
        libc::SYS_setresgid => without_engine_threads::<{ libc::SYS_setresgid }>,
        libc::SYS_setfsuid => without_engine_threads::<{ libc::SYS_setfsuid }>,
        libc::SYS_setfsgid => without_engine_threads::<{ libc::SYS_setfsgid }>,
        libc::SYS_setgroups => without_engine_threads::<{ libc::SYS_setgroups }>,
        libc::SYS_keyctl => keyctl,
        libc::SYS_landlock_restrict_self => {
            without_engine_threads::<{ libc::SYS_landlock_restrict_self }>
        }
        SYS_LSM_SET_SELF_ATTR => without_engine_threads::<SYS_LSM_SET_SELF_ATTR>,
        _ => return None,
    })
}

/// `None` for `setgroups`: the C library makes it in each thread, none of which can wait for the
/// engine's threads to exit. The other calls that it makes in all threads pass no pointer.
pub(crate) fn answer_for_trapped(number: i64) -> Option<Answer> {
    if number == libc::SYS_setgroups { None } else { answer_for(number) }
}

/// The C library makes the call in each thread from a signal handler, which may interrupt code in
/// which no page can be faulted in. So it gets a resident copy of the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setgroups(count: usize, list: *const libc::gid_t) -> i32 {
    real!(setgroups: fn(usize, *const libc::gid_t) -> i32);
    /// The kernel rejects longer lists before it reads them.
    const MAX: usize = 65536;
    if !instance::is_managed(list as usize) {
        // SAFETY: the C library's function of this name; the program passes the arguments.
        return unsafe { setgroups()(count, list) };
    }
    let mut copy = vec![0; count.min(MAX) * size_of::<libc::gid_t>()];
    let can_be_read = uaccess::copy_from_user(list as usize, &mut copy);
    let list = if can_be_read { copy.as_ptr().cast() } else { std::ptr::null() };
    // SAFETY: the copy has `count` entries; the kernel rejects null and a larger `count`.
    unsafe { setgroups()(count, list) }
}

/// The program passes only the option's arguments; reading the other registers is harmless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: i32, a: usize, b: usize, c: usize, d: usize) -> i32 {
    real!(prctl: fn(i32, usize, usize, usize, usize) -> i32);
    let own = matches!(option, libc::PR_SET_SECCOMP | libc::PR_GET_SECCOMP | PR_SET_MEMORY_MERGE);
    let arguments = [option as usize, a, b, c, d, 0];
    if (own || concerns_threads(option as usize)) && instance::awake().is_some() {
        return c_result(control(arguments)) as i32;
    }
    if option == libc::PR_SET_DUMPABLE && a == 0 {
        // Wake now: a process that is not dumpable cannot read its /proc files.
        instance::awake();
    }
    // mimalloc in this library would name its memory; skip the call.
    if option == libc::PR_SET_VMA && is_our_own(d) {
        return 0;
    }
    if structure_of(libc::SYS_prctl, &arguments).is_some() {
        return c_result(issue_pinned(libc::SYS_prctl, arguments)) as i32;
    }
    // SAFETY: the C library's function of this name; the program passes the arguments.
    unsafe { prctl()(option, a, b, c, d) }
}

/// Defines functions whose calls the C library makes only for the calling thread.
macro_rules! without_engine_threads {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
            real!($name: fn($($ty),*) -> i32);
            instance::awake();
            // SAFETY: the C library's function of this name; the program passes the arguments.
            engine_threads::without(|| unsafe { $name()($($arg),*) })
        }
    )*};
}

without_engine_threads! {
    capset(header: *mut c_void, data: *const c_void);
    unshare(flags: i32);
    setns(fd: i32, kind: i32);
    setfsuid(uid: libc::uid_t);
    setfsgid(gid: libc::gid_t);
}

/// Defines functions that first wake a sleeping process. After these calls it could not start an
/// engine: the swap directory would be out of reach, the guard not permitted, or a limit too low.
macro_rules! waking {
    ($($name:ident($($arg:ident: $ty:ty),*) $(if $condition:expr)?;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
            real!($name: fn($($ty),*) -> i32);
            if true $(&& $condition)? {
                instance::awake();
            }
            // Waking raises a limit temporarily, so the process must not wake during this call.
            let _inside = sleep_gate::enter();
            // SAFETY: the C library's function of this name; the program passes the arguments.
            unsafe { $name()($($arg),*) }
        }
    )*};
}

fn lowers(resource: u32, limit: Limit) -> bool {
    const NEEDED: [u32; 5] = [
        libc::RLIMIT_AS,
        libc::RLIMIT_FSIZE,
        libc::RLIMIT_MEMLOCK,
        libc::RLIMIT_NOFILE,
        libc::RLIMIT_NPROC,
    ];
    if !NEEDED.contains(&resource) || !instance::may_wake() {
        return false;
    }
    let mut now = [0_u64; 2];
    engine_syscall(libc::SYS_prlimit64, [0, resource as usize, 0, now.as_mut_ptr() as usize, 0, 0]);
    let Some(new) = uaccess::words::<2>(limit as usize) else { return false };
    new.iter().zip(&now).any(|(new, now)| (*new as u64) < *now)
}

type Limit = *const c_void;

waking! {
    chroot(path: *const std::ffi::c_char);
    setuid(uid: libc::uid_t);
    seteuid(uid: libc::uid_t);
    setreuid(real: libc::uid_t, effective: libc::uid_t);
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t);
    setrlimit(resource: u32, limit: Limit) if lowers(resource, limit);
    setrlimit64(resource: u32, limit: Limit) if lowers(resource, limit);
    prlimit(pid: i32, resource: u32, new: Limit, old: *mut c_void)
        if !new.is_null() && lowers(resource, new);
    prlimit64(pid: i32, resource: u32, new: Limit, old: *mut c_void)
        if !new.is_null() && lowers(resource, new);
}
