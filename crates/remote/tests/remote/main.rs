//! The store by itself and against a real cluster, in one executable.

mod serve;
mod clusters;
