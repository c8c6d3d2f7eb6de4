//! The native streams as a database. HTTP and native clients read the entries that Redis clients append, and Redis
//! clients read the records of HTTP and native clients.
//!
//! Owns: the order of commands, and the commit of consecutive `XADD`s as one. Does not own the conversion of records to
//! entries (`thalweg_redis::streams::native`), nor the reads (`RedisStreams` of the engine).
//!
//! Each burst runs in a separate task, so that it does not stop halfway when its client disconnects. Only consecutive
//! `XADD`s are atomic; a trim follows its `XADD` as a separate command. `WATCH` is rejected, because these streams
//! cannot guarantee its effect.
//!
//! On a member of a cluster, a burst reads the node's state only after a read barrier, or after a commit of the burst
//! that the node has applied. Appends look up their streams without a barrier. If the log refuses the appends because a
//! stream was deleted, they pass the barrier, look up the names again, and are committed once more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_engine::{Ack, AsyncDatabase, Origin, Stream, WriteError};
use thalweg_redis::{
    Command, Read, Reply, StoreError, run_read,
    streams::native::{TrimBound, Write, id_of},
};
use thalweg_serving::{
    admission::Account, app::App, cluster::ClusterHandle, fetched::RowFetcher, limits::DEFAULT_WAIT,
};
use thalweg_types::{
    Action, Classified, Durability, ReadLevel, SpaceTime,
    command::{CommitBuilder, StreamConfig},
    limits::MAX_COMMAND_BYTES,
    record::{Record, RecordBatch},
};

use super::{
    commands::{Commands, is_mark},
    database::{Appended as ReportedAppend, Batched, PendingOutcome, Watched},
    failure::Failure,
};

/// Interval at which a blocked read checks if a stream that did not exist has been created.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const NO_WATCH: &str = "ERR a transaction on native streams can't depend on WATCH: use a keyspace's database";

/// The native streams of the node, which serve Redis clients as a database; see the module's documentation.
#[derive(Debug)]
pub(crate) struct NativeStreams {
    app: Arc<App>,
    db: AsyncDatabase,
    level: Durability,
    gate: Option<ReadGate>,
}

/// Barrier that commands pass on a member of a cluster before they read its state: the cluster, and the level of reads
/// that the state must be recent enough for.
#[derive(Clone, Debug)]
struct ReadGate {
    handle: Arc<dyn ClusterHandle>,
    level: ReadLevel,
}

impl NativeStreams {
    /// Creates a database over the native streams. Writes are acknowledged at the configured durability level, but at
    /// least at `os`. Below `os`, the outcome of a command would be unknown.
    pub(crate) fn new(app: &Arc<App>) -> Self {
        let level = app.config.resp_read_level;
        let gate = app.cluster.as_ref().map(|cluster| ReadGate { handle: Arc::clone(&cluster.handle), level });
        Self { app: Arc::clone(app), db: app.db.clone(), level: app.config.durability.max(Durability::Os), gate }
    }
}

impl Batched for NativeStreams {
    fn read(&self, act: &mut dyn FnMut(&dyn Read) -> Result<(), StoreError>) -> Result<(), Failure> {
        act(&self.db.blocking().redis_streams()).map_err(Failure::from)
    }

    fn propose(
        &self,
        origin: &Origin,
        fetcher: RowFetcher<'_>,
        commands: &Commands,
        watched: &[Watched],
    ) -> PendingOutcome {
        if !watched.is_empty() {
            return Box::pin(std::future::ready(Err(Failure(NO_WATCH.into()))));
        }
        let mut wanted = Vec::with_capacity(commands.len());
        commands.each(|command, arguments| {
            wanted.push((command, arguments.iter().map(|argument| argument.to_vec()).collect()));
        });
        let (gate, cluster) = (self.gate.clone(), self.gate.as_ref().map(|gate| Arc::clone(&gate.handle)));
        let (app, account) = (Arc::clone(&self.app), Arc::clone(fetcher.account));
        let doing = StreamCommands { app, account, db: self.db.for_origin(origin), level: self.level, gate, cluster };
        let done = tokio::spawn(async move { doing.all(wanted).await });
        Box::pin(async move {
            done.await.map(Some).map_err(|_| Failure("MISCONF the outcome of these commands is unknown".into()))
        })
    }

