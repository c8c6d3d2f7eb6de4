//! Random transactions, dropped keyspaces and sweeps, and their expected outcomes.

use bytes::Bytes;
use thalweg_types::{
    KeyspaceId, Offset, Revision, StreamId,
    command::{
        self, AppendedAt, FailedCondition, OperationError, OperationResult, Operations, Outcome, ReadValue,
        ScanOperation, ScanPage, ScannedItem, Transacted, TransactionBuilder,
    },
    record::RecordBatch,
};

use crate::{
    support::command,
    workload::{Model, Rng},
};

/// Placeholder for an outcome that counts rows invisible to readers: any number is correct.
pub const SOME_ROWS: Outcome = Outcome::Reclaimed { entries: u32::MAX, more: false };

/// Returns true if an outcome is the expected one. The number of keys with a prefix is reported only for few rows,
/// and the number of rows that a sweep finds depends on rows invisible to readers.
pub fn is_expected(found: &Outcome, expected: &Outcome) -> bool {
    if *expected == SOME_ROWS {
        return matches!(found, Outcome::Reclaimed { .. });
    }
    let (Outcome::Transacted(found), Outcome::Transacted(expected)) = (found, expected) else {
        return found == expected;
    };
    let mut expected = expected.clone();
    for (expected, found) in expected.results.iter_mut().zip(&found.results) {
        match (expected, found) {
            (expected, OperationResult::PrefixDeleted { keys: None }) => *expected = found.clone(),
            // The position to continue from may be a deleted key after the last pair.
            (OperationResult::Scanned(expected), OperationResult::Scanned(found))
                if expected.after.is_some() && found.after.is_some() =>
            {
                expected.after.clone_from(&found.after);
            }
            _ => {}
        }
    }
    *found == expected
}

impl Model {
    pub fn drop_keyspace(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let id = self.random_keyspace(rng);
        let command = command(|out| command::encode_drop_keyspace(out, KeyspaceId(id)));
        if self.keyspaces.remove(&id).is_none() {
            return (command, Outcome::NoSuchKeyspace(KeyspaceId(id)));
        }
        self.data.retain(|(keyspace, _), _| *keyspace != id);
        self.revision += 1;
        (command, Outcome::Dropped { revision: Revision(self.revision) })
    }

    pub fn sweep(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let max = rng.below(60) as u32;
        (command(|out| command::encode_sweep(out, max)), SOME_ROWS)
    }

