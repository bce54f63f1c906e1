//! Areas in the memory of other machines: `run` starts a helper for each, watches it, and starts
//! it again when it ends. What processes ask waits meanwhile, until its deadline.
//!
//! The helper's life is told by a socket: it closes when the helper ends, and when `run` does.
//! The helper does not end with `run`, but when no process of the tree is left.

use crate::library;
use crate::refusal::{Refusal, plain};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use softswap_engine::door::settings::{AreaSpec, ENV_PREFIX};
use softswap_remote::PROGRAM;
use softswap_remote::control::{Order, RunKey, Told};
use softswap_remote::secret::{Password, VARIABLE};
use softswap_remote::url::{Copies, Url};
use softswap_shared::request_queue::{RequestQueue, SHAPE, hold_tree};
use softswap_sys::child;
use softswap_view::units;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The smallest share of a cluster, as of a disk.
const LEAST_BYTES: u64 = 16 << 20;
/// A request is waited for by so much longer than the cluster is: a helper may start meanwhile.
const RESTART: Duration = Duration::from_secs(20);
/// Between attempts to start a helper, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the end waits for a helper that is being started again.
pub(super) const LAST_RESTART: Duration = Duration::from_secs(15);
/// So long a helper may take to say how it went, beside what it waits for the cluster.
const START: Duration = Duration::from_secs(30);

/// A cluster that is to be an area.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    /// As it was given.
    text: String,
    /// How refusals call it.
    shown: String,
    url: Url,
    size_bytes: u64,
}

impl Remote {
    /// What such a URL asks for.
    pub(super) fn parse(text: &str) -> Result<Remote, String> {
        let url = Url::parse(text).map_err(|refusal| refusal.to_string())?;
        if url.copies == Copies::Local && url.priority.is_some() {
            return Err("pri= is for an area of its own; with copies=local it is part of the one \
                        on disk, whose priority counts"
                .into());
        }
        let Some(size_bytes) = url.size_bytes else {
            return Err("how much of the cluster may be taken is not said; give it with size=, \
                        such as ?size=4G"
                .into());
        };
        if size_bytes < LEAST_BYTES {
            return Err(format!(
                "size= of {} is too small; give at least {}",
                units::bytes(size_bytes),
                units::bytes(LEAST_BYTES)
            ));
        }
        Ok(Remote { text: text.into(), shown: format!("--swap {url}"), url, size_bytes })
    }

    /// As [`Remote::parse`], where there is an area on disk, too.
    pub(super) fn parse_beside_disk(text: &str) -> Result<Remote, String> {
        Remote::parse(&Url::beside_disk(text))
    }

    /// The URL that a helper is given.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it keeps once more what is on disk, and is no area of its own.
    pub(super) fn is_mirror(&self) -> bool {
        self.url.copies == Copies::Local
    }

    /// The area without its request queue.
    pub(super) fn spec(&self) -> AreaSpec {
        AreaSpec {
            limit_bytes: Some(self.size_bytes),
            priority: self.url.priority.and_then(|priority| u16::try_from(priority).ok()),
            discard: softswap_engine::store::swap::Discard::Pages,
            ..AreaSpec::new(self.url.to_string())
        }
    }
}

/// The process of the helper that served last.
type Last = Arc<Mutex<Arc<OwnedFd>>>;

/// The helper of one area, and what it serves.
pub(super) struct Helper {
    queue_fd: OwnedFd,
    /// The one that runs, until it is watched.
    first: Option<(Keeper, Running)>,
    /// The one that served last.
    last: Last,
}

/// What it takes to start a helper.
struct Keeper {
    program: PathBuf,
    order: Order,
    shown: String,
    patience: Duration,
}

/// A helper that runs.
struct Running {
    /// The process.
    process: Arc<OwnedFd>,
    control: BufReader<UnixStream>,
}

