//! The client's knowledge of the servers: the seeds that the application named, and the members of their cluster.
//!
//! Owns: the addresses to which the client may connect, and the leader as far as the client knows it. Does not own:
//! connections (`pool`), nor the requests that ask servers for the members and the leader (`connect`, `client`).
//!
//! Invariants: within one cluster, knowledge from a lower term never replaces knowledge from a higher term. If the
//! client connects to a node of another cluster, such as a restored one, it forgets all that it knew about the former
//! cluster. Writes ask for a redirect only while the client knows the leader and has not failed to connect to it.
//! Otherwise the server forwards the writes, so a client that cannot reach the leader works through another member.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use thalweg_transport::Endpoint;
use thalweg_types::{ClusterId, info::MemberHealth};
use tokio::sync::watch;

use crate::membership::{ClusterMember, ClusterMembers};

/// Servers to which a client may connect at first. All seeds must be members of one cluster. The client learns the
/// other members from any of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(Vec<Endpoint>);

impl From<Endpoint> for Seeds {
    fn from(endpoint: Endpoint) -> Self {
        Self(vec![endpoint])
    }
}

impl From<Vec<Endpoint>> for Seeds {
    fn from(endpoints: Vec<Endpoint>) -> Self {
        Self(endpoints)
    }
}

impl<const N: usize> From<[Endpoint; N]> for Seeds {
    fn from(endpoints: [Endpoint; N]) -> Self {
        Self(endpoints.into())
    }
}

/// The client's knowledge of the servers.
#[derive(Debug)]
pub(crate) struct Directory {
    seeds: Vec<Endpoint>,
    known: Mutex<DirectoryState>,
    redirects: AtomicBool,
    /// Number of times that the client connected to a server with another data set than before. A data set is all data
    /// of a server; a restored server has another one.
    data: AtomicU32,
    /// Number of changes so far after which a connection may have to move to another node, such as a new leader.
    version: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct DirectoryState {
    members: Vec<ClusterMember>,
    /// Ids of the members in ascending order. The list is replaced only when the set of members changes.
    ids: Arc<[u64]>,
    /// Id and address of the cluster's leader, as far as the client knows it.
    leader: Option<(u64, String)>,
    term: u64,
    /// Owner of the server's data; `None` if no node has stated it yet.
    owner: Option<DataOwner>,
    /// Id of a leader to which this client failed to connect.
    unreachable: Option<u64>,
    /// Node that gave no answer, or that knows no leader. The client asks another node for the leader then.
    doubted: Option<u64>,
}

/// Cluster or single node to which the server's data belongs. Within one owner's data, an id always stands for the same
/// keyspace, stream or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataOwner {
    Cluster(ClusterId),
    Node(u64),
}

impl DirectoryState {
    fn redirects(&self) -> bool {
        self.leader.as_ref().is_some_and(|(leader, _)| self.unreachable != Some(*leader))
    }
}

impl Directory {
    pub(crate) fn new(seeds: Seeds) -> Self {
        let (known, redirects, data) = (Mutex::default(), AtomicBool::new(false), AtomicU32::new(0));
        Self { seeds: seeds.0, known, redirects, data, version: watch::Sender::new(0) }
    }

