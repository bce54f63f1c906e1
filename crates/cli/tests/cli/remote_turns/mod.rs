//! Stress tests of clusters, with random faults of servers, network and helper.
//!
//! A wrong byte is never allowed. The program must continue if each page has a good copy, and
//! otherwise stop with a message. Skipped without `redis-server`.
//!
//! `SOFTSWAP_TURNS` is the number of faults, `SOFTSWAP_TURNS_SEED` the seed, `SOFTSWAP_TURNS_ONLY`
//! the kind. `make test-long` injects 500.

mod program;
mod setup;
mod injections;

use crate::support::number;
use crate::support::processes::stat_of;
use crate::test_cluster::eventually;
use injections::{KINDS, Kind, LONG_DEADLINE, LOSSES, Loss};
use program::Program;
use setup::{Mode, Setup};
use softswap_testkit::random::Random;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One round in each mode.
const BY_DEFAULT: u64 = 9;
/// Maximum number of faults with one program.
const IN_A_ROUND: u64 = 8;

#[derive(Default)]
struct Tally {
    completed: u64,
    stopped: u64,
    /// Longest time from a fault until the program worked as before or had stopped.
    longest: Duration,
}

/// Shuffled elements, each drawn once before any is repeated.
struct Deck<T> {
    all: Vec<T>,
    left: Vec<T>,
}

impl<T: Copy> Deck<T> {
    fn of(all: Vec<T>) -> Deck<T> {
        Deck { all, left: Vec::new() }
    }

    fn next(&mut self, random: &mut Random) -> Option<T> {
        if self.left.is_empty() {
            self.left = self.all.clone();
            random.shuffle(&mut self.left);
        }
        self.left.pop()
    }
}

/// Prints how to reproduce a failure when a panic drops it.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("repeat with SOFTSWAP_TURNS_SEED={}", self.0);
        }
    }
}

struct Turns {
    setup: Setup,
    tallies: BTreeMap<(&'static str, Mode), Tally>,
    done: u64,
    started: Instant,
}

impl Turns {
    fn note(&mut self, name: &'static str, since: Instant, has_reported: bool) {
        let tally = self.tallies.entry((name, self.setup.mode)).or_default();
        *(if has_reported { &mut tally.stopped } else { &mut tally.completed }) += 1;
        tally.longest = tally.longest.max(since.elapsed());
        self.done += 1;
    }

    fn log(&self, what: &str) {
        let (at, mode) = (self.started.elapsed().as_secs_f64(), self.setup.mode);
        println!("{at:7.1} s  {:4}  {mode:?}: {what}", self.done + 1);
    }

    fn inject_and_recover(&mut self, kind: &Kind, program: &mut Program) {
        self.log(kind.name);
        let since = Instant::now();
        (kind.inject)(&mut self.setup, program);
        program.wait_for_steps(kind.name);
        self.setup.repair();
        program.wait_for_steps(kind.name);
        if self.setup.mode != Mode::OutsideBudget {
            self.setup.await_two_copies(program);
        }
        self.note(kind.name, since, false);
    }

    fn lose_with_local_area(&mut self, loss: &Loss, program: &mut Program) {
        self.log(loss.name);
        let since = Instant::now();
        (loss.inject)(&mut self.setup);
        std::thread::sleep(self.setup.random.milliseconds(200, 3000));
        program.wait_for_steps(loss.name);
        (loss.undo)(&mut self.setup);
        self.setup.repair();
        program.wait_for_steps(loss.name);
        self.note(loss.name, since, false);
    }

    /// The program may continue if the loss permits it.
    fn lose(&mut self, loss: &Loss, mut program: Program) {
        self.log(loss.name);
        let helper = program.helper();
        let since = Instant::now();
        (loss.inject)(&mut self.setup);
        let has_reported = program.has_reported(loss.message_parts, loss.may_continue);
        if has_reported {
            println!("  message: {}", program.stop_message().unwrap_or_default());
        }
        self.note(loss.name, since, has_reported);
        (loss.undo)(&mut self.setup);
        self.setup.repair();
        match has_reported {
            true => drop(program),
            false => _ = program.finish(),
        }
        // The helper removes the run's keys first.
        let is_there = |helper| stat_of(helper).is_some_and(|stat| stat.comm.contains("softswap"));
        eventually("the helper has exited", || !helper.is_some_and(is_there));
    }

