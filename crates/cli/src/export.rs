//! `softswap export`: metrics of all programs under softswap, over HTTP, for Prometheus.
//!
//! Whoever reaches the address may send what they like, and as slowly as they like. So all that
//! one connection takes is bounded: one request, its head, its time. One thread serves all of
//! them, another looks at the programs.

use crate::look::Looker;
use crate::output::print;
use crate::refusal::{FAILED, Refusal};
use clap::Args;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use softswap_view::metrics;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

/// Who asks more often gets the same answer.
const FRESH: Duration = Duration::from_millis(500);
const INDEX: &str = "softswap: /metrics has the metrics\n";

/// Connections at a time. Others wait in the kernel until one of these has ended.
const MAX_CONNECTIONS: usize = 512;
/// How long a request's head may take to come. Those that wait, wait for no more than this where
/// idle connections have all places.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_HEAD_BYTES: usize = 16 << 10;
/// How long a connection may last: who does not read the answer by then does not get it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long, and how much, is still taken in of what nobody asked for: a socket that is closed
/// with bytes unread takes the answer back.
const LINGER: Duration = Duration::from_secs(1);
const MAX_LINGER_BYTES: u64 = 1 << 20;
/// How long to wait before the next connection is taken where this one could not be.
const PAUSE: Duration = Duration::from_millis(100);

/// Serve metrics of programs that run under softswap, for Prometheus.
///
/// Those of your own programs, and of all to root, at /metrics. Nothing can be changed over it.
#[derive(Args)]
#[command(after_long_help = "\
Whoever reaches the address sees numbers, names and figures of the programs. `softswap stat PID
--prometheus` prints those of one tree, for a textfile collector.

Exit status: 1 where the address cannot be listened on. Otherwise it runs until a signal ends it.")]
pub(crate) struct ExportArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10187")]
    #[arg(value_parser = parse_address)]
    listen: SocketAddr,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "it is no IP address with a port; names are not looked up. \
         Write one such as 127.0.0.1:10187 or [::1]:10187"
            .to_string()
    })
}

pub(crate) fn export(args: &ExportArgs) -> Result<ExitCode, Refusal> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // The programs are looked at once at a time.
    let runtime = runtime.enable_io().enable_time().max_blocking_threads(1).build();
    let runtime =
        runtime.map_err(|error| Refusal::own(format!("nothing can be waited for: {error}")))?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen).await;
        let listener = listener.map_err(|error| cannot_listen(args.listen, &error))?;
        let address = listener.local_addr();
        let address = address.map_err(|error| cannot_listen(args.listen, &error))?;
        print(&format!("softswap: metrics at http://{address}/metrics"))?;
        if !address.ip().is_loopback() {
            eprintln!(
                "softswap: note: {address} is reached from other machines, too: they see which \
                 programs run"
            );
        }
        serve(&listener).await
    })
}

fn cannot_listen(address: SocketAddr, error: &Error) -> Refusal {
    let way_out = match error.kind() {
        ErrorKind::AddrNotAvailable => {
            "this machine has no such address; name one that `ip address` shows, or 127.0.0.1"
        }
        ErrorKind::PermissionDenied => "name a port from 1024 upwards, or be root",
        _ => "name another port",
    };
    Refusal::new(FAILED, format!("--listen {address}: {error}; {way_out}"))
}

async fn serve(listener: &TcpListener) -> ! {
    let (figures, mut connections) = (Arc::new(Mutex::new(Figures::new())), JoinSet::new());
    loop {
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let conversation = converse(stream, Arc::clone(&figures));
                connections.spawn(timeout(CONNECTION_TIMEOUT, conversation));
            }
            // Who connected has gone again, or there is no descriptor left just now.
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Answers one request, and ends the connection.
async fn converse(stream: TcpStream, figures: Arc<Mutex<Figures>>) {
    let service = service_fn(|request| Box::pin(answer(request, Arc::clone(&figures))));
    let mut connection = http1::Builder::new()
        .keep_alive(false)
        // Who has said all may close their side, and still wants the answer.
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let outcome = poll_fn(|context| connection.poll_without_shutdown(context)).await;
    if outcome.is_err_and(|error| error.is_timeout()) {
        return;
    }
    // What else is wrong with a request has been answered.
    let mut stream = connection.into_parts().io.into_inner();
    if stream.shutdown().await.is_ok() {
        let (mut rest, mut nowhere) = (stream.take(MAX_LINGER_BYTES), tokio::io::sink());
        let _ = timeout(LINGER, tokio::io::copy(&mut rest, &mut nowhere)).await;
    }
}

async fn answer(
    request: Request<Incoming>,
    figures: Arc<Mutex<Figures>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => fresh(figures).await,
        (&Method::GET | &Method::HEAD, "/") => (StatusCode::OK, INDEX.into()),
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, INDEX.into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n".into()),
    };
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    Ok(response)
}

/// What there is now, or was a moment ago. Those who ask meanwhile get the same.
async fn fresh(figures: Arc<Mutex<Figures>>) -> (StatusCode, Bytes) {
    let mut figures = figures.lock_owned().await;
    match spawn_blocking(move || figures.fresh()).await {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n").into()),
    }
}

/// The metrics, and what makes them.
struct Figures {
    looker: Looker,
    last: Option<(Instant, Bytes)>,
}

impl Figures {
    fn new() -> Figures {
        Figures { looker: Looker::new().with_latencies(), last: None }
    }

    fn fresh(&mut self) -> Bytes {
        match &self.last {
            Some((at, text)) if at.elapsed() < FRESH => text.clone(),
            _ => {
                let text = Bytes::from(metrics::text(&self.looker.trees()));
                self.last = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}
