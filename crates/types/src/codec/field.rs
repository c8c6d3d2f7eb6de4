//! The trait of encodable values, and its implementations for numbers, ids and bytes.
//!
//! Owns: `Field` and `Structure`, the layouts of basic types, and the errors of encoding. Does not own: lists (`list`),
//! macros that make a codec from a declaration (`layouts`), or the reader (`reader`).

use crate::{
    clock::SpaceTime,
    codec::reader::{Malformed, Reader},
    durability::Durability,
    error::Action,
    ids::{Attempt, GroupId, Index, KeyspaceId, LeaseId, NodeId, Offset, Revision, SpaceId, StreamId, Term},
    limits::MAX_FRAME_BYTES,
};

/// Error returned when a value cannot be encoded because it exceeds a limit of the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The frame would be larger than the receiver accepts.
    #[error("frame of {got} bytes is above the limit of {max}: send less at a time")]
    FrameTooLarge {
        /// Size of the frame in bytes, without its header.
        got: usize,
        /// Largest frame that the receiver accepts, in bytes without the header.
        max: usize,
    },
    /// A name, subject, member name or text is longer than 65,535 bytes.
    #[error("text of {got} bytes is above the limit of 65535")]
    TextTooLong {
        /// Length in bytes of the name or text that is too long.
        got: usize,
    },
    /// All optional fields of a frame together are longer than 65,535 bytes.
    #[error("optional fields of {got} bytes are above the limit of 65535")]
    FieldsTooLong {
        /// Length of the optional fields together in bytes.
        got: usize,
    },
}

/// A value that can be encoded and decoded as one field of a frame or of a command.
pub trait Field<'a>: Sized {
    /// Size of the encoding in bytes, if all values of the type have this size and all bytes of this size are a valid
    /// encoding; `None` for other types.
    const FIXED_BYTES: Option<usize> = None;

    /// Returns the name of the type's encoding in the format documents, such as `u32`.
    fn layout() -> String;
    /// Appends the encoded value to `out`.
    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError>;
    /// Decodes a value from the reader's position; `what` names the value in errors.
    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed>;
}

/// A type whose layout is a sequence of named fields.
pub trait Structure {
    /// Name of the structure in the format documents.
    const NAME: &'static str;
    /// Returns the fields of the structure in the notation of the format documents: `name layout, name layout`.
    fn definition() -> String;
}

macro_rules! integer_fields {
    ($($int:ident),*) => {$(
        impl<'a> Field<'a> for $int {
            const FIXED_BYTES: Option<usize> = Some(size_of::<Self>());

            fn layout() -> String {
                stringify!($int).to_owned()
            }

            #[inline]
            fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                out.extend_from_slice(&self.to_le_bytes());
                Ok(())
            }

            #[inline]
            fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
                let bytes = reader.take(size_of::<Self>(), what)?;
                Ok(Self::from_le_bytes(bytes.try_into().expect("as many bytes as requested")))
            }
        }
    )*};
}

integer_fields!(u8, u16, u32, u64, i64);

macro_rules! id_fields {
    ($($id:ident($int:ident)),*) => {$(
        impl<'a> Field<'a> for $id {
            const FIXED_BYTES: Option<usize> = $int::FIXED_BYTES;

            fn layout() -> String {
                $int::layout()
            }

            #[inline]
            fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                self.0.put(out)
            }

            #[inline]
            fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
                $int::take(reader, what).map(Self)
            }
        }
    )*};
}

id_fields!(
    SpaceId(u32),
    KeyspaceId(u32),
    StreamId(u32),
    GroupId(u32),
    Attempt(u64),
    LeaseId(u64),
    NodeId(u64),
    Offset(u64),
    Index(u64),
    Term(u64),
    Revision(u64),
    SpaceTime(u64)
);

impl<'a> Field<'a> for bool {
    fn layout() -> String {
        "bool".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        u8::from(*self).put(out)
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let at = reader.position();
        match reader.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed { at, expected: "0 or 1" }),
        }
    }
}

