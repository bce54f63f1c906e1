//! Pointers within the structures of system calls. How to add a call: `runtime/guard/mod.rs`.
//!
//! For a call without a [`Structure`], [`walk_of`] returns the bytes that may hold pointers. The
//! caller then treats every word that is an address of managed memory as one.

pub use crate::pointer_table::{
    SYS_FUTEX_REQUEUE, SYS_GETXATTRAT, SYS_IO_PGETEVENTS, SYS_LSM_SET_SELF_ATTR, SYS_SETXATTRAT,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    Bytes(usize),
    /// A number in the structure, times `each`, plus `more`.
    Counted {
        at: usize,
        width: usize,
        each: usize,
        /// Bytes before the elements.
        more: usize,
    },
}

impl Length {
    pub fn bytes(self, structure: &[u8]) -> usize {
        match self {
            Length::Bytes(bytes) => bytes,
            Length::Counted { at, width, each, more } => {
                let digits = structure.get(at..at + width).unwrap_or(&[]);
                let count =
                    digits.iter().rev().fold(0, |sum, digit| sum << 8 | usize::from(*digit));
                count.saturating_mul(each).saturating_add(more)
            }
        }
    }
}

/// One structure or an array of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Structure {
    pub address: usize,
    /// Size of one structure, at most [`MAX_BYTES`].
    pub bytes: usize,
    pub count: usize,
    /// Offset, and bytes behind each.
    pub pointers: &'static [(usize, Length)],
    /// Full size, if the structure ends with an array.
    pub trailing_array: Option<Length>,
}

pub const MAX_BYTES: usize = 128;

const fn counted(at: usize, width: usize, each: usize) -> Length {
    Length::Counted { at, width, each, more: 0 }
}

