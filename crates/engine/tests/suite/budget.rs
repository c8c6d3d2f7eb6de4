//! Commands that would block others for too long, through the engine: they get a typed error, change nothing, and do
//! not make a start take long. An open can be ended during its replay.

use std::ops::ControlFlow;

use thalweg_engine::{
    Database, Options, Purpose, WriteError,
    types::{
        Action, Classified, Durability, KeyspaceId,
        command::{CommitBuilder, Outcome, RedisBuilder, ScanOperation, TransactionBuilder},
        limits::{MAX_COMMAND_SEARCH_STEPS, MAX_COMMIT_WRITES, MAX_TRANSACTION_SCANS, MAX_VALUE_BYTES},
        reply::Reply,
    },
};

fn propose(db: &Database, command: &[u8]) -> Result<Option<Outcome>, WriteError> {
    db.propose_command(command, Purpose::Data, Durability::Os).map(|(_, outcome)| outcome)
}

fn redis(db: &Database, commands: &[&[&[u8]]]) -> Vec<Reply> {
    let mut builder = RedisBuilder::new(db.redis_keyspace("redis").unwrap().id());
    commands.iter().for_each(|args| _ = builder.push(args).unwrap());
    match propose(db, &builder.finish()).unwrap() {
        Some(Outcome::Redis(Some(replies))) => replies,
        other => panic!("{other:?}"),
    }
}

fn is_rejected(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("ERR too expensive"))
}

/// A transaction of as many scans as possible over deleted keys and a hundred others, behind a put.
fn scans(keyspace: KeyspaceId) -> Vec<u8> {
    let mut scans = TransactionBuilder::new();
    scans.then().put(keyspace, b"behind", b"v").unwrap();
    for _ in 0..MAX_TRANSACTION_SCANS {
        scans.then().scan(keyspace, &ScanOperation { limit: 100, ..ScanOperation::default() }).unwrap();
    }
    let mut out = Vec::new();
    scans.encode(&mut out).unwrap();
    out
}

#[test]
fn expensive_commands_are_rejected_with_a_stable_code_also_by_a_replay() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path(), Options::default()).unwrap();
    let keyspace = db.keyspace("plain").unwrap();
    for round in 0..2 {
        let mut commit = CommitBuilder::new();
        for number in 0..MAX_COMMIT_WRITES as u32 {
            match round {
                1 if number < MAX_COMMIT_WRITES as u32 - 100 => {
                    commit.delete(keyspace.id(), &number.to_be_bytes()).unwrap()
                }
                _ => commit.put(keyspace.id(), &number.to_be_bytes(), b"").unwrap(),
            };
        }
        db.commit(&commit).unwrap();
    }
    let error = propose(&db, &scans(keyspace.id())).unwrap_err();
    assert_eq!(error, WriteError::TooExpensive { limit: MAX_COMMAND_SEARCH_STEPS });
    assert_eq!((error.code(), error.action()), ("too_expensive", Action::Fix));
    assert_eq!(keyspace.get(b"behind").unwrap(), None);

    for number in 0..200 {
        let key = [format!("{number:03}").as_bytes(), &[b'a'; 1_000][..]].concat();
        assert_eq!(redis(&db, &[&[b"SET", &key, b"v"]]), [Reply::Ok]);
    }
    let hostile = [&b"*"[..], &b"a".repeat(500), b"b"].concat();
    let keys: &[&[&[u8]]] = &[&[b"MULTI"], &[b"SET", b"k", b"v"], &[b"KEYS", &hostile], &[b"EXEC"]];
    let replies = redis(&db, keys);
    assert!(replies.len() == 2 && replies.iter().all(is_rejected), "{replies:?}");

    let last = (MAX_VALUE_BYTES - 1).to_string();
    let patch: &[&[u8]] = &[b"SETRANGE", b"large", last.as_bytes(), b"x"];
    let mut chain: Vec<&[&[u8]]> = vec![&[b"MULTI"]];
    chain.extend(std::iter::repeat_n(patch, 64));
    chain.push(&[b"EXEC"]);
    assert!(redis(&db, &chain).iter().all(is_rejected));
    assert_eq!(redis(&db, &[&[b"EXISTS", b"large", b"k"]]), [Reply::Integer(0)]);

    let digest = db.state_digest().unwrap().state.digest;
    drop((keyspace, db));
    // The state that the replay leads to is the same.
    let db = Database::open(dir.path(), Options::default()).unwrap();
    assert_eq!(db.state_digest().unwrap().state.digest, digest);
}

#[test]
fn an_open_that_is_ended_during_its_replay_continues_at_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options { maintenance_interval: std::time::Duration::ZERO, ..Options::default() };
    let db = Database::open(dir.path(), options()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..200_u32 {
        keyspace.put(&number.to_be_bytes(), b"v").unwrap();
    }
    // Without a close, nothing of the state is persisted.
    std::mem::forget((keyspace, db));
    let copy = tempfile::tempdir().unwrap();
    copy_directory(dir.path(), copy.path());
    let (mut calls, mut last) = (0, 0.0);
    let ended = Database::open_while(copy.path(), options(), &mut |progress| {
        calls += 1;
        assert!(progress.part() > last && progress.part() <= 1.0, "it rises");
        last = progress.part();
        assert_eq!(progress.replayed.records, calls);
        if calls == 50 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let error = ended.unwrap_err();
    assert_eq!((error.code(), error.action(), calls), ("interrupted", Action::Retry, 50), "{error}");
    let db = Database::open(copy.path(), options()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    assert!((0..200_u32).all(|number| keyspace.get(&number.to_be_bytes()).unwrap().is_some()));
}

/// Copies the files of a directory, without its lock.
fn copy_directory(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
