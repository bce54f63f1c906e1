//! Background upkeep: completes the copies of every page, keeps them apart, renews the lease.

use crate::copies::{Put, full_length_request, is_written, read_request, write_request};
use crate::placement::{EXTENT_BYTES, GROUPS, PAGES, Placement, group_of};
use crate::router::Request;
use crate::seal::SEALED_BYTES;
use crate::shared::Shared;
use crate::topology::Member;
use crate::url::Address;
use futures_util::future::join_all;
use redis::{Value, cmd};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const EVERY: Duration = Duration::from_secs(1);
/// Time for a successor or a recovery, before copies on a failed or unwritable primary move.
const SUCCESSOR_WITHIN: Duration = Duration::from_secs(3);
const EACH_WITHIN: Duration = Duration::from_secs(2);
/// Extents completed at a time; reads and writes continue during the completion.
const COMPLETED_AT_ONCE: usize = 8;
/// Extents checked each second while no problem is known.
const CHECKED_PER_SECOND: usize = 512;

pub(crate) struct Upkeep {
    misplaced_since: HashMap<(usize, usize), Instant>,
    /// Version of the last table sent to any server, so that no two tables share a version.
    last_version: u64,
    to_compare: BTreeSet<usize>,
    next_extent: usize,
    /// A problem was found, so the next check covers all extents.
    is_alarmed: bool,
    lease_due: Instant,
}

impl Upkeep {
    /// A helper that `continues` another one compares all groups: earlier changes are unknown.
    pub(crate) fn new(continues: bool) -> Self {
        Self {
            misplaced_since: HashMap::new(),
            last_version: 0,
            to_compare: if continues { (0..GROUPS).collect() } else { BTreeSet::new() },
            next_extent: 0,
            is_alarmed: false,
            lease_due: Instant::now(),
        }
    }

    pub(crate) async fn run(mut self, shared: &Shared) {
        loop {
            sleep(EVERY).await;
            if shared.router.refresh(Instant::now() + EACH_WITHIN).await.is_err() {
                continue;
            }
            shared.repeat_search().await;
            self.replace(shared).await;
            self.compare(shared).await;
            self.check(shared).await;
            shared.remove_emptied(&shared.emptied_extents()).await;
            self.renew(shared).await;
        }
    }

    async fn renew(&mut self, shared: &Shared) {
        if self.lease_due <= Instant::now() && shared.put_lease().await > 0 {
            self.lease_due = Instant::now() + (shared.url.lease / 4).min(Duration::from_secs(60));
        }
    }

    async fn replace(&mut self, shared: &Shared) {
        let topology = shared.router.writable_topology();
        let mut placement = shared.placement();
        let misplaced = placement.misplaced(&topology);
        self.misplaced_since
            .retain(|at, _| misplaced.iter().any(|(group, copy, _)| *at == (*group, *copy)));
        let now = Instant::now();
        let moves: Vec<_> = misplaced
            .into_iter()
            .filter(|(group, copy, _)| {
                let since = *self.misplaced_since.entry((*group, *copy)).or_insert(now);
                let slot = placement.groups[*group].slots[*copy];
                let is_lost = !topology.owner(slot).is_some_and(Member::is_usable);
                !is_lost || now >= since + SUCCESSOR_WITHIN
            })
            .collect();
        if !moves.is_empty() {
            self.last_version = self.last_version.max(placement.version) + 1;
            placement.version = self.last_version;
            for (group, copy, slot) in moves {
                placement.groups[group].move_copy(copy, slot);
            }
            // Store the placement before any write to the new slots: a restarted helper needs it.
            if !shared.put_placement(&placement).await {
                return;
            }
            shared.change_placement(|current| *current = placement.clone());
        }
        let mut moving: BTreeSet<usize> =
            (0..GROUPS).filter(|group| !placement.groups[*group].former.is_empty()).collect();
        if !moving.is_empty() {
            let moves = |extent: &u64| moving.contains(&group_of(*extent));
            let extents = shared.stored_extents().into_iter().filter(moves).collect();
            for extent in self.complete_all(shared, extents).await {
                moving.remove(&group_of(extent));
            }
            // A primary that was missing during the search may have more extents to move.
            if !shared.may_have_more.load(Ordering::Relaxed) {
                shared.change_placement(|current| {
                    moving.iter().for_each(|group| current.groups[*group].finish_move());
                });
            }
        }
        self.remove_obsolete(shared).await;
    }

