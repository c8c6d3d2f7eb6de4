//! JSON objects of records and messages, in the form that reads, tails, fetches, pushes and subscriptions return.

use thalweg_types::{Offset, SpaceTime, record::Record};

use crate::json::{push_bytes, push_number, push_text};

/// Appends a record of a stream as a JSON object.
pub(crate) fn push_json(out: &mut Vec<u8>, offset: Offset, time: SpaceTime, record: &Record<'_>) {
    out.push(b'{');
    push_number(out, "offset", offset.0);
    out.push(b',');
    push_number(out, "time_micros", time.0);
    push_content(out, record.key, record.headers.iter().copied(), record.payload, record.is_tombstone);
    out.push(b'}');
}

/// Appends the JSON fields that records and messages share. Each field is preceded by a comma.
pub(crate) fn push_content<'a>(
    out: &mut Vec<u8>,
    key: Option<&[u8]>,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    payload: &[u8],
    is_tombstone: bool,
) {
    if let Some(key) = key {
        out.push(b',');
        push_bytes(out, "key", key);
    }
    let mut headers = headers.enumerate().peekable();
    if headers.peek().is_some() {
        out.extend_from_slice(b",\"headers\":[");
        for (at, (name, value)) in headers {
            out.extend_from_slice(if at == 0 { b"{\"name\":" } else { b",{\"name\":" });
            push_text(out, name);
            out.push(b',');
            push_bytes(out, "value", value);
            out.push(b'}');
        }
        out.push(b']');
    }
    out.push(b',');
    push_bytes(out, "payload", payload);
    if is_tombstone {
        out.extend_from_slice(b",\"tombstone\":true");
    }
}
