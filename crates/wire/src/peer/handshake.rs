//! The handshake of a connection between nodes.
//!
//! ```text
//! dialling node                           accepting node
//! hello      version range, cluster, ──►
//!            node, channel, nonce
//!                                    ◄──  begin TLS, if both nodes use it, or rejected with a code
//!                    (TLS handshake)
//!                                    ◄──  challenge  version, node, nonce, its proof
//! proof                              ──►
//!                                    ◄──  welcome, or rejected with a code
//! ```
//! Both nodes prove that they know the cluster's secret. A proof is an HMAC-SHA256 with this secret over
//! [`transcript`]. The transcript contains the role of the prover, both frames with their nonces, and the identifier of
//! the encrypted session, if there is one. So a proof is valid only for one connection and one direction. The handshake
//! itself does not encrypt; links between machines use TLS.
//!
//! The hello comes before the TLS session, so that a node rejects strangers without the work and the memory of a TLS
//! handshake. The hello ends with a seal: an HMAC with the cluster's secret. It shows that the hello's author knew the
//! secret, but a stranger may replay the hello. The proofs show that the peer at the other end of this session knows
//! the secret.
//!
//! Owns: the frames, and the choice of the bytes that are authenticated. Does not own: the computation of the HMAC, or
//! time limits.

use thalweg_types::{
    NodeId,
    codec::{EncodeError, Field, Malformed, Reader, choices, structure},
};

/// Highest version of the protocol between nodes that this build supports.
pub const VERSION: u16 = 4;

/// Lowest version of the protocol between nodes that this build supports.
pub const MIN_VERSION: u16 = 1;

/// Lowest protocol version that has the channel for subjects (pub/sub messages between nodes).
pub const SUBJECTS_FROM: u16 = 2;

/// Lowest protocol version in which frames have short headers, and in which nodes send signs of life, facts and short
/// heartbeats.
pub const SHORT_FROM: u16 = 3;

/// Lowest version at which the random number of a hello begins with the number that the dialling node's process has
/// chosen at its start (its run).
pub const RUN_FROM: u16 = 4;

/// Magic number `TWPR`, which identifies the protocol between nodes.
const MAGIC: u32 = u32::from_le_bytes(*b"TWPR");

/// Magic number of the protocol between nodes, as a field of a frame. Its encoding is always the bytes `TWPR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerMagic;

impl<'a> Field<'a> for PeerMagic {
    fn layout() -> String {
        "magic".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        MAGIC.put(out)
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let at = reader.position();
        if reader.u32(what)? == MAGIC { Ok(Self) } else { Err(Malformed { at, expected: "the magic number TWPR" }) }
    }
}

/// 32 bytes in a frame of the handshake: a random number for one use, or an HMAC that proves that a node knows the
/// cluster's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; 32]);

impl<'a> Field<'a> for Nonce {
    const FIXED_BYTES: Option<usize> = Some(32);

    fn layout() -> String {
        "32 bytes".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(&self.0);
        Ok(())
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let bytes = reader.take(32, what)?;
        Ok(Self(bytes.try_into().expect("as many bytes as requested")))
    }
}

/// Number of one run of a node's process, from its start to its end. Each process chooses a random number, so two
/// processes with the same node id have different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRun(pub [u8; 16]);

impl Nonce {
    /// Replaces the first half of a random number by the number of a process's run. The second half still makes it
    /// unique.
    #[must_use]
    pub fn with_run(mut self, run: PeerRun) -> Self {
        self.0[..16].copy_from_slice(&run.0);
        self
    }
}

choices! {
    /// Use of a connection between nodes. Each use has its own connection, so a long frame of one use never delays
    /// another use.
    Channel as "channel" {
        /// The connection carries log entries from the leader.
        Appends = 0 "appends",
        /// The connection carries votes, pings, read barriers and membership changes: short frames that must not wait.
        Control = 1 "control",
        /// The connection carries snapshots of the state.
        Snapshots = 2 "snapshots",
        /// The connection carries commands that a follower forwards to the leader.
        Proposals = 3 "proposals",
        /// The connection carries subject filters of the dialling node, and messages for the accepting node's
        /// subscribers. Only for nodes of version 2 or later.
        Subjects = 4 "subjects",
    }
}

