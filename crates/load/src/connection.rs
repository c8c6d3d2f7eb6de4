//! A socket with one buffer for outgoing requests and one for received replies.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use super::address::Address;

const INPUT_BYTES: usize = 64 << 10;

/// Maximum number of received bytes that a connection buffers while the first reply among them is incomplete.
pub(crate) const MAX_INPUT_BYTES: usize = 64 << 20;

/// A socket with buffers for both directions.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    /// True if the kernel accepted fewer bytes than were offered at the last send.
    pub is_blocked: bool,
    out: Vec<u8>,
    out_at: usize,
    input: Vec<u8>,
    from: usize,
    to: usize,
}

/// Result of a read: tells whether another read may return bytes immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoreInput {
    /// The read filled the buffer: the kernel may have more bytes.
    Maybe,
    /// The read did not fill the buffer: the kernel has no more bytes now.
    No,
}

impl Connection {
    /// Connects to the server.
    pub fn open(address: &Address) -> io::Result<Self> {
        Ok(Self {
            socket: address.connect()?,
            is_blocked: false,
            out: Vec::new(),
            out_at: 0,
            input: vec![0; INPUT_BYTES],
            from: 0,
            to: 0,
        })
    }

    /// Returns the socket, so that it can be added to a [`Poller`](super::poller::Poller).
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Returns the buffer of outgoing bytes, to which the caller appends the next request.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends as many of the outgoing bytes as the kernel accepts.
    pub fn send(&mut self) -> io::Result<()> {
        while self.out_at < self.out.len() {
            match self.socket.write(&self.out[self.out_at..]) {
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

    /// Reads once from the socket into the input buffer. On a blocking socket, a timeout is an error.
    pub fn receive(&mut self) -> io::Result<MoreInput> {
        self.make_room()?;
        match self.socket.read(&mut self.input[self.to..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.to += count;
                Ok(if self.to == self.input.len() { MoreInput::Maybe } else { MoreInput::No })
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(MoreInput::Maybe),
            Err(error) => Err(error),
        }
    }

    /// Sends the outgoing bytes and waits for the reply, at most `patience`, until `read` finds it at the start of the
    /// received bytes. For single requests: the socket waits in reads afterwards.
    pub fn exchange<T>(
        &mut self,
        patience: Duration,
        mut read: impl FnMut(&[u8]) -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let socket = &self.socket;
        let blocking = socket.set_nonblocking(false).and_then(|()| socket.set_read_timeout(Some(patience)));
        blocking.and_then(|()| self.send()).map_err(|error| error.to_string())?;
        loop {
            if !self.input().is_empty()
                && let Some(found) = read(self.input())?
            {
                return Ok(found);
            }
            self.receive().map_err(|error| error.to_string())?;
        }
    }

    /// Returns the received bytes that were not consumed.
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
