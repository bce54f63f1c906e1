//! What goes on beside reading and writing: keeping both copies of everything apart and there,
//! and the lease alive.

use crate::copies::{Put, read_request, write_request};
use crate::placement::{EXTENT_BYTES, GROUPS, PAGES, Placement, group_of};
use crate::router::Request;
use crate::seal::SEALED_BYTES;
use crate::shared::Shared;
use crate::url::Address;
use futures_util::future::join_all;
use redis::{Value, cmd};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const EVERY: Duration = Duration::from_secs(1);
/// A primary that is lost may have a successor within this time; then its copies get other slots.
const SUCCESSOR_WITHIN: Duration = Duration::from_secs(3);
const EACH_WITHIN: Duration = Duration::from_secs(2);
/// How many extents are made whole at a time: reads and writes go on beside.
const COMPLETED_AT_ONCE: usize = 8;
/// How many extents are looked at in a second while nothing is wrong.
const LOOKED_AT: usize = 512;

/// How the upkeep of one area stands.
pub(crate) struct Upkeep {
    /// Since when a group has a copy where it must not stay.
    misplaced_since: HashMap<(usize, usize), Instant>,
    /// Who has each slot with copies in it.
    owners: HashMap<u16, Address>,
    /// Groups whose copies may differ.
    to_compare: BTreeSet<usize>,
    next_extent: usize,
    lease_due: Instant,
}

impl Upkeep {
    /// What happened while no helper was there is not known: one that `continues` compares all.
    pub(crate) fn new(continues: bool) -> Self {
        Self {
            misplaced_since: HashMap::new(),
            owners: HashMap::new(),
            to_compare: if continues { (0..GROUPS).collect() } else { BTreeSet::new() },
            next_extent: 0,
            lease_due: Instant::now(),
        }
    }

    /// Goes on until it is dropped.
    pub(crate) async fn run(mut self, shared: &Shared) {
        self.note_owners(shared);
        loop {
            sleep(EVERY).await;
            if shared.router.refresh(Instant::now() + EACH_WITHIN).await.is_err() {
                continue;
            }
            shared.find_the_rest().await;
            self.replace(shared).await;
            self.compare(shared).await;
            self.look(shared).await;
            shared.remove_emptied(&shared.emptied_extents()).await;
            self.renew(shared).await;
        }
    }

    async fn renew(&mut self, shared: &Shared) {
        if self.lease_due <= Instant::now() && shared.put_lease().await > 0 {
            self.lease_due = Instant::now() + (shared.url.lease / 4).min(Duration::from_secs(60));
        }
    }

    /// Gives copies that must not stay where they are another slot, and takes them there.
    async fn replace(&mut self, shared: &Shared) {
        let topology = shared.router.topology();
        let mut placement = shared.placement();
        let misplaced = placement.misplaced(&topology);
        self.misplaced_since
            .retain(|at, _| misplaced.iter().any(|(group, copy, _)| *at == (*group, *copy)));
        let now = Instant::now();
        let due: Vec<_> = misplaced
            .into_iter()
            .filter(|(group, copy, _)| {
                let since = *self.misplaced_since.entry((*group, *copy)).or_insert(now);
                let slot = placement.groups[*group].slots[*copy];
                let is_lost = topology.owner(slot).is_none_or(|owner| owner.is_failed);
                !is_lost || now >= since + SUCCESSOR_WITHIN
            })
            .collect();
        // Those of an earlier round that did not all arrive.
        let unfinished = placement.groups.iter().any(|group| !group.former.is_empty());
        if due.is_empty() && !unfinished {
            return;
        }
        if !due.is_empty() {
            placement.version += 1;
            for (group, copy, slot) in due {
                placement.groups[group].move_copy(copy, slot);
            }
            // A helper that is started again must know before anything is written there.
            if !shared.put_placement(&placement).await {
                return;
            }
            shared.change_placement(|current| *current = placement.clone());
        }
        let moves = |extent: &u64| !placement.groups[group_of(*extent)].former.is_empty();
        let moving = shared.stored_extents().into_iter().filter(moves).collect();
        let mut is_group_done = vec![true; GROUPS];
        for extent in self.complete_all(shared, moving).await {
            is_group_done[group_of(extent)] = false;
        }
        shared.change_placement(|current| {
            for (group, is_done) in current.groups.iter_mut().zip(is_group_done) {
                if is_done {
                    group.former.clear();
                }
            }
        });
    }

