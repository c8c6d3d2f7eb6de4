//! The terms of a connection after its handshake; each of its channels has a copy.

use std::{sync::Arc, time::Duration};

use thalweg_serving::app::App;
use thalweg_wire::handshake::{Agreed, ServerTerms};

use super::Native;

/// What holds on a connection, as each of its channels knows it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Database, configuration, admission.
    pub app: Arc<App>,
    /// What all native connections share.
    pub native: Arc<Native>,
    /// Whether the channel is the connection's first: that one keeps it alive.
    pub is_first: bool,
    /// Largest frame that the client takes.
    pub max_send_bytes: u32,
    /// Largest frame that the server takes.
    pub max_frame_bytes: u32,
    /// See [`KeepAlive`](thalweg_wire::handshake::KeepAlive).
    pub keep_alive: Duration,
    /// Requests under way on a channel.
    pub max_requests: u32,
    /// Subscriptions of a channel.
    pub max_subscriptions: u32,
    /// Longest time for the rest of a frame.
    pub frame_timeout: Duration,
    /// Longest time without the client taking a byte of what waits for it.
    pub write_timeout: Duration,
}

impl Session {
    /// Returns what holds after a handshake, for the first channel.
    pub(crate) fn new(native: &Arc<Native>, agreed: &Agreed, terms: &ServerTerms<'_>) -> Self {
        let config = &native.app.config;
        Self {
            app: Arc::clone(&native.app),
            native: Arc::clone(native),
            is_first: true,
            max_send_bytes: agreed.max_send_bytes,
            max_frame_bytes: terms.max_frame_bytes,
            keep_alive: agreed.keep_alive,
            max_requests: terms.max_requests,
            max_subscriptions: terms.max_subscriptions,
            frame_timeout: config.body_timeout.0,
            write_timeout: config.write_timeout.0,
        }
    }

    /// How often a channel looks at its clocks: a bound is passed by a quarter of the shortest at most.
    #[must_use]
    pub(crate) fn tick(&self) -> Duration {
        let shortest = self.keep_alive.min(self.frame_timeout).min(self.write_timeout);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }
}
