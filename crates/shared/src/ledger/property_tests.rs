//! Compares the ledger with a sequential model, and tests it with garbage in its words.

use super::tests::{LIMIT, SMALL, ledger_of, process};
use super::*;
use proptest::prelude::*;
use softswap_sys::process_identity::{Liveness, ProcessIdentity};
use std::collections::BTreeMap;

#[derive(Default)]
struct Model {
    chunks: Vec<Option<u32>>,
    limit: usize,
    joined: Vec<u32>,
    dead: Vec<u32>,
    requested: BTreeMap<u32, usize>,
    benefit: BTreeMap<u32, u64>,
}

impl Model {
    fn new() -> Model {
        Model { chunks: vec![None; SMALL.chunks], limit: LIMIT, ..Model::default() }
    }

    fn held(&self, pid: u32) -> usize {
        self.chunks[..self.limit].iter().filter(|chunk| **chunk == Some(pid)).count()
    }

    fn beyond(&self, pid: u32) -> usize {
        self.chunks[self.limit..].iter().filter(|chunk| **chunk == Some(pid)).count()
    }

    fn take(&mut self, pid: u32, count: usize) -> usize {
        let free = self.chunks[..self.limit].iter_mut().filter(|chunk| chunk.is_none()).take(count);
        free.map(|chunk| *chunk = Some(pid)).count()
    }

    fn release(&mut self, pid: u32, count: usize) -> usize {
        let held = self.chunks.iter_mut().rev().filter(|chunk| **chunk == Some(pid)).take(count);
        held.map(|chunk| *chunk = None).count()
    }

    fn end(&mut self, pid: u32) {
        self.release(pid, usize::MAX);
        self.joined.retain(|joined| *joined != pid);
        self.requested.remove(&pid);
        self.benefit.remove(&pid);
    }

    fn remaining(&self, pid: u32) -> usize {
        self.requested.get(&pid).map_or(self.held(pid), |keep| self.held(pid).min(*keep))
    }

    /// Returns the members that a process may ask, and the chunks that it may request.
    fn request(&self, pid: u32, need: usize) -> Vec<(u32, usize)> {
        let floor = (self.limit / (2 * self.joined.len())).max(1);
        let benefit = |pid: &u32| self.benefit.get(pid).copied().unwrap_or(0);
        let (held, own) = (self.held(pid), benefit(&pid));
        let can_release = |other: &&u32| **other != pid && self.remaining(**other) > floor;
        let others: Vec<u32> = self.joined.iter().filter(can_release).copied().collect();
        let is_cheap = |other: &&u32| held < floor || 2 * benefit(other) < own;
        let cheap: Vec<u32> = others.iter().filter(is_cheap).copied().collect();
        let key = |other: &u32| (benefit(other), usize::MAX - self.remaining(*other));
        if let Some(least) = cheap.iter().map(key).min() {
            let most = if held < floor { floor - held } else { need };
            let cheapest = cheap.iter().filter(|other| key(other) == least);
            let of = |other: &u32| (*other, need.min(most).min(self.remaining(*other) - floor));
            return cheapest.map(of).collect();
        }
        let is_larger = |other: &&u32| {
            2 * own >= benefit(other) && self.remaining(**other) > held + held / 4 + 1
        };
        let larger: Vec<u32> = others.iter().filter(is_larger).copied().collect();
        let most = larger.iter().map(|other| self.remaining(*other)).max();
        let largest = larger.iter().filter(|other| Some(self.remaining(**other)) == most);
        let of = |other: &u32| {
            let left = self.remaining(*other);
            (*other, need.min((left - held) / 2).min(left - floor))
        };
        largest.map(of).collect()
    }
}

#[derive(Debug, Clone)]
enum Act {
    Join(u32),
    Take(u32, usize),
    Release(u32, usize),
    Exit(u32),
    Kill(u32),
    Reap,
    Limit(usize),
    Publish(u32, u64),
    Request(u32, usize),
    End(u32),
}

