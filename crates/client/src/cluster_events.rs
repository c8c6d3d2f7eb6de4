//! Watches of the cluster. A watch returns the events of the cluster as the connected node sees them.
//!
//! Owns: the position in the node's events, also after lost connections, and the types of the events. Does not own: the
//! detection of events, and the number of past events that are kept. The node decides both.
//!
//! Each event has a number, which is meaningful only within one run of one node. If the client connects to another
//! node, or the node restarts, the watch cannot continue after its last event. It then reports a gap, and continues
//! with all events that the node keeps.

use std::collections::VecDeque;

use thalweg_types::NodeId;
use thalweg_wire::{self as wire, Fields, Frame as _, Permit, SharedFrame, WatchCluster, WatchingCluster};

use crate::{
    client::Client,
    error::{Error, Invalid, ProtocolError},
    mailbox::Item,
    options::Window,
    request::reply_of,
    subscription::{Event, Feed, Source},
};

/// Event at which a watch of the cluster begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsFrom {
    /// The watch begins with the next event.
    Next,
    /// The watch begins with all events that the node keeps: its last 1,024.
    Kept,
    /// The watch continues at the position of an earlier watch.
    Position(EventPosition),
}

/// Position in the events of one run (from start to stop) of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPosition {
    /// Number of the run to which the sequence number belongs. A node chooses another number at each start.
    pub run: u64,
    /// Sequence number of the last event that the application received; 0 if it received none.
    pub after: u64,
}

/// A change in a cluster. Each number in a variant is the id of a node, unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterChange {
    /// The cluster has another leader than before, or has lost its leader.
    Leader {
        /// Id of the new leader; `None` if the cluster has lost its leader.
        leader: Option<u64>,
        /// Consensus term to which this change belongs.
        term: u64,
    },
    /// A node became a member of the cluster, as a learner (it receives log entries but does not vote).
    Joined(u64),
    /// A learner (a member that does not vote) became a voter.
    Promoted(u64),
    /// A member was removed from the cluster.
    Removed(u64),
    /// The reporting node receives frames again from a member that was silent.
    Alive(u64),
    /// A member has been silent for longer than usual.
    Suspect(u64),
    /// The reporting node treats a member as failed.
    Down(u64),
    /// A member's replica lacks many log entries or bytes.
    Lagging(u64),
    /// A member's replica has been behind for a long time.
    Stale(u64),
    /// A member's replica keeps up again: it is neither lagging nor stale.
    CaughtUp(u64),
    /// The node that reports the change has stopped serving, because its state differs from those of at least half of
    /// the members and no majority has equal states.
    Undecided(u64),
    /// A change that this version of the client does not know.
    Other {
        /// Name of the unknown event, as the node sent it.
        event: String,
        /// Node that the event is about.
        node: Option<u64>,
    },
}

impl ClusterChange {
    /// Returns the node that the change is about; `None` if the cluster has lost its leader.
    #[must_use]
    pub const fn node(&self) -> Option<u64> {
        match self {
            Self::Leader { leader: node, .. } | Self::Other { node, .. } => *node,
            Self::Joined(node)
            | Self::Promoted(node)
            | Self::Removed(node)
            | Self::Alive(node)
            | Self::Suspect(node)
            | Self::Down(node)
            | Self::Lagging(node)
            | Self::Stale(node)
            | Self::CaughtUp(node)
            | Self::Undecided(node) => Some(*node),
        }
    }

    fn of(event: &wire::ClusterEvent<'_>) -> Self {
        let node = event.node.0;
        let known: fn(u64) -> Self = match event.event {
            "leader" => return Self::Leader { leader: node_of(event), term: event.term },
            "joined" => Self::Joined,
            "promoted" => Self::Promoted,
            "removed" => Self::Removed,
            "alive" => Self::Alive,
            "suspect" => Self::Suspect,
            "down" => Self::Down,
            "lagging" => Self::Lagging,
            "stale" => Self::Stale,
            "caught_up" => Self::CaughtUp,
            "undecided" => Self::Undecided,
            other => return Self::Other { event: other.to_owned(), node: node_of(event) },
        };
        known(node)
    }
}

fn node_of(event: &wire::ClusterEvent<'_>) -> Option<u64> {
    (event.node != NodeId(0)).then_some(event.node.0)
}

/// A change in the cluster with its number and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterEvent {
    /// Sequence number of the event in this run of the node, from 1.
    pub sequence: u64,
    /// Wall-clock time of the node in microseconds since 1970.
    pub unix_micros: u64,
    /// Change in the cluster that the event reports.
    pub change: ClusterChange,
    /// Name of the node that the change is about; `None` if the node that reports the event does not know the name.
    pub name: Option<String>,
}

