//! The terms of a connection after its handshake; each of its channels has a copy.

use std::{sync::Arc, time::Duration};

use thalweg_serving::app::App;
use thalweg_wire::handshake::{Agreed, ServerTerms};

use super::Native;

/// Terms of a connection that each of its channels has.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// State of the server: database, configuration, admission.
    pub app: Arc<App>,
    /// State shared by all native connections.
    pub native: Arc<Native>,
    /// True for the connection's first channel, which runs the keepalive.
    pub is_first: bool,
    /// Maximum frame size in bytes that the client takes.
    pub max_send_bytes: u32,
    /// Maximum frame size in bytes that the server takes.
    pub max_frame_bytes: u32,
    /// Keepalive interval; see [`KeepAlive`](thalweg_wire::handshake::KeepAlive).
    pub keep_alive: Duration,
    /// Maximum number of pending requests of a channel.
    pub max_requests: u32,
    /// Maximum number of subscriptions of a channel.
    pub max_subscriptions: u32,
    /// Maximum time until the rest of a begun frame arrives.
    pub frame_timeout: Duration,
    /// Maximum time without the client reading any of the bytes that wait for it.
    pub write_timeout: Duration,
}

impl Session {
    /// Returns the terms of the first channel after a handshake.
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

    /// Interval of a channel's timer checks. A timeout fires late by at most a quarter of the shortest one.
    #[must_use]
    pub(crate) fn tick(&self) -> Duration {
        let shortest = self.keep_alive.min(self.frame_timeout).min(self.write_timeout);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }
}
