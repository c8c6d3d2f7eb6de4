//! The rule against deaf leaders: a node ignores the appends of a leader that does not hear it.
//!
//! Owns: what one node knows about one peer's hearing. Does not own: pings and frames (the network), and time.
//!
//! A leader whose messages arrive, but which receives none, keeps its followers quiet and commits nothing. Each node
//! sends numbered pings, and each frame carries the number of the last ping that its sender has received from its
//! recipient. A peer is deaf if a ping was sent to it longer ago than a given time, and it has heard neither that ping
//! nor a later one.
//!
//! Numbers of pings only rise during the run of a node. A peer that restarts begins again, see
//! [`Hearing::reconnected`].

use std::{collections::VecDeque, time::Duration};

/// Maximum number of pings whose times are kept. A peer that has missed this many counts as unable to
/// hear this node.
const MAX_UNHEARD: usize = 64;

/// A node's knowledge of the hearing of one peer, over one connection.
#[derive(Debug)]
pub struct Hearing {
    /// Time after which a peer that has not heard a ping is deaf.
    deaf_after: Duration,
    /// Numbers and times of the pings that the peer has not heard.
    unheard: VecDeque<(u64, Duration)>,
    last_sent: u64,
    /// Number of the last ping received from the peer.
    received: u64,
}

impl Hearing {
    /// Creates the knowledge of a new connection: no ping has been sent.
    #[must_use]
    pub fn new(deaf_after: Duration) -> Self {
        Self { deaf_after, unheard: VecDeque::new(), last_sent: 0, received: 0 }
    }

    /// Returns the number of the next ping to the peer, which is sent at `now`.
    pub fn ping(&mut self, now: Duration) -> u64 {
        self.last_sent += 1;
        if self.unheard.len() < MAX_UNHEARD {
            self.unheard.push_back((self.last_sent, now));
        }
        self.last_sent
    }

    /// Resets the received pings after a reconnect, because a restarted peer numbers its pings from 1. This node's own
    /// numbers continue: otherwise a peer that was only cut off would seem to have heard the next pings already.
    pub fn reconnected(&mut self) {
        self.unheard.clear();
        self.received = 0;
    }

    /// Notes that a ping of the peer has arrived.
    pub fn received(&mut self, number: u64) {
        self.received = self.received.max(number);
    }

    /// Number of the last ping received from the peer, which every frame to it carries.
    #[must_use]
    pub fn echo(&self) -> u64 {
        self.received
    }

    /// Notes that the peer has heard the pings up to `number`, as one of its frames states.
    pub fn heard(&mut self, number: u64) {
        while self.unheard.pop_front_if(|(sent, _)| *sent <= number).is_some() {}
    }

    /// Returns true if the peer has not heard this node for so long that its appends are ignored.
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
