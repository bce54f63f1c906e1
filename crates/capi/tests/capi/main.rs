//! Tests the header, and programs in C and C++ that use it, in one executable.

mod header;
mod programs;
