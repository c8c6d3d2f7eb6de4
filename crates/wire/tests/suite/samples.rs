//! Sample frames of each kind, with distinguishable values.

use std::time::Duration;

use thalweg_types::{
    Action, Attempt, Durability, GroupId, KeyspaceId, LeaseId, NodeId, Offset, ReadLevel, Revision, SpaceId, SpaceTime,
    StreamId,
    command::{
        KeyspaceConfig, StreamConfig, encode_put,
        groups::{GroupConfig, GroupOrder},
    },
    record::{Record, RecordBatch},
};
use thalweg_wire::*;

const TIME: SpaceTime = SpaceTime(1_795_168_800_000_000);

/// Encodes a batch of two messages.
pub fn batch() -> Vec<u8> {
    let mut writer = BatchWriter::new(b"orders.eu", b"answers.7").unwrap();
    writer.push_payload(b"first").unwrap();
    let headers = vec![("type", &b"order"[..])];
    writer.push(&Record { key: Some(b"k1"), headers, payload: b"second", is_tombstone: false }).unwrap();
    writer.encoded(Checksum::Crc32c).unwrap().to_vec()
}

fn show<'a, F: Frame<'a> + std::fmt::Debug>(
    see: &mut dyn FnMut(Kind, String, Vec<u8>),
    id: u32,
    fields: &Fields<'_>,
    frame: &F,
) {
    let mut bytes = Vec::new();
    frame.encode_with(&mut bytes, id, fields).unwrap();
    let shown = if *fields == Fields::default() { String::new() } else { format!(" {fields:?}") };
    see(F::KIND, format!("id {id}{shown} {frame:?}"), bytes);
}

