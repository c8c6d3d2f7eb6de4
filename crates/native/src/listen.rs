//! The listener for native connections.
//!
//! Owns: the limits on connections (shared with HTTP) and on connections without a finished handshake, one task per
//! connection, the thread of each task, and the shutdown. Does not own: handshakes. The task of each connection does
//! its own handshake, so a slow handshake delays no other client.
//!
//! # Thread of a connection
//!
//! Plain TCP connections run on one of the [`threads`](thalweg_serving::threads). TLS and QUIC connections run on the
//! runtime that accepts them. Their handshakes and ciphers use a core for so long that they would delay other
//! connections of the same thread. Also, the datagrams of QUIC connections arrive at one task, that of the endpoint.
//!
//! # Connections before the handshake
//!
//! A connection holds one of `max_handshakes` slots from accept to welcome. The TLS or QUIC handshake may take
//! `header_timeout`, and then the client's hello may take as long again. If all slots are taken, the address with most
//! such connections loses its oldest one, which is closed. From half of the limit on, QUIC clients must prove their
//! address first, so that spoofed packets cannot use up the slots. Until its welcome, a connection has one channel with
//! small frames, and little QUIC data in flight.

use std::sync::Arc;

use thalweg_serving::{
    accepting::{accept_until, drain},
    admission::{Account, AddressKey, Resource},
    bulk::BulkTurns,
    half_open::Slot,
    limits::QUIC_FAREWELL,
    threads::Threads,
};
use thalweg_transport::{Incoming, Kind, Listener};
use tokio::task::JoinSet;

use super::{Native, connection};

/// Name of the clients of the native protocol in log lines.
const CLIENTS: &str = "native clients";

/// Accepts native connections until the server stops, and then waits until all connections have ended. Dropping the
/// future cuts open connections.
pub async fn serve(native: Arc<Native>, listener: Listener, threads: Threads) {
    let mut stopping = native.app.stopping.clone();
    let stop = async move { drop(stopping.wait_for(|stopping| *stopping).await) };
    let mut connections = JoinSet::new();
    let begin = |incoming, connections: &mut JoinSet<()>| admit(&native, incoming, &threads, connections);
    accept_until(stop, || listener.accept(), begin, &mut connections, CLIENTS).await;
    let stopped = listener.stop();
    drain(&mut connections, CLIENTS).await;
    // A QUIC client that is not notified in time notices the end by its idle timeout.
    let _ = tokio::time::timeout(QUIC_FAREWELL, stopped.wait_idle()).await;
    threads.stop().await;
}

fn admit(native: &Arc<Native>, incoming: Incoming, threads: &Threads, connections: &mut JoinSet<()>) {
    let (admission, slots) = (&native.app.admission, &native.app.slots);
    let crowded = slots.half_open.used() * 2 >= slots.half_open.limit();
    let incoming = if crowded { incoming.validate_address() } else { Some(incoming) };
    let Some(incoming) = incoming else { return };
    let account = admission.account(AddressKey::of(incoming.peer().ip()));
    let place = slots.half_open.enter(account.address(), slots.connect(&account));
    if incoming.kind() != Kind::Tcp {
        let bulk = Arc::clone(&native.app.bulk);
        connections.spawn(begin(Arc::clone(native), account, incoming, place, bulk));
        return;
    }
    // Plain TCP has no handshake, so the rejection can be sent immediately.
    if !place.has_share() {
        return incoming.reject(&connection::no_room());
    }
    let (runtime, seat) = threads.place();
    let connection = begin(Arc::clone(native), account, incoming, place, Arc::clone(seat.bulk()));
    let task = async move {
        connection.await;
        drop(seat);
    };
    connections.spawn_on(task, runtime);
}

/// Serves one native connection. `bulk` distributes turns to send bulk output (deliveries and other long output) among
/// the connections of the runtime. `place` is the slot of a connection without a finished handshake. If the slot has no
/// reservation of one of the `max_connections`, rejects the connection.
async fn begin(native: Arc<Native>, account: Arc<Account>, incoming: Incoming, place: Slot, bulk: Arc<BulkTurns>) {
    let (peer, kind) = (incoming.peer(), incoming.kind());
    let quic = (kind == Kind::Quic).then(|| account.take(Resource::QuicConnections, 1));
    let established = tokio::select! {
        biased;
        // Plain TCP is established at once, and the hello may have arrived already. So the hello is read before the
        // connection can end because it lost its slot.
        established = incoming.establish() => established,
        () = place.lost() => {
            native.metrics.handshake_failed();
            tracing::debug!(%peer, %kind, "a newer connection took the place of an unfinished handshake");
            return;
        }
    };
    let (connection, channel) = match established {
        Ok(established) => established,
        Err(error) => {
            native.metrics.handshake_failed();
            tracing::debug!(%peer, %kind, %error, "the handshake of a native connection failed");
            return;
        }
    };
    if place.is_lost() && !place.has_share() {
        native.metrics.handshake_failed();
        return;
    }
    if !place.has_share() || matches!(quic, Some(None)) {
        return connection::reject_channel(channel).await;
    }
    let _open = native.metrics.connections.open();
    connection::serve(Arc::clone(&native), account, connection, channel, place, bulk).await;
}
