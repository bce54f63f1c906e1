//! The life of a helper: it is told what to serve, connects, says how that went, and serves.
//!
//! It is started by `softswap run` with one end of a socket as its standard input, and a
//! descriptor of the queue that it is to serve.

use crate::check::examine;
use crate::cluster::{Cluster, Run};
use crate::control::{Order, Told};
use crate::refusal::Refusal;
use crate::secret::Password;
use crate::serve::serve;
use crate::url::Url;
use crate::watch::Watch;
use softswap_shared::request_queue::{Areas, open_inherited};
use std::future::Future;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Between looks at what there is to tell.
const NEWS_EVERY: Duration = Duration::from_secs(1);
/// Who does not hear it within this time is told nothing more.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// Serves the queue behind a descriptor, until no process can submit a request.
pub(crate) async fn run(queue_fd: i32) -> ExitCode {
    // A task that panics must not leave what it had under way: another helper begins anew.
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
    match try_to_run(queue_fd).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("softswap-remote: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn try_to_run(queue_fd: i32) -> io::Result<()> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let order = Order::read(BufReader::new(&control))?;
    let queue = open_inherited(queue_fd).map_err(io::Error::other)?;
    let areas = Areas::open(queue, queue_fd)?;
    let (cluster, notes) = match connect(order).await {
        Ok(connected) => connected,
        Err(refusal) => return tell(&control, &Told::Refused(refusal.to_string())),
    };
    for note in notes {
        tell(&control, &Told::Note(note))?;
    }
    tell(&control, &Told::Ready)?;
    control.set_write_timeout(Some(HEARD_WITHIN))?;
    let cluster = Arc::new(cluster);
    let telling = tokio::spawn(tell_news(Arc::clone(&cluster), control.try_clone()?));
    serve(queue, areas, Arc::clone(&cluster), end_of(control)?).await?;
    telling.abort();
    // It has a part in the cluster.
    _ = telling.await;
    match Arc::into_inner(cluster) {
        Some(cluster) => cluster.close().await.map_err(io::Error::other),
        None => Ok(()),
    }
}

/// Connects to what was ordered, if it can serve; with what the user should know.
async fn connect(order: Order) -> Result<(Cluster, Vec<String>), Refusal> {
    let mut url = Url::parse(&order.url)?;
    if let Some(password) = order.password {
        url.password = Password::Given(password);
    }
    let mut notes = Vec::new();
    // What there is by now is stored there, whether it pleases or not.
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

/// Tells what happens to servers, as long as somebody hears it.
async fn tell_news(cluster: Arc<Cluster>, control: UnixStream) {
    let mut watch = Watch::default();
    loop {
        sleep(NEWS_EVERY).await;
        for note in cluster.news(&mut watch) {
            if tell(&control, &Told::Note(note)).is_err() {
                return;
            }
        }
    }
}

fn tell(mut control: &UnixStream, told: &Told) -> io::Result<()> {
    control.write_all(told.to_line().as_bytes())
}

/// Comes when the other end of the socket is closed.
fn end_of(mut control: UnixStream) -> io::Result<impl Future<Output = ()>> {
    let (ended, ends) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("softswap-run".into()).spawn(move || {
        let mut byte = [0];
        // Nothing more is said.
        while matches!(control.read(&mut byte), Ok(1..)) {}
        let _ = ended.send(());
    })?;
    Ok(async move { drop(ends.await) })
}
