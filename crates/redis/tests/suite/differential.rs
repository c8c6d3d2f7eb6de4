//! Differential tests with Redis's own server as oracle. The same random commands run on it and on this crate
//! over an in-memory store. The replies must have the same bytes, in RESP2 and in RESP3.
//! `../support/compare.rs` lists the permitted differences.

use std::collections::BTreeSet;

use thalweg_redis::{
    Flags, Run, execute,
    model::Model,
    table,
    wire::{Protocol, Writer},
};

use crate::{
    args,
    support::{
        compare::{Pair, contents_are_alike},
        connection::Target,
        exhaustive::{Shape, words_on_kinds, wrong_numbers},
        frame::Frame,
        generate::{Generator, Mix, connection, hashes, keys, now_millis, streams, strings},
        histories,
        redis_server::RedisServer,
        seed,
    },
};

/// Runs commands over an in-memory store. It also handles cursors like a session: a position is its own
/// cursor.
struct Executor {
    model: Model,
    protocol: Protocol,
}

impl Executor {
    fn new(protocol: u8) -> Self {
        let protocol = if protocol == 3 { Protocol::Resp3 } else { Protocol::Resp2 };
        Self { model: Model::default(), protocol }
    }

    /// Returns an executor with the same keys and another protocol.
    fn with(&self, protocol: u8) -> Self {
        Self { model: self.model.clone(), ..Self::new(protocol) }
    }
}

/// Prefix of a position, so that no position is `0`.
const POSITION: u8 = b'@';

impl Target for Executor {
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
        self.model.now = now_millis();
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let reply = execute(&mut self.model, &args).expect("a store in memory does not fail");
        let mut bytes = Vec::new();
        Writer::new(&mut bytes, self.protocol).reply(&reply);
        let mut frame = Frame::parse(&bytes);
        if let (Some(_), Frame::Many(_, Some(page))) = (cursor, &mut frame)
            && let Frame::Bulk(_, Some(position)) = &mut page[0]
        {
            *position = if position.is_empty() { b"0".to_vec() } else { [&[POSITION], &position[..]].concat() };
        }
        frame
    }
}

/// Runs the same steps on both sides. Returns the commands that had a reply other than an error.
fn compare(families: &[&[Generator]], steps: usize, default_seed: u64) -> BTreeSet<String> {
    let Some(server) = RedisServer::start() else { return BTreeSet::new() };
    let seed = seed(default_seed);
    let mut answered = BTreeSet::new();
    for protocol in [2, 3] {
        let mut redis = server.connect(protocol);
        redis.ask(&args!["FLUSHALL"]);
        let mut ours = Executor::new(protocol);
        let mut pair = Pair::new(&mut redis, &mut ours);
        pair.run(&Mix::new(families), seed ^ u64::from(protocol), steps);
        answered.extend(pair.answered.into_keys());
        contents_are_alike(&mut server.connect(2), &mut ours.with(2), &format!("seed {seed}"));
    }
    answered
}

#[test]
fn strings_are_answered_as_redis_answers() {
    compare(&[strings::ALL], 20_000, 101);
}

#[test]
fn hashes_are_answered_as_redis_answers() {
    compare(&[hashes::ALL], 20_000, 102);
}

#[test]
fn numbers_have_the_digits_that_they_have_in_redis() {
    compare(&[strings::FLOATS], 20_000, 104);
}

#[test]
fn patterns_match_what_they_match_in_redis() {
    compare(&[keys::PATTERNS], 3000, 105);
}

#[test]
fn streams_are_answered_as_redis_answers() {
    let answered = compare(&[streams::ALL], 30_000, 104);
    let all = table::all().map(|command| command.name).filter(|name| name.starts_with('x'));
    let left_out: Vec<_> = all.filter(|name| !answered.is_empty() && !answered.contains(*name)).collect();
    assert_eq!(left_out, Vec::<&str>::new());
}

#[test]
fn everything_at_once_is_answered_as_redis_answers_and_nothing_is_left_out() {
    let answered = compare(&[strings::ALL, keys::ALL, hashes::ALL, streams::ALL], 40_000, 103);
    if answered.is_empty() {
        return;
    }
    let ours = table::all().filter(|command| !matches!(command.run, Run::Session));
    let left_out: Vec<_> = ours.map(|command| command.name).filter(|name| !answered.contains(*name)).collect();
    assert_eq!(left_out, Vec::<&str>::new());
}

