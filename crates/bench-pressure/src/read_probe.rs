//! Random reads of the bare disk. Their rate is the upper limit of gets that find nothing in memory.
//!
//! Owns: a file of random bytes as large as the data, and threads that read blocks of it with `O_DIRECT`. Each thread
//! has one read in flight, so the number of threads is the depth of the disk's queue. On a file system without
//! `O_DIRECT` the probe has no figures, because reads from the page cache say nothing about a disk.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{Advice, OFlags, fadvise};

use crate::{BenchError, latency::Latencies, load::data::Values, random::mix_bits};

/// Length of a read in bytes. Its position in the file and its buffer in memory are aligned to multiples of it.
const BLOCK: usize = 4096;
/// Length in bytes of the writes that fill the file.
const FILL_BYTES: usize = 1 << 20;

/// Probe that reads random blocks of a large file. Dropping the probe removes the file.
#[derive(Debug)]
pub(crate) struct ReadProbe {
    path: PathBuf,
    /// The probe's file, opened with `O_DIRECT`; `None` if the file system does not support that.
    file: Option<File>,
    blocks: u64,
    /// Number of runs of the probe so far. It is the seed of the next run, so that each run reads other blocks.
    runs: u64,
}

/// Result of one run of the read probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRate {
    /// Reads per second; NaN without `O_DIRECT`.
    pub rate: f64,
    /// 99th percentile of the time of a read, in microseconds.
    pub p99_us: f64,
}

impl ReadProbe {
    /// Creates a probe with a file of `bytes` bytes, rounded up to a multiple of [`FILL_BYTES`].
    pub(crate) fn create(dir: &Path, bytes: u64) -> Result<Self, BenchError> {
        let path = dir.join("probe-of-reads");
        let fills = bytes.div_ceil(FILL_BYTES as u64).max(1);
        let mut probe = Self { path: path.clone(), file: None, blocks: fills * (FILL_BYTES / BLOCK) as u64, runs: 0 };
        let mut create = || {
            let mut file = File::create(&path)?;
            let values = Values::new(FILL_BYTES, 1);
            for number in 0..fills {
                file.write_all(values.of(number))?;
            }
            file.sync_all()?;
            // Without this call the file's pages would stay in memory without need.
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
            let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
            probe.file = File::options().read(true).custom_flags(direct).open(&path).ok();
            Ok(())
        };
        create().map_err(BenchError::files(&path))?;
        Ok(probe)
    }

    /// Reads random blocks with `depth` threads for `time`.
    pub(crate) fn run(&mut self, depth: u64, time: Duration) -> Result<ReadRate, BenchError> {
        self.runs += 1;
        let Some(file) = &self.file else { return Ok(ReadRate { rate: f64::NAN, p99_us: f64::NAN }) };
        let (begun, blocks, run) = (Instant::now(), self.blocks, self.runs);
        let read = |thread: u64| {
            let mut buffer = vec![0_u8; 2 * BLOCK];
            let aligned = buffer.as_ptr().align_offset(BLOCK);
            let (mut times, mut last) = (Latencies::default(), begun);
            for number in 0.. {
                let block = mix_bits((run << 48) ^ (thread << 40) ^ number) % blocks;
                file.read_exact_at(&mut buffer[aligned..aligned + BLOCK], block * BLOCK as u64)?;
                let now = Instant::now();
                times.record(now - last);
                last = now;
                if now - begun >= time {
                    break;
                }
            }
            Ok((times, last - begun))
        };
        let all: Result<Vec<_>, std::io::Error> = std::thread::scope(|scope| {
            let read = &read;
            let threads: Vec<_> = (0..depth).map(|thread| scope.spawn(move || read(thread))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let all = all.map_err(BenchError::files(&self.path))?;
        let times = Latencies::sum(all.iter().map(|(times, _)| times));
        let took = all.iter().map(|(_, took)| *took).max().unwrap_or_default();
        Ok(ReadRate { rate: times.count() as f64 / took.as_secs_f64(), p99_us: times.quantiles().p99_us })
    }
}

impl Drop for ReadProbe {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_the_file_are_read_by_one_and_by_many_threads() {
        let scratch = thalweg_lab::Scratch::below(None).unwrap();
        let mut probe = ReadProbe::create(scratch.path(), 3 << 20).unwrap();
        assert_eq!(probe.blocks, 768);
        for depth in [1, 4] {
            let rate = probe.run(depth, Duration::from_millis(5)).unwrap();
            assert!(rate.rate > 0.0 || probe.file.is_none(), "{rate:?}");
        }
        let path = probe.path.clone();
        drop(probe);
        assert!(!path.exists());
    }
}