choices! {
    /// Protection of a connection between nodes after the hello.
    Protection as "protection" {
        /// Plain TCP, between nodes on one machine.
        Plain = 0 "plain",
        /// A TLS session, which begins after the hello.
        Tls = 1 "tls",
    }
}

structure! {
    /// First frame of a connection, from the dialling node. Its layout is the same in every version of the protocol.
    Hello<'a> as "hello" {
        /// Magic number `TWPR`, which identifies the protocol between nodes.
        magic: PeerMagic,
        /// Lowest protocol version that the dialling node speaks.
        min_version: u16,
        /// Highest protocol version that the dialling node speaks.
        max_version: u16,
        /// Lower 64 bits of the cluster's id.
        cluster_low: u64,
        /// Upper 64 bits of the cluster's id.
        cluster_high: u64,
        /// Id of the dialling node.
        node: NodeId,
        /// Use of the connection, such as log entries or snapshots.
        channel: Channel,
        /// Protection of the connection that the dialling node uses: plain TCP or TLS.
        protection: Protection,
        /// Random number of the dialling node. If the node speaks version [`RUN_FROM`] or later, the number begins with
        /// that of the process's run, see [`PeerRun`].
        nonce: Nonce,
        /// Address at which other nodes reach the dialling node.
        address: &'a str,
        /// Version of the dialling node's software, for people.
        software: &'a str,
        /// Seal: an HMAC over all other bytes of the hello's body, see [`sealed_bytes`]. The accepting node begins a
        /// TLS session only after a hello with a valid seal. A recorded hello also has a valid seal, so both nodes
        /// still have to prove the secret afterwards.
        seal: Nonce,
    }
}

impl Hello<'_> {
    /// Returns the magic number of the protocol between nodes.
    #[must_use]
    pub fn magic() -> PeerMagic {
        PeerMagic
    }

    /// Returns the id of the dialling node's cluster.
    #[must_use]
    pub fn cluster(&self) -> u128 {
        u128::from(self.cluster_high) << 64 | u128::from(self.cluster_low)
    }

    /// Returns the number that the dialling node's process has chosen for its run; `None` if the node speaks only
    /// earlier versions, in which a hello does not contain it.
    #[must_use]
    pub fn run(&self) -> Option<PeerRun> {
        let (run, _) = self.nonce.0.split_first_chunk().expect("a random number has 32 bytes");
        (self.max_version >= RUN_FROM).then_some(PeerRun(*run))
    }

    /// Returns the highest version that both nodes speak; `None` if there is none. `own_max` is the highest version
    /// that this node offers, at most [`VERSION`].
    #[must_use]
    pub fn common_version(&self, own_max: u16) -> Option<u16> {
        let highest = self.max_version.min(own_max).min(VERSION);
        (highest >= self.min_version.max(MIN_VERSION)).then_some(highest)
    }
}

structure! {
    /// Accepts a hello if both nodes use TLS. Sent by the accepting node. The next bytes of both sides belong to TLS.
    BeginTls as "begin TLS" {}
}

structure! {
    /// Answer of the accepting node to a hello: the version in use, and the proof that this node knows the secret.
    Challenge as "challenge" {
        /// Protocol version of the connection.
        version: u16,
        /// Id of the accepting node.
        node: NodeId,
        /// Random number of the accepting node.
        nonce: Nonce,
        /// Proof that the accepting node knows the cluster's secret.
        proof: Nonce,
    }
}

structure! {
    /// Proof that the dialling node knows the cluster's secret.
    Proof as "proof" {
        /// Proof that the dialling node knows the cluster's secret.
        proof: Nonce,
    }
}

structure! {
    /// Last frame of the handshake, from the accepting node. Requests may follow.
    Welcome<'a> as "welcome" {
        /// Version of the accepting node's software, for people.
        software: &'a str,
    }
}

structure! {
    /// Rejects a connection during the handshake. The accepting node sends this frame and then closes the connection.
    Rejected<'a> as "rejected" {
        /// Code of the reason for the rejection: `version`, `cluster`, `node`, `self`, `copy`, `protection`, `secret`,
        /// `certificate`, `removed`.
        code: &'a str,
        /// Reason for the rejection, described for people.
        reason: &'a str,
    }
}

