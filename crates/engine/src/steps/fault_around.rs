//! Fault-around: zeroed pages installed ahead of a sequential first touch.
//!
//! A fault costs about as much as zeroing four pages. So a touch gets as many pages as are resident
//! directly before it, while memory is not low.

use crate::base::page::{Claim, PageNo, Place};
use crate::core::Core;
use crate::steps::install::{MAX_FRESH_PAGES, finish, zeroes};
use softswap_sys::PAGE_SIZE;
use softswap_sys::window::Writes;

/// Installs as many fresh pages after a written one as are resident before it, up to the limit.
pub(crate) fn run_ahead(core: &Core, page: PageNo) {
    let behind = (1..=MAX_FRESH_PAGES as u64)
        .take_while(|back| page >= *back && core.memory.pages.load(page - back).is_resident())
        .count();
    // These pages may never be touched, so they must not cause reclaim.
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
            finish(&core.memory, next, claim, core.policies.clock.age_of_new(next), None);
        }
    }
}

/// Returns the number installed. Halves the range until all its pages have the same protection.
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
    // Check after claiming: an unmap now waits for the claim.
    core.memory.space.is_mapped(page).then_some(claim)
}
