//! A bound on the number of subscriptions of one client that match one subject.
//!
//! Owns: the counts of each client address. Does not own: the subscriptions and the matching (`thalweg-broker`), or the
//! bound on the number of all subscriptions (`admission`).
//!
//! A publish visits every matching subscription. A client with very many subscriptions to `>` would make all publishes
//! of all other clients expensive. A client with one subscription for each of its users, such as `user.17.>`, makes no
//! publish expensive. So the server counts, for each client address, the subscriptions with wildcards that can match
//! one subject, in groups by their first token. Subscriptions to literal subjects are not counted: a subject with many
//! subscribers is usual, and only its own publishers pay for them.
//!
//! Patterns whose first token is a wildcard can match any subject, so each subscription to one of them counts, in one
//! common group. Every other first token has a group of its own. An arrangement is a set of patterns in such a group
//! with wildcards at the same token positions. Two patterns of one arrangement differ in a literal token, so at most
//! one of them matches a subject. Of each arrangement, the group therefore counts only the pattern with the most
//! subscriptions:
//!
//! ```text
//! orders.a.*  orders.a.*  orders.b.*   2    the first two match orders.a.c, the third does not
//! orders.*.c  orders.*.c               2    all of these match orders.a.c
//! orders.>                             1
//!                              orders: 5
//! ```
//! The table stores the maximum of an arrangement as entries for levels. There is an entry for an arrangement and a
//! level while some pattern with this arrangement has at least that many subscriptions. So each change takes a few
//! steps, regardless of the number of subscriptions.
//!
//! Keys of the table are hashes with a random seed. Two entries with equal hashes would have wrong counts; with a
//! million entries the probability is below 10⁻⁷.
//!
//! Invariants: the count of a group never exceeds the bound. So at most twice that many wildcard subscriptions of an
//! address match a subject: those of its first token, and those that begin with a wildcard. An entry exists only while
//! subscriptions need it.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use thalweg_broker::{Pattern, SubscribeError};

use crate::admission::{AddressKey, Reservation};

/// Stands for any literal token of a pattern in a key. It differs from all tokens, because no token contains a dot.
const LITERAL: &[u8] = b".";

/// Counts of subscriptions that can match one subject. Each client address has counts of its own.
#[derive(Debug)]
pub(crate) struct Overlaps {
    /// Maximum number of subscriptions of one address that can match one subject and have the same first token, or a
    /// wildcard as first token.
    max: usize,
    random: RandomState,
    counts: Mutex<HashMap<u64, u32>>,
}

/// Reservations in the server's limits on subscriptions, which one subscription holds until it ends. Dropping the value
/// releases them.
#[derive(Debug)]
pub struct SubscriptionShare {
    _one: Reservation,
    overlap: Option<(Arc<Overlaps>, OverlapKeys)>,
}

/// Keys of the counters that a subscription raises. They depend on the client's address and the pattern.
#[derive(Clone, Copy, Debug)]
struct OverlapKeys {
    /// Key of the counter of subscriptions with the same first token (the group); all first tokens that are wildcards
    /// have one counter.
    group: u64,
    /// Keys for a pattern whose first token is literal. `None` if the first token is a wildcard: then each subscription
    /// counts.
    pattern: Option<PatternKeys>,
}

#[derive(Clone, Copy, Debug)]
struct PatternKeys {
    /// Key of the counter of subscriptions to exactly this pattern.
    same: u64,
    /// Hash of the first token and of the positions of the wildcards (the arrangement). See [`level`](Overlaps::level).
    arrangement: u64,
}

