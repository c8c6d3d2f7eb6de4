//! Tests with connections and clients on one thread. The test polls the connections itself, so between two of its steps
//! nothing else runs.

use std::{
    cell::Cell,
    future::poll_fn,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
};

use thalweg_engine::{Database, Options, Origin};
use thalweg_redis::{Read, StoreError};
use thalweg_serving::{
    admission::AddressKey,
    app::App,
    bulk::{ROUND_BYTES, SLICE},
    config::{ByteSize, Config, Password, RespDatabases, Setting as _},
    fetched::RowFetcher,
    limits::OUTBOX_BYTES,
    threads::ThreadLoad,
};
use thalweg_types::{budget, steps::SHORT_READ};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::*;
use crate::{
    Resp,
    commands::Commands,
    database::{self, Batched, PendingOutcome, Watched},
    databases::Databases,
    failure::Failure,
    metrics::Metrics,
    pubsub::Publishing,
};

const READERS: usize = 100;
const MESSAGES: usize = 2;
const MESSAGE: usize = 1 << 20;

struct Thread {
    resp: Arc<Resp>,
    turns: Arc<BulkTurns>,
    listener: TcpListener,
    _stop: watch::Sender<bool>,
    _dir: tempfile::TempDir,
}

impl Thread {
    async fn start(databases: &str) -> Self {
        Self::with(databases, |_| ()).await
    }

    async fn with(databases: &str, configure: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open(dir.path(), Options::default()).unwrap();
        let databases = RespDatabases::parse(databases).unwrap();
        let mut config = Config { resp_databases: databases, ..Config::default() };
        configure(&mut config);
        let (stop, stopping) = watch::channel(false);
        let app = App::new(config, &db, stopping);
        let databases = Databases::open(&app).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let turns = BulkTurns::new(ROUND_BYTES, &Arc::default());
        let resp = Resp::new(&app, databases, Arc::new(Metrics::default()));
        Self { resp, turns, listener, _stop: stop, _dir: dir }
    }

    /// Replaces the first database, which must be a keyspace, by one whose reads take long, or wait for the disk.
    /// Returns the new database.
    fn lengthen_reads(&mut self, is_cold: bool) -> Arc<LongKeyspace> {
        let mut databases = self.resp.databases.clone();
        let database::Database::Batched(inner) = databases.list[0].database.clone() else { panic!("a keyspace") };
        let serving = thread::current().id();
        let (unbounded, disk) = (AtomicUsize::new(0), SlowDisk::default());
        let long = Arc::new(LongKeyspace { inner, serving, is_cold, unbounded, disk });
        databases.list[0].database = database::Database::Batched(Arc::clone(&long) as Arc<dyn Batched>);
        self.resp = Resp::new(&self.resp.app, databases, Arc::new(Metrics::default()));
        long
    }

    async fn connect(&self) -> TcpStream {
        let (client, mut connection) = self.accept().await;
        tokio::spawn(async move { poll_fn(|cx| connection.poll(cx)).await });
        client
    }

    /// Connects a client, whose connection the test polls itself.
    async fn accept(&self) -> (TcpStream, Connection) {
        let (client, stream) = self.connected().await;
        (client, self.connection(stream))
    }

    /// Connects a client, and returns both ends.
    async fn connected(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        (client, self.listener.accept().await.unwrap().0)
    }

    /// Creates the connection of an accepted client, and takes a slot for it.
    fn connection(&self, stream: TcpStream) -> Connection {
        let (app, peer) = (&self.resp.app, stream.peer_addr().unwrap());
        let account = app.admission.account(AddressKey::of(peer.ip()));
        let must_authenticate = self.resp.first_trust() == Trust::Unknown;
        let slots = if must_authenticate { &app.slots.half_open } else { &app.slots.silent };
        let place = slots.enter(account.address(), app.slots.connect(&account));
        let local = stream.local_addr().unwrap();
        let registered = self.resp.clients.add(peer, local, Instant::now());
        let session = Session::new(&self.resp, account, registered, ThreadLoad::default());
        Connection::new(session, Channel::tcp(stream), place, &self.turns)
    }

