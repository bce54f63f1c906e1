//! Header of a named swap area: version 1, the format of `mkswap`, the kernel, `swapon` and
//! `blkid`.
//!
//! It is in the area's first page, so slot 0 is never allocated.
//!
//! ```text
//!      0  1024 bytes   boot loader or disk label; not part of the header
//!   1024  u32          version, 1
//!   1028  u32          the last page
//!   1032  u32          number of bad pages
//!   1036  16 bytes     UUID
//!   1052  16 bytes     label, padded with zeroes
//!   1068  468 bytes    zeroes
//!   1536  637 x u32    bad pages
//!   4086  10 bytes     "SWAPSPACE2"
//! ```
//!
//! Numbers are in the byte order of the machine that wrote them; the version number reveals it.

use softswap_sys::PAGE_SIZE;

/// Offset of the header; the bytes before it belong to other formats.
pub const HEADER_OFFSET: usize = 1024;
pub(crate) const MAX_BAD_PAGES: usize = (SIGNATURE_AT - BAD_PAGES_AT) / 4;
pub const LABEL_BYTES: usize = 16;

const VERSION: u32 = 1;
const LAST_PAGE_AT: usize = 1028;
const BAD_COUNT_AT: usize = 1032;
const UUID_AT: usize = 1036;
const LABEL_AT: usize = 1052;
const BAD_PAGES_AT: usize = 1536;
const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
const OLD_SIGNATURE: &[u8; 10] = b"SWAP-SPACE";
const SIGNATURE_AT: usize = PAGE_SIZE - SIGNATURE.len();
/// Page sizes of other machines; their headers end at other offsets.
const OTHER_PAGE_SIZES: [usize; 4] = [8 << 10, 16 << 10, 32 << 10, 64 << 10];

const _: () = assert!(MAX_BAD_PAGES == 637 && LABEL_AT + LABEL_BYTES + 468 == BAD_PAGES_AT);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Last page of the area. Page 0 contains the header.
    pub last_page: u32,
    /// Pages that must not be used, ascending and distinct.
    pub bad_pages: Vec<u32>,
    /// In the order of its text form.
    pub uuid: [u8; 16],
    pub label: [u8; LABEL_BYTES],
    /// True if written on a machine with the other byte order.
    pub is_byte_swapped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("it has no swap header")]
    NoSignature,
    #[error("its swap header has version 0, which Linux dropped in 2.5")]
    OldVersion,
    #[error("its swap header is of version {version}, but only version {VERSION} is supported")]
    UnknownVersion { version: u32 },
    #[error(
        "its swap header is for pages of {} KiB, but this kernel uses pages of {} KiB",
        *page_bytes >> 10, PAGE_SIZE >> 10
    )]
    OtherPageSize { page_bytes: usize },
    #[error("its swap header describes an empty area (its last page is 0)")]
    Empty,
    #[error("its swap header lists {count} bad pages, but at most {MAX_BAD_PAGES} fit")]
    TooManyBadPages { count: u32 },
    #[error(
        "its swap header lists page {page} as bad, but the area has only pages 1 to {last_page}"
    )]
    BadPageOutside { page: u32, last_page: u32 },
    #[error("its swap header lists every page as bad")]
    AllBad,
    #[error(
        "it has {storage_pages} pages and is shorter than the size in its swap header \
         ({header_pages} pages)"
    )]
    TooShort { storage_pages: u64, header_pages: u64 },
}

impl Header {
    /// Returns a header for an area of `pages` pages, at most 2^32, of which none is bad.
    pub fn new(pages: u64, uuid: [u8; 16], label: [u8; LABEL_BYTES]) -> Self {
        let last_page = (pages - 1) as u32;
        Header { last_page, bad_pages: Vec::new(), uuid, label, is_byte_swapped: false }
    }

    /// One page of `head` is enough; with 64 KiB, headers for other page sizes are recognised.
    /// Fails if there is no header that fits the storage.
    pub fn parse(head: &[u8], storage_pages: u64) -> Result<Self, HeaderError> {
        let Some(page) = head.first_chunk::<PAGE_SIZE>() else {
            return Err(HeaderError::NoSignature);
        };
        check_signature(head, page)?;
        let is_byte_swapped = match u32_at(page, HEADER_OFFSET, false) {
            VERSION => false,
            other if other.swap_bytes() == VERSION => true,
            version => return Err(HeaderError::UnknownVersion { version }),
        };
        let number = |offset| u32_at(page, offset, is_byte_swapped);
        let last_page = number(LAST_PAGE_AT);
        if last_page == 0 {
            return Err(HeaderError::Empty);
        }
        let header_pages = u64::from(last_page) + 1;
        if storage_pages < header_pages {
            return Err(HeaderError::TooShort { storage_pages, header_pages });
        }
        let count = number(BAD_COUNT_AT);
        if count as usize > MAX_BAD_PAGES {
            return Err(HeaderError::TooManyBadPages { count });
        }
        let listed = (0..count as usize).map(|index| number(BAD_PAGES_AT + 4 * index));
        let mut bad_pages: Vec<u32> = listed.collect();
        if let Some(&page) = bad_pages.iter().find(|&&page| page == 0 || page > last_page) {
            return Err(HeaderError::BadPageOutside { page, last_page });
        }
        bad_pages.sort_unstable();
        bad_pages.dedup();
        if bad_pages.len() as u64 == u64::from(last_page) {
            return Err(HeaderError::AllBad);
        }
        let (uuid, label) = (array_at(page, UUID_AT), array_at(page, LABEL_AT));
        Ok(Self { last_page, bad_pages, uuid, label, is_byte_swapped })
    }

