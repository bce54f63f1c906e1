//! One act each: the walks are made of them.

pub(crate) mod install;
pub(crate) mod staging;
pub(crate) mod read_slots;
pub(crate) mod compress;
pub mod decompress;
pub mod write_out;
pub mod swap_cache;
pub mod batch_unmap;
pub(crate) mod clean_reclaim;
pub mod relocate;
pub(crate) mod fault_around;
pub(crate) mod readmit;
pub(crate) mod swap_in_batch;
