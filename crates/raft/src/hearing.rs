//! The rule against deaf leaders: a node ignores the appends of a leader that does not hear the node.
//!
//! Owns: the facts about one peer's hearing on one node. Does not own: pings and frames (the network), and time.
//!
//! A leader that can send but not receive would keep its followers from an election and commit nothing. To detect this,
//! each node sends numbered pings. Each frame carries the number of the last ping that the sender of the frame has
//! received from its recipient. A peer is deaf if it has heard neither an old ping of this node nor a later one; a ping
//! is old if it was sent longer ago than a given time.
//!
//! The numbers of a node's pings only rise while the node runs. A peer that restarts begins again at 1, see
//! [`Hearing::reconnected`].

use std::{collections::VecDeque, time::Duration};

/// Maximum number of pings whose times are kept. A peer that has missed this many counts as unable to
/// hear this node.
const MAX_UNHEARD: usize = 64;

/// State of one connection from which a node decides if the peer hears it.
#[derive(Debug)]
pub struct Hearing {
    /// Age of an unheard ping at which the peer counts as deaf.
    deaf_after: Duration,
    /// Numbers and monotonic send times of the pings that the peer has not heard.
    unheard: VecDeque<(u64, Duration)>,
    last_sent: u64,
    /// Number of the last ping received from the peer.
    received: u64,
}

impl Hearing {
    /// Creates the state of a new connection on which no ping was sent yet.
    #[must_use]
    pub fn new(deaf_after: Duration) -> Self {
        Self { deaf_after, unheard: VecDeque::new(), last_sent: 0, received: 0 }
    }

    /// Records a ping that is sent to the peer at monotonic time `now`, and returns its number.
    pub fn ping(&mut self, now: Duration) -> u64 {
        self.last_sent += 1;
        if self.unheard.len() < MAX_UNHEARD {
            self.unheard.push_back((self.last_sent, now));
        }
        self.last_sent
    }

    /// Resets the received pings after a reconnect, because a restarted peer numbers its pings from 1. The numbers of
    /// this node's own pings continue. If they restarted at 1, a peer that did not restart would seem to have heard the
    /// next pings already.
    pub fn reconnected(&mut self) {
        self.unheard.clear();
        self.received = 0;
    }

    /// Notes that ping `number` of the peer has arrived.
    pub fn received(&mut self, number: u64) {
        self.received = self.received.max(number);
    }

    /// Returns the number of the last ping received from the peer. Every frame to the peer carries this number.
    #[must_use]
    pub fn echo(&self) -> u64 {
        self.received
    }

    /// Notes that the peer has heard the pings up to `number`, as one of its frames states.
    pub fn heard(&mut self, number: u64) {
        while self.unheard.pop_front_if(|(sent, _)| *sent <= number).is_some() {}
    }

    /// Returns true if the peer has not heard this node for so long that this node must ignore the peer's appends.
    #[must_use]
    pub fn is_deaf(&self, now: Duration) -> bool {
        self.unheard.front().is_some_and(|(_, sent_at)| now.saturating_sub(*sent_at) > self.deaf_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAF_AFTER: Duration = Duration::from_millis(400);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_peer_that_answers_is_not_deaf() {
        let mut hearing = Hearing::new(DEAF_AFTER);
        for round in 0..100 {
            let number = hearing.ping(at(round * 80));
            hearing.heard(number);
            assert!(!hearing.is_deaf(at(round * 80 + 79)));
        }
    }

    #[test]
    fn a_peer_that_reconnects_has_not_heard_later_pings() {
        let mut hearing = Hearing::new(DEAF_AFTER);
        let last = (0..100).map(|round| hearing.ping(at(round))).last().unwrap();
        hearing.heard(last);
        hearing.reconnected();
        assert_eq!(hearing.echo(), 0);
        hearing.ping(at(1_000));
        hearing.heard(last);
        assert!(hearing.is_deaf(at(1_401)), "the peer repeats what it heard before");
    }

    #[test]
    fn a_peer_is_deaf_some_time_after_the_first_ping_that_it_has_not_heard() {
        let mut hearing = Hearing::new(DEAF_AFTER);
        assert!(!hearing.is_deaf(at(10_000)), "nothing was sent");
        let first = hearing.ping(at(1_000));
        let second = hearing.ping(at(1_080));
        hearing.heard(first);
        assert!(!hearing.is_deaf(at(1_480)));
        assert!(hearing.is_deaf(at(1_481)));
        hearing.heard(first);
        assert!(hearing.is_deaf(at(1_481)), "an old number says nothing new");
        hearing.heard(second);
        assert!(!hearing.is_deaf(at(9_000)));
    }

    #[test]
    fn memory_is_bounded_and_a_peer_that_hears_again_recovers() {
        let mut hearing = Hearing::new(DEAF_AFTER);
        let last = (0..1_000).map(|round| hearing.ping(at(round * 80))).last().unwrap();
        assert!(hearing.unheard.len() == MAX_UNHEARD && hearing.is_deaf(at(80_000)));
        hearing.heard(last);
        assert!(!hearing.is_deaf(at(80_000)));
        let next = hearing.ping(at(80_080));
        assert!(next == last + 1 && hearing.is_deaf(at(80_481)));
    }

    #[test]
    fn frames_carry_the_last_ping_of_the_peer() {
        let mut hearing = Hearing::new(DEAF_AFTER);
        assert_eq!(hearing.echo(), 0);
        [3, 2].into_iter().for_each(|number| hearing.received(number));
        assert_eq!(hearing.echo(), 3);
    }
}
