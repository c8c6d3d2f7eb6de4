//! The machine compared with plain collections, with moves and reopens between the entries.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
};

use thalweg_state::{
    keyspaces::{Counts, Fetch, Item, ScanRange, StoredRef, StoredValue},
    machine::{LocalOutcome, MachineOptions, StreamReadError},
};
use thalweg_store::{Backend, Direction};
use thalweg_types::{BlobRef, Generation, KeyspaceId, Offset, Revision, SpaceTime, StreamId, command::MoveTarget};

use crate::{
    support::{Bench, apply, frame},
    workload::{Model, ModelStream, Rng, for_seeds},
    workload_kv::is_expected,
};

const OPTIONS: MachineOptions = MachineOptions { inline_value_bytes: 24 };

#[test]
fn every_read_is_what_plain_collections_say() {
    for_seeds(40, |seed| {
        let mut rng = Rng(seed);
        let mut bench = Bench::new(OPTIONS);
        let mut model = Model::default();
        for _ in 0..400 {
            step(&mut bench, &mut model, &mut rng);
            match rng.below(40) {
                0 => bench.reopen(),
                1..8 => check_everything(&bench, &model, &mut rng),
                _ => {}
            }
        }
        check_everything(&bench, &model, &mut rng);
        assert!(model.revision > 100 && model.stream_count() > 5, "the workload does something");
    });
}

/// Applies one entry, or one node-local record.
pub fn step(bench: &mut Bench, model: &mut Model, rng: &mut Rng) {
    match rng.below(10) {
        0 => move_batch(bench, model, rng),
        1 => move_value(bench, model, rng),
        2 => {
            let (target, expected) = model.reclaim(rng);
            assert_eq!(bench.local(&target), expected);
        }
        3 if rng.below(4) == 0 => {
            let record = bench.log.skip(SpaceTime(model.time));
            apply(&bench.machine, &record);
        }
        _ => {
            let (time, commands) = model.entry(rng);
            let (commands, expected): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
            let record = bench.log.entry(&frame(&commands), time);
            let found = apply(&bench.machine, &record).0;
            let same = found.len() == expected.len() && found.iter().zip(&expected).all(|(a, b)| is_expected(a, b));
            assert!(same, "{found:#?}\n--- expected\n{expected:#?}");
        }
    }
    let applied = bench.machine.applied();
    assert_eq!(bench.backend.applied().unwrap_or_default(), applied);
    assert_eq!((applied.revision, applied.time), (Revision(model.revision), SpaceTime(model.time)));
}

fn move_batch(bench: &mut Bench, model: &Model, rng: &mut Rng) {
    let Some((&id, stream)) = model.streams.iter().nth(rng.below(4) as usize) else { return };
    let Some(batch) = stream.readable().nth(rng.below(3) as usize).filter(|_| stream.live) else { return };
    let first = Offset(batch.first);
    let from = Offset(batch.first.max(stream.start));
    let blob = bench.machine.batches_from(StreamId(id), from, 1, 0).unwrap().batches[0].blob;
    assert!(bench.machine.is_batch_live(StreamId(id), first, &blob).unwrap());
    let target = MoveTarget::Batch { stream: StreamId(id), first };
    let bytes = batch.bytes.clone();
    move_twice(bench, &blob, &target, &bytes);
    assert!(!bench.machine.is_batch_live(StreamId(id), first, &blob).unwrap());
}

fn move_value(bench: &mut Bench, model: &Model, rng: &mut Rng) {
    let nth = rng.below(model.data.len() as u64 + 1) as usize;
    let Some(((keyspace, key), (_, value))) = model.data.iter().nth(nth) else { return };
    let keyspace = KeyspaceId(*keyspace);
    let stored = bench.machine.get(keyspace, key).unwrap().unwrap().value;
    let StoredValue::Blob(blob) = stored else { return };
    assert!(bench.machine.is_value_live(keyspace, key, &blob).unwrap());
    let target = MoveTarget::Value { keyspace, key };
    move_twice(bench, &blob, &target, value);
    assert!(!bench.machine.is_value_live(keyspace, key, &blob).unwrap());
}

/// Moves the same bytes twice. The second move is void, because the pointer has changed.
fn move_twice(bench: &mut Bench, from: &BlobRef, target: &MoveTarget<'_>, bytes: &[u8]) {
    for expected in [LocalOutcome::Applied, LocalOutcome::Void] {
        let record = bench.log.moved(from, target, bytes);
        assert_eq!(apply(&bench.machine, &record).1, Some(expected));
    }
}

pub fn check_everything(bench: &Bench, model: &Model, rng: &mut Rng) {
    check_catalog(bench, model);
    check_keys(bench, model, rng);
    for (&id, stream) in &model.streams {
        if stream.live {
            check_stream(bench, StreamId(id), stream, rng);
        } else {
            let read = bench.machine.batches_from(StreamId(id), Offset(0), 1, 1);
            assert!(matches!(read, Err(StreamReadError::NoSuchStream(_))));
        }
    }
    check_maintenance(bench, model, rng);
    check_liveness(bench, model);
}

