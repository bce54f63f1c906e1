//! Memory that guarded calls keep resident or map for themselves, and its release.
//!
//! Pages are counted before they are pinned or copied: all calls together may hold only a share of
//! the budget ([`softswap_engine::api::engine::pinning`]).
//!
//! A call pins its buffers while it runs. It may end without returning: by a jump, an exception, or
//! cancellation. Therefore the pins are in a table of the thread, innermost call last, each with
//! the stack position of its call. A jump, or the next pin, releases the pins of ended calls. A
//! forked child releases the pins of its parent's other threads.
//!
//! A signal that arrives while a call waits for a free page interrupts the call, which is restarted
//! after the handler, unless it has had an effect.

use crate::base::issue_call::engine_syscall;
use crate::base::{fault_samples, guarded_call, instance, signal_stack, uaccess};
use crate::signals::{page_fault, temporary_mask};
use softswap_engine::api::engine::Engine;
use softswap_engine::api::engine::pinning::{Pinned, Then};
use softswap_engine::api::fault_samples::Toucher;
use softswap_engine::base::stats::Tier;
use softswap_engine::core::errors::FaultError;
use softswap_sys::locked::Locked;
use softswap_sys::raw::now_ns;
use softswap_sys::signal_frame::resume;
use softswap_sys::signals::{Context, TrappedCall};
use softswap_sys::{PAGE_SIZE, memory, signals};
use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

/// Length of the longest path that the kernel accepts, with its zero byte.
const TEXT_BYTES: usize = 4096;

/// Enough for a message with the maximum number of vectors, and for calls of a handler on top.
const MAX_RANGES: usize = signals::THREAD_DATA_BYTES / size_of::<Range>();

/// Pages of one buffer that a call may always hold, for structures, paths, and arrays of vectors.
const GUARANTEED_PAGES: usize = 5;

/// Longest wait of a call for other calls to release pages, in nanoseconds.
const MAX_WAIT_NS: u64 = 4_000_000_000;

/// Makes one step of checking the limit for calls that cannot be split and counting their pages.
pub(crate) static UNDIVIDED: Locked<()> = Locked::new(());

/// Divisor: calls that can be split hold at most a quarter of the budget available for pages.
const PINNED_DIVISOR: usize = 4;
/// Divisor: calls that cannot be split leave an eighth of this budget, and at least
/// [`MIN_RESERVED_BYTES`], to the rest of the program.
const RESERVED_DIVISOR: usize = 8;
const MIN_RESERVED_BYTES: usize = 1 << 20;

/// Bytes that all calls together may pin, including calls that cannot be split. With a
/// higher limit other threads would find no page to evict.
pub(crate) fn undivided_limit_bytes(engine: &Engine) -> usize {
    let all_bytes = engine.hold_limit_bytes() * PINNED_DIVISOR;
    let reserved_bytes = (all_bytes / RESERVED_DIVISOR).max(MIN_RESERVED_BYTES);
    all_bytes.saturating_sub(reserved_bytes).max(engine.hold_limit_bytes())
}

#[derive(Clone, Copy, Default)]
struct Range {
    address: usize,
    len: usize,
    held: u32,
    /// Address just above the call's stack frames.
    call: usize,
}

