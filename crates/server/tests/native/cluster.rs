//! Native clients of a node of a cluster: read levels in requests, and barriers of pipelined reads.

use std::sync::Arc;

use thalweg_server::{
    Config,
    cluster::{ClusterError, Event},
    config::ByteSize,
};
use thalweg_types::{
    Action, Durability, GroupId, KeyspaceId, NodeId, ReadLevel, Revision, Term,
    command::{TransactionBuilder, encode_put},
};
use thalweg_wire::{
    Cancel, CancelMode, Credit, Fetch, Fields, Get, Header, Kind, Level, MemberHealth, MemberRole, Permit, Push,
    ReadMembers, Release, RemainingBytes, Route, ServerFrame, Values, WatchCluster, Write,
    handshake::{FEATURE_CLUSTER, hello},
};

use crate::{
    expect,
    groups::{ack, group, offsets},
    support::{
        Node,
        cluster::{Barriers, FakeCluster},
        eventually,
        native::{Raw, UNLIMITED},
    },
};

struct Tested {
    node: Node,
    cluster: Arc<FakeCluster>,
    raw: Raw,
    keyspace: KeyspaceId,
}

impl Tested {
    async fn start() -> Self {
        Self::with(|_| ()).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let (cluster, handle, _) = FakeCluster::new();
        let node = Node::in_cluster(handle, change).await;
        let mut raw = node.raw().await;
        let keyspace = raw.keyspace("k").await;
        raw.set(keyspace, b"a", b"value").await;
        Self { node, cluster, raw, keyspace }
    }

    fn put_get(&mut self, id: u32, read: Option<ReadLevel>, timeout_micros: Option<u64>) {
        let get =
            Get { keyspace: self.keyspace, revision: Revision(0), values: Values::Include, key: RemainingBytes(b"a") };
        self.raw.put_with(id, &Fields { read, timeout_micros, ..Fields::default() }, &get);
    }

    async fn value(&mut self, id: u32) {
        expect!(self.raw, id, ServerFrame::Value(value) => assert_eq!(value.value.0, b"value"));
    }
}

#[tokio::test]
async fn pipelined_reads_wait_for_one_barrier() {
    let mut tested = Tested::start().await;
    let before = tested.cluster.begun();
    tested.cluster.set(Barriers::Closed);
    for id in 1..=3 {
        tested.put_get(id, None, None);
    }
    tested.raw.flush().await;
    tested.cluster.until_begun(before + 1).await;
    tested.cluster.set(Barriers::Open);
    for id in 1..=3 {
        tested.value(id).await;
    }
    assert_eq!(tested.cluster.begun(), before + 1);
    tested.node.stop().await;
}

#[tokio::test]
async fn a_frame_that_was_passed_over_covers_no_later_read() {
    let bound = ByteSize(1 << 20);
    let mut tested =
        Tested::with(|config| (config.max_body_bytes, config.max_body_bytes_in_flight) = (bound, bound)).await;
    let (before, keyspace) = (tested.cluster.begun(), tested.keyspace);
    tested.cluster.set(Barriers::Closed);
    tested.put_get(1, None, None);
    tested.raw.put_command(2, Durability::Os, |out| encode_put(out, keyspace, b"b", &vec![1; 2 << 20]).unwrap());
    let cluster = Arc::clone(&tested.cluster);
    let opened = async move {
        cluster.until_begun(before + 1).await;
        cluster.set(Barriers::Open);
    };
    tokio::join!(tested.raw.flush(), opened);
    tested.value(1).await;
    assert_eq!(tested.raw.fails(2).await, "overloaded");
    // This read arrives after the barrier of the first one began, so it needs another one.
    tested.cluster.set(Barriers::Closed);
    tested.put_get(3, None, None);
    tested.raw.flush().await;
    tested.cluster.until_begun(before + 2).await;
    tested.cluster.set(Barriers::Open);
    tested.value(3).await;
    tested.node.stop().await;
}

#[tokio::test]
async fn the_error_of_a_barrier_is_that_of_one_read_only() {
    let mut tested = Tested::start().await;
    tested.cluster.set(Barriers::Failing(ClusterError::NoLeader));
    // A `get` without the key's keyspace does not decode.
    tested.raw.bytes(&Header { len: 1, kind: Kind::Get as u16, fields: 0, id: 1 }.encode()).await;
    tested.raw.bytes(b"x").await;
    assert_eq!(tested.raw.fails(1).await, "malformed_frame");
    tested.raw.set(tested.keyspace, b"b", b"v").await;
    tested.node.stop().await;
}

