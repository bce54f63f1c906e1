//! Collects all process trees under softswap that this user may see.

use crate::control_client::{self, own_uid};
use crate::refusal::{FAILED, Refusal};
use crate::tree_report::TreeReport;
use procfs::process::{Stat, all_processes};
use softswap_engine::api::control_protocol::{Answer, MAX_ANSWER_BYTES, Request, Snapshot};
use softswap_engine::api::settings::ENV_PREFIX;
use softswap_engine::base::stats::{STATS_WORDS, TIERS};
use softswap_sys::control_socket::{self, Peer};
use softswap_view::reading::Reading;
use softswap_view::tree::{Process, Shared, State, Tree};
use softswap_view::units::visible;
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Short, because processes are queried one after the other.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
/// Checks until a process with softswap's environment but without the runtime counts as unmanaged.
/// In the first checks the loader may not have finished.
const RETRIES_WITHOUT_RUNTIME: u32 = 3;

pub(crate) struct TreeCollector {
    words: &'static [AtomicU64],
    known: HashMap<Identity, Known>,
    has_latencies: bool,
}

/// PIDs are reused, and exec changes the name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Identity {
    pid: u32,
    started: u64,
    name: String,
}

#[derive(Debug, Clone)]
enum Known {
    Other,
    /// The process has softswap's environment but not its runtime, in this many consecutive checks.
    Without(u32),
    Managed(Managed),
}

#[derive(Debug, Clone)]
struct Managed {
    root: u32,
    budget_bytes: u64,
    is_shared: bool,
    dirs: Vec<PathBuf>,
}

impl TreeCollector {
    pub(crate) fn new() -> TreeCollector {
        let words: Vec<AtomicU64> = (0..STATS_WORDS).map(|_| AtomicU64::new(0)).collect();
        TreeCollector { words: words.leak(), known: HashMap::new(), has_latencies: false }
    }

    pub(crate) fn with_latencies(self) -> TreeCollector {
        TreeCollector { has_latencies: true, ..self }
    }

    pub(crate) fn tree_of(&mut self, pid: u32) -> Result<Tree, Refusal> {
        let is_in = |tree: &Tree| {
            tree.root == pid || tree.processes.iter().any(|process| process.pid == pid)
        };
        if let Some(tree) = self.trees().into_iter().find(is_in) {
            return Ok(tree);
        }
        Err(match control_client::query(pid, &Request::Stat) {
            Err(refusal) => refusal,
            Ok(_) => {
                Refusal::new(FAILED, format!("process {pid} has just been started; try again"))
            }
        })
    }

    pub(crate) fn trees(&mut self) -> Vec<Tree> {
        let (mut trees, mut seen) = (BTreeMap::<u32, Tree>::new(), HashMap::new());
        for (stat, uid) in processes() {
            let identity = identity(&stat);
            let known = match self.known.remove(&identity) {
                Some(known @ (Known::Managed(_) | Known::Other)) => known,
                Some(Known::Without(checks)) => classify(identity.pid, uid, checks),
                None => classify(identity.pid, uid, 0),
            };
            if let Known::Managed(managed) = &known
                && let Some(process) = self.process(&stat, managed)
            {
                let tree = trees.entry(managed.root).or_default();
                tree.root = managed.root;
                if tree.shared.is_none() && managed.is_shared {
                    tree.shared =
                        Some(Shared { budget_bytes: managed.budget_bytes, ..Shared::default() });
                }
                tree.processes.push(process);
            }
            seen.insert(identity, known);
        }
        self.known = seen;
        trees.into_values().map(complete).collect()
    }

    fn process(&self, stat: &Stat, managed: &Managed) -> Option<Process> {
        let pid = u32::try_from(stat.pid).ok()?;
        let process = control_client::Process::read(pid).filter(|process| !process.has_ended())?;
        let ticks = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
        let (budget_bytes, name) = (managed.budget_bytes, process.name.clone());
        let mut found = Process {
            pid,
            name,
            budget_bytes,
            anonymous_bytes: control_client::anonymous_bytes(pid)?,
            cpu: Duration::from_secs_f64(ticks),
            threads: u32::try_from(stat.num_threads).unwrap_or(1),
            ..Process::default()
        };
        if let Err(why) = self.query(&process, managed, &mut found) {
            found.state = State::Silent(why);
        }
        Some(found)
    }

    /// Fails if the process is awake and does not answer.
    fn query(
        &self,
        process: &control_client::Process,
        managed: &Managed,
        found: &mut Process,
    ) -> Result<(), String> {
        if process.is_stopped() {
            return Err("it is stopped".into());
        }
        let body = match converse(process.pid, &managed.dirs, &Request::Stat) {
            Some(answer) => answer?,
            None if process.sleeps() => return Ok(()),
            None => {
                return Err("it has no control socket, because it was forked and has not called \
                            exec"
                    .into());
            }
        };
        let snapshot =
            Snapshot::parse_into(&body, self.words).map_err(|error| error.to_string())?;
        let Snapshot { settings, stats, .. } = snapshot;
        let settings = settings.iter().map(|(key, value)| (visible(key), visible(value)));
        found.settings = settings.collect();
        if self.has_latencies {
            found.latencies = TIERS.map(|tier| stats.fault_counts(tier)).to_vec();
        }
        let reading = Reading::of(&stats);
        found.budget_bytes = reading.budget_bytes;
        found.state = State::Awake(Box::new(reading));
        Ok(())
    }
}

