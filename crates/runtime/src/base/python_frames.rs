//! Functions of Python programs on the stack of a sampled fault, read from CPython's own state.
//!
//! The faulting thread follows its frames and notes the addresses of their code objects. The
//! control thread reads the names from the code objects afterwards. The kernel copies all of it, so
//! a wrong address ends the walk and never faults.

use super::uaccess::copy_by_kernel;
use softswap_engine::api::control_protocol::Python;
use softswap_engine::api::engine::Engine;
use softswap_engine::api::fault_samples::{FaultSample, PythonCode, PythonFrame};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Frames that are read of a stack, from the innermost one.
pub(super) const MAX_FRAMES: usize = 64;
/// glibc keeps the values of these keys in the thread's descriptor, which is never managed.
const DESCRIPTOR_KEYS: u32 = 32;
/// Longer names are not read.
const MAX_CHARACTERS: u64 = 512;
/// Bytes of functions in an answer, which has samples and blocks, too.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// A page that was brought in may be evicted before it is read.
const ATTEMPTS: usize = 4;

/// Offsets in CPython's structures, in bytes.
struct Layout {
    /// `Py_Version >> 16`.
    version: u16,
    /// In `_PyRuntime`: the thread-specific key of a thread's state.
    key: usize,
    /// From a thread's state to its innermost frame: where each pointer is.
    to_frame: &'static [usize],
    code: usize,
    previous: usize,
    boundary: Boundary,
    first_line: usize,
    /// Headers of strings that are ASCII, and of others.
    ascii: usize,
    compact: usize,
}

/// Mark of the outermost frame of a call of the interpreter's loop. Calls from Python to Python
/// have none.
enum Boundary {
    /// The byte at this offset is set in the outermost frame of a call.
    Entry(usize),
    /// The byte at this offset is `FRAME_OWNED_BY_CSTACK` in a frame that belongs to the C stack
    /// and has no function.
    Shim(usize),
}

const FRAME_OWNED_BY_CSTACK: u8 = 3;

static LAYOUTS: [Layout; 3] = [
    Layout {
        version: 0x030b,
        key: 596,
        to_frame: &[56, 8],
        code: 32,
        previous: 48,
        boundary: Boundary::Entry(68),
        first_line: 72,
        ascii: 48,
        compact: 72,
    },
    Layout {
        version: 0x030c,
        key: 1548,
        to_frame: &[56, 0],
        code: 0,
        previous: 8,
        boundary: Boundary::Shim(70),
        first_line: 68,
        ascii: 40,
        compact: 56,
    },
    Layout {
        version: 0x030d,
        key: 2164,
        to_frame: &[72],
        code: 0,
        previous: 8,
        boundary: Boundary::Shim(70),
        first_line: 68,
        ascii: 40,
        compact: 56,
    },
];

/// Number of bytes read of a frame.
const FRAME_BYTES: usize = 72;

/// In a code object, the same in all versions.
const FILE: usize = 112;
const QUALIFIED_NAME: usize = 128;
const CODE_BYTES: usize = QUALIFIED_NAME + 8;

/// In the header of a string.
const TYPE: usize = 8;
const CHARACTERS: usize = 16;
const STATE: usize = 32;
const HEADER_BYTES: usize = STATE + 4;

/// The entry of `LAYOUTS` in the lower half, plus one; 0: none. The thread-specific key above.
static INTERPRETER: AtomicU64 = AtomicU64::new(0);

/// Reads `N` bytes that are in memory.
fn read<const N: usize>(address: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (copy_by_kernel(address, bytes.as_mut_ptr(), N) == N as isize).then_some(bytes)
}

/// Fills `to`, bringing in pages that are stored. Returns `None` if the memory cannot be read.
fn read_stored(engine: &Engine, address: usize, to: &mut [u8]) -> Option<()> {
    for _ in 0..ATTEMPTS {
        if copy_by_kernel(address, to.as_mut_ptr(), to.len()) == to.len() as isize {
            return Some(());
        }
        engine.bring_in(address, to.len()).ok()?;
    }
    None
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_ne_bytes(word)
}

fn half(bytes: &[u8], offset: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_ne_bytes(half)
}

/// Has the frames of this interpreter noted from now on, or none.
pub(super) fn set_interpreter(python: Option<Python>) {
    let find = |python: Python| {
        let at = LAYOUTS.iter().position(|layout| layout.version == python.version)?;
        let key = half(&read::<4>(python.runtime.wrapping_add(LAYOUTS[at].key))?, 0);
        (key < DESCRIPTOR_KEYS).then_some(u64::from(key) << 32 | (at as u64 + 1))
    };
    INTERPRETER.store(python.and_then(find).unwrap_or(0), Relaxed);
}

