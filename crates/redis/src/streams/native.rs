//! Native streams as Redis streams: records appear as entries, and added entries become records.
//!
//! Owns: the conversion, for a database whose keys are native streams. Does not own: the streams. Their owner
//! implements [`Read`](crate::Read) with the functions of this module, so that all reading commands work. The owner
//! also executes the writes that [`Write::parse`] returns.
//!
//! ```text
//! record   key · headers · payload        at 1700000000123 ms, offset 42
//! entry    1700000000123-42   key … · header value · … · payload …
//! ```
//!
//! Invariant: ids increase with offsets, because times never decrease. `docs/redis-streams.md` explains this.

use std::ops::Bound;

use bytes::Bytes;
use thalweg_types::{Offset, SpaceTime, limits::MAX_HEADERS, record::Record};

use super::{
    arguments::is,
    id::{EntryId, NewId},
    layout::{self, Meta},
    trim::{Keep, Options, Trim, TrimCommand},
};
use crate::{
    Reply,
    errors::{CommandEnd, incomplete, refused},
};

/// Name of the field that contains a record's key.
const KEY: &[u8] = b"key";
/// Name of the field that contains a record's payload.
const PAYLOAD: &[u8] = b"payload";

const ONLY_NEXT: &str =
    "ERR entries of native streams get their ids from their append: use *, or a keyspace's database";
const NOT_A_RECORD: &str =
    "ERR fields of native streams are headers: at most 64, with names in UTF-8, besides key and payload";
const NOT_NATIVE: &str = "ERR native streams have no such command: use a keyspace's database";

/// Returns the entry id of a record: its time in milliseconds, and its offset.
#[must_use]
pub fn id_of(time: SpaceTime, offset: Offset) -> EntryId {
    EntryId { ms: time.0 / 1000, seq: offset.0 }
}

/// Returns the encoded meta of the Redis stream that presents a native stream. The native stream has records from
/// `start` up to, but excluding, `next`. `first_time` is the time of the first kept record, and `last_time` that of the
/// last appended record.
#[must_use]
pub fn meta(start: Offset, next: Offset, first_time: SpaceTime, last_time: SpaceTime) -> Bytes {
    let len = next.0.saturating_sub(start.0);
    let last_id = if next.0 == 0 { EntryId::ZERO } else { id_of(last_time, Offset(next.0 - 1)) };
    let first_id = if len == 0 { EntryId::ZERO } else { id_of(first_time, start) };
    Meta { len, last_id, added: next.0, first_id, ..Meta::default() }.encode()
}

/// Encodes a record as the value of the Redis entry that represents the record.
#[must_use]
pub fn entry_of(record: &Record<'_>) -> Vec<u8> {
    let mut fields: Vec<&[u8]> = Vec::with_capacity(2 * record.headers.len() + 4);
    if let Some(key) = record.key {
        fields.extend([KEY, key]);
    }
    for (name, value) in &record.headers {
        fields.extend([name.as_bytes(), value]);
    }
    if !record.payload.is_empty() || fields.is_empty() {
        fields.extend([PAYLOAD, record.payload]);
    }
    layout::encode_entry(&fields)
}

/// Returns the lowest and the highest id of entries whose row names can be within the bounds. Returns `None` if no
/// entry can be within them.
#[must_use]
pub fn ids_within((lower, upper): (Bound<&[u8]>, Bound<&[u8]>)) -> Option<(EntryId, EntryId)> {
    let (lowest, highest) = (layout::entry(EntryId::ZERO), layout::entry(EntryId::MAX));
    let id = |name: &[u8]| layout::id_of(name).ok().filter(|_| name.len() == lowest.len());
    let first = match lower {
        Bound::Included(name) if name > &lowest[..] => id(name).filter(|_| name <= &highest[..])?,
        Bound::Excluded(name) if name >= &lowest[..] => id(name).filter(|_| name <= &highest[..])?.next()?,
        _ => EntryId::ZERO,
    };
    let last = match upper {
        Bound::Included(name) if name < &highest[..] => id(name).filter(|_| name >= &lowest[..])?,
        Bound::Excluded(name) if name <= &highest[..] => id(name).filter(|_| name >= &lowest[..])?.before()?,
        _ => EntryId::MAX,
    };
    (first <= last).then_some((first, last))
}

