//! What the tests of all carriers share: pumping bytes through channels.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{future::poll_fn, io, task::Poll, time::Duration};

use bytes::{Bytes, BytesMut};
use thalweg_transport::{Channel, Outbox};

/// Writes all of `outbox`, a poll at a time. Says how many polls wrote something.
pub async fn write_all(channel: &mut Channel, outbox: &mut Outbox) -> io::Result<usize> {
    let mut writes = 0;
    while !outbox.is_empty() {
        let before = outbox.len();
        let written = poll_fn(|cx| channel.poll_write(cx, outbox)).await?;
        assert_eq!(outbox.len(), before - written, "what is said to be written has left the outbox");
        writes += 1;
    }
    Ok(writes)
}

pub async fn send(channel: &mut Channel, bytes: &[u8]) -> io::Result<()> {
    let mut outbox = Outbox::new();
    outbox.buffer().extend_from_slice(bytes);
    write_all(channel, &mut outbox).await.map(drop)
}

pub async fn close(channel: &mut Channel) -> io::Result<()> {
    poll_fn(|cx| channel.poll_close(cx)).await
}

pub async fn read_some(channel: &mut Channel, into: &mut BytesMut) -> io::Result<usize> {
    poll_fn(|cx| channel.poll_read(cx, into)).await
}

/// Reads until `len` bytes are there, or the end.
pub async fn read_up_to(channel: &mut Channel, len: usize) -> io::Result<Vec<u8>> {
    let mut read = BytesMut::new();
    while read.len() < len {
        read.reserve(64 * 1024);
        if read_some(channel, &mut read).await? == 0 {
            break;
        }
    }
    Ok(read.to_vec())
}

/// Reads to the end.
pub async fn read_all(channel: &mut Channel) -> io::Result<Vec<u8>> {
    read_up_to(channel, usize::MAX).await
}

/// Fills `outbox` with `frames` frames, small and shared ones in turn; returns all bytes in their order.
pub fn mixed(outbox: &mut Outbox, frames: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for frame in 0..frames {
        let prefix = format!("frame {frame} ");
        outbox.buffer().extend_from_slice(prefix.as_bytes());
        all.extend_from_slice(prefix.as_bytes());
        let body = vec![frame as u8; 37 * frame % 9001];
        all.extend_from_slice(&body);
        outbox.share(Bytes::from(body));
    }
    all
}

/// Writes without anybody reading until nothing goes any more.
pub async fn fill(channel: &mut Channel, outbox: &mut Outbox) -> io::Result<()> {
    poll_fn(|cx| {
        loop {
            if outbox.is_empty() {
                return Poll::Ready(Err(io::Error::other("the peer took everything")));
            }
            match channel.poll_write(cx, outbox) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Ready(Ok(())),
            }
        }
    })
    .await
}

/// Nothing here takes that long: what does hangs.
pub async fn soon<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("this hangs")
}
