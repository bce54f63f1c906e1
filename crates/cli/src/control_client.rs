//! Client of the control socket: finds the socket and its owner, and explains failures.

use crate::library;
use crate::refusal::{FAILED, Refusal, plain};
use softswap_engine::api::control_protocol::{
    Answer, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Request,
};
use softswap_engine::api::settings::ENV_PREFIX;
use softswap_sys::control_socket::{self, DIR_VARIABLE, Peer, Unusable};
use softswap_view::units::visible;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Keys of the settings that belong to the whole tree.
pub const OF_TREE: [&str; 2] = ["memory", "turns"];
/// Retry interval. A new socket's name appears shortly before it accepts connections.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait for the exit of a process that has removed its socket.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub uid: u32,
    pub name: String,
    state: char,
    threads: u32,
    /// `None` for a process without an address space.
    pub resident: Option<Resident>,
}

#[derive(Debug, Clone, Copy)]
pub struct Resident {
    pub anonymous_bytes: u64,
    pub shared_bytes: u64,
    pub file_bytes: u64,
    /// Peak of the sum of all kinds.
    pub peak_bytes: u64,
}

impl Process {
    /// A thread ID stands for its process. The crate procfs is not used: it rejects names that
    /// are not UTF-8, and the kernel truncates names to 15 bytes, possibly within a character.
    pub fn read(pid: u32) -> Option<Process> {
        let of = |dir: &Path| {
            let status = std::fs::read(dir.join("status")).ok()?;
            Process::of_status(&String::from_utf8_lossy(&status))
        };
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let process = of(&dir)?;
        if process.state != 'Z' || process.threads <= 1 {
            return Some(process);
        }
        // Only the main thread has exited: another thread has the state and the memory.
        let threads = std::fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
        let lives = |it: &Process| !matches!(it.state, 'Z' | 'X') && it.resident.is_some();
        let live = threads.filter_map(|thread| of(&thread.path())).find(lives);
        Some(match live {
            Some(live) => Process { name: process.name, ..live },
            None => process,
        })
    }

