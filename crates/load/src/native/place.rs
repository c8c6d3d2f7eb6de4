//! Connections of the native protocol for one request at a time: over TCP, TLS or QUIC, or as calls in this process.
//!
//! Owns: the handshake, the frames around requests and replies, and single requests during setup. Does not own: the
//! contents of frames, or channels with many requests ([`super::ReadyChannel`]). The server may answer the requests of
//! a connection in any order. Therefore a connection here has one request at a time, whose id is always 1.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use thalweg_types::limits::MAX_FRAME_BYTES;
use thalweg_wire::{
    ClientFrame, Failed, Frame, HEADER_BYTES, Header, Kind, Ping, Pong, RawFrame, ServerFrame, handshake,
};

use super::{line::body, tunnel::NativeTunnel};
use crate::{Address, BenchError, Calls, Connection};

/// Id of every request. Each connection has only one request at a time.
pub(crate) const ID: u32 = 1;
/// Longest wait for the welcome, and for the reply to a request during setup.
const PATIENCE: Duration = Duration::from_secs(10);

/// Receiver of requests of the native protocol: a server, or calls in this process.
#[derive(Clone)]
pub enum NativePlace {
    /// A server, reached over TCP without encryption.
    Server(SocketAddr),
    /// A server, reached over TLS or QUIC.
    Tunnel(Arc<NativeTunnel>),
    /// The requests are performed by calls in this process.
    InProcess {
        /// Name of the receiver of the calls, for messages.
        name: String,
        /// Function that makes the calls of one more connection.
        calls: Arc<dyn Fn() -> Box<dyn Calls> + Send + Sync>,
    },
}

impl fmt::Debug for NativePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativePlace({self})")
    }
}

impl fmt::Display for NativePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(address) => address.fmt(f),
            Self::Tunnel(tunnel) => f.write_str(tunnel.address()),
            Self::InProcess { name, .. } => f.write_str(name),
        }
    }
}

impl NativePlace {
    /// Opens a connection that is ready for requests; its socket is non-blocking.
    pub fn connect(&self) -> Result<Connection, BenchError> {
        let fail = BenchError::target(self);
        let opened = match self {
            Self::Server(address) => {
                Connection::open(&Address::Tcp(*address)).map_err(|error| format!("{error}; is the server running?"))
            }
            Self::Tunnel(tunnel) => tunnel.open(),
            Self::InProcess { calls, .. } => return Ok(Connection::in_process(calls())),
        };
        let mut connection = opened.map_err(&fail)?;
        let hello = handshake::hello("thalweg bench", MAX_FRAME_BYTES as u32, Duration::ZERO, &[]);
        hello.encode(connection.out(), 0).map_err(|error| fail(error.to_string()))?;
        let welcomed = exchange(&mut connection, |frame| match frame {
            ServerFrame::Welcome(welcome) => {
                handshake::check_welcome(&welcome).map(|_| ()).map_err(|error| error.to_string())
            }
            other => Err(format!("it began with a {} frame", other.kind().name())),
        });
        welcomed.map_err(|problem| fail(format!("{problem}; is this the native port?")))?;
        connection.socket().set_nonblocking(true).map_err(|error| fail(error.to_string()))?;
        Ok(connection)
    }

    /// Sends one request during setup, on a connection of its own. `read` returns the result from the expected reply,
    /// and `None` for any other reply.
    pub fn ask<'a, F: Frame<'a>, T>(
        &self,
        doing: &'static str,
        request: &F,
        read: impl FnOnce(ServerFrame<'_>) -> Option<T>,
    ) -> Result<T, BenchError> {
        let name = self.to_string();
        let fail = BenchError::subject(&name, doing);
        let mut connection = self.connect()?;
        request.encode(connection.out(), ID).map_err(|error| fail(error.to_string()))?;
        let answered = exchange(&mut connection, |frame| {
            let kind = frame.kind();
            read(frame).ok_or_else(|| format!("it answered with a {} frame", kind.name()))
        });
        answered.map_err(fail)
    }
}

/// Sends the outgoing bytes of a connection, and passes the next frame to `read`.
fn exchange<T>(
    connection: &mut Connection,
    read: impl FnOnce(ServerFrame<'_>) -> Result<T, String>,
) -> Result<T, String> {
    let mut read = Some(read);
    let (found, bytes) = connection.exchange(PATIENCE, |input| {
        let Some((raw, bytes)) = frame(input)? else { return Ok(None) };
        let decoded = ServerFrame::decode(raw).map_err(|error| error.to_string())?;
        let read = read.take().expect("a frame ends the exchange");
        let found = refusal(raw).map_or_else(|| read(decoded.frame), Err)?;
        Ok(Some((found, bytes)))
    })?;
    connection.consume(bytes);
    Ok(found)
}

/// Decodes a request that the load generator has encoded. Returns its id and its frame.
///
/// # Panics
/// Panics if the bytes are not a request.
pub fn decode_request(bytes: &[u8]) -> (u32, ClientFrame<'_>) {
    let (raw, _) = frame(bytes).expect("the generator's requests are frames").expect("requests are whole");
    (raw.header.id, ClientFrame::decode(raw).expect("the generator's requests are right").frame)
}

/// Returns the frame at the start of `bytes` and its length; `None` if the frame is incomplete.
#[inline]
pub(crate) fn frame(bytes: &[u8]) -> Result<Option<(RawFrame<'_>, usize)>, String> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let header = Header::decode(head);
    if header.len as usize > MAX_FRAME_BYTES || u32::from(header.fields) > header.len {
        return Err("the bytes are no frame of the native protocol".to_owned());
    }
    let frame = |payload| (RawFrame { header, payload }, HEADER_BYTES + header.len as usize);
    Ok(rest.get(..header.len as usize).map(frame))
}

/// Appends the answer to `out` and returns true, if the frame is a ping.
pub(crate) fn answer_ping(frame: RawFrame<'_>, out: &mut Vec<u8>) -> bool {
    let is_ping = frame.header.kind == Kind::Ping as u16;
    if is_ping {
        let token = Ping::decode_body(body(&frame)).map_or(0, |ping| ping.token);
        Pong { token }.encode(out, 0).expect("a pong is small");
    }
    is_ping
}

/// Returns the message of a frame that refuses a request or ends the connection; `None` for other frames.
pub(crate) fn refusal(frame: RawFrame<'_>) -> Option<String> {
    if frame.header.kind == Kind::Failed as u16 {
        let failed = Failed::decode_body(body(&frame));
        return Some(
            failed.map_or_else(|error| error.to_string(), |failed| format!("{}: {}", failed.code, failed.message)),
        );
    }
    None
}
