//! Accepting of connections, for all protocols.
//!
//! Owns: the loop that accepts connections, removes the tasks of ended ones and continues after errors; and
//! the rate of log lines about errors. Does not own: the task of a connection, or bounds on connections.

use std::{
    io::{self, Write as _},
    pin::pin,
    time::{Duration, Instant},
};

use tokio::{
    net::TcpStream,
    task::{JoinError, JoinSet},
};

/// Pause after the server failed to accept a connection, for example because too many files were open.
const PAUSE: Duration = Duration::from_millis(50);
/// Shortest time between two log lines about failures to accept connections. Without this bound, a process that has no
/// free file descriptor would log 20 failures per second.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Number of connections that the loop accepts before the other tasks of its thread run. Without this bound the loop
/// would accept 128, and connected clients would wait while many others connect.
const AT_ONCE: u32 = 8;

/// Sets the options of a client's socket: the kernel sends replies without delay, and buffers only few bytes that it
/// cannot send to the client yet.
pub fn prepare(stream: &TcpStream) {
    // These calls fail only if the client has already disconnected. The first read reports that.
    let _ = stream.set_nodelay(true);
    thalweg_transport::limit_unsent(stream);
}

/// Accepts connections with `accept` until `stop` resolves. `begin` starts a task for each connection. `clients` names
/// the clients in log lines, for example as Redis clients.
pub async fn accept_until<T, A: Future<Output = io::Result<T>>>(
    stop: impl Future<Output = ()>,
    accept: impl Fn() -> A,
    mut begin: impl FnMut(T, &mut JoinSet<()>),
    connections: &mut JoinSet<()>,
    clients: &'static str,
) {
    let mut stop = pin!(stop);
    let (mut failures, mut at_once) = (Failures::default(), 0);
    loop {
        if at_once == AT_ONCE {
            at_once = 0;
            // The yield lets the runtime look for requests that have arrived on other connections.
            tokio::task::yield_now().await;
        }
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            Some(ended) = connections.join_next() => {
                log_panic(ended, clients);
                continue;
            }
            accepted = accept() => accepted,
        };
        match accepted {
            Ok(accepted) => {
                at_once += 1;
                begin(accepted, connections);
            }
            Err(error) => {
                if let Some(failed) = failures.add(Instant::now()) {
                    tracing::warn!(%error, failed, "accepting connections of {clients} failed");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Counter of failures to accept a connection, with the time of the last log line about them.
#[derive(Debug, Default)]
struct Failures {
    said: Option<Instant>,
    /// Number of failures to accept a connection since the last log line about them.
    unsaid: u64,
}

impl Failures {
    /// Counts a failure. If a log line is due, returns the number of failures since the last line, including this one;
    /// `None` if no line is due.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.unsaid += 1;
        if self.said.is_some_and(|said| now.saturating_duration_since(said) < SAID_EVERY) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// Closes a connection that exceeds the limit on connections. Sends the reason `why` first, but only as much as the
/// socket accepts without waiting.
pub fn reject_connection(stream: TcpStream, why: &[u8]) {
    // The write bypasses the runtime, which may not know yet that the new socket is writable.
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write(why);
    }
}

/// Waits until the tasks of all connections have ended.
pub async fn drain(connections: &mut JoinSet<()>, clients: &'static str) {
    while let Some(ended) = connections.join_next().await {
        log_panic(ended, clients);
    }
}

/// Logs an error if a connection's task panicked.
pub fn log_panic(ended: Result<(), JoinError>, clients: &'static str) {
    if let Err(error) = ended {
        tracing::error!(%error, "a task of {clients} failed");
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::ready};

    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn other_tasks_run_after_a_few_connections() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let accepted = Cell::new(0);
            let (stop, stopped) = oneshot::channel();
            // The other task ends the loop as soon as it runs.
            tokio::spawn(async move { stop.send(()).unwrap() });
            let begin = |(), _: &mut JoinSet<()>| {
                accepted.set(accepted.get() + 1);
                assert!(accepted.get() < 1000, "no other task runs");
            };
            accept_until(async { stopped.await.unwrap() }, || ready(Ok(())), begin, &mut JoinSet::new(), "tests").await;
            assert_eq!(accepted.get(), AT_ONCE);
        });
    }

    #[test]
    fn the_log_hears_of_failures_at_once_and_then_once_in_ten_seconds() {
        let (begin, mut failures) = (Instant::now(), Failures::default());
        // 20 failures per second for a minute.
        let said: Vec<_> = (0..1200)
            .filter_map(|n| failures.add(begin + n * PAUSE).map(|failed| ((n * PAUSE).as_secs(), failed)))
            .collect();
        assert_eq!(said, [(0, 1), (10, 200), (20, 200), (30, 200), (40, 200), (50, 200)]);
        // The 199 failures after the last line are reported with the next failure, however late.
        assert_eq!(failures.add(begin + Duration::from_secs(3600)), Some(200));
        assert_eq!(failures.add(begin), None, "a clock that seems to go back says nothing");
    }
}
