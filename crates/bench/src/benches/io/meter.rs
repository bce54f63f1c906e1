//! softswap's own reads and writes, for a while at a time.
//!
//! A single page is read by exactly what a swap-in does around it
//! (`Area::read_page`): the waiting is announced, sometimes its CPU time is
//! taken, and its duration is recorded. All of that is in the latency.

use super::target::Target;
use crate::measure::noise::{below, fill_with_noise, noise};
use crate::measure::sample::Round;
use rustix::time::{ClockId, clock_gettime};
use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::base::stats::{STATS_WORDS, Stats};
use softswap_engine::store::io::poll::Polling;
use softswap_engine::store::io::poll::mode::Mode;
use softswap_engine::store::io::poll::pressure::Pressure;
use softswap_engine::store::io::{Device, IoError, Lane, MAX_PIECES, Piece};
use softswap_sys::PAGE_SIZE;
use softswap_sys::load::Load;
use softswap_sys::memory::{Page, reserve_pages, reserve_u64};
use softswap_sys::raw::now_ns;
use softswap_sys::ring::timer_overshoot_ns;
use std::time::Duration;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// What a variant did in one round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    pub(super) round: Round,
    pub(super) mb_per_s: f64,
    /// User and system time for each I/O.
    pub(super) cpu_us: f64,
}

/// One way to wait, with statistics of its own, as if no other had been tried.
pub(super) struct Way {
    pub(super) mode: Mode,
    pub(super) polling: Polling,
    pub(super) stats: Stats,
}

pub(super) struct Meter<'t> {
    target: &'t Target,
    lane: Lane,
    pub(super) ways: Vec<Way>,
    pages: &'static mut [Page],
}

