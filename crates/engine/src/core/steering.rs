//! On which processor a thread waits least for a page: the one whose interrupts the
//! device's answer comes to.

use crate::base::stats::{Counter, Stats};
use crate::store::io::poll::pressure::Pressure;
use crate::store::io::poll::processor_waits::ProcessorWaits;
use softswap_sys::affinity::{Hop, Processors};
use softswap_sys::raw::{current_cpu, now_ns};
use std::sync::Arc;

/// What moves threads to where they wait least.
pub(crate) struct Steering {
    /// How much processors are wanted.
    pub(crate) pressure: Arc<Pressure>,
    /// On which processor waiting for a page takes least.
    pub(crate) processor_waits: Arc<ProcessorWaits>,
    /// Those that there are, where that is known.
    pub(crate) processors: Option<Processors>,
}

impl Steering {
    /// Moves the calling thread, which has just waited for a page, to where it has
    /// to wait less, if it is the only one that waits and a processor is idle.
    pub(crate) fn steer(&self, stats: Stats) {
        let Some(processors) = self.processors.as_ref().filter(|_| self.processor_waits.is_due())
        else {
            return;
        };
        let now = now_ns();
        let is_quiet = || self.pressure.is_alone(now) && self.pressure.has_idle_processor();
        let Some(to) = self.processor_waits.advise(current_cpu(), now, is_quiet) else { return };
        match processors.hop_to(to) {
            Ok(Hop::Moved) => stats.add(Counter::IoSteered, 1),
            Ok(Hop::Nowhere) => self.processor_waits.nowhere(to),
            Ok(Hop::Bound) | Err(_) => self.processor_waits.refused(now),
        }
    }
}
