//! Native clients of a node of a cluster: read levels in requests, and barriers of pipelined reads.

use std::sync::Arc;

use thalweg_server::cluster::ClusterError;
use thalweg_types::{Durability, KeyspaceId, NodeId, ReadLevel, Revision, command::encode_put};
use thalweg_wire::{Fetch, Fields, Get, RemainingBytes, ServerFrame, Values};

use crate::{
    expect,
    support::{
        Node,
        cluster::{Barriers, FakeCluster},
        native::Raw,
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
        let (cluster, handle, _) = FakeCluster::new();
        let node = Node::in_cluster(handle, |_| ()).await;
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
async fn writes_need_no_barrier_and_names_need_one_on_a_follower() {
    let mut tested = Tested::start().await;
    tested.cluster.set(Barriers::Failing(ClusterError::NoLeader));
    tested.put_get(1, None, None);
    tested.raw.flush().await;
    assert_eq!(tested.raw.fails(1).await, "no_leader");
    let keyspace = tested.keyspace;
    tested.raw.put_command(2, Durability::Os, |out| encode_put(out, keyspace, b"b", b"v").unwrap());
    tested.raw.flush().await;
    expect!(tested.raw, 2, ServerFrame::Committed(_) => ());
    let fetch = Fetch {
        group: thalweg_types::GroupId(77),
        member: "m",
        max_records: 1,
        max_bytes: 0,
        wait: 0,
        level: thalweg_wire::Level(None),
    };
    tested.raw.send(3, &fetch).await;
    assert_eq!(tested.raw.fails(3).await, "no_such_group");
    tested.cluster.change(|report| report.leader = Some(NodeId(2)));
    tested.raw.send(4, &fetch).await;
    assert_eq!(tested.raw.fails(4).await, "no_leader");
    tested.node.stop().await;
}
