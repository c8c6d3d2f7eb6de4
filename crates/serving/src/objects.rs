//! The bound on the memory of stored objects: streams, leases, and consumer groups with their members and their records
//! that are not settled.
//!
//! Owns: the memory that a request reserves from before its command is proposed until its outcome is known, and the
//! count of the objects in the state. Does not own: the limits for each client address (`admission`), nor the state.
//! The state applies every committed command regardless of this bound. So the nodes of a cluster may have different
//! bounds, and the server opens a directory that exceeds its bound.
//!
//! # Counting
//!
//! ```text
//!   used of the bound = counted in the state + finished since then + reserved by requests in progress
//! ```
//! A request that needs memory first counts the objects in the state again if the last count is older than a second, or
//! older than 20 ms while the bound is used up. Acks and deletes free memory at the next count. Each object counts with
//! the most memory that it can take (`limits`).
//!
//! # At the bound
//!
//! A fetch then delivers only records that wait for redelivery, because these need no new memory. Otherwise consumers
//! could not drain their groups. Each group has at most one such fetch at a time, because two would count the same
//! records. Once only the reserve of the bound is free, a group still gets new records while it holds no more than is
//! free. The same rule holds for a client address. The address holds the objects that its clients have created, and the
//! records of the groups from which its clients were the last to fetch through this node. So many small groups of one
//! address do not use up the reserve.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use thalweg_engine::{Database, GroupError, GroupObjects, PreparedFetch, StoredObjects};
use thalweg_types::GroupId;

use crate::{
    admission::{Account, AddressKey, Admission, Bound, Reservation, Resource},
    error::ApiError,
    limits::{FREE_MEMBERS, GROUP_BYTES, LEASE_BYTES, MEMBER_BYTES, STREAM_BYTES, UNSETTLED_BYTES},
};

/// Age of the last count of stored objects after which a request that needs memory counts them again.
const COUNTED_EVERY: Duration = Duration::from_secs(1);
/// Age of the last count of stored objects after which a request counts them again if there is no free memory. A count
/// takes at most about a millisecond.
const COUNTED_EVERY_WHEN_SHORT: Duration = Duration::from_millis(20);
/// Time after which a fetch of redelivered records no longer prevents other clients from such a fetch in the same
/// group. Without this bound, a client that disappears during its fetch would block the group.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// The memory of stored objects, as this server counts it.
#[derive(Debug)]
pub(crate) struct ObjectMemory {
    admission: Arc<Admission>,
    /// Bytes of stored objects that finished requests have added to the state since the last count of the objects
    /// began.
    finished: AtomicU64,
    counted: Mutex<Counted>,
    fetches: Mutex<Fetches>,
    /// Consumer groups with a fetch in progress that is limited to records that were delivered before and returned to
    /// the group. Each has the time at which its fetch began.
    returned: Mutex<HashMap<GroupId, Instant>>,
}

/// Bytes that the objects in the state took when they were last counted.
#[derive(Debug, Default)]
struct Counted {
    at: Option<Instant>,
    /// Bytes of each consumer group at the last count, in the order of the groups' ids.
    groups: Vec<(GroupId, u64)>,
    /// Bytes for each client address: the records, and the members beyond [`FREE_MEMBERS`], of the groups from which
    /// clients of this address were the last to fetch.
    addresses: HashMap<AddressKey, u64>,
}

/// Fetches of new records by clients: the address that was the last to fetch from each group, and the bytes that the
/// fetches of each address have added since the last count.
#[derive(Debug, Default)]
struct Fetches {
    /// Address of the client that was the last to fetch from each group.
    last: HashMap<GroupId, AddressKey>,
    /// Bytes of the fetches of each client address that have finished since the last count began.
    finished: HashMap<AddressKey, u64>,
}

impl Fetches {
    /// Returns the bytes that each client address holds in `groups`: those of each group count for the address that was
    /// the last to fetch from it. Forgets groups that are not in the list.
    fn held_in(&mut self, groups: &[(GroupId, u64)]) -> HashMap<AddressKey, u64> {
        let mut held = HashMap::new();
        self.last.retain(|group, address| {
            let found = groups.binary_search_by_key(group, |(id, _)| *id);
            if let Ok(at) = found {
                // Subtracts the group itself, which counts for the address that has created it.
                *held.entry(*address).or_insert(0) += groups[at].1.saturating_sub(GROUP_BYTES);
            }
            found.is_ok()
        });
        held
    }
}

