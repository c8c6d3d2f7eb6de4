//! Redis commands over the engine: their writes are present after reopens and kills, and in backups. Parts of deleted
//! collections are removed gradually, and values in the log move with their segments.

use std::{ops::ControlFlow, time::Duration};

use thalweg_engine::{
    Database, Purpose, ReadError, ScanRange,
    snapshot::RestoreTo,
    types::{
        Classified, Clock, Durability, KeyspaceId,
        command::{Outcome, RedisBuilder},
        reply::Reply,
    },
};
use thalweg_redis::{Read, StoreError, admit, run_read};

use crate::{
    snapshots::{Copy, full, long, since, take, targets},
    support::Node,
};

fn keyspace(db: &Database) -> KeyspaceId {
    db.redis_keyspace("redis").unwrap().id()
}

fn propose(db: &Database, commands: &[&[&[u8]]]) -> Vec<Reply> {
    let mut builder = RedisBuilder::new(keyspace(db));
    for args in commands {
        builder.push(args).unwrap();
    }
    let (_, outcome) = db.propose_command(&builder.finish(), Purpose::Data, Durability::Os).unwrap();
    match outcome {
        Some(Outcome::Redis(Some(replies))) => replies,
        other => panic!("{other:?}"),
    }
}

fn run(db: &Database, words: &str) -> Reply {
    let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    propose(db, &[&args]).remove(0)
}

fn read(db: &Database, words: &str) -> Reply {
    let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    let command = admit(&args).unwrap();
    db.redis_read(keyspace(db), |view| run_read(view, command, &args)).unwrap()
}

