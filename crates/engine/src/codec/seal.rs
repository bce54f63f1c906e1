//! The seal of pages that leave DRAM.
//!
//! The seal covers slot and generation as well as the content, because a device can return intact
//! but wrong bytes: those of another slot (a misdirected write), or an older content of the slot (a
//! lost write).
//!
//! An encrypting [`Sealer`] uses AES-256 in Galois/counter mode, with slot and generation as the
//! nonce. No nonce is used twice: the generation rises each time the slot is allocated, a slot
//! whose generation cannot rise is retired, and a slot is sealed once per allocation.
//!
//! The areas that a process opens together have a key for each *epoch* ([`key_epochs`]). A fork
//! begins the next. A forked child reads with the keys up to the fork and never seals.

use super::key_epochs::{self, Cover, NODE_BYTES, Node};
use crc32fast::Hasher;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use softswap_sys::secret::{Secret, Unshared, wipe_registers, wiping, with_random};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Bytes that encryption adds to a page; they are stored in DRAM.
pub(crate) const TAG_BYTES: usize = 16;
/// Number of expanded keys: that of the current epoch and some earlier ones.
const EXPANDED_KEYS: usize = 4;

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot make the key that encrypts the swap areas ({0}); with --no-encrypt they \
     are unencrypted, and every user who can read them can read the program's data"
)]
pub struct NoKey(#[from] io::Error);

/// Data that DRAM holds for a page in the swap area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// CRC-32; the page is stored in plain text.
    Checksum(u32),
    Tag {
        tag: [u8; TAG_BYTES],
        epoch: u32,
    },
}

pub struct Sealer {
    /// Keys of an encrypting sealer. `None` if pages get only a checksum.
    keys: Option<Keys>,
}

/// Expanded keys; the index is the epoch modulo the size.
type Expanded = [RwLock<Option<(u32, LessSafeKey)>>; EXPANDED_KEYS];

struct Keys {
    /// Root of the keys of all epochs. Forked children do not have it.
    root: Unshared<Node>,
    /// Wiped in a forked child, which expands the keys that it needs.
    expanded: Unshared<Expanded>,
    /// Keys up to a fork: present while this process forks, and always in a child.
    cover: Secret<Mutex<Option<Cover>>>,
    epoch: AtomicU64,
}

impl Keys {
    fn new() -> io::Result<Keys> {
        Ok(Keys {
            root: Unshared::new(|| with_random(|bytes: &[u8; NODE_BYTES]| *bytes))?,
            expanded: Unshared::new(|| Ok(Expanded::default()))?,
            cover: Secret::new(|| Ok(Mutex::new(None)))?,
            epoch: AtomicU64::new(0),
        })
    }

    /// Calls `body` with the key of an epoch. Returns `None` if this process does not have the key.
    fn with<R>(&self, epoch: u32, body: impl FnOnce(&LessSafeKey) -> R) -> Option<R> {
        let find = |expanded: &Expanded| {
            let entry = &expanded[epoch as usize % EXPANDED_KEYS];
            if let Some((its, key)) = &*entry.read().unwrap_or_else(PoisonError::into_inner)
                && *its == epoch
            {
                return Some(body(key));
            }
            let mut entry = entry.write().unwrap_or_else(PoisonError::into_inner);
            if entry.as_ref().is_none_or(|(its, _)| *its != epoch) {
                wiping(|| *entry = self.expand(epoch).map(|key| (epoch, key)));
            }
            entry.as_ref().map(|(_, key)| body(key))
        };
        self.expanded.with(find).flatten()
    }

    fn expand(&self, epoch: u32) -> Option<LessSafeKey> {
        let bytes = match self.root.with(|root| key_epochs::key(root, epoch)) {
            Some(bytes) => bytes,
            None => self.cover().as_ref().and_then(|cover| cover.key(epoch))?,
        };
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*bytes).ok()?))
    }

    fn cover(&self) -> MutexGuard<'_, Option<Cover>> {
        self.cover.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_again(&self) {
        self.root.lock_again();
        self.expanded.lock_again();
        self.cover.lock_again();
    }

    fn are_locked(&self) -> bool {
        self.root.is_locked() && self.expanded.is_locked() && self.cover.is_locked()
    }
}

impl Sealer {
    pub fn checking() -> Sealer {
        Sealer { keys: None }
    }

    pub fn encrypting() -> Result<Sealer, NoKey> {
        Ok(Sealer { keys: Some(Keys::new()?) })
    }