    pub fn of_status(status: &str) -> Option<Process> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(str::trim)
        };
        let number = |text: &str| text.parse::<u32>().ok();
        let bytes = |name: &str| {
            field(name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let resident = || {
            Some(Resident {
                anonymous_bytes: bytes("RssAnon")?,
                shared_bytes: bytes("RssShmem")?,
                file_bytes: bytes("RssFile")?,
                peak_bytes: bytes("VmHWM")?,
            })
        };
        Some(Process {
            pid: field("Tgid").and_then(number)?,
            parent: field("PPid").and_then(number)?,
            uid: field("Uid")?.split_whitespace().nth(1).and_then(number)?,
            name: visible(field("Name")?),
            state: field("State")?.chars().next()?,
            resident: resident(),
            threads: field("Threads").and_then(number).unwrap_or(1),
        })
    }

    /// Also true while exiting: a process frees its memory before it becomes a zombie.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') || self.resident.is_none() && !self.is_kernel_thread()
    }

    pub(crate) fn is_softswap(&self) -> bool {
        self.name == "softswap"
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Start time in clock ticks since boot.
    pub(crate) fn start_time(&self) -> Option<u64> {
        let process = procfs::process::Process::new(i32::try_from(self.pid).ok()?).ok()?;
        Some(process.stat().ok()?.starttime)
    }

    /// The flags in `stat` are readable by all users.
    pub fn is_kernel_thread(&self) -> bool {
        const PF_KTHREAD: u64 = 0x0020_0000;
        let stat = self.file("stat").unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        // The name may contain any character, so parse after the `)` that ends it. There follow
        // the state, five numbers, and the flags.
        let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6));
        flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|f| f & PF_KTHREAD != 0)
    }

    fn file(&self, name: &str) -> std::io::Result<Vec<u8>> {
        std::fs::read(format!("/proc/{}/{name}", self.pid))
    }

    /// Returns the program and its arguments from /proc, which the process can change.
    pub fn command(&self) -> Vec<String> {
        let line = self.file("cmdline").unwrap_or_default();
        let words = line.strip_suffix(b"\0").unwrap_or(&line).split(|&byte| byte == 0);
        let words: Vec<_> = words.map(|word| visible(&String::from_utf8_lossy(word))).collect();
        if line.is_empty() { vec![self.name.clone()] } else { words }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<OsString> {
        let environment = self.file("environ").ok()?;
        let mut entries = environment.split(|&byte| byte == 0);
        let value =
            entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(OsString::from_vec(value.to_vec()))
    }

    /// `None` if the memory map is not readable. An overwritten environment counts as a budget:
    /// servers that set their process title overwrite it.
    pub fn is_managed(&self) -> Option<bool> {
        let maps = self.file("maps").ok()?;
        let has_library = String::from_utf8_lossy(&maps).contains(library::NAME);
        let budget = format!("{ENV_PREFIX}MEMORY");
        let has_budget = || self.variable(&budget).is_some() || self.has_overwritten_environment();
        Some(has_library && has_budget())
    }

    fn has_overwritten_environment(&self) -> bool {
        let environment = self.file("environ").unwrap_or_default();
        let entries = environment.strip_suffix(b"\0").unwrap_or(&environment);
        entries.split(|&byte| byte == 0).any(|entry| !entry.contains(&b'='))
    }

    /// Returns true if the process is managed, but has no engine: none of its descriptors is a
    /// userfaultfd or, with page protection, its own memory.
    pub(crate) fn sleeps(&self) -> bool {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.pid));
        let Ok(descriptors) = descriptors else { return false };
        let own = PathBuf::from(format!("/proc/{}", self.pid));
        let is_of_engine = |entry: std::fs::DirEntry| {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            let is_own_memory = target.starts_with(&own) && target.ends_with("mem");
            target.as_os_str() == "anon_inode:[userfaultfd]" || is_own_memory
        };
        self.is_managed() == Some(true) && !descriptors.flatten().any(is_of_engine)
    }

    /// Returns the possible directories of the process's socket.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let by_default = [
            PathBuf::from(format!("/run/user/{}/softswap", self.uid)),
            control_socket::fallback(self.uid),
        ];
        let mut dirs = control_socket::directories(|name| self.variable(name), self.uid);
        let ours = control_socket::directories(|name| std::env::var_os(name), self.uid);
        for dir in ours.into_iter().chain(by_default) {
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        dirs
    }
}

/// Excludes the threads of the engine and of io_uring. At most `max` threads are examined.
pub(crate) fn program_threads(pid: u32, max: usize) -> std::io::Result<Vec<PathBuf>> {
    let is_programs = |thread: &PathBuf| {
        let name = std::fs::read(thread.join("comm")).unwrap_or_default();
        !name.starts_with(b"softswap") && !name.starts_with(b"iou-")
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))?.take(max).flatten();
    Ok(threads.map(|thread| thread.path()).filter(is_programs).collect())
}

/// Returns the CPU time of all children that have exited, with their own children.
pub fn cpu_s_of_children() -> Option<f64> {
    let stat = procfs::process::Process::myself().ok()?.stat().ok()?;
    let ticks = u64::try_from(stat.cutime + stat.cstime).ok()?;
    Some(ticks as f64 / procfs::ticks_per_second() as f64)
}

pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn failed(why: impl Into<String>) -> Refusal {
    Refusal::new(FAILED, why)
}

