//! Calls over one buffer, and over an array of buffers.

use super::buffers::{EMPTY, INLINE_COUNT, MAX_RANGES, MAX_VECTORS, cut, space_for};
use super::chunks::{Moved, in_chunks};
use super::transfer_call::Call;
use super::{reading, writing};
use crate::base::errno::refused;
use crate::base::issue_call::{Arguments, issue};
use crate::base::uaccess;
use crate::memory::pins::Pins;
use libc::iovec;
use softswap_engine::api::engine::Engine;
use softswap_sys::pointer_lookup::{self, Pointee};

fn move_data(engine: &Engine, call: &Call, originals: &mut [iovec]) -> isize {
    if call.writes() {
        writing::write(engine, call, originals)
    } else {
        reading::read(engine, call, originals)
    }
}

/// Pins the pointees of the call other than its buffer: socket addresses and their lengths.
fn pin_others(pins: &mut Pins<'_, 4>, call: &Call, buffer_at: usize) {
    for (index, pointee) in pointer_lookup::pointers(call.number) {
        let (index, arguments) = (*index as usize, &call.arguments);
        match *pointee {
            Pointee::Struct(len) if index != buffer_at => {
                pins.add(arguments[index], len as usize, usize::MAX);
            }
            Pointee::Bytes(len) if index != buffer_at => {
                pins.add(arguments[index], arguments[len as usize], usize::MAX);
            }
            _ => {}
        }
    }
}

pub(super) fn answer_buffer(engine: &Engine, number: i64, arguments: Arguments) -> isize {
    let call = Call { number, arguments };
    let at = call.buffer_at().unwrap_or(1);
    let mut original = [iovec { iov_base: arguments[at] as *mut _, iov_len: arguments[at + 1] }];
    let mut pins = Pins::new(engine);
    pin_others(&mut pins, &call, at);
    if !cut(&mut original) {
        return issue(number, arguments);
    }
    move_data(engine, &call, &mut original)
}

pub(super) fn has_vectors(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_vmsplice
            | libc::SYS_process_vm_readv
            | libc::SYS_process_vm_writev
    )
}

pub(super) fn answer_vectors(engine: &Engine, number: i64, arguments: Arguments) -> isize {
    let [_, address, count, ..] = arguments;
    let mut pins = Pins::<MAX_RANGES>::new(engine);
    let mut inline = [EMPTY; INLINE_COUNT];
    if count > MAX_VECTORS {
        return issue(number, arguments);
    }
    let Some(originals) = space_for(&mut pins, &mut inline, count) else {
        return refused(libc::ENOMEM);
    };
    if !uaccess::get_user_array(address, originals) || !cut(originals) {
        return issue(number, arguments);
    }
    let call = Call { number, arguments };
    match number {
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
            pins.add(arguments[3], arguments[4].saturating_mul(size_of::<iovec>()), usize::MAX);
            one_piece(engine, &call, originals)
        }
        libc::SYS_vmsplice => one_piece(engine, &call, originals),
        _ => move_data(engine, &call, originals),
    }
}

/// Moves as much as can be pinned together, for calls that may move less than requested.
fn one_piece(engine: &Engine, call: &Call, originals: &[iovec]) -> isize {
    in_chunks(engine, originals, |vectors, _| Moved {
        result: call.issue(vectors),
        may_continue: false,
    })
}
