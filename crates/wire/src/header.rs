//! Header and optional fields of frames. Every kind of frame can have optional fields.
//!
//! ```text
//!  0     4      6        8    12
//!  | len | kind | fields | id | optional fields ... | body ...        u32, u16, u16, u32
//! ```
//! All integers are little-endian. `len` counts the bytes after the header, `fields` the bytes of the optional fields.
//!
//! Owns: the header, the optional fields, and the assembly of a frame. Does not own: the kinds of frames (`frames`), or
//! the splitting of bytes into frames (`decoder`).

use thalweg_types::{
    ReadLevel, Revision, SpaceId,
    codec::{EncodeError, Field, Malformed, Reader},
    limits::{MAX_FRAME_BYTES, MAX_TRACE_BYTES},
};

/// Maximum length in bytes of an address in the optional field `leader`.
pub const MAX_ADDRESS_BYTES: usize = 512;

/// Size of a header in bytes.
pub const HEADER_BYTES: usize = 12;

/// Header of a frame. Every frame begins with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of bytes after the header: optional fields and body.
    pub len: u32,
    /// Kind of the frame, see [`Kind`](crate::Kind). A newer peer may send a kind that this version does not know.
    pub kind: u16,
    /// Length in bytes of the optional fields, which come directly after the header. `fields <= len`, otherwise the
    /// frame is malformed.
    pub fields: u16,
    /// Id of the request or subscription to which the frame belongs. 0 if there is none, or if the client wants no
    /// reply to this request.
    pub id: u32,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Header {
    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&self.len.to_le_bytes());
        out[4..6].copy_from_slice(&self.kind.to_le_bytes());
        out[6..8].copy_from_slice(&self.fields.to_le_bytes());
        out[8..12].copy_from_slice(&self.id.to_le_bytes());
        out
    }

    /// Decodes a header. This cannot fail: any 12 bytes are a header.
    #[inline]
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [l0, l1, l2, l3, k0, k1, f0, f1, i0, i1, i2, i3] = *bytes;
        Self {
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            kind: u16::from_le_bytes([k0, k1]),
            fields: u16::from_le_bytes([f0, f1]),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
        }
    }
}

/// Lowest tag (number of an optional field) of the fields that a receiver must understand. A receiver skips unknown
/// fields with lower tags. An unknown field with this tag or a higher one makes the frame an error.
pub const MUST_UNDERSTAND: u16 = 0x8000;

const TRACE: u16 = 0x0001;
const TIMEOUT: u16 = 0x0002;
const LIMIT: u16 = 0x0003;
const READ: u16 = 0x0004;
const ROUTE: u16 = 0x0005;
const LEADER: u16 = 0x0006;
const CLUSTER: u16 = 0x0007;
const SPACE: u16 = 0x8001;

/// Tags and names of the optional fields, in the order of the format document.
pub const KNOWN_FIELDS: [(u16, &str); 8] = [
    (TRACE, "trace"),
    (TIMEOUT, "timeout"),
    (LIMIT, "limit"),
    (READ, "read"),
    (ROUTE, "route"),
    (LEADER, "leader"),
    (CLUSTER, "cluster"),
    (SPACE, "space"),
];

/// Treatment of a write by a member of a cluster that is not the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The member forwards the write to the leader.
    Forward,
    /// The member rejects the write with `not_leader`, and states the leader's address.
    Redirect,
}

/// Optional fields of a frame.
///
/// ```text
/// fields := (tag u16 | len u16 | bytes)*          tags rise
/// ```
/// A newer peer may send further fields. Those with a tag below [`MUST_UNDERSTAND`] are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields<'a> {
    /// Name of the request in logs and traces, 1 to 64 bytes.
    pub trace: Option<&'a str>,
    /// Time in microseconds after which the sender no longer wants the reply.
    pub timeout_micros: Option<u64>,
    /// Number of messages, records, changes or events after which the server ends the subscription.
    pub limit: Option<u64>,
    /// Permitted age of the data that the request reads; `None` for the server's default.
    pub read: Option<ReadLevel>,
    /// Treatment of a write by a member of a cluster that is not the leader; the default is to forward it.
    pub route: Option<Route>,
    /// Address `HOST:PORT` at which the leader of the cluster serves the native protocol, at most [`MAX_ADDRESS_BYTES`]
    /// bytes. Only in a `failed`.
    pub leader: Option<&'a str>,
    /// Id of the cluster to which the answering node belongs, little-endian. Only in a `members`.
    pub cluster: Option<&'a [u8; 16]>,
    /// Id of the space (one log with its keyspaces and streams) that the request uses; the default space (0) if left
    /// out.
    pub space: Option<SpaceId>,
}

