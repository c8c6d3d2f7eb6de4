//! Operations on keys of a keyspace or of a cache over the native protocol, over TCP or in this process.
//!
//! Owns: the bytes of requests and replies. Does not own: connections and the frames around requests
//! ([`crate::native::NativePlace`]).

use std::borrow::Cow;

use thalweg_types::{
    Durability, KeyspaceId, Revision,
    codec::Level,
    command::{CommandError, KeyspaceConfig, encode_create_keyspace, encode_put},
};
use thalweg_wire::{
    CacheCreate, CacheDelete, CacheDone, CacheExpect, CacheGet, CachePut, CacheStored, CacheTtl, CacheValue, Committed,
    Frame as _, Get, Kind, OpenCache, Order, Pairs, RemainingBytes, Scan, ServerFrame, Value, Values, Write, put_write,
};

use super::{
    codec::{Answer, Codec, Content},
    rows::{RowCheck, shown},
};
use crate::{
    BenchError, Connection,
    data::key,
    native::{ChannelError, ID, NativePlace, answer_ping, body, frame, refusal},
};

const NO_KEYS: &str = "a mix with operations on keys opens a keyspace or a cache";
/// Maximum length in bytes of a page of a scan.
const PAGE_BYTES: u32 = 4 << 20;

/// Encodes requests to one keyspace or one cache over the native protocol, and decodes the replies.
#[derive(Clone, Debug)]
pub struct NativeCodec {
    place: NativePlace,
    store: KeyStore,
    level: Level,
}

/// The keyspace or the cache that holds the keys.
#[derive(Clone, Copy, Debug)]
enum KeyStore {
    /// The benchmark run uses no keys, so there is no keyspace and no cache.
    None,
    Keyspace(KeyspaceId),
    /// A cache with this id.
    Cache(u32),
}

impl NativeCodec {
    /// Opens a keyspace, and creates it if it is missing. Its writes request this durability level; with `None` the
    /// server uses its default.
    pub fn open(place: &NativePlace, keyspace: &str, level: Option<Durability>) -> Result<Self, BenchError> {
        let mut command = Vec::new();
        encode_create_keyspace(&mut command, keyspace, &KeyspaceConfig::default())
            .map_err(BenchError::target(place))?;
        let write = Write { level: Level(None), command: RemainingBytes(&command) };
        let keyspace = place.ask("creating the keyspace", &write, |frame| match frame {
            ServerFrame::Created(created) => Some(KeyspaceId(created.id)),
            _ => None,
        })?;
        Ok(Self { place: place.clone(), store: KeyStore::Keyspace(keyspace), level: Level(level) })
    }

    /// Returns a codec that only opens connections, for a benchmark run without keys.
    pub fn without_keys(place: &NativePlace) -> Self {
        Self { place: place.clone(), store: KeyStore::None, level: Level(None) }
    }

    /// Opens a cache, and creates it with this capacity in bytes if it is missing; `None` is the server's default.
    /// Returns a codec of requests to the cache, and the cache's actual capacity in bytes.
    pub fn open_cache(place: &NativePlace, name: &str, max_bytes: Option<u64>) -> Result<(Self, u64), BenchError> {
        let open = OpenCache { create: CacheCreate::IfMissing, max_bytes: max_bytes.unwrap_or(0), name };
        let (cache, max_bytes) = place.ask("opening the cache", &open, |frame| match frame {
            ServerFrame::CacheOpened(opened) => Some((opened.cache, opened.max_bytes)),
            _ => None,
        })?;
        Ok((Self { place: place.clone(), store: KeyStore::Cache(cache), level: Level(None) }, max_bytes))
    }

    /// Makes each write request this durability level.
    #[must_use]
    pub fn with_level(self, level: Durability) -> Self {
        Self { level: Level(Some(level)), ..self }
    }
}

impl Codec for NativeCodec {
    const PIPELINE: usize = 1;

    fn connect(&self) -> Result<Connection, BenchError> {
        self.place.connect()
    }

    #[inline]
    fn put(&self, index: u64, value: [&[u8]; 2], out: &mut Vec<u8>) {
        let (key, value) = (key(index), value.concat());
        match self.store {
            KeyStore::Keyspace(keyspace) => put_write(out, ID, self.level, |out| {
                encode_put(out, keyspace, &key, &value)?;
                Ok::<_, CommandError>(())
            })
            .expect("keys and values are within the limits of commands"),
            KeyStore::Cache(cache) => {
                let (expect, ttl, value) = (CacheExpect::Any {}, CacheTtl::Never {}, RemainingBytes(&value));
                let put = CachePut { cache, expect, ttl, key: &key, value };
                put.encode(out, ID).expect("keys and values are within the limits of frames");
            }
            KeyStore::None => unreachable!("{NO_KEYS}"),
        }
    }

    #[inline]
    fn get(&self, index: u64, out: &mut Vec<u8>) {
        let key = key(index);
        let key = RemainingBytes(&key);
        let encoded = match self.store {
            KeyStore::Keyspace(keyspace) => {
                Get { keyspace, revision: Revision(0), values: Values::Include, key }.encode(out, ID)
            }
            KeyStore::Cache(cache) => CacheGet { cache, key }.encode(out, ID),
            KeyStore::None => unreachable!("{NO_KEYS}"),
        };
        encoded.expect("a key is within the limits of frames");
    }

