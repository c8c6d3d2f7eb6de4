//! Outcomes of commands: the results that the state machine computes when it applies a command.
//!
//! Owns: `Outcome`, and the number of bytes that an outcome holds in memory. Does not own: the outcomes of consumer
//! groups (`groups`) and the results of transactions (`transaction`), or the encoding for the running hash
//! (`outcome_bytes`).

use std::time::Duration;

use bytes::Bytes;

use crate::{
    clock::SpaceTime,
    codec::Malformed,
    command::{
        append::{AppendedAt, ProducerRefusal},
        groups::{Fetched, GroupOutcome},
        stream_config::StreamLimit,
        transaction::{OperationError, OperationResult, ScannedItem, Transacted},
    },
    ids::{KeyspaceId, LeaseId, Offset, Revision, StreamId},
    reply::Reply,
};

/// Outcome of a command. A failed condition is an outcome, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All writes of the commit were carried out.
    Committed {
        /// Revision of the commit, shared by all its writes.
        revision: Revision,
        /// Positions of the commit's appends in their streams, in the order of the appends.
        appends: Vec<AppendedAt>,
    },
    /// One of the transaction's two lists of operations was carried out.
    Transacted(Box<Transacted>),
    /// An operation of a transaction could not be carried out, so the whole transaction changed nothing.
    OperationFailed {
        /// Index of the failed operation in the list that was to be carried out, from 0.
        operation: u32,
        /// Cause of the operation's failure.
        error: OperationError,
    },
    /// A condition of the commit did not hold, so the commit changed nothing.
    ConditionFailed {
        /// Index of the first condition that did not hold, from 0.
        condition: u32,
        /// Present revision of the condition's key; `None` if the key has no value.
        actual: Option<Revision>,
    },
    /// A producer has sent a commit again that was executed before. The second execution changed nothing.
    Duplicate {
        /// Revision of the commit's first execution.
        revision: Revision,
        /// Positions of the producers' appends in their streams, in order. Positions of other appends of the commit are
        /// not stored.
        appends: Vec<AppendedAt>,
    },
    /// An append exceeds a limit of its stream, so the command changed nothing.
    OverStreamLimit {
        /// Id of the stream whose limit the append exceeds.
        stream: StreamId,
        /// Size limit that the append exceeds.
        limit: StreamLimit,
        /// Maximum size in bytes that the stream's configuration permits.
        max: u64,
        /// Size in bytes of the record or of the whole append that exceeds the limit.
        got: u64,
    },
    /// A producer's append was rejected, so the command changed nothing.
    ProducerRefused {
        /// Id of the stream to which the producer tried to append.
        stream: StreamId,
        /// Reason why the append was rejected.
        refusal: ProducerRefusal,
    },
    /// The producer was opened with a new epoch.
    Producer {
        /// New epoch of the producer. The producer's next append must have sequence number 0.
        epoch: u32,
    },
    /// The stream's next offset is not the one that an append expected, so the command changed nothing.
    OffsetConflict {
        /// Id of the stream to which the records were to be appended.
        stream: StreamId,
        /// Next offset of the stream, which an append would get now.
        next: Offset,
    },
    /// The keyspace exists: this command created it, or it existed before.
    Keyspace {
        /// Id of the created or existing keyspace.
        id: KeyspaceId,
        /// True if this command created the keyspace; false if it already existed.
        created: bool,
    },
    /// The stream exists: this command created it, or it existed before.
    Stream {
        /// Id of the created or existing stream.
        id: StreamId,
        /// True if this command created the stream; false if it already existed.
        created: bool,
    },
    /// The keyspace has been dropped.
    Dropped {
        /// Revision of the command that dropped the keyspace.
        revision: Revision,
    },
    /// The command was carried out and has no other result. Examples are commands that configure or trim a stream.
    Done,
    /// Reports the version of the state machine that is in force after the command.
    Version {
        /// Version of the state machine now in force.
        in_force: u16,
    },
    /// The command needs a version of the state machine above the one in force, so it changed nothing.
    VersionNotInForce {
        /// Version of the state machine that the command needs.
        needed: u16,
        /// Version of the state machine in force.
        in_force: u16,
    },
    /// The command has removed rows that are no longer needed, such as rows of a deleted group or old versions of keys.
    Reclaimed {
        /// Number of rows that count towards the command's maximum: removed rows, or read rows if the command searches.
        entries: u32,
        /// True if rows are left that a later command must remove.
        more: bool,
    },
    /// The lease was granted or kept alive.
    Lease {
        /// Id of the lease that was granted or kept alive.
        id: LeaseId,
        /// Time to live that each keep-alive gives the lease.
        ttl: Duration,
        /// Time at which the lease ends unless a keep-alive arrives before, by the clock that all replicas share (space
        /// time).
        deadline: SpaceTime,
    },
    /// The lease does not exist: it has expired, was revoked, or was never granted. The command changed nothing.
    NoSuchLease(LeaseId),
    /// A lease with the requested id exists, or the keys of an ended lease with this id are still being removed. The
    /// command changed nothing.
    LeaseExists(LeaseId),
    /// Expired keys were removed, or stale rows of the expiry index were removed.
    Expired {
        /// Number of expired keys removed.
        keys: u32,
        /// Number of rows of the expiry index read.
        rows: u32,
        /// True if rows of the expiry index are left that a later command must process.
        more: bool,
    },
    /// The command named a keyspace that does not exist.
    NoSuchKeyspace(KeyspaceId),
    /// The command named a stream that does not exist.
    NoSuchStream(StreamId),
    /// The command would exceed a limit on the number of some items, such as keyspaces or leases. It changed nothing.
    TooMany {
        /// Name of the limited items, such as keyspaces.
        what: &'static str,
        /// Maximum number of the items that `what` names.
        limit: usize,
    },
    /// The command would take more steps (units of work) than one command may take. It changed nothing.
    TooExpensive {
        /// Maximum number of [steps](crate::steps) of a command.
        limit: u64,
    },
    /// The configuration of the keyspace or stream cannot be changed in the requested way.
    CannotConfigure {
        /// Reason why the change is impossible, and a possible alternative.
        what: &'static str,
    },
    /// Outcome of a command about a consumer group, or of a commit's acks.
    Group(GroupOutcome),
    /// Replies of a batch of Redis commands, in the order of the commands. `None` means that a watched key had changed,
    /// so the batch changed nothing. If there are fewer replies than commands, the batch has used up its steps (units
    /// of work). The commands without a reply then changed nothing, and the caller proposes them again
    /// ([`RedisBatch::rest`](crate::command::RedisBatch::rest)).
    Redis(Option<Vec<Reply>>),
    /// The bytes of the command did not decode, so it changed nothing. Only foreign programs or newer versions send
    /// such commands.
    Malformed(Malformed),
}

