//! Listening for native connections.
//!
//! Owns: accepting, the bounds on connections (HTTP's: a connection is a connection) and on those that have not said who
//! they are yet, one task a connection, what stops when the server does. Does not own handshakes: each is done in its
//! connection's task, so a slow one holds up nobody.
//!
//! # Before a client is known
//!
//! It holds one of `max_handshakes` places from accept to welcome, at most for `header_timeout` until the TLS or QUIC handshake
//! is done and as long again until its hello is there. Beyond that bound who comes is turned away at once; from half of it on
//! QUIC clients prove their address first, so that nobody fills it with packets in others' names. Meanwhile it has one
//! channel, on which frames are small, and over QUIC little in flight.

use std::{sync::Arc, time::Duration};

use thalweg_transport::{Incoming, Kind, Listener};
use tokio::task::JoinSet;

use super::{Native, session};
use crate::{admission::Held, limits::QUIC_FAREWELL};

/// Pause after a failed accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts until the server stops, then waits until all connections have ended. Dropped, it cuts those that have not.
pub async fn serve(native: Arc<Native>, listener: Listener) {
    let mut stopping = native.app.stopping.clone();
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
        let incoming = match accepted {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::warn!(%error, "accepting a native connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let handshakes = &native.app.admission.handshakes;
        let incoming =
            if handshakes.used() * 2 >= handshakes.limit() { incoming.prove_address() } else { Some(incoming) };
        let Some(incoming) = incoming else { continue };
        match handshakes.take(1) {
            Some(place) => drop(connections.spawn(begin(Arc::clone(&native), incoming, place))),
            // Plain TCP has no handshake: what is to be said is said at once. Others are refused by dropping them.
            None if incoming.kind() == Kind::Tcp => drop(connections.spawn(async {
                if let Ok((connection, channel)) = incoming.establish().await {
                    session::turn_away(connection, channel).await;
                }
            })),
            None => {}
        }
    }
    let stopped = listener.stop();
    while let Some(ended) = connections.join_next().await {
        log_panic(ended);
    }
    // A client that is not told in time finds out by itself.
    let _ = tokio::time::timeout(QUIC_FAREWELL, stopped.wait_idle()).await;
}

/// From accept to the end. `place` is among those that are not known yet.
async fn begin(native: Arc<Native>, incoming: Incoming, place: Held) {
    let (peer, kind) = (incoming.peer(), incoming.kind());
    let admission = &native.app.admission;
    let held = admission.connections.take(1);
    let quic = (kind == Kind::Quic).then(|| admission.quic_connections.take(1));
    let (connection, channel) = match incoming.establish().await {
        Ok(established) => established,
        Err(error) => {
            native.metrics().handshake_failed();
            tracing::debug!(%peer, %kind, %error, "no handshake");
            return;
        }
    };
    if held.is_none() || matches!(quic, Some(None)) {
        return session::turn_away(connection, channel).await;
    }
    native.metrics().connection_opened();
    session::serve(Arc::clone(&native), connection, channel, place).await;
    native.metrics().connection_closed();
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a native connection's task failed");
    }
}
