//! Signals that end a command which has something to put back: a file to remove, a terminal to restore.
//!
//! Without this, the default action of a signal would end the process immediately.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Exit, Failure};

/// Flag that the signals SIGINT, SIGTERM and SIGHUP set.
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Registers for the signals. From then on they end the process only if it looks at the flag.
    pub(super) fn register() -> Result<Self, Failure> {
        let flag = Self(Arc::new(AtomicBool::new(false)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (mut interrupt, mut terminate, mut hangup) = {
            let _context = runtime.enter();
            let of = |kind: SignalKind| signal(kind);
            (of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?)
        };
        let set = flag.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            });
            set.0.store(true, Ordering::Relaxed);
        })?;
        Ok(flag)
    }

    /// Returns true once a signal has arrived.
    pub(super) fn arrived(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the failure of a command that a signal has ended.
    pub(super) fn failure() -> Failure {
        Failure::new(Exit::Failed, "interrupted", "interrupted by a signal")
    }
}
