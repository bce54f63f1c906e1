//! Areas of the processes on the servers. Each process that writes pages has one, with a number
//! that is never reused, so that pages of two processes never mix.
//!
//! The number is a mark of an open file ([`softswap_sys::open_mark`]). The area is in use until the
//! process and the forked children that read from it have exited. Then `softswap-remote` removes
//! its pages.

use super::layout::{HEADER_WORDS, Header};
use super::{RequestQueue, SHAPE};
use crate::claims::Claims;
use softswap_sys::file::SwapFile;
use softswap_sys::{open_mark, own_descriptors, shared};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// Mark on the open file that all processes of the tree inherit. Areas start at 1.
const TREE_MARK: u64 = 0;

/// Largest number of an area; a word has space for it and [`MAX_AREA_PAGES`].
pub const MAX_NUMBER: u64 = 1 << 27;
/// Maximum number of pages of an area.
pub const MAX_AREA_PAGES: u64 = 1 << 36;

/// Reasons why a process gets no area.
#[derive(Debug, thiserror::Error)]
pub enum NoArea {
    /// Every entry is taken.
    #[error(
        "all {areas} areas of this run on the cluster are in use; run fewer processes at a time"
    )]
    Every {
        /// Number of entries.
        areas: usize,
    },
    /// The shared memory cannot be opened or locked.
    #[error("the request queue to softswap-remote cannot be used: {0}")]
    Page(#[from] io::Error),
    /// The shared memory has been overwritten.
    #[error("the request queue to softswap-remote was overwritten")]
    Unsound,
}

/// The area of this process.
///
/// ```
/// use softswap_shared::request_queue::{RemoteArea, RequestQueue, SHAPE};
/// use std::os::fd::AsRawFd;
/// let (fd, words) = softswap_sys::shared::create(SHAPE.words()).unwrap();
/// let queue = RequestQueue::create(words, SHAPE, 100, 5_000_000_000);
/// let [one, other] = [(); 2].map(|()| RemoteArea::take(queue, fd.as_raw_fd()).unwrap());
/// assert!(one.claim(60) && !other.claim(60) && other.claim(40));
/// assert_ne!(one.number(), other.number());
/// ```
#[derive(Debug)]
pub struct RemoteArea {
    queue: RequestQueue,
    at: usize,
    number: u64,
    /// The open file with the mark.
    _file: SwapFile,
}

impl RemoteArea {
    /// Takes an area. `fd` is the descriptor of the queue's words.
    ///
    /// # Errors
    /// If all are taken, or the shared memory cannot be used.
    pub fn take(queue: RequestQueue, fd: i32) -> Result<RemoteArea, NoArea> {
        let file = SwapFile::reopened(fd)?;
        let number = queue.header(Header::LastArea).fetch_add(1, AcqRel) + 1;
        if number > MAX_NUMBER || !queue.segment.is_sound() || !open_mark::put(&file, number)? {
            return Err(NoArea::Unsound);
        }
        let at = queue.numbers().take(number, 0).next();
        let at = at.ok_or(NoArea::Every { areas: queue.shape.areas })?;
        Ok(RemoteArea { queue, at, number, _file: file })
    }

    /// Returns the queue.
    #[must_use]
    pub fn queue(&self) -> &RequestQueue {
        &self.queue
    }

    /// Returns the number, which no other area of the queue ever has.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Claims pages. Returns false if the limit does not allow them.
    #[must_use]
    pub fn claim(&self, pages: u64) -> bool {
        let own = self.queue.pages(self.at);
        // Add before the check: of two concurrent claims of the last pages, at most one succeeds.
        own.fetch_add(pages, AcqRel);
        let has_space = self.queue.claimed_pages() <= self.queue.limit_pages();
        if !has_space {
            own.fetch_sub(pages, AcqRel);
        }
        has_space
    }

    /// Releases claimed pages.
    pub fn release(&self, pages: u64) {
        let own = self.queue.pages(self.at);
        let _ = own.fetch_update(AcqRel, Acquire, |had| Some(had.saturating_sub(pages)));
    }
}

impl RequestQueue {
    /// Returns the number of pages that all areas have claimed.
    #[must_use]
    pub fn claimed_pages(&self) -> u64 {
        let claimed = (0..self.shape.areas).map(|at| self.pages(at).load(Acquire));
        claimed.fold(0, u64::saturating_add)
    }

