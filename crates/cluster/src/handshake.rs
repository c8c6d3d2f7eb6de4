//! The handshake of a connection, on both sides.
//!
//! Owns: the checks of each step, their order, and the time that they may take. Does not own: the bytes (`wire::peer`).
//!
//! Invariant: before the proof of the peer is verified, a side reads at most `MAX_HANDSHAKE_BYTES` for a frame and keeps
//! nothing else of the peer.

use std::{borrow::Cow, io, time::Duration};

use thalweg_types::{ClusterId, NodeId};
use thalweg_wire::peer::{
    Challenge, Channel, Hello, MAX_HANDSHAKE_BYTES, PeerFrame, PeerKind, Proof, Rejected, Role, VERSION, Welcome,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use crate::{
    frames::{Frame, read_frame, write_frame},
    secret::{Proven, Secret, nonce},
};

/// Maximum time of a handshake.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Version of this software, for the logs of other nodes.
const SOFTWARE: &str = env!("CARGO_PKG_VERSION");

/// Facts about this node that its handshakes state and check.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Id of the cluster.
    pub cluster: ClusterId,
    /// Id of this node.
    pub node: NodeId,
    /// Address at which other nodes reach this one.
    pub address: String,
    /// Secret of the cluster.
    pub secret: Secret,
}

/// Error of a handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection failed, or the peer does not follow the protocol.
    #[error("the handshake with the node failed: {0}")]
    Io(#[from] io::Error),
    /// The handshake took too long.
    #[error("the handshake with the node took longer than {} s", HANDSHAKE_LIMIT.as_secs())]
    TooSlow,
    /// The peer has rejected this node.
    #[error("the node has rejected the connection ({code}): {reason}")]
    Rejected {
        /// Code of the reason.
        code: String,
        /// Reason, for people.
        reason: String,
    },
    /// The peer does not know the secret of the cluster.
    #[error("the node at this address does not know the secret of the cluster")]
    WrongSecret,
    /// Another node answers at the address of the expected one.
    #[error("node {found} answers at the address of node {expected}")]
    OtherNode {
        /// Node that was dialled.
        expected: NodeId,
        /// Node that answered.
        found: NodeId,
    },
    /// This node rejects the peer.
    #[error("rejected a node ({code}): {reason}")]
    Refused {
        /// Code of the reason.
        code: &'static str,
        /// Reason, for people.
        reason: String,
    },
}

/// Peer of an accepted connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub node: NodeId,
    pub address: String,
    pub channel: Channel,
}

fn malformed(what: &str) -> HandshakeError {
    HandshakeError::Io(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()))
}

/// Reads the next frame of a handshake, which must be of `kind`.
async fn expect(stream: &mut (impl AsyncRead + Unpin), kind: PeerKind) -> Result<Frame, HandshakeError> {
    let frame = read_frame(stream, MAX_HANDSHAKE_BYTES).await?;
    let frame = frame.ok_or_else(|| malformed("the connection ended during the handshake"))?;
    match frame.kind {
        Some(found) if found == kind => Ok(frame),
        Some(PeerKind::Rejected) => {
            let rejected = Rejected::decode_body(&frame.body).map_err(|_| malformed("a malformed rejection"))?;
            Err(HandshakeError::Rejected { code: rejected.code.to_owned(), reason: rejected.reason.to_owned() })
        }
        _ => Err(malformed("another frame than the handshake needs")),
    }
}

/// Performs the handshake of a connection that this node has dialled. `expected` is the node at that address; `None` if
/// its id is not known yet. Returns the id of the node that answered.
pub(crate) async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: &Credentials,
    channel: Channel,
    expected: Option<NodeId>,
) -> Result<NodeId, HandshakeError> {
    timeout(HANDSHAKE_LIMIT, dial_unbounded(stream, credentials, channel, expected))
        .await
        .map_err(|_| HandshakeError::TooSlow)?
}

