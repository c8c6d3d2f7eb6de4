//! Notification that Redis streams may have got entries, from whichever node the command came.
//!
//! Owns: the listener, and when it is called. Does not own: the notes about streams (`state`), nor the waiting clients.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use thalweg_replica::Observer;
use thalweg_state::{
    machine::Machine,
    redis::{GrownStreams, GrowthWaiter},
};
use thalweg_types::command::Outcome;

use crate::database::Database;

/// Receiver of the notification that Redis streams may have got entries. It is called on the thread that applies entries.
pub trait GrowthListener: fmt::Debug + Send + Sync {
    /// Notes that the entries of these streams are visible to readers now.
    fn have_grown(&self, streams: &GrownStreams);
}

/// The listener of a database, and the machine whose notes it gets.
#[derive(Debug)]
pub(crate) struct StreamGrowth {
    machine: Arc<Machine>,
    listener: Mutex<Option<Arc<dyn GrowthListener>>>,
}

impl StreamGrowth {
    pub(crate) fn new(machine: Arc<Machine>) -> Self {
        Self { machine, listener: Mutex::default() }
    }

    /// Passes the notes that are not taken yet to the listener.
    pub(crate) fn notify(&self) {
        self.pass(&self.machine.take_grown_streams());
    }

    fn pass(&self, streams: &GrownStreams) {
        if *streams == GrownStreams::None {
            return;
        }
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(listener) = listener {
            listener.have_grown(streams);
        }
    }
}

impl Observer for StreamGrowth {
    fn applied(&self, outcomes: &[Outcome]) {
        self.notify();
        // Readers that wait for a native stream which did not exist look for it again.
        if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Stream { created: true, .. })) {
            self.pass(&GrownStreams::Any);
        }
    }
}

impl Database {
    /// Sets the receiver of the notification that Redis streams may have got entries. It replaces an earlier one. It is called only
    /// while a caller [waits](Self::await_stream_growth).
    pub fn listen_to_stream_growth(&self, listener: Arc<dyn GrowthListener>) {
        *self.inner.open.growth.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    /// Registers a caller that waits for entries of Redis streams. The caller must look at its streams afterwards: entries that
    /// were applied before cause no notification.
    #[must_use]
    pub fn await_stream_growth(&self) -> GrowthWaiter {
        self.inner.open.machine.await_stream_growth()
    }
}
