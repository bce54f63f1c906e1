//! Forked children that read this process's slots, until they are gone or have
//! called exec.
//!
//! Each inherits something that shows whether it is there ([`AttachCount`]), by no
//! descriptor: nothing that the child does to descriptors ends it, and nothing
//! of it is seen in the parent. One that is made where no other can be had (under
//! a filter of the program's own, or beyond the system's limits) inherits the last
//! one's, and both are there until the last of them is gone. Where there is none
//! at all, slots are kept for good: too long is no harm to the data.
//!
//! A child has no slots of its own, so it counts none of its children: what those
//! read is its parent's, and so is what they inherit.

use crate::base::program_filter;
use softswap_engine::door::engine::Engine;
use softswap_sys::attach_count::AttachCount;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What children have inherited, and how many.
struct Family {
    attached: AttachCount,
    children: usize,
}

/// Those of this process.
pub(crate) struct Heirs(Vec<Family>);

/// What the child that is forked next inherits.
pub(crate) enum Heir {
    /// One of its own.
    Own(AttachCount),
    /// What those before it have.
    Shared,
    /// Nothing: nobody can tell when it is gone.
    Unseen,
}

impl Heir {
    /// In the child.
    pub(crate) fn keep(self) {
        if let Heir::Own(attached) = self {
            attached.keep();
        }
    }
}

static HEIRS: Mutex<Heirs> = Mutex::new(Heirs(Vec::new()));

/// Locks them, for the length of a fork.
pub(crate) fn lock() -> MutexGuard<'static, Heirs> {
    HEIRS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heirs {
    /// For the child that is forked next.
    pub(crate) fn make(&mut self) -> Heir {
        if !program_filter::is_in_force()
            && let Some(attached) = AttachCount::make()
        {
            return Heir::Own(attached);
        }
        let Some(last) = self.0.last() else { return Heir::Unseen };
        last.attached.hand_on(true);
        Heir::Shared
    }

    /// In the parent: the child is there, if fork has not failed.
    pub(crate) fn made(&mut self, heir: Heir) {
        match heir {
            Heir::Own(attached) => self.0.push(Family { attached, children: 1 }),
            Heir::Shared => self.0.last_mut().into_iter().for_each(|last| last.children += 1),
            Heir::Unseen => return,
        }
        // The next child has another one.
        self.0.last().into_iter().for_each(|last| last.attached.hand_on(false));
    }

    /// Before a filter of the program's own: later children need something that
    /// was made before.
    pub(crate) fn provide(&mut self) {
        if self.0.is_empty()
            && let Some(attached) = AttachCount::make()
        {
            attached.hand_on(false);
            self.0.push(Family { attached, children: 0 });
        }
    }

    /// Gives back the slots kept for children that are gone.
    pub(crate) fn reap(&mut self, engine: &Engine) {
        let stays = program_filter::is_in_force();
        self.0.retain_mut(|family| {
            let are_there = !family.attached.is_alone();
            if !are_there {
                (0..family.children).for_each(|_| engine.child_gone());
                family.children = 0;
            }
            are_there || stays
        });
    }

    /// In a child, which has inherited at most what its parent made for it, and
    /// keeps that.
    pub(crate) fn forget(&mut self) {
        self.0.drain(..).for_each(|family| family.attached.keep());
    }
}

/// As [`Heirs::reap`]. Called now and then.
pub(crate) fn reap(engine: &Engine) {
    if let Ok(mut heirs) = HEIRS.try_lock() {
        heirs.reap(engine);
    }
}
