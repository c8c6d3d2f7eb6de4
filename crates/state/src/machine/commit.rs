//! Commits: everything is checked first, then everything is written.

use thalweg_types::{
    BlobRef, KeyspaceId, LogPosition, Offset, Revision, StreamId,
    command::{AppendedAt, BlindPut, Commit, Condition, Deadline, Expect, Outcome, StreamConfig, StreamLimit, Write},
    limits::{MAX_CONDITION_ROWS, MAX_KEY_BYTES},
    record::{Malformed, Records},
};

use crate::{
    catalog::KeyspaceKind,
    history::KeyChange,
    keys,
    keyspaces::{FORM_BLOB, FORM_INLINE, value_head},
    liveness::BlobKind,
    machine::{
        MachineError, consumers,
        entry::{Applying, Refused},
        leases::check_attachable,
        live::{count_change, live_head, live_key},
        producers,
        timed::{PutUntil, put_until, tell_if_passed, touch},
        transaction_scan::{Unchanged, check_unchanged},
    },
    streams::index::IndexEntry,
    versions::Ending,
};

/// Runs a commit whose bytes begin at `at` in the log.
#[inline]
pub(crate) fn apply(applying: &mut Applying<'_>, commit: &Commit<'_>, at: LogPosition) -> Result<Outcome, Refused> {
    match apply_once(applying, commit, at) {
        Err(Refused::Outcome(refusal)) => {
            // Perhaps refused because it happened before.
            producers::repeated(applying, commit)?.ok_or(Refused::Outcome(refusal))
        }
        applied => applied,
    }
}

#[inline]
fn apply_once(applying: &mut Applying<'_>, commit: &Commit<'_>, at: LogPosition) -> Result<Outcome, Refused> {
    let mut rows = MAX_CONDITION_ROWS;
    for (number, condition) in commit.conditions().enumerate() {
        check_condition(applying, number as u32, &condition?, &mut rows)?;
    }
    let mut writes = commit.writes()?;
    let mut appends = Vec::new();
    if commit.write_count() == 1 {
        // By far the most frequent commit is decoded only once.
        let write = writes.next().expect("one write")?;
        begin_checks(applying);
        check_write(applying, commit, &write)?;
        let revision = applying.use_revision();
        perform(applying, &write, revision, at, &mut appends)?;
        return Ok(Outcome::Committed { revision, appends });
    }
    check_writes(applying, commit, writes.clone())?;
    let revision = applying.use_revision();
    for write in writes {
        let write = write.expect("decoded before, while it was checked");
        perform(applying, &write, revision, at, &mut appends)?;
    }
    Ok(Outcome::Committed { revision, appends })
}

/// Runs a command if it is a blind put to a plain keyspace. Does just what [`apply`] would do, without what a put of this kind has no use for.
#[inline]
pub(crate) fn apply_blind_put(applying: &mut Applying<'_>, bytes: &[u8], at: LogPosition) -> Option<Revision> {
    let BlindPut { keyspace, key, value, value_at } = BlindPut::decode(bytes)?;
    let is_plain = applying.applier.kinds.of(keyspace) == KeyspaceKind::Plain;
    if !is_plain || key.len() > MAX_KEY_BYTES {
        return None;
    }
    let revision = applying.use_revision();
    put(applying, keyspace, key, value, revision, within(at, value_at));
    Some(revision)
}

