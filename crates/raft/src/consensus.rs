//! Consensus of one space (the data that one Raft group replicates) on one node.
//!
//! Owns: openraft's handle, the tasks around it, and the service of other nodes' requests. Does not own: the network
//! that carries the requests, or the member's queue and state (`replica`).
//!
//! ```text
//!  member ── batches ──> proposals ──> openraft ──> log store ──> log, followers
//!    ^                                    │ committed
//!    └────────── applier <────────────────┘
//! ```
//! All methods are called on the consensus thread.
//!
//! Just before a restart, a node may have acknowledged a leader, and the lease of that leader relies on the
//! acknowledgement. Therefore a restarted node neither votes nor stands for election for one lease, unless it is the
//! only voter or has never voted.

use std::{
    cell::{Cell, OnceCell},
    collections::BTreeMap,
    fmt, io,
    rc::Rc,
    sync::Arc,
};

use openraft::{
    RaftNetworkFactory,
    async_runtime::{AsyncRuntime, WatchReceiver},
    errors::{Fatal, RaftError},
    raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse},
    storage::RaftLogStorage,
    type_config::{TypeConfigExt, alias::InstantOf},
};
use thalweg_log::AppendError;
use thalweg_replica::{Leadership, Member, Membership, NodeInfo, ProposeError};
use thalweg_types::{Index, NodeId, SpaceTime, Term};

use crate::{
    append_times::AppendTimes,
    applied::AppliedWatch,
    applier::{Applier, Raft},
    barriers::Barriers,
    bell::Bell,
    convert::snapshot_meta,
    election_state::Elections,
    entry_names::EntryNames,
    error::StartError,
    facts::Facts,
    forward::Forwarder,
    options::ConsensusOptions,
    reader::LogReader,
    recovery::Base,
    snapshots::{SnapshotHandle, SnapshotWriter, Snapshots},
    store::LogStore,
    suspensions::Suspensions,
    sync_queue::{SyncDriver, SyncQueue},
    target::Target,
    turns::Turns,
    types::{RaftSnapshot, RaftVote, Types, detach},
};

/// Number of leases without an answer of a majority after which a leader accepts no proposals.
const LOST_LEASES: u32 = 2;

/// Arguments of [`Consensus::start`]: the parts of the node with which consensus works.
pub struct ConsensusParts<Rt: AsyncRuntime, N> {
    /// This node's replica of the replicated data.
    pub member: Member,
    /// Queue of writes that wait for an fsync of the node's log.
    pub queue: Arc<SyncQueue<Rt>>,
    /// Thread or scheduler that performs the queue's fsyncs.
    pub driver: Arc<dyn SyncDriver>,
    /// Connections to the other members of the Raft group.
    pub network: N,
    /// Builder and installer of snapshots of the state. With `None`, a follower that lacks purged entries stays behind.
    pub snapshots: Option<Rc<dyn Snapshots>>,
    /// Carrier of requests to the leader. With `None`, a follower refuses requests that only the leader can serve.
    pub forwarder: Option<Rc<dyn Forwarder>>,
}

impl<Rt: AsyncRuntime, N> fmt::Debug for ConsensusParts<Rt, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsensusParts").field("member", &self.member).finish_non_exhaustive()
    }
}

/// Tells which kinds of consensus records (votes, entries) a node has ever written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// True if the node has ever voted or acknowledged a leader.
    pub has_voted: bool,
    /// True if the node has entries, or had entries that it has purged.
    pub has_entries: bool,
}

impl History {
    /// Returns true if the node has written no vote and no entry. Such a node may be one of the first members of a new
    /// Raft group.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !self.has_voted && !self.has_entries
    }
}

