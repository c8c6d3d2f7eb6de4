//! Encoded lists: the number of items, then the items.

use std::{fmt, marker::PhantomData};

use super::{
    field::{EncodeError, Field, put_len},
    reader::{Malformed, Reader},
};

/// A list of any length: either a borrowed slice to be encoded, or received bytes.
pub enum List<'a, T> {
    /// Items of the list, which are to be encoded.
    Items(&'a [T]),
    /// Received bytes of the items. Decoding has walked through the list once, so every item is known to decode.
    Encoded {
        /// Number of items in the list.
        count: u32,
        /// Bytes of the list's encoded items.
        bytes: &'a [u8],
        /// Type of the list's items.
        item: PhantomData<T>,
    },
}

impl<'a, T: Field<'a> + Clone> List<'a, T> {
    /// Number of items in the list.
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

    /// Returns the item at `index`, in constant time if all items have the same size.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<T> {
        match (self, T::FIXED_BYTES) {
            (Self::Items(items), _) => items.get(index).cloned(),
            (Self::Encoded { bytes, .. }, Some(size)) => {
                let at = index.checked_mul(size).filter(|at| *at < bytes.len())?;
                T::take(&mut Reader::at(bytes, at), "an item").ok()
            }
            _ => self.iter().nth(index),
        }
    }

    /// Iterates over the list's items in order.
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
        *self
    }
}

impl<T> Copy for List<'_, T> {}

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

    /// Decodes a list. Every item has at least one byte, so decoding stops at the end of the frame even if the list
    /// states a wrong number of items.
    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let count = reader.u32(what)?;
        let mut ahead = reader.clone();
        let begin = ahead.position();
        match T::FIXED_BYTES {
            Some(size) => {
                let bytes = (count as usize).saturating_mul(size);
                ahead.take(bytes, what)?;
            }
            None => (0..count).try_for_each(|_| T::take(&mut ahead, what).map(drop))?,
        }
        let bytes = reader.take(ahead.position() - begin, what)?;
        Ok(Self::Encoded { count, bytes, item: PhantomData })
    }
}

/// A list that owns its items. Decoding copies the items.
impl<'a, T: Field<'a>> Field<'a> for Vec<T> {
    fn layout() -> String {
        format!("[{}]", T::layout())
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_len(out, self.len())?;
        self.iter().try_for_each(|item| item.put(out))
    }

    /// Decodes a list. Every item has at least one byte, so decoding stops at the end of the frame even if the list
    /// states a wrong number of items.
    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        (0..reader.u32(what)?).map(|_| T::take(reader, what)).collect()
    }
}
