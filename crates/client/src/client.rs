//! The client, through which every handle sends its requests to the server.
//!
//! Owns: [`Client`], timeouts, and the decision to retry a request. Does not own the requests: the module of each kind
//! of object (such as `keyspace` or `stream`) makes them.
//!
//! The client retries a request if the server or the connection failed in a way that may pass (class *retry*), and one
//! of two conditions holds: the request had no effect, or sending it twice does no harm. Sending reads twice does no
//! harm. For puts and deletes without conditions this is true if no other client writes their keys; the application
//! states this with the option `repeat_puts`. The server may already have carried out a commit with conditions. A
//! repetition would then fail because of the first execution, so the client does not repeat the commit, and returns an
//! error with unknown effect.
//!
//! In a cluster, the client asks for a redirect to the leader with each write. While it searches for a new leader, it
//! retries requests without an effect until their timeout, without a maximum number of retries. A request that only one
//! member can answer waits for a connection only until the current attempt to connect has failed.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_types::{Action, Classified, Durability, ReadLevel};
use thalweg_wire::{Effect, Fields, Frame, Level, Route, SharedFrame};
use tokio::sync::oneshot;

use crate::{
    backoff::Backoff,
    connect::ServerInfo,
    directory::{Directory, Seeds},
    error::{ConnectError, Error, Invalid, Lost},
    link::{Link, Reply, Run, SessionParameters, StageError},
    member_pools::{MemberPool, MemberPools},
    names::Names,
    options::{Options, ReadFrom},
    pool::{Pool, PoolRole},
    request::answer_of,
    staging::{not_connected, staged_in, until_staged},
    target::Target,
    telemetry::{ClientTelemetry, Telemetry},
};

/// Longest pause before a request is retried while the client searches for the leader.
const LEADER_PAUSE: Duration = Duration::from_millis(50);

/// A client of a server, or of a cluster. Cheap to clone. Its connections end when all clones, and all handles made
/// from them, are dropped.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use thalweg_client::{Client, Endpoint, Options};
///
/// let client = Client::connect(Endpoint::tcp("127.0.0.1:7500"), Options::default()).await?;
/// let users = client.keyspace("users");
/// users.create_if_missing(&Default::default()).await?;
/// users.put(b"ada", b"countess").await?;
/// assert_eq!(users.get(b"ada").await?.unwrap().value, "countess");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    timeout: Option<Duration>,
    level: Level,
    read_level: Option<ReadLevel>,
    /// Name that the server writes to its log lines about this client's requests.
    trace: Option<Arc<str>>,
    /// Connections to one member of the cluster, if only this member can answer the requests of this client.
    member: Option<Arc<MemberPool>>,
}

struct Inner {
    pool: Pool,
    /// Connections to the member with the shortest round trip, if the options request them.
    nearest: Option<Pool>,
    /// Connections to single members, for caches whose keys are spread over the members of the cluster.
    members: MemberPools,
    directory: Arc<Directory>,
    options: Arc<Options>,
    names: Names,
    telemetry: Telemetry,
}

/// Consequence of sending a request twice, by which the client decides if it retries the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetrySafety {
    /// The request does no harm if it is sent twice.
    Harmless,
    /// A repetition may do harm, so the client retries the request only if it had no effect.
    IfNoEffect,
    /// The client never retries the request. The caller of the client decides if it sends the request again.
    Never,
}

/// Options of a single request that a client sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOptions {
    pub retry_safety: RetrySafety,
    /// True if the request tells the server how long the client waits. This is useful if the server may have
    /// to wait.
    pub send_timeout: bool,
    /// Time that is added to the client's timeout because the server waits by design before it answers, such as for new
    /// records.
    pub extra_time: Duration,
    /// Number of the server run (from start to stop) for which the request is valid; `None` for any run.
    pub run: Run,
    /// Number of the server's data set (all of its data) for which the request is valid; `None` for any data set. A
    /// restored server has another data set. The client numbers the data sets that it meets (`Directory::data`).
    pub data: Option<u32>,
    /// Node of a cluster to which the client sends the request.
    pub target: Target,
}

