//! Clients of the simulated cluster: each sends one request at a time, mostly to the node that it believes to lead.
//!
//! Owns: the mix of operations, the memory of a client (leases, locks, records to ack), and the search for the leader.
//! Does not own: the record of requests and answers (`history`), or how a node serves a request (`serve`).

use std::{cell::Cell, collections::BTreeMap, rc::Rc, time::Duration};

use bytes::Bytes;
use thalweg_types::{
    SpaceTime,
    command::{Outcome, groups::GroupOutcome},
};

use crate::{
    cluster::Cluster,
    commands::{ACK_DEADLINE, command},
    history::{Action, Answer, Key, Level, OperationId},
    network::USUAL_DELAY,
    runtime::{ProcessId, now, random, random_duration, sleep, spawn, timeout},
    serve::{Reply, serve},
};

/// Number of keys that the simulated clients use singly: an operation on one of them uses no other key.
const REGISTERS: u64 = 5;
/// Keys of the accounts of a simulated bank. One operation of a client reads or writes several of them together.
const ACCOUNTS: std::ops::Range<Key> = 100..103;
/// Keys that clients use as locks.
const LOCKS: std::ops::Range<Key> = 200..202;
/// Time after which a client stops waiting for an answer.
const PATIENCE: Duration = Duration::from_millis(700);
/// Maximum number of records that one fetch asks for.
const MAX_FETCHED: u64 = 12;

pub(crate) struct Client {
    cluster: Cluster,
    /// Counter from which all clients take numbers, so that each request and each value has a number of its own.
    numbers: Rc<Cell<u64>>,
    /// Number of this client among all clients of the simulation.
    id: u64,
    /// Node to which the client sends its next request.
    target: ProcessId,
    /// Node to which the client sends all requests; `None` if it looks for the leader.
    only: Option<ProcessId>,
    /// Last value that the client has seen of each key; `None` for a key that did not exist. The client's next
    /// conditional write expects these values.
    seen: BTreeMap<Key, Option<u64>>,
    /// Highest revision that the client has seen.
    revision: u64,
    /// Mean time between two requests of this client.
    pause: Duration,
    /// Sequence number that this client, as a producer of the stream, gives to its next append.
    sequence: u64,
    /// Append of the producer that has no answer yet. The client repeats this append until a node answers.
    append: Option<(OperationId, Action)>,
    /// Deliveries that the client got and has not acked: the number of the delivery attempt, and the offsets of its
    /// records.
    delivered: Vec<(u64, Vec<u64>)>,
    /// Deadline for acking the records that the client fetched last, by the members' common clock (space time).
    fetched_at: SpaceTime,
    lease: Option<HeldLease>,
    /// Lock that the client believes to hold, with its fencing token.
    lock: Option<(Key, u64)>,
}

struct HeldLease {
    id: u64,
    /// True if the client has already extended the lease that it holds. It extends a lease only once, because the
    /// oracle cannot distinguish two equal commands.
    was_kept: bool,
}

impl Client {
    pub(crate) fn new(cluster: Cluster, numbers: Rc<Cell<u64>>, id: u64, pause: Duration) -> Self {
        let target = cluster.any_node();
        Self {
            cluster,
            numbers,
            id,
            target,
            only: None,
            seen: BTreeMap::new(),
            revision: 0,
            pause,
            sequence: 0,
            append: None,
            delivered: Vec::new(),
            fetched_at: SpaceTime::default(),
            lease: None,
            lock: None,
        }
    }

    /// Sends requests of this client until the cluster stops its clients.
    pub(crate) async fn run(mut self) {
        while !self.cluster.is_stopping() {
            sleep(random_duration(Duration::from_micros(1)..2 * self.pause)).await;
            if self.cluster.is_quiet() {
                continue;
            }
            let action = self.next_action();
            self.perform(action).await;
        }
    }

    /// Sends one write of a key to the node `node`.
    pub(crate) async fn write_to(mut self, node: ProcessId) {
        let number = self.number();
        self.only = Some(node);
        self.perform(Action::Write { expect: Vec::new(), put: vec![(0, Some(number))], number }).await;
    }

    /// Sends one read of a key to the node `node`. If this node leads, it may rely on its lease for the read.
    pub(crate) async fn read_by_lease(mut self, node: ProcessId) {
        self.only = Some(node);
        self.perform(Action::Read { keys: vec![0], level: Level::Lease }).await;
    }

