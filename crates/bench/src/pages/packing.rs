//! How pages pack: each codec over the pages that are not same-filled, as
//! reclaim gives them to it.

use super::Page;
use super::checks::mbps;
use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::codec::same_filled::same_filled_word;
use softswap_engine::codec::{
    self as engine, MAX_PACKED_BYTES, Packer, Scratch, compress, decompress,
};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;

/// Packed sizes of one line of the histogram.
const STEP_BYTES: usize = 512;
const STEPS: usize = MAX_PACKED_BYTES / STEP_BYTES;

const _: () = assert!(MAX_PACKED_BYTES.is_multiple_of(STEP_BYTES));

/// A codec as it is measured: its name is that of `--codec`.
#[derive(Clone, Copy)]
pub(crate) struct Codec {
    pub(crate) name: &'static str,
    pack: fn(&[u8; PAGE_SIZE], &mut [u8], &mut Scratch) -> Option<usize>,
    unpack: fn(&[u8], &mut [u8; PAGE_SIZE], &mut Scratch) -> bool,
}

/// Every codec there is.
pub(crate) const CODECS: [Codec; 2] = [
    Codec {
        name: "lz4",
        pack: |page, out, scratch| compress(Packer::Lz4, page, out, scratch),
        unpack: |packed, page, scratch| {
            decompress(engine::Codec::Lz4, packed, page, scratch).is_ok()
        },
    },
    Codec {
        name: "zstd",
        pack: |page, out, scratch| compress(Packer::Zstd { level: 1 }, page, out, scratch),
        unpack: |packed, page, scratch| {
            decompress(engine::Codec::Zstd, packed, page, scratch).is_ok()
        },
    },
];

/// What one codec made of pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Pages that were given to it.
    pub(crate) tried: u64,
    /// Those that came to no more than [`MAX_PACKED_BYTES`].
    pub(crate) packed: u64,
    pub(crate) packed_bytes: u64,
    /// Those of up to 512 bytes, up to 1024 and so on.
    pub(crate) histogram: [u64; STEPS],
    pack_ns: u64,
    unpack_ns: u64,
}

impl Packing {
    pub(crate) fn incompressible(&self) -> u64 {
        self.tried - self.packed
    }

    pub(crate) fn packed_share(&self) -> f64 {
        self.packed as f64 / self.tried.max(1) as f64
    }

    /// How many times smaller those became that packed.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let bytes = self.packed * PAGE_SIZE as u64;
        (self.packed > 0).then(|| bytes as f64 / self.packed_bytes as f64)
    }

    /// DRAM that all pages tried take, the others as they are.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.packed_bytes + self.incompressible() * PAGE_SIZE as u64
    }

    pub(crate) fn pack_mbps(&self) -> Option<f64> {
        (self.tried > 0).then(|| mbps(self.tried, self.pack_ns))
    }

    pub(crate) fn unpack_mbps(&self) -> Option<f64> {
        (self.packed > 0).then(|| mbps(self.packed, self.unpack_ns))
    }

    /// Sizes of the histogram's lines, and the pages on each.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let lines = self.histogram.iter().enumerate();
        lines.map(|(at, pages)| (((at + 1) * STEP_BYTES) as u64, *pages))
    }
}

/// What packing works in, kept from one piece of memory to the next.
pub(crate) struct Workplace {
    scratch: Scratch,
    room: Vec<u8>,
    lengths: Vec<usize>,
}

impl Workplace {
    pub(crate) fn new() -> Result<Workplace, Refusal> {
        let scratch = Scratch::new(Default::default())
            .map_err(|error| Refusal::own(format!("no memory to pack in: {}", plain(&error))))?;
        Ok(Workplace { scratch, room: Vec::new(), lengths: Vec::new() })
    }

    /// Packs and unpacks `pages`, and adds what came of it to `found`.
    pub(crate) fn add(
        &mut self,
        codec: Codec,
        pages: &[Page],
        found: &mut Packing,
    ) -> Result<(), Refusal> {
        let tried: Vec<_> =
            pages.iter().filter(|page| same_filled_word(&page.0).is_none()).collect();
        self.room.resize(tried.len() * MAX_PACKED_BYTES, 0);
        self.lengths.clear();
        let start = now_ns();
        let mut rest = &mut self.room[..];
        for page in &tried {
            // One for all room left; `pack` is told no more than the limit.
            let packed = (codec.pack)(&page.0, &mut rest[..MAX_PACKED_BYTES], &mut self.scratch);
            let length = packed.unwrap_or(0);
            self.lengths.push(length);
            rest = &mut rest[length..];
        }
        found.pack_ns += now_ns() - start;
        found.tried += tried.len() as u64;
        for length in self.lengths.iter().filter(|length| **length > 0) {
            found.packed += 1;
            found.packed_bytes += *length as u64;
            found.histogram[(length - 1) / STEP_BYTES] += 1;
        }
        found.unpack_ns += self.unpack(codec);
        self.compare(codec, &tried)
    }

    /// Unpacks everything, and says how long it took, in ns.
    fn unpack(&mut self, codec: Codec) -> u64 {
        let mut page = [0; PAGE_SIZE];
        let mut rest = &self.room[..];
        let start = now_ns();
        for length in self.lengths.iter().filter(|length| **length > 0) {
            let (packed, after) = rest.split_at(*length);
            std::hint::black_box((codec.unpack)(packed, &mut page, &mut self.scratch));
            rest = after;
        }
        std::hint::black_box(&page);
        now_ns() - start
    }

    /// A figure for a page that does not come back would be worse than none.
    fn compare(&mut self, codec: Codec, tried: &[&Page]) -> Result<(), Refusal> {
        let mut back = [0; PAGE_SIZE];
        let mut rest = &self.room[..];
        for (page, length) in tried.iter().zip(&self.lengths).filter(|(_, length)| **length > 0) {
            let (packed, after) = rest.split_at(*length);
            if !(codec.unpack)(packed, &mut back, &mut self.scratch) || back != page.0 {
                let name = codec.name;
                return Err(Refusal::own(format!(
                    "{name}: a page did not come back as it was; please report this"
                )));
            }
            rest = after;
        }
        Ok(())
    }
}