impl RequestOptions {
    pub(crate) const READ: Self = Self {
        retry_safety: RetrySafety::Harmless,
        send_timeout: true,
        extra_time: Duration::ZERO,
        run: None,
        data: None,
        target: Target::Readable,
    };
    pub(crate) const WRITE: Self = Self { retry_safety: RetrySafety::IfNoEffect, target: Target::Leader, ..Self::READ };
    /// Options for requests that the server answers without waiting.
    pub(crate) const QUICK: Self = Self { send_timeout: false, target: Target::Connected, ..Self::READ };
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to a server, or to a cluster that has the seeds as members. If the first attempt fails with all seeds,
    /// returns the error. If a connection is lost later, the client restores it in the background.
    ///
    /// In a cluster, the client learns the other members and the leader from any seed. It connects to the leader, and
    /// moves its connections when another node becomes the leader. If the client cannot reach the leader, it sends its
    /// requests through another member. The client uses the transport, the trust and, if set, the server name of the
    /// first seed for all members.
    pub async fn connect(seeds: impl Into<Seeds>, options: Options) -> Result<Self, ConnectError> {
        let options = Arc::new(options.bounded());
        let directory = Arc::new(Directory::new(seeds.into()));
        let pool = Pool::connect(&directory, options.clone()).await?;
        let is_clustered = pool.server().is_some_and(|server| server.is_clustered);
        let nearest = (options.reads == ReadFrom::Nearest && is_clustered)
            .then(|| Pool::begin(&directory, PoolRole::Nearest, options.clone()).0);
        let (timeout, read_level) = (options.timeout, options.read_level);
        let (members, names) = (MemberPools::default(), Names::default());
        let telemetry = Telemetry::new(options.telemetry);
        let inner = Arc::new(Inner { pool, nearest, members, directory, options, names, telemetry });
        Ok(Self { inner, timeout, level: Level(None), read_level, trace: None, member: None })
    }

