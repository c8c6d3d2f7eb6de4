//! One connection: bytes out, bytes in, and what is under way.
//!
//! Invariant: replies come in the order of `under_way`.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read as _, Write as _},
};

use super::address::{Address, Socket};

/// What waits for a reply. Times are nanoseconds since the run's start.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// When it was due.
    pub due: u64,
    /// Which key.
    pub index: u64,
    /// Place of the operation in the mix.
    pub kind: usize,
}

const INPUT_BYTES: usize = 64 << 10;

/// The most bytes of replies that are kept until the first of them is whole.
pub const MAX_INPUT_BYTES: usize = 64 << 20;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    /// What waits for its reply, oldest first.
    pub under_way: VecDeque<Asked>,
    /// When it last became able to take a request.
    pub free_since: u64,
    /// Whether the kernel took less than all at the last send.
    pub is_blocked: bool,
    /// The highest stream entry that a reply has named here.
    pub last_entry: (u64, u64),
    out: Vec<u8>,
    out_at: usize,
    input: Vec<u8>,
    from: usize,
    to: usize,
}

/// Whether another read may yield bytes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// The buffer was filled.
    Maybe,
    /// There was less than asked for.
    No,
}

impl Connection {
    /// Connects.
    pub fn open(address: &Address) -> io::Result<Self> {
        Ok(Self {
            socket: Socket::open(address)?,
            under_way: VecDeque::new(),
            free_since: 0,
            is_blocked: false,
            last_entry: (0, 0),
            out: Vec::new(),
            out_at: 0,
            input: vec![0; INPUT_BYTES],
            from: 0,
            to: 0,
        })
    }

    /// The socket, to wait for.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The socket, to write to past what is buffered.
    pub fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Where the next request's bytes go.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends what is buffered, as far as the kernel takes it.
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

    /// Reads once what has come. On a socket that waits, nothing in time is an error.
    pub fn receive(&mut self) -> io::Result<More> {
        self.make_room()?;
        match self.socket.read(&mut self.input[self.to..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.to += count;
                Ok(if self.to == self.input.len() { More::Maybe } else { More::No })
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(More::Maybe),
            Err(error) => Err(error),
        }
    }

    /// What has come and was not consumed.
    #[must_use]
    pub fn input(&self) -> &[u8] {
        &self.input[self.from..self.to]
    }

    /// Drops so many bytes of it.
    pub fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.to - self.from, "only what has come can be consumed");
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
