//! Serves the request queue with a store, many requests at a time.
//!
//! Requests for one page are served one after the other, in the order in which they were claimed.
//! Areas of dead processes are removed. The helper runs until `softswap run` and all processes of
//! its tree have exited.

use crate::store::{PAGE_BYTES, Page, PageStore, StoreError};
use futures_util::future::try_join_all;
use softswap_shared::request_queue::{
    AreaEntry, Job, MAX_AREA_PAGES, MAX_NUMBER, Operation, Outcome, RemoteAreas, RequestQueue,
};
use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Interval between checks for dead processes.
const TICK: Duration = Duration::from_secs(1);
/// Time within which the helper tries to remove the areas after the last process has exited.
const EXIT_CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);

const _: () = assert!(MAX_NUMBER.leading_zeros() >= MAX_AREA_PAGES.trailing_zeros());

fn store_page(area: u64, page: u64) -> Option<u64> {
    let is_within = (1..=MAX_NUMBER).contains(&area) && page < MAX_AREA_PAGES;
    is_within.then(|| area * MAX_AREA_PAGES + page)
}

fn one(piece: Range<u64>) -> Vec<Range<u64>> {
    std::iter::once(piece).collect()
}

enum Task {
    Job(Job),
    Removal(AreaEntry),
}

impl Task {
    fn ranges(&self) -> Option<Vec<Range<u64>>> {
        match self {
            Task::Removal(area) => {
                let first = store_page(area.number, 0)?;
                Some(one(first..first + area.pages))
            }
            Task::Job(job) if job.operation == Operation::Discard => {
                let (first, last) = (job.pages.first()?.number, job.pages.last()?.number);
                let (first, last) = (store_page(job.area, first)?, store_page(job.area, last)?);
                Some(one(first..last + 1))
            }
            Task::Job(job) => {
                let mut ranges: Vec<Range<u64>> = Vec::new();
                for page in &job.pages {
                    let number = store_page(job.area, page.number)?;
                    match ranges.last_mut().filter(|range| range.end == number) {
                        Some(range) => range.end += 1,
                        None => ranges.push(number..number + 1),
                    }
                }
                Some(ranges)
            }
        }
    }
}

fn overlap(some: &[Range<u64>], others: &[Range<u64>]) -> bool {
    let overlaps = |one: &Range<u64>| {
        others.iter().any(|other| one.start < other.end && other.start < one.end)
    };
    some.iter().any(overlaps)
}

/// Serves until no process can submit a request. `run_ends` completes when `softswap run` exits.
///
/// # Errors
/// If the thread that waits for requests cannot be started.
pub async fn serve<S: PageStore + 'static>(
    queue: RequestQueue,
    areas: RemoteAreas,
    store: Arc<S>,
    run_ends: impl Future<Output = ()>,
) -> io::Result<()> {
    queue.begin_service();
    let watcher = Watcher::start(queue)?;
    let mut server = Server {
        queue,
        areas,
        store,
        tasks: JoinSet::new(),
        busy: vec![],
        waiting: VecDeque::new(),
        removed: HashSet::new(),
    };
    let mut run_ends = pin!(run_ends);
    let (mut is_run_alive, mut unused_since) = (true, None);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut from = 0;
    loop {
        while let Some(job) = queue.next_job(from) {
            from = job.request() + 1;
            server.begin(Task::Job(job));
        }
        tokio::select! {
            () = watcher.notify.notified() => {}
            Some(done) = server.tasks.join_next(), if !server.tasks.is_empty() => {
                // Every task completes: a panic aborts the helper ([`crate::helper`]).
                done.into_iter().for_each(|done| server.end(done));
            }
            () = &mut run_ends, if is_run_alive => is_run_alive = false,
            _ = tick.tick() => {
                server.check();
                unused_since = match is_run_alive || server.is_used() {
                    true => None,
                    false => unused_since.or_else(|| Some(Instant::now())),
                };
                if unused_since.is_some_and(|since| server.is_done(since.elapsed())) {
                    // Tasks share the store, which is closed next.
                    server.tasks.shutdown().await;
                    return Ok(());
                }
            }
        }
    }
}

struct Server<S> {
    queue: RequestQueue,
    areas: RemoteAreas,
    store: Arc<S>,
    tasks: JoinSet<Done>,
    /// Pages of the running tasks, by the task's number.
    busy: Vec<(u64, Vec<Range<u64>>)>,
    waiting: VecDeque<Task>,
    removed: HashSet<u64>,
}

struct Done {
    number: u64,
    removed: Option<AreaEntry>,
}