fn strings_and_hashes_outlive_restarts(node: &mut Node) {
    let db = node.db();
    let large = long(7);
    let replies = propose(
        db,
        &[
            &[b"SET", b"s", b"v"],
            &[b"SET", b"large", &large],
            &[b"HSET", b"h", b"f", b"1", b"g", b"2"],
            &[b"INCRBY", b"n", b"40"],
            &[b"HINCRBY", b"h", b"f", b"5"],
            &[b"PEXPIRE", b"h", b"100000"],
        ],
    );
    let integers = [2, 40, 6, 1].map(Reply::Integer);
    assert_eq!(replies, [&[Reply::Ok, Reply::Ok], &integers[..]].concat());
    node.through_restarts(|db| {
        assert_eq!(read(db, "GET s"), Reply::bulk(b"v"));
        assert_eq!(read(db, "GET large"), Reply::bulk(&large));
        assert_eq!(read(db, "HMGET h f g"), Reply::Array(vec![Reply::bulk(b"6"), Reply::bulk(b"2")]));
        assert_eq!(read(db, "DBSIZE"), Reply::Integer(4));
        let plain = db.redis_keyspace("redis").unwrap();
        assert_eq!(&plain.get(b"n").unwrap().unwrap().value[..], b"40");
        for error in [plain.get(b"h").unwrap_err(), plain.head(b"h").unwrap_err()] {
            assert_eq!(error, ReadError::HoldsCollection { kind: "hash" });
            assert_eq!((error.code(), error.action().name()), ("wrong_kind", "fix"));
        }
        let mut shown = Vec::new();
        plain
            .scan(&ScanRange::default(), &mut |item| {
                shown.push(item.key.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(shown, [&b"large"[..], b"n", b"s"]);
    });
    node.pass(Duration::from_secs(200));
    assert_eq!(read(node.db(), "EXISTS h s"), Reply::Integer(1));
}

/// Parts are rows like others, and are removed when no reader can see them any more.
fn what_a_hash_leaves_is_swept(node: &mut Node) {
    for number in 0..300 {
        run(node.db(), &format!("HSET h f{number} v"));
    }
    run(node.db(), "HSET kept f v");
    run(node.db(), "DEL h");
    node.kill();
    let mut swept = 0;
    for _ in 0..50 {
        swept += node.db().maintain().unwrap().swept_rows;
    }
    assert!(swept > 300, "{swept}");
    node.through_restarts(|db| {
        assert_eq!(db.maintain().unwrap().swept_rows, 0);
        assert_eq!(read(db, "HLEN h"), Reply::Integer(0));
        assert_eq!(read(db, "HGET kept f"), Reply::bulk(b"v"));
    });
}

fn values_in_the_log_move_with_their_segments(node: &mut Node) {
    let kept = long(9);
    propose(node.db(), &[&[b"SET", b"kept", &kept], &[b"MSET", b"a", &kept, b"b", &kept]]);
    run(node.db(), "RENAME b c");
    run(node.db(), "PEXPIRE kept 100000000");
    for round in 0..200_u8 {
        propose(node.db(), &[&[b"SET", b"churn", &long(round)]]);
    }
    let (mut freed, mut moved) = (0, 0);
    for _ in 0..30 {
        node.db().flush().unwrap();
        let round = node.db().maintain().unwrap();
        freed += round.freed_segments;
        moved += round.moved_bytes;
    }
    assert!(freed > 3 && moved > 0, "{freed} freed, {moved} moved");
    node.through_restarts(|db| {
        for key in ["kept", "a", "c"] {
            assert_eq!(read(db, &format!("GET {key}")), Reply::bulk(&kept), "{key}");
        }
        assert_eq!(read(db, "GET churn"), Reply::bulk(&long(199)));
    });
}

fn a_watched_key_that_changed_stops_all(node: &mut Node) {
    let db = node.db();
    run(db, "SET k 1");
    let version = |key: &[u8]| {
        let look = |view: &dyn Read| Ok::<_, StoreError>(view.look(key)?.map_or(0, |look| look.version));
        db.redis_read(keyspace(db), look).unwrap()
    };
    let watching = |version| {
        let mut builder = RedisBuilder::new(keyspace(db));
        builder.watch(b"k", version).unwrap().push(&[b"INCR", b"k"]).unwrap();
        let (_, outcome) = db.propose_command(&builder.finish(), Purpose::Data, Durability::Os).unwrap();
        outcome
    };
    let seen = version(b"k");
    assert_eq!(version(b"none"), 0);
    assert_eq!(watching(seen), Some(Outcome::Redis(Some(vec![Reply::Integer(2)]))));
    assert_eq!(watching(seen), Some(Outcome::Redis(None)));
    let plain = db.redis_keyspace("redis").unwrap();
    let seen = version(b"k");
    plain.put(b"k", b"by another protocol").unwrap();
    assert_eq!(watching(seen), Some(Outcome::Redis(None)));
}

fn backups_have_hashes_with_their_parts(node: &mut Node) {
    run(node.db(), "HSET h f 1 g 2");
    run(node.db(), "HSET gone f 1");
    let all = take(node.db(), &full());
    let lsn = node.db().snapshot(&full()).unwrap().info().applied.lsn;
    run(node.db(), "HSET h f 3");
    run(node.db(), "DEL gone");
    propose(node.db(), &[&[b"SET", b"large", &long(3)]]);
    let parts = [all, take(node.db(), &since(lsn))];
    for backend in targets(node.backend()) {
        let mut copy = Copy::of(&parts, RestoreTo::default(), backend, node.clock().wall());
        for _ in 0..2 {
            let db = copy.open();
            assert_eq!(read(&db, "HMGET h f g"), Reply::Array(vec![Reply::bulk(b"3"), Reply::bulk(b"2")]));
            assert_eq!(read(&db, "KEYS *"), Reply::Array(vec![Reply::bulk(b"h"), Reply::bulk(b"large")]));
            assert_eq!(read(&db, "GET large"), Reply::bulk(&long(3)));
            run(&db, "HSET new f v");
            (0..5).for_each(|_| assert!(db.maintain().is_ok()));
            assert_eq!(read(&db, "HGET h g"), Reply::bulk(b"2"), "ids continue after the restored ones");
            run(&db, "DEL new");
            db.close().unwrap();
        }
    }
}

on_every_backend!(
    strings_and_hashes_outlive_restarts,
    what_a_hash_leaves_is_swept,
    values_in_the_log_move_with_their_segments,
    a_watched_key_that_changed_stops_all,
    backups_have_hashes_with_their_parts,
);
