//! A minimal server that sends the frames that a test tells it to send.

use std::time::Duration;

use bytes::BytesMut;
use thalweg_client::{Client, Endpoint, Options, Retries};
use thalweg_types::{Durability, NodeId};
use thalweg_wire::{
    ClientFrame, Decoder, Envelope, Failed, Frame, SharedFrame,
    handshake::{FEATURE_CLUSTER, ServerParameters, read_hello},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Accepts connections and shakes hands.
pub struct Server {
    pub listener: TcpListener,
    pub run: u64,
    pub node: u64,
    pub is_clustered: bool,
    pub max_requests: u32,
}

/// One connection.
pub struct Peer {
    pub stream: TcpStream,
    decoder: Decoder,
    spare: BytesMut,
}

impl Server {
    pub async fn new() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            run: 7,
            node: 1,
            is_clustered: false,
            max_requests: 100,
        }
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::tcp(self.listener.local_addr().unwrap().to_string())
    }

    pub async fn accept(&self) -> Peer {
        let (stream, _) = self.listener.accept().await.unwrap();
        self.greet(stream).await.expect("a hello")
    }

    /// Shakes hands on a connection; `None` if the client leaves.
    pub async fn greet(&self, stream: TcpStream) -> Option<Peer> {
        let mut peer = Peer { stream, decoder: Decoder::new(), spare: BytesMut::new() };
        let hello = peer.next().await?;
        let terms = ServerParameters {
            max_frame_bytes: 1 << 20,
            keep_alive: Duration::from_secs(10),
            max_requests: self.max_requests,
            max_subscriptions: 100,
            durability: Durability::Disk,
            node: NodeId(self.node),
            run: self.run,
            server: "a test",
            features: if self.is_clustered { &[FEATURE_CLUSTER] } else { &[] },
            spaces: &[],
        };
        let agreed = terms.accept(&read_hello(hello.raw()).unwrap()).unwrap();
        peer.decoder.set_max_bytes(1 << 20);
        peer.send(0, &terms.welcome(&agreed)).await;
        Some(peer)
    }

    /// Returns a client and its only connection.
    pub async fn connected(&self, options: Options) -> (Client, Peer) {
        let (client, peer) = tokio::join!(Client::connect(self.endpoint(), options), self.accept());
        (client.unwrap(), peer)
    }
}

/// Options with pauses short enough for tests.
pub fn quick() -> Options {
    Options {
        timeout: Some(Duration::from_secs(10)),
        retries: Retries { max_attempts: 5, base: Duration::from_millis(1), max: Duration::from_millis(10) },
        ..Options::default()
    }
}

/// Returns a server, a client of it with quick retries, and their only connection.
pub async fn connected() -> (Server, Client, Peer) {
    let server = Server::new().await;
    let (client, peer) = server.connected(quick()).await;
    (server, client, peer)
}

impl Peer {
    /// Returns the next frame; `None` at the end of the connection.
    pub async fn next(&mut self) -> Option<SharedFrame> {
        loop {
            if let Some(frame) = self.decoder.next_shared().unwrap() {
                return Some(frame);
            }
            self.spare.clear();
            match self.stream.read_buf(&mut self.spare).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => self.decoder.feed(&self.spare),
            }
        }
    }

    /// Returns the id of the next request, and the result of `read` on it.
    pub async fn request<R>(&mut self, read: impl FnOnce(&Envelope<'_, ClientFrame<'_>>) -> R) -> (u32, R) {
        let frame = self.next().await.expect("a request");
        let envelope = ClientFrame::decode(frame.raw()).unwrap();
        (envelope.id, read(&envelope))
    }

    /// Returns the id of the next request.
    pub async fn any(&mut self) -> u32 {
        self.request(|_| ()).await.0
    }

    /// Answers the next request with a frame.
    pub async fn answer<'a>(&mut self, frame: &impl Frame<'a>) {
        let id = self.any().await;
        self.send(id, frame).await;
    }

    pub async fn send<'a>(&mut self, id: u32, frame: &impl Frame<'a>) {
        let mut out = Vec::new();
        frame.encode(&mut out, id).unwrap();
        self.bytes(&out).await;
    }

    pub async fn bytes(&mut self, bytes: &[u8]) {
        // The client may have gone: then it does not need the bytes.
        let _ = self.stream.write_all(bytes).await;
    }

    pub async fn fail(&mut self, id: u32, error: &impl thalweg_types::Classified) {
        let message = error.to_string();
        self.send(id, &Failed::of(error, &message)).await;
    }
}