fn acts() -> impl Strategy<Value = Act> {
    let pid = || 1..7u32;
    prop_oneof![
        3 => pid().prop_map(Act::Join),
        4 => (pid(), 0..12usize).prop_map(|(pid, count)| Act::Take(pid, count)),
        3 => (pid(), 0..12usize).prop_map(|(pid, count)| Act::Release(pid, count)),
        1 => pid().prop_map(Act::Exit),
        1 => pid().prop_map(Act::Kill),
        1 => Just(Act::Reap),
        1 => (0..SMALL.chunks + 4).prop_map(Act::Limit),
        2 => (pid(), 0..4u64).prop_map(|(pid, benefit)| Act::Publish(pid, benefit)),
        2 => (pid(), 1..9usize).prop_map(|(pid, need)| Act::Request(pid, need)),
        1 => pid().prop_map(Act::End),
    ]
}

struct Both {
    ledger: Ledger,
    model: Model,
    members: BTreeMap<u32, Member>,
    /// Members of killed processes that are not reaped yet.
    left: BTreeMap<u32, Member>,
}

impl Both {
    fn act(&mut self, act: &Act) -> Result<(), TestCaseError> {
        let Both { ledger, model, members, left } = self;
        match act {
            Act::Join(pid) if !model.dead.contains(pid) => {
                let member = ledger.join(process(*pid));
                let has_space = model.joined.contains(pid) || model.joined.len() < SMALL.members;
                prop_assert_eq!(member.is_some(), has_space);
                if let Some(member) = member {
                    members.insert(*pid, member);
                    if !model.joined.contains(pid) {
                        model.joined.push(*pid);
                    }
                }
            }
            Act::Take(pid, count) => {
                let Some(member) = members.get(pid).copied() else { return Ok(()) };
                prop_assert_eq!(member.take(*count), model.take(*pid, *count));
            }
            Act::Release(pid, count) => {
                let Some(member) = members.get(pid).copied() else { return Ok(()) };
                prop_assert_eq!(member.release(*count), model.release(*pid, *count));
            }
            Act::Exit(pid) => {
                let Some(member) = members.remove(pid) else { return Ok(()) };
                member.release_entry();
                prop_assert!(!member.is_sound());
                model.end(*pid);
            }
            Act::Kill(pid) => {
                let Some(member) = members.remove(pid) else { return Ok(()) };
                left.insert(*pid, member);
                model.dead.push(*pid);
            }
            Act::Reap => {
                let dead = std::mem::take(&mut model.dead);
                let is_dead =
                    |identity: ProcessIdentity| dead.iter().any(|pid| process(*pid) == identity);
                let free = ledger.free_chunks();
                ledger.reap(
                    |identity| if is_dead(identity) { Liveness::Dead } else { Liveness::Alive },
                );
                dead.iter().for_each(|pid| model.end(*pid));
                left.clear();
                prop_assert!(ledger.free_chunks() >= free);
            }
            Act::Limit(limit) => {
                ledger.set_limit(*limit);
                model.limit = (*limit).min(SMALL.chunks);
            }
            Act::Publish(pid, benefit) => {
                let Some(member) = members.get(pid).copied() else { return Ok(()) };
                member.publish(*benefit, 4096);
                model.benefit.insert(*pid, *benefit);
            }
            Act::Request(pid, need) => {
                let Some(member) = members.get(pid).copied() else { return Ok(()) };
                return self.request(*pid, member, *need);
            }
            Act::End(pid) => {
                let Some(member) = members.get(pid).copied() else { return Ok(()) };
                let keep = member.release_target().map(|it| it.keep);
                prop_assert_eq!(keep, model.requested.remove(pid));
                member.release_target().into_iter().for_each(|target| member.end_release(target));
                prop_assert_eq!(member.release_target(), None);
            }
            Act::Join(_) => {}
        }
        Ok(())
    }

