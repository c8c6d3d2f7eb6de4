//! The table of HTTP routes, which maps methods and paths to operations and their handlers.
//!
//! Each row names an operation, its label in metrics, its method and paths, and its handler. The selection of an
//! operation, the dispatch of requests, the metrics and the test of the OpenAPI document all use this table.
//!
//! Owns: the table, and for each operation its requirements: how recent the state of a cluster member must be
//! ([`Consistency`]), the administrators' token, a free request slot, and memory for the reply. Does not own: the
//! search for a path's route (`routes`), reading and checking requests (the handlers), or limits.
//!
//! Invariants: each operation has one handler, one name in the metrics, and an entry in the OpenAPI document. An
//! operation without a [`Consistency`] does not compile.

use std::sync::{Arc, LazyLock};

use http::{Method, StatusCode};
use thalweg_serving::{app::App, error::ApiError};
use thalweg_types::Action;

use crate::{
    body, caches,
    call::{Answer, Call},
    cluster, commit,
    describe::{BINARY, Binary},
    document::{self, Documented},
    entity, groups, home, key_history, keys, keyspaces, kv, leases, producers, reading, records, reply,
    reply_memory::ReplyMemory,
    scan, shapes,
    shared::Http,
    snapshot, space, state, status, streams, subjects, transaction, ttl, watch,
};

/// Calls a handler as its row in the table of routes says. `now`: the handler is not async. `inline`: its future is
/// awaited; few handlers use this, so that the caller's future stays small. `boxed`: its future is awaited in a box.
/// `read`: it only reads; if it takes too long, another thread repeats it. `long`: it reads on a thread for long reads.
macro_rules! answer {
    (read $($handler:ident)::+ ($app:ident, $call:ident)) => {
        match reading::briefly($app, $call, $($handler)::+) {
            Ok(answer) => answer,
            Err(spent) => Box::pin(reading::again(spent, $app, $call, $($handler)::+)).await,
        }
    };
    (long $($handler:ident)::+ ($app:ident, $call:ident)) => {
        Box::pin(reading::long($app, $call, $($handler)::+)).await
    };
    (now $answer:expr) => {
        $answer
    };
    (inline $answer:expr) => {
        $answer.await
    };
    (boxed $answer:expr) => {
        Box::pin($answer).await
    };
}

macro_rules! operations {
    (
        ($http:ident, $app:ident, $call:ident)
        $($(#[doc = $doc:literal])+ $name:ident = $label:literal, $method:ident $($path:literal)|+
            => $how:ident $($handler:ident)::+ ($($argument:tt)*);)+
    ) => {
        /// An operation of the API, as determined by a request's method and path.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[doc = $doc])+ $name,)+
            /// The path matches no route.
            Unknown,
            /// The path matches a route, but with another method.
            WrongMethod,
        }

        impl Operation {
            /// Every operation, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)+ Self::Unknown, Self::WrongMethod];

            /// Returns the operation's summary and, after an empty line, its description, for the OpenAPI document.
            const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc, "\n"),+),)+
                    Self::Unknown | Self::WrongMethod => "",
                }
            }

            /// Returns the operation's name in metrics, which is also its `operationId` in the OpenAPI document.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                    Self::Unknown => "unknown",
                    Self::WrongMethod => "wrong_method",
                }
            }
        }

        /// Every route of the API.
        pub const ROUTES: &[Route] = &[$($(
            Route { path: $path, method: stringify!($method), operation: Operation::$name },
        )+)+];

        /// OpenAPI description of all operations, collected from the descriptions beside the handlers.
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($($handler)::+),+), components(schemas(shapes::Error)))]
        struct Described;

        /// Calls the handler of an operation, and returns the handler's result.
        pub(crate) async fn dispatch(operation: Operation, $http: &Http, $call: &mut Call) -> Answer {
            let $app = &$http.app;
            match operation {
                $(Operation::$name => answer!($how $($handler)::+ ($($argument)*)),)+
                Operation::Unknown => Err(unknown_route($call.head.uri.path())),
                Operation::WrongMethod => Err(wrong_method(&$call.head.method)),
            }
        }
    };
}

