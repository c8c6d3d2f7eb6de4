//! A RESP client for setup, which sends one request at a time and decodes each reply to a value.

use std::{io::Write as _, time::Duration};

use thalweg_redis::wire::reply_parser::{ReplyError, Token, token, whole};

use super::requests::command;
use crate::{Address, BenchError, Connection};

/// Longest wait for a reply during setup.
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum nesting depth of aggregates in a reply during setup.
const MAX_DEPTH: usize = 8;

/// Parameters of the first requests on a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Address of the server.
    pub address: Address,
    /// Password for `AUTH`, if the server requires one.
    pub password: Option<String>,
    /// Number of the database for `SELECT`.
    pub database: u32,
    /// True to begin with `HELLO 3`, which selects RESP3.
    pub is_resp3: bool,
}

/// A decoded RESP reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Text of a string reply, whether simple, bulk or verbatim.
    Text(Vec<u8>),
    /// An integer, or a boolean as 0 or 1.
    Integer(i64),
    /// A null reply.
    Null,
    /// An error reply, with its message.
    Error(String),
    /// An array, set or map of replies. The keys and values of a map alternate.
    List(Vec<Answer>),
}

impl Answer {
    fn read(bytes: &[u8], at: &mut usize, depth: usize) -> Result<Self, ReplyError> {
        let Some((token, len)) = token(&bytes[*at..])? else { return Err(ReplyError::End) };
        *at += len;
        Ok(match token {
            Token::Simple(text) | Token::Bulk(text) | Token::Double(text) | Token::BigNumber(text) => {
                Self::Text(text.to_vec())
            }
            Token::Verbatim(text) => Self::Text(text.get(4..).unwrap_or_default().to_vec()),
            Token::Error(text) => Self::Error(String::from_utf8_lossy(text).into_owned()),
            Token::Integer(value) => Self::Integer(value),
            Token::Boolean(yes) => Self::Integer(i64::from(yes)),
            Token::Null | Token::NullArray => Self::Null,
            Token::Array(_) | Token::Map(_) | Token::Set(_) | Token::Push(_) | Token::Attribute(_) => {
                if depth == MAX_DEPTH {
                    return Err(ReplyError::Values);
                }
                let values = (0..token.values()).map(|_| Self::read(bytes, at, depth + 1));
                Self::List(values.collect::<Result<_, _>>()?)
            }
        })
    }

    /// Returns the reply as text; empty for replies without text.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Self::Integer(value) => value.to_string(),
            _ => String::new(),
        }
    }
}

/// A connection that sends one request at a time and waits for its reply.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    /// Address of the server, for error messages.
    target: String,
}

impl Client {
    /// Connects to the server, authenticates and selects the database.
    pub fn open(greeting: &Greeting) -> Result<Self, BenchError> {
        let fail = BenchError::target(&greeting.address);
        let connection =
            Connection::open(&greeting.address).map_err(|error| fail(format!("{error}; is the server running?")))?;
        let waits = connection.socket().set_read_timeout(Some(PATIENCE));
        waits.map_err(|error| fail(error.to_string()))?;
        let mut client = Self { connection, target: greeting.address.to_string() };
        let database = greeting.database.to_string();
        let mut begin: Vec<Vec<&[u8]>> = Vec::new();
        if let Some(password) = &greeting.password {
            begin.push(vec![b"AUTH", password.as_bytes()]);
        }
        if greeting.is_resp3 {
            begin.push(vec![b"HELLO", b"3"]);
        }
        if greeting.database != 0 {
            begin.push(vec![b"SELECT", database.as_bytes()]);
        }
        for request in begin {
            client.done(&request)?;
        }
        Ok(client)
    }

    /// Returns the connection, for use by the load generator. No request is in progress, and the socket is non-blocking
    /// from now on.
    pub fn into_connection(self) -> Result<Connection, BenchError> {
        let set = self.connection.socket().set_nonblocking(true);
        set.map_err(BenchError::target(&self.target))?;
        Ok(self.connection)
    }

    /// Sends a command and returns its reply.
    pub fn ask(&mut self, arguments: &[&[u8]]) -> Result<Answer, BenchError> {
        let fail = BenchError::subject(&self.target, "setup");
        command(arguments, self.connection.out());
        self.connection.send().map_err(|error| fail(error.to_string()))?;
        loop {
            let bytes = self.connection.input();
            if let Some(len) = whole(bytes).map_err(|error| fail(error.to_string()))? {
                let answer = Answer::read(bytes, &mut 0, 0).map_err(|error| fail(error.to_string()))?;
                self.connection.consume(len);
                return Ok(answer);
            }
            let name = String::from_utf8_lossy(arguments[0]);
            self.connection.receive().map_err(|error| fail(format!("{name} got no reply: {error}")))?;
        }
    }

    /// Sends a command and returns its reply; fails if the server replies with an error.
    pub fn done(&mut self, arguments: &[&[u8]]) -> Result<Answer, BenchError> {
        match self.ask(arguments)? {
            Answer::Error(message) => {
                let message = format!("{}: {message}", String::from_utf8_lossy(arguments[0]));
                Err(BenchError::subject(&self.target, "setup")(message))
            }
            answer => Ok(answer),
        }
    }

    /// Ends the connection: sends `QUIT` without waiting for the reply, and closes the socket.
    pub fn leave(self) {
        let _ = self.connection.socket().write(b"*1\r\n$4\r\nQUIT\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Answer, ReplyError> {
        Answer::read(bytes, &mut 0, 0)
    }

    #[test]
    fn replies_become_values() {
        let list = read(b"*3\r\n$1\r\na\r\n:7\r\n%1\r\n+k\r\n_\r\n").unwrap();
        let inner = Answer::List(vec![Answer::Text(b"k".to_vec()), Answer::Null]);
        assert_eq!(list, Answer::List(vec![Answer::Text(b"a".to_vec()), Answer::Integer(7), inner]));
        assert_eq!(read(b"=5\r\ntxt:a\r\n").unwrap().text(), "a");
        assert_eq!(read(b"-ERR no\r\n").unwrap(), Answer::Error("ERR no".to_owned()));
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| [b"*1\r\n".repeat(depth), b":1\r\n".to_vec()].concat();
        assert!(read(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(read(&nested(MAX_DEPTH + 1)), Err(ReplyError::Values));
    }
}
