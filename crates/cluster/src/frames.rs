//! Reading and writing frames on a socket.
//!
//! Owns: the bounds of what is read and of what waits to be written. Does not own: the bytes (`wire::peer`), or who
//! sends what.
//!
//! Long bodies are compressed and decompressed on other threads: 64 MiB take longer than an election timeout, and the thread
//! of consensus must send heartbeats meanwhile.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use socket2::{SockRef, TcpKeepalive};
use thalweg_types::codec::EncodeError;
use thalweg_wire::peer::{
    HEADER_BYTES, Header, MAX_BODY_BYTES, PeerFrame, PeerKind, compress, decompress, encode, encode_compressed,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::spawn_blocking,
};

use crate::carried::ChannelCounter;

/// Maximum bytes of frames that wait on one connection. A sender waits while there are more.
const MAX_QUEUED_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of frames that wait on one connection.
const MAX_QUEUED_FRAMES: usize = 4096;
/// Size of a body in bytes from which another thread compresses or decompresses it. A shorter one takes less than 2 ms.
const ELSEWHERE_BYTES: usize = 1024 * 1024;
/// Silence after which the system probes if the peer still exists, and interval of the probes. A peer that lost its power
/// says nothing, and its connections would otherwise remain.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Bytes of frames that are written with one call.
const WRITE_BYTES: usize = 256 * 1024;

/// A received frame.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Kind of the frame; `None` if this version does not know it.
    pub kind: Option<PeerKind>,
    pub id: u64,
    pub body: Bytes,
    /// Bytes of the frame on the link, with its header.
    pub wire_bytes: usize,
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Reads one frame; `None` if the peer has ended the connection between two frames. Takes memory for the body as its
/// bytes arrive, at most `max_body`. A compressed body is accepted only after the handshake, where `max_body` is the
/// largest body: before it, a peer must not make this node allocate more memory than the peer has sent.
pub(crate) async fn read_frame(stream: &mut (impl AsyncRead + Unpin), max_body: usize) -> io::Result<Option<Frame>> {
    let mut header = [0; HEADER_BYTES];
    match stream.read(&mut header).await? {
        0 => return Ok(None),
        read => stream.read_exact(&mut header[read..]).await?,
    };
    let header = Header::decode(&header, max_body).map_err(invalid)?;
    let mut body = Vec::with_capacity(header.len.min(64 * 1024));
    let read = stream.take(header.len as u64).read_to_end(&mut body).await?;
    if read < header.len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if header.is_compressed {
        if max_body < MAX_BODY_BYTES {
            return Err(invalid("a compressed frame in a handshake"));
        }
        body = if body.len() < ELSEWHERE_BYTES {
            decompress(&body).map_err(invalid)?
        } else {
            spawn_blocking(move || decompress(&body)).await.map_err(invalid)?.map_err(invalid)?
        };
    }
    let wire_bytes = HEADER_BYTES + header.len;
    Ok(Some(Frame { kind: PeerKind::from_code(header.kind), id: header.id, body: body.into(), wire_bytes }))
}

/// Writes one frame of a handshake.
pub(crate) async fn write_frame<'a, F: PeerFrame<'a>>(
    stream: &mut (impl AsyncWrite + Unpin),
    frame: &F,
) -> io::Result<()> {
    let mut out = Vec::new();
    encode(frame, 0, &mut out).map_err(invalid)?;
    stream.write_all(&out).await?;
    stream.flush().await
}

/// Encodes a frame on its own.
pub(crate) fn encoded<'a, F: PeerFrame<'a>>(frame: &F, id: u64) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    encode_compressed(frame, id, &mut out)?;
    Ok(out)
}

/// Like [`encoded`], but compresses a long frame on another thread.
pub(crate) async fn encoded_elsewhere<'a, F: PeerFrame<'a>>(frame: &F, id: u64) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    encode(frame, id, &mut out)?;
    if out.len() < ELSEWHERE_BYTES {
        compress(&mut out, 0);
        return Ok(out);
    }
    let compressing = spawn_blocking(move || {
        compress(&mut out, 0);
        out
    });
    Ok(compressing.await.expect("compression does not panic, and the runtime is running"))
}

/// Enables TCP keep-alive probes, so that the kernel ends a connection whose peer no longer exists.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let probes = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