/// Does a checked write of a commit that begins at `at` in the log.
#[inline]
fn perform(
    applying: &mut Applying<'_>,
    write: &Write<'_>,
    revision: Revision,
    at: LogPosition,
    appends: &mut Vec<AppendedAt>,
) -> Result<(), MachineError> {
    match *write {
        Write::Put { keyspace, key, value, value_at } => {
            let at = within(at, value_at);
            if applying.has_default_ttl(keyspace) {
                let put = PutUntil { keyspace, key, value, deadline: Deadline::Default, lease: None };
                return put_until(applying, &put, revision, at);
            }
            put_counted(applying, keyspace, key, value, revision, at)?;
        }
        Write::PutUntil { keyspace, key, value, value_at, deadline, lease } => {
            let put = PutUntil { keyspace, key, value, deadline, lease };
            put_until(applying, &put, revision, within(at, value_at))?;
        }
        Write::Touch { keyspace, key, deadline } => touch(applying, keyspace, key, deadline, revision)?,
        Write::Delete { keyspace, key } => delete_counted(applying, keyspace, key, revision)?,
        Write::Append { stream, count, batch, batch_at, producer, .. } => {
            let first = append(applying, stream, count, batch, within(at, batch_at));
            let appended = AppendedAt { stream, first, count };
            if let Some(stamp) = producer {
                producers::remember(applying, stream, stamp, revision, &appended)?;
            }
            appends.push(appended);
        }
        Write::Add { .. } | Write::DeletePrefix { .. } | Write::Get { .. } | Write::Scan { .. } => {
            unreachable!("refused when it was checked")
        }
        Write::Settle(settle) => {
            consumers::perform_settle(applying, &settle);
        }
    }
    Ok(())
}

/// Puts a value that does not end, and looks after counts and history.
#[inline]
pub(super) fn put_counted(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    value: &[u8],
    revision: Revision,
    at: LogPosition,
) -> Result<(), MachineError> {
    note_replaced(applying, keyspace, key, Some(value.len()), revision, Ending::Overwritten)?;
    put(applying, keyspace, key, value, revision, at);
    Ok(())
}

/// Deletes a key, and looks after counts and history.
pub(super) fn delete_counted(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    revision: Revision,
) -> Result<(), MachineError> {
    note_replaced(applying, keyspace, key, None, revision, Ending::Deleted)?;
    delete(applying, keyspace, key);
    Ok(())
}

/// Before a write that leaves the key with a value of `after` bytes, or none: looks after the keyspace's counts and
/// history, if it has them.
#[inline]
pub(super) fn note_replaced(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    after: Option<usize>,
    revision: Revision,
    ending: Ending,
) -> Result<(), MachineError> {
    if applying.counts_exactly(keyspace) {
        let change = count_change(applying, keyspace, key, after)?;
        applying.count(keyspace, change);
    }
    if applying.keeps_history(keyspace) {
        applying.supersede(keyspace, key, revision, ending)?;
    }
    Ok(())
}

/// Where byte `offset` of what begins at `at` lies.
pub(super) fn within(at: LogPosition, offset: usize) -> LogPosition {
    LogPosition { offset: at.offset + offset as u32, ..at }
}

/// `rows` is how many the command's conditions on ranges may still look at.
pub(super) fn check_condition(
    applying: &Applying<'_>,
    number: u32,
    condition: &Condition<'_>,
    rows: &mut usize,
) -> Result<(), Refused> {
    let Condition { keyspace, key, expect } = *condition;
    if expect == Expect::Any {
        return Ok(());
    }
    check_key(applying, keyspace, key)?;
    if let Expect::Unchanged(range) = expect {
        return match check_unchanged(applying, keyspace, key, &range, rows)? {
            Unchanged::Holds => Ok(()),
            Unchanged::Changed(actual) => Err(Refused::Outcome(Outcome::ConditionFailed { condition: number, actual })),
            Unchanged::TooLong => {
                let what = "rows in the ranges that a commit depends on";
                Err(Refused::Outcome(Outcome::TooMany { what, limit: MAX_CONDITION_ROWS }))
            }
        };
    }
    let (actual, holds) = if let Expect::Value(value) = expect {
        match live_key(applying, keyspace, key)? {
            Some(live) => (Some(live.revision), applying.value_is(&live, value)?),
            None => (None, false),
        }
    } else {
        let actual = live_head(applying, keyspace, key)?.map(|live| live.revision);
        (actual, is_expected(expect, actual))
    };
    if holds { Ok(()) } else { Err(Refused::Outcome(Outcome::ConditionFailed { condition: number, actual })) }
}

