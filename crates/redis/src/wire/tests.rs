//! Tests of requests: Redis's rules and error texts, and the same result for any split of the bytes. Tests of replies:
//! their encoding.

use bytes::Bytes;
use thalweg_types::{Classified, limits::MAX_COMMAND_BYTES};

use super::{
    Input, Protocol, ProtocolError, READ_BYTES, Trust, Writer,
    reference::{self, Parsed},
};
use crate::Reply;

/// Seeded random numbers (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Parses pieces of bytes one after the other, until the parser returns an error.
fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, trust: Trust) -> Parsed {
    let (mut input, mut parsed) = (Input::new(), Parsed::default());
    for piece in pieces {
        input.feed(piece);
        loop {
            match input.next(trust) {
                Ok(None) => break,
                Ok(Some(request)) => parsed.requests.push(request.iter().map(<[u8]>::to_vec).collect()),
                Err(error) => {
                    assert_eq!(input.next(trust).unwrap_err(), error, "the input must stay failed");
                    parsed.error = Some(error.to_string());
                    return parsed;
                }
            }
        }
    }
    parsed
}

fn whole(bytes: &[u8]) -> Parsed {
    parse([bytes], Trust::Known)
}

fn error(bytes: &[u8]) -> String {
    whole(bytes).error.expect("an error")
}

#[test]
fn a_request_is_an_array_of_bulk_strings_and_nothing_is_left_of_it() {
    let mut input = Input::new();
    input.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\n*1\r\n$4\r\nPI");
    let request = input.next(Trust::Known).unwrap().unwrap();
    assert_eq!(
        (request.len(), request.name(), request.get(2), request.get(3)),
        (3, &b"SET"[..], Some(&b"\r\n"[..]), None)
    );
    assert_eq!(request.with(|arguments| arguments.concat()), b"SETk\r\n");
    assert!(input.next(Trust::Known).unwrap().is_none());
    assert_eq!((input.pending_bytes(), input.wanted_bytes()), (10, 14));
    input.feed(b"NG\r\n");
    assert_eq!(input.next(Trust::Known).unwrap().unwrap().name(), b"PING");
    assert_eq!(input.pending_bytes(), 0);
}

#[test]
fn many_arguments_are_given_as_a_slice_as_few_are() {
    let mut bytes = b"*40\r\n".to_vec();
    (0..40).for_each(|at| bytes.extend_from_slice(format!("$2\r\n{:02}\r\n", at).as_bytes()));
    let mut input = Input::new();
    input.feed(&bytes);
    let request = input.next(Trust::Known).unwrap().unwrap();
    assert_eq!(request.wire_bytes(), bytes.len());
    let expected: Vec<String> = (0..40).map(|at| format!("{at:02}")).collect();
    assert_eq!(request.with(|arguments| arguments.concat()), expected.concat().as_bytes());
}

#[test]
fn empty_requests_are_passed_over() {
    let parsed = whole(b"\r\n*0\r\n\n  \t\r\n*-1\r\n*-77\r\nPING\r\n");
    assert_eq!(parsed, Parsed { requests: vec![vec![b"PING".to_vec()]], error: None });
}

#[test]
fn inline_words_are_unescaped() {
    let parsed = whole(b"set \"a b\\x41\\n\\q\" 'it\\'s \\n'  ''\tx\\ny\0 gone\r\n");
    let expected: [&[u8]; 5] = [b"set", b"a bA\n\x71", b"it's \\n", b"", b"x\\ny"];
    assert_eq!(parsed.requests, [expected.map(<[u8]>::to_vec).to_vec()]);
    for unbalanced in ["\"abc\n", "'abc\n", "\"a\"b\n", "'a'b\n", "x\"\\\"\n"] {
        assert_eq!(error(unbalanced.as_bytes()), "Protocol error: unbalanced quotes in request", "{unbalanced:?}");
    }
}

#[test]
fn who_announces_nonsense_is_told_so_in_the_words_of_redis() {
    let said = |bytes: &str| error(bytes.as_bytes());
    for count in ["*x\r\n", "*\r\n", "*01\r\n", "*+1\r\n", "*1048577\r\n", "*99999999999999999999\r\n", "*-0\r\n"] {
        assert_eq!(said(count), "Protocol error: invalid multibulk length", "{count:?}");
    }
    for len in ["$-1\r\n", "$x\r\n", "$ 1\r\n", "$536870913\r\n", "$\r\n", "$00\r\n", "$9223372036854775808\r\n"] {
        assert_eq!(said(&format!("*1\r\n{len}")), "Protocol error: invalid bulk length", "{len:?}");
    }
    assert_eq!(said("*1\r\n:1\r\n"), "Protocol error: expected '$', got ':'");
    let not_bulk = ProtocolError::NotBulk { got: 0xff };
    assert_eq!(&not_bulk.text()[..], b"Protocol error: expected '$', got '\xff'");
    assert_eq!(&ProtocolError::BadLength.text()[..], b"Protocol error: invalid bulk length");
    assert_eq!(not_bulk.code(), "malformed_request");
}

