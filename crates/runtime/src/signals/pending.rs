//! Pending signals. A signal sent while the program blocks it is held here, as in the kernel: one
//! of each kind for the process, and one for each thread.
//!
//! The kernel delivers a process-directed signal to any thread, because no thread blocks it in the
//! kernel. If the receiving thread does not take it (the program has blocked it there, or the
//! thread is the engine's), the signal is held for the process. A thread that waits for it or does
//! not block it is then signalled to check this table (a *poke*). A thread that unblocks a signal
//! checks by itself; a thread that exits passes its signals on.
//!
//! A forked child has nothing pending except signals sent to itself. A program started by `exec`
//! keeps all pending signals, so they are returned to the kernel first. While a thread forks, it
//! takes nothing: a handler of the program could need a lock that is held for the fork, or see a
//! partly initialized child.
//!
//! Other threads read a thread's entry while it is listed. A thread that exits by its own
//! system-call instruction stays listed. Therefore the entry is stored next to the signal stack,
//! which is then not freed, and not in thread-local storage.

use super::sets::{engine_signals, kinds};
use crate::base::issue_call::Arguments;
use crate::base::signal_stack;
use softswap_sys::futex::Lock;
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, SIGSEGV, SIGSYS, siginfo_t};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The kernel's part of a signal's details; the rest is zero.
type Details = [u64; 6];

/// Held signals, at most one of each kind.
type Held = [Cell<Option<Details>>; 3];

const fn nothing() -> Held {
    [const { Cell::new(None) }; 3]
}

/// True once any signal has been held; before that, no check is needed. Set before other threads'
/// masks are read, and read after this thread's mask is set, so at least one side sees the other's
/// change.
static ANY: AtomicBool = AtomicBool::new(false);

fn place_of(signal: i32) -> usize {
    match signal {
        SIGSYS => 1,
        SIGSEGV => 2,
        _ => 0,
    }
}

fn keep(held: &Held, signal: i32, info: &siginfo_t) {
    let held = &held[place_of(signal)];
    if held.get().is_none() {
        // SAFETY: the words are within siginfo_t, of which every byte is initialised.
        held.set(Some(unsafe { ptr::from_ref(info).cast::<Details>().read() }));
    }
}

fn siginfo_of(details: Details) -> siginfo_t {
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: within siginfo_t.
    unsafe { (&raw mut info).cast::<Details>().write(details) };
    info
}

/// Value that distinguishes the runtime's signals from the program's.
const POKE: usize = 0x50f7_5a9e_0b05;

/// Returns the details of a signal that makes a waiting thread check for held signals.
pub(super) fn poke(signal: i32) -> siginfo_t {
    signals::queued_info(signal, POKE)
}

pub(super) fn is_poke(info: &siginfo_t) -> bool {
    info.si_code == libc::SI_QUEUE && signals::queued_value(info) == POKE
}

/// State of one thread. Other threads read it while it is listed.
struct Thread {
    number: AtomicI32,
    /// Engine signals that it blocks, as the program knows it, and that it waits for.
    blocked: AtomicU64,
    waits_for: AtomicU64,
    is_engines: Cell<bool>,
    /// Its thread ID while it forks; otherwise 0.
    forks_as: Cell<i32>,
    /// True while it holds the lock for a fork.
    has_lock: Cell<bool>,
    /// True in a child in which the parent's pending signals have been dropped.
    was_reset: Cell<bool>,
    // The remaining fields are accessed under the lock.
    is_listed: Cell<bool>,
    next: Cell<*const Thread>,
    before: Cell<*const Thread>,
    held: Held,
    /// Last round in which it has reported that it is outside the kernel.
    answered: AtomicU32,
    /// Its call that may hide pointers: number plus one (0: none), then the arguments.
    hidden: [AtomicUsize; 7],
    /// Stack address of that call's frame.
    hidden_at: Cell<usize>,
}

const _: () = assert!(size_of::<Thread>() <= signals::NOTE_BYTES);

