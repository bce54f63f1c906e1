//! Areas that the tree of processes shares: files and devices, and clusters accessed through
//! helpers.

use super::areas::Named;
use super::remote::{Helper, LAST_RESTART, Remote};
use super::shared_areas::SharedAreas;
use crate::refusal::Refusal;
use softswap_engine::api::settings::{Config, Inherited};
use softswap_engine::base::stats::Stats;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Helpers, each with the index of its area and the constructor of its [`Inherited`] value.
pub(super) struct Helpers(Vec<(usize, Constructor, Helper)>);

/// Converts the number of an inherited descriptor to the area's [`Inherited`] value.
type Constructor = fn(i32) -> Inherited;

impl Helpers {
    /// Starts a helper for each cluster. Adds messages for the user to `notes`.
    pub(super) fn start(
        remotes: &[(usize, Remote)],
        notes: &mut Vec<String>,
    ) -> Result<Helpers, Refusal> {
        let start = |(order, remote): &(usize, Remote)| {
            let by: Constructor = match remote.is_mirror() {
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
    /// Prepares the shared areas. Adds to `config` the numbers of the descriptors that the tree
    /// inherits.
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

    /// Starts the threads that watch raw areas, and those that restart exited helpers. The latter
    /// print a message unless `is_quiet`.
    pub(super) fn watch(&mut self, is_quiet: bool) -> Result<(), Refusal> {
        self.shared.iter_mut().try_for_each(SharedAreas::watch)?;
        self.helpers.0.iter_mut().try_for_each(|(_, _, helper)| helper.watch(is_quiet))
    }

    /// Called after the program's exit. Waits for helpers that are being restarted, because they
    /// remove the pages of exited processes.
    pub(super) fn await_helpers(&self) {
        let until = Instant::now() + LAST_RESTART;
        self.helpers.0.iter().for_each(|(_, _, helper)| helper.await_restart(until));
    }

    /// Frees the clusters of exited processes. Returns messages for the user.
    pub(super) fn poll(&mut self) -> Vec<String> {
        self.shared.iter_mut().flat_map(SharedAreas::poll).collect()
    }

    /// Releases the claims of named areas after the program's exit, and removes the marks of raw
    /// ones, unless other processes of the tree still run.
    pub(super) fn release_named(&mut self) {
        self.shared = None;
    }
}