impl<'t> Meter<'t> {
    pub(super) fn new(target: &'t Target) -> Result<Meter<'t>, Refusal> {
        let no_memory =
            |error: std::io::Error| Refusal::own(format!("no memory: {}", plain(&error)));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let overshoot_ns = timer_overshoot_ns();
        let way = |mode| -> Result<Way, Refusal> {
            let stats = Stats::new(reserve_u64(STATS_WORDS).map_err(no_memory)?);
            let pressure = Pressure::shared(cpus, Load::open());
            Ok(Way {
                mode,
                polling: Polling::new(mode, cpus, pressure, overshoot_ns, stats),
                stats,
            })
        };
        Ok(Meter {
            target,
            lane: target.device.open_lane(),
            ways: Mode::ALL.into_iter().map(way).collect::<Result<_, _>>()?,
            pages: reserve_pages(MAX_PIECES).map_err(no_memory)?,
        })
    }

    /// Reads single pages, waiting in this way.
    pub(super) fn read(&mut self, mode: Mode, time: Duration, seed: u64) -> Result<Slice, Refusal> {
        let Meter { target, lane, ways, pages } = self;
        let polling = &ways[mode as usize].polling;
        let mut offsets = offsets(target.bytes, seed);
        let page = &mut pages[0].0;
        timed(time, 1, || {
            let offset = offsets();
            let start = now_ns();
            polling.waited(PAGE_SIZE, || target.device.read_page(lane, offset, page, polling))?;
            Ok(now_ns() - start)
        })
    }

    /// Reads single pages by a system call each and nothing else: what a
    /// process like this one can have at best by interrupt.
    pub(super) fn pread(&mut self, time: Duration, seed: u64) -> Result<Slice, Refusal> {
        let Meter { target, pages, .. } = self;
        let mut offsets = offsets(target.bytes, seed);
        let page = &mut pages[0].0;
        timed(time, 1, || {
            let offset = offsets();
            let start = now_ns();
            target.device.read(&mut Lane::Plain, offset, page)?;
            Ok(now_ns() - start)
        })
    }

    /// Reads `depth` pages at once, as swap-in does when a run of pages lies
    /// scattered. Each call waits for all of its reads, by interrupt.
    pub(super) fn read_many(
        &mut self,
        depth: usize,
        time: Duration,
        seed: u64,
    ) -> Result<Slice, Refusal> {
        let Meter { target, lane, pages, .. } = self;
        let mut offsets = offsets(target.bytes, seed);
        timed(time, depth, || {
            let mut pieces: Vec<_> = pages[..depth]
                .iter_mut()
                .map(|page| Piece { offset: offsets(), buf: &mut page.0[..] })
                .collect();
            let start = now_ns();
            target.device.read_many(lane, &mut pieces)?;
            Ok(now_ns() - start)
        })
    }

    /// Writes `depth` pages at once, which always wait by interrupt.
    pub(super) fn write_many(
        &mut self,
        depth: usize,
        time: Duration,
        seed: u64,
    ) -> Result<Slice, Refusal> {
        let Meter { target, lane, pages, .. } = self;
        let mut offsets = offsets(target.bytes, seed);
        for (page, seed) in pages.iter_mut().zip(seed..) {
            fill_with_noise(&mut page.0, seed);
        }
        timed(time, depth, || {
            // No two writes of the same content: a device might notice.
            for page in &mut pages[..depth] {
                let stamp = offsets() ^ now_ns();
                page.0[..8].copy_from_slice(&stamp.to_ne_bytes());
            }
            let pieces: Vec<_> = pages[..depth]
                .iter()
                .map(|page| Piece { offset: offsets(), buf: &page.0[..] })
                .collect();
            let start = now_ns();
            match &pieces[..] {
                [only] => target.device.write(lane, only.offset, only.buf)?,
                several => target.device.write_many(lane, several)?,
            }
            Ok(now_ns() - start)
        })
    }
}

/// Offsets of whole pages below `bytes`, without pattern.
fn offsets(bytes: u64, seed: u64) -> impl FnMut() -> u64 {
    let mut numbers = noise(seed);
    let pages = bytes / PAGE_BYTES;
    move || below(numbers.next().unwrap_or(0), pages) * PAGE_BYTES
}

/// Repeats `call`, which carries out `depth` I/Os and says how long they took.
fn timed(
    time: Duration,
    depth: usize,
    mut call: impl FnMut() -> Result<u64, IoError>,
) -> Result<Slice, Refusal> {
    let time_ns = time.as_nanos() as u64;
    let mut latencies_ns = Vec::with_capacity(1 << 16);
    let (start, cpu_start_ns) = (now_ns(), process_cpu_ns());
    let elapsed_ns = loop {
        latencies_ns.push(call().map_err(|error| Refusal::own(error.to_string()))?);
        let elapsed = now_ns() - start;
        if elapsed >= time_ns {
            break elapsed;
        }
    };
    let cpu_ns = process_cpu_ns() - cpu_start_ns;
    let mut round = Round::of(&mut latencies_ns);
    round.count *= depth;
    let count = round.count as f64;
    Ok(Slice {
        round,
        mb_per_s: count * PAGE_SIZE as f64 / elapsed_ns as f64 * 1000.0,
        cpu_us: cpu_ns as f64 / count / 1000.0,
    })
}

/// CPU time of all threads of this process, the kernel's helpers in it included.
fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_whole_pages_of_the_range_and_differ_by_seed() {
        let of = |seed| std::iter::repeat_with(offsets(1 << 20, seed)).take(1000);
        assert!(of(1).all(|at| at.is_multiple_of(PAGE_BYTES) && at < 1 << 20));
        assert!(of(1).eq(of(1)) && !of(1).eq(of(2)));
    }

    #[test]
    fn throughput_counts_all_that_was_under_way_at_once() {
        let slice = timed(Duration::from_millis(2), 8, || {
            std::thread::sleep(Duration::from_micros(300));
            Ok(5000)
        });
        let slice = slice.unwrap();
        assert!(slice.round.count.is_multiple_of(8) && slice.round.p50_us == 5.0);
        assert!(slice.mb_per_s > 0.0 && slice.cpu_us >= 0.0);
    }
}
