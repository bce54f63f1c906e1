//! A process's membership: the chunks that it holds, takes and releases.

use super::Ledger;
use super::layout::{URGENT, Word, holder, tag_of};
use crate::membership::{FREE, OWNER_WORDS, Owner};
use crate::segment::increment_and_wake;
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed};
use softswap_sys::primitive::wait_shared;
use softswap_sys::process_identity::ProcessIdentity;

const JOINED: u8 = 1;

/// Membership of a process that has joined the ledger, until it releases its entry or is reaped.
///
/// ```
/// use softswap_shared::ledger::{Ledger, SHAPE};
/// use softswap_sys::{memory::reserve_u64, process_identity::ProcessIdentity};
/// let ledger = Ledger::create(reserve_u64(SHAPE.words()).unwrap(), SHAPE, 1 << 20, 64);
/// let me = ProcessIdentity { pid: 7, start: 1, namespace: 2 };
/// let member = ledger.join(me).unwrap();
/// assert_eq!(member.take(3), 3);
/// // After exec the process is still the same member.
/// assert_eq!(ledger.join(me).unwrap().held(), 3);
/// member.release_entry();
/// assert_eq!(ledger.free_chunks(), 64);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Member {
    pub(super) ledger: Ledger,
    pub(super) entry: usize,
    pub(super) generation: u32,
    pub(super) pid: u32,
}

/// A request to a member to release all but some chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseTarget {
    word: u64,
    /// Chunks to keep.
    pub keep: usize,
}

/// Bits of [`Word::Target`] below the request's number. The number makes requests differ.
const KEEP_MASK: u64 = 0xFFFF_FFFF;

impl ReleaseTarget {
    fn of(word: u64, most: usize) -> Option<ReleaseTarget> {
        let keep = (word & KEEP_MASK).checked_sub(1)? as usize;
        Some(ReleaseTarget { word, keep: keep.min(most) })
    }
}

impl Ledger {
    /// Makes a process a member, or returns its membership; `None` if the ledger is full.
    #[must_use]
    pub fn join(&self, me: ProcessIdentity) -> Option<Member> {
        let clear = |entry| {
            let words = OWNER_WORDS..Word::End as usize;
            let kept = Word::Notifications as usize;
            for word in words.filter(|word| *word != kept) {
                self.members.word(entry, word).store(0, Relaxed);
            }
        };
        let (entry, owner) = self
            .find(me)
            .or_else(|| self.members.join(self.members.entries(), me, JOINED, clear))?;
        Some(self.member_at(entry, owner))
    }

    pub(super) fn member_at(&self, entry: usize, owner: Owner) -> Member {
        Member { ledger: *self, entry, generation: owner.generation, pid: owner.pid }
    }

    /// Returns the entry of a process. Frees entries of dead processes that had the same PID.
    fn find(&self, me: ProcessIdentity) -> Option<(usize, Owner)> {
        let same_pid =
            |(_, owner): &(usize, Owner)| (owner.pid, owner.namespace) == (me.pid, me.namespace);
        self.members.owned().filter(same_pid).find(|(entry, owner)| {
            let is_mine = self.members.start(*entry, *owner) == Some(me.start);
            if !is_mine {
                self.vacate(&self.member_at(*entry, *owner));
            }
            is_mine
        })
    }

    /// Returns the member with this tag and PID; `None` if the tag is invalid.
    #[must_use]
    pub fn member(&self, tag: u64, pid: u32) -> Option<Member> {
        let (entry, generation) = holder(tag).filter(|(entry, _)| *entry < self.shape.members)?;
        Some(Member { ledger: *self, entry, generation, pid })
    }

    /// Returns true if a process with this PID is a member, or was one and has not been reaped.
    #[must_use]
    pub fn has_member(&self, pid: u32) -> bool {
        self.members.owned().any(|(_, owner)| owner.pid == pid)
    }
}

impl Member {
    /// Returns the value in the words of this member's chunks, for [`Ledger::member`]; never 0.
    #[must_use]
    pub fn tag(&self) -> u64 {
        tag_of(self.entry, self.generation)
    }

