//! Native streams as read-only keys of Redis clients.
//!
//! Owns: an implementation of [`Read`]. Its keys are the names of streams. The entries of such a Redis stream are the
//! records, found by offset. Does not own: the commands that read, the presentation of a record
//! (`thalweg_redis::streams::native`), or writes, which are ordinary appends and trims.
//!
//! Unlike other reads of Redis commands, these are not from one consistent view. Streams only grow at their end and
//! shrink at their start, so a reader finds all records that the stream had when the reader looked it up, except for
//! records trimmed since.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use thalweg_redis::{
    Collection, CollectionId, KeyInfo, KeyValue, Kind, Read, StoreError, Value,
    store::{Visit, VisitKeys},
    streams::{EntryId, layout, native},
};
use thalweg_types::{
    Offset, SpaceTime, StreamId,
    budget::{self, BudgetSpent},
    steps::{READ, ROW, read_bytes},
};

use crate::{
    database::Database,
    error::ReadError,
    stream::{Stream, StreamInfo},
};

/// Number of records that a Redis command reads from a stream at a time.
const PAGE_RECORDS: u64 = 256;
/// Number of records that a Redis command reads first if it begins with the newest record, because often only one is
/// needed.
const FIRST_RECORDS: u64 = 4;
/// Approximate number of bytes that a Redis command reads from a stream at a time.
const PAGE_BYTES: u64 = 1024 * 1024;
/// Number of streams that a list of Redis keys looks up at a time.
const PAGE_STREAMS: usize = 1024;

/// The native streams of a database as Redis keys. See the module's documentation.
#[derive(Debug)]
pub struct RedisStreams<'d> {
    db: &'d Database,
}

impl Database {
    /// Returns the database's native streams in the form in which Redis commands read them.
    #[must_use]
    pub fn redis_streams(&self) -> RedisStreams<'_> {
        RedisStreams { db: self }
    }
}