    fn change(&self, change: impl FnOnce(&mut DirectoryState) -> Change) {
        let mut known = self.lock();
        let changed = change(&mut known);
        self.redirects.store(known.redirects(), Ordering::Relaxed);
        drop(known);
        if changed == Change::Relevant {
            self.version.send_modify(|version| *version += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, DirectoryState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver that is notified of each change after which a connection may have to move to another node.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Returns the endpoints to which the client may connect at first.
    pub(crate) fn seeds(&self) -> &[Endpoint] {
        &self.seeds
    }

    /// Returns true if writes should ask for a redirect to the leader.
    #[inline]
    pub(crate) fn redirects(&self) -> bool {
        self.redirects.load(Ordering::Relaxed)
    }

    /// Returns the number that the client gives to the server's present data set (all of its data). Ids of keyspaces,
    /// streams and groups are valid only within one data set. The number rises when the client connects to a server
    /// with another data set, such as a restored one, because an id may stand for another object there.
    pub(crate) fn data(&self) -> u32 {
        self.data.load(Ordering::Acquire)
    }

    /// Returns true if `data` is not the number of the server's present data set (all of its data; a restored server
    /// has another data set). Returns false for `None`, which stands for any data set.
    pub(crate) fn has_other_data(&self, data: Option<u32>) -> bool {
        data.is_some_and(|data| data != self.data())
    }

    /// Records a connection to a server that has no cluster.
    pub(crate) fn note_single(&self, node: u64) {
        self.note_owner(&mut self.lock(), DataOwner::Node(node));
    }

    fn note_owner(&self, known: &mut DirectoryState, owner: DataOwner) {
        if known.owner.replace(owner).is_some_and(|former| former != owner) {
            self.data.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes over what a node knows about its cluster, unless the client's knowledge is newer (has a higher term).
    /// Terms of two clusters cannot be compared, so knowledge about another cluster always replaces the client's.
    pub(crate) fn learn(&self, members: &ClusterMembers) {
        self.change(|known| {
            if let Some(cluster) = members.cluster {
                known.note_founder(cluster, members);
                known.enter(cluster);
                self.note_owner(known, DataOwner::Cluster(cluster));
            }
            if members.term < known.term {
                return Change::None;
            }
            let leader = members.leader.and_then(|leader| {
                let address = &members.find(leader)?.address;
                (!address.is_empty()).then(|| (leader, address.clone()))
            });
            // A node may not have heard of the leader of its term. If the client knows that leader, it keeps it.
            let leader = if members.term == known.term { leader.or_else(|| known.leader.clone()) } else { leader };
            known.set_members(&members.members);
            known.set_leader(leader, members.term)
        });
    }

    /// Takes over the leader that a redirect states, unless the client knows a higher term.
    pub(crate) fn learn_leader(&self, leader: u64, address: &str, term: u64) {
        self.change(|known| match term >= known.term {
            true => known.set_leader(Some((leader, address.to_owned())), term),
            false => Change::None,
        });
    }

    /// Forgets the leader. Called when a server refuses a write because another node leads, and does not know that
    /// node's address.
    pub(crate) fn forget_leader(&self, term: u64) {
        self.change(|known| known.set_leader(None, term.max(known.term)));
    }

    /// Records that the client could not connect to this node as the leader.
    pub(crate) fn cannot_reach(&self, node: u64) {
        self.change(|known| {
            known.unreachable = Some(node);
            Change::None
        });
    }

    /// Records that the client has a connection to this node.
    pub(crate) fn reached(&self, node: u64) {
        self.change(|known| {
            known.unreachable = known.unreachable.filter(|unreachable| *unreachable != node);
            Change::None
        });
    }

    /// Records that this node gave no answer, or that it knows no leader.
    pub(crate) fn doubt(&self, node: u64) {
        self.change(|known| {
            let is_new = known.doubted != Some(node);
            known.doubted = Some(node);
            if is_new { Change::Relevant } else { Change::None }
        });
    }

    /// Returns true if [`doubt`](Self::doubt) recorded this node, and removes the record.
    pub(crate) fn take_doubt(&self, node: u64) -> bool {
        let mut known = self.lock();
        let doubted = known.doubted == Some(node);
        if doubted {
            known.doubted = None;
        }
        doubted
    }

    /// Returns the ids of all members in ascending order, also of failed members. Returns no ids if the server runs
    /// alone, or if the client does not know the members yet.
    pub(crate) fn member_ids(&self) -> Arc<[u64]> {
        self.lock().ids.clone()
    }

    /// Returns the address at which a member serves the native protocol; `None` if the client does not know it, or if
    /// the node is not a member.
    pub(crate) fn endpoint_of(&self, node: u64) -> Option<Endpoint> {
        let known = self.lock();
        let member = known.members.iter().find(|member| member.node.0 == node)?;
        Some(self.seeds.first()?.at(address_of(member)?))
    }

    /// Returns the leader, as far as the client knows it.
    pub(crate) fn leader(&self) -> Option<(u64, Endpoint)> {
        let known = self.lock();
        let (leader, address) = known.leader.as_ref()?;
        Some((*leader, self.seeds.first()?.at(address)))
    }

    /// Returns all endpoints to which the client may connect, the most promising first: the leader, the members that
    /// were last reported alive, the other members, and the seeds.
    pub(crate) fn candidates(&self) -> Vec<Endpoint> {
        self.candidates_but(None)
    }

    /// Returns the [candidates](Self::candidates) except the member `node`.
    pub(crate) fn candidates_but(&self, node: Option<u64>) -> Vec<Endpoint> {
        let known = self.lock();
        let is_other = |member: &&ClusterMember| Some(member.node.0) != node;
        let alive = known.members.iter().filter(|member| member.health == MemberHealth::Alive);
        let others = known.members.iter().filter(|member| member.health != MemberHealth::Alive);
        let leader =
            known.leader.iter().filter(|(leader, _)| Some(*leader) != node).map(|(_, address)| address.as_str());
        let members = alive.chain(others).filter(is_other).filter_map(address_of);
        let left_out = known.members.iter().find(|member| Some(member.node.0) == node);
        let left_out = left_out.and_then(address_of);
        let seeds = self.seeds.iter().filter(|seed| Some(seed.address()) != left_out);
        let mut all: Vec<Endpoint> = Vec::new();
        let learnt = leader.chain(members).filter_map(|address| Some(self.seeds.first()?.at(address)));
        for endpoint in learnt.chain(seeds.cloned()) {
            if !all.iter().any(|earlier| earlier.address() == endpoint.address()) {
                all.push(endpoint);
            }
        }
        all
    }
}

/// Effect that new knowledge about the cluster has on the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The new knowledge changes nothing for connections: each stays on its node.
    None,
    /// A connection may have to move to another node.
    Relevant,
}

impl DirectoryState {
    /// Names the cluster as the owner of the data, if the former owner is a node that was alone and is now a member of
    /// this cluster. Such a node has founded the cluster and has kept its data, because a node that has data cannot
    /// join a cluster.
    fn note_founder(&mut self, cluster: ClusterId, members: &ClusterMembers) {
        if let Some(DataOwner::Node(node)) = self.owner
            && members.members.iter().any(|member| member.node.0 == node)
        {
            self.owner = Some(DataOwner::Cluster(cluster));
        }
    }

    /// Forgets everything about the known cluster if the answering node belongs to another cluster.
    fn enter(&mut self, cluster: ClusterId) {
        if self.owner.is_some_and(|owner| owner != DataOwner::Cluster(cluster)) {
            *self = Self { owner: self.owner, ..Self::default() };
        }
    }

    fn set_members(&mut self, members: &[ClusterMember]) {
        self.members = members.to_vec();
        let mut ids: Vec<_> = members.iter().map(|member| member.node.0).collect();
        ids.sort_unstable();
        if ids[..] != self.ids[..] {
            self.ids = ids.into();
        }
    }

    fn set_leader(&mut self, leader: Option<(u64, String)>, term: u64) -> Change {
        let is_new = self.leader != leader || self.term != term;
        self.term = term;
        self.leader = leader;
        if is_new {
            self.unreachable = None;
            Change::Relevant
        } else {
            Change::None
        }
    }
}

/// Returns the address at which a member serves the native protocol; `None` if it is unknown.
fn address_of(member: &ClusterMember) -> Option<&str> {
    Some(member.address.as_str()).filter(|address| !address.is_empty())
}

#[cfg(test)]
mod tests {
    use thalweg_types::{NodeId, info::MemberRole};

    use super::*;

    fn member(node: u64, health: MemberHealth) -> ClusterMember {
        ClusterMember {
            node: NodeId(node),
            role: MemberRole::Voter,
            health,
            name: String::new(),
            zone: String::new(),
            address: format!("n{node}:1"),
        }
    }

    fn members(leader: Option<u64>, term: u64) -> ClusterMembers {
        let members =
            vec![member(1, MemberHealth::Down), member(2, MemberHealth::Alive), member(3, MemberHealth::Alive)];
        ClusterMembers { cluster: None, node: 2, leader, term, members }
    }

    fn addresses(endpoints: &[Endpoint]) -> Vec<&str> {
        endpoints.iter().map(Endpoint::address).collect()
    }

    fn directory() -> Directory {
        Directory::new([Endpoint::tcp("n1:1"), Endpoint::tcp("seed:1")].into())
    }

    #[test]
    fn the_most_promising_nodes_are_tried_first() {
        let directory = directory();
        assert_eq!(addresses(&directory.candidates()), ["n1:1", "seed:1"]);
        directory.learn(&members(Some(3), 5));
        assert_eq!(addresses(&directory.candidates()), ["n3:1", "n2:1", "n1:1", "seed:1"]);
        assert_eq!(addresses(&directory.candidates_but(Some(1))), ["n3:1", "n2:1", "seed:1"]);
    }

    #[test]
    fn members_keep_their_places_whatever_their_health() {
        let directory = directory();
        assert!(directory.member_ids().is_empty());
        directory.learn(&members(Some(3), 5));
        let ids = directory.member_ids();
        assert_eq!(*ids, [1, 2, 3]);
        assert_eq!(directory.endpoint_of(1).as_ref().map(Endpoint::address), Some("n1:1"), "a node that is down");
        assert_eq!(directory.endpoint_of(4), None);
        let mut later = members(Some(2), 6);
        later.members.reverse();
        later.members[0].address.clear();
        directory.learn(&later);
        assert!(Arc::ptr_eq(&ids, &directory.member_ids()), "the same members");
        assert_eq!(directory.endpoint_of(3), None, "it was not heard yet");
        later.members.pop();
        directory.learn(&later);
        assert_eq!(*directory.member_ids(), [2, 3]);
        directory.learn(&members(Some(3), 5));
        assert_eq!(*directory.member_ids(), [2, 3], "of an earlier term");
    }

    #[test]
    fn older_knowledge_replaces_nothing() {
        let directory = directory();
        directory.learn(&members(Some(3), 5));
        let mut changes = directory.changes();
        directory.learn(&members(Some(2), 4));
        directory.learn(&members(None, 5));
        directory.learn_leader(1, "n1:1", 4);
        assert_eq!(directory.leader().map(|(leader, _)| leader), Some(3));
        assert!(!changes.has_changed().unwrap());
        directory.learn(&members(None, 6));
        assert_eq!(directory.leader(), None, "an election");
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        directory.learn_leader(2, "n2:1", 6);
        assert_eq!(
            directory.leader().map(|(leader, at)| (leader, at.address().to_owned())),
            Some((2, "n2:1".to_owned()))
        );
        assert!(changes.has_changed().unwrap());
    }

    /// The members of a restored cluster begin with low terms, and may be other nodes than before.
    #[test]
    fn a_restored_cluster_replaces_the_former_one_whatever_its_term() {
        let directory = directory();
        let of = |cluster, leader, term| ClusterMembers { cluster: Some(ClusterId(cluster)), ..members(leader, term) };
        directory.learn(&of(1, Some(3), 50));
        directory.cannot_reach(3);
        let changes = directory.changes();
        let mut restored = of(2, Some(2), 2);
        restored.members.pop();
        directory.learn(&restored);
        assert_eq!(directory.leader().map(|(leader, _)| leader), Some(2));
        assert_eq!(*directory.member_ids(), [1, 2]);
        assert!(directory.redirects() && changes.has_changed().unwrap());
        directory.learn_leader(1, "n1:1", 3);
        assert_eq!(directory.leader().map(|(leader, _)| leader), Some(1), "its terms count from now on");
        directory.learn(&of(2, Some(2), 2));
        directory.learn(&members(Some(2), 2));
        assert_eq!(directory.leader().map(|(leader, _)| leader), Some(1), "older, and perhaps without the id");
    }

    #[test]
    fn ids_belong_to_the_data_of_one_cluster_or_single_node() {
        let directory = directory();
        let learn = |cluster| {
            directory.learn(&ClusterMembers { cluster: Some(ClusterId(cluster)), ..members(Some(3), 5) });
            directory.data()
        };
        directory.learn(&members(Some(3), 5));
        assert_eq!(directory.data(), 0, "an older server states no cluster");
        assert_eq!([1, 1, 2, 2].map(learn), [0, 0, 1, 1]);
        directory.note_single(7);
        directory.note_single(7);
        assert_eq!(directory.data(), 2, "the same node");
        directory.note_single(8);
        assert_eq!(directory.data(), 3);
    }

    /// `--cluster-init` keeps the data of a node that was alone, so the ids that a client has stay valid. The node is one
    /// of the cluster's members 1, 2 and 3 then. If it is not, the client has other data before it.
    #[test]
    fn a_node_that_founds_a_cluster_keeps_its_ids() {
        for (alone, data) in [(2, 0), (9, 1)] {
            let directory = directory();
            directory.note_single(alone);
            directory.learn(&ClusterMembers { cluster: Some(ClusterId(1)), ..members(Some(2), 5) });
            assert_eq!(directory.data(), data, "node {alone}");
            assert_eq!(directory.leader().map(|(leader, _)| leader), Some(2));
        }
    }

    #[test]
    fn writes_are_redirected_only_to_a_leader_in_reach() {
        let directory = directory();
        assert!(!directory.redirects(), "no leader is known");
        directory.learn(&members(Some(3), 5));
        assert!(directory.redirects());
        directory.cannot_reach(3);
        assert!(!directory.redirects(), "the server passes them on");
        directory.learn(&members(Some(3), 5));
        assert!(!directory.redirects(), "the same leader");
        directory.reached(3);
        assert!(directory.redirects());
        directory.forget_leader(5);
        assert!(!directory.redirects(), "the server passes them on");
        directory.learn(&members(Some(3), 5));
        assert!(directory.redirects());
        directory.cannot_reach(3);
        directory.learn(&members(Some(2), 6));
        assert!(directory.redirects(), "another leader may be in reach");
    }

    #[test]
    fn a_doubt_is_taken_once() {
        let directory = directory();
        assert!(!directory.take_doubt(2));
        directory.doubt(2);
        assert!(!directory.take_doubt(3));
        assert!(directory.take_doubt(2));
        assert!(!directory.take_doubt(2));
    }
}