    /// Keeps the first [`HEADER_OFFSET`] bytes. Panics with more bad pages than [`MAX_BAD_PAGES`].
    pub fn write_to(&self, page: &mut [u8; PAGE_SIZE]) {
        assert!(self.bad_pages.len() <= MAX_BAD_PAGES, "more bad pages than a header can list");
        page[HEADER_OFFSET..].fill(0);
        let mut put = |offset: usize, number: u32| {
            let number = if self.is_byte_swapped { number.swap_bytes() } else { number };
            page[offset..offset + 4].copy_from_slice(&number.to_ne_bytes());
        };
        put(HEADER_OFFSET, VERSION);
        put(LAST_PAGE_AT, self.last_page);
        put(BAD_COUNT_AT, self.bad_pages.len() as u32);
        for (index, &bad) in self.bad_pages.iter().enumerate() {
            put(BAD_PAGES_AT + 4 * index, bad);
        }
        page[UUID_AT..UUID_AT + 16].copy_from_slice(&self.uuid);
        page[LABEL_AT..LABEL_AT + LABEL_BYTES].copy_from_slice(&self.label);
        page[SIGNATURE_AT..].copy_from_slice(SIGNATURE);
    }

    pub fn pages(&self) -> u64 {
        u64::from(self.last_page) + 1
    }

    pub fn usable_pages(&self) -> u64 {
        u64::from(self.last_page) - self.bad_pages.len() as u64
    }

    pub fn label_text(&self) -> Option<String> {
        let end = self.label.iter().position(|&byte| byte == 0).unwrap_or(LABEL_BYTES);
        (end > 0).then(|| String::from_utf8_lossy(&self.label[..end]).into_owned())
    }
}

/// Returns `None` if the label is too long, or contains a zero byte, which would end it.
pub fn label_field(text: &str) -> Option<[u8; LABEL_BYTES]> {
    if text.len() > LABEL_BYTES || text.bytes().any(|byte| byte == 0) {
        return None;
    }
    let mut field = [0; LABEL_BYTES];
    field[..text.len()].copy_from_slice(text.as_bytes());
    Some(field)
}

fn check_signature(head: &[u8], page: &[u8; PAGE_SIZE]) -> Result<(), HeaderError> {
    let found = &page[SIGNATURE_AT..];
    if found == SIGNATURE {
        return Ok(());
    }
    if found == OLD_SIGNATURE {
        return Err(HeaderError::OldVersion);
    }
    let ends_here = |&&bytes: &&usize| head.get(..bytes).is_some_and(|h| h.ends_with(SIGNATURE));
    match OTHER_PAGE_SIZES.iter().find(ends_here) {
        Some(&page_bytes) => Err(HeaderError::OtherPageSize { page_bytes }),
        None => Err(HeaderError::NoSignature),
    }
}

fn u32_at(page: &[u8; PAGE_SIZE], offset: usize, is_byte_swapped: bool) -> u32 {
    let number = u32::from_ne_bytes(array_at(page, offset));
    if is_byte_swapped { number.swap_bytes() } else { number }
}

