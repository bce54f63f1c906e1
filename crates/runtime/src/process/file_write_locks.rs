//! Locks for long writes to one file.
//!
//! Linux writes to a regular file under a lock of the file, so concurrent writes are not mixed. A
//! write that is split into pieces holds one of these locks for all of them. So do long writes that
//! are not split, and short writes while this process uses any lock. Processes of one tree exclude
//! each other by a record lock on the tree's ledger, which the kernel releases at exit.
//!
//! No handler of the program runs while a lock is held, as none runs during Linux's write.

use super::tree;
use crate::base::guarded_call;
use crate::base::issue_call::engine_syscall;
use softswap_sys::futex::Lock;
use softswap_sys::raw::now_ns;
use softswap_sys::signals::{self, Mask, bit};
use softswap_sys::{exemption, futex};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of locks. Files whose inode numbers are equal modulo this share a lock.
const LOCK_COUNT: usize = 16;
/// Longest wait for a lock of another process, in nanoseconds: a stopped process keeps its lock.
const MAX_WAIT_NS: u64 = 10_000_000_000;
/// Offset of the record locks in the ledger's file, beyond its end.
const FIRST_BYTE: i64 = 1 << 40;

static LOCKS: [Lock; LOCK_COUNT] = [const { Lock::new() }; LOCK_COUNT];
static IN_USE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static OWN: Cell<Option<Held>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Held {
    index: usize,
    /// Descriptor of the ledger, if its record lock is held, too.
    ledger: Option<i32>,
}

/// A fault or a filter raises these signals; the kernel kills the process if they are blocked.
const UNBLOCKED: Mask = bit(libc::SIGBUS)
    | bit(libc::SIGSYS)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP);

pub(crate) struct FileWriteLock {
    mask: Mask,
}

pub(crate) fn are_in_use() -> bool {
    IN_USE.load(Ordering::Relaxed) > 0
}

impl FileWriteLock {
    pub(crate) fn take(file: u64) -> FileWriteLock {
        let mask = signals::current_mask();
        signals::set_mask(!UNBLOCKED | mask);
        IN_USE.fetch_add(1, Ordering::SeqCst);
        let index = (file % LOCK_COUNT as u64) as usize;
        LOCKS[index].lock();
        // The program's filter may forbid the `fcntl` of a record lock.
        let ledger = if exemption::is_in_force() { None } else { tree::ledger_descriptor() };
        let ledger = ledger.filter(|ledger| lock_in_tree(*ledger, index));
        OWN.set(Some(Held { index, ledger }));
        guarded_call::note_effect();
        guarded_call::release_by(Some(release));
        FileWriteLock { mask }
    }
}

fn release() {
    let Some(Held { index, ledger }) = OWN.take() else { return };
    if let Some(ledger) = ledger {
        record_lock(ledger, index, libc::F_UNLCK);
    }
    LOCKS[index].unlock();
    IN_USE.fetch_sub(1, Ordering::SeqCst);
}

impl Drop for FileWriteLock {
    fn drop(&mut self) {
        guarded_call::release_by(None);
        release();
        signals::set_mask(self.mask);
    }
}

fn record_lock(ledger: i32, index: usize, kind: i32) -> isize {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: FIRST_BYTE + index as i64,
        l_len: 1,
        l_pid: 0,
    };
    let at = &raw const lock as usize;
    engine_syscall(libc::SYS_fcntl, [ledger as usize, libc::F_SETLK as usize, at, 0, 0, 0])
}

/// Locks the byte of the ledger's file that stands for a lock. Returns false on failure or timeout.
fn lock_in_tree(ledger: i32, index: usize) -> bool {
    const TAKEN_BY_ANOTHER: [isize; 2] = [-(libc::EAGAIN as isize), -(libc::EACCES as isize)];
    let since = now_ns();
    let mut turns = 0;
    loop {
        let result = record_lock(ledger, index, libc::F_WRLCK);
        if !TAKEN_BY_ANOTHER.contains(&result) {
            return result == 0;
        }
        if now_ns() - since > MAX_WAIT_NS {
            return false;
        }
        futex::relax(&mut turns);
    }
}

pub(crate) fn become_child() {
    LOCKS.iter().for_each(Lock::unlock);
    IN_USE.store(0, Ordering::SeqCst);
}
