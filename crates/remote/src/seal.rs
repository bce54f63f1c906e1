//! Header of a stored page, which authenticates it.
//!
//! ```text
//! bytes 0-7    generation, little-endian
//! bytes 8-15   number of the page
//! bytes 16-31  HMAC-SHA256 of run, area, page, generation and contents, cut to 16 bytes
//! ```
//!
//! The key belongs to the run and never leaves this machine, so stale, truncated, foreign and
//! forged pages are detected. The engine encrypts the pages.

use crate::store::{PAGE_BYTES, Page};
use ring::hmac;
use std::{fmt, io};

pub(crate) const HEADER_BYTES: usize = 32;
pub(crate) const SEALED_BYTES: usize = HEADER_BYTES + PAGE_BYTES;
const TAG_AT: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Good,
    /// The server returned no data or zeroes.
    Nothing,
    OtherGeneration(u64),
    NotOurs,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Good => f.write_str("the page"),
            Self::Nothing => f.write_str("nothing"),
            Self::OtherGeneration(generation) => write!(f, "generation {generation}"),
            Self::NotOurs => f.write_str("bytes that were never written there"),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Sealed<'a> {
    header: [u8; HEADER_BYTES],
    contents: &'a Page,
}

impl Sealed<'_> {
    pub(crate) fn write_to(&self, mut out: impl io::Write) -> io::Result<()> {
        out.write_all(&self.header)?;
        out.write_all(self.contents)
    }
}

pub(crate) struct Sealer {
    key: hmac::Key,
    run: u64,
    area: u16,
}

impl Sealer {
    pub(crate) fn new(key: &[u8; 32], run: u64, area: u16) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, key), run, area }
    }

    fn tag(&self, page: u64, generation: u64, contents: &[u8]) -> [u8; HEADER_BYTES - TAG_AT] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&self.run.to_le_bytes());
        context.update(&self.area.to_le_bytes());
        context.update(&page.to_le_bytes());
        context.update(&generation.to_le_bytes());
        context.update(contents);
        let mut tag = [0; HEADER_BYTES - TAG_AT];
        let full_tag = context.sign();
        let length = tag.len();
        tag.copy_from_slice(&full_tag.as_ref()[..length]);
        tag
    }

    pub(crate) fn seal<'a>(&self, page: u64, generation: u64, contents: &'a Page) -> Sealed<'a> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&generation.to_le_bytes());
        header[8..TAG_AT].copy_from_slice(&page.to_le_bytes());
        header[TAG_AT..].copy_from_slice(&self.tag(page, generation, contents));
        Sealed { header, contents }
    }

    /// Returns a signature for other stored content, which authenticates it as this run's.
    pub(crate) fn sign(&self, bytes: &[u8]) -> [u8; HEADER_BYTES - TAG_AT] {
        // No page has this number, so a signature is never a page's tag.
        self.tag(u64::MAX, 0, bytes)
    }

    pub(crate) fn check(&self, page: u64, generation: u64, sealed: &[u8]) -> Found {
        match self.generation(page, sealed) {
            Ok(found) if found == generation => Found::Good,
            Ok(other) => Found::OtherGeneration(other),
            Err(found) => found,
        }
    }

    /// Returns the generation of a sealed page; an error if this run never wrote it as page `page`.
    pub(crate) fn generation(&self, page: u64, sealed: &[u8]) -> Result<u64, Found> {
        if sealed.len() != SEALED_BYTES {
            return Err(Found::Nothing);
        }
        let generation = word(sealed, 0);
        if generation == 0 && sealed.iter().all(|byte| *byte == 0) {
            return Err(Found::Nothing);
        }
        let expected = self.tag(page, generation, &sealed[HEADER_BYTES..]);
        match word(sealed, 8) == page && sealed[TAG_AT..HEADER_BYTES] == expected {
            true => Ok(generation),
            false => Err(Found::NotOurs),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(sealer: &Sealer, page: u64, generation: u64) -> Vec<u8> {
        let mut out = Vec::new();
        sealer.seal(page, generation, &[7; PAGE_BYTES]).write_to(&mut out).unwrap();
        out
    }

    #[test]
    fn only_matching_page_is_accepted() {
        let sealer = Sealer::new(&[1; 32], 2, 3);
        let good = sealed(&sealer, 4, 5);
        assert_eq!(good.len(), SEALED_BYTES);
        assert_eq!(sealer.check(4, 5, &good), Found::Good);
        assert_eq!(sealer.check(4, 6, &good), Found::OtherGeneration(5));
        assert_eq!(sealer.check(5, 5, &good), Found::NotOurs);
        assert_eq!(sealer.check(4, 5, &good[..100]), Found::Nothing);
        assert_eq!(sealer.check(4, 5, &[0; SEALED_BYTES]), Found::Nothing);
        for other in
            [Sealer::new(&[9; 32], 2, 3), Sealer::new(&[1; 32], 9, 3), Sealer::new(&[1; 32], 2, 9)]
        {
            assert_eq!(other.check(4, 5, &good), Found::NotOurs);
        }
    }

    #[test]
    fn flipped_bit_is_rejected() {
        let sealer = Sealer::new(&[1; 32], 2, 3);
        for at in (0..SEALED_BYTES).step_by(13).chain([0, 8, 16, 31, 32, SEALED_BYTES - 1]) {
            let mut bad = sealed(&sealer, 4, 5);
            bad[at] ^= 0x10;
            assert_ne!(sealer.check(4, 5, &bad), Found::Good, "byte {at}");
        }
    }
}
