//! A proxy in front of a server that corrupts the server's answers.

use super::corruptions::corrupt_answer;
use softswap_testkit::random::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

#[derive(Default)]
struct State {
    is_corrupting: AtomicBool,
    corruption_count: AtomicU64,
}

pub(crate) struct CorruptingProxy {
    pub(crate) port: u16,
    state: Arc<State>,
}

impl CorruptingProxy {
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                tokio::spawn(pass_on(client, server, Arc::clone(&shared)));
            }
        });
        Self { port, state }
    }

    pub(crate) fn begin(&self) {
        self.state.is_corrupting.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.state.is_corrupting.store(false, Ordering::Relaxed);
    }

    pub(crate) fn corruption_count(&self) -> u64 {
        self.state.corruption_count.load(Ordering::Relaxed)
    }
}

async fn pass_on(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let questions = tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
    let mut random = Random(99);
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
        let mut answer = buffer[..count].to_vec();
        if state.is_corrupting.load(Ordering::Relaxed) {
            state.corruption_count.fetch_add(1, Ordering::Relaxed);
            corrupt_answer(&mut answer, &mut |limit| random.below(limit));
        }
        if to_client.write_all(&answer).await.is_err() {
            break;
        }
    }
    questions.abort();
}