    /// Returns the number of pages that can still be claimed.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.limit_pages().saturating_sub(self.claimed_pages())
    }

    fn numbers(&self) -> Claims {
        Claims(&self.segment.words()[HEADER_WORDS..][..self.shape.areas])
    }

    fn pages(&self, at: usize) -> &'static AtomicU64 {
        &self.segment.words()[HEADER_WORDS + self.shape.areas + at]
    }
}

/// Opens the queue behind an inherited descriptor, and keeps that for child programs.
///
/// # Errors
/// If there is no queue.
pub fn open_inherited(fd: i32) -> Result<RequestQueue, NoArea> {
    let words = shared::open_inherited(fd, SHAPE.words())?;
    own_descriptors::keep(fd);
    RequestQueue::open(words, SHAPE).ok_or(NoArea::Unsound)
}

/// Marks the tree's open file, for [`RemoteAreas::has_tree`]. Returns false if another one has the
/// mark.
///
/// # Errors
/// If the kernel refuses the mark.
pub fn hold_tree(fd: BorrowedFd<'_>) -> io::Result<bool> {
    open_mark::put(fd, TREE_MARK)
}

/// An area and its entry in the queue, while its processes run and until its pages are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AreaEntry {
    /// Index of its entry.
    pub at: usize,
    /// Number of the area.
    pub number: u64,
    /// Pages with numbers below this may have been written.
    pub pages: u64,
}

/// The server's view of the areas.
///
/// ```
/// use softswap_shared::request_queue::{RemoteArea, RemoteAreas, RequestQueue, SHAPE};
/// use std::os::fd::AsRawFd;
/// let (fd, words) = softswap_sys::shared::create(SHAPE.words()).unwrap();
/// let queue = RequestQueue::create(words, SHAPE, 100, 5_000_000_000);
/// let areas = RemoteAreas::open(queue, fd.as_raw_fd()).unwrap();
/// let area = RemoteArea::take(queue, fd.as_raw_fd()).unwrap();
/// assert!(area.claim(60) && areas.dead().is_empty());
/// drop(area);
/// let dead = areas.dead();
/// assert_eq!((dead.len(), dead[0].pages), (1, 60));
/// areas.forget(&dead[0]);
/// assert!(areas.dead().is_empty() && !areas.has_any());
/// ```
#[derive(Debug)]
pub struct RemoteAreas {
    queue: RequestQueue,
    file: SwapFile,
}

impl RemoteAreas {
    /// Opens the areas. `fd` is the descriptor of the queue's words.
    ///
    /// # Errors
    /// If `fd` cannot be opened again.
    pub fn open(queue: RequestQueue, fd: i32) -> io::Result<RemoteAreas> {
        Ok(RemoteAreas { queue, file: SwapFile::reopened(fd)? })
    }

    /// Returns true if the tree has a living process, or if that is unknown.
    #[must_use]
    pub fn has_tree(&self) -> bool {
        !self.is_released(TREE_MARK)
    }

    /// Returns true if an area is in use, or has not been removed yet.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.all().next().is_some()
    }

    /// Returns true if an area is in use.
    #[must_use]
    pub fn has_living(&self) -> bool {
        self.all().any(|area| !self.is_released(area.number))
    }

    /// Returns true if the area with this number is in use.
    #[must_use]
    pub fn have(&self, number: u64) -> bool {
        self.all().any(|area| area.number == number && !self.is_released(number))
    }

    /// Returns the areas that are not in use any more.
    #[must_use]
    pub fn dead(&self) -> Vec<AreaEntry> {
        self.all().filter(|area| self.is_released(area.number)).collect()
    }

    /// Frees the entry of an area whose pages have been removed.
    pub fn forget(&self, area: &AreaEntry) {
        // Reset the pages first: the next area of this entry must start without claimed pages.
        self.queue.pages(area.at).store(0, Release);
        self.queue.numbers().free(area.number, area.at);
    }

    fn all(&self) -> impl Iterator<Item = AreaEntry> {
        (0..self.queue.shape.areas).filter_map(|at| {
            let number = self.queue.numbers().0[at].load(Acquire);
            let pages = self.queue.pages(at).load(Acquire).min(MAX_AREA_PAGES);
            (number != 0).then_some(AreaEntry { at, number, pages })
        })
    }

    fn is_released(&self, number: u64) -> bool {
        open_mark::is_released(&self.file, number)
    }
}
