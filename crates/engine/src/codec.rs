//! The codec: page-out packs a page that is not same-filled, page-in unpacks
//! it into the frame to install. Packed bytes are one bare LZ4 block; where
//! they live and how long they are is the page's entry's business.
//!
//! All working memory is the caller's [`Scratch`], because both walks may run
//! inside a signal handler.

use softswap_sys::lz4;
use thiserror::Error;

const PAGE_BYTES: usize = 4096;

/// A page that packs to more than this counts as incompressible: the DRAM it
/// would free no longer pays for packing and unpacking it.
pub const MAX_PACKED_BYTES: usize = 3072;

/// What packing works in (16 KiB). One serves any number of pages in turn.
#[derive(Default)]
pub struct Scratch {
    state: lz4::State,
}

impl Scratch {
    /// A scratch; its 16 KiB are inline.
    #[must_use]
    pub fn new() -> Scratch {
        Scratch::default()
    }
}

/// Why packed bytes are not a page. Neither is worth a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CodecError {
    /// No LZ4 block, or one that gives more than a page.
    #[error("packed page of {packed_bytes} bytes is corrupt")]
    Corrupt {
        /// Its length as given.
        packed_bytes: usize,
    },
    /// A well-formed block of something smaller than a page.
    #[error("packed page holds {bytes} bytes instead of {PAGE_BYTES}")]
    WrongLength {
        /// How many bytes it unpacks to.
        bytes: usize,
    },
}

/// Packs `page` to the start of `out` and returns the packed length; `None`
/// when `out` is too short for it, and then `out` holds nothing of use.
pub fn compress(page: &[u8; PAGE_BYTES], out: &mut [u8], scratch: &mut Scratch) -> Option<usize> {
    lz4::compress(page, out, &mut scratch.state)
}