struct Queued {
    bytes: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

/// Sending half of a connection's queue of frames. Clones send to the same connection.
#[derive(Clone)]
pub(crate) struct FrameSender {
    frames: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
}

/// Error returned by [`FrameSender::send`] once the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended;

impl FrameSender {
    /// Queues an encoded frame. Waits while the queue is full.
    pub async fn send(&self, bytes: Vec<u8>) -> Result<(), Ended> {
        let wanted = bytes.len().min(MAX_QUEUED_BYTES) as u32;
        let room = Arc::clone(&self.room).acquire_many_owned(wanted).await.map_err(|_| Ended)?;
        self.frames.send(Queued { bytes, _room: room }).await.map_err(|_| Ended)
    }
}

impl FrameSender {
    /// Queues an encoded frame, unless the queue is full or the connection has ended.
    pub fn try_send(&self, bytes: Vec<u8>) -> Result<(), Ended> {
        let wanted = bytes.len().min(MAX_QUEUED_BYTES) as u32;
        let room = Arc::clone(&self.room).try_acquire_many_owned(wanted).map_err(|_| Ended)?;
        self.frames.try_send(Queued { bytes, _room: room }).map_err(|_| Ended)
    }
}

/// Creates a queue, and the future that writes its frames until all senders are dropped or the connection fails. `counter`
/// counts the written bytes.
pub(crate) fn frame_queue<W: AsyncWrite + Unpin>(
    mut stream: W,
    counter: ChannelCounter,
) -> (FrameSender, impl Future<Output = io::Result<()>> + use<W>) {
    let (frames, mut queue) = mpsc::channel::<Queued>(MAX_QUEUED_FRAMES);
    let room = Arc::new(Semaphore::new(MAX_QUEUED_BYTES));
    let writing = async move {
        while let Some(first) = queue.recv().await {
            let mut together = first.bytes;
            let mut rooms = vec![first._room];
            while together.len() < WRITE_BYTES
                && let Ok(next) = queue.try_recv()
            {
                together.extend_from_slice(&next.bytes);
                rooms.push(next._room);
            }
            stream.write_all(&together).await?;
            // A TLS session may keep encrypted bytes.
            stream.flush().await?;
            counter.sent(together.len());
            drop(rooms);
        }
        stream.shutdown().await
    };
    (FrameSender { frames, room }, writing)
}

#[cfg(test)]
mod tests {
    use thalweg_wire::peer::Ping;

    use super::*;

    #[tokio::test]
    async fn frames_come_back_and_cut_ones_end_the_connection() {
        let bytes =
            [encoded(&Ping { number: 1, heard: 2 }, 7).unwrap(), encoded(&Ping { number: 3, heard: 4 }, 8).unwrap()];
        let all = bytes.concat();
        let mut stream = &all[..];
        let first = read_frame(&mut stream, 16).await.unwrap().unwrap();
        assert_eq!((first.kind, first.id), (Some(PeerKind::Ping), 7));
        assert_eq!(Ping::decode_body(&first.body).unwrap(), Ping { number: 1, heard: 2 });
        assert_eq!(read_frame(&mut stream, 16).await.unwrap().unwrap().id, 8);
        assert!(read_frame(&mut stream, 16).await.unwrap().is_none());
        for cut in 1..bytes[0].len() {
            let mut stream = &bytes[0][..cut];
            assert!(read_frame(&mut stream, 16).await.is_err(), "cut to {cut}");
        }
        let mut stream = &all[..];
        assert!(read_frame(&mut stream, 15).await.is_err(), "above the limit");
    }

    #[tokio::test]
    async fn a_queue_has_a_bound_and_frees_its_room_by_writing() {
        let (client, mut server) = tokio::io::duplex(1024);
        let (sender, writing) = frame_queue(client, ChannelCounter::default());
        sender.send(vec![1; MAX_QUEUED_BYTES]).await.unwrap();
        let blocked = tokio::time::timeout(std::time::Duration::from_millis(20), sender.send(vec![2; 1])).await;
        assert!(blocked.is_err(), "the queue is full");
        let writing = tokio::spawn(writing);
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            all.len()
        });
        sender.send(vec![2; 1]).await.unwrap();
        drop(sender);
        writing.await.unwrap().unwrap();
        assert_eq!(reading.await.unwrap(), MAX_QUEUED_BYTES + 1);
    }
}
