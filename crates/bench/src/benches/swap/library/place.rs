//! Where the bytes lie that are touched, and what a place takes to be compared.

use clap::ValueEnum;
use serde::Serialize;
use softswap_sys::PAGE_SIZE;

/// The region over the limit.
pub(super) const OVER_LIMIT: u64 = 4;

pub(super) fn region_pages(limit_bytes: u64) -> u64 {
    limit_bytes * OVER_LIMIT / PAGE_SIZE as u64
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(super) enum Place {
    /// In a region of a pool.
    Pool,
    /// On the heap under `softswap run`.
    Run,
    /// In a mapping of a file.
    File,
    /// On the heap, with a swap file of the kernel's.
    KernelFile,
    /// On the heap, of which umap serves the faults (--umap).
    Umap,
    /// On the heap, which BigMaac has in files (--bigmaac).
    Bigmaac,
    /// In an array of a pool (--python).
    NumpyPool,
    /// In `numpy.memmap` (--python).
    NumpyMemmap,
    /// In an array of Blosc2's in a file: filled and scanned (--python).
    Blosc2,
    /// In an array of Zarr's in a directory: filled and scanned (--python).
    Zarr,
}

/// What a place needs beside softswap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// A library, by this option.
    Library(&'static str),
    /// A Python.
    Python,
}

impl Place {
    pub(super) const ALL: [Place; 10] = [
        Place::Pool,
        Place::Run,
        Place::File,
        Place::KernelFile,
        Place::Umap,
        Place::Bigmaac,
        Place::NumpyPool,
        Place::NumpyMemmap,
        Place::Blosc2,
        Place::Zarr,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Place::Pool => "pool",
            Place::Run => "run",
            Place::File => "file",
            Place::KernelFile => "kernel_file",
            Place::Umap => "umap",
            Place::Bigmaac => "bigmaac",
            Place::NumpyPool => "numpy_pool",
            Place::NumpyMemmap => "numpy_memmap",
            Place::Blosc2 => "blosc2",
            Place::Zarr => "zarr",
        }
    }

    pub(super) fn needs(self) -> Needs {
        match self {
            Place::Pool | Place::Run | Place::File | Place::KernelFile => Needs::Nothing,
            Place::Umap => Needs::Library("--umap"),
            Place::Bigmaac => Needs::Library("--bigmaac"),
            Place::NumpyPool | Place::NumpyMemmap | Place::Blosc2 | Place::Zarr => Needs::Python,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
