//! Admission of work: bounds on everything that clients can hold, and fair shares of each bound.
//!
//! Owns: one [`Bound`] for each [`Resource`]; an [`Account`] for each connection, which counts how much the connection
//! holds of each resource; the same counts for each client address; and the guards that release what they hold. Does
//! not own: waiting. Above a bound, a request is rejected immediately, because a queue in front of a full server only
//! adds latency to work that is rejected later.
//!
//! # Fair shares
//!
//! ```text
//! 0                                    open limit          limit
//! ├──────────── anyone ────────────────┼─ connections ─┼─ addresses ─┤
//!                                      └─────────── reserve ─────────┘
//! ```
//! Below the open limit, any client takes what is free, and one client may use all of it. The rest is the reserve
//! (`share_reserve_percent`). An address takes from it only while the address holds no more than is still free (the
//! rule of dynamic thresholds for queues that share memory; Choudhury and Hahne, 1998). So the address that holds most
//! is rejected first, and a new address always finds something free.
//!
//! Connections whose address holds more may use the lower half of the reserve, so that one connection does not block
//! the others of its address. Of bytes, such a connection may hold as much as is free there, because one request may
//! need most of it. Of requests and other counted items, it may hold one in 16 (`CONNECTION_PART`) of those free there,
//! or one.
//!
//! # Cost
//!
//! Below the open limit, taking and releasing cost one atomic operation each for the bound, the address and the
//! connection. The table of addresses has a lock, which is taken when a connection begins or ends.
//!
//! Invariant: no attempt to take raises `used` of a [`Bound`] above `limit`. Memory in use already, and work counted
//! once it is in progress, may raise it. A guard releases what it holds exactly once.

mod resource;

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use thalweg_broker::LinkOwner;
use thalweg_engine::{Client, ClientAddress};
use thalweg_types::limits::{
    MAX_CACHES, MAX_GROUPS, MAX_KEYSPACES, MAX_LEASES, MAX_PENDING_CLEARS, MAX_STREAMS, MAX_VALUE_BYTES,
};

use crate::{config::Config, limits::COUNTED_REPLY_BYTES, reserve::reserve_of};

pub use resource::Resource;

/// Divisor for a connection whose address exceeds its share: it may hold one in 16 of the requests, scans or other
/// counted items that are free in the lower half of the reserve (kept for the clients that hold least), or one.
const CONNECTION_PART: u64 = 16;
/// Shortest time between two log lines about rejections because of one bound.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// A limit on the total of a resource in use, such as requests or bytes, with a counter of the amount in use. Each
/// bound has a cache line of its own, so that counting in one bound does not slow down another.
#[derive(Debug)]
#[repr(align(64))]
pub struct Bound {
    used: AtomicU64,
    /// Part of `used` that is charged to no client, for example for objects that other nodes created.
    unowned: AtomicU64,
    rejected: AtomicU64,
    limit: u64,
    /// Amount in use up to which any client may take more. Invariant: `open_limit <= shared_limit <= limit`.
    open_limit: u64,
    /// Amount in use up to which a connection may take more even if its address holds more than its share. It lies in
    /// the middle of the reserve, which begins at `open_limit` and is kept for the clients that hold least.
    shared_limit: u64,
}

impl Bound {
    /// Creates a bound. `reserve_percent` of `limit` is kept for the clients that hold least: less if otherwise a
    /// request of the amount `largest` would not fit into the rest, and nothing if `limit` is below `least_divided`.
    fn new(limit: u64, reserve_percent: u32, largest: u64, least_divided: u64) -> Self {
        let reserve = if limit < least_divided { 0 } else { reserve_of(limit, reserve_percent) };
        let reserve = reserve.min(limit.saturating_sub(largest));
        Self {
            used: AtomicU64::new(0),
            unowned: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            limit,
            open_limit: limit - reserve,
            shared_limit: limit - reserve.div_ceil(2),
        }
    }

    /// Returns the amount in use of the resource that this bound limits.
    #[must_use]
    pub fn used(&self) -> u64 {
        at_least_zero(self.used.load(Relaxed))
    }

    /// Returns how many times work was rejected because of this bound.
    #[must_use]
    pub fn rejections(&self) -> u64 {
        self.rejected.load(Relaxed)
    }

    /// Returns the maximum amount in use that this bound permits of its resource.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Sets the part of the amount in use that is charged to no client of this server.
    pub(crate) fn set_unowned(&self, amount: u64) {
        let before = self.unowned.swap(amount, Relaxed);
        self.used.fetch_add(amount.wrapping_sub(before), Relaxed);
    }

