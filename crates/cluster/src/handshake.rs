//! The handshake of a connection, on both sides.
//!
//! Owns: the checks of each step, their order, and their time limit. Does not own: the bytes (`wire::peer`), or
//! certificates (`transport::PeerTls`).
//!
//! Invariants: before a side has verified the peer's proof, it reads at most `MAX_HANDSHAKE_BYTES` for a frame and
//! stores nothing else of the peer. An accepting side begins a TLS session only after it has accepted the peer's hello,
//! the first frame of the dialling side. Until then it allocates less than 4 KiB.

use std::{
    borrow::Cow,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use thalweg_replica::NodeInfo;
use thalweg_transport::PeerTls;
use thalweg_types::{ClusterId, NodeId};
use thalweg_wire::peer::{
    BeginTls, Challenge, Channel, HEADER_BYTES, Hello, MAX_HANDSHAKE_BYTES, MIN_VERSION, Nonce, PeerFrame, PeerKind,
    PeerRun, Proof, Protection, RUN_FROM, Rejected, Role, Welcome, encode,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use crate::{
    frames::{Frame, read_frame, write_frame},
    options::NodeOptions,
    secret::{Proven, Secret, nonce, own_run},
    secured::Secured,
};

/// Maximum time that a handshake may take before the connection is closed.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Version of this software. Other nodes write it to their logs.
const SOFTWARE: &str = env!("CARGO_PKG_VERSION");

/// Identity and secrets of this node and its cluster. In its handshakes, this node sends some of them to the peer, and
/// checks the peer's values against others.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Id of the cluster to which this node belongs.
    pub cluster: ClusterId,
    /// Id of this node.
    pub node: NodeId,
    /// Address at which other nodes reach this node.
    pub address: String,
    /// Secret of the cluster.
    pub secret: Secret,
    /// TLS of the links; `None` for plain TCP.
    pub tls: Option<PeerTls>,
    /// Highest version of the protocol that this node offers.
    pub max_version: u16,
    /// Random number of this process. A second process on a copy of this node's directory has another number, so other
    /// nodes can tell them apart.
    pub run: PeerRun,
    /// Flag that this node was removed from the cluster. A handshake sets it when a member reports the removal.
    pub removal: RemovalNotice,
}

/// Flag that this node was removed from the cluster; a member has reported this. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct RemovalNotice(Arc<AtomicBool>);

impl RemovalNotice {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Error code with which a member rejects connections and frames of a node that was removed.
pub(crate) const REMOVED: &str = "removed";
/// Error text for a node that was removed from the cluster, which gets the code [`REMOVED`].
pub(crate) const WAS_REMOVED: &str = "the node was removed from the cluster; it can only join with a new directory";

impl Credentials {
    /// Creates the credentials of a node in this process that has these options.
    pub(crate) fn of_node(cluster: ClusterId, node: NodeId, address: String, options: &NodeOptions) -> Self {
        Self {
            cluster,
            node,
            address,
            secret: options.secret.clone(),
            tls: options.tls.clone(),
            max_version: options.max_version,
            run: own_run(),
            removal: RemovalNotice::default(),
        }
    }

    fn protection(&self) -> Protection {
        if self.tls.is_some() { Protection::Tls } else { Protection::Plain }
    }
}

/// Name and addresses of a peer in the membership, which its certificate must match; `None` if the peer is not a
/// member.
pub(crate) type Names = Option<NodeInfo>;

/// Error code for a connection from a node with this node's own id. Usually, the node has dialled itself.
pub(crate) const OWN_ADDRESS: &str = "self";

/// Error code for a second process that has the id of a connected node or of this node.
pub(crate) const COPY: &str = "copy";

/// Returns the error text for a peer whose node id another running process already has, which gets the code [`COPY`].
fn copied(hello: &Hello<'_>) -> String {
    format!(
        "another process runs with the id of node {} at {}: a data directory was copied, or is used twice; stop one of \
         the two, and let it join with a new directory",
        hello.node, hello.address
    )
}

/// Reason why this node accepts no connections from a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The node was removed from the cluster. This node tells it so only after both have proved that they know the
    /// secret. Otherwise any stranger could stop a node with this message.
    Removed,
    /// Another process that has the same node id is already connected.
    Copy,
    /// Another reason for the rejection, described for people.
    Other(Cow<'static, str>),
}

impl From<&'static str> for Rejection {
    fn from(reason: &'static str) -> Self {
        Self::Other(reason.into())
    }
}

/// Error of a handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection failed, or the peer violates the protocol.
    #[error("the handshake with the node failed: {0}")]
    Io(#[from] io::Error),
    /// The handshake took longer than its time limit of 5 seconds.
    #[error("the handshake with the node took longer than {} s", HANDSHAKE_LIMIT.as_secs())]
    TooSlow,
    /// The other side of a dialled connection does not speak the protocol between nodes.
    #[error(
        "no node of a cluster answers at this address ({0}): give the address that the node has as its option \
         `cluster`, not one for clients"
    )]
    NotANode(String),
    /// The TLS session could not be established.
    #[error("no TLS session with the node: {0}")]
    Tls(String),
    /// The peer has rejected this node.
    #[error("the node has rejected the connection ({code}): {reason}")]
    Rejected {
        /// Error code that the peer has sent, for programs.
        code: String,
        /// Reason for the rejection that the peer has sent, for people.
        reason: String,
    },
    /// The peer is a member of the cluster, and reports that this node was removed.
    #[error("this node was removed from the cluster; it can only join with a new directory")]
    Removed,
    /// The peer does not know the cluster's secret, or a relay between the nodes terminates the TLS session.
    #[error(
        "the node at this address does not know the secret of the cluster, or something between the nodes ends the TLS \
         session"
    )]
    WrongSecret,
    /// The dialled address belongs to another node than expected.
    #[error("node {found} answers at the address of node {expected}")]
    OtherNode {
        /// Node that should have answered at the dialled address.
        expected: NodeId,
        /// Node that has answered at the dialled address.
        found: NodeId,
    },
    /// This node rejects the peer that has dialled it.
    #[error("rejected a node ({code}): {reason}")]
    Refused {
        /// Error code that this node sends to the peer, for programs.
        code: &'static str,
        /// Reason that this node sends to the peer, for people.
        reason: String,
    },
}

