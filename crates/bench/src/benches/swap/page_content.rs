//! What the task's pages hold.

use super::plan::Data;
use crate::measure::region::{Content, Noise, WORDS};
use softswap_cli::refusal::plain;
use softswap_sys::memory::{Page, reserve_pages};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::measure::noise::noise;

/// Real pages that the content is made of. The task keeps them beside the
/// memory that is measured, so they are few.
pub(super) const SAMPLE_PAGES: usize = 256;

/// The content of each page, by its number.
pub(super) struct Contents {
    data: Data,
    sample: &'static [Page],
}

impl Contents {
    /// With the pages of `sample`, which lie in memory that is not managed.
    pub(super) fn load(data: Data, sample: &Path) -> Result<Contents, String> {
        let failed = |error: std::io::Error| format!("{}: {}", sample.display(), plain(&error));
        let pages = reserve_pages(SAMPLE_PAGES).map_err(failed)?;
        let mut file = File::open(sample).map_err(failed)?;
        pages.iter_mut().try_for_each(|page| file.read_exact(&mut page.0)).map_err(failed)?;
        Ok(Contents { data, sample: pages })
    }

    fn is_real(&self, page: usize) -> bool {
        match self.data {
            Data::Compressible => true,
            Data::Incompressible => false,
            Data::Mixed => number_of(page) >> 63 == 0,
        }
    }
}

impl Content for Contents {
    fn fill(&self, page: usize, words: &mut [u64; WORDS]) {
        if !self.is_real(page) {
            return Noise.fill(page, words);
        }
        let (from, _) = self.sample[page % self.sample.len()].0.as_chunks::<8>();
        words.iter_mut().zip(from).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
        // No two pages are equal, nor is one the same as in the sample.
        words[page % WORDS] = number_of(page);
    }
}

fn number_of(page: usize) -> u64 {
    noise(page as u64 | 1 << 62).next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_sys::PAGE_SIZE;

    fn contents(data: Data) -> Contents {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; SAMPLE_PAGES * PAGE_SIZE]).unwrap();
        Contents::load(data, file.path()).unwrap()
    }

    #[test]
    fn real_pages_are_the_samples_and_still_differ() {
        let contents = contents(Data::Compressible);
        let (mut one, mut other) = ([0; WORDS], [0; WORDS]);
        contents.fill(3, &mut one);
        contents.fill(3 + SAMPLE_PAGES, &mut other);
        assert_ne!(one, other);
        assert_eq!(one.iter().filter(|word| **word == 0x0707_0707_0707_0707).count(), WORDS - 1);
    }

    #[test]
    fn mixed_content_is_half_of_each() {
        let contents = contents(Data::Mixed);
        let real = (0..1000).filter(|page| contents.is_real(*page)).count();
        assert!((400..600).contains(&real), "{real}");
    }

    #[test]
    fn a_sample_that_is_too_short_is_refused() {
        assert!(Contents::load(Data::Mixed, Path::new("/dev/null")).is_err());
    }
}
