//! Clients that follow changes: watches of keys, and tails of the stream, on any node.
//!
//! Owns: connecting to a node, resuming at the last position on another node, and the record of the messages that have
//! arrived. Does not own: the verdict (`followed`), or the watches and tails, which are code of the product (`engine`).
//!
//! ```text
//! node's process: watch or tail ── batches, in order ──> subscriber ── leaves, or the node ends ──> another node
//! ```
//! A subscriber stays on a node for some time. When it leaves, messages that are on their way are lost, and the next
//! node sends their contents again. Subscribers send no commands, so they do not count in the rate of requests.

use std::{
    cell::{Cell, RefCell},
    ops::{ControlFlow, Range},
    rc::Rc,
    time::Duration,
};

use thalweg_engine::{ReadError, Stream, WatchChange, WatchError, WatchEvent, WatchKeys};
use thalweg_types::{Offset, Revision};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    cluster::Cluster,
    commands::{KEYSPACE_NAME, STREAM, STREAM_NAME, number_of},
    followed::{ALL_KEYS, Change, Followed, SeenChange, Stretch, Watched},
    network::USUAL_DELAY,
    running::Running,
    runtime::{OUTSIDE, ProcessId, now, random_duration, record, sleep, spawn, timeout},
};

/// Prefixes of the watched keys. The watches use them in turn.
const PREFIXES: [&str; 3] = [ALL_KEYS, "key1", "key2"];
/// Time for which a subscriber stays on a node.
const STAY: Range<Duration> = Duration::from_millis(50)..Duration::from_secs(4);
/// Range of the time from leaving a node until a subscriber connects to the next node.
const RECONNECT: Range<Duration> = Duration::from_millis(1)..Duration::from_millis(100);
/// Maximum time for which a node waits until it has the revision at which a watch continues.
const REACHED_WITHIN: Duration = Duration::from_millis(600);
/// Time after which a node checks for changes without being woken, and sends the position that a watch has reached.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Maximum number of records, and approximate maximum of bytes, that a tail reads at a time.
const PAGE: (u64, u64) = (64, 64 * 1024);
/// Number of nodes in a row that may refuse to continue a watch at its position, because they no longer have the
/// history. After these, the watch begins anew at the present revision.
const MAX_REFUSALS: u32 = 3;
/// Maximum time after the end of faults and writes until all subscribers have received all changes and records.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(20);

/// Message that a node sends to a subscriber, which follows changes of keys or the stream.
enum SubscriberEvent {
    /// All changes of a watch below the revision `next` that were not sent yet.
    Changes { changes: Vec<SeenChange>, next: u64 },
    /// Records of the stream from the offset `first` on.
    Records { first: u64, records: Vec<u64> },
    /// The node no longer has the history from which the watch must continue.
    Compacted,
}

type Sender = UnboundedSender<SubscriberEvent>;

/// The subscribers of a simulation. Clones refer to the same subscribers.
#[derive(Clone)]
pub(crate) struct Subscribers(Rc<Inner>);

struct Inner {
    cluster: Cluster,
    is_ended: Cell<bool>,
    followed: RefCell<Followed>,
}

impl Subscribers {
    /// Creates `count` subscribers, alternately watches and tails. The first one is a watch.
    pub(crate) fn new(cluster: &Cluster, count: u64) -> Self {
        let watches = PREFIXES.into_iter().cycle().take(count.div_ceil(2) as usize);
        let watches = watches.map(|prefix| Watched { prefix, stretches: Vec::new() }).collect();
        let tails = vec![Vec::new(); (count / 2) as usize];
        let followed = Followed { watches, tails, refused: 0 };
        let inner = Inner { cluster: cluster.clone(), is_ended: Cell::new(false), followed: RefCell::new(followed) };
        Self(Rc::new(inner))
    }

    /// Starts the subscribers, which then connect to nodes.
    pub(crate) fn start(&self) {
        let (watches, tails) = {
            let followed = self.0.followed.borrow();
            (followed.watches.len(), followed.tails.len())
        };
        (0..watches).for_each(|number| spawn(OUTSIDE, self.clone().watch(number)));
        (0..tails).for_each(|number| spawn(OUTSIDE, self.clone().tail(number)));
    }

    /// Takes out the changes and records that the subscribers have received.
    pub(crate) fn take(&self) -> Followed {
        self.0.followed.take()
    }

