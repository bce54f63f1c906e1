//! Detects sanitizers in a program's file or in LD_PRELOAD. Does not allocate: `exec` calls this,
//! also in the child of a `vfork`.

use std::fmt;

/// A tool whose runtime replaces `malloc` and maps most of the address space for its shadow memory,
/// so softswap cannot manage the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sanitizer {
    /// AddressSanitizer, including the hardware-assisted one.
    Address,
    Thread,
    Memory,
    Leak,
    /// A statically linked sanitizer of unknown kind.
    Unnamed,
}

impl fmt::Display for Sanitizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sanitizer::Address => "AddressSanitizer",
            Sanitizer::Thread => "ThreadSanitizer",
            Sanitizer::Memory => "MemorySanitizer",
            Sanitizer::Leak => "LeakSanitizer",
            Sanitizer::Unnamed => "a sanitizer",
        })
    }
}

/// Symbols, with surrounding zeroes, in the dynamic string table of programs with a sanitizer.
const MARKS: [(&[u8], Sanitizer); 6] = [
    (b"\0__asan_init\0", Sanitizer::Address),
    (b"\0__hwasan_init\0", Sanitizer::Address),
    (b"\0__tsan_init\0", Sanitizer::Thread),
    (b"\0__msan_init\0", Sanitizer::Memory),
    (b"\0__lsan_init\0", Sanitizer::Leak),
    // The static runtimes call this function if the program defines it.
    (b"\0__sanitizer_symbolize_code\0", Sanitizer::Unnamed),
];
/// Part of every symbol name in [`MARKS`], searched first.
const COMMON: &[u8] = b"san";
const MAX_MARK: usize = 32;

/// Smallest buffer size for [`sanitizer`] to work with the output of common linkers.
pub const BUFFER_BYTES: usize = 1024;
/// Size of the ELF header.
const HEAD_BYTES: usize = 64;
/// Size of a program header.
const HEADER_BYTES: usize = 56;
/// Size of an entry of the dynamic section.
const ENTRY_BYTES: usize = 16;

const RUNTIMES: [(&[u8], Sanitizer); 8] = [
    (b"libasan.so", Sanitizer::Address),
    (b"libhwasan.so", Sanitizer::Address),
    (b"libclang_rt.asan", Sanitizer::Address),
    (b"libclang_rt.hwasan", Sanitizer::Address),
    (b"libtsan.so", Sanitizer::Thread),
    (b"libclang_rt.tsan", Sanitizer::Thread),
    (b"libclang_rt.msan", Sanitizer::Memory),
    (b"liblsan.so", Sanitizer::Leak),
];

pub fn preloaded_sanitizer(preload: &[u8]) -> Option<Sanitizer> {
    let paths = preload.split(|byte| matches!(byte, b':' | b' '));
    let names = paths.filter_map(|path| path.rsplit(|byte| *byte == b'/').next());
    let named = |name: &[u8]| RUNTIMES.iter().find(|(start, _)| name.starts_with(start));
    names.filter_map(named).map(|(_, sanitizer)| *sanitizer).next()
}

/// Returns the sanitizer of a 64-bit ELF program. `read_at` reads a part of its file into the start
/// of `buffer` (at least [`BUFFER_BYTES`]) and returns the number of bytes read.
pub fn sanitizer(
    buffer: &mut [u8],
    read_at: impl Fn(&mut [u8], u64) -> Option<usize>,
) -> Option<Sanitizer> {
    let (mut at, end) = dynamic_strings(buffer, &read_at)?;
    while at < end {
        let wanted = buffer.len().min((end - at) as usize);
        let got = read_at(&mut buffer[..wanted], at)?;
        if let Some(sanitizer) = marked(&buffer[..got]) {
            return Some(sanitizer);
        }
        // The next piece starts with the end of this one, where a mark may begin.
        let is_last = at + got as u64 >= end;
        at += got.checked_sub(MAX_MARK).filter(|more| *more > 0 && !is_last)? as u64;
    }
    None
}

