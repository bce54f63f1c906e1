//! What is brought in before it is touched.

pub mod window;
pub(crate) mod strides;
pub(crate) mod accuracy;
pub mod readahead;
pub mod offset_prefetch;
