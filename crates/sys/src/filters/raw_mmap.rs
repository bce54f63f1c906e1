//! A filter that traps `mmap` of private anonymous memory from known instructions.
//!
//! A filter survives `exec`, and the program started by it may have no handler. This filter
//! therefore compares whole addresses of instructions ([`crate::raw_calls`]), which differ
//! in any other process: with address randomisation another `mmap` instruction is at one of these
//! places with a probability of less than one in 2^28. Without randomisation the filter must not
//! be installed.

use crate::seccomp::{
    self, ALLOW, AND, ARCH_X86_64, IF_ANY_SET, IF_AT_LEAST, IF_EQUAL, Instruction, LOAD,
    OFFSET_ARCH, OFFSET_ARGUMENTS, OFFSET_NUMBER, OFFSET_POINTER, RETURN, TRAP, plain,
};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

static INSTALLED: AtomicU32 = AtomicU32::new(0);

/// Number of filters that [`install`] has installed in this process.
#[must_use]
pub fn installed() -> u32 {
    INSTALLED.load(Ordering::Relaxed)
}

/// Installs the filter of [`build`] for all threads.
///
/// # Errors
/// The kernel's.
pub fn install(sites: &[usize], least_bytes: u32) -> io::Result<()> {
    seccomp::install(&build(sites, least_bytes))?;
    INSTALLED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Instructions that one filter compares with at most.
pub const MOST_SITES: usize = 512;

const LEN: u32 = OFFSET_ARGUMENTS + 8;
const ACCESS: u32 = OFFSET_ARGUMENTS + 2 * 8;
const FLAGS: u32 = OFFSET_ARGUMENTS + 3 * 8;
const WANTED: u32 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u32;
const LOOKED_AT: u32 = (libc::MAP_TYPE
    | libc::MAP_ANONYMOUS
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_HUGETLB
    | libc::MAP_GROWSDOWN
    | libc::MAP_LOCKED
    | libc::MAP_32BIT) as u32;

/// Builds the filter for mappings of `least_bytes` and more (a power of two below 4 GiB). A site
/// is the address after a `syscall` instruction. Only the first [`MOST_SITES`] count.
#[must_use]
pub fn build(sites: &[usize], least_bytes: u32) -> Vec<Instruction> {
    let jump = |code, value, if_true, if_false| Instruction { code, if_true, if_false, value };
    let mut code = vec![
        plain(LOAD, OFFSET_ARCH),
        jump(IF_EQUAL, ARCH_X86_64, 1, 0),
        plain(RETURN, ALLOW),
        plain(LOAD, OFFSET_NUMBER),
        jump(IF_EQUAL, libc::SYS_mmap as u32, 1, 0),
        plain(RETURN, ALLOW),
        plain(LOAD, FLAGS),
        plain(AND, LOOKED_AT),
        jump(IF_EQUAL, WANTED, 1, 0),
        plain(RETURN, ALLOW),
        plain(LOAD, ACCESS),
        jump(IF_ANY_SET, libc::PROT_EXEC as u32, 0, 1),
        plain(RETURN, ALLOW),
        plain(LOAD, LEN + 4),
        jump(IF_AT_LEAST, 1, 3, 0),
        plain(LOAD, LEN),
        jump(IF_AT_LEAST, least_bytes, 1, 0),
        plain(RETURN, ALLOW),
    ];
    for site in sites.iter().take(MOST_SITES) {
        code.extend([
            plain(LOAD, OFFSET_POINTER + 4),
            jump(IF_EQUAL, (site >> 32) as u32, 0, 3),
            plain(LOAD, OFFSET_POINTER),
            jump(IF_EQUAL, *site as u32, 0, 1),
            plain(RETURN, TRAP),
        ]);
    }
    code.push(plain(RETURN, ALLOW));
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::tests::verdict_within;

    #[test]
    fn only_private_anonymous_memory_from_a_known_place_traps() {
        const HERE: u64 = 0x7f12_3456_789a;
        const RW: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        const USUAL: u64 = WANTED as u64;
        let program = build(&[0x5555_0000_1000, HERE as usize], 1 << 16);
        let verdict = |number, ip, len, access, flags| {
            let arguments = [0, len, access, flags, u64::MAX, 0];
            verdict_within(&program, number, ip, arguments, program.len() + 1)
        };
        let mmap = libc::SYS_mmap;
        assert_eq!(verdict(mmap, HERE, 1 << 20, RW, USUAL), TRAP);
        assert_eq!(verdict(mmap, HERE, 1 << 40, 0, USUAL), TRAP);
        assert_eq!(verdict(mmap, 0x5555_0000_1000, 1 << 16, RW, USUAL), TRAP);
        assert_eq!(verdict(mmap, HERE, 1 << 20, RW, USUAL | libc::MAP_NORESERVE as u64), TRAP);
        assert_eq!(verdict(mmap, HERE + 1, 1 << 20, RW, USUAL), ALLOW);
        assert_eq!(verdict(mmap, HERE ^ 1 << 40, 1 << 20, RW, USUAL), ALLOW);
        assert_eq!(verdict(mmap, HERE, (1 << 16) - 1, RW, USUAL), ALLOW);
        assert_eq!(verdict(mmap, HERE, 1 << 20, RW | 4, USUAL), ALLOW);
        assert_eq!(verdict(mmap, HERE, 1 << 20, RW, libc::MAP_PRIVATE as u64), ALLOW);
        assert_eq!(verdict(mmap, HERE, 1 << 20, RW, USUAL | libc::MAP_FIXED as u64), ALLOW);
        assert_eq!(verdict(libc::SYS_munmap, HERE, 1 << 20, RW, USUAL), ALLOW);
    }
}
