//! Batches of messages of one subject. The publisher encodes a batch once, and the server sends the same bytes to
//! every subscriber.
//!
//! ```text
//! batch := crc u32 | count u32 | subject short | reply short | record*
//! ```
//! Owns: the encoding of a batch, and the part of a frame that precedes a shared batch on the wire. Does not own: the
//! syntax of subjects, or the choice of subscribers.
//!
//! A batch contains neither its own length nor its receivers. So the publisher's frame, the queues of all subscribers
//! and the frames of all connections share the same bytes. A connection writes `[prefix, batch]`.

use bytes::Bytes;
use thalweg_types::{
    Action, Classified,
    codec::{EncodeError, Field, Malformed, Reader, ShortBytes},
    limits::{MAX_DELIVER_SUBSCRIPTIONS, MAX_PUBLISH_BYTES, MAX_PUBLISH_MESSAGES, MAX_RECORD_BYTES},
    message::Messages,
    record::{Record, RecordBatch, RecordError},
};

use crate::{
    frames::Kind,
    header::{Fields, put_open_frame},
};

/// Size in bytes of the checksum of a batch. The checksum covers all bytes after it.
const CRC_BYTES: usize = 4;
const COUNT_AT: usize = 4;
const SUBJECT_AT: usize = 8;

/// Error returned when bytes are not a valid batch, or differ from the batch that was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes do not follow the format.
    #[error("malformed batch: {0}")]
    Malformed(#[from] Malformed),
    /// The number of messages in the batch differs from the number in its head.
    #[error("the head of a batch states {stated} messages, but the batch contains {found}")]
    WrongCount {
        /// Number of messages that the batch's head states.
        stated: u32,
        /// Number of messages that the batch contains.
        found: u32,
    },
    /// The batch contains no messages.
    #[error("a batch has at least one message")]
    Empty,
    /// The batch states more than [`MAX_PUBLISH_MESSAGES`] messages.
    #[error(
        "a batch has at most {MAX_PUBLISH_MESSAGES} messages, and this one states {stated}: publish several batches"
    )]
    TooManyMessages {
        /// Number of messages that the batch's head states.
        stated: u32,
    },
    /// The batch is larger than [`MAX_PUBLISH_BYTES`].
    #[error("a batch has at most {MAX_PUBLISH_BYTES} bytes, and this one has {bytes}: publish several batches")]
    TooLarge {
        /// Size of the batch, in bytes.
        bytes: usize,
    },
    /// The checksum does not match: the bytes changed after the publisher encoded them.
    #[error("batch checksum mismatch: stated {stated:#010x}, computed {found:#010x}; the bytes changed in transit")]
    Checksum {
        /// Checksum that the batch's head states.
        stated: u32,
        /// Checksum computed from the received bytes.
        found: u32,
    },
}

impl Classified for BatchError {
    fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::WrongCount { .. } => "malformed_batch",
            Self::Empty => "batch_empty",
            Self::TooManyMessages { .. } => "batch_too_many_messages",
            Self::TooLarge { .. } => "batch_too_large",
            Self::Checksum { .. } => "batch_checksum",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Checksum { .. } => Action::Retry,
            _ => Action::Fix,
        }
    }
}

