//! softswap's side: what page-out and page-in do with a page that stays in
//! DRAM, without faults around it. The only place of this bench that knows the
//! pool and the codec.

use softswap_engine::codec::same_filled;
use softswap_engine::codec::{self, Codec, MAX_PACKED_BYTES, Scratch};
use softswap_engine::store::pool::{Handle, Pool};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::Page;
use std::io;
use std::sync::Arc;

/// Something that keeps pages compressed in DRAM, by number.
pub(super) trait Store: Sync {
    /// What one thread needs for the pages from `first` on, `count` of them;
    /// nobody else may use these meanwhile.
    fn hand(&self, first: usize, count: usize) -> Box<dyn Hand + '_>;

    /// Share of its memory that holds no packed bytes.
    fn waste_percent(&self) -> Result<f64, String>;
}

/// One thread's access. Errors are words for people.
pub(super) trait Hand {
    fn store(&mut self, page: usize, content: &Page) -> Result<(), String>;
    fn load(&mut self, page: usize, to: &mut Page) -> Result<(), String>;
    fn invalidate(&mut self, page: usize) -> Result<(), String>;

    /// What the store does by itself between batches of pages.
    fn upkeep(&mut self) {}
}

/// The pool, as the engine has it.
pub(super) struct Softswap(Pool);

impl Softswap {
    /// With room for `pages` pages however badly they pack.
    pub(super) fn new(pages: usize) -> io::Result<Softswap> {
        /// What objects of every size begin and do not fill.
        const BEGUN_BYTES: usize = 16 << 20;
        Pool::new(pages * PAGE_SIZE + BEGUN_BYTES).map(Softswap)
    }
}

impl Store for Softswap {
    fn hand(&self, first: usize, count: usize) -> Box<dyn Hand + '_> {
        Box::new(SoftswapHand {
            pool: &self.0,
            packer: Packer::new(),
            first,
            places: vec![Place::Nowhere; count],
        })
    }

    fn waste_percent(&self) -> Result<f64, String> {
        Ok(waste_percent(self.0.stored_bytes() as u64, self.0.used_bytes() as u64))
    }
}

/// Of `used_bytes`, those that are not `stored_bytes`; none where nothing is used.
pub(super) fn waste_percent(stored_bytes: u64, used_bytes: u64) -> f64 {
    if used_bytes == 0 { 0.0 } else { (1.0 - stored_bytes as f64 / used_bytes as f64) * 100.0 }
}

/// What a thread packs in.
pub(super) struct Packer {
    scratch: Scratch,
    packed: Box<[u8; MAX_PACKED_BYTES]>,
}

impl Packer {
    pub(super) fn new() -> Packer {
        let scratch = Scratch::new(Arc::default()).expect("there is address space for a scratch");
        Packer { scratch, packed: Box::new([0; MAX_PACKED_BYTES]) }
    }

    /// What the pool would be given of a page; nothing of one that stays in its
    /// entry or goes to disk.
    pub(super) fn pack(&mut self, content: &Page) -> Option<&[u8]> {
        if same_filled::same_filled_word(&content.0).and_then(same_filled::encode).is_some() {
            return None;
        }
        let len = codec::compress(
            codec::Packer::Lz4,
            &content.0,
            &mut self.packed[..],
            &mut self.scratch,
        )?;
        Some(&self.packed[..len])
    }
}

/// What the page table would say.
#[derive(Debug, Clone, Copy)]
enum Place {
    Nowhere,
    Pool(Handle),
}

struct SoftswapHand<'s> {
    pool: &'s Pool,
    packer: Packer,
    first: usize,
    places: Vec<Place>,
}

