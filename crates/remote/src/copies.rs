//! Reads and writes of pages in the copies of their extents.

use crate::placement::{EXTENT_BYTES, PAGES, extent_of};
use crate::request_error::{RequestError, Unwritten};
use crate::router::Request;
use crate::seal::{Found, HEADER_BYTES, SEALED_BYTES, Sealed};
use crate::shared::Shared;
use crate::store::{Page, StoreError};
use crate::url::Address;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, RedisWrite, ToRedisArgs, ToSingleRedisArg, Value, cmd};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// If a server does not answer a read within this time, the other copy is read as well.
pub(crate) const HEDGE_DELAY: Duration = Duration::from_millis(150);
/// Timeout of a server's wait for its replica. It delays all other commands on the same connection.
const REPLICA_WITHIN: Duration = Duration::from_millis(250);
/// Shorter after a recent timeout, because many requests may wait in turn.
const MISSED_REPLICA_WITHIN: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) extent: u64,
    /// Index of the first page in the extent.
    pub(crate) first: usize,
    pub(crate) pages: Range<usize>,
}

pub(crate) fn pieces(first_page: u64, count: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut done = 0;
    while done < count {
        let page = first_page + done as u64;
        let first = (page % PAGES) as usize;
        let length = (PAGES as usize - first).min(count - done);
        pieces.push(Piece { extent: extent_of(page), first, pages: done..done + length });
        done += length;
    }
    pieces
}

pub(crate) fn read_request(
    shared: &Shared,
    slot: u16,
    extent: u64,
    range: Range<usize>,
) -> Request {
    let key = shared.keys.extent(slot, extent);
    let command = cmd("GETRANGE").arg(key).arg(range.start).arg(range.end - 1).take();
    Request { slot, commands: vec![command], answer_bytes: range.len() as u64 }
}

struct ConsecutivePages<'a>(&'a [Sealed<'a>]);

impl ToRedisArgs for ConsecutivePages<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.reserve_space_for_args([self.0.len() * SEALED_BYTES]);
        let mut argument = out.writer_for_next_arg();
        // A write to memory cannot fail.
        self.0.iter().for_each(|page| _ = page.write_to(&mut argument));
    }
}

impl ToSingleRedisArg for ConsecutivePages<'_> {}

pub(crate) struct Put {
    pub(crate) slot: u16,
    pub(crate) extent: u64,
    pub(crate) first: usize,
    /// If false, the request first sets the full length, so that the server allocates once.
    pub(crate) exists: bool,
}

pub(crate) fn full_length_request(shared: &Shared, slot: u16, extent: u64) -> Request {
    let commands = vec![set_full_length(&shared.keys.extent(slot, extent))];
    let commands = with_replica(shared, slot, commands);
    Request { slot, commands, answer_bytes: 0 }
}

fn set_full_length(key: &str) -> Cmd {
    cmd("SETRANGE").arg(key).arg(EXTENT_BYTES - 1).arg(&[0u8][..]).take()
}

fn with_replica(shared: &Shared, slot: u16, mut commands: Vec<Cmd>) -> Vec<Cmd> {
    if shared.url.wait_for_replica {
        let within = match shared.router.is_unwritable(slot) {
            true => MISSED_REPLICA_WITHIN,
            false => REPLICA_WITHIN,
        };
        commands.push(cmd("WAIT").arg(1).arg(within.as_millis() as u64).take());
    }
    commands
}

pub(crate) fn write_request(shared: &Shared, put: &Put, sealed: impl ToSingleRedisArg) -> Request {
    let Put { slot, extent, first, exists } = *put;
    let key = shared.keys.extent(slot, extent);
    let mut commands = Vec::new();
    if !exists {
        commands.push(set_full_length(&key));
    }
    commands.push(cmd("SETRANGE").arg(&key).arg(first * SEALED_BYTES).arg(sealed).take());
    Request { slot, commands: with_replica(shared, slot, commands), answer_bytes: 0 }
}

pub(crate) fn is_written(answers: &[Value], waits: bool) -> Result<(), Unwritten> {
    let (answers, replicas) = match answers {
        [answers @ .., replicas] if waits => (answers, Some(replicas)),
        _ => (answers, None),
    };
    match (answers.last(), replicas) {
        (_, Some(Value::Int(..=0))) => Err(Unwritten::NoReplica),
        (Some(Value::Int(length)), _) if *length == EXTENT_BYTES as i64 => Ok(()),
        (Some(Value::Int(_)), _) => Err(Unwritten::Gone),
        _ => Err(Unwritten::Unparsable),
    }
}

