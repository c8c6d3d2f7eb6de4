//! Streams: reading, tailing, describing. Appending, creating, configuring, trimming and deleting are commands.

use thalweg_types::{Durability, Offset, SpaceTime, StreamId, command::StreamConfig};

use crate::{
    codec::List,
    layouts::{structure, variants},
};

variants! {
    /// Where reading begins.
    Position as "position" {
        /// With the oldest record kept.
        Start = 0 "start" {},
        /// With what comes next.
        End = 1 "end" {},
        /// At this offset.
        Offset = 2 "offset" {
            /// Which.
            offset: Offset
        },
        /// With the first record that is not older.
        Time = 3 "time" {
            /// In space time.
            time: SpaceTime
        },
        /// So many offsets before the end.
        Last = 4 "last" {
            /// How many.
            records: u64
        },
    }
}

structure! {
    /// What the receiver of a subscription permits at its begin, as [`Credit`](super::Credit) does later.
    Permit as "permit" {
        /// Messages, records or changes.
        messages: u64,
        /// Bytes.
        bytes: u64,
    }
}

structure! {
    /// Reads records.
    Read as "read" {
        /// Of which stream.
        stream: StreamId,
        /// From where.
        from: Position,
        /// At most so many records; 0: as many as the server likes.
        max_records: u32,
        /// About so many bytes, but at least one record; 0: as many as the server likes.
        max_bytes: u32,
    }
}

structure! {
    /// Begins a tail: what there is from a position on, and then what comes, without gap or duplicate.
    Tail as "tail" {
        /// Of which stream.
        stream: StreamId,
        /// From where.
        from: Position,
        /// What it may send.
        permit: Permit,
    }
}

structure! {
    /// Describes the stream of a name.
    FindStream<'a> as "find stream" {
        /// Its name.
        name: &'a str,
    }
}

structure! {
    /// Lists streams by id.
    ListStreams as "list streams" {
        /// Those after this one; 0: from the first.
        after: StreamId,
        /// At most so many.
        limit: u32,
    }
}

structure! {
    /// Asks for the first offset whose record is not older than a time.
    FindOffset as "find offset" {
        /// Of which stream.
        stream: StreamId,
        /// In space time.
        time: SpaceTime,
    }
}

structure! {
    /// Lists producers that a stream knows.
    ListProducers<'a> as "list producers" {
        /// Of which stream.
        stream: StreamId,
        /// Only this one; empty: all.
        producer: &'a str,
    }
}

structure! {
    /// Consecutive records of one append.
    RecordRun<'a> as "record run" {
        /// Offset of the first.
        first: Offset,
        /// When they were appended, in space time.
        time: SpaceTime,
        /// How many.
        count: u32,
        /// A record batch, as in `command.md`: the bytes that were appended.
        records: &'a [u8],
    }
}

structure! {
    /// Records that were read. Gaps between runs are where compaction has dropped some.
    Records<'a> as "records" {
        /// The level of all that the answer shows.
        durability: Durability,
        /// Read on from here.
        next: Offset,
        /// The stream's next offset at the time of reading.
        high_watermark: Offset,
        /// In order.
        runs: List<'a, RecordRun<'a>>,
    }
}

structure! {
    /// A tail has begun.
    Tailing as "tailing" {
        /// With this offset.
        next: Offset,
        /// The stream's next offset.
        high_watermark: Offset,
    }
}

structure! {
    /// What a tail sends: the records from where the last one ended.
    Tailed<'a> as "tailed" {
        /// The level of all that it shows.
        durability: Durability,
        /// A tail from here on goes on without a gap.
        next: Offset,
        /// The stream's next offset.
        high_watermark: Offset,
        /// In order.
        runs: List<'a, RecordRun<'a>>,
    }
}

structure! {
    /// A stream.
    Stream<'a> as "stream" {
        /// Its id, by which commands name it. Never used for another one.
        id: StreamId,
        /// Oldest offset kept.
        start: Offset,
        /// Next to assign.
        next: Offset,
        /// Encoded bytes of what is kept.
        bytes: u64,
        /// When the last record was appended, in space time; 0: never.
        last_time: SpaceTime,
        /// What it keeps.
        config: StreamConfig,
        /// Its name.
        name: &'a str,
    }
}

structure! {
    /// A stream that was asked for.
    StreamFound<'a> as "stream found" {
        /// The stream.
        stream: Stream<'a>,
    }
}

structure! {
    /// Streams by id.
    StreamList<'a> as "stream list" {
        /// Whether there are more behind the last.
        more: bool,
        /// Those asked for.
        streams: List<'a, Stream<'a>>,
    }
}

structure! {
    /// An offset that was asked for.
    OffsetFound as "offset found" {
        /// Which.
        offset: Offset,
    }
}

structure! {
    /// A producer that a stream knows.
    Producer<'a> as "producer" {
        /// Its epoch.
        epoch: u32,
        /// What comes next in it.
        next_sequence: u64,
        /// When it last appended or was opened, in space time.
        last_time: SpaceTime,
        /// Its id.
        id: &'a str,
    }
}

structure! {
    /// Producers by id.
    ProducerList<'a> as "producer list" {
        /// Those asked for.
        producers: List<'a, Producer<'a>>,
    }
}