/// Unpacks into `page`. After an error the content of `page` is arbitrary.
pub fn decompress(packed: &[u8], page: &mut [u8; PAGE_BYTES]) -> Result<(), CodecError> {
    match lz4::decompress(packed, page) {
        Some(PAGE_BYTES) => Ok(()),
        Some(bytes) => Err(CodecError::WrongLength { bytes }),
        None => Err(CodecError::Corrupt { packed_bytes: packed.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pages between constant and random: runs copied from earlier in the page
    /// with fresh bytes between them.
    fn any_page() -> impl Strategy<Value = Box<[u8; PAGE_BYTES]>> {
        let run = (prop::collection::vec(any::<u8>(), 1..80), 1..600usize, 0..400usize);
        prop::collection::vec(run, 1..60).prop_map(|runs| {
            let mut bytes = Vec::new();
            for (fresh, distance, copied) in runs.iter().cycle() {
                bytes.extend_from_slice(fresh);
                for _ in 0..*copied {
                    bytes.push(bytes[bytes.len().saturating_sub(*distance)]);
                }
                if bytes.len() >= PAGE_BYTES {
                    break;
                }
            }
            bytes.truncate(PAGE_BYTES);
            bytes.into_boxed_slice().try_into().unwrap()
        })
    }

    fn random_page() -> [u8; PAGE_BYTES] {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        std::array::from_fn(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
    }

    #[test]
    fn a_random_page_is_incompressible() {
        let mut out = [0; MAX_PACKED_BYTES];
        assert_eq!(compress(&random_page(), &mut out, &mut Scratch::new()), None);
    }

    #[test]
    fn a_failed_page_leaves_no_trace_on_the_next() {
        let mut page = [0; PAGE_BYTES];
        page[..9].copy_from_slice(b"softswap!");
        let (mut clean, mut used) = ([0; MAX_PACKED_BYTES], [0; MAX_PACKED_BYTES]);
        let expected = compress(&page, &mut clean, &mut Scratch::new());
        let mut scratch = Scratch::new();
        assert_eq!(compress(&random_page(), &mut used, &mut scratch), None);
        assert_eq!(compress(&page, &mut used, &mut scratch), expected);
        assert_eq!(clean[..expected.unwrap()], used[..expected.unwrap()]);
    }

    #[test]
    fn less_or_more_than_a_page_is_refused() {
        for bytes in [100, PAGE_BYTES - 1, PAGE_BYTES + 1, 2 * PAGE_BYTES] {
            let mut packed = [0; 4096];
            let len = lz4::compress(&vec![7; bytes], &mut packed, &mut lz4::State::new()).unwrap();
            let expected = if bytes < PAGE_BYTES {
                CodecError::WrongLength { bytes }
            } else {
                CodecError::Corrupt { packed_bytes: len }
            };
            assert_eq!(decompress(&packed[..len], &mut [0; PAGE_BYTES]), Err(expected));
        }
    }

    #[test]
    fn nothing_is_not_a_page() {
        assert!(decompress(&[], &mut [0; PAGE_BYTES]).is_err());
    }

    proptest! {
        #[test]
        fn a_page_comes_back_as_it_was(page in any_page()) {
            let (mut out, mut back) = ([0; 2 * PAGE_BYTES], [0; PAGE_BYTES]);
            let len = compress(&page, &mut out, &mut Scratch::new()).unwrap();
            decompress(&out[..len], &mut back).unwrap();
            prop_assert_eq!(&back, &*page);
        }

        #[test]
        fn another_implementation_reads_what_ours_writes_and_the_reverse(page in any_page()) {
            let (mut out, mut back) = ([0; 2 * PAGE_BYTES], [0; PAGE_BYTES]);
            let len = compress(&page, &mut out, &mut Scratch::new()).unwrap();
            prop_assert_eq!(lz4_flex::block::decompress_into(&out[..len], &mut back).unwrap(), PAGE_BYTES);
            prop_assert_eq!(&back, &*page);
            let len = lz4_flex::block::compress_into(&*page, &mut out).unwrap();
            back.fill(0);
            decompress(&out[..len], &mut back).unwrap();
            prop_assert_eq!(&back, &*page);
        }

        #[test]
        fn a_page_fits_exactly_or_not_at_all(page in any_page(), short_by in 1..64usize) {
            let mut out = [0; 2 * PAGE_BYTES];
            let mut scratch = Scratch::new();
            let len = compress(&page, &mut out, &mut scratch).unwrap();
            prop_assert_eq!(compress(&page, &mut out[..len], &mut scratch), Some(len));
            let shorter = len.saturating_sub(short_by);
            if let Some(packed) = compress(&page, &mut out[..shorter], &mut scratch) {
                prop_assert!(packed <= shorter);
            }
        }

        #[test]
        fn any_bytes_at_all_are_judged_without_panicking(
            packed in prop::collection::vec(any::<u8>(), 0..MAX_PACKED_BYTES),
        ) {
            let _ = decompress(&packed, &mut [0; PAGE_BYTES]);
        }

        #[test]
        fn a_damaged_page_is_judged_without_panicking(
            page in any_page(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            kept in any::<prop::sample::Index>(),
        ) {
            let (mut out, mut back) = ([0; 2 * PAGE_BYTES], [0; PAGE_BYTES]);
            let len = compress(&page, &mut out, &mut Scratch::new()).unwrap();
            for (at, byte) in damage {
                out[at.index(len)] = byte;
            }
            let _ = decompress(&out[..len], &mut back);
            let _ = decompress(&out[..kept.index(len)], &mut back);
        }

        #[test]
        fn a_page_cut_short_is_refused(page in any_page(), kept in any::<prop::sample::Index>()) {
            let mut out = [0; 2 * PAGE_BYTES];
            let len = compress(&page, &mut out, &mut Scratch::new()).unwrap();
            prop_assert!(decompress(&out[..kept.index(len)], &mut [0; PAGE_BYTES]).is_err());
        }
    }
}
