//! The client's state of a channel (a TCP connection or a QUIC stream): it matches replies to requests, and pushed
//! frames to subscriptions.
//!
//! Owns: the ids, the table of requests and subscriptions in progress, and the receivers' credit. Does not own: the
//! handling of replies, retries, or sockets. The caller handles a reply by means of its own `T`, such as a waker or the
//! sender of an in-process channel.
//!
//! An id is in use from the request until the last frame with this id. For a request the last frame is the reply. For a
//! subscription it is [`Ended`](crate::Ended), or [`Failed`](crate::Failed) if the subscription did not begin. The
//! session reuses an id only afterwards, so a frame cannot reach the wrong receiver. A cancelled request keeps its id
//! until the server answers.
//!
//! Limits: the server's `max_requests` and `max_subscriptions`, and [`MAX_CHANNEL_IDS`].

use thalweg_types::{Action, Classified, limits::MAX_CHANNEL_IDS};

use crate::{
    credit::{Overrun, ReceiveCredit},
    frames::{Credit, Kind, Permit, Role},
};

/// Error returned when a channel (a TCP connection or a QUIC stream) already has its maximum number of requests or
/// subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionFull {
    /// The channel has as many requests in progress as the server accepts on one TCP connection or QUIC stream.
    #[error("{limit} requests are in progress on this channel: wait for one to finish, or open another channel")]
    Requests {
        /// Maximum number of requests in progress that the server accepts.
        limit: usize,
    },
    /// The channel has as many subscriptions as the server accepts on one TCP connection or QUIC stream.
    #[error("there are {limit} subscriptions on this channel: end one, or open another channel")]
    Subscriptions {
        /// Maximum number of subscriptions that the server accepts.
        limit: usize,
    },
}

impl Classified for SessionFull {
    fn code(&self) -> &'static str {
        "overloaded"
    }

    fn action(&self) -> Action {
        Action::Retry
    }
}

/// Error returned when the server violates the protocol. The channel (a TCP connection or a QUIC stream) is unusable
/// afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No request or subscription in progress has the frame's id, or the kind of the frame does not fit the request.
    #[error("the server sent a {} frame for id {id}, which does not expect it", kind.name())]
    Unexpected {
        /// Kind of the unexpected frame.
        kind: Kind,
        /// Id in the unexpected frame.
        id: u32,
    },
    /// The server sent more data for a subscription than the subscription's credit permits.
    #[error("subscription {id}: {overrun}")]
    Overrun {
        /// Id of the subscription whose credit the server exceeded.
        id: u32,
        /// Permitted totals that the server exceeded.
        overrun: Overrun,
    },
}

impl Classified for RouteError {
    fn code(&self) -> &'static str {
        match self {
            Self::Unexpected { .. } => "unexpected_frame",
            Self::Overrun { overrun, .. } => overrun.code(),
        }
    }

    fn action(&self) -> Action {
        Action::Stop
    }
}

