//! Requests about a stream, a group and a subject, and the contents of their replies.

use super::{appends::Append, faults::FeedFaults};

/// Sizes of records, messages and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedSizes {
    /// Length of a record in bytes.
    pub record_bytes: usize,
    /// Number of records of an append.
    pub batch: u32,
    /// Maximum number of records of a read.
    pub read_records: u32,
    /// Position of reads.
    pub read_from: ReadFrom,
    /// Maximum number of records of a fetch.
    pub fetch_records: u32,
    /// Length of a message in bytes.
    pub message_bytes: usize,
    /// Number of messages of a publish.
    pub messages: u32,
}

/// Position of reads in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// Each reader begins at the first record, and continues after its last read.
    Start,
    /// Each reader begins at the end, and continues after its last read.
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
        /// Offset of the first record.
        from: u64,
        /// End of the records that were acknowledged before the read was sent.
        floor: u64,
        /// Purpose of the read.
        reader: Reader,
    },
    /// Fetches records as a member of the group.
    Fetch,
    /// Acknowledges the records of a fetch.
    Ack {
        /// Attempt of the fetch.
        attempt: u64,
        /// Number of its records.
        records: u64,
    },
    /// Publishes a batch of messages; the number counts the publishes of the run.
    Publish(u64),
}

/// Purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The next read of this reader continues after this one.
    Continues,
    /// The reader reads nothing else.
    Once,
    /// The read gets one page of a pass over the whole stream. The pass must find each record once.
    Whole,
}

/// Content of a correct reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedReply {
    /// The request is done, for this number of records or messages.
    Done(u64),
    /// Records were fetched, and must be acknowledged.
    Fetched {
        /// Attempt of the fetch.
        attempt: u64,
        /// Number of its records.
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
    /// A read of the stream.
    Read,
    /// A fetch of the group.
    Fetch,
    /// A subscription.
    Message,
    /// The pass over the whole stream after the runs.
    Whole,
}
