//! A bound on the subscriptions of one client that match the same subjects.
//!
//! A publish visits every matching subscription. A client that subscribes to `>` very often would make the publishes of
//! all others expensive, wherever they publish; a client with one subscription for each of its users, such as
//! `user.17.>`, makes none expensive. So the server counts, for each client address, the subscriptions to each pattern
//! with wildcards, and all those together whose first token is a wildcard, because they can match the subjects of
//! anybody. Subscriptions to literal subjects are not counted: a subject with very many subscribers is a usual one, and
//! only its own publishers pay for it.
//!
//! Invariant: no count exceeds the bound, and there is a count only while its subscriptions exist.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use thalweg_broker::{Pattern, SubscribeError};

use crate::admission::{AddressKey, Reservation};

/// Key of the count of all patterns whose first token is a wildcard. The hash of a pattern may have the same value;
/// then the two share a count.
const BROAD: u64 = 0;

/// Numbers of overlapping subscriptions.
#[derive(Debug)]
pub(crate) struct Overlaps {
    max: usize,
    random: RandomState,
    counts: Mutex<HashMap<(AddressKey, u64), usize>>,
}

/// A subscription's part in the bounds of the server, which it holds until it is dropped.
#[derive(Debug)]
pub struct SubscriptionShare {
    _one: Reservation,
    overlap: Option<(Arc<Overlaps>, (AddressKey, u64))>,
}

impl Overlaps {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, random: RandomState::new(), counts: Mutex::default() })
    }

    /// Counts a subscription to `pattern` for the client's address. `one` is the reservation of the subscription
    /// itself. Fails if the address has too many subscriptions to this pattern.
    pub(crate) fn count(
        self: &Arc<Self>,
        pattern: &Pattern,
        one: Reservation,
    ) -> Result<SubscriptionShare, SubscribeError> {
        if pattern.is_literal() {
            return Ok(SubscriptionShare { _one: one, overlap: None });
        }
        let is_broad = matches!(pattern.tokens().next(), Some(b"*" | b">") | None);
        let key = if is_broad { BROAD } else { self.random.hash_one(pattern.as_bytes()) };
        let key = (one.account().address(), key);
        let mut counts = self.counts();
        let count = counts.entry(key).or_default();
        if *count >= self.max {
            return Err(SubscribeError::TooManyOverlapping { max: self.max });
        }
        *count += 1;
        drop(counts);
        Ok(SubscriptionShare { _one: one, overlap: Some((Arc::clone(self), key)) })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<(AddressKey, u64), usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SubscriptionShare {
    fn drop(&mut self) {
        let Some((overlaps, key)) = self.overlap.take() else { return };
        if let Entry::Occupied(mut found) = overlaps.counts().entry(key) {
            *found.get_mut() -= 1;
            if *found.get() == 0 {
                found.remove();
            }
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
        // One for each user is no overlap, and neither is a subject with many subscribers.
        let _users: Vec<_> = (0..100).map(|user| subscribe(0, &format!("user.{user}.>")).unwrap()).collect();
        let _literal: Vec<_> = (0..100).map(|_| subscribe(0, "news").unwrap()).collect();
        let same: Vec<_> = (0..10).map(|_| subscribe(0, "orders.*").unwrap()).collect();
        assert!(subscribe(1, "orders.*").is_err());
        drop((held, same));
        let _again = (subscribe(0, ">").unwrap(), subscribe(1, "orders.*").unwrap());
        assert_eq!(overlaps.counts().len(), 103);
    }
}
