//! softswap beside itself, set up otherwise: against every fixed setting, and without one
//! mechanism. No side of the kernel's takes part.

mod trials;
pub(super) mod sweep;
mod bootstrap;
pub(crate) mod ablation;
