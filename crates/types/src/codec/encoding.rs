//! Alternative encodings of values. By default, a field of a frame or command is encoded as its type prescribes. The
//! declaration of a field can name one of these encodings instead.

use std::time::Duration;

use super::{
    field::{EncodeError, Field},
    list::List,
    reader::{Malformed, Reader},
};
use crate::{
    clock::SpaceTime,
    ids::{Index, Term},
};

/// Encoding of a single field with a value of type `T`. The declaration of a field names an encoding if the field is
/// not encoded as its type prescribes, or if fewer values are allowed in it.
pub trait Encoding<'a, T> {
    /// Returns the name of this encoding in the format documents.
    fn layout() -> String;
    /// Appends the encoded value to `out`.
    fn put(value: &T, out: &mut Vec<u8>) -> Result<(), EncodeError>;
    /// Decodes a value from the reader's position; `what` names the value in errors.
    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<T, Malformed>;
}

/// Defines encodings by conversion. To encode a value, such an encoding converts it to a second type, and encodes the
/// converted value as that type prescribes. To decode a value, it decodes the second type and converts the result back.
/// The conversion back returns `None` for a value that is not allowed. An encoding that allows only some values has its
/// own layout name.
macro_rules! conversions {
    ($(
        $(#[$doc:meta])*
        $vis:vis $name:ident: $ty:ty as $encoded:ty $(, $layout:literal)? { put $put:expr, take $take:expr }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        $vis enum $name {}

        $crate::codec::conversion!($name: $ty as $encoded $(, $layout)? { put $put, take $take });
    )*};
}

/// Implements an encoding for a type of values. The encoding converts a value to a second type, which has an encoding
/// already, and back.
macro_rules! conversion {
    (layout $encoded:ty) => { <$encoded as $crate::codec::Field>::layout() };
    (layout $encoded:ty, $layout:literal) => { $layout.to_owned() };
    (expected) => { "value within its limits" };
    (expected $layout:literal) => { $layout };
    ($name:ident: $ty:ty as $encoded:ty $(, $layout:literal)? { put $put:expr, take $take:expr }) => {
        impl<'a> $crate::codec::Encoding<'a, $ty> for $name {
            fn layout() -> String {
                $crate::codec::conversion!(layout $encoded $(, $layout)?)
            }

            fn put(value: &$ty, out: &mut Vec<u8>) -> Result<(), $crate::codec::EncodeError> {
                let encode: fn(&$ty) -> $encoded = $put;
                $crate::codec::Field::put(&encode(value), out)
            }

            fn take(
                reader: &mut $crate::codec::Reader<'a>,
                what: &'static str,
            ) -> Result<$ty, $crate::codec::Malformed> {
                let decode: fn($encoded) -> Option<$ty> = $take;
                let at = reader.position();
                let encoded = <$encoded as $crate::codec::Field>::take(reader, what)?;
                let expected = $crate::codec::conversion!(expected $($layout)?);
                decode(encoded).ok_or($crate::codec::Malformed { at, expected })
            }
        }
    };
}

pub(crate) use {conversion, conversions};

conversions! {
    /// A time span, encoded in microseconds.
    pub Micros: Duration as u64 {
        put |span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX),
        take |micros| Some(Duration::from_micros(micros))
    }

    /// A limit that may be missing: `u64::MAX` encodes "no limit". Time spans are encoded in microseconds, so the
    /// longest time span that can be a limit is `u64::MAX - 1` microseconds.
    pub LimitOrNone: Option<u64> as u64 {
        put |limit| limit.unwrap_or(u64::MAX),
        take |limit| Some((limit != u64::MAX).then_some(limit))
    }
}

conversion!(LimitOrNone: Option<Duration> as u64 {
    put |limit| match limit {
        Some(span) => u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(u64::MAX - 1),
        None => u64::MAX,
    },
    take |limit| Some((limit != u64::MAX).then(|| Duration::from_micros(limit)))
});

/// A number in as few bytes as it needs: 7 bits a byte, the lowest first, and the bit 0x80 in all bytes but the last.
#[derive(Clone, Copy, Debug)]
pub enum Varint {}

/// Appends a number in the encoding [`Varint`], which takes 1 to 10 bytes.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

macro_rules! varint_of {
    ($($ty:ty { $number:ident => $value:expr, $of:expr })*) => {$(
        impl<'a> Encoding<'a, $ty> for Varint {
            fn layout() -> String {
                "varint".to_owned()
            }

            fn put($number: &$ty, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                put_varint(out, $value);
                Ok(())
            }

            fn take(reader: &mut Reader<'a>, _: &'static str) -> Result<$ty, Malformed> {
                reader.varint("a number in as few bytes as it needs").map($of)
            }
        }
    )*};
}

varint_of! {
    u64 { number => *number, |number| number }
    Index { index => index.0, Index }
    Term { term => term.0, Term }
    SpaceTime { time => time.0, SpaceTime }
}

/// Encoding of a list of at most `MAX` items. Decoding rejects a longer list.
#[derive(Clone, Copy, Debug)]
pub enum AtMost<const MAX: usize> {}

impl<'a, T: Field<'a> + Clone, const MAX: usize> Encoding<'a, List<'a, T>> for AtMost<MAX> {
    fn layout() -> String {
        List::<T>::layout()
    }

    fn put(value: &List<'a, T>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        value.put(out)
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<List<'a, T>, Malformed> {
        let at = reader.position();
        if reader.u32(what)? as usize > MAX {
            return Err(Malformed { at, expected: "items within the limit" });
        }
        reader.rewind(at);
        List::take(reader, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_as_few_bytes_as_they_need_and_come_back() {
        let cases: [(u64, &[u8]); 8] = [
            (0, &[0]),
            (1, &[1]),
            (0x7f, &[0x7f]),
            (0x80, &[0x80, 1]),
            (300, &[0xac, 2]),
            (0x3fff, &[0xff, 0x7f]),
            (0x4000, &[0x80, 0x80, 1]),
            (u64::MAX, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ];
        for (value, bytes) in cases {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out, bytes, "{value}");
            let mut reader = Reader::at(bytes, 0);
            assert_eq!((reader.varint("x"), reader.is_empty()), (Ok(value), true));
            for cut in 0..bytes.len() {
                assert!(Reader::at(&bytes[..cut], 0).varint("x").is_err(), "{value} cut to {cut}");
            }
        }
    }

    #[test]
    fn numbers_with_bytes_that_they_do_not_need_and_above_64_bits_are_malformed() {
        let above = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        for bytes in [&[0x80, 0][..], &[0xff, 0x80, 0], &above, &[0x80; 11]] {
            let mut reader = Reader::at(bytes, 0);
            assert!(reader.varint("x").is_err(), "{bytes:x?}");
            assert_eq!(reader.position(), 0);
        }
    }
}