/// A `softswap run` with a shared budget answers for the tree's figures, memory and turns. All
/// other requests are answered by the program. Returns the process that answered, and its answer.
pub fn query(pid: u32, request: &Request<'_>) -> Result<(Process, String), Refusal> {
    sweep();
    let line = request.line().ok_or_else(|| {
        Refusal::usage(format!(
            "the key or the value is empty or contains control characters, or the request is longer than \
             {MAX_REQUEST_BYTES} bytes; `softswap ctl --help` lists the keys"
        ))
    })?;
    let named = Process::read(pid).filter(|process| !process.has_ended());
    let named = named.ok_or_else(|| {
        failed(format!("process {pid}: no such process; `pgrep -a NAME` finds PIDs"))
    })?;
    let own = own_uid();
    if own != 0 && own != named.uid {
        return Err(failed(format!(
            "process {pid} ({}) belongs to uid {}; run this command as that user, or as root",
            named.name, named.uid
        )));
    }
    converse(&line, || find(&named, request))
}

fn find(named: &Process, request: &Request<'_>) -> Result<(Process, Peer), Refusal> {
    let own_peer = match named.is_softswap() {
        false => reach(named)?,
        true if is_of_one(request) => None,
        true => reach(named)?.map_or_else(|| reach_supervisor(named), |peer| Ok(Some(peer)))?,
    };
    match own_peer {
        Some(peer) => Ok((named.clone(), peer)),
        None => reach_program_of(named)?.ok_or_else(|| explain(named)),
    }
}

fn is_of_one(request: &Request<'_>) -> bool {
    match request {
        Request::Get(Some(key)) | Request::Set(key, _) => !OF_TREE.contains(key),
        Request::Sample(..) | Request::Touch(..) => true,
        Request::Stat | Request::Get(None) | Request::Park | Request::Unpark => false,
    }
}

pub fn query_program_of(supervisor: &Process, request: &Request<'_>) -> Option<(Process, String)> {
    let find = || reach_program_of(supervisor)?.ok_or_else(|| explain(supervisor));
    converse(&request.line()?, find).ok()
}

/// Retries while the process closes the connection without an answer.
fn converse(
    line: &str,
    find: impl Fn() -> Result<(Process, Peer), Refusal>,
) -> Result<(Process, String), Refusal> {
    let until = Instant::now() + ANSWER_TIMEOUT;
    loop {
        let (process, peer) = find()?;
        match put(&process, &peer, line)? {
            Some(body) => return Ok((process, body)),
            None if Instant::now() < until => std::thread::sleep(RETRY_INTERVAL),
            None => return Err(no_answer(&process)),
        }
    }
}

/// `None`: the process closed the connection, as it does if a request arrives too late.
fn put(process: &Process, peer: &Peer, line: &str) -> Result<Option<String>, Refusal> {
    if process.is_stopped() {
        return Err(no_answer(process));
    }
    let answered = peer
        .write_all(line.as_bytes(), ANSWER_TIMEOUT)
        .and_then(|()| peer.read_to_end(MAX_ANSWER_BYTES, ANSWER_TIMEOUT));
    let bytes = match answered {
        Ok(bytes) if bytes.is_empty() => return Ok(None),
        Ok(bytes) => bytes,
        Err(error) if is_closed(&error) => return Ok(None),
        Err(_) => return Err(no_answer(process)),
    };
    match Answer::parse(&bytes) {
        Answer::Ok(body) => Ok(Some(body)),
        Answer::Error(why) => {
            Err(Refusal::usage(format!("process {}: {}", process.pid, visible(&why))))
        }
        Answer::Denied(why) => Err(failed(format!(
            "process {} refuses to answer: {}; run this command as that user, or as root",
            process.pid,
            visible(&why)
        ))),
        Answer::Garbled => Err(no_answer(process)),
    }
}

