//! The policies, and the switches that are set while a program runs.

use crate::codec::{Choice, Packer, Selector};
use crate::policy::admission::Admission;
use crate::policy::clock::Clock;
use crate::policy::codec_choice::CodecChoice;
use crate::policy::grace::Grace;
use crate::policy::mechanism::{Mechanism, Without};
use crate::policy::partition::Partition;
use crate::policy::prefetch::offset_prefetch::OffsetPrefetch;
use crate::policy::prefetch::readahead::Readahead;
use crate::policy::stored_copies::StoredCopies;
use crate::policy::write_load::WriteLoad;
use softswap_sys::PAGE_SIZE;
use std::io;
use std::sync::atomic::AtomicBool;

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
    /// Which codec that is, where none was asked for.
    pub(crate) codec_choice: CodecChoice,
    /// Whether pages of the pool go to the swap area before it is full.
    pub(crate) pool_shrinks: AtomicBool,
    /// Whether idle pages of the pool are packed again.
    pub(crate) recompresses: AtomicBool,
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
            codec_choice: CodecChoice::new(
                budget_bytes,
                contexts,
                !without.has(Mechanism::CodecChoice),
            ),
            pool_shrinks: AtomicBool::new(false),
            recompresses: AtomicBool::new(false),
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
            Choice::Auto => Some(self.codec_choice.packer()),
            Choice::Fixed(packer) => packer,
        }
    }

    /// What is to pack the next page beside `packer`, to see what it gains.
    #[must_use]
    pub(crate) fn packer_to_try(&self, packer: Packer) -> Option<Packer> {
        if self.chooses_codec() { self.codec_choice.to_try(packer) } else { None }
    }
}
