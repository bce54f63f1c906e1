//! Taking back requests of dead processes, and those whose word makes no sense.

use super::Exchange;
use super::layout::{State, Status, Word, start_of, turn_of};
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed};
use crate::ledger::{Fate, Identity};

impl Exchange {
    /// Frees the requests of dead processes, as `fate` says, or, of who cannot be told (it has
    /// another name space of processes), those about an area that nobody has; for the server, now
    /// and then. How many. What is in service is freed once it is answered.
    pub fn reap(&self, fate: impl Fn(Identity) -> Fate, has_area: impl Fn(u64) -> bool) -> usize {
        (0..self.shape.requests).filter(|at| self.reap_one(*at, &fate, &has_area)).count()
    }

    fn reap_one(
        &self,
        at: usize,
        fate: impl Fn(Identity) -> Fate,
        has_area: impl Fn(u64) -> bool,
    ) -> bool {
        let word = self.word(at, Word::Status);
        let seen = word.load(Acquire);
        let is_stray = match Status::of(seen) {
            Some(status) => match status.state {
                State::Taken | State::Asked | State::Answered => {
                    let start = self.word(at, Word::Start).load(Relaxed);
                    let start = start_of(status.turn, start).unwrap_or(0);
                    let Status { pid, namespace, .. } = status;
                    // Which area it is about is told when it is asked.
                    let is_nobodys = status.state != State::Taken
                        && !has_area(self.word(at, Word::Area).load(Relaxed));
                    match fate(Identity { pid, start, namespace }) {
                        Fate::Dead => true,
                        Fate::Unknown => is_nobodys,
                        Fate::Alive => false,
                    }
                }
                State::Free | State::Posted | State::InService | State::Abandoned => false,
            },
            None => true,
        };
        let free = Status::freed(turn_of(seen)).word();
        let is_freed = is_stray && word.compare_exchange(seen, free, AcqRel, Relaxed).is_ok();
        if is_freed {
            self.note_freed();
        }
        is_freed
    }
}
