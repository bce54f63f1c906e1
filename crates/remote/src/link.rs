//! A connection to one server: TCP or TLS, authentication, and a limit on the size of answers.

use crate::refusal::Refusal;
use crate::request_error::error_text;
use crate::secret::Password;
use crate::url::{Address, TlsFiles, Url};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisConnectionInfo, Value};
use rustix::rand::{GetRandomFlags, getrandom};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use softswap_sys::file::plain;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Bytes allowed for each answer besides its content: types, lengths, an error's text.
const ANSWER_BYTES: u64 = 1024;
/// Timeout of the wait for data that a server sends without a request.
const GREETING_TIMEOUT: Duration = Duration::from_millis(200);
pub(crate) const IF_TLS: &str = "; if this port uses TLS, write rediss://";
/// Limit for the answers to the first commands of a connection.
const FIRST_BYTES: u64 = 64 << 10;
/// Limit for all outstanding answers of a connection.
const MAX_BYTES: u64 = 256 << 20;

/// Limit for a server's list of clients: about 40,000 of them.
const CLIENTS_BYTES: u64 = 16 << 20;

/// A helper that follows another one closes its predecessor's connections.
pub(crate) struct Helper {
    run: String,
    own: String,
    follows: bool,
}

impl Helper {
    pub(crate) fn new(run: u64, follows: bool) -> Result<Self, Refusal> {
        let mut number = [0; 8];
        getrandom(&mut number, GetRandomFlags::empty()).map_err(|error| {
            Refusal::new(format!("the kernel returned no random numbers: {error}"))
        })?;
        let run = format!("softswap-{run:016x}-");
        Ok(Self { own: format!("{run}{:016x}", u64::from_le_bytes(number)), run, follows })
    }

    fn earlier_clients(&self, clients: &str) -> Vec<i64> {
        let number = |line: &str| {
            let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name));
            let is_before = |name: &&str| name.starts_with(&self.run) && *name != self.own;
            field("name=").filter(is_before)?;
            field("id=")?.parse().ok()
        };
        clients.lines().filter_map(number).collect()
    }
}

pub(crate) struct Connector {
    tls: Option<TlsConnector>,
    user: Option<String>,
    password: Password,
    helper: Option<Helper>,
}

impl Connector {
    pub(crate) fn new(url: &Url, helper: Option<Helper>) -> Result<Self, Refusal> {
        let tls = url.tls.as_ref().map(tls_connector).transpose()?;
        Ok(Self { tls, user: url.user.clone(), password: url.password.clone(), helper })
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects. The server may still have an unexecuted write of `stale`, an earlier client of
    /// this helper, or of an earlier helper. Kills those clients (`CLIENT KILL`) before it returns,
    /// so that such a write is not executed after a newer one.
    pub(crate) async fn connect(
        &self,
        address: &Address,
        stale: Option<Client>,
    ) -> Result<Link, String> {
        let tcp = TcpStream::connect((address.host.as_str(), address.port))
            .await
            .map_err(|error| plain(&error))?;
        tcp.set_nodelay(true).map_err(|error| plain(&error))?;
        match &self.tls {
            None => match self.log_in(tcp, stale).await {
                Err(reason) if reason.ends_with(IF_TLS) => {
                    Err(greeting(address).await.unwrap_or(reason))
                }
                link => link,
            },
            Some(connector) => {
                let name = ServerName::try_from(address.host.clone())
                    .map_err(|_| format!("{} is not a host name for TLS", address.host))?;
                let stream = connector.connect(name, tcp).await.map_err(|e| tls_error_text(&e))?;
                self.log_in(stream, stale).await
            }
        }
    }

    async fn log_in<S>(&self, stream: S, stale: Option<Client>) -> Result<Link, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let traffic =
            Arc::new(Traffic { allowed: AtomicU64::new(FIRST_BYTES), ..Traffic::default() });
        // Callers have deadlines of their own.
        let settings = AsyncConnectionConfig::default().set_response_timeout(None);
        let bounded = Bounded { stream, traffic: Arc::clone(&traffic) };
        let (connection, driver) = MultiplexedConnection::new_with_config(&info, bounded, settings)
            .await
            .map_err(|error| plain(&error))?;
        let driver = tokio::spawn(driver).abort_handle();
        let mut link = Link { connection, traffic, driver: Arc::new(Driver(driver)), client: None };
        self.authenticate(&mut link).await?;
        let mut first = redis::pipe();
        first.cmd("CLIENT").arg("ID").cmd("INFO").arg("server");
        let answers = self.send_first(&mut link, &first).await?;
        link.client = match answers.as_slice() {
            [Value::Int(number), info] => run_of(info).map(|run| Client { number: *number, run }),
            _ => None,
        };
        // The number identifies a client only until the server restarts.
        if let (Some(stale), Some(own)) = (stale, &link.client)
            && stale.run == own.run
        {
            let mut kill = redis::pipe();
            kill.cmd("CLIENT").arg("KILL").arg("ID").arg(stale.number);
            _ = link.send(&kill, 0).await?;
        }
        if let Some(helper) = &self.helper {
            link.introduce(helper).await?;
        }
        Ok(link)
    }

