//! Notifies the server that Redis streams may have got new entries, so that it wakes waiting clients.
//!
//! Owns: the listener (the server's callback), and the decision when to call it. Does not own: the list of streams with
//! new entries (`state`), or the waiting clients.

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
    /// Reports that new entries of these streams are visible to readers.
    fn have_grown(&self, streams: &GrownStreams);
}

/// The state machine, which notes Redis streams with new entries, and the listener to notify about them.
#[derive(Debug)]
pub(crate) struct StreamGrowth {
    machine: Arc<Machine>,
    listener: Mutex<Option<Arc<dyn GrowthListener>>>,
}

impl StreamGrowth {
    pub(crate) fn new(machine: Arc<Machine>) -> Self {
        Self { machine, listener: Mutex::default() }
    }

    pub(crate) fn set_listener(&self, listener: Arc<dyn GrowthListener>) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    /// Reports to the listener the streams that got entries since the previous report.
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
        // Readers may wait for a native stream that did not exist, so they look for it again.
        if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Stream { created: true, .. })) {
            self.pass(&GrownStreams::Any);
        }
    }
}
