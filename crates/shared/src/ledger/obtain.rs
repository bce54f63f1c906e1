//! Obtains chunks within a time limit: free ones, or those that other members release.

use super::Member;
use softswap_sys::raw::now_ns;

/// Time to release chunks, in ns, before another member is asked: a stopped one never does.
const RELEASE_TIMEOUT_NS: u64 = 50_000_000;

impl Member {
    /// Takes up to `need` chunks, free ones or those that other members release on request.
    #[must_use]
    pub fn obtain(&self, need: usize, timeout_ns: u64) -> usize {
        let until_ns = now_ns().saturating_add(timeout_ns);
        let mut obtained = self.take(need);
        let (mut pending, mut asked) = (0, Vec::new());
        // In each iteration chunks arrive, or one more member is skipped.
        while obtained < need && now_ns() < until_ns {
            if pending == 0 {
                let request = self.request_release(need - obtained, |entry| asked.contains(&entry));
                let Some(request) = request else { break };
                pending = request.chunks;
                asked.push(request.entry);
            }
            let arrived =
                self.await_chunks(need - obtained, until_ns.min(now_ns() + RELEASE_TIMEOUT_NS));
            if arrived > 0 {
                // The member that was asked last has released chunks, so it may be asked again.
                asked.pop();
            }
            obtained += arrived;
            pending = if arrived > 0 { pending.saturating_sub(arrived) } else { 0 };
        }
        obtained
    }

    fn await_chunks(&self, need: usize, until_ns: u64) -> usize {
        loop {
            let seen = self.ledger.releases();
            let arrived = self.take(need);
            let left_ns = until_ns.saturating_sub(now_ns());
            if arrived > 0 || left_ns == 0 {
                return arrived;
            }
            self.ledger.await_release(seen, left_ns);
        }
    }
}
