//! A process's seat: what it holds, takes, gives back and publishes.

use super::Ledger;
use super::layout::{Owner, URGENT, Word, held_by, holder, started};
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed};

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
    /// When it began, in ticks; 0 where that is not known.
    pub start: u64,
    /// The name spaces in which that is its number, and its beginning
    /// ([`softswap_sys::birth::namespace`]).
    pub namespace: u32,
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

/// What a seat is asked: to keep so many steps and give back the others.
///
/// ```
/// use softswap_engine::ledger::{Identity, Ledger, SHAPE};
/// let words = softswap_sys::memory::reserve_u64(SHAPE.words()).unwrap();
/// let ledger = Ledger::create(words, SHAPE, 1 << 20, 64);
/// let seat = ledger.take_seat(Identity { pid: 7, start: 1, namespace: 2 }).unwrap();
/// assert!(seat.asked().is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    word: u64,
    /// How many it is to keep.
    pub keep: usize,
}

/// Below: steps to keep and one. Above: the number of the question, so that no two are alike.
const KEEP_MASK: u64 = 0xFFFF_FFFF;

impl Question {
    fn of(word: u64, most: usize) -> Option<Question> {
        let keep = (word & KEEP_MASK).checked_sub(1)? as usize;
        Some(Question { word, keep: keep.min(most) })
    }

    fn cleared(self) -> u64 {
        self.word & !KEEP_MASK
    }
}

impl Ledger {
    /// Takes a free seat, or the one that this process has already. `None` where all are
    /// taken.
    ///
    /// The first word says who takes it, and the last one that it is taken. Who is killed in
    /// between is known by the first ([`Ledger::reap`]), and who lives is never taken for dead
    /// meanwhile.
    #[must_use]
    pub fn take_seat(&self, me: Identity) -> Option<Seat> {
        let of = |at, generation| Seat { ledger: *self, at, generation, pid: me.pid };
        if let Some((at, generation)) = self.seat_of(me) {
            return Some(of(at, generation));
        }
        (0..self.shape.seats).find_map(|at| {
            let word = self.seat_word(at, Word::Owner);
            let seen = word.load(Acquire);
            let before = Owner::of(seen);
            let generation = before.next_generation();
            let taken = Owner { generation, namespace: me.namespace, pid: me.pid }.word();
            if before.pid != 0 || word.compare_exchange(seen, taken, AcqRel, Relaxed).is_err() {
                return None;
            }
            let own = Word::OF_TENANT.into_iter().chain(Word::COUNTS).chain(Word::SIZES);
            for word in own {
                self.seat_word(at, word).store(0, Relaxed);
            }
            let seat = of(at, generation);
            seat.say_who(me.start).then_some(seat)
        })
    }

    /// The seat that a process has taken, by what [`Seat::to_word`] said of it.
    #[must_use]
    pub fn seat_by(&self, word: u64, pid: u32) -> Option<Seat> {
        let (at, generation) = holder(word).filter(|(at, _)| *at < self.shape.seats)?;
        Some(Seat { ledger: *self, at, generation, pid })
    }

    /// Whether a process of this number has a seat, or had one and has ended.
    #[must_use]
    pub fn has_tenant(&self, pid: u32) -> bool {
        (0..self.shape.seats).any(|at| self.owner(at).pid == pid)
    }

    /// The seat that this process has. One that another process of its number has left, or not
    /// even taken to the end, becomes free: that one has ended.
    fn seat_of(&self, me: Identity) -> Option<(usize, u32)> {
        (0..self.shape.seats).find_map(|at| {
            let owner = self.owner(at);
            if (owner.pid, owner.namespace) != (me.pid, me.namespace) {
                return None;
            }
            let start = self.seat_word(at, Word::Start).load(Acquire);
            if start == started(owner.generation, me.start) {
                return Some((at, owner.generation));
            }
            self.vacate(at, owner.generation, owner.pid);
            None
        })
    }

    pub(super) fn owner(&self, at: usize) -> Owner {
        Owner::of(self.seat_word(at, Word::Owner).load(Acquire))
    }
}

