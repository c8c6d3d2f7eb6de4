//! Operations on streams, consumer groups and pub/sub channels over RESP, on any server with Redis's commands.
//!
//! Owns: the bytes of commands and replies, the form of ids, and the ids of the fetched entries that are not
//! acknowledged yet. Does not own: the check of the records in a reply ([`super::Feed`]).
//!
//! A record is an entry with the field `payload`. An append of several records is a transaction of `XADD`s. A read is
//! an `XREAD`, and a fetch is an `XREADGROUP` of new entries. An ack is one `XACK` of all entries of a fetch. A publish
//! of several messages consists of one `PUBLISH` for each message, which are sent with one write.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use thalweg_redis::wire::reply_parser::{Token, token, whole};

use super::{
    appends::Positions,
    protocol::{Arrived, FeedContent, FeedParts, FeedProtocol, FeedRecord, Subscription, Texts},
    steps::{FeedSizes, FeedStep, Reader},
};
use crate::{
    BenchError, Connection,
    pairs::{Answer, Content, shown},
    resp::{
        client::{Client, Greeting},
        requests::command,
    },
};

/// Number of milliseconds in a day. The clocks of server and client may differ by up to a day.
const DAY: u64 = 86_400_000;
/// Name of the field that holds the record's text in each stream entry.
const FIELD: &[u8] = b"payload";

/// Encodes the requests to the stream, consumer group and pub/sub channel of a run over RESP, and decodes the replies.
#[derive(Debug)]
pub struct RespFeed {
    greeting: Greeting,
    name: String,
    ids: IdForm,
    /// Ids of the entries of each fetch that is not acknowledged yet.
    fetched: Mutex<BTreeMap<u64, Vec<u64>>>,
    attempts: AtomicU64,
}

/// Conversion of ids to rising numbers. An id consists of milliseconds since 1970 and a number within the millisecond.
#[derive(Clone, Copy, Debug)]
struct IdForm {
    /// Milliseconds since 1970 that the number 0 represents.
    base: u64,
}

impl IdForm {
    fn number(self, id: &[u8]) -> Result<u64, String> {
        let wrong = || format!("the id {:?} is none of about now: do the clocks of both machines differ?", shown(id));
        let (millis, sequence) = std::str::from_utf8(id).ok().and_then(|id| id.split_once('-')).ok_or_else(wrong)?;
        let (millis, sequence) = millis.parse::<u64>().ok().zip(sequence.parse::<u32>().ok()).ok_or_else(wrong)?;
        let millis = millis.checked_sub(self.base).and_then(|millis| u32::try_from(millis).ok()).ok_or_else(wrong)?;
        Ok(u64::from(millis) << 32 | u64::from(sequence))
    }

    fn text(self, number: u64) -> Vec<u8> {
        format!("{}-{}", self.base + (number >> 32), number & u64::from(u32::MAX)).into_bytes()
    }
}

impl RespFeed {
    /// Creates the feed of the stream and the channel called `name`. Also creates the group and its stream on the
    /// server, if the run uses a group.
    pub fn create(greeting: Greeting, name: String, parts: FeedParts) -> Result<Self, BenchError> {
        let feed = Self::new(greeting, name);
        if parts.group {
            let name = feed.name.as_bytes();
            Client::open(&feed.greeting)?.done(&[b"XGROUP", b"CREATE", name, name, b"0", b"MKSTREAM"])?;
        }
        Ok(feed)
    }