    async fn remove_obsolete(&mut self, shared: &Shared) {
        let placement = shared.placement();
        let answer = |group: &usize| {
            let obsolete = &placement.groups[*group].obsolete;
            !obsolete.is_empty() && obsolete.iter().all(|slot| shared.router.takes_writes(*slot))
        };
        let mut clear: BTreeSet<usize> = (0..GROUPS).filter(answer).collect();
        if clear.is_empty() {
            return;
        }
        let is_obsolete = |extent: &u64| clear.contains(&group_of(*extent));
        let extents: Vec<u64> = shared.live().keys().copied().filter(is_obsolete).collect();
        for extents in extents.chunks(CHECKED_PER_SECOND) {
            let copies = extents.iter().flat_map(|extent| {
                let obsolete = &placement.groups[group_of(*extent)].obsolete;
                obsolete.iter().map(|slot| (*extent, *slot))
            });
            let remaining = shared.unlink_copies(copies.collect(), EACH_WITHIN).await;
            remaining.into_iter().for_each(|extent| _ = clear.remove(&group_of(extent)));
        }
        shared.change_placement(|current| {
            clear.iter().for_each(|group| current.groups[*group].obsolete.clear());
        });
    }

    fn note_changes(&mut self, shared: &Shared) {
        let has_restarted = |primary: &Address| shared.router.node(primary).take_restart();
        let restarted: BTreeSet<Address> =
            shared.primaries().into_iter().filter(has_restarted).collect();
        let changed = shared.router.take_changed();
        if restarted.is_empty() && changed.is_empty() {
            return;
        }
        let is_restarted =
            |slot| shared.router.owner(slot).is_some_and(|owner| restarted.contains(&owner));
        let may_differ = |slot: u16| changed.contains(&slot) || is_restarted(slot);
        for (number, group) in shared.placement().groups.iter().enumerate() {
            if group.places().any(may_differ) {
                self.to_compare.insert(number);
                self.lease_due = Instant::now();
            }
        }
    }

    /// Compares pages, not only lengths: a new owner may have missed writes, a restarted server may
    /// have loaded old content, or an extent is doubtful.
    async fn compare(&mut self, shared: &Shared) {
        self.note_changes(shared);
        let groups = std::mem::take(&mut self.to_compare);
        let mut differing = shared.take_doubtful();
        self.is_alarmed |= !differing.is_empty();
        if !groups.is_empty() {
            let differs = |extent: &u64| groups.contains(&group_of(*extent));
            differing.extend(shared.stored_extents().into_iter().filter(differs));
        }
        let incomplete_extents = self.complete_all(shared, differing.into_iter().collect()).await;
        shared.note_doubtful(incomplete_extents.into_iter());
    }

    /// Checks that copies exist: of [`CHECKED_PER_SECOND`] extents, or of all after a problem.
    async fn check(&mut self, shared: &Shared) {
        let extents = shared.stored_extents();
        if extents.is_empty() {
            return;
        }
        let is_alarmed = std::mem::take(&mut self.is_alarmed);
        if is_alarmed {
            self.lease_due = Instant::now();
        }
        let count = if is_alarmed { extents.len() } else { CHECKED_PER_SECOND.min(extents.len()) };
        let start = self.next_extent % extents.len();
        self.next_extent = start + count;
        let checked: Vec<u64> = extents.iter().cycle().skip(start).take(count).copied().collect();
        for extents in checked.chunks(CHECKED_PER_SECOND) {
            let incomplete = incomplete(shared, extents).await;
            if !incomplete.is_empty() {
                // A server that has lost pages has lost the lease and the table, too.
                self.lease_due = Instant::now();
            }
            let incomplete_extents = self.complete_all(shared, incomplete).await;
            self.is_alarmed |= !incomplete_extents.is_empty();
            shared.note_doubtful(incomplete_extents.into_iter());
        }
    }

    /// Renews the lease in between. Returns the extents that may still be incomplete.
    async fn complete_all(&mut self, shared: &Shared, extents: Vec<u64>) -> Vec<u64> {
        let mut incomplete_extents = Vec::new();
        for extents in extents.chunks(COMPLETED_AT_ONCE) {
            self.renew(shared).await;
            let done = join_all(extents.iter().map(|extent| complete(shared, *extent))).await;
            incomplete_extents
                .extend(extents.iter().zip(done).filter(|(_, done)| !done).map(|(it, _)| *it));
        }
        incomplete_extents
    }
}

