//! Detection of a second process with the id of a connected node, which shows that a data directory was copied. A run
//! is one process of a node.
//!
//! Owns: the run of each connected node, and the decision if a connection comes from another process with the same id.
//! Does not own: connections (`listener`), or the number of a run in the handshake (`wire::peer`).
//!
//! Two processes on copies of one directory have the same id. Without this check, both would dial the other members and
//! ask the leader to correct the address of the id, and each would vote in turn. The first process that connects keeps
//! the id. A second one is rejected while the first is alive.
//!
//! When a process ends, its connections are closed, so a restarted node is accepted at once. After a loss of power they
//! stay open. So the first attempt of another process starts a test of the known process. The known process is alive
//! while it sends frames: each node sends several signs of life within [`Silence::max_answer`]. Meanwhile the other
//! process dials again and again. It is accepted once the known process has sent nothing for `max_answer` since the
//! first attempt, or nothing for [`Silence::max`] in total.
//!
//! Invariant: this node knows at most one run of each node. If another run replaces it, the former run's connections
//! end at their next frame. Everything here runs on one thread.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use thalweg_types::NodeId;
use thalweg_wire::peer::PeerRun;
use tokio::time::Instant;

/// Durations of silence after which a process no longer counts as alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// Time without a frame from the connected process, after which another process is accepted at its first attempt.
    pub max: Duration,
    /// Time that the connected process has to send a frame, counted from the first attempt of another process to
    /// connect. If it sends none in this time, the other process is accepted.
    pub max_answer: Duration,
}

/// The run (process) of one node that is connected to this node at present.
#[derive(Debug)]
struct Presence {
    run: PeerRun,
    /// Number of open connections of this process to this node.
    connections: Cell<usize>,
    /// Time of the last frame on any connection of this process.
    heard: Cell<Instant>,
    /// Time at which another process with the node's id first tried to connect since the last frame of the connected
    /// process. `None` if none has tried since then. `heard <= challenged`.
    challenged: Cell<Option<Instant>>,
    /// True once another run of the node has connected.
    is_replaced: Cell<bool>,
}

impl Presence {
    fn note_frame(&self, now: Instant) {
        self.heard.set(now);
        self.challenged.set(None);
    }

    /// Records that another process with the node's id tries to connect. Returns true if the connected process still
    /// counts as alive.
    fn withstands(&self, silence: Silence, now: Instant) -> bool {
        let challenged = self.challenged.get().unwrap_or(now);
        self.challenged.set(Some(challenged));
        now.saturating_duration_since(self.heard.get()) <= silence.max
            && now.saturating_duration_since(challenged) <= silence.max_answer
    }
}

/// The known process (run) of each connected node. Clones share the map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Rc<RefCell<BTreeMap<NodeId, Rc<Presence>>>>);

impl Runs {
    /// Records that the process `run` of a node attempts to connect. Returns true if another process of this node is
    /// connected and counts as alive.
    pub(crate) fn has_other(&self, node: NodeId, run: PeerRun, silence: Silence, now: Instant) -> bool {
        let runs = self.0.borrow();
        runs.get(&node).is_some_and(|known| known.run != run && known.withstands(silence, now))
    }

    /// Records a connection of the process `run` of a node. If another process of this node is connected, `run`
    /// replaces it.
    pub(crate) fn begin(&self, node: NodeId, run: PeerRun, now: Instant) -> RunConnection {
        let mut runs = self.0.borrow_mut();
        let known = runs.get(&node).filter(|known| known.run == run).cloned();
        let presence = known.unwrap_or_else(|| {
            let (connections, heard) = (Cell::new(0), Cell::new(now));
            let (challenged, is_replaced) = (Cell::default(), Cell::new(false));
            let new = Rc::new(Presence { run, connections, heard, challenged, is_replaced });
            if let Some(former) = runs.insert(node, Rc::clone(&new)) {
                former.is_replaced.set(true);
            }
            new
        });
        presence.connections.set(presence.connections.get() + 1);
        presence.note_frame(now);
        RunConnection { runs: self.clone(), node, presence, has_ended: Cell::new(false) }
    }
}

/// An open connection of a node's process (its run). Dropping this value ends the connection.
#[derive(Debug)]
pub(crate) struct RunConnection {
    runs: Runs,
    node: NodeId,
    presence: Rc<Presence>,
    has_ended: Cell<bool>,
}