/// Whether a key with this revision, or none, is what a condition asks for that does not look at its value.
fn is_expected(expect: Expect<'_>, actual: Option<Revision>) -> bool {
    match expect {
        Expect::Absent => actual.is_none(),
        Expect::Present => actual.is_some(),
        Expect::Revision(revision) => actual == Some(revision),
        Expect::Before(revision) => actual.unwrap_or(Revision::ZERO) < revision,
        Expect::After(revision) => actual.is_some_and(|actual| actual > revision),
        Expect::Value(_) | Expect::Unchanged(_) | Expect::Any => true,
    }
}

#[inline]
pub(super) fn check_key(applying: &Applying<'_>, keyspace: KeyspaceId, key: &[u8]) -> Result<(), Refused> {
    if applying.applier.kinds.of(keyspace) == KeyspaceKind::Missing {
        return Err(Refused::Outcome(Outcome::NoSuchKeyspace(keyspace)));
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(Malformed { at: 0, expected: "key within the limit" }.into());
    }
    Ok(())
}

/// Forgets what the appends of the commit before made of streams and producers while they were checked.
#[inline]
pub(super) fn begin_checks(applying: &mut Applying<'_>) {
    applying.applier.pending.next_offsets.clear();
    applying.applier.pending.claims.clear();
    applying.applier.pending.producers.clear();
}

fn check_writes<'a>(
    applying: &mut Applying<'_>,
    commit: &Commit<'_>,
    writes: impl Iterator<Item = Result<Write<'a>, Malformed>>,
) -> Result<(), Refused> {
    begin_checks(applying);
    for write in writes {
        check_write(applying, commit, &write?)?;
    }
    Ok(())
}

/// Whether a write depends on what the key is before it.
fn is_reading(write: &Write<'_>) -> bool {
    match write {
        Write::Touch { .. } => true,
        Write::PutUntil { deadline, .. } => deadline.reads(),
        _ => false,
    }
}

#[inline]
fn check_write(applying: &mut Applying<'_>, commit: &Commit<'_>, write: &Write<'_>) -> Result<(), Refused> {
    match write {
        Write::Put { keyspace, key, .. } | Write::Delete { keyspace, key } => check_key(applying, *keyspace, key),
        Write::PutUntil { keyspace, key, lease, deadline, .. } => {
            check_key(applying, *keyspace, key)?;
            check_says_that_it_reads(commit, write)?;
            tell_if_passed(applying, *deadline);
            lease.map_or(Ok(()), |id| check_attachable(applying, id))
        }
        Write::Touch { keyspace, key, deadline } => {
            check_key(applying, *keyspace, key)?;
            tell_if_passed(applying, *deadline);
            check_says_that_it_reads(commit, write)
        }
        append @ Write::Append { .. } => check_append(applying, append),
        Write::Add { .. } | Write::DeletePrefix { .. } | Write::Get { .. } | Write::Scan { .. } => {
            Err(Malformed { at: 0, expected: "transaction, for an operation that reads" }.into())
        }
        Write::Settle(settle) => consumers::check_settle(applying, settle),
    }
}

/// A commit that reads says so up front: it has conditions, if only one that always holds.
fn check_says_that_it_reads(commit: &Commit<'_>, write: &Write<'_>) -> Result<(), Refused> {
    if is_reading(write) && commit.condition_count() == 0 {
        return Err(Malformed { at: 0, expected: "a condition in a commit that reads" }.into());
    }
    Ok(())
}