impl Seat {
    /// Says last of all when its process began. False where the seat has been taken away from
    /// under it, by somebody who took it for dead: then nothing is written into another's.
    fn say_who(&self, start: u64) -> bool {
        let word = self.ledger.seat_word(self.at, Word::Start);
        let mine = started(self.generation, start);
        loop {
            let seen = word.load(Acquire);
            if !self.is_its() {
                return false;
            }
            if word.compare_exchange(seen, mine, AcqRel, Relaxed).is_ok() {
                return self.is_its();
            }
        }
    }

    /// Whether its process is the one that has the seat.
    fn is_its(&self) -> bool {
        let owner = self.ledger.owner(self.at);
        (owner.generation, owner.pid) == (self.generation, self.pid)
    }

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
        self.ledger.is_sound() && self.is_its()
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

    /// Says what the process is called, for reports: as the kernel has it, in 16 bytes.
    pub fn publish_name(&self, name: [u8; 16]) {
        let (words, _) = name.as_chunks::<8>();
        let places = [Word::Name, Word::NameRest];
        for (place, word) in places.into_iter().zip(words) {
            self.ledger.seat_word(self.at, place).store(u64::from_le_bytes(*word), Relaxed);
        }
    }

    /// What it is asked, if it is.
    #[must_use]
    pub fn asked(&self) -> Option<Question> {
        Question::of(self.word(Word::Asked), self.ledger.shape.steps)
    }

    /// That has been done, or cannot be. What has been asked meanwhile still is, also where it
    /// is the same.
    pub fn answered(&self, question: Question) {
        let asked = self.ledger.seat_word(self.at, Word::Asked);
        let _ = asked.compare_exchange(question.word, question.cleared(), AcqRel, Relaxed);
    }

    /// Wakes who sleeps in [`Seat::await_bell`]: this process's own thread.
    pub fn wake_own(&self) {
        self.ledger.ring_bell(self.at);
    }

    /// Has others asked for steps by whoever does so for all ([`Ledger::ring_for_others`]).
    pub fn want(&self, steps: usize) {
        self.ledger.seat_word(self.at, Word::Wanted).store(steps as u64, Relaxed);
    }

    /// The same, also beyond this seat's floor: it can neither do without them nor give way.
    pub fn want_urgently(&self, steps: usize) {
        self.ledger.seat_word(self.at, Word::Wanted).store(steps as u64 | URGENT, Relaxed);
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
    /// Asks a seat that holds `held` steps for up to `need` of them, beside those that others
    /// have asked it for, but for none below `floor`. How many it is asked for.
    pub(super) fn ask(&self, at: usize, held: usize, floor: usize, need: usize) -> usize {
        let asked = self.seat_word(at, Word::Asked);
        let mut count = 0;
        let _ = asked.fetch_update(AcqRel, Acquire, |word| {
            let left = self.left_by_questions(word, held);
            count = need.min(left.saturating_sub(floor));
            let number = (word >> 32).wrapping_add(1);
            let next = (number << 32) | ((left - count) as u64 + 1);
            (count > 0).then_some(next)
        });
        if count > 0 {
            self.ring_bell(at);
        }
        count
    }

    /// Steps that are left to who holds `held`, once it has done what it is asked.
    pub(super) fn left_by_questions(&self, word: u64, held: usize) -> usize {
        Question::of(word, self.shape.steps).map_or(held, |question| question.keep.min(held))
    }

    pub(super) fn ring_bell(&self, at: usize) {
        let bell = self.seat_word(at, Word::Bell);
        bell.fetch_add(1, AcqRel);
        super::wake(bell);
    }

    /// Frees what a seat's tenant holds, then the seat. How many steps that were.
    pub(super) fn vacate(&self, at: usize, generation: u32, pid: u32) -> usize {
        let mark = held_by(at, generation);
        let held = self.extent().iter().filter(|step| {
            step.load(Acquire) == mark && step.compare_exchange(mark, 0, AcqRel, Relaxed).is_ok()
        });
        let freed = held.count();
        // Last: from here on the seat is another's, whose steps bear another generation.
        let seat = self.seat_word(at, Word::Owner);
        let seen = seat.load(Acquire);
        let owner = Owner::of(seen);
        if (owner.generation, owner.pid) == (generation, pid) {
            let _ = seat.compare_exchange(seen, owner.gone().word(), AcqRel, Relaxed);
        }
        if freed > 0 {
            self.note_freed();
        }
        freed
    }
}
