//! What guarded calls keep in memory, or map for themselves, and when that ends.
//!
//! What is pinned, or copied into memory, is counted before it is taken
//! ([`softswap_engine::door::engine::pinning`]): all calls together hold a share of the budget.
//!
//! A call pins what the kernel is given, for as long as it runs. It may end in other ways
//! than by returning: a handler of the program's jumps out of it, an exception leaves it,
//! its thread is cancelled, a child is forked meanwhile. So the pins are not in the call's
//! own frame but in a table of the thread's, innermost last, each with the place of its
//! call on its stack: a jump, or the next pin, releases those whose calls are gone.
//! A child releases those of the threads that it does not have.
//!
//! A signal that arrives while a call waits for room for a page ends the call, which begins anew
//! after the handler, unless it has had an effect.

use crate::base::issue_call::ask;
use crate::base::{fault_samples, guarded_call, instance, signal_stack};
use crate::signals::{page_fault, temporary_mask};
use softswap_engine::base::stats::Tier;
use softswap_engine::core::errors::FaultError;
use softswap_engine::door::engine::Engine;
use softswap_engine::door::engine::pinning::{Pinned, Then};
use softswap_engine::door::fault_samples::Toucher;
use softswap_sys::locked::Locked;
use softswap_sys::raw::now_ns;
use softswap_sys::signal_frame::resume;
use softswap_sys::signals::TrappedCall;
use softswap_sys::{PAGE_SIZE, memory, signals};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{Ordering, compiler_fence};

/// Longest path the kernel takes, with its zero byte.
const TEXT_BYTES: usize = 4096;

/// Ranges that one thread's calls can pin at once: a message of as many
/// vectors as there can be, and a handler's calls on top of it.
const MAX_RANGES: usize = signals::ROOM_BYTES / size_of::<Range>();

/// A call may hold so many pages of one buffer whatever others hold: structures, paths,
/// as many vectors as there can be.
const FEW_PAGES: usize = 5;

/// How long at most a call waits until others let go.
const MOST_WAIT_NS: u64 = 4_000_000_000;

/// Taken while the calls that must not be cut are counted.
static UNDIVIDED: Locked<()> = Locked::new(());

/// Calls hold one such part of what the budget leaves for pages.
const HOLD_SHARE: usize = 4;
/// Of what the budget leaves for pages, the part that such calls leave to the rest of the
/// program, and the least of it in bytes.
const LEFT_PART: usize = 8;
const LEAST_LEFT_BYTES: usize = 1 << 20;

/// How much calls hold at most, with one that must not be cut. Less than that, and other
/// threads find no page that can leave.
pub(crate) fn undivided_limit_bytes(engine: &Engine) -> usize {
    let all_bytes = engine.hold_limit_bytes() * HOLD_SHARE;
    let left_bytes = (all_bytes / LEFT_PART).max(LEAST_LEFT_BYTES);
    all_bytes.saturating_sub(left_bytes).max(engine.hold_limit_bytes())
}

/// What a call has pinned, or mapped.
#[derive(Clone, Copy, Default)]
struct Range {
    address: usize,
    len: usize,
    /// Pages that are counted as held for it.
    held: u32,
    /// Where on its stack the call's frames end.
    call: usize,
}