    fn delete(&self, index: u64, out: &mut Vec<u8>) {
        let KeyStore::Cache(cache) = self.store else { unreachable!("only caches get deletes") };
        let key = key(index);
        let delete = CacheDelete { cache, expect: CacheExpect::Any {}, key: RemainingBytes(&key) };
        delete.encode(out, ID).expect("a key is within the limits of frames");
    }

    fn scan(&self, first: u64, end: u64, rows: u32, out: &mut Vec<u8>) {
        let KeyStore::Keyspace(keyspace) = self.store else { unreachable!("caches have no order, and get no scans") };
        let (start, end) = (key(first), key(end));
        let scan = Scan {
            keyspace,
            revision: Revision(0),
            limit: rows,
            max_bytes: PAGE_BYTES,
            order: Order::Ascending,
            values: Values::Include,
            prefix: b"",
            start: Some(&start),
            end: Some(&end),
            cursor: b"",
        };
        scan.encode(out, ID).expect("keys are within the limits of frames");
    }

    fn rows(&self, content: &[u8], check: &mut RowCheck<'_>) -> Result<u64, String> {
        let page = Pairs::decode_body(content).map_err(|error| error.to_string())?;
        let mut rows = 0;
        for pair in page.pairs.iter() {
            check(pair.key, pair.value)?;
            rows += 1;
        }
        Ok(rows)
    }

    fn level(&self, reply: &[u8]) -> Option<String> {
        let (frame, _) = frame(reply).ok()??;
        Some(Committed::decode_body(body(&frame)).ok()?.durability.to_string())
    }

    /// Answers the pings of a connection that is idle.
    #[inline]
    fn aside(&self, bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        match frame(bytes) {
            Ok(None) => None,
            Ok(Some((frame, len))) if answer_ping(frame, out) => Some(len),
            _ => Some(0),
        }
    }

