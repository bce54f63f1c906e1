//! Calls with structures, arrays and strings behind their pointers ([`pointer_lookup`]).

use super::pin_nested::with_nested;
use super::stripped_mask::StrippedMask;
use super::transfers::output_array::OutputArray;
use crate::base::errno::refused;
use crate::base::guarded_call::issue_waiting;
use crate::base::issue_call::{Answer, Arguments, issue};
use crate::base::{instance, uaccess};
use crate::memory::pins::Pins;
use crate::process::named_memory;
use softswap_engine::api::engine::Engine;
use softswap_sys::nested_pointer_table::{SYS_FUTEX_REQUEUE, SYS_GETXATTRAT, SYS_SETXATTRAT};
use softswap_sys::pointer_lookup::{self, Pointee};

pub(crate) fn issue_pinned(number: i64, arguments: Arguments) -> isize {
    match instance::engine() {
        Some(engine) => pinned_call(engine, number, arguments),
        None => issue(number, arguments),
    }
}

/// Returns the bytes that `getsockopt` writes, from the length behind its argument `index`.
fn size_behind(arguments: &Arguments, index: usize) -> Option<usize> {
    const INSTRUCTION_BYTES: usize = 8;
    let size = uaccess::get_user::<u32>(arguments[index])? as usize;
    // SO_GET_FILTER has the same number as SO_ATTACH_FILTER.
    let counts_instructions = [arguments[1], arguments[2]]
        == [libc::SOL_SOCKET as usize, libc::SO_ATTACH_FILTER as usize];
    Some(if counts_instructions { size * INSTRUCTION_BYTES } else { size })
}

/// Returns the length of the array that PTRACE_PEEKSIGINFO fills; `None` for other requests.
fn signal_records_len(arguments: &Arguments) -> Option<usize> {
    const PEEKSIGINFO: usize = libc::PTRACE_PEEKSIGINFO as usize;
    /// Offset of the number of records in struct ptrace_peeksiginfo_args.
    const COUNT: usize = 12;
    if arguments[0] != PEEKSIGINFO {
        return None;
    }
    let count = uaccess::get_user::<u32>(arguments[2].wrapping_add(COUNT))? as i32;
    // The kernel refuses a negative number.
    Some(usize::try_from(count).unwrap_or(0) * size_of::<libc::siginfo_t>())
}

fn control_device(arguments: Arguments) -> isize {
    named_memory::prepare(arguments[1], arguments[2]);
    issue_pinned(libc::SYS_ioctl, arguments)
}

pub(super) fn answer_for(number: i64) -> Option<Answer> {
    Some(match number {
        libc::SYS_ioctl => control_device,
        libc::SYS_setsockopt => |arguments| issue_pinned(libc::SYS_setsockopt, arguments),
        libc::SYS_getsockopt => |arguments| issue_pinned(libc::SYS_getsockopt, arguments),
        libc::SYS_ptrace => |arguments| issue_pinned(libc::SYS_ptrace, arguments),
        libc::SYS_bpf => |arguments| issue_pinned(libc::SYS_bpf, arguments),
        libc::SYS_kexec_load => |arguments| issue_pinned(libc::SYS_kexec_load, arguments),
        libc::SYS_futex_waitv => |arguments| issue_pinned(libc::SYS_futex_waitv, arguments),
        libc::SYS_perf_event_open => |arguments| issue_pinned(libc::SYS_perf_event_open, arguments),
        SYS_FUTEX_REQUEUE => |arguments| issue_pinned(SYS_FUTEX_REQUEUE, arguments),
        SYS_SETXATTRAT => |arguments| issue_pinned(SYS_SETXATTRAT, arguments),
        SYS_GETXATTRAT => |arguments| issue_pinned(SYS_GETXATTRAT, arguments),
        _ => return None,
    })
}

/// Fails with ENOMEM if not all pointees can be pinned: the kernel would report an absent page as a
/// bad pointer. A pointee is pinned up to the limit of all calls; no call accesses more.
pub(super) fn pinned_call(engine: &Engine, number: i64, mut arguments: Arguments) -> isize {
    let mut stripped = StrippedMask::new();
    stripped.substitute(number, &mut arguments);
    let mut pins = Pins::<12>::new(engine);
    let mut filled = None;
    for (index, pointee) in pointer_lookup::pointers(number) {
        let address = arguments[*index as usize];
        if *pointee == Pointee::Text {
            pins.add_text(address);
        }
        // Other pointees are strings, and those that `transfers`, `spawn` and `mappings` handle.
        let Some(assumed) = pointee.byte_count(&arguments) else { continue };
        let len = match pointee {
            Pointee::SizeBehind(size) => size_behind(&arguments, *size as usize),
            Pointee::TraceData => signal_records_len(&arguments),
            _ => None,
        };
        let len = len.unwrap_or(assumed);
        if pins.add_in_full(address, len) {
            continue;
        }
        filled = OutputArray::new(&mut pins, number, *index, address, len);
        match &filled {
            Some(filled) => arguments[*index as usize] = filled.address(),
            None if pins.add_in_turn(address, len) => {}
            None => return refused(libc::ENOMEM),
        }
    }
    let result = with_nested(engine, number, arguments, || issue_waiting(number, arguments));
    filled.map_or(result, |filled| filled.hand_back(result))
}
