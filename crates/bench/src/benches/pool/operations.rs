//! How long it takes to store pages, to load them and to invalidate them.

use super::stores::{Hand, Store};
use crate::measure::affinity::bind_to_cpu;
use crate::measure::noise::shuffled;
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::Page;
use softswap_sys::raw::now_ns;
use std::ops::Range;
use std::sync::Barrier;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Store,
    Load,
    Invalidate,
}

pub(super) const OPS: [Op; 3] = [Op::Store, Op::Load, Op::Invalidate];

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::Store => "store",
            Op::Load => "load",
            Op::Invalidate => "invalidate",
        }
    }
}

/// ns that all of [`OPS`] took for all pages.
pub(super) type Took = [u64; OPS.len()];

/// One thread's pages, and in which order it does what with them.
struct Part<'p> {
    pages: &'p [Page],
    first: usize,
    /// By [`OPS`]: pages go out in sequence, and are touched and given up as
    /// it comes.
    orders: [Vec<usize>; OPS.len()],
    /// Compares what was loaded, which takes time.
    compares: bool,
}

/// Stores all pages, loads them and invalidates them, dealt out to so many
/// threads. Each begins with the next only when all have done.
pub(super) fn run(
    store: &dyn Store,
    pages: &[Page],
    threads: usize,
    seed: u64,
    compares: bool,
) -> Result<Took, String> {
    let barrier = Barrier::new(threads);
    let each = |thread: usize| -> Result<[Range<u64>; OPS.len()], String> {
        bind_to_cpu(thread);
        let (first, end) = (pages.len() * thread / threads, pages.len() * (thread + 1) / threads);
        let count = end - first;
        let seed = seed + thread as u64;
        let orders = [(0..count).collect(), shuffled(count, seed), shuffled(count, seed + 500)];
        let part = Part { pages: &pages[first..end], first, orders, compares };
        let mut hand = store.hand(first, count);
        let mut spans = OPS.map(|_| 0..0);
        let mut outcome = Ok(());
        for (op, span) in OPS.into_iter().zip(&mut spans) {
            // Who failed still has to be met by the others.
            barrier.wait();
            let start = now_ns();
            outcome = outcome.and_then(|()| part.apply(op, &mut *hand));
            *span = start..now_ns();
        }
        outcome.map(|()| spans)
    };
    let spans: Vec<_> = std::thread::scope(|scope| {
        let each = &each;
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || each(thread))).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|_| Err("a thread ended".into()))
        };
        workers.into_iter().map(join).collect::<Result<_, _>>()
    })?;
    Ok(OPS.map(|op| {
        let of = |end: fn(&Range<u64>) -> u64| spans.iter().map(move |s| end(&s[op as usize]));
        of(|span| span.end).max().unwrap_or(0) - of(|span| span.start).min().unwrap_or(0)
    }))
}

impl Part<'_> {
    fn apply(&self, op: Op, hand: &mut dyn Hand) -> Result<(), String> {
        let mut loaded = Box::new(Page([0; PAGE_SIZE]));
        for &at in &self.orders[op as usize] {
            let number = self.first + at;
            match op {
                Op::Store => hand.store(number, &self.pages[at])?,
                Op::Load => hand.load(number, &mut loaded)?,
                Op::Invalidate => hand.invalidate(number)?,
            }
            if op == Op::Load && self.compares && loaded.0 != self.pages[at].0 {
                return Err(format!("page {number} came back as another"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::page_kinds::{PageKind, generated};
    use super::super::stores::{Damaged, Softswap};
    use super::*;

    #[test]
    fn all_threads_together_handle_every_page_once_and_leave_nothing() {
        let pages = generated(PageKind::Text, 101).unwrap();
        let store = Softswap::new(pages.len()).unwrap();
        for threads in [1, 2, 7] {
            let took = run(&store, pages, threads, 3, true).unwrap();
            assert!(took.iter().all(|ns| *ns > 0));
            assert_eq!(store.waste_percent(), Ok(0.0), "{threads} threads");
        }
    }

    #[test]
    fn a_wrong_byte_is_noticed_and_ends_all_threads() {
        let pages = generated(PageKind::Text, 20).unwrap();
        let store = Softswap::new(pages.len()).unwrap();
        let error = run(&Damaged(&store), pages, 2, 3, true).unwrap_err();
        assert!(error.contains(&format!("page {}", Damaged::PAGE)), "{error}");
    }
}
