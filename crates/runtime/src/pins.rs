//! What guarded calls keep in memory, or map for themselves, and when that ends.
//!
//! A call pins what the kernel is given, for as long as it runs. It may end in other ways
//! than by returning: a handler of the program's jumps out of it, an exception leaves it,
//! its thread is cancelled. So the pins are not in the call's own frame but in a table of
//! the thread's, innermost last, each with the place of its call on the signal stack:
//! whoever jumps, or pins the next time, gives up those whose calls are no more.

use crate::start;
use crate::{faults, guard};
use softswap_engine::core::errors::FaultError;
use softswap_engine::door::engine::Engine;
use softswap_sys::{memory, signals};
use std::cell::Cell;
use std::ffi::c_void;

/// Longest path the kernel takes, with its zero byte.
const TEXT_BYTES: usize = 4096;

/// Ranges that one thread's calls can pin at once: a message of as many
/// vectors as there can be, and a handler's calls on top of it.
const MAX_RANGES: usize = signals::ROOM_BYTES / size_of::<Range>();

/// What a call has pinned.
#[derive(Clone, Copy)]
struct Range {
    address: usize,
    len: usize,
    /// Where on the signal stack the call's frames end; 0 where it is on another.
    call: usize,
}

thread_local! {
    /// What this thread's guarded calls have pinned, innermost call last; null
    /// where that is not kept yet. Beside the signal stack, because thread-local
    /// variables come out of the thread's own, which may be 16 KiB long.
    static PINNED: Cell<*const Cell<Range>> = const { Cell::new(std::ptr::null()) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Where this thread's signal stack is; 0: it has none.
    static STACK: Cell<usize> = const { Cell::new(0) };
    /// The innermost caught call: its context, which its frames lie below.
    static CALL: Cell<usize> = const { Cell::new(0) };
}

/// The frames of a call that was not caught, but made by a handler, lie within this.
const CALL_BYTES: usize = 64 << 10;

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

/// This thread has a signal stack, at `base`: its pins are kept beside it.
pub(crate) fn keep_pins(base: usize) {
    STACK.set(base);
    PINNED.set(signals::room(base) as *const Cell<Range>);
}

/// Gives up this thread's pins: it ends, perhaps out of a guarded call.
pub(crate) fn forget_pins() {
    if let Some(engine) = start::engine() {
        release_down_to(engine, 0);
    }
    STACK.set(0);
    PINNED.set(std::ptr::null());
}

/// Whether this thread has a signal stack of the engine's.
pub(crate) fn has_signal_stack() -> bool {
    STACK.get() != 0
}

/// Whether an address is on this thread's.
pub(crate) fn is_on_signal_stack(address: usize) -> bool {
    let base = STACK.get();
    base != 0 && signals::stack_at(base).contains(&address)
}

/// A call was caught; what was the innermost one before, for [`leave`].
pub(crate) fn enter(context: *const c_void) -> usize {
    CALL.replace(context as usize)
}

/// The call ends.
pub(crate) fn leave(outer: usize) {
    CALL.set(outer);
}

/// Gives up the pins of calls that are left by a jump to a frame at `target`.
pub(crate) fn jump_to(target: usize) {
    let stays = is_on_signal_stack(target);
    if !stays || CALL.get() < target {
        CALL.set(0);
        guard::left();
    }
    release_while(|range| !stays || (range.call != 0 && range.call < target));
}

/// Gives up the pins of calls that were left without notice: who runs at `here` has the
/// place of their frames.
fn notice_dead(here: usize) {
    let on_signal_stack = is_on_signal_stack(here);
    release_while(|range| range.call != 0 && (!on_signal_stack || range.call < here));
}

fn top() -> Option<Range> {
    Some(range(DEPTH.get().checked_sub(1)?)?.get())
}

fn release_while(is_dead: impl Fn(&Range) -> bool) {
    while let (Some(engine), Some(_)) = (start::engine(), top().filter(&is_dead)) {
        release_down_to(engine, DEPTH.get() - 1);
    }
}

fn release_down_to(engine: &Engine, floor: usize) {
    while DEPTH.get() > floor
        && let Some(Range { address, len, .. }) = top()
    {
        // First forgotten, then unpinned: a handler in between that jumps out
        // must not unpin a second time.
        DEPTH.set(DEPTH.get() - 1);
        if engine.contains(address) {
            engine.unpin(address, len);
        } else {
            guard::ask(libc::SYS_munmap, [address, len, 0, 0, 0, 0]);
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
        let call = match CALL.get() {
            _ if !is_on_signal_stack(here) => 0,
            caught if caught > here => caught,
            _ => here + CALL_BYTES,
        };
        Pins { engine, floor: DEPTH.get(), call }
    }

    /// Brings in and pins up to `most` bytes of a buffer, if it is managed.
    /// Returns how many of its bytes the kernel may now touch.
    pub(crate) fn add(&mut self, address: usize, len: usize, most: usize) -> usize {
        self.add_allowed(address, len, most, libc::PROT_NONE)
    }

    /// The same, but nothing where not all of it may be accessed as `wanted` says.
    fn add_allowed(&mut self, address: usize, len: usize, most: usize, wanted: i32) -> usize {
        if len == 0 || !self.engine.contains(address) {
            return len;
        }
        let top = DEPTH.get();
        let Some(range) = range(top).filter(|_| top - self.floor < N) else { return 0 };
        let pinned = signals::with_all_blocked(|| {
            let may_be =
                wanted == libc::PROT_NONE || self.engine.allowed_bytes(address, len, wanted) == len;
            if may_be { self.engine.pin(address, len, most) } else { Ok(0) }
        });
        match pinned {
            Ok(pinned) => {
                range.set(Range { address, len: pinned, call: self.call });
                DEPTH.set(top + 1);
                pinned
            }
            Err(error) => stop(address, &error),
        }
    }

    /// How many more ranges there is room for.
    pub(crate) fn room(&self) -> usize {
        let used = DEPTH.get();
        MAX_RANGES.saturating_sub(used).min((self.floor + N).saturating_sub(used))
    }

    /// Keeps memory that `map_it` maps outside the window until the call ends,
    /// however it does.
    pub(crate) fn keep_mapping(
        &mut self,
        len: usize,
        map_it: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        let range = range(DEPTH.get()).filter(|_| self.room() > 0)?;
        signals::with_all_blocked(|| {
            let address = map_it()?;
            range.set(Range { address, len, call: self.call });
            DEPTH.set(DEPTH.get() + 1);
            Some(address)
        })
    }

    /// Pins a string as far as its zero byte.
    pub(crate) fn add_text(&mut self, address: usize) {
        let mut done = 0;
        while done < TEXT_BYTES {
            let at = address + done;
            let len = softswap_sys::PAGE_SIZE - at % softswap_sys::PAGE_SIZE;
            if !self.engine.contains(at) || self.add_allowed(at, len, len, libc::PROT_READ) < len {
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

/// A buffer cannot be brought in: stop as a touch of it would have.
fn stop(address: usize, error: &FaultError) -> ! {
    // SAFETY: all-zero is a valid context to take a mask from; the signal
    // struck below ends the process or runs the program's own handler.
    let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
    faults::refuse(address, error, (&raw mut context).cast());
    // A program that survives its own SIGBUS handler cannot go on from here.
    std::process::abort()
}
