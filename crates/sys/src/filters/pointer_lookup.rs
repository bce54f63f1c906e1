//! Look-ups in the table of system calls.

pub use crate::pointee::{Class, Pointee, Pointer};
pub use crate::pointer_table::MAX_NUMBER;

use crate::pointer_table;

static BY_NUMBER: [Option<Class>; MAX_NUMBER] = by_number();

const fn by_number() -> [Option<Class>; MAX_NUMBER] {
    let mut classes = [None; MAX_NUMBER];
    let mut number = 0;
    while number < MAX_NUMBER {
        classes[number] = pointer_table::class(number as i64);
        number += 1;
    }
    classes
}

/// Returns `None` if Linux 6.18 has no such call.
pub fn class_of(number: i64) -> Option<Class> {
    *BY_NUMBER.get(usize::try_from(number).ok()?)?
}

/// Empty for unknown calls.
pub fn pointers(number: i64) -> &'static [Pointer] {
    class_of(number).map_or(&[], Class::pointers)
}

/// Returns the index of a transfer's buffer; the next argument is its length.
pub fn buffer_of(number: i64) -> Option<usize> {
    match number {
        libc::SYS_getrandom => Some(0),
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_recvfrom
        | libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_sendto => Some(1),
        _ => None,
    }
}

/// Bit i is set if argument i is a pointer.
pub fn pointer_masks() -> [u8; MAX_NUMBER] {
    std::array::from_fn(|number| {
        pointers(number as i64).iter().fold(0, |mask, (argument, _)| mask | 1 << argument)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Pointee::{Array, Bits, Bytes, BytesPlus, Messages, Request, Vectors};

    /// Missing in older headers.
    const NEWER: [&str; 22] = [
        "uretprobe 335",
        "uprobe 336",
        "cachestat 451",
        "fchmodat2 452",
        "map_shadow_stack 453",
        "futex_wake 454",
        "futex_wait 455",
        "futex_requeue 456",
        "statmount 457",
        "listmount 458",
        "lsm_get_self_attr 459",
        "lsm_set_self_attr 460",
        "lsm_list_modules 461",
        "mseal 462",
        "setxattrat 463",
        "getxattrat 464",
        "listxattrat 465",
        "removexattrat 466",
        "open_tree_attr 467",
        "file_getattr 468",
        "file_setattr 469",
        "set_mempolicy_home_node 450",
    ];

    fn number_of(line: &str) -> Option<i64> {
        line.rsplit(' ').next()?.parse().ok()
    }

    #[test]
    fn every_system_call_is_classified() {
        const HEADERS: [&str; 2] =
            ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"];
        let header = HEADERS.iter().find_map(|path| std::fs::read_to_string(path).ok());
        let header = header.unwrap_or_else(|| {
            println!("skipped in part: the kernel's header is not installed");
            String::new()
        });
        let is_call = |line: &&str| line.starts_with("#define __NR_");
        for call in header.lines().filter(is_call).chain(NEWER) {
            let number = number_of(call).expect("a number");
            let is_newer = number >= MAX_NUMBER as i64;
            assert!(is_newer || class_of(number).is_some(), "{call} has no class");
        }
    }

    /// The call numbers have two gaps.
    #[test]
    fn table_covers_all_numbers() {
        for number in 0..MAX_NUMBER as i64 {
            let is_call = matches!(number, 0..=336 | 424..);
            assert_eq!(class_of(number).is_some(), is_call, "call {number}");
        }
    }

    #[test]
    fn lengths_refer_to_other_arguments_that_are_not_pointers() {
        for number in 0..MAX_NUMBER as i64 {
            let pointers = pointers(number);
            for (argument, pointee) in pointers {
                let (Bytes(length)
                | BytesPlus(length, _)
                | Array(length, _)
                | Bits(length)
                | Request(length)
                | Vectors(length)
                | Messages(length)) = pointee
                else {
                    continue;
                };
                assert_ne!(argument, length, "call {number}");
                assert!(!pointers.iter().any(|(a, _)| a == length), "call {number}");
            }
        }
    }

    #[test]
    fn calls_are_described_by_number() {
        assert_eq!(pointers(libc::SYS_read), [(1, Bytes(2))]);
        assert_eq!(class_of(libc::SYS_getpid), Some(Class::NoPointer));
        assert!(pointers(libc::SYS_getpid).is_empty());
        assert_eq!(class_of(libc::SYS_io_setup).and_then(Class::refusal), Some(libc::ENOSYS));
        assert_eq!(Bytes(2).byte_count(&[3, 0x1000, 80, 0, 0, 0]), Some(80));
        assert_eq!(Pointee::Text.byte_count(&[0x1000, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn structure_length_follows_request() {
        let len = |request| Request(1).byte_count(&[0, request, 0, 0, 0, 0]);
        assert_eq!(len(0x8912), Some(4096));
        assert_eq!(len(0xc000_0000 | 0x3000 << 16), Some(0x3000));
    }

    #[test]
    fn value_length_is_in_the_next_argument() {
        let (index, value) = pointers(libc::SYS_fsconfig)[1];
        let len = |aux| value.byte_count(&[3, 2, 0x1000, 0x2000, aux, 0]);
        assert_eq!(index, 3);
        assert_eq!([len(10), len(100_000), len(1 << 20)], [4096, 100_000, 1 << 20].map(Some));
        // AT_FDCWD in 32 and in 64 bits.
        assert_eq!([len(0xffff_ff9c), len(-100_isize as usize)], [4096, 4096].map(Some));
    }

    #[test]
    fn set_length_follows_count() {
        let len = |count| Bits(0).byte_count(&[count, 0, 0, 0, 0, 0]);
        assert_eq!([len(0), len(1), len(65), len(40_000)], [0, 8, 16, 5000].map(Some));
        assert_eq!(len(usize::MAX), Some(128 << 10));
    }
}
