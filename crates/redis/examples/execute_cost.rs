//! Measures the CPU time of a command without the store: lookup, checks, execution, and encoding of the reply.
//!
//! `cargo run --release -p thalweg-redis --example execute_cost`

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::{hint::black_box, ops::Bound};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use thalweg_redis::{
    Collection, CollectionId, KeyInfo, KeyValue, Kind, NewValue, Read, Store, StoreError, Value, execute, find,
    store::{Visit, VisitKeys},
    wire::{Protocol, Writer},
};

const ROUNDS: usize = 2_000_000;

/// A store with fixed values: every key that begins with `h` is a hash, every other key a string. Writes are
/// discarded.
struct Fixed {
    string: Bytes,
    meta: Bytes,
}

impl Fixed {
    fn is_hash(key: &[u8]) -> bool {
        key.first() == Some(&b'h')
    }
}

impl Read for Fixed {
    fn now(&self) -> u64 {
        1_000_000
    }
    fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError> {
        let kind = if Self::is_hash(key) { Kind::Hash } else { Kind::String };
        Ok(Some(KeyInfo { kind, deadline: None, version: 1, len: self.string.len() }))
    }
    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        let value = if Self::is_hash(key) {
            Value::Collection(Collection { id: CollectionId(1), kind: Kind::Hash, meta: self.meta.clone() })
        } else {
            Value::String(self.string.clone())
        };
        Ok(Some(KeyValue { value, deadline: None, version: 1 }))
    }
    fn len(&self) -> Result<u64, StoreError> {
        Ok(1)
    }
    fn keys(&self, _: Option<&[u8]>, _: &mut VisitKeys<'_>) -> Result<(), StoreError> {
        Ok(())
    }
    fn part(&self, _: CollectionId, _: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(Some(self.string.clone()))
    }
    fn parts(
        &self,
        _: CollectionId,
        _: Bound<&[u8]>,
        _: Bound<&[u8]>,
        _: bool,
        _: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        Ok(())
    }
}

impl<'a> Store<'a> for Fixed {
    fn put(&mut self, key: &'a [u8], value: NewValue<'a>, deadline: Option<u64>) -> Result<(), StoreError> {
        black_box((key, value, deadline));
        Ok(())
    }
    fn put_meta(&mut self, key: &'a [u8], collection: Collection) -> Result<(), StoreError> {
        black_box((key, collection));
        Ok(())
    }
    fn set_deadline(&mut self, key: &'a [u8], deadline: Option<u64>) -> Result<(), StoreError> {
        black_box((key, deadline));
        Ok(())
    }
    fn delete(&mut self, key: &'a [u8]) -> Result<bool, StoreError> {
        black_box(key);
        Ok(true)
    }
    fn rename(&mut self, from: &'a [u8], to: &'a [u8]) -> Result<(), StoreError> {
        black_box((from, to));
        Ok(())
    }
    fn new_collection(&mut self) -> Result<CollectionId, StoreError> {
        Ok(CollectionId(2))
    }
    fn put_part(&mut self, id: CollectionId, name: &[u8], value: &[u8]) -> Result<(), StoreError> {
        black_box((id, name, value));
        Ok(())
    }
    fn delete_part(&mut self, id: CollectionId, name: &[u8]) -> Result<(), StoreError> {
        black_box((id, name));
        Ok(())
    }
    fn clear(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn cpu_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn measure(name: &str, rounds: usize, mut act: impl FnMut()) {
    let begin = cpu_nanos();
    for _ in 0..rounds {
        act();
    }
    println!("{name:<28} {:>6.0} ns", (cpu_nanos() - begin) as f64 / rounds as f64);
}

fn main() {
    let mut store = Fixed { string: Bytes::from(b"12345".to_vec()), meta: Bytes::from(9_u64.to_le_bytes().to_vec()) };
    // Holding clones shares the buffers, as cached values are shared. The first clone of an unshared buffer allocates.
    let _shared = (store.string.clone(), store.meta.clone());
    let value = [b'v'; 64];
    println!("{ROUNDS} rounds, values of 5 to 64 bytes, CPU time of one thread");
    measure("find", ROUNDS, || {
        black_box(find(black_box(b"INCRBYFLOAT")));
    });
    let cases: &[&[&[u8]]] = &[
        &[b"GET", b"key:000000000001"],
        &[b"SET", b"key:000000000001", &value],
        &[b"SET", b"key:000000000001", &value, b"EX", b"100", b"NX"],
        &[b"INCR", b"key:000000000001"],
        &[b"INCRBYFLOAT", b"key:000000000001", b"0.1"],
        &[b"EXPIRE", b"key:000000000001", b"100"],
        &[b"MGET", b"key:1", b"key:2", b"key:3", b"key:4", b"key:5", b"key:6", b"key:7", b"key:8"],
        &[b"HGET", b"hash:1", b"field"],
        &[b"HSET", b"hash:1", b"field", &value],
    ];
    let mut bytes = Vec::with_capacity(4096);
    for args in cases {
        let name = format!("{} ({} arguments)", args[0].escape_ascii(), args.len());
        measure(&name, ROUNDS, || {
            let reply = execute(&mut store, black_box(args)).expect("it does not fail");
            bytes.clear();
            Writer::new(&mut bytes, Protocol::Resp2).reply(&reply);
            black_box(&bytes);
        });
    }
}
