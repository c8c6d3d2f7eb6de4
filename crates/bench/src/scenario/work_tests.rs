//! Tests of the choice of operations and of the judgement of replies, without sockets.

use super::*;
use crate::{
    load::pairs::Answer,
    random::{KeyChooser, generator},
};

const KEYS: u64 = 1000;
/// Number of rows with which these tests represent a miss.
const MISSED: u64 = u64::MAX;

/// A protocol for tests. Its requests are lines. A reply is `+` for a stored value, `x` for a deleted one, `-` for a
/// missing key, `!` for a refusal, or `=` with the bytes of a value.
#[derive(Clone, Debug)]
struct Lines;

impl Codec for Lines {
    fn connect(&self) -> Result<Connection, BenchError> {
        unreachable!("these tests have no sockets")
    }

    fn put(&self, index: u64, value: [&[u8]; 2], out: &mut Vec<u8>) {
        out.extend_from_slice(format!("put {index} ").as_bytes());
        value.iter().for_each(|part| out.extend_from_slice(part));
    }

    fn get(&self, index: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("get {index}").as_bytes());
    }

    fn delete(&self, index: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("delete {index}").as_bytes());
    }

    fn scan(&self, first: u64, end: u64, rows: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("scan {first} {end} {rows}").as_bytes());
    }

    fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        let content = match bytes {
            [b'+'] => Content::Stored,
            [b'-'] => Content::Missing,
            [b'x'] => Content::Deleted,
            [b'!'] => Content::Refused("later".to_owned()),
            [b'=', value @ ..] => Content::Value(value.into()),
            _ => return Err("no line".to_owned()),
        };
        Ok(Some(Answer { bytes: bytes.len(), closes: false, content }))
    }
}

fn workload<const N: usize>(weights: [u32; N], draws: Draws) -> Workload<Lines> {
    Workload {
        codec: Lines,
        records: Arc::new(Records::new(50..=50, 1)),
        ledger: Arc::new(Ledger::new(KEYS)),
        feed: None,
        cache: Some(CacheKeys { codec: Lines, ledger: Arc::new(Ledger::new(KEYS)) }),
        mix: Mix::new(weights),
        scan_rows: 3..=3,
        draws,
        phase: ScenarioPhase::Run,
    }
}

/// Returns the next operation with its request as text.
fn next(work: &Workload<Lines>, drawn: u64) -> (Request, String) {
    let request = work.choose(drawn, &mut generator(1));
    (request, encoded(work, request))
}

fn encoded(work: &Workload<Lines>, request: Request) -> String {
    let mut out = Vec::new();
    work.encode(request, &mut out);
    String::from_utf8(out).unwrap()
}

/// Makes an acknowledged write of a key. Returns the written value.
fn write(work: &Workload<Lines>, index: u64) -> Vec<u8> {
    let request = work.write(Kind::Update, index);
    answer(work, request, b"+").unwrap();
    let text = encoded(work, request);
    text.split_once(' ').unwrap().1.split_once(' ').unwrap().1.into()
}

fn answer(work: &Workload<Lines>, request: Request, reply: &[u8]) -> Result<u64, String> {
    match work.decode(request, &mut (), reply) {
        Ok(decoded) => match decoded.unwrap().reply {
            Reply::Right(rows) => Ok(rows),
            Reply::Missed => Ok(MISSED),
            reply => panic!("a right reply is {reply:?}"),
        },
        Err(bad) => {
            let reply = bad.decoded.expect("the run goes on").reply;
            let is_refused = bad.fault.contains("refused: ");
            assert_eq!(reply, if is_refused { Reply::Refused } else { Reply::Wrong }, "{}", bad.fault);
            Err(bad.fault)
        }
    }
}

fn value(bytes: &[u8]) -> Vec<u8> {
    [b"=", bytes].concat()
}

#[test]
fn a_read_returns_what_was_written_and_nothing_older() {
    let work = workload([1, 0, 0, 0, 0], Draws::Index);
    let [first, second] = [(), ()].map(|()| write(&work, 7));
    let (read, text) = next(&work, 7);
    assert_eq!(text, "get 7");
    assert_eq!(answer(&work, read, &value(&second)), Ok(0));
    let fails = |reply: &[u8], part: &str| {
        let fault = answer(&work, read, reply).unwrap_err();
        assert!(fault.starts_with("read of key 7: ") && fault.contains(part), "{fault}");
    };
    fails(&value(&first), "version 1, and version 2 was acknowledged");
    fails(&value(&write(&work, 8)), "never written to it");
    fails(&value(&second[..49]), "never written to it");
    fails(b"-", "no value");
    fails(b"+", "another operation");
    fails(b"!", "refused: later");
    let (head, letters) = work.records.value(7, 3);
    fails(&value(&[&head[..], letters].concat()), "only versions up to 2");
    // A read may or may not see a write that overlaps it.
    let third = work.write(Kind::Update, 7);
    assert_eq!(answer(&work, read, &value(&second)), Ok(0));
    assert_eq!(answer(&work, read, &value(&[&head[..], letters].concat())), Ok(0));
    answer(&work, third, b"+").unwrap();
    assert_eq!(answer(&work, read, &value(&second)), Ok(0), "the read was sent before");
    assert!(answer(&work, next(&work, 7).0, &value(&second)).is_err(), "this one was sent after");
}

#[test]
fn a_read_modify_write_writes_after_its_read() {
    let work = workload([0, 0, 0, 0, 1], Draws::Index);
    let stored = write(&work, 7);
    let (read, text) = next(&work, 7);
    assert_eq!(text, "get 7");
    let rows = answer(&work, read, &value(&stored)).unwrap();
    let second = work.follow_up(read, Reply::Right(rows)).unwrap();
    assert!(encoded(&work, second).starts_with("put 7 0000000007.0000000002."));
    assert_eq!(answer(&work, second, b"+"), Ok(0));
    assert!(work.follow_up(second, Reply::Right(0)).is_none());
    assert_eq!(work.ledger.floor(7), 2);
}

