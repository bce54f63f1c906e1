//! Events of the simulation.

use super::shards::{READ_NS, Shard, State, WRITE_NS, owner, shards, topology};
use super::{Found, Latencies, Settings};
use crate::copies::HEDGE_DELAY;
use crate::placement::{Placement, group_of};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

const ROUND_TRIP_NS: u64 = 100_000;
/// The default of `deadline=`.
const DEADLINE_NS: u64 = 10_000_000_000;
/// Time after which groups of a dead shard get other slots.
const REASSIGN_AFTER_NS: u64 = 3_000_000_000;
/// Extents that each client compares or restores in a second.
const COMPARED_PER_SECOND: u64 = 2000;
const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Death { with_replica: bool },
    FailedOver { shard: usize },
    Reassigned { shard: usize },
    Returned { shard: usize },
    Repaired { extent: usize, copy: usize, since_ns: u64 },
    Read { client: usize },
    StartRead(PendingRead),
    Write { client: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PendingRead {
    client: usize,
    extent: usize,
    tried: [bool; 2],
    since_ns: u64,
}

struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }

    fn pause_ns(&mut self, per_second: u32) -> u64 {
        let share = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - share).ln() / f64::from(per_second) * SECOND_NS as f64) as u64
    }
}

struct Model<'s> {
    settings: &'s Settings,
    chance: Chance,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    shards: Vec<Shard>,
    placement: Placement,
    /// For each extent of each client: true for each copy that lacks the last write.
    bad: Vec<[bool; 2]>,
    /// Recent writes of each shard: time, extent, copy.
    recent: Vec<VecDeque<(u64, usize, usize)>>,
    is_known_dead: Vec<Vec<bool>>,
    reads_ns: Vec<u64>,
    writes_ns: Vec<u64>,
    max_repair_ns: u64,
    found: Found,
}

