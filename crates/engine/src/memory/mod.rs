//! The program's address space, the DRAM budget, and contexts.

pub mod address_space;
pub(crate) mod budget;
pub mod context;
pub(crate) mod pinners;
