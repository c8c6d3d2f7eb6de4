//! Memberships and votes of a space (Raft group): the types and their encoding, byte by byte.
//!
//! Owns: `Membership`, `NodeInfo` and `Vote`, the limits of a membership, and the payloads of the records that contain
//! them. Does not own: the rules of changing a membership (`thalweg_raft`), or which membership is in force.
//!
//! ```text
//! membership   := configs u8 | config* | members u32 | member*               no member has a name
//!               | 0 u8 | configs u8 | config* | members u32 | named_member*  a member has one
//! config       := voters u32 | (node u64)*                                   ascending
//! member       := node u64 | address_len u16 | address                       ascending by node; UTF-8
//! named_member := node u64 | name_len u8 | name | address_len u16 | address  ascending by node; UTF-8
//! vote         := term u64 | node u64 | committed u8
//! ```
//! Little-endian, without trailing bytes. A config is a set of voters. A membership with more than one config is a
//! joint one: a decision needs a majority in every config. Every voter is a member; a member that votes in no config is
//! a learner. An empty address means that the member's address is not known yet: a single node has no peers that need
//! the address. Each membership has one encoding: the second form, with names, is invalid if no member has a name.
//!
//! The records of a space:
//!
//! | kind | term, index | payload |
//! |---|---|---|
//! | `Membership` | of the entry | a membership |
//! | `Vote` | the vote's term, 0 | a vote |
//! | `Blank` | of the entry | nothing: a leader's first entry of its term |
//! | `Truncate` | 0, the first void index | nothing: earlier entries from that index on are void (`valid.rs`) |
//! | `Purged` | of the last entry that may be missing | nothing |
//!
//! `Membership` and `Blank` records carry the space time of the previous entry, so that their time is the same on all
//! nodes.
//!
//! A directory begins with two records. The first is the membership at index 0 of term 0, which Raft writes when it is
//! initialised. The second is the vote that made its one voter leader of term 1.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use thalweg_types::{
    NodeId, Term,
    codec::{Malformed, Reader},
    limits::MAX_NODE_NAME_BYTES,
};

/// Maximum length of a member's address in bytes.
pub const MAX_ADDRESS_BYTES: usize = 1024;
/// Maximum length of a member's name in bytes.
pub const MAX_NAME_BYTES: usize = MAX_NODE_NAME_BYTES;
/// Bit of an address's length that is set for members that stay learners.
const STAYS_LEARNER: u16 = 1 << 15;
/// Maximum number of members of a space (Raft group), including learners.
pub const MAX_MEMBERS: usize = 1024;
/// Maximum number of configs (sets of voters) in a membership. A change of the membership uses two.
pub const MAX_CONFIGS: usize = 16;

/// Error returned for an invalid membership.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The membership has no config (set of voters), or more than [`MAX_CONFIGS`].
    #[error("a membership has 1 to {MAX_CONFIGS} configs")]
    Configs,
    /// A config of the membership has no voters.
    #[error("a config has at least one voter")]
    NoVoters,
    /// A config names a voter that is not among the members.
    #[error("voter {0} is not a member")]
    NotAMember(NodeId),
    /// The membership has more than [`MAX_MEMBERS`] members.
    #[error("a space has at most {MAX_MEMBERS} members")]
    TooManyMembers,
    /// The address of this member is longer than [`MAX_ADDRESS_BYTES`].
    #[error("the address of node {0} is longer than {MAX_ADDRESS_BYTES} bytes")]
    AddressTooLong(NodeId),
    /// The name of this member is longer than [`MAX_NAME_BYTES`].
    #[error("the name of node {0} is longer than {MAX_NAME_BYTES} bytes")]
    NameTooLong(NodeId),
}

/// Name and address of a member. Both may be empty, which means that they are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Name for operators. It need not be unique: the node's id identifies the member.
    pub name: String,
    /// Address at which the other members reach the node.
    pub address: String,
    /// True if the member stays a learner: the leader makes it a voter only when an operator requests this.
    pub stays_learner: bool,
}

