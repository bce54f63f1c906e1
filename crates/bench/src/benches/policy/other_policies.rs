//! Policies from books, to compare with. All but FIFO are told of every touch,
//! which softswap is not; the optimum also knows what comes.

use super::trace::Trace;
use std::collections::{BinaryHeap, VecDeque};

const NEVER: u32 = u32::MAX;

/// The page that came in first leaves first.
pub(super) fn fifo(trace: &Trace, memory: usize) -> u64 {
    let mut resident = vec![false; trace.pages];
    let mut queue = VecDeque::with_capacity(memory);
    let mut misses = 0;
    for page in &trace.touches {
        if resident[*page as usize] {
            continue;
        }
        misses += 1;
        if queue.len() == memory
            && let Some(first) = queue.pop_front()
        {
            resident[first as usize] = false;
        }
        resident[*page as usize] = true;
        queue.push_back(*page);
    }
    misses
}

/// The page that was not touched for the longest time leaves first.
pub(super) fn lru(trace: &Trace, memory: usize) -> u64 {
    let mut last_touch = vec![NEVER; trace.pages];
    // With older entries of pages that were touched again, which are passed over.
    let mut queue = VecDeque::new();
    let (mut resident, mut misses) = (0, 0);
    for (now, page) in (0..).zip(&trace.touches) {
        if last_touch[*page as usize] == NEVER {
            misses += 1;
            resident += 1;
        }
        last_touch[*page as usize] = now;
        queue.push_back((now, *page));
        while resident > memory
            && let Some((when, oldest)) = queue.pop_front()
        {
            if last_touch[oldest as usize] == when {
                last_touch[oldest as usize] = NEVER;
                resident -= 1;
            }
        }
        if queue.len() > 4 * trace.pages + 64 {
            queue.retain(|(when, page)| last_touch[*page as usize] == *when);
        }
    }
    misses
}

/// Where a page is in S3-FIFO.
#[derive(Clone, Copy, PartialEq)]
enum S3 {
    Out,
    Resident,
    /// Out, and remembered with the number of its entry.
    Ghost(u32),
}

/// Three FIFO queues (Yang and others, 2023): new pages in a tenth of the memory,
/// those touched there or back soon in the rest, and a memory of those that left.
struct S3Fifo {
    memory: usize,
    places: Vec<S3>,
    touches: Vec<u8>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: VecDeque<(u32, u32)>,
    next_ghost: u32,
}

/// As [`S3Fifo`] says.
pub(super) fn s3_fifo(trace: &Trace, memory: usize) -> u64 {
    let mut cache = S3Fifo {
        memory,
        places: vec![S3::Out; trace.pages],
        touches: vec![0; trace.pages],
        small: VecDeque::new(),
        main: VecDeque::new(),
        ghosts: VecDeque::new(),
        next_ghost: 0,
    };
    trace.touches.iter().filter(|page| cache.touch(**page)).count() as u64
}

impl S3Fifo {
    /// Whether it is a miss.
    fn touch(&mut self, page: u32) -> bool {
        let at = page as usize;
        if self.places[at] == S3::Resident {
            self.touches[at] = (self.touches[at] + 1).min(3);
            return false;
        }
        while self.small.len() + self.main.len() >= self.memory {
            if self.small.len() >= (self.memory / 10).max(1) || self.main.is_empty() {
                self.leave_small();
            } else {
                self.leave_main();
            }
        }
        match self.places[at] {
            S3::Ghost(_) => self.main.push_back(page),
            _ => self.small.push_back(page),
        }
        self.places[at] = S3::Resident;
        self.touches[at] = 0;
        true
    }

    fn leave_small(&mut self) {
        let Some(page) = self.small.pop_front() else { return };
        if self.touches[page as usize] > 1 {
            self.touches[page as usize] = 0;
            self.main.push_back(page);
            return;
        }
        self.places[page as usize] = S3::Ghost(self.next_ghost);
        self.ghosts.push_back((page, self.next_ghost));
        self.next_ghost = self.next_ghost.wrapping_add(1);
        if self.ghosts.len() > self.memory
            && let Some((oldest, number)) = self.ghosts.pop_front()
            && self.places[oldest as usize] == S3::Ghost(number)
        {
            self.places[oldest as usize] = S3::Out;
        }
    }

    fn leave_main(&mut self) {
        let Some(page) = self.main.pop_front() else { return };
        let touches = &mut self.touches[page as usize];
        if *touches > 0 {
            *touches -= 1;
            self.main.push_back(page);
        } else {
            self.places[page as usize] = S3::Out;
        }
    }
}

