//! Tests that need several commands: pipelined bursts, transactions, and watched keys that other clients
//! change concurrently. Only for servers, because the commands alone have no such state.

use super::{
    Rng,
    compare::alike,
    connection::{Args, Connection, Target, encode},
    frame::Frame,
    generate::{Mix, Step, cased, exact},
};
use crate::args;

/// Sends bursts of random commands to both sides, each with one write.
pub fn pipelines(redis: &mut Connection, ours: &mut Connection, mix: &Mix, seed: u64, bursts: usize) {
    let mut rng = Rng(seed);
    for burst in 0..bursts {
        let steps: Vec<_> = (0..1 + rng.below(40)).map(|_| mix.step(&mut rng)).collect();
        let mut bytes = Vec::new();
        steps.iter().for_each(|step| encode(&step.args, &mut bytes));
        redis.send(&bytes);
        ours.send(&bytes);
        for (at, step) in steps.iter().enumerate() {
            let (theirs, mine) = (redis.receive(), ours.receive());
            let place = format!("seed {seed} burst {burst} command {at} of {}", steps.len());
            check(&place, &step.args, alike(step.compare, &theirs, &mine), &theirs, &mine);
        }
    }
}

fn check(place: &str, args: &Args, holds: bool, theirs: &Frame, mine: &Frame) {
    let shown: Vec<_> = args.iter().map(|arg| format!("\"{}\"", arg.escape_ascii())).collect();
    assert!(holds, "{place}: {}\n  redis {theirs:?}\n  ours  {mine:?}", shown.join(" "));
}

/// A connection to each side, and the queued steps of its transaction.
struct Client {
    redis: Connection,
    ours: Connection,
    queued: Option<Vec<Step>>,
}

/// Runs random commands of several clients in turn. Transactions begin, fail, are discarded or executed, and
/// keys are watched.
pub fn transactions(redis: Vec<Connection>, ours: Vec<Connection>, mix: &Mix, seed: u64, steps: usize) -> Transactions {
    let mut rng = Rng(seed);
    let pairs = redis.into_iter().zip(ours);
    let mut clients: Vec<_> = pairs.map(|(redis, ours)| Client { redis, ours, queued: None }).collect();
    let mut seen = Transactions::default();
    for at in 0..steps {
        let number = rng.below(clients.len());
        let client = &mut clients[number];
        let step = if rng.one_in(3) { client.about_transactions(&mut rng, mix) } else { mix.step(&mut rng) };
        client.step(&step, &mut seen, &format!("seed {seed} step {at} client {number}"));
    }
    for client in &mut clients {
        client.step(&exact(args!["discard"]), &mut seen, "at the end");
    }
    seen
}

/// Number of transactions by outcome, so that a test can check that each outcome occurred.
#[derive(Debug, Default)]
pub struct Transactions {
    pub done: usize,
    pub commands: usize,
    pub watched_changed: usize,
    pub spoilt: usize,
}

impl Client {
    fn about_transactions(&mut self, rng: &mut Rng, mix: &Mix) -> Step {
        let within = self.queued.is_some();
        let name = match rng.below(16) {
            0..=3 if !within => "multi",
            0..=5 if within => "exec",
            4..=9 if !within => "watch",
            6 => "discard",
            7 => "exec",
            8 => "multi",
            9 => "unwatch",
            10 => "watch",
            11 if within => "nope",
            _ => return mix.step(rng),
        };
        let mut args = args![cased(rng, name)];
        if name == "watch" {
            args.extend((0..1 + rng.below(2)).map(|_| mix.pool.key(rng)));
            // For Redis, a missing key that is set and deleted again has changed; for us it has not.
            let there = |key: &Vec<u8>| self.redis.ask(&args!["exists", key]).integer() == Some(1);
            if !within && !args[1..].iter().all(there) {
                return mix.step(rng);
            }
        }
        if rng.one_in(30) {
            args.push(b"more".to_vec());
        }
        exact(args)
    }

    fn step(&mut self, step: &Step, seen: &mut Transactions, place: &str) {
        let (theirs, mine) = (self.redis.ask(&step.args), self.ours.ask(&step.args));
        let name = step.args[0].to_ascii_lowercase();
        let ended = match name.as_slice() {
            b"exec" if !theirs.is_error() => Some(self.queued.take().unwrap_or_default()),
            _ => None,
        };
        let holds = match (&ended, theirs.items()) {
            (Some(queued), replies) if !replies.is_empty() => {
                seen.done += 1;
                seen.commands += replies.len();
                assert_eq!(queued.len(), replies.len(), "{place}");
                let both = replies.iter().zip(mine.items()).zip(queued);
                mine.items().len() == replies.len()
                    && both.into_iter().all(|((theirs, mine), step)| alike(step.compare, theirs, mine))
            }
            _ if theirs == Frame::Line(b'+', b"QUEUED".to_vec()) => theirs == mine,
            _ => alike(step.compare, &theirs, &mine),
        };
        check(place, &step.args, holds, &theirs, &mine);
        match (name.as_slice(), &theirs) {
            (b"exec", Frame::Many(_, None) | Frame::Line(b'_', _)) => seen.watched_changed += 1,
            (b"exec", Frame::Line(b'-', text)) if text.starts_with(b"EXECABORT") => {
                seen.spoilt += 1;
                self.queued = None;
            }
            (b"multi", Frame::Line(b'+', text)) if text == b"OK" => self.queued = Some(Vec::new()),
            (b"discard", Frame::Line(b'+', text)) if text == b"OK" => self.queued = None,
            (_, Frame::Line(b'+', text)) if text == b"QUEUED" => {
                self.queued.as_mut().expect("a transaction").push(step.clone());
            }
            _ => {}
        }
    }
}
