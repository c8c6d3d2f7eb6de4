//! Records and messages, and their JSON format in the API: text unchanged, and other bytes as base64.

use serde_json::{Map, Value, json};

use crate::render::{insert_bytes, take_bytes};

/// Contents of a record of a stream, or of a message of a subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub key: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub payload: Vec<u8>,
    /// True for a tombstone, which marks its key as deleted.
    pub is_tombstone: bool,
}

/// Record of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamRecord {
    pub offset: u64,
    /// Time of the append in microseconds since 1970.
    pub time: u64,
    pub record: Record,
}

impl Record {
    /// Parses the JSON of a record or a message; `None` if it has no payload.
    pub(super) fn of(object: &Map<String, Value>) -> Option<Self> {
        let header = |header: &Value| {
            let header = header.as_object()?;
            Some((header.get("name")?.as_str()?.to_owned(), take_bytes(header, "value")?))
        };
        let headers = object.get("headers").and_then(Value::as_array);
        Some(Self {
            key: take_bytes(object, "key"),
            headers: headers.map(|headers| headers.iter().filter_map(header).collect()).unwrap_or_default(),
            payload: take_bytes(object, "payload")?,
            is_tombstone: object.get("tombstone") == Some(&json!(true)),
        })
    }

    /// Formats the record as JSON of the HTTP API.
    pub(crate) fn object(&self) -> Map<String, Value> {
        let mut object = Map::new();
        if let Some(key) = &self.key {
            insert_bytes(&mut object, "key", key);
        }
        if !self.headers.is_empty() {
            let header = |(name, value): &(String, Vec<u8>)| {
                let mut header = Map::from_iter([("name".into(), json!(name))]);
                insert_bytes(&mut header, "value", value);
                Value::Object(header)
            };
            object.insert("headers".into(), self.headers.iter().map(header).collect());
        }
        insert_bytes(&mut object, "payload", &self.payload);
        if self.is_tombstone {
            object.insert("tombstone".into(), json!(true));
        }
        object
    }
}

impl StreamRecord {
    /// Parses a record of a stream; `None` if fields are missing.
    pub(crate) fn of(object: &Map<String, Value>) -> Option<Self> {
        let time = object.get("time_micros").and_then(Value::as_u64).unwrap_or_default();
        Some(Self { offset: object.get("offset")?.as_u64()?, time, record: Record::of(object)? })
    }

    /// Formats the record with its offset and time as JSON of the HTTP API.
    pub(crate) fn object(&self) -> Map<String, Value> {
        let place = [("offset".into(), json!(self.offset)), ("time_micros".into(), json!(self.time))];
        place.into_iter().chain(self.record.object()).collect()
    }
}

/// Formats records as the JSON body of a request that sends them.
pub(super) fn records_json(records: &[Record]) -> Value {
    json!({ "records": records.iter().map(|record| Value::Object(record.object())).collect::<Vec<_>>() })
}