async fn incomplete(shared: &Shared, extents: &[u64]) -> Vec<u64> {
    let mut requests = Vec::new();
    let mut checked = Vec::new();
    for extent in extents {
        for slot in shared.group(*extent).slots {
            let length = cmd("STRLEN").arg(shared.keys.extent(slot, *extent)).take();
            requests.push(Request { slot, commands: vec![length], answer_bytes: 0 });
            checked.push(*extent);
        }
    }
    let answers = shared.router.once(requests, Instant::now() + EACH_WITHIN).await;
    let is_short = |answer: &[Value]| match answer {
        [Value::Int(length)] => *length != EXTENT_BYTES as i64,
        _ => false,
    };
    let mut found: Vec<u64> = answers
        .into_iter()
        .zip(checked)
        .filter_map(|(answer, extent)| is_short(&answer.ok()?).then_some(extent))
        .collect();
    found.dedup();
    found
}

/// Updates every copy, also from former slots. Returns false if one may still be incomplete.
async fn complete(shared: &Shared, extent: u64) -> bool {
    // Does not wait for an unreachable server, nor for the lock of a writer to an unwritable one:
    // that would delay the whole upkeep, including the move that ends the wait.
    let slots = shared.group(extent).slots;
    if slots.iter().any(|slot| shared.router.is_unreachable(*slot)) {
        return false;
    }
    let until = Instant::now() + EACH_WITHIN;
    let held = match slots.iter().any(|slot| shared.router.is_unwritable(*slot)) {
        true => shared.lock_unused(&[extent]).1.pop(),
        false => shared.lock_to_change(extent, until).await,
    };
    let Some(_held) = held else { return false };
    let live = shared.live().get(&extent).copied().unwrap_or(0);
    if live == 0 {
        return true;
    }
    let group = shared.group(extent);
    let copies = Copies::read(shared, extent, &group.places().collect::<Vec<_>>(), until).await;
    if copies.bytes[..group.slots.len()].iter().any(Option::is_none) || copies.may_lack(live) {
        return false;
    }
    let copies_of_slots = group.slots.iter().enumerate();
    let (skipped, outdated): (Vec<_>, Vec<_>) = copies_of_slots
        .filter(|(copy, _)| !copies.is_newest(*copy))
        .partition(|(_, slot)| shared.router.is_unwritable(**slot));
    let writes = outdated
        .into_iter()
        .flat_map(|(copy, slot)| copies.updates(shared, extent, copy, *slot))
        .collect();
    write_all(shared, writes).await && skipped.is_empty()
}

struct Copies {
    /// By place; `None` if the server did not answer.
    bytes: Vec<Option<Vec<u8>>>,
    /// The generation of each page, by place; 0 if the copy lacks the page.
    generations: Vec<Vec<u64>>,
    /// The newest generation of each page, and the copy that has it.
    newest: Vec<(u64, usize)>,
}

impl Copies {
    async fn read(shared: &Shared, extent: u64, places: &[u16], until: Instant) -> Copies {
        let requests = places
            .iter()
            .map(|slot| read_request(shared, *slot, extent, 0..EXTENT_BYTES))
            .collect();
        let answers = shared.router.once(requests, until).await;
        let bytes: Vec<Option<Vec<u8>>> = answers.into_iter().map(bytes_of).collect();
        let generations: Vec<Vec<u64>> = bytes
            .iter()
            .map(|copy| {
                let of = |place| generation(shared, extent * PAGES + place, place, copy.as_deref());
                (0..PAGES).map(of).collect()
            })
            .collect();
        let newest = (0..PAGES as usize)
            .map(|page| {
                let found = generations.iter().map(|copy| copy[page]).zip(0..);
                found.max_by_key(|(generation, _)| *generation).unwrap_or_default()
            })
            .collect();
        Copies { bytes, generations, newest }
    }

    /// Returns true if a server that did not answer may have the only copy of a page in `live`.
    fn may_lack(&self, live: u32) -> bool {
        let is_missing =
            |(page, newest): (usize, &(u64, usize))| newest.0 == 0 && live & 1 << page != 0;
        self.bytes.iter().any(Option::is_none) && self.newest.iter().enumerate().any(is_missing)
    }

    fn is_whole(&self, copy: usize) -> bool {
        self.bytes[copy].as_ref().is_some_and(|bytes| bytes.len() >= EXTENT_BYTES)
    }

    fn is_newest(&self, copy: usize) -> bool {
        let own = &self.generations[copy];
        self.is_whole(copy) && self.newest.iter().zip(own).all(|((newest, _), own)| own >= newest)
    }

