//! Proxies in front of the servers, which add latency, stall, or alter answers on request.

use softswap_testkit::random::{Random, mix64};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

const DELAY: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Fair = 0,
    Slow = 1,
    /// Packet loss: data stalls for the time of a retransmission, and connections break.
    Lossy = 2,
    Lying = 3,
}

#[derive(Default)]
struct State {
    behaviour: AtomicU8,
    connections: AtomicU64,
    altered_chunks: AtomicU64,
}

impl State {
    fn is(&self, behaviour: Behaviour) -> bool {
        self.behaviour.load(Relaxed) == behaviour as u8
    }
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<State>,
}

impl Proxy {
    pub(crate) fn to(server: u16, seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let number = shared.connections.fetch_add(1, Relaxed);
                let random =
                    |proxy: u64| Random(mix64(seed ^ u64::from(port) << 32 ^ number << 1 ^ proxy));
                pass_on(&client, &server, Arc::clone(&shared), random(0), false);
                pass_on(&server, &client, Arc::clone(&shared), random(1), true);
            }
        });
        Proxy { port, state }
    }

    pub(crate) fn set_behaviour(&self, behaviour: Behaviour) {
        self.state.behaviour.store(behaviour as u8, Relaxed);
    }

    pub(crate) fn altered_chunks(&self) -> u64 {
        self.state.altered_chunks.load(Relaxed)
    }
}

/// Forwards bytes with two threads, so that a delayed chunk delays only later chunks.
fn pass_on(from: &TcpStream, to: &TcpStream, state: Arc<State>, mut random: Random, answers: bool) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    let _ = to.set_nodelay(true);
    let (came, goes) = sync_channel::<(Instant, Vec<u8>)>(64);
    let other = (from.try_clone(), to.try_clone());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if came.send((Instant::now(), buffer[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (when, mut bytes) in goes {
            if !apply_behaviour(&state, &mut random, when, &mut bytes, answers)
                || to.write_all(&bytes).is_err()
            {
                break;
            }
        }
        for end in [other.0, other.1].into_iter().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    });
}

fn apply_behaviour(
    state: &State,
    random: &mut Random,
    when: Instant,
    bytes: &mut Vec<u8>,
    answers: bool,
) -> bool {
    if state.is(Behaviour::Fair) {
        return true;
    }
    if state.is(Behaviour::Slow) {
        std::thread::sleep((when + DELAY).saturating_duration_since(Instant::now()));
    } else if state.is(Behaviour::Lossy) {
        match random.below(200) {
            0 => return false,
            // About 4 % loss, with TCP's retransmission timeouts.
            1..8 => std::thread::sleep(Duration::from_millis(200 << random.below(4))),
            _ => return true,
        }
    } else if answers && random.below(2) == 0 {
        corrupt_answer(bytes, random);
    } else {
        return true;
    }
    state.altered_chunks.fetch_add(1, Relaxed);
    true
}

fn corrupt_answer(answer: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(answer.len() as u64) as usize;
    match random.below(8) {
        // An answer that claims a length of 512 MiB.
        0 => *answer = b"$536870912\r\n".to_vec(),
        // Additional answers, which no command expects.
        1 => answer.extend_from_slice(b":1\r\n$3\r\nabc\r\n"),
        2 => answer.truncate(at),
        3 => answer.rotate_left(at),
        _ => answer[at] ^= 1 << random.below(8),
    }
}
