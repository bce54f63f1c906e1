//! State that all operations on an area share: placement, stored pages, locks of extents.

use crate::placement::{Group, Keys, PAGES, Placement, group_of};
use crate::request_error::{RequestError, Unwritten};
use crate::router::{Request, Router};
use crate::seal::Sealer;
use crate::store::StoreError;
use crate::url::Url;
use redis::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};
use tokio::time::{Instant, sleep_until, timeout_at};

pub(crate) const ALL: u32 = (1 << PAGES) - 1;
/// Number of locks; several extents share one.
const LOCKS: u64 = 1024;
const MAX_KEYED: u32 = 8;
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Shared {
    pub(crate) url: Url,
    pub(crate) router: Router,
    pub(crate) sealer: Sealer,
    pub(crate) keys: Keys,
    placement: RwLock<Placement>,
    /// Extents that may be stored, with a bit for each page. The upkeep removes those with 0.
    live: Mutex<BTreeMap<u64, u32>>,
    /// Held for reading while an extent's pages are used; for writing while it is removed or moved.
    locks: Vec<tokio::sync::RwLock<()>>,
    /// A primary was missing during the search for stored extents, so other extents may be stored.
    pub(crate) may_have_more: AtomicBool,
    /// Read timeouts left whose error may name the keys: the engine stores each distinct error.
    keyed: AtomicU32,
    /// Extents of which a copy may lack pages even if its length is right.
    doubtful: Mutex<BTreeSet<u64>>,
}

impl Shared {
    pub(crate) fn new(
        url: Url,
        router: Router,
        sealer: Sealer,
        keys: Keys,
        placement: Placement,
    ) -> Self {
        Self {
            url,
            router,
            sealer,
            keys,
            placement: RwLock::new(placement),
            live: Mutex::default(),
            locks: (0..LOCKS).map(|_| tokio::sync::RwLock::default()).collect(),
            may_have_more: AtomicBool::new(false),
            keyed: AtomicU32::new(MAX_KEYED),
            doubtful: Mutex::default(),
        }
    }

    pub(crate) fn placement(&self) -> Placement {
        self.placement.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn group(&self, extent: u64) -> Group {
        let placement = self.placement.read().unwrap_or_else(PoisonError::into_inner);
        placement.groups[group_of(extent)].clone()
    }

    pub(crate) fn change_placement(&self, change: impl FnOnce(&mut Placement)) {
        change(&mut self.placement.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_stored(&self, extent: u64, pages: u32) -> bool {
        // An extent not found may have other pages, which must not be removed with these.
        let others = if self.may_have_more.load(Ordering::Relaxed) { ALL } else { 0 };
        let mut live = self.live();
        let Some(stored) = live.get_mut(&extent) else {
            live.insert(extent, others | pages);
            return false;
        };
        let had_others = *stored != 0;
        *stored |= pages;
        had_others
    }

    /// For a copy with a bad page, or one that a server may have lost and re-created.
    pub(crate) fn note_doubtful(&self, extents: impl Iterator<Item = u64>) {
        let mut extents = extents.peekable();
        if extents.peek().is_some() {
            self.doubtful().extend(extents);
        }
    }

    pub(crate) fn take_doubtful(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.doubtful())
    }

    pub(crate) fn may_name_keys(&self) -> bool {
        let decrement = |count: u32| count.checked_sub(1);
        self.keyed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement).is_ok()
    }

    fn doubtful(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stored_extents(&self) -> Vec<u64> {
        self.live().iter().filter(|(_, pages)| **pages != 0).map(|(extent, _)| *extent).collect()
    }

    pub(crate) fn emptied_extents(&self) -> Vec<u64> {
        self.live().iter().filter(|(_, pages)| **pages == 0).map(|(extent, _)| *extent).collect()
    }

    /// Locks these extents. Takes each lock once, and all in a fixed order.
    pub(crate) async fn lock_to_use(
        &self,
        extents: impl Iterator<Item = u64>,
        until: Instant,
    ) -> Result<Vec<RwLockReadGuard<'_, ()>>, StoreError> {
        let mut held = Vec::new();
        let numbers: BTreeSet<u64> = extents.map(|extent| extent % LOCKS).collect();
        for number in numbers {
            let lock = self.locks[number as usize].read();
            let too_late = |_| self.too_late(&[], Vec::new());
            held.push(timeout_at(until, lock).await.map_err(too_late)?);
        }
        Ok(held)
    }

    pub(crate) async fn lock_to_change(
        &self,
        extent: u64,
        until: Instant,
    ) -> Option<RwLockWriteGuard<'_, ()>> {
        timeout_at(until, self.locks[(extent % LOCKS) as usize].write()).await.ok()
    }