/// Identity of the node at the other end of a connection that this node has dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DialledPeer {
    pub node: NodeId,
    /// Version of the protocol that both nodes use.
    pub version: u16,
}

/// Identity of the node at the other end of a connection that this node has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub node: NodeId,
    pub address: String,
    pub channel: Channel,
    /// Version of the protocol that both nodes use.
    pub version: u16,
    /// Number of the peer's process; `None` if the peer's version is too old to state it.
    pub run: Option<PeerRun>,
}

fn malformed(what: &str) -> HandshakeError {
    HandshakeError::Io(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()))
}

/// Reads the next frame of a handshake. Returns an error if it is not of `kind`.
async fn expect(stream: &mut (impl AsyncRead + Unpin), kind: PeerKind) -> Result<Frame, HandshakeError> {
    let frame = read_frame(stream, MAX_HANDSHAKE_BYTES).await?;
    let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended during the handshake");
    let frame = frame.ok_or_else(ended)?;
    match frame.kind {
        Some(found) if found == kind => Ok(frame),
        Some(PeerKind::Rejected) => {
            let rejected = Rejected::decode_body(&frame.body).map_err(|_| malformed("a malformed rejection"))?;
            Err(HandshakeError::Rejected { code: rejected.code.to_owned(), reason: rejected.reason.to_owned() })
        }
        _ => Err(malformed("another frame than the handshake needs")),
    }
}

/// Encodes this node's hello as a frame. The hello ends with its seal: an HMAC of the hello, with the cluster's secret
/// as the key.
fn sealed_hello(credentials: &Credentials, channel: Channel) -> Result<Vec<u8>, HandshakeError> {
    let hello = Hello {
        magic: Hello::magic(),
        min_version: MIN_VERSION,
        max_version: credentials.max_version,
        cluster_low: credentials.cluster.0 as u64,
        cluster_high: (credentials.cluster.0 >> 64) as u64,
        node: credentials.node,
        channel,
        protection: credentials.protection(),
        nonce: if credentials.max_version >= RUN_FROM { nonce().with_run(credentials.run) } else { nonce() },
        address: &credentials.address,
        software: SOFTWARE,
        seal: Nonce([0; 32]),
    };
    let mut frame = Vec::new();
    encode(&hello, 0, &mut frame).map_err(|_| malformed("the address is too long"))?;
    credentials.secret.seal(&mut frame[HEADER_BYTES..]);
    Ok(frame)
}