/// Passes each sample to `see`: its kind, its contents as text, and its bytes.
#[allow(clippy::too_many_lines, reason = "a list")]
pub fn each(see: &mut dyn FnMut(Kind, String, Vec<u8>)) {
    let plain = Fields::default();
    let all = Fields {
        trace: Some("t-1"),
        timeout_micros: Some(5_000_000),
        limit: Some(10),
        read: Some(ReadLevel::AtLeast(Revision(7))),
        route: Some(Route::Redirect),
        leader: None,
        cluster: None,
        space: Some(SpaceId(0)),
    };
    let batch = batch();
    let mut records = RecordBatch::new();
    records.push_payload(b"record").unwrap();
    let mut command = Vec::new();
    encode_put(&mut command, KeyspaceId(1), b"key", b"value").unwrap();
    let durability = Durability::Disk;
    let (keyspace, stream, group) = (KeyspaceId(1), StreamId(2), GroupId(3));
    let (lease, attempt) = (LeaseId(9), Attempt(1_795_168_800_000_001));
    let permit = Permit { messages: 1000, bytes: 1 << 20 };
    let appended = Appended { stream, first: Offset(40), count: 2 };
    let details = [Detail { name: "next", value: 42 }];

    macro_rules! sample {
        ($id:expr, $frame:expr) => {
            show(see, $id, &plain, &$frame)
        };
    }

    sample!(
        0,
        Hello {
            magic: Magic,
            min_version: 1,
            max_version: 1,
            max_frame_bytes: 1 << 20,
            keep_alive_millis: 30_000,
            name: "tests",
            features: List::Items(&[7]),
        }
    );
    sample!(
        0,
        Welcome {
            version: 1,
            max_frame_bytes: 1 << 24,
            keep_alive_millis: 10_000,
            max_requests: 1024,
            max_subscriptions: 4096,
            durability,
            node: NodeId(0x0102_0304),
            run: 5,
            server: "thalweg 0.1.0",
            features: List::default(),
            spaces: List::Items(&[Space { id: SpaceId(0), name: "default" }]),
        }
    );
    let goodbye =
        |reason| Goodbye { reason, class: Action::Retry, min_version: 1, max_version: 1, message: "restarting" };
    sample!(0, goodbye(Reason::Stopping));
    sample!(0, goodbye(Reason::Other(300)));
    sample!(0, Ping { token: 77 });
    sample!(0, Pong { token: 77 });
    sample!(8, Cancel { mode: CancelMode::Drain });
    sample!(8, Credit { messages: 1500, bytes: 3 << 19 });
    sample!(
        7,
        Failed {
            class: Action::Fix,
            effect: Effect::Nothing,
            shown: Level(Some(Durability::Os)),
            code: "offset_conflict",
            message: "the stream's next offset is 42, not the expected one",
            details: List::Items(&details),
        }
    );
    sample!(
        8,
        Ended {
            class: Action::Retry,
            code: "stopping",
            message: "the server is stopping",
            details: List::Items(&details),
        }
    );

    show(see, 1, &all, &Write { level: Level(Some(Durability::Quorum)), command: RemainingBytes(&command) });
    sample!(0, Write { level: Level(None), command: RemainingBytes(&command) });
    sample!(
        1,
        WriteAndPublish { level: Level(None), batches: List::Items(&[&batch]), command: RemainingBytes(&command) }
    );
    sample!(1, Get { keyspace, revision: Revision(0), values: Values::Include, key: RemainingBytes(b"key") });
    let keys: [&[u8]; 2] = [b"a", b""];
    sample!(1, MultiGet { keyspace, revision: Revision(17), values: Values::Omit, keys: List::Items(&keys) });
    sample!(
        1,
        Scan {
            keyspace,
            revision: Revision(0),
            limit: 100,
            max_bytes: 1 << 16,
            order: Order::Descending,
            values: Values::Include,
            prefix: b"p",
            start: Some(b"pa"),
            end: None,
            cursor: b"",
        }
    );
    sample!(1, Versions { keyspace, before: Revision(20), limit: 10, key: RemainingBytes(b"key") });
    sample!(1, FindKeyspace { count: Count::Estimate, name: "users" });
    sample!(1, ListKeyspaces { after: keyspace, limit: 50 });
    sample!(1, FindLease { lease, limit: 100 });
    sample!(1, ListLeases { after: lease, limit: 100 });
    sample!(
        1,
        Committed {
            durability,
            duplicate: true,
            revision: Revision(18),
            appends: List::Items(std::slice::from_ref(&appended))
        }
    );
    let pairs = [
        ScannedPair { revision: Revision(3), key: b"a", value: Some(b"1") },
        ScannedPair { revision: Revision(4), key: b"b", value: None },
    ];
    sample!(
        1,
        Transacted {
            durability,
            wrote: true,
            revision: Revision(19),
            failed: Some(FailedCondition { condition: 0, revision: Revision(17) }),
            results: List::Items(&[
                OperationResult::Put {},
                OperationResult::Deleted { existed: true },
                OperationResult::Appended { at: appended },
                OperationResult::Added { value: -7 },
                OperationResult::Touched { existed: false },
                OperationResult::PrefixDeleted { keys: Some(5) },
                OperationResult::Settled { records: 6 },
                OperationResult::Got { revision: Revision(3), value: b"1" },
                OperationResult::Scanned { after: Some(b"b"), pairs: List::Items(&pairs) },
            ]),
        }
    );
    sample!(1, Done { durability, revision: Revision(20) });
    sample!(1, Created { durability, created: true, id: 4 });
    sample!(1, Granted { durability, lease, ttl: 30_000_000, deadline: TIME });
    sample!(1, ProducerOpened { durability, epoch: 2 });
    let lapsed = [Lapsed { attempt, first: Offset(5), count: 0 }];
    sample!(1, Settled { durability, settled: 99, lapsed: List::Items(&lapsed) });
    sample!(1, Extended { durability, deadline: TIME, lapsed: List::Items(&[attempt]) });
    sample!(1, Sought { durability, cursor: Offset(42) });
    sample!(
        1,
        Value {
            durability,
            revision: Revision(17),
            remaining: u64::MAX,
            lease: LeaseId(0),
            value_bytes: 5,
            value: RemainingBytes(b"value"),
        }
    );
    sample!(
        1,
        Entries {
            durability,
            entries: List::Items(&[
                Entry { revision: Revision(17), remaining: 1_000_000, lease, value_bytes: 1, value: b"1" },
                Entry { revision: Revision(0), remaining: u64::MAX, lease: LeaseId(0), value_bytes: 0, value: b"" },
            ]),
        }
    );
    sample!(
        1,
        Pairs {
            durability,
            revision: Revision(17),
            cursor: b"opaque",
            pairs: List::Items(&[Pair { revision: Revision(3), key: b"a", value: b"1" }]),
        }
    );
    let version = Version {
        state: VersionState::Overwritten,
        revision: Revision(3),
        until: Revision(5),
        until_time: TIME,
        value: b"old",
    };
    sample!(1, VersionList { durability, oldest: Revision(1), next: Revision(0), versions: List::Items(&[version]) });
    let config =
        KeyspaceConfig { exact_counts: true, default_ttl: Some(Duration::from_secs(60)), ..KeyspaceConfig::default() };
    let found = Keyspace { id: keyspace, created: TIME, config, name: "users".into() };
    let counts = KeyspaceCounts { keys: 10, bytes: 200, exact: true, sweeping: false };
    sample!(1, KeyspaceFound { keyspace: found.clone(), counts: Some(counts) });
    sample!(1, KeyspaceList { more: false, keyspaces: List::Items(&[found]) });
    let info = Lease { id: lease, ttl: 30_000_000, deadline: TIME, remaining: 20_000_000, keys: 1 };
    let lease_keys = [LeaseKey { keyspace: "users", key: b"ada" }];
    sample!(1, LeaseFound { durability, lease: info.clone(), more: false, keys: List::Items(&lease_keys) });
    sample!(1, LeaseList { durability, more: true, leases: List::Items(&[info]) });

    sample!(2, Read { stream, from: Position::Start {}, max_records: 100, max_bytes: 1 << 20 });
    sample!(2, Read { stream, from: Position::Last { records: 10 }, max_records: 0, max_bytes: 0 });
    show(see, 2, &all, &Tail { stream, from: Position::Offset { offset: Offset(42) }, permit: permit.clone() });
    sample!(2, FindStream { name: "events" });
    sample!(2, ListStreams { after: stream, limit: 1000 });
    sample!(2, FindOffset { stream, time: TIME });
    sample!(2, ListProducers { stream, producer: "p-1" });
    let runs = [RecordRun { first: Offset(40), time: TIME, count: 1, records: records.bytes() }];
    let (next, high_watermark) = (Offset(41), Offset(50));
    sample!(2, Records { durability, next, high_watermark, runs: List::Items(&runs) });
    sample!(2, Tailing { next, high_watermark });
    sample!(2, Tailed { durability, next, high_watermark, runs: List::Items(&runs) });
    let config = StreamConfig { max_bytes: Some(1 << 30), ..StreamConfig::default() };
    let found =
        Stream { id: stream, start: Offset(0), next, bytes: 500, last_time: TIME, config, name: "events".into() };
    sample!(2, StreamFound { stream: found.clone() });
    sample!(2, StreamList { more: true, streams: List::Items(&[found]) });
    sample!(2, OffsetFound { offset: Offset(41) });
    let producer = Producer { epoch: 1, next_sequence: 12, last_time: TIME, id: "p-1".into() };
    sample!(2, ProducerList { producers: List::Items(&[producer]) });

    sample!(3, Fetch { group, max_records: 100, max_bytes: 4 << 20, wait: 1_000_000, level: Level(None), member: "m" });
    sample!(
        3,
        Push {
            group,
            held_records: 100,
            held_bytes: 4 << 20,
            level: Level(Some(durability)),
            release: Release::AtOnce,
            permit: permit.clone(),
            member: "m",
        }
    );
    sample!(3, FindGroup { stream, name: "workers" });
    sample!(3, ListGroups { stream: StreamId(0), after: group, limit: 10 });
    let parts = [DeliveryPart { deliveries: 2, runs: List::Items(&runs) }];
    sample!(3, Delivery { durability, attempt, deadline: TIME, parts: List::Items(&parts) });
    sample!(3, Pushed { durability, attempt, deadline: TIME, parts: List::Items(&parts) });
    sample!(3, Pushing { held_records: 100, held_bytes: 4 << 20 });
    let config = GroupConfig {
        order: GroupOrder::PerKey,
        max_deliveries: Some(5),
        dead_letters: Some("dead".to_owned()),
        ..GroupConfig::default()
    };
    let members = vec![Member { last_fetch: TIME, in_flight: 1, attempts: 1, name: "m".into() }];
    let found = Group {
        id: group,
        stream,
        cursor: Offset(41),
        floor: Offset(40),
        lag: 9,
        pending: 4,
        in_flight: 3,
        parked: 2,
        dying: 1,
        delivered: 50,
        redelivered: 5,
        acked: 40,
        dead: 6,
        dropped: 7,
        config,
        name: "workers".into(),
        stream_name: "events".into(),
        members,
    };
    sample!(3, GroupFound { group: found.clone() });
    sample!(3, GroupList { more: false, groups: List::Items(&[found]) });

    let watch = |keys| Watch { keyspace, from: Revision(17), permit: permit.clone(), keys };
    sample!(4, watch(WatchKeys::Key { key: b"ada" }));
    sample!(4, watch(WatchKeys::Prefix { prefix: b"" }));
    sample!(4, watch(WatchKeys::Range { start: Some(b"a"), end: None }));
    sample!(4, Watching { next: Revision(17) });
    let changes = [
        Change { kind: ChangeKind::Put, revision: Revision(17), time: TIME, key: b"ada", value: b"1815" },
        Change { kind: ChangeKind::Expire, revision: Revision(18), time: TIME, key: b"ada", value: b"" },
    ];
    sample!(4, Changes { durability, next: Revision(19), changes: List::Items(&changes) });

    sample!(5, Publish { batches: List::Items(&[&batch]) });
    sample!(
        5,
        Subscribe {
            policy: Policy::DropOld,
            queue_messages: 10_000,
            queue_bytes: 8 << 20,
            permit,
            pattern: ShortBytes(b"orders.*"),
            queue: ShortBytes(b""),
        }
    );
    sample!(5, Ask { batch: RemainingBytes(&batch) });
    sample!(5, Published { delivered: 20, missed: 3 });
    sample!(5, Subscribed { queue_messages: 10_000, queue_bytes: 8 << 20 });
    sample!(5, Answer { batch: RemainingBytes(&batch) });
    sample!(0, Deliver { subscriptions: List::Items(&[5, 6]), batch: RemainingBytes(&batch) });
    sample!(5, Dropped { messages: 128 });

    sample!(6, CacheGet { cache: 1, key: RemainingBytes(b"key") });
    let (expect, ttl) = (CacheExpect::Version { version: 3 }, CacheTtl::After { micros: 60_000_000 });
    sample!(
        6,
        CachePut { cache: 1, expect: expect.clone(), ttl: ttl.clone(), key: b"key", value: RemainingBytes(b"value") }
    );
    sample!(6, CacheDelete { cache: 1, expect, key: RemainingBytes(b"key") });
    sample!(6, CacheTouch { cache: 1, ttl: CacheTtl::Never {}, key: RemainingBytes(b"key") });
    sample!(6, CacheAdd { cache: 1, delta: -1, ttl: CacheTtl::Keep {}, key: RemainingBytes(b"count") });
    sample!(6, CacheMultiGet { cache: 1, keys: List::Items(&keys) });
    sample!(6, OpenCache { create: CacheCreate::IfMissing, max_bytes: 1 << 28, name: "pages" });
    sample!(6, ReadCacheStats { cache: 0 });
    sample!(6, CacheValue { version: 3, remaining: 59_000_000, value: RemainingBytes(b"value") });
    let entries = [CacheEntry { version: 3, remaining: u64::MAX, value: b"value" }];
    sample!(6, CacheEntries { entries: List::Items(&entries) });
    sample!(6, CacheStored { version: 4 });
    sample!(6, CacheDone { existed: true });
    sample!(6, CacheCounter { value: -1 });
    sample!(6, CacheKeys { cursor: Some(99), keys: List::Items(&keys) });
    let pairs = [CachePair { key: b"a", value: b"1" }];
    sample!(6, CacheMultiPut { cache: 1, ttl, pairs: List::Items(&pairs) });
    sample!(6, CacheScan { cache: 1, cursor: None, limit: 1000 });
    sample!(6, CacheClear { cache: 1 });
    sample!(6, DropCache { cache: 1 });
    let value = CacheExpect::Value { value: b"old" };
    sample!(
        6,
        CachePut { cache: 1, expect: value, ttl: CacheTtl::Keep {}, key: b"key", value: RemainingBytes(b"new") }
    );
    sample!(6, CacheOpened { cache: 1, created: true, max_bytes: 1 << 28 });
    let figures = CacheFigures {
        cache: 1,
        entries: 2,
        bytes: 300,
        max_bytes: 1 << 28,
        hits: 4,
        misses: 5,
        puts: 8,
        deletes: 9,
        evictions: 6,
        expirations: 7,
        name: "pages".into(),
    };
    sample!(6, CacheStats { caches: List::Items(&[figures]) });

    sample!(7, ReadStatus {});
    sample!(
        7,
        Status {
            health: Health::Good,
            durability,
            node: NodeId(0x0102_0304),
            uptime: 5_000_000,
            space_time: TIME,
            version: "0.1.0",
            backend: "lsm",
            reason: "",
            figures: List::Items(&[Figure { name: "log.segments", value: 12 }]),
        }
    );
    sample!(7, ReadMembers {});
    let [name, zone, address] = ["n1", "east", "db1:7071"].map(str::to_owned);
    let member =
        ClusterMember { node: NodeId(9), role: MemberRole::Voter, health: MemberHealth::Suspect, name, zone, address };
    sample!(7, Members { node: NodeId(8), leader: NodeId(9), term: 5, members: List::Items(&[member]) });
    let permit = Permit { messages: 1000, bytes: 1 << 20 };
    sample!(7, WatchCluster { after: None, run: None, permit: permit.clone() });
    sample!(7, WatchCluster { after: Some(41), run: Some(77), permit });
    sample!(7, WatchingCluster { after: 41, run: 77, known: true });
    let unix_micros = 1_795_168_800_000_000;
    let events = [
        ClusterEvent { sequence: 45, unix_micros, node: NodeId(9), term: 6, event: "leader", name: "n1" },
        ClusterEvent { sequence: 46, unix_micros, node: NodeId(8), term: 0, event: "down", name: "" },
    ];
    sample!(7, ClusterEvents { missed: 3, events: List::Items(&events) });
}