fn marked(strings: &[u8]) -> Option<Sanitizer> {
    let places = strings.windows(COMMON.len()).enumerate().filter(|(_, word)| *word == COMMON);
    places.map(|(at, _)| &strings[at.saturating_sub(MAX_MARK)..]).find_map(|around| {
        let around = &around[..around.len().min(2 * MAX_MARK)];
        let has = |mark: &[u8]| around.windows(mark.len()).any(|bytes| bytes == mark);
        MARKS.iter().find(|(mark, _)| has(mark)).map(|(_, sanitizer)| *sanitizer)
    })
}

/// A loaded segment: address, length in the file, and file offset.
#[derive(Clone, Copy, Default)]
struct Loaded {
    address: u64,
    len: u64,
    at: u64,
}

fn dynamic_strings(
    buffer: &mut [u8],
    read_at: &impl Fn(&mut [u8], u64) -> Option<usize>,
) -> Option<(u64, u64)> {
    const TABLE_AT: usize = 32;
    const COUNT_AT: usize = 56;
    const STRINGS: u64 = 5;
    const STRINGS_BYTES: u64 = 10;
    const MAX_STRINGS_BYTES: u64 = 16 << 20;
    let got = read_at(buffer, 0)?;
    let head = buffer[..got].first_chunk::<HEAD_BYTES>()?;
    head.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let count = usize::from(u16::from_le_bytes([head[COUNT_AT], head[COUNT_AT + 1]]));
    let table = word(head, TABLE_AT)?;
    let len = (HEADER_BYTES * count).min(buffer.len());
    let got = read_at(&mut buffer[..len], table)?;
    let (mut parts, mut count, mut dynamic) = ([Loaded::default(); 8], 0, None);
    for header in buffer[..got].chunks_exact(HEADER_BYTES) {
        let part =
            Loaded { address: word(header, 16)?, len: word(header, 32)?, at: word(header, 8)? };
        match word(header, 0)? as u32 {
            libc::PT_DYNAMIC => dynamic = Some(part),
            libc::PT_LOAD if count < parts.len() => {
                parts[count] = part;
                count += 1;
            }
            _ => {}
        }
    }
    let dynamic = dynamic?;
    let len = usize::try_from(dynamic.len).ok()?.min(buffer.len());
    let got = read_at(&mut buffer[..len], dynamic.at)?;
    let value = |tag| {
        let mut entries = buffer[..got].chunks_exact(ENTRY_BYTES);
        word(entries.find(|entry| word(entry, 0) == Some(tag))?, 8)
    };
    let (address, len) = (value(STRINGS)?, value(STRINGS_BYTES)?.min(MAX_STRINGS_BYTES));
    let is_around =
        |part: &&Loaded| address.checked_sub(part.address).is_some_and(|inside| inside < part.len);
    let part = parts.iter().find(is_around)?;
    let start = part.at.checked_add(address - part.address)?;
    Some((start, start.checked_add(len)?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn found(path: impl AsRef<std::path::Path>) -> Option<Sanitizer> {
        let file = File::open(path).unwrap();
        sanitizer(&mut [0; BUFFER_BYTES], |bytes, at| file.read_at(bytes, at).ok())
    }

    #[test]
    fn sanitizers_are_detected() {
        assert_eq!(found("/bin/sh"), None);
        assert_eq!(found("/proc/self/exe"), None);
        assert_eq!(found("/etc/passwd"), None);
        let filler = vec![b'x'; 100];
        for (mark, sanitizer) in MARKS {
            for lead in [0, 1, 30, 31, 32, 33, 90] {
                let strings = [&filler[..lead], mark, &filler].concat();
                assert_eq!(marked(&strings), Some(sanitizer), "{mark:?}");
            }
        }
        let preload = b"/usr/lib/libother.so:/usr/lib/libasan.so.8";
        assert_eq!(preloaded_sanitizer(preload), Some(Sanitizer::Address));
        assert_eq!(preloaded_sanitizer(b"/opt/libasan.so/libother.so"), None);
        assert_eq!(marked(b"\0__tsan_initial\0my__asan_init\0"), None);
    }

    #[test]
    fn damaged_files_are_ignored() {
        let mut bytes = std::fs::read("/bin/sh").unwrap();
        bytes.truncate(5000);
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        for at in 0..200 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            std::fs::write(&path, &damaged).unwrap();
            let _ = found(&path);
        }
    }
}
