//! Events in the cluster that this node notices, for people and programs.
//!
//! Owns: the translation of changes to events and log lines. Does not own: the log of events (`serving`).

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use thalweg_serving::cluster::{Event, EventLog, MemberHealth};
use thalweg_types::NodeId;

use crate::detector::StateChange;

/// Returns the time of the wall clock in microseconds since 1970.
fn unix_micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

/// Event log of this node. Clones append to the same log.
#[derive(Clone, Debug)]
pub(crate) struct Events(pub Arc<EventLog>);

impl Events {
    pub(crate) fn push(&self, event: Event) {
        self.0.push(unix_micros(), event);
    }

    /// Records that a member with this name was removed.
    pub(crate) fn removed(&self, node: NodeId, name: &str) {
        self.0.push_removed(unix_micros(), node, name);
    }

    /// Records that the failure detector has changed the state of a node.
    pub(crate) fn changed(&self, change: StateChange) {
        let StateChange { node, state, silent_for } = change;
        let silent_ms = silent_for.as_millis() as u64;
        match state {
            MemberHealth::Alive => {
                tracing::info!(%node, silent_ms, "a node is heard again");
                self.push(Event::Alive(node));
            }
            MemberHealth::Suspect => {
                tracing::warn!(%node, silent_ms, "a node is silent for longer than usual");
                self.push(Event::Suspect(node));
            }
            MemberHealth::Down => {
                tracing::warn!(%node, silent_ms, "a node counts as failed");
                self.push(Event::Down(node));
            }
        }
    }
}
