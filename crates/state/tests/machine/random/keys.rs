//! Commits and transactions.

use thalweg_types::{
    KeyspaceId, Revision,
    command::{
        CommitBuilder, Deadline, Expect, Operations, ScanOperation, TransactionBuilder, UnchangedRange, encode_delete,
        encode_drop_keyspace, encode_put, encode_put_until, encode_sweep,
    },
    limits::MAX_EAGER_PREFIX_ROWS,
};

use super::{
    Input,
    generator::{Encoded, Generator, Puts, deadline, group, key, keyspace, lease, max, prefix, stream, value},
    streams,
};

pub fn encode(generator: &mut Generator, input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
    match kind % 12 {
        0..3 => encode_put(out, keyspace(input), &generator.put_key(input), &value(input)),
        3 => put_until(generator, input, out),
        4 if generator.puts == Puts::Anywhere => encode_delete(out, keyspace(input), key(input)),
        5..9 => transaction(generator, input, out),
        _ => commit(generator, input, out),
    }
}

/// Encodes commands that hide many rows, and commands that remove them.
pub fn about_prefixes(generator: &mut Generator, input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
    match kind % 8 {
        0..3 => fill(generator, input, out),
        3..6 => {
            let mut transaction = TransactionBuilder::new();
            for _ in 0..=input.below(2) {
                transaction.then().delete_prefix(filled(input), if input.one_in(2) { prefix(input) } else { b"p" })?;
            }
            transaction.encode(out)
        }
        6 if input.one_in(6) => {
            encode_drop_keyspace(out, keyspace(input));
            Ok(())
        }
        _ => {
            encode_sweep(out, max(input));
            Ok(())
        }
    }
}

/// Returns a keyspace that may have many rows, mostly one with history.
fn filled(input: &mut Input<'_>) -> KeyspaceId {
    if input.one_in(2) { keyspace(input) } else { KeyspaceId(3) }
}

/// Encodes a commit of more keys with one prefix than are deleted immediately.
fn fill(generator: &mut Generator, input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    let (id, bytes, ends) = (filled(input), value(input), deadline(generator, input));
    let mut commit = CommitBuilder::new();
    for number in 0..MAX_EAGER_PREFIX_ROWS + 2 {
        let key = match generator.puts {
            Puts::Anywhere => format!("p{number:02}").into_bytes(),
            Puts::FreshKeys => [b"p", &generator.put_key(input)[..]].concat(),
        };
        match number % 16 {
            7 if ends != Deadline::Keep => commit.put_until(id, &key, &bytes, ends, None)?,
            _ => commit.put(id, &key, &bytes)?,
        };
    }
    commit.encode(out);
    Ok(())
}

pub fn put_until(generator: &mut Generator, input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    let (id, key, value) = (keyspace(input), generator.put_key(input), value(input));
    let (deadline, lease) = (deadline(generator, input), lease(input));
    generator.note_end(id, &key, deadline, lease);
    encode_put_until(out, id, &key, &value, deadline, lease)
}

fn expect(input: &mut Input<'_>, values: &mut Vec<Vec<u8>>) -> usize {
    values.push(value(input));
    values.len() - 1
}

fn with_expect(input: &mut Input<'_>, add: &mut dyn FnMut(&mut Input<'_>, Expect<'_>) -> Encoded) -> Encoded {
    let mut values = Vec::new();
    let revision = |input: &mut Input<'_>| Revision(u64::from(input.byte() % 64));
    let expect = match input.below(12) {
        0 | 1 => Expect::Absent,
        2 | 3 => Expect::Present,
        4 => Expect::Revision(revision(input)),
        5 => Expect::Before(revision(input)),
        6 => Expect::After(revision(input)),
        7 => {
            let end = input.one_in(2).then(|| key(input));
            let (since, count) = (revision(input), input.below(4) as u32);
            Expect::Unchanged(UnchangedRange { end, since, count })
        }
        8 | 9 => Expect::Any,
        _ => {
            let at = expect(input, &mut values);
            Expect::Value(&values[at])
        }
    };
    add(input, expect)
}