    /// Without TLS, an error mentions TLS, because a server that expects TLS closes the connection.
    async fn send_first(&self, link: &mut Link, words: &Pipeline) -> Result<Vec<Value>, String> {
        link.send(words, FIRST_BYTES).await.map_err(|reason| match self.is_secure() {
            true => reason,
            false => format!("{reason}{IF_TLS}"),
        })
    }

    /// The client library can do this, but hides the server's answer.
    async fn authenticate(&self, link: &mut Link) -> Result<(), String> {
        let password = self.password.read().map_err(|refusal| refusal.to_string())?;
        let mut login = redis::pipe();
        login.cmd("AUTH");
        match (&self.user, &password) {
            (None, None) => return Ok(()),
            (None, Some(password)) => login.arg(&**password),
            (Some(user), password) => {
                login.arg(user).arg(password.as_ref().map_or("", |it| it.as_str()))
            }
        };
        match self.send_first(link, &login).await?.first() {
            Some(Value::ServerError(error)) => Err(error_text(error)),
            _ => Ok(()),
        }
    }
}

#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    traffic: Arc<Traffic>,
    driver: Arc<Driver>,
    pub(crate) client: Option<Client>,
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    number: i64,
    /// Identifier of the server process; it changes with each start.
    run: String,
}

fn run_of(info: &Value) -> Option<String> {
    let text: String = redis::from_redis_value_ref(info).ok()?;
    text.lines().find_map(|line| line.strip_prefix("run_id:")).map(str::to_string)
}

/// Ends the connection's background task when the last [`Link`] is dropped.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// If kills are refused, a later read detects a late write by its seal.
    async fn introduce(&mut self, helper: &Helper) -> Result<(), String> {
        let mut name = redis::pipe();
        name.cmd("CLIENT").arg("SETNAME").arg(&helper.own);
        self.send(&name, 0).await?;
        if !helper.follows {
            return Ok(());
        }
        let mut list = redis::pipe();
        list.cmd("CLIENT").arg("LIST").arg("TYPE").arg("normal");
        let answers = self.send(&list, CLIENTS_BYTES).await?;
        let clients = answers.first().and_then(|it| redis::from_redis_value_ref::<String>(it).ok());
        let mut kill = redis::pipe();
        for number in helper.earlier_clients(&clients.unwrap_or_default()) {
            kill.cmd("CLIENT").arg("KILL").arg("ID").arg(number);
        }
        if !kill.is_empty() {
            self.send(&kill, 0).await?;
        }
        Ok(())
    }

    pub(crate) fn is(&self, other: &Link) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }

    pub(crate) fn server(&self) -> Option<&str> {
        self.client.as_ref().map(|client| client.run.as_str())
    }

    pub(crate) fn received_bytes_total(&self) -> u64 {
        self.traffic.received_count.load(Ordering::Relaxed)
    }

    /// Waits for all answers, including errors. `contents_bytes` limits the content of all answers.
    pub(crate) async fn send(
        &mut self,
        commands: &Pipeline,
        contents_bytes: u64,
    ) -> Result<Vec<Value>, String> {
        let expected_bytes = contents_bytes + commands.len() as u64 * ANSWER_BYTES;
        let add = |allowed: u64| Some((allowed + expected_bytes).min(MAX_BYTES));
        _ = self.traffic.allowed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        self.connection
            .send_packed_commands(commands, 0, commands.len())
            .await
            .map_err(|error| plain(&error))
    }
}

