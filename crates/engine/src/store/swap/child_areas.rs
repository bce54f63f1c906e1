//! Swap areas that a forked child opens on demand: in the directories and on the servers of its
//! parent, and in the named areas that its tree shares. Areas of the parent alone are not
//! available.
//!
//! The child opens an area when it evicts a page, perhaps in a fault. So all allocations use the
//! engine's heap, and no lock is held that a fork waits for, except a context. The guard handles
//! these system calls like any others, so areas are never opened on a managed stack.

use super::areas::{Backing, Layout, SharedPages, SwapAreas};
use crate::base::stats::Stats;
use crate::codec::seal::Sealer;
use crate::store::io::poll::Polling;
use crate::store::io::poll::mode::Mode;
use crate::store::io::poll::pressure::Pressure;
use crate::store::io::{Device, FileDevice, MirrorDevice, RemoteDevice};
use crate::store::swap::Discard;
use crate::store::swap::raw::SharedDevice;
use softswap_sys::file::SwapFile;
use softswap_sys::open_mark;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) enum ChildArea {
    Growing(Growing),
    Shared { pages: SharedPages, poll: Mode },
}

pub(crate) struct Growing {
    pub(crate) medium: Medium,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) discard: Discard,
    pub(crate) poll: Mode,
}

pub(crate) enum Medium {
    /// With the descriptor of a request queue, a cluster stores a second copy.
    Directory(PathBuf, Option<i32>),
    /// The descriptor of the request queue to `softswap-remote`.
    Remote(i32),
}

pub(crate) struct ChildAreas {
    /// In order of preference.
    pub(crate) sources: Box<[ChildArea]>,
    pub(crate) reserve_bytes: u64,
    pub(crate) cpus: usize,
    pub(crate) pressure: Arc<Pressure>,
    pub(crate) overshoot_ns: u64,
    pub(crate) encrypt: bool,
    pub(crate) managed: Range<usize>,
    /// False if the program has a system-call filter, which would apply to opening an area.
    pub(crate) may_open: AtomicBool,
    pub(crate) state: Mutex<State>,
}

pub(crate) enum Opened {
    Yes,
    No,
    /// No area can be opened on this stack; the next fault can open one.
    NotHere,
}

#[derive(Default)]
pub(crate) struct State {
    next: usize,
    refusal: Option<String>,
}

impl ChildAreas {
    /// Resets the state in a forked child. Returns true if it may open areas.
    pub(crate) fn begin(&self, areas: &SwapAreas) -> bool {
        *self.lock() = State::default();
        self.may_open.load(Relaxed) && areas.have_space() && !self.sources.is_empty()
    }

    pub(crate) fn forbid(&self) {
        self.may_open.store(false, Relaxed);
    }

    pub(crate) fn refusal(&self) -> Option<String> {
        self.lock().refusal.clone()
    }

    /// Adds an area, unless another thread has added one: then there are more than `seen` areas.
    pub(crate) fn open(&self, areas: &SwapAreas, seen: usize, stats: Stats) -> Opened {
        let here = 0_u8;
        if self.managed.contains(&(&raw const here).addr()) {
            return Opened::NotHere;
        }
        let mut state = self.lock();
        if areas.count() > seen {
            return Opened::Yes;
        }
        while self.may_open.load(Relaxed)
            && areas.have_space()
            && let Some(source) = self.sources.get(state.next)
        {
            state.next += 1;
            match self.open_from(source, areas, stats) {
                Ok(()) => return Opened::Yes,
                Err(why) => state.refusal = Some(why),
            }
        }
        Opened::No
    }

    fn open_from(&self, source: &ChildArea, areas: &SwapAreas, stats: Stats) -> Result<(), String> {
        let (backing, poll) = match source {
            ChildArea::Growing(growing) => (self.growing(growing)?, growing.poll),
            ChildArea::Shared { pages, poll } => (shared(pages)?, *poll),
        };
        let sealer = match self.encrypt {
            true => Sealer::encrypting().map_err(|error| error.to_string())?,
            false => Sealer::checking(),
        };
        let pressure = Arc::clone(&self.pressure);
        let polling = Polling::new(poll, self.cpus, pressure, self.overshoot_ns, stats);
        areas.add(backing, self.cpus, polling, sealer).map_err(|error| error.to_string())
    }

    fn growing(&self, growing: &Growing) -> Result<Backing, String> {
        let backing = match &growing.medium {
            Medium::Directory(path, mirror) => {
                let file = SwapFile::open(path).map_err(|error| error.to_string())?;
                // No rings: they would need descriptors for each context.
                let device = MirrorDevice::over(FileDevice::new(file, true), *mirror);
                Backing::growing(device, growing.limit_bytes, self.reserve_bytes).even_if_full()
            }
            Medium::Remote(fd) => {
                let device = RemoteDevice::inherited(*fd).map_err(|error| error.to_string())?;
                let device = Box::new(device);
                Backing::growing(device, growing.limit_bytes, 0)
            }
        };
        Ok(Backing { discard: growing.discard, ..backing })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens an area in shared pages. If the file cannot be opened again, the child uses the parent's
/// file and mark; its clusters are then freed after both have exited.
fn shared(pages: &SharedPages) -> Result<Backing, String> {
    let inherited = || pages.file.clone().map(|file| (file, pages.mark));
    let lost = "the swap area cannot be opened";
    let (device, file, mark): (Box<dyn Device>, _, _) = match &pages.raw {
        None => {
            let opened = SwapFile::reopened(pages.inherited).ok().map(Arc::new).and_then(|file| {
                let mark = pages.table.mark(|mark| open_mark::put(&*file, mark).ok())?;
                Some((file, mark))
            });
            let (file, mark) = opened.or_else(inherited).ok_or(lost)?;
            (Box::new(FileDevice::new(Arc::clone(&file), true)), file, mark)
        }
        Some((file, verified)) => {
            let opened = SharedDevice::open(file, &pages.table).ok();
            let parents = || inherited().map(|(device, mark)| SharedDevice { device, mark });
            let opened = opened.or_else(parents).ok_or(lost)?;
            let map = (pages.pages.pages, *verified);
            (opened.guarded(file, map, pages.table, true), opened.device, opened.mark)
        }
    };
    let layout = Layout::Shared(SharedPages { mark, file: Some(file), ..pages.clone() });
    // A child has no background thread that discards.
    Ok(Backing { device, layout, priority: 0, discard: Discard::None, poll: None })
}