thread_local! {
    /// What this thread's guarded calls have pinned, innermost call last; null
    /// where that is not kept yet. Beside the signal stack, because thread-local
    /// variables come out of the thread's own, which may be 16 KiB long.
    static PINNED: Cell<*const Cell<Range>> = const { Cell::new(std::ptr::null()) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// The frames of a call that was not caught are within this.
const CALL_BYTES: usize = 64 << 10;

/// A stack is hardly longer: a frame farther above a call's is on another.
const STACK_BYTES: usize = 8 << 20;

/// Returns true if a thread that runs at `here` has left the call whose frames end at `call`.
fn is_left(call: usize, here: usize) -> bool {
    signal_stack::is_left(call, here) && (signal_stack::contains(call) || here - call < STACK_BYTES)
}

/// The range at `index` of this thread's pins, if there are so many. A thread that has no
/// signal stack, or none any more, gets room of its own for good: there is hardly ever one.
fn range(index: usize) -> Option<&'static Cell<Range>> {
    if PINNED.get().is_null() {
        let room = memory::reserve_bytes(signals::ROOM_BYTES).ok()?;
        PINNED.set(room.as_ptr().cast());
    }
    // SAFETY: the room is as long as `MAX_RANGES` ranges, for which all-zero bytes are
    // valid, and this thread's alone as long as `PINNED` says so.
    (index < MAX_RANGES).then(|| unsafe { &*PINNED.get().add(index) })
}

/// A thread's table.
#[derive(Clone, Copy, PartialEq)]
struct Table(*const Cell<Range>);

// SAFETY: what it names is only touched by its own thread, or in a forked child, which
// has one.
unsafe impl Send for Table {}

/// The tables of all threads that have a signal stack.
static TABLES: Locked<Vec<Table>> = Locked::new(Vec::new());

/// Keeps other threads from holding the lock while this one forks.
pub(crate) fn lock_for_fork() {
    TABLES.lock_for_fork();
    UNDIVIDED.lock_for_fork();
}

/// Ends what [`lock_for_fork`] began.
pub(crate) fn unlock_after_fork() {
    UNDIVIDED.unlock_after_fork();
    TABLES.unlock_after_fork();
}

/// In a forked child: what calls of its parent's other threads hold is given up.
pub(crate) fn become_child(engine: &Engine) {
    let own = Table(PINNED.get());
    TABLES.with(|tables| {
        let kept = Vec::from_iter((!own.0.is_null()).then_some(own));
        for table in std::mem::replace(tables, kept) {
            // What is given up is emptied, so the first empty one is the end.
            for index in (0..MAX_RANGES).take_while(|_| table != own) {
                // SAFETY: a thread's table, of which this is a copy that nobody else has.
                let range = unsafe { &*table.0.add(index) }.take();
                if range.held == 0 && range.len == 0 {
                    break;
                }
                // Its thread was about to write it down, or to give it up.
                if range.address == 0 {
                    continue;
                }
                if engine.contains(range.address) {
                    engine.unpin(range.address, range.len);
                } else {
                    ask(libc::SYS_munmap, [range.address, range.len, 0, 0, 0, 0]);
                }
            }
        }
    });
    let own = (0..DEPTH.get()).filter_map(range);
    engine.inherit_held(own.map(|range| range.get().held as usize).sum());
}

/// In a forked child of a process that sleeps: calls hold nothing, and the other threads are
/// not there.
pub(crate) fn forget_others() {
    let own = Table(PINNED.get());
    TABLES.with(|tables| tables.retain(|table| *table == own));
}

/// This thread has a signal stack, at `base`: its pins are kept beside it.
pub(crate) fn keep_pins(base: usize) {
    signal_stack::set(base);
    let table = signals::room(base) as *const Cell<Range>;
    PINNED.set(table);
    TABLES.with(|tables| tables.push(Table(table)));
}

/// Gives up this thread's pins: it ends, perhaps out of a guarded call.
pub(crate) fn forget_pins() {
    if let Some(engine) = instance::engine() {
        release_down_to(engine, 0);
    }
    signal_stack::set(0);
    let table = PINNED.replace(std::ptr::null());
    TABLES.with(|tables| tables.retain(|other| other.0 != table));
}

/// Gives up the pins of calls that are left by a jump to a frame at `target`.
pub(crate) fn jump_to(target: usize) {
    guarded_call::leave();
    release_while(|range| is_left(range.call, target));
}

/// Gives up the pins of calls that were left without notice: who runs at `here` has the
/// place of their frames.
fn notice_dead(here: usize) {
    release_while(|range| is_left(range.call, here));
}

fn top() -> Option<Range> {
    Some(range(DEPTH.get().checked_sub(1)?)?.get())
}

fn release_while(is_dead: impl Fn(&Range) -> bool) {
    while let (Some(engine), Some(_)) = (instance::engine(), top().filter(&is_dead)) {
        release_down_to(engine, DEPTH.get() - 1);
    }
}

fn release_down_to(engine: &Engine, floor: usize) {
    while DEPTH.get() > floor
        && let Some(place) = DEPTH.get().checked_sub(1).and_then(range)
    {
        // First forgotten, then given up: a handler in between that jumps out must not
        // give it up a second time. Read before: a handler's call takes the same place.
        let Range { address, len, held, .. } = place.get();
        compiler_fence(Ordering::SeqCst);
        DEPTH.set(DEPTH.get() - 1);
        compiler_fence(Ordering::SeqCst);
        place.set(Range::default());
        if engine.contains(address) {
            engine.unpin(address, len);
            engine.let_go(held as usize);
            continue;
        }
        ask(libc::SYS_munmap, [address, len, 0, 0, 0, 0]);
        if held > 0 {
            engine.let_go_memory(held as usize);
        }
    }
}

/// Pages pinned for one call, in at most `N` ranges.
pub(crate) struct Pins<'e, const N: usize> {
    engine: &'e Engine,
    floor: usize,
    call: usize,
}

