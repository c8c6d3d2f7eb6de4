//! JSON with long values, which is encoded while it is sent.
//!
//! Owns: the document ([`LongJson`]), its memory in `max_reply_bytes_in_flight`, and its encoding in slices. Does not
//! own: the content.
//!
//! A value of control characters becomes six times as long in JSON. So a document keeps its long values unencoded, and
//! needs only the memory of the values:
//! ```text
//! json:    {"results":[{"op":"get","value":"","revision":7}]}
//! values:                               ▲ 8 MiB, as text
//! ```
//! The body of the reply encodes one slice of [`SLICE_BYTES`] at a time, when the client has room for it.
//!
//! Invariants: a slice encodes at most [`SLICE_BYTES`] and one part of a value, so a serving thread never encodes for
//! long. The positions of the values in `json` ascend.

use std::{collections::VecDeque, sync::Arc};

use axum_core::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use thalweg_serving::{
    admission::{Reservation, Resource, counted},
    app::App,
    bulk::BulkSeat,
    error::ApiError,
};

use crate::{
    call::Call,
    json::{push_bytes, push_text},
    pages::{Running, Unfold},
    reply,
    reply_memory::{self, ReplyMemory},
};

/// Length in bytes from which a value is encoded only while it is sent. The JSON of a shorter value needs no more
/// memory than an item of the list of long values.
const LONG_VALUE_BYTES: usize = 64;
/// Maximum size in bytes of a document that is encoded at once on the thread of its connection. Encoding takes about
/// half a millisecond in the worst case.
const SHORT_BYTES: usize = 64 * 1024;
/// Size in bytes of a slice, which is the JSON that is encoded at a time. The last part of a value may exceed this
/// size.
const SLICE_BYTES: usize = 64 * 1024;
/// Number of bytes of a long value that are encoded as one part. It is divisible by 3, so that parts of base64 need no
/// padding.
const PART_BYTES: usize = 12 * 1024;

/// A JSON document whose long values are not encoded yet.
#[derive(Debug, Default)]
pub(crate) struct LongJson {
    /// Encoded JSON without the long values.
    json: Vec<u8>,
    values: VecDeque<LongValue>,
    /// Total length in bytes of the long values, before their encoding.
    value_bytes: usize,
    /// Bytes that contain some of the values. The document shares these values and does not copy them.
    source: Bytes,
}

#[derive(Debug)]
struct LongValue {
    /// Position in the document's encoded JSON at which this long value belongs.
    at: usize,
    bytes: Bytes,
    form: Form,
}

/// Encoding of bytes in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Base64,
}

impl LongJson {
    /// Creates a document that begins with encoded JSON.
    pub(crate) fn new(begin: &[u8]) -> Self {
        Self { json: begin.to_vec(), ..Self::default() }
    }

    /// Creates an empty document that shares the values which lie in `source`, instead of copying them.
    pub(crate) fn sharing(source: &Bytes) -> Self {
        Self { source: source.clone(), ..Self::default() }
    }

    /// Returns the encoded JSON of the document, to which the caller can append.
    pub(crate) fn json(&mut self) -> &mut Vec<u8> {
        &mut self.json
    }

    /// Appends a field with bytes, in the form that [`push_bytes`] describes.
    pub(crate) fn push(&mut self, name: &str, bytes: &[u8]) {
        if bytes.len() < LONG_VALUE_BYTES {
            push_bytes(&mut self.json, name, bytes);
        } else {
            let shared = self.source.as_ptr_range();
            let is_shared = shared.contains(&bytes.as_ptr()) && bytes.as_ptr_range().end <= shared.end;
            let bytes = if is_shared { self.source.slice_ref(bytes) } else { Bytes::copy_from_slice(bytes) };
            self.push_long(name, bytes);
        }
    }

    /// Appends a field with bytes like [`push`](Self::push), but shares long bytes instead of copying them.
    pub(crate) fn push_shared(&mut self, name: &str, bytes: &Bytes) {
        if bytes.len() < LONG_VALUE_BYTES {
            push_bytes(&mut self.json, name, bytes);
        } else {
            self.push_long(name, bytes.clone());
        }
    }

    fn push_long(&mut self, name: &str, bytes: Bytes) {
        let form = if std::str::from_utf8(&bytes).is_ok() { Form::Text } else { Form::Base64 };
        self.json.push(b'"');
        self.json.extend_from_slice(name.as_bytes());
        self.json.extend_from_slice(if form == Form::Text { b"\":\"" } else { b"_base64\":\"" });
        self.value_bytes += bytes.len();
        self.values.push_back(LongValue { at: self.json.len(), bytes, form });
        self.json.push(b'"');
    }

