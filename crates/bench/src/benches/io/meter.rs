//! Measures softswap's own reads.
//!
//! A single page is read with the same bookkeeping as in a swap-in (`Area::read_page`): the wait is
//! announced, its CPU time is sampled, and its duration is recorded. The latency includes this
//! work.

use super::target::Target;
use crate::measure::noise::{below, noise};
use crate::measure::sample::Round;
use crate::measure::task_pipe::process_cpu_seconds;
use softswap_cli::refusal::{OrRefuse, Refusal};
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

#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    pub(super) round: Round,
    pub(super) mb_per_s: f64,
    /// User and system time per I/O.
    pub(super) cpu_us: f64,
}

pub(super) struct WaitMode {
    pub(super) mode: Mode,
    pub(super) polling: Polling,
    pub(super) stats: Stats,
}

pub(super) struct Meter<'t> {
    target: &'t Target,
    lane: Lane,
    pub(super) wait_modes: Vec<WaitMode>,
    pages: &'static mut [Page],
}

impl<'t> Meter<'t> {
    pub(super) fn new(target: &'t Target) -> Result<Meter<'t>, Refusal> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let overshoot_ns = timer_overshoot_ns();
        let way = |mode| -> Result<WaitMode, Refusal> {
            let stats =
                Stats::new(reserve_u64(STATS_WORDS).or_own("the counters cannot be allocated")?);
            let pressure = Pressure::new(cpus, Load::open()).into();
            let polling = Polling::new(mode, cpus, pressure, overshoot_ns, stats);
            Ok(WaitMode { mode, polling, stats })
        };
        Ok(Meter {
            target,
            lane: target.device.open_lane(),
            wait_modes: Mode::ALL.into_iter().map(way).collect::<Result<_, _>>()?,
            pages: reserve_pages(MAX_PIECES).or_own("the read buffers cannot be allocated")?,
        })
    }

    pub(super) fn read(&mut self, mode: Mode, time: Duration, seed: u64) -> Result<Slice, Refusal> {
        let Meter { target, lane, wait_modes, pages } = self;
        let polling = &wait_modes[mode as usize].polling;
        let mut offsets = offsets(target.bytes, seed);
        let page = &mut pages[0].0;
        timed(time, 1, || {
            let offset = offsets();
            let start = now_ns();
            polling.waited(PAGE_SIZE, || target.device.read_page(lane, offset, page, polling))?;
            Ok(now_ns() - start)
        })
    }

    /// Reads single pages with one system call each and no bookkeeping: the lower bound of
    /// interrupt-driven reads in this process.
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

    /// Reads `depth` pages at the same time, like swap-in of scattered slots. Each call waits for
    /// all of its reads by interrupt.
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
            target.device.read_pieces(lane, &mut pieces, None)?;
            Ok(now_ns() - start)
        })
    }
}

/// Returns random page-aligned offsets below `bytes`.
fn offsets(bytes: u64, seed: u64) -> impl FnMut() -> u64 {
    let mut numbers = noise(seed);
    let pages = bytes / PAGE_BYTES;
    move || below(numbers.next().unwrap_or(0), pages) * PAGE_BYTES
}

/// Repeats `call`, which performs `depth` I/Os and returns their duration in ns.
fn timed(
    time: Duration,
    depth: usize,
    mut call: impl FnMut() -> Result<u64, IoError>,
) -> Result<Slice, Refusal> {
    let time_ns = time.as_nanos() as u64;
    let mut latencies_ns = Vec::with_capacity(1 << 16);
    let (start, cpu_start) = (now_ns(), process_cpu_seconds());
    let elapsed_ns = loop {
        latencies_ns.push(call().map_err(Refusal::own)?);
        let elapsed = now_ns() - start;
        if elapsed >= time_ns {
            break elapsed;
        }
    };
    let cpu_seconds = process_cpu_seconds() - cpu_start;
    let mut round = Round::of(&mut latencies_ns);
    round.count *= depth;
    let count = round.count as f64;
    Ok(Slice {
        round,
        mb_per_s: count * PAGE_SIZE as f64 / elapsed_ns as f64 * 1000.0,
        cpu_us: cpu_seconds * 1e6 / count,
    })
}