/// Runs the simulation.
///
/// # Panics
/// If there are fewer servers than copies; the command line refuses such numbers.
#[must_use]
pub fn simulate(settings: &Settings) -> Found {
    let shards = shards(settings.servers);
    let copies = settings.copies.into();
    let placement = Placement::new(&topology(&shards), copies).expect("a server for each copy");
    let clients = usize::from(settings.clients);
    let mut model = Model {
        settings,
        chance: Chance(settings.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        events: BinaryHeap::new(),
        recent: vec![VecDeque::new(); shards.len()],
        is_known_dead: vec![vec![false; shards.len()]; clients],
        bad: vec![[false; 2]; clients * settings.extents as usize],
        shards,
        placement,
        reads_ns: Vec::new(),
        writes_ns: Vec::new(),
        max_repair_ns: 0,
        found: Found::default(),
    };
    let end_ns = u64::from(settings.seconds) * SECOND_NS;
    for death in 0..settings.deaths + settings.pair_deaths {
        let at_ns = model.chance.below(end_ns);
        model.at(at_ns, Event::Death { with_replica: death >= settings.deaths });
    }
    for client in 0..clients {
        model.next_operation(0, Event::Read { client });
        model.next_operation(0, Event::Write { client });
    }
    while let Some(Reverse((now_ns, event))) = model.events.pop()
        && now_ns < end_ns
    {
        model.handle_event(now_ns, event);
    }
    model.result(end_ns)
}

impl Model<'_> {
    fn at(&mut self, ns: u64, event: Event) {
        self.events.push(Reverse((ns, event)));
    }

    fn next_operation(&mut self, now_ns: u64, event: Event) {
        let per_second = match event {
            Event::Write { .. } => self.settings.writes,
            _ => self.settings.reads,
        };
        let pause_ns = self.chance.pause_ns(per_second);
        self.at(now_ns + pause_ns, event);
    }

    fn handle_event(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Death { with_replica } => self.die(now_ns, with_replica),
            Event::FailedOver { shard } => self.fail_over(now_ns, shard),
            Event::Reassigned { shard } => self.reassign_groups(now_ns, shard),
            Event::Returned { shard } => {
                self.shards[shard].has_replica = true;
                self.shards[shard].state = State::Serves;
            }
            Event::Repaired { extent, copy, since_ns } => {
                self.repair(now_ns, extent, copy, since_ns)
            }
            Event::Read { client } => {
                self.read(now_ns, client);
                self.next_operation(now_ns, event);
            }
            Event::StartRead(pending_read) => self.start_read(now_ns, pending_read),
            Event::Write { client } => {
                self.write(now_ns, client);
                self.next_operation(now_ns, event);
            }
        }
    }

    fn die(&mut self, now_ns: u64, with_replica: bool) {
        let serving: Vec<usize> =
            (0..self.shards.len()).filter(|at| self.shards[*at].serves()).collect();
        if serving.is_empty() {
            return;
        }
        let shard = serving[self.chance.below(serving.len() as u64) as usize];
        let back_ns = now_ns + u64::from(self.settings.return_s) * SECOND_NS;
        let is_gone = with_replica || !self.shards[shard].has_replica;
        let (state, after_ns, event) = match is_gone {
            true => (State::Lost, REASSIGN_AFTER_NS, Event::Reassigned { shard }),
            false => {
                let failover_ns = u64::from(self.settings.failover_ms) * 1_000_000;
                (State::Promoting, failover_ns, Event::FailedOver { shard })
            }
        };
        let it = &mut self.shards[shard];
        (it.state, it.has_replica, it.back_ns) = (state, false, now_ns + after_ns);
        self.at(now_ns + after_ns, event);
        if is_gone {
            self.all_of(shard).into_iter().for_each(|(extent, copy)| self.corrupt(extent, copy));
            self.at(back_ns.max(now_ns + after_ns), Event::Returned { shard });
        } else {
            self.corrupt_unreplicated(now_ns, shard);
        }
    }

    fn corrupt_unreplicated(&mut self, now_ns: u64, shard: usize) {
        let lag_ns = u64::from(self.settings.replica_lag_ms) * 1_000_000;
        let since_ns = now_ns.saturating_sub(lag_ns);
        let unreplicated: Vec<_> =
            self.recent[shard].drain(..).filter(|(at_ns, ..)| *at_ns > since_ns).collect();
        unreplicated.into_iter().for_each(|(_, extent, copy)| self.corrupt(extent, copy));
    }

    fn corrupt(&mut self, extent: usize, copy: usize) {
        let copies = usize::from(self.settings.copies);
        let was_lost = self.bad[extent][..copies].iter().all(|is_bad| *is_bad);
        self.bad[extent][copy] = true;
        let is_lost = self.bad[extent][..copies].iter().all(|is_bad| *is_bad);
        self.found.lost_extents += u64::from(is_lost && !was_lost);
    }

    fn all_of(&self, shard: usize) -> Vec<(usize, usize)> {
        let count = self.shards.len();
        let copies_in = |group: usize| {
            let slots = self.placement.groups[group].slots.iter().enumerate();
            slots.filter(move |(_, slot)| owner(count, **slot) == shard).map(|(copy, _)| copy)
        };
        let extents = self.settings.extents as usize;
        let of = |at: usize| copies_in(group_of((at % extents) as u64)).map(move |copy| (at, copy));
        (0..self.bad.len()).flat_map(of).collect()
    }

    fn fail_over(&mut self, now_ns: u64, shard: usize) {
        self.shards[shard].state = State::Serves;
        self.is_known_dead.iter_mut().for_each(|known| known[shard] = false);
        let dead_since_ns = now_ns - u64::from(self.settings.failover_ms) * 1_000_000;
        let all = self.all_of(shard);
        self.schedule_repairs(now_ns, &all, dead_since_ns);
        let back_ns = dead_since_ns + u64::from(self.settings.return_s) * SECOND_NS;
        self.at(back_ns.max(now_ns), Event::Returned { shard });
    }

    fn reassign_groups(&mut self, now_ns: u64, shard: usize) {
        let moved = self.placement.misplaced(&topology(&self.shards));
        let lost = self.all_of(shard);
        for (group, copy, slot) in moved {
            self.placement.groups[group].slots[copy] = slot;
        }
        self.is_known_dead.iter_mut().for_each(|known| known[shard] = false);
        self.schedule_repairs(now_ns, &lost, now_ns - REASSIGN_AFTER_NS);
    }

    /// Schedules the repair of bad copies. Each client repairs its own, one after the other.
    fn schedule_repairs(&mut self, now_ns: u64, all: &[(usize, usize)], since_ns: u64) {
        let extents = self.settings.extents as usize;
        let mut seen = vec![0; usize::from(self.settings.clients)];
        for (extent, copy) in all.iter().copied() {
            let turn = &mut seen[extent / extents];
            *turn += 1;
            let at_ns = now_ns + *turn * SECOND_NS / COMPARED_PER_SECOND;
            if self.bad[extent][copy] {
                self.at(at_ns, Event::Repaired { extent, copy, since_ns });
            }
        }
    }

    fn repair(&mut self, now_ns: u64, extent: usize, copy: usize, since_ns: u64) {
        let other_is_bad = self.settings.copies == 1 || self.bad[extent][1 - copy];
        let shard = self.place(extent, copy);
        if !self.bad[extent][copy] || other_is_bad || !self.shards[shard].serves() {
            return;
        }
        self.shards[shard].serve(now_ns, WRITE_NS);
        self.bad[extent][copy] = false;
        self.found.repaired_copies += 1;
        self.max_repair_ns = self.max_repair_ns.max(now_ns - since_ns);
    }

    fn place(&self, extent: usize, copy: usize) -> usize {
        let group = group_of((extent % self.settings.extents as usize) as u64);
        owner(self.shards.len(), self.placement.groups[group].slots[copy])
    }

    fn any_extent(&mut self, client: usize) -> usize {
        let extents = u64::from(self.settings.extents);
        client * extents as usize + self.chance.below(extents) as usize
    }

    fn read(&mut self, now_ns: u64, client: usize) {
        let extent = self.any_extent(client);
        self.start_read(
            now_ns,
            PendingRead { client, extent, tried: [false; 2], since_ns: now_ns },
        );
    }

    fn start_read(&mut self, now_ns: u64, pending_read: PendingRead) {
        let PendingRead { client, extent, mut tried, since_ns } = pending_read;
        let copies = 0..usize::from(self.settings.copies);
        let is_known = |copy: &usize| self.is_known_dead[client][self.place(extent, *copy)];
        let Some(copy) = copies.filter(|copy| !tried[*copy]).min_by_key(is_known) else {
            return self.wait_for_any(now_ns, pending_read);
        };
        let shard = self.place(extent, copy);
        tried[copy] = true;
        let next = Event::StartRead(PendingRead { tried, ..pending_read });
        if !self.shards[shard].serves() {
            let known = std::mem::replace(&mut self.is_known_dead[client][shard], true);
            // A request to a server that is known to be dead fails immediately.
            let read_timeout_ns = if known { 0 } else { HEDGE_DELAY.as_nanos() as u64 };
            return self.at(now_ns + read_timeout_ns, next);
        }
        let done_ns = self.shards[shard].serve(now_ns + ROUND_TRIP_NS / 2, READ_NS);
        let answered_ns = done_ns + ROUND_TRIP_NS / 2;
        match self.bad[extent][copy] {
            true => self.at(answered_ns, next),
            false => self.reads_ns.push(answered_ns - since_ns),
        }
    }

    fn wait_for_any(&mut self, now_ns: u64, PendingRead { extent, since_ns, .. }: PendingRead) {
        let copies = (0..usize::from(self.settings.copies)).filter(|copy| !self.bad[extent][*copy]);
        let back_ns = copies.map(|copy| self.shards[self.place(extent, copy)].back_ns).min();
        match back_ns.filter(|ns| *ns < since_ns + DEADLINE_NS) {
            Some(ns) => self.reads_ns.push(ns.max(now_ns) + ROUND_TRIP_NS - since_ns),
            None => self.found.late_reads += 1,
        }
    }

    /// Waits for a dead server until the copy gets another slot.
    fn write(&mut self, now_ns: u64, client: usize) {
        let extent = self.any_extent(client);
        let copies = usize::from(self.settings.copies);
        let mut done_ns = now_ns;
        for copy in 0..copies {
            let shard = self.place(extent, copy);
            let start_ns = match self.shards[shard].serves() {
                true => now_ns,
                false => self.shards[shard].back_ns.max(now_ns),
            };
            if start_ns >= now_ns + DEADLINE_NS {
                self.found.failed_writes += 1;
                return;
            }
            // Writes that waited for a dead server do not queue: they arrive spread over time.
            let served_ns = match start_ns == now_ns {
                true => self.shards[shard].serve(now_ns + ROUND_TRIP_NS / 2, WRITE_NS),
                false => start_ns + ROUND_TRIP_NS / 2 + WRITE_NS,
            };
            self.bad[extent][copy] = self.shards[shard].state == State::Lost;
            self.note_recent(served_ns, shard, extent, copy);
            done_ns = done_ns.max(served_ns + ROUND_TRIP_NS / 2);
        }
        self.writes_ns.push(done_ns - now_ns);
    }

    fn note_recent(&mut self, at_ns: u64, shard: usize, extent: usize, copy: usize) {
        let lag_ns = u64::from(self.settings.replica_lag_ms) * 1_000_000;
        let recent = &mut self.recent[shard];
        while recent.front().is_some_and(|(old_ns, ..)| old_ns + lag_ns < at_ns) {
            recent.pop_front();
        }
        recent.push_back((at_ns, extent, copy));
    }

    fn result(mut self, end_ns: u64) -> Found {
        let worked_ns: u64 = self.shards.iter().map(|shard| shard.worked_ns).sum();
        let all_ns = end_ns as f64 * self.shards.len() as f64;
        self.found.busy_share = worked_ns as f64 / all_ns;
        self.found.longest_repair_s = self.max_repair_ns as f64 / SECOND_NS as f64;
        self.found.reads = Latencies::of(self.reads_ns);
        self.found.writes = Latencies::of(self.writes_ns);
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            servers: 6,
            clients: 4,
            extents: 1024,
            copies: 2,
            reads: 500,
            writes: 100,
            deaths: 0,
            pair_deaths: 0,
            replica_lag_ms: 50,
            failover_ms: 1000,
            return_s: 5,
            seconds: 30,
            seed: 3,
        }
    }

    #[test]
    fn reads_without_failures_take_network_and_service_time() {
        let found = simulate(&settings());
        assert_eq!((found.lost_extents, found.late_reads, found.failed_writes), (0, 0, 0));
        assert_eq!(found.reads.p50_us, (ROUND_TRIP_NS + READ_NS) as f64 / 1000.0);
        let expected = 4.0 * 500.0 * 30.0;
        assert!((found.reads.count as f64 / expected - 1.0).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn two_copies_survive_server_loss() {
        let dying = Settings { deaths: 6, ..settings() };
        let one = simulate(&Settings { copies: 1, ..dying.clone() });
        assert!(one.lost_extents > 0, "{one:?}");
        // A copy cannot be restored without another one.
        assert_eq!(one.repaired_copies, 0);
        let pair = Settings { deaths: 0, pair_deaths: 1, ..settings() };
        assert!(simulate(&Settings { copies: 1, ..pair.clone() }).lost_extents > 300);
        let two = simulate(&pair);
        assert_eq!(two.lost_extents, 0, "{two:?}");
        assert!(two.repaired_copies > 1000 && two.longest_repair_s >= 3.0, "{two:?}");
    }

    #[test]
    fn read_waits_once_for_dead_server() {
        let found = simulate(&Settings { deaths: 3, ..settings() });
        assert!(found.reads.longest_us >= HEDGE_DELAY.as_micros() as f64, "{found:?}");
        assert!(found.reads.p99_us < 1000.0, "{found:?}");
        // A write needs both servers.
        assert!(found.writes.longest_us > 500_000.0, "{found:?}");
    }

    #[test]
    fn simultaneous_pair_failures_lose_pages() {
        let found = simulate(&Settings { pair_deaths: 30, return_s: 1, ..settings() });
        assert!(found.lost_extents > 0, "{found:?}");
    }
}