/// Fails if the server sends more than the commands allow: the parser trusts lengths in answers.
struct Bounded<S> {
    stream: S,
    traffic: Arc<Traffic>,
}

#[derive(Default)]
struct Traffic {
    allowed: AtomicU64,
    received_count: AtomicU64,
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, into);
        let count = (into.filled().len() - before) as u64;
        let take = |allowed: u64| allowed.checked_sub(count);
        self.traffic.received_count.fetch_add(count, Ordering::Relaxed);
        match self.traffic.allowed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => outcome,
            Err(_) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the server sent more bytes than the requests allow",
            ))),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn tls_connector(files: &TlsFiles) -> Result<TlsConnector, Refusal> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| unusable(path, &error))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(Refusal::new(
                    "this system has no CA certificates to verify the servers: install \
                     ca-certificates, or name a file with ca=",
                ));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Refusal::new(format!("TLS cannot be used: {error}")))?
        .with_root_certificates(roots);
    let config = match &files.client {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let secret =
                PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
            config.with_client_auth_cert(chain, secret).map_err(|error| {
                let (cert, key) = (certificate.display(), key.display());
                Refusal::new(format!("{cert} and {key} cannot be used together: {error}"))
            })?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A server that refuses a connection (too many clients, protected mode) sends the reason and
/// closes it. A client that sends first loses that message.
async fn greeting(address: &Address) -> Option<String> {
    let mut tcp = TcpStream::connect((address.host.as_str(), address.port)).await.ok()?;
    let mut words = [0; 256];
    let count = timeout(GREETING_TIMEOUT, tcp.read(&mut words)).await.ok()?.ok()?;
    let words: String = String::from_utf8_lossy(&words[..count])
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let words = words.trim();
    (!words.is_empty()).then(|| format!("the server sends {words:?}"))
}

fn tls_error_text(error: &io::Error) -> String {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let remedy = match of_tls {
        Some(rustls::Error::InvalidMessage(_)) => {
            "; the server does not use TLS on this port: use redis://, or its TLS port"
        }
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)) => {
            "; name the certificate of its CA with ca="
        }
        _ => "",
    };
    format!("TLS: {}{remedy}", plain(error))
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Refusal {
    let why = plain(error);
    Refusal::new(format!("{} cannot be used: {why}; use a PEM file", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Refusal> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| unusable(path, &error))?.collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(path, &"it contains no certificate")),
        Err(error) => Err(unusable(path, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_helpers_of_this_run_are_identified() {
        let [one, other] = [0xA, 0xB].map(|run| Helper::new(run, true).unwrap());
        let again = Helper::new(0xA, true).unwrap();
        let line = |id: i64, name: &str| format!("id={id} addr=h:1 fd=8 name={name} age=5\n");
        let list = [line(7, &one.own), line(8, &other.own), line(9, &again.own), line(10, "")];
        assert_eq!(again.earlier_clients(&list.concat()), [7]);
        assert_eq!(other.earlier_clients(&list.concat()), [0; 0]);
    }
}
