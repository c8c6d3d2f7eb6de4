//! A raw client of the native protocol over any carrier: TCP, TLS or QUIC.

use std::future::poll_fn;

use thalweg_transport::{Channel, Connection, DialError, Dialer, Endpoint, Kind, Outbox, Trust};
use thalweg_wire::{Decoder, Frame, Ping, Reason, ServerFrame, SharedFrame, handshake::hello};

use super::{Node, PATIENCE};

/// A channel and its connection.
pub struct Carried {
    pub connection: Connection,
    pub channel: Channel,
    pub decoder: Decoder,
    out: Outbox,
}

impl Node {
    pub fn endpoint(&self, kind: Kind) -> Endpoint {
        let address = self.native.expect("native is served").to_string();
        let trust = || Trust::fingerprint(self.fingerprint.expect("there is a certificate"));
        match kind {
            Kind::Tcp => Endpoint::tcp(address),
            Kind::Tls => Endpoint::tls(address, trust()),
            Kind::Quic => Endpoint::quic(address, trust()),
        }
    }

    /// Opens a connection, without the hello.
    pub async fn dial_over(&self, dialer: &Dialer, kind: Kind) -> Result<Carried, DialError> {
        let (connection, channel) = dialer.dial(&self.endpoint(kind)).await?;
        Ok(Carried::new(connection, channel))
    }

    /// Opens a connection and completes its handshake.
    pub async fn carried(&self, kind: Kind) -> Carried {
        let mut carried = self.dial_over(&Dialer::new(), kind).await.unwrap();
        carried.greet().await;
        carried
    }
}

impl Carried {
    pub fn new(connection: Connection, channel: Channel) -> Self {
        Self { connection, channel, decoder: Decoder::new(), out: Outbox::new() }
    }

    /// Sends the hello, and waits for the welcome.
    pub async fn greet(&mut self) {
        self.send(0, &hello("test", 1 << 20, std::time::Duration::ZERO, &[])).await;
        self.decoder.set_max_bytes(1 << 20);
        let frame = self.next().await.expect("a welcome");
        let frame = ServerFrame::decode(frame.raw()).unwrap();
        assert!(matches!(frame.frame, ServerFrame::Welcome(_)), "{:?}", frame.frame);
    }

    /// Opens another channel of the connection, which needs no handshake.
    pub async fn another(&self) -> Self {
        let channel = within(self.connection.open()).await.unwrap().expect("several channels");
        let mut another = Self::new(self.connection.clone(), channel);
        another.decoder.set_max_bytes(1 << 20);
        another
    }

    pub async fn send<'f>(&mut self, id: u32, frame: &impl Frame<'f>) {
        frame.encode(self.out.buffer(), id).unwrap();
        self.flush().await.unwrap();
    }

    pub async fn bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.out.buffer().extend_from_slice(bytes);
        self.flush().await
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        within(async {
            while !self.out.is_empty() {
                poll_fn(|cx| self.channel.poll_write(cx, &mut self.out)).await?;
            }
            Ok(())
        })
        .await
    }

    /// Returns the next frame, or `None` at the end.
    pub async fn next(&mut self) -> Option<SharedFrame> {
        within(async {
            loop {
                if let Some(frame) = self.decoder.next_shared().unwrap() {
                    return Some(frame);
                }
                match poll_fn(|cx| self.channel.poll_read(cx, self.decoder.buffer())).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        })
        .await
    }

    /// Asserts that the server answers a ping on the channel.
    pub async fn is_served(&mut self) {
        self.send(0, &Ping { token: 7 }).await;
        let frame = self.next().await.expect("a pong");
        let frame = ServerFrame::decode(frame.raw()).unwrap();
        assert!(matches!(&frame.frame, ServerFrame::Pong(pong) if pong.token == 7), "{:?}", frame.frame);
    }

    /// Asserts that the next frame is a goodbye, and returns its reason.
    pub async fn is_told_goodbye(&mut self) -> Reason {
        let frame = self.next().await.expect("a goodbye");
        match ServerFrame::decode(frame.raw()).unwrap().frame {
            ServerFrame::Goodbye(goodbye) => goodbye.reason,
            other => panic!("a goodbye was expected, and {other:?} came"),
        }
    }
}

/// Awaits a future, which must resolve within [`PATIENCE`].
pub async fn within<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}