fn check_catalog(bench: &Bench, model: &Model) {
    let keyspaces: Vec<_> = bench.machine.keyspaces().into_iter().map(|(_, row)| row.name.to_string()).collect();
    assert_eq!(keyspaces, model.keyspaces.values().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    for (&id, (_, exact)) in &model.keyspaces {
        let counts = bench.machine.keyspace_counts(KeyspaceId(id));
        assert_eq!(counts.is_some(), *exact);
        if let Some(counts) = counts {
            let held: Vec<_> = model.data.iter().filter(|((of, _), _)| *of == id).collect();
            let bytes: usize = held.iter().map(|((_, key), (_, value))| key.len() + value.len()).sum();
            let held = Counts { keys: held.len() as u64, bytes: bytes as u64, collections: 0 };
            if bench.machine.has_clears_of(KeyspaceId(id)) {
                assert!(counts.keys >= held.keys && counts.bytes >= held.bytes, "{counts:?}, {held:?}");
            } else {
                assert_eq!(counts, held);
            }
        }
    }
    let live: Vec<_> = model.streams.iter().filter(|(_, stream)| stream.live).collect();
    let found = bench.machine.streams();
    assert_eq!((found.len(), bench.machine.stream_count()), (live.len(), live.len()));
    for (info, (&id, stream)) in found.iter().zip(live) {
        assert_eq!((info.id, &*info.name, info.config), (StreamId(id), &*stream.name, stream.config));
        let bytes: usize = stream.readable().map(|batch| batch.bytes.len()).sum();
        assert_eq!((info.start, info.next), (Offset(stream.start), Offset(stream.next)));
        assert_eq!((info.bytes, info.last_time), (bytes as u64, SpaceTime(stream.last_time)));
        assert_eq!(bench.machine.stream_id(&stream.name), Some(StreamId(id)));
        assert_eq!(bench.machine.stream(StreamId(id)).as_ref(), Some(info));
    }
}

fn resolve(bench: &Bench, value: StoredRef<'_>) -> Vec<u8> {
    match value {
        StoredRef::Inline(bytes) => {
            assert!(bytes.len() <= OPTIONS.inline_value_bytes);
            bytes.to_vec()
        }
        StoredRef::Blob(blob) => {
            assert!(blob.len as usize > OPTIONS.inline_value_bytes);
            bench.log.read(&blob).to_vec()
        }
        StoredRef::Collection(_) => panic!("the workload has no Redis commands"),
    }
}

fn check_keys(bench: &Bench, model: &Model, rng: &mut Rng) {
    let snapshot = bench.machine.read_view();
    assert_eq!(snapshot.applied(), bench.machine.applied());
    for keyspace in 0..=model.keyspaces.keys().last().copied().unwrap_or_default() + 1 {
        let key = Model::random_key(rng);
        let got = bench.machine.get(KeyspaceId(keyspace), &key).unwrap();
        assert_eq!(got, snapshot.get(KeyspaceId(keyspace), &key).unwrap());
        let expected = model.data.get(&(keyspace, key)).cloned();
        let got = got.map(|stored| (stored.revision.0, resolve(bench, stored.value.as_ref())));
        assert_eq!(got, expected);
        check_scan(bench, model, rng, keyspace);
    }
}

fn random_bound<'a>(rng: &mut Rng, key: &'a [u8]) -> Bound<&'a [u8]> {
    [Bound::Unbounded, Bound::Included(key), Bound::Excluded(key)][rng.below(3) as usize]
}

fn check_scan(bench: &Bench, model: &Model, rng: &mut Rng, keyspace: u32) {
    let [mut prefix, start, end] = [(); 3].map(|()| Model::random_key(rng));
    prefix.truncate(rng.below(3) as usize);
    let range = ScanRange {
        prefix: &prefix,
        start: random_bound(rng, &start),
        end: random_bound(rng, &end),
        direction: [Direction::Forward, Direction::Reverse][rng.below(2) as usize],
        limit: [0, 1, 3, usize::MAX][rng.below(4) as usize],
        fetch: [Fetch::Values, Fetch::KeysOnly][rng.below(2) as usize],
        ..ScanRange::default()
    };
    let mut expected: Vec<_> = model
        .data
        .iter()
        .filter(|((of, key), _)| *of == keyspace && key.starts_with(&prefix))
        .filter(|((_, key), _)| match range.start {
            Bound::Unbounded => true,
            Bound::Included(start) => &key[..] >= start,
            Bound::Excluded(start) => &key[..] > start,
        })
        .filter(|((_, key), _)| match range.end {
            Bound::Unbounded => true,
            Bound::Included(end) => &key[..] <= end,
            Bound::Excluded(end) => &key[..] < end,
        })
        .map(|((_, key), (revision, value))| {
            (key.clone(), *revision, (range.fetch == Fetch::Values).then(|| value.clone()))
        })
        .collect();
    if range.direction == Direction::Reverse {
        expected.reverse();
    }
    expected.truncate(range.limit);
    let mut found = Vec::new();
    let visit = &mut |item: Item<'_>| {
        found.push((item.key.to_vec(), item.revision.0, item.value.map(|value| resolve(bench, value))));
        ControlFlow::Continue(())
    };
    bench.machine.read_view().scan(KeyspaceId(keyspace), &range, visit).unwrap();
    assert_eq!(found, expected, "{range:?}");
}

