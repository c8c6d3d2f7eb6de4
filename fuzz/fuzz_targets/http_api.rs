//! Requests to every route, through the router and the handlers to a database in memory: bodies of transactions,
//! commits, consumer groups and configurations that are nearly right, and some that are not.
//!
//! Never a panic; every error is JSON with a code; nothing answers 500: that would be a bug or a broken disk.
//! A background round runs now and then, and the database goes on from input to input for a while, as a server's does.

#![no_main]

use std::{cell::RefCell, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use thalweg_engine::Database;
use thalweg_fuzz::{Input, engine::database};
use thalweg_server::{
    Config, ROUTES,
    app::App,
    http::{Http, Operation, Route, router},
};
use thalweg_types::{Durability, SystemClock};
use tokio::{runtime::Runtime, sync::watch};
use tower_service::Service;

/// Inputs after which a new database is made.
const INPUTS: u32 = 500;

struct Bench {
    db: Database,
    router: Router,
    runtime: Runtime,
    _stop: watch::Sender<bool>,
    inputs: u32,
}

impl Bench {
    fn new() -> Self {
        let db = database(Arc::new(SystemClock::default()));
        // Time stands still but for waits, which are over at once.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let (stop, stopping) = watch::channel(false);
        let config = Config { durability: Durability::Os, ..Config::default() };
        let router = runtime.block_on(async { router(&Http::new(&App::new(config, &db, stopping), Vec::new())) });
        Self { db, router, runtime, _stop: stop, inputs: 0 }
    }

    fn request(&mut self, request: Request<Body>) {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let router = &mut self.router;
        let (status, body) = self.runtime.block_on(async {
            let response = router.call(request).await.expect("it can't fail");
            let (head, body) = response.into_parts();
            // A tail or a watch goes on for ever.
            let body = tokio::time::timeout(Duration::from_secs(30), to_bytes(body, 1 << 20)).await;
            (head.status, body.ok().and_then(Result::ok))
        });
        let text = body.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{method} {uri}: {text}");
        if (status.is_client_error() || status.is_server_error()) && method != "HEAD" && body.is_some() {
            let error: Value =
                serde_json::from_str(&text).unwrap_or_else(|_| panic!("{method} {uri}: {status} {text}"));
            assert!(error["code"].is_string() && error["retry"].is_string(), "{method} {uri}: {text}");
        }
    }
}

fn pick<T: Copy>(input: &mut Input<'_>, of: &[T]) -> T {
    of[usize::from(input.byte()) % of.len()]
}

fn name(input: &mut Input<'_>) -> &'static str {
    pick(input, &["a", "b", "c", "a", "", "no such", "\u{fc}"])
}

fn text(input: &mut Input<'_>) -> &'static str {
    pick(input, &["", "k", "kk", "l", "7", "-9223372036854775808", "\u{0}", "\u{ff}\u{1f680}", "any", "none", "disk"])
}

fn number(input: &mut Input<'_>) -> Value {
    match input.byte() % 8 {
        0 => json!(input.number()),
        1 => json!(-1.5e300),
        2 => json!(1e-9),
        3 => json!(i64::MIN),
        _ => json!(input.byte() % 16),
    }
}

/// A value where any may stand.
fn anything(input: &mut Input<'_>) -> Value {
    match input.byte() % 7 {
        0 => Value::Null,
        1 => json!(true),
        2 => number(input),
        3 => json!([number(input), text(input)]),
        4 => json!({ text(input): number(input) }),
        5 => json!([]),
        _ => json!(text(input)),
    }
}

/// A list of up to so many.
fn list(input: &mut Input<'_>, most: u8, mut item: impl FnMut(&mut Input<'_>) -> Value) -> Value {
    (0..input.byte() % (most + 1)).map(|_| item(input)).collect()
}

/// Fields of which some are left out, and now and then one is replaced by anything.
fn object(input: &mut Input<'_>, fields: Vec<(&str, Value)>) -> Value {
    let mut object = Map::new();
    for (name, value) in fields {
        match input.byte() {
            0..20 => {}
            20..30 => drop(object.insert(name.to_owned(), anything(input))),
            30 => drop(object.insert(format!("{name}_base64"), json!(pick(input, &["", "/w==", "AA==", "?"])))),
            _ => drop(object.insert(name.to_owned(), value)),
        }
    }
    Value::Object(object)
}

fn expect(input: &mut Input<'_>) -> Value {
    match input.byte() % 7 {
        0 => json!("absent"),
        1 => json!("present"),
        2 => json!({ "revision": number(input) }),
        3 => json!({ "before": number(input) }),
        4 => json!({ "after": number(input) }),
        5 => json!({ "unchanged": { "end": text(input), "since": number(input), "count": number(input) } }),
        _ => json!({ "value": text(input) }),
    }
}

fn condition(input: &mut Input<'_>) -> Value {
    let fields = vec![("keyspace", json!(name(input))), ("key", json!(text(input))), ("expect", expect(input))];
    object(input, fields)
}

fn record(input: &mut Input<'_>) -> Value {
    let headers = list(input, 2, |input| json!({ "name": text(input), "value": text(input) }));
    let tombstone = json!(input.byte() % 8 == 0);
    let fields = vec![
        ("key", json!(text(input))),
        ("payload", json!(text(input))),
        ("headers", headers),
        ("tombstone", tombstone),
    ];
    object(input, fields)
}

fn settlements(input: &mut Input<'_>) -> Value {
    list(input, 3, |input| {
        let ranges = list(input, 3, |input| json!([number(input), number(input)]));
        let fields = vec![("attempt", number(input)), ("ranges", ranges)];
        object(input, fields)
    })
}

/// An operation of a transaction, or a write of a commit.
fn operation(input: &mut Input<'_>) -> Value {
    let op = pick(input, &["put", "delete", "append", "add", "delete_prefix", "get", "scan", "ack", "nack", "touch"]);
    let key = json!(text(input));
    let mut fields = vec![("op", json!(op))];
    match op {
        "append" => {
            let producer = json!({ "id": name(input), "epoch": number(input), "sequence": number(input) });
            let expected = if input.byte() % 2 == 0 { number(input) } else { json!(text(input)) };
            fields.extend([("stream", json!(name(input))), ("records", list(input, 3, record))]);
            match input.byte() % 4 {
                0 => fields.push(("expected", expected)),
                1 => fields.push(("producer", producer)),
                _ => {}
            }
        }
        "ack" | "nack" => {
            fields.extend([("stream", json!(name(input))), ("group", json!(name(input)))]);
            fields.push(("attempts", settlements(input)));
            if op == "nack" {
                fields.extend([("delay_seconds", number(input)), ("reason", json!(text(input)))]);
            }
        }
        _ => {
            fields.push(("keyspace", json!(name(input))));
            match op {
                "put" => fields.extend([("key", key), ("value", json!(text(input)))]),
                "add" => fields.extend([("key", key), ("delta", number(input))]),
                "delete_prefix" => fields.push(("prefix", key)),
                "scan" => {
                    fields.extend([("prefix", key), ("start", json!(text(input))), ("end", json!(text(input)))]);
                    fields.extend([("limit", number(input)), ("reverse", json!(true)), ("keys_only", json!(false))]);
                }
                _ => fields.push(("key", key)),
            }
        }
    }
    object(input, fields)
}

fn start(input: &mut Input<'_>) -> Value {
    match input.byte() % 4 {
        0 => json!("start"),
        1 => json!("end"),
        2 => json!({ "offset": number(input) }),
        _ => json!({ "time_micros": number(input) }),
    }
}

/// A body as the operation takes it, more or less; `None`: bytes of the input.
fn body(operation_of: Operation, input: &mut Input<'_>) -> Option<Value> {
    let fields = match operation_of {
        Operation::Transaction => vec![
            ("conditions", list(input, 2, condition)),
            ("then", list(input, 4, operation)),
            ("else", list(input, 2, operation)),
        ],
        Operation::Commit => vec![("conditions", list(input, 2, condition)), ("writes", list(input, 4, operation))],
        Operation::StreamAppend => vec![("records", list(input, 4, record))],
        Operation::StreamCreate | Operation::StreamPatch => vec![
            ("max_age_seconds", number(input)),
            ("max_bytes", number(input)),
            ("max_records", number(input)),
            ("max_record_bytes", number(input)),
            ("compaction", json!({ "tombstone_grace_seconds": number(input) })),
        ],
        Operation::StreamTrim => vec![("before", number(input))],
        Operation::KeyspaceCreate | Operation::KeyspacePatch => {
            vec![("exact_counts", json!(input.byte() % 2 == 0)), ("default_ttl_seconds", number(input))]
        }
        Operation::GroupCreate | Operation::GroupPatch => vec![
            ("order", json!(pick(input, &["competing", "per_key"]))),
            ("ack_deadline_seconds", number(input)),
            ("max_deliveries", number(input)),
            ("max_pending", number(input)),
            ("dead_letters", json!(name(input))),
            ("start", start(input)),
        ],
        Operation::GroupFetch => vec![
            ("member", json!(name(input))),
            ("max_records", number(input)),
            ("max_bytes", number(input)),
            ("wait_seconds", number(input)),
        ],
        Operation::GroupAck => vec![("attempts", settlements(input))],
        Operation::GroupNack => vec![
            ("attempts", settlements(input)),
            ("delay_seconds", number(input)),
            ("reject", json!(input.byte() % 2 == 0)),
            ("uncounted", json!(input.byte() % 2 == 0)),
            ("reason", json!(text(input))),
        ],
        Operation::GroupExtend => vec![("attempts", list(input, 3, number)), ("by_seconds", number(input))],
        Operation::GroupSeek => vec![("to", start(input))],
        _ => return None,
    };
    Some(object(input, fields))
}

/// A template with names in the place of its parameters.
fn target(route: &Route, input: &mut Input<'_>) -> String {
    let mut target = String::new();
    for part in route.path.split('/').skip(1) {
        target.push('/');
        match part {
            "{*key}" => target.push_str(pick(input, &["k", "kk", "l", "%FF", "%", "7", "a/b", "range"])),
            part if part.starts_with('{') => target.push_str(pick(input, &["a", "b", "c", "a", "%C3%BC", "%zz", "."])),
            part => target.push_str(part),
        }
    }
    let queries = [
        "",
        "",
        "",
        "prefix=",
        "prefix=k",
        "add=5",
        "limit=2",
        "from=0",
        "from=end",
        "since=0",
        "last=3",
        "cursor=_w",
        "expected=none",
        "producer=p&sequence=0",
        "producer=p&sequence=1&epoch=1",
        "key=k",
        "start=a&end=l&reverse",
        "max_bytes=0",
        "keys_only",
        "from=1&limit=3",
        "wait=1",
        "revision=1",
    ];
    let query = pick(input, &queries);
    if !query.is_empty() {
        target.push('?');
        target.push_str(query);
    }
    target
}

fn request(input: &mut Input<'_>) -> Option<Request<Body>> {
    let route = &ROUTES[usize::from(input.byte()) % ROUTES.len()];
    let mut request = Request::builder().method(route.method).uri(target(route, input));
    let body = body(route.operation, input);
    if let Some(media) = pick(
        input,
        &[None, None, None, Some("application/json"), Some("application/x-ndjson"), Some("application/octet-stream")],
    ) {
        request = request.header("content-type", media).header("accept", media);
    } else if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    if input.byte() % 16 == 0 {
        request = request.header("thalweg-durability", text(input));
    }
    match input.byte() {
        0..16 => request = request.header("if-match", pick(input, &["*", "\"1\"", "\"18446744073709551615\"", "x"])),
        16..24 => request = request.header("if-none-match", "*"),
        24..48 => request = request.header("thalweg-ttl", pick(input, &["0.001", "30", "1e300", "-1", "nan", "0"])),
        _ => {}
    }
    let body = match body {
        Some(body) if input.byte() > 8 => Body::from(body.to_string()),
        _ => Body::from(input.bytes().to_vec()),
    };
    request.body(body).ok()
}

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    BENCH.with_borrow_mut(|kept| {
        let bench = kept.get_or_insert_with(Bench::new);
        let mut input = Input(data);
        while !input.is_empty() {
            if let Some(request) = request(&mut input) {
                bench.request(request);
            }
        }
        bench.inputs += 1;
        if bench.inputs % 16 == 0 {
            bench.db.maintain().expect("a round of maintenance");
        }
        if bench.inputs == INPUTS {
            bench.db.close().expect("a clean end");
            *kept = None;
        }
    });
});