impl<'e, const N: usize> Pins<'e, N> {
    pub(crate) fn new(engine: &'e Engine) -> Self {
        let local = 0_u8;
        let here = &raw const local as usize;
        if DEPTH.get() > 0 {
            notice_dead(here);
        }
        let call = match guarded_call::context_above(here) {
            Some(context) => context as usize,
            None => here + CALL_BYTES,
        };
        Pins { engine, floor: DEPTH.get(), call }
    }

    /// Brings in and pins up to `most` bytes of a buffer, if it is managed; less where other
    /// calls hold what there is. Returns how many of its bytes the kernel may now touch.
    pub(crate) fn add(&mut self, address: usize, len: usize, most: usize) -> usize {
        if len == 0 || !self.engine.contains(address) {
            return len;
        }
        let few = FEW_PAGES * PAGE_SIZE - address % PAGE_SIZE;
        let most = len.min(most);
        if most > few
            && let Some(pinned) = self.add_held(address, most)
        {
            return pinned;
        }
        self.pin(address, most.min(few), |engine, pages| {
            engine.hold(pages);
            true
        })
        .unwrap_or(0)
    }

    /// Pins as much of the first `most` bytes of a managed buffer as other calls leave room
    /// for, a page at least. How much was tried, and how much of that is pinned.
    pub(crate) fn add_some(&mut self, address: usize, most: usize) -> (usize, usize) {
        let page = (PAGE_SIZE - address % PAGE_SIZE).min(most);
        for len in [most, (most / 16) & !(PAGE_SIZE - 1)] {
            if len > page
                && let Some(pinned) = self.add_held(address, len)
            {
                return (len, pinned);
            }
        }
        (page, self.add(address, page, page))
    }

    /// Pins a managed buffer; how many of its bytes the kernel may now touch. `None` where
    /// other calls hold too much for all of it.
    pub(crate) fn add_held(&mut self, address: usize, len: usize) -> Option<usize> {
        self.pin(address, len, Engine::try_hold)
    }

    /// Pins a buffer of a call that must not be cut, up to [`undivided_limit_bytes`] for all
    /// such calls. Returns how many of its bytes the kernel may now touch, or `None` if the
    /// calls in progress hold too much or no room can be made.
    pub(crate) fn add_undivided(&mut self, address: usize, len: usize) -> Option<usize> {
        let mark = DEPTH.get();
        let pinned = self.try_pin(address, len, |engine, pages| {
            // `Engine::hold` does not check: two calls at once must not both see room.
            UNDIVIDED.with_mask_as_is(|()| {
                let most = undivided_limit_bytes(engine) / PAGE_SIZE;
                let fits = engine.held_pages() + pages <= most;
                if fits {
                    engine.hold(pages);
                }
                fits
            })
        });
        if pinned.is_err() {
            self.back_to(mark);
        }
        pinned.ok().flatten()
    }