    async fn subscribe(&self) -> TcpStream {
        let mut client = self.connect().await;
        client.write_all(b"SUBSCRIBE c\r\n").await.unwrap();
        let mut reply = vec![0; b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n".len()];
        client.read_exact(&mut reply).await.unwrap();
        client
    }

    fn sent(&self) -> usize {
        self.turns.counters().bytes() as usize
    }
}

/// A keyspace whose reads always take more work than a serving thread permits, or never find their rows in memory.
#[derive(Debug)]
struct LongKeyspace {
    inner: Arc<dyn Batched>,
    /// Thread that serves the clients.
    serving: ThreadId,
    is_cold: bool,
    /// Number of reads on the thread of the clients that ran without a limit or waited for the disk. It must stay 0.
    unbounded: AtomicUsize,
    disk: SlowDisk,
}

/// Simulated disk on which reads of reader threads wait until the test lets them continue.
#[derive(Debug, Default)]
struct SlowDisk {
    is_stuck: Mutex<bool>,
    goes_on: Condvar,
    /// Number of reads that have begun to wait on the simulated disk.
    waits: AtomicUsize,
}

impl SlowDisk {
    fn wait(&self) {
        let is_stuck = self.is_stuck.lock().unwrap();
        self.waits.fetch_add(1, Ordering::Relaxed);
        drop(self.goes_on.wait_while(is_stuck, |is_stuck| *is_stuck).unwrap());
    }

    fn set_stuck(&self, is_stuck: bool) {
        *self.is_stuck.lock().unwrap() = is_stuck;
        self.goes_on.notify_all();
    }

    fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }
}

impl Batched for LongKeyspace {
    fn read(&self, act: &mut dyn FnMut(&dyn Read) -> Result<(), StoreError>) -> Result<(), Failure> {
        let is_serving = thread::current().id() == self.serving;
        let note = || {
            if is_serving {
                self.unbounded.fetch_add(1, Ordering::Relaxed);
            }
        };
        if self.is_cold {
            let waiting = || {
                note();
                if !is_serving {
                    self.disk.wait();
                }
            };
            let _ = budget::read_file(|| None, waiting);
            return self.inner.read(act);
        }
        if !budget::is_bounded() {
            note();
        }
        let _ = budget::charge(SHORT_READ);
        self.inner.read(act)
    }

    fn propose(
        &self,
        origin: &Origin,
        fetcher: RowFetcher<'_>,
        commands: &Commands,
        watched: &[Watched],
    ) -> PendingOutcome {
        self.inner.propose(origin, fetcher, commands, watched)
    }
}

#[tokio::test]
async fn a_client_that_has_sent_its_password_keeps_its_connection_although_it_lost_its_slot() {
    let thread = Thread::with("0=cache:redis", |config| {
        config.resp_password = Password::parse("secret").unwrap();
        config.max_handshakes = 1;
    })
    .await;
    let is_over = |connection: &mut Connection| {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        connection.poll(&mut cx).is_ready()
    };
    let (mut prompt, mut connection) = thread.accept().await;
    prompt.write_all(b"AUTH secret\r\n").await.unwrap();
    // The next one takes the slot before the thread has read the password. It says nothing, and loses its slot as well.
    let (_silent, mut silent_connection) = thread.accept().await;
    let (mut wrong, mut wrong_connection) = thread.accept().await;
    wrong.write_all(b"AUTH wrong\r\n").await.unwrap();
    let (_last, mut last_connection) = thread.accept().await;
    assert!(!is_over(&mut connection) && is_over(&mut silent_connection) && !is_over(&mut last_connection));
    assert!(is_over(&mut wrong_connection));
    let mut reply = [0; 5];
    prompt.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"+OK\r\n");
    assert!(!is_over(&mut connection));
}

