//! Adoption of memory that a process mapped before it had an engine.
//!
//! The mappings are at their final addresses. No other thread runs during the adoption.

use crate::base::page::{PageNo, Place};
use crate::core::Core;
use crate::memory::address_space::{AtFork, CHUNK_PAGES, Layout};
use crate::memory::context::Contexts;
use crate::paths::reclaim::{self, Round};
use crate::policy::refault::FRESH;
use softswap_sys::PAGE_SIZE;
use softswap_sys::proc_maps::{Mapping, Pages};
use std::io;
use std::ops::Range;

/// Adds `mappings` and charges their present pages. Places no other mapping in `reserved`.
pub(crate) fn adopt(
    core: &Core,
    mappings: &[Mapping],
    reserved: Option<&Range<usize>>,
) -> io::Result<()> {
    let mut layout = core.memory.space.lock();
    for mapping in mappings {
        add(core, &mut layout, mapping);
    }
    if let Some(reserved) = reserved {
        layout.reserve(pages_of(core, reserved));
    }
    drop(layout);
    let pages = Pages::open();
    for mapping in mappings.iter().filter(|mapping| mapping.is_private_anonymous) {
        pages.each_run(mapping.range.clone(), &mut |run| learn(core, pages_of(core, &run)))?;
    }
    Ok(())
}

fn pages_of(core: &Core, range: &Range<usize>) -> Range<PageNo> {
    let page = |address: usize| ((address - core.memory.window.base()) / PAGE_SIZE) as PageNo;
    page(range.start)..page(range.end)
}

fn add(core: &Core, layout: &mut Layout, mapping: &Mapping) {
    let range = pages_of(core, &mapping.range);
    if !mapping.is_private_anonymous {
        by_chunk(range.clone()).for_each(|part| core.memory.space.touch(part.start));
        core.memory.pages.begin(range.clone(), Place::Unmanaged);
        return layout.set_unmanaged(range);
    }
    core.memory.space.add(layout, range.clone());
    layout.set_protection(range.clone(), mapping.protection);
    for (is_so, what) in
        [(mapping.is_withheld, AtFork::Withheld), (mapping.is_wiped, AtFork::Wiped)]
    {
        if is_so {
            layout.at_fork(range.clone(), what, true);
        }
    }
}

fn learn(core: &Core, run: Range<PageNo>) {
    let memory = &core.memory;
    memory.budget.charge((run.end - run.start) as usize);
    for part in by_chunk(run.clone()) {
        memory.space.touch(part.start);
        memory.space.add_resident(part.start, (part.end - part.start) as u32);
    }
    // Earlier touches are unknown, so the pages get the age of new ones.
    memory.pages.begin(run, Place::resident(FRESH));
}

fn by_chunk(range: Range<PageNo>) -> impl Iterator<Item = Range<PageNo>> {
    (range.start / CHUNK_PAGES..range.end.div_ceil(CHUNK_PAGES)).map(move |chunk| {
        let first = chunk * CHUNK_PAGES;
        range.start.max(first)..range.end.min(first + CHUNK_PAGES)
    })
}

pub(crate) fn fit(core: &Core, contexts: &Contexts) {
    while core.memory.budget.is_low(core.other_bytes()) {
        let mut context = contexts.claim_background();
        if matches!(reclaim::direct_round(core, &mut context), Round::Stuck(_)) {
            break;
        }
    }
    core.report();
}