    /// Does not wait for locked extents, because a waiting writer blocks all later readers.
    pub(crate) fn lock_unused(&self, extents: &[u64]) -> (Vec<u64>, Vec<RwLockWriteGuard<'_, ()>>) {
        let mut locks = BTreeMap::new();
        let is_free = |extent: &u64| {
            let number = extent % LOCKS;
            let lock = locks.entry(number);
            lock.or_insert_with(|| self.locks[number as usize].try_write().ok()).is_some()
        };
        let free = extents.iter().copied().filter(is_free).collect();
        (free, locks.into_values().flatten().collect())
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.url.deadline
    }

    pub(crate) fn too_late(&self, errors: &[RequestError], keys: Vec<String>) -> StoreError {
        let mut nodes: Vec<String> = errors.iter().map(RequestError::node).collect();
        nodes.sort();
        nodes.dedup();
        if nodes.is_empty() {
            nodes.push("the cluster".into());
        }
        let last = errors.last().map_or_else(
            || "other requests held the locks of these pages".into(),
            RequestError::reason,
        );
        StoreError::Deadline { nodes, keys, deadline: self.url.deadline, last }
    }

    /// Waits before a retry, and refreshes the topology. Returns false if the deadline comes first.
    pub(crate) async fn pause(&self, tries: u32, until: Instant) -> bool {
        let pause = (MIN_PAUSE * 2u32.pow(tries.min(8))).min(MAX_PAUSE);
        let next = Instant::now() + pause;
        if next >= until {
            return false;
        }
        _ = self.router.refresh(until.min(next + MAX_PAUSE)).await;
        sleep_until(next).await;
        Instant::now() < until
    }

    pub(crate) fn not_accepted(&self, slot: u16, why: &Unwritten) -> RequestError {
        let Some(node) = self.router.owner(slot) else { return RequestError::NoOwner { slot } };
        let reason = why.to_string();
        if *why == Unwritten::NoReplica {
            self.router.node(&node).note_unwritable(&reason);
        }
        RequestError::Busy { node, reason }
    }

    /// Retries each write, at its slot's current owner, until it is accepted or the deadline has
    /// passed. `request` creates a write from its index and the number of earlier tries.
    pub(crate) async fn carry_out(
        &self,
        count: usize,
        until: Instant,
        request: impl Fn(usize, u32) -> Request,
        is_accepted: impl Fn(&[Value]) -> Result<(), Unwritten>,
    ) -> Result<(), StoreError> {
        let mut pending: Vec<usize> = (0..count).collect();
        let mut before = Vec::new();
        for tries in 0.. {
            let requests: Vec<Request> =
                pending.iter().map(|number| request(*number, tries)).collect();
            let slots: Vec<u16> = requests.iter().map(|request| request.slot).collect();
            let answers = self.router.once(requests, until).await;
            let mut errors = Vec::new();
            let mut retries = Vec::new();
            for ((number, slot), answer) in pending.iter().zip(slots).zip(answers) {
                let request_error = match answer.map(|values| is_accepted(&values)) {
                    Ok(Ok(())) => {
                        self.router.note_written(slot);
                        continue;
                    }
                    Ok(Err(why)) => self.not_accepted(slot, &why),
                    Err(request_error) => request_error,
                };
                if let Some(error) = request_error.final_error() {
                    return Err(error);
                }
                errors.push(request_error);
                retries.push(*number);
            }
            if retries.is_empty() {
                return Ok(());
            }
            pending = retries;
            // The deadline cut this attempt short, so report the errors of the previous attempt.
            let is_cut_off = Instant::now() >= until && !before.is_empty();
            let errors = if is_cut_off { before } else { errors };
            if !self.pause(tries, until).await {
                return Err(self.too_late(&errors, Vec::new()));
            }
            before = errors;
        }
        Ok(())
    }
}
