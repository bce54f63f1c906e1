//! Forked children that read this process's slots, until they exit or call exec.
//!
//! Each inherits an [`AttachCount`]. If none can be created (under the program's own filter, or
//! beyond the system's limits), a child shares the last one, and its slots are kept until
//! the last child that shares it has exited. If there is none at all, they are never freed.
//!
//! Grandchildren that read this process's slots have inherited its attach count, too.

use softswap_engine::api::engine::Engine;
use softswap_sys::attach_count::AttachCount;
use softswap_sys::exemption;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Group {
    attached: AttachCount,
    children: usize,
}

pub(crate) struct ForkedChildren(Vec<Group>);

pub(crate) enum ChildMark {
    Own(AttachCount),
    Shared,
    /// The child has no attach count and is considered alive permanently.
    Unseen,
}

impl ChildMark {
    pub(crate) fn keep(self) {
        if let ChildMark::Own(attached) = self {
            attached.keep();
        }
    }
}

static CHILDREN: Mutex<ForkedChildren> = Mutex::new(ForkedChildren(Vec::new()));

pub(crate) fn lock() -> MutexGuard<'static, ForkedChildren> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ForkedChildren {
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

    /// Records a child in the parent. Called after a failed fork, too: then no process is attached.
    pub(crate) fn record(&mut self, mark: ChildMark) {
        match mark {
            ChildMark::Own(attached) => self.0.push(Group { attached, children: 1 }),
            ChildMark::Shared => self.0.last_mut().into_iter().for_each(|last| last.children += 1),
            ChildMark::Unseen => return,
        }
        // The next child must not inherit the same count.
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

    pub(crate) fn reap(&mut self, engine: &Engine) {
        let must_keep = exemption::is_in_force();
        self.0.retain_mut(|group| {
            let have_children = !group.attached.has_single_process();
            if !have_children {
                (0..group.children).for_each(|_| engine.child_exited());
                group.children = 0;
            }
            have_children || must_keep
        });
    }

    /// Forgets the parent's children in a forked child. The child stays attached to their counts.
    pub(crate) fn forget(&mut self) {
        self.0.drain(..).for_each(|group| group.attached.keep());
    }
}

/// Called periodically. Does nothing if another thread holds the lock.
pub(crate) fn reap(engine: &Engine) {
    if let Ok(mut children) = CHILDREN.try_lock() {
        children.reap(engine);
    }
}