impl RunConnection {
    /// Records a frame on this connection. Returns false if another process of the node has replaced this one; the
    /// caller must then end the connection.
    pub(crate) fn heard(&self, now: Instant) -> bool {
        self.presence.note_frame(now);
        !self.presence.is_replaced.get()
    }

    /// Records that this connection has ended. Later calls do nothing.
    pub(crate) fn end(&self) {
        if self.has_ended.replace(true) {
            return;
        }
        let left = self.presence.connections.get() - 1;
        self.presence.connections.set(left);
        if left == 0 && !self.presence.is_replaced.get() {
            self.runs.0.borrow_mut().remove(&self.node);
        }
    }
}

impl Drop for RunConnection {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(7);
    const SECOND: Duration = Duration::from_secs(1);
    /// Limits on the silence of a process that are equal, so that only the total silence matters.
    const SHORT: Silence = Silence { max: SECOND, max_answer: SECOND };
    const FIRST: PeerRun = PeerRun([1; 16]);
    const COPY: PeerRun = PeerRun([2; 16]);

    #[test]
    fn the_first_of_two_processes_keeps_the_id_while_it_is_alive() {
        let (runs, start) = (Runs::default(), Instant::now());
        let has_other = |run, now| runs.has_other(NODE, run, SHORT, now);
        assert!(!has_other(COPY, start), "nobody is connected");
        let [control, appends] = [(); 2].map(|()| runs.begin(NODE, FIRST, start));
        assert!(has_other(COPY, start) && !has_other(FIRST, start));
        assert!(!runs.has_other(NodeId(8), COPY, SHORT, start), "another node");
        assert!(control.heard(start + 5 * SECOND));
        assert!(has_other(COPY, start + 6 * SECOND), "it was heard a second before");
        drop(control);
        assert!(has_other(COPY, start + 6 * SECOND), "it has another connection");
        appends.end();
        assert!(!has_other(COPY, start + 6 * SECOND), "it has closed both");
        drop(appends);
        assert!(runs.0.borrow().is_empty());
    }

    #[test]
    fn a_silent_process_is_replaced_and_its_connections_end() {
        let (runs, start) = (Runs::default(), Instant::now());
        let later = start + 3 * SECOND;
        let former = runs.begin(NODE, FIRST, start);
        assert!(!runs.has_other(NODE, COPY, SHORT, later));
        let new = runs.begin(NODE, COPY, later);
        assert!(!former.heard(later) && new.heard(later));
        drop(former);
        assert!(runs.has_other(NODE, FIRST, SHORT, later), "the end of the former run is not that of the new one");
        drop(new);
        assert!(runs.0.borrow().is_empty());
    }

    /// On slow links, a process may be silent for long. A node that restarts after a loss of power need not wait that
    /// long until it is accepted.
    #[test]
    fn a_process_that_sends_nothing_after_the_attempt_of_another_one_is_replaced() {
        let silence = Silence { max: 60 * SECOND, max_answer: 3 * SECOND };
        let (runs, start) = (Runs::default(), Instant::now());
        let has_other = |run, after: u32| runs.has_other(NODE, run, silence, start + after * SECOND);
        let known = runs.begin(NODE, FIRST, start);
        // The first process was paused for a while, and a process on a copy of its directory waits.
        assert!(has_other(COPY, 10) && has_other(COPY, 12));
        assert!(known.heard(start + 13 * SECOND));
        // The first process has answered, so the time since the first attempt no longer matters.
        assert!([14, 16, 17].into_iter().all(|after| has_other(COPY, after)));
        assert!(known.heard(start + 18 * SECOND));
        // Now the first process loses power.
        assert!(!has_other(FIRST, 20), "its own connections are no attempts of another process");
        assert!([21, 23, 24].into_iter().all(|after| has_other(COPY, after)), "it has time for an answer");
        assert!(!has_other(COPY, 25));
        let new = runs.begin(NODE, COPY, start + 25 * SECOND);
        assert!(!known.heard(start + 26 * SECOND) && new.heard(start + 26 * SECOND));
        // Without attempts of another process, only the total silence matters.
        assert!(!has_other(FIRST, 26 + 61));
    }
}