    fn request(&mut self, pid: u32, member: Member, need: usize) -> Result<(), TestCaseError> {
        let request = member.request_release(need, |_| false);
        let expected = self.model.request(pid, need);
        let Some(request) = request else {
            prop_assert!(expected.iter().all(|(_, chunks)| *chunks == 0), "{:?}", expected);
            return Ok(());
        };
        // A killed process may receive requests until it is reaped.
        let mut all = self.members.iter().chain(&self.left);
        let (other, others) = all.find(|(_, member)| member.entry == request.entry).unwrap();
        let is_expected = expected.contains(&(*other, request.chunks));
        prop_assert!(is_expected, "{:?} of {:?}", request, expected);
        let keep = self.model.remaining(*other) - request.chunks;
        prop_assert!(keep >= self.ledger.floor());
        prop_assert_eq!(others.release_target().map(|it| it.keep), Some(keep));
        self.model.requested.insert(*other, keep);
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let Both { ledger, model, members, .. } = self;
        let free = model.chunks[..model.limit].iter().filter(|chunk| chunk.is_none()).count();
        prop_assert_eq!((ledger.limit(), ledger.free_chunks()), (model.limit, free));
        for (pid, member) in members {
            prop_assert!(member.is_sound());
            let expected = (model.held(*pid), model.beyond(*pid));
            prop_assert_eq!((member.held(), member.excess()), expected);
            prop_assert_eq!(member.total(), expected.0 + expected.1);
        }
        Ok(())
    }
}

fn do_without_model(ledger: Ledger, members: &mut BTreeMap<u32, Member>, act: &Act) {
    let member_of = |pid: &u32| members.get(pid).copied();
    match act {
        Act::Join(pid) => {
            let member = ledger.join(process(*pid));
            members.extend(member.map(|member| (*pid, member)));
        }
        Act::Take(pid, count) => drop(member_of(pid).map(|member| member.take(*count))),
        Act::Release(pid, count) => drop(member_of(pid).map(|member| member.release(*count))),
        Act::Exit(pid) | Act::Kill(pid) => drop(members.remove(pid).map(Member::release_entry)),
        Act::Reap => drop(ledger.reap(|_| Liveness::Unknown)),
        Act::Limit(limit) => ledger.set_limit(*limit),
        Act::Publish(pid, benefit) => {
            let _ = member_of(pid).map(|member| member.publish(*benefit, 1));
        }
        Act::Request(pid, need) => {
            let _ = member_of(pid).map(|member| member.request_release(*need, |_| false));
        }
        Act::End(pid) => {
            let requested =
                member_of(pid).and_then(|member| Some((member, member.release_target()?)));
            requested.into_iter().for_each(|(member, target)| member.end_release(target));
        }
    }
}

proptest! {
    #[test]
    fn a_ledger_agrees_with_a_list_of_chunks(acts in prop::collection::vec(acts(), 0..200)) {
        let ledger = ledger_of(SMALL, LIMIT);
        let (members, left) = (BTreeMap::new(), BTreeMap::new());
        let mut both = Both { ledger, model: Model::new(), members, left };
        for act in acts {
            both.act(&act)?;
            both.check()?;
        }
    }

    #[test]
    fn garbage_is_bounded_and_reaped(
        garbage in prop::collection::vec((0..SMALL.words(), any::<u64>(), acts()), 1..60),
    ) {
        let ledger = ledger_of(SMALL, LIMIT);
        let mut members = BTreeMap::new();
        for (word, value, act) in garbage {
            ledger.segment.words()[word].store(value, Relaxed);
            // No call panics.
            do_without_model(ledger, &mut members, &act);
            prop_assert!(ledger.limit() <= SMALL.chunks && ledger.free_chunks() <= ledger.limit());
            let mut sound: Vec<_> = members.values().filter(|member| member.is_sound()).collect();
            // If two members took the same entry in turn, only the later one can be sound.
            sound.dedup_by_key(|member| member.entry);
            let held: usize = sound.iter().map(|member| member.held()).sum();
            prop_assert!(held <= ledger.limit(), "{} of {}", held, ledger.limit());
        }
        ledger.set_limit(SMALL.chunks);
        ledger.reap(|_| Liveness::Dead);
        prop_assert_eq!((ledger.member_count(), ledger.free_chunks()), (0, SMALL.chunks));
    }
}
