//! Shapes of replies that handlers write by hand, for the OpenAPI document.
//!
//! Owns: one type for each such reply. The handlers append these replies to a buffer as text, because they are large or
//! frequent. Does not own: replies that are serialized from a type. Their types describe them.

#![allow(dead_code, reason = "the types only describe replies; no value of them is made")]

use serde::Serialize;
use utoipa::ToSchema;

use crate::describe::Durable;

/// The body of a reply to a failed request.
#[derive(ToSchema)]
pub(crate) struct Error {
    /// Stable code for client programs.
    code: String,
    /// Text for people: what happened, and what to do next.
    message: String,
    retry: NextStep,
    request_id: Option<String>,
    /// Number of the first failed condition, from 0, if the failed request is a commit. The fields next to it have the
    /// keyspace and the key of the condition.
    condition: Option<u64>,
}

/// Next step for a client program after an error: retry the request, fix it, or stop.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
enum NextStep {
    Retry,
    Fix,
    Stop,
}

/// A key and its value. Bytes that are not UTF-8 are in the fields with the suffix `_base64`.
#[derive(ToSchema)]
pub(crate) struct KeyValue {
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    revision: u64,
}

/// Pairs of key and value in a range of keys.
#[derive(ToSchema)]
pub(crate) struct KeyValues {
    items: Vec<KeyValue>,
    /// Number of pairs in `items`.
    count: u64,
    durability: Durable,
    revision: Option<u64>,
    /// Cursor for the next page, present if the range has more pairs.
    cursor: Option<String>,
}

/// A header of a record or message.
#[derive(Serialize, ToSchema)]
struct Header {
    name: String,
    value: Option<String>,
    value_base64: Option<String>,
}

/// A record in a delivery to a member of a consumer group.
#[derive(Serialize, ToSchema)]
struct DeliveredRecord {
    offset: u64,
    time_micros: u64,
    key: Option<String>,
    key_base64: Option<String>,
    headers: Option<Vec<Header>>,
    payload: Option<String>,
    payload_base64: Option<String>,
    /// True if the record marks its key as deleted.
    tombstone: Option<bool>,
    /// Number of deliveries of the record, including this one.
    deliveries: u64,
}

/// A record that is pushed to a member of a consumer group.
#[derive(Serialize, ToSchema)]
pub(crate) struct Delivered {
    #[serde(flatten)]
    record: DeliveredRecord,
    /// Number of the delivery (attempt). The member acks or nacks the record with this number.
    attempt: u64,
    deadline_micros: u64,
    #[schema(value_type = Durable)]
    durability: String,
}

/// Records that a fetch returned.
#[derive(ToSchema)]
pub(crate) struct Delivery {
    /// Number of the delivery (attempt). The member acks or nacks the records with this number.
    attempt: Option<u64>,
    deadline_micros: Option<u64>,
    messages: Vec<DeliveredRecord>,
    durability: Durable,
}

/// A message of a subject.
#[derive(ToSchema)]
pub(crate) struct Message {
    subject: Option<String>,
    subject_base64: Option<String>,
    /// Subject to which the receiver should publish its answer.
    reply: Option<String>,
    reply_base64: Option<String>,
    key: Option<String>,
    key_base64: Option<String>,
    headers: Option<Vec<Header>>,
    payload: Option<String>,
    payload_base64: Option<String>,
    tombstone: Option<bool>,
}

/// A change of a key.
#[derive(ToSchema)]
pub(crate) struct Change {
    revision: u64,
    time_micros: u64,
    change: ChangeKind,
    key: Option<String>,
    key_base64: Option<String>,
    /// Prefix of the removed keys, if `change` is `delete_prefix`.
    prefix: Option<String>,
    prefix_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    durability: Durable,
    /// True for the last change of a commit, in NDJSON. In server-sent events, the change with an `id` is the last
    /// one of its commit.
    last: Option<bool>,
}

/// Kind of a change.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
enum ChangeKind {
    Put,
    Delete,
    Expire,
    DeletePrefix,
}

/// Versions of a key.
#[derive(ToSchema)]
pub(crate) struct Versions {
    /// The key, if it is UTF-8; otherwise the field `key_base64` has it.
    key: Option<String>,
    key_base64: Option<String>,
    versions: Vec<Version>,
    /// Oldest revision from which on all versions of the key are kept.
    oldest: u64,
    /// Present if there are older versions: the value of `before` that requests them.
    next: Option<u64>,
    durability: Durable,
}

/// A version of a key.
#[derive(ToSchema)]
struct Version {
    /// Revision at which the key got the value.
    revision: u64,
    /// The value, if it is UTF-8; otherwise the field `value_base64` has it.
    value: Option<String>,
    value_base64: Option<String>,
    state: VersionState,
    /// First revision at which the key no longer had the value.
    until: Option<u64>,
    /// Time of the revision `until` in microseconds since 1970; null while an expired value waits to be removed.
    until_micros: Option<u64>,
}

/// State of a version. `ended` means that its deadline has passed and the server is about to remove it.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
enum VersionState {
    Current,
    Ended,
    Overwritten,
    Deleted,
    Expired,
}

/// An entry of a cache.
#[derive(ToSchema)]
struct CacheEntry {
    key: Option<String>,
    key_base64: Option<String>,
    /// False if the cache does not have the key. Then the following fields are missing.
    found: bool,
    value: Option<String>,
    value_base64: Option<String>,
    version: Option<u64>,
    /// Remaining lifetime in seconds; missing if the entry has no deadline.
    ttl_seconds: Option<f64>,
}

/// Entries of a cache, one for each requested key, in the order of the request.
#[derive(ToSchema)]
pub(crate) struct CacheEntries {
    entries: Vec<CacheEntry>,
}

/// A key of a cache.
#[derive(ToSchema)]
struct CacheKey {
    key: Option<String>,
    key_base64: Option<String>,
}

/// Keys of a cache, in no particular order.
#[derive(ToSchema)]
pub(crate) struct CacheKeys {
    keys: Vec<CacheKey>,
    /// Cursor for the next page, present if the cache has more keys.
    cursor: Option<String>,
}

/// Result of a put of several entries.
#[derive(ToSchema)]
pub(crate) struct Put {
    /// Number of entries that were put.
    put: u64,
}

/// Result of adding to a counter of a cache.
#[derive(ToSchema)]
pub(crate) struct EntryAdded {
    /// New value of the counter.
    value: i64,
}

/// Result of adding to a counter.
#[derive(ToSchema)]
pub(crate) struct Added {
    /// New value of the counter.
    value: i64,
    revision: u64,
    durability: Durable,
}

/// Result of removing keys with a prefix.
#[derive(ToSchema)]
pub(crate) struct PrefixDeleted {
    /// Number of removed keys, or null if they were too many to count.
    keys: Option<u64>,
    revision: u64,
    durability: Durable,
}

/// A key that is attached to a lease.
#[derive(ToSchema)]
pub(crate) struct LeaseKeyName {
    keyspace: String,
    key: Option<String>,
    key_base64: Option<String>,
}

/// Result of an append.
#[derive(ToSchema)]
pub(crate) struct Appended {
    /// Offset of the first appended record.
    first: Option<u64>,
    /// Offset of the last appended record.
    last: Option<u64>,
    count: u32,
    /// True if the producer has sent this append before. The offsets are then those that the records got the first
    /// time.
    duplicate: Option<bool>,
    durability: Durable,
    revision: Option<u64>,
}
