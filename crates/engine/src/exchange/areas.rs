//! Areas of an exchange: each process that writes has one of its own, under a number that no
//! other ever has, so that pages of two never meet.
//!
//! An area is in use as long as its lock is taken: by the process that has opened it, and by
//! forked children, who read what their parent has left there. What an area has that nobody has
//! any more, the server removes.

use super::layout::{AreaWord, Header};
use super::{Exchange, SHAPE};
use softswap_sys::shared_locks::{self, Locks};
use softswap_sys::{own_descriptors, shared};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Taken as long as there is a process of the tree; behind it those of the areas.
const TREE_LOCK: u64 = 0;

/// The largest number of an area, and the most pages of one: a word has room for both.
pub const MOST_NUMBER: u64 = 1 << 27;
/// See [`MOST_NUMBER`].
pub const MOST_AREA_PAGES: u64 = 1 << 36;

fn lock_of(at: usize) -> u64 {
    TREE_LOCK + 1 + at as u64
}

/// Why there is no area for a process.
///
/// ```
/// use softswap_engine::exchange::NoArea;
/// assert!(NoArea::Every { areas: 1024 }.to_string().contains("1024"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum NoArea {
    /// Every entry is taken.
    #[error("all {areas} areas of the cluster are in use by other processes of this run")]
    Every {
        /// How many there are.
        areas: usize,
    },
    /// The shared memory cannot be opened or locked.
    #[error("the page by which processes speak to the cluster's helper cannot be used: {0}")]
    Page(#[from] io::Error),
    /// It is none.
    #[error("the page by which processes speak to the cluster's helper has been overwritten")]
    Unsound,
}

/// An area of this process's own.
///
/// ```
/// use softswap_engine::exchange::{AreaSeat, Exchange, SHAPE};
/// let (fd, words) = softswap_sys::shared::create(SHAPE.words()).unwrap();
/// let exchange = Exchange::create(words, SHAPE, 100, 5_000_000_000);
/// use std::os::fd::AsRawFd;
/// let [one, other] = [(); 2].map(|()| AreaSeat::take(exchange, fd.as_raw_fd()).unwrap());
/// assert!(one.claim(60) && !other.claim(60) && other.claim(40));
/// assert_ne!(one.number(), other.number());
/// ```
#[derive(Debug)]
pub struct AreaSeat {
    exchange: Exchange,
    at: usize,
    number: u64,
    /// Held: others see by it that the area is in use.
    _locks: Locks,
}

impl AreaSeat {
    /// Takes a free area. `fd`: the number of a descriptor of the exchange's words.
    ///
    /// # Errors
    /// When there is none.
    pub fn take(exchange: Exchange, fd: i32) -> Result<AreaSeat, NoArea> {
        let locks = Locks::open(fd)?;
        for at in 0..exchange.shape.areas {
            let word = exchange.area_word(at, AreaWord::Number);
            if word.load(Relaxed) != 0 || !locks.try_take(lock_of(at))? {
                continue;
            }
            if word.load(Acquire) != 0 {
                // Another had it meanwhile, and what it has left is not removed yet.
                locks.give_back(lock_of(at))?;
                continue;
            }
            let number = exchange.header(Header::LastArea).fetch_add(1, AcqRel) + 1;
            if number > MOST_NUMBER || !exchange.is_sound() {
                return Err(NoArea::Unsound);
            }
            exchange.area_word(at, AreaWord::Pages).store(0, Relaxed);
            word.store(number, Release);
            return Ok(AreaSeat { exchange, at, number, _locks: locks });
        }
        Err(NoArea::Every { areas: exchange.shape.areas })
    }

    /// The exchange that it is of.
    #[must_use]
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Its number: no other area of the exchange has had it, or will.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Claims so many pages more; false where there is no room for them.
    #[must_use]
    pub fn claim(&self, pages: u64) -> bool {
        let own = self.exchange.area_word(self.at, AreaWord::Pages);
        // First: of two that claim the last pages one at most gets them.
        own.fetch_add(pages, AcqRel);
        let is_room = self.exchange.claimed_pages() <= self.exchange.limit_pages();
        if !is_room {
            own.fetch_sub(pages, AcqRel);
        }
        is_room
    }

    /// Gives so many pages back.
    pub fn give_back(&self, pages: u64) {
        let own = self.exchange.area_word(self.at, AreaWord::Pages);
        let _ = own.fetch_update(AcqRel, Acquire, |had| Some(had.saturating_sub(pages)));
    }
}

impl Exchange {
    /// Pages that all areas have claimed.
    #[must_use]
    pub fn claimed_pages(&self) -> u64 {
        let claimed = (0..self.shape.areas).map(|at| self.pages_of(at));
        claimed.fold(0, u64::saturating_add)
    }

