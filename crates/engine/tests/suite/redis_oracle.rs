//! Redis's own server is the oracle, and the commands go through the log. The server and a keyspace execute the same
//! random commands, one by one and many as one commit, and their replies must have the same bytes. In between the
//! database is reopened, so that its log is replayed.

use tempfile::TempDir;
use thalweg_engine::{
    BackendKind, Database, Options, Purpose,
    types::{
        Durability,
        command::{Outcome, RedisBuilder},
        reply::Reply,
    },
};
use thalweg_redis::{
    Run, admit, run_read,
    wire::{Protocol, Writer},
};

use crate::oracle::{
    Rng,
    compare::{Pair, alike, contents_are_alike},
    connection::{Target, encode},
    frame::Frame,
    generate::{Mix, hashes, keys, streams, strings},
    redis_server::RedisServer,
    seed,
};

/// A keyspace that executes Redis commands. It handles cursors as a session does: a position is its own cursor.
struct Keyspace {
    directory: TempDir,
    database: Option<Database>,
    backend: BackendKind,
}

/// Prefix of a position, so that no position is `0`.
const POSITION: u8 = b'@';

impl Keyspace {
    fn new(backend: BackendKind) -> Self {
        let mut keyspace = Self { directory: tempfile::tempdir().unwrap(), database: None, backend };
        keyspace.reopen();
        keyspace
    }

    fn reopen(&mut self) {
        self.database.take();
        let options = Options {
            backend: Some(self.backend),
            durability: Durability::Os,
            segment_bytes: 1 << 20,
            spare_segments: 2,
            reserve_bytes: 0,
            inline_value_bytes: 256,
            ..Options::default()
        };
        self.database = Some(Database::open(self.directory.path(), options).unwrap());
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("it is open")
    }

    /// Executes commands as one commit. Each command was admitted before.
    fn commit(&self, commands: &[Vec<&[u8]>]) -> Vec<Reply> {
        let keyspace = self.database().redis_keyspace("redis").unwrap().id();
        let mut builder = RedisBuilder::new(keyspace);
        for command in commands {
            builder.push(command).unwrap();
        }
        let carried = self.database().propose_command(&builder.finish(), Purpose::Data, Durability::Os).unwrap();
        match carried.1 {
            Some(Outcome::Redis(Some(replies))) => replies,
            other => panic!("{other:?}"),
        }
    }

    fn answer(&self, args: &[&[u8]]) -> Reply {
        let command = match admit(args) {
            Ok(command) => command,
            Err(reply) => return reply,
        };
        if matches!(command.run, Run::Read(_)) {
            let keyspace = self.database().redis_keyspace("redis").unwrap().id();
            return self.database().redis_read(keyspace, |read| run_read(read, command, args)).unwrap();
        }
        self.commit(&[args.to_vec()]).pop().expect("a reply")
    }
}

fn frame(reply: &Reply) -> Frame {
    let mut bytes = Vec::new();
    Writer::new(&mut bytes, Protocol::Resp2).reply(reply);
    Frame::parse(&bytes)
}

impl Target for Keyspace {
    fn ask(&mut self, args: &[Vec<u8>]) -> Frame {
        let mut args = args.to_vec();
        let cursor = match args[0].to_ascii_lowercase().as_slice() {
            b"scan" => Some(1),
            b"hscan" => Some(2),
            _ => None,
        };
        if let Some(cursor) = cursor.and_then(|at| args.get_mut(at)) {
            *cursor = if cursor == b"0" { Vec::new() } else { cursor[1..].to_vec() };
        }
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let mut frame = frame(&self.answer(&args));
        if let (Some(_), Frame::Many(_, Some(page))) = (cursor, &mut frame)
            && let Frame::Bulk(_, Some(position)) = &mut page[0]
        {
            *position = if position.is_empty() { b"0".to_vec() } else { [&[POSITION], &position[..]].concat() };
        }
        frame
    }
}

/// Executes random commands in rounds: one by one, then after reopening, then many as one commit.
fn compare(backend: BackendKind, rounds: u64, default_seed: u64) {
    let Some(server) = RedisServer::start() else { return };
    let seed = seed(default_seed);
    let mut redis = server.connect(2);
    let mut ours = Keyspace::new(backend);
    let mix = Mix::new(&[strings::ALL, keys::ALL, hashes::ALL, streams::ALL]);
    for round in 0..rounds {
        let place = format!("seed {seed} round {round}");
        Pair::new(&mut redis, &mut ours).run(&mix, seed + round, 400);
        contents_are_alike(&mut redis, &mut ours, &place);
        ours.reopen();
        contents_are_alike(&mut redis, &mut ours, &format!("{place}, reopened"));
        let mut rng = Rng(seed ^ round);
        for burst in 0..10 {
            let steps: Vec<_> = (0..60).map(|_| mix.step(&mut rng)).collect();
            let cursors = |name: &[u8]| name.eq_ignore_ascii_case(b"scan") || name.eq_ignore_ascii_case(b"hscan");
            let admitted = |args: &[Vec<u8>]| admit(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()).is_ok();
            let steps: Vec<_> =
                steps.into_iter().filter(|step| admitted(&step.args) && !cursors(&step.args[0])).collect();
            let mut bytes = Vec::new();
            steps.iter().for_each(|step| encode(&step.args, &mut bytes));
            redis.send(&bytes);
            let commands: Vec<Vec<&[u8]>> =
                steps.iter().map(|step| step.args.iter().map(Vec::as_slice).collect()).collect();
            let replies = ours.commit(&commands);
            assert_eq!(replies.len(), steps.len());
            for (step, reply) in steps.iter().zip(&replies) {
                let (theirs, mine) = (redis.receive(), frame(reply));
                let shown: Vec<_> = step.args.iter().map(|arg| arg.escape_ascii().to_string()).collect();
                assert!(
                    alike(step.compare, &theirs, &mine),
                    "{place} burst {burst}: {shown:?}\n  redis {theirs:?}\n  ours  {mine:?}"
                );
            }
        }
        contents_are_alike(&mut redis, &mut ours, &format!("{place}, after bursts"));
    }
}

#[test]
fn a_keyspace_in_memory_answers_as_redis_answers() {
    compare(BackendKind::Memory, 15, 301);
}

#[test]
fn a_keyspace_on_disk_answers_as_redis_answers() {
    compare(BackendKind::Lsm, 15, 302);
}