fn transaction(generator: &mut Generator, input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    let mut transaction = TransactionBuilder::new();
    for _ in 0..input.below(5).saturating_sub(2) {
        let (id, key) = (keyspace(input), key(input));
        with_expect(input, &mut |_, expect| transaction.expect(id, key, expect).map(|_| ()))?;
    }
    operations(generator, input, transaction.then())?;
    operations(generator, input, transaction.otherwise())?;
    transaction.encode(out)
}

fn operations(generator: &mut Generator, input: &mut Input<'_>, list: &mut Operations) -> Encoded {
    for _ in 0..=input.below(4) {
        operation(generator, input, list)?;
    }
    Ok(())
}

fn operation(generator: &mut Generator, input: &mut Input<'_>, list: &mut Operations) -> Encoded {
    let (id, replaces) = (keyspace(input), generator.puts == Puts::Anywhere);
    match input.below(14) {
        0 | 1 => list.put(id, &generator.put_key(input), &value(input))?,
        2 | 3 => {
            let (key, value) = (generator.put_key(input), value(input));
            let (deadline, lease) = (deadline(generator, input), lease(input));
            generator.note_end(id, &key, deadline, lease);
            list.put_until(id, &key, &value, deadline, lease)?
        }
        4 if replaces => list.touch(id, key(input), deadline(generator, input))?,
        5 if replaces => list.delete(id, key(input))?,
        6 if replaces => list.add(id, key(input), input.number().cast_signed())?,
        7 | 8 if replaces => list.delete_prefix(id, prefix(input))?,
        9 => scan(id, input, list)?,
        10 if generator.has_streams() => {
            let stream = stream(input);
            list.append(stream, streams::terms(generator, input, stream).expected, &streams::batch(input))?
        }
        11 if generator.has_streams() => list.ack(group(input), &streams::settlements(generator, input))?,
        12 if generator.has_streams() => {
            list.nack(group(input), streams::again(input), "why", &streams::settlements(generator, input))?
        }
        _ => list.get(id, key(input))?,
    };
    Ok(())
}

fn scan<'l>(
    id: KeyspaceId,
    input: &mut Input<'_>,
    list: &'l mut Operations,
) -> Result<&'l mut Operations, thalweg_types::command::CommandError> {
    let flags = input.byte();
    let bound = |flag: u8, input: &mut Input<'_>| (flags & flag != 0).then(|| key(input));
    let (start, end) = (bound(1, input), bound(2, input));
    let (reverse, keys_only) = (flags & 4 != 0, flags & 8 != 0);
    let limit = u32::from(input.byte());
    list.scan(id, &ScanOperation { prefix: prefix(input), start, end, reverse, keys_only, limit })
}

fn commit(generator: &mut Generator, input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    let mut commit = CommitBuilder::new();
    for _ in 0..input.below(5).saturating_sub(2) {
        let (id, key) = (keyspace(input), key(input));
        with_expect(input, &mut |_, expect| commit.expect(id, key, expect).map(|_| ()))?;
    }
    let replaces = generator.puts == Puts::Anywhere;
    for _ in 0..=input.below(4) {
        let id = keyspace(input);
        match input.below(10) {
            0 | 1 => {
                let (key, value) = (generator.put_key(input), value(input));
                let (deadline, lease) = (deadline(generator, input), lease(input));
                generator.note_end(id, &key, deadline, lease);
                commit.put_until(id, &key, &value, deadline, lease)?
            }
            2 if replaces => commit.touch(id, key(input), deadline(generator, input))?,
            3 if replaces => commit.delete(id, key(input))?,
            4 | 5 if generator.has_streams() => {
                let stream = stream(input);
                commit.append_with(stream, &streams::terms(generator, input, stream), &streams::batch(input))?
            }
            6 if generator.has_streams() => commit.ack(group(input), &streams::settlements(generator, input))?,
            7 if generator.has_streams() => {
                commit.nack(group(input), streams::again(input), "why", &streams::settlements(generator, input))?
            }
            _ => commit.put(id, &generator.put_key(input), &value(input))?,
        };
    }
    commit.encode(out);
    Ok(())
}
