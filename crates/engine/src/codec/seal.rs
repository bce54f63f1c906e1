//! The seal on what leaves DRAM: page-out seals a page in its bounce buffer,
//! page-in opens it there before it is installed.
//!
//! Slot and generation are sealed beside the content, because a device can return
//! intact bytes that are nevertheless wrong: those of another slot (a
//! misdirected write), or of the slot's previous tenant (a lost write).
//!
//! An encrypting [`Sealer`] uses AES-256 in Galois/counter mode. Slot and
//! generation are the nonce. A slot's generation rises each time the slot is
//! handed out, one that cannot rise any more takes the slot out of service, and
//! whoever has a slot seals one page for it; so no nonce is used twice. The key
//! is that of an area, and is in the process that opened this, and its forks, only:
//! they read with it, and never seal.

use crc32fast::Hasher;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use softswap_sys::secret::{Secret, wipe_registers, with_random};
use std::io;

/// Bytes that encryption adds to a page; they are kept in DRAM.
pub(crate) const TAG_BYTES: usize = 16;
const KEY_BYTES: usize = 32;

/// Why there is no key.
///
/// ```
/// use softswap_engine::codec::seal::NoKey;
/// let error = NoKey::from(std::io::Error::other("no entropy"));
/// assert!(error.to_string().contains("--no-encrypt"));
/// ```
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot make the key that encrypts the swap areas ({0}); --no-encrypt does without, and leaves \
     the program's memory readable there"
)]
pub struct NoKey(#[from] io::Error);

/// What is kept in DRAM of a page that left it.
///
/// ```
/// use softswap_engine::codec::seal::{Seal, Sealer};
/// let mut page = [7; 4096];
/// let seal = Sealer::checking().seal(1, 1, &mut page);
/// assert!(matches!(seal, Some(Seal::Checksum(_))));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// A checksum: the page is stored as it was.
    Checksum(u32),
    /// A tag that only the owner of the key can make: the page is encrypted.
    Tag([u8; TAG_BYTES]),
}

/// Seals pages on their way out and opens them on their way in.
///
/// ```
/// use softswap_engine::codec::seal::Sealer;
/// let sealer = Sealer::encrypting().unwrap();
/// let mut page = [7; 4096];
/// let (slot, generation) = (12, 1);
/// let seal = sealer.seal(slot, generation, &mut page).unwrap();
/// assert_ne!(page, [7; 4096]);
/// assert!(sealer.open(slot, generation, &mut page, seal));
/// assert_eq!(page, [7; 4096]);
/// ```
pub struct Sealer {
    /// Without one, pages get a checksum only.
    key: Option<Secret<LessSafeKey>>,
}

impl std::fmt::Debug for Sealer {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("encrypts", &self.encrypts()).finish_non_exhaustive()
    }
}

impl Sealer {
    /// One that leaves pages as they are and notes their checksum.
    #[must_use]
    pub fn checking() -> Sealer {
        Sealer { key: None }
    }

    /// One that encrypts pages, with a new key.
    ///
    /// # Errors
    /// When there is no key to be had.
    pub fn encrypting() -> Result<Sealer, NoKey> {
        let key = Secret::new(|| {
            let key = with_random(|bytes: &[u8; KEY_BYTES]| UnboundKey::new(&AES_256_GCM, bytes))?;
            let key = key.map_err(|_| io::Error::other("the cipher refuses it"))?;
            Ok(LessSafeKey::new(key))
        });
        Ok(Sealer { key: Some(key?) })
    }

    /// Whether pages are encrypted.
    #[must_use]
    pub(crate) fn encrypts(&self) -> bool {
        self.key.is_some()
    }

    /// Whether there is a key that the kernel might swap out.
    #[must_use]
    pub fn is_key_unlocked(&self) -> bool {
        self.key.as_ref().is_some_and(|key| !key.is_locked())
    }

    /// In a forked child: keeps the kernel from swapping its copy of the key out.
    pub(crate) fn lock_again(&self) {
        self.key.iter().for_each(Secret::lock_again);
    }

    /// Seals the page for its slot, in place. Once for each generation of a slot:
    /// two pages under one nonce give each other away. `None` when the cipher
    /// refuses, which is for what is larger than 64 GiB.
    #[must_use]
    pub fn seal(&self, slot: u64, generation: u32, page: &mut [u8]) -> Option<Seal> {
        let Some(key) = &self.key else {
            return Some(Seal::Checksum(checksum(slot, generation, page)));
        };
        let tag = key.seal_in_place_separate_tag(nonce(slot, generation), Aad::empty(), page);
        wipe_registers();
        let tag = tag.ok()?.as_ref().try_into().ok()?;
        Some(Seal::Tag(tag))
    }

    /// Makes what [`Sealer::seal`] made of a page the page again, in place. False
    /// when it is anything else; then nothing of use is left of it.
    #[must_use]
    pub fn open(&self, slot: u64, generation: u32, page: &mut [u8], seal: Seal) -> bool {
        match (&self.key, seal) {
            (None, Seal::Checksum(sum)) => checksum(slot, generation, page) == sum,
            (Some(key), Seal::Tag(tag)) => {
                let (nonce, tag) = (nonce(slot, generation), Tag::from(tag));
                let opened = key.open_in_place_separate_tag(nonce, Aad::empty(), tag, page, 0..);
                let opened = opened.is_ok();
                wipe_registers();
                opened
            }
            // A checksum proves nothing to who has a key.
            _ => false,
        }
    }
}