#[tokio::test]
async fn each_request_may_state_its_level() {
    let mut tested = Tested::start().await;
    tested.cluster.set(Barriers::Closed);
    let before = tested.cluster.begun();
    for (id, level) in [(1, ReadLevel::Stale), (2, ReadLevel::AtLeast(Revision(7)))] {
        tested.put_get(id, Some(level), None);
        tested.raw.flush().await;
        tested.value(id).await;
    }
    assert_eq!(tested.cluster.begun(), before, "the state has revision 7");
    tested.put_get(3, Some(ReadLevel::AtLeast(Revision(8))), Some(1000));
    tested.raw.flush().await;
    let failed = expect!(tested.raw, 3, ServerFrame::Failed(failed) => {
        assert_eq!(failed.detail("applied"), Some(7));
        failed.code.to_owned()
    });
    assert_eq!(failed, "revision_not_reached");
    tested.put_get(4, None, Some(1000));
    tested.raw.flush().await;
    assert_eq!(tested.raw.fails(4).await, "read_timeout");
    tested.put_get(5, Some(ReadLevel::Stale), None);
    tested.raw.flush().await;
    tested.value(5).await;
    tested.node.stop().await;
}

#[tokio::test]
async fn writes_need_no_barrier_and_names_need_one_where_they_may_be_missing() {
    let mut tested = Tested::start().await;
    tested.cluster.set(Barriers::Failing(ClusterError::NoLeader));
    tested.put_get(1, None, None);
    tested.raw.flush().await;
    assert_eq!(tested.raw.fails(1).await, "no_leader");
    tested.raw.set(tested.keyspace, b"b", b"v").await;
    let fetch = Fetch {
        group: thalweg_types::GroupId(77),
        member: "m",
        max_records: 1,
        max_bytes: 0,
        wait: 0,
        level: thalweg_wire::Level(None),
    };
    // A leader may have been replaced without knowing it.
    tested.raw.send(3, &fetch).await;
    assert_eq!(tested.raw.fails(3).await, "no_leader");
    tested.cluster.set(Barriers::Open);
    tested.raw.send(4, &fetch).await;
    assert_eq!(tested.raw.fails(4).await, "no_such_group");
    tested.cluster.set(Barriers::Failing(ClusterError::NoLeader));
    tested.cluster.change(|report| report.leader = Some(NodeId(2)));
    tested.raw.send(5, &fetch).await;
    assert_eq!(tested.raw.fails(5).await, "no_leader");
    tested.node.stop().await;
}

#[tokio::test]
async fn the_answer_that_a_group_has_no_records_waits_for_a_barrier() {
    let mut tested = Tested::start().await;
    let stream = tested.raw.stream("s").await;
    let group = group(&mut tested.raw, stream, "g").await;
    let fetch = Fetch { group, member: "m", max_records: 1, max_bytes: 0, wait: 0, level: Level(None) };
    let before = tested.cluster.begun();
    tested.cluster.set(Barriers::Closed);
    tested.raw.send(1, &fetch).await;
    tested.cluster.until_begun(before + 1).await;
    // Another leader has appended a record, which reaches the node before the barrier ends.
    tested.node.raw().await.append(stream, &[b"a"]).await;
    tested.cluster.set(Barriers::Open);
    expect!(tested.raw, 1, ServerFrame::Delivery(d) => assert_eq!(offsets(&d.parts), (vec![0], 1)));
    tested.raw.send(2, &fetch).await;
    expect!(tested.raw, 2, ServerFrame::Delivery(d) => assert!(d.parts.is_empty()));
    tested.cluster.set(Barriers::Failing(ClusterError::NoLeader));
    tested.raw.send(3, &fetch).await;
    assert_eq!(tested.raw.fails(3).await, "no_leader");
    tested.node.stop().await;
}

impl Tested {
    /// Makes node 2 the leader, which serves native clients at this address.
    fn led_by_2(&self, address: Option<&str>) {
        self.cluster.change(|report| {
            report.leader = Some(NodeId(2));
            report.members[1].serves.native = address.map(str::to_owned);
        });
    }

