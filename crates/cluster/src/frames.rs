//! Reading and writing frames on a socket.
//!
//! Owns: the limits on the bytes that are read and on the frames that wait to be written. Does not own: the bytes
//! (`wire::peer`), or the senders and meanings of frames.
//!
//! Long bodies are compressed and decompressed on other threads. For 64 MiB this takes longer than an election timeout,
//! and meanwhile the consensus thread must send heartbeats.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use socket2::{SockRef, TcpKeepalive};
use thalweg_types::{
    codec::EncodeError,
    limits::{LINK_WRITE_BYTES, MAX_LINK_QUEUE_BYTES},
};
use thalweg_wire::peer::{
    HEADER_BYTES, Header, MAX_BODY_BYTES, MAX_SHORT_BYTES, PeerFrame, PeerKind, SHORT_FROM, compress, decompress,
    encode, encode_compressed, shorten,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::spawn_blocking,
};

use crate::link_counters::ChannelCounter;

/// Maximum number of frames that wait on one connection.
const MAX_QUEUED_FRAMES: usize = 4096;
/// Minimum size in bytes of a body that another thread encodes, compresses or decompresses. A shorter body takes less
/// than 2 ms.
const ELSEWHERE_BYTES: usize = 1024 * 1024;
/// Maximum number of bytes that are allocated for a body before its bytes arrive. A body in a handshake is far smaller.
const EXPECTED_BODY_BYTES: usize = 1024 * 1024;
/// Number of bytes of a long frame that are written before other tasks run. The kernel copies them within the call.
/// Over loopback, the same call also delivers them, which takes about a third of a millisecond in all.
const MAX_WRITE_BYTES: usize = 2 * LINK_WRITE_BYTES;
/// Silence after which the kernel probes if the peer still exists, and the interval of the probes. A peer that has lost
/// power sends nothing, so without probes its connections would stay open.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Form of the frame headers on a connection: full or short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heads {
    /// Frames have full headers: in the handshake, on the channel for subjects, and on connections to earlier versions.
    Long,
    /// Frames have short headers of a few bytes: after the handshake, on all other connections.
    Short,
}

impl Heads {
    /// Returns the form of frame headers that two nodes use after the handshake if both speak this version of the
    /// protocol. The channel for messages of subscribers always uses full headers.
    pub(crate) fn of(version: u16) -> Self {
        if version >= SHORT_FROM { Self::Short } else { Self::Long }
    }
}

/// A frame that this node has received from another node.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Kind of the frame; `None` if this version does not know it.
    pub kind: Option<PeerKind>,
    pub id: u64,
    pub body: Bytes,
    /// Number of bytes that the frame took on the connection, including its header.
    pub wire_bytes: usize,
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Reads one frame; returns `None` if the peer has ended the connection between two frames. Allocates memory for a long
/// body only as its bytes arrive. `max_body` is the maximum size of a body in bytes. Compressed bodies are accepted
/// only if `max_body` is the overall maximum, which is the case after the handshake: before it, a peer must not make
/// this node allocate more memory than the peer has sent.
pub(crate) async fn read_frame(stream: &mut (impl AsyncRead + Unpin), max_body: usize) -> io::Result<Option<Frame>> {
    let mut header = [0; HEADER_BYTES];
    match stream.read(&mut header).await? {
        0 => return Ok(None),
        read => stream.read_exact(&mut header[read..]).await?,
    };
    let header = Header::decode(&header, max_body).map_err(invalid)?;
    read_body(stream, header, HEADER_BYTES, max_body).await.map(Some)
}

