//! Pending signals: what is sent while the program blocks it waits here, as it would in the kernel:
//! one of each kind for the process, and one for each thread.
//!
//! The kernel gives what is sent to the process to any thread, because it knows of none
//! that blocks it. Where that thread does not take it, because the program has it block that, or
//! being the engine's own, it waits for the process, and a thread that does take it is told
//! to look here: one that waits for it, or does not block it. A thread that begins to take
//! a signal looks by itself, and one that ends leaves it to another.
//!
//! A forked child has nothing pending but what was sent to itself; what `exec` begins has
//! all of it, for which it is given back to the kernel. From before the engine rests for a
//! fork until all is at its place again the thread that forks takes nothing: a handler of
//! the program's would find locks taken that it needs, or the child half made.
//!
//! Others look at a thread as long as it is in the list. One that ends without a word, by
//! an instruction of its own, stays there: so what is listed lies beside the signal stack,
//! which then stays, too, and not among the variables that go with the thread.

use super::sets::{kinds, ours};
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

/// One of each kind.
type Held = [Cell<Option<Details>>; 3];

const fn nothing() -> Held {
    [const { Cell::new(None) }; 3]
}

/// Whether anything was ever held: as long as there was not, there is no need to look.
/// Set before the masks of others are read, and read after the mask of this thread is set,
/// so one of both sees the other.
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

/// What tells a signal of ours from the program's.
const POKE: usize = 0x50f7_5a9e_0b05;

/// Details of a signal that only makes a waiting thread look for what is held back.
pub(super) fn poke(signal: i32) -> siginfo_t {
    signals::queued_info(signal, POKE)
}

pub(super) fn is_poke(info: &siginfo_t) -> bool {
    info.si_code == libc::SI_QUEUE && signals::queued_value(info) == POKE
}

/// A thread. Others look at it while it is in the list.
struct Thread {
    number: AtomicI32,
    /// Which of the engine's signals it blocks, as the program knows it, and which it waits for.
    blocked: AtomicU64,
    waits_for: AtomicU64,
    is_engines: Cell<bool>,
    /// Its number, while it forks; 0 while it does not.
    forks_as: Cell<i32>,
    /// Whether it has the lock for the time of a fork.
    has_lock: Cell<bool>,
    /// Whether it is a child's, and nothing of the parent's is pending any more.
    is_anew: Cell<bool>,
    // The rest is touched under the lock.
    is_listed: Cell<bool>,
    next: Cell<*const Thread>,
    before: Cell<*const Thread>,
    held: Held,
    /// The last round in which it has answered that it is out of the kernel.
    answered: AtomicU32,
    /// Its call that may hide pointers: its number and one, 0 for none; then its arguments.
    hidden: [AtomicUsize; 7],
    /// Where on the stack that call's frame is.
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
            is_anew: Cell::new(false),
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

