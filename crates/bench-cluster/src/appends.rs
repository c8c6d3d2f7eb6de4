//! Load generator for the scenarios of the cluster benchmark that write much: it appends batches of records to one
//! stream over the native protocol.
//!
//! Owns: a client of the cluster, which follows the leader, and the schedule of the batches. The cluster acknowledges a
//! batch once a majority has it on disk (level `quorum`). Several batches are in flight at a time. The latency of a
//! batch counts from its scheduled time. The measured figures are void if the load generator itself sends batches late,
//! or if the machine's wall clock and monotonic clock disagreed during the load.

use std::{
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use thalweg_client::{
    Client, Durability, Endpoint, Error, Options,
    types::{command::ExpectedOffset, record::RecordBatch},
};
use tokio::task::{JoinError, JoinSet};

use crate::{
    BenchError,
    data::Values,
    latency::Latencies,
    load::{Validity, block_on_thread, saturated, unusable_clocks},
    nodes::PATIENCE,
    usage::{Clocks, Meter},
};

/// Name of the stream to which the batches are appended.
pub(crate) const STREAM: &str = "bench";
/// Number of different batches that the load encodes in advance and appends in rotation.
const BATCHES: u64 = 64;

/// Parameters of a load: the batches to append, and their schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appends {
    pub records_per_batch: u64,
    pub record_bytes: usize,
    /// Time between two batches. If it is zero, the load appends the next batch as soon as fewer than `in_flight` are
    /// unacknowledged.
    pub every: Duration,
    pub batches: u64,
    /// Maximum number of batches that are sent and not acknowledged yet.
    pub in_flight: usize,
    pub seed: u64,
}

/// Result of a finished load: the number of acknowledged records, and the latencies of the batches.
#[derive(Clone, Debug)]
pub(crate) struct Appended {
    pub records: u64,
    /// Time from the first batch until the last acknowledgement.
    pub took: Duration,
    /// Latency of each batch, from its scheduled time until its acknowledgement.
    pub times: Latencies,
    /// Time by which the load sent each scheduled batch late. Batches that were late because the cluster had not
    /// acknowledged earlier ones are left out.
    pub lag: Latencies,
    /// Readings of the machine's clocks during the load: the drift of the wall clock, and the processor time that a
    /// virtual machine's host took away. They show if the measured times can be trusted.
    pub clocks: Clocks,
}

impl Appended {
    /// Returns the acknowledged records per second.
    pub(crate) fn rate(&self) -> f64 {
        self.records as f64 / self.took.as_secs_f64()
    }

    /// Tells if the measured times and rates can be used. They are void if the machine's clocks and processors were not
    /// reliable during the load (see `clocks`), or if the 99th percentile of the load's own lateness is above
    /// `max_lag`.
    pub(crate) fn validity(&self, max_lag: Duration) -> Validity {
        unusable_clocks(&self.clocks).or_else(|| saturated(&self.lag, max_lag, 0.0)).unwrap_or(Validity::Good)
    }
}

impl Appends {
    /// Returns a load of `rate` records per second, with one batch each millisecond.
    pub(crate) fn at_rate(rate: u64, record_bytes: usize, time: Duration, seed: u64) -> Self {
        let every = Duration::from_millis(1);
        let records_per_batch = Self::batch_at_rate(rate);
        let batches = (time.as_secs_f64() * 1000.0) as u64;
        // The load only waits once 1000 batches, those of a second, are unacknowledged. It then misses its rate, and
        // the report shows that.
        Self { records_per_batch, record_bytes, every, batches, in_flight: 1000, seed }
    }

    /// Returns the number of records in each batch of a load of `rate` records per second. The load sends one batch
    /// each millisecond.
    pub(crate) fn batch_at_rate(rate: u64) -> u64 {
        (rate / 1000).max(1)
    }

    /// Returns a load that appends `bytes` bytes of records as fast as the cluster acknowledges them.
    pub(crate) fn of_bytes(bytes: u64, seed: u64) -> Self {
        let (record_bytes, records_per_batch) = (1024, 256);
        let batches = bytes.div_ceil(record_bytes as u64 * records_per_batch);
        Self { records_per_batch, record_bytes, every: Duration::ZERO, batches, in_flight: 16, seed }
    }

    fn encoded(&self) -> Result<Vec<Rc<RecordBatch>>, BenchError> {
        let values = Values::new(self.record_bytes, self.seed);
        let batch = |number| encoded_batch(&values, number, self.records_per_batch).map(Rc::new);
        (0..BATCHES.min(self.batches)).map(batch).collect()
    }

