//! One keep-alive connection: bytes out, bytes in, requests under way.
//!
//! Invariant: replies come in the order of `inflight`; `inflight.len()` never exceeds the pipeline
//! depth that the worker allows.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::{
    reply::{self, Body, Incomplete, MAX_RESPONSE_BYTES, Reply},
    request::Operation,
};

/// A request that waits for its reply. Times are nanoseconds since the run's start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inflight {
    pub(super) scheduled: u64,
    pub(super) sent: u64,
    pub(super) operation: Operation,
    pub(super) index: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) inflight: VecDeque<Inflight>,
    /// When it last became able to take a request.
    pub(super) free_since: u64,
    /// Whether the kernel's buffer was full at the last write.
    pub(super) blocked: bool,
    out: Vec<u8>,
    out_at: usize,
    input: Vec<u8>,
    input_from: usize,
    input_to: usize,
}

const INPUT_BYTES: usize = 64 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Connection {
    pub(super) fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            inflight: VecDeque::new(),
            free_since: 0,
            blocked: false,
            out: Vec::new(),
            out_at: 0,
            input: vec![0; INPUT_BYTES],
            input_from: 0,
            input_to: 0,
        })
    }

    /// Where the next request's bytes go.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends what is buffered, as far as the kernel takes it.
    pub(super) fn send(&mut self) -> io::Result<()> {
        while self.out_at < self.out.len() {
            match self.stream.write(&self.out[self.out_at..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.out_at += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.out_at = 0;
        self.blocked = false;
        Ok(())
    }

    /// Reads what has come; says whether more may be there.
    pub(super) fn receive(&mut self) -> io::Result<More> {
        self.make_room()?;
        match self.stream.read(&mut self.input[self.input_to..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.input_to += count;
                Ok(if self.input_to == self.input.len() { More::Maybe } else { More::No })
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(More::No),
            Err(error) => Err(error),
        }
    }

    /// The next complete reply, and the bytes it was parsed from.
    pub(super) fn next_reply(&mut self) -> Result<Option<(Reply, &[u8])>, &'static str> {
        let bytes = &self.input[self.input_from..self.input_to];
        if bytes.is_empty() {
            return Ok(None);
        }
        match reply::parse(bytes, Body::Expected) {
            Ok(reply) => {
                self.input_from += reply.total_bytes;
                Ok(Some((reply, bytes)))
            }
            Err(Incomplete::NeedMore) => Ok(None),
            Err(Incomplete::Malformed(what)) => Err(what),
        }
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.input_from == self.input_to {
            (self.input_from, self.input_to) = (0, 0);
        } else if self.input_to == self.input.len() && self.input_from > 0 {
            self.input.copy_within(self.input_from..self.input_to, 0);
            (self.input_from, self.input_to) = (0, self.input_to - self.input_from);
        }
        if self.input_to == self.input.len() {
            if self.input.len() >= MAX_RESPONSE_BYTES {
                return Err(io::Error::new(ErrorKind::InvalidData, "response above the limit"));
            }
            self.input.resize(self.input.len() * 2, 0);
        }
        Ok(())
    }
}

/// Whether another read may yield bytes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    Maybe,
    No,
}
