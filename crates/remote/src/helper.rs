//! Main function of a helper. `softswap run` starts it with one end of a socket as its standard
//! input, and a descriptor of the queue to serve.

use crate::check::examine;
use crate::cluster::{Cluster, Run};
use crate::control::{HelperMessage, Order};
use crate::refusal::Refusal;
use crate::secret::Password;
use crate::serve::serve;
use crate::url::Url;
use crate::watch::Watch;
use softswap_shared::request_queue::{RemoteAreas, open_inherited};
use std::future::Future;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a message. After a timeout no more messages are sent.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) async fn run(queue_fd: i32) -> ExitCode {
    // Abort the helper if a task panics, because its requests would remain unanswered. The next
    // helper executes them again.
    let print_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print_panic(panic);
        std::process::abort();
    }));
    match try_to_run(queue_fd).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "softswap-remote: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn try_to_run(queue_fd: i32) -> io::Result<()> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let order = Order::read(BufReader::new(&control))?;
    let queue = open_inherited(queue_fd).map_err(io::Error::other)?;
    let areas = RemoteAreas::open(queue, queue_fd)?;
    let (cluster, notes) = match connect(order).await {
        Ok(connected) => connected,
        Err(refusal) => {
            return send_message(&control, &HelperMessage::Refused(refusal.to_string()));
        }
    };
    for note in notes {
        send_message(&control, &HelperMessage::Note(note))?;
    }
    send_message(&control, &HelperMessage::Ready)?;
    control.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
    let cluster = Arc::new(cluster);
    let reporter = tokio::spawn(report_messages(Arc::clone(&cluster), control.try_clone()?));
    serve(queue, areas, Arc::clone(&cluster), end_of(control)?).await?;
    reporter.abort();
    // Waits, because the task shares the cluster, which is closed next.
    _ = reporter.await;
    match Arc::into_inner(cluster) {
        Some(cluster) => cluster.close().await.map_err(io::Error::other),
        None => Ok(()),
    }
}

async fn connect(order: Order) -> Result<(Cluster, Vec<String>), Refusal> {
    let mut url = Url::parse(&order.url)?;
    if let Some(password) = order.password {
        url.password = Password::Given(password);
    }
    let mut notes = Vec::new();
    // A later helper of the run connects without a check, because pages are stored already.
    if !order.is_again {
        let report = examine(&url).await?;
        if !report.refusals.is_empty() {
            return Err(Refusal::new(report.refusals.join("; ")));
        }
        notes = report.warnings;
    }
    let (id, key, continues) = (order.run.id, order.run.key, order.is_again);
    let run = Run { id, area: 0, key, continues };
    Ok((Cluster::connect(&url, run).await?, notes))
}

async fn report_messages(cluster: Arc<Cluster>, control: UnixStream) {
    let mut watch = Watch::default();
    loop {
        sleep(REPORT_INTERVAL).await;
        for note in cluster.messages_due(&mut watch) {
            if send_message(&control, &HelperMessage::Note(note)).is_err() {
                return;
            }
        }
    }
}

fn send_message(mut control: &UnixStream, message: &HelperMessage) -> io::Result<()> {
    control.write_all(message.to_line().as_bytes())
}

/// Returns a future that completes when the other end of the socket is closed.
fn end_of(mut control: UnixStream) -> io::Result<impl Future<Output = ()>> {
    let (ended, ends) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("softswap-run".into()).spawn(move || {
        let mut byte = [0];
        // The run sends nothing after its order.
        while matches!(control.read(&mut byte), Ok(1..)) {}
        let _ = ended.send(());
    })?;
    Ok(async move { drop(ends.await) })
}
