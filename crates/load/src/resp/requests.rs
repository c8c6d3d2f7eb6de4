//! RESP requests, and the check of their replies.
//!
//! Owns: the operations with the mix by which they are chosen, the bytes of requests, and the judgement of replies.
//! Does not own: the connections and their pace (`worker`), or the parser of replies (`thalweg_redis`).
//!
//! Every value follows from the index of its key ([`Values`]). All connections write the same value to a key. So a
//! reply can be compared as a whole, even while other connections write.

use std::{fmt, str::FromStr};

use rand::RngExt as _;
use thalweg_redis::wire::reply_parser::{ReplyError, Token, token};

use crate::{
    data::{KEY_BYTES, Values, write_key},
    random::Generator,
};

/// Number of keys in an MGET or an MSET.
pub const MANY: u64 = 10;

/// Number of fields in each hash.
pub const FIELDS: u64 = 100;

/// Kind of a request: one RESP command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Operation {
    /// Sends PING. The server does almost no work for it.
    Ping,
    /// Reads a string that was set before the benchmark run.
    Get,
    /// Sets a string.
    Set,
    /// Adds 1 to a counter.
    Incr,
    /// Reads a field that was set before the benchmark run.
    Hget,
    /// Sets a field of one of the hashes. Each hash has 100 fields.
    Hset,
    /// Reads ten strings.
    Mget,
    /// Sets ten strings.
    Mset,
    /// Appends an entry with one field to one stream.
    Xadd,
}

impl Operation {
    /// All operations that a mix can contain.
    pub const ALL: [Self; 9] =
        [Self::Ping, Self::Get, Self::Set, Self::Incr, Self::Hget, Self::Hset, Self::Mget, Self::Mset, Self::Xadd];

    /// Returns the command's name in RESP.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ping => "PING",
            Self::Get => "GET",
            Self::Set => "SET",
            Self::Incr => "INCR",
            Self::Hget => "HGET",
            Self::Hset => "HSET",
            Self::Mget => "MGET",
            Self::Mset => "MSET",
            Self::Xadd => "XADD",
        }
    }

    /// Returns the operation that must fill the keys before this operation can be measured; `None` if there is none.
    pub fn needs(self) -> Option<Self> {
        match self {
            Self::Get | Self::Mget => Some(Self::Set),
            Self::Hget => Some(Self::Hset),
            _ => None,
        }
    }
}

/// Operations with weights, as in `get:9,set:1`. The next operation is chosen at random by these weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix(Vec<(Operation, u32)>);

impl Mix {
    /// Returns a mix that contains one operation only.
    pub fn only(operation: Operation) -> Self {
        Self(vec![(operation, 1)])
    }

    /// Returns the operations of the mix. The position of an operation is its request kind.
    pub fn operations(&self) -> impl Iterator<Item = Operation> + '_ {
        self.0.iter().map(|(operation, _)| *operation)
    }

    /// Returns the operation with this position in the mix.
    #[inline]
    pub fn operation(&self, kind: usize) -> Operation {
        self.0[kind].0
    }

    /// Chooses the operation of the next request at random; returns its position in the mix.
    #[inline]
    pub fn choose(&self, rng: &mut Generator) -> usize {
        if self.0.len() == 1 {
            return 0;
        }
        let total = self.0.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut at = rng.random_range(0..total);
        for (kind, (_, weight)) in self.0.iter().enumerate() {
            match at.checked_sub(u64::from(*weight)) {
                Some(rest) => at = rest,
                None => return kind,
            }
        }
        self.0.len() - 1
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [(operation, _)] = self.0[..] {
            return f.write_str(operation.name());
        }
        let parts: Vec<String> =
            self.0.iter().map(|(operation, weight)| format!("{} {weight}", operation.name())).collect();
        f.write_str(&parts.join(" : "))
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut mix: Vec<(Operation, u32)> = Vec::new();
        for part in text.split(',') {
            let (name, weight) = part.split_once(':').unwrap_or((part, "1"));
            let operation =
                Operation::ALL.into_iter().find(|operation| operation.name().eq_ignore_ascii_case(name.trim()));
            let names: Vec<&str> = Operation::ALL.iter().map(|operation| operation.name()).collect();
            let operation = operation.ok_or_else(|| format!("{name:?} is none of {}", names.join(", ")))?;
            let weight = weight.trim().parse().ok().filter(|weight| (1..=1_000_000).contains(weight));
            let weight = weight.ok_or_else(|| format!("{part:?}: a weight is a number from 1 to 1,000,000"))?;
            if mix.iter().any(|(other, _)| *other == operation) {
                return Err(format!("{name:?} is there twice"));
            }
            mix.push((operation, weight));
        }
        Ok(Self(mix))
    }
}

