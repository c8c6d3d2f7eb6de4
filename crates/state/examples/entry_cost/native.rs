//! Part of the example `entry_cost`: searches for the most expensive commits and transactions, and the most expensive
//! commands about keyspaces, streams and producers.

use std::cell::Cell;

use thalweg_types::{
    KeyspaceId, Offset, Revision, SpaceTime,
    command::{
        self, AppendConditions, Deadline, Expect, KeyspaceConfig, KeyspaceHistory, Outcome, ProducerStamp,
        ScanOperation, StreamConfig, UnchangedRange,
    },
    limits::{MAX_EAGER_PREFIX_ROWS, MAX_STREAM_PRODUCERS, MAX_VALUE_BYTES},
};

use crate::{
    Node, Search, Space,
    data::{
        DELETED, HISTORY, PLAIN, REDIS, STREAM, VERSIONED, commit, encoded, key, large, one, put_all, records,
        small_stream, transaction,
    },
    proposed,
};

const VALUE: [u8; 64] = [b'v'; 64];
const DEADLINE: Deadline = Deadline::At(SpaceTime(u64::MAX / 4));

pub(crate) fn search(search: &mut Search<'_>) {
    commits(search);
    transactions(search);
    entries(search);
    keyspaces(search);
    streams(search);
}

fn commits(search: &mut Search<'_>) {
    search.kind("commit: puts", &|n| one(commit(n, |commit, at| commit.put(PLAIN, &key(at), &VALUE).ok().map(drop))));
    search.kind("commit: puts of 8 KiB", &|n| {
        one(commit(n, |commit, at| commit.put(PLAIN, &key(at), &[b'v'; 8 << 10]).ok().map(drop)))
    });
    search.kind("commit: puts with counts", &|n| {
        one(commit(n, |commit, at| commit.put(REDIS, &key(at), &VALUE).ok().map(drop)))
    });
    search.kind("commit: deletes with counts", &|n| {
        one(commit(n, |commit, at| commit.delete(REDIS, &key(at)).ok().map(drop)))
    });
    search.kind("commit: puts with 256 versions", &|n| {
        one(commit(n, |commit, at| commit.put(HISTORY, &key(at % VERSIONED), &VALUE).ok().map(drop)))
    });
    search.kind("commit: puts with deadlines", &|n| {
        one(commit(n, |commit, at| commit.put_until(PLAIN, &key(at), &VALUE, DEADLINE, None).ok().map(drop)))
    });
    search.kind("commit: touches", &|n| {
        one(commit(n, |commit, at| commit.touch(PLAIN, &key(at), DEADLINE).ok().map(drop)))
    });
    search.kind("commit: touches of 8 MiB", &|n| {
        one(commit(n, |commit, at| commit.touch(PLAIN, &large(at), DEADLINE).ok().map(drop)))
    });
    search.kind("commit: conditions", &|n| {
        one(commit(n, |commit, at| commit.expect(PLAIN, &key(at), Expect::Present).ok().map(drop)))
    });
    let whole = vec![b'v'; MAX_VALUE_BYTES];
    search.kind("commit: condition on a value of 8 MiB", &|n| {
        one(commit(n, |commit, at| commit.expect(PLAIN, &large(at), Expect::Value(&whole)).ok().map(drop)))
    });
    search.kind("commit: range conditions", &|n| {
        let range = UnchangedRange { end: Some(b"a"), since: Revision(u64::MAX), count: 0 };
        one(commit(n, |commit, _| commit.expect(PLAIN, b"", Expect::Unchanged(range)).ok().map(drop)))
    });
    let record = records(1, &VALUE);
    search.kind("commit: appends to one stream", &|n| {
        one(commit(n, |commit, _| commit.append(small_stream(0), None, &record).ok().map(drop)))
    });
    search.kind("commit: appends to many streams", &|n| {
        one(commit(n, |commit, at| commit.append(small_stream(at), None, &record).ok().map(drop)))
    });
    search.kind("commit: append of small records", &|n| {
        let batch = records(n.min(2_000_000), b"");
        one(commit(1, |commit, _| commit.append(small_stream(0), None, &batch).ok().map(drop)))
    });
    let (node, epoch) = (search.node, Cell::new(0));
    search.kind("commit: appends of one producer", &|n| {
        let open = node.must(encoded(|out| command::encode_open_producer(out, small_stream(1), "p").expect("valid")));
        if let Outcome::Producer { epoch: opened, .. } = open {
            epoch.set(opened);
        }
        one(commit(n, |commit, at| {
            let producer = Some(ProducerStamp { id: "p", epoch: epoch.get(), sequence: at as u64 });
            let conditions = AppendConditions { producer, ..AppendConditions::default() };
            commit.append_with(small_stream(1), &conditions, &record).ok().map(drop)
        }))
    });
    search.kind("commit: appends of many producers", &|n| {
        let ids: Vec<_> = (0..n).map(|number| format!("p{number}")).collect();
        let opens: Vec<_> = ids
            .iter()
            .map(|id| encoded(|out| command::encode_open_producer(out, small_stream(2), id).expect("valid")))
            .collect();
        if n > MAX_STREAM_PRODUCERS as usize {
            return None;
        }
        let epochs: Vec<_> = node
            .all(&opens)
            .iter()
            .map(|outcome| match outcome {
                Outcome::Producer { epoch, .. } => *epoch,
                other => panic!("{other:?}"),
            })
            .collect();
        one(commit(n, |commit, at| {
            let producer = Some(ProducerStamp { id: &ids[at], epoch: epochs[at], sequence: 0 });
            let conditions = AppendConditions { producer, ..AppendConditions::default() };
            commit.append_with(small_stream(2), &conditions, &record).ok().map(drop)
        }))
    });
}

