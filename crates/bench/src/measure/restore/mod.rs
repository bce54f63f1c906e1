//! Changes of a benchmark to the machine (swap areas, zram, settings, control groups), and their
//! reversal.
//!
//! A process of its own, the restorer, makes all of them. It undoes them in reverse order when its
//! standard input ends, so they are undone however the benchmark exits, also by SIGKILL. The
//! restorer is in a process group of its own and holds signals, so that signals of the terminal do
//! not reach it. It never changes a device, swap area or control group that it has not made.

pub(crate) mod group;
pub(crate) mod zram;
pub(crate) mod changes;
pub(crate) mod process;