pub(crate) struct Inner<Rt: AsyncRuntime> {
    pub raft: Raft<Rt>,
    pub member: Member,
    pub queue: Arc<SyncQueue<Rt>>,
    pub reader: LogReader,
    pub applied: AppliedWatch<Rt>,
    pub forwarder: Option<Rc<dyn Forwarder>>,
    pub options: ConsensusOptions,
    pub bell: Arc<Bell>,
    pub barriers: Barriers<Rt>,
    /// Queue that keeps the order of the commands that other nodes have forwarded to this node and that are not written
    /// yet.
    pub forwarded: Turns,
    /// Size in bytes of this node's proposals whose outcome is not known yet.
    pub in_flight_bytes: Cell<u64>,
    /// Node to which this node sends its batches of client commands at present.
    pub target: Cell<Target>,
    /// Instant at which every promise to a leader from before this node's restart has expired. Before this instant the
    /// node does not vote.
    pub trusts_itself_at: InstantOf<Types<Rt>>,
    /// Term in which this node has begun to transfer its leadership. It serves no more lease reads in that term.
    pub transferred: Cell<Option<Term>>,
    /// Suspensions of this computer. A lease from before a suspension is void.
    pub suspensions: Suspensions<Rt>,
    /// True while this node, as the leader, changes the membership.
    pub is_changing: Cell<bool>,
    /// Term in which this node leads or has led, and the instant at which this leadership began.
    pub led_since: Cell<(Term, InstantOf<Types<Rt>>)>,
    pub facts: Facts<Rt>,
    pub elections: Elections<Rt>,
    /// Names (request ids) of the client requests whose commands are in recent entries.
    pub names: EntryNames,
    pub is_stopped: Cell<bool>,
    /// Error of the log after which this node has ended consensus.
    pub ended_by: OnceCell<AppendError>,
    /// True once openraft has ended. Its last metrics may still show this node as the leader.
    pub has_ended: Cell<bool>,
    /// True while this node sends no heartbeats because its fsyncs hang. It takes no proposals in this state.
    pub is_silent: Cell<bool>,
    /// Flag that makes writes to a full disk end, instead of waiting for free space.
    pub stops_writes: Rc<Cell<bool>>,
}

/// Consensus of one space (the data that one Raft group replicates) on one node. Clones refer to the same consensus.
pub struct Consensus<Rt: AsyncRuntime>(pub(crate) Rc<Inner<Rt>>);

impl<Rt: AsyncRuntime> Clone for Consensus<Rt> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<Rt: AsyncRuntime> fmt::Debug for Consensus<Rt> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consensus").field("member", &self.0.member).finish_non_exhaustive()
    }
}

impl<Rt: AsyncRuntime> Consensus<Rt> {
    /// Starts consensus on this node. The node takes part in elections and replication immediately, with the vote and
    /// the entries that its log contains.
    pub async fn start<N>(parts: ConsensusParts<Rt, N>, options: ConsensusOptions) -> Result<Self, StartError>
    where
        N: RaftNetworkFactory<Types<Rt>>,
        N::Network: openraft::network::NetSnapshot<Types<Rt>, SnapshotData = SnapshotHandle>,
    {
        Self::start_with(parts, options, |store| store).await
    }

    /// Starts consensus like [`start`](Self::start), for tests. `view` can wrap the log store before openraft gets it.
    pub async fn start_with<N, S>(
        parts: ConsensusParts<Rt, N>,
        options: ConsensusOptions,
        view: impl FnOnce(LogStore<Rt>) -> S,
    ) -> Result<Self, StartError>
    where
        N: RaftNetworkFactory<Types<Rt>>,
        N::Network: openraft::network::NetSnapshot<Types<Rt>, SnapshotData = SnapshotHandle>,
        S: RaftLogStorage<Types<Rt>>,
    {
        let ConsensusParts { member, queue, driver, network, snapshots, forwarder } = parts;
        let base = Base::of(member.machine())?;
        let store =
            LogStore::open(member.log().clone(), member.space(), &base, options.store, Arc::clone(&queue), driver)?;
        let store = store.with_member(member.clone());
        let (reader, stops_writes) = (store.reader(), store.stop_switch());
        let applied = AppliedWatch::new(base.applied.map(|applied| applied.index), options.max_outcome_bytes);
        let may_vote = !has_promised(&member, &reader);
        let applier = Applier::new(member.clone(), reader.clone(), applied.clone(), snapshots);
        let node = member.node().0;
        let config = options.config(may_vote)?;
        reader.begin_start();
        let raft = Raft::new(node, config, network, view(store), applier).await;
        reader.end_start();
        let raft = raft.map_err(|error| StartError::Raft(error.to_string()))?;
        let bell = Arc::new(Bell::default());
        member.set_driver(Arc::clone(&bell) as _);
        let now = Types::<Rt>::now();
        let suspensions = Suspensions::new(member.clock().suspended());
        let inner = Inner {
            raft,
            member,
            queue,
            reader,
            applied,
            forwarder,
            options,
            bell,
            barriers: Barriers::default(),
            forwarded: Turns::default(),
            in_flight_bytes: Cell::new(0),
            target: Cell::default(),
            trusts_itself_at: if may_vote { now } else { now + options.lease() },
            transferred: Cell::new(None),
            suspensions,
            is_changing: Cell::new(false),
            led_since: Cell::new((Term::ZERO, now)),
            facts: Facts::default(),
            elections: Elections::default(),
            names: EntryNames::default(),
            is_stopped: Cell::new(false),
            ended_by: OnceCell::new(),
            has_ended: Cell::new(false),
            is_silent: Cell::new(false),
            stops_writes,
        };
        let consensus = Self(Rc::new(inner));
        detach::<Rt>(consensus.clone().follow_leadership());
        detach::<Rt>(consensus.clone().run_proposals());
        detach::<Rt>(consensus.clone().run_ticks());
        if !may_vote {
            detach::<Rt>(consensus.clone().elect_after_lease());
        }
        Ok(consensus)
    }