#[test]
fn lines_without_an_end_are_refused_at_64_kib() {
    let long = |first: &str| first.to_owned() + &"1".repeat(64 * 1024);
    assert_eq!(error(long("x").as_bytes()), "Protocol error: too big inline request");
    assert_eq!(error(long("*").as_bytes()), "Protocol error: too big mbulk count string");
    assert_eq!(error(long("*1\r\n$").as_bytes()), "Protocol error: too big bulk count string");
    for first in ["", "*", "*1\r\n$"] {
        let just = first.to_owned() + &"1".repeat(64 * 1024 - 1);
        assert_eq!(whole(just.as_bytes()), Parsed::default());
    }
}

#[test]
fn who_has_not_authenticated_may_announce_little() {
    let said = |bytes: &str| parse([bytes.as_bytes()], Trust::Unknown).error;
    assert_eq!(said("*10\r\n$16384\r\n"), None);
    assert_eq!(said("*11\r\n").unwrap(), "Protocol error: unauthenticated multibulk length");
    // Redis checks its general limits first, so the error about authentication has limits of its own.
    assert_eq!(said("*2147483647\r\n").unwrap(), "Protocol error: unauthenticated multibulk length");
    assert_eq!(said("*2147483648\r\n").unwrap(), "Protocol error: invalid multibulk length");
    assert_eq!(said("*1\r\n$16385\r\n").unwrap(), "Protocol error: unauthenticated bulk length");
    assert_eq!(said("*1\r\n$536870912\r\n").unwrap(), "Protocol error: unauthenticated bulk length");
    assert_eq!(said("*1\r\n$536870913\r\n").unwrap(), "Protocol error: invalid bulk length");
    assert_eq!(said("*1\r\n$-1\r\n").unwrap(), "Protocol error: invalid bulk length");
}

#[test]
fn what_is_announced_is_not_allocated() {
    let mut input = Input::new();
    let announced = format!("*1048576\r\n${}\r\n", MAX_COMMAND_BYTES - 100);
    input.feed(announced.as_bytes());
    assert!(input.next(Trust::Known).unwrap().is_none());
    assert!(input.buffer().capacity() <= 2 * READ_BYTES);
    assert!(input.wanted_bytes() > MAX_COMMAND_BYTES - 100);
}

#[test]
fn a_request_is_at_most_as_large_as_a_command_of_the_log() {
    let most = MAX_COMMAND_BYTES - "*2\r\n$1\r\nx\r\n$16777192\r\n".len() - 2;
    let head = |len: usize| format!("*2\r\n$1\r\nx\r\n${len}\r\n");
    let mut bytes = head(most).into_bytes();
    bytes.resize(bytes.len() + most, b'v');
    bytes.extend_from_slice(b"\r\n");
    assert_eq!(whole(&bytes).requests[0][1].len(), most);
    assert!(error(head(most + 1).as_bytes()).starts_with("Protocol error: too big request"));
    assert_eq!(ProtocolError::TooBig.code(), "request_too_large");
}

#[test]
fn an_idle_input_keeps_no_memory_and_one_within_a_request_keeps_it() {
    let mut input = Input::new();
    input.feed(b"*1\r\n$4\r\nPING\r\n*1\r\n");
    assert!(input.next(Trust::Known).unwrap().is_some());
    input.release();
    assert_eq!(input.pending_bytes(), 4);
    assert!(input.next(Trust::Known).unwrap().is_none());
    input.feed(b"$4\r\nQUIT\r\n");
    assert_eq!(input.next(Trust::Known).unwrap().unwrap().name(), b"QUIT");
    input.release();
    assert_eq!(input.buffer.capacity(), 0);
}

#[test]
fn a_request_that_is_taken_back_is_given_again_though_more_was_received() {
    let mut input = Input::new();
    input.feed(b"ping\r\necho \"a\\x41\"\r\n");
    assert_eq!(input.next(Trust::Known).unwrap().unwrap().len(), 1);
    for _ in 0..3 {
        let request = input.next(Trust::Known).unwrap().unwrap();
        assert_eq!((request.name(), request.get(1).unwrap()), (&b"echo"[..], &b"aA"[..]));
        let bytes = request.wire_bytes();
        input.unread(bytes);
        assert!(input.is_unread());
        input.feed(b"quit\r\n");
    }
    let names: Vec<_> = std::iter::from_fn(|| Some(input.next(Trust::Known).unwrap()?.name().to_vec())).collect();
    assert_eq!(names, [&b"echo"[..], b"quit", b"quit", b"quit"]);
}

