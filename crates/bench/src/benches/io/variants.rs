//! Everything that is measured: softswap's own ways to read, and fio's counterparts.

use super::fio::Job;
use super::meter::Slice;
use crate::measure::sample::Samples;
use softswap_cli::refusal::Refusal;
use softswap_engine::store::io::poll::mode::Mode;

/// Reads under way at once.
const DEPTHS: [usize; 5] = [2, 4, 8, 16, 32];
/// Writes under way at once.
const WRITE_DEPTHS: [usize; 2] = [1, 32];

/// What a variant does, and what it is compared with.
#[derive(Debug, Clone)]
pub(super) enum What {
    /// One page at a time.
    Read(Mode),
    /// One page at a time, by the system call alone.
    Pread,
    /// Several at once.
    ReadMany(usize),
    WriteMany(usize),
    /// fio's counterpart of one of the others.
    Fio(FioFor, Job),
}

/// What a job of fio's is the counterpart of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FioFor {
    Interrupt,
    Poll,
    Several,
}

/// A row in the making.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) name: String,
    pub(super) what: What,
    pub(super) samples: Samples,
    pub(super) mb_per_s: Vec<f64>,
    pub(super) cpu_us: Vec<f64>,
}

impl Variant {
    pub(super) fn new(name: impl Into<String>, what: What) -> Variant {
        let name = name.into();
        Variant { name, what, samples: Samples::default(), mb_per_s: vec![], cpu_us: vec![] }
    }

    pub(super) fn fio(name: impl Into<String>, counterpart: FioFor, job: Job) -> Variant {
        Variant::new(name, What::Fio(counterpart, job))
    }

    pub(super) fn depth(&self) -> usize {
        match &self.what {
            What::Read(_) | What::Pread => 1,
            What::ReadMany(depth) | What::WriteMany(depth) => *depth,
            What::Fio(_, job) => job.depth,
        }
    }

    pub(super) fn add(&mut self, slice: Slice) {
        self.samples.add_round(slice.round);
        self.mb_per_s.push(slice.mb_per_s);
        self.cpu_us.push(slice.cpu_us);
    }
}

/// fio's ways to do single reads. Its fastest of each kind counts.
pub(super) const FIO_SINGLE: [(&str, FioFor, &[&str]); 5] = [
    ("fio_io_uring", FioFor::Interrupt, &["--ioengine=io_uring", "--registerfiles=1"]),
    ("fio_psync", FioFor::Interrupt, &["--ioengine=psync"]),
    (
        "fio_io_uring_hipri",
        FioFor::Poll,
        &["--ioengine=io_uring", "--registerfiles=1", "--hipri=1"],
    ),
    (
        "fio_sqthread_poll",
        FioFor::Poll,
        &["--ioengine=io_uring", "--registerfiles=1", "--sqthread_poll=1"],
    ),
    ("fio_pvsync2_hipri", FioFor::Poll, &["--ioengine=pvsync2", "--hipri=1"]),
];
pub(super) const FIO_SEVERAL: &[&str] = &["--ioengine=io_uring", "--registerfiles=1"];

/// Everything that is to be measured, each of fio's beside its counterpart.
pub(super) fn variants(writes: bool, with_fio: bool) -> Vec<Variant> {
    let mut all: Vec<Variant> =
        Mode::ALL.into_iter().map(|mode| Variant::new(mode.name(), What::Read(mode))).collect();
    all.push(Variant::new("pread", What::Pread));
    let job = |options, depth, writes| Job { options, depth, writes };
    if with_fio {
        all.extend(FIO_SINGLE.map(|(name, counterpart, options)| {
            Variant::fio(name, counterpart, job(options, 1, false))
        }));
    }
    for depth in DEPTHS {
        all.push(Variant::new(format!("depth_{depth}"), What::ReadMany(depth)));
        if with_fio {
            let job = job(FIO_SEVERAL, depth, false);
            all.push(Variant::fio(format!("fio_depth_{depth}"), FioFor::Several, job));
        }
    }
    for depth in WRITE_DEPTHS.into_iter().filter(|_| writes) {
        all.push(Variant::new(format!("write_{depth}"), What::WriteMany(depth)));
        if with_fio {
            let job = job(FIO_SEVERAL, depth, true);
            all.push(Variant::fio(format!("fio_write_{depth}"), FioFor::Several, job));
        }
    }
    all
}

/// Those that were asked for; all where none was.
pub(super) fn chosen(all: Vec<Variant>, only: &[String]) -> Result<Vec<Variant>, Refusal> {
    if let Some(unknown) = only.iter().find(|name| !all.iter().any(|v| v.name == **name)) {
        let names: Vec<&str> = all.iter().map(|variant| variant.name.as_str()).collect();
        return Err(Refusal::usage(format!(
            "--only {unknown}: there is no such variant here; choose from {}",
            names.join(", ")
        )));
    }
    let wanted = |variant: &Variant| only.is_empty() || only.contains(&variant.name);
    Ok(all.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_has_its_own_name_and_depth() {
        let all = variants(true, true);
        let mut names: Vec<_> = all.iter().map(|variant| variant.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for variant in &all {
            let last = variant.name.rsplit('_').next().unwrap();
            if let Ok(depth) = last.parse::<usize>() {
                assert_eq!(variant.depth(), depth, "{}", variant.name);
            }
        }
    }

    #[test]
    fn nothing_is_written_unless_asked_for() {
        let writes = |variant: &Variant| match &variant.what {
            What::WriteMany(_) => true,
            What::Fio(_, job) => job.writes,
            _ => false,
        };
        assert!(!variants(false, true).iter().any(writes));
        assert_eq!(variants(true, true).iter().filter(|variant| writes(variant)).count(), 4);
    }
}
