//! What all of a tree of processes have in common of their areas: those with a name, and helpers
//! that speak to clusters of servers.

use super::areas::Named;
use super::remote::{Helper, LAST_RESTART, Remote};
use super::shared_areas::SharedAreas;
use crate::refusal::Refusal;
use softswap_engine::base::stats::Stats;
use softswap_engine::door::settings::{Config, Inherited};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// The helpers, each with the place of its area among all, and how that uses it.
pub(super) struct Helpers(Vec<(usize, Use, Helper)>);

/// What an area takes by the descriptor of a helper's.
type Use = fn(i32) -> Inherited;

impl Helpers {
    /// Starts one for each cluster. What the user should know comes to the notes.
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

/// What a tree has in common.
pub(super) struct TreeAreas {
    shared: Option<SharedAreas>,
    helpers: Helpers,
}

impl TreeAreas {
    /// Notes in the configuration what the tree inherits.
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

    /// What all of the tree inherit.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let shared = self.shared.iter().flat_map(SharedAreas::descriptors);
        shared.chain(self.helpers.0.iter().map(|(_, _, helper)| helper.fd()))
    }

    /// Has helpers that end started again, in threads, from now on. Unless it `is_quiet`, that is
    /// said.
    pub(super) fn watch(&mut self, is_quiet: bool) -> Result<(), Refusal> {
        self.helpers.0.iter_mut().try_for_each(|(_, _, helper)| helper.watch(is_quiet))
    }

    /// The program has ended: what it has left on clusters is removed by helpers, and they must be
    /// there for that.
    pub(super) fn await_helpers(&self) {
        let until = Instant::now() + LAST_RESTART;
        self.helpers.0.iter().for_each(|(_, _, helper)| helper.await_restart(until));
    }

    /// Takes back what the dead have left.
    pub(super) fn look(&self) {
        self.shared.iter().for_each(SharedAreas::look);
    }
}
