//! Replies of Redis commands, before they are encoded as RESP2 or RESP3 (versions 2 and 3 of the Redis protocol). The
//! type is in this crate because a Redis reply can also be the outcome of a command in the log; the Redis commands are
//! in `thalweg-redis`.

use std::borrow::Cow;

use bytes::Bytes;

/// A reply to a Redis command. Its encoding depends on the connection's version of the Redis protocol, RESP2 or RESP3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The simple string `OK`.
    Ok,
    /// A simple string without line breaks.
    Simple(&'static str),
    /// An error reply: its code, a space and its text, without line breaks.
    Error(Cow<'static, str>),
    /// An integer reply.
    Integer(i64),
    /// A bulk string, which may contain any bytes.
    Bulk(Bytes),
    /// A missing value: a null bulk string in RESP2, null in RESP3.
    Null,
    /// A missing array: a null array in RESP2, null in RESP3.
    NullArray,
    /// An array of replies.
    Array(Vec<Reply>),
    /// Pairs of a key and a value, encoded as a flat array in RESP2 and as a map in RESP3.
    Map(Vec<(Reply, Reply)>),
    /// Pairs of a key and a value, encoded as an array of two-element arrays in RESP2 and as a map in RESP3 (the reply
    /// to `XREAD`).
    Pairs(Vec<(Reply, Reply)>),
    /// Pairs of a key and a value, encoded as a flat array in RESP2 and as an array of two-element arrays in RESP3 (the
    /// reply to `HRANDFIELD`).
    FlatPairs(Vec<(Reply, Reply)>),
    /// A set, encoded as an array in RESP2 and as a set in RESP3.
    Set(Vec<Reply>),
    /// An out-of-band push message, encoded as an array in RESP2 and as a push in RESP3.
    Push(Vec<Reply>),
}

impl Reply {
    /// Creates a bulk string from a copy of `bytes`.
    #[must_use]
    pub fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(Bytes::copy_from_slice(bytes))
    }

    /// Creates an error reply. The first word of `text` is the error's code.
    #[must_use]
    pub fn error(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Error(text.into())
    }

    /// Returns the number of bytes of the reply's contents, without the lengths and the type bytes that the encoding
    /// adds.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        let of_pairs = |pairs: &[(Self, Self)]| -> usize {
            pairs.iter().map(|(first, second)| first.content_bytes() + second.content_bytes()).sum()
        };
        match self {
            Self::Ok | Self::Integer(_) | Self::Null | Self::NullArray => 0,
            Self::Simple(text) => text.len(),
            Self::Error(text) => text.len(),
            Self::Bulk(bytes) => bytes.len(),
            Self::Array(items) | Self::Set(items) | Self::Push(items) => items.iter().map(Self::content_bytes).sum(),
            Self::Map(pairs) | Self::Pairs(pairs) | Self::FlatPairs(pairs) => of_pairs(pairs),
        }
    }

    /// Returns the number of bytes on the heap that the reply refers to. Bytes that several replies share count fully
    /// for each of them.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let of_items = |items: &[Self]| items.iter().map(|item| size_of::<Self>() + item.held_bytes()).sum();
        let of_pairs = |pairs: &[(Self, Self)]| {
            pairs.iter().map(|(one, other)| size_of::<(Self, Self)>() + one.held_bytes() + other.held_bytes()).sum()
        };
        match self {
            Self::Ok | Self::Integer(_) | Self::Null | Self::NullArray | Self::Simple(_) => 0,
            Self::Error(text) => text.len(),
            Self::Bulk(bytes) => bytes.len(),
            Self::Array(items) | Self::Set(items) | Self::Push(items) => of_items(items),
            Self::Map(pairs) | Self::Pairs(pairs) | Self::FlatPairs(pairs) => of_pairs(pairs),
        }
    }

    /// Creates the integer reply 1 if `yes` is true, or 0 if it is false.
    #[must_use]
    pub fn flag(yes: bool) -> Self {
        Self::Integer(i64::from(yes))
    }
}