/// Item that a watch of the cluster returns: an event, or missing events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterUpdate {
    /// A change in the cluster.
    Event(ClusterEvent),
    /// A gap in the watch: the node did not keep this number of events until the client was ready for them.
    Missed(u64),
    /// The events that follow come from another node, or from the same node after a restart, and are all events that
    /// this node keeps. Some events may be missing here. Changes that the watch has already returned may appear again,
    /// with other numbers.
    Gap,
}

impl Client {
    /// Watches the cluster: subscribes to its events as the connected node sees them. Fails with `not_clustered` if the
    /// node runs alone.
    pub async fn watch_cluster(&self, from: EventsFrom) -> Result<ClusterWatch, Error> {
        let window = self.options().window;
        self.watch_cluster_with(from, window).await
    }

    /// Watches the cluster like [`watch_cluster`](Self::watch_cluster), with a window of its own instead of the
    /// client's default.
    pub async fn watch_cluster_with(&self, from: EventsFrom, window: Window) -> Result<ClusterWatch, Error> {
        let (run, after) = match from {
            EventsFrom::Next => (None, None),
            EventsFrom::Kept => (None, Some(0)),
            EventsFrom::Position(EventPosition { run, after }) => (Some(run), Some(after)),
        };
        let source = EventSource { run, after, ready: VecDeque::new() };
        Ok(ClusterWatch { feed: Feed::begin(self, window, None, source).await? })
    }
}

#[derive(Debug)]
struct EventSource {
    /// Run (from start to stop) of the node that numbered the event `after`; `None` before the first reply, unless the
    /// caller of the watch has stated a run.
    run: Option<u64>,
    /// Sequence number of the last event that the watch returned. `None` before the first reply, if the watch begins
    /// with the next event.
    after: Option<u64>,
    /// Events of one frame that have arrived and that the watch has not returned yet.
    ready: VecDeque<ClusterUpdate>,
}

impl Source for EventSource {
    fn request(&self, out: &mut Vec<u8>, id: u32, fields: &Fields<'_>, permit: Permit) -> Result<(), Invalid> {
        Ok(WatchCluster { after: self.after, run: self.run, permit }.encode_with(out, id, fields)?)
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        let WatchingCluster { after, run, known } = reply_of(frame)?;
        (self.run, self.after) = (Some(run), Some(after));
        if !known {
            self.ready.push_back(ClusterUpdate::Gap);
        }
        Ok(())
    }
}

impl EventSource {
    /// Stores the events of a frame, to return them one by one.
    fn take(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        let wire::ClusterEvents { missed, events } = reply_of(frame)?;
        self.ready.extend((missed > 0).then_some(ClusterUpdate::Missed(missed)));
        self.ready.extend(events.iter().map(|event| {
            ClusterUpdate::Event(ClusterEvent {
                sequence: event.sequence,
                unix_micros: event.unix_micros,
                change: ClusterChange::of(&event),
                name: (!event.name.is_empty()).then(|| event.name.to_owned()),
            })
        }));
        Ok(())
    }

    /// Returns the next item that has arrived, and advances the position.
    fn next_ready(&mut self) -> Option<ClusterUpdate> {
        let update = self.ready.pop_front()?;
        if let ClusterUpdate::Event(event) = &update {
            self.after = Some(event.sequence);
        }
        Some(update)
    }
}

/// Receives the events of the cluster as they happen. The watch resumes after a lost connection, and returns an item at
/// each point where events may be missing.
#[derive(Debug)]
pub struct ClusterWatch {
    feed: Feed<EventSource>,
}

impl ClusterWatch {
    /// Waits for the next event, or for an item that reports missing events; `None` if the watch has ended. Cancel
    /// safe.
    pub async fn next(&mut self) -> Result<Option<ClusterUpdate>, Error> {
        loop {
            // The connection is asked for more only after these items are returned. If it is lost, the watch therefore
            // resumes after the last of them.
            if let Some(update) = self.feed.source.next_ready() {
                return Ok(Some(update));
            }
            match self.feed.next().await? {
                None => return Ok(None),
                Some(Event::Resumed) => {}
                Some(Event::Item(Item::Frame(frame, _))) => self.feed.source.take(&frame)?,
                Some(Event::Item(_)) => return Err(Error::Protocol(ProtocolError::WrongReply { kind: 0 })),
            }
        }
    }

    /// Position at which a later watch must begin to continue after the last event that this watch has returned.
    #[must_use]
    pub fn position(&self) -> EventPosition {
        let EventSource { run, after, .. } = self.feed.source;
        EventPosition { run: run.unwrap_or(0), after: after.unwrap_or(0) }
    }
}
