//! Subjects of a server: publish, subscribe, ask. Directories have none, since messages are not stored.

use std::{
    io::{BufRead, BufReader},
    ops::ControlFlow,
    time::{Duration, Instant},
};

use serde_json::{Map, Value};
use thalweg_server::parse::encode;
use ureq::http::Method;

use super::{
    NewRecord,
    events::Events,
    headers_of,
    http::{Ask, Http},
    remote::records_json,
};
use crate::{
    failure::{Exit, Failure},
    render::{note, take_bytes},
};

/// Time for which a subscription retries to reach a lost server.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause of a subscription between two attempts to reach the server.
const PAUSE: Duration = Duration::from_millis(200);

/// A message received from a subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub subject: Vec<u8>,
    /// Subject for the answer, if one is wanted.
    pub reply: Option<Vec<u8>>,
    pub record: NewRecord,
}

/// Number of messages published and of subscriptions that got or missed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    pub messages: u64,
    pub delivered: u64,
    pub missed: u64,
}

/// Pattern and options of a subscription.
#[derive(Clone, Debug, Default)]
pub struct SubscribeQuery {
    pub pattern: Vec<u8>,
    pub group: Option<String>,
    pub policy: Option<&'static str>,
    pub max_messages: Option<u64>,
    pub max_bytes: Option<u64>,
}

/// Event that a subscription passes to its visitor.
pub enum Told<'a> {
    /// The subscription is active: later messages will be received.
    Subscribed,
    Message(&'a Message),
    /// This number of messages was dropped here.
    Gap(u64),
}

