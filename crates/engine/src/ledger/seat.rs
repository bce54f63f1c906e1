//! A process's seat: what it holds, takes, gives back and publishes.

use super::Ledger;
use super::layout::{Word, held_by, holder, owner, started, tenant};
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Which process it is: its number is another's later, or elsewhere.
///
/// ```
/// use softswap_engine::ledger::Identity;
/// let one = Identity { pid: 7, start: 1, namespace: 2 };
/// assert_ne!(one, Identity { start: 5, ..one });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its number; not 0.
    pub pid: u32,
    /// When it began, in ticks.
    pub start: u64,
    /// The name space in which that is its number.
    pub namespace: u64,
}

/// A seat that a process has taken. Who has it leaves it in the end, or is reaped.
///
/// ```
/// use softswap_engine::ledger::{Identity, Ledger, SHAPE};
/// let words = softswap_sys::memory::reserve_u64(SHAPE.words()).unwrap();
/// let ledger = Ledger::create(words, SHAPE, 1 << 20, 64);
/// let me = Identity { pid: 7, start: 1, namespace: 2 };
/// let seat = ledger.take_seat(me).unwrap();
/// seat.take(3);
/// // After exec it is the same process.
/// assert_eq!(ledger.take_seat(me).unwrap().held(), 3);
/// seat.leave();
/// assert_eq!(ledger.free_steps(), 64);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Seat {
    pub(super) ledger: Ledger,
    pub(super) at: usize,
    pub(super) generation: u32,
    pub(super) pid: u32,
}

impl Ledger {
    /// Takes a free seat, or the one that this process has already. `None` where all are
    /// taken.
    #[must_use]
    pub fn take_seat(&self, me: Identity) -> Option<Seat> {
        let of = |at, generation| Seat { ledger: *self, at, generation, pid: me.pid };
        if let Some((at, generation)) = self.seat_of(me) {
            return Some(of(at, generation));
        }
        (0..self.shape.seats).find_map(|at| {
            let word = self.seat_word(at, Word::Owner);
            let seen = word.load(Acquire);
            let (before, pid) = tenant(seen);
            let generation = before.wrapping_add(1);
            let taken = owner(generation, me.pid);
            if pid != 0 || word.compare_exchange(seen, taken, AcqRel, Relaxed).is_err() {
                return None;
            }
            for word in [Word::Asked, Word::Worth, Word::Used, Word::Peak, Word::Name] {
                self.seat_word(at, word).store(0, Relaxed);
            }
            self.seat_word(at, Word::Namespace).store(me.namespace, Relaxed);
            self.seat_word(at, Word::Start).store(started(generation, me.start), Release);
            Some(of(at, generation))
        })
    }

    /// The seat that a process has taken, by what [`Seat::to_word`] said of it.
    #[must_use]
    pub fn seat_by(&self, word: u64, pid: u32) -> Option<Seat> {
        let (at, generation) = holder(word).filter(|(at, _)| *at < self.shape.seats)?;
        Some(Seat { ledger: *self, at, generation, pid })
    }

    fn seat_of(&self, me: Identity) -> Option<(usize, u32)> {
        (0..self.shape.seats).find_map(|at| {
            let (generation, pid) = tenant(self.seat_word(at, Word::Owner).load(Acquire));
            let is_mine = pid == me.pid
                && self.seat_word(at, Word::Start).load(Acquire) == started(generation, me.start)
                && self.seat_word(at, Word::Namespace).load(Relaxed) == me.namespace;
            is_mine.then_some((at, generation))
        })
    }
}

impl Seat {
    /// The seat as one word, for [`Ledger::seat_by`]; never 0.
    #[must_use]
    pub fn to_word(&self) -> u64 {
        self.mark()
    }

