//! A raw client of the native protocol. It sends and receives frames, and leaves all decisions to the test.

use thalweg_types::{
    Durability, KeyspaceId, Revision, StreamId,
    command::{encode_append, encode_create_keyspace, encode_create_stream, encode_put},
    record::RecordBatch,
};
use thalweg_wire::{
    Decoder, Fields, Frame, Get, Kind, Level, Permit, Reason, RemainingBytes, ServerFrame, SharedFrame, Values, Write,
    handshake::hello,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Node, PATIENCE};

/// Receives one frame and takes it apart. Any other frame fails the test.
#[macro_export]
macro_rules! expect {
    ($client:expr, $id:expr, $pattern:pat => $value:expr) => {{
        let frame = $client.next().await;
        let envelope = thalweg_wire::ServerFrame::decode(frame.raw()).unwrap();
        assert_eq!(envelope.id, $id, "{:?}", envelope.frame);
        match envelope.frame {
            #[allow(unused_variables)]
            $pattern => $value,
            other => panic!("{} was expected, and {other:?} came", stringify!($pattern)),
        }
    }};
}

pub struct Raw {
    pub stream: TcpStream,
    pub decoder: Decoder,
    out: Vec<u8>,
}

pub const UNLIMITED: Permit = thalweg_wire::credit::UNLIMITED;

impl Node {
    /// Opens a connection, without the handshake.
    pub async fn dial(&self) -> Raw {
        let stream = TcpStream::connect(self.native.expect("native is served")).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Raw { stream, decoder: Decoder::new(), out: Vec::new() }
    }

    /// Opens a connection from the loopback address 127.0.0.`last`, and completes its handshake.
    pub async fn raw_from(&self, last: u8) -> Raw {
        let stream = super::dial_from(last, self.native.expect("native is served")).await;
        let mut raw = Raw { stream, decoder: Decoder::new(), out: Vec::new() };
        raw.greet(32 << 20).await;
        raw
    }

    /// Opens a connection and completes its handshake.
    pub async fn raw(&self) -> Raw {
        self.raw_taking(32 << 20).await
    }

    /// Opens a connection of a client whose frames have at most this number of bytes, and completes its handshake.
    pub async fn raw_taking(&self, max_frame_bytes: u32) -> Raw {
        let mut raw = self.dial().await;
        raw.greet(max_frame_bytes).await;
        raw
    }
}

impl Raw {
    async fn greet(&mut self, max_frame_bytes: u32) {
        self.send(0, &hello("test", max_frame_bytes, std::time::Duration::ZERO, &[])).await;
        self.decoder.set_max_bytes(max_frame_bytes);
        expect!(self, 0, ServerFrame::Welcome(_) => ());
    }