    /// Fetches and acks records of the consumer group until none has arrived for two ack deadlines. Measures this time
    /// by the members' common clock (space time). Returns false if this takes longer than `patience` of virtual time.
    pub(crate) async fn drain(mut self, patience: Duration) -> bool {
        let (begun, mut filled) = (now(), None);
        while now() < begun + patience {
            let action = match self.delivered.pop() {
                Some((attempt, offsets)) => Action::Ack { attempt, offsets },
                None => Action::Fetch { max: 100, number: self.number() },
            };
            let fetches = matches!(action, Action::Fetch { .. });
            if !self.perform(action).await || !fetches {
                continue;
            }
            if !self.delivered.is_empty() || filled.is_none() {
                filled = Some(self.fetched_at);
            } else if filled.is_some_and(|filled| self.fetched_at > filled.plus(2 * ACK_DEADLINE)) {
                return true;
            }
            sleep(Duration::from_millis(if self.delivered.is_empty() { 200 } else { 1 })).await;
        }
        false
    }

    fn number(&self) -> u64 {
        self.numbers.replace(self.numbers.get() + 1)
    }

    fn next_action(&mut self) -> Action {
        if let Some((_, action)) = &self.append
            && random(0..2) == 0
        {
            return action.clone();
        }
        match random(0..100) {
            0..26 => self.read(),
            26..48 => {
                let number = self.number();
                let value = (random(0..8) > 0).then_some(number);
                Action::Write { expect: Vec::new(), put: vec![(random(0..REGISTERS), value)], number }
            }
            48..58 => self.swap(&[random(0..REGISTERS)]),
            58..68 => {
                let one = random(ACCOUNTS);
                let other = ACCOUNTS.start + (one - ACCOUNTS.start + 1) % (ACCOUNTS.end - ACCOUNTS.start);
                self.swap(&[one, other])
            }
            68..74 => Action::Append { record: self.number(), stamp: None },
            74..80 => self.produce(),
            80..92 => self.consume(),
            _ => self.lock(),
        }
    }

    fn read(&self) -> Action {
        let keys = match random(0..3) {
            0 => ACCOUNTS.collect(),
            _ => vec![random(0..REGISTERS)],
        };
        let level = match random(0..8) {
            0..4 => Level::Linearizable,
            4 | 5 => Level::Lease,
            6 => Level::AtLeast(self.revision),
            _ => Level::Stale,
        };
        Action::Read { keys, level }
    }

    /// Returns a write of `keys` that takes effect only if the keys still have the values that the client saw last.
    fn swap(&self, keys: &[Key]) -> Action {
        let expect = keys.iter().filter_map(|key| Some((*key, *self.seen.get(key)?))).collect();
        let number = self.number();
        Action::Write { expect, put: keys.iter().map(|key| (*key, Some(number))).collect(), number }
    }

    fn produce(&self) -> Action {
        match &self.append {
            Some((_, action)) => action.clone(),
            None => Action::Append { record: self.number(), stamp: Some((self.id, self.sequence)) },
        }
    }

    fn consume(&mut self) -> Action {
        let Some((attempt, offsets)) = self.delivered.pop() else {
            return Action::Fetch { max: 1 + random(0..MAX_FETCHED) as u32, number: self.number() };
        };
        match random(0..10) {
            0 => Action::Nack { attempt, offsets, delay: Duration::from_millis(random(0..800)) },
            // The client forgets the records, so the group delivers them again after their deadline.
            1 => Action::Fetch { max: 1, number: self.number() },
            2 if offsets.len() > 1 => Action::Ack { attempt, offsets: offsets[..1].to_vec() },
            _ => Action::Ack { attempt, offsets },
        }
    }

    fn lock(&mut self) -> Action {
        let Some(lease) = &mut self.lease else {
            self.lock = None;
            return Action::Grant { lease: self.number(), ttl: Duration::from_millis(random(300..3_000)) };
        };
        let id = lease.id;
        let Some((lock, token)) = self.lock else {
            return match random(0..8) {
                0 => self.end_lease(id),
                _ => Action::Acquire { lock: random(LOCKS), lease: id, owner: self.number() },
            };
        };
        match random(0..10) {
            0 if !lease.was_kept => {
                lease.was_kept = true;
                Action::Keep { lease: id }
            }
            1 => self.end_lease(id),
            2 | 3 => {
                self.lock = None;
                Action::Release { lock, token }
            }
            _ => Action::Guarded { lock, token, value: self.number() },
        }
    }

