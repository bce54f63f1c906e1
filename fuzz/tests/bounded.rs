//! Runs every target over its corpus, and over derived inputs: truncated, repeated, mutated,
//! concatenated. Each target runs for 0.5 s, or SOFTSWAP_FUZZ_SECONDS. `make fuzz` searches longer,
//! guided by coverage.
//!
//! A failing input is minimized and written to `fuzz/found`. Fix the defect and add the input to
//! the corpus.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestError, TestRunner};
use softswap_fuzz::{TARGETS, Target};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CASES: u32 = 200;
const MAX_BYTES: usize = 16 << 10;

fn folder(name: &str) -> PathBuf {
    let home = std::env::var_os("SOFTSWAP_FUZZ_DIR");
    home.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from).join(name)
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = folder("corpus").join(target);
    let entries = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("no corpus in {}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let inputs = paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap()));
    inputs.collect()
}

#[derive(Debug, Clone)]
enum Edit {
    Put(Index, Vec<u8>),
    Overwrite(Index, Vec<u8>),
    Cut(Index, Index),
    Repeat(Index, Index),
    Join(Vec<u8>, Index, Index),
}

fn boundary_value() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        select(vec![0_u64, 1, 0x7f, 0xff, 0x7fff, 0xffff, 4095, 4096, 0x7fff_ffff, 0xffff_ffff]),
        select(vec![u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 56, 1 << 32]),
        any::<u64>(),
    ];
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..9),
        (number.clone(), 1..=8_usize).prop_map(|(n, bytes)| n.to_le_bytes()[..bytes].to_vec()),
        number.prop_map(|number| number.to_string().into_bytes()),
        "[0-9a-f:., =\\-\n%\"\\\\]{0,6}".prop_map(String::into_bytes),
    ]
}

fn edit(inputs: Vec<Vec<u8>>) -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    prop_oneof![
        (at(), boundary_value()).prop_map(|(at, bytes)| Edit::Put(at, bytes)),
        (at(), boundary_value()).prop_map(|(at, bytes)| Edit::Overwrite(at, bytes)),
        (at(), at()).prop_map(|(from, to)| Edit::Cut(from, to)),
        (at(), at()).prop_map(|(from, to)| Edit::Repeat(from, to)),
        (select(inputs), at(), at()).prop_map(|(other, from, to)| Edit::Join(other, from, to)),
    ]
}

fn apply(mut bytes: Vec<u8>, edits: Vec<Edit>) -> Vec<u8> {
    for edit in edits {
        let len = bytes.len();
        let between = |one: Index, other: Index, len: usize| {
            let (one, other) = (one.index(len + 1), other.index(len + 1));
            one.min(other)..one.max(other)
        };
        match edit {
            Edit::Put(at, new) => {
                let at = at.index(len + 1);
                bytes.splice(at..at, new);
            }
            Edit::Overwrite(at, new) => {
                let at = at.index(len + 1);
                bytes.splice(at..len.min(at + new.len()), new);
            }
            Edit::Cut(from, to) => drop(bytes.drain(between(from, to, len))),
            Edit::Repeat(from, to) => bytes.extend_from_within(between(from, to, len)),
            Edit::Join(other, from, to) => {
                bytes.truncate(from.index(len + 1));
                bytes.extend_from_slice(&other[to.index(other.len() + 1)..]);
            }
        }
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

fn explore_inputs((name, run): Target, until: Instant) -> Result<u32, String> {
    let inputs: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
    let edits = prop::collection::vec(edit(inputs.clone()), 1..6);
    let made = (select(inputs), edits).prop_map(|(input, edits)| apply(input, edits));
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let mut tried = 0;
    while tried == 0 || Instant::now() < until {
        // Each round uses a new random seed.
        let outcome = TestRunner::new(config.clone()).run(&made, |input| {
            run(&input);
            Ok(())
        });
        match outcome {
            Ok(()) => tried += CASES,
            Err(TestError::Fail(why, input)) => {
                let path = save(name, &input);
                return Err(format!("{name}: {why}\n  {}", path.display()));
            }
            Err(TestError::Abort(why)) => return Err(format!("{name}: {why}")),
        }
    }
    Ok(tried)
}

fn save(name: &str, input: &[u8]) -> PathBuf {
    let folder = if folder("src").is_dir() { folder("found") } else { std::env::temp_dir() };
    let path = folder.join(format!("{name}-{}", input.len()));
    fs::create_dir_all(&folder).and_then(|()| fs::write(&path, input)).unwrap();
    path
}

#[test]
fn every_input_of_the_corpus_passes() {
    for (name, run) in TARGETS {
        let inputs = corpus(name);
        assert!(inputs.len() >= 2, "the corpus of {name} has fewer than two inputs");
        for (path, input) in inputs {
            let outcome = catch_unwind(AssertUnwindSafe(|| run(&input)));
            assert!(outcome.is_ok(), "{} makes the target panic", path.display());
        }
    }
}

#[test]
fn inputs_made_from_the_corpus_pass() {
    let seconds = std::env::var("SOFTSWAP_FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(0.5, |text| text.parse().unwrap());
    let mut broken = Vec::new();
    for target in TARGETS {
        match explore_inputs(*target, Instant::now() + Duration::from_secs_f64(seconds)) {
            Ok(tried) => println!("{}: {tried} inputs", target.0),
            Err(why) => broken.push(why),
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn targets_and_corpora_match() {
    let mut folders: Vec<String> = fs::read_dir(folder("corpus"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut names: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_string()).collect();
    folders.sort();
    names.sort();
    assert_eq!(folders, names);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    if let Ok(manifest) = fs::read_to_string(manifest) {
        assert!(names.iter().all(|name| manifest.contains(&format!("name = \"{name}\""))));
    }
}