    /// Waits until all subscribers have received all changes and records that the nodes have now. Then ends the
    /// subscribers.
    pub(crate) async fn catch_up(&self) {
        let truth = self.0.cluster.truth();
        let (revision, end, begun) = (truth.revision(), truth.stream_end(), now());
        loop {
            let behind = self.behind(revision, end);
            if behind.is_empty() {
                break;
            }
            if now() > begun + CAUGHT_UP_WITHIN {
                truth.violation(OUTSIDE, format!("{} do not catch up within {CAUGHT_UP_WITHIN:?}", behind.join(", ")));
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.0.is_ended.set(true);
    }

    /// Returns descriptions of the subscribers that have not reached `revision`, or lack records below the offset
    /// `end`.
    fn behind(&self, revision: u64, end: u64) -> Vec<String> {
        let followed = self.0.followed.borrow();
        let watches = followed.watches.iter().enumerate();
        let watches = watches.filter(|(_, watched)| watched.position() <= Some(revision));
        let tails = followed.tails.iter().enumerate().filter(|(_, records)| (records.len() as u64) < end);
        let watches = watches.map(|(number, watched)| format!("watch {number} at {:?}", watched.position()));
        watches.chain(tails.map(|(number, records)| format!("tail {number} at {}", records.len()))).collect()
    }

    /// Runs a watch of keys, on one node after the other.
    async fn watch(self, number: usize) {
        let (mut refusals, cluster) = (0, self.0.cluster.clone());
        while !self.0.is_ended.get() {
            sleep(random_duration(RECONNECT)).await;
            let node = cluster.any_node();
            let Some(running) = cluster.running(node) else { continue };
            let begins_anew = refusals >= MAX_REFUSALS;
            let (prefix, position) = {
                let watched = &self.0.followed.borrow().watches[number];
                (watched.prefix, watched.position().filter(|_| !begins_anew))
            };
            let (sender, mut receiver) = unbounded_channel();
            spawn(node, serve_watch((cluster.clone(), node), running, prefix, position, sender));
            let until = now() + random_duration(STAY);
            let mut is_new = position.is_none();
            while let Some(told) = received(&mut receiver, until).await {
                match told {
                    SubscriberEvent::Changes { changes, next } => {
                        self.show(node, number, std::mem::take(&mut is_new), changes, next);
                        if Some(next) > position {
                            refusals = 0;
                        }
                    }
                    SubscriberEvent::Compacted => {
                        record(node, format!("has no history for watch {number} at revision {position:?}"));
                        self.0.followed.borrow_mut().refused += 1;
                        refusals += 1;
                    }
                    SubscriberEvent::Records { .. } => {}
                }
            }
        }
    }

    /// Adds changes to those that a watch has shown. `begins_anew` is true for the first message of a new stretch
    /// (changes without a gap between them).
    fn show(&self, node: ProcessId, number: usize, begins_anew: bool, changes: Vec<SeenChange>, next: u64) {
        let stretches = &mut self.0.followed.borrow_mut().watches[number].stretches;
        if begins_anew {
            stretches.push(Stretch { from: next, next, changes: Vec::new() });
        }
        let Some(stretch) = stretches.last_mut() else { return };
        if next < stretch.next {
            let text = format!("watch {number} goes back from revision {} to {next}", stretch.next);
            return self.0.cluster.truth().violation(node, text);
        }
        stretch.changes.extend(changes);
        stretch.next = next;
    }

    /// Runs a tail of the stream, on one node after the other.
    async fn tail(self, number: usize) {
        let cluster = self.0.cluster.clone();
        while !self.0.is_ended.get() {
            sleep(random_duration(RECONNECT)).await;
            let node = cluster.any_node();
            let Some(running) = cluster.running(node) else { continue };
            let from = self.0.followed.borrow().tails[number].len() as u64;
            let (sender, mut receiver) = unbounded_channel();
            spawn(node, serve_tail((cluster.clone(), node), running, from, sender));
            let until = now() + random_duration(STAY);
            while let Some(told) = received(&mut receiver, until).await {
                let SubscriberEvent::Records { first, records } = told else { continue };
                let tail = &mut self.0.followed.borrow_mut().tails[number];
                if first != tail.len() as u64 {
                    let text = format!("tail {number} has {} records, and gets those from offset {first}", tail.len());
                    cluster.truth().violation(node, text);
                    break;
                }
                tail.extend(records);
            }
        }
    }
}

/// Returns the next message of a node; `None` if the node has ended, or if none arrives before the time `until`.
async fn received(receiver: &mut UnboundedReceiver<SubscriberEvent>, until: Duration) -> Option<SubscriberEvent> {
    timeout(until.saturating_sub(now()), receiver.recv()).await.ok().flatten()
}

/// Sends the changes of the keys with a prefix, from a revision on, until the subscriber leaves. Without a revision,
/// the watch begins at the next revision. Runs in the node's process.
async fn serve_watch(
    (cluster, node): (Cluster, ProcessId),
    running: Running,
    prefix: &'static str,
    from: Option<u64>,
    sender: Sender,
) {
    sleep(random_duration(USUAL_DELAY)).await;
    if let Some(from) = from {
        let before = Revision(from.saturating_sub(1));
        if running.consensus().read_at_least(before, REACHED_WITHIN).await.is_err() {
            return;
        }
    }
    let Some(keyspace) = running.db().find_keyspace(KEYSPACE_NAME) else { return };
    let keys = WatchKeys::Prefix(prefix.as_bytes().to_vec());
    let mut watch = match keyspace.watch(&keys, from.map(Revision)) {
        Ok(watch) => watch,
        Err(error) => return end_watch(&cluster, node, error, &sender),
    };
    let mut position = watch.position().0;
    if sender.send(SubscriberEvent::Changes { changes: Vec::new(), next: position }).is_err() {
        return;
    }
    while !sender.is_closed() {
        let batch = match watch.try_next() {
            Ok(batch) => batch,
            Err(error) => return end_watch(&cluster, node, error, &sender),
        };
        let is_idle = batch.is_none();
        let events = batch.map(|batch| batch.events).unwrap_or_default();
        let next = watch.position().0;
        if next > position || !events.is_empty() {
            position = next;
            let changes = seen_changes(&cluster, node, &events);
            sleep(random_duration(USUAL_DELAY)).await;
            // The subscriber may have left.
            let _ = sender.send(SubscriberEvent::Changes { changes, next });
        }
        if is_idle {
            let _ = timeout(LOOK_AGAIN, watch.ready()).await;
        }
    }
}

/// Tells the subscriber that a watch has ended because the history is gone. Reports any other end as a violation.
fn end_watch(cluster: &Cluster, node: ProcessId, error: WatchError, sender: &Sender) {
    match error {
        WatchError::Compacted { .. } => _ = sender.send(SubscriberEvent::Compacted),
        WatchError::Closed => {}
        WatchError::Read(error) => cluster.node_failed(node, &format!("a watch cannot read: {error}")),
        error => cluster.truth().violation(node, format!("a watch ends: {error}")),
    }
}

/// Converts watch events to changes. Reports a violation for a change above every revision that a node has applied.
fn seen_changes(cluster: &Cluster, node: ProcessId, events: &[WatchEvent]) -> Vec<SeenChange> {
    let reached = cluster.truth().revision();
    let mut changes = Vec::with_capacity(events.len());
    for event in events {
        let revision = event.revision.0;
        // The entries that a damaged node applies are not always reported, so its changes are not checked here.
        if revision > reached && !cluster.parts(node).is_flipped.get() {
            let text = format!("a watch shows revision {revision}, and the nodes have applied up to {reached}");
            cluster.truth().violation(node, text);
        }
        let change = match &event.change {
            WatchChange::Put(value) => number_of(value).map(Change::Put),
            WatchChange::Delete => Some(Change::Delete),
            WatchChange::Expire => Some(Change::Expire),
            WatchChange::DeletePrefix => None,
        };
        match change {
            Some(change) => changes.push(SeenChange { revision, key: event.key.to_vec(), change }),
            None => cluster.truth().violation(node, format!("a watch shows {event:?}")),
        }
    }
    changes
}

/// Sends the records of the stream from an offset on, until the subscriber leaves. Runs in the node's process.
async fn serve_tail((cluster, node): (Cluster, ProcessId), running: Running, from: u64, sender: Sender) {
    sleep(random_duration(USUAL_DELAY)).await;
    let Some(stream) = running.db().find_stream(STREAM_NAME) else { return };
    let tails = running.db().to_async();
    let mut next = from;
    while !sender.is_closed() {
        let mut records = match records_from(&stream, next) {
            Ok(records) => records,
            Err(error) => return cluster.node_failed(node, &format!("a tail cannot read: {error}")),
        };
        if records.is_empty() {
            records = running.uncommitted_records();
        }
        if records.is_empty() {
            let grown = timeout(LOOK_AGAIN, tails.wait_for(STREAM, Offset(next))).await;
            // The stream is gone, or the database is closed.
            if grown == Ok(false) {
                return;
            }
            continue;
        }
        let first = next;
        next += records.len() as u64;
        let end = cluster.truth().stream_end();
        // The entries that a damaged node applies are not always reported, so its records are not checked here.
        if next > end && !cluster.parts(node).is_flipped.get() {
            let text = format!("a tail shows records up to offset {next}, and the nodes have applied {end}");
            cluster.truth().violation(node, text);
        }
        sleep(random_duration(USUAL_DELAY)).await;
        // The subscriber may have left.
        let _ = sender.send(SubscriberEvent::Records { first, records });
    }
}

/// Reads records of the stream from the offset `from` on. Returns no records if the node does not have this offset yet.
fn records_from(stream: &Stream, from: u64) -> Result<Vec<u64>, ReadError> {
    let (max_records, max_bytes) = PAGE;
    let page = match stream.read(Offset(from), max_records, max_bytes) {
        Err(ReadError::BeyondEnd { .. }) => return Ok(Vec::new()),
        page => page?,
    };
    let mut records = Vec::new();
    let mut failure = None;
    page.for_each(&mut |offset, _, found| {
        let number = found.payload.try_into().map(u64::from_le_bytes).ok();
        let is_next = offset.0 == from + records.len() as u64;
        match number.filter(|_| is_next) {
            Some(number) => records.push(number),
            None => {
                failure = Some(ReadError::Corrupt(format!("offset {offset} is not the next one, or has no number")));
            }
        }
        if failure.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    failure.map_or(Ok(records), Err)
}