/// The task of a connection takes the socket over from the thread that accepted it, and the runtime of its thread
/// learns of received bytes later than the task's first poll.
#[tokio::test]
async fn a_client_without_its_slot_is_closed_only_after_its_first_bytes_were_read() {
    let thread = Thread::with("0=cache:redis", |config| {
        config.resp_password = Password::parse("secret").unwrap();
        config.max_handshakes = 1;
    })
    .await;
    let (mut prompt, prompt_end) = thread.connected().await;
    let (mut wrong, wrong_end) = thread.connected().await;
    let (_last, last_end) = thread.connected().await;
    prompt.write_all(b"AUTH secret\r\n").await.unwrap();
    wrong.write_all(b"AUTH wrong\r\n").await.unwrap();
    prompt_end.readable().await.unwrap();
    wrong_end.readable().await.unwrap();
    let taken_over = |stream: TcpStream| thread.connection(TcpStream::from_std(stream.into_std().unwrap()).unwrap());
    let (mut prompt_connection, mut wrong_connection) = (taken_over(prompt_end), taken_over(wrong_end));
    let _last_connection = taken_over(last_end);
    for connection in [&mut prompt_connection, &mut wrong_connection] {
        let polled = connection.poll(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(polled.is_pending(), "closed before its password was read");
    }
    let mut reply = [0; 5];
    tokio::select! {
        () = poll_fn(|cx| prompt_connection.poll(cx)) => panic!("the client is authenticated"),
        read = prompt.read_exact(&mut reply) => assert_eq!(read.unwrap(), reply.len()),
    }
    assert_eq!(&reply, b"+OK\r\n");
    poll_fn(|cx| wrong_connection.poll(cx)).await;
}

#[tokio::test]
async fn requests_are_answered_between_slices_of_deliveries() {
    let thread = Thread::start("0=cache:redis").await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(thread.subscribe().await);
    }
    let mut other = thread.connect().await;
    let before = thread.sent();
    for _ in 0..MESSAGES {
        let batch = Publishing::default().begin(b"c", &vec![b'm'; MESSAGE]).unwrap().finish().unwrap();
        assert_eq!(thread.resp.app.views.broker.publish_now(&batch).delivered, READERS as u64);
    }
    for _ in 0..10 {
        let before = thread.sent();
        other.write_all(b"PING\r\n").await.unwrap();
        let mut pong = [0; 7];
        other.read_exact(&mut pong).await.unwrap();
        let sent = thread.sent() - before;
        assert!(sent <= 4 * ROUND_BYTES, "{sent} bytes before a request was answered");
    }
    let filled = thread.sent() - before;
    assert!((ROUND_BYTES..120 << 20).contains(&filled), "{filled}: deliveries had begun, and were not complete");
    let mut message = vec![0; MESSAGE];
    for reader in &mut readers {
        for _ in 0..MESSAGES {
            reader.read_exact(&mut message).await.unwrap();
        }
    }
    assert!(thread.sent() - before >= READERS * MESSAGES * MESSAGE);
}

#[tokio::test]
async fn a_client_goes_on_after_its_thread_was_interrupted_without_a_command() {
    let thread = Thread::start("0=cache:redis").await;
    let (mut client, mut connection) = thread.accept().await;
    client.write_all(b"*1\r\n$4\r\nPI").await.unwrap();
    while connection.input.pending_bytes() == 0 {
        assert!(poll_fn(|cx| Poll::Ready(connection.poll(cx))).await.is_pending());
        tokio::task::yield_now().await;
    }
    // As after an interruption that is longer than a slice.
    connection.socket.now -= 10 * SLICE;
    let Connection { session, input, socket, out, .. } = &mut connection;
    assert!(session.run_received(input, socket, out), "the client needs a turn, for which it must ask");
    assert!(!session.listens());
    client.write_all(b"NG\r\n").await.unwrap();
    tokio::spawn(async move { poll_fn(|cx| connection.poll(cx)).await });
    let mut pong = [0; 7];
    client.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
}

#[tokio::test]
async fn a_publisher_of_many_deliveries_takes_turns_with_its_subscribers() {
    let thread = Thread::start("0=cache:redis").await;
    let mut publisher = thread.connect().await;
    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(thread.subscribe().await);
    }
    // All that is published arrives: 64 MiB for each, twice as much as a queue holds.
    let messages = 256;
    let payload = vec![b'm'; 256 * 1024];
    let command = [&b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$262144\r\n"[..], &payload, b"\r\n"].concat();
    let each = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$262144\r\n".len() + payload.len() + 2;
    let tasks: Vec<_> = readers
        .into_iter()
        .map(|mut reader| {
            tokio::spawn(async move {
                let mut message = vec![0; each];
                for _ in 0..messages {
                    reader.read_exact(&mut message).await.unwrap();
                }
            })
        })
        .collect();
    let mut reply = [0; b":20\r\n".len()];
    for _ in 0..messages {
        publisher.write_all(&command).await.unwrap();
        publisher.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b":20\r\n");
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(thread.turns.counters().rounds() > 0);
}

