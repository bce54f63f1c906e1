//! Areas in the memory of other machines. `run` starts a helper (`softswap-remote serve`) for each,
//! and restarts it when it exits. Meanwhile requests wait, at most until their deadline.
//!
//! A socket connects both, and closes when either exits. The helper exits after the last process of
//! the tree, which may be after `run`.

use crate::library;
use crate::refusal::{OrRefuse, Refusal, plain};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use softswap_engine::api::settings::{AreaSpec, ENV_PREFIX};
use softswap_remote::PROGRAM;
use softswap_remote::control::{HelperMessage, Order, RunKey};
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

const MIN_BYTES: u64 = 16 << 20;
/// Added to the cluster's timeout for a request, as the helper may have to be restarted first.
const RESTART: Duration = Duration::from_secs(20);
/// Pause between attempts to start a helper; doubled after each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait at the end of the run for a helper that is being restarted.
pub(super) const LAST_RESTART: Duration = Duration::from_secs(15);
/// Time for a helper's start, in addition to the cluster's timeout.
const START: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(super) struct Remote {
    text: String,
    shown: String,
    url: Url,
    size_bytes: u64,
}

impl Remote {
    pub(super) fn parse(text: &str) -> Result<Remote, String> {
        let url = Url::parse(text).map_err(|refusal| refusal.to_string())?;
        if url.copies == Copies::Local && url.priority.is_some() {
            return Err(
                "pri= has no effect with copies=local, which uses the priority of the area on \
                 disk: leave pri= out"
                    .into(),
            );
        }
        let Some(size_bytes) = url.size_bytes else {
            return Err(
                "size= is missing, which limits the memory of the cluster that softswap uses; \
                 add it, such as ?size=4G"
                    .into(),
            );
        };
        if size_bytes < MIN_BYTES {
            return Err(format!(
                "size= of {} is too small; give at least {}",
                units::bytes(size_bytes),
                units::bytes(MIN_BYTES)
            ));
        }
        Ok(Remote { text: text.into(), shown: format!("--swap {url}"), url, size_bytes })
    }

    /// A local disk changes the URL's defaults.
    pub(super) fn parse_with_local_disk(text: &str) -> Result<Remote, String> {
        Remote::parse(&Url::with_local_disk(text))
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// A mirror belongs to an area on disk, and is no area itself.
    pub(super) fn is_mirror(&self) -> bool {
        self.url.copies == Copies::Local
    }

    /// The area has no descriptor of its request queue yet.
    pub(super) fn spec(&self) -> AreaSpec {
        AreaSpec {
            limit_bytes: Some(self.size_bytes),
            priority: self.url.priority.and_then(|priority| u16::try_from(priority).ok()),
            discard: softswap_engine::store::swap::Discard::Pages,
            ..AreaSpec::new(self.url.to_string())
        }
    }
}

/// Pidfd of the most recent helper.
type Last = Arc<Mutex<Arc<OwnedFd>>>;

pub(super) struct Helper {
    queue_fd: OwnedFd,
    /// Until the watching thread takes it.
    first: Option<(Keeper, Running)>,
    last: Last,
}

struct Keeper {
    program: PathBuf,
    order: Order,
    shown: String,
    timeout: Duration,
}

struct Running {
    process: Arc<OwnedFd>,
    control: BufReader<UnixStream>,
}

impl Helper {
    /// Fails if the cluster cannot be used. Adds messages for the user to `notes`.
    pub(super) fn start(remote: &Remote, notes: &mut Vec<String>) -> Result<Helper, Refusal> {
        let shown = &remote.shown;
        let refuse = |why: String| Refusal::usage(format!("{shown}: {why}"));
        let own = library::own_executable().map_err(|refusal| refuse(refusal.to_string()))?;
        let (queue_fd, words) = softswap_sys::shared::create(SHAPE.words())
            .or_usage(format_args!("{shown}: cannot create the request queue"))?;
        let timeout = remote.url.deadline + RESTART;
        let limit_pages = remote.size_bytes / softswap_sys::PAGE_SIZE as u64;
        let _ = RequestQueue::create(words, SHAPE, limit_pages, timeout.as_nanos() as u64);
        hold_tree(queue_fd.as_fd()).or_usage(format_args!("{shown}: the request queue"))?;
        let password = match &remote.url.password {
            Password::Given(password) => Some(password.clone()),
            Password::None | Password::File(_) => None,
        };
        let run = RunKey::choose().or_usage(format_args!("{shown}: cannot create a random key"))?;
        let order = Order { url: remote.text.clone(), password, run, is_again: false };
        order.check().map_err(|refusal| refuse(refusal.to_string()))?;
        let program = own.with_file_name(PROGRAM);
        let mut keeper = Keeper { program, order, shown: shown.clone(), timeout };
        let (running, messages) = keeper.start(queue_fd.as_fd()).map_err(|why| {
            refuse(format!("{why}; `softswap remote check URL` tests the servers"))
        })?;
        notes.extend(messages.into_iter().map(|note| format!("{}: {note}", remote.shown)));
        keeper.order.is_again = true;
        let last = Arc::new(Mutex::new(Arc::clone(&running.process)));
        Ok(Helper { queue_fd, first: Some((keeper, running)), last })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.queue_fd.as_fd()
    }