async fn dial_unbounded<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: &Credentials,
    channel: Channel,
    expected: Option<NodeId>,
) -> Result<NodeId, HandshakeError> {
    let hello = Hello {
        magic: Hello::magic(),
        min_version: VERSION,
        max_version: VERSION,
        cluster_low: credentials.cluster.0 as u64,
        cluster_high: (credentials.cluster.0 >> 64) as u64,
        node: credentials.node,
        channel,
        nonce: nonce(),
        address: &credentials.address,
        software: SOFTWARE,
    };
    let mut hello_body = Vec::new();
    thalweg_types::codec::Field::put(&hello, &mut hello_body).map_err(|_| malformed("the address is too long"))?;
    write_frame(stream, &hello).await?;
    let frame = expect(stream, PeerKind::Challenge).await?;
    let challenge = Challenge::decode_body(&frame.body).map_err(|_| malformed("a malformed challenge"))?;
    let proven = Proven {
        hello: &hello_body,
        version: challenge.version,
        acceptor: challenge.node,
        nonce: &challenge.nonce,
        binding: &[],
    };
    if challenge.version != VERSION || !credentials.secret.verify(Role::Acceptor, proven, &challenge.proof) {
        return Err(HandshakeError::WrongSecret);
    }
    if let Some(expected) = expected
        && expected != challenge.node
    {
        return Err(HandshakeError::OtherNode { expected, found: challenge.node });
    }
    write_frame(stream, &Proof { proof: credentials.secret.prove(Role::Dialler, proven) }).await?;
    let frame = expect(stream, PeerKind::Welcome).await?;
    Welcome::decode_body(&frame.body).map_err(|_| malformed("a malformed welcome"))?;
    Ok(challenge.node)
}

/// Performs the handshake of a connection that this node has accepted. `admits` decides by id if this node talks to the
/// peer, and returns the reason if it does not.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: &Credentials,
    admits: impl Fn(NodeId) -> Result<(), Cow<'static, str>>,
) -> Result<Peer, HandshakeError> {
    let accepted = timeout(HANDSHAKE_LIMIT, accept_unbounded(stream, credentials, admits)).await;
    let accepted = accepted.unwrap_or(Err(HandshakeError::TooSlow));
    if let Err(HandshakeError::Refused { code, reason }) = &accepted {
        // The peer may be gone, or not speak the protocol.
        let _ = write_frame(stream, &Rejected { code, reason }).await;
        let _ = stream.shutdown().await;
    }
    accepted
}

