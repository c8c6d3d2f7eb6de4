//! Measures the raw write speed of the disk. The log's speed is compared with it.
//!
//! A probe writes one file repeatedly from front to back: one `pwrite` at a time, followed by an `fdatasync` if the
//! caller requests syncs. The file ([`ProbeFile`]) is filled with zeroes and synced beforehand. The probe appends
//! nothing, so the file's metadata does not change.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_disk::{Disk, RealDisk};
use thalweg_doctor::ProbeFile;

use crate::{
    BenchError,
    latency::Latencies,
    report::{Check, Verdict, number},
    stats::Summary,
};

/// Largest median absolute deviation of a probe's rounds in a valid run, as a share of their median. If the deviation
/// is larger, the disk was disturbed. Its speed in one round can then not be compared with the figure of that round.
const MAX_DEVIATION: f64 = 0.3;

/// Choice between synced and unsynced writes of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Each write is followed by an `fdatasync`.
    Each,
    /// Writes are not synced: their bytes go only to the kernel.
    Never,
}

/// A zero-filled file that the probe writes to. Dropping the probe removes it.
#[derive(Debug)]
pub struct Probe {
    file: ProbeFile,
    path: PathBuf,
}

/// Result of one round of a probe.
#[derive(Clone, Debug)]
pub struct Probed {
    /// Number of writes per second.
    pub rate: f64,
    /// Duration of each write, including its `fdatasync` if there is one.
    pub times: Latencies,
}

impl Probe {
    /// Creates a probe with a file of `len` bytes in `dir`.
    pub fn create(dir: &Path, len: u64) -> Result<Self, BenchError> {
        let path = dir.join("probe");
        let create = || {
            let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir)?);
            disk.remove_if_there("probe")?;
            ProbeFile::create(&disk, "probe", len)
        };
        let file = create().map_err(BenchError::files(&path))?;
        Ok(Self { file, path })
    }

    /// Writes `data` to the probe's file repeatedly for `time`, at least once.
    pub fn run(&mut self, data: &[u8], sync: Sync, time: Duration) -> Result<Probed, BenchError> {
        let mut times = Latencies::default();
        let begun = Instant::now();
        let mut last = begun;
        loop {
            self.write(data, sync).map_err(BenchError::files(&self.path))?;
            let now = Instant::now();
            times.record(now - last);
            last = now;
            if now - begun >= time {
                break;
            }
        }
        Ok(Probed { rate: times.count() as f64 / (last - begun).as_secs_f64(), times })
    }

    /// Writes `data` with an `fdatasync` at `rate` writes per second until `is_over` returns true, at least once. Returns
    /// the time that each write took. A write that is late moves the later ones, so that a slow write counts once.
    pub fn run_paced(&mut self, data: &[u8], rate: f64, is_over: impl Fn() -> bool) -> Result<Latencies, BenchError> {
        let (mut times, pause) = (Latencies::default(), Duration::from_secs_f64(1.0 / rate));
        loop {
            let begun = Instant::now();
            self.write(data, Sync::Each).map_err(BenchError::files(&self.path))?;
            times.record(begun.elapsed());
            if is_over() {
                break;
            }
            std::thread::sleep(pause.saturating_sub(begun.elapsed()));
        }
        Ok(times)
    }

    /// Syncs the writes of `Sync::Never`. Otherwise the kernel would write them during the next measurement.
    pub fn settle(&self) -> Result<(), BenchError> {
        self.file.sync().map_err(BenchError::files(&self.path))
    }

    fn write(&mut self, data: &[u8], sync: Sync) -> std::io::Result<()> {
        self.file.write(data)?;
        match sync {
            Sync::Each => self.file.sync(),
            Sync::Never => Ok(()),
        }
    }
}

/// Creates the check that the rounds of a probe agree; if they do not, the run is void. `unit` is the unit of the
/// values, such as `/s`. Returns `None` for fewer than two rounds, which cannot disagree.
pub fn steadiness(what: impl Into<String>, rounds: &[f64], unit: &str) -> Option<Check> {
    if rounds.len() < 2 {
        return None;
    }
    let Summary { median, mad, .. } = Summary::of(rounds);
    let is_steady = mad <= MAX_DEVIATION * median;
    Some(Check {
        what: what.into(),
        required: format!("± at most {:.0} %", 100.0 * MAX_DEVIATION),
        measured: format!("{} ± {}{unit}", number(median), number(mad)),
        verdict: if is_steady { Verdict::Met } else { Verdict::Void },
        is_goal: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;

    #[test]
    fn a_probe_whose_rounds_disagree_makes_the_run_void() {
        let check = steadiness("raw probe", &[1222.0, 240.0, 2204.0], "/s").unwrap();
        assert_eq!((&*check.measured, check.verdict), ("1,222 ± 982/s", Verdict::Void));
        let check = steadiness("raw probe", &[11_000.0, 11_400.0, 900.0], "/s").unwrap();
        assert_eq!(check.verdict, Verdict::Met, "one wild round of three is outvoted");
        assert!(steadiness("raw probe", &[1.0], "/s").is_none());
        assert_eq!(steadiness("raw probe", &[f64::NAN, 1.0], "/s").unwrap().verdict, Verdict::Void);
    }

    #[test]
    fn the_probe_stays_within_its_file() {
        let scratch = Scratch::below(None).unwrap();
        let mut probe = Probe::create(scratch.path(), 100_000).unwrap();
        for sync in [Sync::Each, Sync::Never] {
            let probed = probe.run(&[7; 30_000], sync, Duration::from_millis(5)).unwrap();
            assert!(probed.rate > 0.0 && probed.times.count() > 0);
        }
        let begun = Instant::now();
        let times = probe.run_paced(&[7; 30_000], 1000.0, || begun.elapsed() > Duration::from_millis(20)).unwrap();
        assert!((1..=21).contains(&times.count()), "{}", times.count());
        probe.settle().unwrap();
        assert_eq!(std::fs::metadata(scratch.path().join("probe")).unwrap().len(), 100_000);
    }
}
