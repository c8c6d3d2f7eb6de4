//! The report of a test that is skipped. Tests of other crates include this file by its path.

use std::{fs::OpenOptions, io::Write as _};

/// Reports that a test is skipped, past the capture of the output, and counts it in the file that `THALWEG_SKIPPED`
/// names.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED: {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("THALWEG_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
