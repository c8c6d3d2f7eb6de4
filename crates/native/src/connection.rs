//! A connection of the native protocol: its handshake, and the tasks of its channels.
//!
//! Owns: the hello and welcome frames, the parameters agreed with the client, and the tasks of a connection's channels.
//! Does not own: the frames of a channel after the welcome (`channel`).

use std::{
    future::poll_fn,
    io,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use thalweg_serving::{
    admission::{Account, Resource},
    bulk::BulkTurns,
    half_open::Slot,
    limits::{MAX_CHANNEL_REQUESTS, MAX_CHANNEL_SUBSCRIPTIONS, MAX_CONNECTION_CHANNELS},
};
use thalweg_transport::{Channel, Connection, Outbox};
use thalweg_types::{Action, SpaceId, limits::MAX_FRAME_BYTES};
use thalweg_wire::{
    Decoder, Frame, Reason, Space,
    handshake::{Agreed, FEATURE_CLUSTER, ServerParameters, goodbye, read_hello},
};
use tokio::task::JoinSet;

use super::{Native, channel::ChannelTask, session::Session};

/// Serves a connection from its handshake to its end. `bulk` distributes turns to send bulk output (deliveries and
/// other long output) among the connections of the runtime. `place` is the slot of a connection without a finished
/// handshake; the handshake releases it.
pub(crate) async fn serve(
    native: Arc<Native>,
    account: Arc<Account>,
    connection: Connection,
    mut channel: Channel,
    place: Slot,
    bulk: Arc<BulkTurns>,
) {
    let spaces = [Space { id: SpaceId(0), name: "default" }];
    let parameters = parameters(&native, &spaces);
    let mut decoder = Decoder::new();
    let timeout = native.app.config.header_timeout.0;
    let shaken = tokio::time::timeout(timeout, handshake(&mut channel, &mut decoder, &parameters, &place)).await;
    let agreed = match shaken {
        Ok(Ok(agreed)) => agreed,
        Ok(Err(NoHandshake::Replaced)) => {
            native.metrics.handshake_failed();
            tracing::debug!(peer = %channel.peer(), "a newer connection took the place of one that sent no hello");
            return;
        }
        Ok(Err(error)) => {
            native.metrics.handshake_failed();
            tracing::debug!(peer = %channel.peer(), %error, "a native connection could not be set up");
            close(&mut channel).await;
            return;
        }
        Err(_) => {
            native.metrics.handshake_failed();
            tracing::debug!(peer = %channel.peer(), "no hello arrived in time");
            return;
        }
    };
    connection.permit(MAX_CONNECTION_CHANNELS);
    let session = Session::new(&native, &account, &bulk, &agreed, &parameters);
    let mut first = ChannelTask::new(session.clone(), channel, decoder);
    let first = poll_fn(|cx| first.poll(cx));
    if connection.is_multiplexed() {
        multiplexed(session, &connection, first).await;
    } else {
        first.await;
    }
    connection.close();
}

/// Serves a connection with several channels (QUIC): runs its first channel, `first`, and accepts and serves further
/// channels until the first one ends.
async fn multiplexed(session: Session, connection: &Connection, first: impl Future<Output = ()>) {
    let mut channels = JoinSet::new();
    let mut first = std::pin::pin!(first);
    let mut more = true;
    loop {
        tokio::select! {
            () = &mut first => break,
            accepted = connection.accept(), if more => match accepted {
                Ok(Some(channel)) => {
                    let Some(held) = session.account.take(Resource::Connections, 1) else {
                        channels.spawn(reject_channel(channel));
                        continue;
                    };
                    let session = Session { is_first: false, ..session.clone() };
                    let mut decoder = Decoder::new();
                    decoder.set_max_bytes(session.max_frame_bytes);
                    channels.spawn(async move {
                        let mut task = ChannelTask::new(session, channel, decoder);
                        poll_fn(|cx| task.poll(cx)).await;
                        drop(held);
                    });
                }
                Ok(None) | Err(_) => more = false,
            },
            Some(ended) = channels.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a channel's task failed");
                }
            }
        }
    }
    if *session.app.stopping.borrow() {
        // The other channels send goodbyes too. The caller that stops the server limits the time for this.
        while channels.join_next().await.is_some() {}
    }
}

/// Returns the parameters that this server offers in the handshake.
fn parameters<'a>(native: &'a Native, spaces: &'a [Space<'a>]) -> ServerParameters<'a> {
    let config = &native.app.config;
    ServerParameters {
        max_frame_bytes: u32::try_from(MAX_FRAME_BYTES).expect("32 MiB"),
        // A silent peer counts as gone after three keepalive intervals. Together they equal HTTP's idle timeout.
        keep_alive: config.idle_timeout.0 / 3,
        max_requests: MAX_CHANNEL_REQUESTS,
        max_subscriptions: MAX_CHANNEL_SUBSCRIPTIONS,
        durability: config.durability,
        node: native.app.db.blocking().report().node,
        run: native.run,
        server: concat!("thalweg ", env!("CARGO_PKG_VERSION")),
        features: if native.app.cluster.is_some() { &[FEATURE_CLUSTER] } else { &[] },
        spaces,
    }
}

