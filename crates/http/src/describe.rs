//! Parts of the OpenAPI document that several handlers share: parameters of paths, headers, and replies without JSON.
//!
//! Owns: the sets of parameters and replies, and the macros that declare them. Does not own: parameters of queries
//! (`parse`), schemas of JSON bodies, which are derived from their types, and the assembly of the document
//! (`document`).
//!
//! Invariant: handling a request runs no code of this module.

use std::collections::BTreeMap;

use thalweg_types::Durability;
use utoipa::{
    IntoParams, IntoResponses, PartialSchema,
    openapi::{
        ContentBuilder, Header, KnownFormat, ObjectBuilder, OneOfBuilder, RefOr, Response, ResponseBuilder, Schema,
        SchemaFormat, Type,
        path::{Parameter, ParameterIn},
    },
};

use crate::parse::{Media, parameter};

/// Media type of raw bytes in requests and replies.
pub(crate) const BINARY: &str = Media::Binary.name();
/// Media type of one JSON value per line.
pub(crate) const NDJSON: &str = Media::Ndjson.name();
/// Media type of server-sent events.
pub(crate) const EVENTS: &str = Media::Events.name();

fn integer() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer)
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// Returns the schema of a text that must be one of the given words.
fn text_of<const N: usize>(words: [&'static str; N]) -> ObjectBuilder {
    text().enum_values(Some(words))
}

/// Returns the schema of a number or one of several words.
pub(crate) fn number_or_word<const N: usize>(number: Type, words: [&'static str; N], text: &str) -> RefOr<Schema> {
    let number = ObjectBuilder::new().schema_type(number).minimum(Some(0));
    OneOfBuilder::new().item(number).item(text_of(words)).description(Some(text)).into()
}

/// Returns the schema of a lifetime: a number of seconds, or a word.
pub(crate) fn ttl() -> RefOr<Schema> {
    let text = "Lifetime in seconds of space time, above 0, fractions allowed; `never`; `default`: that of the \
                keyspace; `keep`: that of the value before.";
    number_or_word(Type::Number, ["never", "default", "keep"], text)
}

/// Gives types a name and a schema in the OpenAPI document, if these cannot be derived from the types' definitions.
macro_rules! described_as {
    ($($type:ty: $name:literal, $schema:expr;)+) => {$(
        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $schema.into()
            }
        }

        impl utoipa::ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
        }
    )+};
}
pub(crate) use described_as;