type Layout = (usize, &'static [(usize, Length)], Option<Length>);

const SG_IO: usize = 0x2285;

/// Fixed size, pointers, and full size with an array.
const REQUESTS: &[(usize, Layout)] = &[
    // SIOCGIFCONF: struct ifconf.
    (0x8912, (16, &[(8, counted(0, 4, 1))], None)),
    // SIOCETHTOOL: struct ifreq. The size behind `ifr_data` depends on its first word.
    (0x8946, (40, &[(16, Length::Bytes(64 << 10))], None)),
    // SG_IO: struct sg_io_hdr. With an array of vectors `dxferp` points to `iovec_count` of them.
    (
        SG_IO,
        (
            88,
            &[
                (16, counted(12, 4, 1)),
                (16, counted(10, 2, 16)),
                (24, counted(8, 1, 1)),
                (32, counted(9, 1, 1)),
            ],
            None,
        ),
    ),
    // PAGEMAP_SCAN: struct pm_scan_arg.
    (0xc060_6610, (96, &[(40, counted(48, 8, 24))], None)),
    // USBDEVFS_CONTROL and USBDEVFS_BULK.
    (0xc018_5500, (24, &[(16, counted(6, 2, 1))], None)),
    (0xc018_5502, (24, &[(16, counted(4, 4, 1))], None)),
    // FS_IOC_FIEMAP, FIDEDUPERANGE, BTRFS_IOC_TREE_SEARCH_V2.
    (0xc020_660b, (32, &[], Some(Length::Counted { at: 24, width: 4, each: 56, more: 32 }))),
    (0xc018_9436, (24, &[], Some(Length::Counted { at: 16, width: 2, each: 32, more: 24 }))),
    (0xc070_9411, (112, &[], Some(Length::Counted { at: 104, width: 8, each: 1, more: 112 }))),
];

const FUTEX_WAITER: Layout = (24, &[(8, Length::Bytes(4))], None);
/// struct sock_fprog.
const FILTER: Layout = (16, &[(8, counted(0, 2, 8))], None);
const VECTOR: Layout = (16, &[(0, counted(8, 8, 1))], None);
/// struct xattr_args.
const ATTRIBUTE: Layout = (16, &[(0, counted(8, 4, 1))], None);
/// struct prctl_mm_map: the auxiliary vector.
const MEMORY_MAP: Layout = (104, &[(88, counted(96, 4, 1))], None);

const PR_SET_MM: usize = libc::PR_SET_MM as usize;
const PR_SET_MM_MAP: usize = libc::PR_SET_MM_MAP as usize;
const PTRACE_REGISTER_SETS: [usize; 2] = [0x4204, 0x4205];
const KEYCTL_INSTANTIATE_IOV: usize = 20;
const KEYCTL_DH_COMPUTE: usize = 23;

pub fn structure_of(number: i64, arguments: &[usize; 6]) -> Option<Structure> {
    let [first, second, third, fourth, fifth, _] = *arguments;
    let (address, count, (bytes, pointers, trailing_array)) = match number {
        libc::SYS_ioctl => {
            // The kernel uses the low half of a request.
            let request = second & 0xffff_ffff;
            let (_, layout) = REQUESTS.iter().find(|(known, _)| *known == request)?;
            (third, 1, *layout)
        }
        libc::SYS_futex_waitv => (first, second.min(128), FUTEX_WAITER),
        SYS_FUTEX_REQUEUE => (first, 2, FUTEX_WAITER),
        libc::SYS_setsockopt if is_filter(second, third) => (fourth, 1, FILTER),
        libc::SYS_ptrace if PTRACE_REGISTER_SETS.contains(&first) => (fourth, 1, VECTOR),
        libc::SYS_keyctl if first == KEYCTL_INSTANTIATE_IOV => (third, fourth.min(1024), VECTOR),
        libc::SYS_prctl if [first, second] == [PR_SET_MM, PR_SET_MM_MAP] => (third, 1, MEMORY_MAP),
        SYS_SETXATTRAT | SYS_GETXATTRAT => (fifth, 1, ATTRIBUTE),
        _ => return None,
    };
    Some(Structure { address, bytes, count, pointers, trailing_array })
}

fn is_filter(level: usize, option: usize) -> bool {
    const SO_ATTACH_REUSEPORT_CBPF: usize = 51;
    level == libc::SOL_SOCKET as usize
        && (option == libc::SO_ATTACH_FILTER as usize || option == SO_ATTACH_REUSEPORT_CBPF)
}

/// Bytes in which a call may have pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    pub address: usize,
    pub bytes: usize,
    /// The call has an effect before it fails, so pointers must be followed first.
    pub has_early_effect: bool,
}

/// Assumed for a request that encodes no size.
const UNKNOWN_BYTES: usize = 256;
const MAX_WALK_BYTES: usize = 4096;
/// First version of struct perf_event_attr. Its last word is the only pointer, of probes.
const PERF_EVENT_BYTES: usize = 64;

/// Returns bytes to search. SG_IO has a [`Structure`], but its vectors are searched, too.
pub fn walk_of(number: i64, arguments: &[usize; 6]) -> Option<Walk> {
    let [first, second, third, fourth, fifth, _] = *arguments;
    if structure_of(number, arguments).is_some() && second != SG_IO {
        return None;
    }
    let (address, bytes, has_early_effect) = match number {
        libc::SYS_ioctl => {
            let bytes = match second >> 16 & 0x3fff {
                0 => UNKNOWN_BYTES,
                bytes => bytes,
            };
            (third, bytes, has_early_effect(second))
        }
        libc::SYS_setsockopt => (fourth, fifth, false),
        libc::SYS_getsockopt => (fourth, UNKNOWN_BYTES, false),
        libc::SYS_perf_event_open => (first, PERF_EVENT_BYTES, false),
        libc::SYS_bpf => (second, third, true),
        libc::SYS_kexec_load => (third, second.saturating_mul(32), true),
        libc::SYS_keyctl if first == KEYCTL_DH_COMPUTE => (fifth, 48, true),
        _ => return None,
    };
    Some(Walk { address, bytes: bytes.min(MAX_WALK_BYTES), has_early_effect })
}

