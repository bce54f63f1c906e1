//! Summary of a recording, by function and by memory block.

use super::python::{self, Functions};
use serde::Serialize;
use softswap_engine::api::fault_samples::{Block, FaultSample, Toucher};
use softswap_engine::base::stats::{TIERS, Tier};
use softswap_view::units::{bytes, count, nanoseconds};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

const SHOWN: usize = 15;
const SMALL: &str = "blocks of less than 1 MiB, and memory that was only reserved";
/// Innermost frame of a page faulted in for a system call.
const CALL: &str = "[system call]";

/// Sum of faults, and of the time that threads waited in them.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Sum {
    pub(super) stalled_ns: u64,
    pub(super) faults: u64,
    by_tier: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, sample: &Weighed) {
        self.stalled_ns += sample.stalled_ns;
        self.faults += sample.faults;
        *self.by_tier.entry(sample.tier.name()).or_default() += sample.faults;
    }

    /// Formats the tiers with the most faults: `disk 88%, pool 12%`.
    fn tiers(&self) -> String {
        let mut all: Vec<_> = TIERS
            .iter()
            .filter_map(|tier| Some((tier.name(), *self.by_tier.get(tier.name())?)))
            .collect();
        all.sort_by_key(|(_, faults)| std::cmp::Reverse(*faults));
        let share = |faults: u64| (100 * faults + self.faults / 2) / self.faults.max(1);
        let shown = all.iter().take(2).filter(|(_, faults)| share(*faults) > 0);
        shown
            .map(|(name, faults)| format!("{name} {}%", share(*faults)))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// A function that touches absent pages.
#[derive(Debug, Serialize)]
pub(super) struct Site {
    pub(super) function: String,
    /// Empty for run-time generated code.
    file: String,
    /// The caller with the longest total wait.
    caller: String,
    #[serde(flatten)]
    pub(super) sum: Sum,
}

#[derive(Debug, Serialize)]
pub(super) struct AllocationSite {
    by: String,
    blocks: usize,
    bytes: u64,
    touched_by: String,
    #[serde(flatten)]
    sum: Sum,
}

#[derive(Debug, Serialize)]
pub(super) struct Profile {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) seconds: f64,
    pub(super) samples: usize,
    /// Faults without a sample, because too many occurred at once; included in the sums.
    pub(super) missed: u64,
    #[serde(flatten)]
    pub(super) sum: Sum,
    pub(super) functions: Vec<Site>,
    pub(super) memory: Vec<AllocationSite>,
    #[serde(skip)]
    pub(super) stacks: Vec<(Vec<String>, u64)>,
    /// Set if the interpreter waited for over a quarter of the time without a perf map.
    #[serde(skip)]
    pub(super) interpreted: Option<&'static str>,
}

#[derive(Debug, Clone)]
pub(super) struct Weighed {
    pub(super) sample: FaultSample,
    pub(super) tier: Tier,
    pub(super) faults: u64,
    pub(super) stalled_ns: u64,
}

/// A sample's weight is the faults that it represents, and its share of `missed`.
pub(super) fn weigh(samples: Vec<FaultSample>, missed: u64) -> impl Iterator<Item = Weighed> {
    let sampled: u64 = samples.iter().map(|sample| sample.faults).sum();
    samples.into_iter().map(move |sample| {
        let more = u128::from(sample.faults) * u128::from(missed) / u128::from(sampled.max(1));
        let faults = sample.faults + more as u64;
        let stalled_ns = sample.waited_ns.saturating_mul(faults);
        Weighed { tier: sample.tier, faults, stalled_ns, sample }
    })
}

/// Sums by key, each with the waits in ns by related function.
type Tally<Key> = HashMap<Key, (Sum, HashMap<String, u64>)>;

#[derive(Default)]
struct Tallies {
    sum: Sum,
    /// By function and file, with their callers.
    sites: Tally<(String, String)>,
    /// By allocating function, with the functions that touched the memory.
    memory: Tally<Option<u64>>,
    stacks: HashMap<Vec<String>, u64>,
    interpreters: HashMap<&'static str, u64>,
}