    /// Returns which kinds of consensus records (votes, entries) this node has written so far.
    #[must_use]
    pub fn history(&self) -> History {
        let has_entries = self.0.reader.last().is_some() || self.applied().is_some();
        History { has_voted: self.0.reader.has_voted(), has_entries }
    }

    /// Founds a Raft group with its first members. Must be called on one node only, and only if the
    /// [`history`](Self::history) of every member is empty.
    pub async fn found(&self, members: BTreeMap<NodeId, NodeInfo>) -> io::Result<()> {
        // The log refuses a membership that exceeds a limit, and an error of the log ends consensus.
        Membership::new(vec![members.keys().copied().collect()], members.clone()).map_err(io::Error::other)?;
        let members: BTreeMap<u64, NodeInfo> = members.into_iter().map(|(node, info)| (node.0, info)).collect();
        self.0.raft.initialize(members).await.map_err(|error| io::Error::other(error.to_string()))
    }

    /// Ends consensus on this node. Proposals that are in flight end with an unknown outcome. A write that waits for
    /// room on a full disk ends unwritten.
    pub async fn stop(&self) {
        self.0.is_stopped.set(true);
        self.0.stops_writes.set(true);
        self.0.bell.ring();
        // An error means that openraft's tasks have panicked. Then there is nothing left to stop.
        let _ = self.0.raft.shutdown().await;
        self.0.member.set_leadership(Leadership::Follower { leader: None, term: self.0.member.leadership().term() });
    }

    /// Ends consensus on this node because its log has failed with `error`. Proposals that are in flight end with an
    /// unknown outcome. This node's replica rejects all later proposals, with the error as the reason. Does nothing
    /// after [`stop`](Self::stop).
    pub(crate) async fn end_with(&self, error: &AppendError) {
        if self.0.is_stopped.get() {
            return;
        }
        // The cell may already hold an error. Only the first one is kept.
        let _ = self.0.ended_by.set(error.clone());
        self.0.stops_writes.set(true);
        // openraft has already ended if one of its own writes has met the failed log.
        let _ = self.0.raft.shutdown().await;
    }

