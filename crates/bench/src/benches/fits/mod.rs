//! Overhead for a program that fits its budget: it runs alternately with and without softswap.

use super::swap::programs::{Program, Ready, compiled};
use crate::measure::machine::Machine;
use crate::measure::managed_program::{Counters, command, temporary_directory};
use crate::measure::options::{Named, within};
use crate::measure::report::{Log, or_left_out};
use crate::measure::sample::{Object, median, object, take_turns};
use crate::measure::task_pipe::signals;
use clap::Args;
use softswap_cli::library;
use softswap_cli::refusal::Refusal;
use softswap_engine::api::settings::{AreaSpec, Config};
use softswap_sys::aslr::Bases;
use std::path::Path;

/// Measure the cost of softswap for a program that fits its budget.
#[derive(Args)]
#[command(after_long_help = "\
Programs: those of `softswap bench swap`, each about as large as --program-size; churn allocates and
frees blocks of 16 to 1,039 bytes among 200,000 that live; starts is a shell that starts /bin/true
repeatedly. A program that is not installed is left out, with a note.

start_adds_us is the time that softswap adds to a start of /bin/true. slept is true if the program
was asleep until its exit.

Examples:
  softswap bench fits
  softswap bench fits --programs sqlite,starts --rounds 5")]
pub(crate) struct FitsArgs {
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = within(1..=1000))]
    rounds: u32,

    /// Size of a program, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = within(16..=1_048_576))]
    program_size: u32,

    /// Blocks that churn allocates
    #[arg(long, value_name = "N", default_value_t = 20_000_000, value_parser = within(1..))]
    blocks: u32,

    /// Number of programs that the load `starts` starts
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = within(1..=1_000_000))]
    starts: u32,

    /// Only these programs: names separated by commas
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    programs: Vec<String>,
}

const STARTS: &str = "starts";

pub(super) fn measure(args: &FitsArgs) -> Result<Object, Refusal> {
    let (library, dir, signals) = (library::find()?, temporary_directory()?, signals()?);
    let mut log = Log::start();
    let config = Config {
        // Retained free memory and the engine must fit, too.
        memory_bytes: (2 * u64::from(args.program_size) + 256) << 20,
        areas: vec![AreaSpec::new(dir.path())],
        ..Config::default()
    };
    let (mut rows, mut start_adds_us) = (Vec::new(), None);
    for ready in programs(args, dir.path(), &mut log.notes) {
        let (mut slept, mut first_digest) = (true, None);
        let mut one_run = |is_managed: bool| {
            let (counters, mut command) = (Counters::new()?, command(&ready.path));
            if is_managed {
                let config = Config { bases: Some(Bases::choose()), ..config.clone() };
                command.envs(counters.environment(&config, &library));
            }
            let failed = |why| Refusal::own(format!("{}: {why}", ready.name));
            let ran = ready.run(command, &signals, &counters).map_err(failed)?;
            slept &= !counters.has_engine();
            match *first_digest.get_or_insert(ran.digest) == ran.digest {
                true => Ok(ran.seconds),
                false => Err(failed("its output differs between runs".into())),
            }
        };
        for is_managed in [false, true] {
            one_run(is_managed)?;
        }
        let cells = take_turns([false, true], args.rounds, |is_managed, _| one_run(*is_managed))?;
        let (plain, managed) = (&cells[0], &cells[1]);
        let seconds = |seconds: &f64| *seconds;
        log.ratio(format!("{}_softswap_vs_plain", ready.name), managed.ratio_to(plain, seconds));
        if ready.name == STARTS {
            let pairs = plain.rounds.iter().zip(&managed.rounds);
            let added = median(pairs.map(|(plain, managed)| managed - plain).collect());
            start_adds_us = Some(added * 1e6 / f64::from(args.starts));
        }
        rows.push(object! {
            program: ready.name,
            plain_s: plain.median(seconds),
            plain_cov: plain.cov(seconds),
            softswap_s: managed.median(seconds),
            softswap_cov: managed.cov(seconds),
            slept,
            count: plain.rounds.len(),
        });
    }
    Ok(log.findings("fits", Machine::without_device(), object! { start_adds_us, rows }))
}

fn programs(args: &FitsArgs, dir: &Path, notes: &mut Vec<String>) -> Vec<Ready> {
    let bytes = u64::from(args.program_size) << 20;
    let churn = || {
        let path = compiled(dir, "churn", include_str!("churn.c"))?;
        let arguments = vec![args.blocks.to_string().into()];
        Ok(Ready { name: "churn".into(), path, arguments, input: None })
    };
    let starts = || {
        let count = args.starts;
        let script =
            format!("i=0; while [ $i -lt {count} ]; do /bin/true || exit 1; i=$((i+1)); done");
        let arguments = vec!["-c".into(), script.into()];
        Ok(Ready { name: STARTS.into(), path: "/bin/sh".into(), arguments, input: None })
    };
    let mut all = Vec::new();
    let mut add = |name: String, make: &dyn Fn() -> Result<Ready, String>| {
        if args.programs.is_empty() || args.programs.contains(&name) {
            all.extend(or_left_out(make(), &name, notes));
        }
    };
    add("churn".into(), &churn);
    add(STARTS.into(), &starts);
    for program in Program::all() {
        add(program.name(), &|| program.make_ready(dir, bytes));
    }
    all
}
