//! Delays after failed attempts to authenticate, kept for each client address.
//!
//! Owns: the number of failed attempts of each address, the delay that grows with this number, and the time of the
//! address's next check. Does not own: passwords, or the timer of a waiting client.
//!
//! An address with failures has one password check per delay, for all its clients together. Each check moves the time
//! of the next check, and the clients that were too late wait again. (With a delay for each client, a guesser could
//! make as many guesses per delay as it has connections.) The delay comes before the check, so a client that
//! disconnects early learns nothing. The right password is delayed too; otherwise a quick reply would tell a guesser
//! that the guess was right. A waiting client holds nothing here, so its disconnect delays no other client.
//!
//! A client that authenticates proves nothing about other clients of its address, which may be behind the same NAT. So
//! its success takes back only the failures of its own connection, such as a mistyped password. Failures of other
//! connections count until the address has had no failure for ten minutes. After a successful check the next check may
//! begin immediately, so clients with the right password do not delay each other. They wait only because of the guesses
//! of others.
//!
//! A guesser can therefore keep new clients of its own address out. A limit on the wait for the right password is not
//! possible, because it would also limit the wait for each guess. `docs/redis.md` says what an operator can do.
//!
//! Bound: at most [`MAX_ADDRESSES`] addresses. A further address replaces the address with the oldest last failure.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use thalweg_serving::admission::AddressKey;

/// Maximum number of addresses whose failures are remembered.
const MAX_ADDRESSES: usize = 10_000;
/// Time without failures after which the failures of an address are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Delay of the next attempt after the first failed attempt from an address. The delay doubles with each further
/// failure, up to [`MAX_DELAY`].
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest delay of an attempt to authenticate after failures.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Failed attempts to authenticate, counted for each client address; see the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct AuthFailures {
    table: Mutex<HashMap<AddressKey, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    /// Number of failed attempts to authenticate from one address, at least 1.
    count: u32,
    last: Instant,
    /// End of the delay that the address's last failure caused.
    failed_until: Instant,
    /// End of the delay that the address's latest password check causes if the password is wrong. If it is right, this
    /// time is set to the present, so that the next check may begin immediately.
    checking_until: Instant,
}

impl AuthFailures {
    /// Begins to check an authentication attempt from `address`. After a failure, an address may make one attempt at a
    /// time, with a delay between attempts. Returns the time to wait as an error if the attempt comes too early.
    pub(crate) fn begin_check(&self, address: AddressKey, now: Instant) -> Result<(), Duration> {
        let mut table = self.table();
        let Some(failures) = table.get_mut(&address).filter(|failures| failures.is_recent(now)) else { return Ok(()) };
        let wait = failures.failed_until.max(failures.checking_until).saturating_duration_since(now);
        if !wait.is_zero() {
            return Err(wait);
        }
        // Another thread could begin a check before this check has failed, so the delay begins now.
        failures.checking_until = now + delay_after(failures.count.saturating_add(1));
        Ok(())
    }

    /// Counts a failed attempt from `address`. Returns the number of failures of the address so far.
    pub(crate) fn failed(&self, address: AddressKey, now: Instant) -> u32 {
        let mut table = self.table();
        if !table.contains_key(&address) && table.len() >= MAX_ADDRESSES {
            table.retain(|_, failures| failures.is_recent(now));
            let oldest = table.iter().min_by_key(|(_, failures)| failures.last).map(|(address, _)| *address);
            if let Some(oldest) = oldest.filter(|_| table.len() >= MAX_ADDRESSES) {
                table.remove(&oldest);
            }
        }
        let new = Failures { count: 0, last: now, failed_until: now, checking_until: now };
        let failures = table.entry(address).or_insert(new);
        failures.count = if failures.is_recent(now) { failures.count.saturating_add(1) } else { 1 };
        failures.last = now;
        failures.failed_until = failures.failed_until.max(now + delay_after(failures.count));
        failures.count
    }

