//! Listening for native connections.
//!
//! Owns: the bounds on connections (HTTP's: a connection is a connection) and on those that have not said who
//! they are yet, one task a connection, where it runs, what stops when the server does. Does not own handshakes: each is done in
//! its connection's task, so a slow one holds up nobody.
//!
//! # Where a connection is served
//!
//! Over plain TCP on one of the [`threads`](thalweg_serving::threads). Those over TLS and QUIC share the runtime that accepts: their
//! handshakes and ciphers take a core for so long that others on the same thread would feel it, and a QUIC
//! connection's datagrams come to its endpoint's task anyway.
//!
//! # Before a client is known
//!
//! It holds one of `max_handshakes` places from accept to welcome, at most for `header_timeout` until the TLS or QUIC handshake
//! is done and as long again until its hello is there. Beyond that bound who comes is turned away at once; from half of it on
//! QUIC clients prove their address first, so that nobody fills it with packets in others' names. Meanwhile it has one
//! channel, on which frames are small, and over QUIC little in flight.

use std::sync::Arc;

use thalweg_serving::{
    accepting::{accept_until, drain},
    admission::Held,
    limits::QUIC_FAREWELL,
    threads::Threads,
};
use thalweg_transport::{Incoming, Kind, Listener};
use tokio::task::JoinSet;

use super::{Native, connection};

/// To the log.
const WHOSE: &str = "native clients";

/// Accepts until the server stops, then waits until all connections have ended. Dropped, it cuts those that have not.
pub async fn serve(native: Arc<Native>, listener: Listener, threads: Threads) {
    let mut stopping = native.app.stopping.clone();
    let stop = async move { drop(stopping.wait_for(|stopping| *stopping).await) };
    let mut connections = JoinSet::new();
    let begin = |incoming, connections: &mut JoinSet<()>| admit(&native, incoming, &threads, connections);
    accept_until(stop, || listener.accept(), begin, &mut connections, WHOSE).await;
    let stopped = listener.stop();
    drain(&mut connections, WHOSE).await;
    // A client that is not told in time finds out by itself.
    let _ = tokio::time::timeout(QUIC_FAREWELL, stopped.wait_idle()).await;
    threads.stop().await;
}

fn admit(native: &Arc<Native>, incoming: Incoming, threads: &Threads, connections: &mut JoinSet<()>) {
    let admission = &native.app.admission;
    let crowded = admission.handshakes.used() * 2 >= admission.handshakes.limit();
    let incoming = if crowded { incoming.prove_address() } else { Some(incoming) };
    let Some(incoming) = incoming else { return };
    let Some(place) = admission.handshakes.take(1) else { return incoming.turn_away(&connection::no_room()) };
    let held = admission.connections.take(1);
    if incoming.kind() != Kind::Tcp {
        connections.spawn(begin(Arc::clone(native), incoming, place, held));
        return;
    }
    // Plain TCP has no handshake: what is to be said is said at once.
    if held.is_none() {
        return incoming.turn_away(&connection::no_room());
    }
    let (runtime, seat) = threads.place();
    let connection = begin(Arc::clone(native), incoming, place, held);
    let task = async move {
        connection.await;
        drop(seat);
    };
    connections.spawn_on(task, runtime);
}

/// From accept to the end. `place` is among those that are not known yet; `held` among all, unless there is none left.
async fn begin(native: Arc<Native>, incoming: Incoming, place: Held, held: Option<Held>) {
    let (peer, kind) = (incoming.peer(), incoming.kind());
    let admission = &native.app.admission;
    let quic = (kind == Kind::Quic).then(|| admission.quic_connections.take(1));
    let (connection, channel) = match incoming.establish().await {
        Ok(established) => established,
        Err(error) => {
            native.metrics.handshake_failed();
            tracing::debug!(%peer, %kind, %error, "no handshake");
            return;
        }
    };
    if held.is_none() || matches!(quic, Some(None)) {
        return connection::turn_away(channel).await;
    }
    native.metrics.connections.open();
    connection::serve(Arc::clone(&native), connection, channel, place).await;
    native.metrics.connections.close();
}