async fn accept_unbounded<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    credentials: &Credentials,
    admits: impl Fn(NodeId) -> Result<(), Cow<'static, str>>,
) -> Result<Peer, HandshakeError> {
    let frame = expect(stream, PeerKind::Hello).await?;
    let hello = Hello::decode_body(&frame.body).map_err(|_| malformed("a malformed hello"))?;
    let refused = |code, reason: String| HandshakeError::Refused { code, reason };
    let Some(version) = hello.common_version() else {
        let (min, max) = (hello.min_version, hello.max_version);
        return Err(refused("version", format!("this node speaks version {VERSION}, the other {min} to {max}")));
    };
    if hello.cluster() != credentials.cluster.0 {
        return Err(refused("cluster", "the nodes belong to different clusters".to_owned()));
    }
    if hello.node == credentials.node {
        return Err(refused("node", "the node has the id of this node".to_owned()));
    }
    admits(hello.node).map_err(|reason| refused("node", reason.into_owned()))?;
    let nonce = nonce();
    let proven = Proven { hello: &frame.body, version, acceptor: credentials.node, nonce: &nonce, binding: &[] };
    let proof = credentials.secret.prove(Role::Acceptor, proven);
    write_frame(stream, &Challenge { version, node: credentials.node, nonce, proof }).await?;
    let answer = expect(stream, PeerKind::Proof).await?;
    let answer = Proof::decode_body(&answer.body).map_err(|_| malformed("a malformed proof"))?;
    if !credentials.secret.verify(Role::Dialler, proven, &answer.proof) {
        return Err(refused("secret", "the node does not know the secret of the cluster".to_owned()));
    }
    write_frame(stream, &Welcome { software: SOFTWARE }).await?;
    Ok(Peer { node: hello.node, address: hello.address.to_owned(), channel: hello.channel })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: u64, cluster: u128, secret: u8) -> Credentials {
        let secret = Secret::new(&[secret; 32]);
        Credentials { cluster: ClusterId(cluster), node: NodeId(node), address: format!("n{node}:1"), secret }
    }

    async fn meet(
        dialler: Credentials,
        acceptor: Credentials,
        admits: Result<(), Cow<'static, str>>,
    ) -> (Result<NodeId, HandshakeError>, Result<Peer, HandshakeError>) {
        let (mut near, mut far) = tokio::io::duplex(4096);
        let expected = Some(acceptor.node);
        tokio::join!(async move { dial(&mut near, &dialler, Channel::Control, expected).await }, async move {
            accept(&mut far, &acceptor, |_| admits.clone()).await
        },)
    }

    #[tokio::test]
    async fn nodes_of_one_cluster_meet() {
        let (dialled, accepted) = meet(node(1, 9, 5), node(2, 9, 5), Ok(())).await;
        assert_eq!(dialled.unwrap(), NodeId(2));
        let peer = Peer { node: NodeId(1), address: "n1:1".to_owned(), channel: Channel::Control };
        assert_eq!(accepted.unwrap(), peer);
    }

    #[tokio::test]
    async fn strangers_are_told_why_they_are_rejected() {
        let code = |dialled: Result<NodeId, HandshakeError>| match dialled {
            Err(HandshakeError::Rejected { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        let (dialled, accepted) = meet(node(1, 8, 5), node(2, 9, 5), Ok(())).await;
        assert_eq!(code(dialled), "cluster");
        assert!(matches!(accepted, Err(HandshakeError::Refused { code: "cluster", .. })));
        let (dialled, _) = meet(node(1, 9, 5), node(2, 9, 5), Err("it was removed".into())).await;
        assert_eq!(code(dialled), "node");
        let (dialled, _) = meet(node(2, 9, 5), node(2, 9, 5), Ok(())).await;
        assert_eq!(code(dialled), "node");
    }

    #[tokio::test]
    async fn a_wrong_secret_is_noticed_on_both_sides() {
        let (dialled, accepted) = meet(node(1, 9, 6), node(2, 9, 5), Ok(())).await;
        assert!(matches!(dialled, Err(HandshakeError::WrongSecret)), "{dialled:?}");
        assert!(accepted.is_err());
        // A dialler that does not check the acceptor is rejected by it.
        let (mut near, mut far) = tokio::io::duplex(4096);
        let acceptor = node(2, 9, 5);
        let forging = async move {
            let hello = Hello {
                magic: Hello::magic(),
                min_version: 1,
                max_version: 1,
                cluster_low: 9,
                cluster_high: 0,
                node: NodeId(1),
                channel: Channel::Appends,
                nonce: nonce(),
                address: "",
                software: "",
            };
            write_frame(&mut near, &hello).await.unwrap();
            expect(&mut near, PeerKind::Challenge).await.unwrap();
            write_frame(&mut near, &Proof { proof: nonce() }).await.unwrap();
            expect(&mut near, PeerKind::Welcome).await.map(drop)
        };
        let (forged, accepted) = tokio::join!(forging, accept(&mut far, &acceptor, |_| Ok(())));
        assert!(matches!(forged, Err(HandshakeError::Rejected { code, .. }) if code == "secret"));
        assert!(matches!(accepted, Err(HandshakeError::Refused { code: "secret", .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_costs_a_bounded_time() {
        let (_near, mut far) = tokio::io::duplex(4096);
        let accepted = accept(&mut far, &node(2, 9, 5), |_| Ok(())).await;
        assert!(matches!(accepted, Err(HandshakeError::TooSlow)));
    }

    #[tokio::test]
    async fn garbage_is_rejected() {
        for garbage in [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".as_slice(), &[0xff; 64], &[0; 64]] {
            let mut stream = tokio_test_stream(garbage);
            assert!(accept(&mut stream, &node(2, 9, 5), |_| Ok(())).await.is_err());
        }
    }

    /// A stream that delivers `bytes` and then ends.
    fn tokio_test_stream(bytes: &[u8]) -> tokio::io::DuplexStream {
        let (mut near, far) = tokio::io::duplex(4096);
        let bytes = bytes.to_vec();
        tokio::spawn(async move { near.write_all(&bytes).await });
        far
    }
}
