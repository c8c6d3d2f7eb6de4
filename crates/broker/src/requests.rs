//! Pending requests that wait for a reply.
//!
//! Owns: `Requests`, the numbers in its reply subjects, and the deadlines. Does not own: publishing, the subscription
//! to the reply subjects, or a timer.
//!
//! A request is a message that carries a reply subject. A component that sends requests on behalf of others, such as an
//! HTTP handler or a client library, subscribes once to [`Requests::inbox`]. It uses this table to find the requester
//! and the deadline for a reply subject. A component with its own table does not need this module.
//!
//! ```text
//!   begin ──► reply subject ──► publish ──► published ──► NoResponders, immediately
//!                                  │
//!                                  ├──► complete(reply's subject)
//!                                  └──► expire(now) ──► TimedOut
//! ```
//! Exactly one of NoResponders, a reply and a timeout ends a request. A later reply has no effect.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use foldhash::fast::FixedState;
use thalweg_types::{
    classified,
    limits::{MAX_PENDING_REQUESTS, MAX_REQUEST_TIMEOUT},
};

use crate::{Moment, Pattern, Published, Subject, SubjectError};

/// Reason why a request got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request's subject has no subscriber.
    #[error("no subscriber receives requests to this subject: retry when one has subscribed")]
    NoResponders,
    /// All subscribers of the request's subject had full queues.
    #[error("all subscribers that answer requests to this subject are overloaded: try again later")]
    Overloaded,
    /// No reply arrived before the deadline. The request may or may not have been processed.
    #[error("no reply in time; the request may still have been processed")]
    TimedOut,
    /// The table of pending requests is full.
    #[error("the limit of {max} pending requests is reached: try again later")]
    TooMany {
        /// Maximum number of pending requests in the table.
        max: usize,
    },
}

classified!(RequestError {
    Self::NoResponders => "no_responders", Retry;
    Self::Overloaded => "responders_overloaded", Retry;
    Self::TimedOut => "request_timed_out", Retry;
    Self::TooMany { .. } => "too_many_requests", Retry;
});

impl RequestError {
    /// Returns the error of a request that no subscriber on any node has received; `None` if a subscriber has received
    /// it.
    #[must_use]
    pub fn of(published: Published) -> Option<Self> {
        match (published.is_queued(), published.matched()) {
            (true, _) => None,
            (false, true) => Some(Self::Overloaded),
            (false, false) => Some(Self::NoResponders),
        }
    }
}

#[derive(Debug)]
struct Pending<T> {
    deadline: Moment,
    waiting: T,
}

/// Table of pending requests, each with a value `T` that identifies its requester.
#[derive(Debug)]
pub struct Requests<T> {
    prefix: Vec<u8>,
    next: u64,
    max: usize,
    pending: HashMap<u64, Pending<T>, FixedState>,
    /// Deadline and number of each pending request, sorted by deadline.
    deadlines: BTreeSet<(Moment, u64)>,
}

impl<T> Requests<T> {
    /// Creates an empty table. A reply subject consists of `prefix`, a dot and a number. The prefix must be impossible
    /// to guess, because a client that knows it could send forged replies. At most `max` requests can be pending, and
    /// never more than [`MAX_PENDING_REQUESTS`].
    ///
    /// # Errors
    /// Returns an error if the prefix with one further token is not a valid subject.
    pub fn new(prefix: &Subject, max: usize) -> Result<Self, SubjectError> {
        let prefix = [prefix.as_bytes(), b"."].concat();
        Subject::parse(&reply_subject(&prefix, u64::MAX))?;
        let pending = HashMap::with_hasher(FixedState::default());
        let max = max.min(MAX_PENDING_REQUESTS);
        Ok(Self { prefix, next: 0, max, pending, deadlines: BTreeSet::new() })
    }

    /// Pattern that matches all reply subjects. The owner of the table must subscribe to it to receive the replies.
    #[must_use]
    pub fn inbox(&self) -> Pattern {
        Pattern::parse(&[&*self.prefix, b"*"].concat()).expect("the pattern is shorter than the longest reply subject")
    }

