//! Locks for long writes to one file.
//!
//! Linux writes to a regular file under a lock of the file, so concurrent writes are not mixed. A
//! write that is cut into pieces holds a lock here for all of its pieces. So do long writes that
//! are not cut, and, in this process, short ones to a file while any lock is held. Processes of one
//! tree exclude each other by a record lock on the tree's ledger, which the kernel releases when a
//! process exits.
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

/// Number of locks. Files with the same number modulo this share a lock.
const TURNS: usize = 16;
/// Longest wait for another process, in nanoseconds. A stopped process keeps its lock.
const MAX_WAIT_NS: u64 = 10_000_000_000;
/// Offset of the record locks in the ledger's file, beyond its end.
const FIRST_BYTE: i64 = 1 << 40;

static LOCKS: [Lock; TURNS] = [const { Lock::new() }; TURNS];
/// Locks held or waited for in this process.
static TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Lock held by this thread.
    static OWN: Cell<Option<Taken>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Taken {
    index: usize,
    /// Descriptor of the ledger, if its record lock is held, too.
    ledger: Option<i32>,
}

/// Signals that a fault or a filter raises: they kill if they are blocked.
const OPEN: Mask = bit(libc::SIGBUS)
    | bit(libc::SIGSYS)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP);

/// A held lock, released on drop.
pub(crate) struct Turn {
    mask: Mask,
}

/// Returns true if a write in progress in this process holds a lock.
pub(crate) fn are_taken() -> bool {
    TAKEN.load(Ordering::Relaxed) > 0
}

impl Turn {
    pub(crate) fn take(file: u64) -> Turn {
        let mask = signals::current_mask();
        signals::set_mask(!OPEN | mask);
        TAKEN.fetch_add(1, Ordering::SeqCst);
        let index = (file % TURNS as u64) as usize;
        LOCKS[index].lock();
        // The program's filter may forbid this call.
        let ledger = if exemption::is_in_force() { None } else { tree::ledger_descriptor() };
        let ledger = ledger.filter(|ledger| lock_in_tree(*ledger, index));
        OWN.set(Some(Taken { index, ledger }));
        guarded_call::note_effect();
        guarded_call::release_by(Some(release));
        Turn { mask }
    }
}

fn release() {
    let Some(Taken { index, ledger }) = OWN.take() else { return };
    if let Some(ledger) = ledger {
        record_lock(ledger, index, libc::F_UNLCK);
    }
    LOCKS[index].unlock();
    TAKEN.fetch_sub(1, Ordering::SeqCst);
}

impl Drop for Turn {
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

/// Locks a byte of the ledger's file. Returns false on failure or timeout.
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

/// Releases, in a forked child, the locks of its parent's threads.
pub(crate) fn become_child() {
    LOCKS.iter().for_each(Lock::unlock);
    TAKEN.store(0, Ordering::SeqCst);
}
