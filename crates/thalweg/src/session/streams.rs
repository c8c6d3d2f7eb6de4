//! Requests for streams: appends, reads and tails of records, configuration, producers.
//!
//! Owns: the types of results, the requests, and the pages in which records are read. Does not own: the format of a
//! record (`record`), tails across restarts of the server (`events`), or the HTTP exchange (`http`).

use std::{cell::Cell, ops::ControlFlow};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thalweg_server::parse::encode;
use thalweg_types::{
    Durability, SpaceTime,
    command::{AppendConditions, ExpectedOffset, ProducerStamp},
};
use ureq::http::Method;

use super::{
    Session,
    events::{Endless, Part},
    http::{RequestBuilder, Step},
    record::{Record, StreamRecord, records_json},
};
use crate::{
    failure::{Exit, Failure},
    render::note,
};

/// Number of records that the command requests in each page.
const PAGE_RECORDS: u64 = 10_000;
/// Maximum bytes of records that the command requests in each page.
const PAGE_BYTES: u64 = 4 * 1024 * 1024;

/// Acknowledgement of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Appended {
    pub durability: Durability,
    /// Offset of the first appended record, and the offset after the last one; `None` at the durability level
    /// `none`.
    pub offsets: Option<(u64, u64)>,
    /// True if the producer had already sent this append before. In this case nothing was appended now.
    pub duplicate: bool,
}

/// State of a producer of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProducerReply {
    pub id: String,
    pub epoch: u64,
    pub next_sequence: u64,
    /// Time of the producer's last append, in microseconds since 1970.
    pub last_time_micros: u64,
}

/// Description of a stream, as the node returns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamReply {
    pub name: String,
    /// Offset of the oldest record that the stream still has.
    pub start: u64,
    /// Offset that the next record will get.
    pub next: u64,
    pub bytes: u64,
    /// Time of the newest record in microseconds since 1970; 0 if the stream never had a record.
    #[serde(default)]
    pub last_time_micros: u64,
    /// Configuration of the stream, as JSON of the HTTP API.
    pub config: Value,
}

/// Function that is called with each record; `Break` ends the read early.
type VisitRecords<'v> = &'v mut dyn FnMut(StreamRecord) -> Step;

impl Session {
    /// Appends all records to the stream, or none. Creates the stream if it is missing.
    pub(crate) fn append(
        &self,
        stream: &str,
        records: &[Record],
        terms: &AppendConditions<'_>,
    ) -> Result<Appended, Failure> {
        let mut path = format!("{}/records?", path(stream));
        if terms.expected != ExpectedOffset::Any {
            path.push_str(&format!("expected={}&", terms.expected));
        }
        if let Some(ProducerStamp { id, epoch, sequence }) = terms.producer {
            let id = encode(id.as_bytes());
            path.push_str(&format!("producer={id}&epoch={epoch}&sequence={sequence}&"));
        }
        let ask = match records {
            // A single payload is sent as raw bytes. As JSON, a payload of the maximum size could exceed the limit on
            // requests.
            [Record { key, headers, payload, is_tombstone: false }] if headers.is_empty() => {
                path.extend(key.as_ref().map(|key| format!("key={}", encode(key))));
                RequestBuilder::post(path).body(payload).header("content-type", "application/octet-stream")
            }
            records => RequestBuilder::post(path).json(&records_json(records)),
        };
        let reply = self.write(ask)?;
        let ack: Value = self.http.parse(&reply.body)?;
        let count = ack["count"].as_u64().unwrap_or(records.len() as u64);
        Ok(Appended {
            durability: self.http.level(&reply)?,
            offsets: ack["first"].as_u64().map(|first| (first, first + count)),
            duplicate: ack["duplicate"] == json!(true),
        })
    }

    /// Passes the records from the offset `from` to the present end of the stream to `visit`, but at most `limit`
    /// records.
    pub(crate) fn read(&self, stream: &str, from: u64, limit: u64, visit: VisitRecords<'_>) -> Result<(), Failure> {
        let (mut from, mut left, mut end) = (from, limit, None);
        while left > 0 && end.is_none_or(|end| from < end) {
            let page = left.min(PAGE_RECORDS);
            let path = format!("{}/records?from={from}&limit={page}&max_bytes={PAGE_BYTES}", path(stream));
            let (mut whole, mut stopped) = (false, false);
            self.http.lines(RequestBuilder::get(path), |object, _| {
                let Some(record) = StreamRecord::of(&object) else {
                    whole = true;
                    // The end is fixed by the first page, so records appended during the read are not returned.
                    end = end.or(object.get("high_watermark").and_then(Value::as_u64));
                    // Compaction may leave gaps between offsets, so the offset of the last record does not show where
                    // the page ends.
                    from = object.get("next").and_then(Value::as_u64).unwrap_or(from).max(from);
                    return Ok(ControlFlow::Continue(()));
                };
                from = record.offset + 1;
                left -= 1;
                let step = visit(record)?;
                stopped = step.is_break();
                Ok(step)
            })?;
            if stopped {
                break;
            }
            if !whole || end.is_none() {
                return Err(self.http.unexpected_reply("the reply ended before its last line"));
            }
        }
        Ok(())
    }

