//! What a read of a file or device costs by how it is waited for, beside what
//! fio makes of the same reads.
//!
//! All variants read the same bytes in every round, one after the other, each
//! for the same time, and every round begins with another one.

mod args;
mod target;
mod meter;
mod fio;
mod variants;
mod outcome;

pub(crate) use args::IoArgs;

use crate::measure::machine::Usage;
use crate::measure::report::Output;
use crate::measure::sample::rotated;
use fio::Job;
use meter::{Meter, Slice};
use outcome::Found;
use softswap_cli::refusal::Refusal;
use softswap_sys::ring::timer_overshoot_ns;
use std::process::ExitCode;
use std::time::Duration;
use target::Target;
use variants::{What, chosen, variants};

/// The round that does not count is shorter: it only has to wake everything up.
const WARM_UP: Duration = Duration::from_millis(250);

pub(super) fn run(args: &IoArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    output.finish(target::open(args).and_then(|target| measure(&target, args)))
}

fn measure(target: &Target, args: &IoArgs) -> Result<outcome::IoOutcome, Refusal> {
    let mut notes = Vec::new();
    let fio_version = if args.no_fio { Err("--no-fio".to_string()) } else { fio::version() };
    if let Err(why) = &fio_version {
        notes.push(format!("fio was left out: {why}"));
    }
    let variants = chosen(variants(args.write, fio_version.is_ok()), &args.only)?;
    let mut meter = Meter::new(target)?;
    let usage = Usage::now();
    let mut found = Found {
        variants,
        fio_version: fio_version.ok(),
        timer_overshoot_ns: Vec::new(),
        disturbance: usage.since(),
        notes,
    };
    for round in 0..=args.rounds as usize {
        found.timer_overshoot_ns.push(timer_overshoot_ns() as f64);
        let time = if round == 0 { args.seconds.min(WARM_UP) } else { args.seconds };
        let mut failed = Vec::new();
        let order: Vec<usize> = rotated(found.variants.len(), round).collect();
        for index in order {
            let variant = &mut found.variants[index];
            let seed = (round * 1000 + index) as u64;
            let slice = match &variant.what {
                What::Read(mode) => meter.read(*mode, time, seed)?,
                What::Pread => meter.pread(time, seed)?,
                What::ReadMany(depth) => meter.read_many(*depth, time, seed)?,
                What::WriteMany(depth) => meter.write_many(*depth, time, seed)?,
                What::Fio(_, job) => match run_fio(job, target, time, seed) {
                    Ok(slice) => slice,
                    Err(why) => {
                        failed.push((index, why));
                        continue;
                    }
                },
            };
            if round > 0 {
                variant.add(slice);
            }
        }
        // What failed once has no figure for this round, and so none at all.
        for (index, why) in failed.into_iter().rev() {
            let gone = found.variants.remove(index);
            found.notes.push(format!("{} was left out: {why}", gone.name));
        }
    }
    found.disturbance = usage.since();
    Ok(outcome::IoOutcome::new(found, &meter, target, args))
}

fn run_fio(job: &Job, target: &Target, time: Duration, seed: u64) -> Result<Slice, String> {
    use softswap_engine::store::io::Device;
    let direct = target.device.describe().direct;
    let path = &target.path_for_others;
    fio::run(job, &fio::Run { path, bytes: target.bytes, direct, time, seed })
}