    /// Adds `amount` to the amount in use without charging it to a client of this server.
    pub(crate) fn add_unowned(&self, amount: u64) {
        self.unowned.fetch_add(amount, Relaxed);
        self.used.fetch_add(amount, Relaxed);
    }

    /// Returns true if any client may take `amount` now, even the client that holds most.
    pub(crate) fn is_open_to(&self, amount: u64) -> bool {
        self.used().saturating_add(amount) <= self.open_limit
    }

    /// Returns the amount of the bound's resource that is still free.
    pub(crate) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    /// Returns true if only the reserve (the part of a bound that is kept for the clients that hold least) is free.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.used() >= self.open_limit
    }
}

/// Address of a client as the server counts it: an IPv4 address, or the /64 network of an IPv6 address, because a
/// client usually has a whole network of that size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressKey(u128);

impl AddressKey {
    /// Key for work that the server's own process does, without a client.
    pub const LOCAL: Self = Self(0);

    /// Returns the key of a client's address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(u128::from(address.to_ipv6_mapped())),
            IpAddr::V6(address) => Self(u128::from(address) & (u128::MAX << 64)),
        }
    }
}

impl std::fmt::Display for AddressKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Ipv6Addr::from(self.0).to_canonical() {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

/// Amounts of each resource that all connections of one client address hold together.
#[derive(Debug)]
struct AddressAccount {
    key: AddressKey,
    held: [AtomicU64; Resource::COUNT],
    /// The client's address in the queue of commands, which measures the time that each address's commands take.
    client_address: Arc<ClientAddress>,
    /// Identity by which the broker counts the queued messages of all connections of this address together.
    link_owner: Arc<LinkOwner>,
    admission: Arc<Admission>,
}

impl AddressAccount {
    /// Returns the amount of a resource that all connections of this client address hold.
    fn held(&self, resource: Resource) -> u64 {
        let held = |resource: Resource| self.held[resource as usize].load(Relaxed);
        let of_parts = resource.parts().iter().map(|(part, each)| held(*part).saturating_mul(*each));
        of_parts.fold(held(resource), u64::saturating_add)
    }
}

impl Drop for AddressAccount {
    fn drop(&mut self) {
        let mut addresses = self.admission.addresses();
        // Another connection of the address may have created a new account in the meantime; that account stays.
        if addresses.get(&self.key).is_some_and(|found| found.strong_count() == 0) {
            addresses.remove(&self.key);
        }
    }
}

/// Amounts that one connection holds of each resource. The connection takes everything through its account.
#[derive(Debug)]
pub struct Account {
    address: Arc<AddressAccount>,
    held: [AtomicU64; Resource::COUNT],
    /// Identity of the connection in the queue of commands. The queue measures how expensive the commands of each
    /// connection are.
    client: Arc<Client>,
    /// True once the server has cut the connection because its client did not read or send.
    is_cut: AtomicBool,
}

impl Account {
    /// Takes `amount` of a resource. If the connection may not take that much now, returns `None` and counts a
    /// rejection.
    pub fn take(self: &Arc<Self>, resource: Resource, amount: u64) -> Option<Reservation> {
        self.try_take(resource, amount).then(|| Reservation { account: Arc::clone(self), resource, amount })
    }

    /// Takes `amount` of a resource for a caller that waits and tries again. If that is not possible now, returns
    /// `None` and counts no rejection.
    pub fn take_quietly(self: &Arc<Self>, resource: Resource, amount: u64) -> Option<Reservation> {
        // Another thread may take the free amount after this check. Then `take` counts a rejection.
        let is_possible = self.may_take(resource, self.bound(resource).used(), amount);
        is_possible.then(|| self.take(resource, amount)).flatten()
    }

    /// Returns true if the connection may take 1 of a resource; otherwise counts a rejection. Takes nothing. Meant for
    /// work that usually ends immediately: the caller calls [`count`](Self::count) only if the work stays in progress.
    #[inline]
    #[must_use]
    pub fn has_room(&self, resource: Resource) -> bool {
        let bound = self.bound(resource);
        let has_room = self.may_take(resource, bound.used(), 1);
        if !has_room {
            self.address.admission.reject(resource, HashMap::new);
        }
        has_room
    }