fn array_at<const LENGTH: usize>(page: &[u8; PAGE_SIZE], offset: usize) -> [u8; LENGTH] {
    std::array::from_fn(|index| page[offset + index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(last_page: u32, bad_pages: &[u32]) -> Header {
        Header {
            last_page,
            bad_pages: bad_pages.to_vec(),
            uuid: *b"0123456789abcdef",
            label: label_field("swap").unwrap(),
            is_byte_swapped: false,
        }
    }

    fn page_of(header: &Header) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        header.write_to(&mut page);
        page
    }

    #[test]
    fn header_fields_have_kernel_offsets() {
        let mut page = [0xaa; PAGE_SIZE];
        header(0x0102_0304, &[5, 6]).write_to(&mut page);
        assert!(page[..1024].iter().all(|&byte| byte == 0xaa), "the boot sector is unchanged");
        assert_eq!(&page[1024..1036], [1, 0, 0, 0, 4, 3, 2, 1, 2, 0, 0, 0]);
        assert_eq!(&page[1036..1052], b"0123456789abcdef");
        assert_eq!(&page[1052..1068], b"swap\0\0\0\0\0\0\0\0\0\0\0\0");
        assert!(page[1068..1536].iter().all(|&byte| byte == 0));
        assert_eq!(&page[1536..1544], [5, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        header(0x0102_0304, &[]).clone_swapped().write_to(&mut page);
        assert_eq!(&page[1024..1036], [0, 0, 0, 1, 1, 2, 3, 4, 0, 0, 0, 0]);
    }

    impl Header {
        fn clone_swapped(&self) -> Header {
            Header { is_byte_swapped: !self.is_byte_swapped, ..self.clone() }
        }
    }

    #[test]
    fn each_header_fault_has_own_error() {
        let good = page_of(&header(99, &[7]));
        let parse = |change: &dyn Fn(&mut [u8; PAGE_SIZE]), pages| {
            let mut page = good;
            change(&mut page);
            Header::parse(&page, pages)
        };
        let put = |at: usize, number: u32| {
            move |page: &mut [u8; PAGE_SIZE]| {
                page[at..at + 4].copy_from_slice(&number.to_ne_bytes());
            }
        };
        assert_eq!(parse(&|_| {}, 100), Ok(header(99, &[7])));
        assert_eq!(parse(&|_| {}, 5000), Ok(header(99, &[7])), "pages beyond the area are ignored");
        let short = HeaderError::TooShort { storage_pages: 99, header_pages: 100 };
        assert_eq!(parse(&|_| {}, 99), Err(short));
        assert_eq!(parse(&|page| page[4090] = 0, 100), Err(HeaderError::NoSignature));
        let old = |page: &mut [u8; PAGE_SIZE]| page[4086..].copy_from_slice(b"SWAP-SPACE");
        assert_eq!(parse(&old, 100), Err(HeaderError::OldVersion));
        let unknown = Err(HeaderError::UnknownVersion { version: 2 });
        assert_eq!(parse(&put(HEADER_OFFSET, 2), 100), unknown);
        assert_eq!(parse(&put(LAST_PAGE_AT, 0), 100), Err(HeaderError::Empty));
        let many = Err(HeaderError::TooManyBadPages { count: 638 });
        assert_eq!(parse(&put(BAD_COUNT_AT, 638), 100), many);
        let outside = |page| Err(HeaderError::BadPageOutside { page, last_page: 99 });
        assert_eq!(parse(&put(BAD_PAGES_AT, 0), 100), outside(0));
        assert_eq!(parse(&put(BAD_PAGES_AT, 100), 100), outside(100));
        assert_eq!(parse(&put(BAD_PAGES_AT, 99), 100), Ok(header(99, &[99])));
        assert_eq!(Header::parse(&good[..4095], 100), Err(HeaderError::NoSignature));
        let all_bad = page_of(&header(2, &[1, 2]));
        assert_eq!(Header::parse(&all_bad, 3), Err(HeaderError::AllBad));
    }

    #[test]
    fn header_with_other_page_size_is_recognised() {
        let mut head = vec![0; 64 << 10];
        assert_eq!(Header::parse(&head, 100), Err(HeaderError::NoSignature));
        head[(64 << 10) - 10..].copy_from_slice(SIGNATURE);
        let other = Err(HeaderError::OtherPageSize { page_bytes: 64 << 10 });
        assert_eq!(Header::parse(&head, 100), other);
    }

    #[test]
    fn bad_pages_are_deduplicated_and_header_excluded() {
        let parsed = Header::parse(&page_of(&header(99, &[9, 3, 9])), 100).unwrap();
        assert_eq!(parsed.bad_pages, [3, 9]);
        assert_eq!((parsed.pages(), parsed.usable_pages()), (100, 97));
    }

    #[test]
    fn labels_have_at_most_sixteen_bytes() {
        assert_eq!(label_field("0123456789abcdef"), Some(*b"0123456789abcdef"));
        assert_eq!(label_field("0123456789abcdefg"), None);
        assert_eq!(label_field("a\0b"), None);
        assert_eq!(header(9, &[]).label_text().as_deref(), Some("swap"));
        let full = Header { label: *b"0123456789abcdef", ..header(9, &[]) };
        assert_eq!(full.label_text().as_deref(), Some("0123456789abcdef"));
        assert_eq!(Header { label: [0; 16], ..full }.label_text(), None);
    }

    fn any_header() -> impl Strategy<Value = Header> {
        let bad = prop::collection::btree_set(1..=5_000_u32, 0..=MAX_BAD_PAGES);
        (5_001..u32::MAX, bad, any::<[u8; 16]>(), any::<[u8; 16]>(), any::<bool>()).prop_map(
            |(last_page, bad, uuid, label, is_byte_swapped)| Header {
                last_page,
                bad_pages: bad.into_iter().collect(),
                uuid,
                label,
                is_byte_swapped,
            },
        )
    }

    proptest! {
        #[test]
        fn header_round_trips_in_both_byte_orders(
            header in any_header(),
            before in any::<u8>(),
        ) {
            let mut page = [before; PAGE_SIZE];
            header.write_to(&mut page);
            prop_assert_eq!(Header::parse(&page, header.pages()), Ok(header.clone()));
            prop_assert!(page[..HEADER_OFFSET].iter().all(|&byte| byte == before));
        }
    }
}