    /// Pages that may still be claimed.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.limit_pages().saturating_sub(self.claimed_pages())
    }

    fn pages_of(&self, at: usize) -> u64 {
        match self.area_word(at, AreaWord::Number).load(Acquire) {
            0 => 0,
            _ => self.area_word(at, AreaWord::Pages).load(Acquire),
        }
    }
}

/// The exchange behind a descriptor that this process was started with, and that what it starts
/// is to have, too.
///
/// # Errors
/// When there is none.
pub fn open_inherited(fd: i32) -> Result<Exchange, NoArea> {
    let words = shared::open_inherited(fd, SHAPE.words())?;
    own_descriptors::keep(fd);
    Exchange::open(words, SHAPE).ok_or(NoArea::Unsound)
}

/// Says that the tree has ended once no process has the descriptor any more: for who makes the
/// exchange. The descriptor goes on to all that is started.
///
/// # Errors
/// When the kernel refuses.
pub fn hold_tree(fd: BorrowedFd<'_>) -> io::Result<bool> {
    shared_locks::try_take(fd, TREE_LOCK)
}

/// An area that no process has any more.
///
/// ```
/// use softswap_engine::exchange::DeadArea;
/// let area = DeadArea { at: 3, number: 7, pages: 512 };
/// assert!(area.pages > 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadArea {
    /// Its entry.
    pub at: usize,
    /// Its number.
    pub number: u64,
    /// Pages that it may have written, from 0 on.
    pub pages: u64,
}

/// What the server knows of areas.
///
/// ```
/// use softswap_engine::exchange::{AreaSeat, Areas, Exchange, SHAPE};
/// use std::os::fd::AsRawFd;
/// let (fd, words) = softswap_sys::shared::create(SHAPE.words()).unwrap();
/// let exchange = Exchange::create(words, SHAPE, 100, 5_000_000_000);
/// let areas = Areas::open(exchange, fd.as_raw_fd()).unwrap();
/// let seat = AreaSeat::take(exchange, fd.as_raw_fd()).unwrap();
/// assert!(seat.claim(60) && areas.dead().is_empty());
/// drop(seat);
/// let dead = areas.dead();
/// assert_eq!((dead.len(), dead[0].pages), (1, 60));
/// areas.forget(&dead[0]);
/// assert!(areas.dead().is_empty() && !areas.has_any());
/// ```
#[derive(Debug)]
pub struct Areas {
    exchange: Exchange,
    locks: Locks,
}

impl Areas {
    /// `fd`: the number of a descriptor of the exchange's words.
    ///
    /// # Errors
    /// When it cannot be opened once more.
    pub fn open(exchange: Exchange, fd: i32) -> io::Result<Areas> {
        Ok(Areas { exchange, locks: Locks::open(fd)? })
    }

    /// Whether the tree lives. Where that cannot be told it does.
    #[must_use]
    pub fn has_tree(&self) -> bool {
        self.is_taken(TREE_LOCK)
    }

    /// Whether there is any area, in use or not removed yet.
    #[must_use]
    pub fn has_any(&self) -> bool {
        (0..self.exchange.shape.areas).any(|at| self.number_of(at) != 0)
    }

    /// Whether a process has one.
    #[must_use]
    pub fn has_living(&self) -> bool {
        (0..self.exchange.shape.areas)
            .any(|at| self.number_of(at) != 0 && self.is_taken(lock_of(at)))
    }

    /// Whether a process has the area of that number.
    #[must_use]
    pub fn have(&self, number: u64) -> bool {
        (0..self.exchange.shape.areas)
            .any(|at| self.number_of(at) == number && self.is_taken(lock_of(at)))
    }

    /// Those that no process has any more.
    #[must_use]
    pub fn dead(&self) -> Vec<DeadArea> {
        let dead = (0..self.exchange.shape.areas).filter_map(|at| {
            let number = self.number_of(at);
            let pages = self.exchange.pages_of(at).min(MOST_AREA_PAGES);
            let is_dead = number != 0 && !self.is_taken(lock_of(at));
            is_dead.then_some(DeadArea { at, number, pages })
        });
        dead.collect()
    }

    /// What it had is removed: its entry is another's from now on.
    pub fn forget(&self, area: &DeadArea) {
        let word = self.exchange.area_word(area.at, AreaWord::Number);
        let _ = word.compare_exchange(area.number, 0, AcqRel, Relaxed);
    }

    fn number_of(&self, at: usize) -> u64 {
        self.exchange.area_word(at, AreaWord::Number).load(Acquire)
    }

    fn is_taken(&self, lock: u64) -> bool {
        self.locks.is_taken(lock).unwrap_or(true)
    }
}
