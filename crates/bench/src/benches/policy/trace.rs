//! A trace: which pages were touched, one after the other; and vectors that
//! record one while an algorithm works on them.

use std::cell::{Cell, RefCell};

/// Touches of pages. A page that is touched several times in a row counts once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trace {
    pub(super) name: String,
    /// Numbers below `pages`, in the order of the addresses.
    pub(super) touches: Vec<u32>,
    /// How many different pages there are.
    pub(super) pages: usize,
}

impl Trace {
    /// Of page numbers from anywhere: they are numbered anew without gaps, in
    /// their order.
    pub(super) fn new(name: &str, mut touches: Vec<u32>) -> Trace {
        touches.dedup();
        let mut distinct = touches.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let mut numbers = vec![0; distinct.last().map_or(0, |last| *last as usize + 1)];
        for (number, page) in (0..).zip(&distinct) {
            numbers[*page as usize] = number;
        }
        touches.iter_mut().for_each(|page| *page = numbers[*page as usize]);
        Trace { name: name.into(), touches, pages: distinct.len() }
    }
}

/// Notes which pages its vectors touch.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    touches: RefCell<Vec<u32>>,
    next_page: Cell<u32>,
}

impl Recorder {
    /// A vector of which `per_page` items fill a page, behind those there are.
    pub(super) fn vector<T: Copy>(&self, items: Vec<T>, per_page: usize) -> Recorded<'_, T> {
        let first_page = self.next_page.get();
        self.next_page.set(first_page + items.len().div_ceil(per_page) as u32);
        Recorded { items, first_page, per_page, recorder: self }
    }

    fn note(&self, page: u32) {
        let mut touches = self.touches.borrow_mut();
        if touches.last() != Some(&page) {
            touches.push(page);
        }
    }

    /// What was touched.
    pub(super) fn finish(self, name: &str) -> Trace {
        Trace::new(name, self.touches.into_inner())
    }
}

/// A vector that notes every access.
#[derive(Debug)]
pub(super) struct Recorded<'r, T> {
    items: Vec<T>,
    first_page: u32,
    per_page: usize,
    recorder: &'r Recorder,
}

impl<T: Copy> Recorded<'_, T> {
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn get(&self, at: usize) -> T {
        self.note(at);
        self.items[at]
    }

    pub(super) fn set(&mut self, at: usize, item: T) {
        self.note(at);
        self.items[at] = item;
    }

    pub(super) fn swap(&mut self, one: usize, other: usize) {
        self.note(one);
        self.note(other);
        self.items.swap(one, other);
    }

    fn note(&self, at: usize) {
        self.recorder.note(self.first_page + (at / self.per_page) as u32);
    }

    /// One item, without a touch.
    pub(super) fn peek(&self, at: usize) -> T {
        self.items[at]
    }

    /// The items as they are, without a touch.
    #[cfg(test)]
    pub(super) fn items(&self) -> &[T] {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbered_without_gaps_in_their_order() {
        let trace = Trace::new("some", vec![70, 70, 3, 900, 70, 3, 3]);
        assert_eq!((trace.touches, trace.pages), (vec![1, 0, 2, 1, 0], 3));
        assert_eq!(Trace::new("none", Vec::new()).pages, 0);
    }

    #[test]
    fn vectors_lie_behind_each_other_and_note_what_is_touched() {
        let recorder = Recorder::default();
        let mut one = recorder.vector(vec![0; 10], 4);
        let other = recorder.vector(vec![7; 4], 4);
        one.set(9, 5);
        assert_eq!((one.get(9), one.get(0), other.get(3)), (5, 0, 7));
        one.swap(0, 9);
        assert_eq!((one.items(), one.len()), (&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], 10));
        assert_eq!(recorder.touches.into_inner(), [2, 0, 3, 0, 2]);
    }
}
