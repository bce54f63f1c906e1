//! The policies, and the switches that are set while a program runs.

use crate::codec::{Choice, Packer, Selector};
use crate::policy::admission::Admission;
use crate::policy::clock::Clock;
use crate::policy::compression_tier::CompressionTier;
use crate::policy::grace::Grace;
use crate::policy::mechanism::{Mechanism, Without};
use crate::policy::partition::Partition;
use crate::policy::prefetch::offset_prefetch::OffsetPrefetch;
use crate::policy::prefetch::readahead::Readahead;
use crate::policy::stored_copies::StoredCopies;
use crate::policy::write_load::WriteLoad;
use softswap_sys::PAGE_SIZE;
use std::io;

/// What is decided, and by what.
pub(crate) struct Policies {
    /// What is switched off.
    pub(crate) without: Without,
    /// Which pages are cold.
    pub(crate) clock: Clock,
    /// How much longer those stay that do not pack.
    pub(crate) grace: Grace,
    /// Which pages come back in streams, and which are not for the pool.
    pub(crate) admission: Admission,
    /// How much of the budget the pool gets.
    pub(crate) partition: Partition,
    /// Whether those that leave need the disk.
    pub(crate) write_load: WriteLoad,
    /// Which pages are touched one after the other.
    pub(crate) readahead: Readahead,
    /// Which pages are touched together.
    pub(crate) offset_prefetch: OffsetPrefetch,
    /// What is stored of resident pages, and where that is worth keeping.
    pub(crate) stored_copies: StoredCopies,
    /// What packs pages; may be changed at any time.
    pub(crate) codec: Selector,
    /// How dense, where nothing was asked for.
    pub(crate) tier: CompressionTier,
}

impl Policies {
    /// For a window of so many pages and a budget of so many bytes, with so many contexts.
    ///
    /// # Errors
    /// When there is no address space for the tables.
    pub(crate) fn new(
        window_pages: usize,
        budget_bytes: usize,
        contexts: usize,
        (partition, codec): (Partition, Choice),
        without: Without,
    ) -> io::Result<Policies> {
        let budget_pages = budget_bytes / PAGE_SIZE;
        Ok(Policies {
            without,
            clock: Clock::new(window_pages, budget_pages)?,
            grace: Grace::default(),
            admission: Admission::new(window_pages)?,
            partition,
            write_load: WriteLoad::default(),
            readahead: Readahead::new(budget_pages, without),
            offset_prefetch: OffsetPrefetch::new(window_pages)?,
            stored_copies: StoredCopies::new(window_pages)?,
            codec: Selector::new(codec),
            tier: CompressionTier::new(budget_bytes, contexts, !without.has(Mechanism::DenseTier)),
        })
    }

    /// Whether a mechanism is switched on.
    #[must_use]
    pub(crate) fn has(&self, mechanism: Mechanism) -> bool {
        !self.without.has(mechanism)
    }

    /// Whether nobody asked for a codec.
    pub(crate) fn chooses_codec(&self) -> bool {
        self.codec.get() == Choice::Auto
    }

    /// What packs the next page, if anything does.
    #[must_use]
    pub(crate) fn packer(&self) -> Option<Packer> {
        match self.codec.get() {
            Choice::Auto => Some(Packer::Lz4),
            Choice::Fixed(packer) => packer,
        }
    }

    /// What is to pack a page that [`Policies::packer`] could not, if anything is.
    #[must_use]
    pub(crate) fn second_packer(&self) -> Option<Packer> {
        if self.chooses_codec() { self.tier.second_try() } else { None }
    }

    /// What is to pack an old object of the pool anew, before it goes on to the disk, if
    /// anything is.
    #[must_use]
    pub(crate) fn repacker(&self) -> Option<Packer> {
        self.chooses_codec().then(|| self.tier.repacker(self.partition.passed_on_ns())).flatten()
    }
}