    async fn put_by(&mut self, id: u32, route: Option<Route>) {
        let mut command = Vec::new();
        encode_put(&mut command, self.keyspace, b"b", b"v").unwrap();
        let write = Write { level: Level(Some(Durability::Os)), command: RemainingBytes(&command) };
        self.raw.send_with(id, &Fields { route, ..Fields::default() }, &write).await;
    }

    /// Receives a failure. Returns its code, its effect, the details `leader` and `term`, and the leader's address.
    async fn failed(&mut self, id: u32) -> (String, thalweg_wire::Effect, [Option<u64>; 2], Option<String>) {
        let frame = self.raw.next().await;
        let envelope = ServerFrame::decode(frame.raw()).unwrap();
        assert_eq!(envelope.id, id, "{envelope:?}");
        let ServerFrame::Failed(failed) = &envelope.frame else { panic!("{envelope:?}") };
        let details = [failed.detail("leader"), failed.detail("term")];
        (failed.code.to_owned(), failed.effect, details, envelope.fields.leader.map(str::to_owned))
    }
}

#[tokio::test]
async fn a_write_is_redirected_to_the_leader_if_its_client_asks_for_it() {
    let mut tested = Tested::start().await;
    tested.put_by(1, Some(Route::Redirect)).await;
    expect!(tested.raw, 1, ServerFrame::Committed(_) => ());
    tested.led_by_2(Some("127.0.0.1:7171"));
    tested.put_by(2, Some(Route::Redirect)).await;
    let expected = ("not_leader".to_owned(), thalweg_wire::Effect::Nothing, [Some(2), Some(5)]);
    let (code, effect, details, address) = tested.failed(2).await;
    assert_eq!(((code, effect, details), address.as_deref()), (expected, Some("127.0.0.1:7171")));
    for (id, route) in [(3, None), (4, Some(Route::Forward))] {
        tested.put_by(id, route).await;
        expect!(tested.raw, id, ServerFrame::Committed(_) => ());
    }
    let fetch = Fetch {
        group: thalweg_types::GroupId(77),
        member: "m",
        max_records: 1,
        max_bytes: 0,
        wait: 0,
        level: Level(None),
    };
    tested.raw.send_with(5, &Fields { route: Some(Route::Redirect), ..Fields::default() }, &fetch).await;
    assert_eq!(tested.failed(5).await.0, "not_leader");
    // Without the leader's address, the client learns its id, and may ask for the members later.
    tested.led_by_2(None);
    tested.put_by(6, Some(Route::Redirect)).await;
    let (code, _, details, address) = tested.failed(6).await;
    assert_eq!((code.as_str(), details, address), ("not_leader", [Some(2), Some(5)], None));
    tested.cluster.change(|report| report.leader = None);
    tested.put_by(7, Some(Route::Redirect)).await;
    let (code, effect, ..) = tested.failed(7).await;
    assert_eq!((code.as_str(), effect), ("no_leader", thalweg_wire::Effect::Nothing));
    tested.node.stop().await;
}

#[tokio::test]
async fn a_member_tells_the_members_and_its_feature() {
    let mut tested = Tested::start().await;
    tested.led_by_2(Some("127.0.0.1:7171"));
    tested.raw.send(1, &ReadMembers {}).await;
    expect!(tested.raw, 1, ServerFrame::Members(told) => {
        assert_eq!((told.node, told.leader, told.term), (NodeId(1), NodeId(2), 5));
        let own = tested.node.native.unwrap().to_string();
        let members: Vec<_> = told.members.iter().map(|member| {
            (member.node.0, member.role, member.health, member.name.to_owned(), member.address.to_owned())
        }).collect();
        let expected = [
            (1, MemberRole::Voter, MemberHealth::Alive, "n1".to_owned(), own),
            (2, MemberRole::Voter, MemberHealth::Alive, "n2".to_owned(), "127.0.0.1:7171".to_owned()),
            (3, MemberRole::Learner, MemberHealth::Suspect, "n3".to_owned(), String::new()),
        ];
        assert_eq!(members, expected);
    });
    // A client tells a restored cluster from the former one by the id.
    tested.raw.send(2, &ReadMembers {}).await;
    let frame = tested.raw.next().await;
    let fields = Fields::decode(&frame.payload[..usize::from(frame.header.fields)]).unwrap();
    let mut cluster = None;
    tested.cluster.change(|report| cluster = Some(report.cluster.0.to_le_bytes()));
    assert!(fields.cluster.is_some() && fields.cluster == cluster.as_ref(), "{fields:?}");
    let mut greeted = tested.node.dial().await;
    greeted.send(0, &hello("test", 1 << 20, std::time::Duration::ZERO, &[FEATURE_CLUSTER, 77])).await;
    expect!(greeted, 0, ServerFrame::Welcome(welcome) => {
        assert_eq!(welcome.features.iter().collect::<Vec<_>>(), [FEATURE_CLUSTER]);
    });
    tested.node.stop().await;

    let alone = Node::start().await;
    let mut raw = alone.raw().await;
    raw.send(1, &ReadMembers {}).await;
    assert_eq!(raw.fails(1).await, "not_clustered");
    alone.stop().await;
}