/// A route: an HTTP method and a path template, with the operation that they select.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Path template; `{*name}` matches all remaining segments of a path.
    pub path: &'static str,
    /// HTTP method.
    pub method: &'static str,
    /// Operation that the route performs.
    pub operation: Operation,
}

operations! {
    (http, app, call)

    /// Stores a value.
    ///
    /// At durability level none the reply is 202, and the outcome is not known yet.
    KvPut = "kv_put", PUT "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/"
        => inline kv::put(app, call);
    /// Returns a key's value.
    KvGet = "kv_get", GET "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/"
        => read kv::get(app, call);
    /// Returns a key's revision and the size of its value.
    KvHead = "kv_head", HEAD "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/"
        => read kv::head(app, call);
    /// Removes a key.
    ///
    /// The reply is the same if the key had no value.
    KvDelete = "kv_delete", DELETE "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/"
        => inline kv::delete(app, call);
    /// Adds a number to a counter.
    KvAdd = "kv_add", POST "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/"
        => boxed transaction::add_to(app, call);
    /// Changes the deadline of a key.
    ///
    /// The value, revision and lease stay unchanged. The reply is 404 if the key has no value. The lifetime is
    /// required: seconds, never or default.
    KvTouch = "kv_touch", PATCH "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/"
        => boxed ttl::touch(app, call);
    /// Removes all keys with a prefix.
    KvDeletePrefix = "kv_delete_prefix", DELETE "/v1/kv/{keyspace}"
        => boxed transaction::delete_prefix(app, call);
    /// Lists the pairs of key and value of a keyspace.
    KvScan = "kv_scan", GET "/v1/kv/{keyspace}"
        => boxed scan::keyspace(app, call);
    /// Streams changes of keys.
    ///
    /// A watch begins at a revision, or with the changes from now on. It continues until the client or the server ends
    /// it.
    KvWatch = "kv_watch", GET "/v1/watch/{keyspace}"
        => boxed watch::keyspace(app, call);
    /// Lists past versions of a key.
    ///
    /// Only keyspaces with history keep past versions.
    KvVersions = "kv_versions", GET "/v1/versions/{keyspace}/{*key}" | "/v1/versions/{keyspace}/"
        => read key_history::versions(app, call);
    /// Lists the names of the keyspaces.
    KvList = "kv_list", GET "/v1/kv"
        => read kv::list(app, call);
    /// Lists the keyspaces with their configurations.
    KeyspaceList = "keyspace_list", GET "/v1/keyspaces"
        => long keyspaces::list(app, call);
    /// Returns the configuration and statistics of a keyspace.
    KeyspaceGet = "keyspace_get", GET "/v1/keyspaces/{keyspace}"
        => boxed keyspaces::get(app, call);
    /// Creates a keyspace.
    ///
    /// A keyspace that exists stays unchanged.
    KeyspaceCreate = "keyspace_create", PUT "/v1/keyspaces/{keyspace}"
        => boxed keyspaces::create(app, call);
    /// Changes a keyspace's configuration.
    KeyspacePatch = "keyspace_patch", PATCH "/v1/keyspaces/{keyspace}"
        => boxed keyspaces::patch(app, call);
    /// Drops a keyspace.
    ///
    /// All its keys are removed, and the name is free again.
    KeyspaceDelete = "keyspace_delete", DELETE "/v1/keyspaces/{keyspace}"
        => boxed keyspaces::delete(app, call);
    /// Grants a lease.
    LeaseGrant = "lease_grant", POST "/v1/leases"
        => boxed leases::grant(app, call);
    /// Lists leases.
    LeaseList = "lease_list", GET "/v1/leases"
        => read leases::list(app, call);
    /// Returns a lease and its keys.
    LeaseGet = "lease_get", GET "/v1/leases/{lease}"
        => read leases::get(app, call);
    /// Revokes a lease, which removes its keys.
    LeaseRevoke = "lease_revoke", DELETE "/v1/leases/{lease}"
        => boxed leases::revoke(app, call);
    /// Renews a lease for its TTL.
    ///
    /// The reply is 404 if the lease has ended.
    LeaseKeepAlive = "lease_keep_alive", POST "/v1/leases/{lease}/keep-alive"
        => boxed leases::keep_alive(app, call);
    /// Executes a transaction: conditions that choose between two lists of operations.
    Transaction = "transaction", POST "/v1/txn"
        => boxed transaction::transaction(app, call);
    /// Executes a commit across keyspaces and streams.
    ///
    /// Writes are put, touch, delete, append, ack and nack. Messages in publish are published once the writes have
    /// reached their level. They are delivered at most once, and a repeated commit does not publish them.
    Commit = "commit", POST "/v1/commit"
        => boxed commit::commit(app, call);
    /// Appends records to a stream.
    StreamAppend = "stream_append", POST "/v1/streams/{stream}/records"
        => boxed streams::append(app, call);
    /// Reads records of a stream, or tails the stream.
    StreamRead = "stream_read", GET "/v1/streams/{stream}/records"
        => boxed records::read(app, call);
    /// Lists streams with their statistics.
    StreamList = "stream_list", GET "/v1/streams"
        => boxed streams::list(app, call);
    /// Returns the statistics and configuration of a stream.
    StreamGet = "stream_get", GET "/v1/streams/{stream}"
        => now streams::get(app, call);
    /// Creates a stream.
    ///
    /// A stream that exists stays unchanged.
    StreamCreate = "stream_create", PUT "/v1/streams/{stream}"
        => boxed streams::create(app, call);
    /// Changes a stream's configuration.
    StreamPatch = "stream_patch", PATCH "/v1/streams/{stream}"
        => boxed streams::patch(app, call);
    /// Deletes a stream.
    StreamDelete = "stream_delete", DELETE "/v1/streams/{stream}"
        => boxed streams::delete(app, call);
    /// Removes a stream's oldest records.
    StreamTrim = "stream_trim", POST "/v1/streams/{stream}/trim"
        => boxed streams::trim(app, call);
    /// Lists the producers of a stream.
    ProducerList = "producer_list", GET "/v1/streams/{stream}/producers"
        => long producers::list(app, call);
    /// Returns the epoch and next sequence number of a producer.
    ProducerGet = "producer_get", GET "/v1/streams/{stream}/producers/{producer}"
        => read producers::get(app, call);
    /// Assigns a new epoch to a producer.
    ///
    /// Appends with earlier epochs are rejected from then on.
    ProducerOpen = "producer_open", POST "/v1/streams/{stream}/producers/{producer}"
        => boxed producers::open(app, call);
    /// Lists the consumer groups of all streams.
    GroupListAll = "group_list_all", GET "/v1/groups"
        => boxed groups::list_all(app, call);
    /// Lists a stream's consumer groups.
    GroupList = "group_list", GET "/v1/streams/{stream}/groups"
        => boxed groups::list(app, call);
    /// Returns the statistics and configuration of a consumer group.
    GroupGet = "group_get", GET "/v1/streams/{stream}/groups/{group}"
        => read groups::get(app, call);
    /// Creates a consumer group.
    ///
    /// A group that exists stays unchanged. The stream is created if it does not exist.
    GroupCreate = "group_create", PUT "/v1/streams/{stream}/groups/{group}"
        => boxed groups::create(app, call);
    /// Changes a consumer group's configuration.
    GroupPatch = "group_patch", PATCH "/v1/streams/{stream}/groups/{group}"
        => boxed groups::patch(app, call);
    /// Deletes a consumer group.
    GroupDelete = "group_delete", DELETE "/v1/streams/{stream}/groups/{group}"
        => boxed groups::delete(app, call);
    /// Delivers records to a member of a consumer group.
    GroupFetch = "group_fetch", POST "/v1/streams/{stream}/groups/{group}/fetch"
        => boxed groups::fetch::fetch(app, call);
    /// Acks records that a consumer group has delivered.
    GroupAck = "group_ack", POST "/v1/streams/{stream}/groups/{group}/ack"
        => boxed groups::ack(app, call);
    /// Nacks records that a consumer group has delivered.
    GroupNack = "group_nack", POST "/v1/streams/{stream}/groups/{group}/nack"
        => boxed groups::nack(app, call);
    /// Extends the ack deadlines of deliveries of a consumer group, which are named by their attempt numbers.
    GroupExtend = "group_extend", POST "/v1/streams/{stream}/groups/{group}/extend"
        => boxed groups::extend(app, call);
    /// Moves a consumer group's cursor.
    GroupSeek = "group_seek", POST "/v1/streams/{stream}/groups/{group}/seek"
        => boxed groups::seek(app, call);
    /// Pushes records of a consumer group to a member as they arrive.
    GroupPush = "group_push", GET "/v1/streams/{stream}/groups/{group}/push"
        => boxed groups::push::push(app, call);
    /// Publishes messages to a subject.
    SubjectPublish = "subject_publish", POST "/v1/subjects/{subject}"
        => boxed subjects::publish(app, call);
    /// Streams messages of subjects as they are published.
    ///
    /// Messages that were published before are not sent, because a subject stores none.
    SubjectSubscribe = "subject_subscribe", GET "/v1/subjects/{subject}"
        => now subjects::subscribe::subscribe(app, call);
    /// Publishes a message and waits for an answer to it.
    SubjectAsk = "subject_ask", POST "/v1/ask/{subject}"
        => boxed subjects::ask::ask(app, call);
    /// Lists caches, each with its limits, its size and its counters.
    ///
    /// Each node of a cluster has caches of its own. The Rust client can spread the keys of a cache over the nodes.
    CacheList = "cache_list", GET "/v1/caches"
        => now caches::list(app, call);
    /// Creates a cache.
    ///
    /// A cache that exists stays unchanged. Other nodes of a cluster do not get the cache.
    CacheCreate = "cache_create", PUT "/v1/caches/{cache}"
        => boxed caches::create(app, call);
    /// Returns the statistics of a cache.
    CacheStat = "cache_stat", GET "/v1/caches/{cache}"
        => now caches::stat(app, call);
    /// Drops a cache.
    CacheDrop = "cache_drop", DELETE "/v1/caches/{cache}"
        => now caches::drop_cache(app, call);
    /// Removes all entries of a cache.
    ///
    /// The counters of the cache stay.
    CacheClear = "cache_clear", POST "/v1/caches/{cache}/clear"
        => now caches::many::clear(app, call);
    /// Reads several entries of a cache.
    CacheMultiGet = "cache_multi_get", POST "/v1/caches/{cache}/get"
        => boxed caches::many::multi_get(app, call);
    /// Puts several entries into a cache.
    CacheMultiPut = "cache_multi_put", POST "/v1/caches/{cache}/put"
        => boxed caches::many::multi_put(app, call);
    /// Lists keys of a cache.
    CacheScan = "cache_scan", GET "/v1/caches/{cache}/keys"
        => read caches::many::scan(app, call);
    /// Returns an entry of a cache.
    CacheGet = "cache_get", GET "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/"
        => now caches::keys::get(app, call);
    /// Returns the version and size of an entry of a cache.
    CacheHead = "cache_head", HEAD "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/"
        => now caches::keys::head(app, call);
    /// Puts an entry into a cache.
    CachePut = "cache_put", PUT "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/"
        => boxed caches::keys::put(app, call);
    /// Removes an entry of a cache.
    ///
    /// The reply is the same if the entry did not exist.
    CacheDelete = "cache_delete", DELETE "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/"
        => now caches::keys::delete(app, call);
    /// Adds a number to a counter in a cache.
    CacheAdd = "cache_add", POST "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/"
        => now caches::keys::add(app, call);
    /// Changes the deadline of an entry of a cache.
    ///
    /// The value and version stay unchanged. The reply is 404 if the entry does not exist. The lifetime is required:
    /// seconds or never.
    CacheTouch = "cache_touch", PATCH "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/"
        => now caches::keys::touch(app, call);
    /// Computes a digest of the state.
    ///
    /// Writes a log entry, and hashes all data that replicas share as of the end of that entry, while writes continue.
    /// Replicas with different digests at one index have diverged. One digest is computed at a time. If the client
    /// disconnects, the digest is still completed and kept.
    StateDigest = "state_digest", POST "/v1/state/digest"
        => boxed state::digest(app, &http.digests, call);
    /// Returns the last computed digest.
    ///
    /// The reply is 404 if no digest has been computed since the node started.
    StateDigestLast = "state_digest_last", GET "/v1/state/digest"
        => now state::last_digest(app, call);
    /// Returns the version of the state machine.
    ///
    /// Commands of a version above the one in force are rejected.
    StateVersion = "state_version", GET "/v1/state/version"
        => now state::version(app, call);
    /// Raises the version of the state machine.
    ///
    /// Upgrade every node first: a node that does not support the version stops. A request for a version below the one
    /// in force changes nothing.
    StateVersionRaise = "state_version_raise", POST "/v1/state/version"
        => boxed state::raise_version(app, call);
    /// Sends a backup of the whole state, or of everything written since an LSN.
    ///
    /// The body has chunks as in docs/formats/snapshot.md. They show one point in time, while writes continue. A body
    /// without its last chunk was cut off: resume it within a minute (parameters resume and chunk), or take a new one.
    Snapshot = "snapshot", GET "/v1/snapshot"
        => boxed snapshot::get(app, &http.snapshots, call);
    /// Returns this node's view of the cluster.
    ClusterStatus = "cluster_status", GET "/v1/cluster/status"
        => now cluster::status(app, call);
    /// Lists the members of the cluster.
    ClusterMembers = "cluster_members", GET "/v1/cluster/members"
        => now cluster::members(app, call);
    /// Lists the addresses at which the nodes serve clients.
    ClusterNodes = "cluster_nodes", GET "/v1/cluster/nodes"
        => now cluster::nodes(app, call);
    /// Lists the log positions and the lag of the replicas.
    ClusterReplicas = "cluster_replicas", GET "/v1/cluster/replicas"
        => now cluster::replicas(app, call);
    /// Adds a node to the cluster.
    ///
    /// The node becomes a learner, and a voter once it has caught up. A node that is started with --join sends this
    /// request itself.
    ClusterJoin = "cluster_join", POST "/v1/cluster/join"
        => boxed cluster::join(app, call);
    /// Removes this node from the cluster.
    ///
    /// The node first hands leadership over. Afterwards it can be stopped. Its directory cannot join again.
    ClusterLeave = "cluster_leave", POST "/v1/cluster/leave"
        => boxed cluster::leave(app, call);
    /// Stops this node's server.
    ///
    /// The node hands leadership over, answers the requests that it has accepted, and ends, as at SIGTERM. It stays a
    /// member. The reply is sent before the node stops.
    ClusterShutdown = "cluster_shutdown", POST "/v1/cluster/shutdown"
        => boxed cluster::shut_down(app, call);
    /// Makes a learner a voter.
    ClusterPromote = "cluster_promote", POST "/v1/cluster/promote"
        => boxed cluster::promote(app, call);
    /// Removes a member from the cluster.
    ///
    /// The member's id is never used again. Without force, a majority of the remaining voters must be alive.
    ClusterRemove = "cluster_remove", POST "/v1/cluster/remove"
        => boxed cluster::remove(app, call);
    /// Transfers leadership to another voter.
    ClusterTransfer = "cluster_transfer", POST "/v1/cluster/transfer"
        => boxed cluster::transfer(app, call);
    /// Compares the states of the members by their digests.
    ///
    /// Writes a log entry, and each member hashes its state as of the end of that entry.
    ClusterDigest = "cluster_digest", POST "/v1/cluster/digest"
        => boxed cluster::digest(app, call);
    /// Returns the token with which nodes join.
    ClusterJoinToken = "cluster_join_token", POST "/v1/cluster/join-token"
        => now cluster::join_token(app, call);
    /// Streams events of the cluster.
    ///
    /// Events are changes of the leader, of the members and of their health, as the node that answers sees them.
    ClusterEvents = "cluster_events", GET "/v1/cluster/events"
        => now cluster::events::events(app, call);
    /// Stores an entity: a value under a key of the keyspace default.
    EntityPut = "entity_put", PUT "/v0/entity"
        => inline entity::put(app, call);
    /// Returns an entity: the value of a key of the keyspace default.
    EntityGet = "entity_get", GET "/v0/entity"
        => read entity::get(app, call);
    /// Removes an entity: a key of the keyspace default.
    EntityDelete = "entity_delete", DELETE "/v0/entity"
        => boxed entity::delete(app, call);
    /// Lists entities in a range of keys of the keyspace default.
    EntityRange = "entity_range", GET "/v0/entities"
        => boxed entity::range(app, call);
    /// Stores a value under a key.
    ///
    /// The key is in the path or in the query, with a raw value as the body. A request without a key has a pair in JSON
    /// as its body.
    KeysPut = "keys_put", PUT "/keys/{*key}" | "/keys"
        => boxed keys::put(app, call);
    /// Returns a key's value as JSON.
    KeysGet = "keys_get", GET "/keys/{*key}" | "/keys"
        => read keys::get(app, call);
    /// Removes a key.
    KeysDelete = "keys_delete", DELETE "/keys/{*key}" | "/keys"
        => boxed keys::delete(app, call);
    /// Lists pairs of key and value in a range as JSON.
    KeysRange = "keys_range", GET "/keys/range"
        => boxed keys::range(app, call);
    /// Stores several pairs of key and value atomically.
    KeysBatch = "keys_batch", POST "/keys/batch"
        => boxed keys::batch(app, call);
    /// Returns a page that names the node and links to the API.
    Home = "home", GET "/"
        => now home::page(app);
    /// Reports the node's health.
    Health = "health", GET "/health"
        => now status::health(app);
    /// Reports that the node accepts requests, or why it does not.
    Ready = "ready", GET "/ready"
        => now status::ready(app, call);
    /// Returns metrics for Prometheus.
    Metrics = "metrics", GET "/metrics"
        => now status::metrics(app, &http.metrics, call);
    /// Returns the server's statistics for operators.
    Status = "status", GET "/v1/status"
        => now status::status(app);
    /// Explains how the node's directory uses disk space.
    ///
    /// Lists the files by their purpose. Counting the stored data reads the whole state. One report is made at a time.
    Space = "space", GET "/v1/space"
        => boxed space::space(app, &http.spaces, call);
    /// Returns the OpenAPI document.
    OpenApi = "openapi", GET "/openapi.json"
        => now status::openapi(&OPENAPI, call);
    /// Reads a body and stores nothing, to measure the cost of HTTP alone.
    Echo = "echo", POST "/v1/echo"
        => inline echo(app, call);
}