    pub(crate) fn encrypts(&self) -> bool {
        self.keys.is_some()
    }

    /// Returns true if the kernel might swap out a key.
    pub fn is_key_unlocked(&self) -> bool {
        self.keys.as_ref().is_some_and(|keys| !keys.are_locked())
    }

    pub(crate) fn lock_again(&self) {
        self.keys.iter().for_each(Keys::lock_again);
    }

    /// Called before a fork: prepares the keys up to now for a child that reads pages. No page may
    /// be sealed or opened until [`Sealer::end_epoch`] or [`Sealer::become_child`].
    pub(crate) fn hand_down(&self) {
        let Some(keys) = &self.keys else { return };
        let _ = keys.root.with(|root| {
            let epoch = keys.epoch.load(Relaxed) as u32;
            wiping(|| *keys.cover() = Some(Cover::up_to(root, epoch)));
        });
    }

    /// Called in the parent after a fork. Begins a new epoch if a child received keys.
    pub(crate) fn end_epoch(&self) {
        let Some(keys) = &self.keys else { return };
        let is_own = keys.root.with(|_| ()).is_some();
        let mut cover = keys.cover();
        if let Some(given) = cover.as_mut().filter(|_| is_own) {
            given.wipe();
            *cover = None;
            keys.epoch.fetch_add(1, Relaxed);
        }
    }

    /// Lets a forked child open pages with the keys that it received.
    pub(crate) fn become_child(&self) {
        let Some(keys) = &self.keys else { return };
        // Cannot fail: nothing is allocated.
        let _ = keys.expanded.renew(|| Ok(Expanded::default()));
        keys.lock_again();
    }

    /// Seals the page for its slot, in place. Must be called at most once for each generation of a
    /// slot: two pages encrypted with one nonce reveal each other. Returns `None` if the cipher
    /// refuses (more than 64 GiB) or after 2^32 epochs.
    #[must_use]
    pub fn seal(&self, slot: u64, generation: u32, page: &mut [u8]) -> Option<Seal> {
        let Some(keys) = &self.keys else {
            return Some(Seal::Checksum(checksum(slot, generation, page)));
        };
        let epoch = u32::try_from(keys.epoch.load(Relaxed)).ok()?;
        let nonce = nonce(slot, generation);
        let tag = keys.with(epoch, |key| key.seal_in_place_separate_tag(nonce, Aad::empty(), page));
        wipe_registers();
        let tag = tag?.ok()?.as_ref().try_into().ok()?;
        Some(Seal::Tag { tag, epoch })
    }

    /// Returns false if the page does not match its seal; its content is then undefined.
    #[must_use]
    pub fn open(&self, slot: u64, generation: u32, page: &mut [u8], seal: Seal) -> bool {
        match (&self.keys, seal) {
            (None, Seal::Checksum(sum)) => checksum(slot, generation, page) == sum,
            (Some(keys), Seal::Tag { tag, epoch }) => {
                let (nonce, tag) = (nonce(slot, generation), Tag::from(tag));
                let opened = keys.with(epoch, |key| {
                    key.open_in_place_separate_tag(nonce, Aad::empty(), tag, page, 0..).is_ok()
                });
                wipe_registers();
                opened == Some(true)
            }
            // A sealer with keys rejects a checksum, because it can be computed without a key.
            _ => false,
        }
    }
}

fn nonce(slot: u64, generation: u32) -> Nonce {
    Nonce::assume_unique_for_key(nonce_bytes(slot, generation))
}

fn nonce_bytes(slot: u64, generation: u32) -> [u8; NONCE_LEN] {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&slot.to_le_bytes());
    bytes[8..].copy_from_slice(&generation.to_le_bytes());
    bytes
}

