//! Every handle against a real server: each request gets the matching answer.

use std::{pin::pin, time::Duration};

use futures_util::StreamExt as _;
use thalweg_client::{Count, Order, Position, Put, ScanRange, Values, VersionState, types::*};
use thalweg_types::{
    command::{
        Deadline, Expect, ExpectedOffset, KeyspaceConfig, KeyspaceHistory, OperationResult, StreamConfig,
        TransactionBuilder,
        groups::{GroupConfig, Redelivery, Settlement},
    },
    record::{Record, RecordBatch},
};

use crate::node::Node;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn telemetry_counts_requests_while_it_is_on() {
    let node = Node::start().await;
    let client = node.client().await;
    let users = client.keyspace("users");
    users.create_if_missing(&KeyspaceConfig::default()).await.unwrap();
    users.put(b"a", b"1").await.unwrap();
    assert_eq!(client.telemetry(), Default::default(), "it is off by default");
    client.set_telemetry(true);
    for _ in 0..5 {
        users.put(b"a", b"2").await.unwrap();
        users.get(b"a").await.unwrap();
    }
    let absent = Put { expect: Some(Expect::Absent), ..Put::default() };
    assert!(users.put_with(b"a", b"3", absent).await.is_err());
    client.clone().set_telemetry(false);
    users.put(b"a", b"4").await.unwrap();
    let counted = client.telemetry();
    assert_eq!((counted.writes.succeeded.count(), counted.writes.failed), (5, 1), "{counted:?}");
    assert_eq!((counted.reads.succeeded.count(), counted.reads.failed), (5, 0), "{counted:?}");
    assert!(counted.writes.succeeded.sum > 5 * 1000, "a round trip takes more than a microsecond: {counted:?}");
    client.close().await;
    node.stop().await;
}

#[tokio::test]
async fn keyspaces() {
    let node = Node::start().await;
    let client = node.client().await;
    let history = KeyspaceHistory { revisions: Some(10), age: None };
    let users = client.keyspace("users");
    let config = KeyspaceConfig { exact_counts: true, history, ..KeyspaceConfig::default() };
    assert!(users.create_if_missing(&config).await.unwrap());
    assert!(!users.create_if_missing(&config).await.unwrap());

    let first = users.put(b"a", b"1").await.unwrap();
    let until = Put { deadline: Deadline::After(MINUTE), ..Put::default() };
    let second = users.put_with(b"a", b"2", until).await.unwrap();
    assert!(second > first);
    let now = users.get(b"a").await.unwrap().unwrap();
    assert_eq!((&now.value[..], now.revision, now.value_bytes), (&b"2"[..], second, 1));
    assert!(now.remaining.is_some_and(|left| left <= MINUTE && left > MINUTE / 2));
    let then = users.get_at(b"a", first, Values::Include).await.unwrap().unwrap();
    assert_eq!((&then.value[..], then.remaining), (&b"1"[..], None));
    let bare = users.get_at(b"a", Revision(0), Values::Omit).await.unwrap().unwrap();
    assert_eq!((bare.value.len(), bare.value_bytes), (0, 1));
    assert!(users.touch(b"a", Deadline::Never).await.unwrap());
    assert!(!users.touch(b"none", Deadline::Never).await.unwrap());
    assert_eq!(users.get(b"a").await.unwrap().unwrap().remaining, None);

    let versions = users.versions(b"a", Revision(0), 10).await.unwrap();
    let states: Vec<_> = versions.versions.iter().map(|version| (version.state, &version.value[..])).collect();
    assert_eq!(states, [(VersionState::Current, &b"2"[..]), (VersionState::Overwritten, b"1")]);

    assert_eq!(users.add(b"n", 5).await.unwrap(), 5);
    assert_eq!(users.add(b"n", -7).await.unwrap(), -2);
    let many = users.get_many(&[b"n", b"none", b"a"]).await.unwrap();
    let values: Vec<_> = many.iter().map(|value| value.as_ref().map(|value| &value.value[..])).collect();
    assert_eq!(values, [Some(&b"-2"[..]), None, Some(b"2")]);

    let absent = Put { expect: Some(Expect::Absent), ..Put::default() };
    let error = users.put_with(b"a", b"3", absent).await.unwrap_err();
    assert!(error.is("condition_failed"), "{error}");
    assert_eq!(error.failure().unwrap().detail("revision"), Some(second.0));
    assert!(users.delete_if(b"a", Expect::Value(b"other")).await.unwrap_err().is("condition_failed"));
    users.delete_if(b"a", Expect::Value(b"2")).await.unwrap();
    assert_eq!(users.get(b"a").await.unwrap(), None);

    for key in 0..25_u8 {
        users.put(&[b'k', key], &[key]).await.unwrap();
    }
    let range = ScanRange { prefix: b"k".to_vec(), page: 10, order: Order::Descending, ..ScanRange::default() };
    let pairs = users.scan(range).collect(1000).await.unwrap();
    assert!(pairs.iter().map(|pair| pair.value[0]).eq((0..25).rev()));
    let (info, counts) = users.describe(Count::Estimate).await.unwrap();
    assert_eq!((info.name.as_str(), counts.map(|counts| (counts.keys, counts.exact))), ("users", Some((26, true))));
    users.delete_prefix(b"k").await.unwrap();
    assert_eq!(users.scan(ScanRange::default()).collect(10).await.unwrap().len(), 1);

    let id = users.id().await.unwrap();
    let mut transaction = TransactionBuilder::new();
    transaction.expect(id, b"n", Expect::Value(b"0")).unwrap();
    transaction.then().delete(id, b"n").unwrap();
    transaction.otherwise().get(id, b"n").unwrap().put(id, b"n", b"0").unwrap();
    let done = client.transact(&transaction).await.unwrap();
    assert_eq!((done.wrote, done.failed.map(|failed| failed.condition)), (true, Some(0)));
    assert!(matches!(&done.results[..], [OperationResult::Got(Some(got)), OperationResult::Put] if got.value == "-2"));

    assert!(client.keyspaces(KeyspaceId(0), 100).await.unwrap().0.iter().any(|info| info.name == "users"));
    // Another client drops the keyspace and creates it again: the handle finds the new one.
    let other = node.client().await.keyspace("users");
    other.drop_keyspace().await.unwrap();
    assert!(users.get(b"n").await.unwrap_err().is("no_such_keyspace"));
    other.create_if_missing(&KeyspaceConfig::default()).await.unwrap();
    assert_eq!(users.get(b"n").await.unwrap(), None);
    node.stop().await;
}