fn identity(stat: &Stat) -> Identity {
    let pid = u32::try_from(stat.pid).unwrap_or_default();
    Identity { pid, started: stat.starttime, name: stat.comm.clone() }
}

/// The user's own processes, or all for root.
fn processes() -> impl Iterator<Item = (Stat, u32)> {
    let own = own_uid();
    let all = all_processes().into_iter().flatten().flatten();
    all.filter_map(move |process| {
        let uid = process.uid().ok().filter(|uid| own == 0 || own == *uid)?;
        Some((process.stat().ok()?, uid))
    })
}

fn classify(pid: u32, uid: u32, checks: u32) -> Known {
    let Some(process) = control_client::Process::read(pid) else { return Known::Other };
    let number = |name: &str| -> Option<u64> {
        process.variable(&format!("{ENV_PREFIX}{name}"))?.to_str()?.parse().ok()
    };
    let (Some(budget_bytes), Some(root)) = (number("MEMORY"), number("SUPERVISOR_PID")) else {
        return Known::Other;
    };
    match process.is_managed() {
        Some(true) => Known::Managed(Managed {
            root: u32::try_from(root).unwrap_or_default(),
            budget_bytes,
            is_shared: number("LEDGER_FD").is_some(),
            dirs: process.directories().into_iter().filter(|dir| is_safe(dir, uid)).collect(),
        }),
        _ if checks + 1 >= RETRIES_WITHOUT_RUNTIME => Known::Other,
        _ => Known::Without(checks + 1),
    }
}

/// Also true if the directory does not exist.
fn is_safe(dir: &std::path::Path, uid: u32) -> bool {
    !dir.exists() || control_socket::check(dir, uid).is_ok()
}

/// `None` if the process has no socket.
fn converse(pid: u32, dirs: &[PathBuf], request: &Request<'_>) -> Option<Result<String, String>> {
    let peer = dirs.iter().find_map(|dir| {
        let path = control_socket::socket_path(dir, pid);
        match control_socket::connect(&path, REQUEST_TIMEOUT) {
            // Any user may create a socket there; the kernel reports its owner.
            Ok(peer) => peer.credentials().is_ok_and(|it| it.pid == pid as i32).then_some(Ok(peer)),
            Err(error) if error.kind() == ErrorKind::TimedOut => Some(Err(no_answer())),
            Err(_) => None,
        }
    })?;
    Some(peer.and_then(|peer| send(&peer, request)))
}

fn no_answer() -> String {
    format!("it did not answer within {} ms", REQUEST_TIMEOUT.as_millis())
}

fn send(peer: &Peer, request: &Request<'_>) -> Result<String, String> {
    let line = request.line().unwrap_or_default();
    let answered = peer
        .write_all(line.as_bytes(), REQUEST_TIMEOUT)
        .and_then(|()| peer.read_to_end(MAX_ANSWER_BYTES, REQUEST_TIMEOUT));
    match answered.map(|bytes| Answer::parse(&bytes)) {
        Ok(Answer::Ok(body)) => Ok(body),
        Ok(Answer::Error(why) | Answer::Denied(why)) => Err(visible(&why)),
        Ok(Answer::Garbled) | Err(_) => Err(no_answer()),
    }
}

fn complete(mut tree: Tree) -> Tree {
    tree.processes.sort_by_key(|process| process.pid);
    let first = tree.processes.first().and_then(|it| control_client::Process::read(it.pid));
    let mut words = first.map_or_else(Vec::new, |process| process.command());
    if let Some(name) = words.first().and_then(|word| word.rsplit('/').next().map(String::from)) {
        words[0] = name;
    }
    tree.command = words.join(" ");
    let Some(shared) = &mut tree.shared else { return tree };
    let Some(supervisor) = control_client::Process::read(tree.root) else { return tree };
    let mut dirs = supervisor.directories();
    for process in &tree.processes {
        let others = control_client::Process::read(process.pid);
        dirs.extend(others.into_iter().flat_map(|process| process.directories()));
    }
    dirs.sort();
    dirs.dedup();
    let Some(Ok(body)) = converse(tree.root, &dirs, &Request::Stat) else { return tree };
    let Some(report) = TreeReport::parse(&body) else { return tree };
    *shared = Shared {
        budget_bytes: report.budget_bytes,
        granted_bytes: report.granted_bytes,
        turns: report.turns.taken,
        turn_owner_pid: (report.turns.owner_pid != 0).then_some(report.turns.owner_pid),
        is_parked: report.parked.is_some(),
    };
    for process in &mut tree.processes {
        let reported = report.processes.iter().find(|reported| reported.pid == process.pid);
        process.budget_bytes = reported.map_or(0, |reported| reported.granted_bytes);
    }
    let known: Vec<u32> = tree.processes.iter().map(|process| process.pid).collect();
    let others = report.unmanaged.into_iter().filter(|it| !known.contains(&it.pid));
    tree.processes.extend(others.map(|it| Process {
        pid: it.pid,
        name: it.name,
        state: State::Silent("it runs unmanaged, outside the budget".to_string()),
        anonymous_bytes: it.anonymous_bytes,
        threads: 1,
        ..Process::default()
    }));
    tree
}
