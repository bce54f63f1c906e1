//! The measured program: fills its memory, touches it by a pattern, and compares every page.

use super::plan::{Data, Pattern};
use crate::measure::managed_program::Counters;
use crate::measure::noise::{below, noise};
use crate::measure::region::{Content, Noise, Region, WORDS, on_threads};
use crate::measure::task_pipe::{TaskPipe, process_cpu_seconds, receive, send, send_json};
use crate::pages::packing::Workplace;
use clap::Args;
use serde::{Deserialize, Serialize};
use softswap_cli::refusal::{OrRefuse, Refusal, plain};
use softswap_engine::base::stats::{BUCKETS, Stats, bucket_of, quantile_ns};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use softswap_sys::memory::{Page, reserve_pages};
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const FILLED: &str = "filled";
const CONTINUE: &str = "continue";
const SAME: &str = "same";

/// The program that `bench swap` and `bench swap-in` run; for internal use.
#[derive(Args)]
pub(crate) struct TaskArgs {
    task: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) pages: usize,
    pub(crate) data: Data,
    /// Pages of a program, for compressible and mixed data.
    pub(crate) sample: Option<PathBuf>,
    /// Damages a page, which the comparison must detect.
    pub(crate) damage: bool,
    pub(crate) pattern: Pattern,
    pub(crate) threads: usize,
    /// Touches before the measurement, so that its state does not depend on earlier work.
    pub(crate) warm_touches: u64,
    pub(crate) warm_seconds: f64,
    pub(crate) seconds: f64,
    pub(crate) most_touches: u64,
    pub(crate) hot_share: f64,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TaskTimes {
    pub(crate) touches: u64,
    pub(crate) seconds: f64,
    /// User and system time of the process, reclaim included.
    pub(crate) cpu_seconds: f64,
    /// A histogram with the engine's buckets, four per octave.
    latencies: Vec<u64>,
}

impl TaskTimes {
    /// Returns the middle of the bucket that contains the quantile.
    pub(super) fn quantile_us(&self, share: f64) -> f64 {
        let ns = quantile_ns(self.latencies.iter().copied(), share);
        ns.map_or(f64::NAN, |ns| ns as f64 / 1000.0)
    }
}

impl Task {
    /// Returns the figures of the touches, and the engine's counters during them.
    pub(crate) fn run(
        &self,
        command: Command,
        signals: &SignalQueue,
        counters: &Counters,
        has_engine: bool,
    ) -> Result<(TaskTimes, Stats), Refusal> {
        let mut pipe = TaskPipe::start(command, "swap-task", self, signals, &[counters.fd()])?;
        pipe.expect(FILLED)?;
        if has_engine {
            counters.expect_engine()?;
        }
        let before = counters.values();
        pipe.send(CONTINUE);
        let took = pipe.receive_json()?;
        let stats = counters.since(&before)?;
        pipe.send(CONTINUE);
        pipe.expect(SAME)?;
        pipe.wait()?;
        Ok((took, stats))
    }

    fn perform(&self, region: &Region) -> TaskTimes {
        let warm_time = Duration::from_secs_f64(self.warm_seconds);
        let each = self.warm_touches.div_ceil(self.threads as u64);
        let (_, warm) = on_threads(0..self.threads, |thread| {
            self.touch(region, thread, 0, warm_time, each).touches
        });
        let cpu_before = process_cpu_seconds();
        let time = Duration::from_secs_f64(self.seconds);
        let (seconds, touched) = on_threads(0..self.threads, |thread| {
            self.touch(region, thread, warm[thread], time, self.most_touches)
        });
        let cpu_seconds = process_cpu_seconds() - cpu_before;
        let mut latencies = vec![0_u64; BUCKETS];
        for thread in &touched {
            latencies.iter_mut().zip(&thread.latencies).for_each(|(sum, count)| *sum += count);
        }
        let touches = touched.iter().map(|thread| thread.touches).sum();
        TaskTimes { touches, seconds, cpu_seconds, latencies }
    }
}

pub(crate) fn run(args: &TaskArgs) -> Result<ExitCode, Refusal> {
    let task: Task = serde_json::from_str(&args.task).map_err(Refusal::own)?;
    let contents = Contents::load(task.data, task.sample.as_deref()).map_err(Refusal::own)?;
    let region =
        Region::filled(task.pages, &contents).or_own("the task's memory cannot be allocated")?;
    send(FILLED)?;
    receive()?;
    send_json(&task.perform(&region))?;
    receive()?;
    if task.damage {
        region.word(task.pages - 1, WORDS / 2).fetch_xor(1, Relaxed);
    }
    match region.first_wrong(&contents) {
        None => send(SAME).map(|()| ExitCode::SUCCESS),
        Some(page) => Err(Refusal::own(format!(
            "page {page} differs from what was written: data corruption; please report this"
        ))),
    }
}

const HOT_PERCENT: u64 = 90;
const WRITE_EVERY: u64 = 4;
/// A prime larger than any number of pages, which scatters hot pages.
const STRIDE: u64 = 11_400_714_785_074_694_791;

struct Touched {
    touches: u64,
    latencies: Vec<u64>,
}