/// Performs the handshake on a connection that this node has dialled. `host` is the dialled host. `expected` is the
/// node that should answer; `None` if its id is not known yet. Returns the node that has answered, and the secured
/// connection.
pub(crate) async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    credentials: &Credentials,
    channel: Channel,
    expected: Option<NodeId>,
    host: &str,
) -> Result<(DialledPeer, Secured<S>), HandshakeError> {
    timeout(HANDSHAKE_LIMIT, dial_unbounded(stream, credentials, channel, expected, host))
        .await
        .map_err(|_| HandshakeError::TooSlow)?
}

async fn dial_unbounded<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    credentials: &Credentials,
    channel: Channel,
    expected: Option<NodeId>,
    host: &str,
) -> Result<(DialledPeer, Secured<S>), HandshakeError> {
    let hello = sealed_hello(credentials, channel)?;
    stream.write_all(&hello).await?;
    stream.flush().await?;
    if credentials.tls.is_some() {
        // Before a TLS session, the other node confirms that it begins one, or states why not.
        let begins = expect(&mut stream, PeerKind::BeginTls).await.map_err(not_a_node)?;
        BeginTls::decode_body(&begins.body).map_err(|_| malformed("a malformed answer to the hello"))?;
    }
    let secured = Secured::connect(stream, credentials.tls.as_ref(), host).await;
    let mut stream = secured.map_err(|error| HandshakeError::Tls(format!("{host}: {error}")))?;
    let frame = expect(&mut stream, PeerKind::Challenge).await;
    let frame = frame.map_err(|error| if credentials.tls.is_some() { after_tls(error) } else { not_a_node(error) })?;
    let challenge = Challenge::decode_body(&frame.body).map_err(|_| malformed("a malformed challenge"))?;
    let proven = Proven {
        hello: &hello[HEADER_BYTES..],
        version: challenge.version,
        acceptor: challenge.node,
        nonce: &challenge.nonce,
        binding: &stream.binding()?,
    };
    if !(MIN_VERSION..=credentials.max_version).contains(&challenge.version) {
        return Err(malformed("the node speaks another version of the protocol"));
    }
    if !credentials.secret.verify(Role::Acceptor, proven, &challenge.proof) {
        return Err(HandshakeError::WrongSecret);
    }
    if let Some(expected) = expected
        && expected != challenge.node
    {
        return Err(HandshakeError::OtherNode { expected, found: challenge.node });
    }
    write_frame(&mut stream, &Proof { proof: credentials.secret.prove(Role::Dialler, proven) }).await?;
    // At this point the peer has proved that it knows the secret, so its message about a removal can be believed.
    let frame = match expect(&mut stream, PeerKind::Welcome).await {
        Err(HandshakeError::Rejected { code, .. }) if code == REMOVED => {
            credentials.removal.set();
            return Err(HandshakeError::Removed);
        }
        welcome => welcome?,
    };
    Welcome::decode_body(&frame.body).map_err(|_| malformed("a malformed welcome"))?;
    Ok((DialledPeer { node: challenge.node, version: challenge.version }, stream))
}

/// If the peer's first bytes are not a frame of a node, returns an error that says so, for example for the answer of an
/// HTTP server. Returns any other error unchanged.
fn not_a_node(error: HandshakeError) -> HandshakeError {
    match error {
        HandshakeError::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            HandshakeError::NotANode(error.to_string())
        }
        error => error,
    }
}