/// Parsed trim options of `XADD` or `XTRIM` on a native stream. They determine the offset of the first record to
/// keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimBound(Trim);

impl TrimBound {
    /// Returns the id of the first entry to keep, if the options are given by id (MINID); `None` if they limit the
    /// number of entries (MAXLEN).
    #[must_use]
    pub fn first_id(self) -> Option<EntryId> {
        match self.0.keep {
            Keep::From(id) => Some(id),
            Keep::Newest(_) => None,
        }
    }

    /// Returns the offset of the first record to keep. The stream has the offsets from `start` up to, but excluding,
    /// `next`. `first` is the offset that belongs to the id that [`first_id`](Self::first_id) returned.
    #[must_use]
    pub fn start(self, start: Offset, next: Offset, first: Option<Offset>) -> Offset {
        let wanted = match (self.0.keep, first) {
            (Keep::Newest(len), _) => next.0.saturating_sub(len),
            (Keep::From(_), first) => first.map_or(0, |first| first.0),
        };
        // Trimming a native stream reads no records, so the limit on rows does not apply.
        Offset(wanted.max(start.0).min(next.0).min(start.0.saturating_add(self.0.limit)))
    }
}

/// A parsed command that changes a native stream: a Thalweg stream that Redis clients use as a Redis stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write<'a> {
    /// Appends a record.
    Add {
        /// Name of the stream to which the record is appended.
        stream: &'a str,
        /// Record to append.
        record: Record<'a>,
        /// True if a missing stream must not be created.
        no_stream: bool,
        /// Trim to apply after the append, if the client requests one.
        trim: Option<TrimBound>,
    },
    /// Trims a stream.
    Trim {
        /// Name of the stream to trim.
        stream: &'a str,
        /// Options that determine how many records the trim removes.
        trim: TrimBound,
    },
}

