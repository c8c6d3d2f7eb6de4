//! Measures the bare disk while a server makes durable puts on it: a thread of the benchmark appends bytes to a file of
//! its own and syncs them, at a low rate.
//!
//! The appends are due by a schedule, like the puts. Their times count from the moment at which they are due, so a
//! stall of the disk shows in all appends that were due during the stall.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    sync::mpsc::{RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use crate::{BenchError, latency::Latencies};

/// Calls `work`. Meanwhile a thread appends `bytes` bytes to a file in `dir`, `rate` times a second, each time with an
/// `fdatasync`. Returns the result of `work`, and the times of the appends.
pub(crate) fn beside<T>(
    dir: &Path,
    bytes: usize,
    rate: f64,
    work: impl FnOnce() -> T,
) -> Result<(T, Latencies), BenchError> {
    let path = dir.join("probe-of-appends");
    let mut file = File::create(&path).map_err(BenchError::files(&path))?;
    let (over, ended) = channel::<()>();
    let (result, times) = std::thread::scope(|scope| {
        let probing = scope.spawn(move || {
            let (data, begun, mut times) = (vec![7_u8; bytes], Instant::now(), Latencies::default());
            for number in 0_u32.. {
                let due = begun + Duration::from_secs_f64(f64::from(number) / rate);
                let pause = due.saturating_duration_since(Instant::now());
                if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                file.write_all(&data)?;
                file.sync_data()?;
                times.record(due.elapsed());
            }
            Ok(times)
        });
        // If `work` panics, `over` is dropped too. Dropping it ends the thread.
        let over = over;
        let result = work();
        drop(over);
        (result, probing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let times = times.map_err(BenchError::files(&path))?;
    std::fs::remove_file(&path).map_err(BenchError::files(&path))?;
    Ok((result, times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_probed_until_the_work_ends() {
        let scratch = thalweg_lab::Scratch::below(None).unwrap();
        let work = || std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        let ((), times) = beside(scratch.path(), 100, 1000.0, work).unwrap();
        // On a busy machine a thread sleeps longer than requested.
        let most = 1 + u64::try_from(begun.elapsed().as_millis()).unwrap();
        assert!((1..=most).contains(&times.count()), "{} of {most}", times.count());
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "the file is removed");
    }
}
