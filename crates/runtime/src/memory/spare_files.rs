//! Files for copies where a filter of the program's own may forbid to open one: opened
//! before it is in force, and used one call after the other.
//!
//! A file has storage only while a call uses it. The kernel is asked by the engine's
//! instruction, for what [`softswap_sys::exemption`] lists.

use crate::base::issue_call::ask;
use softswap_sys::{descriptor, file};
use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// So many calls can have copies in files at a time.
const FILES: usize = 2;

struct Spare {
    /// -1: none.
    fd: AtomicI32,
    /// What file that is: its number and its device's.
    identity: [AtomicU64; 2],
    is_used: AtomicBool,
}

static SPARES: [Spare; FILES] = [const {
    Spare {
        fd: AtomicI32::new(-1),
        identity: [const { AtomicU64::new(0) }; 2],
        is_used: AtomicBool::new(false),
    }
}; FILES];

fn identity_of(fd: i32) -> Option<[u64; 2]> {
    // SAFETY: all-zero is a valid stat to write over.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let found = ask(libc::SYS_fstat, [fd as usize, &raw mut stat as usize, 0, 0, 0, 0]);
    (found == 0).then_some([stat.st_ino, stat.st_dev])
}

/// Opens the files in the first of these directories that takes them, if there are none.
pub(crate) fn open(directories: &[PathBuf]) {
    for spare in &SPARES {
        if spare.fd.load(Ordering::Acquire) >= 0 {
            continue;
        }
        let opened = directories.iter().find_map(|directory| file::open_for_copies(directory).ok());
        let Some(opened) = opened else { return };
        let fd = descriptor::move_high(opened).into_raw_fd();
        let Some(identity) = identity_of(fd) else { return };
        for (word, value) in spare.identity.iter().zip(identity) {
            word.store(value, Ordering::Relaxed);
        }
        spare.fd.store(fd, Ordering::Release);
    }
}

/// In a forked child: they are its parent's. They stay open, because a filter may forbid
/// to close them.
pub(crate) fn forget() {
    for spare in &SPARES {
        spare.fd.store(-1, Ordering::Release);
        spare.is_used.store(false, Ordering::Release);
    }
}

/// Whether there are any.
pub(crate) fn are_there() -> bool {
    SPARES[0].fd.load(Ordering::Acquire) >= 0
}

/// How long the program's files may get.
pub(crate) fn file_limit_bytes() -> usize {
    let mut limit = [u64::MAX; 2];
    let at = &raw mut limit as usize;
    ask(libc::SYS_prlimit64, [0, libc::RLIMIT_FSIZE as usize, 0, at, 0, 0]);
    limit[0] as usize
}

/// Maps `len` bytes of a file that nobody uses; the address, and for [`give_back`] which.
pub(crate) fn map(len: usize) -> Option<(usize, u32)> {
    if file_limit_bytes() < len {
        // Not tried: the kernel would send SIGXFSZ.
        return None;
    }
    let is_free = |spare: &&Spare| {
        spare.fd.load(Ordering::Acquire) >= 0 && !spare.is_used.swap(true, Ordering::AcqRel)
    };
    let (index, spare) = SPARES.iter().enumerate().find(|(_, spare)| is_free(spare))?;
    let which = index as u32 + 1;
    let fd = spare.fd.load(Ordering::Relaxed) as usize;
    let identity = spare.identity.each_ref().map(|word| word.load(Ordering::Relaxed));
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // Storage at once: a page without any would be refused when it is touched.
    let address = if identity_of(fd as i32) != Some(identity)
        || ask(libc::SYS_fallocate, [fd, 0, 0, len, 0, 0]) < 0
    {
        -1
    } else {
        ask(libc::SYS_mmap, [0, len, prot, libc::MAP_SHARED as usize, fd, 0])
    };
    if address < 0 {
        give_back(which);
        return None;
    }
    Some((address as usize, which))
}

/// The file is not mapped any more.
pub(crate) fn give_back(which: u32) {
    let Some(spare) = (which as usize).checked_sub(1).and_then(|index| SPARES.get(index)) else {
        return;
    };
    let fd = spare.fd.load(Ordering::Acquire);
    let identity = spare.identity.each_ref().map(|word| word.load(Ordering::Relaxed));
    if fd >= 0 && identity_of(fd) == Some(identity) {
        ask(libc::SYS_ftruncate, [fd as usize, 0, 0, 0, 0, 0]);
    }
    spare.is_used.store(false, Ordering::Release);
}