    /// Returns the ledger of this member.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns true if the entry still belongs to this process, and the header is intact.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.ledger.is_sound() && self.is_owner(self.ledger.members.owner(self.entry))
    }

    fn is_owner(&self, owner: Owner) -> bool {
        owner.state != FREE && (owner.generation, owner.pid) == (self.generation, self.pid)
    }

    /// Returns the number of chunks within the limit that this member holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.ledger.within().count(self.tag())
    }

    /// Returns the number of chunks that this member holds, regardless of the limit.
    #[must_use]
    pub fn total(&self) -> usize {
        self.ledger.chunks().count(self.tag())
    }

    /// Returns the number of chunks beyond the limit that this member holds.
    #[must_use]
    pub fn excess(&self) -> usize {
        self.ledger.beyond().count(self.tag())
    }

    /// Takes up to `count` free chunks, and returns their number.
    #[must_use]
    pub fn take(&self, count: usize) -> usize {
        self.ledger.within().take(self.tag(), 0).take(count).count()
    }

    /// Releases up to `count` chunks, those beyond the limit first. Returns their number.
    pub fn release(&self, count: usize) -> usize {
        let released = self.ledger.chunks().free_from_end(self.tag()).take(count).count();
        if released > 0 {
            self.ledger.note_release();
        }
        released
    }

    /// Publishes the benefit of one more MiB, in ns saved per second, and the bytes in use.
    pub fn publish(&self, benefit: u64, used_bytes: u64) {
        self.ledger.word(self.entry, Word::Benefit).store(benefit, Relaxed);
        self.publish_used(used_bytes);
    }

    /// Publishes the bytes in use.
    pub fn publish_used(&self, used_bytes: u64) {
        self.ledger.word(self.entry, Word::Used).store(used_bytes, Relaxed);
        self.ledger.word(self.entry, Word::Peak).fetch_max(used_bytes, Relaxed);
    }

    /// Returns the pending request to release chunks.
    #[must_use]
    pub fn release_target(&self) -> Option<ReleaseTarget> {
        let word = self.ledger.word(self.entry, Word::Target).load(Acquire);
        ReleaseTarget::of(word, self.ledger.shape.chunks)
    }

    /// Ends a request that was met or cannot be met. A later, even equal one stays pending.
    pub fn end_release(&self, target: ReleaseTarget) {
        let word = self.ledger.word(self.entry, Word::Target);
        let _ = word.compare_exchange(target.word, target.word & !KEEP_MASK, AcqRel, Relaxed);
    }

    /// Demands chunks, up to the floor: another process requests them ([`Ledger::serve_demands`]).
    pub fn demand(&self, chunks: usize) {
        self.ledger.word(self.entry, Word::Demand).store(chunks as u64, Relaxed);
    }

    /// Demands chunks also beyond the floor, for a process that cannot release memory itself.
    pub fn demand_urgently(&self, chunks: usize) {
        self.demand(chunks | URGENT as usize);
    }

    /// Returns a count that increases with each notification, for [`Member::await_notification`].
    #[must_use]
    pub fn notifications(&self) -> u64 {
        self.ledger.word(self.entry, Word::Notifications).load(Acquire)
    }

    /// Waits up to `ns` until the notification count differs from `seen`.
    pub fn await_notification(&self, seen: u64, ns: u64) {
        wait_shared(self.ledger.word(self.entry, Word::Notifications), seen, ns);
    }

    /// Wakes the thread that waits in [`Member::await_notification`].
    pub fn notify(&self) {
        self.ledger.notify(self.entry);
    }

    /// Releases all chunks and the entry.
    pub fn release_entry(self) {
        self.ledger.vacate(&self);
    }
}

impl Ledger {
    /// Requests up to `need` more chunks of a member, none below `floor`. Returns their number.
    pub(super) fn request(&self, entry: usize, held: usize, floor: usize, need: usize) -> usize {
        let mut count = 0;
        let _ = self.word(entry, Word::Target).fetch_update(AcqRel, Acquire, |word| {
            let left = self.remaining(word, held);
            count = need.min(left.saturating_sub(floor));
            let number = (word >> 32).wrapping_add(1);
            (count > 0).then_some((number << 32) | ((left - count) as u64 + 1))
        });
        if count > 0 {
            self.notify(entry);
        }
        count
    }

    pub(super) fn remaining(&self, word: u64, held: usize) -> usize {
        ReleaseTarget::of(word, self.shape.chunks).map_or(held, |target| target.keep.min(held))
    }

    pub(super) fn notify(&self, entry: usize) {
        increment_and_wake(self.word(entry, Word::Notifications));
    }

    pub(super) fn vacate(&self, member: &Member) -> usize {
        let released = self.chunks().free_from_end(member.tag()).count();
        // Free the entry last. Its next owner has another generation, so a concurrent call releases
        // none of that owner's chunks.
        let owner = self.members.owner(member.entry);
        if member.is_owner(owner) {
            self.members.change(member.entry, owner, owner.freed());
        }
        if released > 0 {
            self.note_release();
        }
        released
    }
}
