//! Finds objects that map memory, or pass nested pointers to the kernel, by instructions of their
//! own instead of through the C library: Rust code that uses rustix, such as wasmtime.
//!
//! Searching all code would slow down each start. So only objects that look like Rust are searched:
//! they need the unwinder's library but not that of C++, and have at most [`MAX_CODE_BYTES`] of
//! code. The caller's filter survives `exec`, and the next program may have the same address. So
//! executables at a fixed address are skipped, and the result is the address of each instruction.

use super::linked::Linked;
use crate::seccomp::CALLS_BY_CALLER;
use std::ffi::{CStr, c_void};

const MAX_CODE_BYTES: usize = 64 << 20;
const UNWINDER: &CStr = c"libgcc_s.so.1";
const CPP_LIBRARY: &CStr = c"libstdc++.so.6";
/// Opcode of `mov eax, NUMBER`; the number has 4 bytes.
const LOAD: u8 = 0xb8;
const LOAD_BYTES: usize = 5;
const CALL: [u8; 2] = [0x0f, 0x05];
/// Largest distance from [`LOAD`] to the `syscall`; the arguments are set in between.
const NEAR_BYTES: usize = 96;

#[derive(Debug, Default)]
pub struct Objects {
    /// Address of each object's program headers.
    seen: Vec<usize>,
    /// The loader's count of unloaded objects, whose addresses may be reused.
    unloaded: u64,
}

impl Objects {
    pub const fn new() -> Objects {
        Objects { seen: Vec::new(), unloaded: 0 }
    }

    pub fn skip(&mut self) {
        self.visit(|_| ());
    }

    /// Searches new objects. Returns, for each that makes guarded calls, the addresses after its
    /// `syscall` instructions in ascending order. Some may not be instructions.
    pub fn find(&mut self) -> Vec<Vec<usize>> {
        let mut found = Vec::new();
        self.visit(|object| {
            if object.base() != 0 && object.needs(UNWINDER) && !object.needs(CPP_LIBRARY) {
                found.extend(object.code().filter_map(|range| {
                    // SAFETY: the loader's lock keeps the object loaded; no thread writes its code.
                    let code = unsafe {
                        std::slice::from_raw_parts(range.start as *const u8, range.len())
                    };
                    let is_it = code.len() <= MAX_CODE_BYTES && makes_guarded_calls(code);
                    is_it.then(|| calls_in(code).map(|after| range.start + after).collect())
                }));
            }
        });
        found
    }

    /// Calls `visitor` with each new object, under the loader's lock.
    fn visit(&mut self, mut visitor: impl FnMut(&Linked)) {
        struct Visit<'a> {
            objects: &'a mut Objects,
            visitor: &'a mut dyn FnMut(&Linked),
        }
        extern "C" fn inspect(info: *mut libc::dl_phdr_info, _: usize, visit: *mut c_void) -> i32 {
            // SAFETY: the loader describes one object and keeps it loaded during the call.
            // `visit` is the local below, to which nothing else refers.
            let (object, info, visit) =
                unsafe { (Linked::described(&*info), &*info, &mut *visit.cast::<Visit<'_>>()) };
            let objects = &mut *visit.objects;
            if objects.unloaded != info.dlpi_subs {
                objects.unloaded = info.dlpi_subs;
                objects.seen.clear();
            }
            let place = info.dlpi_phdr as usize;
            if !objects.seen.contains(&place) {
                objects.seen.push(place);
                (visit.visitor)(&object);
            }
            0
        }
        let mut visit = Visit { objects: self, visitor: &mut visitor };
        // SAFETY: `inspect` has the type that the loader calls, and its last argument is `visit`.
        unsafe { libc::dl_iterate_phdr(Some(inspect), (&raw mut visit).cast()) };
    }
}

fn makes_guarded_calls(code: &[u8]) -> bool {
    memchr::memmem::find_iter(code, &CALL).any(|call| {
        let before = &code[call.saturating_sub(NEAR_BYTES + LOAD_BYTES)..call];
        before.windows(LOAD_BYTES).any(|bytes| {
            let &[LOAD, a, b, c, d] = bytes else { return false };
            let number = i64::from(i32::from_le_bytes([a, b, c, d]));
            number != libc::SYS_ioctl && CALLS_BY_CALLER.contains(&number)
        })
    })
}

fn calls_in(code: &[u8]) -> impl Iterator<Item = usize> {
    memchr::memmem::find_iter(code, &CALL).map(|at| at + CALL.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_call_near_its_number_counts() {
        let code = |number: i64, distance: usize| {
            let mut code = vec![0x90; 300];
            code[40] = LOAD;
            code[41..45].copy_from_slice(&(number as u32).to_le_bytes());
            code[45 + distance..47 + distance].copy_from_slice(&CALL);
            code
        };
        for number in [libc::SYS_mmap, libc::SYS_writev, libc::SYS_preadv2, libc::SYS_recvmsg] {
            assert!(makes_guarded_calls(&code(number, 0)), "{number}");
            assert!(makes_guarded_calls(&code(number, NEAR_BYTES)), "{number}");
            assert!(!makes_guarded_calls(&code(number, NEAR_BYTES + 1)), "{number}");
        }
        for number in [libc::SYS_read, libc::SYS_ioctl, libc::SYS_mmap | 1 << 16] {
            assert!(!makes_guarded_calls(&code(number, 0)), "{number}");
        }
        assert!(!makes_guarded_calls(&code(libc::SYS_mmap, 0)[..46]));
        assert_eq!(calls_in(&code(libc::SYS_mmap, 3)).collect::<Vec<_>>(), [50]);
    }

    #[test]
    fn objects_are_scanned_once() {
        let mut objects = Objects::new();
        let mut count = 0;
        objects.visit(|_| count += 1);
        assert!(count > 1, "{count}");
        objects.visit(|_| count = 0);
        assert!(count > 1, "{count}");
        let mut skipped = Objects::new();
        skipped.skip();
        assert!(skipped.find().is_empty());
    }
}
