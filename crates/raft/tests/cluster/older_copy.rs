//! A node that runs on an older copy of its disk, which lacks entries that it has acknowledged.

use thalweg_types::NodeId;

use crate::{
    commands::{put, run},
    node::Cluster,
};

/// The leader knows that the node has the entries, and must neither end nor repeat the same append for ever.
#[test]
fn a_node_on_an_older_copy_of_its_disk_gets_again_what_it_has_lost() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.wait_all_follow().await;
        let leader = cluster.leader().await;
        let restored = (1..=3).find(|id| *id != leader.id).unwrap();
        cluster.write(&put("before", b"v")).await;
        cluster.wait_equal(leader.machine.applied().index).await;
        cluster.lose_power(restored, 1).await;
        let copy = cluster.disks.borrow()[&restored].power_loss(2);
        cluster.start(restored).await;
        for number in 0..50 {
            cluster.write(&put(&number.to_string(), b"v")).await;
        }
        cluster.wait_equal(leader.machine.applied().index).await;
        let acknowledged = || {
            let status = leader.consensus.status();
            // Only the leader knows it. On a busy machine another node can have been elected.
            let is_known = status.members[&NodeId(restored)].matched == status.last.map(|last| last.index);
            (is_known || !leader.member.leads()).then_some(())
        };
        cluster.wait("the last acknowledgement", acknowledged).await;
        cluster.lose_power(restored, 3).await;
        cluster.disks.borrow_mut().insert(restored, copy);
        let node = cluster.start(restored).await;
        let written = cluster.write(&put("after", b"v")).await;
        assert!(written.outcome.is_some());
        cluster.wait_equal(leader.machine.applied().index).await;
        assert_eq!(["before", "49", "after"].map(|key| node.get(key)), [(); 3].map(|()| Some(b"v".to_vec())));
        assert_eq!(cluster.nodes().iter().find_map(|node| node.consensus.failure()), None);
    });
}
