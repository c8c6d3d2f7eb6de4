//! Runs a scenario on the embedded engine instead of a server. The engine's directory is opened in this process, and
//! requests become calls of the engine.
//!
//! Owns: opening the directory, and performing requests in the form of the native protocol by calls of the engine. Does
//! not own: the requests and replies themselves. These are those of the native protocol, so the replies of the engine
//! are checked in the same way as those of a server.
//!
//! A write at a level that waits for an fsync is completed by the engine's committer, as for any task of an async
//! program. In two cases the calling thread commits the write itself, as a blocking caller does: at a lower level, and
//! if the caller has the thread for itself in a closed loop.

use std::{
    fmt,
    future::Future,
    ops::Bound,
    path::Path,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use thalweg_engine::{
    AsyncDatabase, CommandResult, Database, FetchRequest, Group, Keyspace, Options, Order, Purpose, ReadError, Ready,
    RunLimits, ScanRange, Stream, StreamRun, Values as ScanValues, Wake, WriteError,
};
use thalweg_types::{Attempt, Classified, Durability, GroupId, KeyspaceId, LeaseId, StreamId, codec::List};
use thalweg_wire::{
    ClientFrame, Delivery, DeliveryPart, Failed, Fetch, Frame, Get, Pair, Pairs, Position, Read, RecordRun, Records,
    RemainingBytes, Scan, Value, put_outcome,
};

use crate::{
    BenchError,
    load::{
        Calls, PendingReply,
        live::FsyncCount,
        native::{NativePlace, decode_request},
    },
};

/// An open directory of the embedded engine. Dropping the value closes the directory.
#[derive(Debug)]
pub(super) struct Embedded {
    db: Database,
}

impl Embedded {
    /// Opens a directory with the engine's default options. `level` is the default durability of writes; `None` is the
    /// engine's default.
    pub(super) fn open(path: &Path, level: Option<Durability>) -> Result<Self, BenchError> {
        let defaults = Options::default();
        let options = Options { durability: level.unwrap_or(defaults.durability), ..defaults };
        let db = Database::open(path, options).map_err(BenchError::target(path.display()))?;
        Ok(Self { db })
    }

    /// Returns the open directory as a target for requests of the native protocol. `name` is its name in messages.
    /// `has_own_thread` is true if each connection has a thread for itself, which has nothing else to do while it
    /// waits.
    pub(super) fn place(&self, name: String, has_own_thread: bool) -> NativePlace {
        let db = self.db.to_async();
        let calls = move || -> Box<dyn Calls> {
            Box::new(EngineCalls { db: db.clone(), has_own_thread, keyspace: None, stream: None, group: None })
        };
        NativePlace::InProcess { name, calls: Arc::new(calls) }
    }

    /// Returns the source of the number of the log's fsyncs, for the display of a run's progress.
    pub(super) fn fsync_count(&self) -> FsyncCount {
        let db = self.db.clone();
        FsyncCount::new(move || Some(db.stats().log.syncs))
    }

    /// Returns the number of fsyncs of the log so far.
    pub(super) fn fsyncs(&self) -> u64 {
        self.db.stats().log.syncs
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // A failed close does no harm: the figures are complete, and the next opening replays the log.
        let _ = self.db.close();
    }
}

/// Performs the requests of one connection by calls of the embedded engine.
struct EngineCalls {
    db: AsyncDatabase,
    has_own_thread: bool,
    keyspace: Option<(KeyspaceId, Keyspace)>,
    stream: Option<(StreamId, Stream)>,
    group: Option<(GroupId, Group)>,
}

impl fmt::Debug for EngineCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineCalls").field("has_own_thread", &self.has_own_thread).finish_non_exhaustive()
    }
}