/// Permission of a client to create an object: a reservation of one more object for its address, and memory for the
/// object. The memory is reserved until the outcome of the command is known.
#[derive(Debug)]
pub struct CreatePermit {
    pub(crate) share: Reservation,
    pub(crate) _room: ObjectRoom,
}

/// Memory that a request has reserved for the objects that it adds. The request drops this value when the outcome of
/// its command is known. The next count of stored objects then includes the added ones.
#[derive(Debug)]
pub(crate) struct ObjectRoom {
    memory: Arc<ObjectMemory>,
    held: Reservation,
    purpose: RoomPurpose,
}

/// Reason why a request reserves memory.
#[derive(Clone, Copy, Debug)]
enum RoomPurpose {
    /// A client creates a stream, a lease or a consumer group.
    Creation,
    /// A fetch adds unsettled records to its group.
    NewRecords,
    /// A fetch from this group delivers only records that were delivered before and returned to the group.
    ReturnedRecords(GroupId),
}

impl ObjectRoom {
    /// Ends the reservation of a fetch whose outcome is known. Until stored objects are counted again, the reserved
    /// bytes are included in the memory of stored objects.
    pub(crate) fn finish(self) {
        if let RoomPurpose::ReturnedRecords(group) = self.purpose {
            self.memory.returned().remove(&group);
        }
    }
}

impl Drop for ObjectRoom {
    fn drop(&mut self) {
        let bytes = self.held.amount();
        if matches!(self.purpose, RoomPurpose::NewRecords) {
            *self.memory.fetches().finished.entry(self.held.account().address()).or_default() += bytes;
        }
        self.memory.finished.fetch_add(bytes, Relaxed);
        self.memory.bound().add_unowned(bytes);
    }
}

