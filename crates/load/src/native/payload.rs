//! Payloads of messages: publisher, sequence number, due time, and content that follows from these.
//!
//! ```text
//! payload := sequence u64 | due u64 | publisher u32 | check u32 | content        little-endian; 24 bytes and more
//! ```
//! Owns: making payloads and checking the payloads that subscribers receive. Does not own: the check of their order
//! ([`super::check`]).
//!
//! `due` is the time at which the message was due, in nanoseconds since the run's start. The delivery time of a message
//! counts from then. The content is a window into one pool of random bytes that fits into the processor's nearest
//! cache. Publisher and sequence number determine the window's position. So making content is one copy, and checking it
//! is one comparison that also finds the content of another message. The field `check` is a checksum of the three
//! fields before it.

use rand::Rng as _;

use crate::random::{generator, mix_bits};

/// Bytes of a payload before its content. This is also the size of the smallest payload.
pub const HEAD_BYTES: usize = 24;

/// Number of positions in the pool of random bytes at which the content of a payload may begin.
const PLACES: usize = 4096;

/// Number of bytes that [`Depth::Spot`] compares at its moving position.
const LINE: usize = 64;

/// Part of a received payload that is compared with the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// All bytes of the payload are compared.
    Full,
    /// The head, the last 16 bytes, and 64 bytes at a position that moves with the sequence number are compared. Over
    /// many messages every byte is compared.
    Spot,
}

/// Head of a payload, which identifies the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Sequence number of the message among those of its publisher, from 0.
    pub sequence: u64,
    /// Time at which the message was due, in nanoseconds since the start of the benchmark run.
    pub due: u64,
    /// Number of the publisher, from 0.
    pub publisher: u32,
}

impl Head {
    fn encode(self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        out[..8].copy_from_slice(&self.sequence.to_le_bytes());
        out[8..16].copy_from_slice(&self.due.to_le_bytes());
        out[16..20].copy_from_slice(&self.publisher.to_le_bytes());
        out[20..].copy_from_slice(&self.check().to_le_bytes());
        out
    }

    #[inline]
    fn check(self) -> u32 {
        let mixed = (self.sequence ^ self.due.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as u32 ^ self.publisher
    }
}

/// Makes and checks payloads of one length.
#[derive(Clone, Debug)]
pub struct Payloads {
    pool: Vec<u8>,
    /// Length in bytes of the content that follows the head in each payload.
    content: usize,
    seed: u64,
    depth: Depth,
}

impl Payloads {
    /// Creates a maker of payloads of `len` bytes each, at least [`HEAD_BYTES`].
    pub fn new(len: usize, seed: u64, depth: Depth) -> Self {
        assert!(len >= HEAD_BYTES, "options are checked against HEAD_BYTES");
        let mut rng = generator(seed ^ 0x7061_796c_6f61_6473);
        let content = len - HEAD_BYTES;
        let pool = (0..(PLACES + content).div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        Self { pool, content, seed, depth }
    }

    /// Returns the length of each payload in bytes.
    pub fn payload_bytes(&self) -> usize {
        HEAD_BYTES + self.content
    }

    /// Appends the payload with this head to `out`.
    #[inline]
    pub fn put(&self, head: Head, out: &mut Vec<u8>) {
        out.extend_from_slice(&head.encode());
        out.extend_from_slice(self.content_of(head));
    }

    /// Appends an encoded record without key and headers. Its payload has this head.
    #[inline]
    pub fn put_record(&self, head: Head, out: &mut Vec<u8>) {
        let mut record_head = [0; 5];
        record_head[..4].copy_from_slice(&(self.payload_bytes() as u32 + 1).to_le_bytes());
        out.extend_from_slice(&record_head);
        self.put(head, out);
    }

    /// Returns the head of a received payload; `None` if a compared byte is wrong.
    #[inline]
    pub fn judge(&self, payload: &[u8]) -> Option<Head> {
        let (bytes, content) = payload.split_first_chunk::<HEAD_BYTES>()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let tail = word(16);
        let head = Head { sequence: word(0), due: word(8), publisher: tail as u32 };
        let right =
            head.check() == (tail >> 32) as u32 && content.len() == self.content && self.is_content(head, content);
        right.then_some(head)
    }

    #[inline]
    fn is_content(&self, head: Head, content: &[u8]) -> bool {
        let wanted = self.content_of(head);
        match self.depth {
            Depth::Full => content == wanted,
            Depth::Spot if content.len() <= 2 * LINE => content == wanted,
            Depth::Spot => {
                let end = content.len() - 16;
                let line = (head.sequence as usize).wrapping_mul(LINE) % (content.len() - LINE);
                content[end..] == wanted[end..] && content[line..line + LINE] == wanted[line..line + LINE]
            }
        }
    }

    #[inline]
    fn content_of(&self, head: Head) -> &[u8] {
        let at = mix_bits(head.sequence ^ (u64::from(head.publisher) << 40) ^ self.seed) as usize & (PLACES - 1);
        &self.pool[at..at + self.content]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(sequence: u64) -> Head {
        Head { sequence, due: sequence.wrapping_add(1_000_000), publisher: 3 }
    }

    fn payload(payloads: &Payloads, head: Head) -> Vec<u8> {
        let mut out = Vec::new();
        payloads.put(head, &mut out);
        out
    }

    #[test]
    fn what_was_made_is_recognised() {
        for (len, depth) in [(24, Depth::Full), (128, Depth::Full), (128, Depth::Spot), (4096, Depth::Spot)] {
            let payloads = Payloads::new(len, 7, depth);
            for sequence in [0, 1, 77, u64::MAX] {
                let bytes = payload(&payloads, head(sequence));
                assert_eq!(bytes.len(), payloads.payload_bytes());
                assert_eq!(payloads.judge(&bytes), Some(head(sequence)), "{len} {depth:?}");
            }
        }
    }

    #[test]
    fn every_flipped_byte_is_noticed_at_full_depth() {
        let payloads = Payloads::new(200, 7, Depth::Full);
        let bytes = payload(&payloads, head(5));
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x10;
            assert_eq!(payloads.judge(&wrong), None, "byte {at}");
        }
        assert_eq!(payloads.judge(&bytes[..199]), None, "cut off");
        assert_eq!(payloads.judge(&bytes[..10]), None);
    }

    #[test]
    fn content_of_another_message_is_wrong() {
        let payloads = Payloads::new(128, 7, Depth::Full);
        let mut bytes = payload(&payloads, head(5));
        let other = payload(&payloads, head(6));
        bytes[HEAD_BYTES..].copy_from_slice(&other[HEAD_BYTES..]);
        assert_eq!(payloads.judge(&bytes), None);
        let seeded = Payloads::new(128, 8, Depth::Full);
        assert_eq!(seeded.judge(&payload(&payloads, head(5))), None, "of another run");
    }

    #[test]
    fn spots_come_by_every_byte() {
        let payloads = Payloads::new(1024, 7, Depth::Spot);
        let noticed = |at: usize| {
            (0..1000).any(|sequence| {
                let mut bytes = payload(&payloads, head(sequence));
                bytes[at] ^= 1;
                payloads.judge(&bytes).is_none()
            })
        };
        assert!((0..1024).all(noticed));
    }
}
