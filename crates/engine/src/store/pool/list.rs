//! Doubly linked lists of slab numbers. The links are in preallocated tables, so a slab can be
//! removed from the middle and no operation allocates.

pub(super) const NONE: u32 = u32::MAX;

/// Neighbours of a slab in its list. A slab is on at most one list of a table.
#[derive(Clone, Copy)]
pub(super) struct Link {
    previous: u32,
    next: u32,
}

impl Link {
    pub(super) const UNLINKED: Link = Link { previous: NONE, next: NONE };
}

#[derive(Clone, Copy)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(super) const EMPTY: List = List { first: NONE, last: NONE };

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn iter<'l>(&self, links: &'l [Link]) -> impl Iterator<Item = u32> + use<'l> {
        std::iter::successors(self.first(), |&slab| {
            Some(links[slab as usize].next).filter(|&next| next != NONE)
        })
    }

    pub(super) fn push_first(&mut self, links: &mut [Link], slab: u32) {
        links[slab as usize] = Link { previous: NONE, next: self.first };
        match self.first {
            NONE => self.last = slab,
            second => links[second as usize].previous = slab,
        }
        self.first = slab;
    }

    pub(super) fn push_last(&mut self, links: &mut [Link], slab: u32) {
        links[slab as usize] = Link { previous: self.last, next: NONE };
        match self.last {
            NONE => self.first = slab,
            former => links[former as usize].next = slab,
        }
        self.last = slab;
    }

    pub(super) fn remove(&mut self, links: &mut [Link], slab: u32) {
        let Link { previous, next } = std::mem::replace(&mut links[slab as usize], Link::UNLINKED);
        match previous {
            NONE => self.first = next,
            _ => links[previous as usize].next = next,
        }
        match next {
            NONE => self.last = previous,
            _ => links[next as usize].previous = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn list_matches_deque(
            steps in prop::collection::vec((0..3, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut table = [Link::UNLINKED; 16];
            let (mut list, mut model) = (List::EMPTY, VecDeque::new());
            for (step, pick) in steps {
                let absent: Vec<u32> = (0..16).filter(|slab| !model.contains(slab)).collect();
                match step {
                    0 if !absent.is_empty() => {
                        list.push_first(&mut table, absent[pick.index(absent.len())]);
                        model.push_front(absent[pick.index(absent.len())]);
                    }
                    1 if !absent.is_empty() => {
                        list.push_last(&mut table, absent[pick.index(absent.len())]);
                        model.push_back(absent[pick.index(absent.len())]);
                    }
                    2 if !model.is_empty() => {
                        let slab = model.remove(pick.index(model.len())).unwrap();
                        list.remove(&mut table, slab);
                    }
                    _ => {}
                }
                let links = &table;
                let walk = |from, along: fn(&Link) -> u32| {
                    std::iter::successors((from != NONE).then_some(from), move |&slab| {
                        Some(along(&links[slab as usize])).filter(|&slab| slab != NONE)
                    })
                };
                prop_assert!(walk(list.first, |link| link.next).eq(model.iter().copied()));
                prop_assert!(walk(list.last, |link| link.previous).eq(model.iter().rev().copied()));
            }
        }
    }
}