    fn end_lease(&mut self, lease: u64) -> Action {
        (self.lease, self.lock) = (None, None);
        Action::Revoke { lease }
    }

    /// Sends a request, and records it with its answer in the history. Returns true if there was an answer.
    async fn perform(&mut self, action: Action) -> bool {
        let bytes = command(&action);
        let history = self.cluster.history().clone();
        let is_stamped = matches!(action, Action::Append { stamp: Some(_), .. });
        let id = match &self.append {
            Some((id, _)) if is_stamped => *id,
            _ => history.begin(action.clone(), bytes.clone()),
        };
        if is_stamped {
            self.append = Some((id, action.clone()));
        }
        match self.ask(action.clone(), bytes).await {
            Reply::Answered(answer) => {
                self.cluster.answered(&action);
                self.note(action, &answer);
                history.end(id, answer);
                return true;
            }
            Reply::Rejected(leader) => {
                self.target = leader.unwrap_or_else(|| self.cluster.any_node());
                if !is_stamped {
                    history.reject(id);
                }
                sleep(Duration::from_millis(random(1..20))).await;
            }
            Reply::Unknown => self.target = self.cluster.any_node(),
        }
        false
    }

    /// Updates the client's knowledge (such as its locks and last values) from the answer to an operation.
    fn note(&mut self, action: Action, answer: &Answer) {
        match answer {
            Answer::Values { revision, .. } => self.revision = self.revision.max(*revision),
            Answer::Outcome(Outcome::Committed { revision, .. }) => self.revision = self.revision.max(revision.0),
            Answer::Outcome(_) => {}
        }
        match (action, answer) {
            (Action::Read { keys, .. }, Answer::Values { values, .. }) => {
                self.seen.extend(keys.into_iter().zip(values.iter().copied()));
            }
            (Action::Write { put, .. }, Answer::Outcome(Outcome::Committed { .. })) => self.seen.extend(put),
            (Action::Append { stamp: Some(_), .. }, _) => {
                self.append = None;
                self.sequence += 1;
            }
            (Action::Fetch { .. }, Answer::Outcome(Outcome::Group(GroupOutcome::Fetched(fetched)))) => {
                let offsets: Vec<u64> =
                    fetched.deliveries.iter().flat_map(|run| run.run.first.0..run.run.end().0).collect();
                self.fetched_at = fetched.deadline;
                if !offsets.is_empty() {
                    self.delivered.push((fetched.attempt.0, offsets));
                }
            }
            (Action::Grant { lease, .. }, Answer::Outcome(Outcome::Lease { .. })) => {
                self.lease = Some(HeldLease { id: lease, was_kept: false });
            }
            (Action::Acquire { lock, .. }, Answer::Outcome(Outcome::Committed { revision, .. })) => {
                self.lock = Some((lock, revision.0));
            }
            (Action::Acquire { .. } | Action::Keep { .. }, Answer::Outcome(Outcome::NoSuchLease(_))) => {
                (self.lease, self.lock) = (None, None);
            }
            (Action::Guarded { .. }, Answer::Outcome(Outcome::ConditionFailed { .. })) => self.lock = None,
            _ => {}
        }
    }

    /// Sends a request to the node that the client asks next, and waits for the answer.
    async fn ask(&self, action: Action, command: Bytes) -> Reply {
        // Any node accepts requests, so some go to a random node.
        let usual = || if random(0..5) == 0 { self.cluster.any_node() } else { self.target };
        let node = self.only.unwrap_or_else(usual);
        let cluster = self.cluster.clone();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        if cluster.running(node).is_none() {
            return Reply::Rejected(None);
        }
        // The request runs in the node's process, and ends with that process.
        spawn(node, async move {
            sleep(random_duration(USUAL_DELAY)).await;
            let reply = serve(&cluster, node, &action, command).await;
            sleep(random_duration(USUAL_DELAY)).await;
            // The client may have given up.
            let _ = sender.send(reply);
        });
        match timeout(PATIENCE, receiver).await {
            Ok(Ok(reply)) => reply,
            _ => Reply::Unknown,
        }
    }
}
