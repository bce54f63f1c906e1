//! Managed memory: where it lies, and how pages enter and leave it.

pub mod place;
pub mod uffd;
pub mod window;
pub mod inline;
pub mod heirloom;
