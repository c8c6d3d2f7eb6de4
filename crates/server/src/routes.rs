//! The routes: one table from which the router, the metrics' labels and the check of the OpenAPI
//! document follow.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    routing::{MethodFilter, MethodRouter},
};

use crate::app::App;

macro_rules! operations {
    ($($(#[doc = $doc:literal])+ $name:ident = $label:literal, $method:ident $($path:literal)|+;)+) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[doc = $doc])+ $name,)+
            /// A path that is no route.
            Unknown,
            /// A route with another method.
            WrongMethod,
        }

        impl Operation {
            /// Every operation.
            pub const ALL: &[Self] = &[$(Self::$name,)+ Self::Unknown, Self::WrongMethod];

            /// The name in metrics and the `operationId` in the OpenAPI document.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                    Self::Unknown => "unknown",
                    Self::WrongMethod => "wrong_method",
                }
            }
        }

        /// Every route.
        pub const ROUTES: &[Route] = &[$($(
            Route { path: $path, method: stringify!($method), filter: MethodFilter::$method, operation: Operation::$name },
        )+)+];
    };
}

/// A path template with a method.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Template; `{*name}` takes the rest of the path.
    pub path: &'static str,
    /// HTTP method.
    pub method: &'static str,
    filter: MethodFilter,
    /// What it does.
    pub operation: Operation,
}

