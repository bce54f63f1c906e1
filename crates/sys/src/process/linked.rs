//! Loaded objects: their segments, and the words in them through which they call other objects.

use crate::memory::{PAGE_SIZE, protect};
use std::ffi::{CStr, c_void};
use std::io;
use std::ops::Range;

/// Kinds of relocations that store a symbol's address: <elf.h>.
const GLOBAL_DATA: u32 = 6;
const JUMP_SLOT: u32 = 7;
/// Tags of a dynamic section.
const NEEDED: i64 = 1;
const HASH_TABLE: i64 = 4;
const STRING_TABLE: i64 = 5;
const SYMBOL_TABLE: i64 = 6;
const GNU_HASH_TABLE: i64 = 0x6fff_fef5;

/// A library or the executable, which must stay loaded while this value is used.
#[derive(Clone, Copy)]
pub struct Linked {
    base: usize,
    headers: &'static [libc::Elf64_Phdr],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Tagged {
    tag: i64,
    value: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Relocation {
    offset: usize,
    kind: u32,
    symbol: u32,
    _addend: i64,
}

unsafe extern "C" {
    fn dladdr1(
        at: *const c_void,
        about: *mut libc::Dl_info,
        more: *mut *mut c_void,
        what: i32,
    ) -> i32;
}

/// Returns true for a stub in a non-PIE executable, which look-ups of the function return.
fn is_stub(address: usize) -> bool {
    const SYMBOL: i32 = 1;
    let mut symbol: *mut c_void = std::ptr::null_mut();
    // SAFETY: all fields are pointers, for which null is valid.
    let mut object = unsafe { std::mem::zeroed() };
    // SAFETY: the function accepts any address, and writes to `object` and `symbol`.
    let found = unsafe { dladdr1(address as *const _, &raw mut object, &raw mut symbol, SYMBOL) };
    // SAFETY: `symbol` is null, or points into the symbol table of a library that stays loaded.
    let symbol = unsafe { symbol.cast::<libc::Elf64_Sym>().as_ref() };
    found != 0 && symbol.is_some_and(|symbol| symbol.st_shndx == 0 && symbol.st_value != 0)
}

/// Returns the address that `dlsym` reports, or 0. In a non-PIE executable it may be a stub.
pub fn address(name: &CStr) -> usize {
    // SAFETY: the function reads a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
}

/// Returns the address of a function's code, or 0. Does not allocate if the function exists:
/// `dlsym` allocates an error message for each library without it, so libraries behind a stub are
/// searched by their own tables.
pub fn definition(name: &CStr) -> usize {
    struct Search<'a> {
        name: &'a CStr,
        found: usize,
    }
    extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> i32 {
        // SAFETY: the loader describes one library, with its name as a C string, and its program
        // headers with their number. `search` is the local below, to which nothing else refers
        // meanwhile.
        unsafe {
            let (info, search) = (&*info, &mut *search.cast::<Search>());
            // Only the executable has no name.
            if info.dlpi_name.is_null() || *info.dlpi_name == 0 {
                return 0;
            }
            let library = Linked::described(info);
            search.found = library.function(search.name).unwrap_or(0);
            i32::from(search.found != 0)
        }
    }
    let found = address(name);
    if !is_stub(found) {
        return found;
    }
    let mut search = Search { name, found: 0 };
    // SAFETY: `visit` has the type that the loader calls, and its last argument is the `Search`.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

fn gnu_hash(name: &CStr) -> u32 {
    let add = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
    name.to_bytes().iter().fold(5381, add)
}

/// Returns true if the C library reports that the process has one thread (glibc 2.32).
pub fn is_single_threaded() -> bool {
    // SAFETY: the function reads a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    // SAFETY: `found` is null, or points to a `char` of the C library, which stays loaded.
    unsafe { found.cast::<u8>().as_ref() }.is_some_and(|only| *only != 0)
}

/// Returns true for a Go program, which makes system calls by its own instructions.
pub fn is_go_program() -> bool {
    const NAME_BYTES: u8 = 4;
    const BUILD_ID: u8 = 4;
    let is_go = |note: &[u8]| {
        matches!(note, [NAME_BYTES, 0, 0, 0, _, _, _, _, BUILD_ID, 0, 0, 0, b'G', b'o', 0, 0, ..])
    };
    // A C linker places other notes before Go's.
    let has_go = |notes: &[u8]| (0..notes.len()).step_by(4).any(|at| is_go(&notes[at..]));
    Linked::executable().has_segment(libc::PT_NOTE, has_go)
}

/// Returns true if Go's linker, which drops unused functions, kept the one that starts programs.
pub fn is_go_program_that_forks() -> bool {
    const NAME: &[u8] = b"syscall.forkAndExecInChild\0";
    let has_name = |bytes: &[u8]| memchr::memmem::find(bytes, NAME).is_some();
    is_go_program() && Linked::executable().has_segment(libc::PT_LOAD, has_name)
}

/// # Safety
/// The table is at this address, and stays valid while the iterator is used.
unsafe fn named_in_gnu_hash(table: usize, hash: u32) -> impl Iterator<Item = usize> {
    const HEADER_WORDS: usize = 4;
    let words = table as *const u32;
    // A table: header (bucket count, first symbol, filter words, shift) · Bloom filter · one word
    // per bucket (first symbol, or 0) · one word per symbol.
    // SAFETY: the caller promises that the table is valid.
    let (first, chain) = unsafe {
        let (buckets, first) = (words.read() as usize, words.add(1).read() as usize);
        let bucket = words.add(HEADER_WORDS + 2 * words.add(2).read() as usize);
        let at = if buckets == 0 { 0 } else { bucket.add(hash as usize % buckets).read() as usize };
        (at, bucket.add(buckets).wrapping_sub(first))
    };
    // SAFETY: a chain starts at its bucket's symbol and ends with an odd word.
    let word = move |index: usize| unsafe { chain.wrapping_add(index).read() };
    let next = move |index: &usize| (word(*index) & 1 == 0).then(|| index + 1);
    let all = std::iter::successors((first != 0).then_some(first), next);
    all.filter(move |index| word(*index) | 1 == hash | 1)
}

impl Linked {
    /// # Safety
    /// `info` comes from the loader, and the object stays loaded while the result is used.
    pub(crate) unsafe fn described(info: &libc::dl_phdr_info) -> Linked {
        // SAFETY: `dlpi_phdr` points to `dlpi_phnum` headers, valid while the object is loaded.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        Linked { base: info.dlpi_addr as usize, headers }
    }

