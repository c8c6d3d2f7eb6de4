//! Check for free disk space. It runs before the suite writes any data.

use std::path::Path;

use crate::{
    BenchError,
    load::options::require,
    options::{Part, PressureOptions},
    report::number,
};

/// Number of bytes on the disk for each loaded byte of keys and values. The data lies in the log, in the tables, and in
/// the tables that a compaction reads and writes at the same time.
const SPACE_FACTOR: u64 = 3;
/// Bytes that each key-value entry takes in addition to its value, for its key, its revision and its headers in the
/// log.
const ROW_BYTES: u64 = 64;
/// Bytes on the disk for the log segments that the server prepares, even for little data.
const LEAST_BYTES: u64 = 512 << 20;

/// Returns the largest number of bytes that one part of the suite has on the disk at any time.
fn needed(part: Part, options: &PressureOptions) -> u64 {
    let loaded = |keys: u64, value: usize| {
        let bytes = keys.saturating_mul(value as u64 + ROW_BYTES).saturating_mul(SPACE_FACTOR);
        bytes.saturating_add(LEAST_BYTES)
    };
    let data = loaded(options.values(), options.value_size);
    match part {
        Part::Load => data,
        // The probe's file exists at the same time as the data.
        Part::Gets => data.saturating_add(options.data_bytes()),
        // Two servers exist at the same time, one under the limit of memory and one without.
        Part::Misses => data.saturating_mul(2),
        Part::Keys => loaded(options.keys, options.key_value_size),
        // The bytes of a minute of puts depend on the rate, but are fewer than those of the other parts.
        Part::Tails => 4 << 30,
    }
}

/// Returns an error if the file system of `dir` has less free space than the part of the suite that needs most. The
/// error suggests what to change.
pub(crate) fn check(dir: &Path, options: &PressureOptions) -> Result<(), BenchError> {
    let free = rustix::fs::statvfs(dir).map_err(|error| BenchError::files(dir)(error.into()))?;
    judge(options, free.f_bavail.saturating_mul(free.f_frsize), dir)
}

fn judge(options: &PressureOptions, free: u64, dir: &Path) -> Result<(), BenchError> {
    let gib = |bytes: u64| number(bytes as f64 / f64::from(1 << 30));
    for &part in &options.parts {
        let needed = needed(part, options);
        let message = format!(
            "the part {} needs {} GiB and {} has {} GiB free: choose another directory, or less data with --data and --keys",
            part.name(),
            gib(needed),
            dir.display(),
            gib(free)
        );
        require(needed <= free, "--dir", message)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::options::parsed;

    #[test]
    fn the_largest_part_decides_and_the_error_says_what_to_do() {
        let options = |parts: &str| parsed(["--parts", parts]).unwrap();
        let judge = |parts: &str, free: u64| judge(&options(parts), free << 30, Path::new("/there"));
        judge("load,gets", 10).unwrap();
        let error = judge("load,misses", 10).unwrap_err().to_string();
        assert!(error.contains("misses") && error.contains("/there") && error.contains("--data"), "{error}");
        assert!(judge("keys", 40).is_err());
        judge("keys", 50).unwrap();
        check(Path::new("."), &options("tails")).ok();
    }
}
