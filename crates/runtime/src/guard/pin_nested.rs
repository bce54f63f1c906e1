//! Pointers within the structures that a call receives. How to add a call: `runtime/guard/mod.rs`.
//!
//! For a known structure ([`structure_of`]) the memory behind its pointers is pinned before the
//! call. For an unknown one the call is issued first. If it fails with EFAULT, usually without an
//! effect, every word of the structure that is an address of managed memory is treated as a
//! pointer, and the call is repeated. The second walk also follows the words behind those pointers,
//! and pins an array that may follow the structure of an `ioctl`.
//!
//! If the structure is not managed, the call does not trap, so the functions are interposed.

use super::transfers::other_process;
use crate::base::errno::{c_result, refused};
use crate::base::instance;
use crate::base::issue_call::Arguments;
use crate::base::real::real;
use crate::base::uaccess;
use crate::memory::pins::Pins;
use crate::process::named_memory;
use softswap_engine::api::engine::Engine;
use softswap_engine::base::access::Access;
use softswap_sys::PAGE_SIZE;
use softswap_sys::nested_pointer_table::{MAX_BYTES, Structure, Walk, structure_of, walk_of};
use softswap_sys::raw;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ranges that one call can pin for its inner pointers.
const MAX_RANGES: usize = 256;
const EFAULT: isize = refused(libc::EFAULT);
const WORD: usize = size_of::<usize>();
/// Bytes behind a pointer that a deep walk searches for further pointers.
const INNER_BYTES: usize = 512;

type Inner<'e> = Pins<'e, MAX_RANGES>;

pub(super) fn with_nested(
    engine: &Engine,
    number: i64,
    arguments: Arguments,
    call: impl Fn() -> isize,
) -> isize {
    if number == libc::SYS_ioctl
        && let Some(result) = named_memory::handle_ioctl(engine, &arguments, &call)
    {
        return result;
    }
    let mut pins = Inner::new(engine);
    if let Some(structure) = structure_of(number, &arguments)
        && !pin_structure(&mut pins, &structure)
    {
        return refused(libc::ENOMEM);
    }
    let Some(walk) = walk_of(number, &arguments) else { return call() };
    let mut walker = Walker { engine, pins, is_incomplete: false };
    if walk.has_early_effect {
        walker.pin_words(&walk, &SHALLOW);
    }
    let mut result = call();
    for reach in [SHALLOW, DEEP] {
        if result != EFAULT {
            break;
        }
        let has_pinned = walker.pin_words(&walk, &reach);
        let has_array = reach.is_deep && number == libc::SYS_ioctl && walker.pin_array(&walk);
        if has_pinned || has_array {
            result = call();
        }
    }
    if result == EFAULT && walker.is_incomplete {
        report(number, arguments);
    }
    result
}

/// Returns false if the table of pins is full, or if other calls hold too much of the limit.
fn pin_structure(pins: &mut Inner<'_>, structure: &Structure) -> bool {
    let mut bytes = [0_u8; MAX_BYTES];
    let bytes = &mut bytes[..structure.bytes];
    for index in 0..structure.count {
        let address = structure.address.wrapping_add(index * structure.bytes);
        if address == 0 || !uaccess::copy_from_user(address, bytes) {
            return true;
        }
        let array = structure.trailing_array.map(|extent| (address, extent.bytes(bytes)));
        let inner = structure
            .pointers
            .iter()
            .map(|(at, extent)| (word_at(bytes, *at), extent.bytes(bytes)));
        for (address, len) in array.into_iter().chain(inner) {
            if pins.free_entries() == 0 || !pins.add_in_turn(address, len) {
                return false;
            }
        }
    }
    true
}

fn word_at(bytes: &[u8], at: usize) -> usize {
    let mut word = [0; WORD];
    word.copy_from_slice(&bytes[at..at + WORD]);
    usize::from_le_bytes(word)
}

struct Reach {
    /// Bytes that are pinned behind a pointer.
    bytes: usize,
    /// True if the words behind pointers are treated as pointers, too.
    is_deep: bool,
}

const SHALLOW: Reach = Reach { bytes: 64 << 10, is_deep: false };
const DEEP: Reach = Reach { bytes: 4 << 20, is_deep: true };

struct Walker<'e> {
    engine: &'e Engine,
    pins: Inner<'e>,
    /// True if memory exceeds the reach, or other calls hold too much of the limit.
    is_incomplete: bool,
}

impl Walker<'_> {
    /// Pins an array that may follow a managed structure.
    fn pin_array(&mut self, walk: &Walk) -> bool {
        // Fewer bytes if other calls hold too much of the limit.
        let mut lens = [DEEP.bytes, DEEP.bytes / 4, DEEP.bytes / 16].into_iter();
        self.engine.contains(walk.address)
            && lens.any(|len| self.pins.add_held(walk.address, len).is_some())
    }

    fn pin_words(&mut self, walk: &Walk, reach: &Reach) -> bool {
        let before = self.pins.mark();
        self.pin_words_in(walk.address, walk.bytes, reach, reach.is_deep);
        self.pins.mark() > before
    }

    fn pin_words_in(&mut self, address: usize, len: usize, reach: &Reach, is_deep: bool) {
        const CHUNK: usize = 256;
        /// Alignment of a pointer: some structures are packed.
        const ALIGNMENT: usize = 4;
        let mut chunk = [0_u8; CHUNK];
        let mut done = 0;
        while done + WORD <= len {
            let bytes = &mut chunk[..CHUNK.min(len - done)];
            let at = address.wrapping_add(done);
            if at == 0 || !uaccess::copy_from_user(at, bytes) {
                return;
            }
            for offset in (0..=bytes.len() - WORD).step_by(ALIGNMENT) {
                let target = word_at(bytes, offset);
                if !self.engine.contains(target) {
                    continue;
                }
                let pinned = self.pin_behind(target, reach.bytes);
                if is_deep {
                    self.pin_words_in(target, pinned.min(INNER_BYTES), reach, false);
                }
            }
            done += CHUNK - ALIGNMENT;
        }
    }

    /// Returns the pinned bytes: at most `most`, fewer if other calls hold too much of the limit.
    fn pin_behind(&mut self, address: usize, most: usize) -> usize {
        let page = PAGE_SIZE - address % PAGE_SIZE;
        for len in [most, most / 16, page] {
            if let Some(pinned) = self.pins.add_held(address, len) {
                self.is_incomplete |= pinned == len && len == most && most > page;
                return pinned;
            }
        }
        self.is_incomplete = true;
        0
    }
}

