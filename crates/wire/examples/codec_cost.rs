//! Measures the cost of encoding and decoding frames of the native protocol, in nanoseconds per frame and per message
//! of a batch.
//!
//! `cargo run --release -p thalweg-wire --example codec_cost`
//!
//! Each case is measured 200 times, for about a millisecond each, and the cases alternate. The printed time of a case
//! is the lower quartile of its 200 results. A measurement is shorter than a time slice of the scheduler, so other
//! programs disturb only some of them. Buffers are warm and reused, like those of a connection.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use thalweg_types::{
    Durability, KeyspaceId, Offset, Revision, SpaceTime, StreamId,
    command::{encode_append, encode_put},
    record::RecordBatch,
};
use thalweg_wire::{
    Batch, BatchWriter, CacheExpect, CacheGet, CachePut, CacheTtl, CacheValue, Checksum, ClientCommand, ClientFrame,
    Committed, Decoder, Frame, Get, Kind, Level, List, Messages, RawFrame, RecordRun, Records, RemainingBytes,
    ServerFrame, Session, Values, Write,
    batch::{put_deliver_prefix, put_publish_prefix},
    put_write,
};

const MESSAGES: usize = 64;
const PAYLOAD: [u8; 128] = [0x5a; 128];
const ROUNDS: usize = 200;
const ROUND: Duration = Duration::from_millis(1);

struct Case<'c> {
    name: &'static str,
    /// Number of messages in the frame that `run` handles; 1 for a frame without a batch. It converts the time for a
    /// frame to the time for a message.
    per: usize,
    run: Box<dyn FnMut() + 'c>,
    nanos: Vec<f64>,
}

impl Case<'_> {
    fn round(&mut self) {
        let begin = Instant::now();
        let mut runs: u32 = 0;
        while begin.elapsed() < ROUND {
            for _ in 0..256 {
                (self.run)();
            }
            runs += 256;
        }
        self.nanos.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(runs));
    }
}

#[derive(Default)]
struct Cases<'c>(Vec<Case<'c>>);

impl<'c> Cases<'c> {
    fn add(&mut self, name: &'static str, per: usize, run: impl FnMut() + 'c) {
        self.0.push(Case { name, per, run: Box::new(run), nanos: Vec::new() });
    }

    /// Adds a case that feeds `bytes`, an encoded frame, to a decoder and passes the decoded frame to `look`.
    fn decode(&mut self, name: &'static str, per: usize, bytes: &'c [u8], look: impl Fn(RawFrame<'_>) + 'c) {
        let mut decoder = decoder();
        self.add(name, per, move || {
            decoder.feed(bytes);
            look(decoder.next_borrowed().expect("a frame below the limit").expect("a whole frame"));
        });
    }

    fn measure(mut self) {
        for _ in 0..ROUNDS {
            self.0.iter_mut().for_each(Case::round);
        }
        println!("{:52} {:>10} {:>10}", "", "ns a frame", "ns each");
        for case in &mut self.0 {
            case.nanos.sort_by(f64::total_cmp);
            let frame = case.nanos[ROUNDS / 4];
            let each = if case.per > 1 { format!("{:10.2}", frame / case.per as f64) } else { String::new() };
            println!("{:52} {frame:10.1} {each}", case.name);
        }
    }
}

fn frame<'a>(frame: &impl Frame<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out, 7).expect("a small frame");
    out
}

fn decoder() -> Decoder {
    let mut decoder = Decoder::new();
    decoder.set_max_bytes(1 << 24);
    decoder
}

fn look(messages: Messages<'_>) {
    let sum: usize = messages.map(|message| black_box(message.expect("a message").payload).len()).sum();
    assert_eq!(sum, MESSAGES * PAYLOAD.len());
}

fn wrong() -> ! {
    unreachable!("this program encodes the frames, so their kinds are known")
}

fn fill(writer: &mut BatchWriter) {
    writer.clear();
    for _ in 0..MESSAGES {
        writer.push_payload(black_box(&PAYLOAD)).expect("a small batch");
    }
}

