//! Conversion between openraft's messages and the frames that nodes send each other.
//!
//! Owns: the mapping between the fields of messages and frames. Does not own: entries as records of the log (`raft`),
//! or the layout of frames (`wire::peer`).

use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult, VoteRequest, VoteResponse};
use thalweg_log::RecordKind;
use thalweg_raft::{RaftEntry, RaftLogId, RaftVote};
use thalweg_state::membership::LogId;
use thalweg_types::{
    NodeId, SpaceTime,
    codec::{EncodeError, List},
};
use thalweg_wire::peer::{
    Append, AppendResult, Appended, AskPreVote, AskVote, EntryId, EntryKind, Heartbeat, LogEntry, PeerVote, PreVoted,
    Voted, encode_compressed,
};

use crate::types::Types;

/// Error returned for a received frame whose fields contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame is malformed: {0}")]
pub(crate) struct BadFrame(pub &'static str);

pub(crate) fn entry_id(id: &RaftLogId) -> EntryId {
    let LogId { term, index } = thalweg_raft::log_id(id);
    EntryId { term, index }
}

pub(crate) fn raft_id(id: &EntryId) -> RaftLogId {
    thalweg_raft::raft_log_id(LogId { term: id.term, index: id.index })
}

pub(crate) fn peer_vote(vote: &RaftVote) -> PeerVote {
    let vote = thalweg_raft::vote(vote);
    PeerVote { term: vote.term, node: vote.node, committed: vote.committed }
}

pub(crate) fn raft_vote(vote: &PeerVote) -> RaftVote {
    thalweg_raft::raft_vote(thalweg_replica::Vote { term: vote.term, node: vote.node, committed: vote.committed })
}

fn kind_of(kind: RecordKind) -> EntryKind {
    match kind {
        RecordKind::Blank => EntryKind::Blank,
        RecordKind::Membership => EntryKind::Membership,
        _ => EntryKind::Commands,
    }
}

/// Number of bytes that the buffer for an encoded append reserves for each entry in addition to its payload. The buffer
/// grows if an entry needs more.
const ENTRY_ROOM_BYTES: usize = 64;

/// Fields of an append request in the form of the frame that carries it. They own their data, so another thread can
/// encode them.
pub(crate) struct AppendParts {
    vote: PeerVote,
    heard: u64,
    previous: Option<EntryId>,
    committed: Option<EntryId>,
    entries: Vec<(EntryId, EntryKind, SpaceTime, Bytes)>,
}

impl AppendParts {
    /// Takes the fields from an append request. `heard` is the number of the last sign of life from the receiver.
    /// `first_time` is the time of the first log entry, which openraft does not store; it is used if the request
    /// contains this entry.
    pub(crate) fn of(
        request: &AppendEntriesRequest<Types>,
        heard: u64,
        first_time: SpaceTime,
    ) -> Result<Self, thalweg_raft::StoreError> {
        let part = |entry: &RaftEntry| {
            let (kind, payload) = thalweg_raft::record_of(entry)?;
            let time = match &entry.payload {
                openraft::EntryPayload::Normal(commands) => commands.time,
                _ if entry.log_id.index == 0 => first_time,
                _ => SpaceTime::default(),
            };
            Ok((entry_id(&entry.log_id), kind_of(kind), time, payload))
        };
        Ok(Self {
            vote: peer_vote(&request.vote),
            heard,
            previous: request.prev_log_id.as_ref().map(entry_id),
            committed: request.leader_commit.as_ref().map(entry_id),
            entries: request.entries.iter().map(part).collect::<Result<_, thalweg_raft::StoreError>>()?,
        })
    }

    /// Sum of the sizes of the payloads of all entries in the append, in bytes.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.entries.iter().map(|(_, _, _, payload)| payload.len()).sum()
    }

    /// Encodes the append as a frame with the request id `id`, and compresses the frame if that makes it smaller.
    pub(crate) fn encode(self, id: u64) -> Result<Vec<u8>, EncodeError> {
        let room = self.payload_bytes() + (self.entries.len() + 2) * ENTRY_ROOM_BYTES;
        let Self { vote, heard, previous, committed, entries } = self;
        let entries: Vec<_> = entries
            .iter()
            .map(|(id, kind, time, payload)| LogEntry { id: id.clone(), kind: *kind, time: *time, payload })
            .collect();
        let frame = Append { vote, heard, previous, committed, entries: List::Items(&entries) };
        let mut out = Vec::with_capacity(room);
        encode_compressed(&frame, id, &mut out)?;
        Ok(out)
    }
}

/// Returns a heartbeat from node `here` that replaces this append request. Returns `None` if no heartbeat can replace
/// it: a heartbeat only says that the sender leads and that the receiver's last entry is committed.
pub(crate) fn heartbeat(request: &AppendEntriesRequest<Types>, here: NodeId, heard: u64) -> Option<Heartbeat> {
    let PeerVote { term, node, committed } = peer_vote(&request.vote);
    let previous = request.prev_log_id.as_ref()?;
    let is_idle = request.entries.is_empty() && request.leader_commit.as_ref() == Some(previous);
    let EntryId { term: last_term, index: last_index } = entry_id(previous);
    (is_idle && committed && node == here).then_some(Heartbeat { term, heard, last_term, last_index })
}

/// Returns the append request that a heartbeat from node `from` stands for.
pub(crate) fn heartbeat_request(heartbeat: &Heartbeat, from: NodeId) -> AppendEntriesRequest<Types> {
    let last = raft_id(&EntryId { term: heartbeat.last_term, index: heartbeat.last_index });
    AppendEntriesRequest {
        vote: raft_vote(&PeerVote { term: heartbeat.term, node: from, committed: true }),
        prev_log_id: Some(last),
        leader_commit: Some(last),
        entries: Vec::new(),
    }
}

