//! Scripts of commands that a Redis client might send, and checks of the replies. A script has commands of every kind
//! on few keys with words that commands accept, in and out of transactions, inline and as arrays, and invalid bytes.
//! The test with seeds and the fuzz target share this, and each supplies its own input.

use std::{net::SocketAddr, time::Duration};

use thalweg_redis::{
    table,
    wire::reply_parser::{Token, token, whole},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Longest time of one script.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of requests of a script.
const MAX_REQUESTS: usize = 64;

/// Words that commands accept, and keys.
const WORDS: &[&str] = &[
    "a",
    "b",
    "c",
    "0",
    "1",
    "-1",
    "2",
    "10",
    "x",
    "*",
    "+",
    "-",
    "$",
    ">",
    "0-0",
    "1-1",
    "7-*",
    "STREAMS",
    "GROUP",
    "g",
    "me",
    "BLOCK",
    "COUNT",
    "MATCH",
    "NX",
    "XX",
    "EX",
    "PX",
    "GET",
    "KEEPTTL",
    "MAXLEN",
    "~",
    "MKSTREAM",
    "CREATE",
    "FULL",
    "STREAM",
    "LIST",
    "INFO",
    "SETNAME",
    "ID",
    "REPLY",
    "OFF",
    "ON",
    "SKIP",
    "2",
    "3",
    "AUTH",
    "CHANNELS",
    "NUMSUB",
    "WITHVALUES",
    "REPLACE",
    "TYPE",
    "string",
    "9223372036854775807",
    "1.5",
    "nan",
    "",
];

/// Commands that change the effect of others. They are chosen more often, so that they appear among the many other
/// commands.
const OFTEN: &[&str] = &[
    "multi",
    "exec",
    "discard",
    "watch",
    "select",
    "xadd",
    "xreadgroup",
    "xread",
    "set",
    "hset",
    "hello",
    "subscribe",
];

/// Decisions, read from the front of an input; zero after its end.
struct Decisions<'a>(&'a [u8]);

impl Decisions<'_> {
    fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first)
    }

    fn word(&mut self) -> Vec<u8> {
        match self.byte() {
            // An error repeats this word with up to three times its length, and must still be a line that the test's
            // reader accepts.
            250.. => vec![self.byte() as u8; 1 + self.byte() * self.byte() / 4],
            at => WORDS[at % WORDS.len()].as_bytes().to_vec(),
        }
    }
}

/// Returns the bytes that a connection sends, as the input determines.
pub fn script(input: &[u8]) -> Vec<u8> {
    let all: Vec<_> = table::all().collect();
    let (mut out, mut input) = (Vec::new(), Decisions(input));
    for _ in 0..MAX_REQUESTS {
        if input.0.is_empty() {
            break;
        }
        let (name, least) = match input.byte() {
            at @ 0..120 => (OFTEN[at % OFTEN.len()], 1),
            at => {
                let command = all[(at + 256 * input.byte()) % all.len()];
                (command.name, usize::from(command.arity.unsigned_abs()) - 1)
            }
        };
        let count = (least + input.byte() % 5).saturating_sub(usize::from(input.byte() % 8 == 0));
        let words: Vec<_> = std::iter::once(name.as_bytes().to_vec()).chain((0..count).map(|_| input.word())).collect();
        if input.byte() % 8 == 1 {
            out.extend(words.join(&b' '));
            out.extend(b"\r\n");
            continue;
        }
        out.extend(format!("*{}\r\n", words.len()).into_bytes());
        for word in words {
            out.extend(format!("${}\r\n", word.len()).into_bytes());
            out.extend(word);
            out.extend(b"\r\n");
        }
    }
    // Some scripts are cut, or have an invalid byte.
    match input.byte() % 8 {
        6 if !out.is_empty() => out.truncate(out.len() - 1 - (input.byte() * out.len() / 300)),
        7 if !out.is_empty() => {
            let at = input.byte() * out.len() / 256;
            out[at] = input.byte() as u8;
        }
        _ => {}
    }
    out
}

/// Sends a script on a connection of its own, and reads all replies to the end. Asserts that every one is a reply, and
/// that none reports a failure inside the server.
pub async fn perform(server: SocketAddr, script: &[u8]) {
    let done = tokio::time::timeout(PATIENCE, performed(server, script)).await;
    done.unwrap_or_else(|_| {
        panic!("a client that has ended its half is answered, and then the connection ends: {}", script.escape_ascii())
    });
}

async fn performed(server: SocketAddr, script: &[u8]) {
    let stream = TcpStream::connect(server).await.expect("the server accepts");
    let (mut receive, mut send) = stream.into_split();
    let bytes = script.to_vec();
    let sending = async move {
        // The server may end the connection before all bytes are written.
        let _ = send.write_all(&bytes).await;
        let _ = send.shutdown().await;
        send
    };
    let receiving = async {
        let mut got = Vec::new();
        let _ = receive.read_to_end(&mut got).await;
        got
    };
    let (_send, got) = tokio::join!(sending, receiving);
    let mut rest = &got[..];
    while !rest.is_empty() {
        // A connection that was reset may have lost the end of a reply.
        let Some(len) = whole(rest).unwrap_or_else(|error| panic!("{error}: {}", rest.escape_ascii())) else { break };
        if let Ok(Some((Token::Error(text), _))) = token(rest) {
            let text = String::from_utf8_lossy(text);
            let is_ours =
                text.contains("the database gave") || text.contains("the log gave") || text.starts_with("MISCONF");
            assert!(!is_ours, "{text}: {}", script.escape_ascii());
        }
        rest = &rest[len..];
    }
}
