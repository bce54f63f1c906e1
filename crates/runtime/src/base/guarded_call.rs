//! The caught system call that this thread is in, if it is in one.

use std::cell::Cell;
use std::ffi::c_void;

const NONE: i64 = -1;

thread_local! {
    /// The call that this thread's guard answers, innermost; -1 for none.
    static ANSWERING: Cell<i64> = const { Cell::new(NONE) };
    /// What a filter of the program's own said as it trapped that call.
    static TRAPPED: Cell<Option<i32>> = const { Cell::new(None) };
    /// The innermost caught call: its context, which its frames lie below.
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
}

/// What the call around a caught one is: [`end`] puts it back.
pub(crate) struct Outer {
    number: i64,
    trapped: Option<i32>,
    context: usize,
}

/// A call was caught.
#[inline]
pub(crate) fn begin(number: i64, context: *const c_void) -> Outer {
    let (number, trapped) = (ANSWERING.replace(number), TRAPPED.take());
    Outer { number, trapped, context: CONTEXT.replace(context as usize) }
}

/// The call ends: what a filter of the program's own said, if it trapped it.
#[inline]
pub(crate) fn end(outer: &Outer) -> Option<i32> {
    CONTEXT.set(outer.context);
    ANSWERING.set(outer.number);
    TRAPPED.replace(outer.trapped)
}

/// Whether the innermost caught call has this number.
#[inline]
pub(crate) fn is_answering(number: i64) -> bool {
    ANSWERING.get() == number
}

/// A filter of the program's own has trapped the innermost call, and said this.
#[inline]
pub(crate) fn note_trapped(said: i32) {
    TRAPPED.set(Some(said));
}

/// Where the frames of the innermost caught call end; 0 where there is none.
#[inline]
pub(crate) fn frames_end() -> usize {
    CONTEXT.get()
}

/// This thread jumps out of the call that it was answering.
#[inline]
pub(crate) fn leave() {
    CONTEXT.set(0);
    ANSWERING.set(NONE);
    TRAPPED.set(None);
}
