//! Query parameters of requests that publish a message, ask for an answer to a message, or subscribe.

use std::time::Duration;

use thalweg_broker::Policy;

use super::{
    ParseError,
    query::{Field, bytes, number, positive, query, scalars},
};

scalars! {
    Duration: Number;
    Policy: String ["block", "drop_new", "drop_old", "disconnect"];
}

query! {
    /// Query parameters of `POST /v1/subjects/{subject}` and `POST /v1/ask/{subject}`.
    #[derive(Default)]
    pub(crate) struct PublishQuery {
        /// Key of the message, if the body is one raw message.
        key: Option<Vec<u8>> = bytes,
        /// Subject to which receivers should publish their answers.
        reply: Option<Vec<u8>> = bytes,
        /// Maximum time in seconds to wait until the queues of blocking subscriptions have room, and for an answer; 5
        /// if missing, 3,600 at most.
        timeout: Option<Duration> = seconds,
    }

    /// Query parameters of `GET /v1/subjects/{pattern}`.
    pub(crate) struct SubscribeQuery {
        /// Name of the queue group; each message goes to one of its members.
        group: Option<Vec<u8>> = bytes,
        /// Policy for a full queue; `drop_new` if missing.
        policy: Policy = policy_of,
        /// Maximum number of messages in the subscription's queue.
        max_messages: Option<u64> = positive,
        /// Maximum number of bytes of messages in the subscription's queue.
        max_bytes: Option<u64> = positive,
        /// Number of messages after which the subscription ends.
        limit: Option<u64> = number,
    }
}

impl Field<Policy> for Policy {
    fn of(_: &'static str, given: Option<Self>) -> Result<Self, ParseError> {
        Ok(given.unwrap_or(Self::DropNew))
    }
}

fn policy_of(name: &'static str, value: impl AsRef<[u8]>) -> Result<Policy, ParseError> {
    match value.as_ref() {
        b"block" => Ok(Policy::Block),
        b"drop_new" => Ok(Policy::DropNew),
        b"drop_old" => Ok(Policy::DropOld),
        b"disconnect" => Ok(Policy::Disconnect),
        _ => Err(ParseError::BadParameter { name, expected: "block, drop_new, drop_old or disconnect" }),
    }
}

fn seconds(name: &'static str, value: impl AsRef<[u8]>) -> Result<Duration, ParseError> {
    let seconds = std::str::from_utf8(value.as_ref()).ok().and_then(|text| text.parse::<f64>().ok());
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