impl<'a> Field<'a> for &'a str {
    fn layout() -> String {
        "text".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let len = u16::try_from(self.len()).map_err(|_| EncodeError::TextTooLong { got: self.len() })?;
        len.put(out)?;
        out.extend_from_slice(self.as_bytes());
        Ok(())
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let len = usize::from(reader.u16(what)?);
        let at = reader.position();
        std::str::from_utf8(reader.take(len, what)?).map_err(|_| Malformed { at, expected: "UTF-8" })
    }
}

impl<'a> Field<'a> for &'a [u8] {
    fn layout() -> String {
        "bytes".to_owned()
    }

    #[inline]
    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_len(out, self.len())?;
        out.extend_from_slice(self);
        Ok(())
    }

    #[inline]
    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let len = reader.u32(what)? as usize;
        reader.take(len, what)
    }
}

/// Text that owns its bytes: decoding copies the text.
impl<'a> Field<'a> for String {
    fn layout() -> String {
        <&str>::layout()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.as_str().put(out)
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        <&str>::take(reader, what).map(str::to_owned)
    }
}

/// A name of at most 65,535 bytes that need not be UTF-8, such as a subject or a subject pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortBytes<'a>(pub &'a [u8]);

impl<'a> Field<'a> for ShortBytes<'a> {
    fn layout() -> String {
        "short".to_owned()
    }

    #[inline]
    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let len = u16::try_from(self.0.len()).map_err(|_| EncodeError::TextTooLong { got: self.0.len() })?;
        len.put(out)?;
        out.extend_from_slice(self.0);
        Ok(())
    }

    #[inline]
    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let len = usize::from(reader.u16(what)?);
        reader.take(len, what).map(Self)
    }
}

/// Appends the length of a list (items) or of a byte string (bytes) as a u32. Fails if the length does not fit.
pub(super) fn put_len(out: &mut Vec<u8>, len: usize) -> Result<(), EncodeError> {
    let len = u32::try_from(len).map_err(|_| EncodeError::FrameTooLarge { got: len, max: MAX_FRAME_BYTES })?;
    len.put(out)
}

/// Appends `value` as a u16. The caller has checked that the value fits.
pub(crate) fn put_u16(out: &mut Vec<u8>, value: usize) {
    let value = u16::try_from(value).expect("the caller has checked a limit");
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends `value` as a u32. The caller has checked that the value fits.
#[inline]
pub(crate) fn put_u32(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&u32_bytes(value));
}

/// Returns `value` as the bytes of a u32. The caller has checked that it fits.
#[inline]
pub(crate) fn u32_bytes(value: usize) -> [u8; 4] {
    u32::try_from(value).expect("the caller has checked a limit").to_le_bytes()
}

/// Appends the length of `bytes` as a u32 and then the bytes. The caller has checked that they are shorter than 4 GiB.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a value whose fields the caller has checked to be within the limits, so that encoding cannot fail.
#[inline]
pub(crate) fn put_checked<'a>(out: &mut Vec<u8>, value: &impl Field<'a>) {
    value.put(out).expect("the caller has checked the limits");
}

/// All bytes up to the end of the frame. Only the last field of a frame may have this type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemainingBytes<'a>(pub &'a [u8]);

impl<'a> Field<'a> for RemainingBytes<'a> {
    fn layout() -> String {
        "rest".to_owned()
    }

    #[inline]
    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(self.0);
        Ok(())
    }

    #[inline]
    fn take(reader: &mut Reader<'a>, _: &'static str) -> Result<Self, Malformed> {
        Ok(Self(reader.rest()))
    }
}

impl<'a, T: Field<'a>> Field<'a> for Option<T> {
    fn layout() -> String {
        format!("{}?", T::layout())
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.is_some().put(out)?;
        self.as_ref().map_or(Ok(()), |value| value.put(out))
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        bool::take(reader, what)?.then(|| T::take(reader, what)).transpose()
    }
}

/// Durability level of an acknowledgement: 0 to 4, weakest first.
impl<'a> Field<'a> for Durability {
    fn layout() -> String {
        "durability".to_owned()
    }