/// Converts the error of the first read after the TLS handshake. A TLS alert becomes an error about TLS; any other
/// error stays. The peer checks this node's certificate only after this node has finished its part of the TLS
/// handshake. So if the peer rejects the certificate, the alert arrives in place of the first frame.
fn after_tls(error: HandshakeError) -> HandshakeError {
    match error {
        HandshakeError::Io(error) if error.kind() == io::ErrorKind::InvalidData && error.get_ref().is_some() => {
            HandshakeError::Tls(format!("the node does not accept this node's certificate: {error}"))
        }
        error => error,
    }
}

/// Performs the handshake on a connection that this node has accepted. `admits` decides from the peer's hello if this
/// node accepts the peer. It returns the peer's description in the membership, or the reason for a rejection.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    credentials: &Credentials,
    admits: impl FnOnce(&Hello<'_>) -> Result<Names, Rejection>,
) -> Result<(Peer, Secured<S>), HandshakeError> {
    let accepted = timeout(HANDSHAKE_LIMIT, accept_unbounded(stream, credentials, admits)).await;
    accepted.unwrap_or(Err(HandshakeError::TooSlow))
}

/// Sends the peer the reason for its rejection. Ignores errors of sending, because the peer may have disconnected or
/// may not speak the protocol.
async fn reject<T>(stream: &mut (impl AsyncWrite + Unpin), error: HandshakeError) -> Result<T, HandshakeError> {
    if let HandshakeError::Refused { code, reason } = &error {
        let _ = write_frame(stream, &Rejected { code, reason }).await;
        let _ = stream.shutdown().await;
    }
    Err(error)
}

async fn accept_unbounded<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    credentials: &Credentials,
    admits: impl FnOnce(&Hello<'_>) -> Result<Names, Rejection>,
) -> Result<(Peer, Secured<S>), HandshakeError> {
    let frame = expect(&mut stream, PeerKind::Hello).await?;
    let hello = Hello::decode_body(&frame.body).map_err(|_| malformed("a malformed hello"))?;
    let (version, admitted) = match check_hello(&hello, &frame.body, credentials, admits) {
        Ok(checked) => checked,
        Err(error) => return reject(&mut stream, error).await,
    };
    if credentials.tls.is_some() {
        write_frame(&mut stream, &BeginTls {}).await?;
    }
    let secured = Secured::accept(stream, credentials.tls.as_ref()).await;
    let mut stream = secured.map_err(|error| {
        HandshakeError::Tls(format!("node {} at {}, as it calls itself: {error}", hello.node, hello.address))
    })?;
    match check_proof(&mut stream, &hello, &frame.body, version, &admitted, credentials).await {
        Ok(peer) => Ok((peer, stream)),
        Err(error) => reject(&mut stream, error).await,
    }
}

fn refused(code: &'static str, reason: impl Into<String>) -> HandshakeError {
    HandshakeError::Refused { code, reason: reason.into() }
}

