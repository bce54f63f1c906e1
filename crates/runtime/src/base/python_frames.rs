//! Functions of Python programs on the stack of a sampled fault, read from CPython's own state.
//!
//! The faulting thread follows its frames and records the addresses of their code objects. Later
//! the control thread reads the names from the code objects. Both let the kernel copy the data, so
//! a wrong address ends the walk and never faults.

use super::uaccess::copy_by_kernel;
use softswap_engine::api::control_protocol::Python;
use softswap_engine::api::engine::Engine;
use softswap_engine::api::fault_samples::{FaultSample, PythonCode, PythonFrame};
use softswap_engine::base::access::Access;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

pub(super) const MAX_FRAMES: usize = 64;
/// glibc stores the values of these keys in the thread's descriptor, which is never managed.
const DESCRIPTOR_KEYS: u32 = 32;
const MAX_CHARACTERS: u64 = 512;
/// Maximum size of the function names in an answer. The rest is for samples and blocks.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Attempts to read: a page that was faulted in may be evicted before it is read.
const ATTEMPTS: usize = 4;

/// Offsets in CPython's structures, in bytes.
struct Layout {
    /// `Py_Version >> 16`.
    version: u16,
    /// In `_PyRuntime`: the thread-specific key of a thread's state.
    key: usize,
    /// Pointers from a thread's state to its innermost frame.
    to_frame: &'static [usize],
    code: usize,
    previous: usize,
    boundary: Boundary,
    first_line: usize,
    ascii: usize,
    compact: usize,
}

/// Mark of the outermost frame of a call of the interpreter's loop.
enum Boundary {
    /// The byte at this offset is set in the outermost frame of a call.
    Entry(usize),
    /// This byte is `FRAME_OWNED_BY_CSTACK` in a frame of the C stack, which has no function.
    Shim(usize),
}

const FRAME_OWNED_BY_CSTACK: u8 = 3;

const LAYOUT_3_12: Layout = Layout {
    version: 0x030c,
    key: 1548,
    to_frame: &[56, 0],
    code: 0,
    previous: 8,
    boundary: Boundary::Shim(70),
    first_line: 68,
    ascii: 40,
    compact: 56,
};

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
    LAYOUT_3_12,
    Layout { version: 0x030d, key: 2164, to_frame: &[72], ..LAYOUT_3_12 },
];

const FRAME_BYTES: usize = 72;

/// Offsets in a code object, the same in all versions.
const FILE: usize = 112;
const QUALIFIED_NAME: usize = 128;
const CODE_BYTES: usize = QUALIFIED_NAME + 8;

/// Offsets in the header of a string.
const TYPE: usize = 8;
const CHARACTERS: usize = 16;
const STATE: usize = 32;
const HEADER_BYTES: usize = STATE + 4;

/// The interpreter whose frames are recorded: index in [`LAYOUTS`] plus one in the lower half,
/// thread-specific key in the upper half; 0: none.
static INTERPRETER: AtomicU64 = AtomicU64::new(0);

/// Reads `N` bytes; `None` if they are not resident or cannot be read.
fn read<const N: usize>(address: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (copy_by_kernel(address, bytes.as_mut_ptr(), N) == N as isize).then_some(bytes)
}

fn read_stored(engine: &Engine, address: usize, to: &mut [u8]) -> Option<()> {
    for _ in 0..ATTEMPTS {
        if copy_by_kernel(address, to.as_mut_ptr(), to.len()) == to.len() as isize {
            return Some(());
        }
        engine.bring_in(address, to.len(), Access::Read).ok()?;
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

pub(super) fn set_interpreter(python: Option<Python>) {
    let find = |python: Python| {
        let at = LAYOUTS.iter().position(|layout| layout.version == python.version)?;
        let key = half(&read::<4>(python.runtime.wrapping_add(LAYOUTS[at].key))?, 0);
        (key < DESCRIPTOR_KEYS).then_some(u64::from(key) << 32 | (at as u64 + 1))
    };
    INTERPRETER.store(python.and_then(find).unwrap_or(0), Relaxed);
}

fn interpreter() -> Option<(&'static Layout, u32)> {
    let interpreter = INTERPRETER.load(Relaxed);
    let at = (interpreter as u32).checked_sub(1)?;
    Some((&LAYOUTS[at as usize], (interpreter >> 32) as u32))
}

/// Records the calling thread's frames, innermost first, as addresses of code objects. The lowest
/// bit marks the outermost frame of a call of the interpreter's loop. Called in signal handlers.
pub(super) fn record(to: &[AtomicU64; MAX_FRAMES]) -> usize {
    let mut count = 0_usize;
    let Some(mut frame) = innermost_frame() else { return 0 };
    let Some((layout, _)) = interpreter() else { return 0 };
    // Each frame of a function may be followed by a shim frame.
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
    // SAFETY: glibc reads the value from the calling thread's descriptor.
    let state = unsafe { libc::pthread_getspecific(key) };
    let pointer =
        |at: usize, offset: &usize| Some(word(&read::<8>(at.wrapping_add(*offset))?, 0) as usize);
    let first = Some(state as usize).filter(|state| *state != 0)?;
    layout.to_frame.iter().try_fold(first, pointer).filter(|frame| *frame != 0)
}

pub(super) fn frames(slot: &[AtomicU64]) -> Vec<PythonFrame> {
    let frame = |word: &AtomicU64| {
        let word = word.load(Relaxed);
        PythonFrame { code: word & !1, is_entry: word & 1 != 0 }
    };
    slot.iter().map(frame).collect()
}

/// Faults in the pages that contain the names. Called by the control thread.
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
        // If the code object has been freed, the two words rarely point to objects of one type.
        let is_code = name_type == file_type;
        is_code.then(|| PythonCode { address, line: half(&code, self.first_line), name, file })
    }

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