impl<'a> Write<'a> {
    /// Parses an `XADD` or `XTRIM` command on a native stream. The caller has checked the number of arguments.
    /// Returns the error reply for any other command, and for invalid arguments.
    pub fn parse(arguments: &[&'a [u8]]) -> Result<Self, Reply> {
        Self::of(arguments).map_err(|stop| match stop {
            CommandEnd::Refused(reply) => reply,
            CommandEnd::Failed(_) => Reply::error(NOT_NATIVE),
        })
    }

    fn of(arguments: &[&'a [u8]]) -> Result<Self, CommandEnd> {
        let command = arguments.first().copied().unwrap_or_default();
        if is(command, "xtrim") {
            let Options { trim, .. } = Options::parse(arguments, TrimCommand::Trim)?;
            let trim = TrimBound(trim.ok_or_else(|| refused(NOT_NATIVE))?);
            return Ok(Self::Trim { stream: name(arguments[1])?, trim });
        }
        if !is(command, "xadd") {
            return Err(refused(NOT_NATIVE));
        }
        let Options { trim, no_stream, id, end } = Options::parse(arguments, TrimCommand::Add)?;
        let fields = &arguments[end..];
        if fields.is_empty() || !fields.len().is_multiple_of(2) {
            return Err(incomplete(arguments));
        }
        if id != NewId::Next {
            return Err(refused(ONLY_NEXT));
        }
        let (stream, record) = (name(arguments[1])?, record_of(fields)?);
        Ok(Self::Add { stream, record, no_stream, trim: trim.map(TrimBound) })
    }
}

fn name(argument: &[u8]) -> Result<&str, CommandEnd> {
    str::from_utf8(argument)
        .map_err(|_| refused("ERR a native stream has letters, digits, '.', '_' and '-' in its name"))
}

fn record_of<'a>(fields: &[&'a [u8]]) -> Result<Record<'a>, CommandEnd> {
    let (mut key, mut payload, mut headers) = (None, None, Vec::new());
    for pair in fields.chunks_exact(2) {
        match pair[0] {
            KEY if key.is_none() => key = Some(pair[1]),
            PAYLOAD if payload.is_none() => payload = Some(pair[1]),
            name => headers.push((str::from_utf8(name).map_err(|_| refused(NOT_A_RECORD))?, pair[1])),
        }
    }
    if headers.len() > MAX_HEADERS {
        return Err(refused(NOT_A_RECORD));
    }
    Ok(Record { key, headers, payload: payload.unwrap_or_default(), is_tombstone: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(record: &Record<'_>) -> Vec<Reply> {
        match layout::decode_entry(&entry_of(record)).unwrap() {
            Reply::Array(fields) => fields,
            other => panic!("{other:?}"),
        }
    }

    fn parse<'a>(command: &'a str) -> Result<Write<'a>, Reply> {
        let arguments: Vec<&'a [u8]> = command.split(' ').map(str::as_bytes).collect();
        Write::parse(&arguments)
    }

    #[test]
    fn entries_become_records_and_come_back() {
        let shown = |text: &str| text.split(' ').map(|field| Reply::bulk(field.as_bytes())).collect::<Vec<_>>();
        for (given, back) in [
            ("f v", "f v"),
            ("payload p f v key k", "key k f v payload p"),
            ("payload p payload q key k key l", "key k payload q key l payload p"),
            ("f v f w", "f v f w"),
        ] {
            let command = format!("xadd s * {given}");
            let Ok(Write::Add { record, .. }) = parse(&command) else { panic!("{given}") };
            assert_eq!(fields(&record), shown(back), "{given}");
        }
        assert_eq!(fields(&Record::default()), vec![Reply::bulk(b"payload"), Reply::bulk(b"")]);
    }

    #[test]
    fn what_a_native_stream_does_not_have_is_refused() {
        for (command, text) in [
            ("xadd s 1-1 f v", ONLY_NEXT),
            ("xadd s 1-* f v", ONLY_NEXT),
            ("xdel s 1-1", NOT_NATIVE),
            ("set s v", NOT_NATIVE),
        ] {
            assert_eq!(parse(command), Err(Reply::error(text)), "{command}");
        }
        assert_eq!(Write::parse(&[b"xadd", b"s", b"*", b"\xff", b"v"]), Err(Reply::error(NOT_A_RECORD)));
        let many: String = (0..=MAX_HEADERS).map(|at| format!(" f{at} v")).collect();
        assert_eq!(parse(&format!("xadd s *{many}")), Err(Reply::error(NOT_A_RECORD)));
        assert!(Write::parse(&[b"xadd", b"\xff", b"*", b"f", b"v"]).is_err());
    }

    #[test]
    fn trims_are_by_offset() {
        let trim = |command: &str| match parse(command) {
            Ok(Write::Trim { trim, .. }) => trim,
            other => panic!("{other:?}"),
        };
        let start = |command: &str, first| trim(command).start(Offset(10), Offset(50), first).0;
        assert_eq!(start("xtrim s MAXLEN 5", None), 45);
        assert_eq!(start("xtrim s MAXLEN 100", None), 10);
        assert_eq!(start("xtrim s MAXLEN ~ 0 LIMIT 3", None), 13);
        assert_eq!(trim("xtrim s MINID 7").first_id(), Some(EntryId { ms: 7, seq: 0 }));
        assert_eq!([Some(Offset(5)), Some(Offset(20))].map(|first| start("xtrim s MINID 7", first)), [10, 20]);
    }

    #[test]
    fn names_of_parts_bound_ids() {
        let [one, two, three] = [1, 2, 3].map(|ms| EntryId { ms, seq: 0 });
        let [a, c] = [one, three].map(layout::entry);
        let within = |lower, upper| ids_within((lower, upper));
        assert_eq!(within(Bound::Included(&a), Bound::Included(&c)), Some((one, three)));
        assert_eq!(
            within(Bound::Excluded(&a), Bound::Excluded(&c)),
            Some((one.next().unwrap(), three.before().unwrap()))
        );
        assert_eq!(within(Bound::Unbounded, Bound::Unbounded), Some((EntryId::ZERO, EntryId::MAX)));
        assert_eq!(within(Bound::Included(&c), Bound::Included(&a)), None);
        let group = layout::group(b"g");
        assert_eq!(within(Bound::Included(&group), Bound::Unbounded), None, "there are no groups");
        assert_eq!(within(Bound::Unbounded, Bound::Excluded(&group)), Some((EntryId::ZERO, EntryId::MAX)));
        assert!(two < three && meta(Offset(0), Offset(0), SpaceTime(0), SpaceTime(0)) == Meta::default().encode());
    }
}