/// A borrowed batch whose head has been decoded. Its messages are decoded as they are iterated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    bytes: &'a [u8],
    crc: u32,
    count: u32,
    subject: &'a [u8],
    reply: &'a [u8],
    records: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Decodes the head of a batch. The cost does not depend on the number of messages.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let mut reader = Reader::at(bytes, 0);
        let crc = reader.u32("checksum")?;
        let count = reader.u32("message count")?;
        let ShortBytes(subject) = Field::take(&mut reader, "subject")?;
        let ShortBytes(reply) = Field::take(&mut reader, "reply subject")?;
        match count {
            0 => return Err(BatchError::Empty),
            1..=MAX_PUBLISH_MESSAGES => {}
            stated => return Err(BatchError::TooManyMessages { stated }),
        }
        if bytes.len() > MAX_PUBLISH_BYTES {
            return Err(BatchError::TooLarge { bytes: bytes.len() });
        }
        Ok(Self { bytes, crc, count, subject, reply, records: reader.rest() })
    }

    /// Number of messages that the batch's head states; [`check`](Self::check) verifies this number.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Subject of all messages of the batch.
    #[must_use]
    pub fn subject(&self) -> &'a [u8] {
        self.subject
    }

    /// Subject that answers should be published to; empty if the publisher wants no answer.
    #[must_use]
    pub fn reply(&self) -> &'a [u8] {
        self.reply
    }

    /// Iterates over the messages of the batch in order.
    #[inline]
    #[must_use]
    pub fn messages(&self) -> Messages<'a> {
        Messages::new(self.records)
    }

    /// The encoded messages of the batch, without its head.
    #[must_use]
    pub fn records(&self) -> &'a [u8] {
        self.records
    }

    /// The whole encoded batch, as it is sent to subscribers.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Decodes all messages of the batch and compares their number with the number in the head. The server does this
    /// before it sends a batch to subscribers, so subscribers need not do it.
    pub fn check(&self) -> Result<(), BatchError> {
        let found = self.messages().check()?;
        if found == self.count { Ok(()) } else { Err(BatchError::WrongCount { stated: self.count, found }) }
    }

    /// Verifies the checksum of the batch. A batch without a checksum passes.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        if self.crc == 0 {
            return Ok(());
        }
        match crc32c(&self.bytes[CRC_BYTES..]) {
            found if found == self.crc => Ok(()),
            found => Err(BatchError::Checksum { stated: self.crc, found }),
        }
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Choice of a checksum for a batch. The encoder computes it, and any decoder can verify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The batch has no checksum.
    Without,
    /// The batch has a CRC-32C. A computed checksum of 0 means "no checksum"; this happens once in 2^32 batches.
    Crc32c,
}

/// An encoded batch that is cheap to clone. The queues of subscriptions contain values of this type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBatch {
    /// Bytes of the encoded batch, head included.
    pub bytes: Bytes,
    /// Number of messages in the batch.
    pub count: u32,
}

/// Builder of a batch. It has one allocation, which grows with the batch.
#[derive(Clone, Debug)]
pub struct BatchWriter {
    bytes: Vec<u8>,
    count: u32,
    head_len: usize,
    /// Buffer for encoding messages that have a key or headers in addition to the payload.
    scratch: RecordBatch,
}

impl BatchWriter {
    /// Creates an empty batch for `subject`. Subscribers publish their answers to the subject `reply`, which may be
    /// empty.
    pub fn new(subject: &[u8], reply: &[u8]) -> Result<Self, EncodeError> {
        Self::with_capacity(subject, reply, 0)
    }

    /// Like [`new`](Self::new), with room for `bytes` bytes of encoded messages.
    pub fn with_capacity(subject: &[u8], reply: &[u8], bytes: usize) -> Result<Self, EncodeError> {
        let mut head = Vec::with_capacity(SUBJECT_AT + 4 + subject.len() + reply.len() + bytes);
        head.extend_from_slice(&[0; SUBJECT_AT]);
        ShortBytes(subject).put(&mut head)?;
        ShortBytes(reply).put(&mut head)?;
        let head_len = head.len();
        Ok(Self { bytes: head, count: 0, head_len, scratch: RecordBatch::new() })
    }

    /// Number of messages added to the batch so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Size of the batch in bytes, head included.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a message that has only a payload to the batch. On error the batch is unchanged.
    #[inline]
    pub fn push_payload(&mut self, payload: &[u8]) -> Result<(), RecordError> {
        let len = payload.len() + 1;
        if len > MAX_RECORD_BYTES {
            return Err(RecordError::TooLarge { got: len });
        }
        self.room(1, 4 + len)?;
        self.bytes.reserve(4 + len);
        let mut head = [0; 5];
        head[..4].copy_from_slice(&u32::try_from(len).expect("at most MAX_RECORD_BYTES").to_le_bytes());
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(payload);
        self.count += 1;
        Ok(())
    }