    pub(super) fn new(greeting: Greeting, name: String) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
        let ids = IdForm { base: now.saturating_sub(DAY) };
        Self { greeting, name, ids, fetched: Mutex::default(), attempts: AtomicU64::new(0) }
    }

    fn append(&self, texts: &Texts<'_>, out: &mut Vec<u8>) {
        let is_many = texts.count() > 1;
        if is_many {
            command(&[b"MULTI"], out);
        }
        texts.each(|text| command(&[b"XADD", self.name.as_bytes(), b"*", FIELD, text], out));
        if is_many {
            command(&[b"EXEC"], out);
        }
    }

    /// Returns the number of RESP replies with which the server answers a request of the run. For example, a publish of
    /// several messages gets one reply for each of them.
    fn replies(step: FeedStep, sizes: &FeedSizes) -> u32 {
        match step {
            FeedStep::Append(_) if sizes.batch > 1 => sizes.batch + 2,
            FeedStep::Publish(_) => sizes.messages,
            _ => 1,
        }
    }

    /// Reads the entries of a stream. They are an array with the id and the fields of each entry.
    fn entries(&self, replies: &mut Replies<'_>, each: &mut dyn FnMut(FeedRecord<'_>)) -> Result<(), String> {
        for _ in 0..replies.array()? {
            replies.expect_array(2)?;
            let position = self.ids.number(replies.text()?)?;
            let (mut payload, fields) = (None, replies.array()?);
            for _ in 0..fields / 2 {
                let (field, value) = (replies.text()?, replies.text()?);
                payload = payload.or((field == FIELD).then_some(value));
            }
            each(FeedRecord { position, deliveries: 1, payload });
        }
        Ok(())
    }

    /// Reads the entries in a reply to `XREAD` or `XREADGROUP`. Such a reply has one stream.
    fn stream_entries(&self, replies: &mut Replies<'_>, each: &mut dyn FnMut(FeedRecord<'_>)) -> Result<(), String> {
        match replies.array()? {
            0 => Ok(()),
            1 => {
                replies.expect_array(2)?;
                replies.text()?;
                self.entries(replies, each)
            }
            streams => Err(format!("{streams} streams instead of one")),
        }
    }
}

impl FeedProtocol for RespFeed {
    fn positions(&self) -> Positions {
        Positions::Ids
    }

    fn encode(&self, step: FeedStep, sizes: &FeedSizes, texts: &Texts<'_>, out: &mut Vec<u8>) {
        let (name, count) = (self.name.as_bytes(), |records: u32| records.to_string().into_bytes());
        match step {
            FeedStep::Append(_) => self.append(texts, out),
            FeedStep::Read { from, floor, reader: Reader::Whole } => {
                let (from, to) = (self.ids.text(from + 1), self.ids.text(floor));
                let to = if floor == u64::MAX { &b"+"[..] } else { &to };
                command(&[b"XRANGE", name, &from, to], out);
            }
            FeedStep::Read { from, .. } => {
                let (most, from) = (count(sizes.read_records), self.ids.text(from));
                command(&[b"XREAD", b"COUNT", &most, b"STREAMS", name, &from], out);
            }
            FeedStep::Fetch => {
                let most = count(sizes.fetch_records);
                let group: [&[u8]; 4] = [b"XREADGROUP", b"GROUP", name, b"bench"];
                command(&[&group[..], &[b"COUNT", &most, b"STREAMS", name, b">"]].concat(), out);
            }
            FeedStep::Ack { attempt, .. } => {
                let mut fetched = self.fetched.lock().unwrap_or_else(PoisonError::into_inner);
                let ids = fetched.remove(&attempt).unwrap_or_default();
                let ids: Vec<Vec<u8>> = ids.into_iter().map(|id| self.ids.text(id)).collect();
                let ids: Vec<&[u8]> = ids.iter().map(Vec::as_slice).collect();
                command(&[&[b"XACK", name, name], &ids[..]].concat(), out);
            }
            FeedStep::Publish(_) => texts.each(|text| command(&[b"PUBLISH", name, text], out)),
        }
    }