impl Hand for SoftswapHand<'_> {
    fn store(&mut self, page: usize, content: &Page) -> Result<(), String> {
        let packed = self.packer.pack(content).ok_or("a page was not one for the pool")?;
        let handle = self
            .pool
            .store(packed, page as u64, Codec::Lz4.tag())
            .map_err(|full| full.to_string())?;
        self.places[page - self.first] = Place::Pool(handle);
        Ok(())
    }

    fn load(&mut self, page: usize, to: &mut Page) -> Result<(), String> {
        let Place::Pool(handle) = self.places[page - self.first] else {
            return Err("a page was not stored".into());
        };
        let scratch = &mut self.packer.scratch;
        let unpacked = self
            .pool
            .load(handle, |packed| codec::decompress(Codec::Lz4, packed, &mut to.0, scratch));
        unpacked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    fn invalidate(&mut self, page: usize) -> Result<(), String> {
        match std::mem::replace(&mut self.places[page - self.first], Place::Nowhere) {
            Place::Pool(handle) => self.pool.free(handle),
            Place::Nowhere => return Err("a page was not stored".into()),
        }
        Ok(())
    }

    /// What reclaim does with the pool before each batch; the page table is ours
    /// here, and all pages are this hand's.
    fn upkeep(&mut self) {
        let Some(slab) = self.pool.sparsest() else { return };
        let pool = self.pool;
        pool.each_object(slab, |owner, handle| self.move_object(owner, handle));
        pool.reopen(slab);
    }
}

impl SoftswapHand<'_> {
    /// Moves an object into a gap, if there is one.
    fn move_object(&mut self, owner: u64, handle: Handle) {
        let room = &mut self.packer.packed[..handle.packed_bytes()];
        let moved = self.pool.peek(handle, |packed| room.copy_from_slice(packed));
        if moved.is_ok()
            && let Ok(new) = self.pool.store_in_gap(room, owner, handle.tag())
        {
            self.places[owner as usize - self.first] = Place::Pool(new);
            self.pool.free(handle);
        }
    }
}

/// Another store, one page of which comes back with a bit flipped: for tests
/// that this is noticed, and what happens then.
pub(super) struct Damaged<'s>(pub(super) &'s dyn Store);

struct DamagedHand<'s>(Box<dyn Hand + 's>);

impl Damaged<'_> {
    pub(super) const PAGE: usize = 9;
}

impl Store for Damaged<'_> {
    fn hand(&self, first: usize, count: usize) -> Box<dyn Hand + '_> {
        Box::new(DamagedHand(self.0.hand(first, count)))
    }

    fn waste_percent(&self) -> Result<f64, String> {
        self.0.waste_percent()
    }
}

impl Hand for DamagedHand<'_> {
    fn store(&mut self, page: usize, content: &Page) -> Result<(), String> {
        self.0.store(page, content)
    }

    fn load(&mut self, page: usize, to: &mut Page) -> Result<(), String> {
        self.0.load(page, to)?;
        to.0[7] ^= u8::from(page == Damaged::PAGE);
        Ok(())
    }

    fn invalidate(&mut self, page: usize) -> Result<(), String> {
        self.0.invalidate(page)
    }
}

#[cfg(test)]
mod tests {
    use super::super::page_kinds::{KINDS, generated};
    use super::*;

    #[test]
    fn a_page_comes_back_and_is_gone_once_it_is_invalidated() {
        let store = Softswap::new(8).unwrap();
        let mut hand = store.hand(4, 4);
        let (pages, mut back) = (generated(KINDS[0], 4).unwrap(), Page([0; PAGE_SIZE]));
        for (at, page) in pages.iter().enumerate() {
            hand.store(4 + at, page).unwrap();
        }
        hand.load(6, &mut back).unwrap();
        assert!(back.0 == pages[2].0);
        hand.invalidate(6).unwrap();
        assert!(hand.load(6, &mut back).is_err() && hand.invalidate(6).is_err());
    }

    #[test]
    fn what_does_not_belong_into_the_pool_is_refused() {
        let store = Softswap::new(1).unwrap();
        let mut noise = Page([0; PAGE_SIZE]);
        let mut hand = store.hand(0, 1);
        assert!(hand.store(0, &noise).is_err(), "all zeroes");
        crate::measure::noise::fill_with_noise(&mut noise.0, 1);
        assert!(hand.store(0, &noise).is_err(), "incompressible");
    }

    #[test]
    fn waste_is_what_is_used_and_not_stored() {
        assert_eq!(waste_percent(0, 0), 0.0);
        assert_eq!(waste_percent(75, 100), 25.0);
    }
}