#[allow(clippy::too_many_lines, reason = "a list of cases")]
fn main() {
    let batch = |checksum| {
        let mut writer = BatchWriter::new(b"orders.eu", b"").expect("a subject");
        fill(&mut writer);
        writer.into_shared(checksum).expect("messages").bytes
    };
    let (plain, summed) = (batch(Checksum::Without), batch(Checksum::Crc32c));
    let mut records = RecordBatch::new();
    (0..MESSAGES).for_each(|_| records.push_payload(&PAYLOAD).expect("a small batch"));
    let mut append = Vec::new();
    encode_append(&mut append, StreamId(1), None, &records);
    let mut put = Vec::new();
    encode_put(&mut put, KeyspaceId(1), b"key-0000000017", &PAYLOAD).expect("a small put");

    let mut deliver = Vec::new();
    put_deliver_prefix(&mut deliver, [5].into_iter(), plain.len()).expect("a small frame");
    deliver.extend_from_slice(&plain);
    let mut publish = Vec::new();
    put_publish_prefix(&mut publish, 0, plain.len()).expect("a small frame");
    publish.extend_from_slice(&plain);
    let write_append = frame(&Write { level: Level(None), command: RemainingBytes(&append) });
    let write_put = frame(&Write { level: Level(None), command: RemainingBytes(&put) });
    let runs = [RecordRun { first: Offset(0), time: SpaceTime(1), count: MESSAGES as u32, records: records.bytes() }];
    let read = Records {
        durability: Durability::Disk,
        next: Offset(64),
        high_watermark: Offset(64),
        runs: List::Items(&runs),
    };
    let read_bytes = frame(&read);
    let get = CacheGet { cache: 1, key: RemainingBytes(b"key-0000000017") };
    let get_bytes = frame(&get);
    let value = CacheValue { version: 3, remaining: u64::MAX, value: RemainingBytes(&PAYLOAD) };
    let value_bytes = frame(&value);
    let cache_put = CachePut {
        cache: 1,
        expect: CacheExpect::Any {},
        ttl: CacheTtl::After { micros: 60_000_000 },
        key: b"key-0000000017",
        value: RemainingBytes(&PAYLOAD),
    };
    let cache_put_bytes = frame(&cache_put);
    let kv_get = Get {
        keyspace: KeyspaceId(1),
        revision: Revision(0),
        values: Values::Include,
        key: RemainingBytes(b"key-0000000017"),
    };
    let kv_get_bytes = frame(&kv_get);
    let committed =
        Committed { durability: Durability::Disk, duplicate: false, revision: Revision(9), appends: List::default() };
    let committed_bytes = frame(&committed);

    let mut cases = Cases::default();
    let (mut writer, mut out) = (BatchWriter::new(b"orders.eu", b"").expect("a subject"), Vec::new());
    cases.add("publish: encode a batch of 64 x 128 B", MESSAGES, move || {
        fill(&mut writer);
        let encoded = writer.encoded(Checksum::Without).expect("messages");
        out.clear();
        put_publish_prefix(&mut out, 0, encoded.len()).expect("a small frame");
        black_box((encoded, &out));
    });
    let mut writer = BatchWriter::new(b"orders.eu", b"").expect("a subject");
    cases.add("  the same with CRC-32C", MESSAGES, move || {
        fill(&mut writer);
        black_box(writer.encoded(Checksum::Crc32c));
    });
    let (mut decoded, bytes) = (decoder(), &publish);
    cases.add("publish: decode, check, share", MESSAGES, move || {
        decoded.feed(bytes);
        let shared = decoded.next_shared().expect("a small frame").expect("a whole frame");
        let ClientFrame::Publish(publish) = ClientFrame::decode(shared.raw()).expect("a frame").frame else { wrong() };
        for bytes in publish.batches.iter() {
            Batch::decode(bytes).and_then(|batch| batch.check()).expect("a batch");
            black_box(shared.share(bytes));
        }
    });
    let (mut out, len) = (Vec::new(), plain.len());
    cases.add("deliver: the prefix for a connection", 1, move || {
        out.clear();
        put_deliver_prefix(&mut out, black_box([5]).into_iter(), len).expect("a small frame");
        black_box(&out);
    });
    cases.decode("deliver: decode, look at all 64", MESSAGES, &deliver, |raw| {
        let ServerFrame::Deliver(deliver) = ServerFrame::decode(raw).expect("a frame").frame else { wrong() };
        look(Batch::decode(deliver.batch.0).expect("a batch").messages());
    });
    cases.decode("  share of feeding 8.5 KB by copying", MESSAGES, &deliver, |raw| _ = black_box(raw));
    cases.add("  a batch's CRC-32C compared", MESSAGES, || {
        Batch::decode(black_box(&summed)).and_then(|batch| batch.check_crc()).expect("a correct checksum");
    });
    let (mut batch, mut out) = (RecordBatch::new(), Vec::new());
    cases.add("append: encode 64 x 128 B", MESSAGES, move || {
        batch.clear();
        (0..MESSAGES).for_each(|_| batch.push_payload(black_box(&PAYLOAD)).expect("a small batch"));
        out.clear();
        let append = |out: &mut Vec<u8>| {
            encode_append(out, StreamId(1), None, &batch);
            Ok(())
        };
        put_write(&mut out, 7, Level(None), append).expect("a small frame");
        black_box(&out);
    });
    let check_command = |raw: RawFrame<'_>| {
        let ClientFrame::Write(write) = ClientFrame::decode(raw).expect("a frame").frame else { wrong() };
        black_box(ClientCommand::check(write.command.0).expect("a command"));
    };
    cases.decode("append: decode, check", MESSAGES, &write_append, check_command);
    let (page, mut out) = (&read, Vec::new());
    cases.add("records: encode a page of 64 x 128 B", MESSAGES, move || {
        out.clear();
        page.encode(&mut out, 7).expect("a small frame");
        black_box(&out);
    });
    cases.decode("records: decode, look at all 64", MESSAGES, &read_bytes, |raw| {
        let ServerFrame::Records(records) = ServerFrame::decode(raw).expect("a frame").frame else { wrong() };
        records.runs.iter().for_each(|run| look(Messages::new(run.records)));
    });

    macro_rules! single {
        ($name:literal, $frame:expr, $bytes:expr, $side:ident) => {
            let (frame, mut out) = (&$frame, Vec::new());
            cases.add(concat!($name, ": encode"), 1, move || {
                out.clear();
                black_box(frame).encode(&mut out, 7).expect("a small frame");
                black_box(&out);
            });
            cases.decode(concat!($name, ": decode"), 1, &$bytes, |raw| {
                black_box($side::decode(raw).expect("a frame"));
            });
        };
    }
    single!("cache get", get, get_bytes, ClientFrame);
    single!("cache value of 128 B", value, value_bytes, ServerFrame);
    single!("cache put of 128 B", cache_put, cache_put_bytes, ClientFrame);
    single!("get", kv_get, kv_get_bytes, ClientFrame);
    single!("committed", committed, committed_bytes, ServerFrame);
    cases.decode("share of each case: feed the bytes, find the frame", 1, &get_bytes, |raw| _ = black_box(raw));
    cases.decode("put of 128 B: decode, check", 1, &write_put, check_command);
    let (mut decoded, bytes) = (decoder(), &get_bytes);
    cases.add("cache get: decode as a shared frame", 1, move || {
        decoded.feed(bytes);
        let shared = decoded.next_shared().expect("a small frame").expect("a whole frame");
        black_box(ClientFrame::decode(shared.raw()).expect("a frame"));
    });
    let mut session = Session::new(1024, 1024);
    cases.add("session: assign an id, route its reply", 1, move || {
        let id = session.request(black_box(5_u64)).expect("room");
        _ = black_box(session.route(Kind::CacheValue, id).expect("its reply"));
    });
    cases.measure();
}