#[tokio::test]
async fn a_transaction_that_only_reads_waits_for_its_barrier() {
    let mut tested = Tested::start().await;
    tested.cluster.set(Barriers::Failing(ClusterError::NoLeader));
    let mut transaction = TransactionBuilder::new();
    transaction.then().get(tested.keyspace, b"a").unwrap();
    let mut command = Vec::new();
    transaction.encode(&mut command).unwrap();
    let write = Write { level: Level(None), command: RemainingBytes(&command) };
    tested.raw.send(1, &write).await;
    assert_eq!(tested.raw.fails(1).await, "no_leader");
    tested.raw.send_with(2, &Fields { read: Some(ReadLevel::Stale), ..Fields::default() }, &write).await;
    expect!(tested.raw, 2, ServerFrame::Transacted(_) => ());
    tested.node.stop().await;
}

fn push(group: GroupId, member: &str) -> Push<'_> {
    let (level, release) = (Level(None), Release::AtOnce);
    Push { group, held_records: 1, held_bytes: 0, level, release, permit: UNLIMITED, member }
}

/// Makes node 2 the leader, as an election does.
fn elect_2(cluster: &FakeCluster) {
    cluster.change(|report| (report.leader, report.term) = (Some(NodeId(2)), Term(6)));
    cluster.push(1, Event::Leader { leader: Some(NodeId(2)), term: Term(6) });
}

#[tokio::test]
async fn a_push_ends_with_moved_when_another_node_leads_and_its_records_stay() {
    let mut tested = Tested::start().await;
    let stream = tested.raw.stream("s").await;
    let group = group(&mut tested.raw, stream, "g").await;
    tested.raw.append(stream, &[b"a", b"b"]).await;
    tested.raw.ask(1, &push(group, "m"), Kind::Pushing).await;
    let (attempt, found) = expect!(tested.raw, 1, ServerFrame::Pushed(d) => (d.attempt, offsets(&d.parts)));
    assert_eq!(found, (vec![0], 1));
    // The same leader in a later term, and a time without a leader, end nothing.
    tested.cluster.push(1, Event::Leader { leader: None, term: Term(6) });
    tested.cluster.push(1, Event::Leader { leader: Some(NodeId(1)), term: Term(6) });
    elect_2(&tested.cluster);
    let ended = expect!(tested.raw, 1, ServerFrame::Ended(ended) => (ended.code.to_owned(), ended.class));
    assert_eq!(ended, ("moved".to_owned(), Action::Retry));
    // The member pushes again under the new leader. Its record is not delivered again, and its ack counts.
    tested.raw.ask(2, &push(group, "m"), Kind::Pushing).await;
    let second = expect!(tested.raw, 2, ServerFrame::Pushed(d) => (d.attempt, offsets(&d.parts)));
    assert_eq!(second.1, (vec![1], 1));
    assert_eq!(ack(&mut tested.raw, group, attempt).await, 1);
    assert_eq!(ack(&mut tested.raw, group, second.0).await, 1);
    tested.node.stop().await;
}

