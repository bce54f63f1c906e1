//! Costs of faults: their CPU time, and the wait time during which a CPU is idle.
//!
//! If many threads keep the CPUs busy, the wait of one costs the others nothing, and a fault from
//! the disk costs hardly more than one from the pool. Therefore a wait counts by its idle share:
//! CPU time not used by the process, divided by the time its threads waited, at most 1.

use crate::base::average::follow;
use crate::base::stats::Tier;
use softswap_sys::raw::{now_ns, thread_cpu_ns};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

pub(super) const WHOLE: u32 = 1 << 20;
/// Initial estimate of the CPU time of a fault from the pool.
const POOL_FAULT_NS: u64 = 5_000;
const EVICT_NS: u64 = 5_000;
/// Time to enter and leave the signal handler, which cannot be measured there.
const SIGNAL_NS: u64 = 2_500;
/// Interval over which the idle time of the CPUs is measured.
const INTERVAL_NS: u64 = 10_000_000;

#[derive(Debug)]
pub(crate) struct Stopwatch {
    start_ns: u64,
    cpu_start_ns: Option<u64>,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        let start_ns = now_ns();
        // Reading the thread's CPU clock takes a system call, so only one fault in 16 is sampled.
        let is_sampled = start_ns.is_multiple_of(16);
        Stopwatch { start_ns, cpu_start_ns: is_sampled.then(thread_cpu_ns) }
    }
}

#[derive(Debug, Default)]
pub struct FaultCosts {
    processors: u64,
    pool_cpu_ns: AtomicU64,
    disk_cpu_ns: AtomicU64,
    disk_fault_ns: AtomicU64,
    evict_ns: AtomicU64,
    write_back_ns: AtomicU64,
    /// Share among the faults from pool and disk, out of [`WHOLE`].
    disk_share: AtomicU32,
    /// In this interval.
    waited_ns: AtomicU64,
    interval_start_ns: AtomicU64,
    interval_start_cpu_ns: AtomicU64,
    /// Share of the wait time with an idle CPU, out of [`WHOLE`].
    idle_share: AtomicU64,
    /// CPU time in this interval.
    background_ns: AtomicU64,
    /// Number of CPUs left to background reclaim, times [`WHOLE`].
    spare: AtomicU64,
}

impl FaultCosts {
    pub(crate) fn new(processors: usize) -> FaultCosts {
        FaultCosts {
            processors: processors as u64,
            pool_cpu_ns: AtomicU64::new(POOL_FAULT_NS),
            disk_cpu_ns: AtomicU64::new(20_000),
            disk_fault_ns: AtomicU64::new(60_000),
            evict_ns: AtomicU64::new(EVICT_NS),
            write_back_ns: AtomicU64::new(2_000),
            idle_share: AtomicU64::new(u64::from(WHOLE)),
            spare: AtomicU64::new((processors as u64).saturating_sub(1) * u64::from(WHOLE)),
            ..FaultCosts::default()
        }
    }

    /// Records a completed fault. Returns its duration in ns.
    pub(crate) fn note_fault(&self, tier: Tier, watch: &Stopwatch) -> u64 {
        let ns = now_ns().saturating_sub(watch.start_ns);
        self.note(tier, ns, watch.cpu_start_ns.map(|start| thread_cpu_ns().saturating_sub(start)));
        ns
    }

    pub fn note(&self, tier: Tier, ns: u64, cpu_ns: Option<u64>) {
        let (average, is_disk) = match tier {
            Tier::Pool => (&self.pool_cpu_ns, 0),
            Tier::Disk => (&self.disk_cpu_ns, WHOLE),
            _ => return,
        };
        cpu_ns.into_iter().for_each(|cpu_ns| follow_capped(average, cpu_ns, 16));
        if tier == Tier::Disk {
            follow_capped(&self.disk_fault_ns, ns, 64);
            self.waited_ns.fetch_add(ns.saturating_sub(self.disk_cpu_ns.load(Relaxed)), Relaxed);
        }
        let share = self.disk_share.load(Relaxed);
        self.disk_share.store(share - share / 256 + is_disk / 256, Relaxed);
    }

    pub(crate) fn note_evictions(&self, pages: u64, cpu_ns: u64) {
        let each_ns = cpu_ns.checked_div(pages);
        each_ns.into_iter().for_each(|ns| follow_capped(&self.evict_ns, ns, 16));
    }

    pub fn note_write_backs(&self, pages: u64, cpu_ns: u64) {
        let each_ns = cpu_ns.checked_div(pages);
        each_ns.into_iter().for_each(|ns| follow_capped(&self.write_back_ns, ns, 16));
    }

    pub(crate) fn note_background_cpu(&self, cpu_ns: u64) {
        self.background_ns.fetch_add(cpu_ns, Relaxed);
    }