/// CRC-32 detects every difference within 32 consecutive bits: another slot of the same 16 TiB,
/// another generation, a flipped bit. It misses other differences with probability 2^-32.
pub(crate) fn checksum(slot: u64, generation: u32, page: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&nonce_bytes(slot, generation));
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

    fn sealers() -> [Sealer; 2] {
        [Sealer::checking(), Sealer::encrypting().unwrap()]
    }

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
                assert!(copy != page(), "bit {bit}: the rejected page was decrypted");
            }
            let mut copy = stored;
            assert!(sealer.open(7, 1, &mut copy, seal));
            assert!(copy == page());
        }
    }

    #[test]
    fn any_flipped_bit_of_a_tag_breaks_the_seal() {
        let sealer = Sealer::encrypting().unwrap();
        let (stored, Seal::Tag { tag, epoch }) = sealed(&sealer, 7, 1) else { panic!("no tag") };
        for bit in 0..TAG_BYTES * 8 {
            let (mut copy, mut other) = (stored.clone(), tag);
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!sealer.open(7, 1, &mut copy, Seal::Tag { tag: other, epoch }), "bit {bit}");
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
    fn wrong_key_is_rejected() {
        let [one, other] = [(); 2].map(|()| Sealer::encrypting().unwrap());
        let (mut stored, seal) = sealed(&one, 7, 1);
        assert!(!other.open(7, 1, &mut stored, seal));
        assert!(stored != page());
    }

    #[test]
    fn checksum_and_tag_are_not_interchangeable() {
        let [checking, encrypting] = sealers();
        let sum = checksum(7, 1, &page());
        assert!(!encrypting.open(7, 1, &mut page(), Seal::Checksum(sum)));
        let (mut stored, seal) = sealed(&encrypting, 7, 1);
        assert!(!checking.open(7, 1, &mut stored, seal));
        assert!(checking.open(7, 1, &mut page(), Seal::Checksum(sum)));
    }

    /// Simulates a fork whose child reads pages, on the parent's side.
    fn fork(sealer: &Sealer) {
        sealer.hand_down();
        sealer.end_epoch();
    }

    #[test]
    fn forked_child_opens_earlier_pages_only() {
        use softswap_sys::probe::holds_in_child;
        let sealer = Sealer::encrypting().unwrap();
        // More epochs than expanded keys.
        let sealed: Vec<_> = (0..9_u64)
            .map(|slot| {
                fork(&sealer);
                (slot, sealed(&sealer, slot, 1))
            })
            .collect();
        sealer.hand_down();
        let holds = holds_in_child(|| {
            sealer.become_child();
            let keys = sealer.keys.as_ref().unwrap();
            let opens = sealed.iter().all(|(slot, (stored, seal))| {
                let mut copy: [u8; 4096] = stored.as_slice().try_into().unwrap();
                sealer.open(*slot, 1, &mut copy, *seal) && copy == *page()
            });
            let has_later = keys.root.with(|_| ()).is_some() || keys.with(10, |_| ()).is_some();
            // Its own children receive the same keys.
            sealer.hand_down();
            sealer.end_epoch();
            let has_kept = keys.with(9, |_| ()).is_some();
            opens && !has_later && has_kept
        });
        assert!(holds.unwrap());
        sealer.end_epoch();
        let seal = sealer.seal(7, 2, &mut page()).unwrap();
        assert!(matches!(seal, Seal::Tag { epoch: 10, .. }), "{seal:?}");
    }

    #[test]
    fn child_without_keys_opens_nothing() {
        use softswap_sys::probe::holds_in_child;
        let sealer = Sealer::encrypting().unwrap();
        let (_, before) = sealed(&sealer, 7, 1);
        let holds = holds_in_child(|| {
            let keys = sealer.keys.as_ref().unwrap();
            let has_any = || keys.with(0, |_| ()).is_some();
            let at_once = has_any();
            sealer.become_child();
            !at_once && !has_any()
        });
        assert!(holds.unwrap());
        sealer.end_epoch();
        assert!(matches!(before, Seal::Tag { epoch: 0, .. }));
        assert!(matches!(sealed(&sealer, 7, 2).1, Seal::Tag { epoch: 0, .. }));
    }

    #[test]
    fn equal_pages_encrypt_differently() {
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
        fn sealed_page_round_trips(
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
        fn epochs_have_distinct_keys(
            forks in prop::collection::vec(any::<bool>(), 1..40),
        ) {
            let sealer = Sealer::encrypting().unwrap();
            let mut stored = Vec::new();
            for forks in forks {
                if forks {
                    fork(&sealer);
                }
                // The nonce is always the same, so the same key would produce the same ciphertext.
                stored.push(sealed(&sealer, 7, 1));
            }
            for (at, (bytes, seal)) in stored.iter().enumerate() {
                let mut copy = bytes.clone();
                prop_assert!(sealer.open(7, 1, &mut copy, *seal) && copy == page());
                for (other, its) in &stored[at..] {
                    prop_assert_eq!(bytes == other, seal == its);
                }
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