fn report(number: i64, arguments: Arguments) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        raw::write_stderr(message(number, &arguments).as_bytes());
    }
}

fn message(number: i64, arguments: &Arguments) -> String {
    let name = match number {
        libc::SYS_ioctl => format!("ioctl (request {:#x})", arguments[1] & 0xffff_ffff),
        libc::SYS_setsockopt => "setsockopt".into(),
        libc::SYS_getsockopt => "getsockopt".into(),
        libc::SYS_bpf => "bpf".into(),
        libc::SYS_perf_event_open => "perf_event_open".into(),
        libc::SYS_keyctl => "keyctl".into(),
        other => format!("system call {other}"),
    };
    format!(
        "softswap: {name} failed with EFAULT: softswap could not fault in all memory that its \
         argument may point to; put these buffers in a shared mapping (MAP_SHARED), which is not \
         managed (share/doc/softswap/limits.md)\n"
    )
}

/// If the pointer that the filter checks, `outer`, is managed, the guard pins the memory.
fn interposed(
    number: i64,
    arguments: Arguments,
    outer: usize,
    original: impl Fn() -> isize,
) -> isize {
    let Some(engine) = instance::engine().filter(|engine| !engine.contains(outer)) else {
        return original();
    };
    let result = with_nested(engine, number, arguments, || match original() {
        -1 => -(std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as isize),
        result => result,
    });
    c_result(result)
}

/// # Safety
/// The rules of `ioctl(2)` apply. A missing argument is a register with an arbitrary value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: i32, request: libc::c_ulong, argument: usize) -> i32 {
    real!(ioctl: fn(i32, libc::c_ulong, usize) -> i32);
    let arguments = [fd as usize, request as usize, argument, 0, 0, 0];
    named_memory::prepare(request as usize, argument);
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    let original = || unsafe { ioctl()(fd, request, argument) as isize };
    interposed(libc::SYS_ioctl, arguments, argument, original) as i32
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: i32,
    level: i32,
    option: i32,
    value: *const libc::c_void,
    len: libc::socklen_t,
) -> i32 {
    real!(setsockopt: fn(i32, i32, i32, *const libc::c_void, libc::socklen_t) -> i32);
    let arguments = [fd as usize, level as usize, option as usize, value as usize, len as usize, 0];
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    let original = || unsafe { setsockopt()(fd, level, option, value, len) as isize };
    interposed(libc::SYS_setsockopt, arguments, value as usize, original) as i32
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: i32,
    level: i32,
    option: i32,
    value: *mut libc::c_void,
    len: *mut libc::socklen_t,
) -> i32 {
    real!(getsockopt: fn(i32, i32, i32, *mut libc::c_void, *mut libc::socklen_t) -> i32);
    let arguments = [fd as usize, level as usize, option as usize, value as usize, len as usize, 0];
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    let original = || unsafe { getsockopt()(fd, level, option, value, len) as isize };
    interposed(libc::SYS_getsockopt, arguments, value as usize, original) as i32
}

/// # Safety
/// The rules of `ptrace(2)` apply. Missing arguments are registers with arbitrary values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(
    request: u32,
    pid: libc::pid_t,
    address: usize,
    data: usize,
) -> libc::c_long {
    real!(ptrace: fn(u32, libc::pid_t, usize, usize) -> libc::c_long);
    let arguments = [request as usize, pid as usize, address, data, 0, 0];
    // SAFETY: this is the C library's function of this name; the program passes the arguments.
    let original = || unsafe { ptrace()(request, pid, address, data) as isize };
    let access = match request {
        libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA => Access::Read,
        libc::PTRACE_POKETEXT | libc::PTRACE_POKEDATA => Access::Write,
        _ if structure_of(libc::SYS_ptrace, &arguments).is_some() => {
            return interposed(libc::SYS_ptrace, arguments, data, original) as libc::c_long;
        }
        _ => return original() as libc::c_long,
    };
    other_process::access_word(pid, address, access, original) as libc::c_long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_the_call_and_the_remedy() {
        const REST: &str = " failed with EFAULT: softswap could not fault in all memory that its \
                            argument may point to; put these buffers in a shared mapping \
                            (MAP_SHARED), which is not managed (share/doc/softswap/limits.md)\n";
        // The kernel uses the low half of a request.
        let arguments = [3, 0xffff_ffff_c030_6401, 0x1000, 0, 0, 0];
        for (number, name) in [
            (libc::SYS_ioctl, "ioctl (request 0xc0306401)"),
            (libc::SYS_perf_event_open, "perf_event_open"),
            (libc::SYS_kexec_load, "system call 246"),
        ] {
            assert_eq!(message(number, &arguments), format!("softswap: {name}{REST}"));
        }
    }
}
