//! Decoding of messages and stream records one after the other, without allocation.
//!
//! Messages of a batch and records of a stream have the encoding that `docs/formats/command.md` describes.
//! [`thalweg_types::record::Records`] decodes the same bytes and allocates for headers. This module owns only the
//! decoding without allocation.

use thalweg_types::{
    codec::{Malformed, Reader},
    limits::MAX_HEADERS,
};

const KEY: u8 = 1;
const HEADERS: u8 = 2;
const TOMBSTONE: u8 = 4;

/// A borrowed message of a subject, or record of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// Key of the message, if it has one.
    pub key: Option<&'a [u8]>,
    /// Headers of the message, each a name and a value.
    pub headers: Headers<'a>,
    /// Payload of the message.
    pub payload: &'a [u8],
    /// True if the message is a tombstone: it marks its key as deleted.
    pub is_tombstone: bool,
}

/// Headers of a message in order. Names may repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers<'a> {
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns true if there are no headers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the headers as pairs of name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let mut reader = Reader::at(self.bytes, 0);
        (0..self.count).map_while(move |_| header(&mut reader).ok())
    }

    /// Returns the value of the first header with the given name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let at = reader.position();
        let count = reader.u16("header count")?;
        if count == 0 || usize::from(count) > MAX_HEADERS {
            return Err(Malformed { at, expected: "1 to 64 headers" });
        }
        let mut ahead = reader.clone();
        for _ in 0..count {
            header(&mut ahead)?;
        }
        let bytes = reader.take(ahead.position() - reader.position(), "headers")?;
        Ok(Self { count, bytes })
    }
}

fn header<'a>(reader: &mut Reader<'a>) -> Result<(&'a str, &'a [u8]), Malformed> {
    let len = usize::from(reader.u16("header name length")?);
    let at = reader.position();
    let name = std::str::from_utf8(reader.take(len, "header name")?);
    let name = name.map_err(|_| Malformed { at, expected: "header name in UTF-8" })?;
    let len = reader.u32("header value length")? as usize;
    Ok((name, reader.take(len, "header value")?))
}

/// Iterator over encoded messages. It ends after the first malformed one.
#[derive(Clone, Debug, Default)]
pub struct Messages<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Messages<'a> {
    /// Creates an iterator over `bytes`, which must consist of messages only.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Number of bytes that the iterator has decoded so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Decodes all remaining messages and returns their number.
    pub fn check(self) -> Result<u32, Malformed> {
        let mut count: u32 = 0;
        for message in self {
            message?;
            count += 1; // a message has at least 5 bytes
        }
        Ok(count)
    }

    fn fail(&mut self, at: usize, expected: &'static str) -> Option<Result<Message<'a>, Malformed>> {
        self.at = self.bytes.len();
        Some(Err(Malformed { at, expected }))
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..)?;
        if rest.is_empty() {
            return None;
        }
        let Some((len, rest)) = rest.split_first_chunk() else { return self.fail(self.at, "record length") };
        let len = u32::from_le_bytes(*len) as usize;
        let Some((&flags, payload)) = rest.get(..len).and_then(<[u8]>::split_first) else {
            return self.fail(self.at + 4, "record bytes");
        };
        let begin = self.at + 5;
        self.at += 4 + len;
        if flags == 0 {
            return Some(Ok(Message { payload, ..Message::default() }));
        }
        match with_flags(flags, payload) {
            Ok(message) => Some(Ok(message)),
            Err(Malformed { at, expected }) => self.fail(begin + at, expected),
        }
    }
}

#[cold]
fn with_flags(flags: u8, bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    if flags & !(KEY | HEADERS | TOMBSTONE) != 0 {
        return Err(Malformed { at: 0, expected: "known record flags" });
    }
    let mut reader = Reader::at(bytes, 0);
    let mut message = Message::default();
    if flags & KEY != 0 {
        let len = reader.u32("record key length")? as usize;
        message.key = Some(reader.take(len, "record key")?);
    }
    if flags & HEADERS != 0 {
        message.headers = Headers::take(&mut reader)?;
    }
    message.payload = reader.rest();
    message.is_tombstone = flags & TOMBSTONE != 0;
    if message.is_tombstone && (message.key.is_none() || !message.payload.is_empty()) {
        return Err(Malformed { at: 0, expected: "a tombstone with a key and no payload" });
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_types::record::{Record, RecordBatch, Records};

    fn batch() -> RecordBatch {
        let mut batch = RecordBatch::new();
        batch.push_payload(b"plain").unwrap();
        batch.push_payload(b"").unwrap();
        let headers = vec![("a", &b"1"[..]), ("b", b""), ("a", b"2")];
        batch.push(&Record { key: Some(b"key"), headers, payload: b"payload", is_tombstone: false }).unwrap();
        batch.push(&Record { key: Some(b"gone"), is_tombstone: true, ..Record::default() }).unwrap();
        batch
    }

    fn as_record(message: Message<'_>) -> Record<'_> {
        let Message { key, headers, payload, is_tombstone } = message;
        Record { key, headers: headers.iter().collect(), payload, is_tombstone }
    }

    /// Checks that both decoders find the same messages and the same errors in these bytes.
    fn compare(bytes: &[u8]) {
        let mut ours = Messages::new(bytes);
        for theirs in Records::new(bytes) {
            let ours = ours.next().expect("as many");
            assert_eq!(ours.is_ok(), theirs.is_ok(), "{bytes:?}: {ours:?}, {theirs:?}");
            if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
                assert_eq!(as_record(ours), theirs);
            }
        }
        assert!(ours.next().is_none(), "{bytes:?}");
    }

    #[test]
    fn the_same_as_the_records_of_streams() {
        let batch = batch();
        let bytes = batch.bytes();
        compare(bytes);
        assert_eq!(Messages::new(bytes).check(), Ok(4));
        for cut in 0..bytes.len() {
            compare(&bytes[..cut]);
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut mutated = bytes.to_vec();
                mutated[at] ^= 1 << bit;
                compare(&mutated);
            }
        }
    }

    #[test]
    fn headers_are_found_by_name() {
        let batch = batch();
        let message = Messages::new(batch.bytes()).nth(2).unwrap().unwrap();
        assert_eq!((message.headers.get("a"), message.headers.get("b")), (Some(&b"1"[..]), Some(&b""[..])));
        assert_eq!((message.headers.get("c"), message.headers.len()), (None, 3));
    }
}