/// Error returned when the optional fields of a frame cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldsError {
    /// The bytes of the optional fields do not follow the format.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The frame has an optional field that the receiver must understand, but this version does not know the field.
    #[error("unknown required field {tag:#06x}: this side is older; leave out the field")]
    Unknown {
        /// Number that identifies the unknown optional field.
        tag: u16,
    },
}

impl<'a> Fields<'a> {
    /// Appends the encoded optional fields to `out`. A trace longer than 64 bytes is truncated.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut field = |tag: u16, bytes: &[u8]| {
            let len = u16::try_from(bytes.len()).map_err(|_| EncodeError::FieldsTooLong { got: bytes.len() })?;
            tag.put(out)?;
            len.put(out)?;
            out.extend_from_slice(bytes);
            Ok(())
        };
        if let Some(trace) = self.trace {
            field(TRACE, &trace.as_bytes()[..trace.floor_char_boundary(MAX_TRACE_BYTES)])?;
        }
        if let Some(timeout) = self.timeout_micros {
            field(TIMEOUT, &timeout.to_le_bytes())?;
        }
        if let Some(limit) = self.limit {
            field(LIMIT, &limit.to_le_bytes())?;
        }
        match self.read {
            None => {}
            Some(ReadLevel::Linearizable) => field(READ, &[0])?,
            Some(ReadLevel::Lease) => field(READ, &[1])?,
            Some(ReadLevel::Stale) => field(READ, &[2])?,
            Some(ReadLevel::AtLeast(Revision(revision))) => {
                let mut bytes = [3; 9];
                bytes[1..].copy_from_slice(&revision.to_le_bytes());
                field(READ, &bytes)?;
            }
        }
        match self.route {
            None => {}
            Some(Route::Forward) => field(ROUTE, &[0])?,
            Some(Route::Redirect) => field(ROUTE, &[1])?,
        }
        // A truncated address would be useless, so an address that is too long is left out.
        if let Some(leader) = self.leader.filter(|leader| (1..=MAX_ADDRESS_BYTES).contains(&leader.len())) {
            field(LEADER, leader.as_bytes())?;
        }
        if let Some(cluster) = self.cluster {
            field(CLUSTER, cluster)?;
        }
        if let Some(space) = self.space {
            field(SPACE, &space.0.to_le_bytes())?;
        }
        Ok(())
    }

    /// Decodes all of `bytes` as optional fields.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FieldsError> {
        if bytes.is_empty() { Ok(Self::default()) } else { Self::decode_some(bytes) }
    }

    fn decode_some(bytes: &'a [u8]) -> Result<Self, FieldsError> {
        let mut reader = Reader::at(bytes, 0);
        let mut fields = Self::default();
        let mut last = None;
        while !reader.is_empty() {
            let at = reader.position();
            let malformed = |expected| FieldsError::Malformed(Malformed { at, expected });
            let tag = reader.u16("field tag")?;
            let len = usize::from(reader.u16("field length")?);
            let bytes = reader.take(len, "field")?;
            if last.is_some_and(|last| tag <= last) {
                return Err(malformed("fields in the order of their tags"));
            }
            last = Some(tag);
            let eight = || bytes.try_into().map(u64::from_le_bytes).map_err(|_| malformed("a field of 8 bytes"));
            match tag {
                TRACE => {
                    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty());
                    let text = text.filter(|text| text.len() <= MAX_TRACE_BYTES);
                    fields.trace = Some(text.ok_or_else(|| malformed("a trace of 1 to 64 bytes of UTF-8"))?);
                }
                TIMEOUT => fields.timeout_micros = Some(eight()?),
                LIMIT => fields.limit = Some(eight()?),
                READ => {
                    fields.read = Some(match bytes {
                        [0] => ReadLevel::Linearizable,
                        [1] => ReadLevel::Lease,
                        [2] => ReadLevel::Stale,
                        [3, revision @ ..] => {
                            let revision = revision.try_into().map(u64::from_le_bytes);
                            ReadLevel::AtLeast(Revision(revision.map_err(|_| malformed("a revision of 8 bytes"))?))
                        }
                        _ => return Err(malformed("a read level: 0, 1, 2, or 3 and a revision")),
                    });
                }
                ROUTE => {
                    fields.route = Some(match bytes {
                        [0] => Route::Forward,
                        [1] => Route::Redirect,
                        _ => return Err(malformed("a route: 0 or 1")),
                    });
                }
                LEADER => {
                    let text = std::str::from_utf8(bytes).ok();
                    let text = text.filter(|text| (1..=MAX_ADDRESS_BYTES).contains(&text.len()));
                    fields.leader = Some(text.ok_or_else(|| malformed("an address of 1 to 512 bytes of UTF-8"))?);
                }
                CLUSTER => {
                    let cluster = <&[u8; 16]>::try_from(bytes);
                    fields.cluster = Some(cluster.map_err(|_| malformed("a field of 16 bytes"))?);
                }
                SPACE => {
                    let space = bytes.try_into().map(u32::from_le_bytes);
                    fields.space = Some(SpaceId(space.map_err(|_| malformed("a field of 4 bytes"))?));
                }
                MUST_UNDERSTAND.. => return Err(FieldsError::Unknown { tag }),
                _ => {}
            }
        }
        Ok(fields)
    }
}