    /// Takes 1 of a resource, even above its bound, for work that [`has_room`](Self::has_room) has admitted. So the
    /// amount in use may exceed the limit by the number of simultaneous admissions: at most 1 for each serving thread.
    pub fn count(self: &Arc<Self>, resource: Resource) -> Reservation {
        let mut counted = self.empty(resource);
        counted.count(1);
        counted
    }

    /// Creates a guard that holds nothing of a resource yet.
    pub fn empty(self: &Arc<Self>, resource: Resource) -> Reservation {
        Reservation { account: Arc::clone(self), resource, amount: 0 }
    }

    /// Charges a large reply to the connection until the last reference to its bytes is dropped; small ones are free.
    /// `bytes` is the reply or most of it. Returns the bytes, or `None` if the connection may not hold that much.
    pub fn reply(self: &Arc<Self>, bytes: Bytes) -> Option<Bytes> {
        if bytes.len() < COUNTED_REPLY_BYTES {
            return Some(bytes);
        }
        let held = self.take(Resource::ReplyBytes, bytes.len() as u64)?;
        Some(counted(bytes, held))
    }

    /// Returns `wanted` if the connection may hold a reply of that many bytes now, and otherwise a size at which
    /// replies are not counted. Meant for work that cannot be undone easily once its reply exists.
    #[must_use]
    pub fn reply_room(&self, wanted: u64) -> u64 {
        let used = self.bound(Resource::ReplyBytes).used();
        let has_room = self.may_take(Resource::ReplyBytes, used, wanted);
        if has_room { wanted } else { wanted.min(COUNTED_REPLY_BYTES as u64 / 2) }
    }

    /// Returns true if the connection may hold the reply of a read now; otherwise counts a rejection. `len` returns the
    /// size of this reply in bytes. It is called only if the connection could not hold the largest reply. Without this
    /// check a client could make the server repeatedly read a large value that it cannot send.
    pub fn has_reply_room<E>(self: &Arc<Self>, len: impl FnOnce() -> Result<Option<u64>, E>) -> Result<bool, E> {
        let largest = MAX_VALUE_BYTES as u64;
        if self.may_take(Resource::ReplyBytes, self.bound(Resource::ReplyBytes).used(), largest) {
            return Ok(true);
        }
        Ok(self.may_hold_reply(len()?.unwrap_or(0)))
    }

