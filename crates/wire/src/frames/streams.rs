//! Frames of streams: reading, tailing and describing. Appending, creating, configuring, trimming and deleting are
//! commands.

pub use thalweg_types::info::{Producer, Stream};
use thalweg_types::{
    Durability, Offset, SpaceTime, StreamId,
    codec::{List, structure, variants},
};

variants! {
    /// Position in a stream at which reading begins.
    Position as "position" {
        /// The oldest record that the stream still has.
        Start = 0 "start" {},
        /// The end of the stream: the next record to be appended.
        End = 1 "end" {},
        /// The record with a given offset.
        Offset = 2 "offset" {
            /// Offset at which reading begins.
            offset: Offset
        },
        /// The first record that is not older than a given time.
        Time = 3 "time" {
            /// Time of the first record to read, in microseconds since 1970 by the clock that all nodes share.
            time: SpaceTime
        },
        /// The position that lies a given number of offsets before the end of the stream.
        Last = 4 "last" {
            /// Number of offsets between the position and the end of the stream.
            records: u64
        },
    }
}

structure! {
    /// Initial credit of a subscription: how much the sender may send before it receives a [`Credit`](super::Credit)
    /// frame, which raises the limits.
    Permit as "permit" {
        /// Number of messages, records, changes or events that the sender may send.
        messages: u64,
        /// Number of bytes that the sender may send.
        bytes: u64,
    }
}

structure! {
    /// Reads a page of a stream's records.
    Read as "read" {
        /// Id of the stream to read.
        stream: StreamId,
        /// Position of the first record to read.
        from: Position,
        /// Maximum number of records; 0 selects the server's default.
        max_records: u32,
        /// Approximate maximum of bytes in the page; 0 selects the server's default. A page has at least one record if
        /// there is one.
        max_bytes: u32,
    }
}

structure! {
    /// Begins a tail of a stream: a subscription to the existing records from a position on and then to new records,
    /// without gaps or duplicates.
    Tail as "tail" {
        /// Id of the stream whose records the server sends.
        stream: StreamId,
        /// Position of the first record to send.
        from: Position,
        /// Initial credit of the subscription: the messages and bytes that the server may send at first.
        permit: Permit,
    }
}

structure! {
    /// Requests the description of a stream by its name.
    FindStream<'a> as "find stream" {
        /// Name of the stream to find.
        name: &'a str,
    }
}

structure! {
    /// Requests a page of streams, ordered by id.
    ListStreams as "list streams" {
        /// Id of the last stream of the previous page; 0 for the first page.
        after: StreamId,
        /// Maximum number of streams in the page.
        limit: u32,
    }
}

structure! {
    /// Requests the offset of the first record of a stream that is not older than a given time.
    FindOffset as "find offset" {
        /// Id of the stream to search.
        stream: StreamId,
        /// Earliest time of the record, in microseconds since 1970 by the clock that all nodes share.
        time: SpaceTime,
    }
}

structure! {
    /// Requests the producers that a stream remembers. A producer is a client whose retried appends the stream
    /// recognises as duplicates.
    ListProducers<'a> as "list producers" {
        /// Id of the stream whose producers are listed.
        stream: StreamId,
        /// Id of the producer to list; empty lists all producers.
        producer: &'a str,
    }
}

structure! {
    /// Consecutive records of a stream that were appended together.
    RecordRun<'a> as "record run" {
        /// Offset of the first record in the run (consecutive records of one append).
        first: Offset,
        /// Time of the append, in microseconds since 1970 by the clock that all nodes share.
        time: SpaceTime,
        /// Number of records in the run (consecutive records of one append).
        count: u32,
        /// Record batch as in `command.md`: the bytes that were appended.
        records: &'a [u8],
    }
}

structure! {
    /// Reply to [`Read`]: records of a stream, as runs of records with consecutive offsets. A gap between the offsets
    /// of two runs means that compaction has dropped records.
    Records<'a> as "records" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// Offset at which the client continues reading.
        next: Offset,
        /// Offset that the stream would assign to the next record, at the time of reading.
        high_watermark: Offset,
        /// Records in the order of their offsets, as runs of records that were appended together.
        runs: List<'a, RecordRun<'a>>,
    }
}

structure! {
    /// Reply to [`Tail`]: the tail has begun.
    Tailing as "tailing" {
        /// Offset of the first record that the tail will send.
        next: Offset,
        /// Offset that the stream will assign to the next record.
        high_watermark: Offset,
    }
}

structure! {
    /// Records that a tail sends. They follow the records of the tail's previous frame.
    Tailed<'a> as "tailed" {
        /// Durability level that all data in this frame has reached.
        durability: Durability,
        /// Offset from which a new tail continues without a gap.
        next: Offset,
        /// Offset that the stream will assign to the next record.
        high_watermark: Offset,
        /// Records in the order of their offsets, as runs of records that were appended together.
        runs: List<'a, RecordRun<'a>>,
    }
}

structure! {
    /// Reply to [`FindStream`]: the description of a stream.
    StreamFound as "stream found" {
        /// Description of the stream.
        stream: Stream,
    }
}

structure! {
    /// Reply to [`ListStreams`]: a page of streams.
    StreamList<'a> as "stream list" {
        /// True if more streams follow after this page.
        more: bool,
        /// Streams in the page, ordered by id.
        streams: List<'a, Stream>,
    }
}

structure! {
    /// Reply to [`FindOffset`]: the offset of a record.
    OffsetFound as "offset found" {
        /// Offset of the first record that is not older than the requested time.
        offset: Offset,
    }
}

structure! {
    /// Reply to [`ListProducers`]: the producers of a stream.
    ProducerList<'a> as "producer list" {
        /// Producers ordered by id.
        producers: List<'a, Producer>,
    }
}
