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
        /// The oldest record kept.
        Start = 0 "start" {},
        /// The next record to be appended.
        End = 1 "end" {},
        /// A given offset.
        Offset = 2 "offset" {
            /// Offset to begin at.
            offset: Offset
        },
        /// The first record that is not older than a given time.
        Time = 3 "time" {
            /// Space time to begin at.
            time: SpaceTime
        },
        /// A given number of offsets before the end.
        Last = 4 "last" {
            /// Number of offsets.
            records: u64
        },
    }
}

structure! {
    /// Initial credit of a subscription. Later [`Credit`](super::Credit) frames raise it.
    Permit as "permit" {
        /// Total of messages, records or changes permitted.
        messages: u64,
        /// Total of bytes permitted.
        bytes: u64,
    }
}

structure! {
    /// Reads a page of records.
    Read as "read" {
        /// Id of the stream.
        stream: StreamId,
        /// Position of the first record.
        from: Position,
        /// Maximum number of records; 0 selects the server's default.
        max_records: u32,
        /// Approximate maximum of bytes, but at least one record; 0 selects the server's default.
        max_bytes: u32,
    }
}

structure! {
    /// Begins a tail: a subscription to the existing records from a position on and then to new ones, without gaps or
    /// duplicates.
    Tail as "tail" {
        /// Id of the stream.
        stream: StreamId,
        /// Position of the first record.
        from: Position,
        /// Initial credit of the subscription.
        permit: Permit,
    }
}

structure! {
    /// Requests the description of a stream by its name.
    FindStream<'a> as "find stream" {
        /// Name of the stream.
        name: &'a str,
    }
}

structure! {
    /// Requests a page of streams, ordered by id.
    ListStreams as "list streams" {
        /// Last id of the previous page; 0 for the first page.
        after: StreamId,
        /// Maximum number of streams in the page.
        limit: u32,
    }
}

structure! {
    /// Requests the first offset whose record is not older than a given time.
    FindOffset as "find offset" {
        /// Id of the stream.
        stream: StreamId,
        /// Space time to search for.
        time: SpaceTime,
    }
}

structure! {
    /// Requests the producers that a stream remembers.
    ListProducers<'a> as "list producers" {
        /// Id of the stream.
        stream: StreamId,
        /// Id of the only producer to list; empty lists all.
        producer: &'a str,
    }
}

structure! {
    /// Consecutive records of one append.
    RecordRun<'a> as "record run" {
        /// Offset of the first record.
        first: Offset,
        /// Space time of the append.
        time: SpaceTime,
        /// Number of records.
        count: u32,
        /// Record batch as in `command.md`: the bytes that were appended.
        records: &'a [u8],
    }
}

structure! {
    /// Reply to [`Read`]: records. A gap between two runs means that compaction has dropped records.
    Records<'a> as "records" {
        /// Durability level that all data in this reply has reached.
        durability: Durability,
        /// Offset to continue reading at.
        next: Offset,
        /// Next offset that the stream would assign at the time of reading.
        high_watermark: Offset,
        /// Records in order of their offsets.
        runs: List<'a, RecordRun<'a>>,
    }
}

structure! {
    /// Reply to [`Tail`]: the tail has begun.
    Tailing as "tailing" {
        /// First offset of the tail.
        next: Offset,
        /// Next offset that the stream assigns.
        high_watermark: Offset,
    }
}

structure! {
    /// Records that a tail sends. They follow the records of the previous frame.
    Tailed<'a> as "tailed" {
        /// Durability level that all data in this frame has reached.
        durability: Durability,
        /// Offset from which a new tail continues without a gap.
        next: Offset,
        /// Next offset that the stream assigns.
        high_watermark: Offset,
        /// Records in order of their offsets.
        runs: List<'a, RecordRun<'a>>,
    }
}

structure! {
    /// Reply to [`FindStream`].
    StreamFound as "stream found" {
        /// Description of the stream.
        stream: Stream,
    }
}

structure! {
    /// Reply to [`ListStreams`].
    StreamList<'a> as "stream list" {
        /// True if more streams follow the last one.
        more: bool,
        /// Streams of the page, ordered by id.
        streams: List<'a, Stream>,
    }
}

structure! {
    /// Reply to [`FindOffset`].
    OffsetFound as "offset found" {
        /// Offset found.
        offset: Offset,
    }
}

structure! {
    /// Reply to [`ListProducers`].
    ProducerList<'a> as "producer list" {
        /// Producers ordered by id.
        producers: List<'a, Producer>,
    }
}
