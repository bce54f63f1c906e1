//! `softswap bench library`: what it makes of programs of others.

use super::{json_of, softswap};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn library(swap: &Path, options: &[&str]) -> assert_cmd::Command {
    let mut command = softswap();
    command.args(["bench", "library", "--rounds", "1", "--memory", "32M"]);
    command.args(options).arg("--swap").arg(swap);
    command
}

/// What answers as a Python would that lacks Zarr.
fn python(dir: &Path) -> PathBuf {
    let path = dir.join("python");
    let script = "#!/bin/sh\ncase \"$*\" in\n\
        *zarr*) echo \"ModuleNotFoundError: No module named 'zarr'\" >&2; exit 1;;\n\
        *--own) echo 4096;;\n\
        *numpy_memmap*) echo '[8, 2, 3, 4, 5, 6]';;\n\
        *blosc2*) echo '[9, null, null, null, null, 3]';;\n\
        *) echo '[4, 1, 1, 1, 1, 1]';;\nesac\n";
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn what_others_have_made_is_left_out_by_name_where_it_is_not_there() {
    let swap = tempfile::tempdir_in("/var/tmp").unwrap();
    let options = ["--places", "umap,bigmaac,zarr", "--bigmaac", "/nowhere/bigmaac.so"];
    let found = json_of(&mut library(swap.path(), &options));
    let notes = found["notes"].to_string();
    for note in [
        "umap was left out: give the library with --umap",
        "bigmaac was left out: /nowhere/bigmaac.so: No such file or directory",
        "zarr was left out: give a Python that has its module with --python",
    ] {
        assert!(notes.contains(note), "{note:?} is not in {notes}");
    }
    assert_eq!(found["rows"], serde_json::json!([]));
}

#[test]
fn arrays_are_compared_with_the_array_of_a_pool_by_the_steps_that_they_have() {
    let swap = tempfile::tempdir_in("/var/tmp").unwrap();
    let python = python(swap.path());
    let places = "numpy_pool,numpy_memmap,blosc2,zarr";
    let options = ["--places", places, "--python", python.to_str().unwrap()];
    let found = json_of(&mut library(swap.path(), &options));
    let notes = found["notes"].to_string();
    assert!(notes.contains("zarr was left out") && notes.contains("No module named"), "{notes}");
    let expected = serde_json::json!({
        "fill_numpy_memmap_vs_numpy_pool": 2.0,
        "sequential_read_numpy_memmap_vs_numpy_pool": 2.0,
        "sequential_write_numpy_memmap_vs_numpy_pool": 3.0,
        "random_read_numpy_memmap_vs_numpy_pool": 4.0,
        "random_write_numpy_memmap_vs_numpy_pool": 5.0,
        "scan_numpy_memmap_vs_numpy_pool": 6.0,
        "fill_blosc2_vs_numpy_pool": 2.25,
        "scan_blosc2_vs_numpy_pool": 3.0,
    });
    assert_eq!(found["ratios"], expected);
}
