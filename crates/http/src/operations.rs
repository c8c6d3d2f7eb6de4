//! JSON of the conditions and operations that commits and transactions contain.
//!
//! Owns: their JSON form, and the conversion of each to a database command. Does not own: the lookup of ids by name
//! (`names`), and replies (`commit`, `transaction`).

use serde::Deserialize;
use serde_json::{Map, Value, json};
use thalweg_engine::WriteError;
use thalweg_serving::{app::App, error::ApiError};
use thalweg_types::{
    Durability, GroupId, KeyspaceId, Offset, Revision, StreamId,
    command::{
        AppendConditions, CommandError, CommitBuilder, Deadline, Expect, ExpectedOffset, Operations, ProducerStamp,
        ScanOperation, UnchangedRange,
        groups::{Redelivery, Settlement},
    },
    limits::MAX_TRANSACTION_SCAN_ITEMS,
    record::RecordBatch,
};
use utoipa::{ToSchema, openapi::Type};

use crate::{
    batch::{JsonRecord, push_records},
    describe::{self, described_as},
    groups::{self, JsonSettlement},
    json::{bytes_of, required_bytes},
    names::{Names, Target},
    ttl::{JsonTtl, PutLifetime, json_terms},
};

/// A condition on a key, in the JSON of commits and transactions.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Condition)]
pub(crate) struct JsonCondition {
    /// Name of the key's keyspace.
    pub keyspace: String,
    key: Option<String>,
    key_base64: Option<String>,
    expect: JsonExpect,
}

impl JsonCondition {
    /// Returns the key and its keyspace as they were sent, for an error.
    pub(crate) fn named(&self) -> Map<String, Value> {
        let mut object = Map::from_iter([("keyspace".to_owned(), json!(self.keyspace))]);
        for (name, given) in [("key", &self.key), ("key_base64", &self.key_base64)] {
            object.extend(given.as_ref().map(|given| (name.to_owned(), json!(given))));
        }
        object
    }

    /// Calls `add` with the key of the condition, and with the state that the key is expected to have.
    pub(crate) fn with(&self, add: impl FnOnce(&[u8], Expect<'_>) -> Result<(), ApiError>) -> Result<(), ApiError> {
        let key = required_bytes("key", self.key.as_ref(), self.key_base64.as_ref())?;
        let (value, end);
        let expect = match &self.expect {
            JsonExpect::Absent => Expect::Absent,
            JsonExpect::Present => Expect::Present,
            JsonExpect::Revision(revision) => Expect::Revision(Revision(*revision)),
            JsonExpect::Before(revision) => Expect::Before(Revision(*revision)),
            JsonExpect::After(revision) => Expect::After(Revision(*revision)),
            JsonExpect::Value(text) => Expect::Value(text.as_bytes()),
            JsonExpect::ValueBase64(base64) => {
                value = required_bytes("value", None, Some(base64))?;
                Expect::Value(&value)
            }
            JsonExpect::Unchanged(range) => {
                end = bytes_of("end", range.end.as_ref(), range.end_base64.as_ref())?;
                let (since, count) = (Revision(range.since), range.count);
                Expect::Unchanged(UnchangedRange { end: end.as_deref(), since, count })
            }
        };
        add(&key, expect)
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Expectation)]
enum JsonExpect {
    Absent,
    Present,
    Revision(u64),
    Before(u64),
    After(u64),
    Value(String),
    ValueBase64(String),
    Unchanged(JsonUnchanged),
}

/// Result of an earlier read of a range of keys. The condition holds if the range has not changed since then.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UnchangedRange)]
struct JsonUnchanged {
    end: Option<String>,
    end_base64: Option<String>,
    since: u64,
    count: u32,
}

/// A write of a commit, or an operation of a transaction. Operations of transactions may also read.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = Operation)]
pub(crate) enum JsonOperation {
    Put {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
        value: Option<String>,
        value_base64: Option<String>,
        ttl_seconds: Option<JsonTtl>,
        /// Lease to which the value is attached: the value ends with the lease, at the latest. The operation fails if
        /// the lease does not exist.
        lease: Option<u64>,
    },
    Touch {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
        ttl_seconds: JsonTtl,
    },
    Delete {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
    },
    Append {
        stream: String,
        expected: Option<JsonExpected>,
        producer: Option<JsonProducer>,
        records: Vec<JsonRecord>,
    },
    Add {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
        delta: i64,
    },
    DeletePrefix {
        keyspace: String,
        prefix: Option<String>,
        prefix_base64: Option<String>,
    },
    Get {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
    },
    Ack {
        stream: String,
        /// Name of the consumer group.
        group: String,
        attempts: Vec<JsonSettlement>,
    },
    Nack {
        stream: String,
        group: String,
        attempts: Vec<JsonSettlement>,
        delay_seconds: Option<f64>,
        #[serde(default)]
        reject: bool,
        #[serde(default)]
        uncounted: bool,
        #[serde(default)]
        reason: String,
    },
    Scan {
        keyspace: String,
        prefix: Option<String>,
        prefix_base64: Option<String>,
        start: Option<String>,
        start_base64: Option<String>,
        end: Option<String>,
        end_base64: Option<String>,
        #[serde(default)]
        reverse: bool,
        #[serde(default)]
        keys_only: bool,
        limit: Option<u32>,
    },
}

/// Expected offset of an append: a number or a word.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum JsonExpected {
    /// The stream's next offset must be this number.
    Offset(u64),
    /// The word `none` or `any`, instead of an offset.
    Word(String),
}