    /// Queues a frame.
    pub fn put<'f>(&mut self, id: u32, frame: &impl Frame<'f>) {
        frame.encode(&mut self.out, id).unwrap();
    }

    /// Queues a frame with optional fields.
    pub fn put_with<'f>(&mut self, id: u32, fields: &Fields<'_>, frame: &impl Frame<'f>) {
        frame.encode_with(&mut self.out, id, fields).unwrap();
    }

    /// Queues a command.
    pub fn put_command(&mut self, id: u32, level: Durability, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut command = Vec::new();
        encode(&mut command);
        self.put(id, &Write { level: Level(Some(level)), command: RemainingBytes(&command) });
    }

    /// Sends the queued bytes.
    pub async fn flush(&mut self) {
        let out = std::mem::take(&mut self.out);
        self.bytes(&out).await;
    }

    pub async fn send<'f>(&mut self, id: u32, frame: &impl Frame<'f>) {
        self.put(id, frame);
        self.flush().await;
    }

    /// Sends a frame, and asserts that the next frame is an answer of this kind to it.
    pub async fn ask<'f>(&mut self, id: u32, frame: &impl Frame<'f>, answer: Kind) {
        self.send(id, frame).await;
        let frame = self.next().await;
        let envelope = ServerFrame::decode(frame.raw()).unwrap();
        assert_eq!((envelope.id, envelope.frame.kind()), (id, answer), "{:?}", envelope.frame);
    }

    pub async fn send_with<'f>(&mut self, id: u32, fields: &Fields<'_>, frame: &impl Frame<'f>) {
        self.put_with(id, fields, frame);
        self.flush().await;
    }

    pub async fn send_command(&mut self, id: u32, level: Durability, encode: impl FnOnce(&mut Vec<u8>)) {
        self.put_command(id, level, encode);
        self.flush().await;
    }

    pub async fn bytes(&mut self, bytes: &[u8]) {
        tokio::time::timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("the server reads").unwrap();
    }

    /// Returns the next frame. Skips pings.
    pub async fn next(&mut self) -> SharedFrame {
        tokio::time::timeout(PATIENCE, self.next_or_end()).await.expect("a frame in time").expect("not the end")
    }

    /// Returns the next frame, or `None` at the end.
    pub async fn next_or_end(&mut self) -> Option<SharedFrame> {
        loop {
            if let Some(frame) = self.decoder.next_shared().unwrap() {
                if frame.header.kind == Kind::Ping as u16 {
                    continue;
                }
                return Some(frame);
            }
            match self.stream.read_buf(self.decoder.buffer()).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Asserts that the connection ends without another frame.
    pub async fn ends(&mut self) {
        let end = tokio::time::timeout(PATIENCE, self.next_or_end()).await.expect("an end in time");
        assert!(end.is_none(), "{:?}", end.map(|frame| frame.header));
    }

    /// Asserts that the connection ends with a goodbye, and returns the goodbye.
    pub async fn says_goodbye(&mut self) -> (Reason, String) {
        let said = expect!(self, 0, ServerFrame::Goodbye(goodbye) => (goodbye.reason, goodbye.message.to_owned()));
        self.ends().await;
        said
    }

    /// Returns the code of the failure that is the next frame, for request `id`.
    pub async fn fails(&mut self, id: u32) -> String {
        expect!(self, id, ServerFrame::Failed(failed) => failed.code.to_owned())
    }

    pub async fn keyspace(&mut self, name: &str) -> KeyspaceId {
        let create = |out: &mut Vec<u8>| encode_create_keyspace(out, name, &Default::default()).unwrap();
        self.send_command(u32::MAX, Durability::Os, create).await;
        KeyspaceId(expect!(self, u32::MAX, ServerFrame::Created(created) => created.id))
    }

    pub async fn stream(&mut self, name: &str) -> StreamId {
        let create = |out: &mut Vec<u8>| encode_create_stream(out, name, &Default::default()).unwrap();
        self.send_command(u32::MAX, Durability::Os, create).await;
        StreamId(expect!(self, u32::MAX, ServerFrame::Created(created) => created.id))
    }

    /// Returns the value of a key, which is empty if the key has none.
    pub async fn get(&mut self, keyspace: KeyspaceId, key: &[u8]) -> Vec<u8> {
        self.send(u32::MAX, &get(keyspace, key)).await;
        expect!(self, u32::MAX, ServerFrame::Value(found) => found.value.0.to_vec())
    }

    pub async fn set(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
        self.send_command(u32::MAX, Durability::Os, |out| encode_put(out, keyspace, key, value).unwrap()).await;
        expect!(self, u32::MAX, ServerFrame::Committed(_) => ());
    }

    pub async fn append(&mut self, stream: StreamId, payloads: &[&[u8]]) {
        self.send_command(u32::MAX, Durability::Os, |out| encode_append(out, stream, None, &batch(payloads))).await;
        expect!(self, u32::MAX, ServerFrame::Committed(_) => ());
    }
}

pub fn get(keyspace: KeyspaceId, key: &[u8]) -> Get<'_> {
    Get { keyspace, revision: Revision(0), values: Values::Include, key: RemainingBytes(key) }
}

pub fn batch(payloads: &[&[u8]]) -> RecordBatch {
    let mut batch = RecordBatch::new();
    payloads.iter().for_each(|payload| batch.push_payload(payload).unwrap());
    batch
}
