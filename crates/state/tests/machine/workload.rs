//! Random entries, and plain collections that predict their outcomes.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use thalweg_state::machine::LocalOutcome;
use thalweg_types::{
    KeyspaceId, Offset, Revision, SpaceTime, StreamId,
    command::{self, AppendedAt, CommitBuilder, Expect, KeyspaceConfig, MoveTarget, Outcome, StreamConfig},
    record::RecordBatch,
};

use crate::support::command;

/// The SplitMix64 random generator.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Runs a randomised test over its seeds, or over the one in `THALWEG_SEED`, and prints each.
pub fn for_seeds(count: u64, run: impl Fn(u64)) {
    for_each_seed(count, |seed| {
        eprintln!("THALWEG_SEED={seed}");
        run(seed);
    });
}

/// Runs a randomised test that reports failing seeds itself.
pub fn for_each_seed(count: u64, mut run: impl FnMut(u64)) {
    let given = std::env::var("THALWEG_SEED").ok().map(|seed| seed.parse().expect("THALWEG_SEED is a number"));
    given.map_or(1..count + 1, |seed: u64| seed..seed + 1).for_each(&mut run);
}

#[derive(Clone, Debug)]
pub struct ModelBatch {
    pub first: u64,
    pub count: u64,
    pub time: u64,
    pub bytes: Vec<u8>,
}

impl ModelBatch {
    pub fn end(&self) -> u64 {
        self.first + self.count
    }
}

#[derive(Clone, Debug)]
pub struct ModelStream {
    pub name: String,
    pub config: StreamConfig,
    pub live: bool,
    pub start: u64,
    pub next: u64,
    pub last_time: u64,
    /// Batches that are not reclaimed.
    pub batches: VecDeque<ModelBatch>,
}

impl ModelStream {
    pub fn readable(&self) -> impl Iterator<Item = &ModelBatch> {
        self.batches.iter().filter(|batch| batch.end() > self.start)
    }

    fn is_dead(&self, batch: &ModelBatch) -> bool {
        batch.end() <= self.start
    }

    pub fn has_dead(&self) -> bool {
        self.batches.front().is_some_and(|batch| self.is_dead(batch))
    }
}

/// The expected content of the machine.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Name of each live keyspace, and true if it counts exactly.
    pub keyspaces: BTreeMap<u32, (String, bool)>,
    next_keyspace: u32,
    pub data: BTreeMap<(u32, Vec<u8>), (u64, Vec<u8>)>,
    pub streams: BTreeMap<u32, ModelStream>,
    next_stream: u32,
    pub revision: u64,
    pub time: u64,
}

impl Model {
    /// Returns a random entry at a random later time: its commands, and their outcomes.
    pub fn entry(&mut self, rng: &mut Rng) -> (SpaceTime, Vec<(Vec<u8>, Outcome)>) {
        self.time += rng.below(20);
        let commands = (0..rng.below(6)).map(|_| self.command(rng)).collect();
        (SpaceTime(self.time), commands)
    }

    fn command(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        match rng.below(40) {
            30..37 => self.transaction(rng),
            37 => self.bulk(rng),
            38 if rng.below(3) == 0 => self.drop_keyspace(rng),
            38 | 39 => self.sweep(rng),
            0 => self.create_keyspace(rng),
            1 | 2 => self.create_stream(rng),
            3 => self.configure(rng),
            4 => self.delete_stream(rng),
            5..8 => self.trim(rng),
            _ => self.commit(rng),
        }
    }

    fn create_keyspace(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let name = format!("ks{}", rng.below(4));
        let exact_counts = rng.below(2) == 0;
        let config = KeyspaceConfig { exact_counts, ..KeyspaceConfig::default() };
        let command = command(|out| command::encode_create_keyspace(out, &name, &config).unwrap());
        if let Some((&id, _)) = self.keyspaces.iter().find(|(_, (other, _))| *other == name) {
            return (command, Outcome::Keyspace { id: KeyspaceId(id), created: false });
        }
        self.next_keyspace += 1;
        self.keyspaces.insert(self.next_keyspace, (name, exact_counts));
        (command, Outcome::Keyspace { id: KeyspaceId(self.next_keyspace), created: true })
    }

    /// Returns a commit of so many keys with one prefix that they are not deleted immediately.
    fn bulk(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let keyspace = self.random_keyspace(rng);
        let mut builder = CommitBuilder::new();
        let mut after = self.clone();
        after.revision += 1;
        for number in 0..100 {
            let len = [3, 30][rng.below(2) as usize];
            let (key, value) = (vec![b'b', number], rng.bytes(len));
            builder.put(KeyspaceId(keyspace), &key, &value).unwrap();
            after.data.insert((keyspace, key), (after.revision, value));
        }
        let command = command(|out| builder.encode(out));
        if !self.knows(keyspace) {
            return (command, Outcome::NoSuchKeyspace(KeyspaceId(keyspace)));
        }
        *self = after;
        (command, Outcome::Committed { revision: Revision(self.revision), appends: vec![] })
    }

