//! Listening for native connections.
//!
//! Owns: accepting, the bound on connections (HTTP's: a connection is a connection), one task a connection, what stops
//! when the server does. Does not own handshakes: each is done in its connection's task, so a slow one holds up nobody.

use std::{sync::Arc, time::Duration};

use thalweg_transport::Listener;
use tokio::task::JoinSet;

use super::{Native, session};

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
        let held = native.app.admission.connections.take(1);
        let native = Arc::clone(&native);
        connections.spawn(async move {
            let peer = incoming.peer();
            match (incoming.establish().await, held) {
                (Ok((connection, channel)), Some(_held)) => {
                    native.metrics().connection_opened();
                    session::serve(Arc::clone(&native), connection, channel).await;
                    native.metrics().connection_closed();
                }
                (Ok((_connection, channel)), None) => session::turn_away(channel).await,
                (Err(error), _) => tracing::debug!(%peer, %error, "no handshake"),
            }
        });
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        log_panic(ended);
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a native connection's task failed");
    }
}