    /// Appends all batches, through any of the nodes. `nodes` has the addresses at which they serve the native
    /// protocol.
    pub(crate) fn run(&self, nodes: &[SocketAddr]) -> Result<Appended, BenchError> {
        let batches = self.encoded()?;
        block_on_thread(async {
            let client = connect(nodes).await?;
            let stream = client.stream(STREAM);
            stream.create_if_missing(&Default::default()).await.map_err(failed("creating a stream"))?;
            stream.id().await.map_err(failed("creating a stream"))?;
            let (meter, begun) = (Meter::begin(None), Instant::now());
            let (mut times, mut lag, mut running) = (Latencies::default(), Latencies::default(), JoinSet::new());
            let mut has_waited = false;
            let mut take = |done: Result<Result<Duration, Error>, JoinError>| {
                let took = done.map_err(failed("appending"))?.map_err(failed("appending"))?;
                times.record(took);
                Ok::<_, BenchError>(())
            };
            for number in 0..self.batches {
                let due = begun + self.every * u32::try_from(number).unwrap_or(u32::MAX);
                if due > Instant::now() {
                    tokio::time::sleep_until(due.into()).await;
                    has_waited = false;
                }
                while let Some(done) = running.try_join_next() {
                    take(done)?;
                }
                while running.len() >= self.in_flight {
                    has_waited = true;
                    running.join_next().await.map_or(Ok(()), &mut take)?;
                }
                let (stream, batch) = (stream.clone(), Rc::clone(&batches[(number % BATCHES) as usize]));
                let scheduled = if self.every.is_zero() { Instant::now() } else { due };
                if !has_waited {
                    lag.record(scheduled.elapsed());
                }
                running.spawn_local(async move {
                    let appended = stream.append_batch(&batch, ExpectedOffset::Any).await;
                    appended.map(|_| scheduled.elapsed())
                });
            }
            while let Some(done) = running.join_next().await {
                take(done)?;
            }
            let (took, clocks) = (begun.elapsed(), meter.clocks());
            client.close().await;
            Ok(Appended { records: self.batches * self.records_per_batch, took, times, lag, clocks })
        })
    }
}

/// Encodes the batch number `number` of the load, which has `records` records with values from `values`.
pub(crate) fn encoded_batch(values: &Values, number: u64, records: u64) -> Result<RecordBatch, BenchError> {
    let mut batch = RecordBatch::new();
    for record in 0..records {
        let payload = values.of(number * records + record);
        batch.push_payload(payload).map_err(BenchError::subject("the load", "encoding"))?;
    }
    Ok(batch)
}

/// Returns a function, for `map_err`, that makes the error of a failed request. `doing` names the operation.
pub(crate) fn failed<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> BenchError {
    BenchError::subject("the cluster", doing)
}

/// Connects to a cluster whose nodes serve the native protocol at these addresses.
pub(crate) async fn connect(nodes: &[SocketAddr]) -> Result<Client, BenchError> {
    let seeds: Vec<_> = nodes.iter().map(|node| Endpoint::tcp(node.to_string())).collect();
    let (name, timeout) = ("thalweg-bench".to_owned(), Some(PATIENCE));
    // Repeating puts after a lost connection is safe, because each key has one writer.
    let options = Options { name, timeout, repeat_puts: true, ..Options::default() };
    let client = Client::connect(seeds, options).await.map_err(BenchError::target("the cluster"))?;
    Ok(client.durability(Durability::Quorum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_are_void_if_the_load_itself_was_late_or_the_host_took_the_processors() {
        let judged = |lag: Duration, stolen| {
            let mut lags = Latencies::default();
            lags.record(lag);
            let clocks = Clocks { seconds: 10.0, drift_seconds: 0.0, stolen };
            let (took, times) = (Duration::from_secs(10), Latencies::default());
            Appended { records: 1, took, times, lag: lags, clocks }.validity(Duration::from_millis(10))
        };
        assert_eq!(judged(Duration::from_millis(5), Some(0.1)), Validity::Good);
        assert!(matches!(judged(Duration::from_millis(20), None), Validity::Saturated(_)));
        assert!(matches!(judged(Duration::from_millis(5), Some(0.5)), Validity::Clocks(_)));
    }

    #[test]
    fn loads_have_the_rate_and_the_bytes_that_they_say() {
        let slow = Appends::at_rate(1000, 256, Duration::from_secs(3), 1);
        assert_eq!((slow.records_per_batch, slow.batches), (1, 3000));
        let fast = Appends::at_rate(100_000, 256, Duration::from_millis(500), 1);
        assert_eq!((fast.records_per_batch * fast.batches, fast.every * 1000), (50_000, Duration::from_secs(1)));
        let bytes = Appends::of_bytes(1 << 20, 1);
        assert_eq!(bytes.batches * bytes.records_per_batch * bytes.record_bytes as u64, 1 << 20);
        assert_eq!(bytes.encoded().unwrap()[0].count(), 256);
    }
}