/// Side of a connection that proves that it knows the cluster's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The node that has dialled the connection proves that it knows the secret.
    Dialler,
    /// The node that has accepted the connection proves that it knows the secret.
    Acceptor,
}

/// Returns the bytes over which a node computes the proof that it knows the cluster's secret. `hello` is the body of
/// the hello frame as sent. `binding` identifies the encrypted session; it is empty without one.
#[must_use]
pub fn transcript(role: Role, hello: &[u8], version: u16, acceptor: NodeId, nonce: &Nonce, binding: &[u8]) -> Vec<u8> {
    let label: &[u8] = match role {
        Role::Dialler => b"thalweg peer dialler v1\0",
        Role::Acceptor => b"thalweg peer acceptor v1\0",
    };
    // Every part except the last has a fixed size or is preceded by its length. So different inputs give different
    // bytes.
    let hello_len = (hello.len() as u64).to_le_bytes();
    let parts: [&[u8]; 7] =
        [label, &hello_len, hello, &version.to_le_bytes(), &acceptor.0.to_le_bytes(), &nonce.0, binding];
    parts.concat()
}

/// Splits the body of a hello, as sent, into the bytes that its seal (an HMAC) covers, in two parts, and the seal.
/// Returns `None` if the body is too short for a seal.
#[must_use]
pub fn sealed_bytes(hello: &[u8]) -> Option<([&[u8]; 2], &[u8; 32])> {
    let (unsealed, seal) = hello.split_last_chunk()?;
    Some(([b"thalweg peer hello v1\0", unsealed], seal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_use_the_highest_version_that_both_speak() {
        let common = |min_version, max_version| {
            let hello = Hello {
                magic: Hello::magic(),
                min_version,
                max_version,
                cluster_low: 1,
                cluster_high: 0,
                node: NodeId(1),
                channel: Channel::Control,
                protection: Protection::Plain,
                nonce: Nonce([0; 32]),
                address: "",
                software: "",
                seal: Nonce([0; 32]),
            };
            [VERSION, 2].map(|own_max| hello.common_version(own_max))
        };
        let found = [common(1, 1), common(1, 2), common(2, 9)];
        assert_eq!(found, [[Some(1), Some(1)], [Some(2), Some(2)], [Some(4), Some(2)]]);
        assert_eq!([common(5, 9), common(0, 0), common(2, 1)], [[None; 2]; 3]);
        assert_eq!(common(3, 3), [Some(3), None]);
    }

    #[test]
    fn a_hello_states_the_run_from_version_4_on() {
        let run = PeerRun([7; 16]);
        let hello = |max_version| Hello {
            magic: Hello::magic(),
            min_version: 1,
            max_version,
            cluster_low: 1,
            cluster_high: 0,
            node: NodeId(1),
            channel: Channel::Control,
            protection: Protection::Plain,
            nonce: Nonce([3; 32]).with_run(run),
            address: "",
            software: "",
            seal: Nonce([0; 32]),
        };
        assert_eq!((hello(4).run(), hello(9).run(), hello(3).run()), (Some(run), Some(run), None));
        assert_eq!(hello(4).nonce.0[16..], [3; 16], "the other half stays random");
    }

    #[test]
    fn proofs_of_the_two_sides_and_of_other_connections_authenticate_other_bytes() {
        let bytes = |role, hello: &[u8], nonce, binding: &[u8]| {
            transcript(role, hello, 1, NodeId(2), &Nonce([nonce; 32]), binding)
        };
        let all = [
            bytes(Role::Dialler, b"hello", 1, b""),
            bytes(Role::Acceptor, b"hello", 1, b""),
            bytes(Role::Dialler, b"hello", 2, b""),
            bytes(Role::Dialler, b"hellp", 1, b""),
            bytes(Role::Dialler, b"hello", 1, b"x"),
            transcript(Role::Dialler, b"hello", 2, NodeId(2), &Nonce([1; 32]), b""),
            transcript(Role::Dialler, b"hello", 1, NodeId(3), &Nonce([1; 32]), b""),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one), "{at}");
        }
    }
}
