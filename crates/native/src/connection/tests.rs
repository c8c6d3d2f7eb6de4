//! Tests of handshakes whose clients lose their slot (one of the limited number for connections without a finished
//! handshake).

use std::task::{Context, Waker};

use thalweg_serving::half_open::HalfOpen;
use thalweg_wire::handshake::hello;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use crate::test_node::TestNode;

/// Tests a race: the task of a connection gets the socket from the thread that accepted it, and its runtime learns of
/// received bytes only after the task's first poll.
#[tokio::test]
async fn a_client_without_its_slot_is_closed_only_after_its_first_bytes_were_read() {
    let node = TestNode::start().await;
    let spaces = [Space { id: SpaceId(0), name: "default" }];
    let parameters = parameters(&node.native, &spaces);
    let mut greeting = Vec::new();
    hello("test", MAX_FRAME_BYTES as u32, Duration::ZERO, &[]).encode(&mut greeting, 0).unwrap();
    let (mut prompt, prompt_end) = node.connected().await;
    let (mut partial, partial_end) = node.connected().await;
    let (_silent, silent_end) = node.connected().await;
    prompt.write_all(&greeting).await.unwrap();
    partial.write_all(&greeting[..9]).await.unwrap();
    prompt_end.readable().await.unwrap();
    partial_end.readable().await.unwrap();
    let slots = HalfOpen::new(1);
    let account = node.account();
    let slot = || slots.enter(account.address(), account.take(Resource::Connections, 1));
    let (prompt_slot, partial_slot, silent_slot, _last_slot) = (slot(), slot(), slot(), slot());
    let taken_over = |stream: TcpStream| Channel::tcp(TcpStream::from_std(stream.into_std().unwrap()).unwrap());
    let mut channels = [prompt_end, partial_end, silent_end].map(taken_over);
    let [prompt_channel, partial_channel, silent_channel] = &mut channels;
    let mut decoders = [Decoder::new(), Decoder::new(), Decoder::new()];
    let [prompt_decoder, partial_decoder, silent_decoder] = &mut decoders;
    let mut prompt_shakes = std::pin::pin!(handshake(prompt_channel, prompt_decoder, &parameters, &prompt_slot));
    let mut partial_shakes = std::pin::pin!(handshake(partial_channel, partial_decoder, &parameters, &partial_slot));
    let mut silent_shakes = std::pin::pin!(handshake(silent_channel, silent_decoder, &parameters, &silent_slot));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(prompt_shakes.as_mut().poll(&mut cx).is_pending(), "closed before its hello was read");
    assert!(partial_shakes.as_mut().poll(&mut cx).is_pending(), "closed before its first bytes were read");
    let silent_shaken = silent_shakes.as_mut().poll(&mut cx);
    assert!(matches!(silent_shaken, Poll::Ready(Err(NoHandshake::Replaced))), "{silent_shaken:?}");
    assert!(prompt_shakes.await.is_ok() && prompt_slot.is_released());
    assert_ne!(prompt.read(&mut [0; 16]).await.unwrap(), 0, "a welcome");
    let partial_shaken = partial_shakes.await;
    assert!(matches!(partial_shaken, Err(NoHandshake::Replaced)), "{partial_shaken:?}");
}
