//! Swap areas that a forked child opens when it needs them, in the directories where
//! its parent has some. What has a name is the parent's alone.
//!
//! That happens where the child makes room for a page, so perhaps in a fault: all that
//! is allocated is the engine's, and no lock is held that a fork waits for but a
//! context. The calls that it takes pass the guard as any others do, so it is not done on
//! a stack that is managed.

use super::areas::{Areas, Backing};
use crate::base::stats::Stats;
use crate::codec::seal::Sealer;
use crate::store::io::FileDevice;
use crate::store::io::poll::Polling;
use crate::store::io::poll::mode::Mode;
use crate::store::io::poll::pressure::Pressure;
use crate::store::swap::Discard;
use softswap_sys::file::SwapFile;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A directory for files of children.
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) discard: Discard,
    pub(crate) poll: Mode,
}

/// How areas are opened.
pub(crate) struct ChildAreas {
    /// The best one first.
    pub(crate) directories: Box<[Directory]>,
    pub(crate) reserve_bytes: u64,
    pub(crate) cpus: usize,
    pub(crate) pressure: Arc<Pressure>,
    pub(crate) overshoot_ns: u64,
    pub(crate) encrypt: bool,
    /// Addresses of managed memory.
    pub(crate) managed: Range<usize>,
    /// Not under a filter of the program's, which would judge that.
    pub(crate) may_open: AtomicBool,
    pub(crate) state: Mutex<State>,
}

/// What came of opening an area.
pub(crate) enum Opened {
    /// There is one more.
    Yes,
    /// None can be had.
    No,
    /// None can be had here; the next fault can.
    NotHere,
}

/// How far a process has come.
#[derive(Default)]
pub(crate) struct State {
    /// The directory to try next.
    next: usize,
    /// Why the last one was refused.
    refusal: Option<String>,
}

impl ChildAreas {
    /// In a forked child: whether it may open areas.
    pub(crate) fn begin(&self, areas: &Areas) -> bool {
        *self.lock() = State::default();
        self.may_open.load(Relaxed) && areas.have_room() && !self.directories.is_empty()
    }

    /// Nothing is opened from now on.
    pub(crate) fn forbid(&self) {
        self.may_open.store(false, Relaxed);
    }

    /// Why there is no area, or not one more.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.lock().refusal.clone()
    }

    /// Adds an area, unless there are more than `seen` by now.
    pub(crate) fn open(&self, areas: &Areas, seen: usize, stats: Stats) -> Opened {
        let here = 0_u8;
        if self.managed.contains(&(&raw const here).addr()) {
            return Opened::NotHere;
        }
        let mut state = self.lock();
        if areas.count() > seen {
            return Opened::Yes;
        }
        while self.may_open.load(Relaxed)
            && areas.have_room()
            && let Some(directory) = self.directories.get(state.next)
        {
            state.next += 1;
            match self.open_in(directory, areas, stats) {
                Ok(()) => return Opened::Yes,
                Err(why) => state.refusal = Some(why),
            }
        }
        Opened::No
    }

    fn open_in(&self, directory: &Directory, areas: &Areas, stats: Stats) -> Result<(), String> {
        let file = SwapFile::open(&directory.path).map_err(|error| error.to_string())?;
        // Rings would be wanted for each context.
        let device = Box::new(FileDevice::new(file, true));
        let backing = Backing::growing(device, directory.limit_bytes, self.reserve_bytes);
        let backing = Backing { discard: directory.discard, ..backing };
        let sealer = match self.encrypt {
            true => Sealer::encrypting().map_err(|error| error.to_string())?,
            false => Sealer::checking(),
        };
        let pressure = Arc::clone(&self.pressure);
        let polling = Polling::new(directory.poll, self.cpus, pressure, self.overshoot_ns, stats);
        areas.add(backing, self.cpus, polling, sealer).map_err(|error| error.to_string())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
