//! What is sent while it is believed to be blocked waits here, as it would in the kernel:
//! one of each kind for the process, and one for each thread.
//!
//! The kernel gives what is sent to the process to any thread, because it knows of none
//! that blocks it. Where that thread does not take it, believing that it blocks it, or
//! being the engine's own, it waits for the process, and a thread that does take it is told
//! to look here: one that waits for it, or does not block it. A thread that begins to take
//! a signal looks by itself, and one that ends leaves it to another.
//!
//! A forked child has nothing pending; what `exec` begins has all of it, for which it is
//! given back to the kernel.

use super::{OURS, waiting};
use softswap_sys::futex::Lock;
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, SIGSYS, siginfo_t};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// The kernel's part of a signal's details; the rest is zero.
type Details = [u64; 6];

/// One of each kind.
type Held = [Cell<Option<Details>>; 2];

const fn nothing() -> Held {
    [const { Cell::new(None) }; 2]
}

/// Whether anything was ever held: as long as there was not, there is no need to look.
/// Set before what others believe is read, and read after what this thread believes is set,
/// so one of both sees the other.
static ANY: AtomicBool = AtomicBool::new(false);

fn place_of(signal: i32) -> usize {
    usize::from(signal == SIGSYS)
}

fn keep(held: &Held, signal: i32, info: &siginfo_t) {
    let held = &held[place_of(signal)];
    if held.get().is_none() {
        // SAFETY: the words lie within siginfo_t, of which every byte is initialised.
        held.set(Some(unsafe { ptr::from_ref(info).cast::<Details>().read() }));
    }
}

fn told(details: Details) -> siginfo_t {
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: within siginfo_t.
    unsafe { (&raw mut info).cast::<Details>().write(details) };
    info
}

/// A thread. Others look at it while it is in the list.
struct Thread {
    number: AtomicI32,
    /// Which of the engine's signals it believes to block, and which it waits for.
    believed: AtomicU64,
    waits_for: AtomicU64,
    is_engines: Cell<bool>,
    /// Whether it has the lock for the time of a fork.
    is_forking: Cell<bool>,
    // The rest is touched under the lock.
    is_listed: Cell<bool>,
    next: Cell<*const Thread>,
    before: Cell<*const Thread>,
    held: Held,
}

thread_local! {
    static ME: Thread = const {
        Thread {
            number: AtomicI32::new(0),
            believed: AtomicU64::new(0),
            waits_for: AtomicU64::new(0),
            is_engines: Cell::new(false),
            is_forking: Cell::new(false),
            is_listed: Cell::new(false),
            next: Cell::new(ptr::null()),
            before: Cell::new(ptr::null()),
            held: nothing(),
        }
    };
}

/// What all threads have in common; touched under the lock.
struct Process {
    first: Cell<*const Thread>,
    held: Held,
}

struct Shared {
    lock: Lock,
    process: Process,
}

// SAFETY: `process`, and what is listed there, is touched under the lock only.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    lock: Lock::new(),
    process: Process { first: Cell::new(ptr::null()), held: nothing() },
};

/// Runs `body` under the lock, for this thread.
fn with<R>(body: impl FnOnce(&Process, &Thread) -> R) -> R {
    signals::with_all_blocked(|| {
        ME.with(|me| {
            // While it forks, this thread has the lock already, and is here because a
            // signal has arrived: nothing is half done.
            let has_lock = me.is_forking.get();
            if !has_lock {
                SHARED.lock.lock();
            }
            let result = body(&SHARED.process, me);
            if !has_lock {
                SHARED.lock.unlock();
            }
            result
        })
    })
}

/// Keeps other threads from holding the lock while this one forks.
pub(super) fn lock_for_fork() {
    SHARED.lock.lock();
    ME.with(|me| me.is_forking.set(true));
}

/// Ends what [`lock_for_fork`] began.
pub(super) fn unlock_after_fork() {
    ME.with(|me| me.is_forking.set(false));
    SHARED.lock.unlock();
}

/// Whether this thread has the lock for the time of a fork.
pub(super) fn is_forking() -> bool {
    ME.with(|me| me.is_forking.get())
}

/// A thread of the list, if there is one.
fn listed(_of: &Process, thread: *const Thread) -> Option<&Thread> {
    // SAFETY: null, or in the list: a thread takes itself out before it ends, under the
    // lock, which is held.
    unsafe { thread.as_ref() }
}

impl Process {
    /// Puts a thread into the list, first.
    fn list(&self, thread: &Thread) {
        thread.is_listed.set(true);
        thread.before.set(ptr::null());
        thread.next.set(self.first.replace(thread));
        if let Some(next) = listed(self, thread.next.get()) {
            next.before.set(thread);
        }
    }

    fn unlist(&self, thread: &Thread) {
        if !thread.is_listed.replace(false) {
            return;
        }
        match listed(self, thread.before.get()) {
            Some(before) => before.next.set(thread.next.get()),
            None => self.first.set(thread.next.get()),
        }
        if let Some(next) = listed(self, thread.next.get()) {
            next.before.set(thread.before.get());
        }
    }