    /// Passes the records from the offset `from` on to `visit`, and then new records as they are appended, until
    /// `visit` ends the read. Continues after restarts of the server.
    pub(crate) fn tail(&self, stream: &str, from: u64, visit: VisitRecords<'_>) -> Result<(), Failure> {
        if self.http.opened_directory().is_some() {
            self.read(stream, from, u64::MAX, visit)?;
            note("end of the stream: while this command has the directory open, no other process can append");
            return Ok(());
        }
        let from = Cell::new(from);
        let endless = Endless {
            path: &|| format!("{}/records?from={}", path(stream), from.get()),
            next: &|| format!("retrying from offset {}", from.get()),
            resumes: true,
        };
        endless.follow(&self.http, &mut |part| {
            let Part::Event(event) = part else { return Ok(ControlFlow::Continue(())) };
            let Some(record) = StreamRecord::of(&event.object) else { return Ok(ControlFlow::Continue(())) };
            from.set(record.offset + 1);
            visit(record)
        })
    }

    /// Returns the offset of the first record with a time at or after `micros`, in microseconds since 1970. If there is
    /// no such record, returns the offset that the next record will get.
    pub(crate) fn offset_at(&self, stream: &str, micros: u64) -> Result<u64, Failure> {
        let path = format!("{}/records?since={}&limit=1", path(stream), SpaceTime(micros));
        let mut found = None;
        self.http.lines(RequestBuilder::get(path), |object, _| {
            found = found.or(StreamRecord::of(&object).map(|record| record.offset));
            Ok(ControlFlow::Continue(()))
        })?;
        found.map_or_else(|| Ok(self.stream(stream)?.next), Ok)
    }

    pub(crate) fn streams(&self) -> Result<Vec<StreamReply>, Failure> {
        self.rows(self.list("/v1/streams?limit=10000", "streams")?)
    }

    pub(crate) fn stream(&self, name: &str) -> Result<StreamReply, Failure> {
        self.http.json(RequestBuilder::get(path(name)))
    }

    /// Creates a stream; an existing stream is not changed. Returns its description, and true if the stream did not
    /// exist before.
    pub(crate) fn create_stream(&self, name: &str, config: &Value) -> Result<(StreamReply, bool), Failure> {
        let reply = self.write(RequestBuilder::new(Method::PUT, path(name)).json(config))?;
        Ok((self.http.parse(&reply.body)?, reply.status == 201))
    }

    /// Changes settings of a stream, or creates a missing stream with them. `settings` gets the present configuration,
    /// or null for a missing stream, and returns the settings to change. Returns the description of the stream.
    pub(crate) fn configure_stream(
        &self,
        name: &str,
        settings: impl Fn(&Value) -> Value,
    ) -> Result<StreamReply, Failure> {
        let found = match self.stream(name) {
            Err(failure) if failure.exit == Exit::NotFound => None,
            found => Some(found?),
        };
        match found {
            Some(row) => drop(self.write(RequestBuilder::new(Method::PATCH, path(name)).json(&settings(&row.config)))?),
            None => drop(self.create_stream(name, &settings(&Value::Null))?),
        }
        self.stream(name)
    }

    /// Removes the records of a stream with offsets below `before`.
    pub(crate) fn trim_stream(&self, name: &str, before: u64) -> Result<StreamReply, Failure> {
        self.write(RequestBuilder::post(format!("{}/trim", path(name))).json(&json!({ "before": before })))?;
        self.stream(name)
    }

    pub(crate) fn delete_stream(&self, name: &str) -> Result<(), Failure> {
        self.write(RequestBuilder::delete(path(name))).map(drop)
    }

    /// Returns the stream's producers.
    pub(crate) fn producers(&self, stream: &str) -> Result<Vec<ProducerReply>, Failure> {
        self.rows(self.list(&format!("{}/producers", path(stream)), "producers")?)
    }

    /// Assigns a new epoch to a producer and returns the epoch. Creates the stream if it is missing.
    pub(crate) fn open_producer(&self, stream: &str, id: &str) -> Result<u64, Failure> {
        let path = format!("{}/producers/{}", path(stream), encode(id.as_bytes()));
        let opened: Value = self.write_json(RequestBuilder::post(path))?;
        self.http.required(opened["epoch"].as_u64(), "epoch of the producer")
    }

    fn rows<T: serde::de::DeserializeOwned>(&self, items: Vec<Value>) -> Result<Vec<T>, Failure> {
        let rows = serde_json::from_value(Value::Array(items));
        rows.map_err(|error| self.http.unexpected_reply(&error.to_string()))
    }
}

pub(super) fn path(stream: &str) -> String {
    format!("/v1/streams/{}", encode(stream.as_bytes()))
}