/// The OpenAPI document, which `/openapi.json` returns. It is assembled at the first use.
pub static OPENAPI: LazyLock<String> = LazyLock::new(|| {
    let routes = ROUTES.iter().map(|route| Documented {
        path: route.path,
        method: route.method,
        operation: route.operation.name(),
        text: route.operation.text(),
        reads: matches!(route.operation.consistency(), Consistency::Read | Consistency::Body),
    });
    document::assemble(<Described as utoipa::OpenApi>::openapi(), routes)
});

/// Requirement on the state of a cluster member: how recent the state must be before an operation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consistency {
    /// The operation reads the node's state, at the read level that the request chooses.
    Read,
    /// The operation looks up names in the node's state before it proposes a command. So the state must contain every
    /// change that was acknowledged before.
    Names,
    /// The requirement depends on the request's body, which shows if the operation only reads. The handler reads the
    /// body, and then waits until the state is recent enough.
    Body,
    /// The operation has no requirement: it creates objects, or it concerns only this node or the cluster itself.
    Local,
}

impl Operation {
    /// Returns the operation's requirement on the state of a cluster member.
    pub(crate) const fn consistency(self) -> Consistency {
        match self {
            Self::KvGet
            | Self::KvHead
            | Self::KvScan
            | Self::KvWatch
            | Self::KvVersions
            | Self::KvList
            | Self::KeyspaceList
            | Self::KeyspaceGet
            | Self::LeaseList
            | Self::LeaseGet
            | Self::StreamRead
            | Self::StreamList
            | Self::StreamGet
            | Self::ProducerList
            | Self::ProducerGet
            | Self::GroupListAll
            | Self::GroupList
            | Self::GroupGet
            | Self::StateVersion
            | Self::EntityGet
            | Self::EntityRange
            | Self::KeysGet
            | Self::KeysRange => Consistency::Read,
            Self::KvAdd
            | Self::KvTouch
            | Self::KvDelete
            | Self::KvDeletePrefix
            | Self::KeyspacePatch
            | Self::KeyspaceDelete
            | Self::LeaseRevoke
            | Self::LeaseKeepAlive
            | Self::Commit
            | Self::StreamPatch
            | Self::StreamDelete
            | Self::StreamTrim
            | Self::ProducerOpen
            | Self::GroupCreate
            | Self::GroupPatch
            | Self::GroupDelete
            | Self::GroupFetch
            | Self::GroupAck
            | Self::GroupNack
            | Self::GroupExtend
            | Self::GroupSeek
            | Self::GroupPush
            | Self::EntityDelete
            | Self::KeysDelete => Consistency::Names,
            Self::Transaction => Consistency::Body,
            Self::KvPut
            | Self::KeyspaceCreate
            | Self::LeaseGrant
            | Self::StreamAppend
            | Self::StreamCreate
            | Self::SubjectPublish
            | Self::SubjectSubscribe
            | Self::SubjectAsk
            | Self::CacheList
            | Self::CacheCreate
            | Self::CacheStat
            | Self::CacheDrop
            | Self::CacheClear
            | Self::CacheMultiGet
            | Self::CacheMultiPut
            | Self::CacheScan
            | Self::CacheGet
            | Self::CacheHead
            | Self::CachePut
            | Self::CacheDelete
            | Self::CacheAdd
            | Self::CacheTouch
            | Self::StateDigest
            | Self::StateDigestLast
            | Self::StateVersionRaise
            | Self::Snapshot
            | Self::ClusterStatus
            | Self::ClusterMembers
            | Self::ClusterNodes
            | Self::ClusterReplicas
            | Self::ClusterJoin
            | Self::ClusterLeave
            | Self::ClusterShutdown
            | Self::ClusterPromote
            | Self::ClusterRemove
            | Self::ClusterTransfer
            | Self::ClusterDigest
            | Self::ClusterJoinToken
            | Self::ClusterEvents
            | Self::EntityPut
            | Self::KeysPut
            | Self::KeysBatch
            | Self::Home
            | Self::Health
            | Self::Ready
            | Self::Metrics
            | Self::Status
            | Self::Space
            | Self::OpenApi
            | Self::Echo
            | Self::Unknown
            | Self::WrongMethod => Consistency::Local,
        }
    }

