//! Shows the advertised memory to the program as that of the machine and of its control group.
//!
//! The C library's `sysinfo`, `open` and `openat` are redirected, with all their aliases.
//! `sysconf`, `get_phys_pages`, `fopen` and the C++ library call these. A file about memory is
//! replaced, under the same descriptor, by a sealed memfd with the changed text.
//!
//! Go and static programs, with system-call instructions of their own, get the kernel's text.

mod files;

use crate::base::cancellation::{uncancelled, until_cancelled};
use crate::base::errno::c_result;
use crate::base::instance;
use crate::base::issue_call::{Answer, Arguments, engine_syscall, pass_on};
use crate::base::uaccess;
use crate::memory::{asleep, libc_malloc_patch};
use crate::process::{tree, tree_account};
use files::Advertised;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use softswap_sys::exemption;
use softswap_sys::memory::dram_bytes;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Advertised memory; 0: the machine's.
static TOTAL_BYTES: AtomicU64 = AtomicU64::new(0);
/// Maximum number of bytes read of a file. The kernel's files about memory have less than 2 KiB.
const MAX_BYTES: u64 = 64 << 10;

/// Makes the program see `total_bytes` of memory. Called before the program starts.
///
/// # Errors
/// If the system does not allow code of a library to be changed.
pub(crate) fn begin(total_bytes: u64) -> io::Result<()> {
    if total_bytes == 0 {
        return Ok(());
    }
    TOTAL_BYTES.store(total_bytes, Relaxed);
    libc_malloc_patch::patch(&[
        (c"sysinfo", sysinfo as *const _),
        (c"open64", open as *const _),
        (c"openat64", openat as *const _),
    ])
}

pub(super) fn answer_for(number: i64) -> Option<Answer> {
    if TOTAL_BYTES.load(Relaxed) == 0 {
        return None;
    }
    match number {
        libc::SYS_sysinfo => Some(answer_sysinfo),
        libc::SYS_openat => Some(answer_openat),
        libc::SYS_open => Some(|[path, flags, mode, ..]| {
            answer_openat([libc::AT_FDCWD as usize, path, flags, mode, 0, 0])
        }),
        _ => None,
    }
}

fn advertised() -> Advertised {
    Advertised { total_bytes: TOTAL_BYTES.load(Relaxed), used_bytes: used_bytes() }
}

/// Returns the bytes in DRAM and swap areas, of the tree or of a process with its own budget.
fn used_bytes() -> u64 {
    tree::used_bytes_of_all().unwrap_or_else(|| match instance::engine() {
        Some(engine) => tree_account::sizes(engine).used_bytes(),
        None => asleep::committed_bytes() as u64,
    })
}

fn answer_sysinfo([to, ..]: Arguments) -> isize {
    let mut info: libc::sysinfo = softswap_sys::AnyBits::zeroed();
    let result = engine_syscall(libc::SYS_sysinfo, [&raw mut info as usize, 0, 0, 0, 0, 0]);
    if result < 0 {
        return result;
    }
    let advertised = advertised();
    let units = |bytes: u64| bytes / u64::from(info.mem_unit.max(1));
    info.totalram = units(advertised.total_bytes);
    info.freeram = units(advertised.free_bytes());
    (info.sharedram, info.bufferram, info.totalswap, info.freeswap) = (0, 0, 0, 0);
    (info.totalhigh, info.freehigh) = (0, 0);
    if uaccess::put_user(to, info) { 0 } else { -(libc::EFAULT as isize) }
}

fn answer_openat(arguments: Arguments) -> isize {
    let opened = pass_on(libc::SYS_openat, arguments);
    if let Ok(fd @ 0..) = i32::try_from(opened) {
        advertise(fd, arguments[2] as i32);
    }
    opened
}

extern "C" fn sysinfo(info: usize) -> i32 {
    c_result(answer_sysinfo([info, 0, 0, 0, 0, 0])) as i32
}

extern "C" fn open(path: usize, flags: i32, mode: u32) -> i32 {
    openat(libc::AT_FDCWD, path, flags, mode)
}

/// A cancellation point. Without a flag that creates a file the kernel ignores `mode`.
extern "C" fn openat(dir: i32, path: usize, flags: i32, mode: u32) -> i32 {
    let arguments = [dir as usize, path, flags as usize, mode as usize, 0, 0];
    let opened = until_cancelled(|| pass_on(libc::SYS_openat, arguments));
    if let Ok(fd @ 0..) = i32::try_from(opened) {
        advertise(fd, flags);
    }
    c_result(opened) as i32
}

/// On failure the program reads the kernel's text.
fn advertise(fd: i32, flags: i32) {
    let _ = uncancelled(|| replace(fd, flags));
}

/// Checks the file system's type, to cover symbolic links and a container's /proc/meminfo (lxcfs).
fn may_be_kernels(fd: BorrowedFd<'_>) -> bool {
    const FUSE: i64 = 0x6573_5546;
    const KINDS: [i64; 5] = [
        libc::PROC_SUPER_MAGIC,
        libc::SYSFS_MAGIC,
        libc::CGROUP_SUPER_MAGIC,
        libc::CGROUP2_SUPER_MAGIC,
        FUSE,
    ];
    rustix::fs::fstatfs(fd).is_ok_and(|found| KINDS.contains(&found.f_type))
}

fn replace(fd: i32, flags: i32) -> io::Result<()> {
    let is_read = flags & libc::O_ACCMODE == libc::O_RDONLY;
    // A filter of the program may not allow the calls below.
    if exemption::is_in_force() || !is_read || flags & (libc::O_PATH | libc::O_DIRECTORY) != 0 {
        return Ok(());
    }
    // SAFETY: opened just now for the program, which does not know the number yet.
    let opened = unsafe { BorrowedFd::borrow_raw(fd) };
    if !may_be_kernels(opened) {
        return Ok(());
    }
    let path = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new())?;
    let Ok(path) = path.to_str() else { return Ok(()) };
    // Checked before the file is read: reads of other files may block (`/proc/kmsg`).
    if files::rewritten(path, "Node 0 MemTotal: 0 kB\n", advertised(), 1).is_none() {
        return Ok(());
    }
    let mut text = String::new();
    // SAFETY: as above. The file is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    (&*file).take(MAX_BYTES).read_to_string(&mut text)?;
    let Some(text) = files::rewritten(path, &text, advertised(), dram_bytes()) else {
        return Ok(());
    };
    let closes = OFlags::from_bits_retain(flags as u32) & OFlags::CLOEXEC;
    let sealed = sealed(&text)?;
    let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
    let read_only = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let arguments = [read_only.as_raw_fd() as usize, fd as usize, closes.bits() as usize, 0, 0, 0];
    engine_syscall(libc::SYS_dup3, arguments);
    Ok(())
}

fn sealed(text: &str) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("meminfo", flags)?);
    file.write_all(text.as_bytes())?;
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, all)?;
    Ok(file)
}