#[tokio::test]
async fn all_requests_before_the_end_of_the_input_are_answered() {
    let thread = Thread::start("0=keyspace:redis").await;
    let mut client = thread.connect().await;
    // The end arrives while the first commands wait for their commit, and the others for the first.
    let value = "v".repeat(1000);
    let mut requests: String = (0..100).map(|number| format!("SET k{number} {value}\r\n")).collect();
    requests.push_str("GET k99\r\nGET incomplete");
    let (mut from, mut to) = client.split();
    let sent = async {
        to.write_all(requests.as_bytes()).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let mut replies = String::new();
    let received = from.read_to_string(&mut replies);
    let (received, ()) = tokio::join!(received, sent);
    received.unwrap();
    let expected = format!("{}$1000\r\n{value}\r\n", "+OK\r\n".repeat(100));
    assert_eq!(replies.len(), expected.len());
    assert_eq!(replies, expected);
}

#[tokio::test]
async fn a_read_that_waits_ends_with_the_input_and_takes_the_requests_behind_it_along() {
    let thread = Thread::start("0=keyspace:redis").await;
    let mut client = thread.connect().await;
    client.write_all(b"PING\r\nXREAD BLOCK 0 STREAMS s 0\r\n").await.unwrap();
    // The reply is sent once both requests were handled.
    let mut pong = [0; 7];
    client.read_exact(&mut pong).await.unwrap();
    client.write_all(b"PING\r\n").await.unwrap();
    client.shutdown().await.unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
}

/// Sends a command and expects this reply.
async fn call(client: &mut TcpStream, command: &str, expected: &str) {
    client.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
    expect(client, expected).await;
}

async fn expect(client: &mut TcpStream, expected: &str) {
    let mut reply = vec![0; expected.len()];
    client.read_exact(&mut reply).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&reply), expected);
}

#[tokio::test]
async fn a_blocking_read_that_takes_long_to_begin_does_so_on_another_thread() {
    let mut thread = Thread::start("0=keyspace:redis").await;
    let long = thread.lengthen_reads(false);
    let (mut reader, mut writer) = (thread.connect().await, thread.connect().await);
    call(&mut writer, "SET k v", "+OK\r\n").await;
    call(&mut writer, "XGROUP CREATE u g $ MKSTREAM", "+OK\r\n").await;
    for (command, name, id) in [
        ("XREAD BLOCK 0 STREAMS s t $ $", "s", "1-1"),
        ("XREAD BLOCK 0 STREAMS s t $ 0", "t", "2-1"),
        ("XREADGROUP GROUP g c BLOCK 0 STREAMS u >", "u", "3-1"),
    ] {
        reader.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
        while thread.resp.waiting.count() == 0 {
            tokio::task::yield_now().await;
        }
        call(&mut writer, &format!("XADD {name} {id} f v"), &format!("$3\r\n{id}\r\n")).await;
        let entries = format!("*1\r\n*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n");
        expect(&mut reader, &format!("*1\r\n*2\r\n$1\r\n{name}\r\n{entries}")).await;
    }
    // Commands that cannot block are executed like others.
    let wrong_kind = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    call(&mut reader, "XREAD BLOCK 0 STREAMS k $", wrong_kind).await;
    call(&mut reader, "XREADGROUP GROUP g c BLOCK 0 STREAMS k >", wrong_kind).await;
    call(&mut reader, "PING", "+PONG\r\n").await;
    assert_eq!(long.unbounded.load(Ordering::Relaxed), 0, "reads without a budget on the thread of all clients");
}

#[tokio::test]
async fn a_blocked_read_looks_at_cold_keys_on_another_thread() {
    let mut thread = Thread::start("0=keyspace:redis").await;
    let cold = thread.lengthen_reads(true);
    let (mut reader, mut writer) = (thread.connect().await, thread.connect().await);
    call(&mut writer, "XGROUP CREATE u g $ MKSTREAM", "+OK\r\n").await;
    for (command, name, id) in
        [("XREAD BLOCK 0 STREAMS s t 5 0", "t", "1-1"), ("XREADGROUP GROUP g c BLOCK 0 STREAMS u >", "u", "2-1")]
    {
        reader.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
        while thread.resp.waiting.count() == 0 {
            tokio::task::yield_now().await;
        }
        // A change after which the first reader goes on waiting.
        call(&mut writer, &format!("XADD s {id} f v"), &format!("$3\r\n{id}\r\n")).await;
        call(&mut writer, &format!("XADD {name} {id} f v"), &format!("$3\r\n{id}\r\n")).await;
        let entries = format!("*1\r\n*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n");
        expect(&mut reader, &format!("*1\r\n*2\r\n$1\r\n{name}\r\n{entries}")).await;
    }
    call(&mut reader, "PING", "+PONG\r\n").await;
    assert_eq!(cold.unbounded.load(Ordering::Relaxed), 0, "waits for the disk on the thread of all clients");
}

