//! What arbitrary bytes do to whatever reads bytes that others wrote.
//!
//! Each target is a function that takes any input and panics where a reader
//! breaks its word. The test in `tests/bounded.rs` runs them over the corpus and
//! over inputs made from it, for a bounded time and with any compiler; `make fuzz
//! TARGET=name` hands one to libFuzzer.
#![forbid(unsafe_code)]

mod areas;
mod codec;
mod control;
mod files;
mod options;
mod packed;
mod proc_files;

/// A target: its name, which is also its folder in the corpus, and what it does.
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
    /// Pages packed and unpacked.
    codec => codec::run;
    /// Several parts in one page.
    packed => packed::run;
    /// The header of a swap area.
    header => areas::header;
    /// What a file or device holds already.
    contents => areas::contents;
    /// Requests and answers on the control socket.
    control => control::run;
    /// Sizes, shares, times, and the options of swap areas.
    sizes => options::sizes;
    /// Configuration files and the variables that the command hands on.
    settings => options::settings;
    /// What the kernel says in /proc as text.
    proc_texts => proc_files::texts;
    /// Page maps of processes.
    page_map => proc_files::page_map;
    /// Where file systems keep files.
    extents => areas::extents;
    /// Core files.
    core => files::core;
    /// Programs.
    elf => files::elf;
    /// Traces of memory.
    trace => files::trace;
}

/// The input as text; what is none becomes replacement characters.
fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}

/// Numbers from the input, of all magnitudes.
fn numbers(input: &[u8]) -> impl Iterator<Item = u64> {
    input.as_chunks::<9>().0.iter().map(|[kind, number @ ..]| {
        // Most bits of a number from the wild are zeroes.
        u64::from_le_bytes(*number) >> (u32::from(*kind) % 64)
    })
}