    /// Number of bytes of the document before its long values are encoded.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.json.len() + self.value_bytes
    }

    /// Returns the number of bytes that the document takes in memory while it is encoded and sent slice by slice,
    /// including one slice.
    #[must_use]
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.len() + self.values.len() * size_of::<LongValue>() + SLICE_BYTES) as u64
    }

    /// Encodes the whole document.
    #[must_use]
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut rest = Slices::new(self);
        let mut out = Vec::with_capacity(rest.document.len());
        while rest.push_slice(&mut out) {}
        out
    }

    /// Creates the body of the reply to a request. If the document is large, it counts in the limit on unsent bytes of
    /// replies. A long document is encoded while it is sent. Returns an error if the limit has no room for the reply.
    pub(crate) fn into_body(self, app: &App, call: &mut Call) -> Result<Body, ApiError> {
        call.reply_memory = ReplyMemory::Counted;
        let take = |bytes| call.account.take(Resource::ReplyBytes, bytes).ok_or_else(reply::no_room);
        if self.len() > SHORT_BYTES {
            let held = take(self.held_bytes())?;
            return Ok(self.into_slices(app, held));
        }
        let bytes = Bytes::from(self.into_bytes());
        if !reply_memory::is_counted(bytes.len() as u64, call.head.version) {
            return Ok(Body::from(bytes));
        }
        let held = take(bytes.len() as u64)?;
        Ok(Body::from(counted(bytes, held)))
    }

    /// Creates the body of a reply. `held` holds the bytes that the caller has reserved for it in the limit on unsent
    /// bytes of replies, as many as [`most_held_bytes`] has returned.
    pub(crate) fn into_reserved_body(self, app: &App, mut held: Reservation) -> Body {
        if self.len() > SHORT_BYTES {
            held.set(self.held_bytes());
            return self.into_slices(app, held);
        }
        let bytes = self.into_bytes();
        held.set(bytes.len() as u64);
        Body::from(counted(bytes.into(), held))
    }

    fn into_slices(self, app: &App, held: Reservation) -> Body {
        let bulk = Some(BulkSeat::new(&app.bulk, held.account()));
        let state = CountedSlices { slices: Slices::new(self), held: Arc::new(held) };
        Body::new(Unfold { frames: VecDeque::new(), state: Some(state), running: None, step, bulk })
    }
}

/// Returns the maximum number of bytes of memory of a reply whose document contains one message of `message_bytes`
/// bytes.
pub(crate) fn most_held_bytes(message_bytes: u64) -> u64 {
    if message_bytes > SHORT_BYTES as u64 { message_bytes + 2 * SLICE_BYTES as u64 } else { 6 * message_bytes + 1024 }
}

/// A document that is being sent, and the bytes that are reserved for it in the limit on unsent bytes of replies.
struct CountedSlices {
    slices: Slices,
    held: Arc<Reservation>,
}

fn step(mut state: CountedSlices) -> Running<CountedSlices> {
    Box::pin(async move {
        let mut out = Vec::with_capacity(SLICE_BYTES + 2 * PART_BYTES);
        let has_more = state.slices.push_slice(&mut out);
        let frame = counted(out.into(), Arc::clone(&state.held));
        Ok((vec![frame], has_more.then_some(state)))
    })
}

/// Encoder that produces a JSON document slice by slice. It keeps the part of the document that is not encoded yet.
#[derive(Debug)]
pub(crate) struct Slices {
    document: LongJson,
    /// Number of bytes of the document's encoded JSON that earlier slices have taken.
    json_at: usize,
    /// Number of bytes of the first remaining long value that earlier slices have encoded.
    value_at: usize,
    /// Buffer for the JSON of one part of a value.
    text: Vec<u8>,
}

impl Slices {
    /// Creates an encoder at the start of a document.
    #[must_use]
    pub(crate) fn new(document: LongJson) -> Self {
        Self { document, json_at: 0, value_at: 0, text: Vec::new() }
    }

    /// Appends the next slice of the document. Returns true if the document has more.
    #[must_use]
    pub(crate) fn push_slice(&mut self, out: &mut Vec<u8>) -> bool {
        let most = out.len() + SLICE_BYTES;
        while out.len() < most {
            let LongJson { json, values, .. } = &mut self.document;
            let json_end = values.front().map_or(json.len(), |value| value.at);
            if self.json_at < json_end {
                let end = json_end.min(self.json_at + (most - out.len()));
                out.extend_from_slice(&json[self.json_at..end]);
                self.json_at = end;
                continue;
            }
            let Some(value) = values.front() else { return false };
            self.value_at += value.push_part(self.value_at, &mut self.text, out);
            if self.value_at == value.bytes.len() {
                values.pop_front();
                self.value_at = 0;
            }
        }
        !self.document.values.is_empty() || self.json_at < self.document.json.len()
    }
}