struct Read<'a> {
    shared: &'a Shared,
    first_page: u64,
    generations: &'a [u64],
    pieces: Vec<Piece>,
    into: &'a mut [Page],
    is_found: Vec<bool>,
    /// For each page: the slots with bad content, and that content.
    bad: Vec<Vec<(u16, Found)>>,
}

impl Read<'_> {
    fn is_whole(&self) -> bool {
        self.is_found.iter().all(|is_found| *is_found)
    }

    fn places(&self, piece: &Piece) -> Vec<u16> {
        let group = self.shared.group(piece.extent);
        let mut places: Vec<u16> = group.places().collect();
        places.sort_by_key(|slot| self.shared.router.has_problem(*slot));
        places
    }

    /// Returns the pieces with missing pages, by server, each with the slot of this rank.
    fn wanted(&self, order: &[Vec<u16>], rank: usize) -> Vec<(Address, Vec<(Piece, u16)>)> {
        let mut wanted: BTreeMap<Address, Vec<(Piece, u16)>> = BTreeMap::new();
        for (piece, places) in self.pieces.iter().zip(order) {
            let is_missing = self.is_found[piece.pages.clone()].contains(&false);
            let Some(slot) = places.get(rank).filter(|_| is_missing) else { continue };
            // If the slot has no owner, the request returns the error.
            let owner =
                self.shared.router.owner(*slot).unwrap_or(Address { host: String::new(), port: 0 });
            wanted.entry(owner).or_default().push((piece.clone(), *slot));
        }
        wanted.into_iter().collect()
    }

    fn requests(&self, wanted: &[(Piece, u16)]) -> Vec<Request> {
        let request = |(piece, slot): &(Piece, u16)| {
            let start = piece.first * SEALED_BYTES;
            let range = start..start + piece.pages.len() * SEALED_BYTES;
            read_request(self.shared, *slot, piece.extent, range)
        };
        wanted.iter().map(request).collect()
    }

    fn take(&mut self, piece: &Piece, slot: u16, answer: &[Value]) {
        let bytes: &[u8] = match answer {
            [Value::BulkString(bytes)] => bytes,
            _ => &[],
        };
        for (at, page) in piece.pages.clone().enumerate() {
            let sealed = bytes.get(at * SEALED_BYTES..(at + 1) * SEALED_BYTES).unwrap_or_default();
            let number = self.first_page + page as u64;
            match self.shared.sealer.check(number, self.generations[page], sealed) {
                Found::Good if !self.is_found[page] => {
                    self.into[page].copy_from_slice(&sealed[HEADER_BYTES..]);
                    self.is_found[page] = true;
                }
                Found::Good => {}
                found => self.bad[page].push((slot, found)),
            }
        }
    }

    fn missing_keys(&self) -> Vec<String> {
        let is_missing = |piece: &&Piece| self.is_found[piece.pages.clone()].contains(&false);
        let piece = self.pieces.iter().find(is_missing).filter(|_| self.shared.may_name_keys());
        piece.map_or(Vec::new(), |piece| self.keys_of(piece))
    }

    fn keys_of(&self, piece: &Piece) -> Vec<String> {
        let key = |slot| self.shared.keys.extent(slot, piece.extent);
        self.places(piece).into_iter().map(key).collect()
    }

    /// Returns an error for a page that no copy has, if all copies were read.
    fn lost(&self) -> Option<StoreError> {
        let pages = self.pieces.iter().flat_map(|p| p.pages.clone().map(move |page| (p, page)));
        for (piece, page) in pages.filter(|(_, page)| !self.is_found[*page]) {
            let places = self.places(piece);
            let was_read = |slot: &u16| self.bad[page].iter().any(|(bad, _)| bad == slot);
            if !places.iter().all(was_read) {
                continue;
            }
            let found: Vec<String> = self.bad[page].iter().map(|(_, f)| f.to_string()).collect();
            let node = |slot: &u16| match self.shared.router.owner(*slot) {
                Some(address) => address.to_string(),
                None => format!("no server (slot {slot})"),
            };
            return Some(StoreError::Lost {
                page: self.first_page + page as u64,
                keys: self.keys_of(piece),
                nodes: places.iter().map(node).collect(),
                found: found.join(", "),
            });
        }
        None
    }

    fn bad_extents(&self) -> impl Iterator<Item = u64> {
        let is_bad = |piece: &&Piece| self.bad[piece.pages.clone()].iter().any(|it| !it.is_empty());
        self.pieces.iter().filter(is_bad).map(|piece| piece.extent)
    }
}