/// Called with each event; `Break` ends the subscription.
pub type Visit<'v> = &'v mut dyn FnMut(Told<'_>) -> Result<ControlFlow<()>, Failure>;

/// Publishes messages as one batch.
pub fn publish(
    http: &Http,
    subject: &[u8],
    messages: &[NewRecord],
    reply: Option<&str>,
    wait: Option<Duration>,
) -> Result<Published, Failure> {
    let mut path = format!("/v1/subjects/{}?", encode(subject));
    reply.iter().for_each(|reply| path.push_str(&format!("reply={}&", encode(reply.as_bytes()))));
    wait.iter().for_each(|wait| path.push_str(&format!("timeout={}&", wait.as_secs_f64())));
    path.pop();
    let body = records_json(messages).to_string();
    let ask = Ask::send(Method::POST, path, body.as_bytes()).header("content-type", "application/json");
    let answer = http.json(ask)?;
    let number = |name: &str| answer[name].as_u64().ok_or_else(|| http.not_ours(&format!("no {name} in a publish")));
    Ok(Published { messages: number("messages")?, delivered: number("delivered")?, missed: number("missed")? })
}

/// Publishes a message and waits for the first answer.
pub fn ask(http: &Http, subject: &[u8], message: NewRecord, wait: Duration) -> Result<Message, Failure> {
    let path = format!("/v1/ask/{}?timeout={}", encode(subject), wait.as_secs_f64());
    let body = records_json(&[message]).to_string();
    let ask = Ask::send(Method::POST, path, body.as_bytes())
        .header("content-type", "application/json")
        .header("accept", "application/json");
    let failed = |failure: Failure| match &*failure.code {
        "no_responders" => failure.then("start one with `thalweg reply`, or a program that subscribes and answers"),
        "request_timed_out" => failure.then("wait longer with --wait; it may have been dealt with all the same"),
        _ => failure,
    };
    let answer = http.json(ask).map_err(failed)?;
    answer.as_object().and_then(message_of).ok_or_else(|| http.not_ours("an answer that is no message"))
}

/// Subscribes, and subscribes again after the server returns; messages published in the meantime are missed. Fails
/// immediately if the server was never reachable.
pub fn subscribe(http: &Http, query: &SubscribeQuery, visit: Visit<'_>) -> Result<(), Failure> {
    let (mut lost_at, mut was_there) = (None, false);
    loop {
        let failure = match http.stream(Ask::get(path(query)).header("accept", "text/event-stream")) {
            Ok(body) => {
                (lost_at, was_there) = (None, true);
                if visit(Told::Subscribed)?.is_break() {
                    return Ok(());
                }
                match follow(Events::new(BufReader::new(body)), visit, http)? {
                    ControlFlow::Break(()) => return Ok(()),
                    ControlFlow::Continue(()) => None,
                }
            }
            Err(failure) if was_there && failure.exit == Exit::Unavailable => Some(failure),
            Err(failure) => return Err(failure),
        };
        let since = *lost_at.get_or_insert_with(|| {
            note(&format!("the connection to {} is gone; what is published meanwhile is missed", http.base()));
            Instant::now()
        });
        if let Some(failure) = failure
            && since.elapsed() > PATIENCE
        {
            return Err(failure);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Visits the events of a connection until it ends (`Continue`) or `visit` ends the subscription (`Break`).
fn follow(mut events: Events<impl BufRead>, visit: Visit<'_>, http: &Http) -> Result<ControlFlow<()>, Failure> {
    while let Some(event) = events.next_event() {
        let Ok(Value::Object(object)) = serde_json::from_str(&event.data) else {
            return Err(http.not_ours("an event that is no JSON object"));
        };
        let flow = match &*event.name {
            "error" => {
                let failure = http.failure_of(&Value::Object(object), 503);
                return Err(match &*failure.code {
                    "slow_consumer" => failure.then("read faster, ask for a longer queue, or choose another --policy"),
                    _ => failure,
                });
            }
            "gap" => visit(Told::Gap(object.get("gap").and_then(Value::as_u64).unwrap_or_default()))?,
            _ => match message_of(&object) {
                Some(message) => visit(Told::Message(&message))?,
                None => ControlFlow::Continue(()),
            },
        };
        if flow.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Parses a message in the API's form; `None` if fields are missing.
fn message_of(object: &Map<String, Value>) -> Option<Message> {
    Some(Message {
        subject: take_bytes(object, "subject")?,
        reply: take_bytes(object, "reply"),
        record: NewRecord {
            key: take_bytes(object, "key"),
            headers: headers_of(object),
            payload: take_bytes(object, "payload")?,
            is_tombstone: object.get("tombstone") == Some(&Value::Bool(true)),
        },
    })
}

fn path(query: &SubscribeQuery) -> String {
    let mut path = format!("/v1/subjects/{}?", encode(&query.pattern));
    let mut add = |name: &str, value: &str| path.push_str(&format!("{name}={}&", encode(value.as_bytes())));
    query.group.iter().for_each(|group| add("group", group));
    query.policy.iter().for_each(|policy| add("policy", policy));
    query.max_messages.iter().for_each(|most| add("max_messages", &most.to_string()));
    query.max_bytes.iter().for_each(|most| add("max_bytes", &most.to_string()));
    path.pop();
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_say_what_is_wanted() {
        let query = SubscribeQuery { pattern: b"a.>".to_vec(), ..SubscribeQuery::default() };
        assert_eq!(path(&query), "/v1/subjects/a.%3E");
        let query = SubscribeQuery { group: Some("g h".into()), policy: Some("block"), max_bytes: Some(5), ..query };
        assert_eq!(path(&query), "/v1/subjects/a.%3E?group=g%20h&policy=block&max_bytes=5");
    }

    #[test]
    fn what_comes_is_told_in_order() {
        let http = Http::new("http://127.0.0.1:1", Duration::from_secs(1)).unwrap();
        let text = ": subscribed\n\ndata: {\"subject\":\"a\",\"reply\":\"r\",\"payload\":\"1\"}\n\n\
                    event: gap\ndata: {\"gap\":7}\n\nevent: error\ndata: {\"code\":\"slow_consumer\",\"retry\":\"retry\"}\n\n";
        let mut told = Vec::new();
        let ended = follow(
            Events::new(text.as_bytes()),
            &mut |what| {
                told.push(match what {
                    Told::Message(message) => (message.record.payload.clone(), message.reply.clone()),
                    Told::Gap(gap) => (gap.to_string().into_bytes(), None),
                    Told::Subscribed => unreachable!("told before"),
                });
                Ok(ControlFlow::Continue(()))
            },
            &http,
        );
        assert_eq!(told, [(b"1".to_vec(), Some(b"r".to_vec())), (b"7".to_vec(), None)]);
        assert_eq!(ended.unwrap_err().code, "slow_consumer");
    }
}