described_as! {
    JsonExpected: "ExpectedOffset", describe::number_or_word(
        Type::Integer,
        ["none", "any"],
        "Next offset of the stream that an append expects; `none` if the stream must never have held a record.",
    );
}

/// Id, epoch and sequence number of a producer. By these three values, the stream recognises an append that the
/// producer sends again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ProducerStamp)]
pub(crate) struct JsonProducer {
    id: String,
    #[serde(default)]
    epoch: u32,
    sequence: u64,
}

impl JsonProducer {
    fn stamp(&self) -> ProducerStamp<'_> {
        ProducerStamp { id: &self.id, epoch: self.epoch, sequence: self.sequence }
    }
}

/// Converts the offset that an append expects of its stream.
fn expected_offset(expected: Option<&JsonExpected>) -> Result<ExpectedOffset, ApiError> {
    Ok(match expected {
        None => ExpectedOffset::Any,
        Some(JsonExpected::Offset(offset)) => ExpectedOffset::Exact(Offset(*offset)),
        Some(JsonExpected::Word(word)) => ExpectedOffset::parse(word)
            .ok_or_else(|| ApiError::bad_request("bad_json", "expected is an offset, \"none\" or \"any\""))?,
    })
}

/// Builder of a list of writes: for a commit, or for one of the two lists of a transaction.
pub(crate) trait Writes {
    /// Adds a put of a value to this list of writes. `terms` has the lifetime of the value.
    fn put(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8], terms: PutLifetime) -> Result<(), CommandError>;
    /// Adds a change of a key's deadline to this list of writes.
    fn touch(&mut self, keyspace: KeyspaceId, key: &[u8], deadline: Deadline) -> Result<(), CommandError>;
    /// Adds a delete of a key to this list of writes.
    fn delete(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Result<(), CommandError>;
    /// Adds an append of records to this list of writes.
    fn append(&mut self, stream: StreamId, terms: &AppendConditions<'_>, batch: &RecordBatch) -> Result<(), ApiError>;
    /// Adds an ack of delivered records to this list of writes.
    fn ack(&mut self, group: GroupId, settlements: &[Settlement]) -> Result<(), CommandError>;
    /// Adds a nack of delivered records to this list of writes.
    fn nack(
        &mut self,
        group: GroupId,
        again: Redelivery,
        reason: &str,
        settlements: &[Settlement],
    ) -> Result<(), CommandError>;
}

macro_rules! writes {
    ($list:ty, $append:expr) => {
        impl Writes for $list {
            fn put(
                &mut self,
                id: KeyspaceId,
                key: &[u8],
                value: &[u8],
                terms: PutLifetime,
            ) -> Result<(), CommandError> {
                match terms.is_plain() {
                    true => self.put(id, key, value).map(drop),
                    false => self.put_until(id, key, value, terms.deadline, terms.lease).map(drop),
                }
            }

            fn touch(&mut self, id: KeyspaceId, key: &[u8], deadline: Deadline) -> Result<(), CommandError> {
                self.touch(id, key, deadline).map(drop)
            }

            fn delete(&mut self, id: KeyspaceId, key: &[u8]) -> Result<(), CommandError> {
                self.delete(id, key).map(drop)
            }

            fn append(
                &mut self,
                id: StreamId,
                terms: &AppendConditions<'_>,
                batch: &RecordBatch,
            ) -> Result<(), ApiError> {
                $append(self, id, terms, batch)
            }

            fn ack(&mut self, group: GroupId, settlements: &[Settlement]) -> Result<(), CommandError> {
                self.ack(group, settlements).map(drop)
            }

            fn nack(
                &mut self,
                group: GroupId,
                again: Redelivery,
                reason: &str,
                settlements: &[Settlement],
            ) -> Result<(), CommandError> {
                self.nack(group, again, reason, settlements).map(drop)
            }
        }
    };
}

writes!(CommitBuilder, |list: &mut Self, id, terms, batch| Ok(list.append_with(id, terms, batch).map(drop)?));
writes!(Operations, |list: &mut Self, id, terms: &AppendConditions<'_>, batch| match terms.producer {
    None => Ok(list.append(id, terms.expected, batch).map(drop)?),
    // The state remembers neither the chosen branch of a transaction nor the values that it read. So it could not
    // answer a repetition.
    Some(_) => Err(ApiError::bad_request(
        "bad_json",
        "a transaction cannot have an append of a producer: send it in a commit (POST /v1/commit, thalweg commit)"
    )),
});

