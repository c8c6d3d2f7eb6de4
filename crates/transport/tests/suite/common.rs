//! Helpers of the transport's tests: options, pairs of connections, and reads and writes of channels.

use std::{future::poll_fn, io, net::SocketAddr, sync::LazyLock, task::Poll, time::Duration};

use bytes::{Bytes, BytesMut};
use thalweg_transport::{
    Channel, Connection, Dialer, Endpoint, Identity, Kind, ListenOptions, Listener, Outbox, TcpSecurity, Trust,
};

/// A development certificate shared by all tests of a program.
pub static IDENTITY: LazyLock<Identity> = LazyLock::new(|| Identity::ephemeral([127, 0, 0, 1].into()).unwrap());

pub fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub fn options(kind: Kind) -> ListenOptions {
    let mut options = ListenOptions::default();
    if kind != Kind::Tcp {
        options.identity = Some(IDENTITY.clone());
    }
    if kind == Kind::Tls {
        options.tcp = TcpSecurity::Tls;
    }
    if kind == Kind::Quic {
        options.quic_sockets = 2;
    }
    options
}

pub fn endpoint(kind: Kind, address: impl ToString) -> Endpoint {
    let trust = || Trust::fingerprint(IDENTITY.fingerprint());
    match kind {
        Kind::Tcp => Endpoint::tcp(address.to_string()),
        Kind::Tls => Endpoint::tls(address.to_string(), trust()),
        Kind::Quic => Endpoint::quic(address.to_string(), trust()),
    }
}

/// Both ends of a connection with their first channels.
pub struct Pair {
    pub listener: Listener,
    pub client: (Connection, Channel),
    pub server: (Connection, Channel),
}

/// Connects. A QUIC channel exists for the peer only after a write, so one byte goes over every channel.
pub async fn pair(kind: Kind) -> Pair {
    let listener = Listener::bind(any_port(), options(kind)).await.unwrap();
    let (client, server) = connect(&listener, &Dialer::new(), kind).await;
    Pair { listener, client, server }
}

pub async fn connect(
    listener: &Listener,
    dialer: &Dialer,
    kind: Kind,
) -> ((Connection, Channel), (Connection, Channel)) {
    let endpoint = endpoint(kind, listener.local_addr());
    let dialling = async {
        let (connection, mut channel) = dialer.dial(&endpoint).await.unwrap();
        send(&mut channel, b"!").await.unwrap();
        (connection, channel)
    };
    let accepting = async { listener.accept().await.unwrap().establish().await.unwrap() };
    let (client, (connection, mut channel)) = soon(async { tokio::join!(dialling, accepting) }).await;
    assert_eq!(soon(read_up_to(&mut channel, 1)).await.unwrap(), b"!");
    (client, (connection, channel))
}

/// Writes all bytes of `outbox` in repeated polls. Returns the number of polls that wrote something.
pub async fn write_all(channel: &mut Channel, outbox: &mut Outbox) -> io::Result<usize> {
    let mut writes = 0;
    while !outbox.is_empty() {
        let before = outbox.len();
        let written = poll_fn(|cx| channel.poll_write(cx, outbox)).await?;
        assert_eq!(outbox.len(), before - written, "reported bytes have left the outbox");
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

/// Reads until `len` bytes have arrived, or to the end.
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

/// Fills `outbox` with `frames` frames, small and shared ones in turn. Returns all bytes in order.
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

/// Writes to a peer that does not read, until the channel accepts no more bytes.
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

/// Fails a future that takes longer than a minute; none of the tests should.
pub async fn soon<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("the future hangs")
}