/// While a check of cold keys runs on a reader thread, further changes of the keys must not begin another check.
/// Otherwise checks would occupy all reader threads, and a queued check would lose its position at each change.
#[tokio::test]
async fn a_blocked_read_looks_at_cold_keys_once_at_a_time() {
    let mut thread = Thread::start("0=keyspace:redis").await;
    let cold = thread.lengthen_reads(true);
    let (mut reader, mut writer) = (thread.connect().await, thread.connect().await);
    reader.write_all(b"XREAD BLOCK 0 STREAMS s 5-0\r\n").await.unwrap();
    // The ids are resolved, the command runs, and the blocked client looks for the first time.
    while cold.disk.waits() < 3 {
        tokio::task::yield_now().await;
    }
    cold.disk.set_stuck(true);
    let before = cold.disk.waits();
    for number in 1..=9 {
        call(&mut writer, &format!("XADD s 1-{number} f v"), &format!("$3\r\n1-{number}\r\n")).await;
    }
    call(&mut writer, "XADD s 6-1 f v", "$3\r\n6-1\r\n").await;
    let begun = cold.disk.waits() - before;
    cold.disk.set_stuck(false);
    assert!(begun <= 1, "{begun} looks at the same time");
    let entry = "*1\r\n*2\r\n$3\r\n6-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n";
    expect(&mut reader, &format!("*1\r\n*2\r\n$1\r\ns\r\n{entry}")).await;
}

/// While a write to a keyspace is committed, the connection holds the replies of later requests to a cache, which are
/// large although the requests are short.
#[tokio::test]
async fn replies_that_wait_for_a_commit_or_for_the_client_are_bounded() {
    const VALUE: usize = 100_000;
    let thread = Thread::start("0=keyspace:redis,1=cache:redis").await;
    let (mut client, mut connection) = thread.accept().await;
    let value = "v".repeat(VALUE);
    let requests = format!("SET k v\r\nSELECT 1\r\n{}QUIT\r\n", "GET big\r\n".repeat(500));
    let most = Cell::new(0);
    let work = poll_fn(|cx| {
        let polled = connection.poll(cx);
        most.set(most.get().max(connection.session.burst.held.len() + connection.out.len()));
        polled
    });
    let set = format!("SELECT 1\r\n*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${VALUE}\r\n{value}\r\nSELECT 0\r\n");
    let received = async {
        client.write_all(set.as_bytes()).await.unwrap();
        client.read_exact(&mut [0; 15]).await.unwrap();
        client.write_all(requests.as_bytes()).await.unwrap();
        // The client reads late, so that replies wait.
        while most.get() < OUTBOX_BYTES {
            tokio::task::yield_now().await;
        }
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        received
    };
    let ((), received) = tokio::join!(work, received);
    let most = most.get();
    let expected = format!("+OK\r\n+OK\r\n{}+OK\r\n", format!("${VALUE}\r\n{value}\r\n").repeat(500));
    assert!(received == expected.as_bytes(), "{} bytes of {}", received.len(), expected.len());
    assert!((VALUE..3 * OUTBOX_BYTES).contains(&most), "{most} bytes of replies waited");
}

#[tokio::test]
async fn replies_of_the_server_itself_in_a_transaction_are_bounded() {
    const LIMIT: usize = 32 << 20;
    let thread =
        Thread::with("0=keyspace:redis", |config| config.max_reply_bytes_in_flight = ByteSize(LIMIT as u64)).await;
    let mut client = thread.connect().await;
    let requests = format!("MULTI\r\nSET k v\r\n{}EXEC\r\nQUIT\r\n", "COMMAND\r\n".repeat(5000));
    client.write_all(requests.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received.len() < LIMIT + (1 << 20), "{} bytes", received.len());
    let text = String::from_utf8(received).unwrap();
    assert!(text.ends_with("\r\n-BUSY too many bytes of replies wait for clients: retry later\r\n+OK\r\n"));
    assert!(text.contains("*5001\r\n+OK\r\n*"), "the transaction itself was executed");
}

#[tokio::test]
async fn a_malformed_publish_is_answered_after_those_before_it() {
    let thread = Thread::start("0=cache:redis").await;
    let mut client = thread.connect().await;
    client.write_all(b"PUBLISH c 1\r\nPUBLISH c 2\r\nPUBLISH c\r\nPUBLISH c 3\r\nQUIT\r\n").await.unwrap();
    let mut received = String::new();
    client.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, ":0\r\n:0\r\n-ERR wrong number of arguments for 'publish' command\r\n:0\r\n+OK\r\n");
}
