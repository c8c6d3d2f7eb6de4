//! Watches of the cluster: subscriptions to the events in this node's log of events. Each step sends the events that
//! the client does not have yet.
//!
//! Owns: the position of a watch, and the frames of its events. Does not own: the log of events and its bound
//! (`thalweg_serving::cluster`), credit and limits (`subscription`).
//!
//! A client that reads its events too slowly delays no other client. The log keeps only its last events, and the next
//! frame to the client states how many events it has missed.

use std::sync::Arc;

use thalweg_serving::cluster::{ClusterEvent, ClusterHandle, Missed};
use thalweg_types::NodeId;
use thalweg_wire::{self as wire, List};

use super::step::{StepLimits, StepResult, WhenEmpty};

/// Size in bytes of a frame from which no further event is added. A frame of this size with one more event still fits
/// into the smallest maximum frame of a client.
const PAGE_BYTES: usize = 32 * 1024;
/// Number of bytes of an event in addition to its two texts: sequence number, time, node, term, two lengths.
const EVENT_HEAD_BYTES: usize = 4 * 8 + 2 * 2;

/// A watch of the cluster. It produces the frames of a subscription.
#[derive(Debug)]
pub(crate) struct EventSource {
    handle: Arc<dyn ClusterHandle>,
    /// Sequence number of the last event in the frames so far.
    after: u64,
}

/// An event of the cluster with the name of the node that it is about; empty if the name is unknown.
struct NamedEvent {
    event: ClusterEvent,
    name: String,
}

impl EventSource {
    /// Creates a watch that begins after the event with sequence number `after`.
    #[must_use]
    pub(crate) fn new(handle: &Arc<dyn ClusterHandle>, after: u64) -> Self {
        Self { handle: Arc::clone(handle), after }
    }

    /// Waits until there are events that the client does not have yet, and returns a frame with them, within the limits
    /// `wanted`.
    pub(crate) async fn step(&mut self, wanted: StepLimits) -> StepResult {
        let log = Arc::clone(self.handle.events());
        loop {
            let (missed, events) = log.after(self.after);
            if !events.is_empty() {
                return self.show(missed, events, &wanted);
            }
            if wanted.when_empty == WhenEmpty::Return {
                return StepResult::Nothing;
            }
            tokio::select! {
                biased;
                () = wanted.stop.notified() => return StepResult::Nothing,
                () = log.wait_after(self.after) => {}
            }
        }
    }

    /// Returns as many of these events, from the first on, as fit into a frame and into the limits.
    fn show(&mut self, Missed(missed): Missed, events: Vec<ClusterEvent>, wanted: &StepLimits) -> StepResult {
        let report = self.handle.report();
        let most = usize::try_from(wanted.max_messages.min(wanted.credit.0)).unwrap_or(usize::MAX);
        let (mut shown, mut texts_bytes) = (Vec::new(), 0);
        for event in events.into_iter().take(most) {
            if texts_bytes + shown.len() * EVENT_HEAD_BYTES >= PAGE_BYTES {
                break;
            }
            self.after = event.sequence;
            let name = event.name(&report).unwrap_or_default().to_owned();
            texts_bytes += event.event.name().len() + name.len();
            shown.push(NamedEvent { event, name });
        }
        StepResult::frame(shown.len() as u64, texts_bytes as u64, move |out, id| {
            let events: Vec<_> = shown.iter().map(NamedEvent::encoded).collect();
            out.push(id, &wire::ClusterEvents { missed, events: List::Items(&events) })
        })
    }
}

impl NamedEvent {
    fn encoded(&self) -> wire::ClusterEvent<'_> {
        let Self { event: ClusterEvent { sequence, unix_micros, event, .. }, name } = self;
        wire::ClusterEvent {
            sequence: *sequence,
            unix_micros: *unix_micros,
            node: event.node().unwrap_or(NodeId(0)),
            term: event.term().map_or(0, |term| term.0),
            event: event.name(),
            name,
        }
    }
}
