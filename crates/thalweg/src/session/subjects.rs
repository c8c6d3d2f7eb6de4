//! Requests for the subjects of a server: publish, subscribe, and ask. A directory has no subjects, because messages
//! are not stored.

use std::time::Duration;

use serde_json::{Map, Value};
use thalweg_server::parse::encode;

use super::{
    Session,
    events::{Endless, Part},
    http::{RequestBuilder, Step},
    record::{Record, records_json},
};
use crate::{failure::Failure, render::take_bytes};

/// A message received from a subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub subject: Vec<u8>,
    /// Subject to which the answer should be published; `None` if the sender wants no answer.
    pub reply: Option<Vec<u8>>,
    pub record: Record,
}

/// Number of published messages, and numbers of subscriptions that received or missed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Published {
    pub messages: u64,
    pub delivered: u64,
    pub missed: u64,
    /// Number of other nodes to which the messages are sent; `None` if the server has no cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
}

/// Pattern and options of a subscription.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubscribeQuery {
    pub pattern: Vec<u8>,
    pub group: Option<String>,
    pub policy: Option<&'static str>,
    pub max_messages: Option<u64>,
    pub max_bytes: Option<u64>,
}

/// Event that a subscription passes to its visitor.
pub(crate) enum SubscriptionEvent<'a> {
    /// The subscription is active: messages published from now on will be received.
    Subscribed,
    Message(&'a Message),
    /// This number of messages was dropped at this point, because the queue of the subscription was full.
    Gap(u64),
}

/// Function that is called with each event of a subscription; `Break` ends the subscription.
type Visit<'v> = &'v mut dyn FnMut(SubscriptionEvent<'_>) -> Step;

impl Session {
    /// Publishes messages to a subject as one batch.
    pub(crate) fn publish(
        &self,
        subject: &[u8],
        messages: &[Record],
        reply: Option<&str>,
        wait: Option<Duration>,
    ) -> Result<Published, Failure> {
        let mut path = format!("/v1/subjects/{}?", encode(subject));
        path.extend(reply.map(|reply| format!("reply={}&", encode(reply.as_bytes()))));
        path.extend(wait.map(|wait| format!("timeout={}&", wait.as_secs_f64())));
        path.pop();
        self.http.json(RequestBuilder::post(path).json(&records_json(messages)))
    }

    /// Publishes a message to a subject, and waits for the first answer.
    pub(crate) fn request(&self, subject: &[u8], message: Record, wait: Duration) -> Result<Message, Failure> {
        let path = format!("/v1/ask/{}?timeout={}", encode(subject), wait.as_secs_f64());
        let ask = RequestBuilder::post(path).json(&records_json(&[message])).header("accept", "application/json");
        let answer: Map<String, Value> = self.http.json(ask).map_err(|failure| match &*failure.code {
            "no_responders" => failure.then("start `thalweg reply`, or a program that subscribes and answers"),
            "request_timed_out" => {
                failure.then("wait longer with --wait; a responder may have handled the request nevertheless")
            }
            _ => failure,
        })?;
        self.http.required(message_of(&answer), "message")
    }

    /// Subscribes to a pattern of subjects. Subscribes again after the connection was lost; messages published in
    /// the meantime are missed.
    pub(crate) fn subscribe(&self, query: &SubscribeQuery, visit: Visit<'_>) -> Result<(), Failure> {
        let endless = Endless {
            path: &|| path(query),
            next: &|| "retrying; messages published in the meantime are missed".to_owned(),
            resumes: false,
        };
        endless.follow(&self.http, &mut |part| pass_on(part, visit)).map_err(|failure| match &*failure.code {
            "slow_consumer" => failure.then("read faster, request a longer queue, or choose another --policy"),
            _ => failure,
        })
    }
}

/// Handles the beginning of a connection or an event that has arrived on it: converts it for the visitor of the
/// subscription, and calls the visitor.
fn pass_on(part: Part, visit: Visit<'_>) -> Step {
    match part {
        Part::Opened => visit(SubscriptionEvent::Subscribed),
        Part::Event(event) if event.name == "gap" => {
            let gap = event.object.get("gap").and_then(Value::as_u64).unwrap_or_default();
            visit(SubscriptionEvent::Gap(gap))
        }
        Part::Event(event) => match message_of(&event.object) {
            Some(message) => visit(SubscriptionEvent::Message(&message)),
            None => Ok(std::ops::ControlFlow::Continue(())),
        },
    }
}

/// Parses a message from the JSON of the HTTP API; `None` if fields are missing.
fn message_of(object: &Map<String, Value>) -> Option<Message> {
    let record = Record::of(object)?;
    Some(Message { subject: take_bytes(object, "subject")?, reply: take_bytes(object, "reply"), record })
}

fn path(query: &SubscribeQuery) -> String {
    let mut path = format!("/v1/subjects/{}?", encode(&query.pattern));
    let mut add = |name: &str, value: Option<String>| {
        path.extend(value.map(|value| format!("{name}={}&", encode(value.as_bytes()))));
    };
    add("group", query.group.clone());
    add("policy", query.policy.map(str::to_owned));
    add("max_messages", query.max_messages.map(|most| most.to_string()));
    add("max_bytes", query.max_bytes.map(|most| most.to_string()));
    path.pop();
    path
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::session::{events::Events, http::Http};

    #[test]
    fn paths_say_what_is_wanted() {
        let query = SubscribeQuery { pattern: b"a.>".to_vec(), ..SubscribeQuery::default() };
        assert_eq!(path(&query), "/v1/subjects/a.%3E");
        let query = SubscribeQuery { group: Some("g h".into()), policy: Some("block"), max_bytes: Some(5), ..query };
        assert_eq!(path(&query), "/v1/subjects/a.%3E?group=g%20h&policy=block&max_bytes=5");
    }

    #[test]
    fn what_comes_is_told_in_order() {
        let http = Http::server("http://127.0.0.1:1", Duration::from_secs(1)).unwrap();
        let text = ": subscribed\n\ndata: {\"subject\":\"a\",\"reply\":\"r\",\"payload\":\"1\"}\n\n\
                    event: gap\ndata: {\"gap\":7}\n\nevent: error\ndata: {\"code\":\"slow_consumer\",\"retry\":\"retry\"}\n\n";
        let mut received = Vec::new();
        let endless = Endless { path: &String::new, next: &String::new, resumes: false };
        let ended = endless.visit(Events::new(text.as_bytes()), &http, &mut |part| {
            pass_on(part, &mut |event| {
                received.push(match event {
                    SubscriptionEvent::Message(message) => (message.record.payload.clone(), message.reply.clone()),
                    SubscriptionEvent::Gap(gap) => (gap.to_string().into_bytes(), None),
                    SubscriptionEvent::Subscribed => unreachable!("told before"),
                });
                Ok(ControlFlow::Continue(()))
            })
        });
        assert_eq!(received, [(b"1".to_vec(), Some(b"r".to_vec())), (b"7".to_vec(), None)]);
        assert_eq!(ended.unwrap_err().code, "slow_consumer");
    }
}
