//! Tests of the store alone and with a real cluster, in one executable.

mod in_memory;

mod serve;
mod clusters;