fn is_closed(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// `None` if the process has no socket.
fn reach(process: &Process) -> Result<Option<Peer>, Refusal> {
    reach_in(process, process.directories())
}

/// The socket is in the program's directory. Only root can read the environment of `softswap run`.
fn reach_supervisor(supervisor: &Process) -> Result<Option<Peer>, Refusal> {
    match children_of(supervisor).first() {
        Some(program) => reach_in(supervisor, program.directories()),
        None => Ok(None),
    }
}

fn reach_in(process: &Process, dirs: Vec<PathBuf>) -> Result<Option<Peer>, Refusal> {
    for dir in dirs {
        let path = control_socket::socket_path(&dir, process.pid);
        let mut connected = control_socket::connect(&path, ANSWER_TIMEOUT);
        if is_refused(&connected) {
            std::thread::sleep(RETRY_INTERVAL);
            connected = control_socket::connect(&path, ANSWER_TIMEOUT);
        }
        match connected {
            // Any user may create a socket there; the kernel reports its owner.
            Ok(peer) if peer.credentials().is_ok_and(|c| c.pid == process.pid as i32) => {
                return Ok(Some(peer));
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => return Err(no_answer(process)),
            Err(_) if is_refused(&connected) && control_socket::check(&dir, own_uid()).is_ok() => {
                control_socket::remove_stale(&path);
            }
            _ => {}
        }
    }
    Ok(None)
}

fn is_refused(connected: &std::io::Result<Peer>) -> bool {
    connected.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn reach_program_of(supervisor: &Process) -> Result<Option<(Process, Peer)>, Refusal> {
    for process in children_of(supervisor) {
        if let Some(peer) = reach(&process)? {
            return Ok(Some((process, peer)));
        }
    }
    Ok(None)
}

fn children_of(supervisor: &Process) -> Vec<Process> {
    if !supervisor.is_softswap() {
        return Vec::new();
    }
    let parent = supervisor.pid;
    let mut children: Vec<Process> = match listed_children(parent) {
        Ok(listed) => listed.into_iter().filter_map(Process::read).collect(),
        Err(_) => all_processes().collect(),
    };
    children.retain(|process| process.parent == parent);
    children
}

/// Fails if the kernel was built without CONFIG_PROC_CHILDREN.
pub(crate) fn listed_children(pid: u32) -> procfs::ProcResult<Vec<u32>> {
    let mut all = Vec::new();
    for task in procfs::process::Process::new(pid as i32)?.tasks()? {
        all.extend(task?.children()?);
    }
    Ok(all)
}

fn all_processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
}

fn no_answer(process: &Process) -> Refusal {
    let (pid, name) = (process.pid, &process.name);
    match Process::read(pid).filter(|now| !now.has_ended()) {
        None => ended(process),
        Some(now) if now.is_stopped() => {
            let root = now.variable(&format!("{ENV_PREFIX}SUPERVISOR_PID"));
            let root: Option<u32> = root.and_then(|root| root.to_str()?.parse().ok());
            let unpark = root.map_or_else(String::new, |root| {
                format!(" (`softswap ctl {root} unpark`, if its tree is parked)")
            });
            failed(format!(
                "process {pid} ({name}) is stopped; `kill -CONT {pid}` continues it{unpark}"
            ))
        }
        Some(_) => failed(format!(
            "process {pid} ({name}) did not answer within {} s; try again, or see with `ps {pid}` \
             what it is doing",
            ANSWER_TIMEOUT.as_secs()
        )),
    }
}

/// Anonymous memory in DRAM, shared pages included.
pub(crate) fn anonymous_bytes(pid: u32) -> Option<u64> {
    let statm = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?.statm().ok()?;
    Some(statm.resident.saturating_sub(statm.shared) * softswap_sys::PAGE_SIZE as u64)
}

fn has_exited(pid: u32) -> bool {
    Process::read(pid).is_none_or(|now| now.has_ended())
}

fn ended(process: &Process) -> Refusal {
    failed(format!("process {} ({}) exited before it answered", process.pid, process.name))
}

/// Returns false on timeout. A missing socket proves no exit: a process removes it earlier.
pub(crate) fn wait_for_exit(pid: u32) -> bool {
    let end = Instant::now() + EXIT_TIMEOUT;
    while Instant::now() < end {
        if has_exited(pid) {
            return true;
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
    false
}

fn explain(process: &Process) -> Refusal {
    let (pid, name) = (process.pid, &process.name);
    if let Some(program) = children_of(process).into_iter().find(Process::sleeps) {
        return explain(&program);
    }
    if process.is_softswap() {
        return failed(format!(
            "process {pid} is `softswap run`, and its program has no control socket: it has just \
             started, has exited, or could not create one; `softswap stat` with the program's own \
             PID prints the reason"
        ));
    }
    if has_exited(pid) {
        return ended(process);
    }
    match process.is_managed() {
        Some(true) => {}
        Some(false) => {
            return failed(format!(
                "process {pid} ({name}) is not managed by softswap; start it with `softswap run`"
            ));
        }
        None => {
            return failed(format!(
                "process {pid} ({name}) has no control socket, and its memory map is not readable: \
                 it is probably not managed by softswap; start it with `softswap run`"
            ));
        }
    }
    if process.sleeps() {
        return failed(format!(
            "process {pid} ({name}) is asleep: its memory fits its budget, so its engine has not \
             started, and it has no figures and no settings yet"
        ));
    }
    explain_without_socket(process)
}

fn explain_without_socket(process: &Process) -> Refusal {
    let (pid, name) = (process.pid, &process.name);
    let problem = |dir: &PathBuf| {
        let problem = control_socket::check(dir, process.uid).err()?;
        Some(format!("{} {}", dir.display(), reason_text(problem)))
    };
    let dirs = control_socket::directories(|name| process.variable(name), process.uid);
    let problems: Vec<String> = dirs.iter().filter_map(problem).collect();
    if problems.is_empty() {
        let advice = match process.parent {
            0 => String::new(),
            parent => format!("; its parent, process {parent}, may have one"),
        };
        return failed(format!(
            "process {pid} ({name}) has no control socket, because it was forked and has not \
             called exec{advice}"
        ));
    }
    failed(format!(
        "process {pid} ({name}) has no control socket: {}; start it with {DIR_VARIABLE} set to a \
         directory of your own",
        problems.join(", and ")
    ))
}

fn reason_text(problem: Unusable) -> String {
    match problem {
        Unusable::Refused(error) => format!("cannot be used: {}", plain(&error)),
        other => other.to_string(),
    }
}

/// Removes the sockets of processes of this user that have exited.
pub fn sweep() {
    let own = own_uid();
    for dir in control_socket::directories(|name| std::env::var_os(name), own) {
        if control_socket::check(&dir, own).is_err() {
            continue;
        }
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.as_bytes().strip_suffix(b".sock").map(String::from_utf8_lossy);
            let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
            if has_exited(pid) {
                control_socket::remove_stale(&entry.path());
            }
        }
    }
}

/// Returns a warning if the socket directory that the user has configured is unusable.
pub fn note() -> Option<String> {
    let dir = std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()).map(PathBuf::from)?;
    let problem = control_socket::make(&dir, own_uid()).err()?;
    Some(format!(
        "{DIR_VARIABLE}={} {}: `softswap stat` and `softswap ctl` cannot reach the program",
        dir.display(),
        reason_text(problem)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_testkit::waiting::wait_until;

    #[test]
    fn process_name_cut_within_utf8_character_is_parsed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = dir.path().join("xxxxxxxxxxxxxxä");
        std::fs::copy("/bin/sleep", &program).expect("a copy of sleep");
        let mut child = std::process::Command::new(&program).arg("600").spawn().expect("a process");
        // The kernel sets the name after `spawn` has returned.
        let has_name = |process: &Process| process.name.starts_with("xxxxxxxxxxxxxx");
        let found = wait_until("the name", || {
            Process::read(child.id()).filter(has_name).ok_or_else(String::new)
        });
        child.kill().expect("the process still runs");
        child.wait().expect("the process was killed");
        assert!(found.resident.is_some_and(|it| it.peak_bytes > 0), "{found:?}");
    }
}
