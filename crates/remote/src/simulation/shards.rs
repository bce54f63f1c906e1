//! Shards: each is a primary with its replica, and has a part of the slots.

use crate::topology::{SLOTS, Topology};
use crate::url::Address;

/// Time in which a server reads a page, and writes an extent.
pub(super) const READ_NS: u64 = 8_000;
pub(super) const WRITE_NS: u64 = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Serves,
    Promoting,
    /// Primary and replica are dead, and their content is lost.
    Lost,
}

#[derive(Clone, Debug)]
pub(super) struct Shard {
    pub(super) state: State,
    /// Time at which the shard serves again.
    pub(super) back_ns: u64,
    pub(super) has_replica: bool,
    busy_ns: u64,
    pub(super) worked_ns: u64,
}

impl Shard {
    fn new() -> Shard {
        let (state, back_ns) = (State::Serves, 0);
        Shard { state, back_ns, has_replica: true, busy_ns: 0, worked_ns: 0 }
    }

    pub(super) fn serve(&mut self, now_ns: u64, takes_ns: u64) -> u64 {
        self.busy_ns = self.busy_ns.max(now_ns) + takes_ns;
        self.worked_ns += takes_ns;
        self.busy_ns
    }

    pub(super) fn serves(&self) -> bool {
        self.state == State::Serves
    }
}

pub(super) fn shards(count: u16) -> Vec<Shard> {
    vec![Shard::new(); count.into()]
}

pub(super) fn topology(shards: &[Shard]) -> Topology {
    let count = shards.len();
    let line = |(at, shard): (usize, &Shard)| {
        let (first, last) = (at * SLOTS / count, (at + 1) * SLOTS / count - 1);
        let flags = if shard.state == State::Lost { "master,fail" } else { "master" };
        format!("id{at} node{at}:6379@1 {flags} - 0 0 1 connected {first}-{last}\n")
    };
    let text: String = shards.iter().enumerate().map(line).collect();
    let address = Address { host: "node0".into(), port: 6379 };
    Topology::parse(&text, &address, false).unwrap_or_else(|| Topology::single(address))
}

pub(super) fn owner(count: usize, slot: u16) -> usize {
    // The first shard whose last slot is not below `slot`.
    let guess = usize::from(slot) * count / SLOTS;
    if usize::from(slot) > (guess + 1) * SLOTS / count - 1 { guess + 1 } else { guess }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_owners_follow_topology() {
        for count in [2, 3, 7, 50] {
            let topology = topology(&shards(count));
            for slot in 0..SLOTS as u16 {
                let host = &topology.owner(slot).unwrap().address.host;
                assert_eq!(*host, format!("node{}", owner(count.into(), slot)), "slot {slot}");
            }
        }
    }
}