impl JsonOperation {
    /// Returns true if the operation changes nothing.
    pub(crate) fn reads(&self) -> bool {
        matches!(self, Self::Get { .. } | Self::Scan { .. })
    }

    /// Returns true if the operation is a scan.
    pub(crate) fn scans(&self) -> bool {
        matches!(self, Self::Scan { .. })
    }

    /// Returns the current size in bytes of the value that the operation reads, if it is a get; 0 for other operations.
    pub(crate) fn value_bytes(&self, app: &App, names: &Names) -> u64 {
        let Self::Get { keyspace, key, key_base64 } = self else { return 0 };
        let Ok(key) = required_bytes("key", key.as_ref(), key_base64.as_ref()) else { return 0 };
        let keyspace = names.keyspace(keyspace).ok().and_then(|id| app.db.blocking().keyspace_by_id(id));
        let head = keyspace.and_then(|keyspace| keyspace.head(&key).ok().flatten());
        head.map_or(0, |head| head.value_bytes)
    }

    /// Returns the keyspace, stream or group that the operation refers to.
    fn target(&self) -> Target<'_> {
        match self {
            Self::Append { stream, .. } => Target::Stream(stream),
            Self::Ack { stream, group, .. } | Self::Nack { stream, group, .. } => Target::Group(stream, group),
            Self::Put { keyspace, .. }
            | Self::Touch { keyspace, .. }
            | Self::Delete { keyspace, .. }
            | Self::Add { keyspace, .. }
            | Self::DeletePrefix { keyspace, .. }
            | Self::Get { keyspace, .. }
            | Self::Scan { keyspace, .. } => Target::Keyspace(keyspace),
        }
    }

    /// Adds the operation to `list` as a write. An operation that only transactions support is an error.
    pub(crate) fn write(&self, list: &mut impl Writes, names: &Names) -> Result<(), ApiError> {
        match self {
            Self::Put { keyspace, key, key_base64, value, value_base64, ttl_seconds, lease } => {
                let id = names.keyspace(keyspace)?;
                let key = required_bytes("key", key.as_ref(), key_base64.as_ref())?;
                let value = required_bytes("value", value.as_ref(), value_base64.as_ref())?;
                list.put(id, &key, &value, json_terms(ttl_seconds.as_ref(), *lease)?)?;
            }
            Self::Touch { keyspace, key, key_base64, ttl_seconds } => {
                let id = names.keyspace(keyspace)?;
                let deadline = ttl_seconds.deadline()?;
                list.touch(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?, deadline)?;
            }
            Self::Delete { keyspace, key, key_base64 } => {
                let id = names.keyspace(keyspace)?;
                list.delete(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?)?;
            }
            Self::Append { stream, expected, producer, records } => {
                let id = names.stream(stream)?;
                let mut batch = RecordBatch::new();
                push_records(&mut batch, records)?;
                if batch.is_empty() {
                    return Err(ApiError::bad_request("no_records", "an append has at least one record"));
                }
                let expected = expected_offset(expected.as_ref())?;
                list.append(
                    id,
                    &AppendConditions { expected, producer: producer.as_ref().map(JsonProducer::stamp) },
                    &batch,
                )?;
            }
            Self::Ack { stream, group, attempts } => {
                list.ack(names.group(stream, group)?, &groups::settlements(attempts)?)?;
            }
            Self::Nack { stream, group, attempts, delay_seconds, reject, uncounted, reason } => {
                let again = groups::again(*delay_seconds, *reject, *uncounted)?;
                list.nack(names.group(stream, group)?, again, reason, &groups::settlements(attempts)?)?;
            }
            Self::Add { .. } | Self::DeletePrefix { .. } | Self::Get { .. } | Self::Scan { .. } => {
                let expected = "a commit supports put, touch, delete, append, ack and nack: see /v1/txn for others";
                return Err(ApiError::bad_request("bad_json", expected));
            }
        }
        Ok(())
    }

    /// Adds the operation to one of a transaction's two lists.
    pub(crate) fn add(&self, list: &mut Operations, names: &Names) -> Result<(), ApiError> {
        match self {
            Self::Add { keyspace, key, key_base64, delta } => {
                let id = names.keyspace(keyspace)?;
                list.add(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?, *delta)?;
            }
            Self::DeletePrefix { keyspace, prefix, prefix_base64 } => {
                let id = names.keyspace(keyspace)?;
                list.delete_prefix(id, &required_bytes("prefix", prefix.as_ref(), prefix_base64.as_ref())?)?;
            }
            Self::Get { keyspace, key, key_base64 } => {
                let id = names.keyspace(keyspace)?;
                list.get(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?)?;
            }
            Self::Scan {
                keyspace,
                prefix,
                prefix_base64,
                start,
                start_base64,
                end,
                end_base64,
                reverse,
                keys_only,
                limit,
            } => {
                let id = names.keyspace(keyspace)?;
                let prefix = bytes_of("prefix", prefix.as_ref(), prefix_base64.as_ref())?.unwrap_or_default();
                let start = bytes_of("start", start.as_ref(), start_base64.as_ref())?;
                let end = bytes_of("end", end.as_ref(), end_base64.as_ref())?;
                let limit = limit.unwrap_or(MAX_TRANSACTION_SCAN_ITEMS as u32);
                let (start, end) = (start.as_deref(), end.as_deref());
                let scan =
                    ScanOperation { prefix: &prefix, start, end, reverse: *reverse, keys_only: *keys_only, limit };
                list.scan(id, &scan)?;
            }
            write => write.write(list, names)?,
        }
        Ok(())
    }
}