    /// Returns the same client with another timeout for each request, retries included; `None` waits forever. With
    /// requests for which the server may have to wait, the client also sends the timeout. The server then does not
    /// begin requests that the client has already given up.
    #[must_use]
    pub fn timeout(&self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Returns the same client with another durability level for its writes. The default is the server's default
    /// level.
    #[must_use]
    pub fn durability(&self, level: Durability) -> Self {
        Self { level: Level(Some(level)), ..self.clone() }
    }

    /// Returns the same client with another level for its reads. The level limits the age of the data that a node of a
    /// cluster may return. The default is the server's default level, which is [`ReadLevel::Linearizable`] unless the
    /// server is configured otherwise. At [`ReadLevel::Stale`] and [`ReadLevel::AtLeast`] any node can answer: see
    /// [`Options::reads`]. Subscriptions begin at this level. A subscription that resumes on another node first waits
    /// until that node has all data that the previous node had.
    #[must_use]
    pub fn read_level(&self, level: ReadLevel) -> Self {
        Self { read_level: Some(level), ..self.clone() }
    }

    /// Returns the same client whose requests carry a name, such as the id of the job or the web request that causes
    /// them. The server writes the name to its log lines about these requests, and their failures state the name. Names
    /// longer than 64 bytes are truncated; an empty name means no name. Subscriptions and publishers send no names. The
    /// name makes each request longer by the length of the name and 4 bytes.
    #[must_use]
    pub fn trace(&self, name: &str) -> Self {
        Self { trace: (!name.is_empty()).then(|| name.into()), ..self.clone() }
    }

    /// Returns the facts about the server that its last welcome (the reply to the client's hello) stated; `None` before
    /// the first connection.
    #[must_use]
    pub fn server(&self) -> Option<ServerInfo> {
        self.inner.pool.server()
    }

    /// Number of failed requests for which the client wanted no reply, such as publishes without acks. The
    /// client counts them because no caller waits for their outcome.
    #[must_use]
    pub fn failed_without_reply(&self) -> u64 {
        let nearest = self.inner.nearest.as_ref().map_or(0, Pool::failures_without_id);
        self.inner.pool.failures_without_id() + nearest
    }

    /// Returns the counts and times of the requests of this client and all its clones. Counts only requests that ended
    /// while [telemetry](Options::telemetry) was on.
    #[must_use]
    pub fn telemetry(&self) -> ClientTelemetry {
        self.inner.telemetry.read()
    }

    /// Switches the telemetry of this client and its clones on or off. Switching does not reset the counts.
    pub fn set_telemetry(&self, is_on: bool) {
        self.inner.telemetry.switch(is_on);
    }

    /// Measures the time of a round trip to the server.
    pub async fn ping(&self) -> Result<Duration, Error> {
        let (began, clock) = (Instant::now(), Clock::new(self.timeout));
        let pool = &self.inner.pool;
        let staging = staged_in(pool, pool.next_link(), |link| link.ping(), |_| None);
        let (_, pong) = clock.within(Effect::Nothing, staging).await?;
        answered(&clock, pong).await?;
        Ok(began.elapsed())
    }

    /// Closes all connections of this client and its clones: writes the staged frames, then sends the server a goodbye.
    /// Requests in progress fail with [`Lost`](crate::Error::Lost).
    pub async fn close(self) {
        let members = self.inner.members.close();
        let members = members.iter().map(|member| &member.pool);
        let pools = || std::iter::once(&self.inner.pool).chain(&self.inner.nearest).chain(members.clone());
        pools().for_each(Pool::close);
        for pool in pools() {
            pool.closed().await;
        }
    }

    pub(crate) fn read_field(&self) -> Option<ReadLevel> {
        self.read_level
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    pub(crate) fn names(&self) -> &Names {
        &self.inner.names
    }

    pub(crate) fn options(&self) -> &Arc<Options> {
        &self.inner.options
    }

    pub(crate) fn pin(&self) -> Arc<Link> {
        self.inner.pool.pin()
    }

    /// Returns the pool for requests that any node can answer.
    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// Number of the server run (from start to stop) that the next request will probably reach.
    pub(crate) fn run(&self) -> Run {
        self.pool_for(Target::Connected).next_link().run()
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.inner.directory
    }

    /// Returns a client that sends to the member `node` the requests that this client sends to the
    /// [connected](Target::Connected) node.
    pub(crate) fn at_member(&self, node: u64) -> Result<Self, Error> {
        let Inner { members, directory, options, .. } = &*self.inner;
        let member = members.get(node, directory, options).ok_or(Error::Closed)?;
        Ok(Self { member: Some(member), ..self.clone() })
    }

    /// Drops the connections to single nodes, except those to these members.
    pub(crate) fn keep_members(&self, members: &[u64]) {
        self.inner.members.retain(members);
    }

    pub(crate) fn call_timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Waits until the server has processed all frames that were staged on `link` before the call.
    pub(crate) async fn barrier(&self, link: &Arc<Link>) -> Result<(), Error> {
        let clock = Clock::new(self.timeout);
        let pong = clock.within(Effect::Nothing, until_staged(link, || link.ping())).await?;
        answered(&clock, pong).await
    }

    /// Sends the request that `encode` writes and returns its reply, decoded by `read`. Retries the request
    /// after failures as `how` permits.
    pub(crate) async fn call<R>(
        &self,
        how: RequestOptions,
        encode: impl FnMut(&mut Vec<u8>, u32, &Fields<'_>) -> Result<(), Invalid>,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let telemetry = &self.inner.telemetry;
        let began = telemetry.is_on().then(Instant::now);
        let result = self.attempt(how, encode, read).await;
        if let Some(began) = began {
            telemetry.ended(how.target, began.elapsed(), result.is_ok());
        }
        result
    }

    /// Sends a request until it succeeds, or fails in a way that permits no retry.
    async fn attempt<R>(
        &self,
        how: RequestOptions,
        mut encode: impl FnMut(&mut Vec<u8>, u32, &Fields<'_>) -> Result<(), Invalid>,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let clock = Clock::new(self.timeout.map(|timeout| timeout.saturating_add(how.extra_time)));
        let mut backoff = None;
        loop {
            let error = match self.once(&clock, how, &mut encode).await.and_then(|frame| read(&frame)) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let may = match how.retry_safety {
                RetrySafety::Harmless => true,
                RetrySafety::IfNoEffect => error.effect() == Effect::Nothing,
                RetrySafety::Never => false,
            };
            let passes = error.action() == Action::Retry && !matches!(error, Error::TimedOut { .. });
            if !may || !passes || is_final_retry_error(&error) {
                return Err(final_error(how, error));
            }
            // Registers for `moved` before the pause: if the connections move to another node from here on, the pause
            // ends early.
            let mut moved = pin!(self.inner.pool.moved().notified());
            moved.as_mut().enable();
            let looks = self.looks_for_leader(&error);
            let backoff = backoff.get_or_insert_with(|| Backoff::new(self.inner.options.retries));
            let pause = if looks { Some(backoff.next().min(LEADER_PAUSE)) } else { backoff.again() };
            let Some(pause) = pause.filter(|pause| clock.remaining().is_none_or(|left| left > *pause)) else {
                return Err(final_error(how, error));
            };
            self.inner.telemetry.retried(how.target);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = moved, if looks => {}
            }
        }
    }

    /// Updates the client's knowledge of the leader from an error. Returns true if the error says that the answering
    /// node does not lead, or that the cluster has no leader. The client then retries the request until its timeout.
    fn looks_for_leader(&self, error: &Error) -> bool {
        let directory = &self.inner.directory;
        let Some(failure) = error.failure() else { return false };
        match failure.code.as_str() {
            "not_leader" => {
                let term = failure.detail("term").unwrap_or(0);
                match (&failure.leader, failure.detail("leader")) {
                    (Some(address), Some(node)) => directory.learn_leader(node, address, term),
                    // The answering server does not know the leader's address for clients. Until it does, it forwards
                    // writes to the leader itself.
                    _ => directory.forget_leader(term),
                }
                true
            }
            "no_leader" => {
                if let Some(server) = self.server() {
                    directory.doubt(server.node);
                }
                true
            }
            _ => false,
        }
    }

    /// Sends a frame as a request and returns its reply, decoded by `read`. Retries as `how` permits.
    pub(crate) async fn request<'f, R>(
        &self,
        how: RequestOptions,
        frame: impl Frame<'f>,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.call(how, |out, id, fields| Ok(frame.encode_with(out, id, fields)?), read).await
    }

    /// Returns the pool whose connections a request with this target uses.
    fn pool_for(&self, target: Target) -> &Pool {
        if let Some(member) = self.member.as_ref().filter(|_| target == Target::Connected) {
            return &member.pool;
        }
        let is_free = matches!(self.read_level, Some(ReadLevel::Stale | ReadLevel::AtLeast(_)));
        match &self.inner.nearest {
            Some(nearest) if target == Target::Readable && is_free && nearest.is_connected() => nearest,
            _ => &self.inner.pool,
        }
    }

    async fn once(
        &self,
        clock: &Clock,
        how: RequestOptions,
        encode: &mut impl FnMut(&mut Vec<u8>, u32, &Fields<'_>) -> Result<(), Invalid>,
    ) -> Result<SharedFrame, Error> {
        let (pool, directory) = (self.pool_for(how.target), &self.inner.directory);
        let route = (how.target == Target::Leader && directory.redirects()).then_some(Route::Redirect);
        let read = self.read_level.filter(|_| how.target != Target::Connected);
        let check = |parameters: &SessionParameters| match how.run {
            Some(run) if run != parameters.run => Err(StageError::OtherRun),
            // When the client connects to a server with other data, it raises the number before any request can be
            // staged on that connection.
            _ if directory.has_other_data(how.data) => Err(StageError::OtherData),
            _ => Ok(()),
        };
        let mut stage = |link: &Arc<Link>| {
            let timeout_micros = if how.send_timeout { clock.left_micros() } else { None };
            let fields = Fields { timeout_micros, trace: self.trace.as_deref(), read, route, ..Fields::default() };
            link.request(&check, &mut |out, id| encode(out, id, &fields), None)
        };
        let link = pool.next_link();
        let (link, staged) = match stage(link) {
            Ok(staged) => (link, staged),
            Err(StageError::Room | StageError::Requests | StageError::Connection(_)) => {
                let staging = staged_in(pool, link, stage, |why| self.away(how.target, why));
                clock.within(Effect::Nothing, staging).await.map_err(|error| not_connected(pool, error))?
            }
            Err(blocked) => return Err(blocked.into()),
        };
        clock.within(Effect::Unknown, Pending::new(link, staged).reply()).await
    }

    /// Returns [`Error::NodeAway`] if only one member can answer the request, and an attempt to connect to this member
    /// has failed with `why`. Otherwise `None`.
    fn away(&self, target: Target, why: &Arc<ConnectError>) -> Option<Error> {
        let member = self.member.as_ref().filter(|_| target == Target::Connected)?;
        let is_first_attempt = matches!(**why, ConnectError::NotYet);
        (!is_first_attempt).then(|| Error::NodeAway { node: member.node, why: why.clone() })
    }
}

/// Returns the error for a request that the client does not retry. If the request is a write that the server may have
/// carried out, this is [`Error::OutcomeUnknown`] with the error as its cause.
fn final_error(how: RequestOptions, error: Error) -> Error {
    let is_unknown = error.effect() == Effect::Unknown && !matches!(error, Error::Protocol(_));
    match how.retry_safety {
        RetrySafety::IfNoEffect if is_unknown && how.target == Target::Leader => {
            Error::OutcomeUnknown { cause: Box::new(error) }
        }
        _ => error,
    }
}

/// Returns true for errors that are the answer to the request, such as a condition that failed, although the server
/// classifies them as *retry*. The client does not retry the request then.
fn is_final_retry_error(error: &Error) -> bool {
    let answers = ["timeout", "request_timed_out", "no_responders", "responders_overloaded", "condition_failed"];
    answers.contains(&error.code_text())
}

/// Timeout of a request, and the instant at which this timeout ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    timeout: Option<Duration>,
    deadline: Option<Instant>,
}

impl Clock {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)) }
    }

    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    fn left_micros(&self) -> Option<u64> {
        self.remaining().map(|left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1))
    }

    /// Returns the result of `work`. If the request's deadline passes first, returns a timeout error that states
    /// `effect`, the effect of the request on the server.
    pub(crate) async fn within<T>(
        &self,
        effect: Effect,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(deadline) = self.deadline else { return work.await };
        let timed_out = || Error::TimedOut { after: self.timeout.unwrap_or_default(), effect };
        tokio::time::timeout_at(deadline.into(), work).await.unwrap_or_else(|_| Err(timed_out()))
    }
}

/// Waits for the server's answer to a ping, at most until the request's timeout.
async fn answered(clock: &Clock, pong: oneshot::Receiver<()>) -> Result<(), Error> {
    let closed = |_| Error::Lost { why: Lost::Closed, effect: Effect::Unknown };
    clock.within(Effect::Nothing, async { pong.await.map_err(closed) }).await
}

/// A request in progress. Dropping it before its reply has arrived cancels the request.
pub(crate) struct Pending<'l> {
    link: &'l Link,
    reply: Option<Reply>,
}

impl<'l> Pending<'l> {
    pub(crate) fn new(link: &'l Link, reply: Reply) -> Self {
        Self { link, reply: Some(reply) }
    }

    /// Waits for the reply to the request. If the server sent a `failed` frame, returns the failure as an
    /// error.
    pub(crate) async fn reply(mut self) -> Result<SharedFrame, Error> {
        let Some(reply) = &mut self.reply else { return Err(Error::Closed) };
        let came = reply.await;
        self.reply = None;
        answer_of(came)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(reply) = &mut self.reply {
            self.link.abandon(reply);
        }
    }
}