    fn executable() -> Linked {
        extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> i32 {
            // SAFETY: the loader describes the executable first. `found` is the local below.
            unsafe { *found.cast::<Linked>() = Linked::described(&*info) };
            1
        }
        let mut found = Linked { base: 0, headers: &[] };
        // SAFETY: `visit` has the type that the loader calls, and its last argument is the local.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
        found
    }

    fn has_segment(&self, kind: u32, has: impl Fn(&[u8]) -> bool) -> bool {
        self.segments(kind, libc::PF_R).any(|segment| {
            // SAFETY: the loader has mapped the segment readable, and it stays mapped.
            has(unsafe { std::slice::from_raw_parts(segment.start as *const u8, segment.len()) })
        })
    }

    /// Returns the load address; 0 for an executable at a fixed address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    pub(crate) fn code(&self) -> impl Iterator<Item = Range<usize>> {
        self.segments(libc::PT_LOAD, libc::PF_X)
    }

    pub(crate) fn needs(&self, name: &CStr) -> bool {
        let Some(strings) = self.table(STRING_TABLE) else { return false };
        let mut needed = self.entries().iter().filter(|entry| entry.tag == NEEDED);
        // SAFETY: the entry is an offset in the string table, valid while the object is loaded.
        needed.any(|entry| unsafe { CStr::from_ptr((strings + entry.value) as *const _) } == name)
    }

