//! Starts and stops an engine, its threads and its fault handling.

use crate::error::{Error, RAISE_BUDGET, Result};
use crate::fork::ForkLock;
use softswap_engine::api::engine::pinning::{Pinned, Then};
use softswap_engine::api::engine::{Engine, StartError};
use softswap_engine::api::open_areas::{OpenError, not_on_disk, open};
use softswap_engine::api::settings::{Config, Faults, MIN_MEMORY_BYTES};
use softswap_engine::base::access::Access;
use softswap_engine::base::stats::{Counter, STATS_WORDS, Stats};
use softswap_engine::core::errors::FaultError;
use softswap_engine::memory::context::PREFETCH_THREADS;
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{Reservations, reserve_u64};
use softswap_sys::own_threads::Thread;
use softswap_sys::raw::{self, now_ns};
use softswap_sys::signals::{self, Mask, never_blocked};
use softswap_sys::touches::{self, Hold, MAX_WINDOWS, Resolver, Served};
use softswap_sys::window::WindowError;
use softswap_sys::{guarded_calls, window};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Shared {
    engine: Engine,
    reservations: Arc<Reservations>,
    keep_running: AtomicBool,
}

struct Handle(Arc<Shared>);

impl Resolver for Handle {
    fn resolve(&self, address: usize, is_write: bool, open: Mask) -> bool {
        let access = if is_write { Access::Write } else { Access::Read };
        match self.0.engine.fault_until(address, access, open) {
            Ok(_) => true,
            // The thread handles its signal, then touches again.
            Err(error) if error.is_for_a_signal() => true,
            Err(error) => {
                if let Some(reason) = error.stop_reason() {
                    self.0.engine.stats().set(Counter::StopReason, reason as u64);
                }
                report(address, &error);
                false
            }
        }
    }

    fn hold(&self, address: usize, len: usize, open: Mask) -> Hold {
        signals::with_all_blocked(|| hold(&self.0.engine, address, len, open))
    }

    fn release(&self, address: usize, len: usize) {
        signals::with_all_blocked(|| release_pins(&self.0.engine, address, len));
    }
}

pub(crate) fn release_pins(engine: &Engine, address: usize, len: usize) {
    engine.unpin(address, len);
    engine.release(engine.pages_under(address, len));
}

fn report(address: usize, error: &FaultError) {
    let why = error.message(RAISE_BUDGET);
    raw::write_stderr_fmt(format_args!(
        "softswap: the page at {address:#x} of a region cannot be faulted in: {why}\n"
    ));
}

/// Longest wait of a call for other calls to release pages, in nanoseconds.
const MAX_WAIT_NS: u64 = 4_000_000_000;

/// Pins the start of a buffer, up to the limits of one call and of all calls.
fn hold(engine: &Engine, address: usize, len: usize, open: Mask) -> Hold {
    engine.stats().add(Counter::GuardedCalls, 1);
    let mut len = len.min(engine.call_limit_bytes());
    let last = now_ns() + MAX_WAIT_NS;
    while !engine.try_hold(engine.pages_under(address, len)) {
        if len > PAGE_SIZE {
            len /= 2;
        } else if signals::pending() & open != 0 {
            return Hold::Signal;
        } else if now_ns() > last {
            return Hold::Refused(libc::ENOMEM);
        } else {
            engine.wait_for_release();
        }
    }
    let pages = engine.pages_under(address, len);
    match engine.pin_until(address, len, open) {
        Ok(Pinned { bytes, then, .. }) => {
            engine.release(pages - engine.pages_under(address, bytes));
            if bytes == 0 && then == Then::Signal { Hold::Signal } else { Hold::Bytes(bytes) }
        }
        Err(error) => {
            engine.release(pages);
            report(address, &error);
            Hold::Refused(libc::EIO)
        }
    }
}

pub(crate) struct Running {
    shared: ManuallyDrop<Arc<Shared>>,
    served: ManuallyDrop<Served>,
    threads: ManuallyDrop<Vec<Thread>>,
    process: u32,
    pub(crate) pins: AtomicUsize,
}

fn convert_error(error: StartError, asked_bytes: u64) -> Error {
    let too_little = |reason| Error::TooLittleMemory { asked_bytes, reason };
    let reason = error.to_string();
    match error {
        StartError::Budget { .. } => {
            too_little(format!("give at least {}M", MIN_MEMORY_BYTES >> 20))
        }
        StartError::Needs { needed_mib, areas, .. } => too_little(format!(
            "with {areas} swap areas of this kind the engine alone needs {needed_mib} MiB; give \
             more memory, or fewer areas"
        )),
        StartError::Window(WindowError::Reserve { .. } | WindowError::Taken { .. }) => {
            Error::NoAddresses { reason }
        }
        StartError::Area(refused) => match refused.raw_os_error() {
            // The engine's message names a setting that pools lack.
            libc::ENOSPC => {
                let reserve_mib = Config::default().reserve_bytes >> 20;
                let reason = format!(
                    "a swap directory is full: the last {reserve_mib} MiB of its file system stay \
                     free as a reserve; free disk space there, or use another directory"
                );
                Error::Area { reason, errno: libc::ENOSPC }
            }
            errno => Error::Area { reason, errno },
        },
        StartError::Tables(error) => Error::Kernel(error),
        _ => Error::Unsupported { reason },
    }
}

