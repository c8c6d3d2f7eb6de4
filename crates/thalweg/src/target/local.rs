//! A directory that this process opens through the engine.

use std::{
    ops::{Bound, ControlFlow},
    path::Path,
    time::Duration,
};

use serde_json::Value;
use thalweg_engine::{
    Create, DEFAULT_STATS_KEYS, Database, Keyspace, Options, Order, ProducerInfo, ReadError, ScanRange, Stream,
    StreamInfo, Values, WriteError,
};
use thalweg_server::{
    GroupCall, commit_json, digest_json, group_json, info_json, node_status, stats_json, transact_json, version_json,
};
use thalweg_types::{
    Durability, Offset, SpaceTime,
    command::{AppendTerms, CommandError, CommitBuilder, Expect, KeyspaceConfig, StreamConfig},
    record::{Record, RecordBatch},
};

use super::{
    Access, Appended, Found, KeyspaceChange, NewRecord, ProducerRow, ScanQuery, StreamRecord, StreamRow, Target,
    VisitPairs, VisitRecords, Written,
    answer::of_api,
    groups, holds_for_absent, no_such_stream, past,
    snapshot::{PartialFile, SnapshotAsk},
    watch::{self, VisitChanges, WatchQuery},
};
use crate::{
    failure::{Exit, Failure},
    render,
};

/// Bytes read per page of a stream.
const PAGE_BYTES: u64 = 4 * 1024 * 1024;

/// Target that is a directory, opened in this process.
pub struct Local {
    database: Database,
    access: Access,
}

impl Local {
    pub fn open(path: &Path, access: Access, durability: Option<Durability>) -> Result<Self, Failure> {
        let create = match access {
            Access::Read | Access::Inspect => Create::Never,
            Access::Write => Create::IfMissing,
        };
        let mut options = Options { create, ..Options::default() };
        if let Some(level) = durability {
            options.durability = level;
        }
        if access == Access::Inspect {
            options.maintenance_interval = Duration::ZERO;
        }
        let database = Database::open(path, options).map_err(|error| Failure::of(&error))?;
        Ok(Self { database, access })
    }

    pub(super) fn into_database(self) -> Database {
        self.database
    }

    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    pub(super) fn find_keyspace(&self, name: &str) -> Result<Keyspace, Failure> {
        self.database.find_keyspace(name).ok_or_else(|| no_such_keyspace(name))
    }

    fn find_stream(&self, name: &str) -> Result<Stream, Failure> {
        self.database.find_stream(name).ok_or_else(|| no_such_stream(name))
    }
}

impl Target for Local {
    fn put(&self, keyspace: &str, key: &[u8], value: &[u8], expect: Option<Expect<'_>>) -> Result<Written, Failure> {
        let keyspace = self.database.keyspace(keyspace).map_err(of_write)?;
        let ack = match expect {
            Some(expect) => keyspace.put_if(key, value, expect),
            None => keyspace.put(key, value),
        };
        written(ack)
    }

