//! One server: its connection, and a circuit breaker against waits for a silent server.

use crate::link::{Client, Connector, IF_TLS, Link};
use crate::request_error::RequestError;
use crate::url::Address;
use redis::{Pipeline, Value};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Pause without requests after an error; it doubles with each consecutive error.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// A server counts as unwritable for this time after a refused write, or until it accepts one.
const UNWRITABLE_FOR: Duration = Duration::from_secs(10);
/// A server counts as persistently unwritable if its first and last refusals are this far apart.
const UNWRITABLE_AFTER: Duration = Duration::from_secs(1);
/// Time for which the other copy is read first after a server was slow.
const SLOW_FOR: Duration = Duration::from_secs(1);

pub(crate) struct Node {
    pub(crate) address: Address,
    connector: Arc<Connector>,
    /// Time without an answer after which the connection is dropped.
    stall: Duration,
    link: tokio::sync::Mutex<Connection>,
    breaker: Mutex<Breaker>,
}

#[derive(Default)]
struct Connection {
    link: Option<Link>,
    /// The client of a dropped connection whose commands may still be executed.
    stale: Option<Client>,
    /// Server process of the last connection. Outer `None`: never connected; inner: not reported.
    server: Option<Option<String>>,
}

#[derive(Default)]
struct Breaker {
    failures: u32,
    /// The server did not answer, or refused the request, and has served nothing since.
    idle: Option<Streak>,
    open_until: Option<Instant>,
    slow_until: Option<Instant>,
    unwritable: Option<Streak>,
    /// There was a connection, so the address is right.
    was_connected: bool,
    reason: String,
    /// The server was restarted, with empty or outdated content.
    has_restarted: bool,
    /// Time of the first request since the server last sent data, and the bytes received by then.
    /// Detects a silent server even if each caller uses another copy before its request times out.
    silent: Option<(Instant, u64)>,
}

/// One or more occurrences of the same problem, without a success in between.
#[derive(Clone, Debug)]
pub(crate) struct Streak {
    pub(crate) first: Instant,
    pub(crate) last: Instant,
    pub(crate) reason: String,
}

impl Streak {
    /// Adds an occurrence. Starts a new streak if the last occurrence is not recent.
    fn extend(streak: &mut Option<Streak>, reason: &str) {
        let last = Instant::now();
        let before = streak.take().filter(Streak::is_recent);
        let first = before.map_or(last, |streak| streak.first);
        *streak = Some(Streak { first, last, reason: reason.into() });
    }

    fn is_recent(&self) -> bool {
        Instant::now() < self.last + UNWRITABLE_FOR
    }
}

#[derive(Clone, Debug)]
pub(crate) enum MissingService {
    /// The server does not answer, refuses the login, or cannot serve now.
    Service(Streak),
    Writes(Streak),
}

