//! Measures the time that syncs take, with the same system calls as the log: the probe fills a file with zeroes,
//! overwrites parts of it, and calls `fdatasync` after each write. Overwriting does not change the metadata of the
//! file.
//!
//! Owns: the probe's file and its removal, and the samples. Does not own: the meaning of the times
//! ([`crate::storage`]). A write that fails ends the probe; a sync is never repeated.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use serde::Serialize;
use thalweg_disk::{Disk, File};

/// Size of the probe's file in bytes. It is much larger than a write, so that the disk does not write the same blocks
/// again and again.
pub(crate) const FILE_BYTES: u64 = 16 << 20;
/// Size in bytes of the writes that fill the file with zeroes. Larger writes make the kernel allocate large folios
/// (page-cache units), which slow down later small writes to the same pages.
const FILL_BYTES: usize = 64 << 10;
/// Size of a small write in bytes: one page of the page cache.
const SMALL_BYTES: usize = 4096;
/// Size of a large write in bytes.
const LARGE_BYTES: usize = 1 << 20;
/// Share of the probe's time that goes to small writes; the rest goes to large ones.
const SMALL_PART: f64 = 0.7;
/// Prefix of the names of probe files. The id of the process follows it.
const PREFIX: &str = "doctor-probe-";

/// A file that is filled with zeroes and then overwritten repeatedly. Dropping it removes the file.
#[derive(Debug)]
pub struct ProbeFile {
    disk: Arc<dyn Disk>,
    name: String,
    file: Arc<dyn File>,
    len: u64,
    at: u64,
}

impl ProbeFile {
    /// Creates the file with this name and a length of `len` bytes, and syncs it.
    ///
    /// # Errors
    ///
    /// Fails if the file exists, or if it cannot be written or synced. A file that this call created is then removed.
    pub fn create(disk: &Arc<dyn Disk>, name: &str, len: u64) -> io::Result<Self> {
        let file = disk.create(name)?;
        let probe = Self { disk: Arc::clone(disk), name: name.to_owned(), file, len, at: 0 };
        let zeroes = vec![0; FILL_BYTES];
        let mut at = 0;
        while at < len {
            let count = FILL_BYTES.min(usize::try_from(len - at).unwrap_or(FILL_BYTES));
            probe.file.write_all_at(&zeroes[..count], at)?;
            at += count as u64;
        }
        probe.file.sync_all()?;
        Ok(probe)
    }

    /// Writes data after the previous write. If it does not fit before the end of the file, writes at the beginning.
    ///
    /// # Errors
    ///
    /// Fails if the write fails.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        if self.at + data.len() as u64 > self.len {
            self.at = 0;
        }
        self.file.write_all_at(data, self.at)?;
        self.at += data.len() as u64;
        Ok(())
    }

    /// Makes the writes durable (`fdatasync`).
    ///
    /// # Errors
    ///
    /// Fails if the sync fails. The caller must not repeat it.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl Drop for ProbeFile {
    fn drop(&mut self) {
        // If removing the file fails here, a later probe removes it.
        let _ = self.disk.remove(&self.name);
    }
}

/// Distribution of durations, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Number of measured durations.
    pub count: usize,
    /// Median of the measured durations, in microseconds.
    pub p50_micros: f64,
    /// 90th percentile of the measured durations, in microseconds.
    pub p90_micros: f64,
    /// 99th percentile of the measured durations, in microseconds.
    pub p99_micros: f64,
    /// Longest of the measured durations, in microseconds.
    pub max_micros: f64,
}

impl Sample {
    /// Computes the percentiles of durations; `None` if there are none.
    #[must_use]
    pub fn of(mut durations: Vec<Duration>) -> Option<Self> {
        durations.sort_unstable();
        let micros = |duration: &Duration| duration.as_secs_f64() * 1e6;
        let at = |part: f64| {
            let rank = (durations.len() as f64 * part).ceil() as usize;
            durations.get(rank.max(1) - 1).map(micros)
        };
        Some(Self {
            count: durations.len(),
            p50_micros: at(0.5)?,
            p90_micros: at(0.9)?,
            p99_micros: at(0.99)?,
            max_micros: micros(durations.last()?),
        })
    }
}

/// Times of syncs that the probe measured in a directory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SyncTimes {
    /// Size in bytes of the small writes.
    pub small_bytes: usize,
    /// Times of an `fdatasync` after one small write.
    pub small: Sample,
    /// Size in bytes of each large write.
    pub large_bytes: usize,
    /// Throughput of large writes, each followed by an `fdatasync`, in bytes per second.
    pub large_bytes_per_second: f64,
}

/// Observations of the wall clock, compared with the monotonic clock to find steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Walls {
    /// Times of the monotonic clock and of the wall clock at the last observation.
    last: Option<(Duration, Duration)>,
    /// Time from the first observation to the last one.
    pub observed: Duration,
    /// Largest step of the wall clock: the difference between the times that it and the monotonic clock measured from
    /// one observation to the next.
    pub largest_step: Duration,
    began: Option<Instant>,
}

/// Longest time that reading the wall clock and the monotonic clock may take; slower observations are dropped. If the
/// system suspended the process between the two readings, the clocks would seem to step.
const MAX_READING: Duration = Duration::from_micros(200);