impl Shared {
    pub(crate) async fn write_pages(
        &self,
        first_page: u64,
        generations: &[u64],
        pages: &[Page],
    ) -> Result<(), StoreError> {
        assert_eq!(generations.len(), pages.len(), "one generation for each page");
        let until = self.deadline();
        let pieces = pieces(first_page, pages.len());
        let _held = self.lock_to_use(pieces.iter().map(|piece| piece.extent), until).await?;
        let sealed: Vec<Sealed<'_>> = (first_page..)
            .zip(generations)
            .zip(pages)
            .map(|((number, generation), page)| self.sealer.seal(number, *generation, page))
            .collect();
        let copies = self.url.copies.count();
        let exist: Vec<bool> = pieces
            .iter()
            .map(|piece| {
                let bits = (1u64 << piece.pages.len()) - 1;
                self.note_stored(piece.extent, (bits << piece.first) as u32)
            })
            .collect();
        let request = |number: usize, tries: u32| {
            let (piece, copy) = (&pieces[number / copies], number % copies);
            let slot = self.group(piece.extent).slots[copy];
            // The server may have lost the extent, with all its other pages, since the first try.
            let exists = tries == 0 && exist[number / copies];
            if tries > 0 {
                self.note_doubtful([piece.extent].into_iter());
            }
            let put = Put { slot, extent: piece.extent, first: piece.first, exists };
            write_request(self, &put, ConsecutivePages(&sealed[piece.pages.clone()]))
        };
        let waits = self.url.wait_for_replica;
        let is_accepted = |answers: &[Value]| is_written(answers, waits);
        self.carry_out(pieces.len() * copies, until, request, is_accepted).await
    }

    pub(crate) async fn read_pages(
        &self,
        first_page: u64,
        generations: &[u64],
        into: &mut [Page],
    ) -> Result<(), StoreError> {
        assert_eq!(generations.len(), into.len(), "one generation for each page");
        let until = self.deadline();
        let count = into.len();
        let pieces = pieces(first_page, count);
        let _held = self.lock_to_use(pieces.iter().map(|piece| piece.extent), until).await?;
        let mut read = Read {
            shared: self,
            first_page,
            generations,
            pieces,
            into,
            is_found: vec![false; count],
            bad: vec![Vec::new(); count],
        };
        for tries in 0.. {
            let errors = self.read_once(&mut read, until).await;
            if read.is_whole() {
                break;
            }
            // The topology may have just changed, so pages count as lost only after a second try.
            if tries > 0
                && let Some(lost) = read.lost()
            {
                return Err(lost);
            }
            if !self.pause(tries, until).await {
                let too_late = || self.too_late(&errors, read.missing_keys());
                return Err(read.lost().unwrap_or_else(too_late));
            }
            read.bad.iter_mut().for_each(Vec::clear);
        }
        self.note_doubtful(read.bad_extents());
        Ok(())
    }

    /// Reads all missing pages from one copy each; if that copy is bad or late, from the next.
    async fn read_once(&self, read: &mut Read<'_>, until: Instant) -> Vec<RequestError> {
        let order: Vec<Vec<u16>> = read.pieces.iter().map(|piece| read.places(piece)).collect();
        let ranks = order.iter().map(Vec::len).max().unwrap_or(0);
        let mut errors = Vec::new();
        let mut requests = FuturesUnordered::new();
        let mut waited_for = BTreeSet::new();
        for rank in 0..ranks {
            for (owner, wanted) in read.wanted(&order, rank) {
                let group = read.requests(&wanted);
                waited_for.insert(owner.clone());
                requests.push(async move { (owner, self.router.once(group, until).await, wanted) });
            }
            let is_last = rank + 1 == ranks;
            let next_copy_at =
                if is_last { until + HEDGE_DELAY } else { Instant::now() + HEDGE_DELAY };
            while !requests.is_empty() {
                let Ok(answered) = timeout_at(next_copy_at, requests.next()).await else {
                    waited_for.iter().for_each(|owner| self.router.node(owner).note_slow());
                    break;
                };
                let Some((owner, answers, wanted)) = answered else { break };
                waited_for.remove(&owner);
                for (answer, (piece, slot)) in answers.into_iter().zip(&wanted) {
                    match answer {
                        Ok(values) => read.take(piece, *slot, &values),
                        Err(request_error) => errors.push(request_error),
                    }
                }
                if read.is_whole() {
                    return errors;
                }
            }
        }
        errors
    }
}