    /// Brings in and pins a buffer, if it is managed: as much of it as all calls together
    /// may hold, or nothing where others hold too much. Whether it could be.
    pub(crate) fn add_in_full(&mut self, address: usize, len: usize) -> bool {
        if len == 0 || !self.engine.contains(address) {
            return true;
        }
        let len = len.min(self.engine.hold_limit_bytes().saturating_sub(PAGE_SIZE));
        if len <= FEW_PAGES * PAGE_SIZE - address % PAGE_SIZE {
            self.add(address, len, len);
            return true;
        }
        self.add_held(address, len).is_some()
    }

    /// The same, but waits for others.
    pub(crate) fn add_in_turn(&mut self, address: usize, len: usize) -> bool {
        let since = now_ns();
        loop {
            if self.add_in_full(address, len) {
                return true;
            }
            if !self.may_wait(since) {
                return false;
            }
        }
    }

    /// Waits until others let go of what they hold; whether to try again, until `since_ns`
    /// is long ago.
    pub(crate) fn may_wait(&self, since_ns: u64) -> bool {
        let may = now_ns() - since_ns < MOST_WAIT_NS;
        if may {
            self.engine.await_letting_go();
        }
        may
    }

    /// Pins a buffer after its pages are held by `hold`; how many bytes of it. `None` where
    /// they cannot be, or there is no room to note it.
    fn pin(
        &mut self,
        address: usize,
        len: usize,
        hold: impl FnOnce(&Engine, usize) -> bool,
    ) -> Option<usize> {
        self.try_pin(address, len, hold).unwrap_or_else(|error| stop(address, &error))
    }

    /// As [`Pins::pin`], but returns the error of a page that cannot be brought in. The caller
    /// then releases what was pinned before that page.
    fn try_pin(
        &mut self,
        address: usize,
        len: usize,
        hold: impl FnOnce(&Engine, usize) -> bool,
    ) -> Result<Option<usize>, FaultError> {
        let (engine, top) = (self.engine, DEPTH.get());
        let Some(place) = range(top).filter(|_| top - self.floor < N) else { return Ok(None) };
        let pages = engine.pages_under(address, len);
        let call = self.call;
        let is_held = signals::with_all_blocked(|| {
            let is_held = hold(engine, pages);
            if is_held {
                place.set(Range { address, len: 0, held: pages as u32, call });
                DEPTH.set(top + 1);
            }
            is_held
        });
        if !is_held {
            return Ok(None);
        }
        let untouched = guarded_call::untouched_context();
        let open = match untouched {
            // SAFETY: the context of a call that this thread answers.
            Some(context) => !unsafe { *signals::interrupted_mask(context) },
            None => !signals::current_mask(),
        };
        let (due, mut from) = (fault_samples::due(), None);
        loop {
            let done = place.get().len;
            let next = signals::with_all_blocked(|| {
                let next = engine.pin_until(address + done, len - done, open);
                if let Ok(Pinned { bytes, then, .. }) = &next {
                    let done = done + bytes;
                    place.set(Range { len: done, ..place.get() });
                    if *then == Then::Missing {
                        let rest = pages - engine.pages_under(address, done);
                        place.set(Range { held: (pages - rest) as u32, ..place.get() });
                        engine.let_go(rest);
                    }
                }
                next
            });
            let Pinned { bytes, then, from: came_from } = next?;
            from = came_from.or(from);
            match (then, untouched) {
                (Then::Signal, Some(context)) if bytes == 0 => abandon_call(context, || ()),
                (Then::Signal, _) => {}
                (Then::Done | Then::Missing, _) => break,
            }
        }
        if let (Some(due), Some(tier)) = (due, from) {
            note_sample(due, address, tier);
        }
        let pinned = place.get();
        if pinned.held == 0 {
            // Nothing to keep: an empty range ends the table.
            DEPTH.set(top);
        }
        Ok(Some(pinned.len))
    }

