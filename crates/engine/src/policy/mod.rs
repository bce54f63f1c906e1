//! Decisions: what leaves, what passes the pool by, how large the pool is, what is
//! read ahead. Nothing here knows a store.

pub mod grace;
pub mod refault;
pub mod clock;
pub mod write_back_rate;
pub mod partition;
pub mod codec_choice;
pub mod admission;
pub mod stored_copies;
pub mod write_load;
pub mod prefetch;