impl Outcome {
    /// Returns the number of bytes on the heap that the outcome refers to. Bytes that several outcomes share count
    /// fully for each of them.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Committed { appends, .. } | Self::Duplicate { appends, .. } => size_of_val(&appends[..]),
            Self::Transacted(transacted) => {
                let results = &transacted.results;
                size_of::<Transacted>() + results.iter().map(of_result).sum::<usize>()
            }
            Self::Group(GroupOutcome::Fetched(fetched)) => size_of::<Fetched>() + size_of_val(&fetched.deliveries[..]),
            Self::Group(GroupOutcome::Settled { lapsed, .. }) => size_of_val(&lapsed[..]),
            Self::Group(GroupOutcome::Extended { lapsed, .. }) => size_of_val(&lapsed[..]),
            Self::Redis(Some(replies)) => replies.iter().map(|reply| size_of::<Reply>() + reply.held_bytes()).sum(),
            _ => 0,
        }
    }
}

fn of_result(result: &OperationResult) -> usize {
    let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    let more = match result {
        OperationResult::Got(Some(got)) => got.value.len(),
        OperationResult::Scanned(page) => {
            let of_item = |item: &ScannedItem| size_of::<ScannedItem>() + item.key.len() + bytes(&item.value);
            page.items.iter().map(of_item).sum::<usize>() + bytes(&page.after)
        }
        _ => 0,
    };
    size_of::<OperationResult>() + more
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::transaction::{ReadValue, ScanPage};

    #[test]
    fn held_bytes_contain_all_values_of_replies_and_results() {
        let bulk = |len: usize| Reply::Bulk(vec![7; len].into());
        let replies =
            vec![Reply::Ok, Reply::Array(vec![bulk(1000), bulk(2000)]), Reply::Map(vec![(bulk(300), bulk(40))])];
        let items = 3 + 2 + 2;
        assert_eq!(Outcome::Redis(Some(replies)).held_bytes(), 3340 + items * size_of::<Reply>());
        let page = ScanPage {
            items: vec![ScannedItem {
                key: vec![1; 10].into(),
                revision: Revision(1),
                value: Some(vec![2; 500].into()),
            }],
            after: Some(vec![1; 10].into()),
        };
        let got = ReadValue { revision: Revision(1), value: vec![3; 4000].into() };
        let results = vec![OperationResult::Scanned(page), OperationResult::Got(Some(got)), OperationResult::Put];
        let transacted = Transacted { failed: None, revision: Revision(1), wrote: false, results };
        let held = Outcome::Transacted(Box::new(transacted)).held_bytes();
        assert!((4520..4520 + 500).contains(&held), "{held}");
        assert_eq!(Outcome::Done.held_bytes(), 0);
    }
}