    /// Returns the error after which consensus has ended on this node; `None` while consensus runs, and after
    /// [`stop`](Self::stop).
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        if self.0.is_stopped.get() {
            return None;
        }
        if let Some(error) = self.0.ended_by.get() {
            return Some(error.to_string());
        }
        let metrics = self.0.raft.metrics();
        let running = metrics.borrow_watched().running_state.clone();
        running.err().filter(|error| !matches!(error, Fatal::Stopped)).map(|error| error.to_string())
    }

    /// Returns this node's replica of the data that consensus replicates (the member).
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.0.member
    }

    /// Returns the names (request ids) of the client requests whose commands are in recent entries, for debug logs.
    /// This node keeps names while it leads and a member asks for them.
    #[must_use]
    pub fn names(&self) -> &EntryNames {
        &self.0.names
    }

    /// Returns a reader of the replicated log, as this node has it.
    #[must_use]
    pub fn reader(&self) -> &LogReader {
        &self.0.reader
    }

    /// Returns the recorder by which the network measures the times of appends to followers.
    #[must_use]
    pub fn append_times(&self) -> AppendTimes {
        AppendTimes::new(self.0.member.clone(), self.0.reader.clone())
    }

    /// Returns the handle through which this node uses openraft, for tests and tools.
    #[must_use]
    pub fn raft(&self) -> &Raft<Rt> {
        &self.0.raft
    }

    /// Returns the index of the last applied entry; `None` before the first one.
    #[must_use]
    pub fn applied(&self) -> Option<Index> {
        self.0.applied.get()
    }

    /// Sets the time that the first entry that this node receives gets. Has no effect if the node already has entries.
    pub fn set_first_time(&self, time: SpaceTime) {
        self.0.reader.set_first_time(time);
    }

    /// Allows this node to purge entries up to `index`. The node must have applied and persisted them.
    pub fn purge_through(&self, index: Index) {
        self.0.member.want_purge(index);
    }

    /// Notes, after a leader's append, if this node is far behind its leader. While it is far behind, the node pauses
    /// between two fsyncs.
    pub fn note_far_behind(&self, is_far_behind: bool) {
        self.0.queue.note_far_behind(is_far_behind);
    }

    /// Handles a leader's request to append entries to this node's log, or its heartbeat.
    pub async fn append_entries(
        &self,
        request: AppendEntriesRequest<Types<Rt>>,
    ) -> Result<AppendEntriesResponse<Types<Rt>>, RaftError<Types<Rt>>> {
        self.0.raft.append_entries(request).await
    }

    /// Serves a candidate's request for this node's vote.
    pub async fn vote(&self, request: VoteRequest<Types<Rt>>) -> Result<VoteResponse<Types<Rt>>, RaftError<Types<Rt>>> {
        if self.must_not_vote(&request) {
            return Ok(self.refused_vote());
        }
        let wanted = request.vote;
        let answer = self.0.raft.vote(request).await?;
        self.note_vote(&wanted, &answer);
        Ok(answer)
    }

    /// Answers a candidate that asks, before an election, if this node would vote for it.
    pub async fn pre_vote(
        &self,
        request: VoteRequest<Types<Rt>>,
    ) -> Result<VoteResponse<Types<Rt>>, RaftError<Types<Rt>>> {
        if self.must_not_vote(&request) {
            return Ok(self.refused_vote());
        }
        let answer = self.0.raft.pre_vote(request).await?;
        self.note_pre_vote(&answer);
        Ok(answer)
    }

    /// Handles the request of a leader that transfers its leadership to this node.
    pub async fn take_over(
        &self,
        request: openraft::raft::TransferLeaderRequest<Types<Rt>>,
    ) -> Result<openraft::raft::TransferLeaderResponse<Types<Rt>>, Fatal<Types<Rt>>> {
        self.0.raft.handle_transfer_leader(request).await
    }

    /// Installs a snapshot that has been received completely, if its sender still leads. An error before the state is
    /// replaced, for example on a full disk, only rejects the snapshot, and consensus continues.
    pub async fn install_snapshot(
        &self,
        leader: RaftVote,
        mut writer: Box<dyn SnapshotWriter>,
    ) -> io::Result<SnapshotResponse<Types<Rt>>> {
        writer.prepare().await?;
        let meta = snapshot_meta(&writer.id().position);
        let meta = meta.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the membership is malformed"))?;
        let snapshot = RaftSnapshot { meta, snapshot: SnapshotHandle::received(writer) };
        self.0.raft.install_full_snapshot(leader, snapshot).await.map_err(|error| io::Error::other(error.to_string()))
    }

    /// Returns true if this node must refuse its vote to a candidate, because a leader from before this node's restart
    /// may rely on a lease that this node gave it. A request for a leadership transfer is exempt: the leader that
    /// transfers no longer relies on its lease.
    fn must_not_vote(&self, request: &VoteRequest<Types<Rt>>) -> bool {
        Types::<Rt>::now() < self.0.trusts_itself_at && !request.leadership_transfer
    }

    fn refused_vote(&self) -> VoteResponse<Types<Rt>> {
        let vote = self.0.raft.server_metrics().borrow_watched().vote;
        let last = self.0.raft.data_metrics().borrow_watched().last_log;
        VoteResponse::new(vote, last, false)
    }

    async fn elect_after_lease(self) {
        Types::<Rt>::sleep_until(self.0.trusts_itself_at).await;
        self.0.raft.runtime_config().elect(true);
    }

    /// Tells this node's replica which leader openraft knows. openraft also keeps a leader that no majority answers;
    /// this function reports that there is no leader in this case. Does nothing once openraft has ended.
    pub(crate) fn update_leadership(&self) {
        if self.0.has_ended.get() {
            return;
        }
        let metrics = self.0.raft.server_metrics();
        let leadership = {
            let seen = metrics.borrow_watched();
            let term = Term(seen.vote.leader_id.term);
            if seen.state.is_leader() {
                let is_followed = self.has_quorum(term, seen.membership_config.membership().voter_ids().count());
                // Appends with entries would keep the followers from electing another leader.
                if is_followed && !self.0.is_silent.get() {
                    Leadership::Leader { term }
                } else {
                    Leadership::Follower { leader: None, term }
                }
            } else {
                let leader = seen.current_leader.filter(|leader| *leader != seen.id).map(|leader| {
                    let info = seen.membership_config.membership().get_node(&leader).cloned();
                    (NodeId(leader), info.unwrap_or_default())
                });
                Leadership::Follower { leader, term }
            }
        };
        if self.0.member.leadership() != leadership {
            self.0.member.set_leadership(leadership);
        }
    }

    /// Returns true if a majority has answered this node as the leader recently, or if its leadership began too
    /// recently for an answer.
    fn has_quorum(&self, term: Term, voters: usize) -> bool {
        let now = Types::<Rt>::now();
        let (led_term, led_since) = self.0.led_since.get();
        if led_term != term {
            self.0.led_since.set((term, now));
            return true;
        }
        let answered = self.0.raft.data_metrics().borrow_watched().last_quorum_acked.as_ref().map(|at| **at);
        let last = answered.map_or(led_since, |at| at.max(led_since));
        voters == 1 || openraft::Instant::saturating_duration_since(&now, last) <= LOST_LEASES * self.0.options.lease()
    }

    /// Reports each change of the leader to the member (this node's replica) until consensus ends. Then makes the
    /// member reject proposals, with the reason for which consensus ended.
    async fn follow_leadership(self) {
        let mut metrics = self.0.raft.server_metrics();
        loop {
            self.update_leadership();
            if metrics.changed().await.is_err() {
                break;
            }
        }
        self.0.has_ended.set(true);
        let term = self.0.member.leadership().term();
        self.0.member.set_leadership(Leadership::Follower { leader: None, term });
        if let Some(reason) = self.failure() {
            self.0.member.end(&format!("consensus has ended on this node: {reason}; restart the node"));
        }
    }

    /// Returns the reason for which consensus has ended on this node.
    pub(crate) fn stopped_reason(&self) -> String {
        self.failure().unwrap_or_else(|| "the node stops".to_owned())
    }

    pub(crate) fn propose_stopped(&self) -> ProposeError {
        ProposeError::OutcomeUnknown { reason: format!("consensus has ended on this node: {}", self.stopped_reason()) }
    }
}

/// Returns true if this node may have acknowledged a leader before it was started and other nodes can vote. A sole
/// voter has promised nothing.
fn has_promised(member: &Member, reader: &LogReader) -> bool {
    let has_voted = reader.has_voted();
    let membership = reader.membership().map(|(_, membership)| membership).or_else(|| {
        let stored = member.machine().membership().ok().flatten()?;
        Membership::decode(&stored.payload)
    });
    let is_alone = membership.is_some_and(|membership| membership.sole_voter() == Some(member.node()));
    has_voted && !is_alone
}
