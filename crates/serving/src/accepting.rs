//! Accepting connections, whatever is spoken over them.
//!
//! Owns: the loop that accepts, reaps and goes on after errors, and how often the log hears of those. Does not own what a
//! connection's task does, nor bounds on them.

use std::{
    io::{self, Write as _},
    pin::pin,
    time::{Duration, Instant},
};

use tokio::{
    net::TcpStream,
    task::{JoinError, JoinSet},
};

/// Pause after a failed accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);
/// The log hears of failed accepts once in so long: while file descriptors are short there are 20 a second.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Accepts until `stop`, and has `begin` start a task for each that comes. `whose` connections these are is for the log.
pub async fn accept_until<T, A: Future<Output = io::Result<T>>>(
    stop: impl Future<Output = ()>,
    accept: impl Fn() -> A,
    mut begin: impl FnMut(T, &mut JoinSet<()>),
    connections: &mut JoinSet<()>,
    whose: &'static str,
) {
    let mut stop = pin!(stop);
    let mut failures = Failures::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            Some(ended) = connections.join_next() => {
                log_panic(ended, whose);
                continue;
            }
            accepted = accept() => accepted,
        };
        match accepted {
            Ok(accepted) => begin(accepted, connections),
            Err(error) => {
                if let Some(failed) = failures.add(Instant::now()) {
                    tracing::warn!(%error, failed, "accepting connections of {whose} failed, so often since this was last said");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Failed accepts of a listener, and when the log heard of them.
#[derive(Debug, Default)]
struct Failures {
    said: Option<Instant>,
    /// Those of which it has not heard.
    unsaid: u64,
}

impl Failures {
    /// One more. `Some`: it is time to say how many there were since the last time, this one included.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.unsaid += 1;
        if self.said.is_some_and(|said| now.saturating_duration_since(said) < SAID_EVERY) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// One connection too many: is told why, if its socket takes that at once, and closed.
pub fn turn_away(stream: TcpStream, why: &[u8]) {
    // The runtime does not know yet whether it can be written to.
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write(why);
    }
}

/// Waits until all have ended.
pub async fn drain(connections: &mut JoinSet<()>, whose: &'static str) {
    while let Some(ended) = connections.join_next().await {
        log_panic(ended, whose);
    }
}

/// A task that was not to fail.
pub fn log_panic(ended: Result<(), JoinError>, whose: &'static str) {
    if let Err(error) = ended {
        tracing::error!(%error, "a task of {whose} failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_hears_of_failures_at_once_and_then_once_in_ten_seconds() {
        let (begin, mut failures) = (Instant::now(), Failures::default());
        // 20 a second for a minute.
        let said: Vec<_> = (0..1200)
            .filter_map(|n| failures.add(begin + n * PAUSE).map(|failed| ((n * PAUSE).as_secs(), failed)))
            .collect();
        assert_eq!(said, [(0, 1), (10, 200), (20, 200), (30, 200), (40, 200), (50, 200)]);
        // The 199 after the last line are told with the next that comes, however late.
        assert_eq!(failures.add(begin + Duration::from_secs(3600)), Some(200));
        assert_eq!(failures.add(begin), None, "a clock that seems to go back says nothing");
    }
}