    pub fn containing(inside: usize) -> Option<Linked> {
        struct Search {
            inside: usize,
            found: Option<Linked>,
        }
        extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> i32 {
            // SAFETY: the loader describes one library. `search` is the local below, to which
            // nothing else refers meanwhile.
            let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
            // SAFETY: the caller keeps the library loaded.
            let linked = unsafe { Linked::described(info) };
            let is_it = linked.code_around(search.inside).is_some();
            search.found = is_it.then_some(linked);
            i32::from(is_it)
        }
        let mut search = Search { inside, found: None };
        // SAFETY: `visit` has the type that the loader calls; its last argument is the `Search`.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        search.found
    }

    fn segments(&self, kind: u32, flags: u32) -> impl Iterator<Item = Range<usize>> {
        let base = self.base;
        let wanted = move |header: &&libc::Elf64_Phdr| {
            header.p_type == kind && header.p_flags & flags == flags
        };
        self.headers.iter().filter(wanted).map(move |header| {
            let start = base + header.p_vaddr as usize;
            start..start + header.p_memsz as usize
        })
    }

    pub fn code_around(&self, inside: usize) -> Option<Range<usize>> {
        self.segments(libc::PT_LOAD, libc::PF_X).find(|code| code.contains(&inside))
    }

    pub fn words_with(&self, value: usize) -> Vec<usize> {
        let words = self.segments(libc::PT_LOAD, libc::PF_W).flat_map(|data| {
            let first = data.start.next_multiple_of(size_of::<usize>());
            (first..data.end - (size_of::<usize>() - 1)).step_by(size_of::<usize>())
        });
        // SAFETY: each word is aligned and in data of a library that stays loaded. Other threads
        // may write it: the read is volatile, and the processor reads a word atomically.
        words.filter(|word| unsafe { (*word as *const usize).read_volatile() } == value).collect()
    }

    /// Returns the words through which the object accesses these symbols, with the name's index.
    pub fn words_for(&self, names: &[&CStr]) -> Vec<(usize, usize)> {
        const TABLES: [(i64, i64); 2] = [(7, 8), (23, 2)];
        let (Some(symbols), Some(strings)) = (self.table(SYMBOL_TABLE), self.table(STRING_TABLE))
        else {
            return Vec::new();
        };
        let mut words = Vec::new();
        for (table, len) in TABLES {
            let (Some(table), Some(len)) = (self.table(table), self.tagged(len)) else { continue };
            for index in 0..len / size_of::<Relocation>() {
                // SAFETY: the entry is in the library's relocation table, whose length the library
                // specifies. The table and those of symbols and names (C strings) stay valid while
                // the library is loaded.
                let (entry, name) = unsafe {
                    let entry = (table as *const Relocation).add(index).read();
                    let symbol = (symbols as *const libc::Elf64_Sym).add(entry.symbol as usize);
                    let name = strings + (*symbol).st_name as usize;
                    (entry, CStr::from_ptr(name as *const _))
                };
                if matches!(entry.kind, GLOBAL_DATA | JUMP_SLOT)
                    && let Some(which) = names.iter().position(|wanted| *wanted == name)
                {
                    words.push((self.base + entry.offset, which));
                }
            }
        }
        words
    }

