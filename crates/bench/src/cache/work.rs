//! Requests to a cache, and the check of their replies.

use std::sync::Arc;

use rand::RngExt as _;
use thalweg_transport::Outbox;
use thalweg_wire::{
    CacheExpect, CacheGet, CachePut, CacheStored, CacheTtl, CacheValue, Frame as _, Kind, RawFrame, RemainingBytes,
};

use crate::{
    data::{KEY_BYTES, Values, key, write_key},
    native::{ChannelError, ChannelRequests, body, unexpected},
    random::{Generator, generator},
};

/// Kind of a cache operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Sets an entry of the cache.
    Put,
    /// Reads an entry that the cache holds.
    Hit,
    /// Reads an entry that the cache does not hold.
    Miss,
}

/// Index of the first key that is never put. Reads that must find nothing use keys from this index on.
const MISSING: u64 = 5_000_000_000;

/// Puts or gets of keys chosen at random, for one channel (a TCP connection or a QUIC stream) of the native protocol.
#[derive(Debug)]
pub(super) struct CacheWork {
    cache: u32,
    operation: Operation,
    keys: u64,
    values: Arc<Values>,
    rng: Generator,
    /// Index of the key of each outstanding request. The position in the vector is the request's slot: its number among
    /// the requests that the channel (a TCP connection or a QUIC stream) can have in progress.
    asked: Vec<u64>,
    /// Keys that the channel (a TCP connection or a QUIC stream) must still put, each once, to fill the cache; `None`
    /// if keys are chosen at random.
    each: Option<std::ops::Range<u64>>,
}

impl CacheWork {
    /// Creates the requests of one channel (a TCP connection or a QUIC stream) to a cache that is already open.
    pub(super) fn new(
        cache: u32,
        operation: Operation,
        keys: u64,
        values: Arc<Values>,
        seed: u64,
        channel: usize,
    ) -> Self {
        let rng = generator(seed.wrapping_mul(31).wrapping_add(channel as u64));
        Self { cache, operation, keys, values, rng, asked: Vec::new(), each: None }
    }

    /// Makes the channel (a TCP connection or a QUIC stream) put each of these keys once, instead of using random keys.
    pub(super) fn each(self, keys: std::ops::Range<u64>) -> Self {
        Self { each: Some(keys), ..self }
    }

    fn next_key(&mut self) -> Option<u64> {
        match &mut self.each {
            Some(keys) => keys.next(),
            None => Some(self.rng.random_range(0..self.keys)),
        }
    }
}

impl ChannelRequests for CacheWork {
    #[inline]
    fn ask(&mut self, slot: usize, id: u32, out: &mut Outbox) -> Result<bool, ChannelError> {
        let Some(index) = self.next_key() else { return Ok(false) };
        if self.asked.len() <= slot {
            self.asked.resize(slot + 1, 0);
        }
        self.asked[slot] = index;
        let mut bytes = [0; KEY_BYTES];
        write_key(if self.operation == Operation::Miss { MISSING + index } else { index }, &mut bytes);
        let (cache, out) = (self.cache, out.buffer());
        let put = match self.operation {
            Operation::Put => {
                let value = RemainingBytes(self.values.of(index));
                CachePut { cache, expect: CacheExpect::Any {}, ttl: CacheTtl::Never {}, key: &bytes, value }
                    .encode(out, id)
            }
            Operation::Hit | Operation::Miss => CacheGet { cache, key: RemainingBytes(&bytes) }.encode(out, id),
        };
        put.map(|()| true).map_err(ChannelError::protocol)
    }

