//! Encoding and decoding of the fields of frames.
//!
//! Owns: the trait [`Field`] and its implementations for all types that frames consist of. Each type reports the name
//! that `docs/formats/wire.md` has for its layout, so a test can compare that document with the code.
//!
//! Decoding borrows: a decoded frame points into the received bytes and allocates nothing. Decoding a list walks
//! through it once, so iterating over a decoded list cannot fail. Invariant: encoding a decoded value gives the same
//! bytes again.

use std::{fmt, marker::PhantomData};

use thalweg_types::{
    Action, Attempt, Durability, GroupId, KeyspaceId, LeaseId, NodeId, Offset, Revision, SpaceId, SpaceTime, StreamId,
    command::{KeyspaceConfig, StreamConfig, groups::GroupConfig},
    limits::MAX_FRAME_BYTES,
    record::{Malformed, Reader},
};

/// Error returned when a value cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The frame would be larger than the receiver accepts.
    #[error("frame of {got} bytes is above the limit of {max}: send less at a time")]
    FrameTooLarge {
        /// Bytes of the frame, without its header.
        got: usize,
        /// Largest frame that the receiver accepts, in bytes without the header.
        max: usize,
    },
    /// A name, subject, member or text is longer than 65,535 bytes.
    #[error("text of {got} bytes is above the limit of 65535")]
    TextTooLong {
        /// Length in bytes.
        got: usize,
    },
    /// The optional fields together are longer than 65,535 bytes.
    #[error("optional fields of {got} bytes are above the limit of 65535")]
    FieldsTooLong {
        /// Length in bytes.
        got: usize,
    },
}

/// A part of a frame that can be encoded and decoded.
pub trait Field<'a>: Sized {
    /// Name of the layout in `docs/formats/wire.md`.
    fn layout() -> String;
    /// Appends the encoded value.
    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError>;
    /// Decodes a value; `what` names it in errors.
    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed>;
}

/// A type whose layout is a sequence of named fields.
pub trait Structure {
    /// Name of the structure in `docs/formats/wire.md`.
    const NAME: &'static str;
    /// Fields of the structure in the notation of that document: `name layout, name layout`.
    fn definition() -> String;
}

macro_rules! integer_fields {
    ($($int:ident),*) => {$(
        impl<'a> Field<'a> for $int {
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

/// A name of at most 65,535 bytes that need not be UTF-8, such as a subject or a pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Short<'a>(pub &'a [u8]);

impl<'a> Field<'a> for Short<'a> {
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

fn put_len(out: &mut Vec<u8>, len: usize) -> Result<(), EncodeError> {
    let len = u32::try_from(len).map_err(|_| EncodeError::FrameTooLarge { got: len, max: MAX_FRAME_BYTES })?;
    len.put(out)
}

/// All bytes up to the end of the frame. Only the last field of a frame may have this type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest<'a>(pub &'a [u8]);

impl<'a> Field<'a> for Rest<'a> {
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

/// A list of any length: either a borrowed slice to be encoded, or received bytes.
pub enum List<'a, T> {
    /// Items to be encoded.
    Items(&'a [T]),
    /// Received bytes. Decoding has walked through them once, so every item decodes.
    Encoded {
        /// Number of items.
        count: u32,
        /// Encoded items.
        bytes: &'a [u8],
        /// Type of the items.
        item: PhantomData<T>,
    },
}

impl<'a, T: Field<'a> + Clone> List<'a, T> {
    /// Number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Items(items) => items.len(),
            Self::Encoded { count, .. } => *count as usize,
        }
    }

    /// Returns true if the list has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the items in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (items, count, bytes) = match *self {
            Self::Items(items) => (items, 0, &[][..]),
            Self::Encoded { count, bytes, .. } => (&[][..], count, bytes),
        };
        let mut reader = Reader::at(bytes, 0);
        let encoded = (0..count).map_while(move |_| T::take(&mut reader, "an item").ok());
        items.iter().cloned().chain(encoded)
    }
}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        match *self {
            Self::Items(items) => Self::Items(items),
            Self::Encoded { count, bytes, item } => Self::Encoded { count, bytes, item },
        }
    }
}

impl<'a, T: Field<'a> + Clone + fmt::Debug> fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T> Default for List<'_, T> {
    fn default() -> Self {
        Self::Items(&[])
    }
}

impl<'a, T: Field<'a> + Clone + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a, T: Field<'a> + Clone + Eq> Eq for List<'a, T> {}

impl<'a, T: Field<'a> + Clone> Field<'a> for List<'a, T> {
    fn layout() -> String {
        format!("[{}]", T::layout())
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_len(out, self.len())?;
        match self {
            Self::Items(items) => items.iter().try_for_each(|item| item.put(out)),
            Self::Encoded { bytes, .. } => {
                out.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Every item has at least one byte, so the walk ends with the frame, whatever count it states.
    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let count = reader.u32(what)?;
        let mut ahead = reader.clone();
        let begin = ahead.position();
        for _ in 0..count {
            T::take(&mut ahead, what)?;
        }
        let bytes = reader.take(ahead.position() - begin, what)?;
        Ok(Self::Encoded { count, bytes, item: PhantomData })
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

macro_rules! config_fields {
    ($($config:ident as $layout:literal),*) => {$(
        impl<'a> Field<'a> for $config {
            fn layout() -> String {
                $layout.to_owned()
            }

            fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                self.encode(out);
                Ok(())
            }

            fn take(reader: &mut Reader<'a>, _: &'static str) -> Result<Self, Malformed> {
                Self::decode(reader)
            }
        }
    )*};
}

config_fields!(KeyspaceConfig as "settings", StreamConfig as "config", GroupConfig as "group config");

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(encoded(&Short(b"ab")), b"\x02\0ab");
        assert_eq!(encoded(&Rest(b"ab")), b"ab");
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