/// Returns the keyspaces, streams and groups that conditions and operations refer to.
pub(crate) fn targets<'o>(
    conditions: &'o [JsonCondition],
    operations: impl Iterator<Item = &'o JsonOperation>,
) -> impl Iterator<Item = Target<'o>> {
    let of_conditions = conditions.iter().map(|condition| Target::Keyspace(&condition.keyspace));
    of_conditions.chain(operations.map(JsonOperation::target))
}

/// Returns the durability level that the request's body states, or else the level of the request's header.
pub(crate) fn level_of(named: Option<&String>, asked: Durability) -> Result<Durability, ApiError> {
    let Some(name) = named else { return Ok(asked) };
    name.parse::<Durability>().map_err(|error| ApiError::bad_request("bad_json", error.to_string()))
}

/// Converts a write error to an API error. If a condition failed, the error names the condition's key.
pub(crate) fn failed(error: WriteError, conditions: &[JsonCondition]) -> ApiError {
    let culprit = match error {
        WriteError::ConditionFailed { condition, .. } => conditions.get(condition as usize).map(|found| {
            let mut object = found.named();
            object.insert("condition".to_owned(), condition.into());
            object
        }),
        _ => None,
    };
    ApiError { culprit: culprit.map(Box::new), ..error.into() }
}