/// Returns every command, and every subcommand of containers.
fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for command in table::all() {
        let is_session = matches!(command.run, Run::Session);
        let mut add =
            |name, arity: i16, first: i16| shapes.push(Shape::new(name, arity.into(), first.into(), is_session));
        add(command.name, command.arity, command.keys.first);
        command.subcommands.iter().for_each(|of| add(of.name, of.arity, of.keys.first));
    }
    shapes
}

/// Returns the commands that can be executed. A container without a subcommand is not one of them; it is used
/// only with wrong numbers of arguments.
fn whole(shapes: &[Shape]) -> Vec<Shape> {
    let is_container =
        |shape: &Shape| shapes.iter().any(|of| of.words.len() > shape.words.len() && of.words[0] == shape.words[0]);
    shapes.iter().filter(|shape| !is_container(shape)).cloned().collect()
}

#[test]
fn every_command_answers_wrong_numbers_and_wrong_kinds_as_redis_does() {
    let Some(server) = RedisServer::start() else { return };
    let seed = seed(107);
    for protocol in [2, 3] {
        let (mut redis, mut ours) = (server.connect(protocol), Executor::new(protocol));
        let mut pair = Pair::new(&mut redis, &mut ours);
        // The errors within EXEC belong to the session.
        let here = |shape: &Shape| !is_later(shape) && shape.words != ["exec"];
        let shapes: Vec<_> = shapes().into_iter().filter(here).collect();
        assert!(wrong_numbers(&mut pair, &shapes) > 200);
        words_on_kinds(&mut pair, &whole(&shapes), 25, seed ^ u64::from(protocol));
    }
}

/// Returns true for commands of later Redis versions, which 7.0 does not have.
fn is_later(shape: &Shape) -> bool {
    matches!(&*shape.words.join(" "), "client no-touch" | "client setinfo")
}

/// Runs the generated commands on two identical Redis servers, to show that the comparison itself finds no
/// differences.
#[test]
fn histories_of_one_redis_are_those_of_another() {
    let (Some(one), Some(other)) = (RedisServer::start(), RedisServer::start()) else { return };
    let seed = seed(106);
    let mix = Mix::new(&[strings::ALL, keys::ALL, hashes::ALL, connection::ALL]);
    for protocol in [2, 3] {
        let clients = |server: &RedisServer| (0..3).map(|_| server.connect(protocol)).collect::<Vec<_>>();
        histories::pipelines(&mut one.connect(protocol), &mut other.connect(protocol), &mix, seed, 200);
        let seen = histories::transactions(clients(&one), clients(&other), &mix, seed, 5000);
        assert!(seen.done > 20 && seen.watched_changed > 10 && seen.spoilt > 10, "{seen:?}");
        contents_are_alike(&mut one.connect(2), &mut other.connect(2), &format!("seed {seed}"));
    }
}

#[test]
fn the_table_of_commands_is_that_of_redis() {
    let Some(server) = RedisServer::start() else { return };
    let mut redis = server.connect(2);
    for command in table::all() {
        let info = redis.ask(&args!["COMMAND", "INFO", command.name]);
        let [info] = info.items() else { panic!("{info:?}") };
        let keys = [command.keys.first, command.keys.last, command.keys.step];
        is_told_so(info, command.name, command.arity, command.flags, keys);
        let theirs = &info.items()[9];
        for of in command.subcommands {
            let named = |info: &&Frame| info.items()[0].bulk() == Some(of.name.as_bytes());
            match theirs.items().iter().find(named) {
                Some(info) => {
                    is_told_so(info, of.name, of.arity, of.flags, [of.keys.first, of.keys.last, of.keys.step]);
                }
                None => assert!(is_later(&Shape::new(of.name, 0, 0, true)), "{}", of.name),
            }
        }
    }
}

/// Compares a command's entry in `COMMAND` with Redis's: arity, flags, keys, categories.
fn is_told_so(info: &Frame, name: &str, arity: i16, flags: Flags, keys: [i16; 3]) {
    let [_, their_arity, their_flags, first, last, step, categories, ..] = info.items() else {
        panic!("{name}: {info:?}")
    };
    let words = |frame: &Frame| -> Vec<String> {
        let word = |frame: &Frame| match frame {
            Frame::Line(b'+', text) => String::from_utf8(text.clone()).unwrap(),
            other => panic!("{other:?}"),
        };
        frame.items().iter().map(word).collect()
    };
    assert_eq!(flags.names().collect::<Vec<_>>(), words(their_flags), "{name}");
    assert_eq!(flags.categories().collect::<Vec<_>>(), words(categories), "{name}");
    let ours = [arity, keys[0], keys[1], keys[2]].map(|number| Some(i64::from(number)));
    assert_eq!(ours, [their_arity, first, last, step].map(Frame::integer), "{name}");
}
