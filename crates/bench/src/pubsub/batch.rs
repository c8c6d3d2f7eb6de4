//! Layout of a published batch of messages. The publisher composes the batch directly in the output buffer.

/// Subject to which the suite publishes all its messages.
pub(super) const SUBJECT: &[u8] = b"bench.pubsub";

/// Returns the size in bytes of a batch with `count` payloads of `payload_bytes` bytes each.
pub(super) fn batch_bytes(count: u32, payload_bytes: usize) -> usize {
    12 + SUBJECT.len() + count as usize * (5 + payload_bytes)
}

/// Appends the head of a batch without a checksum: the number of messages, the subject, and an empty reply subject.
pub(super) fn put_batch_head(out: &mut Vec<u8>, count: u32) {
    out.extend_from_slice(&0_u32.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&(SUBJECT.len() as u16).to_le_bytes());
    out.extend_from_slice(SUBJECT);
    out.extend_from_slice(&0_u16.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{Depth, Head, Payloads};
    use thalweg_wire::Batch;

    #[test]
    fn batches_are_those_of_the_protocol() {
        let payloads = Payloads::new(100, 1, Depth::Full);
        let mut out = Vec::new();
        put_batch_head(&mut out, 3);
        for sequence in 0..3 {
            payloads.put_record(Head { sequence, due: 9, publisher: 1 }, &mut out);
        }
        assert_eq!(out.len(), batch_bytes(3, 100));
        let batch = Batch::decode(&out).unwrap();
        assert_eq!((batch.subject(), batch.reply(), batch.check()), (SUBJECT, &b""[..], Ok(())));
        for (sequence, message) in (0..).zip(batch.messages()) {
            let head = payloads.judge(message.unwrap().payload);
            assert_eq!(head, Some(Head { sequence, due: 9, publisher: 1 }));
        }
    }
}
