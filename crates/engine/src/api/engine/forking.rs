//! Quiescing the engine, for fork and restricted mode.

use super::Engine;
use crate::base::page::PageNo;
use crate::codec::seal::Sealer;
use crate::core::recorder::Recorder;
use crate::memory::address_space::Layout;
use crate::memory::context::{Context, Contexts};
use crate::paths::mapping;
use crate::steps::swap_cache;
use softswap_sys::own_descriptors;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

/// The quiesced engine: no operation is in progress. Used for fork.
///
/// ```
/// use softswap_engine::api::engine::Engine;
/// fn fork(engine: &Engine, fork: impl FnOnce()) -> std::io::Result<()> {
///     let quiesced = engine.quiesce();
///     engine.before_fork(&quiesced)?;
///     fork();
///     engine.child_made(&quiesced, engine.child_reads_slots(&quiesced));
///     drop(quiesced);
///     Ok(())
/// }
/// ```
pub struct Quiesced<'e> {
    all_contexts: &'e Contexts,
    contexts: Vec<MutexGuard<'e, Context>>,
    layout: MutexGuard<'e, Layout>,
    _moves: MutexGuard<'e, ()>,
}

impl Drop for Quiesced<'_> {
    fn drop(&mut self) {
        // Release the contexts first: without the record, a fault of this thread waits for them.
        self.contexts.clear();
        // `_moves` is still held, so the record is not that of another thread's fork.
        self.all_contexts.end_fork();
    }
}

impl Engine {
    /// Waits until no other thread has an operation in progress, and prevents new ones until the
    /// result is dropped, in parent and child. The calling thread can still fault.
    #[must_use]
    pub fn quiesce(&self) -> Quiesced<'_> {
        let moves = self.remapping.lock().unwrap_or_else(PoisonError::into_inner);
        self.contexts.begin_fork();
        let layout = self.core.memory.space.lock();
        let contexts = self.contexts.claim_for_fork();
        Quiesced { all_contexts: &self.contexts, contexts, layout, _moves: moves }
    }

    /// Lets the child inherit the window and the keys of the pages that it may read.
    pub fn before_fork(&self, quiesced: &Quiesced<'_>) -> io::Result<()> {
        self.core.stores.areas.hand_down_keys();
        self.core.memory.window.inherit(&self.managed_ranges(quiesced), true)
    }

    /// Enters the restricted mode, in which the engine uses fewer system calls. `body` runs while
    /// no other thread has an operation in progress.
    pub fn enter_restricted_mode(&self, body: impl FnOnce()) {
        let quiesced = self.quiesce();
        body();
        self.core.stores.child_areas.forbid();
        // If pages can be moved, disables batch unmapping, which copies by process_vm_readv.
        self.core.memory.pinners.stop();
        drop(quiesced);
    }

    pub fn child_reads_slots(&self, _quiesced: &Quiesced<'_>) -> bool {
        self.core.stores.areas.own_used_slots() > 0
    }

    /// In the parent: slots that the child may read are not reused until [`Engine::child_exited`].
    pub fn child_made(&self, quiesced: &Quiesced<'_>, reads_slots: bool) {
        if reads_slots {
            self.core.stores.areas.freeze();
        }
        // The child must not read pages that are sealed later.
        self.core.stores.areas.sealers().for_each(Sealer::end_epoch);
        // Fails only if the call before the fork failed; then nothing is inherited.
        let _ = self.core.memory.window.inherit(&self.managed_ranges(quiesced), false);
    }

    fn managed_ranges(&self, quiesced: &Quiesced<'_>) -> Vec<(PageNo, usize)> {
        let whole = 0..self.core.memory.window.pages() as PageNo;
        let mut managed = Vec::new();
        let mut start = whole.start;
        for unmanaged in quiesced.layout.unmanaged_in(&whole) {
            managed.push((start, (unmanaged.start - start) as usize));
            start = unmanaged.end;
        }
        managed.push((start, (whole.end - start) as usize));
        managed.retain(|(_, count)| *count > 0);
        managed
    }

    /// Reverts one [`Engine::child_made`] when the child no longer reads slots.
    pub fn child_exited(&self) {
        self.core.stores.areas.thaw();
    }

    /// Makes the engine of a forked child independent. The child reads its parent's slots and
    /// writes to areas that it opens on demand. Without any, its pages stay in DRAM or in the pool.
    /// On an error the caller must stop the child.
    pub fn become_child(&self, quiesced: &mut Quiesced<'_>) -> io::Result<()> {
        self.contexts.abandon_rings(&mut quiesced.contexts);
        own_descriptors::close_withheld();
        let managed = self.managed_ranges(quiesced);
        self.core.memory.window.reopen_after_fork(&managed)?;
        self.core.memory.window.inherit(&managed, false)?;
        softswap_sys::shared::make_private(self.core.stats.words())?;
        self.core.stats.reset();
        // Before anything is freed: free slots of a shared area belong to the parent.
        if !self.core.stores.areas.inherit() {
            return Err(io::Error::other(
                "its parent's swap file cannot be opened for reading only",
            ));
        }
        swap_cache::forget_all(&self.core);
        self.core.memory.budget.inherit();
        let may_write = self.core.stores.child_areas.begin(&self.core.stores.areas);
        self.core.stores.may_write.store(may_write, Relaxed);
        mapping::drop_not_inherited(&self.core, &mut quiesced.layout)?;
        if !may_write {
            self.core.widen_pool();
        }
        self.core.memory.pinners.stop();
        self.core.policies.readahead.serve(false);
        self.core.background.stop();
        self.core.recorder.iter().for_each(Recorder::stop);
        Ok(())
    }
}
