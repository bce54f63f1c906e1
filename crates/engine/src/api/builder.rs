//! Builds an engine: sizes its parts for the budget, and checks the configuration.

use crate::api::settings::{Config, Inherited, MIN_MEMORY_BYTES, PoolLimit};
use crate::base::stats::{Counter, STATS_VERSION, Stats};
use crate::codec::seal::{NoKey, Sealer};
use crate::core::recorder::Recorder;
use crate::core::resize::{extra_buffers_bytes, pool_bounds};
use crate::core::{Background, Core, Memory, Policies, Stores};
use crate::memory::budget::Budget;
use crate::memory::context::{BATCH_PAGES, CONTEXT_BYTES, Contexts, OWN_CONTEXTS};
use crate::policy::mechanism::Mechanism;
use crate::policy::partition::Partition;
use crate::store::bounce::{self, BouncePools, Shape};
use crate::store::io::poll::Polling;
use crate::store::io::poll::mode::Mode;
use crate::store::io::poll::pressure::Pressure;
use crate::store::pool::CompressedPool;
use crate::store::read_ahead_pages::ReadAheadPages;
use crate::store::standby::Standby;
use crate::store::swap::areas::{MAX_AREAS, MAX_RINGS};
use crate::store::swap::child_areas::{Growing, Medium};
use crate::store::swap::{AreaError, Backing, ChildArea, ChildAreas, Layout, SwapArea, SwapAreas};
use softswap_sys::load::Load;
use softswap_sys::ring::timer_overshoot_ns;
use softswap_sys::window::{Occupied, Window, WindowError};
use softswap_sys::{PAGE_SIZE, descriptor, faults, own_descriptors};
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// Maximum number of contexts shared by faults.
const MAX_SHARED_CONTEXTS: usize = 64;
/// Maximum number of descriptors of rings.
const RING_DESCRIPTORS: usize = (MAX_SHARED_CONTEXTS + OWN_CONTEXTS) * MAX_RINGS * MAX_AREAS;
// The other eighth of the table is for files, userfaultfd and descriptors of the tree.
const _: () = assert!(RING_DESCRIPTORS <= own_descriptors::MAX / 8 * 7);
/// Overshoot of timed sleeps in ns that is assumed if it is not measured.
const ASSUMED_OVERSHOOT_NS: u64 = 50_000;
/// Approximate kernel memory of a small ring.
const RING_BYTES: usize = 16 << 10;
/// Approximate size of the engine's stacks, threads and small tables.
const OTHER_FIXED_BYTES: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Window(#[from] WindowError),
    #[error(transparent)]
    Area(#[from] AreaError),
    #[error(
        "a budget of {memory_mib} MiB is below the minimum of {} MiB; raise --memory",
        MIN_MEMORY_BYTES >> 20
    )]
    Budget { memory_mib: u64 },
    #[error(
        "the engine needs {needed_mib} MiB for these {areas} swap areas, and the budget is \
         {memory_mib} MiB; raise --memory, or give fewer areas"
    )]
    Needs { memory_mib: usize, needed_mib: usize, areas: usize },
    #[error(transparent)]
    Key(#[from] NoKey),
    #[error(
        "SOFTSWAP_RECORD: cannot create the recording ({0}); name a new file, or an earlier \
         recording, in a writable directory"
    )]
    Recording(#[source] io::Error),
    #[error("cannot reserve address space for the engine's tables ({0}); raise `ulimit -v`")]
    Tables(#[from] io::Error),
}

/// Builds an engine's state. `occupied`: the mappings of a process that has run without an engine.
/// Fails if the budget or a limit is too small, or an area is not usable.
pub(crate) fn build(
    config: &Config,
    storage: Vec<Backing>,
    stats: Stats,
    occupied: Option<&Occupied>,
) -> Result<(Core, Contexts), StartError> {
    if config.memory_bytes < MIN_MEMORY_BYTES {
        return Err(StartError::Budget { memory_mib: config.memory_bytes >> 20 });
    }
    let cpus = usable_processors();
    // Several per CPU: a thread holds its context while it waits for the disk.
    let contexts = (4 * cpus).clamp(8, MAX_SHARED_CONTEXTS) + OWN_CONTEXTS;
    let pressure = Pressure::new(cpus, Load::open()).into();
    let shared: Vec<_> =
        storage.iter().filter_map(|backing| shared_area(config, backing)).collect();
    let areas = open_areas(config, storage, cpus, &pressure, stats)?;
    let mut areas = areas.within_descriptors(contexts, descriptor::free_numbers());
    let memory = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
    let bounce = BouncePools::new(shape_of_buffers(memory, cpus, contexts))?;
    areas.expect_buffers(bounce.fixed_range());
    let frames = contexts * BATCH_PAGES;
    let window = faults::taken(config.faults, || match occupied {
        None => Window::reserve(frames, config.avoid_move),
        Some(occupied) => Window::adopt(frames, config.avoid_move, occupied),
    })?;
    let contexts = Contexts::new(contexts, || areas.open_lanes())?;
    let child_areas = child_areas(config, shared, cpus, pressure, &window);
    let core = assemble(config, stats, window, areas, bounce, child_areas, &contexts)?;
    let needed = core.min_bytes();
    if needed > memory {
        let needed_mib = needed.div_ceil(1 << 20);
        let areas = core.stores.areas.iter().count();
        return Err(StartError::Needs { memory_mib: memory >> 20, needed_mib, areas });
    }
    publish_properties(&core);
    Ok((core, contexts))
}

fn usable_processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// CPUs share areas if separate ones would use too much of the budget.
fn shape_of_buffers(memory_bytes: usize, cpus: usize, contexts: usize) -> Shape {
    // All areas together use at most a 16th of the budget, unless there is only one.
    let max_slots = memory_bytes / 16 / PAGE_SIZE;
    // A multiple of the longest readahead request if the budget allows it.
    let slots_per_area = match max_slots / bounce::MAX_PAGES {
        16.. => 2 * bounce::MAX_PAGES,
        1.. => bounce::MAX_PAGES,
        0 => BATCH_PAGES + BATCH_PAGES / 2,
    };
    let most = (max_slots / slots_per_area).max(1);
    Shape {
        areas: cpus.next_power_of_two().min(1 << most.ilog2()),
        slots_per_area,
        reserve_slots: contexts,
        extra_bytes: extra_buffers_bytes(memory_bytes),
    }
}

fn open_areas(
    config: &Config,
    storage: Vec<Backing>,
    cpus: usize,
    pressure: &Arc<Pressure>,
    stats: Stats,
) -> Result<SwapAreas, StartError> {
    let measured = OnceCell::new();
    let polling = |mode: Option<Mode>| {
        let mode = mode.unwrap_or(config.poll);
        // Measured only if hybrid polling is configured at start. If it is chosen later, its reads
        // correct the assumed value, which is too large.
        let overshoot_ns = match mode {
            Mode::Hybrid => *measured.get_or_init(timer_overshoot_ns),
            _ => ASSUMED_OVERSHOOT_NS,
        };
        let pressure = Arc::clone(pressure);
        Polling::new(mode, cpus, pressure, overshoot_ns, stats)
    };
    let sealer = if config.encrypt { Sealer::encrypting()? } else { Sealer::checking() };
    Ok(SwapAreas::new(storage, cpus, polling, sealer)?)
}

/// Returns the priority of an area that the tree shares, and its source for forked children.
fn shared_area(config: &Config, backing: &Backing) -> Option<(i32, ChildArea)> {
    let Layout::Shared(pages) = &backing.layout else { return None };
    let poll = backing.poll.unwrap_or(config.poll);
    Some((backing.priority, ChildArea::Shared { pages: pages.clone(), poll }))
}

/// Makes a path absolute, because the program may change its working directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Returns the sources of areas for forked children, in order of priority.
fn child_areas(
    config: &Config,
    shared: Vec<(i32, ChildArea)>,
    cpus: usize,
    pressure: Arc<Pressure>,
    window: &Window,
) -> ChildAreas {
    let growing = config.areas.iter().enumerate().filter_map(|(order, spec)| {
        let medium = match spec.inherited {
            Some(Inherited::RequestQueue(fd)) => Medium::Remote(fd),
            Some(Inherited::Mirror(fd)) => Medium::Directory(absolute(&spec.path), Some(fd)),
            None if spec.path.is_dir() => Medium::Directory(absolute(&spec.path), None),
            Some(Inherited::File(_) | Inherited::Raw(..)) | None => return None,
        };
        let (limit_bytes, discard) = (spec.limit_bytes, spec.discard);
        let poll = spec.poll.unwrap_or(config.poll);
        let growing = Growing { medium, limit_bytes, discard, poll };
        Some((spec.priority_among(order), ChildArea::Growing(growing)))
    });
    let mut sources: Vec<_> = shared.into_iter().chain(growing).collect();
    sources.sort_by_key(|(priority, _)| Reverse(*priority));
    ChildAreas {
        sources: sources.into_iter().map(|(_, source)| source).collect(),
        reserve_bytes: config.reserve_bytes,
        cpus,
        pressure,
        overshoot_ns: ASSUMED_OVERSHOOT_NS,
        encrypt: config.encrypt,
        managed: window.base()..window.base() + window.pages() * PAGE_SIZE,
        may_open: AtomicBool::new(true),
        state: Mutex::default(),
    }
}

fn assemble(
    config: &Config,
    stats: Stats,
    window: Window,
    areas: SwapAreas,
    bounce: BouncePools,
    child_areas: ChildAreas,
    contexts: &Contexts,
) -> Result<Core, StartError> {
    let memory = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
    let pool = CompressedPool::new(PoolLimit::LARGEST.bytes_of(memory))?;
    let read_ahead_pages = ReadAheadPages::new(memory / PAGE_SIZE)?;
    let fixed = contexts.count() * (CONTEXT_BYTES + areas.rings() * RING_BYTES)
        + bounce.fixed_bytes()
        + pool.metadata_bytes()
        + read_ahead_pages.bytes()
        + OTHER_FIXED_BYTES;
    let is_auto = config.pool == PoolLimit::Auto && !config.without.has(Mechanism::Partition);
    let (least, most) = pool_bounds(memory, fixed);
    let partition = Partition::new(is_auto, least, most, memory, usable_processors());
    partition.set(config.pool, is_auto, |limit_bytes| pool.set_limit_bytes(limit_bytes));
    let policies = Policies::new(
        window.pages(),
        memory,
        contexts.count(),
        partition,
        config.codec,
        config.without,
    )?;
    let stores = Stores {
        pool,
        areas,
        standby: Standby::new(memory / PAGE_SIZE),
        read_ahead_pages,
        bounce,
        child_areas,
        workspaces: contexts.workspaces(),
        may_write: AtomicBool::new(true),
        stats,
    };
    let memory = Memory::new(window, Budget::new(memory, fixed))?;
    let recorder = match config.record.as_str() {
        "" => None,
        path => Some(Recorder::create(Path::new(path)).map_err(StartError::Recording)?),
    };
    let (background, is_quiet) = (Background::default(), config.quiet);
    Ok(Core { memory, stores, policies, background, recorder, stats, is_quiet })
}

fn publish_properties(core: &Core) {
    let properties = core.stores.areas.properties();
    let stats = &core.stats;
    stats.set(Counter::BudgetBytes, core.memory.budget.limit_bytes() as u64);
    stats.set(Counter::FixedBytes, core.memory.budget.fixed_bytes() as u64);
    let at_start = core.stores.areas.iter().map(SwapArea::discarded_at_start);
    at_start.for_each(|discarded| core.stores.count_discarded(discarded));
    stats.set(Counter::Areas, core.stores.areas.iter().count() as u64);
    stats.set(Counter::IsRemote, u64::from(properties.remote));
    stats.set(Counter::UsesIoUring, u64::from(properties.io_uring));
    stats.set(Counter::UsesFixedBuffers, u64::from(properties.fixed_buffers));
    stats.set(Counter::UsesDirectIo, u64::from(properties.direct));
    stats.set(Counter::UsesDevicePolling, u64::from(properties.device_polling));
    stats.set(Counter::UsesMove, u64::from(core.memory.window.uses_move()));
    stats.set(Counter::FaultMechanism, core.memory.window.faults() as u64);
    stats.set(Counter::Encrypts, u64::from(core.stores.areas.sealers().any(Sealer::encrypts)));
    stats.set(
        Counter::KeyUnlocked,
        u64::from(core.stores.areas.sealers().any(Sealer::is_key_unlocked)),
    );
    stats.set(Counter::Version, STATS_VERSION);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_small_for_any_budget_and_cpu_count() {
        for memory_mib in [8, 16, 32, 64, 100, 128, 1000, 1 << 20] {
            for cpus in [1, 2, 3, 4, 16, 64, 100, 512] {
                let shape = shape_of_buffers(memory_mib << 20, cpus, 66);
                let bytes = shape.areas * shape.slots_per_area * PAGE_SIZE;
                assert!(bytes <= (memory_mib << 20) / 16, "{memory_mib} MiB, {cpus}: {shape:?}");
                assert!(shape.areas.is_power_of_two() && shape.areas < 2 * cpus, "{shape:?}");
            }
        }
        assert_eq!(shape_of_buffers(8 << 20, 2, 10).areas, 2);
        assert_eq!(shape_of_buffers(1 << 30, 64, 66).areas, 64);
    }
}
