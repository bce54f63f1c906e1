//! `softswap export`: metrics of all programs under softswap, over HTTP, for Prometheus.

use crate::look::Looker;
use crate::refusal::{FAILED, Refusal};
use clap::Args;
use softswap_view::metrics;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tiny_http::{Header, Method, Request, Response, Server};

/// Who asks more often gets the same answer.
const FRESH: Duration = Duration::from_millis(500);
const INDEX: &str = "softswap: /metrics has the metrics\n";

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
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9187")]
    listen: SocketAddr,
}

pub(crate) fn export(args: &ExportArgs) -> Result<ExitCode, Refusal> {
    let server = Server::http(args.listen).map_err(|error| {
        Refusal::new(FAILED, format!("--listen {}: {error}; name another port", args.listen))
    })?;
    let address = server.server_addr();
    println!("softswap: metrics at http://{address}/metrics");
    if !args.listen.ip().is_loopback() {
        eprintln!(
            "softswap: note: {} is reached from other machines, too: they see which programs run",
            args.listen
        );
    }
    let (mut looker, mut last) = (Looker::new().with_latencies(), None);
    loop {
        let request = server
            .recv()
            .map_err(|error| Refusal::own(format!("no request can be taken: {error}")))?;
        answer(request, &mut looker, &mut last);
    }
}

fn answer(request: Request, looker: &mut Looker, last: &mut Option<(Instant, String)>) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, text) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => (200, fresh(looker, last)),
        (Method::Get | Method::Head, "/") => (200, INDEX.to_string()),
        (Method::Get | Method::Head, _) => (404, INDEX.to_string()),
        _ => (405, "only GET is answered\n".to_string()),
    };
    let mut response = Response::from_string(text).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", metrics::CONTENT_TYPE) {
        response.add_header(header);
    }
    // Who has gone away needs no answer.
    let _ = request.respond(response);
}

/// What there is now, or was a moment ago.
fn fresh(looker: &mut Looker, last: &mut Option<(Instant, String)>) -> String {
    match last {
        Some((at, text)) if at.elapsed() < FRESH => text.clone(),
        _ => {
            let text = metrics::text(&looker.trees());
            *last = Some((Instant::now(), text.clone()));
            text
        }
    }
}