impl Task {
    /// Touches one word per page until `time` is over, at most `most_touches` times. A thread that
    /// has `warmed` up continues at its position: pages touched before may still be resident.
    fn touch(
        &self,
        region: &Region,
        thread: usize,
        warmed: u64,
        time: Duration,
        most_touches: u64,
    ) -> Touched {
        let pages = region.pages() as u64;
        let hot_pages = ((pages as f64 * self.hot_share) as u64).clamp(1, pages);
        let first = (region.pages() * thread / self.threads) as u64 + warmed;
        let seed = self.seed + 2 * thread as u64 + u64::from(warmed > 0);
        let mut touched = Touched { touches: 0, latencies: vec![0; BUCKETS] };
        let start = Instant::now();
        let mut before = start;
        for (at, number) in (0..).zip(noise(seed)) {
            let (index, is_write) = match self.pattern {
                Pattern::RandomRead => (below(number, pages), false),
                Pattern::RandomWrite => (below(number, pages), true),
                Pattern::SequentialRead => ((first + at) % pages, false),
                Pattern::SequentialWrite => ((first + at) % pages, true),
                Pattern::HotSet => {
                    // Lower bits select hot or any pages, upper ones the page.
                    let within = if number % 100 < HOT_PERCENT { hot_pages } else { pages };
                    let is_write = (number >> 8).is_multiple_of(WRITE_EVERY);
                    (scattered(below(number, within), pages), is_write)
                }
            };
            if is_write {
                region.write(index as usize);
            } else {
                let word = region.word(index as usize, (number % WORDS as u64) as usize);
                black_box(word.load(Relaxed));
            }
            let now = Instant::now();
            touched.latencies[bucket_of(now.duration_since(before).as_nanos() as u64)] += 1;
            touched.touches += 1;
            if now.duration_since(start) >= time || touched.touches >= most_touches {
                break;
            }
            before = now;
        }
        touched
    }
}

/// Permutes `0..pages` so that neighbors are far apart.
fn scattered(number: u64, pages: u64) -> u64 {
    (u128::from(number) * u128::from(STRIDE) % u128::from(pages)) as u64
}

/// Few real pages, because the task stores them in unmanaged memory.
const SAMPLE_PAGES: usize = 256;

pub(super) struct Contents {
    data: Data,
    sample: &'static [Page],
}

impl Contents {
    pub(super) fn load(data: Data, sample: Option<&Path>) -> Result<Contents, String> {
        let Some(sample) = sample else { return Ok(Contents { data, sample: &[] }) };
        let read = || {
            let (pages, mut file) = (reserve_pages(SAMPLE_PAGES)?, File::open(sample)?);
            pages.iter_mut().try_for_each(|page| file.read_exact(&mut page.0))?;
            Ok(&*pages)
        };
        Ok(Contents { data, sample: read().or_text(sample.display())? })
    }

    fn is_real(&self, page: usize) -> bool {
        match self.data {
            Data::Compressible => true,
            Data::Incompressible => false,
            Data::Mixed => number_of(page) >> 63 == 0,
        }
    }
}

impl Content for Contents {
    fn fill(&self, page: usize, words: &mut [u64; WORDS]) {
        if !self.is_real(page) {
            return Noise.fill(page, words);
        }
        let (from, _) = self.sample[page % self.sample.len()].0.as_chunks::<8>();
        words.iter_mut().zip(from).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
        // Make pages differ from each other and from the sample.
        words[page % WORDS] = number_of(page);
    }
}

/// Creates records and then writes its own memory to standard output.
const PYTHON: &str = r#"
import sys
records = [{"id": i, "name": "record %d" % i, "tags": ["t%d" % (i % 50), "x" * (i % 30)],
            "price": i * 0.25, "next": (i, i + 1)} for i in range(int(sys.argv[1]))]
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps.readlines():
        span, rights, _, _, inode = line.split()[:5]
        if rights == "rw-p" and inode == "0" and "[stack" not in line:
            first, end = (int(part, 16) for part in span.split("-"))
            for at in range(first, end, 4096):
                memory.seek(at)
                sys.stdout.buffer.write(memory.read(4096))
"#;
/// At least six records fill a page.
const RECORDS_PER_PAGE: usize = 8;
const SAMPLE_OF_PAGES: usize = 4096;

/// Returns pages of a Python process that LZ4 compresses; without Python, of this executable.
pub(super) fn sample(notes: &mut Vec<String>) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    of_python().or_else(|why| {
        notes.push(format!(
            "the compressible pages are those of this executable, because Python cannot be run: \
             {why}"
        ));
        let program = File::open("/proc/self/exe").map_err(|error| plain(&error))?;
        pages_that_pack(program, SAMPLE_PAGES)
    })
}

fn of_python() -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let mut child = Command::new("python3")
        // Isolated from the user's settings.
        .args(["-I", "-S", "-c", PYTHON])
        .arg((SAMPLE_OF_PAGES * RECORDS_PER_PAGE).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .or_text("python3")?;
    let memory = child.stdout.take().ok_or("python3 has no output")?;
    let found = pages_that_pack(memory, SAMPLE_OF_PAGES);
    // The process may still be writing.
    let _ = child.kill();
    let _ = child.wait();
    found
}

/// Returns [`SAMPLE_PAGES`] of `count` compressible pages, evenly spaced.
fn pages_that_pack(mut memory: impl Read, count: usize) -> Result<Vec<[u8; PAGE_SIZE]>, String> {
    let mut workplace = Workplace::new().map_err(|error| error.to_string())?;
    let (mut page, mut packed, mut sample) = ([0; PAGE_SIZE], 0, Vec::new());
    while packed < count {
        if memory.read_exact(&mut page).is_err() {
            return Err(format!("it has only {packed} compressible pages, but {count} are needed"));
        }
        if workplace.pack(&page).is_none() {
            continue;
        }
        if packed % (count / SAMPLE_PAGES) == 0 {
            sample.push(page);
        }
        packed += 1;
    }
    Ok(sample)
}

fn number_of(page: usize) -> u64 {
    noise(page as u64 | 1 << 62).next().unwrap_or(0)
}