    #[inline]
    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        (*self as u8).put(out)
    }

    #[inline]
    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let at = reader.position();
        let code = usize::from(reader.u8(what)?);
        Self::ALL.get(code).copied().ok_or(Malformed { at, expected: "durability" })
    }
}

/// A requested durability level. `None` selects the server's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level(pub Option<Durability>);

const NO_LEVEL: u8 = 255;

impl<'a> Field<'a> for Level {
    fn layout() -> String {
        "level".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.0.map_or(NO_LEVEL, |level| level as u8).put(out)
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let mut ahead = reader.clone();
        if ahead.u8(what)? == NO_LEVEL {
            *reader = ahead;
            return Ok(Self(None));
        }
        Durability::take(reader, what).map(|level| Self(Some(level)))
    }
}

impl<'a> Field<'a> for Action {
    fn layout() -> String {
        "class".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let class: u8 = match self {
            Self::Retry => 0,
            Self::Fix => 1,
            Self::Stop => 2,
        };
        class.put(out)
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let at = reader.position();
        match reader.u8(what)? {
            0 => Ok(Self::Retry),
            1 => Ok(Self::Fix),
            2 => Ok(Self::Stop),
            _ => Err(Malformed { at, expected: "class" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::List;

    fn encoded<'a, T: Field<'a>>(value: &T) -> Vec<u8> {
        let mut out = Vec::new();
        value.put(&mut out).unwrap();
        out
    }

    #[test]
    fn primitives_are_pinned() {
        assert_eq!(encoded(&0x0102_u16), [2, 1]);
        assert_eq!(encoded(&-2_i64), [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(encoded(&KeyspaceId(7)), [7, 0, 0, 0]);
        assert_eq!(encoded(&"ab"), b"\x02\0ab");
        assert_eq!(encoded(&b"ab".as_slice()), b"\x02\0\0\0ab");
        assert_eq!(encoded(&ShortBytes(b"ab")), b"\x02\0ab");
        assert_eq!(encoded(&RemainingBytes(b"ab")), b"ab");
        assert_eq!(encoded(&Some(5_u8)), [1, 5]);
        assert_eq!(encoded(&None::<u8>), [0]);
        assert_eq!(encoded(&List::Items(&[1_u16, 2])), [2, 0, 0, 0, 1, 0, 2, 0]);
        assert_eq!(encoded(&Durability::Disk), [3]);
        assert_eq!(encoded(&Level(None)), [255]);
        assert_eq!(encoded(&Level(Some(Durability::None))), [0]);
        assert_eq!(encoded(&Action::Stop), [2]);
    }

    #[test]
    fn lists_come_back_and_a_count_beyond_the_bytes_is_malformed() {
        let items = ["a", "", "ccc"];
        let bytes = encoded(&List::Items(&items));
        let mut reader = Reader::at(&bytes, 0);
        let back: List<'_, &str> = List::take(&mut reader, "texts").unwrap();
        assert!(reader.is_empty());
        assert_eq!(back.iter().collect::<Vec<_>>(), items);
        assert_eq!(back, List::Items(&items));
        assert_eq!(encoded(&back), bytes);
        for cut in 0..bytes.len() {
            assert!(List::<&str>::take(&mut Reader::at(&bytes[..cut], 0), "texts").is_err(), "cut to {cut}");
        }
        let many = [&u32::MAX.to_le_bytes()[..], &[0; 64]].concat();
        assert!(List::<u8>::take(&mut Reader::at(&many, 0), "bytes").is_err(), "ends with the bytes");
    }

    #[test]
    fn what_is_no_value_of_its_type_is_malformed() {
        assert!(bool::take(&mut Reader::at(&[2], 0), "x").is_err());
        assert!(Durability::take(&mut Reader::at(&[5], 0), "x").is_err());
        assert!(Level::take(&mut Reader::at(&[254], 0), "x").is_err());
        assert!(Action::take(&mut Reader::at(&[3], 0), "x").is_err());
        assert!(<&str>::take(&mut Reader::at(b"\x01\0\xff", 0), "x").is_err());
        let long = "x".repeat(65_536);
        assert_eq!(long.as_str().put(&mut Vec::new()), Err(EncodeError::TextTooLong { got: 65_536 }));
    }
}