    fn decode<'a>(&self, step: FeedStep, sizes: &FeedSizes, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        let (mut at, mut refused) = (0, None);
        for _ in 0..Self::replies(step, sizes) {
            let reply = &bytes[at..];
            let Some(len) = whole(reply).map_err(|error| error.to_string())? else { return Ok(None) };
            if let Ok(Some((Token::Error(message), _))) = token(reply) {
                refused.get_or_insert_with(|| shown(message));
            }
            at += len;
        }
        let content = refused.map_or_else(|| Content::Value(Cow::Borrowed(&bytes[..at])), Content::Refused);
        Ok(Some(Answer { bytes: at, closes: false, content }))
    }

    fn read(
        &self,
        step: FeedStep,
        content: &[u8],
        each: &mut dyn FnMut(FeedRecord<'_>),
    ) -> Result<FeedContent, String> {
        let mut replies = Replies { bytes: content };
        Ok(match step {
            FeedStep::Append(_) => {
                // A transaction's replies begin with OK, and QUEUED for each record. The ids follow.
                while replies.peek()?.is_some_and(|token| matches!(token, Token::Simple(_))) {
                    replies.next()?;
                }
                let ids = if matches!(replies.peek()?, Some(Token::Array(_))) { replies.array()? } else { 1 };
                for _ in 0..ids {
                    let position = self.ids.number(replies.text()?)?;
                    each(FeedRecord { position, deliveries: 1, payload: None });
                }
                FeedContent::Records
            }
            FeedStep::Read { reader: Reader::Whole, .. } => {
                self.entries(&mut replies, each)?;
                FeedContent::Records
            }
            FeedStep::Read { .. } => {
                self.stream_entries(&mut replies, each)?;
                FeedContent::Records
            }
            FeedStep::Fetch => {
                let mut ids = Vec::new();
                self.stream_entries(&mut replies, &mut |record| {
                    ids.push(record.position);
                    each(record);
                })?;
                if ids.is_empty() {
                    return Ok(FeedContent::Fetched { attempt: None });
                }
                let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
                self.fetched.lock().unwrap_or_else(PoisonError::into_inner).insert(attempt, ids);
                FeedContent::Fetched { attempt: Some(attempt) }
            }
            FeedStep::Ack { .. } => FeedContent::Settled(replies.integer()?),
            FeedStep::Publish(_) => {
                let mut messages = 0;
                while !replies.bytes.is_empty() {
                    replies.integer()?;
                    messages += 1;
                }
                FeedContent::Published { messages: Some(messages), missed: 0 }
            }
        })
    }

    fn subscribe(&self) -> Result<Box<dyn Subscription>, BenchError> {
        let fail = |error: std::io::Error| BenchError::target(&self.greeting.address)(format!("subscribing: {error}"));
        let mut connection = Client::open(&self.greeting)?.into_connection()?;
        command(&[b"SUBSCRIBE", self.name.as_bytes()], connection.out());
        connection.send().map_err(fail)?;
        Ok(Box::new(RespSubscription { connection }))
    }

    fn remove(&self) {
        let _ = Client::open(&self.greeting).and_then(|mut client| client.ask(&[b"DEL", self.name.as_bytes()]));
    }
}

/// Reader of consecutive RESP replies.
struct Replies<'a> {
    bytes: &'a [u8],
}

impl<'a> Replies<'a> {
    fn peek(&self) -> Result<Option<Token<'a>>, String> {
        let found = token(self.bytes).map_err(|error| error.to_string())?;
        Ok(found.map(|(token, _)| token))
    }

    fn next(&mut self) -> Result<Token<'a>, String> {
        let found = token(self.bytes).map_err(|error| error.to_string())?;
        let (token, len) = found.ok_or_else(|| "the reply is cut off".to_owned())?;
        self.bytes = &self.bytes[len..];
        Ok(token)
    }

    /// Reads the head of an array. Returns the number of its values; 0 for a null.
    fn array(&mut self) -> Result<usize, String> {
        match self.next()? {
            Token::Null | Token::NullArray => Ok(0),
            token @ Token::Array(_) => Ok(token.values()),
            other => Err(format!("{other:?} instead of an array")),
        }
    }

    fn expect_array(&mut self, values: usize) -> Result<(), String> {
        let found = self.array()?;
        if found == values { Ok(()) } else { Err(format!("an array of {found} values instead of {values}")) }
    }

    fn text(&mut self) -> Result<&'a [u8], String> {
        match self.next()? {
            Token::Bulk(text) | Token::Simple(text) => Ok(text),
            Token::Error(message) => Err(shown(message)),
            other => Err(format!("{other:?} instead of a text")),
        }
    }

    fn integer(&mut self) -> Result<u64, String> {
        match self.next()? {
            Token::Integer(value) if value >= 0 => Ok(value as u64),
            other => Err(format!("{other:?} instead of a number")),
        }
    }
}

struct RespSubscription {
    connection: Connection,
}