/// Reason why a RESP reply is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyFault {
    /// The received bytes are not RESP.
    #[error("{0}")]
    Protocol(#[from] ReplyError),
    /// The server replied with an error.
    #[error("{operation} of key {index} was refused: {message}")]
    Refused {
        /// Command of the request.
        operation: &'static str,
        /// Index of the request's key.
        index: u64,
        /// Message of the error that the server sent.
        message: String,
    },
    /// The reply differs from the expected one.
    #[error("{operation} of key {index} answered {got}")]
    Answer {
        /// Command of the request.
        operation: &'static str,
        /// Index of the request's key.
        index: u64,
        /// The received reply, and a description of the fault.
        got: String,
    },
}

/// Builds RESP requests and checks their replies.
#[derive(Clone, Debug)]
pub struct Requests {
    values: Values,
    keys: u64,
    /// Encoded XADD request up to the value of its field.
    xadd: Vec<u8>,
    /// Encoded RESP head of a value, such as `\r\n$100\r\n` for values of 100 bytes.
    value_head: Vec<u8>,
}

impl Requests {
    /// Creates requests to `keys` keys. `stream` is the key of the stream that XADD appends to.
    pub fn new(values: Values, keys: u64, stream: &str) -> Self {
        let value_head = format!("\r\n${}\r\n", values.len()).into_bytes();
        let xadd = format!("*5\r\n$4\r\nXADD\r\n${}\r\n{stream}\r\n$1\r\n*\r\n$5\r\nfield", stream.len()).into_bytes();
        Self { values, keys, xadd, value_head }
    }

