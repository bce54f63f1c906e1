//! The client library by itself: values as large as the store's, set and got by connections to
//! each server, without seals, copies, placement or deadlines.

use super::step::{self, Figure, Step};
use crate::measure::noise::{below, noise};
use redis::aio::MultiplexedConnection;
use softswap_cli::refusal::Refusal;
use softswap_sys::raw::now_ns;
use std::time::Duration;

/// Keys of each server.
const KEYS: u64 = 64;

/// What each key has: a whole extent, and a single page.
const PARTS: [&str; 2] = ["extent", "page"];

/// A connection to each server, and the keys that it has.
pub(super) struct Client {
    servers: Vec<(MultiplexedConnection, Vec<String>)>,
    /// For whole extents and for single pages.
    values: [Vec<u8>; 2],
    extent_pages: u64,
}

fn failed(error: redis::RedisError) -> Refusal {
    Refusal::own(format!("the client library: {error}"))
}

impl Client {
    /// Connects, and sets all keys once. `sizes` are those of an extent and of a page as stored.
    pub(super) async fn fill(
        ports: &[u16],
        sizes: [usize; 2],
        extent_pages: u64,
    ) -> Result<Client, Refusal> {
        let values = sizes.map(|bytes| noise(5).take(bytes).map(|word| word as u8).collect());
        let mut servers = Vec::new();
        for port in ports {
            let client = redis::Client::open(format!("redis://127.0.0.1:{port}"));
            let client = client.map_err(failed)?;
            let connection = client.get_multiplexed_async_connection().await.map_err(failed)?;
            servers.push((connection, Vec::new()));
        }
        let mut client = Client { servers, values, extent_pages };
        for at in 0..client.servers.len() {
            client.servers[at].1 = client.own_keys(at).await?;
        }
        Ok(client)
    }

    /// Keys that this server has the slots of, all set.
    async fn own_keys(&self, at: usize) -> Result<Vec<String>, Refusal> {
        let mut keys = Vec::new();
        for number in 0_u64.. {
            if keys.len() as u64 == KEYS {
                break;
            }
            let key = format!("bench:{{{number}}}");
            let mut connection = self.servers[at].0.clone();
            let mut both = redis::pipe();
            for (value, part) in self.values.iter().zip(PARTS) {
                both.cmd("SET").arg(format!("{key}:{part}")).arg(value).ignore();
            }
            match both.exec_async(&mut connection).await {
                Ok(()) => keys.push(key),
                // Another has the slot.
                Err(error) if error.kind() == redis::ServerErrorKind::Moved.into() => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(keys)
    }

    async fn operate(&self, step: Step, number: u64) -> Result<u64, Refusal> {
        let (connection, keys) = &self.servers[number as usize % self.servers.len()];
        let key = &keys[below(number, keys.len() as u64) as usize];
        let part = usize::from(step.pages(self.extent_pages) == 1);
        let (name, value) = (format!("{key}:{}", PARTS[part]), &self.values[part]);
        let mut connection = connection.clone();
        let start = now_ns();
        if step.is_write() {
            let set = redis::cmd("SET").arg(name).arg(value).exec_async(&mut connection).await;
            set.map_err(failed)?;
        } else {
            let got = redis::cmd("GET").arg(name).query_async(&mut connection).await;
            let redis::Value::BulkString(_) = got.map_err(failed)? else {
                return Err(Refusal::own("the client library got no value"));
            };
        }
        Ok(now_ns() - start)
    }

    /// As the store's.
    pub(super) async fn measure(
        &self,
        step: Step,
        how: (usize, Duration),
        seed: u64,
    ) -> Result<Figure, Refusal> {
        let begin = |number| self.operate(step, number);
        step::measure(step, noise(seed), how, begin, step.pages(self.extent_pages)).await
    }
}
