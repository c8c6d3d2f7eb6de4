//! Notification that Redis streams may have got entries, from whichever node the command came.
//!
//! Owns: the listener, and when it is called. Does not own: the notes about streams (`state`), nor the waiting clients.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use thalweg_redis::streams::growth::GrownStreams;
use thalweg_replica::Observer;
use thalweg_state::machine::Machine;
use thalweg_types::command::Outcome;

/// Receiver of the notification that Redis streams may have got entries. It is called on the thread that applies
/// entries.
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

    /// Sets the listener in place of an earlier one.
    pub(crate) fn set_listener(&self, listener: Arc<dyn GrowthListener>) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
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