    fn random_config(rng: &mut Rng) -> StreamConfig {
        let mut limit = |max| (rng.below(2) == 0).then(|| rng.below(max));
        let max_age = limit(1000).map(Duration::from_micros);
        StreamConfig { max_age, max_bytes: limit(400), max_records: limit(30), ..StreamConfig::default() }
    }

    fn create_stream(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let name = format!("stream{}", rng.below(5));
        let config = Self::random_config(rng);
        let command = command(|out| command::encode_create_stream(out, &name, &config).unwrap());
        if let Some((&id, _)) = self.streams.iter().find(|(_, stream)| stream.live && stream.name == name) {
            return (command, Outcome::Stream { id: StreamId(id), created: false });
        }
        self.next_stream += 1;
        let batches = VecDeque::new();
        let stream = ModelStream { name, config, live: true, start: 0, next: 0, last_time: 0, batches };
        self.streams.insert(self.next_stream, stream);
        (command, Outcome::Stream { id: StreamId(self.next_stream), created: true })
    }

    /// Returns a stream id, mostly of an existing one.
    pub fn random_stream(&self, rng: &mut Rng) -> u32 {
        let nth = rng.below(self.streams.len() as u64 + 1) as usize;
        let stray = rng.below(u64::from(self.next_stream) + 2) as u32;
        self.streams.keys().nth(nth).copied().unwrap_or(stray)
    }

    /// Returns the number of streams created.
    pub fn stream_count(&self) -> u32 {
        self.next_stream
    }

    pub fn live(&mut self, id: u32) -> Option<&mut ModelStream> {
        self.streams.get_mut(&id).filter(|stream| stream.live)
    }

    fn configure(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let id = self.random_stream(rng);
        let config = Self::random_config(rng);
        let outcome = match self.live(id) {
            Some(stream) => {
                stream.config = config;
                Outcome::Done
            }
            None => Outcome::NoSuchStream(StreamId(id)),
        };
        (command(|out| command::encode_configure_stream(out, StreamId(id), &config)), outcome)
    }

    fn delete_stream(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let id = self.random_stream(rng);
        let outcome = match self.live(id) {
            Some(stream) => {
                stream.live = false;
                stream.start = stream.next;
                stream.batches.drain(..stream.batches.len().min(64));
                if stream.batches.is_empty() {
                    self.streams.remove(&id);
                }
                Outcome::Done
            }
            None => Outcome::NoSuchStream(StreamId(id)),
        };
        (command(|out| command::encode_delete_stream(out, StreamId(id))), outcome)
    }

    fn trim(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let id = self.random_stream(rng);
        let mut before = rng.below(10);
        let outcome = match self.live(id) {
            Some(stream) => {
                before += stream.start;
                stream.start = stream.start.max(before.min(stream.next));
                Outcome::Done
            }
            None => Outcome::NoSuchStream(StreamId(id)),
        };
        (command(|out| command::encode_trim_stream(out, StreamId(id), Offset(before))), outcome)
    }

    /// Returns a node-local record that deletes index entries, and its expected result.
    pub fn reclaim(&mut self, rng: &mut Rng) -> (MoveTarget<'static>, LocalOutcome) {
        let id = self.random_stream(rng);
        let max = rng.below(5) as u32;
        let moved = match self.streams.get_mut(&id) {
            Some(stream) => {
                let mut rows = 0;
                while rows < max && stream.has_dead() {
                    stream.batches.pop_front();
                    rows += 1;
                }
                let more = stream.has_dead();
                if !more && !stream.live {
                    self.streams.remove(&id);
                }
                LocalOutcome::SegmentForgotten { rows, more }
            }
            None => LocalOutcome::Void,
        };
        (MoveTarget::Reclaimed { stream: StreamId(id), max }, moved)
    }

    /// Returns a key. Keys collide often, and one of them is empty.
    pub fn random_key(rng: &mut Rng) -> Vec<u8> {
        let len = rng.below(4) as usize;
        (0..len).map(|_| [0, b'a', b'b', 0xff][rng.below(4) as usize]).collect()
    }

    pub fn random_keyspace(&self, rng: &mut Rng) -> u32 {
        let known = self.keyspaces.len() as u64;
        if known == 0 || rng.below(50) == 0 {
            return rng.below(u64::from(self.next_keyspace) + 2) as u32;
        }
        *self.keyspaces.keys().nth(rng.below(known) as usize).unwrap()
    }

    pub fn knows(&self, keyspace: u32) -> bool {
        self.keyspaces.contains_key(&keyspace)
    }