    /// Number of pending requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns true if no request is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Begins a request for the requester `waiting`, and returns the subject for the reply. The timeout is limited to
    /// [`MAX_REQUEST_TIMEOUT`].
    ///
    /// # Errors
    /// Returns `waiting` and [`RequestError::TooMany`] if the table is full.
    pub fn begin(&mut self, now: Moment, timeout: Duration, waiting: T) -> Result<Subject, (T, RequestError)> {
        if self.pending.len() >= self.max {
            return Err((waiting, RequestError::TooMany { max: self.max }));
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let deadline = now.plus(timeout.min(MAX_REQUEST_TIMEOUT));
        self.pending.insert(number, Pending { deadline, waiting });
        self.deadlines.insert((deadline, number));
        Ok(Subject::parse(&reply_subject(&self.prefix, number)).expect("checked when the table was made"))
    }

    /// Reports the result of publishing the request. If no subscriber received the request, ends it, and returns the
    /// requester and the error.
    pub fn published(&mut self, reply_to: &Subject, published: Published) -> Option<(T, RequestError)> {
        let error = RequestError::of(published)?;
        self.complete(reply_to).map(|waiting| (waiting, error))
    }

    /// Ends the request with this reply subject, because its reply has arrived or its requester has left. Returns the
    /// requester if the request was still pending.
    pub fn complete(&mut self, reply_to: &Subject) -> Option<T> {
        let number = number_of(reply_to.as_bytes().strip_prefix(&*self.prefix)?)?;
        let Pending { deadline, waiting } = self.pending.remove(&number)?;
        self.deadlines.remove(&(deadline, number));
        Some(waiting)
    }

    /// Ends the requests with a passed deadline, the earliest deadline first. Calls `ended` with each requester. The
    /// error of these requests is [`RequestError::TimedOut`].
    pub fn expire(&mut self, now: Moment, mut ended: impl FnMut(T)) {
        while let Some((deadline, number)) = self.deadlines.first().copied() {
            if deadline > now {
                return;
            }
            self.deadlines.pop_first();
            let pending = self.pending.remove(&number).expect("each deadline has its request");
            ended(pending.waiting);
        }
    }

    /// Earliest deadline of a pending request; `None` if no request is pending.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}

fn reply_subject(prefix: &[u8], number: u64) -> Vec<u8> {
    [prefix, format!("{number:x}").as_bytes()].concat()
}

/// Parses the number at the end of a reply subject; `None` if it does not have the form that [`reply_subject`] writes.
fn number_of(token: &[u8]) -> Option<u64> {
    let number = u64::from_str_radix(std::str::from_utf8(token).ok()?, 16).ok()?;
    (format!("{number:x}").as_bytes() == token).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_types::limits::MAX_SUBJECT_BYTES;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::from(SECOND * u32::try_from(seconds).unwrap())
    }

    fn table(max: usize) -> Requests<u32> {
        Requests::new(&Subject::parse(b"_INBOX.7f3a").unwrap(), max).unwrap()
    }

    #[test]
    fn a_reply_ends_it_once() {
        let mut requests = table(10);
        let one = requests.begin(at(0), SECOND, 1).unwrap();
        let two = requests.begin(at(0), SECOND, 2).unwrap();
        assert!(requests.inbox().matches(&one) && one != two);
        assert_eq!(requests.complete(&two), Some(2));
        assert_eq!(requests.complete(&two), None);
        for foreign in ["_INBOX.7f3a.+0", "_INBOX.7f3a.00", "_INBOX.7f3a.zz", "_INBOX.8.0", "x"] {
            assert_eq!(requests.complete(&Subject::parse(foreign.as_bytes()).unwrap()), None, "{foreign}");
        }
        assert_eq!((requests.len(), requests.complete(&one)), (1, Some(1)));
        assert!(requests.is_empty() && requests.next_deadline().is_none());
    }

    #[test]
    fn deadlines_end_the_rest_in_order() {
        let mut requests = table(10);
        for (seconds, who) in [(3, 30), (1, 10), (2, 20)] {
            requests.begin(at(0), SECOND * seconds, who).unwrap();
        }
        assert_eq!(requests.next_deadline(), Some(at(1)));
        let mut ended = Vec::new();
        requests.expire(Moment::from_nanos(at(1).nanos() - 1), |who| ended.push(who));
        assert_eq!(ended, []);
        requests.expire(at(2), |who| ended.push(who));
        assert_eq!((ended, requests.len()), (vec![10, 20], 1));
        requests.begin(at(2), Duration::MAX, 40).unwrap();
        requests.expire(at(2).plus(MAX_REQUEST_TIMEOUT), |_| {});
        assert!(requests.is_empty());
    }

    #[test]
    fn nobody_to_answer_is_said_at_once() {
        let mut requests = table(10);
        let one = requests.begin(at(0), SECOND, 1).unwrap();
        assert_eq!(requests.published(&one, Published { delivered: 1, missed: 3, ..Published::default() }), None);
        assert_eq!(requests.published(&one, Published::default()), Some((1, RequestError::NoResponders)));
        let two = requests.begin(at(0), SECOND, 2).unwrap();
        let full = Published { missed: 1, ..Published::default() };
        assert_eq!(requests.published(&two, full), Some((2, RequestError::Overloaded)));
        assert!(requests.is_empty());
    }

    #[test]
    fn bounds() {
        let mut requests = table(2);
        let first = requests.begin(at(0), SECOND, 1).unwrap();
        requests.begin(at(0), SECOND, 2).unwrap();
        assert_eq!(requests.begin(at(0), SECOND, 3), Err((3, RequestError::TooMany { max: 2 })));
        requests.complete(&first);
        assert!(requests.begin(at(0), SECOND, 3).is_ok());
        let long = Subject::parse(&[b'a'; MAX_SUBJECT_BYTES - 10]).unwrap();
        assert!(Requests::<()>::new(&long, 1).is_err());
    }
}
