//! The signals that stop a server: SIGTERM and SIGINT.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Receivers of SIGTERM and SIGINT, the signals that stop a server.
pub(super) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Registers for the signals SIGTERM and SIGINT. Must be called within a tokio runtime.
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for SIGTERM or SIGINT, and returns the signal's name.
    pub(super) async fn signalled(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