fn nonce(slot: u64, generation: u32) -> Nonce {
    Nonce::assume_unique_for_key(place(slot, generation))
}

fn place(slot: u64, generation: u32) -> [u8; NONCE_LEN] {
    let mut place = [0; NONCE_LEN];
    place[..8].copy_from_slice(&slot.to_le_bytes());
    place[8..].copy_from_slice(&generation.to_le_bytes());
    place
}

/// The checksum of `page` in `slot` at `generation`.
///
/// CRC-32 tells apart any two inputs that differ within 32 consecutive bits
/// only: so always another slot of the same 16 TiB, always another generation,
/// always a flipped bit; any other difference but for one in 2^32.
#[must_use]
pub(crate) fn checksum(slot: u64, generation: u32, page: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&place(slot, generation));
    hasher.update(page);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page() -> Vec<u8> {
        (0..4096u32).map(|i| ((i * i) >> 5) as u8).collect()
    }

    /// With and without a key.
    fn sealers() -> [Sealer; 2] {
        [Sealer::checking(), Sealer::encrypting().unwrap()]
    }

    /// A page in the state in which it lies on the disk.
    fn sealed(sealer: &Sealer, slot: u64, generation: u32) -> (Vec<u8>, Seal) {
        let mut stored = page();
        let seal = sealer.seal(slot, generation, &mut stored).unwrap();
        (stored, seal)
    }

    #[test]
    fn any_flipped_bit_breaks_the_seal() {
        for sealer in sealers() {
            let (stored, seal) = sealed(&sealer, 7, 1);
            for bit in 0..stored.len() * 8 {
                let mut copy = stored.clone();
                copy[bit / 8] ^= 1 << (bit % 8);
                assert!(!sealer.open(7, 1, &mut copy, seal), "bit {bit}");
                assert!(copy != page(), "bit {bit}: what was refused is there");
            }
            let mut copy = stored;
            assert!(sealer.open(7, 1, &mut copy, seal));
            assert!(copy == page());
        }
    }

    #[test]
    fn any_flipped_bit_of_a_tag_breaks_the_seal() {
        let sealer = Sealer::encrypting().unwrap();
        let (stored, Seal::Tag(tag)) = sealed(&sealer, 7, 1) else { panic!("no tag") };
        for bit in 0..TAG_BYTES * 8 {
            let (mut copy, mut other) = (stored.clone(), tag);
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!sealer.open(7, 1, &mut copy, Seal::Tag(other)), "bit {bit}");
            assert!(copy != page());
        }
    }

    #[test]
    fn a_shorter_page_breaks_the_seal() {
        for sealer in sealers() {
            let (mut stored, seal) = sealed(&sealer, 0, 0);
            stored.pop();
            assert!(!sealer.open(0, 0, &mut stored, seal));
        }
    }

    #[test]
    fn a_page_sealed_with_another_key_is_refused() {
        let [one, other] = [(); 2].map(|()| Sealer::encrypting().unwrap());
        let (mut stored, seal) = sealed(&one, 7, 1);
        assert!(!other.open(7, 1, &mut stored, seal));
        assert!(stored != page());
    }

    #[test]
    fn a_checksum_is_no_tag_and_a_tag_no_checksum() {
        let [checking, encrypting] = sealers();
        let sum = checksum(7, 1, &page());
        assert!(!encrypting.open(7, 1, &mut page(), Seal::Checksum(sum)));
        let (mut stored, seal) = sealed(&encrypting, 7, 1);
        assert!(!checking.open(7, 1, &mut stored, seal));
        assert!(checking.open(7, 1, &mut page(), Seal::Checksum(sum)));
    }

    #[test]
    fn encryption_leaves_nothing_that_repeats() {
        let sealer = Sealer::encrypting().unwrap();
        let mut pages: Vec<_> = (1..=8).map(|slot| (vec![0; 4096], slot)).collect();
        for (page, slot) in &mut pages {
            assert!(sealer.seal(*slot, 1, page).is_some());
        }
        let blocks = pages.iter().flat_map(|(page, _)| page.chunks_exact(16));
        let distinct: std::collections::HashSet<_> = blocks.collect();
        assert_eq!(distinct.len(), 8 * 256);
        let [checking, _] = sealers();
        assert!(sealed(&checking, 1, 1).0 == page());
    }

    proptest! {
        #[test]
        fn a_page_comes_back(
            slot: u64,
            generation: u32,
            page in prop::collection::vec(any::<u8>(), 4096),
        ) {
            for sealer in sealers() {
                let mut copy = page.clone();
                let seal = sealer.seal(slot, generation, &mut copy).unwrap();
                prop_assert_eq!(copy == page, !sealer.encrypts());
                prop_assert!(sealer.open(slot, generation, &mut copy, seal));
                prop_assert!(copy == page);
            }
        }

        #[test]
        fn another_slot_breaks_the_seal(slot: u32, other: u32, generation: u32) {
            prop_assume!(slot != other);
            for sealer in sealers() {
                let (mut stored, seal) = sealed(&sealer, slot.into(), generation);
                prop_assert!(!sealer.open(other.into(), generation, &mut stored, seal));
            }
        }

        #[test]
        fn another_generation_breaks_the_seal(slot: u64, generation: u32, other: u32) {
            prop_assume!(generation != other);
            for sealer in sealers() {
                let (mut stored, seal) = sealed(&sealer, slot, generation);
                prop_assert!(!sealer.open(slot, other, &mut stored, seal));
            }
        }
    }
}