    /// Returns the address of the function `name` if the library itself defines it.
    fn function(&self, name: &CStr) -> Option<usize> {
        const FUNCTION: u8 = 2;
        let (symbols, strings) = (self.table(SYMBOL_TABLE)?, self.table(STRING_TABLE)?);
        let is_it = |index: &usize| {
            // SAFETY: the index comes from the library's hash table, so it is valid in its symbol
            // table. That and the table of names (C strings) stay valid while the library is
            // loaded.
            unsafe {
                let symbol = &*(symbols as *const libc::Elf64_Sym).add(*index);
                symbol.st_shndx != 0
                    && symbol.st_info & 15 == FUNCTION
                    && CStr::from_ptr((strings + symbol.st_name as usize) as *const _) == name
            }
        };
        let index = match self.table(GNU_HASH_TABLE) {
            // SAFETY: the library's dynamic section contains the address of a table of this kind.
            Some(table) => unsafe { named_in_gnu_hash(table, gnu_hash(name)) }.find(is_it)?,
            None => {
                let table = self.table(HASH_TABLE)? as *const u32;
                // SAFETY: the second word of such a table is the number of symbols.
                (0..unsafe { table.add(1).read() } as usize).find(is_it)?
            }
        };
        // SAFETY: `is_it` has read the symbol with this index.
        let value = unsafe { (*(symbols as *const libc::Elf64_Sym).add(index)).st_value };
        Some(self.base + value as usize)
    }

    fn entries(&self) -> &'static [Tagged] {
        let Some(section) = self.segments(libc::PT_DYNAMIC, 0).next() else { return &[] };
        let count = (section.end - section.start) / size_of::<Tagged>();
        // SAFETY: the dynamic section has the length in its header and stays valid while the
        // library is loaded; the loader has finished writing it.
        let entries = unsafe { std::slice::from_raw_parts(section.start as *const Tagged, count) };
        let end = entries.iter().position(|entry| entry.tag == 0);
        &entries[..end.unwrap_or(entries.len())]
    }

    fn tagged(&self, tag: i64) -> Option<usize> {
        self.entries().iter().find(|entry| entry.tag == tag).map(|entry| entry.value)
    }

    /// Returns a table's address. The loader may have added the load address to the entry.
    fn table(&self, tag: i64) -> Option<usize> {
        let value = self.tagged(tag)?;
        Some(if value < self.base { self.base + value } else { value })
    }

    /// Stores values in words: `(word, value)`. Fails if the system keeps the words read-only.
    ///
    /// # Safety
    /// [`Linked::words_with`] or [`Linked::words_for`] found the words, and a function called
    /// through a new value can be called in place of the previous one.
    pub unsafe fn replace(&self, words: &[(usize, usize)]) -> io::Result<()> {
        const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;
        let whole_pages =
            |range: Range<usize>| range.start & !(PAGE_SIZE - 1)..range.end & !(PAGE_SIZE - 1);
        let read_only: Vec<_> = self.segments(libc::PT_GNU_RELRO, 0).map(whole_pages).collect();
        // SAFETY: a library's data stays readable, and only the loader wrote it before.
        let change =
            |range: &Range<usize>, prot| unsafe { protect(range.start, range.len(), prot) };
        for range in &read_only {
            change(range, WRITABLE)?;
        }
        for (word, value) in words {
            // SAFETY: the word was found in the library's data, and is writable now. The caller
            // promises that the new function can be called in place of the previous one.
            unsafe { (*word as *mut usize).write_volatile(*value) };
        }
        read_only.iter().try_for_each(|range| change(range, libc::PROT_READ))
    }
}

/// Result of `_dl_find_object`: `struct dl_find_object` of <dlfcn.h>.
#[repr(C)]
struct FoundObject {
    flags: u64,
    start: usize,
    end: usize,
    link_map: usize,
    frames: usize,
    reserved: [u64; 7],
}

/// Replaces the C library's `_dl_find_object` for the unwinder: for this symbol alone the runtime
/// would need glibc 2.35. Returns 0, or -1 if there is no object.
///
/// # Safety
/// `found` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn softswap_find_object(inside: *const c_void, found: *mut FoundObject) -> i32 {
    let Some(linked) = Linked::containing(inside as usize) else { return -1 };
    let Some(frames) = linked.segments(libc::PT_GNU_EH_FRAME, 0).next() else { return -1 };
    let loaded = linked.segments(libc::PT_LOAD, 0);
    let (start, end) = loaded.fold((usize::MAX, 0), |(start, end), segment| {
        (start.min(segment.start), end.max(segment.end))
    });
    let object =
        FoundObject { flags: 0, start, end, link_map: 0, frames: frames.start, reserved: [0; 7] };
    // SAFETY: the caller promises that `found` is writable.
    unsafe { found.write(object) };
    0
}