/// The interpreter's layout, and its thread-specific key.
fn interpreter() -> Option<(&'static Layout, u32)> {
    let interpreter = INTERPRETER.load(Relaxed);
    let at = (interpreter as u32).checked_sub(1)?;
    Some((&LAYOUTS[at as usize], (interpreter >> 32) as u32))
}

/// Notes the frames of the calling thread, from the innermost one: addresses of code objects, odd
/// ones for entries. Returns their number. Called in signal handlers.
pub(super) fn note(to: &[AtomicU64; MAX_FRAMES]) -> usize {
    let mut count = 0_usize;
    let Some(mut frame) = innermost_frame() else { return 0 };
    let Some((layout, _)) = interpreter() else { return 0 };
    // Each shim frame follows a function's.
    for _ in 0..2 * MAX_FRAMES {
        let Some(bytes) = read::<FRAME_BYTES>(frame) else { break };
        let code = word(&bytes, layout.code);
        let (is_shim, is_entry) = match layout.boundary {
            Boundary::Entry(at) => (false, bytes[at] != 0),
            Boundary::Shim(at) => (bytes[at] == FRAME_OWNED_BY_CSTACK, false),
        };
        if is_shim {
            if let Some(last) = count.checked_sub(1) {
                to[last].fetch_or(1, Relaxed);
            }
        } else {
            let Some(slot) = to.get(count) else { break };
            slot.store(code & !1 | u64::from(is_entry), Relaxed);
            count += 1;
        }
        frame = word(&bytes, layout.previous) as usize;
        if frame == 0 {
            break;
        }
    }
    count
}

fn innermost_frame() -> Option<usize> {
    let (layout, key) = interpreter()?;
    // SAFETY: reads the calling thread's descriptor: the key is one of those kept there.
    let state = unsafe { libc::pthread_getspecific(key) };
    let pointer =
        |at: usize, offset: &usize| Some(word(&read::<8>(at.wrapping_add(*offset))?, 0) as usize);
    let first = Some(state as usize).filter(|state| *state != 0)?;
    layout.to_frame.iter().try_fold(first, pointer).filter(|frame| *frame != 0)
}

/// The frames in a slot.
pub(super) fn frames(slot: &[AtomicU64]) -> Vec<PythonFrame> {
    let frame = |word: &AtomicU64| {
        let word = word.load(Relaxed);
        PythonFrame { code: word & !1, is_entry: word & 1 != 0 }
    };
    slot.iter().map(frame).collect()
}

/// Reads the names of all functions in the samples, and brings in the pages that hold them. Called
/// by the control thread.
pub(crate) fn codes(engine: &Engine, samples: &[FaultSample]) -> Vec<PythonCode> {
    let Some((layout, _)) = interpreter() else { return Vec::new() };
    let frames = samples.iter().flat_map(|sample| &sample.python);
    let addresses: BTreeSet<u64> = frames.map(|frame| frame.code).collect();
    let codes = addresses.into_iter().filter_map(|address| layout.describe(engine, address));
    let mut bytes = 0;
    codes
        .take_while(|code| {
            bytes += code.line().len();
            bytes <= MAX_ANSWER_BYTES
        })
        .collect()
}

impl Layout {
    fn describe(&self, engine: &Engine, address: u64) -> Option<PythonCode> {
        let mut code = [0; CODE_BYTES];
        read_stored(engine, address as usize, &mut code)?;
        let (name, name_type) = self.text(engine, word(&code, QUALIFIED_NAME))?;
        let (file, file_type) = self.text(engine, word(&code, FILE))?;
        // Freed memory that was a code object hardly has two strings at these places.
        let is_code = name_type == file_type;
        is_code.then(|| PythonCode { address, line: half(&code, self.first_line), name, file })
    }

    /// A string and the address of its type.
    fn text(&self, engine: &Engine, address: u64) -> Option<(String, u64)> {
        const COMPACT: u32 = 1 << 5;
        const ASCII: u32 = 1 << 6;
        let mut header = [0; HEADER_BYTES];
        read_stored(engine, address as usize, &mut header)?;
        let state = half(&header, STATE);
        let width = state as usize >> 2 & 7;
        let characters = word(&header, CHARACTERS);
        if state & COMPACT == 0 || ![1, 2, 4].contains(&width) || characters > MAX_CHARACTERS {
            return None;
        }
        let start = if state & ASCII != 0 { self.ascii } else { self.compact };
        let mut bytes = vec![0; characters as usize * width];
        read_stored(engine, (address as usize).wrapping_add(start), &mut bytes)?;
        let character = |bytes: &[u8]| {
            let code = bytes.iter().rev().fold(0, |code, byte| code << 8 | u32::from(*byte));
            char::from_u32(code)
                .filter(|it| !it.is_control())
                .unwrap_or(char::REPLACEMENT_CHARACTER)
        };
        Some((bytes.chunks(width).map(character).collect(), word(&header, TYPE)))
    }
}