fn transactions(search: &mut Search<'_>) {
    search.kind("transaction: scans of 1 over deleted rows", &|n| {
        one(transaction(n, |transaction, _| {
            let scan = ScanOperation { limit: 1, ..ScanOperation::default() };
            transaction.then().scan(DELETED, &scan).ok().map(drop)
        }))
    });
    search.kind("transaction: scans of 1", &|n| {
        one(transaction(n, |transaction, at| {
            let start = key(at);
            let scan = ScanOperation { start: Some(&start), limit: 1, ..ScanOperation::default() };
            transaction.then().scan(PLAIN, &scan).ok().map(drop)
        }))
    });
    search.kind("transaction: scans of 1,000, downwards", &|n| {
        one(transaction(n, |transaction, at| {
            let end = key(at);
            let scan = ScanOperation { end: Some(&end), limit: 1_000, reverse: true, ..ScanOperation::default() };
            transaction.then().scan(PLAIN, &scan).ok().map(drop)
        }))
    });
    search.kind("transaction: scans of 1,000", &|n| {
        one(transaction(n, |transaction, at| {
            let start = key(at);
            let scan = ScanOperation { start: Some(&start), limit: 1_000, keys_only: true, ..ScanOperation::default() };
            transaction.then().scan(PLAIN, &scan).ok().map(drop)
        }))
    });
    search.kind("transaction: gets", &|n| {
        one(transaction(n, |transaction, at| transaction.then().get(PLAIN, &key(at)).ok().map(drop)))
    });
    search.kind("transaction: gets of 8 MiB", &|n| {
        one(transaction(n, |transaction, at| transaction.then().get(PLAIN, &large(at)).ok().map(drop)))
    });
    search.kind("transaction: puts", &|n| {
        one(transaction(n, |transaction, at| transaction.then().put(PLAIN, &key(at), &VALUE).ok().map(drop)))
    });
    search.kind("transaction: puts with deadlines", &|n| {
        one(transaction(n, |transaction, at| {
            transaction.then().put_until(REDIS, &key(at), &VALUE, DEADLINE, None).ok().map(drop)
        }))
    });
    search.kind("transaction: puts with 256 versions", &|n| {
        one(transaction(n, |transaction, at| {
            transaction.then().put(HISTORY, &key(at % VERSIONED), &VALUE).ok().map(drop)
        }))
    });
    search.kind("transaction: deletes", &|n| {
        one(transaction(n, |transaction, at| transaction.then().delete(REDIS, &key(at)).ok().map(drop)))
    });
    search.kind("transaction: touches of 8 MiB", &|n| {
        one(transaction(n, |transaction, at| transaction.then().touch(PLAIN, &large(at), DEADLINE).ok().map(drop)))
    });
    search.kind("transaction: counters", &|n| {
        one(transaction(n, |transaction, at| {
            transaction.then().add(REDIS, format!("counter{at}").as_bytes(), 1).ok().map(drop)
        }))
    });
    let record = records(1, &VALUE);
    search.kind("transaction: appends", &|n| {
        one(transaction(n, |transaction, at| transaction.then().append(small_stream(at), None, &record).ok().map(drop)))
    });
    let node = search.node;
    search.kind("transaction: deletes of short prefixes", &|n| {
        prefixes(node, HISTORY, n);
        one(transaction(n, |transaction, at| {
            transaction.then().delete_prefix(HISTORY, format!("prefix{at:03}:").as_bytes()).ok().map(drop)
        }))
    });
    search.kind("transaction: puts, then their prefix deleted", &|n| {
        one(transaction(n + 1, |transaction, at| {
            let then = transaction.then();
            let added = if at == n { then.delete_prefix(PLAIN, b"new:") } else { then.put(PLAIN, &new(at), &VALUE) };
            added.ok().map(drop)
        }))
    });
}

