//! Limits for each client address on what its clients create in the database: keyspaces, streams, leases, consumer
//! groups, and deletes of many keys whose rows wait to be removed.
//!
//! The database bounds the total number of keyspaces, of streams, and so on. Owns: a reservation for each object that a
//! client has created through this node. The reservation counts for the client's address until the object is gone.
//! Other objects count as held by no client: objects that exist since an earlier start, and those that other nodes or
//! the server itself created. So even after a restart, an address cannot use the reserve that is kept for other
//! clients. Does not own: the bounds of the database, which also hold without this module; the requests that create
//! (`creating`) and delete (`deleting`).
//!
//! # How the end of an object is noticed
//!
//! Leases expire, deletes end, and another node may drop an object that this node has counted. So each creation checks
//! a few of the oldest reservations, and releases those whose object is gone. A creation that exceeds its share checks
//! many.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use thalweg_types::{GroupId, KeyspaceId, LeaseId, Revision, StreamId};

use crate::admission::{Account, AddressKey, Admission, Reservation, Resource};

/// Number of old reservations that are checked each time a client creates an object. Those of objects that no longer
/// exist are released. The number is above one, so that reservations are released faster than new ones are added.
const LOOKED_AT: usize = 4;
/// Number of reservations that are checked if a client's address may create no more. This takes at most a fraction of a
/// millisecond.
const LOOKED_AT_WHEN_SHORT: usize = 256;

/// Reservations for everything that clients have created through this node.
#[derive(Debug, Default)]
pub(crate) struct CreatedByClients {
    pub(crate) keyspaces: Mutex<Created<String>>,
    pub(crate) streams: Mutex<Created<StreamId>>,
    pub(crate) leases: Mutex<Created<LeaseId>>,
    pub(crate) groups: Mutex<Created<GroupId>>,
    pub(crate) deletes: Mutex<Created<WaitingDelete>>,
}

/// The deletes of one command in one keyspace. Their keys are hidden already, but their rows may still wait to be
/// removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WaitingDelete {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) outcome: DeleteOutcome,
    /// Number that distinguishes this command from all others.
    pub(crate) number: u64,
}

/// Outcome of a command that deletes many keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeleteOutcome {
    /// The command was applied, and made its changes at this revision.
    At(Revision),
    /// The outcome is not known, and the command may still be applied until this time.
    UnknownUntil(Instant),
}

/// Reservations for objects of one kind that clients have created: keyspaces, streams, leases, groups or waiting
/// deletes. `K` identifies an object.
#[derive(Debug)]
pub(crate) struct Created<K> {
    held: HashMap<K, CreatedShare>,
    /// Sum of the amounts of all reservations in `held`.
    amount: u64,
    /// Keys of the reservations in `held`, in the order in which they are checked. A key whose reservation is no longer
    /// in `held` is skipped.
    order: VecDeque<K>,
    /// One account for each client address. Reservations refer to this account and not to that of a connection, which
    /// needs much more memory.
    owners: HashMap<AddressKey, Arc<Account>>,
}

#[derive(Debug)]
struct CreatedShare {
    share: Reservation,
    /// Time until which the reserved object is known to exist, unless a client removes it through another node.
    known_until: Instant,
}

impl<K> Default for Created<K> {
    fn default() -> Self {
        Self { held: HashMap::default(), amount: 0, order: VecDeque::default(), owners: HashMap::default() }
    }
}

impl<K: Hash + Eq + Clone> Created<K> {
    /// Reserves `amount` for the address of `account`. `total` is the amount that the database contains. `alive_until`
    /// returns the time until which an object exists for certain, or `None` if the object is gone. Returns `None` if
    /// the address may hold no more.
    pub(crate) fn take(
        &mut self,
        (admission, resource): (&Arc<Admission>, Resource),
        account: &Account,
        amount: u64,
        total: usize,
        alive_until: impl Fn(&K) -> Option<Instant>,
    ) -> Option<Reservation> {
        self.look_at(LOOKED_AT, Some(Instant::now()), &alive_until);
        let count_others = |held: u64| admission.bound(resource).set_unowned((total as u64).saturating_sub(held));
        count_others(self.amount);
        if self.owners.len() > 2 * self.held.len() + 16 {
            self.owners.retain(|_, owner| Arc::strong_count(owner) > 1);
        }
        let owner = self.owners.entry(account.address()).or_insert_with(|| admission.account(account.address()));
        let owner = Arc::clone(owner);
        if let Some(taken) = owner.take_quietly(resource, amount) {
            return Some(taken);
        }
        self.look_at(LOOKED_AT_WHEN_SHORT, None, &alive_until);
        count_others(self.amount);
        owner.take(resource, amount)
    }