    /// How many more ranges there is room for.
    pub(crate) fn room(&self) -> usize {
        let used = DEPTH.get();
        MAX_RANGES.saturating_sub(used).min((self.floor + N).saturating_sub(used))
    }

    /// Keeps memory that `map_it` maps outside the window until the call ends, however it
    /// does; `held` bytes of it are counted as held. Returns `None` if other calls hold too
    /// much, or it cannot be mapped.
    pub(crate) fn keep_mapping(
        &mut self,
        len: usize,
        held: usize,
        map_it: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        let place = range(DEPTH.get()).filter(|_| self.room() > 0)?;
        let (engine, pages) = (self.engine, held.div_ceil(PAGE_SIZE));
        signals::with_all_blocked(|| {
            if pages > 0 && !engine.try_hold_memory(pages) {
                return None;
            }
            let Some(address) = map_it() else {
                if pages > 0 {
                    engine.let_go_memory(pages);
                }
                return None;
            };
            place.set(Range { address, len, held: pages as u32, call: self.call });
            DEPTH.set(DEPTH.get() + 1);
            Some(address)
        })
    }

    /// Gives up what was kept since `mark` of [`Pins::mark`].
    pub(crate) fn back_to(&mut self, mark: usize) {
        release_down_to(self.engine, mark);
    }

    /// How much is kept now.
    pub(crate) fn mark(&self) -> usize {
        DEPTH.get()
    }

    /// Pins a string as far as its zero byte.
    pub(crate) fn add_text(&mut self, address: usize) {
        let mut done = 0;
        while done < TEXT_BYTES {
            let at = address + done;
            let len = PAGE_SIZE - at % PAGE_SIZE;
            let allowed = || {
                signals::with_all_blocked(|| self.engine.allowed_bytes(at, len, libc::PROT_READ))
            };
            if !self.engine.contains(at) || allowed() < len || self.add(at, len, len) < len {
                return;
            }
            // SAFETY: these bytes are mapped, may be read, and are pinned.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
            if bytes.contains(&0) {
                return;
            }
            done += len;
        }
    }
}

impl<const N: usize> Drop for Pins<'_, N> {
    fn drop(&mut self) {
        release_down_to(self.engine, self.floor);
    }
}

/// Notes the time that a call waited for a buffer, where it is known which call that is.
#[cold]
fn note_sample(due: fault_samples::Due, address: usize, tier: Tier) {
    if let Some(context) = guarded_call::answered_context() {
        // SAFETY: what the handler was given that answers this thread's innermost call, below
        // which this runs.
        unsafe { fault_samples::note(due, address, Toucher::Call, tier, context) };
    }
}

/// Abandons the guard of a caught call, which the thread then makes again.
fn abandon_call(context: *mut c_void, before: impl FnOnce()) -> ! {
    release_while(|range| range.call == context as usize);
    temporary_mask::forget();
    // SAFETY: the context of the call that this thread answers; what it holds is released.
    unsafe {
        TrappedCall::make_again(context, guarded_call::number());
        guarded_call::leave();
        before();
        resume(context)
    }
}

/// A buffer cannot be brought in: stops as a touch of it would have, before the call is made.
fn stop(address: usize, error: &FaultError) -> ! {
    if let Some(context) = guarded_call::answered_context() {
        abandon_call(context, || page_fault::refuse(address, error, context));
    }
    page_fault::raise(address, error);
    // A program that survives its own SIGBUS handler cannot go on from here.
    std::process::abort()
}
