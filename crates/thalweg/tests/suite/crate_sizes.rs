//! No crate is larger than the limit up to which its parts can still be distinguished.
//!
//! The test counts all lines of the `.rs` files in each crate's `src`, with comments and unit tests. A crate that
//! reaches the limit is divided along a border that its modules already have, as `thalweg-snapshot` was taken out of
//! the engine.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Maximum number of lines in the `src` of a crate.
const MAX_LINES: usize = 20_000;

#[test]
fn no_crate_has_more_than_twenty_thousand_lines() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sizes: Vec<(usize, String)> = fs::read_dir(crates)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|dir| dir.join("Cargo.toml").exists())
        .map(|dir| (lines_below(&dir.join("src")), dir.file_name().unwrap().to_str().unwrap().to_owned()))
        .collect();
    sizes.sort();
    assert!(sizes.len() >= 20 && sizes[0].0 > 0, "the test sees all crates: {sizes:?}");
    let over: Vec<_> = sizes.iter().filter(|(lines, _)| *lines > MAX_LINES).collect();
    assert!(over.is_empty(), "crates with more than {MAX_LINES} lines: {over:?}");
}

fn lines_below(dir: &Path) -> usize {
    let entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    let lines = |path: &PathBuf| match path.extension() {
        _ if path.is_dir() => lines_below(path),
        Some(extension) if extension == "rs" => fs::read_to_string(path).unwrap().lines().count(),
        _ => 0,
    };
    entries.iter().map(lines).sum()
}
