//! This process, other processes, and the machine that they run on.

pub mod load;
pub mod memory_limits;
pub mod threads;
pub mod process_identity;
pub mod own_threads;
pub mod child;
pub mod pinners;
pub mod control_socket;
pub mod program_file;
pub mod process_image;
pub mod linked;
pub mod inline_calls;
pub mod code;
