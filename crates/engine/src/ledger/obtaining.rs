//! Getting steps within a time: free ones, else what others give back for them.

use super::Seat;
use softswap_sys::raw::now_ns;

/// So long has a seat that was rung to give something back. One that is stopped never does,
/// nor one whose pages have no place to go: then the next is rung.
const ANSWER_NS: u64 = 50_000_000;

impl Seat {
    /// Gets up to `need` steps, of those that are free or that others give back when they are
    /// rung, and waits for `patience_ns` at most. How many it got: who gets fewer does with
    /// what it has.
    #[must_use]
    pub fn obtain(&self, need: usize, patience_ns: u64) -> usize {
        let until_ns = now_ns().saturating_add(patience_ns);
        let mut got = self.take(need);
        let (mut owed, mut silent) = (0, Vec::new());
        // Each turn something comes, or somebody is not rung again.
        while got < need && now_ns() < until_ns {
            if owed == 0 {
                let Some(rung) = self.ring(need - got, |seat| silent.contains(&seat)) else {
                    break;
                };
                owed = rung.steps;
                silent.push(rung.seat);
            }
            let came = self.await_steps(need - got, until_ns.min(now_ns() + ANSWER_NS));
            if came > 0 {
                // Who answers may be asked again.
                silent.pop();
            }
            got += came;
            owed = if came > 0 { owed.saturating_sub(came) } else { 0 };
        }
        got
    }

    /// Waits for the first steps to come, and takes up to `need`.
    fn await_steps(&self, need: usize, until_ns: u64) -> usize {
        loop {
            let seen = self.ledger.freed();
            let came = self.take(need);
            let left_ns = until_ns.saturating_sub(now_ns());
            if came > 0 || left_ns == 0 {
                return came;
            }
            self.ledger.await_freed(seen, left_ns);
        }
    }
}
