//! Forked children that read this process's slots, until they exit or call exec.
//!
//! Each inherits an [`AttachCount`]. If none can be created (under the program's own filter, or
//! beyond the system's limits), a child inherits the last one, and both children count as alive
//! until the last of them has exited. Without any, slots are never freed.
//!
//! A child counts those of its children that read its own slots. Children that read its parent's
//! slots have inherited the parent's attach count, too.

use softswap_engine::api::engine::Engine;
use softswap_sys::attach_count::AttachCount;
use softswap_sys::exemption;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Children with one attach count.
struct Group {
    attached: AttachCount,
    children: usize,
}

/// Children of this process.
pub(crate) struct ForkedChildren(Vec<Group>);

/// Attach count that the next child inherits.
pub(crate) enum ChildMark {
    /// The child has an attach count of its own.
    Own(AttachCount),
    /// The child shares the attach count of earlier children.
    Shared,
    /// None: the child counts as alive permanently.
    Unseen,
}

impl ChildMark {
    /// Keeps the attach count in the child.
    pub(crate) fn keep(self) {
        if let ChildMark::Own(attached) = self {
            attached.keep();
        }
    }
}

static CHILDREN: Mutex<ForkedChildren> = Mutex::new(ForkedChildren(Vec::new()));

/// Locks the children during a fork.
pub(crate) fn lock() -> MutexGuard<'static, ForkedChildren> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ForkedChildren {
    /// Makes the attach count of the next child.
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

    /// Called in the parent after a successful fork.
    pub(crate) fn made(&mut self, mark: ChildMark) {
        match mark {
            ChildMark::Own(attached) => self.0.push(Group { attached, children: 1 }),
            ChildMark::Shared => self.0.last_mut().into_iter().for_each(|last| last.children += 1),
            ChildMark::Unseen => return,
        }
        // The next child inherits a different one.
        self.0.last().into_iter().for_each(|last| last.attached.hand_on(false));
    }

    /// Creates an attach count for later children, before the program's own filter forbids it.
    pub(crate) fn provide(&mut self) {
        if self.0.is_empty()
            && let Some(attached) = AttachCount::make()
        {
            attached.hand_on(false);
            self.0.push(Group { attached, children: 0 });
        }
    }

    /// Frees the slots that were kept for children that have exited.
    pub(crate) fn reap(&mut self, engine: &Engine) {
        let stays = exemption::is_in_force();
        self.0.retain_mut(|group| {
            let are_there = !group.attached.has_single_process();
            if !are_there {
                (0..group.children).for_each(|_| engine.child_exited());
                group.children = 0;
            }
            are_there || stays
        });
    }

    /// Called in a child: keeps the inherited mapping, and forgets the parent's children.
    pub(crate) fn forget(&mut self) {
        self.0.drain(..).for_each(|group| group.attached.keep());
    }
}

/// Does the same as [`ForkedChildren::reap`]. Called regularly.
pub(crate) fn reap(engine: &Engine) {
    if let Ok(mut children) = CHILDREN.try_lock() {
        children.reap(engine);
    }
}
