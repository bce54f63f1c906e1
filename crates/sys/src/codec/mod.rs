//! Functions on the content of a page: comparison and compression.

pub mod simd;
pub mod lz4;
pub mod zstd;