    fn appended(&self, key: &[u8]) -> Option<ReportedAppend> {
        let stream = self.db.blocking().find_stream(str::from_utf8(key).ok()?);
        let appended = stream.and_then(|stream| Some(self.db.wait_for(stream.id(), stream.info().ok()?.next)));
        Some(ReportedAppend(Box::pin(async move {
            let has_appended = match appended {
                Some(appended) => appended.await,
                None => false,
            };
            // The stream is missing or was deleted. Its creation may cause no notification, so the future also
            // completes after a while.
            if !has_appended {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        })))
    }
}

type Request = (&'static Command, Vec<Vec<u8>>);

/// An `XADD` that waits to be committed together with other `XADD`s.
struct PendingAppend {
    reply: usize,
    name: String,
    /// True if the `XADD` must not create a missing stream (option `NOMKSTREAM`).
    no_stream: bool,
    stream: Stream,
    trim: Option<TrimBound>,
    batch: RecordBatch,
}

struct StreamCommands {
    app: Arc<App>,
    /// Account of the client that has sent the commands. Streams that the client creates are charged to it.
    account: Arc<Account>,
    db: AsyncDatabase,
    level: Durability,
    /// Barrier that the client's commands must still pass before they read the node's state; `None` if none is needed.
    gate: Option<ReadGate>,
    /// Cluster of the node; `None` if the node is not a member of a cluster.
    cluster: Option<Arc<dyn ClusterHandle>>,
}

impl StreamCommands {
    async fn all(mut self, wanted: Vec<Request>) -> Vec<Reply> {
        let (mut replies, mut run, mut bytes) = (Vec::with_capacity(wanted.len()), Vec::new(), 0);
        // The commands that mark a transaction get no reply.
        for (command, arguments) in wanted.iter().filter(|(command, _)| !is_mark(command)) {
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            let reply = match (command.run, Write::parse(&arguments)) {
                (_, Ok(Write::Add { stream: stream_name, record, no_stream, trim })) => {
                    match self.prepare(stream_name, &record, no_stream).await {
                        Ok(Some((stream, batch))) => {
                            let needed = batch.bytes().len() + 64;
                            if bytes + needed > MAX_COMMAND_BYTES / 2 {
                                self.commit(&mut run, &mut replies).await;
                                bytes = 0;
                            }
                            bytes += needed;
                            let name = stream_name.to_owned();
                            run.push(PendingAppend { reply: replies.len(), name, no_stream, stream, trim, batch });
                            // The reply is a placeholder. The commit replaces it by the id.
                            Reply::Null
                        }
                        Ok(None) => Reply::Null,
                        Err(reply) => reply,
                    }
                }
                (thalweg_redis::Run::Read(_), _) => {
                    self.commit(&mut run, &mut replies).await;
                    bytes = 0;
                    self.read(command, &arguments).await.unwrap_or_else(|error| error)
                }
                (_, Ok(Write::Trim { stream, trim })) => {
                    self.commit(&mut run, &mut replies).await;
                    bytes = 0;
                    self.trim_named(stream, trim).await.unwrap_or_else(|error| error)
                }
                (_, Err(reply)) => reply,
            };
            replies.push(reply);
        }
        self.commit(&mut run, &mut replies).await;
        replies
    }

    /// Waits until the client's commands may read the node's state. A member of a cluster first asks the leader if the
    /// read level requires it. Returns an error reply if this fails.
    async fn pass_gate(&mut self) -> Result<(), Reply> {
        if let Some(ReadGate { handle, level }) = &self.gate
            && handle.try_read(*level).is_none()
        {
            let passed = handle.read(*level, Instant::now() + DEFAULT_WAIT).await;
            passed.map_err(|error| Reply::Error(Failure::of(&error).0))?;
        }
        self.gate = None;
        Ok(())
    }

    async fn read(&mut self, command: &Command, arguments: &[&[u8]]) -> Result<Reply, Reply> {
        self.pass_gate().await?;
        let read = run_read(&self.db.blocking().redis_streams(), command, arguments);
        read.map_err(|error| Reply::Error(Failure::from(error).0))
    }

    async fn trim_named(&mut self, stream: &str, trim: TrimBound) -> Result<Reply, Reply> {
        self.pass_gate().await?;
        match self.db.blocking().find_stream(stream) {
            Some(stream) => Ok(self.trim(&stream, trim).await),
            None => Ok(Reply::Integer(0)),
        }
    }

    /// Returns the stream to which an `XADD` appends, and its record as a batch. Creates a missing stream. Returns
    /// `None` if the stream is missing and `no_stream` says that it must not be created.
    async fn prepare(
        &mut self,
        name: &str,
        record: &Record<'_>,
        no_stream: bool,
    ) -> Result<Option<(Stream, RecordBatch)>, Reply> {
        let mut batch = RecordBatch::new();
        batch.push(record).map_err(|error| Reply::error(format!("ERR {error}")))?;
        if no_stream && self.db.blocking().find_stream(name).is_none() {
            self.pass_gate().await?;
        }
        if no_stream && self.db.blocking().find_stream(name).is_none() {
            return Ok(None);
        }
        Ok(Some((self.find_or_create(name).await?, batch)))
    }

    async fn find_or_create(&self, name: &str) -> Result<Stream, Reply> {
        if let Some(stream) = self.db.blocking().find_stream(name) {
            return Ok(stream);
        }
        let permit = self.app.may_create_stream(&self.account);
        let permit = permit.map_err(|refused| Reply::error(format!("BUSY {}", refused.message)))?;
        let created = self.db.create_stream(name, &StreamConfig::default()).await;
        let (stream, is_new) = created.map_err(|error| refusal(&error))?;
        if is_new {
            self.app.created_stream(stream.id(), permit);
        }
        Ok(stream)
    }

    /// Commits the pending `XADD`s together and sets their replies. If the log rejects this commit, commits each `XADD`
    /// separately.
    async fn commit(&mut self, run: &mut Vec<PendingAppend>, replies: &mut [Reply]) {
        if run.is_empty() {
            return;
        }
        let mut appended = self.append(run).await;
        if let Err(WriteError::NoSuchStream(_)) = appended {
            appended = match self.look_up_again(run).await {
                Ok(()) if run.is_empty() => return,
                Ok(()) => self.append(run).await,
                Err(reply) => {
                    run.drain(..).for_each(|one| replies[one.reply] = reply.clone());
                    return;
                }
            };
        }
        match appended {
            Err(error) if run.len() > 1 && error.action() == Action::Fix => {
                for one in run.iter() {
                    match self.append(std::slice::from_ref(one)).await {
                        Ok(ack) => self.answer(std::slice::from_ref(one), &ack, replies).await,
                        Err(error) => replies[one.reply] = refusal(&error),
                    }
                }
            }
            Err(error) => run.iter().for_each(|one| replies[one.reply] = refusal(&error)),
            Ok(ack) => {
                // This node has applied the commit and everything before it, so no barrier is needed any more.
                self.gate = None;
                self.answer(run, &ack, replies).await;
            }
        }
        run.clear();
    }

    /// Looks up the streams of appends again, because one of the streams was deleted. A member of a cluster first waits
    /// until its state shows the present streams. Removes appends to a missing stream that must not be created.
    async fn look_up_again(&self, run: &mut Vec<PendingAppend>) -> Result<(), Reply> {
        if let Some(cluster) = &self.cluster {
            let passed = cluster.read(ReadLevel::Linearizable, Instant::now() + DEFAULT_WAIT).await;
            passed.map_err(|error| Reply::Error(Failure::of(&error).0))?;
        }
        run.retain(|one| !one.no_stream || self.db.blocking().find_stream(&one.name).is_some());
        for one in run {
            one.stream = self.find_or_create(&one.name).await?;
        }
        Ok(())
    }

    async fn append(&self, run: &[PendingAppend]) -> Result<Ack, WriteError> {
        let mut commit = CommitBuilder::new();
        for PendingAppend { stream, batch, .. } in run {
            commit.append(stream.id(), None, batch)?;
        }
        self.db.commit(&commit, self.level).await
    }

    async fn answer(&self, run: &[PendingAppend], ack: &Ack, replies: &mut [Reply]) {
        let mut time = None;
        for (one, appended) in run.iter().zip(&ack.appends) {
            // All appends have the time of their log entry. If trimming has already removed the record, the stream's
            // last time is used.
            let found = time.or_else(|| one.stream.time_of(appended.first).ok().flatten());
            time = found.or_else(|| one.stream.info().ok().map(|info| info.last_time));
            let id = id_of(time.unwrap_or(SpaceTime(0)), appended.first);
            replies[one.reply] = Reply::bulk(id.to_string().as_bytes());
            if let Some(trim) = one.trim {
                self.trim(&one.stream, trim).await;
            }
        }
    }

    /// Trims a stream. Returns the reply to the client: the number of removed records, or an error.
    async fn trim(&self, stream: &Stream, trim: TrimBound) -> Reply {
        let first = trim.first_id().map(|id| stream.offset_of_id(id)).transpose();
        let (first, info) = match (first, stream.info()) {
            (Ok(first), Ok(info)) => (first, info),
            (Err(error), _) | (_, Err(error)) => return Reply::Error(Failure::of(&error).0),
        };
        let start = trim.start(info.start, info.next, first);
        if start > info.start
            && let Err(error) = self.db.trim_stream(stream.id(), start).await
        {
            return refusal(&error);
        }
        Reply::Integer((start.0 - info.start.0) as i64)
    }
}

fn refusal(error: &WriteError) -> Reply {
    Reply::Error(Failure::of(error).0)
}
