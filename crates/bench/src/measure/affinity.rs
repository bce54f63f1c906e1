//! Where the threads of a benchmark run.

use rustix::thread::{CpuSet, sched_setaffinity};

/// A thread for each processor, as far as there are as many. Refused, the
/// scheduler does as it likes.
pub(crate) fn bind_to_cpu(thread: usize) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = CpuSet::new();
    set.set(thread % cpus);
    let _ = sched_setaffinity(None, &set);
}