/// The page that is needed again last leaves first (Belady, 1966): no policy that
/// brings a page in when it is touched has fewer misses.
pub(super) fn optimum(trace: &Trace, memory: usize) -> u64 {
    let next_touches = next_touches(trace);
    // When each resident page is touched next. The heap also has older entries.
    let mut needed: Vec<Option<u32>> = vec![None; trace.pages];
    let mut heap: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    let (mut resident, mut misses) = (0, 0);
    for (page, next) in trace.touches.iter().zip(next_touches) {
        if needed[*page as usize].is_none() {
            misses += 1;
            if resident == memory {
                while let Some((when, last)) = heap.pop() {
                    if needed[last as usize] == Some(when) {
                        needed[last as usize] = None;
                        break;
                    }
                }
            } else {
                resident += 1;
            }
        }
        needed[*page as usize] = Some(next);
        heap.push((next, *page));
        if heap.len() > 4 * trace.pages + 64 {
            heap.retain(|(when, page)| needed[*page as usize] == Some(*when));
        }
    }
    misses
}

/// For each touch, which one touches the same page again.
fn next_touches(trace: &Trace) -> Vec<u32> {
    let mut upcoming = vec![NEVER; trace.pages];
    let mut next = vec![NEVER; trace.touches.len()];
    for (at, page) in trace.touches.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut upcoming[*page as usize], at as u32);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trace(touches: &[u32]) -> Trace {
        Trace::new("test", touches.to_vec())
    }

    /// The fewest misses, by trying every victim at every miss.
    fn fewest(touches: &[u32], resident: &[u32], memory: usize) -> u64 {
        let Some((page, rest)) = touches.split_first() else { return 0 };
        if resident.contains(page) {
            return fewest(rest, resident, memory);
        }
        if resident.len() < memory {
            return 1 + fewest(rest, &[resident, &[*page]].concat(), memory);
        }
        let with = |victim: usize| {
            let mut resident = resident.to_vec();
            resident[victim] = *page;
            fewest(rest, &resident, memory)
        };
        1 + (0..memory).map(with).min().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn no_order_of_victims_has_fewer_misses_than_the_optimum(
            touches in prop::collection::vec(0..6u32, 0..14), memory in 1..4usize
        ) {
            let trace = trace(&touches);
            let best = optimum(&trace, memory);
            prop_assert_eq!(best, fewest(&trace.touches, &[], memory));
            for policy in [fifo, lru, s3_fifo] {
                prop_assert!(policy(&trace, memory) >= best);
            }
        }

        #[test]
        fn lru_agrees_with_a_sorted_list(
            touches in prop::collection::vec(0..30u32, 0..400), memory in 1..20usize
        ) {
            let trace = trace(&touches);
            let (mut list, mut misses) = (Vec::new(), 0);
            for page in &trace.touches {
                match list.iter().position(|other| other == page) {
                    Some(at) => drop(list.remove(at)),
                    None => misses += 1,
                }
                list.push(*page);
                if list.len() > memory {
                    list.remove(0);
                }
            }
            prop_assert_eq!(lru(&trace, memory), misses);
        }

        #[test]
        fn where_all_pages_fit_only_first_touches_miss(
            touches in prop::collection::vec(0..30u32, 0..400)
        ) {
            let trace = trace(&touches);
            for policy in [fifo, lru, s3_fifo, optimum] {
                prop_assert_eq!(policy(&trace, trace.pages.max(1)), trace.pages as u64);
            }
        }
    }

    #[test]
    fn small_traces_have_the_misses_that_paper_and_pencil_say() {
        // Belady's own example: more memory, more misses with FIFO.
        let belady = trace(&[1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]);
        assert_eq!((fifo(&belady, 3), fifo(&belady, 4)), (9, 10));
        assert_eq!((lru(&belady, 3), lru(&belady, 4)), (10, 8));
        assert_eq!((optimum(&belady, 3), optimum(&belady, 4)), (7, 6));
    }

    #[test]
    fn s3_fifo_keeps_what_is_touched_twice_from_a_scan() {
        let mut touches = vec![1, 2, 1, 2, 1, 2];
        touches.extend(10..30);
        touches.extend([1, 2]);
        let trace = trace(&touches);
        assert_eq!(s3_fifo(&trace, 10), 22);
        assert_eq!(fifo(&trace, 10), 24);
    }
}
