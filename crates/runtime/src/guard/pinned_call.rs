//! A call with structures, arrays and strings behind its pointers: what [`pointer_arguments`]
//! lists of it is pinned while it runs.

use super::stripped_mask::StrippedMask;
use super::transfers::output_array::OutputArray;
use crate::base::errno::refused;
use crate::base::instance;
use crate::base::issue_call::{Arguments, issue};
use crate::memory::pins::Pins;
use softswap_engine::door::engine::Engine;
use softswap_sys::pointer_arguments::{self, Pointee};

/// Issues a call with what it points to brought in, if there is an engine.
pub(crate) fn issue_pinned(number: i64, arguments: Arguments) -> isize {
    match instance::engine() {
        Some(engine) => pinned_call(engine, number, arguments),
        None => issue(number, arguments),
    }
}

/// A call with structures, arrays and strings: pin them all, issue, unpin. All or
/// nothing: what the kernel finds missing it would call a bad pointer. Of what is more
/// than all calls together may hold as much as that: no call fills it.
pub(super) fn pinned_call(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let mut stripped = StrippedMask::new();
    stripped.take_place(number, &mut arguments);
    let mut pins = Pins::<12>::new(engine);
    let mut filled = None;
    for (index, pointee) in pointer_arguments::pointers(number) {
        let address = arguments[*index as usize];
        if *pointee == Pointee::Text {
            pins.add_text(address);
        }
        // What others answer before it comes here has none: `transfers`, `spawn`, `mappings`.
        let Some(len) = pointee.byte_count(&arguments) else { continue };
        if pins.add_in_full(address, len) {
            continue;
        }
        filled = OutputArray::new(&mut pins, (number, *index), address, len);
        match &filled {
            Some(filled) => arguments[*index as usize] = filled.address(),
            None if pins.add_in_turn(address, len) => {}
            None => return refused(libc::ENOMEM),
        }
    }
    let result = issue(number, arguments);
    filled.map_or(result, |filled| filled.hand_back(result))
}