impl Calls for EngineCalls {
    fn call(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Option<PendingReply> {
        let (id, frame) = decode_request(request);
        let done = match frame {
            ClientFrame::Get(get) => self.get(id, &get, reply),
            ClientFrame::Scan(scan) => self.scan(id, &scan, reply),
            ClientFrame::Read(read) => self.read(id, &read, reply),
            ClientFrame::Write(write) => {
                let level = write.level.0.unwrap_or(self.db.blocking().durability());
                let written = self.db.propose_command(write.command.0, Purpose::Data, level, self.wake(level));
                let answered = async move {
                    let mut reply = Vec::new();
                    answer_write(id, written.await, &mut reply);
                    reply
                };
                return self.complete(level, answered, reply);
            }
            ClientFrame::Fetch(fetch) => match self.fetch(id, &fetch) {
                Ok(Some((level, answered))) => return self.complete(level, answered, reply),
                Ok(None) => {
                    deliver(id, &Delivered::default(), reply);
                    Ok(())
                }
                Err(error) => Err(error),
            },
            _ => unreachable!("the check of the options refuses other operations"),
        };
        if let Err(error) = done {
            fail(id, &error, reply);
        }
        None
    }
}

/// Result of a fetch from a consumer group: the delivered records, the number by which an ack refers to this delivery,
/// and the durability of the delivery.
#[derive(Default)]
struct Delivered {
    durability: Durability,
    attempt: Attempt,
    parts: Vec<(u32, Vec<StreamRun>)>,
}

impl EngineCalls {
    /// Returns true if the calling thread commits a write at this level itself. Otherwise the engine's committer does.
    fn commits_here(&self, level: Durability) -> bool {
        self.has_own_thread || level < Durability::Disk
    }

    fn wake(&self, level: Durability) -> Wake {
        if self.commits_here(level) { Wake::Later } else { Wake::Now }
    }

    /// Completes a write: commits it on this thread if [`commits_here`](Self::commits_here) says so. If the write is
    /// complete then, appends the reply to `reply` and returns `None`. Otherwise returns the future of the reply.
    fn complete(
        &self,
        level: Durability,
        answered: impl Future<Output = Vec<u8>> + Send + 'static,
        reply: &mut Vec<u8>,
    ) -> Option<PendingReply> {
        if self.commits_here(level) {
            self.db.commit_queued_here();
        }
        let mut answered: PendingReply = Box::pin(answered);
        match answered.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(bytes) => {
                reply.extend_from_slice(&bytes);
                None
            }
            Poll::Pending => Some(answered),
        }
    }

    fn get(&mut self, id: u32, get: &Get<'_>, reply: &mut Vec<u8>) -> Result<(), ReadError> {
        let durability = self.db.blocking().visible_durability();
        let found = self.keyspace(get.keyspace)?.get(get.key.0)?;
        let (revision, value) = found.map_or_else(Default::default, |entry| (entry.revision, entry.value));
        let (remaining, lease, value_bytes) = (u64::MAX, LeaseId(0), value.len() as u64);
        put(id, &Value { durability, revision, remaining, lease, value_bytes, value: RemainingBytes(&value) }, reply);
        Ok(())
    }

    fn scan(&mut self, id: u32, scan: &Scan<'_>, reply: &mut Vec<u8>) -> Result<(), ReadError> {
        let range = ScanRange {
            limit: Some(scan.limit.into()),
            order: Order::Ascending,
            values: ScanValues::Include,
            start: scan.start.map_or(Bound::Unbounded, |key| Bound::Included(key.to_vec())),
            end: scan.end.map_or(Bound::Unbounded, |key| Bound::Excluded(key.to_vec())),
            ..ScanRange::default()
        };
        let durability = self.db.blocking().visible_durability();
        let mut pages = self.keyspace(scan.keyspace)?.iter(range);
        let found = pages.next_page(scan.limit as usize, scan.max_bytes as usize)?;
        let pairs: Vec<Pair<'_>> =
            found.iter().map(|(key, entry)| Pair { revision: entry.revision, key, value: &entry.value }).collect();
        put(id, &Pairs { durability, revision: pages.revision(), cursor: b"", pairs: List::Items(&pairs) }, reply);
        Ok(())
    }

    fn read(&mut self, id: u32, read: &Read, reply: &mut Vec<u8>) -> Result<(), ReadError> {
        let Position::Offset { offset } = read.from else { unreachable!("reads name an offset") };
        let page = self.stream(read.stream).read(offset, read.max_records.into(), read.max_bytes.into())?;
        let (durability, high_watermark) = (self.db.blocking().visible_durability(), page.high_watermark);
        let all = RunLimits { max_bytes: u64::MAX, per_run_bytes: 0, enough_records: u64::MAX };
        let (runs, next) = page.into_runs(all)?;
        let runs: Vec<RecordRun<'_>> = runs.iter().map(run).collect();
        put(id, &Records { durability, next, high_watermark, runs: List::Items(&runs) }, reply);
        Ok(())
    }

