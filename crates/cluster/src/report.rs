//! The report of a node about its cluster: the members, their states, and the leader. People and programs read it.

use std::time::Duration;

use thalweg_raft::Consensus;
use thalweg_replica::Leadership;
use thalweg_serving::cluster::{ClusterReport, ElapsedMillis, Lag, MemberHealth, MemberReport, MemberRole, Triggers};
use thalweg_types::{ClusterId, Index, NodeId, Revision, Term};

use crate::{about::AboutNode, hearing::HearingRecord, peers::Peers, types::Rt};

fn since(time: Duration) -> ElapsedMillis {
    ElapsedMillis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the report of a node that has just started.
pub(crate) fn empty(cluster: ClusterId, node: NodeId, triggers: Triggers) -> ClusterReport {
    ClusterReport {
        cluster,
        node,
        leader: None,
        term: Term::ZERO,
        commit_index: Index::ZERO,
        applied_index: Index::ZERO,
        applied_revision: Revision::ZERO,
        is_changing: false,
        time_behind: None,
        undecided_after: None,
        triggers,
        members: Vec::new(),
    }
}

/// Returns the leader that the node `here` knows; `None` if it knows none.
pub(crate) fn leader_of(here: NodeId, leadership: &Leadership) -> Option<NodeId> {
    match leadership {
        Leadership::Leader { .. } => Some(here),
        Leadership::Follower { leader, .. } => leader.as_ref().map(|(node, _)| *node),
    }
}

/// Composes a node's report about its cluster from the facts that the node knows at present.
pub(crate) fn compose(
    cluster: ClusterId,
    consensus: &Consensus<Rt>,
    (hearing, peers): (&HearingRecord, &Peers),
    own: &AboutNode,
    triggers: Triggers,
) -> ClusterReport {
    let status = consensus.status();
    let here = consensus.member().node();
    let applied = consensus.member().machine().applied();
    let index = |id: Option<thalweg_state::membership::LogId>| id.map_or(Index::ZERO, |id| id.index);
    let last = index(status.last);
    let members = status.members.iter().map(|(node, member)| {
        let facts = peers.get(*node);
        let about = if *node == here { own.clone() } else { facts.about.clone() };
        let heard = hearing.state(*node);
        let health = match heard {
            _ if *node == here => MemberHealth::Alive,
            Some((health, _)) => health,
            None => MemberHealth::Suspect,
        };
        let known = if *node == here { Some((last, index(status.applied))) } else { facts.last };
        let matched = member.matched.or(known.map(|(last, _)| last));
        MemberReport {
            node: *node,
            name: if member.info.name.is_empty() { about.name } else { member.info.name.clone() },
            address: member.info.address.clone(),
            serves: about.serves,
            zone: about.zone,
            version: about.version,
            role: if member.votes { MemberRole::Voter } else { MemberRole::Learner },
            health,
            heard: if *node == here { Some(ElapsedMillis(0)) } else { heard.map(|(_, silent_for)| since(silent_for)) },
            log_index: known.map(|(last, _)| last),
            applied_index: known.map(|(_, applied)| applied),
            lag: matched.map(|matched| lag_of(consensus, last, matched)),
            behind: if *node == here { None } else { facts.behind().map(since) },
            is_full: if *node == here { consensus.own_facts().lacks_room } else { facts.lacks_room },
            clock_ahead_millis: if *node == here { Some(0) } else { facts.clock_ahead_millis },
        }
    });
    ClusterReport {
        cluster,
        node: here,
        leader: leader_of(here, &status.leadership),
        term: status.leadership.term(),
        commit_index: index(status.committed),
        applied_index: applied.index,
        applied_revision: applied.revision,
        is_changing: status.is_changing,
        time_behind: status.time_behind.map(since),
        // The caller fills this in from the comparison of states.
        undecided_after: None,
        triggers,
        members: members.collect(),
    }
}

/// Returns how far the last log entry of a member, `matched`, is behind this node's last entry, `last`: in entries and
/// in bytes.
fn lag_of(consensus: &Consensus<Rt>, last: Index, matched: Index) -> Lag {
    Lag { entries: last.0.saturating_sub(matched.0), bytes: consensus.bytes_after(matched) }
}
