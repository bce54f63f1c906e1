//! The store by itself and against a real cluster, in one executable.

mod in_memory;

mod serve;
mod clusters;
