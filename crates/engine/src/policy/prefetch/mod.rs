//! Prefetching: swapping pages in before they are touched.

pub mod advised;
pub(crate) mod window;
pub(crate) mod strides;
pub mod readahead;
pub(crate) mod offset_prefetch;