    /// Returns true if the process leaves a CPU to background reclaim. Other processes are ignored.
    /// Compression in program threads counts as use.
    pub(crate) fn leaves_processor_idle(&self) -> bool {
        // With n busy threads on n CPUs, the share of background reclaim is n / (n + 1). The
        // threshold is halfway to a whole CPU.
        let (n, whole) = (self.processors, u64::from(WHOLE));
        self.spare.load(Relaxed) >= whole * (2 * n + 1) / (2 * n + 2)
    }

    pub fn sample(&self, now_ns: u64, cpu_ns: impl FnOnce() -> u64) {
        let since_ns = self.interval_start_ns.load(Relaxed);
        let wall_ns = now_ns.saturating_sub(since_ns);
        let is_mine =
            || self.interval_start_ns.compare_exchange(since_ns, now_ns, Relaxed, Relaxed).is_ok();
        if wall_ns < INTERVAL_NS || !is_mine() {
            return;
        }
        let cpu_ns = cpu_ns();
        let busy_ns = cpu_ns.saturating_sub(self.interval_start_cpu_ns.swap(cpu_ns, Relaxed));
        let waited_ns = self.waited_ns.swap(0, Relaxed);
        let background_ns = self.background_ns.swap(0, Relaxed);
        if since_ns == 0 {
            return;
        }
        let all_ns = self.processors * wall_ns;
        let spare_ns = (all_ns + background_ns).saturating_sub(busy_ns).min(all_ns);
        follow(&self.spare, (spare_ns as f64 / wall_ns as f64 * f64::from(WHOLE)) as u64, 4);
        let idle_ns = all_ns.saturating_sub(busy_ns);
        // Threads that wait less than 1/16 of the interval count as not waiting.
        let share = if waited_ns < wall_ns / 16 {
            // Almost no waiting and no idle CPU: nothing can be learnt.
            if idle_ns < wall_ns / 2 {
                return;
            }
            1.0
        } else {
            idle_ns as f64 / waited_ns.min(all_ns) as f64
        };
        follow(&self.idle_share, (share.min(1.0) * f64::from(WHOLE)) as u64, 4);
    }

    pub(super) fn evict_ns(&self) -> u64 {
        self.evict_ns.load(Relaxed)
    }

    pub(crate) fn write_back_ns(&self) -> u64 {
        self.write_back_ns.load(Relaxed)
    }

    pub(super) fn disk_share(&self) -> u32 {
        self.disk_share.load(Relaxed)
    }

    /// Returns the costs of a fault from pool and disk, each with the eviction of another page.
    pub fn faults_ns(&self) -> (u64, u64) {
        let common_ns = SIGNAL_NS + self.evict_ns();
        let disk_cpu_ns = self.disk_cpu_ns.load(Relaxed);
        let waits_ns = self.disk_fault_ns.load(Relaxed).saturating_sub(disk_cpu_ns);
        let waits_ns = waits_ns.saturating_mul(self.idle_share.load(Relaxed)) / u64::from(WHOLE);
        (self.pool_cpu_ns.load(Relaxed) + common_ns, disk_cpu_ns + waits_ns + common_ns)
    }
}

