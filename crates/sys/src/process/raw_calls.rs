//! Loaded code that maps memory by a `syscall` instruction of its own.
//!
//! Such code sets the number of `mmap` as a constant shortly before the instruction. Code that
//! gets the number as an argument is not found. The C library and the loader are left out: they
//! map with signals blocked. So are sanitizers, for the same reason.

use crate::linked::Linked;
use std::ffi::{CStr, c_void};

/// Larger pieces of code are searched only if the library imports the function by which Rust's
/// standard library walks the stack: the search costs about 0.3 ms for each MiB.
const LARGE_BYTES: usize = 1 << 20;
/// Larger pieces of code are never searched: that would take longer than a few milliseconds.
const MOST_BYTES: usize = 32 << 20;
/// Distance between the number and the `syscall` instruction, with branches between them. A
/// `syscall` instruction that is taken in by mistake makes other calls, or none.
const FAR_BYTES: usize = 512;
/// The same without branches. A piece of code counts if it has one such instruction: in other
/// code bytes that look like instructions are mostly farther apart.
const NEAR_BYTES: usize = 64;
const CODE: u32 = libc::PF_R | libc::PF_X;
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Libraries that were searched already.
#[derive(Debug, Default)]
pub struct Searched {
    /// Number of libraries that the loader had ever added.
    added: u64,
    /// The address of the headers of each.
    libraries: Vec<usize>,
}

impl Searched {
    /// Nothing was searched yet.
    #[must_use]
    pub const fn new() -> Searched {
        Searched { added: 0, libraries: Vec::new() }
    }

    /// Returns the sites in libraries that were loaded since the last call: the address after
    /// each `syscall` instruction that may be given the number of `mmap`. `left_out` are addresses in
    /// libraries that are not searched.
    pub fn new_sites(&mut self, left_out: &[usize]) -> Vec<usize> {
        struct Search<'a> {
            searched: &'a mut Searched,
            left_out: &'a [usize],
            libraries: Vec<usize>,
            sites: Vec<usize>,
        }
        extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> i32 {
            // SAFETY: the loader describes one library, which stays loaded until this returns.
            // `search` is the local below, to which nothing else refers meanwhile.
            let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
            if search.libraries.is_empty() {
                if search.searched.added == info.dlpi_adds {
                    return 1;
                }
                search.searched.added = info.dlpi_adds;
            }
            let library = info.dlpi_phdr as usize;
            search.libraries.push(library);
            if search.searched.libraries.contains(&library) {
                return 0;
            }
            // SAFETY: the library's headers, as many as the loader says, and its name.
            let (headers, name) = unsafe {
                let headers =
                    std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
                let has_name = !info.dlpi_name.is_null();
                (headers, has_name.then(|| CStr::from_ptr(info.dlpi_name).to_bytes()))
            };
            if name.is_some_and(|name| name.windows(6).any(|part| part == b"san.so")) {
                return 0;
            }
            let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
            let segments = segments.map(|header| {
                let start = info.dlpi_addr as usize + header.p_vaddr as usize;
                (header.p_flags, start..start + header.p_filesz as usize)
            });
            let is_inside =
                |address: &usize| segments.clone().any(|(_, range)| range.contains(address));
            if search.left_out.iter().any(is_inside) {
                return 0;
            }
            for (_, range) in segments.clone().filter(|(flags, _)| flags & CODE == CODE) {
                if range.len() <= LARGE_BYTES
                    || range.len() <= MOST_BYTES && may_be_rust(range.start)
                {
                    // SAFETY: a readable segment, loaded while this runs. Code is not written to
                    // after it was loaded, but by debuggers.
                    let code = unsafe {
                        std::slice::from_raw_parts(range.start as *const u8, range.len())
                    };
                    add_sites(code, &mut search.sites);
                }
            }
            0
        }
        let mut search =
            Search { searched: self, left_out, libraries: Vec::new(), sites: Vec::new() };
        // SAFETY: `look` takes the loader's arguments, and the local.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        let Search { libraries, sites, .. } = search;
        if !libraries.is_empty() {
            self.libraries = libraries;
        }
        sites
    }
}

fn may_be_rust(code: usize) -> bool {
    let library = Linked::around(code);
    library.is_some_and(|library| !library.words_for(&[c"_Unwind_Backtrace"]).is_empty())
}

/// Adds the sites in a piece of code.
fn add_sites(code: &[u8], sites: &mut Vec<usize>) {
    const BLOCK_BYTES: usize = 1024;
    let (first, mut counts) = (sites.len(), false);
    for start in (0..code.len()).step_by(BLOCK_BYTES) {
        let block = &code[start..code.len().min(start + BLOCK_BYTES + 1)];
        if !has_syscall(block) {
            continue;
        }
        for (at, bytes) in block.windows(SYSCALL.len()).enumerate() {
            let end = start + at;
            let before = |bytes: usize| &code[end.saturating_sub(bytes)..end];
            if bytes == SYSCALL && has_number(before(FAR_BYTES)) {
                sites.push(code.as_ptr() as usize + end + SYSCALL.len());
                counts |= has_number(before(NEAR_BYTES));
            }
        }
    }
    if !counts {
        sites.truncate(first);
    }
}

/// Returns true if there is a `syscall` instruction. The compiler makes vector instructions of
/// this loop.
fn has_syscall(block: &[u8]) -> bool {
    let [first, second] = SYSCALL;
    let pairs = block.iter().zip(block.get(1..).unwrap_or_default());
    pairs.fold(0, |found, (a, b)| found | u8::from((*a == first) & (*b == second))) != 0
}

/// Returns true if an instruction sets `eax` or `rax` to the number of `mmap`.
fn has_number(code: &[u8]) -> bool {
    const NUMBER: [u8; 4] = (libc::SYS_mmap as u32).to_le_bytes();
    let mut places = code.windows(NUMBER.len()).enumerate().filter(|(_, bytes)| **bytes == NUMBER);
    places.any(|(at, _)| code[..at].ends_with(&[0xb8]) || code[..at].ends_with(&[0xc7, 0xc0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maps nothing: a length of zero is refused.
    fn map_nothing() -> (isize, usize) {
        let (result, site);
        // SAFETY: the call changes nothing.
        unsafe {
            std::arch::asm!(
                "lea {site}, [rip + 2f]",
                "mov eax, 9",
                "xor edi, edi",
                "xor esi, esi",
                "syscall",
                "2:",
                site = out(reg) site,
                out("rax") result, out("rdi") _, out("rsi") _, out("rcx") _, out("r11") _,
                in("rdx") 0, in("r10") 0, in("r8") 0, in("r9") 0,
            );
        }
        (result, site)
    }

    #[test]
    fn an_instruction_that_maps_is_found_once() {
        let (result, site) = map_nothing();
        assert!(result < 0);
        let mut searched = Searched::new();
        let here = map_nothing as *const () as usize;
        assert!(searched.new_sites(&[]).contains(&site));
        assert!(searched.new_sites(&[]).is_empty());
        assert!(!Searched::new().new_sites(&[here]).contains(&site));
        // SAFETY: the function returns a number.
        let loader = unsafe { libc::getauxval(libc::AT_BASE) as usize };
        let c_library = libc::gnu_get_libc_version as *const () as usize;
        assert!(Searched::new().new_sites(&[here, loader, c_library]).is_empty());
    }
}