fn new(number: usize) -> Vec<u8> {
    format!("new:{number:07}").into_bytes()
}

/// Puts keys with each of `count` prefixes (at most 64). Each prefix gets the maximum number of keys that a delete by
/// prefix still removes immediately.
fn prefixes(node: &Node, keyspace: KeyspaceId, count: usize) {
    let keys: Vec<_> = (0..count.min(64) * MAX_EAGER_PREFIX_ROWS)
        .map(|number| format!("prefix{:03}:{number:07}", number / MAX_EAGER_PREFIX_ROWS).into_bytes())
        .collect();
    put_all(node, keyspace, &keys);
}

fn entries(search: &mut Search<'_>) {
    search.kind("entry: puts", &|n| {
        proposed(Space::Plain, n, &|at| {
            encoded(|out| command::encode_put(out, REDIS, &key(at), &VALUE).expect("valid"))
        })
    });
    search.kind("entry: puts of 1 KiB", &|n| {
        proposed(Space::Plain, n, &|at| {
            encoded(|out| command::encode_put(out, PLAIN, &key(at), &[b'v'; 1024]).expect("valid"))
        })
    });
    search.kind("entry: puts with 256 versions", &|n| {
        proposed(Space::WithHistory, n, &|at| {
            encoded(|out| command::encode_put(out, HISTORY, &key(at % VERSIONED), &VALUE).expect("valid"))
        })
    });
    search.kind("entry: puts with deadlines", &|n| {
        proposed(Space::Plain, n, &|at| {
            encoded(|out| command::encode_put_until(out, REDIS, &key(at), &VALUE, DEADLINE, None).expect("valid"))
        })
    });
    search.kind("entry: deletes", &|n| {
        proposed(Space::Plain, n, &|at| encoded(|out| command::encode_delete(out, REDIS, &key(at)).expect("valid")))
    });
    let record = records(1, &VALUE);
    search.kind("entry: appends", &|n| {
        proposed(Space::Plain, n, &|at| encoded(|out| command::encode_append(out, small_stream(at), None, &record)))
    });
    search.kind("entry: digests", &|n| {
        proposed(Space::Plain, n, &|at| encoded(|out| command::encode_digest(out, at as u64)))
    });
    search.kind("entry: raised versions", &|n| {
        proposed(Space::Plain, n, &|_| encoded(|out| command::encode_raise_version(out, 1)))
    });
}

