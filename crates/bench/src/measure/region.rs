//! Memory that threads of a measured program read and write, with known content of each page.

use super::noise::{below, noise};
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::reserve_u32;
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

pub(crate) const WORDS: usize = PAGE_SIZE / 8;

pub(crate) trait Content: Sync {
    fn fill(&self, page: usize, words: &mut [u64; WORDS]);
}

pub(crate) struct Region {
    memory: Vec<AtomicU64>,
    /// The allocator does not align to pages.
    gap: usize,
    writes: &'static [AtomicU32],
}

impl Region {
    pub(crate) fn filled(pages: usize, content: &impl Content) -> io::Result<Region> {
        let writes = reserve_u32(pages)?;
        let mut memory: Vec<AtomicU64> = Vec::with_capacity((pages + 1) * WORDS);
        let gap = (PAGE_SIZE - memory.as_ptr() as usize % PAGE_SIZE) % PAGE_SIZE / 8;
        memory.resize_with(gap, Default::default);
        let mut words = [0; WORDS];
        for page in 0..pages {
            content.fill(page, &mut words);
            memory.extend(words.map(AtomicU64::new));
        }
        Ok(Region { memory, gap, writes })
    }

    pub(crate) fn pages(&self) -> usize {
        self.writes.len()
    }

    pub(crate) fn word(&self, page: usize, at: usize) -> &AtomicU64 {
        &self.memory[self.gap + page * WORDS + at]
    }

    /// Changes one word. The result is independent of the order of threads.
    pub(crate) fn write(&self, page: usize) {
        let write = self.writes[page].fetch_add(1, Relaxed);
        let (at, change) = change_of(page, write);
        self.word(page, at).fetch_xor(change, Relaxed);
    }

    pub(crate) fn first_wrong(&self, content: &impl Content) -> Option<usize> {
        let mut expected = [0; WORDS];
        (0..self.pages()).find(|page| {
            content.fill(*page, &mut expected);
            for write in 0..self.writes[*page].load(Relaxed) {
                let (at, change) = change_of(*page, write);
                expected[at] ^= change;
            }
            let held = (0..WORDS).map(|at| self.word(*page, at).load(Relaxed));
            !held.eq(expected.iter().copied())
        })
    }
}

/// Returns the index of the changed word, and the XOR mask.
fn change_of(page: usize, write: u32) -> (usize, u64) {
    let number = noise((page as u64) << 32 | u64::from(write) | 1 << 63).next().unwrap_or(0);
    (below(number, WORDS as u64) as usize, number)
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise;

impl Content for Noise {
    fn fill(&self, page: usize, words: &mut [u64; WORDS]) {
        words.iter_mut().zip(noise(page as u64)).for_each(|(word, number)| *word = number);
    }
}

/// Returns the seconds from the first start to the last end, and the results. The threads read the
/// clock themselves, because faults may delay the joining thread.
pub(crate) fn on_threads<S: Send, T: Send>(
    states: impl IntoIterator<Item = S>,
    body: impl Fn(S) -> T + Sync,
) -> (f64, Vec<T>) {
    let states: Vec<S> = states.into_iter().collect();
    let barrier = Barrier::new(states.len());
    let (barrier, body) = (&barrier, &body);
    std::thread::scope(|scope| {
        let each = |state| {
            scope.spawn(move || {
                barrier.wait();
                let start = Instant::now();
                let found = body(state);
                (start, Instant::now(), found)
            })
        };
        let threads: Vec<_> = states.into_iter().map(each).collect();
        // A panic aborts the process, so each join succeeds.
        let done: Vec<_> = threads.into_iter().flat_map(|thread| thread.join()).collect();
        let first = done.iter().map(|(start, _, _)| *start).min();
        let last = done.iter().map(|(_, end, _)| *end).max();
        let seconds = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        (seconds, done.into_iter().map(|(_, _, found)| found).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_write_and_wrong_bit_are_detected() {
        let region = Region::filled(21, &Noise).unwrap();
        on_threads(0..3, |thread| {
            for number in noise(thread as u64).take(100) {
                region.write(below(number, 21) as usize);
            }
        });
        assert_eq!(region.first_wrong(&Noise), None);
        region.writes[3].fetch_add(1, Relaxed);
        assert_eq!(region.first_wrong(&Noise), Some(3));
        region.writes[3].fetch_sub(1, Relaxed);
        region.word(1, 7).fetch_xor(1 << 40, Relaxed);
        assert_eq!(region.first_wrong(&Noise), Some(1));
    }
}
