//! Requests and replies between a load thread and the task of its connection, which are threads of one process.
//!
//! ```text
//! frame     content's length u32 | content                          numbers are little endian
//! request   operation u8 | number u64 | limit u32 | texts
//! text      length u32 | bytes
//! reply     DONE u8 | number u64 | records        or   REFUSED u8 | message
//! record    position u64 | deliveries u64 | length u32 | bytes
//! push      ACCEPTED u8                           or   MESSAGE u8 | bytes
//! ```

use bytes::{Buf as _, Bytes};

/// Length in bytes of the length field that precedes the content of each frame.
pub(super) const LENGTH_BYTES: usize = 4;
/// First byte of the reply to a request that was performed.
pub(super) const DONE: u8 = 0;
/// First byte of the reply to a request that failed.
pub(super) const REFUSED: u8 = 1;
/// First byte of the pushed frame that tells that the server has accepted the subscription.
pub(super) const ACCEPTED: u8 = 0;
/// First byte of a pushed frame with a message.
pub(super) const MESSAGE: u8 = 1;

/// Kind of a load thread's request to its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Publishes the texts of the request to the subject. `number` is the number of the publish.
    Publish,
    /// Appends the texts of the request to the stream.
    Append,
    /// Reads at most `limit` records of the stream after the sequence number `number`.
    Read,
    /// Fetches at most `limit` records of the consumer.
    Fetch,
    /// Acknowledges the records of a fetch. `number` is the number of this fetch.
    Ack,
}

impl Operation {
    const ALL: [Self; 5] = [Self::Publish, Self::Append, Self::Read, Self::Fetch, Self::Ack];
}

/// A request of a load thread to the task that performs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub operation: Operation,
    pub number: u64,
    pub limit: u32,
    pub texts: Vec<Bytes>,
}

/// Reply to a request that was performed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    /// Number of published or acknowledged messages. In the reply to a fetch, the number by which the ack names this
    /// fetch; 0 if the fetch has no records.
    pub number: u64,
    pub records: Vec<Record>,
}

/// A record of the stream in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Sequence number of the record in the stream.
    pub position: u64,
    /// Number of deliveries of the record, including this one; 1 unless a consumer delivered it.
    pub deliveries: u64,
    pub payload: Bytes,
}

/// Appends a frame. `put` appends its content.
pub(super) fn put_frame(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    put(out);
    let len = length(out.len() - at - LENGTH_BYTES);
    out[at..at + LENGTH_BYTES].copy_from_slice(&len);
}

/// Returns the content of the frame at the start of `bytes`; `None` if the frame is incomplete.
pub(super) fn frame(bytes: &[u8]) -> Option<&[u8]> {
    let (len, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    rest.get(..u32::from_le_bytes(*len) as usize)
}

/// Appends the content of a request, except its texts.
pub(super) fn put_request(out: &mut Vec<u8>, operation: Operation, number: u64, limit: u32) {
    out.push(operation as u8);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&limit.to_le_bytes());
}

/// Appends a text of a request, or the bytes of a record.
pub(super) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&length(text.len()));
    out.extend_from_slice(text);
}

/// Appends the content of a reply.
pub(super) fn put_reply(out: &mut Vec<u8>, reply: &Result<Reply, String>) {
    match reply {
        Ok(Reply { number, records }) => {
            out.push(DONE);
            out.extend_from_slice(&number.to_le_bytes());
            for Record { position, deliveries, payload } in records {
                out.extend_from_slice(&position.to_le_bytes());
                out.extend_from_slice(&deliveries.to_le_bytes());
                put_text(out, payload);
            }
        }
        Err(message) => {
            out.push(REFUSED);
            out.extend_from_slice(message.as_bytes());
        }
    }
}

fn length(len: usize) -> [u8; LENGTH_BYTES] {
    u32::try_from(len).expect("the suite bounds requests and replies").to_le_bytes()
}

impl Request {
    /// Decodes the content of a request; `None` if it is malformed.
    pub(super) fn decode(mut content: Bytes) -> Option<Self> {
        let operation = *Operation::ALL.get(usize::from(content.try_get_u8().ok()?))?;
        let (number, limit) = (content.try_get_u64_le().ok()?, content.try_get_u32_le().ok()?);
        let mut texts = Vec::new();
        while content.has_remaining() {
            texts.push(take_text(&mut content)?);
        }
        Some(Self { operation, number, limit, texts })
    }
}

impl Reply {
    /// Decodes the content of a reply after its first byte, [`DONE`]; `None` if it is malformed.
    pub(super) fn decode(content: &[u8]) -> Option<Self> {
        let mut content = Bytes::copy_from_slice(content);
        let number = content.try_get_u64_le().ok()?;
        let mut records = Vec::new();
        while content.has_remaining() {
            let (position, deliveries) = (content.try_get_u64_le().ok()?, content.try_get_u64_le().ok()?);
            records.push(Record { position, deliveries, payload: take_text(&mut content)? });
        }
        Some(Self { number, records })
    }
}

fn take_text(content: &mut Bytes) -> Option<Bytes> {
    let len = content.try_get_u32_le().ok()? as usize;
    (len <= content.len()).then(|| content.split_to(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_are_decoded_as_they_were() {
        for operation in Operation::ALL {
            let mut out = Vec::new();
            put_frame(&mut out, |out| {
                put_request(out, operation, 7, 9);
                [&b"a"[..], b"", b"bc"].iter().for_each(|text| put_text(out, text));
            });
            assert!((0..out.len()).all(|len| frame(&out[..len]).is_none()), "a part is incomplete");
            let content = Bytes::copy_from_slice(frame(&out).unwrap());
            let texts = [&b"a"[..], b"", b"bc"].map(Bytes::from_static).to_vec();
            assert_eq!(Request::decode(content.clone()), Some(Request { operation, number: 7, limit: 9, texts }));
            assert_eq!(Request::decode(content.slice(..content.len() - 1)), None);
        }
        assert_eq!(Request::decode(Bytes::from_static(&[9; 13])), None, "no operation");
        let record = |position, payload| Record { position, deliveries: 2, payload: Bytes::from_static(payload) };
        let reply = Reply { number: 5, records: vec![record(1, b"x"), record(4, b"")] };
        let mut out = Vec::new();
        put_reply(&mut out, &Ok(reply.clone()));
        assert_eq!((out[0], Reply::decode(&out[1..])), (DONE, Some(reply)));
        assert_eq!(Reply::decode(&out[1..out.len() - 1]), None);
        let mut out = Vec::new();
        put_reply(&mut out, &Err("no".to_owned()));
        assert_eq!(out, [&[REFUSED][..], b"no"].concat());
    }
}