#[tokio::test]
async fn records_of_a_receiver_that_follows_the_leader_stay_and_others_return() {
    let mut tested = Tested::start().await;
    let stream = tested.raw.stream("s").await;
    let group = group(&mut tested.raw, stream, "g").await;
    tested.raw.append(stream, &[b"a", b"b"]).await;
    let in_flight = || tested.node.db.group_by_id(group).unwrap().unwrap().info().unwrap().in_flight;
    let mut receivers = Vec::new();
    for member in ["leaves", "follows"] {
        let mut raw = tested.node.raw().await;
        raw.ask(1, &push(group, member), Kind::Pushing).await;
        expect!(raw, 1, ServerFrame::Pushed(_) => ());
        receivers.push(raw);
    }
    assert_eq!(in_flight(), 2);
    drop(receivers.remove(0));
    eventually("the record of the first receiver returns", async || in_flight() == 1).await;
    // The node has lost the leadership, and no event says so yet.
    tested.cluster.change(|report| report.leader = Some(NodeId(2)));
    let mut follows = receivers.remove(0);
    follows.send(1, &Cancel { mode: CancelMode::Now }).await;
    assert_eq!(expect!(follows, 1, ServerFrame::Ended(ended) => ended.code.to_owned()), "cancelled");
    follows.ask(2, &push(group, "other"), Kind::Pushing).await;
    let (found, deliveries) = expect!(follows, 2, ServerFrame::Pushed(d) => offsets(&d.parts));
    assert_eq!((found, deliveries), (vec![0], 2), "only the record of the receiver that left returned");
    assert_eq!(in_flight(), 2);
    tested.node.stop().await;
}

fn watch(after: Option<u64>, run: Option<u64>) -> WatchCluster {
    WatchCluster { after, run, permit: UNLIMITED }
}

/// Begins a watch. Returns the position that the reply states, and whether the node knows the one in the request.
async fn begin(raw: &mut Raw, id: u32, request: WatchCluster) -> (u64, u64, bool) {
    raw.send(id, &request).await;
    expect!(raw, id, ServerFrame::WatchingCluster(begun) => (begun.after, begun.run, begun.known))
}

/// An event that a watch has sent: its number, node, term and texts.
type Seen = (u64, u64, u64, String, String);

/// Receives one frame of events. Returns its count of missed events, and its events.
async fn events(raw: &mut Raw, id: u32) -> (u64, Vec<Seen>) {
    expect!(raw, id, ServerFrame::ClusterEvents(page) => {
        let seen = page.events.iter().map(|event| {
            (event.sequence, event.node.0, event.term, event.event.to_owned(), event.name.to_owned())
        });
        (page.missed, seen.collect())
    })
}

#[tokio::test]
async fn a_watch_sends_each_kind_of_event_as_it_happens() {
    let mut tested = Tested::start().await;
    let run = tested.cluster.run();
    assert_eq!(begin(&mut tested.raw, 1, watch(None, None)).await, (0, run, true));
    let (member, stranger) = (NodeId(3), NodeId(77));
    let kinds = [
        (Event::Leader { leader: Some(NodeId(2)), term: Term(6) }, 2, 6, "leader", "n2"),
        (Event::Leader { leader: None, term: Term(7) }, 0, 7, "leader", ""),
        (Event::Joined(member), 3, 0, "joined", "n3"),
        (Event::Promoted(member), 3, 0, "promoted", "n3"),
        (Event::Removed(stranger), 77, 0, "removed", ""),
        (Event::Alive(member), 3, 0, "alive", "n3"),
        (Event::Suspect(member), 3, 0, "suspect", "n3"),
        (Event::Down(member), 3, 0, "down", "n3"),
        (Event::Lagging(member), 3, 0, "lagging", "n3"),
        (Event::Stale(member), 3, 0, "stale", "n3"),
        (Event::Undecided(member), 3, 0, "undecided", "n3"),
        (Event::CaughtUp(member), 3, 0, "caught_up", "n3"),
    ];
    for (sequence, (event, node, term, kind, name)) in (1..).zip(kinds) {
        tested.cluster.push(sequence, event);
        let expected = (0, vec![(sequence, node, term, kind.to_owned(), name.to_owned())]);
        assert_eq!(events(&mut tested.raw, 1).await, expected);
    }
    // The same numbers are those of HTTP.
    let path = format!("/v1/cluster/events?after=11&run={run}&limit=1");
    let lines = tested.node.call("GET", &path, &[("accept", "application/x-ndjson")], b"").await.is(200).lines();
    assert_eq!((&lines[1]["sequence"], &lines[1]["event"]), (&12.into(), &"caught_up".into()));
    tested.raw.send(1, &Cancel { mode: CancelMode::Drain }).await;
    assert_eq!(expect!(tested.raw, 1, ServerFrame::Ended(ended) => ended.code.to_owned()), "cancelled");
    // The channel ends its watches when the server stops.
    assert_eq!(begin(&mut tested.raw, 1, watch(None, None)).await, (12, run, true));
    tested.node.signal_stop();
    assert_eq!(expect!(tested.raw, 1, ServerFrame::Ended(ended) => ended.code.to_owned()), "stopping");
    tested.node.stopped().await.unwrap();

    let alone = Node::start().await;
    let mut raw = alone.raw().await;
    raw.send(1, &watch(None, None)).await;
    assert_eq!(raw.fails(1).await, "not_clustered");
    alone.stop().await;
}