impl Thread {
    const fn new() -> Thread {
        Thread {
            number: AtomicI32::new(0),
            blocked: AtomicU64::new(0),
            waits_for: AtomicU64::new(0),
            is_engines: Cell::new(false),
            forks_as: Cell::new(0),
            has_lock: Cell::new(false),
            was_reset: Cell::new(false),
            is_listed: Cell::new(false),
            next: Cell::new(ptr::null()),
            before: Cell::new(ptr::null()),
            held: nothing(),
            answered: AtomicU32::new(0),
            hidden: [const { AtomicUsize::new(0) }; 7],
            hidden_at: Cell::new(0),
        }
    }

    fn hidden_call(&self) -> Option<(i64, Arguments)> {
        let number = self.hidden[0].load(Ordering::SeqCst).checked_sub(1)?;
        let argument = |at: usize| self.hidden[at + 1].load(Ordering::Relaxed);
        Some((number as i64, std::array::from_fn(argument)))
    }

    /// Copies the state of the same thread from its previous place.
    fn copy_state_of(&self, other: &Thread) {
        self.number.store(other.number.load(Ordering::Relaxed), Ordering::Relaxed);
        self.blocked.store(other.blocked.load(Ordering::Relaxed), Ordering::SeqCst);
        self.waits_for.store(other.waits_for.load(Ordering::Relaxed), Ordering::SeqCst);
        self.is_engines.set(other.is_engines.get());
        for (here, there) in self.held.iter().zip(&other.held) {
            here.set(there.take());
        }
    }
}

thread_local! {
    /// State of a thread that is not listed.
    static OWN: Thread = const { Thread::new() };
    /// Listed state; null if the thread is not listed.
    static LISTED: Cell<*const Thread> = const { Cell::new(ptr::null()) };
}

/// Runs `body` with this thread's state.
fn with_me<R>(body: impl FnOnce(&Thread) -> R) -> R {
    // SAFETY: null, or the place set by `enter`, which is valid until `leave` resets it.
    match unsafe { LISTED.get().as_ref() } {
        Some(listed) => body(listed),
        None => OWN.with(body),
    }
}

/// State common to all threads; accessed under the lock.
struct Process {
    first: Cell<*const Thread>,
    held: Held,
}

struct Shared {
    lock: Lock,
    process: Process,
}

// SAFETY: `process` and the listed entries are only accessed under the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    lock: Lock::new(),
    process: Process { first: Cell::new(ptr::null()), held: nothing() },
};