impl NodeInfo {
    /// Creates the description of a member without a name.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Self {
        Self { address: address.into(), ..Self::default() }
    }
}

impl fmt::Display for NodeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => f.write_str(&self.address),
            name => write!(f, "{name} ({})", self.address),
        }
    }
}

/// Membership of a space (Raft group): the voters, and the learners, which receive the space's entries without voting.
///
/// Invariants: 1 to [`MAX_CONFIGS`] configs, each with a voter; every voter is a member; at most
/// [`MAX_MEMBERS`] members with names of at most [`MAX_NAME_BYTES`] and addresses of at most [`MAX_ADDRESS_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    configs: Vec<BTreeSet<NodeId>>,
    members: BTreeMap<NodeId, NodeInfo>,
}

impl Membership {
    /// Creates a membership from its configs (sets of voters) and the names and addresses of its members.
    pub fn new(configs: Vec<BTreeSet<NodeId>>, members: BTreeMap<NodeId, NodeInfo>) -> Result<Self, MembershipError> {
        if configs.is_empty() || configs.len() > MAX_CONFIGS {
            return Err(MembershipError::Configs);
        }
        if configs.iter().any(BTreeSet::is_empty) {
            return Err(MembershipError::NoVoters);
        }
        if let Some(stranger) = configs.iter().flatten().find(|voter| !members.contains_key(voter)) {
            return Err(MembershipError::NotAMember(*stranger));
        }
        if members.len() > MAX_MEMBERS {
            return Err(MembershipError::TooManyMembers);
        }
        for (node, info) in &members {
            if info.address.len() > MAX_ADDRESS_BYTES {
                return Err(MembershipError::AddressTooLong(*node));
            }
            if info.name.len() > MAX_NAME_BYTES {
                return Err(MembershipError::NameTooLong(*node));
            }
        }
        Ok(Self { configs, members })
    }

    /// Creates the membership in which `node` is the only voter and member.
    #[must_use]
    pub fn of_one(node: NodeId) -> Self {
        Self { configs: vec![BTreeSet::from([node])], members: BTreeMap::from([(node, NodeInfo::default())]) }
    }

    /// Configs (sets of voters) of the membership: one, or two while it changes.
    #[must_use]
    pub fn configs(&self) -> &[BTreeSet<NodeId>] {
        &self.configs
    }

    /// All members with their names and addresses, including learners.
    #[must_use]
    pub fn members(&self) -> &BTreeMap<NodeId, NodeInfo> {
        &self.members
    }

    /// All nodes that vote in at least one config of the membership.
    #[must_use]
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.configs.iter().flatten().copied().collect()
    }

    /// The only voter; `None` if there are several. Such a voter decides alone, even if the space (Raft group) has
    /// learners.
    #[must_use]
    pub fn sole_voter(&self) -> Option<NodeId> {
        let voters = self.voters();
        if voters.len() == 1 { voters.first().copied() } else { None }
    }

    /// Encodes the membership as the payload of its log record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // The casts cannot overflow because of the type's invariants.
        let has_names = self.members.values().any(|info| !info.name.is_empty());
        let mut out = if has_names { vec![0] } else { Vec::new() };
        out.push(self.configs.len() as u8);
        for config in &self.configs {
            out.extend_from_slice(&(config.len() as u32).to_le_bytes());
            config.iter().for_each(|voter| out.extend_from_slice(&voter.0.to_le_bytes()));
        }
        out.extend_from_slice(&(self.members.len() as u32).to_le_bytes());
        for (node, NodeInfo { name, address, stays_learner }) in &self.members {
            out.extend_from_slice(&node.0.to_le_bytes());
            if has_names {
                out.push(name.len() as u8);
                out.extend_from_slice(name.as_bytes());
            }
            let flag = if *stays_learner { STAYS_LEARNER } else { 0 };
            out.extend_from_slice(&(address.len() as u16 | flag).to_le_bytes());
            out.extend_from_slice(address.as_bytes());
        }
        out
    }

    /// Decodes a membership from the payload of its log record. Returns `None` if the payload is malformed.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::at(payload, 0);
        let mut configs = Vec::new();
        let mut count = reader.u8("number of configs").ok()?;
        let has_names = count == 0;
        if has_names {
            count = reader.u8("number of configs").ok()?;
        }
        for _ in 0..count {
            let voters = reader.u32("number of voters").ok()?;
            configs.push(
                ascending(voters, || reader.u64("voter").map(|voter| (NodeId(voter), ())))?.into_keys().collect(),
            );
        }
        let members = reader.u32("number of members").ok()?;
        let members = ascending(members, || decode_member(&mut reader, has_names))?;
        if !reader.is_empty() || has_names != members.values().any(|info| !info.name.is_empty()) {
            return None;
        }
        Self::new(configs, members).ok()
    }
}