    pub(super) fn watch(&mut self, is_quiet: bool) -> Result<(), Refusal> {
        let Some((keeper, running)) = self.first.take() else { return Ok(()) };
        let what = format!("{PROGRAM} cannot be watched");
        let fd = self.queue_fd.try_clone().or_own(&what)?;
        let last = Arc::clone(&self.last);
        let watch = move || keeper.keep(fd.as_fd(), running, &last, is_quiet);
        let thread = std::thread::Builder::new().name("softswap-helper".into()).spawn(watch);
        thread.map(drop).or_own(what)
    }

    /// Waits at most until `until`. The new helper removes the pages of exited processes.
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
    /// Returns once the helper is ready, with its messages for the user.
    fn start(&self, queue: BorrowedFd<'_>) -> Result<(Running, Vec<String>), Refusal> {
        let cannot = |error: std::io::Error| {
            Refusal::own(library::not_run(&self.program, "connects to clusters", &error))
        };
        let (control, other) = UnixStream::pair().map_err(cannot)?;
        let mut command = Command::new(&self.program);
        // With a separate open file description: the lock on the first one shows that processes of
        // the tree exist, so the helper must not hold it.
        let number = queue.as_raw_fd();
        let own = File::options().read(true).write(true).open(format!("/proc/self/fd/{number}"));
        let own = own.map_err(cannot)?;
        command.arg("serve").arg(format!("--queue={}", own.as_raw_fd()));
        command.stdin(Stdio::from(OwnedFd::from(other))).stdout(Stdio::null());
        command.stderr(Stdio::null()).env_remove(VARIABLE);
        // A helper belongs to no tree. An empty value disables the runtime. If the variable were
        // unset, a runtime in this process would add it with its budget.
        library::remove_variables(&mut command);
        command.env(format!("{ENV_PREFIX}MEMORY"), "");
        library::remove_preload(&mut command);
        child::detach_from_session(&mut command, &[own.as_fd()]);
        let started = command.spawn().map_err(cannot)?;
        // Only the helper must hold the other end.
        drop(command);
        let pid = i32::try_from(started.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or_else(|| Refusal::own("the kernel returned no PID"))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| cannot(error.into()))?;
        let process = Arc::new(process);
        let mut running = Running { process, control: BufReader::new(control) };
        match running.begin(&self.order, self.timeout + START) {
            Ok(notes) => Ok((running, notes)),
            Err(why) => {
                running.end();
                Err(Refusal::own(why))
            }
        }
    }

    fn keep(&self, queue: BorrowedFd<'_>, mut running: Running, last: &Last, is_quiet: bool) {
        loop {
            running.listen(|text| self.print_note(is_quiet, text));
            running.end();
            let mut pause = FIRST_PAUSE;
            running = loop {
                match self.start(queue) {
                    Ok((again, _)) => break again,
                    Err(why) if pause == MAX_INTERVAL => {
                        self.print_note(is_quiet, &why.to_string())
                    }
                    Err(_) => {}
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(MAX_INTERVAL);
            };
            *last.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&running.process);
            self.print_note(
                is_quiet,
                "softswap-remote exited and was started again; no page is lost",
            );
        }
    }

    fn print_note(&self, is_quiet: bool, text: &str) {
        if !is_quiet {
            let _ = writeln!(std::io::stderr(), "softswap: note: {}: {text}", self.shown);
        }
    }
}

impl Running {
    /// Returns once the helper is ready, with its messages for the user.
    fn begin(&mut self, order: &Order, at_most: Duration) -> Result<Vec<String>, String> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::WouldBlock => format!(
                "{PROGRAM} did not answer within {} s; check that the cluster is running and \
                 reachable",
                at_most.as_secs()
            ),
            _ => format!("{PROGRAM} exited while it was starting ({})", plain(&error)),
        };
        let control = self.control.get_ref();
        control.set_read_timeout(Some(at_most)).map_err(failed)?;
        order.write(control).map_err(failed)?;
        let mut notes = Vec::new();
        loop {
            let mut line = String::new();
            self.control.read_line(&mut line).map_err(failed)?;
            match HelperMessage::from_line(&line) {
                Some(HelperMessage::Ready) => break,
                Some(HelperMessage::Note(note)) => notes.push(note),
                Some(HelperMessage::Refused(why)) => return Err(why),
                None => return Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
            }
        }
        self.control.get_ref().set_read_timeout(None).map_err(failed)?;
        Ok(notes)
    }

    fn listen(&mut self, on_note: impl Fn(&str)) {
        for line in self.control.by_ref().lines().map_while(Result::ok) {
            if let Some(HelperMessage::Note(text)) = HelperMessage::from_line(&line) {
                on_note(&text);
            }
        }
    }

    /// Waits for the exit, so that there is one helper at a time.
    fn end(&self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        let within = Timespec::try_from(RESTART).ok();
        let _ = poll(&mut [PollFd::new(&self.process, PollFlags::IN)], within.as_ref());
    }
}