/// Reads one frame like [`read_frame`], with the form of headers that the connection uses. `stream` should be buffered,
/// because a short header is read byte by byte.
pub(crate) async fn read_headed(
    stream: &mut (impl AsyncRead + Unpin),
    heads: Heads,
    max_body: usize,
) -> io::Result<Option<Frame>> {
    if heads == Heads::Long {
        return read_frame(stream, max_body).await;
    }
    let mut head = [0; MAX_SHORT_BYTES];
    if stream.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    let mut read = 1;
    loop {
        if let Some((header, size)) = Header::decode_short(&head[..read], max_body).map_err(invalid)? {
            return read_body(stream, header, size, max_body).await.map(Some);
        }
        // If all bytes of the longest header are read, decoding either succeeds or fails; it never asks for more.
        stream.read_exact(&mut head[read..=read]).await?;
        read += 1;
    }
}

async fn read_body(
    stream: &mut (impl AsyncRead + Unpin),
    header: Header,
    head_bytes: usize,
    max_body: usize,
) -> io::Result<Frame> {
    let mut body = Vec::with_capacity(header.len.min(EXPECTED_BODY_BYTES));
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
    let wire_bytes = head_bytes + header.len;
    Ok(Frame { kind: PeerKind::from_code(header.kind), id: header.id, body: body.into(), wire_bytes })
}

/// Writes one frame of a handshake to a connection.
pub(crate) async fn write_frame<'a, F: PeerFrame<'a>>(
    stream: &mut (impl AsyncWrite + Unpin),
    frame: &F,
) -> io::Result<()> {
    let mut out = Vec::new();
    encode(frame, 0, &mut out).map_err(invalid)?;
    stream.write_all(&out).await?;
    stream.flush().await
}

/// Encodes one frame with this request id into a new buffer. Compresses it if that makes it smaller.
pub(crate) fn encoded<'a, F: PeerFrame<'a>>(frame: &F, id: u64) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    encode_compressed(frame, id, &mut out)?;
    Ok(out)
}

/// Encodes one frame like [`encoded`], but compresses a long frame on another thread.
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

/// Encodes a frame with a body of about `bytes` bytes: on this thread if it is short, otherwise on another thread.
pub(crate) async fn encoded_by<E>(bytes: usize, encode: E) -> Result<Vec<u8>, EncodeError>
where
    E: FnOnce() -> Result<Vec<u8>, EncodeError> + Send + 'static,
{
    if bytes < ELSEWHERE_BYTES {
        return encode();
    }
    spawn_blocking(encode).await.expect("encoding does not panic, and the runtime is running")
}

/// Enables TCP keep-alive probes, so that the kernel ends a connection whose peer no longer exists.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let probes = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// An encoded frame in the queue. If its header was replaced by a short one, the first bytes of `bytes` are unused.
struct Queued {
    bytes: Vec<u8>,
    begin: usize,
    room: OwnedSemaphorePermit,
}

impl Queued {
    fn new(mut bytes: Vec<u8>, heads: Heads, room: OwnedSemaphorePermit) -> Self {
        let begin = match heads {
            Heads::Long => 0,
            Heads::Short => shorten(&mut bytes),
        };
        Self { bytes, begin, room }
    }
}

/// Sending half of a connection's queue of frames. Clones send to the same connection.
#[derive(Clone)]
pub(crate) struct FrameSender {
    frames: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    heads: Heads,
}

/// Error returned by [`FrameSender::send`] once the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionEnded;

impl FrameSender {
    /// Queues one encoded frame with its header. Waits while the queue is full.
    pub(crate) async fn send(&self, bytes: Vec<u8>) -> Result<(), ConnectionEnded> {
        let wanted = bytes.len().min(MAX_LINK_QUEUE_BYTES) as u32;
        let room = Arc::clone(&self.room).acquire_many_owned(wanted).await.map_err(|_| ConnectionEnded)?;
        self.frames.send(Queued::new(bytes, self.heads, room)).await.map_err(|_| ConnectionEnded)
    }
}