/// Reason why a handshake failed. The server has sent the reason to the client, if the client speaks the protocol.
#[derive(Debug, thiserror::Error)]
enum NoHandshake {
    #[error(transparent)]
    Lost(#[from] io::Error),
    #[error("the connection ended before its hello")]
    Ended,
    #[error("a newer connection took its place")]
    Replaced,
    #[error("{0}")]
    Refused(String),
}

/// Completes the handshake. Releases the slot `place` before the client can see the welcome.
///
/// If the client's hello has arrived, the client keeps its connection even if it has lost its slot to a newer
/// connection. The server may accept many connections before this thread reads the hello of a client that sent it at
/// once.
async fn handshake(
    channel: &mut Channel,
    decoder: &mut Decoder,
    parameters: &ServerParameters<'_>,
    place: &Slot,
) -> Result<Agreed, NoHandshake> {
    let (mut out, mut has_received) = (Outbox::new(), false);
    loop {
        let greeted = match decoder.next_borrowed() {
            Ok(None) => None,
            Ok(Some(raw)) => Some(read_hello(raw).and_then(|hello| parameters.accept(&hello)).map_err(|error| {
                let message = error.to_string();
                put_goodbye(&mut out, &error.goodbye(&message));
                message
            })),
            Err(error) => {
                let message = error.to_string();
                put_goodbye(&mut out, &goodbye(Reason::Protocol, Action::Fix, &message));
                Some(Err(message))
            }
        };
        match greeted {
            Some(Ok(agreed)) => {
                if !place.release() {
                    // The connection has lost its share of `max_connections` together with the slot.
                    return Err(NoHandshake::Replaced);
                }
                parameters.welcome(&agreed).encode(out.buffer(), 0).expect("a welcome is small");
                write(channel, &mut out).await?;
                decoder.set_max_bytes(parameters.max_frame_bytes);
                return Ok(agreed);
            }
            Some(Err(message)) => {
                write(channel, &mut out).await?;
                return Err(NoHandshake::Refused(message));
            }
            None => {
                let read = poll_fn(|cx| match channel.poll_read(cx, decoder.buffer()) {
                    Poll::Pending if place.poll_lost(cx).is_ready() => {
                        // The runtime may not know of the first bytes yet. It wakes the task when it does.
                        let waits = !has_received && place.has_share() && channel.has_unread();
                        if waits { Poll::Pending } else { Poll::Ready(Err(NoHandshake::Replaced)) }
                    }
                    polled => polled.map_err(NoHandshake::Lost),
                });
                match read.await? {
                    0 => return Err(NoHandshake::Ended),
                    _ => has_received = true,
                }
            }
        }
    }
}

fn put_goodbye(out: &mut Outbox, goodbye: &thalweg_wire::Goodbye<'_>) {
    goodbye.encode(out.buffer(), 0).expect("a goodbye is small");
}

async fn write(channel: &mut Channel, out: &mut Outbox) -> io::Result<()> {
    while !out.is_empty() {
        poll_fn(|cx| channel.poll_write(cx, out)).await?;
    }
    Ok(())
}

/// Closes a channel (a TCP connection or a QUIC stream) gracefully: for a while, reads and discards bytes that the
/// client is still sending. Otherwise the client might be unable to read the last bytes that were written to it.
async fn close(channel: &mut Channel) {
    const LINGER: Duration = Duration::from_millis(500);
    let until = Instant::now() + LINGER;
    let drained = async {
        poll_fn(|cx| channel.poll_close(cx)).await?;
        let mut scratch = bytes::BytesMut::with_capacity(4096);
        loop {
            scratch.clear();
            if poll_fn(|cx| channel.poll_read(cx, &mut scratch)).await? == 0 || Instant::now() >= until {
                return io::Result::Ok(());
            }
        }
    };
    // The connection ends even if draining fails.
    let _ = tokio::time::timeout(LINGER, drained).await;
}

/// Returns the encoded goodbye frame for a client that is rejected because the server has too many connections.
pub(crate) fn no_room() -> Vec<u8> {
    let mut out = Vec::new();
    let goodbye = goodbye(Reason::Overloaded, Action::Retry, "too many connections: retry later");
    goodbye.encode(&mut out, 0).expect("a goodbye is small");
    out
}

/// Rejects a client over TLS or QUIC because the server has too many connections. The channel lingers before it is
/// closed, so that the client receives the goodbye frame.
pub(crate) async fn reject_channel(mut channel: Channel) {
    let mut out = Outbox::new();
    out.buffer().extend_from_slice(&no_room());
    poll_fn(|cx| {
        let _ = channel.poll_write(cx, &mut out);
        Poll::Ready(())
    })
    .await;
    close(&mut channel).await;
}

#[cfg(test)]
mod tests;