    fn put_many(&self, keyspace: &str, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Written, Failure> {
        let keyspace = self.database.keyspace(keyspace).map_err(of_write)?;
        let mut commit = CommitBuilder::new();
        for (key, value) in pairs {
            commit.put(keyspace.id(), key, value).map_err(of_command)?;
        }
        written(self.database.commit(&commit))
    }

    fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Found>, Failure> {
        let Some(keyspace) = self.database.find_keyspace(keyspace) else { return Ok(None) };
        let entry = keyspace.get(key).map_err(of_read)?;
        Ok(entry.map(|entry| Found { value: entry.value.to_vec(), revision: entry.revision.get() }))
    }

    fn delete(&self, keyspace: &str, key: &[u8], expect: Option<Expect<'_>>) -> Result<Written, Failure> {
        let Some(keyspace) = self.database.find_keyspace(keyspace) else {
            return match expect {
                Some(expect) if !holds_for_absent(expect) => {
                    Err(of_write(WriteError::ConditionFailed { condition: 0, actual: None }))
                }
                Some(_) | None => Ok(Written { durability: self.database.durability(), revision: None }),
            };
        };
        let ack = match expect {
            Some(expect) => keyspace.delete_if(key, expect),
            None => keyspace.delete(key),
        };
        written(ack)
    }

    fn scan(&self, keyspace: &str, query: &ScanQuery, visit: VisitPairs<'_>) -> Result<Option<String>, Failure> {
        let Some(keyspace) = self.database.find_keyspace(keyspace) else { return Ok(None) };
        past::scan(&keyspace, &scan_range(query), query, visit)
    }

    fn watch(&self, keyspace: &str, query: &WatchQuery, visit: VisitChanges<'_>) -> Result<(), Failure> {
        watch::local(&self.database, keyspace, query, visit)
    }

    fn keyspaces(&self) -> Result<Vec<String>, Failure> {
        Ok(self.database.keyspaces().into_iter().map(|info| info.name).collect())
    }

    fn add(&self, keyspace: &str, key: &[u8], delta: i64) -> Result<(i64, Written), Failure> {
        let keyspace = self.database.keyspace(keyspace).map_err(of_write)?;
        let added = keyspace.add(key, delta).map_err(of_write)?;
        Ok((added.value, Written { durability: added.durability, revision: Some(added.revision.get()) }))
    }

    fn delete_prefix(&self, keyspace: &str, prefix: &[u8]) -> Result<(Option<u64>, Written), Failure> {
        let deleted = self.find_keyspace(keyspace)?.delete_prefix(prefix).map_err(of_write)?;
        Ok((deleted.keys, Written { durability: deleted.durability, revision: Some(deleted.revision.get()) }))
    }

    fn commit(&self, commit: &[u8]) -> Result<Value, Failure> {
        commit_json(&self.database, commit).map_err(of_api)
    }

    fn transact(&self, transaction: &[u8]) -> Result<Value, Failure> {
        transact_json(&self.database, transaction).map_err(of_api)
    }

    fn keyspace(&self, name: &str) -> Result<Value, Failure> {
        let keyspace = self.find_keyspace(name)?;
        let info = keyspace.info().ok_or_else(|| no_such_keyspace(name))?;
        let mut object = info_json(&info);
        object["stats"] = stats_json(&keyspace.stats(DEFAULT_STATS_KEYS).map_err(of_read)?);
        Ok(object)
    }

    fn create_keyspace(&self, name: &str, change: &KeyspaceChange) -> Result<Value, Failure> {
        let config = changed(KeyspaceConfig::default(), change);
        self.database.create_keyspace(name, &config).map_err(of_write)?;
        self.keyspace(name)
    }

    fn configure_keyspace(&self, name: &str, change: &KeyspaceChange) -> Result<Value, Failure> {
        let keyspace = self.find_keyspace(name)?;
        let info = keyspace.info().ok_or_else(|| no_such_keyspace(name))?;
        keyspace.configure(&changed(info.config, change)).map_err(of_write)?;
        self.keyspace(name)
    }

    fn drop_keyspace(&self, name: &str) -> Result<(), Failure> {
        self.find_keyspace(name)?.drop_all().map(|_| ()).map_err(of_write)
    }

    fn append(&self, stream: &str, records: &[NewRecord], terms: &AppendTerms<'_>) -> Result<Appended, Failure> {
        let stream = self.database.stream(stream).map_err(of_write)?;
        let batch = encode(records)?;
        let ack = stream.append_with(&batch, terms).map_err(of_write)?;
        let offsets = ack.appends.first().map(|at| (at.first.get(), at.first.get() + u64::from(at.count)));
        Ok(Appended { durability: ack.durability, offsets, duplicate: ack.duplicate })
    }

    fn producers(&self, stream: &str) -> Result<Vec<ProducerRow>, Failure> {
        let row = |info: ProducerInfo| ProducerRow {
            id: info.id,
            epoch: info.epoch.into(),
            next_sequence: info.next_sequence,
            last_time: info.last_time.micros(),
        };
        Ok(self.find_stream(stream)?.producers().map_err(of_read)?.into_iter().map(row).collect())
    }

    fn open_producer(&self, stream: &str, id: &str) -> Result<u64, Failure> {
        let stream = self.database.stream(stream).map_err(of_write)?;
        Ok(stream.producer(id).map_err(of_write)?.epoch().into())
    }

    fn read(&self, stream: &str, from: u64, limit: u64, visit: VisitRecords<'_>) -> Result<(), Failure> {
        let stream = self.find_stream(stream)?;
        let (mut from, mut left) = (Offset(from), limit);
        while left > 0 {
            let page = stream.read(from, left, PAGE_BYTES).map_err(of_read)?;
            if page.record_count() == 0 {
                break;
            }
            let mut outcome = Ok(());
            let mut stopped = false;
            page.for_each(&mut |offset, time, record| {
                let record = owned(offset, time, record);
                let next = flow(&mut outcome, visit(record));
                stopped = next.is_break();
                next
            })
            .map_err(of_read)?;
            outcome?;
            if stopped {
                break;
            }
            left = left.saturating_sub(page.record_count());
            from = page.next;
        }
        Ok(())
    }

    fn tail(&self, stream: &str, from: u64, visit: VisitRecords<'_>) -> Result<(), Failure> {
        self.read(stream, from, u64::MAX, visit)?;
        render::note("end of the stream: while this command has the directory open, nobody else can append");
        Ok(())
    }

    fn offset_at(&self, stream: &str, micros: u64) -> Result<u64, Failure> {
        self.find_stream(stream)?.offset_at(SpaceTime(micros)).map(Offset::get).map_err(of_read)
    }

    fn streams(&self) -> Result<Vec<StreamRow>, Failure> {
        Ok(self.database.streams().into_iter().map(row).collect())
    }

    fn stream(&self, name: &str) -> Result<StreamRow, Failure> {
        self.find_stream(name)?.info().map(row).map_err(of_read)
    }

    fn create_stream(&self, name: &str, config: &StreamConfig) -> Result<(StreamRow, bool), Failure> {
        let (stream, created) = self.database.create_stream(name, config).map_err(of_write)?;
        Ok((stream.info().map(row).map_err(of_read)?, created))
    }

    fn configure_stream(&self, name: &str, config: &StreamConfig) -> Result<StreamRow, Failure> {
        let (stream, created) = self.database.create_stream(name, config).map_err(of_write)?;
        if !created {
            stream.configure(config).map_err(of_write)?;
        }
        self.stream(name)
    }

    fn trim_stream(&self, name: &str, before: u64) -> Result<StreamRow, Failure> {
        self.find_stream(name)?.trim(Offset(before)).map_err(of_write)?;
        self.stream(name)
    }

    fn delete_stream(&self, name: &str) -> Result<(), Failure> {
        self.find_stream(name)?.delete().map(|_| ()).map_err(of_write)
    }

    fn group(&self, call: GroupCall, stream: &str, group: &str, body: &Value) -> Result<Value, Failure> {
        group_json(&self.database, call, stream, group, body).map_err(|error| groups::advised(of_api(error)))
    }

    fn push(&self, _: &str, _: &str, _: &groups::PushAsk<'_>, _: groups::VisitPushed<'_>) -> Result<(), Failure> {
        Err(Failure::usage("--push needs a server: nobody else appends to a directory that is open here"))
    }

    fn snapshot(&self, ask: &mut SnapshotAsk<'_>, out: &mut PartialFile) -> Result<(), Failure> {
        self.take_snapshot(ask, out)
    }

    fn state_digest(&self, progress: &mut dyn FnMut(u64)) -> Result<Value, Failure> {
        let report = self.database.state_view().digest(progress).map_err(|error| of_api(error.into()))?;
        Ok(digest_json(&report))
    }

    fn last_state_digest(&self) -> Result<Value, Failure> {
        Err(Failure::usage("--last needs a server: nobody else computes digests of a directory that is open here"))
    }

    fn state_version(&self) -> Result<Value, Failure> {
        Ok(version_json(&self.database))
    }

    fn raise_version(&self, to: u16) -> Result<Value, Failure> {
        self.database.raise_version(to).map_err(of_write)?;
        self.state_version()
    }

    fn status(&self) -> Result<Value, Failure> {
        Ok(node_status(&self.database))
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        if self.access == Access::Inspect {
            return Ok(());
        }
        self.database.close().map_err(of_write)
    }
}

fn changed(config: KeyspaceConfig, change: &KeyspaceChange) -> KeyspaceConfig {
    KeyspaceConfig {
        exact_counts: change.exact_counts.unwrap_or(config.exact_counts),
        default_ttl: change.default_ttl.or(config.default_ttl),
        history: change.history.unwrap_or(config.history),
    }
}

fn no_such_keyspace(name: &str) -> Failure {
    Failure::new(Exit::NotFound, "no_such_keyspace", format!("there is no keyspace {name:?}"))
        .then("`thalweg keyspaces` lists what is there")
}

/// Converts a visitor's answer to the engine's control flow, and keeps its failure.
fn flow(outcome: &mut Result<(), Failure>, answer: Result<ControlFlow<()>, Failure>) -> ControlFlow<()> {
    answer.unwrap_or_else(|failure| {
        *outcome = Err(failure);
        ControlFlow::Break(())
    })
}

fn scan_range(query: &ScanQuery) -> ScanRange {
    ScanRange {
        prefix: query.prefix.clone(),
        start: query.start.clone().map_or(Bound::Unbounded, Bound::Included),
        end: query.end.clone().map_or(Bound::Unbounded, Bound::Excluded),
        order: if query.reverse { Order::Descending } else { Order::Ascending },
        // One item more than requested shows whether there are more.
        limit: query.limit.map(|limit| limit.saturating_add(1)),
        values: if query.keys_only { Values::Omit } else { Values::Include },
    }
}

fn encode(records: &[NewRecord]) -> Result<RecordBatch, Failure> {
    let mut batch = RecordBatch::new();
    for record in records {
        let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        let is_tombstone = record.is_tombstone;
        let record = Record { key: record.key.as_deref(), headers, payload: &record.payload, is_tombstone };
        batch.push(&record).map_err(|error| of_write(WriteError::Record(error)))?;
    }
    Ok(batch)
}

fn owned(offset: Offset, time: SpaceTime, record: &Record<'_>) -> StreamRecord {
    StreamRecord {
        offset: offset.get(),
        time: time.micros(),
        key: record.key.map(<[u8]>::to_vec),
        headers: record.headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect(),
        payload: record.payload.to_vec(),
        is_tombstone: record.is_tombstone,
    }
}

fn row(info: StreamInfo) -> StreamRow {
    StreamRow {
        name: info.name,
        start: info.start.get(),
        next: info.next.get(),
        bytes: info.bytes,
        last_time: info.last_time.micros(),
        config: info.config,
    }
}

pub(super) fn written(ack: Result<thalweg_engine::Ack, WriteError>) -> Result<Written, Failure> {
    let ack = ack.map_err(of_write)?;
    Ok(Written { durability: ack.durability, revision: ack.revision.map(|revision| revision.get()) })
}

fn of_command(error: CommandError) -> Failure {
    of_write(WriteError::Command(error))
}

#[expect(clippy::needless_pass_by_value, reason = "what map_err gives")]
pub(super) fn of_write(error: WriteError) -> Failure {
    let mut failure = Failure::of(&error);
    match error {
        WriteError::ConditionFailed { actual, .. } => {
            failure.exit = Exit::Conflict;
            failure.message = match actual {
                Some(revision) => format!("the condition does not hold: the key is at revision {revision}"),
                None => "the condition does not hold: the key is not there".to_owned(),
            };
            failure.then("read the key again and decide anew; nothing was written")
        }
        WriteError::ProducerRefused { .. } => {
            failure.exit = Exit::Conflict;
            failure.then("`thalweg streams producers STREAM` shows what the stream knows; nothing was written")
        }
        WriteError::OffsetConflict { .. } => {
            failure.exit = Exit::Conflict;
            failure.then("read what came in between, then append at the next offset; nothing was written")
        }
        _ => failure,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what map_err gives")]
pub(super) fn of_read(error: ReadError) -> Failure {
    let mut failure = Failure::of(&error);
    match error {
        ReadError::Trimmed { start, .. } => {
            failure.exit = Exit::NotFound;
            failure.then(format!("read with `--from {start}`"))
        }
        ReadError::BeyondEnd { next, .. } => {
            failure.exit = Exit::NotFound;
            failure.then(format!("the next record will have offset {next}; `thalweg tail` waits for it"))
        }
        _ => failure,
    }
}