    fn threads(&self) -> impl Iterator<Item = &Thread> {
        let first = listed(self, self.first.get());
        std::iter::successors(first, |thread| listed(self, thread.next.get()))
    }

    /// Lets a thread that takes the signal know that there is one: the first thread of the
    /// process rather than others, as the kernel does.
    fn tell(&self, signal: i32) {
        if self.held[place_of(signal)].get().is_none() {
            return;
        }
        let bit = signals::bit(signal);
        let first = raw::current_process() as i32;
        let (poke, me) = (waiting::poke(signal), raw::current_thread());
        let takes = |thread: &&Thread| {
            thread.waits_for.load(Ordering::SeqCst) & bit != 0
                || thread.believed.load(Ordering::SeqCst) & bit == 0
        };
        let is_first = |thread: &&Thread| thread.number.load(Ordering::Relaxed) == first;
        let others = self.threads().filter(|thread| !is_first(thread));
        for thread in self.threads().filter(is_first).chain(others).filter(takes) {
            let number = thread.number.load(Ordering::Relaxed);
            // This one looks by itself: before it waits, or when it has forked.
            // SAFETY: details made for this.
            let tell = || unsafe { signals::send_with(number, signal, &raw const poke) };
            if number == me || tell().is_ok() {
                return;
            }
        }
    }
}

/// From now on this thread is told of signals that it takes.
pub(super) fn enter() {
    with(|process, me| {
        me.number.store(raw::current_thread(), Ordering::Relaxed);
        if !me.is_listed.get() {
            process.list(me);
        }
    });
}

/// This thread ends: what is pending for the process is for others.
pub(super) fn leave() {
    with(|process, me| {
        process.unlist(me);
        me.waits_for.store(0, Ordering::Relaxed);
        super::belief::kinds(OURS).for_each(|signal| process.tell(signal));
    });
}

/// This thread is the engine's.
pub(super) fn be_engines() {
    ME.with(|me| me.is_engines.set(true));
}

/// Whether this thread takes nothing that is sent, whatever it blocks.
pub(super) fn takes_nothing() -> bool {
    ME.with(|me| me.is_engines.get() || me.is_forking.get())
}

/// Which of the engine's signals this thread believes it has blocked.
pub(super) fn believed() -> Mask {
    ME.with(|me| me.believed.load(Ordering::Relaxed))
}

pub(super) fn believe(mask: Mask) {
    ME.with(|me| me.believed.store(mask, Ordering::SeqCst));
}

/// This thread waits for these, or for none any more.
pub(super) fn wait_for(mask: Mask) {
    with(|process, me| {
        let before = me.waits_for.swap(mask, Ordering::SeqCst);
        super::belief::kinds(before & !mask).for_each(|signal| process.tell(signal));
    });
}

/// Whether this thread waits for it.
pub(super) fn is_waiting_for(signal: i32) -> bool {
    ME.with(|me| me.waits_for.load(Ordering::Relaxed) & signals::bit(signal) != 0)
}

/// Keeps a sent signal that this thread does not take. What was sent to this very thread
/// waits for it.
pub(super) fn hold(signal: i32, info: &siginfo_t) {
    with(|process, me| {
        ANY.store(true, Ordering::SeqCst);
        if info.si_code == libc::SI_TKILL && !me.is_engines.get() {
            keep(&me.held, signal, info);
        } else {
            keep(&process.held, signal, info);
            process.tell(signal);
        }
    });
}

/// A thread that was told to look does not take the signal by now: another is told.
pub(super) fn pass_on(signal: i32) {
    with(|process, _| process.tell(signal));
}

/// Takes what this thread may take.
pub(super) fn take(signal: i32) -> Option<siginfo_t> {
    if !ANY.load(Ordering::SeqCst) {
        return None;
    }
    let place = place_of(signal);
    with(|process, me| me.held[place].take().or_else(|| process.held[place].take())).map(told)
}

/// The signals of which there is one that this thread may take.
pub(super) fn held() -> Mask {
    with(|process, me| {
        let is_held = |signal: &i32| {
            let place = place_of(*signal);
            process.held[place].get().is_some() || me.held[place].get().is_some()
        };
        let all = super::belief::kinds(OURS).filter(is_held);
        all.fold(0, |mask, signal| mask | signals::bit(signal))
    })
}

/// The program ignores the signal from now on: what is pending of it is gone.
pub(super) fn forget(signal: i32) {
    let place = place_of(signal);
    with(|process, me| {
        process.held[place].set(None);
        me.held[place].set(None);
        process.threads().for_each(|thread| thread.held[place].set(None));
    });
}

/// This process is a forked child, or has just begun: of its threads there is this one,
/// and nothing is pending.
pub(super) fn become_child() {
    with(|process, me| {
        process.first.set(ptr::null());
        process.held.iter().chain(&me.held).for_each(|held| held.set(None));
        me.waits_for.store(0, Ordering::Relaxed);
        me.number.store(raw::current_thread(), Ordering::Relaxed);
        if me.is_listed.get() {
            process.list(me);
        }
    });
}
