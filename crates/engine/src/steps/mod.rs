//! Single operations, from which the modules of `paths` are composed.

pub(crate) mod install;
pub(crate) mod mapping_pressure;
pub(crate) mod staging;
pub(crate) mod read_slots;
pub(crate) mod compress;
pub(crate) mod decompress;
pub(crate) mod write_out;
pub(crate) mod swap_cache;
pub(crate) mod write_fault;
pub(crate) mod batch_unmap;
pub(crate) mod clean_reclaim;
pub(crate) mod relocate;
pub(crate) mod fault_around;
pub(crate) mod swap_in_batch;
