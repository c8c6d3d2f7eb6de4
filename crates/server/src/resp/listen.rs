//! Listening for Redis clients.
//!
//! Owns: accepting, the bounds on connections (HTTP's: a connection is a connection) and, where a password is asked for, on
//! those that have not given it (`max_handshakes`, and `header_timeout` to do so), one task a connection, on one of the
//! [`threads`](super::threads).

use std::{
    future::poll_fn,
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_redis::wire::Trust;
use thalweg_transport::Channel;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{Resp, connection::Connection, session::Session, threads::Threads};

/// Pause after a failed accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts until the server stops, then waits until all connections have ended. Dropped, it cuts those that have not.
pub async fn serve(resp: Arc<Resp>, listener: TcpListener, threads: Threads) {
    let mut stopping = resp.app.stopping.clone();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => break,
            Some(ended) = connections.join_next() => {
                log_panic(ended);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => begin(&resp, stream, &threads, &mut connections),
            Err(error) => {
                tracing::warn!(%error, "accepting a Redis client failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        log_panic(ended);
    }
    threads.stop().await;
}

fn begin(resp: &Arc<Resp>, stream: TcpStream, threads: &Threads, connections: &mut JoinSet<()>) {
    let admission = &resp.app.admission;
    let must_authenticate = resp.first_trust() == Trust::Unknown;
    let place = must_authenticate.then(|| admission.handshakes.take(1));
    let Some(held) = admission.connections.take(1).filter(|_| !matches!(place, Some(None))) else {
        // If its socket takes that at once.
        let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
        return;
    };
    // Its readiness is to be told to the thread that it goes to, not to this one.
    let Ok(stream) = stream.into_std() else { return };
    let resp = Arc::clone(resp);
    let (runtime, seat) = threads.place();
    let task = async move {
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        let Ok(local) = stream.local_addr() else { return };
        let io = Channel::tcp(stream);
        let client = resp.clients.add(io.peer(), local, Instant::now());
        let mut connection = Connection::new(Session::new(&resp, client), io, place.flatten());
        resp.app.resp_metrics.connection_opened();
        poll_fn(|cx| connection.poll(cx)).await;
        // Its place among the clients is free when it is counted as ended.
        drop(connection);
        resp.app.resp_metrics.connection_closed();
        drop((held, seat));
    };
    connections.spawn_on(task, runtime);
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a Redis client's task failed");
    }
}
