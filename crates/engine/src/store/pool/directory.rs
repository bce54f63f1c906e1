//! Lists of slabs: a slab is free, or used and on the age list. A used slab with a free slot is
//! also listed by class and fill level.

use super::class::CLASSES;
use super::list::{Link, List};
use super::slab::{GROUPS, Slab};

pub(super) struct Directory {
    free: List,
    with_free_slots: [[List; GROUPS]; CLASSES],
    /// Longest in use first.
    by_age: List,
    /// Links of `free` and `with_free_slots`; a slab is never on both.
    links: Vec<Link>,
    age_links: Vec<Link>,
}

impl Directory {
    pub(super) fn new(count: usize) -> Directory {
        let mut directory = Directory {
            free: List::EMPTY,
            with_free_slots: [[List::EMPTY; GROUPS]; CLASSES],
            by_age: List::EMPTY,
            links: Vec::new(),
            age_links: Vec::new(),
        };
        directory.grow(count);
        directory
    }

    pub(super) fn grow(&mut self, count: usize) {
        let before = self.links.len();
        for links in [&mut self.links, &mut self.age_links] {
            links.reserve_exact(count - before);
            links.resize(count, Link::UNLINKED);
        }
        for slab in before..count {
            self.free.push_last(&mut self.links, slab as u32);
        }
    }

    pub(super) fn take_free(&mut self) -> Option<u32> {
        let slab = self.free.first()?;
        self.free.remove(&mut self.links, slab);
        self.by_age.push_last(&mut self.age_links, slab);
        Some(slab)
    }

    pub(super) fn retire(&mut self, slab: u32, guard: &mut Slab) {
        self.unlist(slab, guard);
        self.by_age.remove(&mut self.age_links, slab);
    }

    pub(super) fn release_slab(&mut self, slab: u32) {
        self.free.push_first(&mut self.links, slab);
    }

    /// Iterates over the slabs of a class that may have a free slot, the fullest group first.
    pub(super) fn with_free_slots(&self, class: usize) -> impl Iterator<Item = u32> + '_ {
        self.with_free_slots[class].iter().rev().flat_map(|list| list.iter(&self.links))
    }

    pub(super) fn sparsest(&self, class: usize) -> Option<u32> {
        self.with_free_slots[class].iter().find_map(List::first)
    }

    pub(super) fn oldest(&self) -> Option<u32> {
        self.by_age.first()
    }

    pub(super) fn make_oldest(&mut self, slab: u32) {
        self.by_age.remove(&mut self.age_links, slab);
        self.by_age.push_first(&mut self.age_links, slab);
    }

    pub(super) fn make_youngest(&mut self, slab: u32) {
        self.by_age.remove(&mut self.age_links, slab);
        self.by_age.push_last(&mut self.age_links, slab);
    }

    /// Moves a used slab to the list for its fill level, or off the lists if it accepts no objects.
    pub(super) fn list(&mut self, slab: u32, guard: &mut Slab) {
        let group = guard.has_free_slot().then(|| guard.group());
        if group == guard.listed {
            return;
        }
        self.unlist(slab, guard);
        if let (Some(class), Some(group)) = (guard.class(), group) {
            self.with_free_slots[class][usize::from(group)].push_last(&mut self.links, slab);
            guard.listed = Some(group);
        }
    }

    fn unlist(&mut self, slab: u32, guard: &mut Slab) {
        if let (Some(class), Some(group)) = (guard.class(), guard.listed.take()) {
            self.with_free_slots[class][usize::from(group)].remove(&mut self.links, slab);
        }
    }
}