pub(super) fn check_append(applying: &mut Applying<'_>, append: &Write<'_>) -> Result<(), Refused> {
    let Write::Append { stream, expected, producer, count, batch, batch_at } = *append else { return Ok(()) };
    let Some(head) = applying.live_head(stream) else {
        return Err(Refused::Outcome(Outcome::NoSuchStream(stream)));
    };
    let (head_next, config) = (head.next, head.config.is_set().then(|| head.config.get()));
    if let Some(stamp) = producer {
        producers::check(applying, stream, stamp)?;
    }
    let next = applying.applier.pending.next_offsets.entry(stream).or_insert(head_next);
    if expected.is_some_and(|expected| expected != *next) {
        return Err(Refused::Outcome(Outcome::OffsetConflict { stream, next: *next }));
    }
    *next = next.plus(u64::from(count));
    let largest = check_count(batch, count).map_err(|error| Malformed { at: batch_at + error.at, ..error })?;
    match config.filter(StreamConfig::limits_appends) {
        Some(config) => check_limits(stream, &config, largest, batch.len()),
        None => Ok(()),
    }
}

/// The stream's own limits, which its users have set.
fn check_limits(stream: StreamId, config: &StreamConfig, record: usize, batch: usize) -> Result<(), Refused> {
    let limits = [
        (StreamLimit::RecordBytes, config.max_record_bytes, record as u64),
        (StreamLimit::BatchBytes, config.max_batch_bytes, batch as u64),
    ];
    for (limit, max, got) in limits {
        if let Some(max) = max.filter(|max| got > *max) {
            return Err(Refused::Outcome(Outcome::OverStreamLimit { stream, limit, max, got }));
        }
    }
    Ok(())
}

/// The proposer is not trusted with the count: offsets are assigned by it. Returns the bytes of the largest
/// record.
fn check_count(batch: &[u8], count: u32) -> Result<usize, Malformed> {
    let mut records = Records::new(batch);
    let (mut found, mut largest) = (0_u64, 0);
    while let Some(record) = records.next_framed() {
        largest = largest.max(record?.len() - 4);
        found += 1;
    }
    if found == u64::from(count) {
        Ok(largest)
    } else {
        Err(Malformed { at: 0, expected: "as many records as counted" })
    }
}

#[inline]
pub(super) fn put(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    value: &[u8],
    revision: Revision,
    at: LogPosition,
) {
    applying.changed(&KeyChange::Put { keyspace, key, value }, Some(at));
    let prefix = keys::data_prefix(keyspace);
    if value.len() <= applying.machine.options.inline_value_bytes {
        applying.applier.staged.put(&[&prefix, key], &[&value_head(FORM_INLINE, revision), value]);
    } else {
        let blob = blob_at(at, value);
        applying.applier.staged.put(&[&prefix, key], &[&value_head(FORM_BLOB, revision), &blob.encode()]);
        applying.raise(BlobKind::Value, &blob);
    }
}

#[inline]
pub(super) fn delete(applying: &mut Applying<'_>, keyspace: KeyspaceId, key: &[u8]) {
    applying.changed(&KeyChange::Delete { keyspace, key }, None);
    applying.applier.staged.delete(&[&keys::data_prefix(keyspace), key]);
}

/// A pointer to these bytes, which lie at `at`.
pub(crate) fn blob_at(at: LogPosition, bytes: &[u8]) -> BlobRef {
    BlobRef { generation: at.generation, offset: at.offset, len: bytes.len() as u32, crc: crc_fast::crc32_iscsi(bytes) }
}

/// Appends a checked batch. One without records changes nothing.
pub(super) fn append(
    applying: &mut Applying<'_>,
    stream: thalweg_types::StreamId,
    count: u32,
    batch: &[u8],
    at: LogPosition,
) -> Offset {
    let time = applying.applied.time;
    let head = applying.live_head(stream).expect("checked before");
    let first = head.next;
    if count == 0 {
        return first;
    }
    let blob = blob_at(at, batch);
    let entry = IndexEntry { blob, count, time, bytes_before: head.end_bytes, sparse: None };
    if head.start_batch == head.next {
        head.start_time = time;
    }
    head.next = entry.end(first);
    head.end_bytes += u64::from(blob.len);
    head.last_time = time;
    head.add_content(first, &entry);
    applying.applier.staged.put(&[&keys::index_entry(stream, first)], &[&entry.encode_dense()]);
    applying.raise(BlobKind::Batch, &blob);
    first
}