/// Returns the append request that a received frame contains. `body` is the frame's body; the entries share its memory.
pub(crate) fn append_request(append: &Append<'_>, body: &Bytes) -> Result<AppendEntriesRequest<Types>, BadFrame> {
    let mut entries = Vec::with_capacity(append.entries.len().min(4096));
    for entry in append.entries.iter() {
        let kind = match entry.kind {
            EntryKind::Blank => RecordKind::Blank,
            EntryKind::Membership => RecordKind::Membership,
            EntryKind::Commands => RecordKind::Entry,
        };
        let id = LogId { term: entry.id.term, index: entry.id.index };
        let payload = body.slice_ref(entry.payload);
        entries.push(thalweg_raft::entry_of_parts(kind, id, entry.time, payload).ok_or(BadFrame("a membership"))?);
    }
    Ok(AppendEntriesRequest {
        vote: raft_vote(&append.vote),
        prev_log_id: append.previous.as_ref().map(raft_id),
        leader_commit: append.committed.as_ref().map(raft_id),
        entries,
    })
}

/// Returns the frame that reports an append's result to the leader.
pub(crate) fn appended(result: &openraft::raft::AppendEntriesResponse<Types>) -> Appended {
    use openraft::raft::AppendEntriesResponse as Response;
    let (result, last, vote) = match result {
        Response::Success => (AppendResult::Success, None, None),
        Response::PartialSuccess(last) => (AppendResult::Partial, last.as_ref().map(entry_id), None),
        Response::Conflict => (AppendResult::Conflict, None, None),
        Response::HigherVote(vote) => (AppendResult::HigherVote, None, Some(peer_vote(vote))),
    };
    Appended { result, last, vote }
}

/// The entry before an append request and the last entry of the request. The sender needs both to interpret the
/// follower's result. If the request has no entries, `last` is the entry before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub previous: Option<RaftLogId>,
    pub last: Option<RaftLogId>,
}

impl Range {
    pub(crate) fn of(request: &AppendEntriesRequest<Types>) -> Self {
        let last = request.entries.last().map(|entry| entry.log_id);
        Self { previous: request.prev_log_id, last: last.or(request.prev_log_id) }
    }

    /// Converts the follower's reply to an append that was pipelined with others. Returns the result in openraft's
    /// form.
    pub(crate) fn result(&self, appended: &Appended) -> Result<StreamAppendResult<Types>, BadFrame> {
        Ok(match appended.result {
            AppendResult::Success => Ok(self.last),
            AppendResult::Partial => Ok(appended.last.as_ref().map(raft_id)),
            AppendResult::Conflict => {
                let previous = self.previous.ok_or(BadFrame("a conflict with an append from the beginning"))?;
                Err(StreamAppendError::Conflict(previous))
            }
            AppendResult::HigherVote => {
                let vote = appended.vote.as_ref().ok_or(BadFrame("a higher vote is missing"))?;
                Err(StreamAppendError::HigherVote(raft_vote(vote)))
            }
        })
    }

    /// Converts the follower's reply to an append that was sent alone. Returns the response in openraft's form.
    pub(crate) fn response(
        &self,
        appended: &Appended,
    ) -> Result<openraft::raft::AppendEntriesResponse<Types>, BadFrame> {
        use openraft::raft::AppendEntriesResponse as Response;
        Ok(match appended.result {
            AppendResult::Success => Response::Success,
            AppendResult::Partial => Response::PartialSuccess(appended.last.as_ref().map(raft_id)),
            AppendResult::Conflict if self.previous.is_none() => {
                return Err(BadFrame("a conflict with an append from the beginning"));
            }
            AppendResult::Conflict => Response::Conflict,
            AppendResult::HigherVote => {
                let vote = appended.vote.as_ref().ok_or(BadFrame("a higher vote is missing"))?;
                Response::HigherVote(raft_vote(vote))
            }
        })
    }
}

pub(crate) fn ask_vote(request: &VoteRequest<Types>) -> AskVote {
    let last = request.last_log_id.as_ref().map(entry_id);
    AskVote { vote: peer_vote(&request.vote), last, transfer: request.leadership_transfer }
}

pub(crate) fn ask_pre_vote(request: &VoteRequest<Types>) -> AskPreVote {
    AskPreVote { vote: peer_vote(&request.vote), last: request.last_log_id.as_ref().map(entry_id) }
}

pub(crate) fn vote_request(ask: &AskVote) -> VoteRequest<Types> {
    let request = VoteRequest::new(raft_vote(&ask.vote), ask.last.as_ref().map(raft_id));
    VoteRequest { leadership_transfer: ask.transfer, ..request }
}

pub(crate) fn pre_vote_request(ask: &AskPreVote) -> VoteRequest<Types> {
    VoteRequest::new(raft_vote(&ask.vote), ask.last.as_ref().map(raft_id))
}

pub(crate) fn voted(response: &VoteResponse<Types>) -> Voted {
    let last = response.last_log_id.as_ref().map(entry_id);
    Voted { vote: peer_vote(&response.vote), granted: response.vote_granted, last }
}

pub(crate) fn pre_voted(response: &VoteResponse<Types>) -> PreVoted {
    let Voted { vote, granted, last } = voted(response);
    PreVoted { vote, granted, last }
}

pub(crate) fn vote_response(voted: &Voted) -> VoteResponse<Types> {
    VoteResponse::new(raft_vote(&voted.vote), voted.last.as_ref().map(raft_id), voted.granted)
}