operations! {
    /// Store a value.
    KvPut = "kv_put", PUT "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/";
    /// A key's value.
    KvGet = "kv_get", GET "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/";
    /// A key's revision and size.
    KvHead = "kv_head", HEAD "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/";
    /// Remove a key.
    KvDelete = "kv_delete", DELETE "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/";
    /// Add to a counter.
    KvAdd = "kv_add", POST "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/";
    /// Change until when a key lives.
    KvTouch = "kv_touch", PATCH "/v1/kv/{keyspace}/{*key}" | "/v1/kv/{keyspace}/";
    /// Remove all keys with a prefix.
    KvDeletePrefix = "kv_delete_prefix", DELETE "/v1/kv/{keyspace}";
    /// Pairs of a keyspace.
    KvScan = "kv_scan", GET "/v1/kv/{keyspace}";
    /// Changes of keys.
    KvWatch = "kv_watch", GET "/v1/watch/{keyspace}";
    /// What a key was.
    KvVersions = "kv_versions", GET "/v1/versions/{keyspace}/{*key}" | "/v1/versions/{keyspace}/";
    /// Names of the keyspaces.
    KvList = "kv_list", GET "/v1/kv";
    /// Keyspaces and their configurations.
    KeyspaceList = "keyspace_list", GET "/v1/keyspaces";
    /// Configuration and statistics of a keyspace.
    KeyspaceGet = "keyspace_get", GET "/v1/keyspaces/{keyspace}";
    /// Create a keyspace.
    KeyspaceCreate = "keyspace_create", PUT "/v1/keyspaces/{keyspace}";
    /// Change a keyspace's configuration.
    KeyspacePatch = "keyspace_patch", PATCH "/v1/keyspaces/{keyspace}";
    /// Drop a keyspace.
    KeyspaceDelete = "keyspace_delete", DELETE "/v1/keyspaces/{keyspace}";
    /// Grant a lease.
    LeaseGrant = "lease_grant", POST "/v1/leases";
    /// Leases.
    LeaseList = "lease_list", GET "/v1/leases";
    /// A lease and its keys.
    LeaseGet = "lease_get", GET "/v1/leases/{lease}";
    /// End a lease and its keys.
    LeaseRevoke = "lease_revoke", DELETE "/v1/leases/{lease}";
    /// Let a lease live on.
    LeaseKeepAlive = "lease_keep_alive", POST "/v1/leases/{lease}/keep-alive";
    /// Conditions that choose between two lists of operations.
    Transaction = "transaction", POST "/v1/txn";
    /// A commit across keyspaces and streams.
    Commit = "commit", POST "/v1/commit";
    /// Append records.
    StreamAppend = "stream_append", POST "/v1/streams/{stream}/records";
    /// Read or tail records.
    StreamRead = "stream_read", GET "/v1/streams/{stream}/records";
    /// Names and figures of the streams.
    StreamList = "stream_list", GET "/v1/streams";
    /// Figures and configuration of a stream.
    StreamGet = "stream_get", GET "/v1/streams/{stream}";
    /// Create a stream.
    StreamCreate = "stream_create", PUT "/v1/streams/{stream}";
    /// Change a stream's configuration.
    StreamPatch = "stream_patch", PATCH "/v1/streams/{stream}";
    /// Delete a stream.
    StreamDelete = "stream_delete", DELETE "/v1/streams/{stream}";
    /// Forget a stream's oldest records.
    StreamTrim = "stream_trim", POST "/v1/streams/{stream}/trim";
    /// The producers of a stream.
    ProducerList = "producer_list", GET "/v1/streams/{stream}/producers";
    /// What a stream knows of a producer.
    ProducerGet = "producer_get", GET "/v1/streams/{stream}/producers/{producer}";
    /// Give a producer a new epoch.
    ProducerOpen = "producer_open", POST "/v1/streams/{stream}/producers/{producer}";
    /// All consumer groups.
    GroupListAll = "group_list_all", GET "/v1/groups";
    /// A stream's consumer groups.
    GroupList = "group_list", GET "/v1/streams/{stream}/groups";
    /// Figures and configuration of a consumer group.
    GroupGet = "group_get", GET "/v1/streams/{stream}/groups/{group}";
    /// Create a consumer group.
    GroupCreate = "group_create", PUT "/v1/streams/{stream}/groups/{group}";
    /// Change a consumer group's configuration.
    GroupPatch = "group_patch", PATCH "/v1/streams/{stream}/groups/{group}";
    /// Delete a consumer group.
    GroupDelete = "group_delete", DELETE "/v1/streams/{stream}/groups/{group}";
    /// Deliver records to a member.
    GroupFetch = "group_fetch", POST "/v1/streams/{stream}/groups/{group}/fetch";
    /// Ack records.
    GroupAck = "group_ack", POST "/v1/streams/{stream}/groups/{group}/ack";
    /// Give records back.
    GroupNack = "group_nack", POST "/v1/streams/{stream}/groups/{group}/nack";
    /// Move the deadlines of attempts.
    GroupExtend = "group_extend", POST "/v1/streams/{stream}/groups/{group}/extend";
    /// Move a consumer group's cursor.
    GroupSeek = "group_seek", POST "/v1/streams/{stream}/groups/{group}/seek";
    /// Push deliveries to a receiver.
    GroupPush = "group_push", GET "/v1/streams/{stream}/groups/{group}/push";
    /// Publish messages to a subject.
    SubjectPublish = "subject_publish", POST "/v1/subjects/{subject}";
    /// Messages of subjects as they are published.
    SubjectSubscribe = "subject_subscribe", GET "/v1/subjects/{subject}";
    /// Publish a message and wait for an answer to it.
    SubjectAsk = "subject_ask", POST "/v1/ask/{subject}";
    /// Caches and their figures.
    CacheList = "cache_list", GET "/v1/caches";
    /// Create a cache.
    CacheCreate = "cache_create", PUT "/v1/caches/{cache}";
    /// Figures of a cache.
    CacheStat = "cache_stat", GET "/v1/caches/{cache}";
    /// Drop a cache.
    CacheDrop = "cache_drop", DELETE "/v1/caches/{cache}";
    /// Forget all entries of a cache.
    CacheClear = "cache_clear", POST "/v1/caches/{cache}/clear";
    /// Read several entries of a cache.
    CacheMultiGet = "cache_multi_get", POST "/v1/caches/{cache}/get";
    /// Put several entries into a cache.
    CacheMultiPut = "cache_multi_put", POST "/v1/caches/{cache}/put";
    /// Keys of a cache.
    CacheScan = "cache_scan", GET "/v1/caches/{cache}/keys";
    /// An entry of a cache.
    CacheGet = "cache_get", GET "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/";
    /// Version and size of an entry of a cache.
    CacheHead = "cache_head", HEAD "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/";
    /// Put an entry into a cache.
    CachePut = "cache_put", PUT "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/";
    /// Remove an entry of a cache.
    CacheDelete = "cache_delete", DELETE "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/";
    /// Add to a counter in a cache.
    CacheAdd = "cache_add", POST "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/";
    /// Change until when an entry of a cache lives.
    CacheTouch = "cache_touch", PATCH "/v1/caches/{cache}/keys/{*key}" | "/v1/caches/{cache}/keys/";
    /// Compute a digest of the state.
    StateDigest = "state_digest", POST "/v1/state/digest";
    /// The digest that was computed last.
    StateDigestLast = "state_digest_last", GET "/v1/state/digest";
    /// The version of the state machine.
    StateVersion = "state_version", GET "/v1/state/version";
    /// Raise the version of the state machine.
    StateVersionRaise = "state_version_raise", POST "/v1/state/version";
    /// The state, or what was written since an LSN, as a backup.
    Snapshot = "snapshot", GET "/v1/snapshot";
    /// Store an entity.
    EntityPut = "entity_put", PUT "/v0/entity";
    /// An entity.
    EntityGet = "entity_get", GET "/v0/entity";
    /// Remove an entity.
    EntityDelete = "entity_delete", DELETE "/v0/entity";
    /// Entities in a range.
    EntityRange = "entity_range", GET "/v0/entities";
    /// Store a value under a key.
    KeysPut = "keys_put", PUT "/keys/{*key}" | "/keys";
    /// A key's value as JSON.
    KeysGet = "keys_get", GET "/keys/{*key}" | "/keys";
    /// Remove a key.
    KeysDelete = "keys_delete", DELETE "/keys/{*key}" | "/keys";
    /// Pairs in a range as JSON.
    KeysRange = "keys_range", GET "/keys/range";
    /// Store several pairs atomically.
    KeysBatch = "keys_batch", POST "/keys/batch";
    /// Whether the node is well.
    Health = "health", GET "/health";
    /// Whether the node takes requests.
    Ready = "ready", GET "/ready";
    /// Figures for Prometheus.
    Metrics = "metrics", GET "/metrics";
    /// Figures for people.
    Status = "status", GET "/v1/status";
    /// The OpenAPI document.
    OpenApi = "openapi", GET "/openapi.json";
    /// Takes a body and stores nothing: what HTTP alone costs.
    Echo = "echo", POST "/v1/echo";
}

impl Operation {
    /// Whether it is answered even when the server is full: an operator must see why.
    #[must_use]
    pub const fn is_exempt(self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::Metrics | Self::Status | Self::OpenApi)
    }
}

/// The router over all routes. It only picks the operation; [`App::handle`] does the rest, so there is
/// no stack of layers to pay for.
pub fn router(app: &Arc<App>) -> Router {
    let handler = |operation| {
        let app = Arc::clone(app);
        move |request: Request| Arc::clone(&app).handle(operation, request)
    };
    let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut router = Router::new();
    for path in paths {
        let methods = ROUTES
            .iter()
            .filter(|route| route.path == path)
            .fold(MethodRouter::new(), |methods, route| methods.on(route.filter, handler(route.operation)));
        router = router.route(path, methods);
    }
    router.fallback(handler(Operation::Unknown)).method_not_allowed_fallback(handler(Operation::WrongMethod))
}
