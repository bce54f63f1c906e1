//! Plan of a wait for a read: how long to sleep, then how long to poll, before an ordinary wait.
//!
//! The decisions depend only on their arguments, so tests need no clock. As in Linux's former
//! hybrid polling, a sleep takes half the mean completion time. Two defects are corrected: the
//! overshoot of timers is subtracted, and an overslept request only shortens the next sleep.

use super::mode::{Mode, Sleep};
use super::samples::Times;

/// Initial share of the mean to sleep, in 1/256.
pub(crate) const HALF: u32 = 128;
/// Smallest share after oversleeping, in 1/256.
pub(crate) const MIN_SHARE: u32 = 16;
const MAX_SPIN_NS: u64 = 2_000_000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) times: Option<Times>,
    pub(crate) overshoot_ns: u64,
    /// Share of the mean to sleep, in 1/256. Oversleeping lowers it.
    pub(crate) sleep_share: u32,
    pub(crate) is_contended: bool,
}

/// A plan: sleep, then poll. Zero skips the sleep or the polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    pub(crate) sleep_ns: u64,
    pub(crate) spin_ns: u64,
}

impl Plan {
    pub(crate) fn is_polling(self) -> bool {
        self != Plan::default()
    }
}

pub(crate) fn plan(mode: Mode, sleep: Sleep, view: &View) -> Plan {
    let spin_ns =
        view.times.map_or(200_000, |times| (4 * times.mean_ns).clamp(50_000, MAX_SPIN_NS));
    match mode {
        Mode::Interrupt => Plan::default(),
        Mode::Poll => Plan { sleep_ns: 0, spin_ns },
        Mode::Hybrid => {
            let sleep_ns = match sleep {
                Sleep::Fixed(ns) => u64::from(ns),
                Sleep::Adaptive => adaptive_sleep_ns(view),
            };
            Plan { sleep_ns, spin_ns }
        }
        Mode::Auto => {
            // Polling pays up to a mean completion time of 250 µs.
            let is_short = view.times.is_none_or(|times| times.mean_ns <= 250_000);
            let pays = is_short && !view.is_contended;
            if pays { Plan { sleep_ns: 0, spin_ns } } else { Plan::default() }
        }
    }
}

fn adaptive_sleep_ns(view: &View) -> u64 {
    let Some(times) = view.times else { return 0 };
    let gain = times.mean_ns * u64::from(view.sleep_share) / 256;
    gain.saturating_sub(view.overshoot_ns)
}

pub(crate) fn next_share(share: u32, overslept: bool) -> u32 {
    if overslept { (share - share / 8).max(MIN_SHARE) } else { (share + 1).min(HALF) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn view(mean_ns: Option<u64>, overshoot_ns: u64) -> View {
        View {
            times: mean_ns.map(|mean_ns| Times { mean_ns, max_ns: 2 * mean_ns }),
            overshoot_ns,
            sleep_share: HALF,
            is_contended: false,
        }
    }

    #[test]
    fn hybrid_sleeps_half_the_mean_minus_timer_overshoot() {
        let adaptive = |view| plan(Mode::Hybrid, Sleep::Adaptive, &view).sleep_ns;
        assert_eq!(adaptive(view(Some(80_000), 0)), 40_000);
        assert_eq!(adaptive(view(Some(80_000), 5_000)), 35_000);
        assert_eq!(
            adaptive(view(Some(80_000), 40_000)),
            0,
            "the overshoot is as long as the sleep"
        );
        assert_eq!(adaptive(view(None, 0)), 0, "no read was measured yet");
        assert_eq!(plan(Mode::Hybrid, Sleep::Fixed(7), &view(None, 9_000)).sleep_ns, 7);
    }

    #[test]
    fn auto_polls_only_if_it_pays() {
        let polls = |view| plan(Mode::Auto, Sleep::Adaptive, &view).spin_ns > 0;
        assert!(polls(view(Some(60_000), 0)));
        assert!(polls(view(None, 0)));
        assert!(!polls(view(Some(5_000_000), 0)), "the wait is too long to poll");
        assert!(!polls(View { is_contended: true, ..view(Some(60_000), 0) }));
    }

    proptest! {
        #[test]
        fn polling_is_bounded_and_interrupt_never_polls(
            mean in prop::option::of(1..10_000_000_000u64), overshoot in 0..1_000_000u64,
        ) {
            for mode in Mode::ALL {
                let plan = plan(mode, Sleep::Adaptive, &view(mean, overshoot));
                prop_assert!(plan.spin_ns <= MAX_SPIN_NS);
                prop_assert!(mode != Mode::Interrupt || plan == Plan::default());
                prop_assert!(mode == Mode::Hybrid || plan.sleep_ns == 0);
                prop_assert!(plan.sleep_ns <= mean.unwrap_or(0) / 2);
            }
        }

        #[test]
        fn sleep_share_stays_within_bounds(overslept in prop::collection::vec(any::<bool>(), 0..200)) {
            let mut share = HALF;
            for overslept in overslept {
                let next = next_share(share, overslept);
                prop_assert!((MIN_SHARE..=HALF).contains(&next));
                prop_assert!(next == share || overslept == (next < share));
                share = next;
            }
        }
    }
}
