//! Names of requests in log lines: the ids of requests of Redis clients, and the names that native clients give.

use std::{
    fmt::{Debug, Write as _},
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Instant,
};

use thalweg_disk::{
    SimDisk,
    sim::{Errno, Fault, Operation},
};
use thalweg_engine::Database;
use thalweg_types::{Durability, Offset, StreamId, SystemClock};
use thalweg_wire::{Cancel, CancelMode, Fields, Kind, Position, ServerFrame, Tail};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::Interest,
};

use crate::{
    ALONE, expect,
    support::{
        Node, PATIENCE, config, eventually,
        native::UNLIMITED,
        pause,
        resp::{Resp, serving},
        small_options,
    },
};

static IS_COLLECTING: AtomicBool = AtomicBool::new(false);
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Collects the log lines of this process that have a request id, as `LEVEL name=value ...`, while it exists.
struct Collecting;

impl Collecting {
    fn start() -> Self {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| tracing::subscriber::set_global_default(Collector).unwrap());
        LINES.lock().unwrap().clear();
        IS_COLLECTING.store(true, SeqCst);
        Self
    }

    /// Returns the lines of the request with this id so far.
    fn of(&self, request_id: &str) -> Vec<String> {
        let part = format!(" request_id={request_id} ");
        LINES.lock().unwrap().iter().filter(|line| line.contains(&part)).cloned().collect()
    }

    /// Waits until a line of the request with this id has all parts.
    async fn until(&self, request_id: &str, parts: &[&str]) {
        let begun = Instant::now();
        while !self.of(request_id).iter().any(|line| parts.iter().all(|part| line.contains(part))) {
            let lines = LINES.lock().unwrap().clone();
            assert!(begun.elapsed() < PATIENCE, "no line of {request_id} with {parts:?} in {lines:#?}");
            pause().await;
        }
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        IS_COLLECTING.store(false, SeqCst);
    }
}

struct Collector;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Collector {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        IS_COLLECTING.load(SeqCst) && metadata.fields().field("request_id").is_some()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        LINES.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Starts a node that serves native and Redis clients over a simulated disk.
async fn node() -> (Node, SimDisk) {
    let mut config = config();
    serving(&mut config);
    let disk = SimDisk::new(1);
    let clock = Arc::new(SystemClock::default());
    let db = Database::open_on(Arc::new(disk.clone()), clock, 1, small_options(&config)).unwrap();
    (Node::over(config, db).await, disk)
}

/// Makes all further reads of the log fail.
fn fail_reads(disk: &SimDisk) {
    disk.fail(Fault::new(Operation::Read, 1, Errno::Io).on_path("log/").for_good());
}

#[tokio::test]
async fn log_lines_about_redis_clients_name_the_client_and_its_request() {
    let _alone = ALONE.lock().await;
    let (node, disk) = node().await;
    let lines = Collecting::start();
    let mut client = Resp::connect(&node).await;
    let id = client.call("CLIENT ID").await.trim_start_matches(':').to_owned();
    let large = "x".repeat(500_000);
    assert_eq!(client.pipeline(&["SET a 1", &format!("SET large {large}"), "GET a"]).await, ["+OK", "+OK", "$1 1"]);
    for (number, command) in ["client|id", "set", "set", "get"].iter().enumerate() {
        lines.until(&format!("{id}-{}", number + 1), &["DEBUG", &format!("command={command:?} ")]).await;
    }
    // Another client counts its own requests.
    let mut other = Resp::connect(&node).await;
    let other_id = other.call("CLIENT ID").await.trim_start_matches(':').to_owned();
    assert_ne!(other_id, id);
    lines.until(&format!("{other_id}-1"), &["DEBUG", "command=\"client|id\" "]).await;
    // An error of the client is no line of its own; a failure of the server is.
    assert!(client.call("INCR large").await.starts_with("-ERR"));
    fail_reads(&disk);
    assert!(client.call("GET large").await.starts_with('-'));
    lines.until(&format!("{id}-6"), &["WARN", "peer=127.0.0.1:"]).await;
    assert!(lines.of(&format!("{id}-5")).iter().all(|line| line.starts_with("DEBUG")));
    // So is the end of a connection whose client does not speak the protocol.
    other.send(b"POST / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    other.rest().await;
    lines.until(&format!("{other_id}-2"), &["WARN", "peer=127.0.0.1:"]).await;
    disk.clear_faults();
    node.stop().await;
}

#[tokio::test]
async fn log_lines_about_native_subscriptions_have_the_name_that_the_client_gave() {
    let _alone = ALONE.lock().await;
    let (node, disk) = node().await;
    let lines = Collecting::start();
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    for _ in 0..4 {
        raw.append(stream, &[&[b'x'; 400_000]]).await;
    }
    let named = |trace: &'static str| Fields { trace: Some(trace), ..Fields::default() };
    let tail = |stream| Tail { stream, from: Position::Start {}, permit: UNLIMITED };

    // A subscription that begins, and one that is refused.
    raw.put_with(1, &named("job-7"), &tail(stream));
    raw.send_with(2, &named("job\n8"), &tail(StreamId(99))).await;
    lines.until("job-7", &["DEBUG", "kind=\"tail\" good=true"]).await;
    lines.until("job\\n8", &["DEBUG", "kind=\"tail\" good=false"]).await;
    let (mut next, mut refused) = (0, false);
    while next < 4 || !refused {
        let frame = raw.next().await;
        let envelope = ServerFrame::decode(frame.raw()).unwrap();
        match (envelope.id, envelope.frame) {
            (1, ServerFrame::Tailing(_)) => {}
            (1, ServerFrame::Tailed(tailed)) => next = tailed.next.0,
            (2, ServerFrame::Failed(failed)) => {
                assert_eq!((failed.code, envelope.fields.trace), ("no_such_stream", Some("job\n8")));
                refused = true;
            }
            other => panic!("{other:?}"),
        }
    }
    // The client ends the first. That is no fault, so it is not logged as one.
    raw.send(1, &Cancel { mode: CancelMode::Now }).await;
    expect!(raw, 1, ServerFrame::Ended(ended) => assert_eq!(ended.code, "cancelled"));
    assert!(lines.of("job-7").iter().all(|line| line.starts_with("DEBUG")));

    // The server fails under subscriptions that have begun, one with a name and one without.
    fail_reads(&disk);
    let from = Position::Offset { offset: Offset(0) };
    raw.send_with(3, &named("job-9"), &Tail { from, ..tail(stream) }).await;
    expect!(raw, 3, ServerFrame::Tailing(_) => ());
    let code = expect!(raw, 3, ServerFrame::Ended(ended) => ended.code.to_owned());
    let code = format!("code={code:?} ");
    lines.until("job-9", &["WARN", "peer=127.0.0.1:", &code]).await;
    raw.ask(4, &tail(stream), Kind::Tailing).await;
    expect!(raw, 4, ServerFrame::Ended(_) => ());
    let begun = lines.of("job-9").len();
    let unnamed = || LINES.lock().unwrap().iter().filter(|line| line.contains("-4 ") && line.contains(&code)).count();
    eventually("the request without a name is logged by its number", async || unnamed() > 0).await;
    assert_eq!(lines.of("job-9").len(), begun);
    disk.clear_faults();
    let keyspace = raw.keyspace("k").await;
    raw.send_command(5, Durability::Os, |out| thalweg_types::command::encode_put(out, keyspace, b"k", b"v").unwrap())
        .await;
    expect!(raw, 5, ServerFrame::Committed(_) => ());
    node.stop().await;
}