impl Helper {
    /// Creates the request queue and starts the first helper. Fails if the cluster cannot serve.
    /// What the user should know comes to the notes.
    pub(super) fn start(remote: &Remote, notes: &mut Vec<String>) -> Result<Helper, Refusal> {
        let refuse = |why: String| Refusal::usage(format!("{}: {why}", remote.shown));
        let own = std::env::current_exe()
            .map_err(|error| refuse(format!("cannot tell where softswap itself is ({error})")))?;
        let made = softswap_sys::shared::create(SHAPE.words());
        let (queue_fd, words) = made.map_err(|error| {
            refuse(format!("cannot make the page for requests: {}", plain(&error)))
        })?;
        let patience = remote.url.deadline + RESTART;
        let limit_pages = remote.size_bytes / softswap_sys::PAGE_SIZE as u64;
        let _ = RequestQueue::create(words, SHAPE, limit_pages, patience.as_nanos() as u64);
        hold_tree(queue_fd.as_fd())
            .map_err(|error| refuse(format!("the page for requests: {}", plain(&error))))?;
        let password = match &remote.url.password {
            Password::Given(password) => Some(password.clone()),
            Password::None | Password::File(_) => None,
        };
        let run = RunKey::choose()
            .map_err(|error| refuse(format!("no key by chance: {}", plain(&error))))?;
        let order = Order { url: remote.text.clone(), password, run, is_again: false };
        order.check().map_err(|refusal| refuse(refusal.to_string()))?;
        let shown = remote.shown.clone();
        let mut keeper = Keeper { program: own.with_file_name(PROGRAM), order, shown, patience };
        let (running, told) =
            keeper.start(queue_fd.as_fd()).map_err(|why| refuse(why.to_string()))?;
        notes.extend(told.into_iter().map(|note| format!("{}: {note}", remote.shown)));
        keeper.order.is_again = true;
        let last = Arc::new(Mutex::new(Arc::clone(&running.process)));
        Ok(Helper { queue_fd, first: Some((keeper, running)), last })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.queue_fd.as_fd()
    }

    pub(super) fn number(&self) -> i32 {
        self.queue_fd.as_raw_fd()
    }

    /// Starts the helper again whenever it ends, in a thread, from now on. Unless it `is_quiet`,
    /// that is said.
    pub(super) fn watch(&mut self, is_quiet: bool) -> Result<(), Refusal> {
        let Some((keeper, running)) = self.first.take() else { return Ok(()) };
        let cannot =
            |error| Refusal::own(format!("{PROGRAM} cannot be watched: {}", plain(&error)));
        let fd = self.queue_fd.try_clone().map_err(cannot)?;
        let last = Arc::clone(&self.last);
        let watch = move || keeper.keep(fd.as_fd(), running, &last, is_quiet);
        let thread = std::thread::Builder::new().name("softswap-helper".into()).spawn(watch);
        thread.map(drop).map_err(cannot)
    }