    #[inline]
    fn judge(&mut self, slot: usize, reply: RawFrame<'_>) -> Result<u64, ChannelError> {
        let index = self.asked.get(slot).copied().unwrap_or(0);
        let wrong = |what: &str| {
            let key = String::from_utf8_lossy(&key(index)).into_owned();
            Err(ChannelError::Protocol(format!("{:?} of {key}: {what}", self.operation)))
        };
        match (self.operation, reply.header.kind) {
            (Operation::Put, kind) if kind == Kind::CacheStored as u16 => {
                match CacheStored::decode_body(body(&reply))?.version {
                    0 => wrong("stored as version 0, which means that there is no entry"),
                    _ => Ok(1),
                }
            }
            (Operation::Hit | Operation::Miss, kind) if kind == Kind::CacheValue as u16 => {
                let found = CacheValue::decode_body(body(&reply))?;
                match (self.operation, found.version) {
                    (Operation::Miss, 0) => Ok(1),
                    (Operation::Miss, _) => wrong("found, and was never put"),
                    (_, 0) => wrong("not found, and was put; is the cache large enough for all keys?"),
                    _ if found.value.0 == self.values.of(index) => Ok(1),
                    _ => wrong("answered with bytes that were never stored"),
                }
            }
            _ => Err(unexpected(reply)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{ClientFrame, Decoder};

    fn work(operation: Operation) -> CacheWork {
        CacheWork::new(3, operation, 1, Arc::new(Values::new(20, 1)), 1, 0)
    }

    fn frame(encode: impl FnOnce(&mut Vec<u8>)) -> Decoder {
        let (mut out, mut decoder) = (Vec::new(), Decoder::new());
        encode(&mut out);
        decoder.feed(&out);
        decoder
    }

    fn judged(operation: Operation, encode: impl FnOnce(&mut Vec<u8>)) -> Result<u64, ChannelError> {
        let (mut work, mut out) = (work(operation), Outbox::new());
        assert!(work.ask(0, 1, &mut out).unwrap());
        work.judge(0, frame(encode).next_borrowed().unwrap().unwrap())
    }

    fn value(version: u64, value: &[u8]) -> impl FnOnce(&mut Vec<u8>) {
        move |out| CacheValue { version, remaining: u64::MAX, value: RemainingBytes(value) }.encode(out, 1).unwrap()
    }

    #[test]
    fn requests_are_those_of_the_protocol() {
        let (mut work, mut out) = (work(Operation::Put), Outbox::new());
        work.ask(0, 1, &mut out).unwrap();
        let mut decoder = Decoder::new();
        decoder.feed(out.buffer());
        let raw = decoder.next_borrowed().unwrap().unwrap();
        let ClientFrame::CachePut(put) = ClientFrame::decode(raw).unwrap().frame else { panic!("no put") };
        assert_eq!((put.cache, put.key, put.value.0), (3, &key(0)[..], Values::new(20, 1).of(0)));
    }

    #[test]
    fn only_right_answers_count() {
        let values = Values::new(20, 1);
        assert_eq!(judged(Operation::Hit, value(7, values.of(0))).unwrap(), 1);
        assert_eq!(judged(Operation::Miss, value(0, b"")).unwrap(), 1);
        assert_eq!(judged(Operation::Put, |out| CacheStored { version: 1 }.encode(out, 1).unwrap()).unwrap(), 1);
        for (operation, version, bytes) in [
            (Operation::Hit, 0, &b""[..]),
            (Operation::Hit, 7, &values.of(0)[..19]),
            (Operation::Hit, 7, values.of(1)),
            (Operation::Miss, 7, values.of(0)),
            (Operation::Put, 7, values.of(0)),
        ] {
            assert!(judged(operation, value(version, bytes)).is_err(), "{operation:?} {version}");
        }
        assert!(judged(Operation::Put, |out| CacheStored { version: 0 }.encode(out, 1).unwrap()).is_err());
    }

    #[test]
    fn filling_puts_each_key_once() {
        let (mut work, mut out) = (work(Operation::Put).each(4..6), Outbox::new());
        let asked: Vec<bool> = (0..3).map(|slot| work.ask(slot, 1, &mut out).unwrap()).collect();
        assert_eq!((asked, work.asked), (vec![true, true, false], vec![4, 5]));
    }
}
