//! Pending signals. A signal sent while the program blocks it is held here, as in the kernel: one
//! of each kind for the process, and one for each thread.
//!
//! The kernel may deliver a process's signal to any thread, because no thread blocks it in the
//! kernel. If the thread does not take it (the program has blocked it there, or the thread is the
//! engine's), the signal is held for the process. Then a thread that waits for it, or does not
//! block it, receives a signal that makes it check this table (a *poke*). A thread that unblocks a
//! signal checks by itself. A thread that exits pokes other threads.
//!
//! A forked child has nothing pending except signals sent to itself. `exec` keeps pending signals,
//! so they are returned to the kernel before. A forking thread takes none: a handler could need a
//! lock that is held for the fork, or see a partly initialized child.
//!
//! Other threads read a thread's entry while it is listed, even after its exit by its own
//! system-call instruction. So the entry is stored next to the signal stack, which is then not
//! freed.

use super::sets::{engine_signals, kinds};
use crate::base::issue_call::Arguments;
use crate::base::signal_stack;
use softswap_sys::futex::Lock;
use softswap_sys::raw;
use softswap_sys::signals::{self, Mask, SIGSEGV, SIGSYS, siginfo_t};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The part of a siginfo_t that the kernel fills in; the rest is zero.
type Details = [u64; 6];

type Held = [Cell<Option<Details>>; 3];

const fn nothing() -> Held {
    [const { Cell::new(None) }; 3]
}

/// True once a signal has been held; before that, no check is needed. The flag is set before other
/// threads' masks are read, and read after this thread's mask is set. So at least one side sees the
/// other's change.
static ANY: AtomicBool = AtomicBool::new(false);

fn place_of(signal: i32) -> usize {
    match signal {
        SIGSYS => 1,
        SIGSEGV => 2,
        _ => 0,
    }
}

fn store(held: &Held, signal: i32, info: &siginfo_t) {
    let held = &held[place_of(signal)];
    if held.get().is_none() {
        // SAFETY: the words are within siginfo_t, of which every byte is initialised.
        held.set(Some(unsafe { ptr::from_ref(info).cast::<Details>().read() }));
    }
}

fn siginfo_of(details: Details) -> siginfo_t {
    let mut info: siginfo_t = softswap_sys::AnyBits::zeroed();
    // SAFETY: the words are within siginfo_t.
    unsafe { (&raw mut info).cast::<Details>().write(details) };
    info
}

/// Value of a queued signal that distinguishes a poke from the program's signals.
const POKE: usize = 0x50f7_5a9e_0b05;

pub(super) fn poke(signal: i32) -> siginfo_t {
    signals::queued_info(signal, POKE)
}

pub(super) fn is_poke(info: &siginfo_t) -> bool {
    info.si_code == libc::SI_QUEUE && signals::queued_value(info) == POKE
}

struct Thread {
    thread_id: AtomicI32,
    blocked: AtomicU64,
    waits_for: AtomicU64,
    is_engines: Cell<bool>,
    /// Thread ID while the thread forks; otherwise 0.
    forks_as: Cell<i32>,
    has_lock: Cell<bool>,
    /// True in a child in which the parent's pending signals have been dropped.
    was_reset: Cell<bool>,
    // The next four fields are accessed under the lock.
    is_listed: Cell<bool>,
    next: Cell<*const Thread>,
    previous: Cell<*const Thread>,
    held: Held,
    /// Last round of queries that the thread has answered outside the kernel.
    answered: AtomicU32,
    /// Call that may have nested pointers: number plus one (0: none), then the arguments.
    nested: [AtomicUsize; 7],
    /// Stack address of the frame of the call in `nested`.
    nested_at: Cell<usize>,
}

const _: () = assert!(size_of::<Thread>() <= signals::NOTE_BYTES);

impl Thread {
    const fn new() -> Thread {
        Thread {
            thread_id: AtomicI32::new(0),
            blocked: AtomicU64::new(0),
            waits_for: AtomicU64::new(0),
            is_engines: Cell::new(false),
            forks_as: Cell::new(0),
            has_lock: Cell::new(false),
            was_reset: Cell::new(false),
            is_listed: Cell::new(false),
            next: Cell::new(ptr::null()),
            previous: Cell::new(ptr::null()),
            held: nothing(),
            answered: AtomicU32::new(0),
            nested: [const { AtomicUsize::new(0) }; 7],
            nested_at: Cell::new(0),
        }
    }

