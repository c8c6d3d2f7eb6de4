//! The history of a simulation: the requests of the clients, and the answers to them.
//!
//! Owns: the operations with the moments at which they began and ended. Does not own: the verdict (`oracle`), the
//! meaning of the operations (`model`), or their encoding (`commands`).

use std::{cell::RefCell, rc::Rc, time::Duration};

use bytes::Bytes;
use thalweg_types::command::Outcome;

/// Key of the simulation's keyspace, by its number.
pub type Key = u64;

/// Guarantee that a client asks of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The read sees every write that was answered before it began.
    Linearizable,
    /// The read sees every write that was answered before it began, provided that the leader's lease is valid. The
    /// leader does not ask a majority for this read.
    Lease,
    /// The read sees this revision, which the client has seen before, or a later one.
    AtLeast(u64),
    /// The read may see the values of any earlier moment.
    Stale,
}

impl Level {
    /// Returns true if the read sees every write that was answered before it began.
    #[must_use]
    pub fn is_recent(self) -> bool {
        matches!(self, Self::Linearizable | Self::Lease)
    }
}

/// An operation of a client. Each number that a client chooses is used once, so all values, records and owners differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads keys at one point in time.
    Read {
        /// Keys that the client wants to read.
        keys: Vec<Key>,
        /// Guarantee that the client asks of the read.
        level: Level,
    },
    /// Sets or deletes keys if all keys in `expect` have the expected values.
    Write {
        /// Keys with the values that they must have; `None` if the key must not exist.
        expect: Vec<(Key, Option<u64>)>,
        /// Keys with their new values; `None` deletes the key.
        put: Vec<(Key, Option<u64>)>,
        /// Unique number of the write request.
        number: u64,
    },
    /// Appends a record to the stream.
    Append {
        /// Payload of the appended record.
        record: u64,
        /// Producer and sequence number, by which the state machine recognises a repeated append; `None` for an append
        /// without a producer.
        stamp: Option<(u64, u64)>,
    },
    /// Grants a lease.
    Grant {
        /// Id of the lease to grant.
        lease: u64,
        /// Time for which the lease lives.
        ttl: Duration,
    },
    /// Extends a lease: its full time to live begins again now.
    Keep {
        /// Id of the lease to extend.
        lease: u64,
    },
    /// Ends a lease.
    Revoke {
        /// Id of the lease to end.
        lease: u64,
    },
    /// Acquires a free lock for as long as a lease lives. The revision at which the lock's key is written becomes the
    /// fencing token.
    Acquire {
        /// Key of the lock.
        lock: Key,
        /// Lease that the lock is attached to: the lock ends with the lease.
        lease: u64,
        /// Unique number of this attempt to acquire the lock. It becomes the value of the lock's key.
        owner: u64,
    },
    /// Writes to the resource that a lock guards, if the lock's key still has the revision `token`.
    Guarded {
        /// Key of the lock.
        lock: Key,
        /// Fencing token that the client got when it acquired the lock.
        token: u64,
        /// Value that the resource gets.
        value: u64,
    },
    /// Releases a lock, if the lock's key still has the revision `token`.
    Release {
        /// Key of the lock.
        lock: Key,
        /// Fencing token that the client got when it acquired the lock.
        token: u64,
    },
    /// Asks the consumer group for records.
    Fetch {
        /// Maximum number of records to deliver.
        max: u32,
        /// Unique number of the fetch request.
        number: u64,
    },
    /// Acks records of one delivery attempt.
    Ack {
        /// Number of the attempt to deliver the records. The answer to the fetch that delivered them contains it.
        attempt: u64,
        /// Offsets of the records to ack, ascending.
        offsets: Vec<u64>,
    },
    /// Returns records of one delivery attempt to the group (a nack).
    Nack {
        /// Number of the attempt to deliver the records. The answer to the fetch that delivered them contains it.
        attempt: u64,
        /// Offsets of the returned records, ascending.
        offsets: Vec<u64>,
        /// Time after which the group may deliver the records again.
        delay: Duration,
    },
}

impl Action {
    /// Returns true if the operation changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }
}

/// Answer that a client got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request was a read. The keys had these values after the commit with this revision.
    Values {
        /// Revision of the last commit that the read saw.
        revision: u64,
        /// Values of the keys, in the order of the keys in the request; `None` for a key that did not exist.
        values: Vec<Option<u64>>,
    },
    /// The request was a command, and had this outcome.
    Outcome(Outcome),
}

/// End of an operation from the client's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The client got no answer, so the operation may have taken effect, or may still do so.
    Unknown,
    /// The node rejected the request, so the operation has no effect.
    Rejected,
    /// The client got this answer. The number is the moment at which it arrived.
    Answered(u64, Answer),
}

/// An operation of a client, with its answer.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Request of the client.
    pub action: Action,
    /// Moment of the request. Moments of a history are distinct numbers that increase over time.
    pub begin: u64,
    /// End of the operation: its answer, a rejection, or no answer.
    pub end: End,
    /// Command that the client proposed, without its frame; empty for a read.
    pub command: Bytes,
}

impl Operation {
    /// Returns the moment of the answer; `u64::MAX` if there was none.
    #[must_use]
    pub fn ended(&self) -> u64 {
        if let End::Answered(moment, _) = self.end { moment } else { u64::MAX }
    }

    /// Returns the outcome in the answer to the client.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        if let End::Answered(_, Answer::Outcome(outcome)) = &self.end { Some(outcome) } else { None }
    }
}

#[derive(Default)]
struct Inner {
    moment: u64,
    operations: Vec<Operation>,
}

/// Number of an operation in its history.
pub type OperationId = usize;

/// A history that grows. Clones refer to the same history.
#[derive(Clone, Default)]
pub struct History(Rc<RefCell<Inner>>);

impl Inner {
    fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }
}

impl History {
    /// Records that a client sends a request.
    pub fn begin(&self, action: Action, command: Bytes) -> OperationId {
        let mut inner = self.0.borrow_mut();
        let begin = inner.next_moment();
        inner.operations.push(Operation { action, begin, end: End::Unknown, command });
        inner.operations.len() - 1
    }

    /// Records the answer to a request.
    pub fn end(&self, id: OperationId, answer: Answer) {
        let mut inner = self.0.borrow_mut();
        let moment = inner.next_moment();
        inner.operations[id].end = End::Answered(moment, answer);
    }

    /// Records that a request was rejected.
    pub fn reject(&self, id: OperationId) {
        self.0.borrow_mut().operations[id].end = End::Rejected;
    }

    /// Takes all operations out of the history, in the order in which they began.
    #[must_use]
    pub fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut self.0.borrow_mut().operations)
    }
}