    /// Returns the largest size in bytes, at most `most`, that a reply of the connection may have now. Sizes too small
    /// to be counted are always permitted. Meant for reads that learn their reply's size while they copy values.
    #[must_use]
    pub fn reply_room_up_to(&self, most: u64) -> u64 {
        const UNCOUNTED: u64 = COUNTED_REPLY_BYTES as u64 - 1;
        let used = self.bound(Resource::ReplyBytes).used();
        let has_room = |bytes| self.may_take(Resource::ReplyBytes, used, bytes);
        if has_room(most) {
            return most;
        }
        let (mut low, mut high) = (UNCOUNTED.min(most), most);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if has_room(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// Returns true if the connection may hold a reply of `bytes` now; otherwise counts a rejection.
    pub fn may_hold_reply(self: &Arc<Self>, bytes: u64) -> bool {
        bytes < COUNTED_REPLY_BYTES as u64 || self.take(Resource::ReplyBytes, bytes).is_some()
    }

    /// Returns true if the connection could not hold a reply with a value of the maximum size now. A read that does not
    /// know the sizes of its values should then look at the sizes before it copies the values.
    #[must_use]
    pub fn is_short_of_reply_room(&self) -> bool {
        const LARGEST: u64 = MAX_VALUE_BYTES as u64;
        self.reply_room(LARGEST) < LARGEST
    }

    /// Returns the amount of a resource that the connection holds.
    #[must_use]
    pub fn held(&self, resource: Resource) -> u64 {
        self.held[resource as usize].load(Relaxed)
    }

    /// Returns the amount of a resource that all connections from the same address hold.
    pub(crate) fn held_of_address(&self, resource: Resource) -> u64 {
        self.address.held(resource)
    }

    /// Returns the client address to which the connection belongs.
    #[must_use]
    pub fn address(&self) -> AddressKey {
        self.address.key
    }

    /// Returns the identity by which the broker counts the queued messages of all connections of this address together.
    #[must_use]
    pub fn link_owner(&self) -> Arc<LinkOwner> {
        Arc::clone(&self.address.link_owner)
    }

    /// Returns the identity of the connection in the queue of commands.
    #[must_use]
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Returns true if the server should close idle connections from this connection's address: only the reserve (kept
    /// for the clients that hold least) is free, and the address holds more than is free in the reserve's lower half.
    #[must_use]
    pub fn is_over_share(&self, resource: Resource) -> bool {
        let bound = self.bound(resource);
        bound.is_short() && self.address.held(resource) > bound.shared_limit.saturating_sub(bound.used())
    }

    /// Records that the server cuts the connection because its client does not read or send. A database snapshot that
    /// was being sent to this client is then released, and not kept for the client to resume it.
    pub fn cut(&self) {
        self.is_cut.store(true, Relaxed);
    }

    /// Returns true if the server has cut the connection because its client did not read or send.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Relaxed)
    }

    #[inline]
    fn bound(&self, resource: Resource) -> &Bound {
        self.address.admission.bound(resource)
    }

    #[inline]
    fn try_take(&self, resource: Resource, amount: u64) -> bool {
        let (at, bound) = (resource as usize, self.bound(resource));
        let charged = charged(resource, self.held[at].fetch_add(amount, Relaxed), amount);
        if charged == 0 {
            return true;
        }
        // A rejected attempt never adds to `used`. So it neither exceeds the bound for a moment nor takes the free
        // amount that another client could use.
        let mut before = bound.used.load(Relaxed);
        loop {
            let used = at_least_zero(before);
            if used.saturating_add(charged) > bound.open_limit && !self.may_use_reserve(resource, used, charged, amount)
            {
                self.undo(resource, amount, charged);
                self.address.admission.reject(resource, HashMap::new);
                return false;
            }
            let after = before.wrapping_add(charged);
            match bound.used.compare_exchange_weak(before, after, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        self.address.held[at].fetch_add(charged, Relaxed);
        true
    }

    /// Subtracts `amount` from what the connection holds, because the connection was not permitted to take it.
    /// `charged` is the part of `amount` that would have counted towards the bound.
    #[cold]
    fn undo(&self, resource: Resource, amount: u64, charged: u64) {
        let at = resource as usize;
        let before = self.held[at].fetch_sub(amount, Relaxed);
        // Another thread may have taken some of the resource while `amount` was counted. It was charged as if the
        // connection's free part were used up. The difference is released.
        let excess = self::charged(resource, before.wrapping_sub(amount), amount).wrapping_sub(charged);
        if excess != 0 {
            self.address.held[at].fetch_sub(excess, Relaxed);
            self.bound(resource).used.fetch_sub(excess, Relaxed);
        }
    }

    /// Returns true if the connection may take `amount` while all clients hold `used` of the resource. Takes nothing.
    #[inline]
    fn may_take(&self, resource: Resource, used: u64, amount: u64) -> bool {
        let charged = charged(resource, self.held[resource as usize].load(Relaxed), amount);
        used.saturating_add(charged) <= self.bound(resource).open_limit
            || charged == 0
            || self.may_use_reserve(resource, used, charged, 0)
    }

    /// Returns true if the connection may take `charged` from the reserve (kept for the clients that hold least) while
    /// all clients hold `used` of the resource. `pending` is the amount that its counter already has for this call.
    #[cold]
    fn may_use_reserve(&self, resource: Resource, used: u64, charged: u64, pending: u64) -> bool {
        let (at, bound) = (resource as usize, self.bound(resource));
        let of_address = self.address.held(resource).saturating_add(charged);
        if of_address <= bound.limit.saturating_sub(used) {
            return true;
        }
        let held = self.held[at].load(Relaxed).saturating_sub(pending).saturating_sub(resource.own());
        let free = bound.shared_limit.saturating_sub(used);
        let most = if held == 0 || resource.is_in_bytes() { free } else { free / CONNECTION_PART };
        resource.is_shared_by_connection() && held.saturating_add(charged) <= most
    }

    fn force(&self, resource: Resource, amount: u64) {
        let at = resource as usize;
        let charged = charged(resource, self.held[at].fetch_add(amount, Relaxed), amount);
        self.address.held[at].fetch_add(charged, Relaxed);
        self.bound(resource).used.fetch_add(charged, Relaxed);
    }

    fn release(&self, resource: Resource, amount: u64) {
        if amount == 0 {
            return;
        }
        let at = resource as usize;
        let before = self.held[at].fetch_sub(amount, Relaxed);
        let charged = charged(resource, before - amount, amount);
        if charged > 0 {
            self.address.held[at].fetch_sub(charged, Relaxed);
            self.bound(resource).used.fetch_sub(charged, Relaxed);
        }
    }
}

/// Returns a counter's value, or 0 while the counter is below zero. One thread of a connection may for a moment release
/// an amount before another thread has added it.
#[inline]
fn at_least_zero(count: u64) -> u64 {
    if count > u64::MAX / 2 { 0 } else { count }
}

/// Returns how much of `more`, the amount that a connection takes, counts towards the bound. `before` is the amount
/// that the connection already holds. The first bytes that each connection holds, [`Resource::own`], do not count.
#[inline]
fn charged(resource: Resource, before: u64, more: u64) -> u64 {
    let own = resource.own();
    if own == 0 { more } else { (before + more).saturating_sub(own) - before.saturating_sub(own) }
}

/// Guard that holds an amount of a [`Resource`], such as a number of requests or bytes. Dropping the guard releases the
/// amount.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<Account>,
    resource: Resource,
    amount: u64,
}

impl Reservation {
    /// Takes `amount` more. Returns false and takes nothing if the connection may not hold that much now.
    pub fn grow(&mut self, amount: u64) -> bool {
        let has_room = self.account.try_take(self.resource, amount);
        self.amount += if has_room { amount } else { 0 };
        has_room
    }

    /// Increases the amount that this guard holds to `amount`, if it holds less. Returns false and takes nothing if
    /// the connection may not hold that much now.
    pub fn grow_to(&mut self, amount: u64) -> bool {
        amount <= self.amount || self.grow(amount - self.amount)
    }

    /// Takes `amount` more of the resource, even above its bound. Meant for memory that is in use already.
    pub fn count(&mut self, amount: u64) {
        self.account.force(self.resource, amount);
        self.amount += amount;
    }

    /// Sets the amount that this guard holds, even above the resource's bound. Meant for memory that is in use already.
    pub fn set(&mut self, amount: u64) {
        self.shrink_to(amount);
        self.count(amount - self.amount);
    }

    /// Moves up to `amount` from this guard into a new guard. The total stays the same.
    #[must_use]
    pub fn split_off(&mut self, amount: u64) -> Self {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        Self { account: Arc::clone(&self.account), resource: self.resource, amount }
    }

    /// Reduces the amount of this guard to `amount`, and releases the rest.
    pub fn shrink_to(&mut self, amount: u64) {
        let less = self.amount.saturating_sub(amount);
        self.account.release(self.resource, less);
        self.amount -= less;
    }

    /// Returns the amount of its resource that this guard holds.
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Returns the account of the connection that holds the amount.
    #[must_use]
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account.release(self.resource, self.amount);
    }
}

/// All bounds of a server, and the accounts of its clients.
#[derive(Debug)]
pub struct Admission {
    bounds: [Bound; Resource::COUNT],
    addresses: Mutex<HashMap<AddressKey, Weak<AddressAccount>>>,
    begun: Instant,
    /// Time of the next log line about each bound, in milliseconds after `begun`.
    next_warnings: [AtomicU64; Resource::COUNT],
}

impl Admission {
    /// Creates the bounds that a configuration states, with nothing in use.
    #[must_use]
    pub fn new(config: &Config) -> Arc<Self> {
        let limit = |resource| match resource {
            Resource::Requests => config.max_requests_in_flight.into(),
            Resource::BodyBytes => config.max_body_bytes_in_flight.0,
            Resource::ReplyBytes => config.max_reply_bytes_in_flight.0,
            Resource::Scans => config.max_scans.into(),
            Resource::Tails => config.max_tails.into(),
            Resource::Snapshots => config.max_snapshots(),
            Resource::Subscriptions => config.max_subscriptions.into(),
            Resource::CacheBytes => config.max_caches_bytes.0,
            Resource::Caches => MAX_CACHES as u64,
            Resource::Keyspaces => MAX_KEYSPACES as u64,
            Resource::Streams => MAX_STREAMS as u64,
            Resource::Leases => MAX_LEASES as u64,
            Resource::Groups => MAX_GROUPS as u64,
            Resource::ObjectBytes => config.max_object_bytes.0,
            Resource::Deletes => MAX_PENDING_CLEARS as u64,
            Resource::Connections => config.max_connections.into(),
            Resource::QuicConnections => config.max_quic_connections.into(),
        };
        let largest = |resource| match resource {
            Resource::BodyBytes => config.max_body_bytes.0,
            // A longer reply of a Redis command is counted in one step at its end, so the part below the reserve need
            // not hold it.
            Resource::ReplyBytes => MAX_VALUE_BYTES as u64,
            _ => 1,
        };
        let least_divided = |resource| match resource {
            // One of two snapshots is kept for other addresses, because a client may hold one for hours.
            Resource::Snapshots => 2,
            _ => 4,
        };
        let percent = config.share_reserve_percent;
        Arc::new(Self {
            bounds: Resource::ALL
                .map(|resource| Bound::new(limit(resource), percent, largest(resource), least_divided(resource))),
            addresses: Mutex::default(),
            begun: Instant::now(),
            next_warnings: Default::default(),
        })
    }