    /// Returns true if a request for the operation needs the administrators' token, even over loopback. The operation
    /// changes the cluster, or reveals its secret.
    pub(crate) const fn needs_admin(self) -> bool {
        matches!(
            self,
            Self::ClusterJoin
                | Self::ClusterLeave
                | Self::ClusterShutdown
                | Self::ClusterPromote
                | Self::ClusterRemove
                | Self::ClusterTransfer
                | Self::ClusterJoinToken
                | Self::StateVersionRaise
        )
    }

    /// Returns the rule by which a reply of known size counts in the limit on unsent bytes of replies. `method` is the
    /// request's method. A handler may replace the rule.
    pub(crate) fn reply_memory(self, method: &Method) -> ReplyMemory {
        let only_reads = matches!(*method, Method::GET | Method::HEAD) || self == Self::CacheMultiGet;
        if only_reads { ReplyMemory::Reserve } else { ReplyMemory::Exceed }
    }

    /// Returns true if the server performs the operation even when all its request slots are taken. An operator needs
    /// these operations to see why the server is full.
    #[must_use]
    pub(crate) const fn is_always_admitted(self) -> bool {
        matches!(
            self,
            Self::Home
                | Self::Health
                | Self::Ready
                | Self::Metrics
                | Self::Status
                | Self::OpenApi
                | Self::ClusterStatus
                | Self::ClusterMembers
        )
    }
}

#[utoipa::path(
    post, path = "/v1/echo", request_body(content = Binary, content_type = BINARY),
    responses((status = 200, description = "The body was read."))
)]
async fn echo(app: &Arc<App>, call: &mut Call) -> Answer {
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    drop(body);
    Ok(reply::empty(StatusCode::OK))
}

fn unknown_route(path: &str) -> ApiError {
    let message = "no such route: /openapi.json lists all routes";
    if path == "/v0" || path.starts_with("/v0/") {
        // Clients of this API expect 400 for unknown paths.
        return ApiError::bad_request("unknown_route", message);
    }
    ApiError::not_found("unknown_route", message)
}

fn wrong_method(method: &Method) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "wrong_method",
        Action::Fix,
        format!(
            "this route does not support {}: see the Allow header",
            method.as_str().chars().take(32).collect::<String>()
        ),
    )
}