/// Destination of a frame that has arrived from the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Route<'s, T> {
    /// The frame answers a request, or rejects a subscription. It is the last frame with this id.
    Reply(T),
    /// The frame reports that the subscription has begun.
    Begun(&'s mut T),
    /// The frame carries data for a subscription.
    Push(&'s mut T),
    /// The frame is the last one of a subscription.
    Ended(T),
    /// The frame reports the failure of a request without an id. No caller waits for it.
    FailureWithoutId,
    /// The frame is about the connection itself, or belongs to several subscriptions; for the latter see
    /// [`Session::delivered`].
    Channel,
}

#[derive(Debug)]
enum Slot<T> {
    Free { next: Option<u32> },
    Request(T),
    Beginning(T, ReceiveCredit),
    Subscription(T, ReceiveCredit),
}

/// Table of the requests and subscriptions in progress on a channel (a TCP connection or a QUIC stream). It finds the
/// receiver of each frame that arrives.
#[derive(Debug)]
pub struct Session<T> {
    /// Slots of requests and subscriptions by id: the first slot has id 1.
    slots: Vec<Slot<T>>,
    free: Option<u32>,
    requests: usize,
    subscriptions: usize,
    max_requests: usize,
    max_subscriptions: usize,
}

impl<T> Session<T> {
    /// Creates a session with the server's maximum numbers of requests and subscriptions.
    #[must_use]
    pub fn new(max_requests: u32, max_subscriptions: u32) -> Self {
        let bounded = |limit: u32| (limit as usize).min(MAX_CHANNEL_IDS);
        let (max_requests, max_subscriptions) = (bounded(max_requests), bounded(max_subscriptions));
        Self { slots: Vec::new(), free: None, requests: 0, subscriptions: 0, max_requests, max_subscriptions }
    }

    /// Returns true if another request may begin now.
    #[must_use]
    pub fn may_request(&self) -> bool {
        self.requests < self.max_requests
    }

    /// Assigns an id to a new request. `waiter` is the receiver to which [`route`](Self::route) passes the reply.
    pub fn request(&mut self, waiter: T) -> Result<u32, SessionFull> {
        if !self.may_request() {
            return Err(SessionFull::Requests { limit: self.max_requests });
        }
        self.requests += 1;
        Ok(self.take(Slot::Request(waiter)))
    }

    /// Assigns an id to a new subscription with the credit window `window`, whose frames are for the receiver `waiter`.
    /// Also returns the permit that the request must contain.
    pub fn subscribe(&mut self, waiter: T, window: &Permit) -> Result<(u32, Permit), SessionFull> {
        if self.subscriptions >= self.max_subscriptions {
            return Err(SessionFull::Subscriptions { limit: self.max_subscriptions });
        }
        self.subscriptions += 1;
        let credit = ReceiveCredit::new(window);
        Ok((self.take(Slot::Beginning(waiter, credit)), credit.permit()))
    }

    /// Returns the number of requests and the number of subscriptions in progress.
    #[must_use]
    pub fn in_progress(&self) -> (usize, usize) {
        (self.requests, self.subscriptions)
    }

    /// Returns the receiver of a frame from the server, by the kind and the id in the frame's header.
    pub fn route(&mut self, kind: Kind, id: u32) -> Result<Route<'_, T>, RouteError> {
        let unexpected = RouteError::Unexpected { kind, id };
        match kind.role() {
            Role::Connection => return Ok(Route::Channel),
            Role::Push if kind == Kind::Deliver => return Ok(Route::Channel),
            Role::Reply | Role::Push => {}
            Role::Control | Role::Request | Role::Subscription => return Err(unexpected),
        }
        let Some(at) = id.checked_sub(1) else {
            return if kind == Kind::Failed { Ok(Route::FailureWithoutId) } else { Err(unexpected) };
        };
        match self.slots.get(at as usize) {
            None | Some(Slot::Free { .. }) => Err(unexpected),
            Some(Slot::Request(_)) => match kind.role() {
                Role::Reply if !begins_subscription(kind) => Ok(Route::Reply(self.finish(at))),
                _ => Err(unexpected),
            },
            Some(Slot::Beginning(..)) if kind == Kind::Failed => Ok(Route::Reply(self.finish(at))),
            Some(Slot::Beginning(..)) if begins_subscription(kind) => Ok(Route::Begun(self.begun(at))),
            Some(Slot::Beginning(..)) => Err(unexpected),
            Some(Slot::Subscription(..)) if kind == Kind::Ended => Ok(Route::Ended(self.finish(at))),
            Some(Slot::Subscription(..)) => match (&mut self.slots[at as usize], kind.role()) {
                (Slot::Subscription(waiter, _), Role::Push) => Ok(Route::Push(waiter)),
                _ => Err(unexpected),
            },
        }
    }

    /// Counts a batch against the credit of a subscription, and returns the subscription's receiver. The caller must
    /// call this for each push of messages, records or changes, and for each subscription that a deliver frame lists.
    #[inline]
    pub fn delivered(&mut self, id: u32, messages: u64, bytes: u64) -> Result<&mut T, RouteError> {
        match id.checked_sub(1).and_then(|at| self.slots.get_mut(at as usize)) {
            Some(Slot::Subscription(waiter, credit)) => {
                credit.received(messages, bytes).map_err(|overrun| RouteError::Overrun { id, overrun })?;
                Ok(waiter)
            }
            _ => Err(RouteError::Unexpected { kind: Kind::Deliver, id }),
        }
    }

    /// Counts messages and bytes that the application has finished with. Returns the credit frame to send; `None` if
    /// none is due or the subscription has ended.
    pub fn consumed(&mut self, id: u32, messages: u64, bytes: u64) -> Option<Credit> {
        match id.checked_sub(1).and_then(|at| self.slots.get_mut(at as usize)) {
            Some(Slot::Subscription(_, credit)) => credit.consumed(messages, bytes),
            _ => None, // the subscription has ended in the meantime
        }
    }

    /// Returns the receivers of all requests and subscriptions in progress, with their ids. The client uses this after
    /// it has lost the channel (a TCP connection or a QUIC stream).
    pub fn into_waiters(self) -> impl Iterator<Item = (u32, T)> {
        (1..).zip(self.slots).filter_map(|(id, slot)| match slot {
            Slot::Free { .. } => None,
            Slot::Request(waiter) | Slot::Beginning(waiter, _) | Slot::Subscription(waiter, _) => Some((id, waiter)),
        })
    }

    fn take(&mut self, slot: Slot<T>) -> u32 {
        let Some(at) = self.free else {
            self.slots.push(slot);
            return u32::try_from(self.slots.len()).expect("at most 2 * MAX_CHANNEL_IDS");
        };
        let taken = std::mem::replace(&mut self.slots[at as usize], slot);
        let Slot::Free { next } = taken else { unreachable!("the free list contains only free slots") };
        self.free = next;
        at + 1
    }

    fn finish(&mut self, at: u32) -> T {
        let taken = std::mem::replace(&mut self.slots[at as usize], Slot::Free { next: self.free });
        self.free = Some(at);
        match taken {
            Slot::Request(waiter) => {
                self.requests -= 1;
                waiter
            }
            Slot::Beginning(waiter, _) | Slot::Subscription(waiter, _) => {
                self.subscriptions -= 1;
                waiter
            }
            Slot::Free { .. } => unreachable!("the caller has checked the slot"),
        }
    }

    fn begun(&mut self, at: u32) -> &mut T {
        let slot = &mut self.slots[at as usize];
        *slot = match std::mem::replace(slot, Slot::Free { next: None }) {
            Slot::Beginning(waiter, credit) => Slot::Subscription(waiter, credit),
            other => other,
        };
        match slot {
            Slot::Subscription(waiter, _) => waiter,
            _ => unreachable!("the caller has checked the slot"),
        }
    }
}

