//! softswap beside itself, set up otherwise: against every fixed setting, and without one
//! mechanism. No side of the kernel's takes part.

mod trials;
mod bootstrap;
pub(super) mod sweep;
pub(crate) mod ablation;
