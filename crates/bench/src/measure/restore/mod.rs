//! Makes and undoes a benchmark's changes to the machine: swap areas, zram, settings, cgroups.
//!
//! A separate process, the restorer, makes all changes. It undoes them in reverse order when its
//! standard input is closed, so they are undone however the benchmark exits, even by SIGKILL. The
//! restorer has its own process group and blocks signals, so terminal signals do not affect it. It
//! never changes a device, swap area or cgroup that it did not create.

pub(crate) mod group;
pub(crate) mod zram;
pub(crate) mod changes;
pub(crate) mod process;