    /// Takes back `own` failures of `address`, after a check at `now` has succeeded. These are the failures of the
    /// connection that has authenticated.
    pub(crate) fn succeeded(&self, address: AddressKey, own: u32, now: Instant) {
        let mut table = self.table();
        let Some(failures) = table.get_mut(&address) else { return };
        failures.checking_until = now;
        failures.count = failures.count.saturating_sub(own);
        if failures.count == 0 {
            table.remove(&address);
        }
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

    fn wait(failures: &AuthFailures, number: u32, now: Instant) -> Duration {
        failures.begin_check(address(number), now).err().unwrap_or_default()
    }

    #[test]
    fn the_delay_doubles_with_each_failure_of_an_address_up_to_a_bound() {
        let (failures, mut now) = (AuthFailures::default(), Instant::now());
        let mut delays = Vec::new();
        for count in 1..=8 {
            let delay = wait(&failures, 1, now);
            delays.push(delay.as_millis());
            now += delay;
            assert!(delay.is_zero() || failures.begin_check(address(1), now).is_ok());
            assert_eq!(failures.failed(address(1), now), count);
        }
        assert_eq!(delays, [0, 100, 200, 400, 800, 1600, 3200, 5000]);
        assert_eq!(failures.begin_check(address(2), now), Ok(()), "other addresses are not delayed");
        assert_eq!(failures.begin_check(address(1), now + FORGOTTEN_AFTER), Ok(()));
        assert!(failures.begin_check(address(1), now).is_err());
        failures.succeeded(address(1), 8, now);
        assert_eq!(failures.begin_check(address(1), now), Ok(()));
    }

    #[test]
    fn a_success_takes_back_only_the_failures_of_its_own_connection() {
        let (failures, begun) = (AuthFailures::default(), Instant::now());
        let mut now = begun;
        let mut guesses = 0;
        // A guesser competes with clients behind the same NAT, which authenticate whenever they may.
        while now < begun + Duration::from_secs(600) {
            for _ in 0..10 {
                if failures.begin_check(address(1), now).is_ok() {
                    failures.succeeded(address(1), 0, now);
                }
            }
            if failures.begin_check(address(1), now).is_ok() {
                guesses += 1;
                failures.failed(address(1), now);
            }
            now += Duration::from_millis(100);
        }
        assert!(guesses < 600 / 5 + 10, "{guesses}");
        // After the guesser has gone, clients with the right password do not wait. Clients with a wrong password still
        // do.
        now += MAX_DELAY;
        for _ in 0..50 {
            assert_eq!(failures.begin_check(address(1), now), Ok(()));
            failures.succeeded(address(1), 0, now);
        }
        assert_eq!(failures.begin_check(address(1), now), Ok(()));
        failures.failed(address(1), now);
        assert_eq!(wait(&failures, 1, now), MAX_DELAY);
        failures.succeeded(address(1), guesses + 1, now);
        assert_eq!(failures.begin_check(address(1), now), Ok(()), "none of another connection is left");
        failures.succeeded(address(2), 1, now);
    }

    #[test]
    fn guesses_of_one_address_at_the_same_time_are_checked_one_after_the_other() {
        let (failures, begun) = (AuthFailures::default(), Instant::now());
        let (mut now, mut checks) = (begun, 0);
        failures.failed(address(1), now);
        while now < begun + Duration::from_secs(60) {
            // Of 500 waiting clients, each tries again as soon as it may.
            let waits: Vec<_> = (0..500).filter_map(|_| failures.begin_check(address(1), now).err()).collect();
            if waits.len() < 500 {
                failures.failed(address(1), now);
            }
            checks += 500 - waits.len();
            now += *waits.iter().min().expect("most of them wait");
        }
        // Checks take place after 0.1, 0.3, 0.7, 1.5, 3.1 and 6.3 s, and every 5 s from then on.
        assert_eq!(checks, 16);
    }

    #[test]
    fn a_client_that_gave_up_waiting_delays_no_other() {
        let (failures, begun) = (AuthFailures::default(), Instant::now());
        failures.failed(address(1), begun);
        for _ in 0..100 {
            assert_eq!(wait(&failures, 1, begun), FIRST_DELAY);
        }
        assert_eq!(failures.begin_check(address(1), begun + FIRST_DELAY), Ok(()));
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest() {
        let (failures, begun) = (AuthFailures::default(), Instant::now());
        for number in 0..MAX_ADDRESSES as u32 + 10 {
            failures.failed(address(number), begun + Duration::from_millis(number.into()));
        }
        let now = begun + Duration::from_millis(10);
        assert_eq!(failures.table().len(), MAX_ADDRESSES);
        assert_eq!(failures.begin_check(address(9), now), Ok(()));
        assert_eq!(wait(&failures, 10, now), FIRST_DELAY);
        assert!(failures.begin_check(address(MAX_ADDRESSES as u32 + 9), now).is_err());
    }
}