/// Moves an average by 1/`of` of the difference. A cap excludes the times of preempted threads.
fn follow_capped(average: &AtomicU64, ns: u64, of: u64) {
    let max_ns = 4 * average.load(Relaxed).max(5_000);
    follow(average, ns.min(max_ns), of);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU_NS: u64 = 40_000;
    const DISK_NS: u64 = 200_000;

    /// Returns costs on two CPUs. Each phase has the CPU use of all threads in percent of both
    /// CPUs, and the number of reads waited for.
    fn after(phases: &[(u64, u64)]) -> FaultCosts {
        let costs = FaultCosts::new(2);
        (0..1000).for_each(|_| costs.note(Tier::Disk, DISK_NS, Some(CPU_NS)));
        let (mut now_ns, mut cpu_ns) = (7, 0);
        costs.sample(now_ns, || cpu_ns);
        costs.waited_ns.store(0, Relaxed);
        for (used_percent, reads) in phases.iter().flat_map(|phase| [phase; 100]) {
            (0..*reads).for_each(|_| costs.note(Tier::Disk, DISK_NS, None));
            now_ns += 2 * INTERVAL_NS;
            cpu_ns += 2 * INTERVAL_NS * 2 * used_percent / 100;
            costs.sample(now_ns, || cpu_ns);
            costs.sample(now_ns + 1, || unreachable!("not due"));
        }
        costs
    }

    fn disk_ns(costs: &FaultCosts) -> u64 {
        let (_, disk_ns) = costs.faults_ns();
        disk_ns - SIGNAL_NS - costs.evict_ns()
    }

    #[test]
    fn one_waiting_thread_leaves_processor_idle() {
        let alone = disk_ns(&after(&[(10, 100)]));
        assert!((DISK_NS * 9 / 10..=DISK_NS).contains(&alone), "{alone}");
        let without_waits = disk_ns(&after(&[(100, 0)]));
        assert!((DISK_NS * 9 / 10..=DISK_NS).contains(&without_waits), "{without_waits}");
    }

    #[test]
    fn many_waiting_threads_leave_no_processor_idle() {
        let busy = disk_ns(&after(&[(100, 100)]));
        assert!((CPU_NS * 9 / 10..=CPU_NS * 11 / 10).contains(&busy), "{busy}");
        // 32 ms of waiting in 20 ms, in which the CPUs were idle for 8 ms.
        let half = disk_ns(&after(&[(80, 200)]));
        let wanted = CPU_NS + (DISK_NS - CPU_NS) / 4;
        assert!((wanted * 9 / 10..=wanted * 11 / 10).contains(&half), "{half}");
    }

    #[test]
    fn idle_processor_covers_one_waiter() {
        let crowd = (100, 100);
        let busy = disk_ns(&after(&[crowd, (100, 1)]));
        assert!((CPU_NS * 9 / 10..=CPU_NS * 11 / 10).contains(&busy), "{busy}");
        let alone = disk_ns(&after(&[crowd, (50, 1)]));
        assert!((DISK_NS * 9 / 10..=DISK_NS).contains(&alone), "{alone}");
    }

    #[test]
    fn waiters_with_idle_processors_are_not_contended() {
        // All 32 threads wait all the time.
        let idle = disk_ns(&after(&[(10, 4_000)]));
        assert!((DISK_NS * 8 / 10..=DISK_NS).contains(&idle), "{idle}");
    }

    #[test]
    fn delayed_read_is_capped() {
        let costs = FaultCosts::new(2);
        (0..1000).for_each(|_| costs.note(Tier::Disk, DISK_NS, Some(CPU_NS)));
        let before = disk_ns(&costs);
        costs.note(Tier::Disk, 5_000_000_000, Some(4_000_000));
        let after = disk_ns(&costs);
        assert!(after > before && after < before * 5 / 4, "{before} and {after}");
    }

    #[test]
    fn pool_fault_cost_is_cpu_time() {
        let costs = FaultCosts::new(2);
        (0..1000).for_each(|_| costs.note(Tier::Pool, 4_000_000, None));
        assert_eq!(costs.faults_ns().0, POOL_FAULT_NS + SIGNAL_NS + EVICT_NS);
        (0..1000).for_each(|_| costs.note(Tier::Pool, 4_000_000, Some(8_000)));
        let pool_ns = costs.faults_ns().0 - SIGNAL_NS - EVICT_NS;
        assert!((7_800..=8_000).contains(&pool_ns), "{pool_ns}");
        costs.note(Tier::Zero, 1, Some(1));
        assert_eq!(costs.disk_share(), 0);
    }

    #[test]
    fn cpu_clock_reset_is_ignored() {
        let costs = FaultCosts::new(2);
        costs.sample(INTERVAL_NS, || 1_000 * INTERVAL_NS);
        costs.sample(3 * INTERVAL_NS, || INTERVAL_NS);
        assert_eq!(costs.idle_share.load(Relaxed), u64::from(WHOLE));
    }

    #[test]
    fn background_reclaim_time_counts_as_idle() {
        let leaves = |processors: u64, used_percent: u64, behind_percent: u64| {
            let costs = FaultCosts::new(processors as usize);
            let (mut now_ns, mut cpu_ns) = (7, 0);
            costs.sample(now_ns, || cpu_ns);
            for _ in 0..100 {
                now_ns += INTERVAL_NS;
                cpu_ns += INTERVAL_NS * (used_percent + behind_percent) / 100;
                costs.note_background_cpu(INTERVAL_NS * behind_percent / 100);
                costs.sample(now_ns, || cpu_ns);
            }
            costs.leaves_processor_idle()
        };
        for behind_percent in [0, 50, 100] {
            assert!(leaves(2, 100, behind_percent), "{behind_percent}");
        }
        assert!(!leaves(2, 150, 50) && !leaves(2, 200, 0) && !leaves(1, 100, 0));
        assert!(leaves(4, 300, 100) && !leaves(4, 400, 0));
        // All CPUs are busy, one of them with background reclaim.
        assert!(!leaves(2, 133, 67) && !leaves(3, 225, 75) && !leaves(4, 320, 80));
        // Before any measurement.
        assert!(
            FaultCosts::new(2).leaves_processor_idle()
                && !FaultCosts::new(1).leaves_processor_idle()
        );
    }

    #[test]
    fn stopwatch_measures_time() {
        let costs = FaultCosts::new(1);
        let watch = Stopwatch::start();
        let first = costs.note_fault(Tier::Pool, &watch);
        assert!(costs.note_fault(Tier::Pool, &watch) >= first);
    }
}