/// Reads `count` pairs of a node and a value. Returns `None` if the nodes do not ascend. Allocates memory only for
/// pairs that the bytes really contain.
fn ascending<T>(count: u32, mut next: impl FnMut() -> Result<(NodeId, T), Malformed>) -> Option<BTreeMap<NodeId, T>> {
    let mut pairs = BTreeMap::new();
    for _ in 0..count {
        let (node, value) = next().ok()?;
        if pairs.last_key_value().is_some_and(|(last, _)| *last >= node) {
            return None;
        }
        pairs.insert(node, value);
    }
    Some(pairs)
}

fn decode_member(reader: &mut Reader<'_>, has_name: bool) -> Result<(NodeId, NodeInfo), Malformed> {
    let node = NodeId(reader.u64("member")?);
    let mut info = NodeInfo::default();
    if has_name {
        let len = reader.u8("name length")?;
        info.name = decode_text(reader, len.into(), "name")?;
    }
    let len = reader.u16("address length")?;
    info.stays_learner = len & STAYS_LEARNER > 0;
    info.address = decode_text(reader, (len & !STAYS_LEARNER).into(), "address")?;
    Ok((node, info))
}

fn decode_text(reader: &mut Reader<'_>, len: usize, what: &'static str) -> Result<String, Malformed> {
    let at = reader.position();
    let text = std::str::from_utf8(reader.take(len, what)?).map_err(|_| Malformed { at, expected: "UTF-8" })?;
    Ok(text.to_owned())
}

/// The vote that this node has cast for a leader of the space (Raft group).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// Raft term in which the vote was cast.
    pub term: Term,
    /// Node for which the vote was cast.
    pub node: NodeId,
    /// True if a quorum granted the vote, so that the node leads in this term.
    pub committed: bool,
}

