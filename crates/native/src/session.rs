//! The parameters of a connection, which its handshake determines. Each of its channels has a copy.

use std::{sync::Arc, time::Duration};

use thalweg_serving::{admission::Account, app::App, bulk::BulkTurns};
use thalweg_wire::handshake::{Agreed, ServerParameters};

use super::Native;

/// Parameters of a connection, which its handshake determines. Each of its channels has a copy.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// State of the server that all protocols share: database, configuration, admission.
    pub app: Arc<App>,
    /// Account of the connection. It counts what the connection holds of the server's limited resources.
    pub account: Arc<Account>,
    /// State shared by all native connections.
    pub native: Arc<Native>,
    /// Turns to send bulk output (deliveries and other long output) of the runtime on which the connection runs.
    pub bulk: Arc<BulkTurns>,
    /// True for the connection's first channel, which runs the keepalive.
    pub is_first: bool,
    /// Maximum size in bytes of a frame that the client accepts.
    pub max_send_bytes: u32,
    /// Maximum size in bytes of a frame that the server accepts.
    pub max_frame_bytes: u32,
    /// Keepalive interval; see [`KeepAlive`](thalweg_wire::handshake::KeepAlive).
    pub keep_alive: Duration,
    /// Maximum number of pending requests of a channel (a TCP connection or a QUIC stream).
    pub max_requests: u32,
    /// Maximum number of subscriptions of a channel (a TCP connection or a QUIC stream).
    pub max_subscriptions: u32,
    /// Maximum time from the arrival of a frame's first bytes until the frame is complete.
    pub frame_timeout: Duration,
    /// Maximum time for which the client may read none of the bytes that wait for it. After this time the server closes
    /// the connection.
    pub write_timeout: Duration,
}

impl Session {
    /// Returns the parameters of the first channel after a handshake.
    pub(crate) fn new(
        native: &Arc<Native>,
        account: &Arc<Account>,
        bulk: &Arc<BulkTurns>,
        agreed: &Agreed,
        parameters: &ServerParameters<'_>,
    ) -> Self {
        let config = &native.app.config;
        Self {
            app: Arc::clone(&native.app),
            account: Arc::clone(account),
            native: Arc::clone(native),
            bulk: Arc::clone(bulk),
            is_first: true,
            max_send_bytes: agreed.max_send_bytes,
            max_frame_bytes: parameters.max_frame_bytes,
            keep_alive: agreed.keep_alive,
            max_requests: parameters.max_requests,
            max_subscriptions: parameters.max_subscriptions,
            frame_timeout: config.body_timeout.0,
            write_timeout: config.write_timeout.0,
        }
    }

    /// Returns the interval at which a channel (a TCP connection or a QUIC stream) checks its timeouts: a quarter of
    /// the shortest timeout, but at least 10 ms and at most 5 s. A timeout fires late by at most this time.
    #[must_use]
    pub(crate) fn tick(&self) -> Duration {
        let shortest = self.keep_alive.min(self.frame_timeout).min(self.write_timeout);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }
}