impl Tallies {
    fn add(&mut self, weighed: &Weighed, blocks: &[Block], functions: &mut Functions) {
        self.sum.add(weighed);
        let names = functions.stack(&weighed.sample);
        let ns = weighed.stalled_ns;
        let (function, file) = &names[0];
        let caller = names.get(1).map_or_else(String::new, |(name, _)| name.clone());
        let site = self.sites.entry((function.clone(), file.clone())).or_default();
        site.0.add(weighed);
        *site.1.entry(caller).or_default() += ns;
        let around = blocks.iter().filter(|it| it.range.contains(&weighed.sample.address));
        let around = around.min_by_key(|it| it.range.end - it.range.start);
        let site = self.memory.entry(around.map(|block| block.caller)).or_default();
        site.0.add(weighed);
        *site.1.entry(function.clone()).or_default() += ns;
        if let Some(remedy) = names.iter().find_map(|(_, file)| interpreter(file)) {
            *self.interpreters.entry(remedy).or_default() += ns;
        }
        let mut stack: Vec<String> = names.into_iter().rev().map(|(name, _)| name).collect();
        if weighed.sample.toucher == Toucher::Call {
            stack.push(CALL.to_string());
        }
        *self.stacks.entry(stack).or_default() += ns;
    }

    fn functions(&mut self) -> Vec<Site> {
        let all = std::mem::take(&mut self.sites).into_iter();
        let mut all: Vec<Site> = all
            .map(|((function, file), (sum, callers))| Site {
                function,
                file,
                caller: most(callers),
                sum,
            })
            .collect();
        all.sort_by(|one, other| {
            (other.sum.stalled_ns, &one.function).cmp(&(one.sum.stalled_ns, &other.function))
        });
        all
    }

    fn memory(&mut self, blocks: &[Block], functions: &Functions) -> Vec<AllocationSite> {
        let all = std::mem::take(&mut self.memory).into_iter();
        let mut all: Vec<AllocationSite> = all
            .map(|(caller, (sum, touchers))| {
                let mine = || blocks.iter().filter(move |block| Some(block.caller) == caller);
                let by = match caller {
                    None => SMALL.to_string(),
                    Some(0) => "mmap".to_string(),
                    // The call is the instruction before the return address.
                    Some(caller) => functions.native.name(caller.saturating_sub(1)).0,
                };
                let bytes = mine().map(|block| block.range.end - block.range.start).sum();
                AllocationSite {
                    by,
                    blocks: mine().count(),
                    bytes,
                    touched_by: most(touchers),
                    sum,
                }
            })
            .collect();
        all.sort_by(|one, other| {
            (other.sum.stalled_ns, &one.by).cmp(&(one.sum.stalled_ns, &other.by))
        });
        all
    }
}

fn most(of: HashMap<String, u64>) -> String {
    let longest = of.into_iter().max_by(|one, other| (one.1, &other.0).cmp(&(other.1, &one.0)));
    longest.map_or_else(String::new, |(name, _)| name)
}

impl Profile {
    pub(super) fn of(
        pid: u32,
        program: String,
        seconds: f64,
        all: &[Weighed],
        missed: u64,
        blocks: &[Block],
        names: &mut Functions,
    ) -> Profile {
        let mut tallies = Tallies::default();
        all.iter().for_each(|weighed| tallies.add(weighed, blocks, names));
        let (functions, memory) = (tallies.functions(), tallies.memory(blocks, names));
        let Tallies { sum, stacks, interpreters, .. } = tallies;
        let interpreted = interpreters.into_iter().max_by_key(|(_, ns)| *ns);
        let interpreted = interpreted.filter(|(_, ns)| *ns > sum.stalled_ns / 4);
        let interpreted =
            interpreted.filter(|_| !names.native.has_perf_map()).map(|(remedy, _)| remedy);
        let (samples, stacks) = (all.len(), stacks.into_iter().collect());
        Profile {
            pid,
            program,
            seconds,
            samples,
            missed,
            sum,
            functions,
            memory,
            stacks,
            interpreted,
        }
    }

    pub(super) fn line(&self) -> String {
        let Profile { pid, program, seconds, samples, sum, .. } = self;
        format!(
            "{program} (pid {pid}): {} faults in {seconds:.1} s, {} stalled over all threads; {} \
             sampled",
            count(sum.faults),
            nanoseconds(sum.stalled_ns),
            count(*samples as u64)
        )
    }