    /// Begins a fetch from a consumer group. Returns its durability level and the future of the reply; `None` if no
    /// records are ready.
    fn fetch(
        &mut self,
        id: u32,
        fetch: &Fetch<'_>,
    ) -> Result<Option<(Durability, impl Future<Output = Vec<u8>> + Send + use<>)>, ReadError> {
        let level = fetch.level.0.unwrap_or(self.db.blocking().durability());
        let request = FetchRequest {
            member: fetch.member.to_owned(),
            max_records: fetch.max_records,
            max_bytes: fetch.max_bytes.into(),
            ..FetchRequest::default()
        };
        let db = self.db.clone();
        let group = self.group(fetch.group)?;
        if !matches!(group.ready(), Ok(Ready::Now)) {
            return Ok(None);
        }
        let fetched = db.fetch(group, &request, level);
        Ok(Some((level, async move {
            let mut reply = Vec::new();
            match fetched.await {
                Ok(delivery) => {
                    let (durability, attempt) = (delivery.durability, delivery.attempt);
                    let attempt = if delivery.is_empty() { Attempt(0) } else { attempt };
                    match delivery.into_runs() {
                        Ok(parts) => deliver(id, &Delivered { durability, attempt, parts }, &mut reply),
                        Err(error) => fail(id, &error, &mut reply),
                    }
                }
                Err(error) => fail(id, &error, &mut reply),
            }
            reply
        })))
    }

    fn keyspace(&mut self, id: KeyspaceId) -> Result<&Keyspace, ReadError> {
        if self.keyspace.as_ref().is_none_or(|(known, _)| *known != id) {
            let found = self.db.blocking().keyspace_by_id(id);
            self.keyspace = Some((id, found.ok_or_else(|| ReadError::Io("the keyspace is gone".to_owned()))?));
        }
        Ok(&self.keyspace.as_ref().expect("it was just set").1)
    }

    fn stream(&mut self, id: StreamId) -> &Stream {
        let db = &self.db;
        let (known, _) = self.stream.get_or_insert_with(|| (id, db.blocking().stream_by_id(id)));
        if *known != id {
            self.stream = Some((id, db.blocking().stream_by_id(id)));
        }
        &self.stream.as_ref().expect("it was just set").1
    }

    fn group(&mut self, id: GroupId) -> Result<&Group, ReadError> {
        if self.group.as_ref().is_none_or(|(known, _)| *known != id) {
            let found = self.db.blocking().group_by_id(id)?;
            self.group = found.map(|group| (id, group));
        }
        let group = self.group.as_ref().map(|(_, group)| group);
        group.ok_or_else(|| ReadError::Io("the group is gone".to_owned()))
    }
}

fn put<'a, F: Frame<'a>>(id: u32, frame: &F, reply: &mut Vec<u8>) {
    frame.encode(reply, id).expect("the options bound what a request returns");
}

fn fail(id: u32, error: &(impl Classified + fmt::Display), reply: &mut Vec<u8>) {
    put(id, &Failed::of(error, &error.to_string()), reply);
}

fn run(run: &StreamRun) -> RecordRun<'_> {
    RecordRun { first: run.first, time: run.time, count: run.count, records: &run.bytes }
}

fn deliver(id: u32, Delivered { durability, attempt, parts }: &Delivered, reply: &mut Vec<u8>) {
    let runs: Vec<Vec<RecordRun<'_>>> = parts.iter().map(|(_, runs)| runs.iter().map(run).collect()).collect();
    let parts: Vec<DeliveryPart<'_>> = parts
        .iter()
        .zip(&runs)
        .map(|((deliveries, _), runs)| DeliveryPart { deliveries: *deliveries, runs: List::Items(runs) })
        .collect();
    let (durability, attempt, deadline) = (*durability, *attempt, Default::default());
    put(id, &Delivery { durability, attempt, deadline, parts: List::Items(&parts) }, reply);
}

fn answer_write(id: u32, written: Result<CommandResult, WriteError>, reply: &mut Vec<u8>) {
    match written {
        Ok((durability, outcome)) => {
            let put = put_outcome(reply, id, durability, outcome.as_ref());
            assert!(put.expect("outcomes are small"), "the commands of scenarios have outcomes for clients");
        }
        Err(error) => fail(id, &error, reply),
    }
}