    /// Adds a message to the batch. On error the batch is unchanged.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), RecordError> {
        self.scratch.clear();
        self.scratch.push(record)?;
        self.room(1, self.scratch.bytes().len())?;
        self.bytes.extend_from_slice(self.scratch.bytes());
        self.count += 1;
        Ok(())
    }

    /// Adds the messages of another batch of the same subject. The other batch must have been [checked](Batch::check).
    /// The server uses this to join single publishes into one batch.
    pub fn append(&mut self, batch: &Batch<'_>) -> Result<(), RecordError> {
        self.room(batch.count, batch.records.len())?;
        self.bytes.extend_from_slice(batch.records);
        self.count += batch.count;
        Ok(())
    }

    #[inline]
    fn room(&self, messages: u32, bytes: usize) -> Result<(), RecordError> {
        let fits = messages <= MAX_PUBLISH_MESSAGES - self.count && self.bytes.len() + bytes <= MAX_PUBLISH_BYTES;
        if fits { Ok(()) } else { Err(RecordError::BatchTooLarge) }
    }

    /// Returns the encoded batch, which is valid until the next call of the builder; `None` if the batch has no
    /// messages.
    pub fn encoded(&mut self, checksum: Checksum) -> Option<&[u8]> {
        if self.count == 0 {
            return None;
        }
        self.bytes[COUNT_AT..SUBJECT_AT].copy_from_slice(&self.count.to_le_bytes());
        let crc = match checksum {
            Checksum::Without => 0,
            Checksum::Crc32c => crc32c(&self.bytes[CRC_BYTES..]),
        };
        self.bytes[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
        Some(&self.bytes)
    }

    /// Returns the encoded batch for sharing; `None` if the batch has no messages. Queues count only the length of a
    /// batch, and not unused memory. So this function copies the bytes if their allocation is more than twice as large
    /// as the batch.
    #[must_use]
    pub fn into_shared(mut self, checksum: Checksum) -> Option<SharedBatch> {
        self.encoded(checksum)?;
        if self.bytes.capacity() > 2 * self.bytes.len() {
            self.bytes.shrink_to_fit();
        }
        Some(SharedBatch { count: self.count, bytes: self.bytes.into() })
    }

    /// Removes the messages from the builder, and keeps the subjects and the allocation.
    pub fn clear(&mut self) {
        self.bytes.truncate(self.head_len);
        self.count = 0;
    }
}

/// Appends a [`Deliver`](crate::Deliver) frame without its batch. The caller must send the batch, of `batch_len` bytes,
/// directly afterwards.
///
/// # Errors
/// `subscriptions` is empty or has more than [`MAX_DELIVER_SUBSCRIPTIONS`] ids, or the frame is too large. If there are
/// too many ids, the caller must use several frames.
#[inline]
pub fn put_deliver_prefix(
    out: &mut Vec<u8>,
    subscriptions: impl ExactSizeIterator<Item = u32>,
    batch_len: usize,
) -> Result<(), DeliverError> {
    let got = subscriptions.len();
    if got == 0 || got > MAX_DELIVER_SUBSCRIPTIONS {
        return Err(DeliverError::Subscriptions { got });
    }
    put_prefix(out, Kind::Deliver, 0, batch_len, |out| {
        (got as u32).put(out)?;
        subscriptions.into_iter().try_for_each(|id| id.put(out))
    })?;
    Ok(())
}

/// Appends a [`Publish`](crate::Publish) frame of one batch, without the batch. The caller must send the batch, of
/// `batch_len` bytes, directly afterwards.
pub fn put_publish_prefix(out: &mut Vec<u8>, id: u32, batch_len: usize) -> Result<(), EncodeError> {
    put_prefix(out, Kind::Publish, id, batch_len, |out| {
        1_u32.put(out)?;
        u32::try_from(batch_len).unwrap_or(u32::MAX).put(out)
    })
}

