//! Areas that the tree of processes shares: named ones, and those on clusters, by helpers.

use super::areas::Named;
use super::remote::{Helper, LAST_RESTART, Remote};
use super::shared_areas::SharedAreas;
use crate::refusal::Refusal;
use softswap_engine::api::settings::{Config, Inherited};
use softswap_engine::base::stats::Stats;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Helpers, each with the index of its area, and the kind of descriptor that the area inherits.
pub(super) struct Helpers(Vec<(usize, Use, Helper)>);

/// Kind of an inherited descriptor.
type Use = fn(i32) -> Inherited;

impl Helpers {
    /// Starts a helper for each cluster. Adds `notes` for the user.
    pub(super) fn start(
        remotes: &[(usize, Remote)],
        notes: &mut Vec<String>,
    ) -> Result<Helpers, Refusal> {
        let start = |(order, remote): &(usize, Remote)| {
            let by: Use = match remote.is_mirror() {
                true => Inherited::Mirror,
                false => Inherited::RequestQueue,
            };
            Helper::start(remote, notes).map(|helper| (*order, by, helper))
        };
        remotes.iter().map(start).collect::<Result<_, _>>().map(Helpers)
    }
}

/// Areas that the tree shares.
pub(super) struct TreeAreas {
    shared: Option<SharedAreas>,
    helpers: Helpers,
}

impl TreeAreas {
    /// Adds the descriptors that the tree inherits to the configuration.
    pub(super) fn make(
        named: Vec<Named>,
        helpers: Helpers,
        config: &mut Config,
        stats: &Stats,
    ) -> Result<TreeAreas, Refusal> {
        for (order, by, helper) in &helpers.0 {
            config.areas[*order].inherited = Some(by(helper.number()));
        }
        Ok(TreeAreas { shared: SharedAreas::make(named, config, stats)?, helpers })
    }

    /// Returns the descriptors that the tree inherits.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let shared = self.shared.iter().flat_map(SharedAreas::descriptors);
        shared.chain(self.helpers.0.iter().map(|(_, _, helper)| helper.fd()))
    }

    /// Starts threads that restart helpers that exit, with a message unless `is_quiet`, and those
    /// that watch raw areas.
    pub(super) fn watch(&mut self, is_quiet: bool) -> Result<(), Refusal> {
        self.shared.iter_mut().try_for_each(SharedAreas::watch)?;
        self.helpers.0.iter_mut().try_for_each(|(_, _, helper)| helper.watch(is_quiet))
    }

    /// Waits after the program's exit until each helper runs, since helpers remove pages of dead
    /// processes.
    pub(super) fn await_helpers(&self) {
        let until = Instant::now() + LAST_RESTART;
        self.helpers.0.iter().for_each(|(_, _, helper)| helper.await_restart(until));
    }

    /// Reaps clusters of dead processes. Returns news for the user.
    pub(super) fn poll(&mut self) -> Vec<String> {
        self.shared.iter_mut().flat_map(SharedAreas::poll).collect()
    }

    /// Releases the claims of named areas after the program's exit, and removes the marks of raw
    /// ones, unless other processes of the tree still run.
    pub(super) fn release_named(&mut self) {
        self.shared = None;
    }
}
