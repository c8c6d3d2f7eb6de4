//! A decoder that reads messages and stream records one after the other, without allocating memory.
//!
//! Owns: the decoding of messages and of stream records. `docs/formats/command.md` describes their encoding. Does not
//! own: the encoding ([`crate::record`]).

use crate::{
    codec::{Field, Malformed, Reader},
    limits::MAX_HEADERS,
};

/// Flag bit in an encoded record: the record has a key.
pub(crate) const KEY: u8 = 1;
/// Flag bit in an encoded record: the record has headers.
pub(crate) const HEADERS: u8 = 2;
/// Flag bit in an encoded record: the record is a tombstone, which marks its key as deleted.
pub(crate) const TOMBSTONE: u8 = 4;

/// A message published to a subject, or a record of a stream, borrowed from encoded bytes.
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

/// Headers of a message in the sender's order. Names may repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers<'a> {
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Number of headers of the message.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns true if the message has no headers.
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
    Ok((<&str>::take(reader, "header name")?, <&[u8]>::take(reader, "header value")?))
}

/// Iterator over encoded messages. The iteration ends after the first malformed message, which it returns as an error.
#[derive(Clone, Debug, Default)]
pub struct Messages<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Messages<'a> {
    /// Creates an iterator over `bytes`, which must consist of encoded messages only.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Skips one message without decoding its contents. Returns the encoded bytes of the message, including its length
    /// field; `None` after the last message.
    pub fn next_framed(&mut self) -> Option<Result<&'a [u8], Malformed>> {
        let mut reader = Reader::at(self.bytes, self.at);
        if reader.is_empty() {
            return None;
        }
        match <&[u8]>::take(&mut reader, "record bytes") {
            Ok([]) => self.fail(self.at + 4, "record flags"),
            Ok(_) => {
                let from = std::mem::replace(&mut self.at, reader.position());
                Some(Ok(&self.bytes[from..self.at]))
            }
            Err(Malformed { at, expected }) => self.fail(at, expected),
        }
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

    #[cold]
    fn fail<T>(&mut self, at: usize, expected: &'static str) -> Option<Result<T, Malformed>> {
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
        let Some(frame) = rest.get(..len) else { return self.fail(self.at + 4, "record bytes") };
        let Some((&flags, payload)) = frame.split_first() else { return self.fail(self.at + 4, "record flags") };
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

#[inline(never)]
fn with_flags(flags: u8, bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    if flags & !(KEY | HEADERS | TOMBSTONE) != 0 {
        return Err(Malformed { at: 0, expected: "known record flags" });
    }
    let mut reader = Reader::at(bytes, 0);
    let mut message = Message::default();
    if flags & KEY != 0 {
        message.key = Some(<&[u8]>::take(&mut reader, "record key")?);
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
    use crate::record::{Record, RecordBatch, Records};

    fn batch() -> RecordBatch {
        let mut batch = RecordBatch::new();
        batch.push_payload(b"plain").unwrap();
        batch.push_payload(b"").unwrap();
        let headers = vec![("a", &b"1"[..]), ("b", b""), ("a", b"2")];
        batch.push(&Record { key: Some(b"key"), headers, payload: b"payload", is_tombstone: false }).unwrap();
        batch.push(&Record { key: Some(b"gone"), is_tombstone: true, ..Record::default() }).unwrap();
        batch
    }

    /// A second decoder of encoded records, written to check [`Messages`] against it. Returns the records up to the
    /// first malformed one, and true if there is a malformed one.
    fn reference(bytes: &[u8]) -> (Vec<Record<'_>>, bool) {
        let (mut reader, mut records) = (Reader::at(bytes, 0), Vec::new());
        while !reader.is_empty() {
            let record =
                reader.u32("len").and_then(|len| reader.take(len as usize, "record")).and_then(reference_record);
            match record {
                Ok(record) => records.push(record),
                Err(_) => return (records, true),
            }
        }
        (records, false)
    }

    fn reference_record(frame: &[u8]) -> Result<Record<'_>, Malformed> {
        let bad = Malformed { at: 0, expected: "a record" };
        let mut reader = Reader::at(frame, 0);
        let flags = reader.u8("flags")?;
        let mut record = Record { is_tombstone: flags & 4 != 0, ..Record::default() };
        if flags & 1 != 0 {
            let len = reader.u32("key length")? as usize;
            record.key = Some(reader.take(len, "key")?);
        }
        if flags & 2 != 0 {
            let count = reader.u16("header count")?;
            for _ in 0..count {
                let len = usize::from(reader.u16("name length")?);
                let name = std::str::from_utf8(reader.take(len, "name")?).map_err(|_| bad.clone())?;
                let len = reader.u32("value length")? as usize;
                record.headers.push((name, reader.take(len, "value")?));
            }
            if !(1..=64).contains(&count) {
                return Err(bad);
            }
        }
        record.payload = reader.rest();
        let is_torn = record.is_tombstone && (record.key.is_none() || !record.payload.is_empty());
        if flags > 7 || is_torn { Err(bad) } else { Ok(record) }
    }

    /// Checks that [`Messages`] and the second decoder, [`reference`], return the same records and the same error for
    /// these bytes.
    fn compare(bytes: &[u8]) {
        let (wanted, is_malformed) = reference(bytes);
        let found: Vec<_> = Messages::new(bytes).collect();
        let good: Vec<Record<'_>> = found.iter().flatten().map(|message| Record::from(*message)).collect();
        assert_eq!((&good, found.len() > good.len()), (&wanted, is_malformed), "{bytes:?}");
        let records: Vec<_> = Records::new(bytes).collect();
        assert_eq!(records.iter().flatten().cloned().collect::<Vec<_>>(), wanted, "{bytes:?}");
        assert_eq!(records.len(), found.len(), "{bytes:?}");
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
