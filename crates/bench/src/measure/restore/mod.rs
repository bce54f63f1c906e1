//! What a benchmark changes on the machine (swap areas, zram, settings, control groups), and
//! who restores it.
//!
//! All of it is changed by a process of its own, the restorer, which undoes it
//! in reverse order when its standard input ends: that happens however the
//! benchmark ends, also by SIGKILL. The restorer is in a process group of its
//! own and holds signals back, so what the terminal or a shell ends does not
//! include it. It changes settings of the machine and things of its own, never
//! somebody else's device, swap area or control group.

pub(crate) mod group;
pub(crate) mod zram;
pub(crate) mod changes;
pub(crate) mod process;