#[cfg(test)]
mod tests {
    #[test]
    fn object_lookup_matches_libc() {
        type Find = unsafe extern "C" fn(*const c_void, *mut FoundObject) -> i32;
        // SAFETY: the function reads a C string.
        let libc_find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        if libc_find.is_null() {
            println!("skipped: the C library has no _dl_find_object");
            return;
        }
        // SAFETY: the function of that name has this type.
        let libc_find: Find = unsafe { std::mem::transmute(libc_find) };
        let own_code = object_lookup_matches_libc as *const c_void;
        for inside in [own_code, libc::getpid as *const c_void] {
            let frames_by = |find: Find| {
                // SAFETY: all fields are integers, for which zero is valid.
                let mut found: FoundObject = unsafe { std::mem::zeroed() };
                // SAFETY: the function writes to the local.
                assert_eq!(unsafe { find(inside, &raw mut found) }, 0);
                found.frames
            };
            assert_eq!(frames_by(softswap_find_object), frames_by(libc_find));
        }
        // SAFETY: the function writes nothing if it finds no object.
        let none = unsafe { softswap_find_object(16 as *const _, std::ptr::null_mut()) };
        assert_eq!(none, -1);
    }

    use super::*;

    unsafe extern "C" {
        fn getppid() -> i32;
    }

    #[test]
    fn functions_are_found_in_symbol_tables() {
        for name in [c"getppid", c"setlocale", c"qsort", c"open", c"malloc_usable_size"] {
            let expected = address(name);
            let library = Linked::containing(expected).expect("the C library");
            assert_eq!(library.function(name), Some(expected), "{name:?}");
            assert_eq!(definition(name), expected, "{name:?}");
        }
        let library =
            Linked::containing(libc::setlocale as *const () as usize).expect("the C library");
        assert_eq!(library.function(c"no such name"), None);
        assert_eq!(library.function(c"environ"), None, "not a function");
    }

    fn own() -> Linked {
        Linked::containing(own as *const () as usize).expect("the executable")
    }

    #[test]
    fn library_is_found_by_code_address() {
        let own_code = own as *const () as usize;
        assert!(own().code_around(own_code).unwrap().contains(&own_code));
        let other =
            Linked::containing(libc::setlocale as *const () as usize).expect("the C library");
        assert!(other.code_around(own_code).is_none());
        assert!(Linked::containing(0).is_none());
    }

    #[test]
    fn patched_pointer_changes_calls() {
        extern "C" fn instead() -> i32 {
            -7
        }
        let words = own().words_for(&[c"no such name", c"getppid"]);
        assert!(!words.is_empty() && words.iter().all(|(_, which)| *which == 1));
        // SAFETY: the function takes no arguments, and only returns a number.
        let before = unsafe { getppid() };
        let was: Vec<_> = words
            .iter()
            // SAFETY: the word is aligned and in this executable's data.
            .map(|(word, _)| (*word, unsafe { (*word as *const usize).read() }))
            .collect();
        let new: Vec<_> =
            words.iter().map(|(word, _)| (*word, instead as *const () as usize)).collect();
        // SAFETY: `instead` has the type of `getppid`, and all words are restored.
        let changed = unsafe {
            own().replace(&new).unwrap();
            let changed = getppid();
            own().replace(&was).unwrap();
            changed
        };
        // SAFETY: the function takes no arguments, and only returns a number.
        assert_eq!((changed, unsafe { getppid() }), (-7, before));
        assert!(own().words_with(instead as *const () as usize).is_empty());
    }
}