#[tokio::test]
async fn leases() {
    let node = Node::start().await;
    let client = node.client().await;
    let locks = client.keyspace("locks");
    locks.create_if_missing(&KeyspaceConfig::default()).await.unwrap();
    let lease = client.grant_lease(MINUTE, Some(LeaseId(77))).await.unwrap();
    assert_eq!(lease.id(), LeaseId(77));
    locks.put_with(b"a", b"mine", Put { lease: Some(lease.id()), ..Put::default() }).await.unwrap();
    assert_eq!(locks.get(b"a").await.unwrap().unwrap().lease, Some(LeaseId(77)));
    assert_eq!(lease.keep_alive().await.unwrap(), MINUTE);
    let (info, keys) = lease.describe(10).await.unwrap();
    assert_eq!((info.ttl, keys), (MINUTE, vec![("locks".to_owned(), "a".into())]));
    let (leases, more) = client.leases(LeaseId(0), 10).await.unwrap();
    assert_eq!((leases.len(), leases[0].id, more), (1, LeaseId(77), false));
    lease.revoke().await.unwrap();
    assert_eq!(locks.get(b"a").await.unwrap(), None);
    assert!(lease.keep_alive().await.unwrap_err().is("no_such_lease"));
    node.stop().await;
}

#[tokio::test]
async fn streams_and_groups() {
    let node = Node::start().await;
    let client = node.client().await;
    let stream = client.stream("s");
    assert!(stream.describe().await.unwrap_err().is("no_such_stream"));
    stream.create_if_missing(&StreamConfig::default()).await.unwrap();
    let record = Record { key: Some(b"k"), headers: vec![("h", b"v")], payload: b"zero", ..Record::default() };
    assert_eq!(stream.append(&record).await.unwrap().first, Offset(0));
    let mut batch = RecordBatch::new();
    (1..10_u8).for_each(|payload| batch.push_payload(&[payload]).unwrap());
    let appended = stream.append_batch(&batch, ExpectedOffset::Exact(Offset(1))).await.unwrap();
    assert_eq!((appended.first, appended.count, appended.duplicate), (Offset(1), 9, false));
    let error = stream.append_batch(&batch, ExpectedOffset::Exact(Offset(1))).await.unwrap_err();
    assert_eq!(error.failure().unwrap().detail("next"), Some(10), "{error}");

    let records = stream.read(Position::Start {}, 4, 0).await.unwrap();
    assert_eq!((records.len(), records.next, records.offsets()), (4, Offset(4), Some((Offset(0), Offset(3)))));
    let first = records.owned().next().unwrap();
    assert_eq!((first.key.as_deref(), &first.headers[..]), (Some(&b"k"[..]), &[("h".to_owned(), "v".into())][..]));
    assert_eq!(stream.read(Position::Last { records: 2 }, 0, 0).await.unwrap().len(), 2);
    assert!(stream.read(Position::End {}, 0, 0).await.unwrap().is_empty());
    assert_eq!(stream.find_offset(first.time).await.unwrap(), Offset(0));
    assert_eq!(stream.open_producer("p").await.unwrap(), stream.producers(Some("p")).await.unwrap()[0].epoch);
    stream.trim(Offset(2)).await.unwrap();
    let info = stream.describe().await.unwrap();
    assert_eq!((info.start, info.next), (Offset(2), Offset(10)));
    assert_eq!(client.streams(StreamId(0), 10).await.unwrap().0, [info]);

    let group = stream.group("g").await.unwrap();
    group.create_if_missing(Some(Offset(2)), &GroupConfig::default()).await.unwrap();
    let mut delivery = group.fetch("m", 5, 1 << 20, Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(delivery.records.offsets(), Some((Offset(2), Offset(6))));
    let before = delivery.deadline;
    delivery.extend(Duration::from_secs(3000)).await.unwrap();
    assert!(delivery.deadline > before);
    assert_eq!(delivery.ack_one(Offset(2)).await.unwrap().settled, 1);
    assert_eq!(delivery.nack(Redelivery::Uncounted, "").await.unwrap().settled, 4);
    let settled = group.ack(&[Settlement::one(delivery.attempt, Offset(2))]).await.unwrap();
    assert_eq!((settled.settled, settled.lapsed.len()), (0, 1));
    let again = group.fetch("m", 100, 1 << 20, Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(again.records.len(), 7);
    assert_eq!(again.ack().await.unwrap().settled, 7);
    assert!(group.fetch("m", 1, 1000, Duration::from_millis(5)).await.unwrap().is_none());
    let info = group.describe().await.unwrap();
    assert_eq!((info.floor, info.lag, info.pending, info.members.len()), (Offset(10), 0, 0, 1));
    assert_eq!(group.seek(Some(Offset(9))).await.unwrap(), Offset(9));
    let mut pushes = group.push(thalweg_client::PushOptions::member("n")).await.unwrap();
    assert_eq!(pushes.next().await.unwrap().unwrap().records.offsets(), Some((Offset(9), Offset(9))));
    drop(pushes);
    let all = client.groups(StreamId(0), GroupId(0), 10).await.unwrap().0;
    assert_eq!(all.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["g"]);
    group.delete().await.unwrap();
    assert!(group.describe().await.unwrap_err().is("no_such_group"));
    stream.delete().await.unwrap();
    assert!(stream.append(&record).await.unwrap_err().is("no_such_stream"));
    node.stop().await;
}

#[tokio::test]
async fn levels_and_the_node() {
    let node = Node::start().await;
    let client = node.client().await;
    assert!(client.ping().await.unwrap() < Duration::from_secs(5));
    let status = client.status().await.unwrap();
    assert_eq!(status.health, thalweg_client::Health::Good);
    let server = client.server().unwrap();
    assert_eq!(status.node, server.node);
    assert!(server.version.ends_with(&status.version), "{server:?}");
    let keyspace = client.keyspace("k");
    keyspace.create_if_missing(&KeyspaceConfig::default()).await.unwrap();
    let id = keyspace.id().await.unwrap();
    let mut commit = thalweg_types::command::CommitBuilder::new();
    commit.put(id, b"k", b"v").unwrap();
    for level in Durability::ALL {
        let done = client.durability(level).commit(&commit).await.unwrap();
        assert!(done.durability >= level);
        assert_eq!(done.revision == Revision(0), level == Durability::None);
    }
    client.close().await;
    node.stop().await;
}

#[tokio::test]
async fn subscriptions_are_streams() {
    let node = Node::start().await;
    let client = node.client().await;
    let stream = client.stream("s");
    stream.create_if_missing(&StreamConfig::default()).await.unwrap();
    for payload in [b"a", b"b"] {
        stream.append(&Record { payload, ..Record::default() }).await.unwrap();
    }
    let tail = stream.tail(Position::Start {}).await.unwrap().into_stream();
    let read: Vec<_> = tail.take(2).map(|record| record.unwrap().payload).collect().await;
    assert_eq!(read, ["a", "b"]);

    let group = stream.group("g").await.unwrap();
    group.create_if_missing(Some(Offset(0)), &GroupConfig::default()).await.unwrap();
    let mut pushes = pin!(group.push(thalweg_client::PushOptions::member("m")).await.unwrap().into_stream());
    assert_eq!(pushes.next().await.unwrap().unwrap().records.len(), 2);

    let mut messages = pin!(client.subscribe("news.*").await.unwrap().into_stream());
    client.publish("news.local", b"first").await.unwrap();
    client.publish("news.world", b"second").await.unwrap();
    for wanted in ["first", "second"] {
        assert_eq!(messages.next().await.unwrap().unwrap().payload, wanted);
    }

    // Each subscription reports a permanent end.
    stream.delete().await.unwrap();
    let error = pushes.next().await.unwrap().unwrap_err();
    assert!(error.is("no_such_group") || error.is("no_such_stream"), "{error}");
    node.stop().await;
}

#[tokio::test]
async fn failures_state_the_name_of_their_request() {
    let node = Node::start().await;
    let client = node.client().await;
    client.keyspace("users").create_if_missing(&KeyspaceConfig::default()).await.unwrap();
    let failure = async |client: &thalweg_client::Client| {
        let error = client.keyspace("users").delete_if(b"a", Expect::Value(b"other")).await.unwrap_err();
        let thalweg_client::Error::Failed(failure) = error else { panic!("{error}") };
        *failure
    };
    let named = failure(&client.trace("job-7")).await;
    assert_eq!((named.code.as_str(), named.trace.as_deref()), ("condition_failed", Some("job-7")));
    assert!(named.to_string().contains("request job-7"), "{named}");
    assert_eq!(failure(&client).await.trace, None);
    assert_eq!(failure(&client.trace("job-7").trace("")).await.trace, None, "an empty name is none");
}
