//! JSON objects of records and messages, in the form that reads, tails, fetches, pushes and subscriptions return.
//!
//! The objects are appended to encoded JSON, or to a document that encodes its long values while it is sent.

use thalweg_types::{Offset, SpaceTime, record::Record};

use crate::{
    json::{push_bytes, push_number, push_text},
    long_json::LongJson,
};

/// Output to which JSON can be appended: encoded bytes, or a document with long values.
pub(crate) trait JsonOutput {
    /// Returns the buffer to which encoded JSON can be appended.
    fn json(&mut self) -> &mut Vec<u8>;
    /// Appends a field with bytes, in the form that the function [`push_bytes`] describes.
    fn push_bytes(&mut self, name: &str, bytes: &[u8]);
}

impl JsonOutput for Vec<u8> {
    fn json(&mut self) -> &mut Vec<u8> {
        self
    }

    fn push_bytes(&mut self, name: &str, bytes: &[u8]) {
        push_bytes(self, name, bytes);
    }
}

impl JsonOutput for LongJson {
    fn json(&mut self) -> &mut Vec<u8> {
        self.json()
    }

    fn push_bytes(&mut self, name: &str, bytes: &[u8]) {
        self.push(name, bytes);
    }
}

/// Appends a record of a stream as a JSON object.
pub(crate) fn push_json(out: &mut impl JsonOutput, offset: Offset, time: SpaceTime, record: &Record<'_>) {
    let json = out.json();
    json.push(b'{');
    push_number(json, "offset", offset.0);
    json.push(b',');
    push_number(json, "time_micros", time.0);
    push_content(out, record.key, record.headers.iter().copied(), record.payload, record.is_tombstone);
    out.json().push(b'}');
}

/// Appends the JSON fields that records and messages have in common, with a comma before each field.
pub(crate) fn push_content<'a>(
    out: &mut impl JsonOutput,
    key: Option<&[u8]>,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    payload: &[u8],
    is_tombstone: bool,
) {
    if let Some(key) = key {
        out.json().push(b',');
        out.push_bytes("key", key);
    }
    let mut headers = headers.enumerate().peekable();
    if headers.peek().is_some() {
        out.json().extend_from_slice(b",\"headers\":[");
        for (at, (name, value)) in headers {
            out.json().extend_from_slice(if at == 0 { b"{\"name\":" } else { b",{\"name\":" });
            push_text(out.json(), name);
            out.json().push(b',');
            out.push_bytes("value", value);
            out.json().push(b'}');
        }
        out.json().push(b']');
    }
    out.json().push(b',');
    out.push_bytes("payload", payload);
    if is_tombstone {
        out.json().extend_from_slice(b",\"tombstone\":true");
    }
}