#[tokio::test]
async fn a_watch_continues_after_a_number_of_its_run_only() {
    let mut tested = Tested::start().await;
    let run = tested.cluster.run();
    (1..=3).for_each(|micros| tested.cluster.push(micros, Event::Suspect(NodeId(2))));
    let cases = [
        (watch(Some(2), Some(run)), (2, run, true), vec![3]),
        (watch(Some(1), None), (1, run, true), vec![2, 3]),
        (watch(Some(0), None), (0, run, true), vec![1, 2, 3]),
        (watch(Some(2), Some(run ^ 1)), (0, run, false), vec![1, 2, 3]),
        (watch(Some(4), Some(run)), (0, run, false), vec![1, 2, 3]),
        (watch(Some(u64::MAX), None), (0, run, false), vec![1, 2, 3]),
    ];
    for (id, (request, begun, sequences)) in (1..).zip(cases) {
        assert_eq!(begin(&mut tested.raw, id, request).await, begun);
        let (missed, seen) = events(&mut tested.raw, id).await;
        assert_eq!((missed, seen.iter().map(|seen| seen.0).collect::<Vec<_>>()), (0, sequences));
    }
    tested.raw.send_with(9, &Fields { limit: Some(2), ..Fields::default() }, &watch(Some(0), None)).await;
    expect!(tested.raw, 9, ServerFrame::WatchingCluster(_) => ());
    assert_eq!(events(&mut tested.raw, 9).await.1.len(), 2);
    assert_eq!(expect!(tested.raw, 9, ServerFrame::Ended(ended) => ended.code.to_owned()), "limit_reached");
    tested.node.stop().await;
}

#[tokio::test]
async fn a_watch_without_credit_misses_what_the_node_does_not_keep() {
    /// Number of events that a node keeps.
    const KEPT: u64 = 1024;
    const ALL: u64 = 3 * KEPT;
    let mut tested = Tested::start().await;
    (1..=4).for_each(|micros| tested.cluster.push(micros, Event::Suspect(NodeId(2))));
    let permit = Permit { messages: 2, bytes: 1 << 20 };
    begin(&mut tested.raw, 1, WatchCluster { after: Some(0), run: None, permit }).await;
    let (missed, seen) = events(&mut tested.raw, 1).await;
    assert_eq!((missed, seen.last().unwrap().0), (0, 2), "as many as the credit permits");
    (5..=ALL).for_each(|micros| tested.cluster.push(micros, Event::Suspect(NodeId(2))));
    // Without credit nothing is sent: the next frame answers another request.
    tested.raw.ask(2, &ReadMembers {}, Kind::Members).await;
    tested.raw.send(1, &Credit { messages: 3, bytes: 1 << 20 }).await;
    let (missed, seen) = events(&mut tested.raw, 1).await;
    assert_eq!((missed, seen.len(), seen[0].0), (ALL - KEPT - 2, 1, ALL - KEPT + 1));

    // All events that are kept need several frames of this client, and arrive in order.
    let mut small = tested.node.raw_taking(1 << 16).await;
    begin(&mut small, 1, watch(Some(ALL - KEPT), None)).await;
    let (mut frames, mut next) = (0, ALL - KEPT + 1);
    while next <= ALL {
        let (missed, seen) = events(&mut small, 1).await;
        assert_eq!(missed, 0);
        for event in seen {
            assert_eq!(event.0, next);
            next += 1;
        }
        frames += 1;
    }
    assert!(frames > 1, "{frames}");
    tested.node.stop().await;
}