    /// Returns the bound of a resource.
    #[inline]
    #[must_use]
    pub fn bound(&self, resource: Resource) -> &Bound {
        &self.bounds[resource as usize]
    }

    /// Begins the account of a connection from `address`.
    #[must_use]
    pub fn account(self: &Arc<Self>, address: AddressKey) -> Arc<Account> {
        let mut addresses = self.addresses();
        let found = addresses.get(&address).and_then(Weak::upgrade);
        let address = found.unwrap_or_else(|| {
            let new = Arc::new(AddressAccount {
                key: address,
                held: Default::default(),
                client_address: Arc::default(),
                link_owner: Arc::default(),
                admission: Arc::clone(self),
            });
            addresses.insert(address, Arc::downgrade(&new));
            new
        });
        drop(addresses);
        let client = Client::new(&address.client_address);
        Arc::new(Account { address, held: Default::default(), client, is_cut: AtomicBool::new(false) })
    }

    /// Returns the number of client addresses that have connections or hold a resource.
    #[must_use]
    pub fn address_count(&self) -> usize {
        self.addresses().len()
    }

    /// Returns the address that holds most of a resource, and the amount. Meant for log lines and metrics.
    #[must_use]
    pub fn largest_holder(&self, resource: Resource) -> Option<(AddressKey, u64)> {
        self.largest_with(resource, HashMap::new())
    }