fn check_stream(bench: &Bench, id: StreamId, stream: &ModelStream, rng: &mut Rng) {
    for from in [stream.start, stream.next, rng.below(stream.next + 2)] {
        let max_batches = [0, 1, 2, usize::MAX][rng.below(4) as usize];
        let max_bytes = [0, 50, u64::MAX][rng.below(3) as usize];
        let found = bench.machine.batches_from(id, Offset(from), max_batches, max_bytes);
        if from < stream.start {
            assert!(matches!(found, Err(StreamReadError::Trimmed { start }) if start.0 == stream.start));
            continue;
        }
        if from > stream.next {
            assert!(matches!(found, Err(StreamReadError::BeyondEnd { next }) if next.0 == stream.next));
            continue;
        }
        let found = found.unwrap();
        assert_eq!((found.start, found.next), (Offset(stream.start), Offset(stream.next)));
        let mut bytes = 0;
        let expected = stream.batches.iter().filter(|batch| batch.end() > from).take(max_batches).enumerate();
        let expected = expected.take_while(|(nth, batch)| {
            bytes += batch.bytes.len() as u64;
            *nth == 0 || bytes <= max_bytes
        });
        let expected: Vec<_> = expected.map(|(_, batch)| batch).collect();
        assert_eq!(found.batches.len(), expected.len());
        for (found, expected) in found.batches.iter().zip(expected) {
            assert_eq!((found.first.0, u64::from(found.count)), (expected.first, expected.count));
            assert_eq!((found.time.0, &bench.log.read(&found.blob)[..]), (expected.time, &expected.bytes[..]));
        }
    }
    let time = rng.below(stream.last_time + 2);
    let expected = stream.readable().find(|batch| batch.time >= time).map_or(stream.next, |batch| batch.first);
    let found = bench.machine.offset_at_or_after(id, SpaceTime(time)).unwrap();
    assert_eq!(found.0, expected.max(stream.start));
}

fn check_maintenance(bench: &Bench, model: &Model, rng: &mut Rng) {
    let reclaimable = model.streams.iter().filter(|(_, stream)| stream.has_dead() || !stream.live);
    assert_eq!(bench.machine.reclaim_due(), reclaimable.map(|(&id, _)| StreamId(id)).collect::<Vec<_>>());
    let now = model.time + rng.below(1500);
    let mut expected = Vec::new();
    for (&id, stream) in model.streams.iter().filter(|(_, stream)| stream.live) {
        let mut start = stream.start;
        if let Some(max) = stream.config.max_records {
            start = start.max(stream.next.saturating_sub(max));
        }
        let mut kept: Vec<_> = stream.readable().collect();
        while let Some(oldest) = kept.first() {
            let bytes: usize = kept.iter().map(|batch| batch.bytes.len()).sum();
            let age = stream.config.max_age.map(|age| now.saturating_sub(age.as_micros() as u64));
            let too_much = stream.config.max_bytes.is_some_and(|max| bytes as u64 > max);
            if !too_much && age.is_none_or(|oldest_kept| oldest.time >= oldest_kept) {
                break;
            }
            start = start.max(oldest.end());
            kept.remove(0);
        }
        if start > stream.start {
            expected.push((StreamId(id), Offset(start)));
        }
    }
    assert_eq!(bench.machine.retention_due(SpaceTime(now)).unwrap(), expected);
}

/// Checks that stream bytes are exact and value bytes an upper bound, both compared with the map itself.
fn check_liveness(bench: &Bench, model: &Model) {
    let mut exact: BTreeMap<Generation, [u64; 4]> = BTreeMap::new();
    for (key, row) in bench.backend.dump() {
        let (blob, at) = match (key[0], row[0]) {
            (0x11, _) => (BlobRef::decode(&row[..20]).unwrap(), 0),
            (0x10, 1) => (BlobRef::decode(&row[9..]).unwrap(), 2),
            _ => continue,
        };
        let sums = exact.entry(blob.generation).or_default();
        sums[at] += u64::from(blob.len);
        sums[at + 1] += 1;
    }
    let indexed: usize = model.streams.values().map(|stream| stream.batches.len()).sum();
    assert_eq!(exact.values().map(|sums| sums[1]).sum::<u64>(), indexed as u64);
    let rows: BTreeMap<_, _> = bench.machine.liveness().into_iter().collect();
    assert!(exact.keys().all(|generation| rows.contains_key(generation)));
    for (generation, row) in rows {
        let [stream_bytes, batches, value_bytes, values] = exact.get(&generation).copied().unwrap_or_default();
        assert_eq!((row.stream_bytes, row.batches), (stream_bytes, batches));
        assert!(row.value_bytes >= value_bytes && row.values >= values);
    }
}
