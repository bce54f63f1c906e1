//! Public interface: builder, engine, settings, control protocol.

pub mod settings;
pub mod open_areas;
pub(crate) mod builder;
pub mod engine;
pub mod live_settings;
pub mod control_protocol;
pub mod fault_samples;