    fn nested_call(&self) -> Option<(i64, Arguments)> {
        let number = self.nested[0].load(Ordering::SeqCst).checked_sub(1)?;
        let argument = |at: usize| self.nested[at + 1].load(Ordering::Relaxed);
        Some((number as i64, std::array::from_fn(argument)))
    }

    fn copy_state_of(&self, other: &Thread) {
        self.thread_id.store(other.thread_id.load(Ordering::Relaxed), Ordering::Relaxed);
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

fn with_me<R>(body: impl FnOnce(&Thread) -> R) -> R {
    // SAFETY: `LISTED` is null, or an entry that is valid until `unlist_thread` resets it.
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

fn with<R>(body: impl FnOnce(&Process, &Thread) -> R) -> R {
    signals::with_all_blocked(|| {
        with_me(|me| {
            // A forking thread already holds the lock, and no update is incomplete.
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

pub(crate) fn begin_fork() {
    with_me(|me| me.forks_as.set(raw::current_thread()));
}

/// The caller then unblocks signals, and delivers those sent during the fork.
pub(crate) fn end_fork() {
    with_me(|me| me.forks_as.set(0));
}

pub(super) fn lock_for_fork() {
    SHARED.lock.lock();
    with_me(|me| me.has_lock.set(true));
}

pub(super) fn unlock_after_fork() {
    with_me(|me| me.has_lock.set(false));
    SHARED.lock.unlock();
}

pub(super) fn has_lock_for_fork() -> bool {
    with_me(|me| me.has_lock.get())
}

fn listed(_of: &Process, thread: *const Thread) -> Option<&Thread> {
    // SAFETY: null, or listed until its thread unlists it under the lock, which is held here.
    unsafe { thread.as_ref() }
}

impl Process {
    fn list(&self, thread: &Thread) {
        thread.is_listed.set(true);
        thread.previous.set(ptr::null());
        thread.next.set(self.first.replace(thread));
        if let Some(next) = listed(self, thread.next.get()) {
            next.previous.set(thread);
        }
    }

    fn unlist(&self, thread: &Thread) {
        if !thread.is_listed.replace(false) {
            return;
        }
        match listed(self, thread.previous.get()) {
            Some(previous) => previous.next.set(thread.next.get()),
            None => self.first.set(thread.next.get()),
        }
        if let Some(next) = listed(self, thread.next.get()) {
            next.previous.set(thread.previous.get());
        }
    }

    /// Returns true if a thread listed later has the same ID, so that this one must have exited.
    fn is_replaced(&self, thread: &Thread) -> bool {
        let thread_id = thread.thread_id.load(Ordering::Relaxed);
        let later = self.threads().take_while(|other| !ptr::eq(*other, thread));
        later.into_iter().any(|other| other.thread_id.load(Ordering::Relaxed) == thread_id)
    }

    fn threads(&self) -> impl Iterator<Item = &Thread> {
        let first = listed(self, self.first.get());
        std::iter::successors(first, |thread| listed(self, thread.next.get()))
    }

    /// Pokes a thread that takes a held signal of the process: the first one, if possible.
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
        let is_first = |thread: &&Thread| thread.thread_id.load(Ordering::Relaxed) == first;
        let others = self.threads().filter(|thread| !is_first(thread));
        for thread in self.threads().filter(is_first).chain(others).filter(takes) {
            let thread_id = thread.thread_id.load(Ordering::Relaxed);
            if self.is_replaced(thread) {
                self.unlist(thread);
                continue;
            }
            // This thread checks by itself, before it waits or after it has forked.
            if thread_id == me {
                return;
            }
            match signals::send_with(thread_id, signal, &poke) {
                Ok(()) => return,
                // The thread has exited without unlisting itself.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => self.unlist(thread),
                Err(_) => {}
            }
        }
    }

    /// Resets the state at the start or in a child, in which only this thread exists.
    fn reset(&self, me: &Thread) {
        self.first.set(ptr::null());
        self.held.iter().chain(&me.held).for_each(|held| held.set(None));
        me.waits_for.store(0, Ordering::Relaxed);
        me.thread_id.store(raw::current_thread(), Ordering::Relaxed);
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
        // SAFETY: `note` is space for this thread only, and lasts as long as its signal stack.
        let listed = unsafe {
            let place = note as *mut Thread;
            place.write(Thread::new());
            &*place
        };
        listed.copy_state_of(me);
        listed.thread_id.store(raw::current_thread(), Ordering::Relaxed);
        process.list(listed);
        LISTED.set(listed);
    });
}

/// Returns true if a thread has its signal stack and its emulated mask.
pub(crate) fn knows(thread: i32) -> bool {
    of_thread(thread, |_| ()).is_some()
}

fn of_thread<R>(thread_id: i32, body: impl FnOnce(&Thread) -> R) -> Option<R> {
    let matches = |other: &&Thread| other.thread_id.load(Ordering::Relaxed) == thread_id;
    with(|process, _| process.threads().find(matches).map(body))
}

pub(super) fn record_answer(round: u32) {
    with_me(|me| me.answered.store(round, Ordering::SeqCst));
}

pub(super) fn last_answer(thread: i32) -> u32 {
    of_thread(thread, |it| it.answered.load(Ordering::SeqCst)).unwrap_or(0)
}

fn set_nested_call(me: &Thread, call: Option<(i64, Arguments)>, at: usize) {
    // Clear first: the number of one call must never be seen with the arguments of another.
    me.nested[0].store(0, Ordering::SeqCst);
    if let Some((number, arguments)) = call {
        for (place, argument) in me.nested[1..].iter().zip(arguments) {
            place.store(argument, Ordering::Relaxed);
        }
        me.nested[0].store(number as usize + 1, Ordering::SeqCst);
    }
    me.nested_at.set(at);
}

pub(super) fn record_nested_call(number: i64, arguments: Arguments, at: usize) {
    with_me(|me| set_nested_call(me, Some((number, arguments)), at));
}

/// Clears the recorded call if a jump to the frame at `target` abandons it.
pub(crate) fn jump_to(target: usize) {
    with_me(|me| {
        if me.nested_call().is_some() && signal_stack::is_left(me.nested_at.get(), target) {
            set_nested_call(me, None, 0);
        }
    });
}

pub(super) fn nested_call() -> Option<(i64, Arguments)> {
    with_me(Thread::nested_call)
}

pub(crate) fn nested_call_of(thread: i32) -> Option<(i64, Arguments)> {
    of_thread(thread, Thread::nested_call).flatten()
}

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
pub(crate) fn mark_engine_thread() {
    with_me(|me| me.is_engines.set(true));
}

pub(super) fn is_engines() -> bool {
    with_me(|me| me.is_engines.get())
}

/// Returns true if this thread takes no sent signals, regardless of its mask.
pub(super) fn takes_no_signals() -> bool {
    with_me(|me| me.is_engines.get() || me.forks_as.get() != 0)
}

pub(super) fn blocked() -> Mask {
    with_me(|me| me.blocked.load(Ordering::Relaxed))
}

pub(super) fn block(mask: Mask) {
    with_me(|me| me.blocked.store(mask, Ordering::SeqCst));
}

pub(super) fn wait_for(mask: Mask) {
    with(|process, me| {
        let previous = me.waits_for.swap(mask, Ordering::SeqCst);
        kinds(previous & !mask).for_each(|signal| process.poke_taker(signal));
    });
}

pub(super) fn is_waiting_for(signal: i32) -> bool {
    with_me(|me| me.waits_for.load(Ordering::Relaxed) & signals::bit(signal) != 0)
}

/// Holds a signal for this thread if it was sent to the thread, otherwise for the process.
pub(super) fn hold(signal: i32, info: &siginfo_t) {
    with(|process, me| {
        ANY.store(true, Ordering::SeqCst);
        // The signal was sent to a child that has not reset its state yet.
        let is_child = || me.forks_as.get() != raw::current_thread();
        if me.forks_as.get() != 0 && !me.was_reset.get() && is_child() {
            process.reset(me);
            me.was_reset.set(true);
        }
        if info.si_code == libc::SI_TKILL && !me.is_engines.get() {
            store(&me.held, signal, info);
        } else {
            store(&process.held, signal, info);
            process.poke_taker(signal);
        }
    });
}

pub(super) fn pass_on(signal: i32) {
    with(|process, _| process.poke_taker(signal));
}

pub(super) fn take(signal: i32) -> Option<siginfo_t> {
    if !ANY.load(Ordering::SeqCst) {
        return None;
    }
    let place = place_of(signal);
    with(|process, me| me.held[place].take().or_else(|| process.held[place].take())).map(siginfo_of)
}

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

pub(super) fn forget(signal: i32) {
    let place = place_of(signal);
    with(|process, me| {
        process.held[place].set(None);
        me.held[place].set(None);
        process.threads().for_each(|thread| thread.held[place].set(None));
    });
}

/// Called at the start and in a forked child: only signals sent to this process are pending.
pub(super) fn become_owner() {
    with(|process, me| {
        if !me.was_reset.replace(false) {
            process.reset(me);
        }
    });
}