/// Checks the hello (the first frame) of a dialling node, before this node reads or allocates anything else for it.
/// Returns the protocol version to use, and the dialling node's description in the membership. The description is
/// `None` if the dialling node was removed.
fn check_hello(
    hello: &Hello<'_>,
    body: &[u8],
    credentials: &Credentials,
    admits: impl FnOnce(&Hello<'_>) -> Result<Names, Rejection>,
) -> Result<(u16, Option<Names>), HandshakeError> {
    let Some(version) = hello.common_version(credentials.max_version) else {
        let (own_max, min, max) = (credentials.max_version, hello.min_version, hello.max_version);
        return Err(refused(
            "version",
            format!("this node speaks versions {MIN_VERSION} to {own_max}, the other {min} to {max}"),
        ));
    };
    if hello.cluster() != credentials.cluster.0 {
        return Err(refused("cluster", "the nodes belong to different clusters"));
    }
    if !credentials.secret.verify_seal(body) {
        return Err(refused("secret", "the node does not know the secret of the cluster"));
    }
    if hello.node == credentials.node {
        return Err(match hello.run() {
            Some(run) if run != credentials.run => refused(COPY, copied(hello)),
            _ => refused(OWN_ADDRESS, "the node has the id of this node"),
        });
    }
    if hello.protection != credentials.protection() {
        let reason = match hello.protection {
            Protection::Plain => "the node dials without TLS, and this one uses TLS: give both the same cluster_tls",
            Protection::Tls => "the node dials with TLS, and this one uses none: give both the same cluster_tls",
        };
        return Err(refused("protection", reason));
    }
    match admits(hello) {
        Ok(names) => Ok((version, Some(names))),
        Err(Rejection::Removed) => Ok((version, None)),
        Err(Rejection::Copy) => Err(refused(COPY, copied(hello))),
        Err(Rejection::Other(reason)) => Err(refused("node", reason)),
    }
}

/// Exchanges proofs of the cluster's secret with the peer over the secured connection. `admitted` is the peer's
/// description in the membership; `None` if the peer was removed from the cluster. A removed peer gets the error
/// [`REMOVED`] instead of a welcome.
async fn check_proof<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut Secured<S>,
    hello: &Hello<'_>,
    body: &[u8],
    version: u16,
    admitted: &Option<Names>,
    credentials: &Credentials,
) -> Result<Peer, HandshakeError> {
    if let Some(names) = admitted
        && credentials.tls.as_ref().is_some_and(PeerTls::has_authority)
    {
        check_certificate(stream, hello, names)?;
    }
    let nonce = nonce();
    let binding = stream.binding()?;
    let proven = Proven { hello: body, version, acceptor: credentials.node, nonce: &nonce, binding: &binding };
    let proof = credentials.secret.prove(Role::Acceptor, proven);
    write_frame(stream, &Challenge { version, node: credentials.node, nonce, proof }).await?;
    let answer = expect(stream, PeerKind::Proof).await?;
    let answer = Proof::decode_body(&answer.body).map_err(|_| malformed("a malformed proof"))?;
    if !credentials.secret.verify(Role::Dialler, proven, &answer.proof) {
        return Err(refused("secret", "the node does not know the secret of the cluster"));
    }
    if admitted.is_none() {
        return Err(refused(REMOVED, WAS_REMOVED));
    }
    write_frame(stream, &Welcome { software: SOFTWARE }).await?;
    let (address, run) = (hello.address.to_owned(), hello.run());
    Ok(Peer { node: hello.node, address, channel: hello.channel, version, run })
}

/// Checks that the peer's certificate belongs to the node that the peer claims to be. The certificate of a member must
/// name the member's name or host in the membership. The certificate of a joining node must name the host in its hello.
/// The same is true for the cluster's first node until the membership has its address.
fn check_certificate<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &Secured<S>,
    hello: &Hello<'_>,
    names: &Names,
) -> Result<(), HandshakeError> {
    let wanted = match names {
        Some(info) if !info.address.is_empty() => vec![info.name.as_str(), host_of(&info.address)],
        Some(_) | None => vec![host_of(hello.address)],
    };
    if stream.peer_is_any(wanted.iter().copied()) {
        return Ok(());
    }
    let wanted = wanted.join(" or ");
    let reason =
        format!("the certificate does not name {wanted}: make one with `thalweg cluster create-cert` that does");
    Err(refused("certificate", reason))
}