    pub(super) fn for_people(&self) -> String {
        let mut text = format!("softswap: {}\n", self.line());
        let head = |title: &str| {
            format!("{:>10} {:>5} {:>11}  {:<20} {title}\n", "stalled", "", "faults", "from")
        };
        let row = |sum: &Sum, what: &str| {
            format!(
                "{:>10} {:>5} {:>11}  {:<20} {what}\n",
                nanoseconds(sum.stalled_ns),
                percent(sum.stalled_ns, self.sum.stalled_ns),
                count(sum.faults),
                sum.tiers()
            )
        };
        text += &head("function that touches");
        for site in self.functions.iter().take(SHOWN) {
            let by = match site.caller.as_str() {
                "" => String::new(),
                caller => format!(", called by {caller}"),
            };
            text += &row(&site.sum, &format!("{}{by}", site.function));
        }
        more(&mut text, self.functions.len(), "functions");
        text += &head("memory that is touched");
        for site in self.memory.iter().take(SHOWN) {
            let what = match site.blocks {
                0 => site.by.clone(),
                1 => format!("{} of {}", bytes(site.bytes), site.by),
                blocks => format!("{} in {blocks} blocks of {}", bytes(site.bytes), site.by),
            };
            text += &row(&site.sum, &format!("{what}, touched by {}", site.touched_by));
        }
        more(&mut text, self.memory.len(), "call sites that allocate memory");
        if let Some(remedy) = self.interpreted {
            let _ = writeln!(text, "These are the interpreter's own functions. {remedy}");
        }
        text
    }
}

/// Formats a share: `12%`, and `0.9%` below ten.
fn percent(part: u64, whole: u64) -> String {
    let share = 100.0 * part as f64 / whole.max(1) as f64;
    if share < 9.95 { format!("{share:.1}%") } else { format!("{share:.0}%") }
}

fn more(text: &mut String, all: usize, what: &str) {
    if all > SHOWN {
        let _ = writeln!(text, "{:>10} more {what}", all - SHOWN);
    }
}

fn interpreter(file: &str) -> Option<&'static str> {
    let is = |name: &str| file.starts_with(name);
    if python::is_interpreter(file) {
        Some(
            "Python's functions are shown for CPython 3.11 to 3.13, and for later versions if \
             started with `-X perf`.",
        )
    } else if is("node") {
        Some("To see JavaScript's functions, start node with `--perf-basic-prof`.")
    } else if is("libjvm") {
        Some("To see Java's functions, run `jcmd PID Compiler.perfmap` first.")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsampled_time_is_distributed_over_samples() {
        let sample = |faults, waited_ns| FaultSample {
            faults,
            tier: Tier::Disk,
            toucher: Toucher::Read,
            waited_ns,
            address: 0,
            instruction: 0,
            stack: 0,
            frame: 0,
            words: Vec::new(),
            python: Vec::new(),
        };
        let all: Vec<_> = weigh(vec![sample(4, 100), sample(12, 10)], 16).collect();
        let figures = all.iter().map(|it| (it.faults, it.stalled_ns));
        assert_eq!(figures.collect::<Vec<_>>(), [(8, 800), (24, 240)]);
        assert_eq!(weigh(Vec::new(), 7).count(), 0);
    }

    #[test]
    fn shares_are_rounded() {
        let shares = [(76, 8280), (995, 10_000), (994, 10_000), (996, 1000), (0, 0), (5, 5)];
        let texts = ["0.9%", "10%", "9.9%", "100%", "0.0%", "100%"];
        assert_eq!(shares.map(|(part, whole)| percent(part, whole)), texts);
    }

    #[test]
    fn sum_reports_most_frequent_location() {
        let mut sum = Sum::default();
        for (tier, faults) in [(Tier::Pool, 12), (Tier::Disk, 87), (Tier::Zero, 1)] {
            *sum.by_tier.entry(tier.name()).or_default() += faults;
            sum.faults += faults;
        }
        assert_eq!(sum.tiers(), "disk 87%, pool 12%");
        assert_eq!(Sum::default().tiers(), "");
    }
}
