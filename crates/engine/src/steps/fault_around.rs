//! Fresh pages for a program that fills memory from end to end.
//!
//! A fault costs about as much as four pages of zeroes, so where touches go on
//! the next pages come with the one that was touched: never more than are
//! resident right before it, and only while memory is not low. Who touches a
//! page here and there gets that one alone.

use crate::base::page::{Claim, PageNo, Place};
use crate::core::Core;
use crate::steps::install::{MAX_FRESH_PAGES, finish, zeroes};
use softswap_sys::PAGE_SIZE;
use softswap_sys::window::Writes;

/// Installs fresh pages behind one just written, as many as there are resident
/// ones before it: a sequential first touch doubles its stride up to the limit.
pub(crate) fn run_ahead(core: &Core, page: PageNo) {
    let behind = (1..=MAX_FRESH_PAGES as u64)
        .take_while(|back| page >= *back && core.memory.pages.load(page - back).is_resident())
        .count();
    // Never at the price of reclaim: this is a guess.
    if behind == 0 || core.memory.budget.is_low(core.other_bytes() + behind * PAGE_SIZE) {
        return;
    }
    let mut claims = [const { None }; MAX_FRESH_PAGES];
    let mut count = 0;
    for (next, claim_at) in (page + 1..).zip(claims.iter_mut().take(behind)) {
        *claim_at = claim_fresh(core, next);
        if claim_at.is_none() {
            break;
        }
        count += 1;
    }
    if count == 0 || !core.memory.budget.try_charge(count, core.other_bytes()) {
        return;
    }
    let installed = install_some(core, page + 1, count);
    core.memory.budget.release(count - installed);
    for (next, claim) in (page + 1..).zip(&mut claims[..installed]) {
        if let Some(claim) = claim.take() {
            finish(&core.memory, next, claim, core.policies.clock.heat_of_new(next), None);
        }
    }
}

/// Installs up to `count` fresh pages; fewer where the protection changes among
/// them, which no call crosses. Returns how many.
fn install_some(core: &Core, page: PageNo, count: usize) -> usize {
    let mut count = count;
    while count > 0 {
        let installed = core.memory.window.install(page, zeroes(count), Writes::Allowed).pages;
        if installed > 0 {
            return installed;
        }
        count /= 2;
    }
    0
}

fn claim_fresh(core: &Core, page: PageNo) -> Option<Claim<'static>> {
    if page as usize >= core.memory.window.pages() {
        return None;
    }
    let seen = core.memory.pages.load(page);
    if seen.place() != Place::Vacant || seen.is_busy() {
        return None;
    }
    core.memory.space.touch(page);
    let claim = core.memory.pages.try_claim(page, seen)?;
    // Asked after claiming: an unmap now waits for the claim to end.
    core.memory.space.is_mapped(page).then_some(claim)
}
