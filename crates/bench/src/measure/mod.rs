//! Common parts of measurements.

pub(crate) mod options;
pub(crate) mod noise;
pub(crate) mod sample;
pub(crate) mod machine;
pub(crate) mod tables;
pub(crate) mod report;
pub(crate) mod poll_counts;
pub(crate) mod region;
pub(crate) mod managed_program;
pub(crate) mod task_pipe;
pub(crate) mod restore;