/// Declares sets of request parameters that several handlers share.
macro_rules! parameters {
    ($(
        $(#[doc = $doc:literal])+
        $set:ident { $($place:ident $name:literal $($required:ident)?: $schema:expr, $text:literal;)+ }
    )+) => {$(
        $(#[doc = $doc])+
        pub(crate) enum $set {}

        impl IntoParams for $set {
            fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
                vec![$({
                    let required = ParameterIn::$place == ParameterIn::Path $(|| stringify!($required) == "required")?;
                    parameter(ParameterIn::$place, $name, $text, required, $schema)
                }),+]
            }
        }
    )+};
}

parameters! {
    /// Path parameters of a key of a keyspace.
    KeyPath {
        Path "keyspace": text(), "Name of the keyspace.";
        Path "key": text(), "Percent-encoded bytes of the key; a slash may be plain or %2F.";
    }
    /// Path parameter of a keyspace.
    KeyspacePath { Path "keyspace": text(), "Name of the keyspace."; }
    /// Path parameter of a lease.
    LeasePath { Path "lease": integer(), "Id of the lease."; }
    /// Path parameter of a stream.
    StreamPath { Path "stream": text(), "Name of the stream."; }
    /// Path parameters of a producer of a stream.
    ProducerPath {
        Path "stream": text(), "Name of the stream.";
        Path "producer": text().max_length(Some(64)), "Id of the producer.";
    }
    /// Path parameters of a consumer group.
    GroupPath {
        Path "stream": text(), "Name of the stream.";
        Path "group": text(), "Name of the consumer group.";
    }
    /// Path parameter of a subject.
    SubjectPath { Path "subject": text(), "Percent-encoded bytes: tokens joined by dots, without wildcards."; }
    /// Path parameter of a pattern of subjects.
    PatternPath {
        Path "subject": text(), "A pattern: * matches any one token, and > at the end (percent-encoded as %3E) matches \
            one or more.";
    }
    /// Path parameter of a cache.
    CachePath { Path "cache": text(), "Name of the cache."; }
    /// Path parameters of an entry of a cache.
    EntryPath {
        Path "cache": text(), "Name of the cache.";
        Path "key": text(), "Percent-encoded bytes of the key; a slash may be plain or %2F.";
    }
    /// Path parameter of a key below `/keys`.
    KeysPath { Path "key": text(), "Percent-encoded bytes of the key."; }
    /// Header with the durability level of a write.
    Level {
        Header "Thalweg-Durability": Durable::schema(), "Level of the write; the server's default if missing.";
        Header "Thalweg-Timeout": ObjectBuilder::new().schema_type(Type::Number), "Seconds that the write may wait for \
            the cluster, at most 600; 10 if missing or longer.";
    }
    /// Headers and query parameters of a put with the lifetime of its value.
    Lifetime {
        Header "Thalweg-TTL": ttl(), "Lifetime of the value; the keyspace's default if missing.";
        Header "Thalweg-Lease": integer(), "Lease of the value, which lives no longer than the lease. The error is \
            `no_such_lease` if it does not exist.";
        Query "ttl": ttl(), "The same as Thalweg-TTL.";
        Query "lease": integer(), "The same as Thalweg-Lease.";
    }
    /// Header and query parameter with a lifetime, which a touch gives to a key or a cache entry, and a put to a cache
    /// entry.
    TimeToLive {
        Header "Thalweg-TTL": ttl(), "Lifetime from now on: seconds or a word.";
        Query "ttl": ttl(), "The same as Thalweg-TTL.";
    }
    /// Headers with the conditions of a write.
    WriteConditions {
        Header "If-Match": text(), "Revision or version that the key must have, in quotes as in \"17\"; or * if it \
            must exist.";
        Header "If-None-Match": text(), "* if the key must not exist.";
    }
    /// Condition of a write to an existing key.
    MatchCondition {
        Header "If-Match": text(), "Revision or version that the key must have, in quotes as in \"17\"; or * if it \
            must exist.";
    }
    /// Headers with the conditions of a read.
    ReadConditions {
        Header "If-Match": text(), "Revisions or versions in quotes. The reply is 412 if the key has another one.";
        Header "If-None-Match": text(), "Revisions or versions in quotes. The reply is 304 if the key has one of them.";
    }
    /// Query parameter with the key of an entity. An entity is a value of the `/v0/entity` API.
    EntityId { Query "id" required: text(), "The key, percent-encoded."; }
    /// Query parameters with a range of keys of entities. An entity is a value of the `/v0/entity` API.
    EntityRange {
        Query "start" required: text(), "Lowest key, inclusive.";
        Query "end": text(), "Highest key, exclusive.";
        Query "limit": integer(), "Maximum number of pairs.";
    }
    /// Number to add to a counter of a cache.
    EntryAdd { Query "add" required: integer(), "Number to add; may be negative."; }
    /// Header with the time that a request may wait for the cluster.
    Timeout {
        Header "Thalweg-Timeout": ObjectBuilder::new().schema_type(Type::Number), "Seconds that the request may wait for \
            the cluster, at most 600; 20 for changes and digests, 5 for reads if missing.";
    }
    /// Headers of reads on a node of a cluster.
    ReadLevels {
        Header "Thalweg-Read": text(), "Age of the data: linearizable, lease, stale, or at-least=REVISION, which waits \
            until the node has this revision. The server's default if missing. Without a cluster each read is \
            linearizable.";
        Header "Thalweg-Timeout": ObjectBuilder::new().schema_type(Type::Number), "Seconds that the read may wait for \
            the cluster, at most 600; 5 if missing.";
    }
    /// Header with which a client of an event stream resumes after its last event.
    LastEvent { Header "Last-Event-ID": text(), "Id of the last event received; the reply resumes after it."; }
    /// Query parameters of a request to a subject.
    AskParameters {
        Query "key": text(), "Key of the raw message.";
        Query "timeout": ObjectBuilder::new().schema_type(Type::Number), "Seconds to wait for subscriptions that block \
            publishers, and for the answer; 5 if missing, 3,600 at most.";
    }
    /// Query parameters of an append.
    AppendParameters {
        Query "expected": text().pattern(Some("^([0-9]+|none|any)$")), "Expected next offset of the stream, or `none` \
            if it must never have held a record; the append fails if it differs. `any` expects nothing.";
        Query "key": text(), "Key of a raw record.";
        Query "producer": text().max_length(Some(64)), "Id of the producer. An append that is sent again with the same \
            numbers happens once.";
        Query "epoch": integer().minimum(Some(0)), "The producer's epoch; 0 if missing.";
        Query "sequence": integer().minimum(Some(0)), "Number of the append: from 0 in each epoch, without gaps.";
    }
    /// Query parameters of a read of records.
    RecordsParameters {
        Query "from": text(), "Position at which to begin: an offset, `start` or `end`.";
        Query "since": text(), "Time at which to begin, instead of `from`: microseconds since 1970 or RFC 3339.";
        Query "last": integer().minimum(Some(0)), "Offsets before the end at which to begin, instead of `from`.";
        Query "limit": integer(), "Maximum number of records.";
        Query "max_bytes": integer(), "Maximum size of the records in bytes, approximately.";
    }
}

/// A durability level, as a schema of the OpenAPI document.
pub(crate) enum Durable {}

/// Raw bytes as a body, as a schema of the OpenAPI document.
pub(crate) enum Binary {}

described_as! {
    Durable: "Durability", text_of(Durability::ALL.map(Durability::name));
    Binary: "Binary", text().format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
}

/// Header of successful replies, as the OpenAPI document describes it.
#[derive(Clone, Copy)]
enum Head {
    Durability,
    Revision,
    Tag,
    Ttl,
    Lease,
    Version,
}

impl Head {
    /// Returns the header's name, its description and the type of its value.
    const fn parts(self) -> (&'static str, &'static str, Type) {
        match self {
            Self::Durability => ("Thalweg-Durability", "Level that the write reached, or of the data.", Type::String),
            Self::Revision => ("Thalweg-Revision", "Revision of the key or of the commit.", Type::Integer),
            Self::Tag => ("ETag", "The revision or version in quotes.", Type::String),
            Self::Ttl => ("Thalweg-TTL", "Remaining lifetime in seconds, if there is a deadline.", Type::Number),
            Self::Lease => ("Thalweg-Lease", "Lease of the value, if it has one.", Type::Integer),
            Self::Version => ("Thalweg-Version", "Version of the entry, which every put raises.", Type::Integer),
        }
    }
}

/// Describes the header `Thalweg-Shown` for the OpenAPI document. A node of a cluster states a revision in it: the
/// reply shows the data at this revision or a later one.
pub(crate) fn shown_header() -> RefOr<Header> {
    let mut header = Header::new(ObjectBuilder::new().schema_type(Type::Integer));
    header.description = Some("Revision that the reply shows at least; only on a node of a cluster.".to_owned());
    header.into()
}

/// Describes a reply for the OpenAPI document: its text, its headers and, if there is a media type, its body of bytes.
fn reply(text: &str, heads: &[Head], media: Option<&str>) -> RefOr<Response> {
    let reply = heads.iter().fold(ResponseBuilder::new().description(text), |reply, head| {
        let (name, text, kind) = head.parts();
        let mut header = Header::new(ObjectBuilder::new().schema_type(kind));
        header.description = Some(text.to_owned());
        reply.header(name, header)
    });
    let schema = if media == Some(BINARY) { Binary::schema() } else { ObjectBuilder::new().into() };
    let content = ContentBuilder::new().schema(Some(schema)).build();
    media.into_iter().fold(reply, |reply, media| reply.content(media, content.clone())).build().into()
}

/// Declares replies without JSON that several handlers share.
macro_rules! replies {
    ($(
        $(#[doc = $doc:literal])+
        $set:ident { $($status:literal $text:literal [$($head:ident),*] $($media:expr)?;)+ }
    )+) => {$(
        $(#[doc = $doc])+
        pub(crate) enum $set {}

        impl IntoResponses for $set {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                BTreeMap::from([$((stringify!($status).to_owned(), {
                    let media: Option<&str> = None $(.or(Some($media)))?;
                    reply($text, &[$(Head::$head),*], media)
                })),+])
            }
        }
    )+};
}

replies! {
    /// Reply without a body to a write.
    Acked {
        204 "The write is done." [Durability, Revision, Tag];
        202 "The write is accepted at level none; its outcome is not known yet." [Durability];
    }
    /// Reply without a body to a write that never gets status 202. Such a write rejects the level `none`, or treats it
    /// as `os`.
    Committed { 204 "The write is done." [Durability, Revision, Tag]; }
    /// Reply with JSON to a write at durability level `none`.
    Accepted {
        202 "The write is accepted at level none; its outcome is not known yet." [Durability] Media::Json.name();
    }
    /// Reply to a change of a deadline, with the durability level that the change reached.
    Touched { 204 "The deadline is changed." [Durability]; }
    /// Reply to a change that has no durability level.
    Done { 204 "The change is done." []; }
    /// The reply to a put into a cache.
    EntryPut { 204 "The entry is stored." [Version, Tag]; }
    /// The reply to a read of a value.
    ValueReply {
        200 "The value." [Durability, Revision, Tag, Ttl, Lease] BINARY;
        304 "The client has this revision already." [Durability, Revision, Tag];
    }
    /// The reply to a HEAD request for a value.
    ValueHead {
        200 "The key has a value of Content-Length bytes." [Durability, Revision, Tag, Ttl, Lease];
        304 "The client has this revision already." [Durability, Revision, Tag];
    }
    /// The reply to a read of an entry of a cache.
    EntryReply {
        200 "The value." [Version, Tag, Ttl] BINARY;
        304 "The client has this version already." [Version, Tag];
    }
    /// The reply to a HEAD request for an entry of a cache.
    EntryHead {
        200 "The entry has a value of Content-Length bytes." [Version, Tag, Ttl];
        304 "The client has this version already." [Version, Tag];
    }
    /// Reply to a read of an entity, a value of the `/v0/entity` API.
    EntityReply { 200 "The entity." [Durability, Revision, Tag] BINARY; }
    /// Reply to a put of an entity, a value of the `/v0/entity` API.
    EntityPut { 201 "The entity is stored." [Durability, Revision, Tag]; }
    /// Reply to a delete of an entity, a value of the `/v0/entity` API.
    EntityDeleted { 202 "The entity does not exist any more." [Durability, Revision, Tag]; }
}