/// Creates random bytes that contain valid and invalid requests.
fn stream(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + rng.below(12) {
        match rng.below(12) {
            0 => bytes.extend_from_slice(rng.of(&["\r\n", "*0\r\n", "*-1\r\n", "\n", " \r\n", "*3\r\n"]).as_bytes()),
            1 => (0..rng.below(40)).for_each(|_| {
                let byte = rng.of(&["\"", "'", " ", "\\", "x", "4", "\\x4f", "\0", "\t", "\r", "b", "\x0b", "\n"]);
                bytes.extend_from_slice(byte.as_bytes());
            }),
            2 if rng.below(3) == 0 => {
                bytes.extend_from_slice(
                    rng.of(&["*x\r\n", "*1\r\nx", "*1\r\n$-1\r\n", "*01\r\n", "*1\r$1\r\n"]).as_bytes(),
                );
            }
            3 => bytes.extend_from_slice(b"ping \"a b\" c\r\n"),
            _ => {
                let count = rng.below(14);
                bytes.extend_from_slice(format!("*{count}\r\n").as_bytes());
                for _ in 0..count {
                    let len = if rng.below(40) == 0 { 16_380 + rng.below(10) } else { rng.below(20) };
                    bytes.extend_from_slice(format!("${len}\r\n").as_bytes());
                    (0..len).for_each(|_| bytes.push(rng.next() as u8));
                    bytes.extend_from_slice(b"\r\n");
                }
            }
        }
    }
    bytes
}

#[test]
fn however_bytes_are_cut_they_mean_what_the_reference_says() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_0005);
    eprintln!("SEED={seed}");
    let mut rng = Rng(seed);
    let (mut requests, mut errors) = (0, 0);
    for round in 0..4000 {
        let mut bytes = stream(&mut rng);
        if rng.below(4) == 0 && !bytes.is_empty() {
            let at = rng.below(bytes.len());
            bytes[at] = rng.next() as u8;
        }
        let trust = if rng.below(4) == 0 { Trust::Unknown } else { Trust::Known };
        let expected = reference::parse(&bytes, trust == Trust::Known);
        let largest = *rng.of(&[&8, &5000]);
        let (mut pieces, mut rest) = (Vec::new(), &bytes[..]);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(1 + rng.below(largest)));
            pieces.push(piece);
            rest = behind;
        }
        assert_eq!(parse(pieces, trust), expected, "round {round}: {}", bytes.escape_ascii());
        (requests, errors) = (requests + expected.requests.len(), errors + usize::from(expected.error.is_some()));
    }
    assert!(requests > 5000 && errors > 500, "{requests} requests and {errors} errors are too few for this test");
}

fn written(reply: &Reply, protocol: Protocol) -> String {
    let mut out = Vec::new();
    Writer::new(&mut out, protocol).reply(reply);
    String::from_utf8(out).unwrap()
}

#[test]
fn replies_look_the_same_in_both_protocols_or_say_more_in_the_third() {
    let both = |reply: Reply, second: &str, third: &str| {
        assert_eq!(written(&reply, Protocol::Resp2), second.replace(' ', "\r\n"));
        assert_eq!(written(&reply, Protocol::Resp3), third.replace(' ', "\r\n"));
    };
    let pair = || vec![(Reply::bulk(b"k"), Reply::Integer(-10))];
    let items = || vec![Reply::Ok, Reply::Null, Reply::NullArray];
    both(Reply::Ok, "+OK ", "+OK ");
    both(Reply::Simple("QUEUED"), "+QUEUED ", "+QUEUED ");
    both(Reply::Integer(i64::MIN), ":-9223372036854775808 ", ":-9223372036854775808 ");
    both(Reply::Integer(0), ":0 ", ":0 ");
    both(Reply::bulk(b""), "$0  ", "$0  ");
    both(Reply::Array(items()), "*3 +OK $-1 *-1 ", "*3 +OK _ _ ");
    both(Reply::Map(pair()), "*2 $1 k :-10 ", "%1 $1 k :-10 ");
    both(Reply::Pairs(pair()), "*1 *2 $1 k :-10 ", "%1 $1 k :-10 ");
    both(Reply::FlatPairs(pair()), "*2 $1 k :-10 ", "*1 *2 $1 k :-10 ");
    both(Reply::Set(items()), "*3 +OK $-1 *-1 ", "~3 +OK _ _ ");
    both(Reply::Push(vec![Reply::Integer(19)]), "*1 :19 ", ">1 :19 ");
    assert_eq!(written(&Reply::error("ERR two\r\nlines"), Protocol::Resp3), "-ERR two  lines\r\n");
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, protocol);
        writer.verbatim("a:1\r\n");
        writer.shared(&Bytes::from_static(b"x"));
        let expected = if protocol.number() == 2 { "$5\r\na:1\r\n\r\n" } else { "=9\r\ntxt:a:1\r\n\r\n" };
        assert_eq!(String::from_utf8(out).unwrap(), expected.to_owned() + "$1\r\nx\r\n");
    }
}