fn put_prefix(
    out: &mut Vec<u8>,
    kind: Kind,
    id: u32,
    follows: usize,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let begin = out.len();
    let put = put_open_frame(out, kind as u16, id, &Fields::default(), follows, body);
    if put.is_err() {
        out.truncate(begin);
    }
    put
}

/// Error returned when a batch cannot be delivered to subscriptions in one frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliverError {
    /// The frame lists no subscriptions, or more than [`MAX_DELIVER_SUBSCRIPTIONS`].
    #[error("a frame has 1 to {MAX_DELIVER_SUBSCRIPTIONS} subscriptions, not {got}: send another frame for the others")]
    Subscriptions {
        /// Number of subscriptions in the frame.
        got: usize,
    },
    /// The frame exceeds the size limit of the protocol.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decoder::Decoder,
        frames::{Deliver, Envelope, Frame, Publish, ServerFrame},
    };
    use thalweg_types::{codec::List, limits::MAX_FRAME_BYTES};

    fn batch(checksum: Checksum) -> SharedBatch {
        let mut writer = BatchWriter::new(b"a.b", b"").unwrap();
        writer.push_payload(b"one").unwrap();
        writer.push(&Record { key: Some(b"k"), payload: b"two", ..Record::default() }).unwrap();
        writer.into_shared(checksum).unwrap()
    }

    #[test]
    fn the_layout_is_pinned() {
        let wanted = b"\0\0\0\0\x02\0\0\0\x03\0a.b\0\0\x04\0\0\0\0one\x09\0\0\0\x01\x01\0\0\0ktwo";
        assert_eq!(batch(Checksum::Without).bytes, wanted[..]);
        let summed = batch(Checksum::Crc32c).bytes;
        assert_eq!(summed[4..], wanted[4..]);
        assert_eq!(summed[..4], crc_fast::crc32_iscsi(&wanted[4..]).to_le_bytes());
    }

    #[test]
    fn batches_come_back_and_are_checked() {
        let shared = batch(Checksum::Crc32c);
        let batch = Batch::decode(&shared.bytes).unwrap();
        assert_eq!((batch.subject(), batch.reply(), batch.count()), (&b"a.b"[..], &b""[..], 2));
        assert_eq!((batch.check(), batch.check_crc()), (Ok(()), Ok(())));
        let payloads: Vec<_> = batch.messages().map(|message| message.unwrap().payload).collect();
        assert_eq!(payloads, [b"one", b"two"]);
        for cut in 0..shared.bytes.len() {
            let whole = Batch::decode(&shared.bytes[..cut]).and_then(|batch| batch.check());
            assert!(whole.is_err(), "cut to {cut}");
        }
        for at in 0..shared.bytes.len() {
            let mut mutated = shared.bytes.to_vec();
            mutated[at] ^= 0x10;
            let Ok(batch) = Batch::decode(&mutated) else { continue };
            let _ = batch.check();
            assert!(batch.check_crc().is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_count_that_is_not_so_is_found() {
        let mut bytes = batch(Checksum::Without).bytes.to_vec();
        bytes[COUNT_AT] = 3;
        let error = Batch::decode(&bytes).unwrap().check();
        assert_eq!(error, Err(BatchError::WrongCount { stated: 3, found: 2 }));
        bytes[COUNT_AT] = 0;
        assert_eq!(Batch::decode(&bytes), Err(BatchError::Empty));
        let stated = MAX_PUBLISH_MESSAGES + 1;
        bytes[COUNT_AT..SUBJECT_AT].copy_from_slice(&stated.to_le_bytes());
        assert_eq!(Batch::decode(&bytes), Err(BatchError::TooManyMessages { stated }));
        let long = vec![0; MAX_PUBLISH_BYTES + 1];
        let mut long = [&1_u64.rotate_left(32).to_le_bytes()[..], &long].concat();
        assert_eq!(Batch::decode(&long), Err(BatchError::TooLarge { bytes: long.len() }));
        long.truncate(MAX_PUBLISH_BYTES);
        assert!(Batch::decode(&long).is_ok());
        assert!(BatchWriter::new(b"s", b"").unwrap().into_shared(Checksum::Without).is_none());
    }

    #[test]
    fn single_publishes_become_one_batch() {
        let shared = batch(Checksum::Without);
        let single = Batch::decode(&shared.bytes).unwrap();
        let mut joined = BatchWriter::new(b"a.b", b"").unwrap();
        joined.append(&single).unwrap();
        joined.append(&single).unwrap();
        let joined = joined.into_shared(Checksum::Without).unwrap();
        let joined = Batch::decode(&joined.bytes).unwrap();
        assert_eq!((joined.count(), joined.check()), (4, Ok(())));
    }

    #[test]
    fn a_prefix_and_the_shared_bytes_are_a_frame() {
        let shared = batch(Checksum::Crc32c);
        let (mut parts, mut whole) = (Vec::new(), Vec::new());
        put_deliver_prefix(&mut parts, [3, 9].into_iter(), shared.bytes.len()).unwrap();
        parts.extend_from_slice(&shared.bytes);
        let deliver = Deliver { subscriptions: List::Items(&[3, 9]), batch: crate::RemainingBytes(&shared.bytes) };
        deliver.encode(&mut whole, 0).unwrap();
        assert_eq!(parts, whole);

        let mut decoder = Decoder::new();
        decoder.feed(&parts);
        let frame = decoder.next_shared().unwrap().unwrap();
        let Envelope { frame: ServerFrame::Deliver(back), .. } = ServerFrame::decode(frame.raw()).unwrap() else {
            panic!("no deliver");
        };
        assert_eq!(back.subscriptions.iter().collect::<Vec<_>>(), [3, 9]);
        assert_eq!(frame.share(back.batch.0), shared.bytes, "without a copy");

        let (mut parts, mut whole) = (Vec::new(), Vec::new());
        put_publish_prefix(&mut parts, 5, shared.bytes.len()).unwrap();
        parts.extend_from_slice(&shared.bytes);
        Publish { batches: List::Items(&[&shared.bytes]) }.encode(&mut whole, 5).unwrap();
        assert_eq!(parts, whole);
    }

    #[test]
    fn bounds_are_errors() {
        let mut out = Vec::new();
        for got in [0, MAX_DELIVER_SUBSCRIPTIONS + 1] {
            let error = put_deliver_prefix(&mut out, vec![1; got].into_iter(), 10);
            assert_eq!(error, Err(DeliverError::Subscriptions { got }));
        }
        assert!(put_deliver_prefix(&mut out, [1; MAX_DELIVER_SUBSCRIPTIONS].into_iter(), 10).is_ok());
        out.clear();
        assert!(matches!(put_deliver_prefix(&mut out, [1].into_iter(), MAX_FRAME_BYTES), Err(DeliverError::Encode(_))));
        assert!(out.is_empty());
        let mut writer = BatchWriter::new(b"s", b"").unwrap();
        let large = vec![0; MAX_RECORD_BYTES - 1];
        writer.push_payload(&large).unwrap();
        assert_eq!(
            writer.push_payload(&vec![0; MAX_RECORD_BYTES]),
            Err(RecordError::TooLarge { got: MAX_RECORD_BYTES + 1 })
        );
        assert_eq!(writer.push_payload(&large), Err(RecordError::BatchTooLarge));
        let record = Record { key: Some(b"k"), payload: &large[..large.len() - 16], ..Record::default() };
        assert_eq!(writer.push(&record), Err(RecordError::BatchTooLarge));
        assert_eq!(writer.count(), 1);
        writer.clear();
        assert_eq!((writer.count(), writer.byte_len()), (0, 13));
        (0..MAX_PUBLISH_MESSAGES).for_each(|_| writer.push_payload(b"").unwrap());
        assert_eq!(writer.push_payload(b""), Err(RecordError::BatchTooLarge));
    }
}
