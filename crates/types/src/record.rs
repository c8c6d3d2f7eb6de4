//! Stream records, and the encoding of a batch of them.
//!
//! Owns: `Record`, `RecordBatch`, and the checks of a record. Does not own: the decoder that allocates no memory for
//! headers (`message`), or the log entry that contains a batch.
//!
//! The producer encodes a batch once. The log stores these bytes and readers get them unchanged. The timestamp of a
//! batch is the space time of the log entry that carries the batch, so the batch itself contains no timestamp.
//!
//! ```text
//! batch  := record*
//! record := len u32 | flags u8 | [key_len u32 | key] | [count u16 | header*] | payload
//! header := name_len u16 | name | value_len u32 | value
//! ```
//! All integers are little-endian. `len` counts the bytes after itself; the payload is the rest of these bytes. Flag
//! bit 0: a key follows; bit 1: headers follow; bit 2: a tombstone, with a key and no payload; the other bits are zero.

use crate::{
    codec::{Malformed, put_bytes, put_u16, put_u32},
    limits::{MAX_HEADERS, MAX_KEY_BYTES, MAX_RECORD_BYTES},
    message::{self, Message, Messages},
};

/// Error returned when a record breaks a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record with key, headers and payload is larger than [`MAX_RECORD_BYTES`].
    #[error("record of {got} bytes is above the limit of {MAX_RECORD_BYTES}")]
    TooLarge {
        /// Encoded size of the record in bytes.
        got: usize,
    },
    /// The key of a record is longer than [`MAX_KEY_BYTES`].
    #[error("record key of {got} bytes is above the limit of {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// Length of the key in bytes.
        got: usize,
    },
    /// The record has more headers than [`MAX_HEADERS`], or a header name longer than 65,535 bytes.
    #[error("a record can have at most {MAX_HEADERS} headers with names of at most 65535 bytes")]
    Headers,
    /// The record is a tombstone without a key, or with a payload.
    #[error("a tombstone must have a key and no payload")]
    Tombstone,
    /// The batch would be larger than [`crate::limits::MAX_COMMAND_BYTES`].
    #[error(
        "record batch is above the limit of {} bytes: send fewer records at a time",
        crate::limits::MAX_COMMAND_BYTES
    )]
    BatchTooLarge,
}

/// A header: its name and its value.
pub type Header<'a> = (&'a str, &'a [u8]);

/// A stream record that borrows its key, headers and payload. Producers append records, and readers get them, in this
/// form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record<'a> {
    /// Key of the record, if it has one.
    pub key: Option<&'a [u8]>,
    /// Headers of the record, in the producer's order; names may repeat.
    pub headers: Vec<Header<'a>>,
    /// Payload of the record; it may be empty.
    pub payload: &'a [u8],
    /// True if the record is a tombstone: it marks its key as deleted. A compacted stream drops the older records of
    /// the key, and after a grace period the tombstone itself. A tombstone has a key and no payload.
    pub is_tombstone: bool,
}

/// Builder of an encoded batch of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordBatch {
    bytes: Vec<u8>,
    count: u32,
}

impl RecordBatch {
    /// Creates an empty batch of records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty batch with memory for `bytes` encoded bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), count: 0 }
    }

    /// Adds a record that has only a payload. On error the batch is unchanged.
    #[inline]
    pub fn push_payload(&mut self, payload: &[u8]) -> Result<(), RecordError> {
        let len = payload.len() + 1;
        self.check_room(len)?;
        self.bytes.reserve(4 + len);
        let [a, b, c, d] = (len as u32).to_le_bytes();
        self.bytes.extend_from_slice(&[a, b, c, d, 0]);
        self.bytes.extend_from_slice(payload);
        self.count += 1;
        Ok(())
    }

    /// Checks that a record of `len` bytes, not counting its length field, is within the limit of a record, and that
    /// the batch with this record is within the limit of a batch.
    #[inline]
    fn check_room(&self, len: usize) -> Result<(), RecordError> {
        if len > MAX_RECORD_BYTES {
            return Err(RecordError::TooLarge { got: len });
        }
        if self.bytes.len() + 4 + len > crate::limits::MAX_COMMAND_BYTES - 64 {
            return Err(RecordError::BatchTooLarge);
        }
        Ok(())
    }

    /// Adds a record. On error the batch is unchanged.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), RecordError> {
        let key_len = record.key.map_or(0, <[u8]>::len);
        if key_len > MAX_KEY_BYTES {
            return Err(RecordError::KeyTooLong { got: key_len });
        }
        if record.headers.len() > MAX_HEADERS
            || record.headers.iter().any(|(name, _)| name.len() > usize::from(u16::MAX))
        {
            return Err(RecordError::Headers);
        }
        if record.is_tombstone && (record.key.is_none() || !record.payload.is_empty()) {
            return Err(RecordError::Tombstone);
        }
        let header_bytes: usize = record.headers.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
        let len = 1
            + record.key.map_or(0, |key| 4 + key.len())
            + if record.headers.is_empty() { 0 } else { 2 + header_bytes }
            + record.payload.len();
        self.check_room(len)?;
        self.bytes.reserve(4 + len);
        put_u32(&mut self.bytes, len);
        self.bytes.push(flags_of(record));
        if let Some(key) = record.key {
            put_bytes(&mut self.bytes, key);
        }
        if !record.headers.is_empty() {
            put_u16(&mut self.bytes, record.headers.len());
            for (name, value) in &record.headers {
                put_u16(&mut self.bytes, name.len());
                self.bytes.extend_from_slice(name.as_bytes());
                put_bytes(&mut self.bytes, value);
            }
        }
        self.bytes.extend_from_slice(record.payload);
        self.count += 1;
        Ok(())
    }

    /// Number of records in the batch.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns true if the batch has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Encoded bytes of all records in the batch.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes all records from the batch. The allocated memory is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