impl Node {
    pub(crate) fn new(address: Address, connector: Arc<Connector>, stall: Duration) -> Self {
        Self {
            address,
            connector,
            stall,
            link: tokio::sync::Mutex::default(),
            breaker: Mutex::default(),
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_problem(&self) -> bool {
        let breaker = self.breaker();
        let now = Instant::now();
        breaker.failures > 0 || breaker.slow_until.is_some_and(|until| now < until)
    }

    pub(crate) fn is_unreachable(&self) -> bool {
        self.breaker().failures > 0
    }

    pub(crate) fn note_unwritable(&self, reason: &str) {
        Streak::extend(&mut self.breaker().unwritable, reason);
    }

    pub(crate) fn note_idle(&self, reason: &str) {
        Streak::extend(&mut self.breaker().idle, reason);
    }

    pub(crate) fn note_served(&self) {
        self.breaker().idle = None;
    }

    pub(crate) fn note_written(&self) {
        self.breaker().unwritable = None;
    }

    pub(crate) fn is_unwritable(&self) -> bool {
        self.breaker().unwritable.as_ref().is_some_and(Streak::is_recent)
    }

    pub(crate) fn is_persistently_unwritable(&self) -> bool {
        let lasts = |it: &Streak| it.is_recent() && it.last - it.first >= UNWRITABLE_AFTER;
        self.breaker().unwritable.as_ref().is_some_and(lasts)
    }

    pub(crate) fn missing_service(&self) -> Option<MissingService> {
        let breaker = self.breaker();
        let service = breaker.idle.clone().map(MissingService::Service);
        service.or_else(|| breaker.unwritable.clone().map(MissingService::Writes))
    }

    pub(crate) fn note_slow(&self) {
        self.breaker().slow_until = Some(Instant::now() + SLOW_FOR);
    }

    fn unreachable(&self, reason: String) -> RequestError {
        RequestError::Unreachable { node: self.address.clone(), reason }
    }

    fn record_failure(&self, reason: String) -> RequestError {
        let mut breaker = self.breaker();
        let pause = MIN_PAUSE * 2u32.pow(breaker.failures.min(8));
        breaker.failures += 1;
        Streak::extend(&mut breaker.idle, &reason);
        breaker.open_until = Some(Instant::now() + pause.min(MAX_PAUSE));
        breaker.reason.clone_from(&reason);
        drop(breaker);
        self.unreachable(reason)
    }

    /// Sends all commands in one batch. Returns one answer for each, including the server's errors.
    pub(crate) async fn send(
        &self,
        commands: &Pipeline,
        contents_bytes: u64,
        until: Instant,
    ) -> Result<Vec<Value>, RequestError> {
        let now = Instant::now();
        {
            let breaker = self.breaker();
            if breaker.open_until.is_some_and(|until| now < until) {
                return Err(self.unreachable(breaker.reason.clone()));
            }
        }
        let mut link = self.connected(until).await?;
        let sent = Instant::now();
        if self.is_silent(&link, sent) {
            let reason = format!("no answer for {:?}", self.stall);
            return Err(self.drop_link(link, reason).await);
        }
        let stalled = sent + self.stall;
        let answers = link.send(commands, contents_bytes);
        match timeout_at(until.min(stalled), answers).await {
            Ok(Ok(values)) if values.len() == commands.len() => {
                let mut breaker = self.breaker();
                breaker.failures = 0;
                breaker.open_until = None;
                Ok(values)
            }
            Ok(Ok(_)) => Err(self.drop_link(link, "an answer without a request".into()).await),
            Ok(Err(reason)) => Err(self.drop_link(link, reason).await),
            Err(_) if stalled <= until => {
                let reason = format!("no answer for {:?}", self.stall);
                Err(self.drop_link(link, reason).await)
            }
            Err(_) => Err(self.unreachable(format!("no answer for {:?}", sent.elapsed()))),
        }
    }

    fn is_silent(&self, link: &Link, now: Instant) -> bool {
        let received_count = link.received_bytes_total();
        let mut breaker = self.breaker();
        match breaker.silent {
            Some((since, before)) if before == received_count => now > since + self.stall,
            _ => {
                breaker.silent = Some((now, received_count));
                false
            }
        }
    }

    async fn connected(&self, until: Instant) -> Result<Link, RequestError> {
        let within = until.min(Instant::now() + CONNECT_WITHIN);
        let result = timeout_at(within, async {
            let mut connection = self.link.lock().await;
            if let Some(link) = &connection.link {
                return Ok(link.clone());
            }
            let link = self.connector.connect(&self.address, connection.stale.clone()).await;
            let link = link?;
            connection.stale = None;
            let server = link.server().map(str::to_string);
            if let Some(before) = connection.server.replace(server.clone())
                && (before.is_none() || before != server)
            {
                self.breaker().has_restarted = true;
            }
            connection.link = Some(link.clone());
            self.breaker().was_connected = true;
            Ok::<_, String>(link)
        })
        .await;
        match result {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(reason)) if is_refusal(&reason) => {
                let node = self.address.clone();
                _ = self.record_failure(reason.clone());
                let reason = format!("{reason}; check the user and the password");
                Err(RequestError::Refused { node, reason })
            }
            Ok(Err(reason)) if self.breaker().was_connected => {
                Err(self.record_failure(reason.trim_end_matches(IF_TLS).into()))
            }
            Ok(Err(reason)) => Err(self.record_failure(reason)),
            Err(_) => {
                let is_unknown = self.connector.is_secure() && !self.breaker().was_connected;
                let hint = "; check that this is the server's TLS port (redis:// is without TLS)";
                let hint = if is_unknown { hint } else { "" };
                Err(self.record_failure(format!("the connection timed out{hint}")))
            }
        }
    }

    pub(crate) fn take_restart(&self) -> bool {
        std::mem::take(&mut self.breaker().has_restarted)
    }

    async fn drop_link(&self, link: Link, reason: String) -> RequestError {
        let mut connection = self.link.lock().await;
        if connection.link.as_ref().is_some_and(|current| current.is(&link)) {
            connection.link = None;
            connection.stale = link.client;
            drop(connection);
            self.breaker().silent = None;
            return self.record_failure(reason);
        }
        self.unreachable(reason)
    }
}

/// Returns true if the server accepted the connection but refused the login.
fn is_refusal(reason: &str) -> bool {
    const REFUSALS: [&str; 8] = [
        "WRONGPASS",
        "NOAUTH",
        "NOPERM",
        // Servers before version 6, and compatible ones.
        "ERR AUTH",
        "without any password",
        "invalid password",
        "sent AUTH",
        "arguments for 'auth'",
    ];
    REFUSALS.iter().any(|part| reason.contains(part))
}