/// Returns true if this kind of frame is the reply which reports that a subscription has begun.
fn begins_subscription(kind: Kind) -> bool {
    matches!(kind, Kind::Tailing | Kind::Pushing | Kind::Watching | Kind::Subscribed | Kind::WatchingCluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Permit = Permit { messages: 4, bytes: 100 };

    #[test]
    fn replies_in_any_order_reach_their_requests() {
        let mut session = Session::new(3, 1);
        let [a, b, c] = ["a", "b", "c"].map(|waiter| session.request(waiter).unwrap());
        assert_eq!(session.request("d"), Err(SessionFull::Requests { limit: 3 }));
        assert_eq!(session.route(Kind::Value, b), Ok(Route::Reply("b")));
        assert_eq!(session.route(Kind::Failed, c), Ok(Route::Reply("c")));
        let d = session.request("d").unwrap();
        assert!(d != a, "an id in use is not given out");
        assert_eq!(session.route(Kind::Value, a), Ok(Route::Reply("a")));
        assert_eq!(session.route(Kind::Committed, d), Ok(Route::Reply("d")));
        assert_eq!(session.in_progress(), (0, 0));
        assert_eq!(session.route(Kind::Value, a), Err(RouteError::Unexpected { kind: Kind::Value, id: a }), "twice");
    }

    #[test]
    fn a_subscription_begins_is_fed_and_ends() {
        let mut session = Session::new(1, 1);
        let (id, permit) = session.subscribe("s", &WINDOW).unwrap();
        assert_eq!(permit, WINDOW);
        assert_eq!(session.subscribe("t", &WINDOW), Err(SessionFull::Subscriptions { limit: 1 }));
        assert!(session.delivered(id, 1, 1).is_err(), "it has not begun");
        assert!(session.route(Kind::Tailed, id).is_err());
        assert_eq!(session.route(Kind::Subscribed, id), Ok(Route::Begun(&mut "s")));
        assert_eq!(session.route(Kind::Deliver, 0), Ok(Route::Channel));
        assert_eq!(session.delivered(id, 3, 30), Ok(&mut "s"));
        assert_eq!(session.consumed(id, 3, 30), Some(Credit { messages: 7, bytes: 130 }));
        assert_eq!(session.route(Kind::Dropped, id), Ok(Route::Push(&mut "s")));
        assert_eq!(session.delivered(id, 9, 30), Ok(&mut "s"), "the last batch may exceed the credit");
        assert!(matches!(session.delivered(id, 1, 1), Err(RouteError::Overrun { .. })));
        assert_eq!(session.route(Kind::Ended, id), Ok(Route::Ended("s")));
        assert_eq!(session.consumed(id, 9, 30), None, "the subscription has ended");
        assert!(session.subscribe("t", &WINDOW).is_ok());
    }

    #[test]
    fn what_belongs_to_nobody_is_an_error() {
        let mut session = Session::new(2, 2);
        let request = session.request(()).unwrap();
        for (kind, id) in [
            (Kind::Value, 99),
            (Kind::Value, 0),
            (Kind::Tailing, request),
            (Kind::Ended, request),
            (Kind::Get, request),
            (Kind::Credit, request),
        ] {
            assert_eq!(session.route(kind, id), Err(RouteError::Unexpected { kind, id }));
        }
        assert_eq!(session.route(Kind::Failed, 0), Ok(Route::FailureWithoutId));
        assert_eq!(session.route(Kind::Goodbye, 0), Ok(Route::Channel));
        assert!(session.delivered(request, 1, 1).is_err());
        assert!(session.delivered(0, 1, 1).is_err());
    }

    #[test]
    fn a_refused_subscription_is_a_reply_and_the_rest_is_told_at_the_end() {
        let mut session = Session::new(2, 2);
        let (refused, _) = session.subscribe("refused", &WINDOW).unwrap();
        assert_eq!(session.route(Kind::Failed, refused), Ok(Route::Reply("refused")));
        let request = session.request("request").unwrap();
        let (begun, _) = session.subscribe("begun", &WINDOW).unwrap();
        session.route(Kind::Watching, begun).unwrap();
        let mut waiters: Vec<_> = session.into_waiters().collect();
        waiters.sort_unstable();
        assert_eq!(waiters, [(request, "request"), (begun, "begun")]);
    }
}