impl FrameSender {
    /// Queues one encoded frame with its header, unless the queue is full or the connection has ended.
    pub(crate) fn try_send(&self, bytes: Vec<u8>) -> Result<(), ConnectionEnded> {
        let wanted = bytes.len().min(MAX_LINK_QUEUE_BYTES) as u32;
        let room = Arc::clone(&self.room).try_acquire_many_owned(wanted).map_err(|_| ConnectionEnded)?;
        self.frames.try_send(Queued::new(bytes, self.heads, room)).map_err(|_| ConnectionEnded)
    }
}

/// Creates a queue of frames, and the future that writes them. The future ends when all senders are dropped or the
/// connection fails. `heads` is the form of the frames' headers, and `counter` counts the written bytes.
pub(crate) fn frame_queue<W: AsyncWrite + Unpin>(
    mut stream: W,
    heads: Heads,
    counter: ChannelCounter,
) -> (FrameSender, impl Future<Output = io::Result<()>> + use<W>) {
    let (frames, mut queue) = mpsc::channel::<Queued>(MAX_QUEUED_FRAMES);
    let room = Arc::new(Semaphore::new(MAX_LINK_QUEUE_BYTES));
    let writing = async move {
        while let Some(first) = queue.recv().await {
            let Queued { bytes: mut together, begin, room } = first;
            let mut rooms = vec![room];
            while together.len() < LINK_WRITE_BYTES
                && let Ok(next) = queue.try_recv()
            {
                together.extend_from_slice(&next.bytes[next.begin..]);
                rooms.push(next.room);
            }
            let together = &together[begin..];
            for (number, piece) in together.chunks(MAX_WRITE_BYTES).enumerate() {
                if number > 0 {
                    tokio::task::yield_now().await;
                }
                stream.write_all(piece).await?;
            }
            // Without a flush, a TLS session may keep encrypted bytes.
            stream.flush().await?;
            counter.sent(together.len());
            drop(rooms);
        }
        stream.shutdown().await
    };
    (FrameSender { frames, room, heads }, writing)
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
    async fn short_heads_come_back_and_cut_frames_end_the_connection() {
        let (mut client, server) = tokio::io::duplex(1024);
        let (sender, writing) = frame_queue(server, Heads::Short, ChannelCounter::default());
        for (number, id) in [(1, 7), (300, 0), (3, 1 << 40)] {
            sender.send(encoded(&Ping { number, heard: 2 }, id).unwrap()).await.unwrap();
        }
        drop(sender);
        writing.await.unwrap();
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes.len(), 3 * 16 + 3 + 2 + 8);
        let mut stream = &bytes[..];
        for (number, id, wire_bytes) in [(1, 7, 19), (300, 0, 18), (3, 1 << 40, 24)] {
            let frame = read_headed(&mut stream, Heads::Short, 16).await.unwrap().unwrap();
            assert_eq!((frame.kind, frame.id, frame.wire_bytes), (Some(PeerKind::Ping), id, wire_bytes));
            assert_eq!(Ping::decode_body(&frame.body).unwrap().number, number);
        }
        assert!(read_headed(&mut stream, Heads::Short, 16).await.unwrap().is_none());
        for cut in 1..19 {
            let mut stream = &bytes[..cut];
            assert!(read_headed(&mut stream, Heads::Short, 16).await.is_err(), "cut to {cut}");
        }
        let mut stream = &bytes[..];
        assert!(read_headed(&mut stream, Heads::Short, 15).await.is_err(), "above the limit");
        let mut stream = &[0xff; 64][..];
        assert!(read_headed(&mut stream, Heads::Short, 15).await.is_err(), "garbage");
    }

    #[tokio::test]
    async fn a_queue_has_a_bound_and_frees_its_room_by_writing() {
        let (client, mut server) = tokio::io::duplex(1024);
        let (sender, writing) = frame_queue(client, Heads::Long, ChannelCounter::default());
        sender.send(vec![1; MAX_LINK_QUEUE_BYTES]).await.unwrap();
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
        assert_eq!(reading.await.unwrap(), MAX_LINK_QUEUE_BYTES + 1);
    }
}