    #[inline]
    fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        let Some((frame, bytes)) = frame(bytes)? else { return Ok(None) };
        let (kind, content) = (frame.header.kind, body(&frame));
        if frame.header.id != ID {
            let error = |error: ChannelError| error.to_string();
            return Err(error(crate::native::unexpected(frame)));
        }
        let content = if kind == Kind::Committed as u16 {
            Committed::decode_body(content).map(|_| Content::Stored)
        } else if kind == Kind::Value as u16 {
            Value::decode_body(content).map(|value| match value.revision {
                Revision(0) => Content::Missing,
                _ => Content::Value(Cow::Borrowed(value.value.0)),
            })
        } else if kind == Kind::CacheStored as u16 {
            CacheStored::decode_body(content).map(|_| Content::Stored)
        } else if kind == Kind::CacheDone as u16 {
            CacheDone::decode_body(content).map(|_| Content::Deleted)
        } else if kind == Kind::CacheValue as u16 {
            CacheValue::decode_body(content).map(|entry| match entry.version {
                0 => Content::Missing,
                _ => Content::Value(Cow::Borrowed(entry.value.0)),
            })
        } else if kind == Kind::Pairs as u16 {
            Ok(Content::Value(Cow::Borrowed(content)))
        } else if let Some(message) = refusal(frame) {
            Ok(Content::Refused(shown(message.as_bytes())))
        } else {
            return Err(crate::native::unexpected(frame).to_string());
        };
        let content = content.map_err(|error| error.to_string())?;
        Ok(Some(Answer { bytes, closes: false, content }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_types::{Action, LeaseId, command::CommitBuilder};
    use thalweg_wire::{ClientFrame, Effect, Failed, List, Pair, Ping, Pong};

    fn codec() -> NativeCodec {
        let place = NativePlace::Server(([127, 0, 0, 1], 1).into());
        NativeCodec { place, store: KeyStore::Keyspace(KeyspaceId(3)), level: Level(Some(Durability::Os)) }
    }

    fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    /// Decodes a reply and returns its content. Also checks that the codec reports every shorter prefix of the reply as
    /// incomplete.
    fn content(bytes: &[u8]) -> Content<'_> {
        let codec = codec();
        assert!((0..bytes.len()).all(|len| codec.decode(&bytes[..len]).unwrap().is_none()), "a part is incomplete");
        let answer = codec.decode(bytes).unwrap().unwrap();
        assert_eq!(answer.bytes, bytes.len());
        answer.content
    }

    #[test]
    fn operations_become_frames() {
        let put = encoded(|out| codec().put(7, [b"ab", b"c"], out));
        let (raw, _) = frame(&put).unwrap().unwrap();
        let ClientFrame::Write(write) = ClientFrame::decode(raw).unwrap().frame else { panic!("no write") };
        let (mut builder, mut command) = (CommitBuilder::new(), Vec::new());
        builder.put(KeyspaceId(3), b"key_0000000007", b"abc").unwrap().encode(&mut command);
        assert_eq!((write.level, write.command.0), (Level(Some(Durability::Os)), &command[..]));
        let get = encoded(|out| codec().get(7, out));
        let (raw, _) = frame(&get).unwrap().unwrap();
        let ClientFrame::Get(get) = ClientFrame::decode(raw).unwrap().frame else { panic!("no get") };
        assert_eq!((get.keyspace, get.key.0), (KeyspaceId(3), &b"key_0000000007"[..]));
        let scan = encoded(|out| codec().scan(7, 20, 5, out));
        let (raw, _) = frame(&scan).unwrap().unwrap();
        let ClientFrame::Scan(scan) = ClientFrame::decode(raw).unwrap().frame else { panic!("no scan") };
        assert_eq!((scan.limit, scan.end), (5, Some(&b"key_0000000020"[..])));
    }

    #[test]
    fn frames_become_answers() {
        let durability = Durability::Disk;
        let revision = Revision(4);
        let committed = Committed { durability, duplicate: false, revision, appends: List::default() };
        assert_eq!(content(&encoded(|out| committed.encode(out, ID).unwrap())), Content::Stored);
        let value = |revision, value| {
            let (remaining, value_bytes) = (u64::MAX, 3);
            let value = RemainingBytes(value);
            let value = Value { durability, revision, remaining, lease: LeaseId(0), value_bytes, value };
            encoded(|out| value.encode(out, ID).unwrap())
        };
        assert_eq!(content(&value(revision, b"abc")), Content::Value(Cow::Borrowed(b"abc")));
        assert_eq!(content(&value(Revision(0), b"")), Content::Missing);
        let failed = Failed {
            class: Action::Fix,
            effect: Effect::Nothing,
            shown: Level(None),
            code: "busy",
            message: "later",
            details: List::default(),
        };
        assert_eq!(
            content(&encoded(|out| failed.encode(out, ID).unwrap())),
            Content::Refused("busy: later".to_owned())
        );
        let other = encoded(|out| committed.encode(out, 9).unwrap());
        assert!(codec().decode(&other).is_err(), "the reply to no request");
        assert!(codec().decode(&[0xff; 64]).is_err(), "no frame");
    }

    #[test]
    fn operations_on_a_cache_have_frames_of_their_own() {
        let cache = NativeCodec { store: KeyStore::Cache(5), ..codec() };
        let decoded = |bytes: &[u8]| {
            let (raw, _) = frame(bytes).unwrap().unwrap();
            match ClientFrame::decode(raw).unwrap().frame {
                ClientFrame::CachePut(put) => format!("put {} {}", put.cache, shown(&[put.key, put.value.0].concat())),
                ClientFrame::CacheGet(get) => format!("get {} {}", get.cache, shown(get.key.0)),
                ClientFrame::CacheDelete(delete) => format!("delete {} {}", delete.cache, shown(delete.key.0)),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(decoded(&encoded(|out| cache.put(7, [b"ab", b"c"], out))), "put 5 key_0000000007abc");
        assert_eq!(decoded(&encoded(|out| cache.get(7, out))), "get 5 key_0000000007");
        assert_eq!(decoded(&encoded(|out| cache.delete(7, out))), "delete 5 key_0000000007");
        let value = |version| {
            let value = CacheValue { version, remaining: u64::MAX, value: RemainingBytes(b"abc") };
            encoded(|out| value.encode(out, ID).unwrap())
        };
        assert_eq!(content(&value(1)), Content::Value(Cow::Borrowed(b"abc")));
        assert_eq!(content(&value(0)), Content::Missing);
        assert_eq!(content(&encoded(|out| CacheStored { version: 1 }.encode(out, ID).unwrap())), Content::Stored);
        assert_eq!(content(&encoded(|out| CacheDone { existed: false }.encode(out, ID).unwrap())), Content::Deleted);
    }

    #[test]
    fn pages_become_rows_and_pings_are_answered() {
        let pairs = [(b"a", b"1"), (b"b", b"2")].map(|(key, value)| Pair { revision: Revision(1), key, value });
        let page =
            Pairs { durability: Durability::Disk, revision: Revision(1), cursor: b"", pairs: List::Items(&pairs) };
        let bytes = encoded(|out| page.encode(out, ID).unwrap());
        let Content::Value(body) = content(&bytes) else { panic!("no page") };
        let mut seen = Vec::new();
        let rows = codec().rows(&body, &mut |key, value| {
            seen.push([key, value].concat());
            Ok(())
        });
        assert_eq!((rows, seen), (Ok(2), vec![b"a1".to_vec(), b"b2".to_vec()]));
        assert!(codec().rows(&body[..body.len() - 1], &mut |_, _| Ok(())).is_err());
        let ping = encoded(|out| Ping { token: 5 }.encode(out, 0).unwrap());
        let mut out = Vec::new();
        assert_eq!(codec().aside(&ping[..ping.len() - 1], &mut out), None);
        assert_eq!(codec().aside(&ping, &mut out), Some(ping.len()));
        assert_eq!(out, encoded(|out| Pong { token: 5 }.encode(out, 0).unwrap()));
        assert_eq!(codec().aside(&bytes, &mut out), Some(0), "a reply");
    }
}
