//! The time of a space at the beginning of a leadership: leases that a leader grants last, because its time makes up
//! for an outage before its first entry.

use std::{rc::Rc, time::Duration};

use thalweg_types::SpaceTime;

use crate::{
    commands::{put, run},
    node::{Cluster, PATIENCE, Settings, options},
};

/// Time of an outage, of which only the wall clocks know. It is much longer than a virtual machine stands still.
const OUTAGE: Duration = Duration::from_secs(3600);
/// Difference of times that does not count.
const SLACK: Duration = Duration::from_secs(1);
/// Time in which a write of a cluster without faults is answered, even on a busy machine.
const USUAL: Duration = Duration::from_millis(500);

/// Settings with which a new leader waits at most so long for the wall clocks of a majority.
fn waiting(max_catch_up: Duration) -> Settings {
    let consensus = thalweg_raft::ConsensusOptions { max_catch_up, ..options() };
    Settings { consensus, max_wait: PATIENCE, ..Settings::default() }
}

/// Returns the time of the last entry that the leader has applied.
async fn last_time(cluster: &Cluster) -> SpaceTime {
    cluster.leader().await.machine.applied().time
}

/// Ends all nodes, and starts some of them after an outage. Returns the time of the last entry before it.
async fn outage(cluster: &Cluster, lasts: Duration, started: &[u64]) -> SpaceTime {
    let last = last_time(cluster).await;
    let running: Vec<u64> = cluster.nodes().iter().map(|node| node.id).collect();
    for id in running {
        cluster.lose_power(id, id).await;
    }
    cluster.clock.advance_wall(lasts);
    for id in started {
        cluster.start(*id).await;
    }
    last
}

#[test]
fn the_first_entry_of_a_leadership_makes_up_for_an_outage_and_no_later_one() {
    run(async {
        let cluster = Rc::new(Cluster::founded_with(3, waiting(PATIENCE)).await);
        cluster.network.hold_facts(true);
        let before = outage(&cluster, OUTAGE, &[1, 2, 3]).await;
        let writing = Rc::clone(&cluster);
        let written = tokio::task::spawn_local(async move { writing.write(&put("first", b"v")).await });
        cluster.leader().await;
        tokio::time::sleep(USUAL).await;
        assert!(!written.is_finished(), "the leader knows no other wall clock");
        cluster.network.hold_facts(false);
        written.await.unwrap();
        let first = last_time(&cluster).await;
        assert!(first >= before.plus(OUTAGE - SLACK), "{first} after {before}");
        let begun = std::time::Instant::now();
        tokio::time::sleep(USUAL).await;
        cluster.write(&put("second", b"v")).await;
        let second = last_time(&cluster).await;
        assert!(second <= first.plus(begun.elapsed() + SLACK), "{second} after {first}");
    });
}

#[test]
fn a_leader_does_not_wait_for_a_member_that_is_down() {
    run(async {
        let cluster = Cluster::founded_with(3, waiting(PATIENCE)).await;
        let before = outage(&cluster, OUTAGE, &[1, 2]).await;
        cluster.write(&put("first", b"v")).await;
        assert!(last_time(&cluster).await >= before.plus(OUTAGE - SLACK));
    });
}

#[test]
fn a_leader_without_reports_takes_commands_after_a_while_and_catches_up_later() {
    run(async {
        let cluster = Cluster::founded_with(3, waiting(Duration::from_millis(300))).await;
        cluster.network.hold_facts(true);
        let before = outage(&cluster, OUTAGE, &[1, 2, 3]).await;
        cluster.write(&put("first", b"v")).await;
        let first = last_time(&cluster).await;
        assert!(first < before.plus(OUTAGE - SLACK), "{first} after {before}");
        cluster.network.hold_facts(false);
        let begun = std::time::Instant::now();
        while last_time(&cluster).await < before.plus(OUTAGE - SLACK) {
            assert!(begun.elapsed() < PATIENCE, "the time does not catch up");
            tokio::time::sleep(Duration::from_millis(20)).await;
            cluster.write(&put("later", b"v")).await;
        }
    });
}

#[test]
fn a_single_voter_waits_for_no_clock() {
    run(async {
        let cluster = Cluster::founded_with(1, waiting(PATIENCE)).await;
        let before = outage(&cluster, OUTAGE, &[1]).await;
        cluster.write(&put("first", b"v")).await;
        let after = last_time(&cluster).await;
        assert!(after >= before.plus(OUTAGE - SLACK), "{after} after {before}");
        // More than `max_clock_jump`.
        outage(&cluster, Duration::from_secs(48 * 3600), &[1]).await;
        cluster.write(&put("second", b"v")).await;
        let last = last_time(&cluster).await;
        assert!(last < after.plus(OUTAGE), "{last} after {after}");
    });
}