    fn updates(&self, shared: &Shared, extent: u64, copy: usize, slot: u16) -> Vec<Request> {
        let mut writes = Vec::new();
        if !self.is_whole(copy) {
            writes.push(full_length_request(shared, slot, extent));
        }
        let sources: Vec<(usize, Option<usize>)> = self
            .newest
            .iter()
            .zip(&self.generations[copy])
            .map(|((newest, from), own)| (own < newest).then_some(*from))
            .enumerate()
            .collect();
        for run in sources.chunk_by(|one, next| one.1 == next.1) {
            let (first, Some(from)) = run[0] else { continue };
            let bytes = first * SEALED_BYTES..(first + run.len()) * SEALED_BYTES;
            let sealed = self.bytes[from].as_deref().and_then(|copy| copy.get(bytes));
            let Some(sealed) = sealed else { continue };
            // If the server has lost the extent since, the answer shows another length.
            let put = Put { slot, extent, first, exists: true };
            writes.push(write_request(shared, &put, sealed));
        }
        writes
    }
}

async fn write_all(shared: &Shared, writes: Vec<Request>) -> bool {
    let slots: Vec<u16> = writes.iter().map(|write| write.slot).collect();
    let is_done = |(slot, answer): (u16, crate::router::Answer)| {
        let Ok(values) = answer else { return false };
        match is_written(&values, shared.url.wait_for_replica) {
            Ok(()) => shared.router.note_written(slot),
            Err(why) => {
                shared.not_accepted(slot, &why);
                return false;
            }
        }
        true
    };
    // A new deadline, because a server that timed out has used up the first.
    let until = Instant::now() + EACH_WITHIN;
    let answers = shared.router.once(writes, until).await;
    slots.into_iter().zip(answers).all(is_done)
}

fn bytes_of(answer: crate::router::Answer) -> Option<Vec<u8>> {
    match answer.ok()?.pop() {
        Some(Value::BulkString(bytes)) => Some(bytes),
        _ => None,
    }
}

fn generation(shared: &Shared, page: u64, place: u64, copy: Option<&[u8]>) -> u64 {
    let start = place as usize * SEALED_BYTES;
    let range = start..start + SEALED_BYTES;
    let sealed = copy.and_then(|bytes| bytes.get(range));
    sealed.and_then(|sealed| shared.sealer.generation(page, sealed).ok()).unwrap_or(0)
}

impl Shared {
    fn primaries(&self) -> Vec<Address> {
        let topology = self.router.topology();
        topology.primaries().iter().map(|(member, _)| member.address.clone()).collect()
    }

    pub(crate) fn a_slot_each(&self) -> Vec<u16> {
        let topology = self.router.topology();
        topology.primaries().iter().map(|(_, slots)| slots[0]).collect()
    }

    async fn put_everywhere(&self, key: impl Fn(u16) -> String, value: &[u8]) -> usize {
        let request = |slot: u16| {
            let lease_ms = self.url.lease.as_millis() as u64;
            let set = cmd("SET").arg(key(slot)).arg(value).arg("PX").arg(lease_ms).take();
            Request { slot, commands: vec![set], answer_bytes: 0 }
        };
        let slots = self.a_slot_each();
        let requests: Vec<Request> = slots.iter().copied().map(request).collect();
        let answers = self.router.once(requests, Instant::now() + EACH_WITHIN).await;
        let put = || slots.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
        // With `wait=1`, a successful SET does not show that writes reach a replica.
        if !self.url.wait_for_replica {
            put().for_each(|(slot, _)| self.router.note_written(*slot));
        }
        put().count()
    }

    /// Returns the number of primaries that stored the lease.
    pub(crate) async fn put_lease(&self) -> usize {
        let name = rustix::system::uname();
        let holder = serde_json::json!({
            "host": name.nodename().to_string_lossy(), "pid": std::process::id(),
        });
        self.put_placement(&self.placement()).await;
        self.put_everywhere(|slot| self.keys.lease(slot), holder.to_string().as_bytes()).await
    }

    /// Returns true if at least as many primaries as copies stored the table.
    pub(crate) async fn put_placement(&self, placement: &Placement) -> bool {
        let mut bytes = placement.to_bytes();
        bytes.extend(self.sealer.sign(&placement.to_bytes()));
        self.put_everywhere(|slot| self.keys.placement(slot), &bytes).await
            >= self.url.copies.count()
    }
}
