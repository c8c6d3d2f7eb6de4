//! Accepting connections, whatever is spoken over them.
//!
//! Owns: the loop that accepts, reaps and goes on after errors. Does not own what a connection's task does, nor bounds on them.

use std::{
    io::{self, Write as _},
    pin::pin,
    time::Duration,
};

use tokio::{
    net::TcpStream,
    task::{JoinError, JoinSet},
};

/// Pause after a failed accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts until `stop`, and has `begin` start a task for each that comes. `whose` connections these are is for the log.
pub async fn accept_until<T, A: Future<Output = io::Result<T>>>(
    stop: impl Future<Output = ()>,
    accept: impl Fn() -> A,
    mut begin: impl FnMut(T, &mut JoinSet<()>),
    connections: &mut JoinSet<()>,
    whose: &'static str,
) {
    let mut stop = pin!(stop);
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
                tracing::warn!(%error, "accepting a connection of {whose} failed");
                tokio::time::sleep(PAUSE).await;
            }
        }
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
