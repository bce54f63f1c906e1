//! Fuzz targets for the parsers of untrusted data.
//!
//! Each target is a function that accepts any input and panics if a parser violates its contract.
//! The tests in `tests/bounded.rs` run the targets over the corpus and over derived inputs, for a
//! limited time and with any compiler. `make fuzz TARGET=name` runs one with libFuzzer.
#![forbid(unsafe_code)]

mod areas;
mod codec;
mod compressed_slot;
mod control;
mod files;
mod options;
mod proc_files;

/// A target: its name, which is also its directory in the corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

macro_rules! targets {
    ($($(#[$docs:meta])* $name:ident => $body:path;)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$((stringify!($name), $name)),*];
        $($(#[$docs])*
        pub fn $name(input: &[u8]) {
            $body(input);
        })*
    };
}

targets! {
    /// Compression and decompression of pages.
    codec => codec::run;
    /// Several compressed pages in one slot.
    compressed_slot => compressed_slot::run;
    /// The header of a swap area.
    header => areas::header;
    /// Existing content of a file or device.
    contents => areas::contents;
    /// Requests and answers on the control socket.
    control => control::run;
    /// Sizes, shares, times, and the options of swap areas.
    sizes => options::sizes;
    /// Configuration files, and the variables that the command passes on.
    settings => options::settings;
    /// Text files in /proc.
    proc_texts => proc_files::texts;
    /// Page maps of processes.
    page_map => proc_files::page_map;
    /// Extents reported by file systems.
    extents => areas::extents;
    /// Core files.
    core => files::core;
    /// Executables.
    elf => files::elf;
    /// Recorded traces of memory accesses.
    trace => files::trace;
}

fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}

/// Returns numbers of all magnitudes from the input.
fn numbers(input: &[u8]) -> impl Iterator<Item = u64> {
    input.as_chunks::<9>().0.iter().map(|[kind, number @ ..]| {
        // Shift, because numbers in real data mostly have leading zero bits.
        u64::from_le_bytes(*number) >> (u32::from(*kind) % 64)
    })
}
