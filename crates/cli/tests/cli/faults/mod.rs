//! Faults of devices, file systems, control groups and limits, and signals, injected while a
//! program verifies its data continuously.
//!
//! Required: no wrong byte, no stall of over 5 s without a message, no resources left after exit.
//!
//! `SOFTSWAP_FAULTS` is the number of faults, `SOFTSWAP_FAULTS_SEED` the seed,
//! `SOFTSWAP_FAULTS_ONLY` the kind. `make test-long` injects 500.

mod injections;
mod places;
mod victim;

use crate::support::{mix64, number};
use injections::{KINDS, Kind};
use softswap_testkit::random::Random;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const BY_DEFAULT: u64 = 64;

#[derive(Default)]
struct Tally {
    injected: u64,
    completed: u64,
    reported: u64,
    killed: u64,
    skipped: u64,
    skip_reason: String,
    max_interval: Duration,
}

#[test]
fn injected_faults_lose_no_data_and_are_reported() {
    let wanted = number("SOFTSWAP_FAULTS", BY_DEFAULT);
    let seed = number("SOFTSWAP_FAULTS_SEED", 1);
    let only = std::env::var("SOFTSWAP_FAULTS_ONLY").unwrap_or_default();
    let kinds: Vec<&Kind> =
        KINDS.iter().filter(|kind| only.is_empty() || kind.name == only).collect();
    assert!(!kinds.is_empty(), "unknown kind {only:?}");
    let started = Instant::now();
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let (mut done, mut turn) = (0, 0);
    while done < wanted {
        let kind = kinds[turn as usize % kinds.len()];
        assert!(turn < 20 * wanted + 100, "almost no fault can be injected on this machine");
        turn += 1;
        let tally = tallies.entry(kind.name).or_default();
        if tally.injected == 0 && tally.skipped > 1 {
            continue;
        }
        let mut random = Random(mix64(seed) ^ turn << 20);
        match (kind.inject)(&mut random) {
            Err(why) => {
                tally.skipped += 1;
                if tally.skip_reason.is_empty() {
                    println!("skipped: {}: {why}", kind.name);
                }
                tally.skip_reason = why;
            }
            Ok((times, end, max_interval)) => {
                done += times;
                tally.injected += times;
                match end {
                    victim::End::Completed => tally.completed += 1,
                    victim::End::Reported => tally.reported += 1,
                    victim::End::Killed => tally.killed += 1,
                }
                tally.max_interval = tally.max_interval.max(max_interval);
            }
        }
    }
    println!(
        "{done} injections with seed {seed} in {:.0} s: no wrong byte, no resources left",
        started.elapsed().as_secs_f64()
    );
    println!("  {:<22} injected  verified  reported  killed  longest pause", "kind");
    for (name, tally) in &tallies {
        if tally.injected == 0 {
            println!("  {name:<22} skipped: {}", tally.skip_reason);
            continue;
        }
        println!(
            "  {name:<22} {:>8}  {:>8}  {:>8}  {:>6}  {:>10} ms",
            tally.injected,
            tally.completed,
            tally.reported,
            tally.killed,
            tally.max_interval.as_millis()
        );
    }
}

#[test]
fn wrong_byte_is_detected() {
    let mut victim = victim::Victim::plain(&["--corrupt", "run", "--mib", "4"]);
    victim.wait_ready();
    victim.send(libc::SIGTERM);
    let (ended, _) = victim.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("FAILED"), "{}", ended.stderr);
}