    /// Returns the [`largest_holder`](Self::largest_holder) after adding the amounts in `held`, which addresses hold
    /// without a reservation.
    pub(crate) fn largest_with(
        &self,
        resource: Resource,
        mut held: HashMap<AddressKey, u64>,
    ) -> Option<(AddressKey, u64)> {
        // The accounts are dropped after the lock is released, because the last drop takes the lock.
        let all: Vec<_> = self.addresses().values().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|found| *held.entry(found.key).or_default() += found.held(resource));
        held.into_iter().max_by_key(|(_, held)| *held)
    }

    /// Counts a rejection because of a bound. At most once in [`WARNED_EVERY`], also logs it, with the address that
    /// holds most of the resource. `held` returns amounts that addresses hold without a reservation.
    #[cold]
    pub(crate) fn reject(&self, resource: Resource, held: impl FnOnce() -> HashMap<AddressKey, u64>) {
        let bound = self.bound(resource);
        let rejections = bound.rejected.fetch_add(1, Relaxed) + 1;
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if !self.warns_at(resource, now) {
            return;
        }
        if let Some((address, held)) = self.largest_with(resource, held()) {
            let (bound_name, used, limit) = (resource.name(), bound.used(), bound.limit());
            tracing::warn!(
                bound = bound_name, used, limit, rejections, largest_holder = %address, held,
                "a bound is reached: the server refuses requests until clients release what they hold"
            );
        }
    }

    /// Returns true if a log line about the bound of a resource is due. `now` is in milliseconds after this value was
    /// created. Once this function has returned true, no further line about the bound is due for [`WARNED_EVERY`].
    fn warns_at(&self, resource: Resource, now: u64) -> bool {
        let next_warning = &self.next_warnings[resource as usize];
        let due = next_warning.load(Relaxed);
        let next = now.saturating_add(WARNED_EVERY.as_millis() as u64);
        now >= due && next_warning.compare_exchange(due, next, Relaxed, Relaxed).is_ok()
    }

    fn addresses(&self) -> MutexGuard<'_, HashMap<AddressKey, Weak<AddressAccount>>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Attaches a guard, such as a [`Reservation`], to bytes. The guard is dropped with the last reference to any part
/// of the bytes.
pub fn counted<H: Send + Sync + 'static>(bytes: Bytes, held: H) -> Bytes {
    Bytes::from_owner(CountedBytes { bytes, _held: held })
}

struct CountedBytes<H> {
    bytes: Bytes,
    _held: H,
}

impl<H> AsRef<[u8]> for CountedBytes<H> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests;