impl ObjectMemory {
    pub(crate) fn new(admission: &Arc<Admission>) -> Arc<Self> {
        let admission = Arc::clone(admission);
        let (counted, fetches, returned) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { admission, finished: AtomicU64::new(0), counted, fetches, returned })
    }

    fn bound(&self) -> &Bound {
        self.admission.bound(Resource::ObjectBytes)
    }

    /// Reserves `bytes` for an object that the client of `account` creates. Returns `None` if there is no free memory,
    /// or if the client's address may hold no more.
    pub(crate) fn room(self: &Arc<Self>, db: &Database, account: &Arc<Account>, bytes: u64) -> Option<ObjectRoom> {
        self.count(db, COUNTED_EVERY);
        let taken = self.take(account, bytes).or_else(|| {
            self.count(db, COUNTED_EVERY_WHEN_SHORT);
            self.take(account, bytes)
        });
        if taken.is_none() {
            self.reject();
        }
        taken.map(|held| self.holding(held, RoomPurpose::Creation))
    }

    fn take(&self, account: &Arc<Account>, bytes: u64) -> Option<Reservation> {
        let is_open = self.is_open_to_address(account, bytes);
        is_open.then(|| account.take_quietly(Resource::ObjectBytes, bytes)).flatten()
    }

    /// Reserves memory for the unsettled records that a fetch adds to its group. If there is no free memory, limits the
    /// fetch to records that were delivered before, because these need no new memory. Returns `None` if there are no
    /// such records either.
    pub(crate) fn admit_fetch(
        self: &Arc<Self>,
        db: &Database,
        account: &Arc<Account>,
        fetch: &mut PreparedFetch,
    ) -> Result<Option<ObjectRoom>, GroupError> {
        let bytes = fetch.new_records() * UNSETTLED_BYTES + MEMBER_BYTES;
        self.count(db, COUNTED_EVERY);
        if !self.bound().is_open_to(bytes) {
            self.count(db, COUNTED_EVERY_WHEN_SHORT);
        }
        if self.is_open_to_group(fetch.group(), bytes)
            && let Some(held) = self.take(account, bytes)
        {
            if fetch.new_records() > 0 {
                self.fetches().last.insert(fetch.group(), account.address());
            }
            return Ok(Some(self.holding(held, RoomPurpose::NewRecords)));
        }
        if self.begin_returned(fetch)? {
            let purpose = RoomPurpose::ReturnedRecords(fetch.group());
            return Ok(Some(self.holding(account.empty(Resource::ObjectBytes), purpose)));
        }
        self.reject();
        Ok(None)
    }

    /// Counts a rejection because there is no memory for stored objects. The log line names the address that holds
    /// most; the records of a group count for the address of the last client that fetched from the group.
    fn reject(&self) {
        self.admission.reject(Resource::ObjectBytes, || {
            let mut held = self.counted().addresses.clone();
            self.fetches().finished.iter().for_each(|(address, bytes)| *held.entry(*address).or_default() += bytes);
            held
        });
    }

    fn holding(self: &Arc<Self>, held: Reservation, purpose: RoomPurpose) -> ObjectRoom {
        ObjectRoom { memory: Arc::clone(self), held, purpose }
    }

    /// Limits a fetch to records that were delivered before and returned to the group. Returns false if there are none,
    /// or if another such fetch of the group is in progress.
    fn begin_returned(&self, fetch: &mut PreparedFetch) -> Result<bool, GroupError> {
        let mut returned = self.returned();
        let is_busy = returned.get(&fetch.group()).is_some_and(|begun| begun.elapsed() < REPEAT_AFTER);
        if is_busy || !fetch.exclude_new(FREE_MEMBERS)? {
            return Ok(false);
        }
        returned.insert(fetch.group(), Instant::now());
        Ok(true)
    }

    /// Returns true if a group may get records of `bytes`. That is so if the bytes fit without the reserve of the bound
    /// (its part for the clients that hold least), or if the group holds no more than is still free.
    fn is_open_to_group(&self, group: GroupId, bytes: u64) -> bool {
        if self.bound().is_open_to(bytes) {
            return true;
        }
        let counted = self.counted();
        let found = counted.groups.binary_search_by_key(&group, |(id, _)| *id);
        let held = found.map_or(0, |at| counted.groups[at].1);
        held.saturating_add(bytes) <= self.bound().free()
    }

    /// Returns true if the client's address may get `bytes` more. That is so if they fit without the reserve of the
    /// bound (its part for the clients that hold least), or if the address holds no more than is still free.
    fn is_open_to_address(&self, account: &Account, bytes: u64) -> bool {
        if self.bound().is_open_to(bytes) {
            return true;
        }
        let address = account.address();
        let counted = self.counted().addresses.get(&address).copied().unwrap_or(0);
        let finished = self.fetches().finished.get(&address).copied().unwrap_or(0);
        let created = account.held_of_address(Resource::ObjectBytes);
        let held = created.saturating_add(counted).saturating_add(finished);
        held.saturating_add(bytes) <= self.bound().free()
    }

    /// Counts the objects in the state, unless the last count is younger than `max_age` or another thread is counting.
    pub(crate) fn count(&self, db: &Database, max_age: Duration) {
        let Ok(mut counted) = self.counted.try_lock() else { return };
        if counted.at.is_some_and(|at| at.elapsed() < max_age) {
            return;
        }
        // The count may or may not include requests that finish from now on, so they are also added to `finished`.
        self.finished.store(0, Relaxed);
        self.fetches().finished.clear();
        // An error means that the state has failed. Then no object can be created.
        if let Ok(found) = db.stored_objects() {
            self.bound().set_unowned(bytes_of(&found).saturating_add(self.finished.load(Relaxed)));
            counted.groups = found.groups.iter().map(|group| (group.id, bytes_of_group(group))).collect();
            counted.addresses = self.fetches().held_in(&counted.groups);
        }
        counted.at = Some(Instant::now());
        self.returned().retain(|_, begun| begun.elapsed() < REPEAT_AFTER);
    }

    /// Counts the objects in the state if the last count is old. Meant for metrics.
    pub(crate) fn refresh(&self, db: &Database) {
        self.count(db, COUNTED_EVERY);
    }

    /// Logs a warning at the start of the server if the objects in the state take more memory than the server permits
    /// for them.
    pub(crate) fn warn_at_start(&self, db: &Database) {
        self.count(db, Duration::ZERO);
        let (used, limit) = (self.bound().used(), self.bound().limit());
        if used > limit {
            tracing::warn!(
                used,
                limit,
                "streams, consumer groups and leases take more memory than max_object_bytes: those that exist are \
                 served, and no new ones are created; delete some, or raise max_object_bytes"
            );
        }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetches(&self) -> MutexGuard<'_, Fetches> {
        self.fetches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn returned(&self) -> MutexGuard<'_, HashMap<GroupId, Instant>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error of a request that adds stored objects while there is no memory for them.
pub(crate) fn no_object_room() -> ApiError {
    ApiError::overloaded(
        "streams, consumer groups, their unsettled records, and leases use the memory that they may \
         (max_object_bytes), or this client's share of it: ack records or delete some of these, and retry",
    )
}

/// Returns the maximum number of bytes that stored objects can take in memory.
fn bytes_of(found: &StoredObjects) -> u64 {
    let groups = found.groups.iter().map(bytes_of_group).fold(0, u64::saturating_add);
    groups.saturating_add(found.streams * STREAM_BYTES).saturating_add(found.leases * LEASE_BYTES)
}

/// Returns the maximum number of bytes that a consumer group can take in memory. Its first members are part of
/// [`GROUP_BYTES`].
fn bytes_of_group(group: &GroupObjects) -> u64 {
    let members = group.members.saturating_sub(FREE_MEMBERS as u64);
    GROUP_BYTES + members * MEMBER_BYTES + group.records * UNSETTLED_BYTES
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use thalweg_engine::{FetchRequest, Group, GroupStart, Options};
    use thalweg_types::{
        Attempt, Durability,
        command::groups::{GroupConfig, Redelivery, Settlement},
        record::RecordBatch,
    };

    use super::*;
    use crate::config::{ByteSize, Config, KNOBS};

    /// A database with a stream of records and two groups, and a bound of 1,000,000 bytes.
    struct Setting {
        _dir: tempfile::TempDir,
        db: Database,
        groups: [Group; 2],
        memory: Arc<ObjectMemory>,
        accounts: [Arc<Account>; 2],
    }

    impl Setting {
        fn new(records: u32) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let db = Database::open(dir.path(), Options::default()).unwrap();
            let stream = db.stream("s").unwrap();
            let mut batch = RecordBatch::new();
            (0..records).for_each(|_| batch.push_payload(b"x").unwrap());
            stream.append(&batch).unwrap();
            let group = |name| stream.create_group(name, GroupStart::Beginning, &GroupConfig::default()).unwrap().0;
            let groups = [group("greedy"), group("good")];
            let admission = Admission::new(&Config { max_object_bytes: ByteSize(1_000_000), ..Config::default() });
            let account = |last| admission.account(AddressKey::of(Ipv4Addr::new(127, 0, 0, last).into()));
            let (accounts, memory) = ([account(1), account(2)], ObjectMemory::new(&admission));
            Self { _dir: dir, db, groups, memory, accounts }
        }

        /// Prepares a fetch of the client `who` from its group, and requests its admission.
        fn admit(&self, who: usize, max_records: u32) -> Option<(ObjectRoom, PreparedFetch)> {
            self.admit_from(who, &self.groups[who], max_records)
        }

        fn admit_from(&self, who: usize, group: &Group, max_records: u32) -> Option<(ObjectRoom, PreparedFetch)> {
            let request = FetchRequest { max_records, ..FetchRequest::default() };
            let mut prepared = PreparedFetch::new(group, &request).unwrap();
            self.memory.count(&self.db, Duration::ZERO);
            let room = self.memory.admit_fetch(&self.db, &self.accounts[who], &mut prepared).unwrap()?;
            Some((room, prepared))
        }

        /// Fetches records without requesting admission. Returns the number of the delivery, and how many records it
        /// has.
        fn fetch(&self, who: usize, max_records: u32) -> (Attempt, u64) {
            let delivery = self.groups[who].fetch(&FetchRequest { max_records, ..FetchRequest::default() }).unwrap();
            (delivery.attempt, delivery.record_count())
        }
    }

    #[test]
    fn the_help_of_the_knob_states_the_bytes() {
        let knob = KNOBS.iter().find(|knob| knob.name == "max_object_bytes").unwrap();
        let stated = [STREAM_BYTES, GROUP_BYTES, MEMBER_BYTES, UNSETTLED_BYTES, LEASE_BYTES];
        for bytes in stated {
            assert!(knob.help.contains(&format!(" {bytes} ")), "{bytes}");
        }
        assert!(knob.help.contains("four members") && FREE_MEMBERS == 4);
    }

    #[test]
    fn requests_in_progress_and_what_the_state_has_count_together() {
        let setting = Setting::new(10);
        let (memory, db) = (&setting.memory, &setting.db);
        memory.count(db, Duration::ZERO);
        let before = memory.bound().used();
        assert_eq!(before, STREAM_BYTES + 2 * GROUP_BYTES);
        let room = memory.room(db, &setting.accounts[0], STREAM_BYTES).unwrap();
        assert_eq!(memory.bound().used(), before + STREAM_BYTES);
        db.stream("new").unwrap();
        drop(room);
        assert_eq!(memory.bound().used(), before + STREAM_BYTES, "before and after it is counted");
        memory.count(db, Duration::ZERO);
        assert_eq!(memory.bound().used(), before + STREAM_BYTES);
        assert!(memory.room(db, &setting.accounts[0], 1_000_000).is_none());
        assert_eq!(memory.bound().rejections(), 1);
    }

    #[test]
    fn a_group_that_holds_most_gets_no_new_records_and_others_do() {
        let setting = Setting::new(20_000);
        let mut held = Vec::new();
        while let Some((room, _)) = setting.admit(0, 100) {
            held.push(setting.fetch(0, 100));
            drop(room);
        }
        let records: u64 = held.iter().map(|(_, count)| count).sum();
        assert!((8_500..=9_000).contains(&records), "{records}: all but the reserve");
        let (room, prepared) = setting.admit(1, 50).expect("another group has room in the reserve");
        assert_eq!(prepared.new_records(), 50);
        drop(room);
        assert!(setting.memory.bound().rejections() > 0);
        // Acks free memory immediately.
        setting.groups[0].ack(&[Settlement::all(held[0].0)]).unwrap();
        let (_room, prepared) = setting.admit(0, 90).expect("room");
        assert_eq!(prepared.new_records(), 90);
    }

    #[test]
    fn an_address_with_many_small_groups_leaves_the_reserve_to_others() {
        let setting = Setting::new(2_000);
        let (stream, config) = (setting.db.stream("s").unwrap(), GroupConfig::default());
        let create = |number| stream.create_group(&format!("g{number}"), GroupStart::Beginning, &config).unwrap().0;
        let groups: Vec<Group> = (0..40).map(create).collect();
        for max_records in [1_000, 100, 1] {
            for group in &groups {
                while let Some((room, prepared)) = setting.admit_from(0, group, max_records)
                    && prepared.new_records() > 0
                {
                    group.fetch(&FetchRequest { max_records, ..FetchRequest::default() }).unwrap();
                    drop(room);
                }
            }
        }
        let free = setting.memory.bound().free();
        assert!((100_000..101_000).contains(&free), "{free} are free: the reserve");
        assert!(setting.memory.room(&setting.db, &setting.accounts[0], GROUP_BYTES).is_none(), "it has its share");
        let (room, prepared) = setting.admit(1, 200).expect("another address has room in the reserve");
        assert_eq!(prepared.new_records(), 200);
        drop(room);
        assert!(setting.memory.room(&setting.db, &setting.accounts[1], GROUP_BYTES).is_some());
    }

    #[test]
    fn at_the_bound_returned_records_are_delivered_again_and_no_new_ones() {
        let setting = Setting::new(20_000);
        let mut last = setting.fetch(0, 1000);
        for _ in 0..9 {
            last = setting.fetch(0, 1000);
        }
        assert!(setting.admit(0, 1000).is_none(), "all records are held");
        let group = &setting.groups[0];
        group.nack(&[Settlement::all(last.0)], Redelivery::After(Duration::ZERO), "").unwrap();
        let (room, prepared) = setting.admit(0, 2000).expect("a thousand records wait for redelivery");
        assert_eq!(prepared.new_records(), 0);
        assert!(setting.admit(0, 1000).is_none(), "the same records for another fetch");
        let fetched = setting.db.to_async().fetch_prepared(prepared, Durability::Os);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let delivery = runtime.block_on(fetched).unwrap().read().unwrap();
        assert_eq!(delivery.record_count(), 1000);
        room.finish();
        assert!(setting.memory.returned().is_empty());
        assert_eq!(group.info().unwrap().pending, 10_000, "none was added");
        assert!(setting.admit(0, 1000).is_none());
    }
}