    pub fn transaction(&mut self, rng: &mut Rng) -> (Vec<u8>, Outcome) {
        let mut builder = TransactionBuilder::new();
        let (mut failed, mut refused) = (None, None);
        for number in 0..rng.below(3) as u32 {
            let expect = &mut |keyspace, key: &[u8], expect: command::Expect<'_>| {
                builder.expect(keyspace, key, expect).unwrap();
            };
            match self.condition(rng, expect, number) {
                Some(Outcome::ConditionFailed { condition, actual }) => {
                    failed = failed.or(Some(FailedCondition { condition, actual }));
                }
                refusal => refused = refused.or(refusal),
            }
        }
        // Both lists are random; only the chosen one counts.
        let mut other = Operations::default();
        let mut unused = self.clone();
        for _ in 0..rng.below(3) {
            let _ = unused.operation(rng, &mut other, 0);
        }
        let mut after = self.clone();
        after.revision += 1;
        let mut chosen = Operations::default();
        let (mut results, mut wrote) = (Vec::new(), false);
        for number in 0..rng.below(5) as u32 {
            match after.operation(rng, &mut chosen, number) {
                Ok(result) => {
                    wrote |= !matches!(result, OperationResult::Got(_) | OperationResult::Scanned(_));
                    results.push(result);
                }
                Err(refusal) => {
                    refused = refused.or(Some(refusal));
                    break;
                }
            }
        }
        let (then, otherwise) = if failed.is_none() { (chosen, other) } else { (other, chosen) };
        (*builder.then(), *builder.otherwise()) = (then, otherwise);
        let command = command(|out| builder.encode(out).unwrap());
        if let Some(refused) = refused {
            return (command, refused);
        }
        if wrote {
            *self = after;
        }
        let revision = Revision(self.revision);
        (command, Outcome::Transacted(Box::new(Transacted { failed, revision, wrote, results })))
    }

    fn operation(
        &mut self,
        rng: &mut Rng,
        operations: &mut Operations,
        number: u32,
    ) -> Result<OperationResult, Outcome> {
        let keyspace = self.random_keyspace(rng);
        let (key, id) = (Self::random_key(rng), KeyspaceId(keyspace));
        let kind = rng.below(8);
        if kind == 0 {
            return self.transaction_append(rng, operations);
        }
        let at = (keyspace, key.clone());
        let known = self.knows(keyspace);
        let result =
            match kind {
                1 => {
                    let len = [0, 1, 10, 40][rng.below(4) as usize];
                    let value = rng.bytes(len);
                    operations.put(id, &key, &value).unwrap();
                    self.data.insert(at, (self.revision, value));
                    OperationResult::Put
                }
                2 => {
                    operations.delete(id, &key).unwrap();
                    OperationResult::Deleted { existed: self.data.remove(&at).is_some() }
                }
                3 => {
                    operations.get(id, &key).unwrap();
                    OperationResult::Got(self.data.get(&at).map(|(revision, value)| ReadValue {
                        revision: Revision(*revision),
                        value: value.clone().into(),
                    }))
                }
                4 => OperationResult::Scanned(self.transaction_scan(rng, operations, keyspace)),
                5 => {
                    let mut prefix = key;
                    prefix.truncate(rng.below(3) as usize);
                    operations.delete_prefix(id, &prefix).unwrap();
                    let before = self.data.len();
                    self.data.retain(|(of, key), _| *of != keyspace || !key.starts_with(&prefix));
                    OperationResult::PrefixDeleted { keys: Some((before - self.data.len()) as u64) }
                }
                _ => {
                    let delta = [1, -7, i64::MAX][rng.below(3) as usize];
                    operations.add(id, &key, delta).unwrap();
                    if !known {
                        return Err(Outcome::NoSuchKeyspace(id));
                    }
                    let failed = |error| Outcome::OperationFailed { operation: number, error };
                    let value = self.data.get(&at).map_or(Some(0), |(_, value)| Self::number(value));
                    let value = value.ok_or(failed(OperationError::NotANumber))?;
                    let sum = value.checked_add(delta).ok_or(failed(OperationError::Overflow { value, delta }))?;
                    self.data.insert(at, (self.revision, sum.to_string().into_bytes()));
                    OperationResult::Added { value: sum }
                }
            };
        if known { Ok(result) } else { Err(Outcome::NoSuchKeyspace(id)) }
    }

    fn number(value: &[u8]) -> Option<i64> {
        let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
        (number.to_string().as_bytes() == value).then_some(number)
    }

    fn transaction_scan(&self, rng: &mut Rng, operations: &mut Operations, keyspace: u32) -> ScanPage {
        let [mut prefix, start, end] = [(); 3].map(|()| Self::random_key(rng));
        prefix.truncate(rng.below(2) as usize);
        let scan = ScanOperation {
            prefix: &prefix,
            start: (rng.below(3) == 0).then_some(&start[..]),
            end: (rng.below(3) == 0).then_some(&end[..]),
            reverse: rng.below(2) == 0,
            keys_only: rng.below(2) == 0,
            limit: [1, 3, 1000][rng.below(3) as usize],
        };
        operations.scan(KeyspaceId(keyspace), &scan).unwrap();
        let within = |key: &[u8]| {
            key.starts_with(&prefix)
                && scan.start.is_none_or(|start| key >= start)
                && scan.end.is_none_or(|end| key < end)
        };
        let pairs = self.data.iter().filter(|((of, key), _)| *of == keyspace && within(key));
        let mut items: Vec<_> = pairs
            .map(|((_, key), (revision, value))| ScannedItem {
                key: key.clone().into(),
                revision: Revision(*revision),
                value: (!scan.keys_only).then(|| value.clone().into()),
            })
            .collect();
        if scan.reverse {
            items.reverse();
        }
        let cut = items.len() > scan.limit as usize;
        items.truncate(scan.limit as usize);
        let after: Option<Bytes> = items.last().filter(|_| cut).map(|item| item.key.clone());
        ScanPage { items, after }
    }

    fn transaction_append(&mut self, rng: &mut Rng, operations: &mut Operations) -> Result<OperationResult, Outcome> {
        let id = self.random_stream(rng);
        let mut batch = RecordBatch::new();
        (0..rng.below(3)).for_each(|_| batch.push_payload(&rng.bytes(5)).unwrap());
        let wrong = rng.below(10) == 0;
        let Some(next) = self.live(id).map(|stream| stream.next) else {
            operations.append(StreamId(id), None, &batch).unwrap();
            return Err(Outcome::NoSuchStream(StreamId(id)));
        };
        let expected = (wrong || rng.below(3) == 0).then(|| Offset(next + u64::from(wrong)));
        operations.append(StreamId(id), expected, &batch).unwrap();
        if wrong {
            return Err(Outcome::OffsetConflict { stream: StreamId(id), next: Offset(next) });
        }
        self.model_append(id, &batch);
        let (stream, count) = (StreamId(id), batch.count());
        Ok(OperationResult::Appended(AppendedAt { stream, first: Offset(next), count }))
    }
}
