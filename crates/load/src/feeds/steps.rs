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
    /// Appends a batch of records to the stream.
    Append(Append),
    /// Reads records of the stream.
    Read {
        /// Position at which the read begins: the offset of the first record to return, or an id that the ids of all
        /// returned records must exceed.
        from: u64,
        /// End of the records that the reply must contain: the end of those that were acknowledged before the read was
        /// sent.
        floor: u64,
        /// Purpose of the read, such as a read by a reader that goes through the stream.
        reader: Reader,
    },
    /// Fetches records as a member of the group.
    Fetch,
    /// Acknowledges the records of a fetch.
    Ack {
        /// Number that the server gave to the delivery in its reply to the fetch.
        attempt: u64,
        /// Number of records that the fetch returned.
        records: u64,
    },
    /// Publishes a batch of messages to the subject. The field is the number of this publish among those of the run,
    /// from 0.
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

/// Content of a correct reply to a request about a stream, a group or a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedReply {
    /// The request has succeeded for this number of records or messages.
    Done(u64),
    /// The group delivered records. The client must acknowledge them.
    Fetched {
        /// Number that the server gave to this delivery. The client acknowledges the records by it.
        attempt: u64,
        /// Number of delivered records.
        records: u64,
    },
}

/// Faults of the records in one reply, and a description of the first fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedProblem {
    /// Number of records in the reply with each kind of fault.
    pub faults: FeedFaults,
    /// Description of the first fault in the reply.
    pub text: String,
}

/// Path on which a record or message came back to the benchmark run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The record came in the reply to a read of the stream.
    Read,
    /// The record came in the reply to a fetch of the consumer group.
    Fetch,
    /// The message came over a subscription.
    Message,
    /// The record came in the pass over the whole stream after the benchmark runs.
    Whole,
}
