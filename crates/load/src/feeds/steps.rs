//! Requests about a stream, a group and a subject, and the contents of their replies.

use super::{appends::Append, faults::FeedFaults};

/// Sizes of records, messages and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedSizes {
    /// Length of each record in bytes.
    pub record_bytes: usize,
    /// Number of records in an append.
    pub batch: u32,
    /// Maximum number of records in a read.
    pub read_records: u32,
    /// Position at which reads begin.
    pub read_from: ReadFrom,
    /// Maximum number of records in a fetch.
    pub fetch_records: u32,
    /// Length of each message in bytes.
    pub message_bytes: usize,
    /// Number of messages in a publish.
    pub messages: u32,
}

/// Position in the stream at which reads begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// Each reader begins at the first record of the stream. Each later read continues after the one before.
    Start,
    /// Each reader begins at the end of the stream. Each later read continues after the one before.
    Tail,
    /// Each read begins at a random record.
    Random,
}

/// A request about the stream, the group or the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStep {
    /// Appends a batch of records.
    Append(Append),
    /// Reads records.
    Read {
        /// Position at which the read begins: the offset of its first record, or the id before it.
        from: u64,
        /// End of the records that the reply must contain: those that were acknowledged before the read was sent.
        floor: u64,
        /// Purpose of the read.
        reader: Reader,
    },
    /// Fetches records as a member of the group.
    Fetch,
    /// Acknowledges the records of a fetch.
    Ack {
        /// Number of the attempt that the fetch returned.
        attempt: u64,
        /// Number of records of the fetch.
        records: u64,
    },
    /// Publishes a batch of messages. The field is the number of the publish, from 0.
    Publish(u64),
}

/// Purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A read by a reader that goes through the stream: its next read begins where this one ends.
    Continues,
    /// A single read at some position. It has no effect on the position of the next read.
    Once,
    /// A read of one page in a pass over the whole stream. The pass must find each record once.
    Whole,
}

/// Content of a correct reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedReply {
    /// The request has succeeded for this number of records or messages.
    Done(u64),
    /// The group delivered records. The client must acknowledge them.
    Fetched {
        /// Number of the attempt, for the acknowledgement.
        attempt: u64,
        /// Number of delivered records.
        records: u64,
    },
}

/// Faults of a reply, and a description of the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedProblem {
    /// Number of records with faults.
    pub faults: FeedFaults,
    /// Description of the first fault.
    pub text: String,
}

/// Path on which a record or message came back to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The record came in the reply to a read of the stream.
    Read,
    /// The record came in the reply to a fetch of the consumer group.
    Fetch,
    /// The message came over a subscription.
    Message,
    /// The record came in the pass over the whole stream after the runs.
    Whole,
}