impl Stream {
    /// Returns the time at which the record at an offset was appended; `None` if the record does not exist.
    ///
    /// # Errors
    /// The state or the log cannot be read.
    pub fn time_of(&self, offset: Offset) -> Result<Option<SpaceTime>, ReadError> {
        match self.read(offset, 1, 1) {
            Ok(page) => Ok(page.batches.first().filter(|batch| batch.first == offset).map(|batch| batch.time)),
            Err(ReadError::Trimmed { .. } | ReadError::BeyondEnd { .. } | ReadError::NoSuchStream(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the first offset whose record has this Redis entry id or a higher one; the stream's next offset if
    /// there is no such record.
    ///
    /// # Errors
    /// The state or the log cannot be read.
    pub fn offset_of_id(&self, id: EntryId) -> Result<Offset, ReadError> {
        let begin = |ms: u64| self.offset_at(SpaceTime(ms.saturating_mul(1000)));
        let first = begin(id.ms)?;
        if id.seq <= first.0 {
            return Ok(first);
        }
        Ok(Offset(id.seq).min(begin(id.ms.saturating_add(1))?))
    }
}

fn failed(error: ReadError) -> StoreError {
    StoreError::Failed(Box::new(error))
}

impl RedisStreams<'_> {
    fn stream(&self, key: &[u8]) -> Option<Stream> {
        self.db.find_stream(str::from_utf8(key).ok()?)
    }

    fn stream_of(&self, id: CollectionId) -> Option<Stream> {
        Some(self.db.stream_with_id(StreamId(u32::try_from(id.0).ok()?)))
    }

    fn key_info(info: &StreamInfo) -> KeyInfo {
        // Both offsets only rise, so their sum identifies the contents.
        let version = info.start.0 + info.next.0 + 1;
        KeyInfo { kind: Kind::Stream, deadline: None, version, len: 0 }
    }

    /// Returns the half-open range of existing offsets whose Redis entry ids are from `first` to `last`; `None` if
    /// there are none.
    fn offsets(stream: &Stream, first: EntryId, last: EntryId) -> Result<Option<(Offset, Offset)>, StoreError> {
        let Some(info) = info(stream)? else { return Ok(None) };
        let from = stream.offset_of_id(first).map_err(failed)?.max(info.start);
        let to = match last.next() {
            Some(next) if last < native::id_of(info.last_time, info.next) => {
                stream.offset_of_id(next).map_err(failed)?.min(info.next)
            }
            _ => info.next,
        };
        Ok((from < to).then_some((from, to)))
    }
}

fn info(stream: &Stream) -> Result<Option<StreamInfo>, StoreError> {
    match stream.info() {
        Ok(info) => Ok(Some(info)),
        Err(ReadError::NoSuchStream(_)) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Passes the records of a range of offsets to `visit` in order, at most one page. Returns the offset at which it
/// stopped, and the last answer of `visit`.
fn show(
    stream: &Stream,
    (from, to): (Offset, Offset),
    visit: &mut dyn FnMut(EntryId, Vec<u8>) -> ControlFlow<()>,
) -> Result<(Offset, ControlFlow<()>), StoreError> {
    let page = match stream.read(from, (to.0 - from.0).min(PAGE_RECORDS), PAGE_BYTES) {
        Ok(page) => page,
        Err(ReadError::Trimmed { start, .. }) => return Ok((start, ControlFlow::Continue(()))),
        Err(ReadError::NoSuchStream(_) | ReadError::BeyondEnd { .. }) => return Ok((to, ControlFlow::Continue(()))),
        Err(error) => return Err(failed(error)),
    };
    let mut flow = ControlFlow::Continue(());
    let each = &mut |offset: Offset, time: SpaceTime, record: &thalweg_types::record::Record<'_>| {
        flow = if offset >= to {
            ControlFlow::Break(())
        } else {
            let entry = native::entry_of(record);
            match budget::charge(ROW + read_bytes(entry.len())) {
                ControlFlow::Continue(()) => visit(native::id_of(time, offset), entry),
                spent => spent,
            }
        };
        flow
    };
    page.for_each(each).map_err(failed)?;
    Ok((page.next.max(from), flow))
}

impl Read for RedisStreams<'_> {
    fn now(&self) -> u64 {
        self.db.space_time().0 / 1000
    }

    fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError> {
        if budget::charge(READ).is_break() {
            return Err(StoreError::Failed(Box::new(BudgetSpent::Steps)));
        }
        let Some(stream) = self.stream(key) else { return Ok(None) };
        Ok(info(&stream)?.as_ref().map(Self::key_info))
    }

    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        if budget::charge(READ).is_break() {
            return Err(StoreError::Failed(Box::new(BudgetSpent::Steps)));
        }
        let Some(stream) = self.stream(key) else { return Ok(None) };
        let Some(info) = info(&stream)? else { return Ok(None) };
        let KeyInfo { deadline, version, .. } = Self::key_info(&info);
        let first_time = stream.time_of(info.start).map_err(failed)?.unwrap_or_default();
        let meta = native::meta(info.start, info.next, first_time, info.last_time);
        let id = CollectionId(u64::from(info.id.0));
        let value = Value::Collection(Collection { id, kind: Kind::Stream, meta });
        Ok(Some(KeyValue { value, deadline, version }))
    }

    fn len(&self) -> Result<u64, StoreError> {
        Ok(self.db.inner.open.machine.stream_count() as u64)
    }

    /// Visits the names of the streams in the order of their creation, after the stream `after`. If that stream has
    /// been deleted, the scan ends.
    fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError> {
        let mut last = match after {
            None => None,
            Some(after) => match self.stream(after) {
                Some(stream) => Some(stream.id()),
                None => return Ok(()),
            },
        };
        loop {
            let page = self.db.streams_after(last, PAGE_STREAMS);
            for info in &page {
                if budget::charge(ROW).is_break() {
                    return Err(StoreError::Failed(Box::new(BudgetSpent::Steps)));
                }
                if visit(info.name.as_bytes(), &Self::key_info(info)).is_break() {
                    return Ok(());
                }
            }
            match page.last() {
                Some(info) if page.len() == PAGE_STREAMS => last = Some(info.id),
                _ => return Ok(()),
            }
        }
    }

    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let mut found = None;
        let bound = Bound::Included(name);
        self.parts(id, bound, bound, false, &mut |_, value| {
            found = Some(Bytes::copy_from_slice(value));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    fn parts(
        &self,
        id: CollectionId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        descending: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let (Some(stream), Some((first, last))) = (self.stream_of(id), native::ids_within((lower, upper))) else {
            return Ok(());
        };
        let Some((mut from, mut to)) = Self::offsets(&stream, first, last)? else { return Ok(()) };
        if !descending {
            let each = &mut |id, entry: Vec<u8>| visit(&layout::entry(id), &entry);
            while from < to {
                let (next, flow) = show(&stream, (from, to), each)?;
                if flow.is_break() || next == from {
                    return Ok(());
                }
                from = next;
            }
            return Ok(());
        }
        let mut records = FIRST_RECORDS;
        while from < to {
            let begin = Offset(to.0.saturating_sub(records)).max(from);
            let (mut rows, mut at) = (Vec::new(), begin);
            while at < to {
                let (next, _) = show(&stream, (at, to), &mut |id, entry| {
                    rows.push((id, entry));
                    ControlFlow::Continue(())
                })?;
                if next == at {
                    break;
                }
                at = next;
            }
            for (id, entry) in rows.into_iter().rev() {
                if visit(&layout::entry(id), &entry).is_break() {
                    return Ok(());
                }
            }
            (to, records) = (begin, (records * 4).min(PAGE_RECORDS));
        }
        Ok(())
    }
}