impl<'a> From<Message<'a>> for Record<'a> {
    fn from(message: Message<'a>) -> Self {
        let Message { key, headers, payload, is_tombstone } = message;
        Self { key, headers: headers.iter().collect(), payload, is_tombstone }
    }
}

/// Iterator over the records of an encoded batch, which allocates memory for the headers of each. The iteration ends
/// after the first malformed record, which it returns as an error.
#[derive(Clone, Debug)]
pub struct Records<'a>(Messages<'a>);

impl<'a> Records<'a> {
    /// Creates an iterator over `bytes`, which must consist of encoded records only.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Messages::new(bytes))
    }

    /// Skips one record without decoding its contents. Returns `None` after the last record.
    pub fn skip_one(&mut self) -> Option<Result<(), Malformed>> {
        self.next_framed().map(|frame| frame.map(drop))
    }

    /// Skips one record and returns the record's encoded bytes, including its length field; `None` after the last
    /// record.
    pub fn next_framed(&mut self) -> Option<Result<&'a [u8], Malformed>> {
        self.0.next_framed()
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|message| message.map(Record::from))
    }
}

fn flags_of(record: &Record<'_>) -> u8 {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    flag(record.key.is_some(), message::KEY)
        | flag(!record.headers.is_empty(), message::HEADERS)
        | flag(record.is_tombstone, message::TOMBSTONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_given() {
        let records = [
            Record { key: None, headers: vec![], payload: b"", is_tombstone: false },
            Record { key: Some(b"gone"), is_tombstone: true, ..Record::default() },
            Record { key: Some(b""), headers: vec![("a", b"1"), ("a", b"")], payload: b"payload", is_tombstone: false },
            Record { key: Some(b"k\0"), payload: &[0xff; 300], ..Record::default() },
        ];
        let mut batch = RecordBatch::new();
        for record in &records {
            batch.push(record).unwrap();
        }
        assert_eq!(batch.count(), 4);
        let back: Vec<_> = Records::new(batch.bytes()).collect::<Result<_, _>>().unwrap();
        assert_eq!(back, records);
    }

    #[test]
    fn layout_is_pinned() {
        let mut batch = RecordBatch::new();
        let record = Record { key: Some(b"k"), headers: vec![("h", b"v")], payload: b"p", is_tombstone: false };
        batch.push(&record).unwrap();
        assert_eq!(batch.bytes(), b"\x11\0\0\0\x03\x01\0\0\0k\x01\0\x01\0h\x01\0\0\0vp".as_slice());
        batch.clear();
        batch.push(&Record { key: Some(b"k"), is_tombstone: true, ..Record::default() }).unwrap();
        assert_eq!(batch.bytes(), b"\x06\0\0\0\x05\x01\0\0\0k");
        let bad = [Record { payload: b"p", ..Record::default() }, Record { key: None, ..Record::default() }];
        for record in bad {
            let tombstone = Record { is_tombstone: true, ..record };
            assert_eq!(batch.push(&tombstone), Err(RecordError::Tombstone));
        }
        assert!(Records::new(b"\x01\0\0\0\x04").next().unwrap().is_err(), "a tombstone without a key");
    }

    #[test]
    fn any_cut_or_flip_is_an_error_or_other_records_never_a_panic() {
        let mut batch = RecordBatch::new();
        let record =
            Record { key: Some(b"key"), headers: vec![("name", b"value")], payload: b"payload", is_tombstone: false };
        batch.push(&record).unwrap();
        batch.push_payload(b"second").unwrap();
        for cut in 1..batch.bytes().len() {
            let _ = Records::new(&batch.bytes()[..cut]).collect::<Vec<_>>();
        }
        for at in 0..batch.bytes().len() {
            for bit in 0..8 {
                let mut bytes = batch.bytes().to_vec();
                bytes[at] ^= 1 << bit;
                let _ = Records::new(&bytes).collect::<Vec<_>>();
            }
        }
    }

    #[test]
    fn a_record_without_flags_is_malformed() {
        let expected = Malformed { at: 4, expected: "record flags" };
        assert_eq!(Records::new(b"\0\0\0\0").next(), Some(Err(expected.clone())));
        assert_eq!(Records::new(b"\0\0\0\0").skip_one(), Some(Err(expected)));
    }

    #[test]
    fn a_record_has_so_many_headers_and_no_more() {
        let with = |count| Record { headers: vec![("h", b"".as_slice()); count], ..Record::default() };
        let mut batch = RecordBatch::new();
        assert_eq!(batch.push(&with(MAX_HEADERS + 1)), Err(RecordError::Headers));
        batch.push(&with(MAX_HEADERS)).unwrap();
        assert_eq!(Records::new(batch.bytes()).next().unwrap().unwrap().headers.len(), MAX_HEADERS);
    }

    #[test]
    fn a_payload_is_a_record_without_anything_else() {
        let (mut payloads, mut records) = (RecordBatch::new(), RecordBatch::new());
        for payload in [&b""[..], b"payload"] {
            payloads.push_payload(payload).unwrap();
            records.push(&Record { payload, ..Record::default() }).unwrap();
        }
        assert_eq!(payloads, records);
    }

    #[test]
    fn a_record_above_the_limit_leaves_the_batch_as_it_was() {
        let mut batch = RecordBatch::new();
        batch.push_payload(b"first").unwrap();
        let before = batch.clone();
        assert!(matches!(batch.push_payload(&vec![0; MAX_RECORD_BYTES]), Err(RecordError::TooLarge { .. })));
        assert_eq!(batch, before);
    }
}