    /// Appends the bytes of one request to `out`.
    #[inline]
    pub fn put(&self, operation: Operation, index: u64, out: &mut Vec<u8>) {
        let many = || (0..MANY).map(|offset| self.nth(index, offset));
        match operation {
            Operation::Ping => out.extend_from_slice(b"*1\r\n$4\r\nPING"),
            Operation::Get => put_key(out, b"*2\r\n$3\r\nGET\r\n$14\r\n", b"key_", index),
            Operation::Incr => put_key(out, b"*2\r\n$4\r\nINCR\r\n$14\r\n", b"ctr_", index),
            Operation::Set => {
                put_key(out, b"*3\r\n$3\r\nSET\r\n$14\r\n", b"key_", index);
                self.put_value(index, out);
            }
            Operation::Hget => {
                put_key(out, b"*3\r\n$4\r\nHGET\r\n$14\r\n", b"map_", index / FIELDS);
                put_key(out, b"\r\n$14\r\n", b"fld_", index % FIELDS);
            }
            Operation::Hset => {
                put_key(out, b"*4\r\n$4\r\nHSET\r\n$14\r\n", b"map_", index / FIELDS);
                put_key(out, b"\r\n$14\r\n", b"fld_", index % FIELDS);
                self.put_value(index, out);
            }
            Operation::Mget => {
                out.extend_from_slice(b"*11\r\n$4\r\nMGET");
                many().for_each(|index| put_key(out, b"\r\n$14\r\n", b"key_", index));
            }
            Operation::Mset => {
                out.extend_from_slice(b"*21\r\n$4\r\nMSET");
                for index in many() {
                    put_key(out, b"\r\n$14\r\n", b"key_", index);
                    self.put_value(index, out);
                }
            }
            Operation::Xadd => {
                out.extend_from_slice(&self.xadd);
                self.put_value(index, out);
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Checks the reply at the start of `bytes`. Returns its length in bytes if it is right, and `None` if it is
    /// incomplete. `last_entry` is the id of the last entry that this connection appended to the stream.
    #[inline]
    pub fn judge(
        &self,
        operation: Operation,
        index: u64,
        last_entry: &mut (u64, u64),
        bytes: &[u8],
    ) -> Result<Option<usize>, ReplyFault> {
        if operation == Operation::Set && bytes.starts_with(b"+OK\r\n") {
            return Ok(Some(5));
        }
        let Some((first, mut len)) = token(bytes)? else { return Ok(None) };
        let is_right = match (operation, first) {
            (Operation::Ping, Token::Simple(text)) => text == b"PONG",
            (Operation::Set | Operation::Mset, Token::Simple(text)) => text == b"OK",
            (Operation::Get | Operation::Hget, Token::Bulk(value)) => value == self.values.of(index),
            (Operation::Incr, Token::Integer(value)) => value >= 1,
            (Operation::Hset, Token::Integer(added)) => matches!(added, 0 | 1),
            (Operation::Xadd, Token::Bulk(id)) => match entry_id(id) {
                Some(id) if id > *last_entry => {
                    *last_entry = id;
                    true
                }
                _ => false,
            },
            (Operation::Mget, Token::Array(count)) if count as u64 == MANY => {
                for index in (0..MANY).map(|offset| self.nth(index, offset)) {
                    let Some((value, bytes)) = token(&bytes[len..])? else { return Ok(None) };
                    if value != Token::Bulk(self.values.of(index)) {
                        return Err(wrong(operation, index, value));
                    }
                    len += bytes;
                }
                true
            }
            _ => false,
        };
        if is_right { Ok(Some(len)) } else { Err(wrong(operation, index, first)) }
    }

    fn nth(&self, index: u64, offset: u64) -> u64 {
        (index + offset) % self.keys
    }

    fn put_value(&self, index: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.value_head);
        out.extend_from_slice(self.values.of(index));
    }
}

/// Appends a RESP request with these arguments to `out`.
pub fn command(arguments: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

#[inline]
fn put_key(out: &mut Vec<u8>, before: &[u8], prefix: &[u8; 4], index: u64) {
    let mut key = [0; KEY_BYTES];
    write_key(index, &mut key);
    key[..4].copy_from_slice(prefix);
    out.extend_from_slice(before);
    out.extend_from_slice(&key);
}

fn entry_id(text: &[u8]) -> Option<(u64, u64)> {
    let (millis, sequence) = std::str::from_utf8(text).ok()?.split_once('-')?;
    Some((millis.parse().ok()?, sequence.parse().ok()?))
}

#[cold]
fn wrong(operation: Operation, index: u64, got: Token<'_>) -> ReplyFault {
    let operation = operation.name();
    match got {
        Token::Error(message) => {
            ReplyFault::Refused { operation, index, message: String::from_utf8_lossy(message).into_owned() }
        }
        Token::Bulk(value) | Token::Simple(value) => {
            let shown = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
            ReplyFault::Answer {
                operation,
                index,
                got: format!("{} bytes that it may not answer: {shown:?}", value.len()),
            }
        }
        other => ReplyFault::Answer { operation, index, got: format!("{other:?}, which it may not answer") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Requests {
        Requests::new(Values::new(20, 1), 1000, "s")
    }

    fn judged(operation: Operation, reply: &[u8]) -> Result<Option<usize>, ReplyFault> {
        requests().judge(operation, 5, &mut (7, 1), reply)
    }

    fn bulk(value: &[u8]) -> Vec<u8> {
        [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
    }

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        for operation in Operation::ALL {
            let mut out = Vec::new();
            requests().put(operation, 995, &mut out);
            let Some((Token::Array(count), mut at)) = token(&out).unwrap() else { panic!("{operation:?}") };
            for argument in 0..count {
                let Some((Token::Bulk(text), len)) = token(&out[at..]).unwrap() else { panic!("{operation:?}") };
                assert!(argument > 0 || text == operation.name().as_bytes());
                at += len;
            }
            assert_eq!(at, out.len(), "{operation:?}");
        }
    }

    #[test]
    fn right_replies_are_measured() {
        let values = Values::new(20, 1);
        let many: Vec<u8> = (5..15).flat_map(|index| bulk(values.of(index))).collect();
        for (operation, reply) in [
            (Operation::Ping, b"+PONG\r\n".to_vec()),
            (Operation::Set, b"+OK\r\n".to_vec()),
            (Operation::Mset, b"+OK\r\n".to_vec()),
            (Operation::Get, bulk(values.of(5))),
            (Operation::Hget, bulk(values.of(5))),
            (Operation::Incr, b":3\r\n".to_vec()),
            (Operation::Hset, b":0\r\n".to_vec()),
            (Operation::Xadd, bulk(b"7-2")),
            (Operation::Mget, [b"*10\r\n", &many[..]].concat()),
        ] {
            assert_eq!(judged(operation, &reply), Ok(Some(reply.len())), "{operation:?}");
            assert_eq!(judged(operation, &reply[..reply.len() - 1]), Ok(None), "{operation:?}");
            assert!(judged(operation, b"-ERR no\r\n").unwrap_err().to_string().contains("ERR no"), "{operation:?}");
        }
    }

    #[test]
    fn other_replies_are_wrong() {
        let values = Values::new(20, 1);
        for (operation, reply) in [
            (Operation::Get, bulk(values.of(6))),
            (Operation::Get, b"$-1\r\n".to_vec()),
            (Operation::Hget, bulk(&values.of(5)[..19])),
            (Operation::Incr, b":0\r\n".to_vec()),
            (Operation::Hset, b":2\r\n".to_vec()),
            (Operation::Xadd, bulk(b"7-1")),
            (Operation::Xadd, bulk(b"x")),
            (Operation::Ping, b"+OK\r\n".to_vec()),
            (Operation::Mget, [b"*10\r\n", &bulk(values.of(6))[..]].concat()),
            (Operation::Mget, b"*9\r\n".to_vec()),
        ] {
            let reply_text = String::from_utf8_lossy(&reply).into_owned();
            assert!(judged(operation, &reply).is_err(), "{operation:?} {reply_text}");
        }
    }

    #[test]
    fn mixes_are_read_and_kept_to() {
        let mix: Mix = "get:9, set:1".parse().unwrap();
        let mut rng = crate::random::generator(1);
        let sets = (0..10_000).filter(|_| mix.choose(&mut rng) == 1).count();
        assert!((850..1150).contains(&sets), "{sets}");
        assert_eq!(mix.to_string(), "GET 9 : SET 1");
        for wrong in ["", "get:0", "get:x", "blpop", "get,get"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }
}
