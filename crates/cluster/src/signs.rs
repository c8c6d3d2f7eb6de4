//! Signs of life (messages that show that a node runs) to and from all other nodes, and the facts about the sender that
//! they carry.
//!
//! Owns: the choice between the forms of a sign (a ping, which has a reply; a sign without facts; a sign with facts),
//! and the conclusions from received signs. Does not own: the times of signs (`tasks`), their numbers and the effects
//! of silence (`hearing`), or the rule when facts are sent again (`sent_facts`).
//!
//! Between nodes of newer versions, a sign of life has no reply: each node learns from the other's signs that its own
//! signs arrive. If they no longer arrive, the node sends pings instead. Replies to pings show that the connection is
//! alive; if no replies arrive, the link ends the connection.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    time::{Duration, Instant},
};

use thalweg_raft::{Consensus, MemberFacts};
use thalweg_types::{Index, NodeId, SpaceTime};
use thalweg_wire::peer::{Facts, Ping, Pong, SHORT_FROM, Sign};

use crate::{
    about::AboutNode,
    events::Events,
    hearing::HearingRecord,
    link::{Connection, Link, Owned},
    peers::Peers,
    sent_facts::OwnFacts,
    types::Rt,
};

/// Signs of life to and from all other nodes. Clones share the state.
#[derive(Clone)]
pub(crate) struct Signs {
    pub consensus: Consensus<Rt>,
    pub hearing: HearingRecord,
    pub events: Events,
    pub peers: Peers,
}

/// Returns the number of milliseconds by which the clock `one` is ahead of `other`.
fn ahead_millis(one: SpaceTime, other: SpaceTime) -> i64 {
    let millis = |ahead: u64| i64::try_from(ahead / 1000).unwrap_or(i64::MAX);
    if one >= other { millis(one.0 - other.0) } else { -millis(other.0 - one.0) }
}

/// Returns a number that is derived from the content of a node's description, so a changed description has another
/// number. Nodes compare it only with an earlier number of the same node.
pub(crate) fn number_of(about: &AboutNode) -> u32 {
    let mut hasher = DefaultHasher::new();
    let AboutNode { name, zone, version, serves } = about;
    (name, zone, version, &serves.http, &serves.native, &serves.resp).hash(&mut hasher);
    hasher.finish() as u32
}

impl Signs {
    /// Returns the facts about this node that its signs of life carry. `about` is the number of its description.
    pub(crate) fn own_facts(&self, about: u32) -> OwnFacts {
        let MemberFacts { lacks_room, wall } = self.consensus.own_facts();
        OwnFacts {
            last: self.consensus.reader().last().map_or(Index::ZERO, |last| last.index),
            applied: self.consensus.applied().unwrap_or(Index::ZERO),
            lacks_room,
            wall,
            about,
        }
    }

    /// Sends the next sign of life to a node. Waits at most `within` for a connection and for the reply of a ping.
    pub(crate) async fn send(&self, node: NodeId, link: &Link, own: OwnFacts, within: Duration) {
        // A sign that cannot be sent still takes a number, because the other node does not receive it.
        let number = self.hearing.ping(node);
        let deadline = tokio::time::Instant::now() + within;
        let Ok(connection) = link.connection(deadline).await else { return };
        let heard = self.hearing.echo(node);
        if connection.version() < SHORT_FROM || !self.hearing.is_confirmed(node) {
            self.ping(node, &connection, Ping { number, heard }, deadline).await;
            return;
        }
        let (mut sent, now) = (connection.sent_facts().borrow_mut(), Instant::now());
        if sent.is_due(&own, now) {
            let OwnFacts { last, applied, lacks_room, wall, about } = own;
            if connection.post(&Facts { number, heard, last, applied, lacks_room, wall, about }).is_ok() {
                sent.note_facts(own, now);
            }
        } else if connection.post(&Sign { number, heard }).is_ok() {
            sent.note_sign();
        }
    }

    async fn ping(&self, node: NodeId, connection: &Connection, ping: Ping, deadline: tokio::time::Instant) {
        let pong = async { connection.send(&ping).await?.wait::<Owned, Pong>(deadline).await };
        let Ok(Ok(Pong { number: _, last, applied, free_bytes, wall })) = tokio::time::timeout_at(deadline, pong).await
        else {
            return;
        };
        if let Some(change) = self.hearing.alive(node) {
            self.events.changed(change);
        }
        if connection.version() < SHORT_FROM {
            // A node of this version does not announce changes of its description.
            self.peers.update(node, |facts| facts.about_announced = None);
        }
        self.note(node, (last, applied), MemberFacts { lacks_room: free_bytes == 0, wall });
    }

    /// Records a ping from a node, and returns the reply.
    pub(crate) fn pinged(&self, from: NodeId, ping: &Ping) -> Pong {
        self.received(from, ping.number, ping.heard);
        let OwnFacts { last, applied, lacks_room, wall, about: _ } = self.own_facts(0);
        Pong { number: ping.number, last, applied, free_bytes: if lacks_room { 0 } else { u64::MAX }, wall }
    }

    /// Records a sign of life from a node whose facts have not changed.
    pub(crate) fn signed(&self, from: NodeId, sign: &Sign) {
        self.received(from, sign.number, sign.heard);
        let known = self.peers.update(from, |facts| {
            let (wall, at) = facts.wall?;
            Some(MemberFacts { lacks_room: facts.lacks_room, wall: wall.plus(at.elapsed()) })
        });
        if let Some(known) = known {
            self.consensus.report(from, known);
        }
    }

    /// Records a sign of life that carries facts about its sender.
    pub(crate) fn facts(&self, from: NodeId, facts: &Facts) {
        self.received(from, facts.number, facts.heard);
        let Facts { number: _, heard: _, last, applied, lacks_room, wall, about } = *facts;
        self.peers.update(from, |facts| facts.about_announced = Some(about));
        self.note(from, (last, applied), MemberFacts { lacks_room, wall });
    }

    fn received(&self, from: NodeId, number: u64, heard: u64) {
        if let Some(change) = self.hearing.received(from, number, heard) {
            self.events.changed(change);
        }
    }

    fn note(&self, node: NodeId, last: (Index, Index), member: MemberFacts) {
        let MemberFacts { lacks_room, wall } = member;
        let own_wall = self.consensus.member().clock().wall();
        self.peers.update(node, |facts| {
            facts.last = Some(last);
            facts.lacks_room = lacks_room;
            facts.wall = Some((wall, Instant::now()));
            facts.clock_ahead_millis = Some(ahead_millis(wall, own_wall));
        });
        self.consensus.report(node, member);
    }
}