    fn commit(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let mut builder = CommitBuilder::new();
        let mut refused = None;
        for number in 0..[0, 0, 0, 1, 1, 2][rng.below(6) as usize] {
            let expect = &mut |keyspace, key: &[u8], expect: Expect<'_>| {
                builder.expect(keyspace, key, expect).unwrap();
            };
            let failure = self.condition(rng, expect, number);
            refused = refused.or(failure);
        }
        let mut after = self.clone();
        after.revision += 1;
        let mut appends = Vec::new();
        for _ in 0..rng.below(4) {
            let failure = after.write(rng, &mut builder, &mut appends);
            refused = refused.or(failure);
        }
        let command = command(|out| builder.encode(out));
        if let Some(refused) = refused {
            return (command, refused);
        }
        *self = after;
        (command, Outcome::Committed { revision: Revision(self.revision), appends })
    }

    pub fn condition(
        &self,
        rng: &mut Rng,
        add: &mut dyn FnMut(KeyspaceId, &[u8], Expect<'_>),
        number: u32,
    ) -> Option<Outcome> {
        let keyspace = self.random_keyspace(rng);
        let key = Self::random_key(rng);
        let stored = self.data.get(&(keyspace, key.clone()));
        let actual = stored.map(|(revision, _)| *revision);
        let off = u64::from(rng.below(4) == 0);
        let at = actual.unwrap_or(1) + off;
        let value = stored.filter(|_| off == 0).map_or(b"another".to_vec(), |(_, value)| value.clone());
        let (expect, holds) = match rng.below(7) {
            0 => (Expect::Absent, actual.is_none()),
            1 => (Expect::Present, actual.is_some()),
            2 => (Expect::Value(&value), stored.is_some_and(|(_, stored)| *stored == value)),
            3 => (Expect::Before(Revision(at)), actual.is_none_or(|actual| actual < at)),
            4 => (Expect::After(Revision(at - 1)), actual.is_some_and(|actual| actual > at - 1)),
            _ => (Expect::Revision(Revision(at)), actual == Some(at)),
        };
        add(KeyspaceId(keyspace), &key, expect);
        if !self.knows(keyspace) {
            return Some(Outcome::NoSuchKeyspace(KeyspaceId(keyspace)));
        }
        (!holds).then(|| Outcome::ConditionFailed { condition: number, actual: actual.map(Revision) })
    }

    fn write(&mut self, rng: &mut Rng, builder: &mut CommitBuilder, appends: &mut Vec<AppendedAt>) -> Option<Outcome> {
        if rng.below(2) == 0 {
            return self.append(rng, builder, appends);
        }
        let keyspace = self.random_keyspace(rng);
        let key = Self::random_key(rng);
        let known = self.knows(keyspace);
        if rng.below(3) == 0 {
            builder.delete(KeyspaceId(keyspace), &key).unwrap();
            self.data.remove(&(keyspace, key));
        } else {
            let len = [0, 1, 10, 40][rng.below(4) as usize];
            let value = rng.bytes(len);
            builder.put(KeyspaceId(keyspace), &key, &value).unwrap();
            self.data.insert((keyspace, key), (self.revision, value));
        }
        (!known).then_some(Outcome::NoSuchKeyspace(KeyspaceId(keyspace)))
    }

    fn append(&mut self, rng: &mut Rng, builder: &mut CommitBuilder, appends: &mut Vec<AppendedAt>) -> Option<Outcome> {
        let id = self.random_stream(rng);
        let mut batch = RecordBatch::new();
        for _ in 0..rng.below(5) {
            let len = rng.below(12);
            batch.push_payload(&rng.bytes(len)).unwrap();
        }
        let wrong = rng.below(10) == 0;
        let conditional = rng.below(3) == 0;
        let Some(stream) = self.live(id) else {
            builder.append(StreamId(id), None, &batch).unwrap();
            return Some(Outcome::NoSuchStream(StreamId(id)));
        };
        let next = stream.next;
        let expected = conditional.then(|| Offset(next + u64::from(wrong)));
        builder.append(StreamId(id), expected, &batch).unwrap();
        appends.push(AppendedAt { stream: StreamId(id), first: Offset(next), count: batch.count() });
        self.model_append(id, &batch);
        (conditional && wrong).then_some(Outcome::OffsetConflict { stream: StreamId(id), next: Offset(next) })
    }

    pub fn model_append(&mut self, id: u32, batch: &RecordBatch) {
        let time = self.time;
        let Some(stream) = self.live(id).filter(|_| batch.count() > 0) else { return };
        let (first, count) = (stream.next, u64::from(batch.count()));
        stream.batches.push_back(ModelBatch { first, count, time, bytes: batch.bytes().to_vec() });
        stream.next += count;
        stream.last_time = time;
    }
}