/// Runs `body` under the lock, with this thread's state.
fn with<R>(body: impl FnOnce(&Process, &Thread) -> R) -> R {
    signals::with_all_blocked(|| {
        with_me(|me| {
            // A forking thread already holds the lock. It gets here only for a signal that has
            // arrived, so no update is half done.
            let has_lock = me.has_lock.get();
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

/// Marks this thread as forking: it takes no signals.
pub(super) fn begin_fork() {
    with_me(|me| me.forks_as.set(raw::current_thread()));
}

/// Ends the state of [`begin_fork`]. Signals that have arrived meanwhile stay held.
pub(super) fn end_fork() {
    with_me(|me| me.forks_as.set(0));
}

/// Takes the lock, so that no other thread holds it during a fork.
pub(super) fn lock_for_fork() {
    SHARED.lock.lock();
    with_me(|me| me.has_lock.set(true));
}

pub(super) fn unlock_after_fork() {
    with_me(|me| me.has_lock.set(false));
    SHARED.lock.unlock();
}

/// Returns true if this thread holds the lock for a fork.
pub(super) fn has_lock_for_fork() -> bool {
    with_me(|me| me.has_lock.get())
}

/// Returns a listed thread, if the pointer is not null.
fn listed(_of: &Process, thread: *const Thread) -> Option<&Thread> {
    // SAFETY: null, or listed: a thread removes itself under the lock, which is held, before its
    // entry is freed.
    unsafe { thread.as_ref() }
}

impl Process {
    /// Adds a thread at the head of the list.
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

    /// Returns true if a thread listed later has the same ID: then this one has exited.
    fn is_replaced(&self, thread: &Thread) -> bool {
        let number = thread.number.load(Ordering::Relaxed);
        let later = self.threads().take_while(|other| !ptr::eq(*other, thread));
        later.into_iter().any(|other| other.number.load(Ordering::Relaxed) == number)
    }

    fn threads(&self) -> impl Iterator<Item = &Thread> {
        let first = listed(self, self.first.get());
        std::iter::successors(first, |thread| listed(self, thread.next.get()))
    }

    /// Pokes a thread that takes the signal, if one is held: preferably the first thread of the
    /// process, as in the kernel.
    fn poke_taker(&self, signal: i32) {
        if self.held[place_of(signal)].get().is_none() {
            return;
        }
        let bit = signals::bit(signal);
        let first = raw::current_process() as i32;
        let (poke, me) = (poke(signal), raw::current_thread());
        let takes = |thread: &&Thread| {
            thread.waits_for.load(Ordering::SeqCst) & bit != 0
                || thread.blocked.load(Ordering::SeqCst) & bit == 0
        };
        let is_first = |thread: &&Thread| thread.number.load(Ordering::Relaxed) == first;
        let others = self.threads().filter(|thread| !is_first(thread));
        for thread in self.threads().filter(is_first).chain(others).filter(takes) {
            let number = thread.number.load(Ordering::Relaxed);
            if self.is_replaced(thread) {
                self.unlist(thread);
                continue;
            }
            // This thread checks by itself: before it waits, or after it has forked.
            if number == me {
                return;
            }
            // SAFETY: details made by this function.
            match unsafe { signals::send_with(number, signal, &raw const poke) } {
                Ok(()) => return,
                // The thread has exited without unlisting itself.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => self.unlist(thread),
                Err(_) => {}
            }
        }
    }

    /// Resets the state at the start, or in a child: only this thread exists, and nothing is
    /// pending.
    fn reset(&self, me: &Thread) {
        self.first.set(ptr::null());
        self.held.iter().chain(&me.held).for_each(|held| held.set(None));
        me.waits_for.store(0, Ordering::Relaxed);
        me.number.store(raw::current_thread(), Ordering::Relaxed);
        if me.is_listed.get() {
            self.list(me);
        }
    }
}

/// Lists this thread, so that it can be poked. `note` is the address of its [`signals::note`].
pub(super) fn enter(note: usize) {
    with(|process, me| {
        if me.is_listed.get() {
            return;
        }
        // SAFETY: space of this thread alone, which is valid as long as its stack.
        let listed = unsafe {
            let place = note as *mut Thread;
            place.write(Thread::new());
            &*place
        };
        listed.copy_state_of(me);
        listed.number.store(raw::current_thread(), Ordering::Relaxed);
        process.list(listed);
        LISTED.set(listed);
    });
}

/// Returns true if a thread is listed.
pub(super) fn knows(thread: i32) -> bool {
    of_thread(thread, |_| ()).is_some()
}

fn of_thread<R>(number: i32, body: impl FnOnce(&Thread) -> R) -> Option<R> {
    let is_it = |other: &&Thread| other.number.load(Ordering::Relaxed) == number;
    with(|process, _| process.threads().find(is_it).map(body))
}

/// Records that this thread is outside the kernel.
pub(super) fn answer(round: u32) {
    with_me(|me| me.answered.store(round, Ordering::SeqCst));
}

/// Returns the last round in which a thread has reported; 0 for none.
pub(super) fn last_answer(thread: i32) -> u32 {
    of_thread(thread, |it| it.answered.load(Ordering::SeqCst)).unwrap_or(0)
}

fn note_hidden(me: &Thread, call: Option<(i64, Arguments)>, at: usize) {
    // Clear first: the number of one call must never be seen with the arguments of another.
    me.hidden[0].store(0, Ordering::SeqCst);
    if let Some((number, arguments)) = call {
        for (place, argument) in me.hidden[1..].iter().zip(arguments) {
            place.store(argument, Ordering::Relaxed);
        }
        me.hidden[0].store(number as usize + 1, Ordering::SeqCst);
    }
    me.hidden_at.set(at);
}

/// Records a call that may hide pointers, before it is issued.
pub(super) fn hide(number: i64, arguments: Arguments, at: usize) {
    with_me(|me| note_hidden(me, Some((number, arguments)), at));
}

/// Removes that record if a jump to a frame at `target` leaves the call.
pub(crate) fn jump_to(target: usize) {
    with_me(|me| {
        if me.hidden_call().is_some() && signal_stack::is_left(me.hidden_at.get(), target) {
            note_hidden(me, None, 0);
        }
    });
}

/// Returns this thread's call that may hide pointers.
pub(super) fn hidden_call() -> Option<(i64, Arguments)> {
    with_me(Thread::hidden_call)
}

/// Returns another thread's call that may hide pointers.
pub(super) fn hidden_call_of(thread: i32) -> Option<(i64, Arguments)> {
    of_thread(thread, Thread::hidden_call).flatten()
}

/// Unlists this thread at its exit, and pokes other threads for signals pending for the process.
pub(super) fn unlist_thread() {
    with(|process, me| {
        process.unlist(me);
        LISTED.set(ptr::null());
        OWN.with(|own| {
            if !ptr::eq(own, me) {
                own.copy_state_of(me);
            }
            own.waits_for.store(0, Ordering::Relaxed);
        });
        kinds(engine_signals()).for_each(|signal| process.poke_taker(signal));
    });
}

/// Marks this thread as the engine's: it takes no sent signals.
pub(super) fn mark_engine_thread() {
    with_me(|me| me.is_engines.set(true));
}

pub(super) fn is_engines() -> bool {
    with_me(|me| me.is_engines.get())
}

/// Returns true if this thread takes no sent signals, regardless of its mask.
pub(super) fn takes_no_signals() -> bool {
    with_me(|me| me.is_engines.get() || me.forks_as.get() != 0)
}

/// Returns the engine signals that this thread blocks, as the program knows it.
pub(super) fn blocked() -> Mask {
    with_me(|me| me.blocked.load(Ordering::Relaxed))
}

pub(super) fn block(mask: Mask) {
    with_me(|me| me.blocked.store(mask, Ordering::SeqCst));
}

/// Sets the signals that this thread waits for.
pub(super) fn wait_for(mask: Mask) {
    with(|process, me| {
        let before = me.waits_for.swap(mask, Ordering::SeqCst);
        kinds(before & !mask).for_each(|signal| process.poke_taker(signal));
    });
}

pub(super) fn is_waiting_for(signal: i32) -> bool {
    with_me(|me| me.waits_for.load(Ordering::Relaxed) & signals::bit(signal) != 0)
}

/// Holds a sent signal that this thread does not take. A thread-directed signal is held for this
/// thread.
pub(super) fn hold(signal: i32, info: &siginfo_t) {
    with(|process, me| {
        ANY.store(true, Ordering::SeqCst);
        // Sent to a child before the child has reset its state.
        let is_child = || me.forks_as.get() != raw::current_thread();
        if me.forks_as.get() != 0 && !me.was_reset.get() && is_child() {
            process.reset(me);
            me.was_reset.set(true);
        }
        if info.si_code == libc::SI_TKILL && !me.is_engines.get() {
            keep(&me.held, signal, info);
        } else {
            keep(&process.held, signal, info);
            process.poke_taker(signal);
        }
    });
}

/// Pokes another thread for a signal that this one no longer takes.
pub(super) fn pass_on(signal: i32) {
    with(|process, _| process.poke_taker(signal));
}

/// Takes a held signal for this thread.
pub(super) fn take(signal: i32) -> Option<siginfo_t> {
    if !ANY.load(Ordering::SeqCst) {
        return None;
    }
    let place = place_of(signal);
    with(|process, me| me.held[place].take().or_else(|| process.held[place].take())).map(siginfo_of)
}

/// Returns the set of held signals that this thread may take.
pub(super) fn held() -> Mask {
    with(|process, me| {
        let is_held = |signal: &i32| {
            let place = place_of(*signal);
            process.held[place].get().is_some() || me.held[place].get().is_some()
        };
        let all = kinds(engine_signals()).filter(is_held);
        all.fold(0, |mask, signal| mask | signals::bit(signal))
    })
}

/// Drops a pending signal that the program now ignores.
pub(super) fn forget(signal: i32) {
    let place = place_of(signal);
    with(|process, me| {
        process.held[place].set(None);
        me.held[place].set(None);
        process.threads().for_each(|thread| thread.held[place].set(None));
    });
}

/// Resets the state at the start, or in a forked child: only signals sent to this process are
/// pending.
pub(super) fn become_child() {
    with(|process, me| {
        if !me.was_reset.replace(false) {
            process.reset(me);
        }
    });
}
