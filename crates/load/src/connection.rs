//! A socket, or calls in this process, with one buffer for outgoing requests and one for received replies.
//!
//! Owns: the socket and both buffers, non-blocking sends and reads, and single exchanges that wait for a reply. Does
//! not own: events of many sockets (`poller`), the calls in this process (`calls`), or the meaning of the bytes
//! (`protocol`).

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::TcpStream,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

use super::{
    address::Address,
    calls::{Bell, Calls, InProcess},
    poller::Poller,
};

const INPUT_BYTES: usize = 64 << 10;

/// Maximum number of received bytes that a connection buffers while the first reply in the buffer is incomplete.
pub(crate) const MAX_INPUT_BYTES: usize = 64 << 20;

/// A socket, or calls in this process, with buffers for both directions.
#[derive(Debug)]
pub struct Connection {
    line: Line,
    /// True if the kernel accepted fewer bytes than were offered at the last send.
    pub is_blocked: bool,
    out: Vec<u8>,
    out_at: usize,
    input: Vec<u8>,
    from: usize,
    to: usize,
}

/// Carrier of the requests to their server: a socket, or calls in this process.
#[derive(Debug)]
enum Line {
    Socket(TcpStream),
    InProcess(InProcess),
}

/// Result of a read: states if another read may return bytes immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoreInput {
    /// The read filled the buffer, so the kernel may have more bytes.
    Maybe,
    /// The read did not fill the buffer, so the kernel has no more bytes now.
    No,
}

impl Connection {
    /// Opens a connection to the server at `address`.
    pub fn open(address: &Address) -> io::Result<Self> {
        Ok(Self::over(address.connect()?))
    }

    /// Creates a connection to another thread of this process, over a pair of sockets. Also returns the other thread's
    /// socket, which is non-blocking.
    pub(crate) fn to_thread() -> io::Result<(Self, UnixStream)> {
        let (own, other) = UnixStream::pair()?;
        other.set_nonblocking(true)?;
        // Sockets of all kinds are read and written with the same system calls.
        Ok((Self::over(OwnedFd::from(own).into()), other))
    }

    fn over(socket: TcpStream) -> Self {
        let (line, input) = (Line::Socket(socket), vec![0; INPUT_BYTES]);
        Self { line, is_blocked: false, out: Vec::new(), out_at: 0, input, from: 0, to: 0 }
    }

    /// Creates a connection whose requests are performed by `calls` in this process, one at a time.
    pub fn in_process(calls: Box<dyn Calls>) -> Self {
        let (line, out, input) = (Line::InProcess(InProcess::new(calls)), Vec::new(), Vec::new());
        Self { line, is_blocked: false, out, out_at: 0, input, from: 0, to: 0 }
    }

    /// Returns the connection's socket.
    ///
    /// # Panics
    /// Panics if the connection has no socket, because its requests are calls in this process.
    pub fn socket(&self) -> &TcpStream {
        match &self.line {
            Line::Socket(socket) => socket,
            Line::InProcess(_) => panic!("calls in this process have no socket"),
        }
    }

    /// Returns true if this connection's requests are calls in this process, so that there is no socket.
    pub(crate) fn is_in_process(&self) -> bool {
        matches!(self.line, Line::InProcess(_))
    }

    /// Registers the connection with the poller of its load thread, whose events then carry `number`. A connection with
    /// calls in this process rings the bell with `number` instead.
    pub(crate) fn attach(&mut self, poller: &Poller, bell: &Arc<Bell>, number: usize) -> io::Result<()> {
        match &mut self.line {
            Line::Socket(socket) => poller.add(socket, number as u64),
            Line::InProcess(calls) => {
                calls.attach(bell, number);
                Ok(())
            }
        }
    }

    /// Returns true if a call in this process already has its reply. Always false for a socket.
    #[inline]
    pub(crate) fn has_reply(&self) -> bool {
        self.from < self.to && matches!(self.line, Line::InProcess(_))
    }

    /// Returns the buffer of outgoing bytes. The caller appends the next request to it.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends as many of the outgoing bytes as the kernel accepts.
    pub fn send(&mut self) -> io::Result<()> {
        let socket = match &mut self.line {
            Line::Socket(socket) => socket,
            Line::InProcess(calls) => {
                if !self.out.is_empty() {
                    self.input.drain(..self.from);
                    (self.from, self.to) = (0, self.to - self.from);
                    calls.send(&self.out, &mut self.input);
                    self.to = self.input.len();
                    self.out.clear();
                }
                return Ok(());
            }
        };
        while self.out_at < self.out.len() {
            match socket.write(&self.out[self.out_at..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.out_at += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.out_at = 0;
        self.is_blocked = false;
        Ok(())
    }

    /// Reads once from the socket into the input buffer. Returns an error if a non-blocking socket has no bytes, or if
    /// a blocking socket gets none before its timeout. If the requests are calls in this process, takes the reply of
    /// the call instead.
    pub fn receive(&mut self) -> io::Result<MoreInput> {
        if let Line::InProcess(calls) = &mut self.line {
            calls.receive(&mut self.input)?;
            self.to = self.input.len();
            return Ok(MoreInput::No);
        }
        self.make_room()?;
        let Line::Socket(socket) = &mut self.line else { unreachable!("the other kind has returned") };
        match socket.read(&mut self.input[self.to..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.to += count;
                Ok(if self.to == self.input.len() { MoreInput::Maybe } else { MoreInput::No })
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(MoreInput::Maybe),
            Err(error) => Err(error),
        }
    }

    /// Sends the outgoing bytes and waits at most `patience` for the reply. `read` looks for the reply at the start of
    /// the received bytes. For single requests only: the socket is blocking afterwards.
    pub fn exchange<T>(
        &mut self,
        patience: Duration,
        mut read: impl FnMut(&[u8]) -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let blocking = match &self.line {
            Line::Socket(socket) => {
                socket.set_nonblocking(false).and_then(|()| socket.set_read_timeout(Some(patience)))
            }
            Line::InProcess(_) => Ok(()),
        };
        blocking.and_then(|()| self.send()).map_err(|error| error.to_string())?;
        loop {
            if !self.input().is_empty()
                && let Some(found) = read(self.input())?
            {
                return Ok(found);
            }
            let received = match &mut self.line {
                Line::Socket(_) => self.receive().map(|_| ()),
                Line::InProcess(calls) => calls.wait(&mut self.input),
            };
            received.map_err(|error| error.to_string())?;
            if matches!(self.line, Line::InProcess(_)) {
                self.to = self.input.len();
            }
        }
    }

    /// Returns the received bytes that are not consumed yet.
    pub fn input(&self) -> &[u8] {
        &self.input[self.from..self.to]
    }

    /// Drops the first `bytes` bytes of the input buffer.
    pub fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.to - self.from, "only received bytes can be consumed");
        self.from += bytes;
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if self.to == self.input.len() && self.from > 0 {
            self.input.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        if self.to == self.input.len() {
            if self.input.len() >= MAX_INPUT_BYTES {
                return Err(io::Error::new(ErrorKind::InvalidData, "a reply is larger than the generator keeps"));
            }
            self.input.resize(self.input.len() * 2, 0);
        }
        Ok(())
    }
}