    /// The program has ended. Waits for one that is being started again, up to then: what the
    /// program has left there, it removes.
    pub(super) fn await_restart(&self, until: Instant) {
        let has_ended = || {
            let last = Arc::clone(&self.last.lock().unwrap_or_else(PoisonError::into_inner));
            poll(&mut [PollFd::new(&last, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
        };
        while has_ended() && Instant::now() < until {
            std::thread::sleep(FIRST_PAUSE);
        }
    }
}

impl Keeper {
    /// Starts a helper, and waits until it serves. What it wants to be said comes with it.
    fn start(&self, queue: BorrowedFd<'_>) -> Result<(Running, Vec<String>), Refusal> {
        let cannot = |error: std::io::Error| {
            let shown = self.program.display();
            Refusal::own(match error.kind() {
                std::io::ErrorKind::NotFound => format!(
                    "{PROGRAM}, which speaks to clusters, is missing: looked for {shown}; build it \
                     with `make build`, or install it with `make install`"
                ),
                _ => format!("{shown} cannot be run: {}", plain(&error)),
            })
        };
        let (control, other) = UnixStream::pair().map_err(cannot)?;
        let mut command = Command::new(&self.program);
        // A file of its own: by this one the tree is told to live.
        let number = queue.as_raw_fd();
        let own = File::options().read(true).write(true).open(format!("/proc/self/fd/{number}"));
        let own = own.map_err(cannot)?;
        command.arg("serve").arg(format!("--queue={}", own.as_raw_fd()));
        command.stdin(Stdio::from(OwnedFd::from(other))).stdout(Stdio::null());
        command.stderr(Stdio::null()).env_remove(VARIABLE);
        unmanaged(&mut command);
        child::stand_alone(&mut command, &[own.as_fd()]);
        let started = command.spawn().map_err(cannot)?;
        // The other end of the socket is the helper's alone from here on.
        drop(command);
        let pid = i32::try_from(started.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or_else(|| Refusal::own("the system gave no process number"))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| cannot(error.into()))?;
        let process = Arc::new(process);
        let mut running = Running { process, control: BufReader::new(control) };
        let told = running.begin(&self.order, self.patience + START);
        match told {
            Ok(notes) => Ok((running, notes)),
            Err(why) => {
                running.end();
                Err(Refusal::own(why))
            }
        }
    }

    /// Stays for as long as this process does.
    fn keep(&self, queue: BorrowedFd<'_>, mut running: Running, last: &Last, is_quiet: bool) {
        loop {
            running.listen(|text| self.say(is_quiet, text));
            running.end();
            let mut pause = FIRST_PAUSE;
            running = loop {
                match self.start(queue) {
                    Ok((again, _)) => break again,
                    Err(why) if pause == LONGEST_PAUSE => self.say(is_quiet, &why.to_string()),
                    Err(_) => {}
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            };
            *last.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&running.process);
            self.say(is_quiet, "its helper ended, and was started again; nothing is lost");
        }
    }

    fn say(&self, is_quiet: bool, text: &str) {
        if !is_quiet {
            let _ = writeln!(std::io::stderr(), "softswap: note: {}: {text}", self.shown);
        }
    }
}

/// Takes out of the environment what has a program managed: this may run under another softswap,
/// and a helper belongs to no tree, and waits for none.
fn unmanaged(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with(ENV_PREFIX)) {
            command.env_remove(name);
        }
    }
    // The runtime in this process would add a budget.
    command.env(format!("{ENV_PREFIX}MEMORY"), "");
    let Some(preloaded) = std::env::var_os("LD_PRELOAD") else { return };
    let preloaded = preloaded.to_string_lossy();
    let is_other = |path: &&str| !path.ends_with(library::NAME);
    let others: Vec<&str> = preloaded.split([':', ' ']).filter(is_other).collect();
    match others.is_empty() {
        true => command.env_remove("LD_PRELOAD"),
        false => command.env("LD_PRELOAD", others.join(":")),
    };
}

impl Running {
    /// Tells a helper what to serve; what it wants to be said, or why it cannot.
    fn begin(&mut self, order: &Order, at_most: Duration) -> Result<Vec<String>, String> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::WouldBlock => format!(
                "{PROGRAM} has not answered within {} s; is the cluster there?",
                at_most.as_secs()
            ),
            _ => format!("{PROGRAM} has ended too early ({})", plain(&error)),
        };
        let control = self.control.get_ref();
        control.set_read_timeout(Some(at_most)).map_err(failed)?;
        order.write(control).map_err(failed)?;
        let mut notes = Vec::new();
        loop {
            let mut line = String::new();
            self.control.read_line(&mut line).map_err(failed)?;
            match Told::from_line(&line) {
                Some(Told::Ready) => break,
                Some(Told::Note(note)) => notes.push(note),
                Some(Told::Refused(why)) => return Err(why),
                None => return Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
            }
        }
        self.control.get_ref().set_read_timeout(None).map_err(failed)?;
        Ok(notes)
    }

    /// Hears what a helper says, until it ends.
    fn listen(&mut self, say: impl Fn(&str)) {
        for line in self.control.by_ref().lines().map_while(Result::ok) {
            if let Some(Told::Note(text)) = Told::from_line(&line) {
                say(&text);
            }
        }
    }

    /// There is one helper at a time: this one has ended when the next begins.
    fn end(&self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        let within = Timespec::try_from(RESTART).ok();
        let _ = poll(&mut [PollFd::new(&self.process, PollFlags::IN)], within.as_ref());
    }
}
