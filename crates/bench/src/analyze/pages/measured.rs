//! What is gathered of pages, piece by piece: verdicts, the checks' times, packed sizes.

use crate::measure::sample::rotated;
use crate::pages::Page;
use crate::pages::checks::{Check, Verdicts};
use crate::pages::packing::{CODECS, Packing, Workplace};
use softswap_cli::refusal::Refusal;

/// Times that every check goes over the pages in hand: each is first once.
const PASSES: usize = Check::ALL.len();

/// What was gathered, piece by piece.
pub(super) struct Measured {
    pub(super) verdicts: Verdicts,
    /// By check and pass, over all pages.
    pub(super) check_ns: [[u64; PASSES]; Check::ALL.len()],
    pub(super) packings: [Packing; CODECS.len()],
}

impl Measured {
    pub(super) fn add(&mut self, pages: &[Page], workplace: &mut Workplace) -> Result<(), Refusal> {
        self.verdicts.add(&Verdicts::of(pages)?);
        for pass in 0..PASSES {
            for index in rotated(Check::ALL.len(), pass) {
                self.check_ns[index][pass] += Check::ALL[index].time_ns(pages);
            }
        }
        for (codec, packing) in CODECS.into_iter().zip(&mut self.packings) {
            workplace.add(codec, pages, packing)?;
        }
        Ok(())
    }
}

impl Default for Measured {
    fn default() -> Measured {
        Measured {
            verdicts: Verdicts::default(),
            check_ns: [[0; PASSES]; Check::ALL.len()],
            packings: CODECS.map(|_| Packing::default()),
        }
    }
}
