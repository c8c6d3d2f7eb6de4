//! Probes of the machine's own speed, without a database: one round trip over the loopback, one fsync, and large
//! sequential writes. Each scenario runs them right before its measurements, because the speed of a machine changes.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
    time::{Duration, Instant},
};

use thalweg_lab::Scratch;

use crate::{
    BenchError,
    latency::Latencies,
    probe::{Probe, Sync},
};

/// Length of the probe's file in bytes. The probe overwrites the file repeatedly.
const FILE_BYTES: u64 = 16 << 20;
/// Size in bytes of one write of the probe for large sequential writes.
const LARGE_WRITE: usize = 1 << 20;
/// Size in bytes of the file for large writes.
const LARGE_FILE_BYTES: u64 = 256 << 20;

/// Speed of the machine without a database: a round trip over the loopback, and a write with its fsync.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probed {
    /// Median time of a round trip over the loopback, in microseconds.
    pub round_trip_us: f64,
    /// Median time of a small write with its fsync, in microseconds.
    pub fsync_us: f64,
}

impl Probed {
    /// Returns the most puts per second that one client of a cluster could reach on this machine. A put goes from the
    /// client to the leader, from the leader to a follower, and back to the leader. These are three hops of half a
    /// round trip each. The put also waits for one fsync.
    pub(crate) fn allowed_rate(self) -> f64 {
        1e6 / (1.5 * self.round_trip_us + self.fsync_us)
    }
}

/// Measures the speed of the loopback and of the disk.
#[derive(Debug)]
pub(crate) struct Probes {
    disk: Probe,
    payload: Vec<u8>,
}

impl Probes {
    /// Creates the probes. `dir` is on the measured disk; each message and each write has `bytes` bytes.
    pub(crate) fn create(dir: &Path, bytes: usize) -> Result<Self, BenchError> {
        Ok(Self { disk: Probe::create(dir, FILE_BYTES)?, payload: vec![7; bytes.clamp(1, 64 << 10)] })
    }

    /// Measures the loopback and the disk, for `time` each.
    pub(crate) fn run(&mut self, time: Duration) -> Result<Probed, BenchError> {
        let median_us = |times: &Latencies| times.quantiles().p50_us;
        let disk = self.disk.run(&self.payload, Sync::Each, time)?;
        let hops =
            round_trips(self.payload.len(), time).map_err(BenchError::subject("the loopback", "a round trip"))?;
        Ok(Probed { round_trip_us: median_us(&hops), fsync_us: median_us(&disk.times) })
    }
}

/// Measures large sequential writes, each with an fsync, for `time`. Returns their bytes per second.
pub(crate) fn sequential_rate(dir: &Path, time: Duration) -> Result<f64, BenchError> {
    let mut probe = Probe::create(dir, LARGE_FILE_BYTES)?;
    Ok(probe.run(&vec![7; LARGE_WRITE], Sync::Each, time)?.rate * LARGE_WRITE as f64)
}

/// Times of small writes to a disk, at a fixed rate and with an fsync each.
#[derive(Debug)]
pub(crate) struct SmallWrites {
    /// Times of the small writes while nothing else uses the disk.
    pub alone: Latencies,
    /// Times of the small writes while another thread writes many bytes to the same disk.
    pub beside: Latencies,
}

impl SmallWrites {
    /// Returns a ratio of 99th percentiles: the time of small writes while another thread writes many bytes to the
    /// disk, divided by the time of small writes that use the disk alone.
    pub(crate) fn ratio_of_p99(&self) -> f64 {
        let seconds = |times: &Latencies| times.percentile(99.0).as_secs_f64();
        seconds(&self.beside) / seconds(&self.alone)
    }
}

/// Measures writes of `bytes` bytes with an fsync each, `rate` a second: for `time` alone, and for `time` while another
/// thread writes `large_rate` bytes per second in large writes with an fsync each.
pub(crate) fn small_writes(
    dir: &Path,
    (bytes, rate): (usize, f64),
    large_rate: f64,
    time: Duration,
) -> Result<SmallWrites, BenchError> {
    let large_dir = Scratch::below(Some(dir))?;
    let mut large = Probe::create(large_dir.path(), LARGE_FILE_BYTES)?;
    let mut small = Probe::create(dir, FILE_BYTES)?;
    let payload = vec![7; bytes];
    let mut measure = || {
        let end = Instant::now() + time;
        small.run_paced(&payload, rate, || Instant::now() >= end)
    };
    let alone = measure()?;
    let is_over = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let write =
            || large.run_paced(&vec![7; LARGE_WRITE], large_rate / LARGE_WRITE as f64, || is_over.load(Acquire));
        let writing = scope.spawn(write);
        let beside = measure();
        is_over.store(true, Release);
        let written = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.and(beside)
    })?;
    Ok(SmallWrites { alone, beside })
}

/// Sends messages to another thread over the loopback, one at a time. The thread sends each message back. Returns the
/// times of the round trips.
pub(crate) fn round_trips(bytes: usize, time: Duration) -> std::io::Result<Latencies> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut message = vec![0; bytes];
            // The loop ends when the near side closes the connection.
            while far.read_exact(&mut message).is_ok() && far.write_all(&message).is_ok() {}
        });
        let (mut message, mut times, begun) = (vec![0; bytes], Latencies::default(), Instant::now());
        let measured = loop {
            let sent = Instant::now();
            if let Err(error) = near.write_all(&message).and_then(|()| near.read_exact(&mut message)) {
                break Err(error);
            }
            times.record(sent.elapsed());
            if begun.elapsed() >= time {
                break Ok(times);
            }
        };
        drop(near);
        measured
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probes_measure_both() {
        let scratch = Scratch::below(None).unwrap();
        let mut probes = Probes::create(scratch.path(), 256).unwrap();
        let probed = probes.run(Duration::from_millis(5)).unwrap();
        assert!(probed.round_trip_us > 0.0 && probed.fsync_us > 0.0, "{probed:?}");
        assert!(sequential_rate(scratch.path(), Duration::from_millis(5)).unwrap() > 0.0);
        let writes = small_writes(scratch.path(), (256, 1000.0), 10e6, Duration::from_millis(20)).unwrap();
        assert!(writes.alone.count() > 0 && writes.beside.count() > 0 && writes.ratio_of_p99() > 0.0, "{writes:?}");
        let known = Probed { round_trip_us: 20.0, fsync_us: 70.0 };
        assert!((known.allowed_rate() - 10_000.0).abs() < 1e-6);
    }
}
