//! Steps of a channel that shares a thread with its client.

use std::future::poll_fn;

use thalweg_serving::bulk::SLICE;
use thalweg_types::{Durability, NodeId, limits::MAX_FRAME_BYTES};
use thalweg_wire::{
    Frame,
    handshake::{ServerParameters, hello},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

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
    // As after an interruption that is longer than a slice.
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