impl Walls {
    /// Reads the wall clock and the monotonic clock, and adds their times as an observation.
    pub fn observe(&mut self) {
        let before = Instant::now();
        let began = *self.began.get_or_insert(before);
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if before.elapsed() <= MAX_READING {
            self.add(before - began, wall);
        }
    }

    /// Adds an observation of the wall clock and the monotonic clock. `monotonic` counts from a fixed but arbitrary
    /// start, `wall` from 1970.
    pub fn add(&mut self, monotonic: Duration, wall: Duration) {
        if let Some((former, former_wall)) = self.last.replace((monotonic, wall)) {
            let passed = monotonic.saturating_sub(former);
            self.observed += passed;
            self.largest_step = self.largest_step.max((former_wall + passed).abs_diff(wall));
        }
    }
}

/// Measures syncs on a disk for about the time `time`, at least two syncs for each size of write, and observes the
/// clocks meanwhile. Returns `None` if `go_on` returned false before the end. Removes the probe's file in each case,
/// and also files that killed probes have left.
///
/// # Errors
///
/// Fails if the probe's file cannot be created, written or synced.
pub fn measure(
    disk: &Arc<dyn Disk>,
    time: Duration,
    walls: &mut Walls,
    go_on: &mut dyn FnMut() -> bool,
) -> io::Result<Option<SyncTimes>> {
    remove_leftovers(disk)?;
    let mut probe = ProbeFile::create(disk, &format!("{PREFIX}{}", std::process::id()), FILE_BYTES)?;
    let mut round = |bytes: usize, time: Duration| {
        let data = vec![0xa5; bytes];
        let (mut syncs, mut written) = (Vec::new(), 0_u64);
        let began = Instant::now();
        while syncs.len() < 2 || began.elapsed() < time {
            if !go_on() {
                return Ok(None);
            }
            walls.observe();
            probe.write(&data)?;
            let from = Instant::now();
            probe.sync()?;
            syncs.push(from.elapsed());
            written += bytes as u64;
        }
        Ok::<_, io::Error>(Some((syncs, written as f64 / began.elapsed().as_secs_f64().max(1e-9))))
    };
    let Some((small, _)) = round(SMALL_BYTES, time.mul_f64(SMALL_PART))? else { return Ok(None) };
    let Some((_, rate)) = round(LARGE_BYTES, time.mul_f64(1.0 - SMALL_PART))? else { return Ok(None) };
    let small = Sample::of(small).expect("at least two syncs");
    Ok(Some(SyncTimes { small_bytes: SMALL_BYTES, small, large_bytes: LARGE_BYTES, large_bytes_per_second: rate }))
}

/// Removes the files that probes of ended processes left.
fn remove_leftovers(disk: &Arc<dyn Disk>) -> io::Result<()> {
    for name in disk.list("")? {
        let id = name.strip_prefix(PREFIX).and_then(|id| id.parse::<u32>().ok());
        if id.is_some_and(|id| id == std::process::id() || !std::path::Path::new(&format!("/proc/{id}")).exists()) {
            disk.remove(&name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use thalweg_disk::RealDisk;

    use super::*;

    fn files(dir: &tempfile::TempDir) -> Vec<String> {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_probe_measures_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        // No process has this id: the kernel's maximum is 2^22.
        std::fs::write(dir.path().join("doctor-probe-4294967295"), "left").unwrap();
        std::fs::write(dir.path().join("doctor-probe-notes"), "of a person").unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
        let mut walls = Walls::default();
        let times = measure(&disk, Duration::from_millis(20), &mut walls, &mut || true).unwrap().unwrap();
        assert!(times.small.count >= 2 && times.large_bytes_per_second > 0.0, "{times:?}");
        assert!(times.small.p50_micros <= times.small.p99_micros && times.small.p99_micros <= times.small.max_micros);
        assert!(walls.observed > Duration::ZERO);
        assert_eq!(files(&dir), ["doctor-probe-notes"]);
    }

    #[test]
    fn a_probe_that_is_stopped_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
        let mut left = 3;
        let mut go_on = || {
            left -= 1;
            left > 0
        };
        let times = measure(&disk, Duration::from_secs(60), &mut Walls::default(), &mut go_on).unwrap();
        assert_eq!((times, files(&dir)), (None, Vec::<String>::new()));
    }

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let sample = Sample::of((1..=100).rev().map(Duration::from_micros).collect()).unwrap();
        let values = [sample.p50_micros, sample.p90_micros, sample.p99_micros, sample.max_micros];
        assert_eq!(values.map(|value| value.round() as u64), [50, 90, 99, 100]);
        assert_eq!(Sample::of(vec![Duration::from_micros(7)]).unwrap().p50_micros.round() as u64, 7);
        assert_eq!(Sample::of(Vec::new()), None);
    }

    #[test]
    fn steps_of_the_wall_clock_are_found_in_both_directions() {
        let millis = Duration::from_millis;
        let mut walls = Walls::default();
        walls.add(millis(0), millis(50_000));
        walls.add(millis(10), millis(50_010));
        assert_eq!(walls.largest_step, Duration::ZERO);
        walls.add(millis(20), millis(50_520));
        assert_eq!(walls.largest_step, millis(500));
        walls.add(millis(30), millis(49_530));
        assert_eq!((walls.largest_step, walls.observed), (millis(1000), millis(30)));
    }
}