impl Subscription for RespSubscription {
    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn take(&mut self, each: &mut dyn FnMut(Arrived<'_>)) -> Result<(), String> {
        let (mut at, input) = (0, self.connection.input());
        while let Some(len) = whole(&input[at..]).map_err(|error| error.to_string())? {
            let mut replies = Replies { bytes: &input[at..at + len] };
            at += len;
            if let Some(Token::Error(message)) = replies.peek()? {
                return Err(shown(message));
            }
            replies.expect_array(3)?;
            match (replies.text()?, replies.text()?) {
                (b"subscribe", _) => each(Arrived::Accepted),
                (b"message", _) => each(Arrived::Message(Some(replies.text()?))),
                (other, _) => return Err(format!("{:?} arrived on a subscription", shown(other))),
            }
        }
        self.connection.consume(at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    fn feed() -> RespFeed {
        let address = Address::Tcp(([127, 0, 0, 1], 1).into());
        RespFeed::new(Greeting { address, password: None, database: 0, is_resp3: false }, "f".to_owned())
    }

    fn seen(feed: &RespFeed, step: FeedStep, reply: &[u8]) -> Result<(FeedContent, Vec<u64>), String> {
        let mut seen = Vec::new();
        let content = feed.read(step, reply, &mut |record| seen.push(record.position))?;
        Ok((content, seen))
    }

    fn id(feed: &RespFeed, number: u64) -> String {
        let text = String::from_utf8(feed.ids.text(number)).unwrap();
        format!("${}\r\n{text}\r\n", text.len())
    }

    #[test]
    fn ids_become_numbers_that_rise() {
        let ids = IdForm { base: 1000 };
        assert_eq!(ids.number(b"1000-5"), Ok(5));
        assert_eq!(ids.number(b"1001-0"), Ok(1 << 32));
        assert_eq!(ids.text(ids.number(b"1001-7").unwrap()), b"1001-7");
        for wrong in [&b"999-0"[..], b"x", b"1000", b"1000-x", b"1000-99999999999", b"99999999999999-0"] {
            assert!(ids.number(wrong).unwrap_err().contains("clocks"), "{wrong:?}");
        }
    }

    #[test]
    fn replies_become_records_or_faults() {
        let feed = feed();
        let (read_from, most) = (crate::feeds::ReadFrom::Tail, 9);
        let sizes = FeedSizes {
            record_bytes: 20,
            batch: 2,
            read_records: most,
            read_from,
            fetch_records: most,
            message_bytes: 20,
            messages: 2,
        };
        let append = FeedStep::Append(super::super::AppendLedger::new(2, Positions::Ids).begin());
        let [first, second] = [5, 6].map(|number| id(&feed, number));
        let reply = format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{first}{second}");
        let whole = feed.decode(append, &sizes, reply.as_bytes()).unwrap().unwrap();
        assert_eq!(whole.bytes, reply.len());
        assert!((1..reply.len()).all(|len| feed.decode(append, &sizes, &reply.as_bytes()[..len]).unwrap().is_none()));
        assert_eq!(seen(&feed, append, reply.as_bytes()), Ok((FeedContent::Records, vec![5, 6])));
        assert_eq!(seen(&feed, append, first.as_bytes()), Ok((FeedContent::Records, vec![5])));
        let aborted = feed.decode(append, &sizes, b"+OK\r\n-ERR no\r\n+QUEUED\r\n-EXECABORT\r\n").unwrap().unwrap();
        assert_eq!(aborted.content, Content::Refused("ERR no".to_owned()));
        let entries = format!("*1\r\n*2\r\n$1\r\nf\r\n*1\r\n*2\r\n{first}*2\r\n$7\r\npayload\r\n$1\r\na\r\n");
        let read = FeedStep::Read { from: 0, floor: 0, reader: Reader::Once };
        assert_eq!(seen(&feed, read, entries.as_bytes()), Ok((FeedContent::Records, vec![5])));
        assert_eq!(seen(&feed, read, b"*-1\r\n"), Ok((FeedContent::Records, vec![])));
        assert!((1..entries.len()).all(|len| seen(&feed, read, &entries.as_bytes()[..len]).is_err()));
        let fetched = seen(&feed, FeedStep::Fetch, entries.as_bytes()).unwrap();
        assert_eq!(fetched, (FeedContent::Fetched { attempt: Some(0) }, vec![5]));
        let mut ack = Vec::new();
        let texts = super::super::NumberedTexts::new(20, 1);
        let none = Texts { texts: &texts, numbers: 0..0 };
        feed.encode(FeedStep::Ack { attempt: 0, records: 1 }, &sizes, &none, &mut ack);
        let ack = String::from_utf8(ack).unwrap();
        assert!(ack.starts_with("*4\r\n$4\r\nXACK\r\n") && ack.ends_with(&first), "{ack}");
        assert_eq!(seen(&feed, FeedStep::Fetch, b"*-1\r\n").unwrap().0, FeedContent::Fetched { attempt: None });
        let published = FeedContent::Published { messages: Some(2), missed: 0 };
        assert_eq!(seen(&feed, FeedStep::Publish(0), b":3\r\n:3\r\n").unwrap().0, published);
    }
}