/// Returns the host of an address, without the brackets of an IPv6 address.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use thalweg_wire::peer::VERSION;

    use super::*;

    fn node(node: u64, cluster: u128, secret: u8) -> Credentials {
        let secret = Secret::new(&[secret; 32]);
        Credentials {
            cluster: ClusterId(cluster),
            node: NodeId(node),
            address: format!("n{node}:1"),
            secret,
            tls: None,
            max_version: VERSION,
            run: PeerRun([1; 16]),
            removal: RemovalNotice::default(),
        }
    }

    async fn meet(
        dialler: Credentials,
        acceptor: Credentials,
        admits: Result<(), Rejection>,
    ) -> (Result<DialledPeer, HandshakeError>, Result<Peer, HandshakeError>) {
        let (near, far) = tokio::io::duplex(4096);
        let expected = Some(acceptor.node);
        tokio::join!(
            async move { dial(near, &dialler, Channel::Control, expected, "n2").await.map(|(met, _)| met) },
            async move { accept(far, &acceptor, |_| admits.map(|()| None)).await.map(|(peer, _)| peer) },
        )
    }

    #[tokio::test]
    async fn nodes_of_one_cluster_meet() {
        let (dialled, accepted) = meet(node(1, 9, 5), node(2, 9, 5), Ok(())).await;
        assert_eq!(dialled.unwrap(), DialledPeer { node: NodeId(2), version: VERSION });
        let (address, channel) = ("n1:1".to_owned(), Channel::Control);
        let peer = Peer { node: NodeId(1), address, channel, version: VERSION, run: Some(PeerRun([1; 16])) };
        assert_eq!(accepted.unwrap(), peer);
    }

    #[tokio::test]
    async fn nodes_use_the_highest_version_that_both_offer() {
        let old = Credentials { max_version: 2, ..node(1, 9, 5) };
        for (one, other) in [(old.clone(), node(2, 9, 5)), (Credentials { max_version: 3, ..node(2, 9, 5) }, old)] {
            let (dialled, accepted) = meet(one, other, Ok(())).await;
            assert_eq!((dialled.unwrap().version, accepted.unwrap().version), (2, 2));
        }
    }

    /// A process on a copy of a node's directory has the node's id. It may dial the node itself, or a member that knows
    /// the node.
    #[tokio::test]
    async fn a_second_process_with_the_id_of_a_node_is_told_so() {
        let copy = Credentials { run: PeerRun([2; 16]), ..node(2, 9, 5) };
        let (dialled, accepted) = meet(copy.clone(), node(2, 9, 5), Ok(())).await;
        match dialled {
            Err(HandshakeError::Rejected { code, reason }) => {
                assert!(code == COPY && reason.contains("n2:1"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(accepted, Err(HandshakeError::Refused { code: COPY, .. })));
        let (dialled, _) = meet(copy.clone(), node(1, 9, 5), Err(Rejection::Copy)).await;
        assert!(matches!(&dialled, Err(HandshakeError::Rejected { code, .. }) if code == COPY), "{dialled:?}");
        // An earlier version states no number of its process, so its copy cannot be distinguished from the node.
        let old = Credentials { max_version: RUN_FROM - 1, ..copy };
        let (dialled, _) = meet(old.clone(), node(2, 9, 5), Ok(())).await;
        assert!(matches!(&dialled, Err(HandshakeError::Rejected { code, .. }) if code == OWN_ADDRESS), "{dialled:?}");
        let (_, accepted) = meet(old, node(1, 9, 5), Ok(())).await;
        assert_eq!(accepted.unwrap().run, None);
    }

    #[tokio::test]
    async fn strangers_are_told_why_they_are_rejected() {
        let code = |dialled: Result<DialledPeer, HandshakeError>| match dialled {
            Err(HandshakeError::Rejected { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        let (dialled, accepted) = meet(node(1, 8, 5), node(2, 9, 5), Ok(())).await;
        assert_eq!(code(dialled), "cluster");
        assert!(matches!(accepted, Err(HandshakeError::Refused { code: "cluster", .. })));
        let (dialled, _) = meet(node(1, 9, 5), node(2, 9, 5), Err("it is not wanted".into())).await;
        assert_eq!(code(dialled), "node");
        let (dialled, _) = meet(node(2, 9, 5), node(2, 9, 5), Ok(())).await;
        assert_eq!(code(dialled), "self");
    }

    #[tokio::test]
    async fn a_removed_node_is_told_so_by_members_only() {
        let removed = node(1, 9, 5);
        let (dialled, accepted) = meet(removed.clone(), node(2, 9, 5), Err(Rejection::Removed)).await;
        assert!(matches!(dialled, Err(HandshakeError::Removed)), "{dialled:?}");
        assert!(matches!(accepted, Err(HandshakeError::Refused { code: REMOVED, .. })));
        assert!(removed.removal.is_set());
        // An acceptor without the secret answers the hello in the right form, but cannot prove anything.
        let (near, mut far) = tokio::io::duplex(4096);
        let member = node(1, 9, 5);
        let notice = member.removal.clone();
        let lying = async move {
            expect(&mut far, PeerKind::Hello).await.unwrap();
            write_frame(&mut far, &Rejected { code: REMOVED, reason: WAS_REMOVED }).await
        };
        let dialling = async move { dial(near, &member, Channel::Control, None, "n2").await.map(drop) };
        let (dialled, lied) = tokio::join!(dialling, lying);
        assert!(matches!(dialled, Err(HandshakeError::Rejected { .. })) && lied.is_ok(), "{dialled:?}");
        assert!(!notice.is_set());
    }

    #[tokio::test]
    async fn a_wrong_secret_is_noticed_on_both_sides() {
        let (dialled, accepted) = meet(node(1, 9, 6), node(2, 9, 5), Ok(())).await;
        assert!(matches!(dialled, Err(HandshakeError::Rejected { code, .. }) if code == "secret"));
        assert!(matches!(accepted, Err(HandshakeError::Refused { code: "secret", .. })));
        // The dialling side notices a node that only pretends to accept.
        let (near, mut far) = tokio::io::duplex(4096);
        let dialler = node(1, 9, 5);
        let pretending = async move {
            expect(&mut far, PeerKind::Hello).await.unwrap();
            let forged = Challenge { version: VERSION, node: NodeId(2), nonce: nonce(), proof: nonce() };
            write_frame(&mut far, &forged).await.unwrap();
            expect(&mut far, PeerKind::Proof).await.map(drop)
        };
        let dialling = async move { dial(near, &dialler, Channel::Control, None, "n2").await.map(drop) };
        let (dialled, pretended) = tokio::join!(dialling, pretending);
        assert!(matches!(dialled, Err(HandshakeError::WrongSecret)) && pretended.is_err(), "{dialled:?}");
        // The acceptor rejects a dialler that replays a recorded hello and does not verify the acceptor.
        let (mut near, mut far) = tokio::io::duplex(4096);
        let acceptor = node(2, 9, 5);
        let recorded = sealed_hello(&node(1, 9, 5), Channel::Appends).unwrap();
        let forging = async move {
            near.write_all(&recorded).await.unwrap();
            expect(&mut near, PeerKind::Challenge).await.unwrap();
            write_frame(&mut near, &Proof { proof: nonce() }).await.unwrap();
            expect(&mut near, PeerKind::Welcome).await.map(drop)
        };
        let (forged, accepted) = tokio::join!(forging, accept(&mut far, &acceptor, |_| Ok(None)));
        assert!(matches!(forged, Err(HandshakeError::Rejected { code, .. }) if code == "secret"));
        assert!(matches!(accepted, Err(HandshakeError::Refused { code: "secret", .. })));
    }

    /// The option `join` may contain an address for HTTP, or the address of another server.
    #[tokio::test]
    async fn an_address_for_clients_is_told_from_that_of_a_node() {
        for (answer, is_node) in [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], false), (b"-ERR\r\n", true), (b"", true)] {
            let (near, mut far) = tokio::io::duplex(4096);
            let answering = async move {
                expect(&mut far, PeerKind::Hello).await.unwrap();
                far.write_all(answer).await.unwrap();
            };
            let dialler = node(1, 9, 5);
            let dialling = async move { dial(near, &dialler, Channel::Control, None, "n2").await.map(drop) };
            let (dialled, ()) = tokio::join!(dialling, answering);
            let error = dialled.unwrap_err();
            // A short answer may come from a node that is stopping.
            let is_expected = if is_node {
                matches!(error, HandshakeError::Io(_))
            } else {
                matches!(error, HandshakeError::NotANode(_)) && error.to_string().contains("option `cluster`")
            };
            assert!(is_expected && !error.to_string().contains("TLS"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_costs_a_bounded_time() {
        let (_near, mut far) = tokio::io::duplex(4096);
        let accepted = accept(&mut far, &node(2, 9, 5), |_| Ok(None)).await;
        assert!(matches!(accepted, Err(HandshakeError::TooSlow)));
    }

    #[tokio::test]
    async fn garbage_is_rejected() {
        for garbage in [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".as_slice(), &[0xff; 64], &[0; 64]] {
            let mut stream = tokio_test_stream(garbage);
            assert!(accept(&mut stream, &node(2, 9, 5), |_| Ok(None)).await.is_err());
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

#[cfg(test)]
mod memory_tests;

#[cfg(test)]
mod tls_tests;