fn convert_registration_error(error: io::Error) -> Error {
    if error.kind() != io::ErrorKind::QuotaExceeded {
        return error.into();
    }
    let reason = format!("a process has at most {MAX_WINDOWS} pools at a time; drop some");
    Error::NoAddresses { reason }
}

fn start(config: &Config) -> Result<Engine> {
    if let Some(error) = not_on_disk(&config.areas).next() {
        return Err(OpenError::from(error).into());
    }
    let stats = Stats::new(reserve_u64(STATS_WORDS)?);
    let areas = open(&config.areas, None, config.reserve_bytes, config.avoid_io_uring);
    let areas = areas.collect::<std::result::Result<Vec<_>, _>>()?;
    Engine::start(config, areas, stats).map_err(|error| convert_error(error, config.memory_bytes))
}

fn guard() -> Result<Range<usize>> {
    guarded_calls::guarded_range().map_err(|error| Error::Unsupported {
        reason: format!(
            "system calls cannot be guarded ({error}): the kernel, the container or another \
             library does not allow seccomp filters or SIGSYS, or this thread blocks that signal; \
             leave out `Builder::guard_calls`, and pin the buffers of system calls"
        ),
    })
}

impl Running {
    pub(crate) fn start(config: &Config, is_guarded: bool) -> Result<Running> {
        // Under `softswap run` another engine may swap this process's own heap.
        let config = &Config { faults: config.faults.settled(), ..config.clone() };
        if config.faults == Faults::Protection {
            signals::never_block_segv();
        }
        signals::keep_unblocked(never_blocked());
        // The lock also covers the temporary raise of the descriptor limit.
        let fork_lock = ForkLock::new()?;
        let reservations = Arc::new(Reservations::default());
        let started = || reservations.collect(|| start(config));
        let started = match is_guarded {
            true => guard().and_then(|area| window::within(&area, started)),
            false => window::among_many(started),
        };
        let engine = match started {
            Ok(engine) => engine,
            Err(error) => {
                release(reservations);
                return Err(error);
            }
        };
        let keep_running = AtomicBool::new(true);
        let shared = Arc::new(Shared { engine, reservations, keep_running });
        let (base, len) = shared.engine.window();
        let served = match touches::serve(base, len, Box::new(Handle(Arc::clone(&shared)))) {
            Ok(served) => served,
            Err(error) => {
                end(shared);
                return Err(convert_registration_error(error));
            }
        };
        let mut running = Running {
            shared: ManuallyDrop::new(shared),
            served: ManuallyDrop::new(served),
            threads: ManuallyDrop::default(),
            process: raw::current_process(),
            pins: AtomicUsize::new(0),
        };
        let started = running.start_threads();
        // Dropping `running` takes the lock again.
        drop(fork_lock);
        started.map(|()| running)
    }

    fn start_threads(&mut self) -> Result<()> {
        let work = |index: usize| {
            let shared = Arc::clone(&self.shared);
            let keep_running = move |shared: &Shared| shared.keep_running.load(Ordering::Relaxed);
            let name = if index == 0 { c"softswap" } else { c"softswap-ahead" };
            let body = move || {
                shared.reservations.collect(|| match index {
                    0 => shared.engine.run_reclaim(|| keep_running(&shared)),
                    _ => shared.engine.run_prefetch(index - 1, || keep_running(&shared)),
                });
            };
            Thread::begin(name, body)
        };
        signals::with_all_blocked(|| {
            for index in 0..=PREFETCH_THREADS {
                self.threads.push(work(index)?);
            }
            Ok(())
        })
    }

    pub(crate) fn with<R>(&self, body: impl FnOnce(&Engine) -> R) -> Result<R> {
        if !self.is_of_this_process() {
            return Err(Error::OtherProcess);
        }
        let body = || body(&self.shared.engine);
        Ok(self.shared.reservations.collect(|| signals::with_all_blocked(body)))
    }

    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == raw::current_process()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A forked child has neither the threads nor the memory, only a copy of this value.
        if !self.is_of_this_process() {
            return;
        }
        let _fork_lock = ForkLock::new();
        self.shared.keep_running.store(false, Ordering::Relaxed);
        self.shared.engine.wake_background();
        // SAFETY: `drop` runs once, and does not use these fields after it has taken them.
        let (threads, served, shared) = unsafe {
            (
                ManuallyDrop::take(&mut self.threads),
                ManuallyDrop::take(&mut self.served),
                ManuallyDrop::take(&mut self.shared),
            )
        };
        threads.into_iter().for_each(Thread::join);
        drop(served);
        end(shared);
    }
}

fn end(shared: Arc<Shared>) {
    if let Ok(Shared { engine, reservations, .. }) = Arc::try_unwrap(shared) {
        signals::with_all_blocked(|| drop(engine));
        release(reservations);
    }
}

fn release(reservations: Arc<Reservations>) {
    if let Some(reservations) = Arc::into_inner(reservations) {
        // SAFETY: only the engine, its threads and its fault handler used these reservations. They
        // have ended, because the last reference was unwrapped.
        unsafe { reservations.release() };
    }
}