    fn note_owners(&mut self, shared: &Shared) {
        for (number, group) in shared.placement().groups.iter().enumerate() {
            for slot in &group.slots {
                let Some(owner) = shared.router.owner(*slot) else { continue };
                if self.owners.get(slot) != Some(&owner)
                    && self.owners.insert(*slot, owner).is_some()
                {
                    self.to_compare.insert(number);
                    self.lease_due = Instant::now();
                }
            }
        }
    }

    /// Compares copies page by page where another server has taken a slot over: what it had not
    /// received by then is stale there, though everything has its length.
    async fn compare(&mut self, shared: &Shared) {
        self.note_owners(shared);
        if self.to_compare.is_empty() {
            return;
        }
        let differs = |extent: &u64| self.to_compare.contains(&group_of(*extent));
        let differing = shared.stored_extents().into_iter().filter(differs).collect();
        let left = self.complete_all(shared, differing).await;
        self.to_compare = left.into_iter().map(group_of).collect();
    }

    /// Looks whether both copies of extents are there: some each time, all when something is
    /// wrong.
    async fn look(&mut self, shared: &Shared) {
        let extents = shared.stored_extents();
        if extents.is_empty() {
            return;
        }
        let is_doubtful = shared.is_doubtful.swap(false, Ordering::Relaxed);
        if is_doubtful {
            self.lease_due = Instant::now();
        }
        let count = if is_doubtful { extents.len() } else { LOOKED_AT.min(extents.len()) };
        let start = self.next_extent % extents.len();
        self.next_extent = start + count;
        let looked_at: Vec<u64> = extents.iter().cycle().skip(start).take(count).copied().collect();
        for extents in looked_at.chunks(LOOKED_AT) {
            let incomplete = incomplete(shared, extents).await;
            if !incomplete.is_empty() {
                // A server that has lost pages has lost the lease and the table, too.
                self.lease_due = Instant::now();
            }
            if !self.complete_all(shared, incomplete).await.is_empty() {
                shared.is_doubtful.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Completes extents, some at a time; those for which a server did not do its part. The lease
    /// must not end meanwhile.
    async fn complete_all(&mut self, shared: &Shared, extents: Vec<u64>) -> Vec<u64> {
        let mut left = Vec::new();
        for extents in extents.chunks(COMPLETED_AT_ONCE) {
            self.renew(shared).await;
            let done = join_all(extents.iter().map(|extent| complete(shared, *extent))).await;
            left.extend(extents.iter().zip(done).filter(|(_, done)| !done).map(|(it, _)| *it));
        }
        left
    }
}

/// Those of the extents of which a copy is missing or cut short on a server that answers.
async fn incomplete(shared: &Shared, extents: &[u64]) -> Vec<u64> {
    let mut questions = Vec::new();
    let mut asked = Vec::new();
    for extent in extents {
        for slot in shared.group(*extent).slots {
            let mut length = cmd("STRLEN");
            length.arg(shared.keys.extent(slot, *extent));
            questions.push(Request { slot, commands: vec![length], answer_bytes: 0 });
            asked.push(*extent);
        }
    }
    let answers = shared.router.once(questions, Instant::now() + EACH_WITHIN).await;
    let is_short = |answer: &[Value]| match answer {
        [Value::Int(length)] => *length != EXTENT_BYTES as i64,
        _ => false,
    };
    let mut found: Vec<u64> = answers
        .into_iter()
        .zip(asked)
        .filter_map(|(answer, extent)| is_short(&answer.ok()?).then_some(extent))
        .collect();
    found.dedup();
    found
}

/// Brings the newest of each page to every copy of an extent, and then removes the one that is
/// where it must not stay. `false` where a server did not do its part.
async fn complete(shared: &Shared, extent: u64) -> bool {
    let until = Instant::now() + EACH_WITHIN;
    let Ok(_held) = shared.lock_to_change([extent].into_iter(), until).await else { return false };
    let live = shared.live().get(&extent).copied().unwrap_or(0);
    if live == 0 {
        return true;
    }
    let group = shared.group(extent);
    let places: Vec<u16> = group.places().collect();
    let all = 0..EXTENT_BYTES - 1;
    let questions: Vec<Request> =
        places.iter().map(|slot| read_request(shared, *slot, extent, all.clone())).collect();
    let answers = shared.router.once(questions, until).await;
    let copies: Vec<Option<Vec<u8>>> = answers.into_iter().map(bytes_of).collect();
    let wanted = &copies[..group.slots.len()];
    if wanted.iter().any(Option::is_none) {
        return false;
    }
    let all_have_told = copies.iter().all(Option::is_some);
    let generations: Vec<Vec<u64>> = copies
        .iter()
        .map(|copy| {
            let of = |place| generation(shared, extent * PAGES + place, place, copy.as_deref());
            (0..PAGES).map(of).collect()
        })
        .collect();
    // Of each place the newest page, and in which copy.
    let newest: Vec<(u64, usize)> = (0..PAGES as usize)
        .map(|place| {
            let found = generations.iter().map(|copy| copy[place]).zip(0..);
            found.max_by_key(|(generation, _)| *generation).unwrap_or_default()
        })
        .collect();
    // A page that was never written is in no copy. One that was may be where a server does not
    // answer: that is what is left of it.
    let is_lost = |(place, found): (usize, &(u64, usize))| found.0 == 0 && live & 1 << place != 0;
    if !all_have_told && newest.iter().enumerate().any(is_lost) {
        return false;
    }
    let mut writes = Vec::new();
    for (slot, own) in group.slots.iter().zip(&generations) {
        let from: Vec<(usize, Option<usize>)> = newest
            .iter()
            .zip(own)
            .map(|((newest, from), own)| (own < newest).then_some(*from))
            .enumerate()
            .collect();
        for run in from.chunk_by(|one, next| one.1 == next.1) {
            let (first, Some(from)) = run[0] else { continue };
            let bytes = first * SEALED_BYTES..(first + run.len()) * SEALED_BYTES;
            let sealed = copies[from].as_deref().and_then(|copy| copy.get(bytes));
            let put = Put { slot: *slot, extent, first, is_there: false };
            writes.extend(sealed.map(|sealed| write_request(shared, &put, sealed)));
        }
    }
    if shared.router.once(writes, until).await.iter().any(Result::is_err) {
        return false;
    }
    for former in group.former {
        let mut unlink = cmd("UNLINK");
        unlink.arg(shared.keys.extent(former, extent));
        let request = Request { slot: former, commands: vec![unlink], answer_bytes: 0 };
        // If it stays, the end of the run removes it.
        _ = shared.router.once(vec![request], until).await;
    }
    true
}

fn bytes_of(answer: crate::router::Answer) -> Option<Vec<u8>> {
    match answer.ok()?.pop() {
        Some(Value::BulkString(bytes)) => Some(bytes),
        _ => None,
    }
}

/// The generation of the page at that place of a copy; 0 where there is none that is ours.
fn generation(shared: &Shared, page: u64, place: u64, copy: Option<&[u8]>) -> u64 {
    let start = place as usize * SEALED_BYTES;
    let range = start..start + SEALED_BYTES;
    let sealed = copy.and_then(|bytes| bytes.get(range));
    sealed.and_then(|sealed| shared.sealer.generation(page, sealed).ok()).unwrap_or(0)
}

impl Shared {
    /// One slot of each primary that works.
    pub(crate) fn a_slot_each(&self) -> Vec<u16> {
        let topology = self.router.topology();
        topology.primaries().iter().map(|(_, slots)| slots[0]).collect()
    }

    /// Stores something on every primary; on how many it is then.
    async fn put_everywhere(&self, key: impl Fn(u16) -> String, value: &[u8]) -> usize {
        let request = |slot: u16| {
            let mut set = cmd("SET");
            set.arg(key(slot)).arg(value).arg("PX").arg(self.url.lease.as_millis() as u64);
            Request { slot, commands: vec![set], answer_bytes: 0 }
        };
        let requests: Vec<Request> = self.a_slot_each().into_iter().map(request).collect();
        let answers = self.router.once(requests, Instant::now() + EACH_WITHIN).await;
        answers.iter().filter(|answer| answer.is_ok()).count()
    }

    /// Says that the run lives, and where its copies are.
    pub(crate) async fn put_lease(&self) -> usize {
        let name = rustix::system::uname();
        let holder = serde_json::json!({
            "host": name.nodename().to_string_lossy(), "pid": std::process::id(),
        });
        self.put_placement(&self.placement()).await;
        self.put_everywhere(|slot| self.keys.lease(slot), holder.to_string().as_bytes()).await
    }

    /// Whether the table is on as many servers as a page.
    pub(crate) async fn put_placement(&self, placement: &Placement) -> bool {
        let mut bytes = placement.to_bytes();
        bytes.extend(self.sealer.sign(&placement.to_bytes()));
        self.put_everywhere(|slot| self.keys.placement(slot), &bytes).await >= self.copies()
    }
}
