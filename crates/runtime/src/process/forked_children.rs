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
//! A child counts those of its children that read slots of its own. What these read of
//! its parent's the parent sees by what they have inherited of the parent.

use softswap_engine::door::engine::Engine;
use softswap_sys::attach_count::AttachCount;
use softswap_sys::exemption;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What children have inherited, and how many.
struct Group {
    attached: AttachCount,
    children: usize,
}

/// Those of this process.
pub(crate) struct ForkedChildren(Vec<Group>);

/// What the child that is forked next inherits.
pub(crate) enum ChildMark {
    /// One of its own.
    Own(AttachCount),
    /// What those before it have.
    Shared,
    /// Nothing: nobody can tell when it is gone.
    Unseen,
}

impl ChildMark {
    /// In the child.
    pub(crate) fn keep(self) {
        if let ChildMark::Own(attached) = self {
            attached.keep();
        }
    }
}

static CHILDREN: Mutex<ForkedChildren> = Mutex::new(ForkedChildren(Vec::new()));

/// Locks them, for the length of a fork.
pub(crate) fn lock() -> MutexGuard<'static, ForkedChildren> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ForkedChildren {
    /// For the child that is forked next.
    pub(crate) fn make(&mut self) -> ChildMark {
        if !exemption::is_in_force()
            && let Some(attached) = AttachCount::make()
        {
            return ChildMark::Own(attached);
        }
        let Some(last) = self.0.last() else { return ChildMark::Unseen };
        last.attached.hand_on(true);
        ChildMark::Shared
    }

    /// In the parent: the child is there, if fork has not failed.
    pub(crate) fn made(&mut self, mark: ChildMark) {
        match mark {
            ChildMark::Own(attached) => self.0.push(Group { attached, children: 1 }),
            ChildMark::Shared => self.0.last_mut().into_iter().for_each(|last| last.children += 1),
            ChildMark::Unseen => return,
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
            self.0.push(Group { attached, children: 0 });
        }
    }

    /// Gives back the slots kept for children that are gone.
    pub(crate) fn reap(&mut self, engine: &Engine) {
        let stays = exemption::is_in_force();
        self.0.retain_mut(|group| {
            let are_there = !group.attached.is_alone();
            if !are_there {
                (0..group.children).for_each(|_| engine.child_gone());
                group.children = 0;
            }
            are_there || stays
        });
    }

    /// In a child, which has inherited at most what its parent made for it, and
    /// keeps that.
    pub(crate) fn forget(&mut self) {
        self.0.drain(..).for_each(|group| group.attached.keep());
    }
}

/// As [`ForkedChildren::reap`]. Called now and then.
pub(crate) fn reap(engine: &Engine) {
    if let Ok(mut children) = CHILDREN.try_lock() {
        children.reap(engine);
    }
}