impl LongValue {
    /// Encodes the part of this value that begins at byte `from`, without quotes. Returns the number of bytes of the
    /// value in this part.
    fn push_part(&self, from: usize, text: &mut Vec<u8>, out: &mut Vec<u8>) -> usize {
        let part = &self.bytes[from..self.bytes.len().min(from + PART_BYTES)];
        match self.form {
            Form::Base64 => {
                let at = out.len();
                out.resize(at + part.len().div_ceil(3) * 4, 0);
                let written = STANDARD.encode_slice(part, &mut out[at..]).unwrap_or(0);
                out.truncate(at + written);
                part.len()
            }
            Form::Text => {
                // A part must end between two characters.
                let valid = match std::str::from_utf8(part) {
                    Ok(valid) => valid,
                    Err(cut) => std::str::from_utf8(&part[..cut.valid_up_to()]).unwrap_or_default(),
                };
                assert!(!valid.is_empty(), "the value was checked, and a character is shorter than a part");
                text.clear();
                push_text(text, valid);
                out.extend_from_slice(&text[1..text.len() - 1]);
                valid.len()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents() -> Vec<Vec<u8>> {
        let control = vec![1_u8; 3 * SLICE_BYTES];
        let binary: Vec<u8> = (0..200_001_u32).map(|at| at as u8).collect();
        let wide = "aé€🦀".repeat(20_000).into_bytes();
        let offset = ["x".to_owned(), "🦀".repeat(10_000)].concat().into_bytes();
        let short = vec![b'"'; LONG_VALUE_BYTES - 1];
        vec![control, Vec::new(), binary, wide, b"short".to_vec(), offset, short, vec![0xff; LONG_VALUE_BYTES]]
    }

    fn document() -> (LongJson, Vec<u8>) {
        let (mut document, mut expected) = (LongJson::new(b"{"), b"{".to_vec());
        for (number, bytes) in contents().into_iter().enumerate() {
            let name = format!("n{number}");
            document.push(&name, &bytes);
            document.json().push(b',');
            document.push_shared(&format!("{name}s"), &bytes.clone().into());
            document.json().push(b',');
            push_bytes(&mut expected, &name, &bytes);
            expected.push(b',');
            push_bytes(&mut expected, &format!("{name}s"), &bytes);
            expected.push(b',');
        }
        document.json().extend_from_slice(b"\"end\":0}\n");
        expected.extend_from_slice(b"\"end\":0}\n");
        (document, expected)
    }

    #[test]
    fn slices_are_the_encoded_document() {
        let (document, expected) = document();
        serde_json::from_slice::<serde_json::Value>(&expected).unwrap();
        assert!(document.into_bytes() == expected);
        let (mut slices, mut whole, mut more) = (Slices::new(self::document().0), Vec::new(), true);
        while more {
            let mut slice = Vec::new();
            more = slices.push_slice(&mut slice);
            assert!(slice.len() <= SLICE_BYTES + 6 * PART_BYTES, "{}", slice.len());
            assert!(!slice.is_empty() || !more);
            whole.extend(slice);
        }
        assert!(whole == expected);
    }

    #[test]
    fn values_in_the_source_are_shared() {
        let source = Bytes::from(vec![b'x'; 1000]);
        let mut document = LongJson::sharing(&source);
        document.push("inside", &source[100..1000]);
        document.push("copied", &[b'y'; 200]);
        let begins: Vec<_> = document.values.iter().map(|value| value.bytes.as_ptr()).collect();
        assert_eq!((begins.len(), begins[0]), (2, source[100..].as_ptr()));
        let expected = format!("\"inside\":\"{}\"\"copied\":\"{}\"", "x".repeat(900), "y".repeat(200));
        assert_eq!(document.into_bytes(), expected.as_bytes());
    }

    #[test]
    fn a_document_is_as_large_as_its_values() {
        let (document, expected) = document();
        let raw: usize = contents().iter().map(|bytes| 2 * bytes.len()).sum();
        assert!((raw..raw + 2000).contains(&document.len()), "{} of {raw}", document.len());
        assert!(document.held_bytes() < (raw + 4000 + SLICE_BYTES) as u64 && expected.len() > 2 * raw);
        assert_eq!(LongJson::new(b"{}").into_bytes(), b"{}");
        assert!(LongJson::default().into_bytes().is_empty());
    }
}