    fn round(&mut self, kinds: Vec<&'static Kind>, loss: Option<&'static Loss>) {
        let deadline = loss.map_or(LONG_DEADLINE, |loss| loss.deadline);
        let url = self.setup.url(deadline);
        let mut program = Program::start(&url, self.setup.mode == Mode::OutsideBudget);
        if self.setup.random.below(2) == 0 || kinds.is_empty() {
            program.wait_ready();
        }
        for kind in kinds {
            std::thread::sleep(self.setup.random.milliseconds(50, 800));
            self.inject_and_recover(kind, &mut program);
        }
        std::thread::sleep(self.setup.random.milliseconds(50, 800));
        match loss {
            Some(loss) if self.setup.mode == Mode::OutsideBudget => {
                self.lose_with_local_area(loss, &mut program)
            }
            Some(loss) => return self.lose(loss, program),
            None => {}
        }
        program.finish();
        eventually("all keys are removed", || self.setup.is_empty());
    }
}

#[test]
#[ignore = "minutes: `make test-long` runs it"]
fn cluster_faults_lose_no_data_and_are_reported() {
    let Some(test_cluster) = crate::test_cluster::test_cluster() else { return };
    let wanted = number("SOFTSWAP_TURNS", BY_DEFAULT);
    let seed = number("SOFTSWAP_TURNS_SEED", 1);
    let only = std::env::var("SOFTSWAP_TURNS_ONLY").unwrap_or_default();
    let _seed = Seed(seed);
    println!(
        "skipped: losses and delays by the kernel (netem): connections through proxies are \
         delayed, stalled and broken instead"
    );
    let is_wanted = |name: &str| only.is_empty() || only == name;
    let kinds = |mode: Mode| -> Vec<&'static Kind> {
        KINDS.iter().filter(|kind| kind.is_for(mode) && is_wanted(kind.name)).collect()
    };
    let mut decks = Mode::ALL.map(|mode| Deck::of(kinds(mode)));
    let losses = || LOSSES.iter().filter(|loss| is_wanted(loss.name)).collect();
    let mut loss_decks: [Deck<&'static Loss>; 3] = Mode::ALL.map(|_| Deck::of(losses()));
    let has_any = decks.iter().any(|deck| !deck.all.is_empty()) || !loss_decks[0].all.is_empty();
    assert!(has_any, "there is no kind {only:?}");

    let setup = Setup::new(test_cluster, seed);
    let mut turns = Turns { setup, tallies: BTreeMap::new(), done: 0, started: Instant::now() };
    for at in (0..Mode::ALL.len()).cycle() {
        if turns.done >= wanted {
            break;
        }
        let count = (wanted / 3).clamp(1, IN_A_ROUND).min(wanted - turns.done);
        turns.setup.begin(Mode::ALL[at]);
        let random = &mut turns.setup.random;
        // Delays of earlier faults would use up a good part of a short deadline.
        let loss = loss_decks[at].next(random);
        let is_alone = loss.is_some_and(|loss| loss.deadline != LONG_DEADLINE);
        let before = match loss {
            Some(_) if is_alone => 0,
            Some(_) => count - 1,
            None => count,
        };
        let kinds = (0..before).map_while(|_| decks[at].next(random)).collect();
        turns.round(kinds, loss);
    }
    report(&turns, seed);
}

fn report(turns: &Turns, seed: u64) {
    let seconds = turns.started.elapsed().as_secs();
    println!(
        "{} with seed {seed} in {seconds} s: no wrong byte, every stop was reported",
        turns.done
    );
    println!("  {:<28} {:<8} continued  stopped with message  longest", "kind", "mode");
    for ((name, mode), tally) in &turns.tallies {
        let Tally { completed, stopped, longest } = tally;
        let (mode, longest) = (format!("{mode:?}"), longest.as_millis());
        println!("  {name:<28} {mode:<8} {completed:>9}  {stopped:>20}  {longest:>6} ms");
    }
}
