//! Tables of scenario files about streams, groups and subjects.

use serde::Deserialize;

use super::mix::{Kind, Mix};
use crate::load::feeds::{FeedSizes, LEAST_TEXT_BYTES, ReadFrom};

/// Maximum length in bytes of an append, of a read, of a fetch and of a publish. It is bounded because the generator
/// buffers whole requests and replies.
const MAX_REQUEST_BYTES: u64 = 4 << 20;
/// Maximum number of records of a request. It equals the server's maximum for a fetch.
const MAX_RECORDS: u64 = 1000;
/// Maximum number of records that are appended before the runs.
const MAX_FILL: u64 = 100_000_000;
/// Maximum number of subscribers that a scenario may have.
const MAX_SUBSCRIBERS: u64 = 1000;

/// Stream, group and subject of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Feeds {
    /// Sizes of records, messages and requests.
    pub sizes: FeedSizes,
    /// Number of records that are appended before the runs.
    pub records: u64,
    /// Number of subscribers of the subject.
    pub subscribers: usize,
    /// Medium on which a NATS server stores the stream's records.
    pub storage: Storage,
}

/// Medium on which a NATS server stores the records of a JetStream stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Storage {
    /// The server stores the records in files.
    #[default]
    File,
    /// The server stores the records in memory. They are lost when the server ends.
    Memory,
}

/// The TOML tables of a scenario file about streams, groups and subjects, as the file contains them.
#[derive(Debug)]
pub(super) struct FeedTables {
    pub streams: Option<StreamsTable>,
    pub groups: Option<GroupsTable>,
    pub subjects: Option<SubjectsTable>,
    pub jetstream: Option<JetstreamTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamsTable {
    record_bytes: usize,
    #[serde(default)]
    records: u64,
    #[serde(default = "one")]
    batch: u32,
    read_records: Option<u32>,
    #[serde(default)]
    read_from: From,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum From {
    #[default]
    Tail,
    Start,
    Random,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupsTable {
    records: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubjectsTable {
    message_bytes: usize,
    #[serde(default = "one")]
    batch: u32,
    #[serde(default = "one")]
    subscribers: u32,
}

/// Settings of the stream on a NATS server. Other servers ignore them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JetstreamTable {
    storage: Storage,
}

fn one() -> u32 {
    1
}

/// Returns the maximum number of records that a request may have if each record has `bytes` bytes.
fn most(bytes: usize) -> u64 {
    (MAX_REQUEST_BYTES / bytes.max(1) as u64).min(MAX_RECORDS)
}

impl FeedTables {
    /// Converts the tables to the settings of a scenario's stream, group and subject. Returns an error if the mix of
    /// operations needs a table that is missing, or if it does not use a table that is there.
    pub(super) fn resolve(self, mix: &Mix) -> Result<Feeds, String> {
        let Self { streams, groups, subjects, jetstream } = self;
        let needed = |kind: Kind| mix.share(kind) > 0.0;
        let has_streams = mix.has(Kind::uses_stream);
        match (&streams, has_streams) {
            (None, true) => {
                return Err(
                    "mix.append, mix.read_records, mix.fetch: they need a table [streams] with record_bytes".into()
                );
            }
            (Some(_), false) => return Err("streams: the mix has no append, read_records or fetch".into()),
            _ => {}
        }
        if jetstream.is_some() && !has_streams {
            return Err("jetstream: the mix has no append, read_records or fetch".into());
        }
        if groups.is_some() && !needed(Kind::Fetch) {
            return Err("groups: the mix has no fetches; set mix.fetch".into());
        }
        match (&subjects, needed(Kind::Publish)) {
            (None, true) => return Err("mix.publish: publishes need a table [subjects] with message_bytes".into()),
            (Some(_), false) => return Err("subjects: the mix has no publishes; set mix.publish".into()),
            _ => {}
        }
        let least = LEAST_TEXT_BYTES;
        let streams = streams.unwrap_or(StreamsTable {
            record_bytes: least,
            records: 0,
            batch: 1,
            read_records: None,
            read_from: From::Tail,
        });
        let subjects = subjects.unwrap_or(SubjectsTable { message_bytes: least, batch: 1, subscribers: 1 });
        let usual = most(streams.record_bytes).min(100) as u32;
        let sizes = FeedSizes {
            record_bytes: streams.record_bytes,
            batch: streams.batch,
            read_records: streams.read_records.unwrap_or(usual),
            read_from: match streams.read_from {
                From::Tail => ReadFrom::Tail,
                From::Start => ReadFrom::Start,
                From::Random => ReadFrom::Random,
            },
            fetch_records: groups.and_then(|groups| groups.records).unwrap_or(usual),
            message_bytes: subjects.message_bytes,
            messages: subjects.batch,
        };
        let storage = jetstream.map(|table| table.storage).unwrap_or_default();
        Ok(Feeds { sizes, records: streams.records, subscribers: subjects.subscribers as usize, storage })
    }
}

impl Feeds {
    /// Returns an error if a value is out of its range. The error names the field and the range.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { sizes, records, subscribers, .. } = self;
        let least = LEAST_TEXT_BYTES as u64;
        for (field, bytes, counts) in [
            (
                "streams.record_bytes",
                sizes.record_bytes,
                &[
                    ("streams.batch", sizes.batch),
                    ("streams.read_records", sizes.read_records),
                    ("groups.records", sizes.fetch_records),
                ][..],
            ),
            ("subjects.message_bytes", sizes.message_bytes, &[("subjects.batch", sizes.messages)][..]),
        ] {
            within(field, bytes as u64, least, MAX_REQUEST_BYTES / 4)?;
            for (field, count) in counts {
                within(field, u64::from(*count), 1, most(bytes))?;
            }
        }
        within("streams.records", *records, 0, MAX_FILL)?;
        within("subjects.subscribers", *subscribers as u64, 1, MAX_SUBSCRIBERS)
    }
}

/// Returns an error that names the field, unless its value is from `least` to `most`.
pub(super) fn within(field: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    let is_within = (least..=most).contains(&value);
    if is_within { Ok(()) } else { Err(format!("{field}: {value} is not from {least} to {most}")) }
}