/// SG_IO with vectors, I2C_RDWR and SPI_IOC_MESSAGE transfer data before they copy results.
fn has_early_effect(request: usize) -> bool {
    const KIND_AND_NUMBER: usize = 0xffff;
    const SPI_MESSAGE: usize = 0x6b00;
    matches!(request & 0xffff_ffff, SG_IO | 0x0707) || request & KIND_AND_NUMBER == SPI_MESSAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structure_pointers_are_in_bounds() {
        let others = [FUTEX_WAITER, FILTER, VECTOR, ATTRIBUTE, MEMORY_MAP];
        let all = REQUESTS.iter().map(|(_, layout)| *layout).chain(others);
        for layout in all {
            let (bytes, pointers, trailing_array) = layout;
            assert!(bytes <= MAX_BYTES, "{layout:?}");
            let lengths = pointers.iter().map(|(_, length)| *length).chain(trailing_array);
            for length in lengths {
                if let Length::Counted { at, width, .. } = length {
                    assert!(at + width <= bytes, "{layout:?}");
                }
            }
            assert!(pointers.iter().all(|(at, _)| at + 8 <= bytes), "{layout:?}");
        }
    }

    #[test]
    fn structures_and_walks_follow_arguments() {
        let counted = Length::Counted { at: 2, width: 2, each: 10, more: 4 };
        assert_eq!((counted.bytes(&[9, 9, 3, 0, 9]), Length::Bytes(4).bytes(&[])), (34, 4));
        let arguments = |request| [3, request, 0x1000, 0, 0, 0];
        let found = structure_of(libc::SYS_ioctl, &arguments(0x8912)).unwrap();
        assert_eq!((found.address, found.bytes, found.count), (0x1000, 16, 1));
        assert_eq!(found.pointers[0].0, 8);
        // Its number encodes 48 bytes.
        let walk = walk_of(libc::SYS_ioctl, &arguments(0xc030_6401));
        assert_eq!(walk, Some(Walk { address: 0x1000, bytes: 48, has_early_effect: false }));
        assert_eq!(walk_of(libc::SYS_read, &[0; 6]), None);
    }

    #[test]
    fn nested_lengths_come_from_the_structure() {
        let attribute = structure_of(SYS_GETXATTRAT, &[3, 0, 0, 0, 0x1000, 16]).unwrap();
        assert_eq!((attribute.address, attribute.bytes, attribute.count), (0x1000, 16, 1));
        let mut bytes = [0xff; 16];
        bytes[8..12].copy_from_slice(&3000_u32.to_le_bytes());
        let nested = attribute.pointers.iter().map(|(at, length)| (*at, length.bytes(&bytes)));
        assert_eq!(nested.collect::<Vec<_>>(), [(0, 3000)]);

        let map_of =
            |option| structure_of(libc::SYS_prctl, &[PR_SET_MM, option, 0x1000, 104, 0, 0]);
        let map = map_of(PR_SET_MM_MAP).unwrap();
        assert_eq!((map.address, map.bytes, map.count), (0x1000, 104, 1));
        let mut bytes = [0xff; 104];
        bytes[96..100].copy_from_slice(&336_u32.to_le_bytes());
        let nested = map.pointers.iter().map(|(at, length)| (*at, length.bytes(&bytes)));
        assert_eq!(nested.collect::<Vec<_>>(), [(88, 336)]);
        assert_eq!(map_of(1), None);
    }

    #[test]
    fn walk_of_an_event_ends_with_its_pointer() {
        let walk = walk_of(libc::SYS_perf_event_open, &[0x1000, 0, 0, 0, 0, 0]);
        assert_eq!(walk, Some(Walk { address: 0x1000, bytes: 64, has_early_effect: false }));
    }

    #[test]
    fn ioctl_number_encodes_structure_size() {
        for (request, (bytes, ..)) in REQUESTS {
            let encoded = request >> 16 & 0x3fff;
            assert!(encoded == 0 || encoded == *bytes, "{request:#x}");
        }
    }
}
