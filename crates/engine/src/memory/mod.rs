//! The program's address space, the DRAM budget, and what one walk owns.

pub mod address_space;
pub mod budget;
pub mod context;
pub mod pinners;
pub mod interrupted_wait;