    /// The ledger that it is of.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether the seat is still this process's, and the ledger one.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.ledger.is_sound() && self.word(Word::Owner) == owner(self.generation, self.pid)
    }

    fn word(&self, word: Word) -> u64 {
        self.ledger.seat_word(self.at, word).load(Acquire)
    }

    fn mark(&self) -> u64 {
        held_by(self.at, self.generation)
    }

    /// Steps that it holds within the limit.
    #[must_use]
    pub fn held(&self) -> usize {
        let within = &self.ledger.table()[..self.ledger.limit()];
        within.iter().filter(|step| step.load(Relaxed) == self.mark()).count()
    }

    /// Steps that it holds beyond the limit: it is to move to others, or give them back.
    #[must_use]
    pub fn beyond(&self) -> usize {
        let beyond = self.ledger.extent().iter().skip(self.ledger.limit());
        beyond.filter(|step| step.load(Relaxed) == self.mark()).count()
    }

    /// Takes up to `count` free steps; how many it got.
    #[must_use]
    pub fn take(&self, count: usize) -> usize {
        let within = &self.ledger.table()[..self.ledger.limit()];
        let free = within.iter().filter(|step| {
            step.load(Relaxed) == 0
                && step.compare_exchange(0, self.mark(), AcqRel, Relaxed).is_ok()
        });
        free.take(count).count()
    }

    /// Gives `count` steps back, those beyond the limit and the last ones first; how many it
    /// had.
    pub fn give(&self, count: usize) -> usize {
        let held = self.ledger.extent().iter().rev().filter(|step| {
            step.load(Relaxed) == self.mark()
                && step.compare_exchange(self.mark(), 0, AcqRel, Relaxed).is_ok()
        });
        let given = held.take(count).count();
        if given > 0 {
            self.ledger.note_freed();
        }
        given
    }

    /// Says what one MiB more would save, in ns in each second, and what is used.
    pub fn publish(&self, worth: u64, used_bytes: u64) {
        self.ledger.seat_word(self.at, Word::Worth).store(worth, Relaxed);
        self.ledger.seat_word(self.at, Word::Used).store(used_bytes, Relaxed);
        self.ledger.seat_word(self.at, Word::Peak).fetch_max(used_bytes, Relaxed);
    }

    /// How many steps it is asked to keep, if it is asked.
    #[must_use]
    pub fn asked(&self) -> Option<usize> {
        self.word(Word::Asked)
            .checked_sub(1)
            .map(|keep| (keep as usize).min(self.ledger.shape.steps))
    }

    /// It has been done, or cannot be, that this seat keeps `keep` steps. What has been asked
    /// meanwhile still is.
    pub fn answered(&self, keep: usize) {
        let asked = self.ledger.seat_word(self.at, Word::Asked);
        let seen = asked.load(Acquire);
        if self.asked() == Some(keep) {
            let _ = asked.compare_exchange(seen, 0, AcqRel, Relaxed);
        }
    }

    /// Rises when something is asked: what [`Seat::await_bell`] is to begin with.
    #[must_use]
    pub fn bell(&self) -> u64 {
        self.word(Word::Bell)
    }

    /// Sleeps until something is asked since `seen`, or for `ns`.
    pub fn await_bell(&self, seen: u64, ns: u64) {
        super::sleep(self.ledger.seat_word(self.at, Word::Bell), seen, ns);
    }

    /// Gives all back, and the seat.
    pub fn leave(self) {
        self.ledger.vacate(self.at, self.generation, self.pid);
    }
}

impl Ledger {
    /// Frees what a seat's tenant holds, then the seat. How many steps that were.
    pub(super) fn vacate(&self, at: usize, generation: u32, pid: u32) -> usize {
        let mark = held_by(at, generation);
        let held = self.extent().iter().filter(|step| {
            step.load(Acquire) == mark && step.compare_exchange(mark, 0, AcqRel, Relaxed).is_ok()
        });
        let freed = held.count();
        // Last: from here on the seat is another's, whose steps bear another generation.
        let seat = self.seat_word(at, Word::Owner);
        let _ =
            seat.compare_exchange(owner(generation, pid), owner(generation, 0), AcqRel, Relaxed);
        if freed > 0 {
            self.note_freed();
        }
        freed
    }
}
