//! Tests of single steps of a channel. Channel and client share a thread.

use std::future::poll_fn;

use thalweg_broker::{self as broker, Link, Outbound, Pattern, Policy, SubscribeOptions, SubscriptionId};
use thalweg_serving::{admission::Resource, bulk::SLICE};
use thalweg_types::{
    Action, Durability, NodeId,
    command::{KeyspaceConfig, encode_create_keyspace},
    limits::MAX_FRAME_BYTES,
};
use thalweg_wire::{
    BatchWriter, Checksum, Frame, HEADER_BYTES, Level, List, Ping, Pong, Publish, RemainingBytes, Write,
    handshake::{ServerParameters, goodbye, hello},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use crate::test_node::TestNode;

fn session(node: &TestNode) -> Session {
    let parameters = ServerParameters {
        max_frame_bytes: MAX_FRAME_BYTES as u32,
        keep_alive: Duration::from_secs(60),
        max_requests: 10,
        max_subscriptions: 10,
        durability: Durability::Os,
        node: NodeId(0),
        run: 0,
        server: "test",
        features: &[],
        spaces: &[],
    };
    let agreed = parameters.accept(&hello("test", MAX_FRAME_BYTES as u32, Duration::ZERO, &[])).unwrap();
    Session::new(&node.native, &node.account(), &node.bulk, &agreed, &parameters)
}

#[tokio::test]
async fn a_client_goes_on_after_its_thread_was_interrupted_without_a_frame() {
    let node = TestNode::start().await;
    let (mut client, end) = node.connected().await;
    let mut task = ChannelTask::new(session(&node), Channel::tcp(end), Decoder::new());
    let mut ping = Vec::new();
    Ping { token: 7 }.encode(&mut ping, 0).unwrap();
    let (first, rest) = ping.split_at(HEADER_BYTES + 1);
    client.write_all(first).await.unwrap();
    while task.decoder.pending_bytes() == 0 {
        assert!(poll_fn(|cx| Poll::Ready(task.poll(cx))).await.is_pending());
        tokio::task::yield_now().await;
    }
    // Simulates an interruption that is longer than a slice.
    task.socket.now -= 10 * SLICE;
    assert!(task.frames(), "the channel needs a turn, for which it must ask");
    assert!(!task.listens());
    client.write_all(rest).await.unwrap();
    tokio::spawn(async move { poll_fn(|cx| task.poll(cx)).await });
    let (mut pong, mut expected) = (vec![0; ping.len()], Vec::new());
    client.read_exact(&mut pong).await.unwrap();
    Pong { token: 7 }.encode(&mut expected, 0).unwrap();
    assert_eq!(pong, expected);
}

/// Link of a subscriber to the subject `a` that blocks publishers. Its queue is full, and it grants no credit.
struct Blocking(Link);

impl Blocking {
    fn new(node: &TestNode) -> Self {
        let broker = &node.native.app.views.broker;
        let link = broker.open_link(Arc::new(|| {})).unwrap();
        let (policy, credit) = (Policy::Block, broker::Credit::NONE);
        let options = SubscribeOptions { policy, credit, max_messages: 1, ..SubscribeOptions::DEFAULTS };
        link.subscribe(SubscriptionId(1), Pattern::parse(b"a").unwrap(), &options).unwrap();
        let subject = broker::Subject::parse(b"a").unwrap();
        let first = broker::Batch::new(subject, batch("first").into(), 1).unwrap();
        assert!(broker.publish(&first, None).is_ok());
        Self(link)
    }

    /// Takes all queued messages, and then those that blocked publishers could publish because of the freed room.
    /// Returns the number of messages.
    async fn take_all(&self, task: &mut ChannelTask) -> usize {
        self.0.grant(SubscriptionId(1), broker::Credit::UNLIMITED).unwrap();
        let mut taken = Vec::new();
        let _ = self.0.take(&mut taken, broker::Budget::UNLIMITED);
        turn_until(task, |task| !task.subjects.publishing.is_blocked()).await;
        let _ = self.0.take(&mut taken, broker::Budget::UNLIMITED);
        assert!(taken.iter().all(|item| matches!(item, Outbound::Batch { .. })), "{taken:?}");
        taken.len()
    }
}

/// Encodes a batch with one message for the subject `a`.
fn batch(payload: &str) -> Vec<u8> {
    let mut writer = BatchWriter::new(b"a", b"").unwrap();
    writer.push_payload(payload.as_bytes()).unwrap();
    writer.into_shared(Checksum::Without).unwrap().bytes.to_vec()
}

/// Encodes a publish of one message to the subject `a`.
fn publish(id: u32, payload: &str) -> Vec<u8> {
    let (mut out, batch) = (Vec::new(), batch(payload));
    Publish { batches: List::Items(&[&batch[..]]) }.encode(&mut out, id).unwrap();
    out
}

/// Polls a channel (a TCP connection or a QUIC stream) until `done` returns true. The channel must not end before.
async fn turn_until(task: &mut ChannelTask, done: impl Fn(&ChannelTask) -> bool) {
    let begun = Instant::now();
    loop {
        assert!(poll_fn(|cx| Poll::Ready(task.poll(cx))).await.is_pending(), "the channel has ended");
        if done(task) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_client_whose_messages_wait_for_a_subscriber_is_not_silent() {
    let node = TestNode::start().await;
    let subscriber = Blocking::new(&node);
    let (mut client, end) = node.connected().await;
    let mut task = ChannelTask::new(session(&node), Channel::tcp(end), Decoder::new());
    client.write_all(&publish(7, "second")).await.unwrap();
    turn_until(&mut task, |task| task.subjects.publishing.is_blocked()).await;
    // The channel reads no bytes during this time, not even pings.
    task.socket.now += 10 * task.session.keep_alive;
    task.tick();
    assert_eq!(task.phase, ChannelPhase::Open);
    assert_eq!(subscriber.take_all(&mut task).await, 2);
}

/// Starts a channel (a TCP connection or a QUIC stream) whose client publishes a message that waits for a subscriber,
/// and says goodbye.
async fn leaving(node: &TestNode) -> (ChannelTask, TcpStream) {
    let (mut client, end) = node.connected().await;
    let mut task = ChannelTask::new(session(node), Channel::tcp(end), Decoder::new());
    let mut bytes = publish(0, "last");
    goodbye(Reason::Done, Action::Fix, "").encode(&mut bytes, 0).unwrap();
    client.write_all(&bytes).await.unwrap();
    turn_until(&mut task, |task| task.phase != ChannelPhase::Open).await;
    assert!(matches!(task.phase, ChannelPhase::Leaving { .. }), "{:?}", task.phase);
    (task, client)
}

#[tokio::test]
async fn messages_before_a_goodbye_wait_for_their_subscriber() {
    let node = TestNode::start().await;
    let subscriber = Blocking::new(&node);
    let (mut task, _client) = leaving(&node).await;
    assert_eq!(subscriber.take_all(&mut task).await, 2);
    assert_eq!(task.phase, ChannelPhase::Closing);
}

#[tokio::test]
async fn a_client_that_has_left_does_not_wait_for_ever() {
    let node = TestNode::start().await;
    let _subscriber = Blocking::new(&node);
    let (mut task, _client) = leaving(&node).await;
    task.socket.now += 2 * task.session.keep_alive;
    task.finish();
    assert!(matches!(task.phase, ChannelPhase::Leaving { .. }));
    task.socket.now += 2 * task.session.keep_alive;
    task.finish();
    assert_eq!(task.phase, ChannelPhase::Closing);
}

#[tokio::test]
async fn keyspaces_that_a_client_creates_together_all_count_for_its_address() {
    const COUNT: u32 = 10;
    let node = TestNode::start().await;
    let (mut client, end) = node.connected().await;
    let mut task = ChannelTask::new(session(&node), Channel::tcp(end), Decoder::new());
    let mut bytes = Vec::new();
    for id in 1..=COUNT {
        let mut command = Vec::new();
        encode_create_keyspace(&mut command, &format!("k{id}"), &KeyspaceConfig::default()).unwrap();
        Write { level: Level(None), command: RemainingBytes(&command) }.encode(&mut bytes, id).unwrap();
    }
    let app = Arc::clone(&node.native.app);
    let before = app.db.blocking().keyspace_count();
    client.write_all(&bytes).await.unwrap();
    let expected = before + COUNT as usize;
    turn_until(&mut task, |task| app.db.blocking().keyspace_count() == expected && task.requests.waiting() == 0).await;
    // The number is higher until the next count, if one was committed before the others were counted.
    let used = app.admission.bound(Resource::Keyspaces).used();
    assert!(used >= expected as u64, "{used} of {expected} count");
}