thread_local! {
    /// Innermost call last; null if there is no table yet. The table is next to the signal stack:
    /// thread-local variables take space from the thread's stack, which may have only 16 KiB.
    static PINNED: Cell<*const Cell<Range>> = const { Cell::new(std::ptr::null()) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Assumed maximum size of the stack frames of a call that was not trapped.
const FRAMES_BYTES: usize = 64 << 10;

/// Assumed maximum size of a stack: a frame farther above a call's frame is on another stack.
const STACK_BYTES: usize = 8 << 20;

/// Returns true if the call whose frames end at `call` has ended: its thread runs at `here`.
fn is_left(call: usize, here: usize) -> bool {
    signal_stack::is_left(call, here) && (signal_stack::contains(call) || here - call < STACK_BYTES)
}

/// Returns `None` beyond the table's end. A thread without a signal stack gets a table that is
/// never freed; such threads are rare.
fn range(index: usize) -> Option<&'static Cell<Range>> {
    if PINNED.get().is_null() {
        let table = memory::reserve_bytes(signals::THREAD_DATA_BYTES).ok()?;
        PINNED.set(table.as_ptr().cast());
    }
    // SAFETY: the table has space for `MAX_RANGES` ranges, for which all-zero bytes are valid, and
    // belongs to this thread while `PINNED` points to it.
    (index < MAX_RANGES).then(|| unsafe { &*PINNED.get().add(index) })
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Table(*const Cell<Range>);

// SAFETY: the table is only accessed by its own thread, or in a forked child, which has one thread.
unsafe impl Send for Table {}

pub(crate) static TABLES: Locked<Vec<Table>> = Locked::new(Vec::new());

pub(crate) fn become_child(engine: &Engine) {
    let own = Table(PINNED.get());
    TABLES.with(|tables| {
        let kept = Vec::from_iter((!own.0.is_null()).then_some(own));
        for table in std::mem::replace(tables, kept) {
            // Released entries are empty, so the first empty one ends the table.
            for index in (0..MAX_RANGES).take_while(|_| table != own) {
                // SAFETY: the tables stay mapped, and the child's only thread runs this code.
                let range = unsafe { &*table.0.add(index) }.take();
                if range.held == 0 && range.len == 0 {
                    break;
                }
                // The entry is incomplete: its thread was adding or releasing it during the fork.
                if range.address == 0 {
                    continue;
                }
                if engine.contains(range.address) {
                    engine.unpin(range.address, range.len);
                } else {
                    engine_syscall(libc::SYS_munmap, [range.address, range.len, 0, 0, 0, 0]);
                    engine.uncharge(range.held as usize);
                }
            }
        }
    });
    let own = (0..DEPTH.get()).filter_map(range);
    engine.inherit_held(own.map(|range| range.get().held as usize).sum());
}

/// Calls of a sleeping process pin nothing, so a forked child loses no pins.
pub(crate) fn forget_other_threads() {
    let own = Table(PINNED.get());
    TABLES.with(|tables| tables.retain(|table| *table == own));
}

pub(crate) fn register_table(base: usize) {
    signal_stack::set(base);
    let table = signals::thread_data(base) as *const Cell<Range>;
    PINNED.set(table);
    TABLES.with(|tables| tables.push(Table(table)));
}

/// Releases this thread's pins when the thread exits, possibly from within a guarded call.
pub(crate) fn forget_pins() {
    if let Some(engine) = instance::engine() {
        release_down_to(engine, 0);
    }
    signal_stack::set(0);
    let table = PINNED.replace(std::ptr::null());
    TABLES.with(|tables| tables.retain(|other| other.0 != table));
}

pub(crate) fn jump_to(target: usize) {
    guarded_call::drop_all();
    release_dead_if(|range| is_left(range.call, target));
}

/// Code that runs at `here` reuses the addresses of the ended calls' frames.
fn release_dead(here: usize) {
    release_dead_if(|range| is_left(range.call, here));
}

fn top() -> Option<Range> {
    Some(range(DEPTH.get().checked_sub(1)?)?.get())
}

fn release_dead_if(is_dead: impl Fn(&Range) -> bool) {
    while let (Some(engine), Some(_)) = (instance::engine(), top().filter(&is_dead)) {
        release_down_to(engine, DEPTH.get() - 1);
    }
}

fn release_down_to(engine: &Engine, floor: usize) {
    while DEPTH.get() > floor
        && let Some(entry) = DEPTH.get().checked_sub(1).and_then(range)
    {
        // Read the entry first: a handler's call may reuse it. Remove it before unpinning: a
        // handler may interrupt this function and jump out of it.
        let Range { address, len, held, .. } = entry.get();
        compiler_fence(Ordering::SeqCst);
        DEPTH.set(DEPTH.get() - 1);
        compiler_fence(Ordering::SeqCst);
        entry.set(Range::default());
        if engine.contains(address) {
            engine.unpin(address, len);
            engine.release(held as usize);
            continue;
        }
        engine_syscall(libc::SYS_munmap, [address, len, 0, 0, 0, 0]);
        if held > 0 {
            engine.release_memory(held as usize);
        }
    }
}

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
            release_dead(here);
        }
        let call = match guarded_call::context_above(here) {
            Some(context) => context.as_ptr() as usize,
            None => here + FRAMES_BYTES,
        };
        Pins { engine, floor: DEPTH.get(), call }
    }

    /// Pins up to `most` bytes of a buffer, if it is managed; no more than [`GUARANTEED_PAGES`] if
    /// other calls hold too much. Returns how many bytes the kernel may access.
    pub(crate) fn add(&mut self, address: usize, len: usize, most: usize) -> usize {
        if len == 0 || !self.engine.contains(address) {
            return len;
        }
        let inline = GUARANTEED_PAGES * PAGE_SIZE - address % PAGE_SIZE;
        let most = len.min(most);
        if most > inline
            && let Some(pinned) = self.add_held(address, most)
        {
            return pinned;
        }
        self.pin(address, most.min(inline), |engine, pages| {
            engine.hold(pages);
            true
        })
        .unwrap_or(0)
    }

    /// Pins as many of the first `most` bytes as the limit allows, at least a page. Returns the
    /// length that was tried, and how much of it is pinned.
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

    /// Returns how many bytes the kernel may access, or `None` if other calls hold too much.
    pub(crate) fn add_held(&mut self, address: usize, len: usize) -> Option<usize> {
        self.pin(address, len, Engine::try_hold)
    }

    /// Pins a buffer of a call that cannot be split, up to [`undivided_limit_bytes`] for all calls.
    /// Also returns `None` if a page cannot be faulted in.
    pub(crate) fn add_undivided(&mut self, address: usize, len: usize) -> Option<usize> {
        let mark = DEPTH.get();
        let pinned = self.try_pin(address, len, |engine, pages| {
            // `Engine::hold` does not check the limit; two concurrent calls must not both pass.
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

    /// Pins a buffer, if it is managed, up to what all calls together may hold. Returns false, with
    /// nothing pinned, if other calls hold too much.
    pub(crate) fn add_in_full(&mut self, address: usize, len: usize) -> bool {
        if len == 0 || !self.engine.contains(address) {
            return true;
        }
        let len = len.min(self.engine.hold_limit_bytes().saturating_sub(PAGE_SIZE));
        if len <= GUARANTEED_PAGES * PAGE_SIZE - address % PAGE_SIZE {
            self.add(address, len, len);
            return true;
        }
        self.add_held(address, len).is_some()
    }

    /// As [`Pins::add_in_full`], but waits for other calls. Returns false after [`MAX_WAIT_NS`].
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

    /// Returns false if `since_ns` is more than [`MAX_WAIT_NS`] ago.
    pub(crate) fn may_wait(&self, since_ns: u64) -> bool {
        let may = now_ns() - since_ns < MAX_WAIT_NS;
        if may {
            self.engine.wait_for_release();
        }
        may
    }

    /// `hold` counts the pages first. `None` if it fails or the table is full.
    fn pin(
        &mut self,
        address: usize,
        len: usize,
        hold: impl FnOnce(&Engine, usize) -> bool,
    ) -> Option<usize> {
        self.try_pin(address, len, hold).unwrap_or_else(|error| stop(address, &error))
    }

    /// As [`Pins::pin`], but returns the error of a page that cannot be faulted in. The pages
    /// before it are then still pinned; the caller releases them.
    fn try_pin(
        &mut self,
        address: usize,
        len: usize,
        hold: impl FnOnce(&Engine, usize) -> bool,
    ) -> Result<Option<usize>, FaultError> {
        let (engine, top) = (self.engine, DEPTH.get());
        let Some(entry) = range(top).filter(|_| top - self.floor < N) else { return Ok(None) };
        let pages = engine.pages_under(address, len);
        let call = self.call;
        let is_held = signals::with_all_blocked(|| {
            let is_held = hold(engine, pages);
            if is_held {
                entry.set(Range { address, len: 0, held: pages as u32, call });
                DEPTH.set(top + 1);
            }
            is_held
        });
        if !is_held {
            return Ok(None);
        }
        let untouched = guarded_call::untouched_context();
        let open = !untouched.map_or_else(signals::current_mask, Context::mask);
        let (due, mut from) = (fault_samples::due(), None);
        loop {
            let done = entry.get().len;
            let next = signals::with_all_blocked(|| {
                let next = engine.pin_until(address + done, len - done, open);
                if let Ok(Pinned { bytes, then, .. }) = &next {
                    let done = done + bytes;
                    entry.set(Range { len: done, ..entry.get() });
                    if *then == Then::Missing {
                        let rest = pages - engine.pages_under(address, done);
                        entry.set(Range { held: (pages - rest) as u32, ..entry.get() });
                        engine.release(rest);
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
            record_sample(due, address, tier);
        }
        let pinned = entry.get();
        if pinned.held == 0 {
            // Remove the entry: an empty range marks the end of the table.
            DEPTH.set(top);
        }
        Ok(Some(pinned.len))
    }

    pub(crate) fn free_entries(&self) -> usize {
        let used = DEPTH.get();
        MAX_RANGES.saturating_sub(used).min((self.floor + N).saturating_sub(used))
    }

    /// The mapping, outside the window, lasts until the call ends, however it ends; `held` bytes of
    /// it count in the budget. `None` if other calls hold too much, or the mapping fails.
    pub(crate) fn keep_mapping(
        &mut self,
        len: usize,
        held: usize,
        map_it: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        let entry = range(DEPTH.get()).filter(|_| self.free_entries() > 0)?;
        let (engine, pages) = (self.engine, held.div_ceil(PAGE_SIZE));
        signals::with_all_blocked(|| {
            if pages > 0 && !engine.try_hold_memory(pages) {
                return None;
            }
            let Some(address) = map_it() else {
                if pages > 0 {
                    engine.release_memory(pages);
                }
                return None;
            };
            entry.set(Range { address, len, held: pages as u32, call: self.call });
            DEPTH.set(DEPTH.get() + 1);
            Some(address)
        })
    }

    pub(crate) fn back_to(&mut self, mark: usize) {
        release_down_to(self.engine, mark);
    }

    pub(crate) fn mark(&self) -> usize {
        DEPTH.get()
    }

    pub(crate) fn add_text(&mut self, address: usize) {
        const CHUNK: usize = 256;
        let mut chunk = [0_u8; CHUNK];
        let mut done = 0;
        while done < TEXT_BYTES {
            let at = address + done;
            let to_page_end = PAGE_SIZE - at % PAGE_SIZE;
            let is_new_page = done == 0 || at.is_multiple_of(PAGE_SIZE);
            if is_new_page && self.add(at, to_page_end, to_page_end) < to_page_end {
                return;
            }
            let len = to_page_end.min(CHUNK);
            if !uaccess::copy_from_user(at, &mut chunk[..len]) || chunk[..len].contains(&0) {
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

#[cold]
fn record_sample(due: fault_samples::Due, address: usize, tier: Tier) {
    if let Some(context) = guarded_call::answered_context() {
        fault_samples::record(due, address, Toucher::Call, tier, context);
    }
}

/// Ends the handling of a trapped call after `before`; the thread then issues the call again.
fn abandon_call(context: Context<'_>, before: impl FnOnce()) -> ! {
    release_dead_if(|range| range.call == context.as_ptr() as usize);
    temporary_mask::forget();
    // SAFETY: the context is that of the call that this thread handles; its pins are released.
    unsafe {
        TrappedCall::restart_syscall(context, guarded_call::number());
        guarded_call::drop_all();
        before();
        resume(context)
    }
}

/// Raises the signal that a touch of the failed page would raise. The call is not issued.
fn stop(address: usize, error: &FaultError) -> ! {
    if let Some(context) = guarded_call::answered_context() {
        abandon_call(context, || page_fault::report_failure(address, error, context));
    }
    page_fault::raise(address, error);
    // The call cannot continue even if the program's SIGBUS handler returns.
    std::process::abort()
}
