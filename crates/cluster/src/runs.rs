//! Runs of the nodes that are connected to this one, by which it notices a copied data directory.
//!
//! Owns: the run (process) of each connected node, and the decision whether a connection comes from another process
//! with the same id. Does not own: connections (`listener`), and the number of a run in the handshake (`wire::peer`).
//!
//! Two processes on copies of one directory have the same id. Both would dial the other members, and both would ask the
//! leader to correct the address of the id, so each would vote in turn. The first process to connect keeps the id: a
//! second one is rejected while the first is alive. A run is alive while it has a connection that has not ended and has
//! sent a frame within the given silence. The process that ends closes its connections, so a restarted node is accepted
//! at once; after a loss of power, it is accepted when the silence is long enough.
//!
//! Invariant: each node has at most one run here. The connections of a run that another one has replaced end with their
//! next frame. Everything here runs on one thread.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use thalweg_types::NodeId;
use thalweg_wire::peer::PeerRun;
use tokio::time::Instant;

/// A run of one node, with at least one connection.
#[derive(Debug)]
struct Presence {
    run: PeerRun,
    /// Number of connections that have not ended.
    connections: Cell<usize>,
    /// Time of the last frame on any of them.
    heard: Cell<Instant>,
    /// True once another run of the node has connected.
    is_replaced: Cell<bool>,
}

/// Runs of the connected nodes. Clones share them. Bound: the number of connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Rc<RefCell<BTreeMap<NodeId, Rc<Presence>>>>);

impl Runs {
    /// Returns true if a node is connected in another run than `run`, which was heard within `max_silence`.
    pub(crate) fn has_other(&self, node: NodeId, run: PeerRun, max_silence: Duration, now: Instant) -> bool {
        let runs = self.0.borrow();
        let is_alive = |known: &Rc<Presence>| now.saturating_duration_since(known.heard.get()) <= max_silence;
        runs.get(&node).is_some_and(|known| known.run != run && is_alive(known))
    }

    /// Notes a connection of a node. If the node is connected in another run, the new one replaces it.
    pub(crate) fn begin(&self, node: NodeId, run: PeerRun, now: Instant) -> RunConnection {
        let mut runs = self.0.borrow_mut();
        let known = runs.get(&node).filter(|known| known.run == run).cloned();
        let presence = known.unwrap_or_else(|| {
            let (connections, heard, is_replaced) = (Cell::new(0), Cell::new(now), Cell::new(false));
            let new = Rc::new(Presence { run, connections, heard, is_replaced });
            if let Some(former) = runs.insert(node, Rc::clone(&new)) {
                former.is_replaced.set(true);
            }
            new
        });
        presence.connections.set(presence.connections.get() + 1);
        presence.heard.set(now);
        RunConnection { runs: self.clone(), node, presence, has_ended: Cell::new(false) }
    }
}

/// A connection of a run. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct RunConnection {
    runs: Runs,
    node: NodeId,
    presence: Rc<Presence>,
    has_ended: Cell<bool>,
}

impl RunConnection {
    /// Notes a frame. Returns false if another run has replaced this one, so the connection must end.
    pub(crate) fn heard(&self, now: Instant) -> bool {
        self.presence.heard.set(now);
        !self.presence.is_replaced.get()
    }

    /// Notes that the node has closed the connection. Later calls do nothing.
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
    const FIRST: PeerRun = PeerRun([1; 16]);
    const COPY: PeerRun = PeerRun([2; 16]);

    #[test]
    fn the_first_of_two_processes_keeps_the_id_while_it_is_alive() {
        let (runs, start) = (Runs::default(), Instant::now());
        let has_other = |run, now| runs.has_other(NODE, run, SECOND, now);
        assert!(!has_other(COPY, start), "nobody is connected");
        let [control, appends] = [(); 2].map(|()| runs.begin(NODE, FIRST, start));
        assert!(has_other(COPY, start) && !has_other(FIRST, start));
        assert!(!runs.has_other(NodeId(8), COPY, SECOND, start), "another node");
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
        assert!(!runs.has_other(NODE, COPY, SECOND, later));
        let new = runs.begin(NODE, COPY, later);
        assert!(!former.heard(later) && new.heard(later));
        drop(former);
        assert!(runs.has_other(NODE, FIRST, SECOND, later), "the end of the former run is not that of the new one");
        drop(new);
        assert!(runs.0.borrow().is_empty());
    }
}