/// Appends a frame: the header, the optional fields, and the body that `body` writes. On error `out` is unchanged.
#[inline]
pub fn put_frame(
    out: &mut Vec<u8>,
    kind: u16,
    id: u32,
    fields: &Fields<'_>,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let begin = out.len();
    let encoded = put_open_frame(out, kind, id, fields, 0, body);
    if encoded.is_err() {
        out.truncate(begin);
    }
    encoded
}

/// Appends a frame like [`put_frame`], but without its last `follows` bytes. The caller sends these bytes after `out`.
/// On error `out` may contain a part of the frame.
#[inline]
pub(crate) fn put_open_frame(
    out: &mut Vec<u8>,
    kind: u16,
    id: u32,
    fields: &Fields<'_>,
    follows: usize,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let begin = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let mut fields_len = 0;
    if *fields != Fields::default() {
        fields.encode(out)?;
        let got = out.len() - begin - HEADER_BYTES;
        fields_len = u16::try_from(got).map_err(|_| EncodeError::FieldsTooLong { got })?;
    }
    body(out)?;
    let got = (out.len() - begin - HEADER_BYTES).saturating_add(follows);
    if got > MAX_FRAME_BYTES {
        return Err(EncodeError::FrameTooLarge { got, max: MAX_FRAME_BYTES });
    }
    let len = u32::try_from(got).expect("at most MAX_FRAME_BYTES");
    let header = Header { len, kind, fields: fields_len, id };
    out[begin..begin + HEADER_BYTES].copy_from_slice(&header.encode());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Fields<'_> = Fields {
        trace: Some("t"),
        timeout_micros: Some(0x0102),
        limit: Some(3),
        read: None,
        route: None,
        leader: None,
        cluster: None,
        space: Some(SpaceId(4)),
    };

    fn encoded(fields: &Fields<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        fields.encode(&mut out).unwrap();
        out
    }

    #[test]
    fn the_header_is_pinned() {
        let header = Header { len: 0x0102_0304, kind: 0x0506, fields: 0x0708, id: 0x090a_0b0c };
        assert_eq!(header.encode(), [4, 3, 2, 1, 6, 5, 8, 7, 0xc, 0xb, 0xa, 9]);
        assert_eq!(Header::decode(&header.encode()), header);
    }

    #[test]
    fn fields_are_pinned_and_come_back() {
        let bytes = encoded(&ALL);
        let pinned =
            b"\x01\0\x01\0t\x02\0\x08\0\x02\x01\0\0\0\0\0\0\x03\0\x08\0\x03\0\0\0\0\0\0\0\x01\x80\x04\0\x04\0\0\0";
        assert_eq!(bytes, pinned);
        assert_eq!(Fields::decode(&bytes), Ok(ALL));
        assert_eq!(Fields::decode(&[]), Ok(Fields::default()));
        // If bytes are cut off at the end of a field, the rest is valid with fewer fields; otherwise it is malformed.
        let ends = [0, 5, 17, 29];
        for cut in 0..bytes.len() {
            assert_eq!(Fields::decode(&bytes[..cut]).is_ok(), ends.contains(&cut), "cut to {cut}");
        }
    }

    #[test]
    fn read_levels_are_pinned_and_come_back() {
        for (level, pinned) in [
            (ReadLevel::Linearizable, &b"\x04\0\x01\0\0"[..]),
            (ReadLevel::Lease, b"\x04\0\x01\0\x01"),
            (ReadLevel::Stale, b"\x04\0\x01\0\x02"),
            (ReadLevel::AtLeast(Revision(0x0102)), b"\x04\0\x09\0\x03\x02\x01\0\0\0\0\0\0"),
        ] {
            let fields = Fields { read: Some(level), ..Fields::default() };
            assert_eq!(encoded(&fields), pinned);
            assert_eq!(Fields::decode(pinned), Ok(fields));
        }
        for wrong in [&b"\x04\0\0\0"[..], b"\x04\0\x01\0\x03", b"\x04\0\x01\0\x04", b"\x04\0\x02\0\0\0"] {
            assert!(matches!(Fields::decode(wrong), Err(FieldsError::Malformed(_))), "{wrong:?}");
        }
    }

    #[test]
    fn routes_leaders_and_clusters_are_pinned_and_come_back() {
        for (fields, pinned) in [
            (Fields { route: Some(Route::Forward), ..Fields::default() }, &b"\x05\0\x01\0\0"[..]),
            (Fields { route: Some(Route::Redirect), ..Fields::default() }, b"\x05\0\x01\0\x01"),
            (Fields { leader: Some("n1:7071"), ..Fields::default() }, b"\x06\0\x07\0n1:7071"),
        ] {
            assert_eq!(encoded(&fields), pinned);
            assert_eq!(Fields::decode(pinned), Ok(fields));
        }
        let of_cluster = Fields { cluster: Some(b"0123456789abcdef"), ..Fields::default() };
        assert_eq!(encoded(&of_cluster), b"\x07\0\x10\x000123456789abcdef");
        assert_eq!(Fields::decode(b"\x07\0\x10\x000123456789abcdef"), Ok(of_cluster));
        assert!(matches!(Fields::decode(b"\x07\0\x02\0ab"), Err(FieldsError::Malformed(_))));
        for wrong in [&b"\x05\0\0\0"[..], b"\x05\0\x01\0\x02", b"\x06\0\0\0", b"\x06\0\x01\0\xff"] {
            assert!(matches!(Fields::decode(wrong), Err(FieldsError::Malformed(_))), "{wrong:?}");
        }
        let long = "h".repeat(MAX_ADDRESS_BYTES + 1);
        assert!(encoded(&Fields { leader: Some(&long), ..Fields::default() }).is_empty());
    }

    #[test]
    fn unknown_fields_are_skipped_unless_they_must_be_understood() {
        let with = |tag: u16| {
            let mut bytes = encoded(&Fields { trace: Some("t"), ..Fields::default() });
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(b"\x02\0xy");
            bytes
        };
        assert_eq!(Fields::decode(&with(0x7fff)).unwrap().trace, Some("t"));
        for tag in [0x8000, 0x8002, 0xffff] {
            assert_eq!(Fields::decode(&with(tag)), Err(FieldsError::Unknown { tag }));
        }
        assert!(matches!(Fields::decode(&with(1)), Err(FieldsError::Malformed(_))), "twice");
        assert!(matches!(Fields::decode(&with(0)), Err(FieldsError::Malformed(_))), "out of order");
    }

    #[test]
    fn a_trace_is_cut_to_its_limit() {
        let long = "é".repeat(40);
        let bytes = encoded(&Fields { trace: Some(&long), ..Fields::default() });
        assert_eq!(Fields::decode(&bytes).unwrap().trace, Some(&long[..64]));
        let empty = encoded(&Fields { trace: Some(""), ..Fields::default() });
        assert!(Fields::decode(&empty).is_err());
    }

    #[test]
    fn a_frame_above_the_limit_leaves_the_buffer_as_it_was() {
        let mut out = vec![1, 2, 3];
        put_open_frame(&mut out.clone(), 1, 1, &ALL, MAX_FRAME_BYTES - encoded(&ALL).len(), |_| Ok(())).unwrap();
        let large = put_frame(&mut out, 1, 1, &ALL, |out| {
            out.resize(out.len() + MAX_FRAME_BYTES, 0);
            Ok(())
        });
        assert!(matches!(large, Err(EncodeError::FrameTooLarge { .. })));
        assert_eq!(out, [1, 2, 3]);
    }
}