#[test]
fn a_scan_returns_each_key_of_its_range_in_order() {
    let work = workload([0, 0, 0, 1, 0], Draws::Index);
    let rows = |indices: &[u64]| {
        let row = |index: &u64| {
            let value = String::from_utf8(write(&work, *index)).unwrap();
            format!("{{\"key\":\"{}\",\"value\":\"{value}\"}}\n", String::from_utf8_lossy(&key(*index)))
        };
        let lines: String = indices.iter().map(row).collect();
        value(format!("{lines}{{\"count\":{}}}\n", indices.len()).as_bytes())
    };
    let (scan, text) = next(&work, 5);
    assert_eq!(text, "scan 5 1000 3");
    assert_eq!(answer(&work, scan, &rows(&[5, 6, 7])), Ok(3));
    for wrong in [&[5, 6][..], &[5, 7, 8], &[6, 7, 8], &[5, 6, 7, 8], &[]] {
        assert!(answer(&work, scan, &rows(wrong)).is_err(), "{wrong:?}");
    }
    assert_eq!(answer(&work, next(&work, KEYS - 2).0, &rows(&[KEYS - 2, KEYS - 1])), Ok(2), "the range ends");
    let stale = rows(&[5, 6, 7]);
    let text = String::from_utf8(stale).unwrap().replace("0000000006.", "0000000009.");
    assert!(answer(&work, scan, text.as_bytes()).unwrap_err().contains("row of key 6"));
}

#[test]
fn inserts_use_new_keys_and_reads_of_the_latest_follow_them() {
    let work = workload([0, 0, 1, 0, 0], Draws::Age);
    for index in KEYS..KEYS + 50 {
        let (insert, text) = next(&work, 3);
        assert!(text.starts_with(&format!("put {index} ")), "{text}");
        answer(&work, insert, b"+").unwrap();
    }
    let reads = Workload { mix: Mix::new([1, 0, 0, 0, 0]), ..work };
    let (keys, mut rng) = (KeyChooser::ranks(KEYS, 0.99), generator(5));
    let mut counts = vec![0_u32; (KEYS + 50) as usize];
    for _ in 0..100_000 {
        counts[reads.choose(keys.choose(&mut rng), &mut rng).index as usize] += 1;
    }
    let weight: f64 = (1..=KEYS).map(|rank| (rank as f64).powf(-0.99)).sum();
    for age in [0, 1, 2, 9, 49, 99] {
        let (expected, got) = (1e5 * ((age + 1) as f64).powf(-0.99) / weight, f64::from(counts[1049 - age]));
        assert!((got - expected).abs() < 6.0 * expected.sqrt(), "age {age}: {got} for {expected}");
    }
    assert_eq!(counts[..50].iter().sum::<u32>(), 0, "the oldest are beyond the number of loaded keys");
}

#[test]
fn the_load_writes_the_drawn_keys() {
    let work = Workload { phase: ScenarioPhase::Load, ..workload([1, 0, 0, 0, 0], Draws::Age) };
    let (write, text) = next(&work, 12);
    assert!(text.starts_with("put 12 0000000012.0000000001."), "{text}");
    answer(&work, write, b"+").unwrap();
    assert_eq!((work.ledger.stored(), work.ledger.floor(12)), (KEYS, 1));
}

#[test]
fn a_cache_may_forget_but_returns_nothing_older() {
    let work = workload([0, 0, 0, 0, 0, 0, 0, 0, 0, 1], Draws::Index);
    let put = |version: u32| {
        let request = work.write(Kind::CachePut, 7);
        assert_eq!(answer(&work, request, b"+"), Ok(0));
        let (head, letters) = work.records.value(7, version);
        value(&[&head[..], letters].concat())
    };
    let [first, second] = [put(1), put(2)];
    let get = || {
        let (request, text) = next(&work, 7);
        assert_eq!(text, "get 7");
        request
    };
    assert_eq!(answer(&work, get(), &second), Ok(0));
    assert_eq!(answer(&work, get(), b"-"), Ok(MISSED), "the cache may have evicted the key");
    let fault = answer(&work, get(), &first).unwrap_err();
    assert!(fault.starts_with("cache_get of key 7: version 1, and version 2 was acknowledged"), "{fault}");
    // The keyspace's key has the name of the cache's key, but is another key, so it must not be missing.
    let stored = write(&work, 7);
    assert!(answer(&work, get(), &value(&stored)).unwrap_err().contains("version 1, and version 2 was acknowledged"));
    let read = Request { kind: Kind::Read, ..get() };
    assert!(answer(&work, read, b"-").unwrap_err().contains("no value"));
    // After an acknowledged delete, no earlier value may be read.
    let deletes = Workload { mix: Mix::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), ..work.clone() };
    let (delete, text) = next(&deletes, 7);
    assert_eq!(text, "delete 7");
    let before = get();
    assert_eq!(answer(&work, delete, b"x"), Ok(0));
    assert_eq!(answer(&work, before, &second), Ok(0), "the read was sent before");
    assert_eq!(answer(&work, get(), b"-"), Ok(MISSED));
    assert!(answer(&work, get(), &second).unwrap_err().contains("version 2, and version 3 was acknowledged"));
    assert_eq!(answer(&work, get(), &put(4)), Ok(0));
    assert!(answer(&work, get(), b"x").unwrap_err().contains("another operation"));
}