impl<S: PageStore + 'static> Server<S> {
    /// Starts a task, or queues it behind those for the same pages.
    fn begin(&mut self, task: Task) {
        let Some(ranges) = task.ranges() else {
            return self.refuse(&task, "a page number is out of range");
        };
        if matches!(&task, Task::Job(job) if self.removed.contains(&job.area)) {
            return self.refuse(&task, "the area was removed, because its process has exited");
        }
        let waits = |other: &Task| other.ranges().is_some_and(|other| overlap(&ranges, &other));
        if self.busy.iter().any(|(_, busy)| overlap(&ranges, busy))
            || self.waiting.iter().any(waits)
        {
            self.waiting.push_back(task);
            return;
        }
        let number = self.busy.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
        let (queue, store) = (self.queue, Arc::clone(&self.store));
        self.busy.push((number, ranges.clone()));
        self.tasks.spawn(async move {
            let removed = match task {
                Task::Job(job) => {
                    let (outcome, content) = execute(&*store, &job, ranges).await;
                    queue.complete(&job, &outcome, content.as_flattened());
                    None
                }
                Task::Removal(area) => {
                    let removed = try_join_all(ranges.into_iter().map(|it| store.remove(it))).await;
                    removed.is_ok().then_some(area)
                }
            };
            Done { number, removed }
        });
    }

    fn refuse(&self, task: &Task, why: &str) {
        if let Task::Job(job) = task {
            self.queue.complete(job, &Outcome::Failed(why.into()), &[]);
        }
    }

    fn end(&mut self, done: Done) {
        self.busy.retain(|(number, _)| *number != done.number);
        if let Some(area) = done.removed {
            self.removed.insert(area.number);
            self.areas.forget(&area);
        }
        std::mem::take(&mut self.waiting).into_iter().for_each(|task| self.begin(task));
    }

    fn check(&mut self) {
        self.queue.reap(|process| process.liveness(), |area| self.areas.have(area));
        for area in self.areas.dead() {
            let is_same = |task: &Task| matches!(task, Task::Removal(other) if other.at == area.at);
            let task = Task::Removal(area);
            let ranges = task.ranges().unwrap_or_default();
            let is_busy = self.busy.iter().any(|(_, busy)| overlap(&ranges, busy));
            match ranges.iter().all(Range::is_empty) {
                true => self.areas.forget(&area),
                // A request for the area or its removal is in progress.
                false if is_busy || self.waiting.iter().any(is_same) => {}
                false => self.begin(task),
            }
        }
    }

    fn is_used(&self) -> bool {
        self.areas.has_tree() || self.areas.has_living()
    }

    fn is_done(&self, unused: Duration) -> bool {
        (!self.areas.has_any() && self.tasks.is_empty()) || unused > EXIT_CLEANUP_TIMEOUT
    }
}

async fn execute<S: PageStore>(
    store: &S,
    job: &Job,
    ranges: Vec<Range<u64>>,
) -> (Outcome, Vec<Page>) {
    let generations: Vec<u64> = job.pages.iter().map(|page| page.generation).collect();
    let mut content = Vec::new();
    let result = match job.operation {
        Operation::Discard => {
            try_join_all(ranges.into_iter().map(|it| store.remove(it))).await.map(drop)
        }
        Operation::Write => {
            let (mut generations, mut pages): (_, &[Page]) =
                (&generations[..], job.content.as_chunks().0);
            let mut writes = Vec::new();
            for range in ranges {
                let count = ((range.end - range.start) as usize).min(pages.len());
                let (now, rest) = pages.split_at(count);
                let (generations_now, generations_rest) = generations.split_at(count);
                writes.push(store.write(range.start, generations_now, now));
                (pages, generations) = (rest, generations_rest);
            }
            try_join_all(writes).await.map(drop)
        }
        Operation::Read => {
            content.resize(job.pages.len(), [0; PAGE_BYTES]);
            let (mut generations, mut pages) = (&generations[..], &mut content[..]);
            let mut reads = Vec::new();
            for range in ranges {
                let count = (range.end - range.start) as usize;
                let (now, rest) = std::mem::take(&mut pages).split_at_mut(count);
                let (generations_now, generations_rest) = generations.split_at(count);
                reads.push(store.read(range.start, generations_now, now));
                (pages, generations) = (rest, generations_rest);
            }
            try_join_all(reads).await.map(drop)
        }
    };
    match result {
        Ok(()) => (Outcome::Done, content),
        Err(error) => (outcome_of(error), Vec::new()),
    }
}

fn outcome_of(mut error: StoreError) -> Outcome {
    if let StoreError::Lost { page, .. } = &mut error {
        // Restore the number within the area, which the client knows.
        *page %= MAX_AREA_PAGES;
    }
    match error {
        StoreError::Full { .. } => Outcome::Full(error.to_string()),
        StoreError::Lost { .. } => Outcome::Lost(error.to_string()),
        StoreError::Deadline { .. } | StoreError::Refused { .. } => {
            Outcome::Failed(error.to_string())
        }
    }
}

/// Thread that waits for requests, because tokio cannot wait for a futex.
struct Watcher {
    queue: RequestQueue,
    notify: Arc<Notify>,
    ends: Arc<AtomicBool>,
}

impl Watcher {
    fn start(queue: RequestQueue) -> io::Result<Watcher> {
        let watcher = Watcher { queue, notify: Arc::default(), ends: Arc::default() };
        let (notify, ends) = (Arc::clone(&watcher.notify), Arc::clone(&watcher.ends));
        let mut seen = queue.notifications();
        std::thread::Builder::new().name("softswap-queue".into()).spawn(move || {
            while !ends.load(Relaxed) {
                queue.await_notification(seen, TICK.as_nanos() as u64);
                let now = queue.notifications();
                if now != seen {
                    seen = now;
                    notify.notify_one();
                }
            }
        })?;
        Ok(watcher)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.queue.notify_server();
    }
}
