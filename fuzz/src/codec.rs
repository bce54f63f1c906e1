//! Checks that a page survives compression and decompression with any codec and buffer size, and
//! that decompressing arbitrary bytes never writes outside the page.

use softswap_engine::codec::{
    Codec, Compressor, MAX_COMPRESSED_BYTES, Scratch, compress, decompress,
};
use softswap_sys::zstd::LEVELS;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
/// Larger than the output for an incompressible page.
const AMPLE_BYTES: usize = 2 * PAGE_BYTES;
const UNTOUCHED: u8 = 0xA5;

thread_local! {
    /// Shared by all inputs, because its address space is never released. So state of a previous
    /// page that affects the next one is also detected.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new(Arc::default()).unwrap());
}

/// Fills a page by repeating the input, so that short inputs are compressible.
fn page_of(input: &[u8]) -> [u8; PAGE_BYTES] {
    let mut bytes = input.iter().cycle();
    std::array::from_fn(|_| bytes.next().copied().unwrap_or(0))
}

fn packer_of(choice: u8) -> Compressor {
    match choice.checked_sub(128) {
        None => Compressor::Lz4,
        Some(number) => {
            let levels = LEVELS.count();
            let level = LEVELS.clone().nth(usize::from(number) % levels);
            Compressor::Zstd { level: level.unwrap() }
        }
    }
}

fn assert_untouched_but(bytes: &[u8], touched: Range<usize>) {
    let outside = [&bytes[..touched.start], &bytes[touched.end..]];
    assert!(outside.iter().all(|part| part.iter().all(|byte| *byte == UNTOUCHED)));
}

fn unpack(codec: Codec, packed: &[u8], scratch: &mut Scratch) -> Option<[u8; PAGE_BYTES]> {
    let mut pages = [UNTOUCHED; 3 * PAGE_BYTES];
    let target = pages[PAGE_BYTES..].first_chunk_mut().unwrap();
    let page = decompress(codec, packed, target, scratch).is_ok().then_some(*target);
    assert_untouched_but(&pages, PAGE_BYTES..2 * PAGE_BYTES);
    page
}

fn pack_round_trips(
    packer: Compressor,
    page: &[u8; PAGE_BYTES],
    room: usize,
    scratch: &mut Scratch,
) -> bool {
    let mut out = [UNTOUCHED; AMPLE_BYTES + 64];
    let packed = compress(packer, page, &mut out[..room], scratch);
    assert_untouched_but(&out, 0..room);
    if let Some(len) = packed {
        assert!(len <= room);
        assert!(unpack(packer.codec(), &out[..len], scratch).as_ref() == Some(page));
    }
    packed.is_some()
}

pub(crate) fn run(input: &[u8]) {
    SCRATCH.with_borrow_mut(|scratch| {
        for codec in Codec::ALL {
            unpack(codec, input, scratch);
        }
        let Some(([choice, low, high], bytes)) = input.split_first_chunk() else { return };
        let (packer, page) = (packer_of(*choice), page_of(bytes));
        let room = usize::from(u16::from_le_bytes([*low, *high])) % (MAX_COMPRESSED_BYTES + 1);
        pack_round_trips(packer, &page, room, scratch);
        assert!(pack_round_trips(packer, &page, AMPLE_BYTES, scratch));
    });
}
