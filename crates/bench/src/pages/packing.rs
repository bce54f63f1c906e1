//! Compressed sizes and speeds by codec, over pages that are not same-filled, as in reclaim.

use super::Page;
use super::checks::mbps;
use crate::measure::sample::{Object, object};
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_engine::codec::same_filled::same_filled_word;
use softswap_engine::codec::{
    self as engine, Compressor, MAX_COMPRESSED_BYTES, Scratch, compress, decompress,
};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;

const STEP_BYTES: usize = 512;
const STEPS: usize = MAX_COMPRESSED_BYTES / STEP_BYTES;

const _: () = assert!(MAX_COMPRESSED_BYTES.is_multiple_of(STEP_BYTES));

#[derive(Clone, Copy)]
pub(crate) struct Codec {
    pub(crate) name: &'static str,
    packer: Compressor,
    codec: engine::Codec,
}

pub(crate) const CODECS: [Codec; 2] = [
    Codec { name: "lz4", packer: Compressor::Lz4, codec: engine::Codec::Lz4 },
    Codec { name: "zstd", packer: Compressor::Zstd { level: 1 }, codec: engine::Codec::Zstd },
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Packing {
    pub(crate) tried: u64,
    /// At most [`MAX_COMPRESSED_BYTES`] each.
    pub(crate) packed: u64,
    pub(crate) packed_bytes: u64,
    /// By compressed size: up to 512 bytes, then up to 1024, and so on.
    histogram: [u64; STEPS],
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

    pub(crate) fn ratio(&self) -> Option<f64> {
        let bytes = self.packed * PAGE_SIZE as u64;
        (self.packed > 0).then(|| bytes as f64 / self.packed_bytes as f64)
    }

    /// Incompressible pages count as they are.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.packed_bytes + self.incompressible() * PAGE_SIZE as u64
    }

    pub(crate) fn pack_mbps(&self) -> Option<f64> {
        (self.tried > 0).then(|| mbps(self.tried, self.pack_ns))
    }

    pub(crate) fn unpack_mbps(&self) -> Option<f64> {
        (self.packed > 0).then(|| mbps(self.packed, self.unpack_ns))
    }

    /// Each line counts pages of at most `to_bytes`, without those of earlier lines.
    pub(crate) fn lines(&self) -> Vec<Object> {
        let lines = self.histogram.iter().enumerate();
        lines.map(|(at, pages)| object! { to_bytes: (at + 1) * STEP_BYTES, pages }).collect()
    }
}

pub(crate) struct Workplace {
    scratch: Scratch,
    buffer: Vec<u8>,
    lengths: Vec<usize>,
}

impl Workplace {
    pub(crate) fn new() -> Result<Workplace, Refusal> {
        let scratch =
            Scratch::new(Default::default()).or_own("the codecs' memory cannot be allocated")?;
        Ok(Workplace { scratch, buffer: Vec::new(), lengths: Vec::new() })
    }

    /// Compresses with LZ4. Returns `None` for a same-filled or incompressible page.
    pub(crate) fn pack(&mut self, page: &[u8; PAGE_SIZE]) -> Option<&[u8]> {
        if same_filled_word(page).is_some() {
            return None;
        }
        self.buffer.resize(MAX_COMPRESSED_BYTES, 0);
        let len = compress(Compressor::Lz4, page, &mut self.buffer, &mut self.scratch)?;
        Some(&self.buffer[..len])
    }

    pub(crate) fn add(
        &mut self,
        codec: Codec,
        pages: &[Page],
        found: &mut Packing,
    ) -> Result<(), Refusal> {
        let tried: Vec<_> =
            pages.iter().filter(|page| same_filled_word(&page.0).is_none()).collect();
        self.buffer.resize(tried.len() * MAX_COMPRESSED_BYTES, 0);
        self.lengths.clear();
        let start = now_ns();
        let mut rest = &mut self.buffer[..];
        for page in &tried {
            let buffer = &mut rest[..MAX_COMPRESSED_BYTES];
            let packed = compress(codec.packer, &page.0, buffer, &mut self.scratch);
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
        found.unpack_ns += self.unpack(codec, |_, _| ())?;
        // Figures of a codec that corrupts pages would be worthless.
        let mut differs = false;
        self.unpack(codec, |at, page| differs |= *page != tried[at].0)?;
        match differs {
            true => Err(failed(codec)),
            false => Ok(()),
        }
    }

    fn unpack(
        &mut self,
        codec: Codec,
        mut each: impl FnMut(usize, &[u8; PAGE_SIZE]),
    ) -> Result<u64, Refusal> {
        let (mut page, mut rest) = ([0; PAGE_SIZE], &self.buffer[..]);
        let start = now_ns();
        for (at, length) in self.lengths.iter().enumerate().filter(|(_, length)| **length > 0) {
            let (packed, after) = rest.split_at(*length);
            let unpacked = decompress(codec.codec, packed, &mut page, &mut self.scratch);
            unpacked.map_err(|_| failed(codec))?;
            each(at, std::hint::black_box(&page));
            rest = after;
        }
        Ok(now_ns() - start)
    }
}

fn failed(codec: Codec) -> Refusal {
    Refusal::own(format!("{}: a page was corrupted by compression; please report this", codec.name))
}