impl Overlaps {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, random: RandomState::new(), counts: Mutex::default() })
    }

    /// Counts a subscription to `pattern` for the client's address. `one` is the reservation of the subscription
    /// itself. Returns an error if the address has too many subscriptions that can match one subject.
    pub(crate) fn count(
        self: &Arc<Self>,
        pattern: &Pattern,
        one: Reservation,
    ) -> Result<SubscriptionShare, SubscribeError> {
        if pattern.is_literal() {
            return Ok(SubscriptionShare { _one: one, overlap: None });
        }
        let place = self.keys_of(one.account().address(), pattern);
        if !self.add(place) {
            return Err(SubscribeError::TooManyOverlapping { max: self.max });
        }
        Ok(SubscriptionShare { _one: one, overlap: Some((Arc::clone(self), place)) })
    }

    fn keys_of(&self, address: AddressKey, pattern: &Pattern) -> OverlapKeys {
        let Some(first) = pattern.tokens().next().filter(|first| kind(first) == LITERAL) else {
            return OverlapKeys { group: self.random.hash_one(("broad", address)), pattern: None };
        };
        let kinds: Vec<&[u8]> = pattern.tokens().map(kind).collect();
        let same = self.random.hash_one(("pattern", address, pattern.as_bytes()));
        let arrangement = self.random.hash_one(("arrangement", address, first, kinds));
        let group = self.random.hash_one(("first token", address, first));
        OverlapKeys { group, pattern: Some(PatternKeys { same, arrangement }) }
    }

    /// Returns the key of a counter: the number of patterns that have this arrangement (first token and positions of
    /// wildcards) and at least `level` subscriptions.
    fn level(&self, arrangement: u64, level: u32) -> u64 {
        self.random.hash_one(("level", arrangement, level))
    }

    /// Counts a new subscription. Returns false, and changes nothing, if its group (the subscriptions with the same
    /// first token) already has the maximum.
    fn add(&self, OverlapKeys { group, pattern }: OverlapKeys) -> bool {
        let mut counts = self.counts();
        let keys = pattern.map(|PatternKeys { same, arrangement }| {
            let level = counts.get(&same).map_or(1, |same| same + 1);
            (same, self.level(arrangement, level))
        });
        let raises_group = keys.is_none_or(|(_, level)| !counts.contains_key(&level));
        if raises_group && counts.get(&group).is_some_and(|group| *group as usize >= self.max) {
            return false;
        }
        for key in keys.into_iter().flat_map(|(same, level)| [same, level]).chain(raises_group.then_some(group)) {
            *counts.entry(key).or_default() += 1;
        }
        true
    }

    /// Subtracts a subscription that [`add`](Self::add) has counted.
    fn remove(&self, OverlapKeys { group, pattern }: OverlapKeys) {
        let mut counts = self.counts();
        let Some(PatternKeys { same, arrangement }) = pattern else {
            subtract(&mut counts, group);
            return;
        };
        let Some(level) = counts.get(&same).map(|level| self.level(arrangement, *level)) else { return };
        subtract(&mut counts, same);
        if subtract(&mut counts, level) == 0 {
            subtract(&mut counts, group);
        }
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a wildcard token as it is, and [`LITERAL`] for every literal token.
fn kind(token: &[u8]) -> &[u8] {
    match token {
        b"*" | b">" => token,
        _ => LITERAL,
    }
}

/// Subtracts 1 from a count, and removes a count of 0. Returns the new count.
fn subtract(counts: &mut HashMap<u64, u32>, key: u64) -> u32 {
    let Entry::Occupied(mut found) = counts.entry(key) else { return 0 };
    *found.get_mut() -= 1;
    let left = *found.get();
    if left == 0 {
        found.remove();
    }
    left
}

impl Drop for SubscriptionShare {
    fn drop(&mut self) {
        if let Some((overlaps, place)) = self.overlap.take() {
            overlaps.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{
        admission::{Admission, Resource},
        config::Config,
    };

    #[test]
    fn subscriptions_of_one_address_that_match_the_same_subjects_are_bounded() {
        let (admission, overlaps) = (Admission::new(&Config::default()), Overlaps::new(10));
        let address = |last| AddressKey::of(Ipv4Addr::new(127, 0, 0, last).into());
        let connections = [1, 1, 2].map(|last| admission.account(address(last)));
        let subscribe = |connection: usize, pattern: &str| {
            let one = connections[connection].take(Resource::Subscriptions, 1).unwrap();
            overlaps.count(&Pattern::parse(pattern.as_bytes()).unwrap(), one)
        };
        // Patterns that can match any subject count together, over all connections of an address.
        let broad = [">", "*.>", "*.a", "*"];
        let held: Vec<_> = (0..10).map(|number| subscribe(number % 2, broad[number % 4]).unwrap()).collect();
        assert_eq!(subscribe(1, "*.b").unwrap_err(), SubscribeError::TooManyOverlapping { max: 10 });
        let _other = subscribe(2, ">").unwrap();
        // A subscription for each user is no overlap, and neither is a subject with many subscribers.
        let _users: Vec<_> = (0..100).map(|user| subscribe(0, &format!("user.{user}.>")).unwrap()).collect();
        let _literal: Vec<_> = (0..100).map(|_| subscribe(0, "news").unwrap()).collect();
        let same: Vec<_> = (0..10).map(|_| subscribe(0, "orders.*").unwrap()).collect();
        assert!(subscribe(1, "orders.*").is_err());
        drop((held, same));
        let _again = (subscribe(0, ">").unwrap(), subscribe(1, "orders.*").unwrap());
        // Counts: the pattern of each of 100 users; a level and the group of the users; three for the orders; two broad
        // ones.
        assert_eq!(overlaps.counts().len(), 100 + 2 + 3 + 2);
    }

    #[test]
    fn different_patterns_that_match_the_same_subject_count_together() {
        const MAX: usize = 10;
        let (admission, overlaps) = (Admission::new(&Config::default()), Overlaps::new(MAX));
        let connection = admission.account(AddressKey::of(Ipv4Addr::LOCALHOST.into()));
        let subscribe = |pattern: &str| {
            let one = connection.take(Resource::Subscriptions, 1).unwrap();
            overlaps.count(&Pattern::parse(pattern.as_bytes()).unwrap(), one).ok()
        };
        let mut patterns = vec!["orders.>".to_owned(), "orders.*.>".to_owned(), "orders.a.>".to_owned()];
        for number in 0..7 {
            let token = |bit: u32, literal| if (number >> bit) & 1 == 1 { literal } else { "*" };
            patterns.push(format!("orders.{}.{}.{}", token(0, "a"), token(1, "b"), token(2, "c")));
        }
        let held: Vec<_> = (0..3).flat_map(|_| &patterns).filter_map(|pattern| subscribe(pattern)).collect();
        assert_eq!(held.len(), MAX, "each of these patterns matches orders.a.b.c");
        assert!(patterns.iter().all(|pattern| subscribe(pattern).is_none()));
        // Where the wildcards are in the same places, different patterns match different subjects.
        assert!(subscribe("orders.x.>").is_some() && subscribe("orders.x.*.*").is_some());
        let mut other: Vec<_> = (0..6).map(|_| subscribe("trades.a.*").unwrap()).collect();
        other.extend((0..6).map(|_| subscribe("trades.b.*").unwrap()));
        other.extend((0..4).map(|_| subscribe("trades.*.c").unwrap()));
        assert!(subscribe("trades.*.c").is_none() && subscribe("trades.a.*").is_none());
        other.push(subscribe("trades.c.*").expect("others have more"));
        // The pattern with most subscriptions determines the number, so only their end frees a place.
        drop(other.remove(0));
        assert!(subscribe("trades.*.c").is_none(), "trades.b.* still has 6");
        drop(other.remove(5));
        other.push(subscribe("trades.*.c").expect("both have 5"));
        assert!(subscribe("trades.*.c").is_none());
        drop((held, other));
        assert!(overlaps.counts().is_empty());
    }
}