    pub(crate) fn insert(&mut self, key: K, share: Reservation, known_until: Instant) {
        self.order.push_back(key.clone());
        self.amount += share.amount();
        if let Some(before) = self.held.insert(key, CreatedShare { share, known_until }) {
            self.amount -= before.share.amount();
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(removed) = self.held.remove(key) {
            self.amount -= removed.share.amount();
        }
    }

    /// Checks the next `count` reservations, and releases those whose object no longer exists. Objects known to exist
    /// at `now` are not checked; if `now` is `None`, all are.
    fn look_at(&mut self, count: usize, now: Option<Instant>, alive_until: impl Fn(&K) -> Option<Instant>) {
        for _ in 0..count.min(self.order.len()) {
            let Some(key) = self.order.pop_front() else { return };
            let Some(held) = self.held.get_mut(&key) else { continue };
            if now.is_none_or(|now| held.known_until <= now) {
                match alive_until(&key) {
                    Some(until) => held.known_until = until,
                    None => {
                        self.remove(&key);
                        continue;
                    }
                }
            }
            self.order.push_back(key);
        }
    }
}

/// Returns the time at which a lease ends if `left` is its remaining time.
pub(crate) fn end_of(left: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(left.min(CENTURY)).unwrap_or(now)
}

pub(crate) fn locked<K>(created: &Mutex<Created<K>>) -> MutexGuard<'_, Created<K>> {
    created.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::HashSet, net::Ipv4Addr};

    use super::*;
    use crate::config::Config;

    const LIMIT: usize = thalweg_types::limits::MAX_KEYSPACES;

    /// Objects in a database that clients create. Each has a number.
    struct CreatedObjects {
        admission: Arc<Admission>,
        created: Created<usize>,
        existing: RefCell<HashSet<usize>>,
    }

    impl CreatedObjects {
        fn new(existing: usize) -> Self {
            let existing = RefCell::new((0..existing).map(|number| usize::MAX - number).collect());
            Self { admission: Admission::new(&Config::default()), created: Created::default(), existing }
        }

        /// Creates an object for the client with this address. Returns false if the client exceeds the part of the
        /// limit that one address may use.
        fn create(&mut self, address: u8, number: usize) -> bool {
            let account = self.admission.account(AddressKey::of(Ipv4Addr::new(127, 0, 0, address).into()));
            let (bound, total) = ((&self.admission, Resource::Keyspaces), self.existing.borrow().len());
            let exists = |number: &usize| self.existing.borrow().contains(number).then(Instant::now);
            let Some(held) = self.created.take(bound, &account, 1, total, exists) else { return false };
            self.existing.borrow_mut().insert(number);
            self.created.insert(number, held, Instant::now());
            true
        }

        fn used(&self) -> u64 {
            self.admission.bound(Resource::Keyspaces).used()
        }
    }

    #[test]
    fn one_address_creates_all_but_the_reserve() {
        let mut things = CreatedObjects::new(0);
        assert_eq!((0..LIMIT).take_while(|number| things.create(1, *number)).count(), LIMIT / 10 * 9);
        assert!(things.create(2, LIMIT));
        assert!(!things.create(1, LIMIT + 1));
    }

    #[test]
    fn what_exists_since_an_earlier_start_counts_as_held_by_nobody() {
        let mut things = CreatedObjects::new(LIMIT / 10 * 9);
        let more = (0..LIMIT).take_while(|number| things.create(1, *number)).count();
        assert_eq!(more, LIMIT / 20, "half of the reserve");
        assert!(things.create(2, LIMIT), "something is left for the next address");
        assert_eq!(things.used(), (LIMIT / 10 * 9 + more + 1) as u64);
    }

    #[test]
    fn amounts_count_and_not_their_number() {
        let (admission, mut created) = (Admission::new(&Config::default()), Created::default());
        let take = |created: &mut Created<u8>, address: u8, total: usize| {
            let account = admission.account(AddressKey::of(Ipv4Addr::new(127, 0, 0, address).into()));
            created.take((&admission, Resource::Deletes), &account, 100, total, |_| Some(Instant::now()))
        };
        for number in 0..9 {
            let held = take(&mut created, 1, 100 * usize::from(number)).unwrap();
            created.insert(number, held, Instant::now());
        }
        assert!(take(&mut created, 1, 900).is_none(), "the reserve is kept for others");
        assert!(take(&mut created, 2, 900).is_some());
        assert_eq!(admission.bound(Resource::Deletes).used(), 900);
        created.remove(&3);
        assert!(take(&mut created, 1, 800).is_some());
        assert!(take(&mut created, 1, 900).is_none(), "somebody else has taken it");
        assert_eq!(admission.bound(Resource::Deletes).used(), 900);
    }

    #[test]
    fn what_is_gone_is_found_although_nobody_says_so() {
        let mut things = CreatedObjects::new(0);
        let share = LIMIT / 10 * 9;
        assert!((0..share).all(|number| things.create(1, number)) && !things.create(1, share));
        things.existing.borrow_mut().retain(|number| number % 2 == 0);
        let mut tries = 0;
        while !things.create(1, share) {
            tries += 1;
            assert!(tries < share);
        }
        // Further creations find the other removed objects.
        assert!((share + 1..share + share / 2).all(|number| things.create(1, number)));
        things.existing.borrow_mut().clear();
        assert!((0..share).all(|number| things.create(1, number)), "without anyone being refused");
    }

    #[test]
    fn memory_is_held_for_what_exists_and_not_for_what_existed() {
        let mut things = CreatedObjects::new(0);
        for number in 0..50_000 {
            assert!(things.create((number % 200) as u8, number));
            things.existing.borrow_mut().remove(&number);
            things.created.remove(&number);
        }
        assert!(things.created.order.len() < 100 && things.created.owners.len() < 100, "{:?}", things.created.order);
        assert!(things.used() <= 1, "{}", things.used());
    }
}