    /// Takes over what another was: the same thread's, in another place.
    fn be(&self, other: &Thread) {
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
    /// Before a thread is in the list, and after.
    static OWN: Thread = const { Thread::new() };
    /// While it is; null otherwise.
    static LISTED: Cell<*const Thread> = const { Cell::new(ptr::null()) };
}

/// Runs `body` with this thread.
fn with_me<R>(body: impl FnOnce(&Thread) -> R) -> R {
    // SAFETY: null, or where `enter` put it: that stays until `leave` says otherwise.
    match unsafe { LISTED.get().as_ref() } {
        Some(listed) => body(listed),
        None => OWN.with(body),
    }
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
        with_me(|me| {
            // While it forks, this thread has the lock already, and is here because a
            // signal has arrived: nothing is half done.
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

/// This thread forks: from now on it takes nothing.
pub(super) fn begin_fork() {
    with_me(|me| me.forks_as.set(raw::current_thread()));
}

/// Ends what [`begin_fork`] began. What has arrived meanwhile waits.
pub(super) fn end_fork() {
    with_me(|me| me.forks_as.set(0));
}

/// Keeps other threads from holding the lock while this one forks.
pub(super) fn lock_for_fork() {
    SHARED.lock.lock();
    with_me(|me| me.has_lock.set(true));
}

/// Ends what [`lock_for_fork`] began.
pub(super) fn unlock_after_fork() {
    with_me(|me| me.has_lock.set(false));
    SHARED.lock.unlock();
}

/// Whether this thread has the lock for the time of a fork.
pub(super) fn has_lock_for_fork() -> bool {
    with_me(|me| me.has_lock.get())
}

/// A thread of the list, if there is one.
fn listed(_of: &Process, thread: *const Thread) -> Option<&Thread> {
    // SAFETY: null, or in the list: a thread takes itself out before its place goes, under
    // the lock, which is held.
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

    /// Whether a thread that was listed later has this one's number: then this one is gone.
    fn is_replaced(&self, thread: &Thread) -> bool {
        let number = thread.number.load(Ordering::Relaxed);
        let later = self.threads().take_while(|other| !ptr::eq(*other, thread));
        later.into_iter().any(|other| other.number.load(Ordering::Relaxed) == number)
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
            // This one looks by itself: before it waits, or when it has forked.
            if number == me {
                return;
            }
            // SAFETY: details made for this.
            match unsafe { signals::send_with(number, signal, &raw const poke) } {
                Ok(()) => return,
                // It has ended without a word.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => self.unlist(thread),
                Err(_) => {}
            }
        }
    }

    /// This is a child, or has just begun: of its threads there is this one, and nothing is
    /// pending.
    fn begin_anew(&self, me: &Thread) {
        self.first.set(ptr::null());
        self.held.iter().chain(&me.held).for_each(|held| held.set(None));
        me.waits_for.store(0, Ordering::Relaxed);
        me.number.store(raw::current_thread(), Ordering::Relaxed);
        if me.is_listed.get() {
            self.list(me);
        }
    }
}

/// From now on this thread is told of signals that it takes. `note` is the address of its
/// [`signals::note`].
pub(super) fn enter(note: usize) {
    with(|process, me| {
        if me.is_listed.get() {
            return;
        }
        // SAFETY: room for it, of this thread alone, which stays as long as its stack.
        let listed = unsafe {
            let place = note as *mut Thread;
            place.write(Thread::new());
            &*place
        };
        listed.be(me);
        listed.number.store(raw::current_thread(), Ordering::Relaxed);
        process.list(listed);
        LISTED.set(listed);
    });
}

/// Whether a thread has entered, and not left.
pub(super) fn knows(thread: i32) -> bool {
    of_thread(thread, |_| ()).is_some()
}

fn of_thread<R>(number: i32, body: impl FnOnce(&Thread) -> R) -> Option<R> {
    let is_it = |other: &&Thread| other.number.load(Ordering::Relaxed) == number;
    with(|process, _| process.threads().find(is_it).map(body))
}

/// This thread is out of the kernel.
pub(super) fn answer(round: u32) {
    with_me(|me| me.answered.store(round, Ordering::SeqCst));
}

/// The last round in which a thread has answered; 0 for none.
pub(super) fn last_answer(thread: i32) -> u32 {
    of_thread(thread, |it| it.answered.load(Ordering::SeqCst)).unwrap_or(0)
}

fn note_hidden(me: &Thread, call: Option<(i64, Arguments)>, at: usize) {
    // Never the number of one call with the arguments of another.
    me.hidden[0].store(0, Ordering::SeqCst);
    if let Some((number, arguments)) = call {
        for (place, argument) in me.hidden[1..].iter().zip(arguments) {
            place.store(argument, Ordering::Relaxed);
        }
        me.hidden[0].store(number as usize + 1, Ordering::SeqCst);
    }
    me.hidden_at.set(at);
}

/// This thread is about to make a call that may hide pointers.
pub(super) fn hide(number: i64, arguments: Arguments, at: usize) {
    with_me(|me| note_hidden(me, Some((number, arguments)), at));
}

/// This thread jumps to a frame at `target`, perhaps out of that call.
pub(crate) fn jump_to(target: usize) {
    with_me(|me| {
        if me.hidden_call().is_some() && signal_stack::is_left(me.hidden_at.get(), target) {
            note_hidden(me, None, 0);
        }
    });
}

/// The call that may hide pointers and that this thread is in.
pub(super) fn hidden_call() -> Option<(i64, Arguments)> {
    with_me(Thread::hidden_call)
}

/// The same of another thread.
pub(super) fn hidden_call_of(thread: i32) -> Option<(i64, Arguments)> {
    of_thread(thread, Thread::hidden_call).flatten()
}

/// This thread ends: what is pending for the process is for others.
pub(super) fn leave() {
    with(|process, me| {
        process.unlist(me);
        LISTED.set(ptr::null());
        OWN.with(|own| {
            if !ptr::eq(own, me) {
                own.be(me);
            }
            own.waits_for.store(0, Ordering::Relaxed);
        });
        kinds(ours()).for_each(|signal| process.tell(signal));
    });
}

/// This thread is the engine's.
pub(super) fn be_engines() {
    with_me(|me| me.is_engines.set(true));
}

/// Whether this thread is the engine's.
pub(super) fn is_engines() -> bool {
    with_me(|me| me.is_engines.get())
}

/// Whether this thread takes nothing that is sent, whatever it blocks.
pub(super) fn takes_nothing() -> bool {
    with_me(|me| me.is_engines.get() || me.forks_as.get() != 0)
}

/// Which of the engine's signals this thread blocks, as the program knows it.
pub(super) fn blocked() -> Mask {
    with_me(|me| me.blocked.load(Ordering::Relaxed))
}

pub(super) fn block(mask: Mask) {
    with_me(|me| me.blocked.store(mask, Ordering::SeqCst));
}

/// This thread waits for these, or for none any more.
pub(super) fn wait_for(mask: Mask) {
    with(|process, me| {
        let before = me.waits_for.swap(mask, Ordering::SeqCst);
        kinds(before & !mask).for_each(|signal| process.tell(signal));
    });
}

/// Whether this thread waits for it.
pub(super) fn is_waiting_for(signal: i32) -> bool {
    with_me(|me| me.waits_for.load(Ordering::Relaxed) & signals::bit(signal) != 0)
}

/// Keeps a sent signal that this thread does not take. What was sent to this very thread
/// waits for it.
pub(super) fn hold(signal: i32, info: &siginfo_t) {
    with(|process, me| {
        ANY.store(true, Ordering::SeqCst);
        // In a child, sent before it has come so far itself.
        let is_child = || me.forks_as.get() != raw::current_thread();
        if me.forks_as.get() != 0 && !me.is_anew.get() && is_child() {
            process.begin_anew(me);
            me.is_anew.set(true);
        }
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
        let all = kinds(ours()).filter(is_held);
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

/// This process is a forked child, or has just begun: nothing is pending but what was sent
/// to it.
pub(super) fn become_child() {
    with(|process, me| {
        if !me.is_anew.replace(false) {
            process.begin_anew(me);
        }
    });
}