impl Vote {
    /// Encodes the vote as the payload of its log record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17);
        out.extend_from_slice(&self.term.0.to_le_bytes());
        out.extend_from_slice(&self.node.0.to_le_bytes());
        out.push(u8::from(self.committed));
        out
    }

    /// Decodes a vote from the payload of its log record. Returns `None` if the payload is malformed.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::at(payload, 0);
        let term = Term(reader.u64("term").ok()?);
        let node = NodeId(reader.u64("node").ok()?);
        let committed = match reader.u8("committed").ok()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        reader.is_empty().then_some(Self { term, node, committed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joint() -> Membership {
        let configs = vec![BTreeSet::from([NodeId(1)]), BTreeSet::from([NodeId(1), NodeId(2)])];
        let member = |node, address: &str| (NodeId(node), NodeInfo::at(address));
        Membership::new(configs, BTreeMap::from([member(1, ""), member(2, "a:1"), member(3, "b")])).unwrap()
    }

    fn named() -> Membership {
        let members = [
            (NodeId(1), NodeInfo { name: "ax".to_owned(), address: "a:1".to_owned(), stays_learner: true }),
            (NodeId(2), NodeInfo::at("b")),
        ];
        Membership::new(vec![BTreeSet::from([NodeId(1)])], BTreeMap::from(members)).unwrap()
    }

    #[test]
    fn encodings_are_pinned_and_come_back() {
        let one = Membership::of_one(NodeId(7));
        let bytes = b"\x01\x01\0\0\0\x07\0\0\0\0\0\0\0\x01\0\0\0\x07\0\0\0\0\0\0\0\0\0";
        assert_eq!(one.encode(), bytes);
        assert_eq!(Membership::decode(bytes), Some(one));
        let bytes = [
            b"\x02\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".as_slice(),
            b"\x03\0\0\0\x01\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0a:1\x03\0\0\0\0\0\0\0\x01\0b",
        ]
        .concat();
        assert_eq!(joint().encode(), bytes);
        assert_eq!(Membership::decode(&bytes), Some(joint()));
        let bytes = [
            b"\0\x01\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0".as_slice(),
            b"\x01\0\0\0\0\0\0\0\x02ax\x03\x80a:1\x02\0\0\0\0\0\0\0\0\x01\0b",
        ]
        .concat();
        assert_eq!(named().encode(), bytes);
        assert_eq!(Membership::decode(&bytes), Some(named()));
        let vote = Vote { term: Term(1), node: NodeId(2), committed: true };
        assert_eq!(vote.encode(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(Vote::decode(&vote.encode()), Some(vote));
    }

    #[test]
    fn a_learner_does_not_make_a_voter_less_alone() {
        assert_eq!(joint().sole_voter(), None);
        let members = BTreeMap::from([(NodeId(1), NodeInfo::default()), (NodeId(2), NodeInfo::default())]);
        let with_learner = Membership::new(vec![BTreeSet::from([NodeId(1)])], members).unwrap();
        assert_eq!(with_learner.sole_voter(), Some(NodeId(1)));
    }

    #[test]
    fn impossible_memberships_are_refused() {
        let voters = |nodes: &[u64]| nodes.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
        let members = || BTreeMap::from([(NodeId(1), NodeInfo::default())]);
        assert_eq!(Membership::new(vec![], members()), Err(MembershipError::Configs));
        assert_eq!(Membership::new(vec![voters(&[])], members()), Err(MembershipError::NoVoters));
        let stranger = Membership::new(vec![voters(&[1, 2])], members());
        assert_eq!(stranger, Err(MembershipError::NotAMember(NodeId(2))));
        let long = BTreeMap::from([(NodeId(1), NodeInfo::at("a".repeat(MAX_ADDRESS_BYTES + 1)))]);
        assert_eq!(Membership::new(vec![voters(&[1])], long), Err(MembershipError::AddressTooLong(NodeId(1))));
        let long = NodeInfo { name: "a".repeat(MAX_NAME_BYTES + 1), ..NodeInfo::default() };
        let long = Membership::new(vec![voters(&[1])], BTreeMap::from([(NodeId(1), long)]));
        assert_eq!(long, Err(MembershipError::NameTooLong(NodeId(1))));
    }

    #[test]
    fn garbage_is_refused() {
        for bad in [[255; 12].as_slice(), &[], &[0; 5], &[1, 255, 255, 255, 255]] {
            assert_eq!(Membership::decode(bad), None, "{bad:?}");
        }
        for bytes in [joint().encode(), named().encode()] {
            for cut in 0..bytes.len() {
                assert_eq!(Membership::decode(&bytes[..cut]), None, "{cut}");
            }
            assert_eq!(Membership::decode(&[bytes, vec![0]].concat()), None);
        }
        // The form with names, for a membership without any.
        let bytes = b"\0\x01\x01\0\0\0\x07\0\0\0\0\0\0\0\x01\0\0\0\x07\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(Membership::decode(bytes), None);
        assert_eq!(Vote::decode(&[2; 17]), None);
        assert_eq!(Vote::decode(&[0; 18]), None);
    }
}
