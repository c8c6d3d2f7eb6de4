//! Lets the load generator send its requests over HTTP: implements the generator's trait `Protocol`.
//!
//! A connection that breaks counts as an error and is opened again. Replies are compared with the values that must be
//! stored.

use std::{collections::BTreeMap, fmt, net::SocketAddr, sync::Arc};

use rand::RngExt as _;

use super::requests::{Judgement, Operation, Requests};
use crate::{
    Address, BadReply, Batching, BenchError, Connection, Decoded, Merge, OnLoss, Protocol, Tally,
    latency::Latencies,
    random::Generator,
    server::{Body, Incomplete, parse},
};

/// The load generator's protocol for requests to one HTTP server.
#[derive(Clone, Debug)]
pub struct Http {
    /// Address of the server's HTTP port.
    pub address: SocketAddr,
    /// Builder of requests, which also checks replies.
    pub requests: Arc<Requests>,
    /// Percentage of requests that are gets; the other requests are puts.
    pub get_percent: u8,
    /// Judgement of a get that finds no value for its key: right or wrong.
    pub missing: MissingKeyPolicy,
}

/// Judgement of a get that finds no value for its key: right or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingKeyPolicy {
    /// The reply is right: the benchmark may never have stored the key.
    Allowed,
    /// The reply is wrong: the benchmark stored the key before, so the server has lost data.
    Lost,
}

/// Counts of one run over HTTP, in addition to those of all protocols. Right replies count if their requests were due
/// after the warm-up and before the end of the run. Wrong replies always count.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Service times of right replies, counted from the moment at which a request was sent.
    pub service: Latencies,
    /// Number of replies by status code.
    pub statuses: BTreeMap<u16, u64>,
    /// Number of gets of keys that have no value.
    pub missing: u64,
    /// Number of gets that found no value although the benchmark had stored the key.
    pub lost_keys: u64,
    /// Number of replies with a wrong status code.
    pub bad_status: u64,
    /// Number of replies with a wrong body.
    pub wrong_bytes: u64,
}

impl Merge for Counts {
    fn merge(&mut self, other: Self) {
        self.service.merge(&other.service);
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.missing += other.missing;
        self.lost_keys += other.lost_keys;
        self.bad_status += other.bad_status;
        self.wrong_bytes += other.wrong_bytes;
    }
}

/// Results of a run over HTTP.
pub type Outcome = crate::Outcome<Counts>;

/// Status code of a reply, and the result of checking the reply.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    status: u16,
    judgement: Judgement,
}

/// Reason why a reply is wrong.
#[derive(Debug)]
pub enum Fault {
    /// The received bytes are not HTTP.
    Malformed(&'static str),
    /// The operation cannot have this status, the benchmark never stored this body, or a stored key was not found.
    Wrong(Operation, Answer),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(what) => f.write_str(what),
            Self::Wrong(operation, Answer { status, judgement: Judgement::WrongBytes }) => {
                write!(f, "{operation:?} answered {status} with bytes that were never stored")
            }
            Self::Wrong(operation, Answer { status, judgement: Judgement::Missing }) => {
                write!(f, "{operation:?} of a stored key answered {status}")
            }
            Self::Wrong(operation, Answer { status, .. }) => write!(f, "{operation:?} answered {status}"),
        }
    }
}

impl Protocol for Http {
    type Request = (Operation, u64);
    type Reply = Answer;
    type Fault = Fault;
    type State = ();
    type Counts = Counts;

    const BATCHING: Batching = Batching::PerRequest;
    const ON_LOSS: OnLoss = OnLoss::Reconnect;

    fn connect(&self) -> Result<Connection, BenchError> {
        let connection = Connection::open(&Address::Tcp(self.address))
            .and_then(|connection| connection.socket().set_nonblocking(true).map(|()| connection));
        connection.map_err(BenchError::target(self.address))
    }

    fn kinds(&self) -> usize {
        2
    }

    #[inline]
    fn choose(&self, index: u64, rng: &mut Generator) -> (Operation, u64) {
        let is_get = match self.get_percent {
            0 => false,
            100.. => true,
            percent => rng.random_range(0..100) < percent,
        };
        (if is_get { Operation::Get } else { Operation::Put }, index)
    }

    #[inline]
    fn kind((operation, _): (Operation, u64)) -> usize {
        operation as usize
    }

    #[inline]
    fn encode(&self, (operation, index): (Operation, u64), out: &mut Vec<u8>) {
        self.requests.write(operation, index, out);
    }

    #[inline]
    fn decode(
        &self,
        (operation, index): (Operation, u64),
        (): &mut (),
        bytes: &[u8],
    ) -> Result<Option<Decoded<Answer>>, BadReply<Answer, Fault>> {
        let reply = match parse(bytes, Body::Expected) {
            Ok(reply) => reply,
            Err(Incomplete::NeedMore) => return Ok(None),
            Err(Incomplete::Malformed(what)) => {
                return Err(BadReply { fault: Fault::Malformed(what), decoded: None });
            }
        };
        let judgement = self.requests.judge(operation, index, &reply, bytes);
        let answer = Answer { status: reply.status, judgement };
        let decoded = Decoded { bytes: reply.total_bytes, reply: answer, closes: reply.closes };
        let is_right = match judgement {
            Judgement::Right => true,
            Judgement::Missing => self.missing == MissingKeyPolicy::Allowed,
            Judgement::BadStatus | Judgement::WrongBytes => false,
        };
        if is_right {
            Ok(Some(decoded))
        } else {
            Err(BadReply { fault: Fault::Wrong(operation, answer), decoded: Some(decoded) })
        }
    }

    #[inline]
    fn count(&self, counts: &mut Counts, answer: Answer, service: Option<u64>) {
        *counts.statuses.entry(answer.status).or_default() += 1;
        match answer.judgement {
            Judgement::Right => {}
            Judgement::Missing => {
                counts.missing += 1;
                counts.lost_keys += u64::from(self.missing == MissingKeyPolicy::Lost);
            }
            Judgement::BadStatus => counts.bad_status += 1,
            Judgement::WrongBytes => counts.wrong_bytes += 1,
        }
        if let Some(service) = service {
            counts.service.record_nanos(service);
        }
    }

    fn errors(&self, tally: &Tally<Counts>) -> Option<String> {
        let (Counts { lost_keys, bad_status, wrong_bytes, .. }, broken) = (&tally.own, tally.lost);
        (bad_status + wrong_bytes + lost_keys + broken > 0).then(|| {
            format!(
                "{bad_status} bad statuses, {wrong_bytes} wrong values, {broken} broken connections, {lost_keys} stored \
                 keys not found"
            )
        })
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