fn keyspaces(search: &mut Search<'_>) {
    let (node, next) = (search.node, Cell::new(0));
    let history = |kept: bool| KeyspaceConfig {
        history: KeyspaceHistory { revisions: kept.then_some(256), age: None },
        ..KeyspaceConfig::default()
    };
    let create = |_| {
        next.set(next.get() + 1);
        let name = format!("created{}", next.get());
        encoded(|out| command::encode_create_keyspace(out, &name, &history(true)).expect("valid"))
    };
    search.kind("entry: keyspaces created", &|n| proposed(Space::Plain, n, &create));
    search.kind("entry: keyspaces configured", &|n| {
        proposed(Space::Plain, n, &|at| {
            encoded(|out| command::encode_configure_keyspace(out, DELETED, &history(at % 2 == 0)).expect("valid"))
        })
    });
    search.kind("keyspace with few keys dropped", &|n| {
        let create = create(0);
        let Outcome::Keyspace { id, .. } = node.must(create) else { panic!("no keyspace") };
        let keys: Vec<_> = (0..n.min(VERSIONED)).map(key).collect();
        (0..300).for_each(|_| put_all(node, id, &keys));
        (n <= MAX_EAGER_PREFIX_ROWS).then(|| vec![encoded(|out| command::encode_drop_keyspace(out, id))])
    });
}

fn streams(search: &mut Search<'_>) {
    let (node, next) = (search.node, Cell::new(0));
    let config = StreamConfig::default();
    let create = |_| {
        next.set(next.get() + 1);
        encoded(|out| command::encode_create_stream(out, &format!("created{}", next.get()), &config).expect("valid"))
    };
    let created = |count: usize| {
        let outcomes = node.all(&(0..count).map(create).collect::<Vec<_>>());
        let ids = outcomes.iter().map(|outcome| match outcome {
            Outcome::Stream { id, .. } => *id,
            other => panic!("{other:?}"),
        });
        ids.collect::<Vec<_>>()
    };
    search.kind("entry: streams created", &|n| proposed(Space::Plain, n, &create));
    search.kind("entry: streams configured", &|n| {
        proposed(Space::Plain, n, &|at| encoded(|out| command::encode_configure_stream(out, small_stream(at), &config)))
    });
    let record = records(1, &VALUE);
    search.kind("entry: streams of 64 batches deleted", &|n| {
        let streams = if n <= 300 { created(n) } else { Vec::new() };
        for streams in streams.chunks(50) {
            for _ in 0..64 {
                let appends = streams.iter().map(|id| encoded(|out| command::encode_append(out, *id, None, &record)));
                node.all(&appends.collect::<Vec<_>>());
            }
        }
        proposed(Space::Plain, n, &|at| {
            encoded(|out| command::encode_delete_stream(out, *streams.get(at).unwrap_or(&STREAM)))
        })
        .filter(|_| n <= 300)
    });
    search.kind("entry: streams trimmed", &|n| {
        proposed(Space::Plain, n, &|at| encoded(|out| command::encode_trim_stream(out, small_stream(at), Offset(1))))
    });
    search.kind("entry: streams trimmed for their retention", &|n| {
        proposed(Space::Plain, n, &|at| {
            encoded(|out| command::encode_enforce_retention(out, small_stream(at), Offset(2), &StreamConfig::default()))
        })
    });
    search.kind("entry: producers opened", &|n| {
        proposed(Space::Plain, n, &|at| {
            next.set(next.get() + 1);
            let id = format!("q{at}-{}", next.get());
            encoded(|out| command::encode_open_producer(out, small_stream(3), &id).expect("valid"))
        })
    });
    search.kind("producers forgotten", &|n| {
        let stream = created(1)[0];
        let opens = (0..n.min(1_000)).map(|number| {
            encoded(|out| command::encode_open_producer(out, stream, &format!("p{number}")).expect("valid"))
        });
        node.all(&opens.collect::<Vec<_>>());
        node.must(encoded(|out| command::encode_delete_stream(out, stream)));
        (n <= 1_000).then(|| vec![encoded(|out| command::encode_forget_producers(out, stream, n as u32))])
    });
}
