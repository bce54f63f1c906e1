//! Obtains chunks within a time: free ones, or those that other members release.

use super::Member;
use softswap_sys::raw::now_ns;

/// Time for a member to release chunks before another one is asked, in ns. A stopped process never
/// does, nor one that cannot write pages back.
const RELEASE_TIMEOUT_NS: u64 = 50_000_000;

impl Member {
    /// Obtains up to `need` chunks: free ones, or those that other members release on request
    /// within `timeout_ns`. Returns their number.
    #[must_use]
    pub fn obtain(&self, need: usize, timeout_ns: u64) -> usize {
        let until_ns = now_ns().saturating_add(timeout_ns);
        let mut got = self.take(need);
        let (mut pending, mut silent) = (0, Vec::new());
        // In each turn chunks arrive, or one more member is skipped.
        while got < need && now_ns() < until_ns {
            if pending == 0 {
                let request = self.request_release(need - got, |slot| silent.contains(&slot));
                let Some(request) = request else { break };
                pending = request.chunks;
                silent.push(request.slot);
            }
            let came = self.await_chunks(need - got, until_ns.min(now_ns() + RELEASE_TIMEOUT_NS));
            if came > 0 {
                // A member that releases may be asked again.
                silent.pop();
            }
            got += came;
            pending = if came > 0 { pending.saturating_sub(came) } else { 0 };
        }
        got
    }

    /// Waits for free chunks, and takes up to `need` of the first ones.
    fn await_chunks(&self, need: usize, until_ns: u64) -> usize {
        loop {
            let seen = self.ledger.releases();
            let came = self.take(need);
            let left_ns = until_ns.saturating_sub(now_ns());
            if came > 0 || left_ns == 0 {
                return came;
            }
            self.ledger.await_release(seen, left_ns);
        }
    }
}
