//! `softswap export`: metrics of all programs under softswap, over HTTP, for Prometheus.
//!
//! Clients are untrusted, so the resources of a connection are bounded. One thread serves all
//! connections, another collects the figures.

use crate::discover::TreeCollector;
use crate::output::{print, print_message};
use crate::refusal::{FAILED, Refusal, plain};
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

const FRESH: Duration = Duration::from_millis(500);
const INDEX: &str = "softswap: /metrics has the metrics\n";

/// Further connections wait in the kernel.
const MAX_CONNECTIONS: usize = 512;
/// Also bounds the wait of other clients if idle connections use up [`MAX_CONNECTIONS`].
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_HEAD_BYTES: usize = 16 << 10;
/// A client that has not read the answer by then does not get it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Closing a socket with unread bytes would discard the answer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_DRAIN_BYTES: u64 = 1 << 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Serve metrics of programs that run under softswap, for Prometheus.
///
/// Serves the metrics at /metrics: of the user's own programs, or of all programs if run as root.
/// Clients cannot change anything.
#[derive(Args)]
#[command(
    after_long_help = "Every client that can connect sees PIDs, names and figures of the programs. `softswap stat PID
--prometheus` prints the metrics of one tree, for a textfile collector.

Examples:
  softswap export --listen 127.0.0.1:10187

Exit status: 1 if it cannot listen on the address. Otherwise it runs until a signal stops it."
)]
pub(crate) struct ExportArgs {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10187")]
    #[arg(value_parser = parse_address)]
    listen: SocketAddr,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "not an IP address with a port; host names are not resolved. Give one such as \
         127.0.0.1:10187 or [::1]:10187"
            .to_string()
    })
}

pub(crate) fn export(args: &ExportArgs) -> Result<ExitCode, Refusal> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // One blocking thread, so that one collection runs at a time.
    let runtime = runtime.enable_io().enable_time().max_blocking_threads(1).build();
    let runtime =
        runtime.map_err(|e| Refusal::own(format!("cannot start the event loop: {}", plain(&e))))?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen).await;
        let listener = listener.map_err(|error| listen_error(args.listen, &error))?;
        let address = listener.local_addr();
        let address = address.map_err(|error| listen_error(args.listen, &error))?;
        print(&format!("softswap: metrics at http://{address}/metrics"))?;
        if !address.ip().is_loopback() {
            print_message(&format!(
                "softswap: note: {address} is reachable from other machines: they can see which \
                 programs run"
            ));
        }
        serve(&listener).await
    })
}

fn listen_error(address: SocketAddr, error: &Error) -> Refusal {
    let remedy = match error.kind() {
        ErrorKind::AddrNotAvailable => {
            "this machine has no such address; give one that `ip address` lists, or 127.0.0.1"
        }
        ErrorKind::PermissionDenied => "use a port of at least 1024, or run as root",
        _ => "use another port",
    };
    Refusal::new(FAILED, format!("--listen {address}: {}; {remedy}", plain(error)))
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
            // The client has disconnected, or no descriptor is free.
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn converse(stream: TcpStream, figures: Arc<Mutex<Figures>>) {
    let service = service_fn(|request| Box::pin(respond(request, Arc::clone(&figures))));
    let mut connection = http1::Builder::new()
        .keep_alive(false)
        // A client may close its sending side and still wait for the answer.
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let outcome = poll_fn(|context| connection.poll_without_shutdown(context)).await;
    if outcome.is_err_and(|error| error.is_timeout()) {
        return;
    }
    // hyper has already answered other errors of a request.
    let mut stream = connection.into_parts().io.into_inner();
    if stream.shutdown().await.is_ok() {
        let (mut rest, mut sink) = (stream.take(MAX_DRAIN_BYTES), tokio::io::sink());
        let _ = timeout(DRAIN_TIMEOUT, tokio::io::copy(&mut rest, &mut sink)).await;
    }
}

async fn respond(
    request: Request<Incoming>,
    figures: Arc<Mutex<Figures>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => fresh(figures).await,
        (&Method::GET | &Method::HEAD, "/") => (StatusCode::OK, INDEX.into()),
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, INDEX.into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n".into()),
    };
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    Ok(response)
}

/// Concurrent requests share one collection.
async fn fresh(figures: Arc<Mutex<Figures>>) -> (StatusCode, Bytes) {
    let mut figures = figures.lock_owned().await;
    match spawn_blocking(move || figures.fresh()).await {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n").into()),
    }
}

struct Figures {
    collector: TreeCollector,
    last: Option<(Instant, Bytes)>,
}

impl Figures {
    fn new() -> Figures {
        Figures { collector: TreeCollector::new().with_latencies(), last: None }
    }

    fn fresh(&mut self) -> Bytes {
        match &self.last {
            Some((at, text)) if at.elapsed() < FRESH => text.clone(),
            _ => {
                let text = Bytes::from(metrics::text(&self.collector.trees()));
                self.last = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}
