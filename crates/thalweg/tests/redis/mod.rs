//! A Redis client for tests: one blocking connection, RESP2, replies as values. It does not share the server's parser,
//! so that a mistake there is not repeated here.

#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
};

use crate::node::{Node, PATIENCE};

/// A parsed RESP2 reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Nil,
    Array(Vec<Reply>),
}

impl Reply {
    #[track_caller]
    pub fn integer(&self) -> i64 {
        let Self::Integer(number) = self else { panic!("no integer: {self:?}") };
        *number
    }

    #[track_caller]
    pub fn text(&self) -> &str {
        let (Self::Bulk(text) | Self::Simple(text)) = self else { panic!("no text: {self:?}") };
        text
    }

    #[track_caller]
    pub fn items(&self) -> &[Self] {
        let Self::Array(items) = self else { panic!("no array: {self:?}") };
        items
    }

    pub fn ok() -> Self {
        Self::Simple("OK".to_owned())
    }

    pub fn queued() -> Self {
        Self::Simple("QUEUED".to_owned())
    }
}

/// Returns the address at which a server accepts Redis clients.
pub fn address(node: &Node) -> String {
    let address = node.line.split_whitespace().find_map(|word| word.strip_prefix("redis://"));
    address.expect("it says where Redis clients are served").trim_end_matches(',').to_owned()
}

/// Connection to a server.
pub struct Redis {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Number of bytes of `buffer` already returned as replies.
    taken: usize,
}

impl Redis {
    /// Connects.
    ///
    /// # Panics If no server listens.
    pub fn connect(address: &str) -> Self {
        Self::try_connect(address).expect("a server")
    }

    pub fn try_connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, buffer: Vec::new(), taken: 0 })
    }

    /// Sends the bytes, in one write if they are few.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads the next reply. A connection failure is an error of the result; an error reply is a reply.
    pub fn reply(&mut self) -> io::Result<Reply> {
        loop {
            let mut at = self.taken;
            if let Some(reply) = parse(&self.buffer, &mut at) {
                self.taken = at;
                return Ok(reply);
            }
            self.buffer.drain(..self.taken);
            self.taken = 0;
            let mut more = [0; 16 * 1024];
            match self.stream.read(&mut more) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.buffer.extend_from_slice(&more[..read]),
                // A process that was stopped and goes on gets this from a read with a timeout.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn try_call(&mut self, command: &str) -> io::Result<Reply> {
        self.send(&encode(command))?;
        self.reply()
    }

    /// Sends commands in one write. Returns their replies.
    pub fn try_pipeline(&mut self, commands: &[String]) -> io::Result<Vec<Reply>> {
        self.send(&commands.iter().flat_map(|command| encode(command)).collect::<Vec<_>>())?;
        commands.iter().map(|_| self.reply()).collect()
    }

    /// Sends a command. Returns its reply.
    ///
    /// # Panics If the connection ends.
    #[track_caller]
    pub fn call(&mut self, command: &str) -> Reply {
        self.try_call(command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Returns all text until the server ends the connection, cleanly or not.
    pub fn rest(&mut self) -> String {
        let mut rest = self.buffer.split_off(self.taken);
        let mut more = [0; 16 * 1024];
        while let Ok(read @ 1..) = self.stream.read(&mut more) {
            rest.extend_from_slice(&more[..read]);
        }
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Encodes a command, its words separated by spaces, as an array of bulk strings.
pub fn encode(command: &str) -> Vec<u8> {
    let words: Vec<&str> = command.split(' ').collect();
    let mut out = format!("*{}\r\n", words.len());
    for word in words {
        out.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    out.into_bytes()
}

fn parse(bytes: &[u8], at: &mut usize) -> Option<Reply> {
    let rest = bytes.get(*at..)?;
    let len = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let text = String::from_utf8_lossy(rest.get(1..len)?).into_owned();
    let number = || text.parse::<i64>().unwrap_or_else(|_| panic!("no number: {text}"));
    *at += len + 2;
    Some(match rest[0] {
        b'+' => Reply::Simple(text),
        b'-' => Reply::Error(text),
        b':' => Reply::Integer(number()),
        b'$' | b'*' if number() < 0 => Reply::Nil,
        b'$' => {
            let end = *at + number() as usize;
            let bulk = String::from_utf8_lossy(bytes.get(*at..end)?).into_owned();
            bytes.get(end..end + 2)?;
            *at = end + 2;
            Reply::Bulk(bulk)
        }
        b'*' => Reply::Array((0..number()).map(|_| parse(bytes, at)).collect::<Option<_>>()?),
        other => panic!("no reply begins with {:?}", other as char),
    })
}
