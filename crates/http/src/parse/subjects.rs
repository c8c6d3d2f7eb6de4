//! Query parameters of publishing, asking and subscribing.

use std::time::Duration;

use thalweg_broker::Policy;

use super::{
    ParseError,
    query::{Params, number, once, unknown},
};

/// Query parameters of `POST /v1/subjects/{subject}` and `POST /v1/ask/{subject}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublishQuery {
    /// Key of the message, if the body is one raw message.
    pub key: Option<Vec<u8>>,
    /// Subject for answers.
    pub reply: Option<Vec<u8>>,
    /// Maximum time to wait for room in queues, and for an answer.
    pub timeout: Option<Duration>,
}

impl PublishQuery {
    /// Parses a query string.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let mut parsed = Self::default();
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "key" => once(&mut parsed.key, "key", value.into_owned())?,
                "reply" => once(&mut parsed.reply, "reply", value.into_owned())?,
                "timeout" => once(&mut parsed.timeout, "timeout", seconds("timeout", &value)?)?,
                other => return unknown(other),
            }
        }
        Ok(parsed)
    }
}

/// Query parameters of `GET /v1/subjects/{pattern}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubscribeQuery {
    /// Name of the queue group.
    pub group: Option<Vec<u8>>,
    /// Policy for a full queue.
    pub policy: Policy,
    /// Maximum number of queued messages.
    pub max_messages: Option<u64>,
    /// Maximum size of queued messages in bytes.
    pub max_bytes: Option<u64>,
    /// Number of messages after which the subscription ends.
    pub limit: Option<u64>,
}

impl SubscribeQuery {
    /// Parses a query string.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, ParseError> {
        let (mut group, mut policy, mut max_messages, mut max_bytes, mut limit) = (None, None, None, None, None);
        for pair in Params::new(query) {
            let (name, value) = pair?;
            match &*name {
                "group" => once(&mut group, "group", value.into_owned())?,
                "policy" => once(&mut policy, "policy", policy_of(&value)?)?,
                "max_messages" => once(&mut max_messages, "max_messages", positive("max_messages", &value)?)?,
                "max_bytes" => once(&mut max_bytes, "max_bytes", positive("max_bytes", &value)?)?,
                "limit" => once(&mut limit, "limit", number("limit", &value)?)?,
                other => return unknown(other),
            }
        }
        Ok(Self { group, policy: policy.unwrap_or(Policy::DropNew), max_messages, max_bytes, limit })
    }
}

fn policy_of(value: &[u8]) -> Result<Policy, ParseError> {
    match value {
        b"block" => Ok(Policy::Block),
        b"drop_new" => Ok(Policy::DropNew),
        b"drop_old" => Ok(Policy::DropOld),
        b"disconnect" => Ok(Policy::Disconnect),
        _ => Err(ParseError::BadParameter { name: "policy", expected: "block, drop_new, drop_old or disconnect" }),
    }
}

fn positive(name: &'static str, value: &[u8]) -> Result<u64, ParseError> {
    let number: u64 = number(name, value)?;
    if number == 0 { Err(ParseError::BadParameter { name, expected: "at least 1" }) } else { Ok(number) }
}

fn seconds(name: &'static str, value: &[u8]) -> Result<Duration, ParseError> {
    let seconds = std::str::from_utf8(value).ok().and_then(|text| text.parse::<f64>().ok());
    let span = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let span = span.filter(|span| *span <= thalweg_types::limits::MAX_REQUEST_TIMEOUT);
    span.ok_or(ParseError::BadParameter { name, expected: "seconds, as in 5 or 0.25, at most 3600" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_and_nothing_is_passed_over() {
        let query = SubscribeQuery::parse(Some("group=w&policy=drop_old&max_messages=5&max_bytes=10&limit=0")).unwrap();
        assert_eq!((query.group.as_deref(), query.policy), (Some(&b"w"[..]), Policy::DropOld));
        assert_eq!((query.max_messages, query.max_bytes, query.limit), (Some(5), Some(10), Some(0)));
        for bad in ["policy=drop", "max_messages=0", "max_bytes=0", "limit=x", "limit=1&limit=1", "x=1"] {
            assert!(SubscribeQuery::parse(Some(bad)).is_err(), "{bad}");
        }
        let query = PublishQuery::parse(Some("key=%FF&reply=a.b&timeout=0.25")).unwrap();
        assert_eq!((query.key.as_deref(), query.reply.as_deref()), (Some(&b"\xff"[..]), Some(&b"a.b"[..])));
        assert_eq!(query.timeout, Some(Duration::from_millis(250)));
        for bad in ["timeout=-1", "timeout=1e9", "timeout=nan", "timeout=", "policy=block"] {
            assert!(PublishQuery::parse(Some(bad)).is_err(), "{bad}");
        }
    }
}
