//! Changes loaded machine code in place.

use crate::memory::{PAGE_SIZE, protect};
use std::io;
use std::ops::Range;

/// Bytes of `jmp` with a 32-bit distance from the instruction's end.
const NEAR_BYTES: usize = 5;
/// Bytes of `jmp [rip]` and the address.
const FAR_BYTES: usize = 14;

/// Overwrites functions with jumps, for pairs `(from, to)`. After an error nothing was changed.
///
/// # Safety
/// Each `from` is the address of a function, at a multiple of 16. The function at `to` can be
/// called in its place. No thread is about to execute the first bytes of `from` meanwhile.
pub unsafe fn patch(jumps: &[(usize, usize)]) -> io::Result<()> {
    const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let mut open: Vec<Range<usize>> = Vec::new();
    for (from, _) in jumps {
        let page = from & !(PAGE_SIZE - 1);
        let range = page..(from + FAR_BYTES).next_multiple_of(PAGE_SIZE);
        match open.iter_mut().find(|r| r.start <= range.end && range.start <= r.end) {
            Some(known) => *known = known.start.min(range.start)..known.end.max(range.end),
            None => open.push(range),
        }
    }
    // SAFETY: code always stays executable and readable.
    let change = |range: &Range<usize>, prot| unsafe { protect(range.start, range.len(), prot) };
    let done = open.iter().try_for_each(|range| change(range, WRITABLE));
    if done.is_ok() {
        for (from, to) in jumps {
            // SAFETY: the pages are writable now. The caller promises that a function is at `from`,
            // that `to` can replace it, and that no thread executes it meanwhile.
            unsafe { write_jump(*from, *to) };
        }
    }
    for range in &open {
        // A range that was not made writable has this protection already.
        let _ = change(range, libc::PROT_READ | libc::PROT_EXEC);
    }
    done
}

/// # Safety
/// `from` is the address of a function, at a multiple of 16, that is writable and that no thread
/// executes meanwhile. The function at `to` can be called in its place.
unsafe fn write_jump(from: usize, to: usize) {
    let mut jump = [0; FAR_BYTES];
    let distance = to.wrapping_sub(from + NEAR_BYTES) as isize;
    let len = if let Ok(distance) = i32::try_from(distance) {
        jump[0] = 0xe9;
        jump[1..NEAR_BYTES].copy_from_slice(&distance.to_le_bytes());
        NEAR_BYTES
    } else {
        jump[..2].copy_from_slice(&[0xff, 0x25]);
        jump[FAR_BYTES - 8..].copy_from_slice(&to.to_le_bytes());
        FAR_BYTES
    };
    // Functions start at multiples of 16, so the write does not reach the next function.
    // SAFETY: the caller promises that at least 16 bytes of code at `from` are writable, and that
    // no thread executes them meanwhile.
    unsafe { std::ptr::copy_nonoverlapping(jump.as_ptr(), from as *mut u8, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(4096))]
    struct Functions([[u8; 16]; 256]);

    /// mov eax, N; ret
    const fn answering(number: u8) -> [u8; 16] {
        [0xb8, number, 0, 0, 0, 0xc3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    }

    #[unsafe(link_section = ".text")]
    static FUNCTIONS: Functions = Functions([answering(1); 256]);
    #[unsafe(link_section = ".text")]
    static OTHER: [u8; 16] = answering(2);

    fn call(address: usize) -> i32 {
        // SAFETY: the address is that of a function that takes no arguments and returns a number.
        unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(address)() }
    }

    #[test]
    fn patched_function_jumps_to_replacement() {
        let address = |index: usize| (&raw const FUNCTIONS.0[index]) as usize;
        let other = (&raw const OTHER) as usize;
        assert_eq!(call(address(3)), 1);
        // SAFETY: the functions belong to this test, and no other thread executes them.
        unsafe { patch(&[(address(3), other), (address(255), other)]) }.unwrap();
        assert_eq!((call(address(3)), call(address(255))), (2, 2));
        assert_eq!((call(address(2)), call(address(4))), (1, 1));
        let far = memory_far_away();
        // SAFETY: the function belongs to this test, and no other thread executes it.
        unsafe { patch(&[(address(7), far)]) }.unwrap();
        assert_eq!((call(address(7)), call(address(8))), (2, 1));
    }

    fn memory_far_away() -> usize {
        const WRITE_AND_RUN: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = crate::memory::RESERVE | libc::MAP_FIXED_NOREPLACE;
        let at = 0x1000_0000_0000_usize;
        // SAFETY: MAP_FIXED_NOREPLACE never displaces a mapping.
        unsafe { crate::memory::map(at, PAGE_SIZE, WRITE_AND_RUN, flags) }.unwrap();
        // SAFETY: the page was mapped just now, writable and executable.
        unsafe { (at as *mut [u8; 16]).write(OTHER) };
        at
    }
}
