//! Delay of attempts to authenticate, by client address.
//!
//! Owns: the number of failed attempts of each address, and the delay that grows with it. Does not own: passwords, and
//! the timer of a client that waits.
//!
//! The delay comes before the check, so a client that disconnects early learns nothing. It also holds for the right
//! password: otherwise every quick reply would tell a guesser that the guess was right. Bound: at most [`MAX_ADDRESSES`]
//! addresses; a new one replaces the one whose last failure is oldest.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use thalweg_serving::admission::AddressKey;

/// Maximum number of addresses whose failures are remembered.
const MAX_ADDRESSES: usize = 10_000;
/// Time without failures after which those of an address are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Delay after the first failure. It doubles with each further failure.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest delay.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Failed attempts to authenticate; see the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct AuthFailures {
    table: Mutex<HashMap<AddressKey, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

impl AuthFailures {
    /// Returns the time for which the next attempt from `address` must wait.
    pub(crate) fn delay(&self, address: AddressKey, now: Instant) -> Duration {
        let table = self.table();
        let recent = table.get(&address).filter(|failures| failures.is_recent(now));
        recent.map_or(Duration::ZERO, |failures| delay_after(failures.count))
    }

    /// Counts a failed attempt from `address`. Returns the number of failures of the address.
    pub(crate) fn failed(&self, address: AddressKey, now: Instant) -> u32 {
        let mut table = self.table();
        if !table.contains_key(&address) && table.len() >= MAX_ADDRESSES {
            table.retain(|_, failures| failures.is_recent(now));
            let oldest = table.iter().min_by_key(|(_, failures)| failures.last).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| table.len() >= MAX_ADDRESSES) {
                table.remove(&oldest);
            }
        }
        let failures = table.entry(address).or_insert(Failures { count: 0, last: now });
        failures.count = if failures.is_recent(now) { failures.count.saturating_add(1) } else { 1 };
        failures.last = now;
        failures.count
    }

    /// Forgets the failures of an address, from which a client has authenticated.
    pub(crate) fn succeeded(&self, address: AddressKey) {
        self.table().remove(&address);
    }

    fn table(&self) -> MutexGuard<'_, HashMap<AddressKey, Failures>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < FORGOTTEN_AFTER
    }
}

fn delay_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    if failures == 0 { Duration::ZERO } else { FIRST_DELAY.saturating_mul(1 << doublings).min(MAX_DELAY) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> AddressKey {
        AddressKey::of(Ipv4Addr::from(number).into())
    }

    #[test]
    fn the_delay_doubles_with_each_failure_of_an_address_up_to_a_bound() {
        let (failures, now) = (AuthFailures::default(), Instant::now());
        let mut delays = Vec::new();
        for count in 1..=8 {
            delays.push(failures.delay(address(1), now).as_millis());
            assert_eq!(failures.failed(address(1), now), count);
        }
        assert_eq!(delays, [0, 100, 200, 400, 800, 1600, 3200, 5000]);
        assert_eq!(failures.delay(address(2), now), Duration::ZERO, "other addresses are not delayed");
        assert_eq!(failures.delay(address(1), now + FORGOTTEN_AFTER), Duration::ZERO);
        failures.succeeded(address(1));
        assert_eq!(failures.delay(address(1), now), Duration::ZERO);
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest() {
        let (failures, begun) = (AuthFailures::default(), Instant::now());
        for number in 0..MAX_ADDRESSES as u32 + 10 {
            failures.failed(address(number), begun + Duration::from_millis(number.into()));
        }
        let now = begun + Duration::from_secs(20);
        assert_eq!(failures.table().len(), MAX_ADDRESSES);
        assert_eq!(failures.delay(address(9), now), Duration::ZERO);
        assert_eq!(failures.delay(address(10), now), FIRST_DELAY);
        assert_eq!(failures.delay(address(MAX_ADDRESSES as u32 + 9), now), FIRST_DELAY);
    }
}
