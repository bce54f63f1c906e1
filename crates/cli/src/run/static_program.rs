//! Explains why a program has no dynamic loader, and what to use instead. Recognizes the kind of
//! program by its ELF notes, which stripping preserves: glibc's start files contain a tag for the
//! required kernel, Go a build ID.

use object::Endianness;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{NoteIterator, ProgramHeader};

/// Limit of the notes' size, above that of any linker.
const NOTES_BYTES: u64 = 64 << 10;
const GO_BUILD_ID: u32 = 4;
pub(super) const NO_PRELOAD: &str = "softswap works by preloading a library";

/// Explains why such a program cannot be managed, and the alternative.
pub(super) fn explain(
    headers: &[ProgramHeader64<Endianness>],
    endian: Endianness,
    read_at: impl Fn(&mut [u8], u64) -> std::io::Result<usize>,
) -> String {
    let (mut is_go, mut is_glibc) = (false, false);
    for header in headers.iter().filter(|header| header.p_type(endian) == elf::PT_NOTE) {
        let mut bytes = vec![0; header.p_filesz(endian).min(NOTES_BYTES) as usize];
        let got = read_at(&mut bytes, header.p_offset(endian)).unwrap_or(0);
        let align = if header.p_align(endian) == 8 { 8 } else { 4 };
        let notes = NoteIterator::<FileHeader64<Endianness>>::new(endian, align, &bytes[..got]);
        let Ok(mut notes) = notes else { continue };
        while let Ok(Some(note)) = notes.next() {
            let kind = note.n_type(endian).0;
            is_go |= note.name() == elf::ELF_NOTE_GO && kind == GO_BUILD_ID;
            is_glibc |= note.name() == elf::ELF_NOTE_GNU && kind == elf::NT_GNU_ABI_TAG.0;
        }
    }
    let (kind, instead) = if is_go {
        (
            "is a Go program, statically linked",
            "build it with cgo (CGO_ENABLED=1, and a package that uses it), without -static",
        )
    } else if is_glibc {
        ("is statically linked", "use a dynamically linked build (without -static)")
    } else {
        (
            "is statically linked without glibc, as with musl",
            "use a dynamically linked glibc build (of Rust programs x86_64-unknown-linux-gnu)",
        )
    };
    format!("{kind}, and {NO_PRELOAD}, which takes a dynamic loader; {instead}")
}
