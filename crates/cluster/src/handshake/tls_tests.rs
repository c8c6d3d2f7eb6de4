//! Handshakes over TLS: with an authority, and with self-made certificates.

use std::{fs, path::PathBuf, time::SystemTime};

use tempfile::TempDir;
use thalweg_transport::{Authority, CertificateFiles, Existing, PeerTlsError, PeerTlsFiles, Validity};
use thalweg_wire::peer::VERSION;
use tokio::io::{AsyncReadExt, DuplexStream, copy_bidirectional, duplex};

use super::*;

/// Directory of the certificate authorities and the certificates that a test creates.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Creates an authority with this name, and returns the path of its certificate.
    fn authority(&self, authority: &str) -> PathBuf {
        let dir = self.0.path().join(authority);
        fs::create_dir_all(&dir).unwrap();
        let files = CertificateFiles::of_authority(&dir);
        if !files.certificate.exists() {
            Authority::create(&files, Some(authority), Validity::for_days(2)).unwrap();
        }
        files.certificate
    }

    /// Creates or replaces a certificate with these names.
    fn issue(&self, authority: &str, names: &[&str], validity: Validity) -> PeerTlsFiles {
        let authorities = self.authority(authority);
        let dir = self.0.path().join(authority);
        let signing = Authority::read(&CertificateFiles::of_authority(&dir)).unwrap();
        let files = CertificateFiles::of_node(&dir, names[0]);
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        signing.issue(&files, &names, validity, Existing::Replace).unwrap();
        PeerTlsFiles { authorities, certificate: files.certificate, key: files.key }
    }

    fn tls(&self, authority: &str, names: &[&str]) -> PeerTls {
        PeerTls::with_authority(self.issue(authority, names, Validity::for_days(1))).unwrap()
    }
}

/// Returns the credentials of a node of cluster 9. Its host is called `n` followed by its number.
fn node(node: u64, secret: u8, tls: Option<PeerTls>) -> Credentials {
    let secret = Secret::new(&[secret; 32]);
    Credentials {
        cluster: ClusterId(9),
        node: NodeId(node),
        address: format!("n{node}:1"),
        secret,
        tls,
        max_version: VERSION,
        run: PeerRun([1; 16]),
        removal: RemovalNotice::default(),
    }
}

fn without_authority() -> Option<PeerTls> {
    Some(PeerTls::without_authority().unwrap())
}

type HandshakeResults = (Result<NodeId, HandshakeError>, Result<Peer, HandshakeError>);

/// Lets node 1 dial node 2 over a connection that consists of the streams `near` and `far`.
async fn meet_over(
    (near, far): (DuplexStream, DuplexStream),
    dialler: &Credentials,
    acceptor: &Credentials,
    names: Names,
) -> HandshakeResults {
    // Each side drops its connection when it has ended, as over a socket.
    tokio::join!(
        async { dial(near, dialler, Channel::Control, Some(NodeId(2)), "n2").await.map(|(met, _)| met.node) },
        async { accept(far, acceptor, |_| Ok(names)).await.map(|(peer, _)| peer) },
    )
}

async fn meet(dialler: &Credentials, acceptor: &Credentials) -> HandshakeResults {
    meet_over(duplex(4096), dialler, acceptor, None).await
}

#[track_caller]
fn assert_met((dialled, accepted): HandshakeResults) {
    assert_eq!(dialled.unwrap(), NodeId(2));
    assert_eq!(accepted.unwrap().node, NodeId(1));
}

#[track_caller]
fn assert_fails(met: &HandshakeResults, part: &str) {
    let (dialled, accepted) = met;
    assert!(dialled.is_err() && accepted.is_err(), "{met:?}");
    let said = [dialled.as_ref().unwrap_err().to_string(), accepted.as_ref().unwrap_err().to_string()].join("\n");
    assert!(said.contains(part), "{part:?} is not in {said}");
}

#[tokio::test]
async fn nodes_meet_in_a_session_with_the_secret_alone() {
    let (one, two) = (node(1, 5, without_authority()), node(2, 5, without_authority()));
    assert_met(meet(&one, &two).await);
    assert_fails(&meet(&node(1, 6, without_authority()), &two).await, "secret");
}

/// Acts as a man in the middle: forwards the hello and its answer, and then has a separate TLS session with each side.
async fn ends_sessions(mut near: DuplexStream, mut far: DuplexStream) {
    let tls = PeerTls::without_authority().unwrap();
    let pass = |frame: Frame| {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&(frame.body.len() as u32).to_le_bytes());
        bytes[4] = frame.kind.unwrap() as u8;
        bytes.extend_from_slice(&frame.body);
        bytes
    };
    let hello = pass(expect(&mut near, PeerKind::Hello).await.unwrap());
    far.write_all(&hello).await.unwrap();
    let begins = pass(expect(&mut far, PeerKind::BeginTls).await.unwrap());
    near.write_all(&begins).await.unwrap();
    let (near, far) = tokio::join!(tls.accept(near), tls.connect(far, "n2"));
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    let _ = copy_bidirectional(&mut near, &mut far).await;
}

#[tokio::test]
async fn a_man_in_the_middle_who_ends_the_sessions_cannot_relay_the_proofs() {
    let (one, two) = (node(1, 5, without_authority()), node(2, 5, without_authority()));
    let ((near, left), (right, far)) = (duplex(4096), duplex(4096));
    let (met, ()) = tokio::join!(meet_over((near, far), &one, &two, None), ends_sessions(left, right));
    assert_fails(&met, "something between the nodes ends the TLS session");
    // A relay that only forwards all bytes learns nothing, so the handshake succeeds.
    let ((near, mut left), (mut right, far)) = (duplex(4096), duplex(4096));
    let (met, _) = tokio::join!(meet_over((near, far), &one, &two, None), copy_bidirectional(&mut left, &mut right));
    assert_met(met);
}

#[tokio::test]
async fn what_goes_over_a_session_cannot_be_read() {
    let (one, two) = (node(1, 5, without_authority()), node(2, 5, without_authority()));
    let ((near, mut left), (mut right, far)) = (duplex(4096), duplex(4096));
    let talking = async {
        let (dialled, accepted) =
            tokio::join!(dial(near, &one, Channel::Control, None, "n2"), accept(far, &two, |_| Ok(None)));
        let (mut dialled, mut accepted) = (dialled.unwrap().1, accepted.unwrap().1);
        dialled.write_all(b"a value that nobody reads").await.unwrap();
        dialled.shutdown().await.unwrap();
        let mut read = String::new();
        accepted.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "a value that nobody reads");
    };
    let listening = async {
        let (mut heard, mut buffer) = (Vec::new(), vec![0; 4096]);
        let mut back = vec![0; 4096];
        loop {
            tokio::select! {
                read = left.read(&mut buffer) => match read.unwrap() {
                    0 => return heard,
                    read => {
                        heard.extend_from_slice(&buffer[..read]);
                        right.write_all(&buffer[..read]).await.unwrap();
                    }
                },
                read = right.read(&mut back) => match read.unwrap() {
                    0 => return heard,
                    read => left.write_all(&back[..read]).await.unwrap(),
                },
            }
        }
    };
    let ((), heard) = tokio::join!(talking, listening);
    let holds = |part: &[u8]| heard.windows(part.len()).any(|window| window == part);
    assert!(holds(b"TWPR") && !holds(b"nobody reads"));
}

#[tokio::test]
async fn nodes_that_disagree_about_tls_say_so() {
    let (plain, tls) = (None, without_authority());
    assert_fails(&meet(&node(1, 5, plain.clone()), &node(2, 5, tls.clone())).await, "cluster_tls");
    assert_fails(&meet(&node(1, 5, tls), &node(2, 5, plain)).await, "cluster_tls");
}

#[tokio::test]
async fn nodes_meet_by_the_certificates_of_their_authority() {
    let made = Certificates::new();
    let one = node(1, 5, Some(made.tls("ours", &["n1"])));
    let two = node(2, 5, Some(made.tls("ours", &["n2"])));
    assert_met(meet(&one, &two).await);
    // A certificate does not replace the secret.
    let foreign = node(1, 6, one.tls.clone());
    assert_fails(&meet(&foreign, &two).await, "secret");
    // Another cluster with the same authority.
    let other = Credentials { cluster: ClusterId(8), ..one.clone() };
    assert_fails(&meet(&other, &two).await, "different clusters");
}

#[tokio::test]
async fn a_certificate_of_another_authority_or_of_none_is_rejected_on_both_sides() {
    let made = Certificates::new();
    let ours = |number, name: &str| node(number, 5, Some(made.tls("ours", &[name])));
    let theirs = |number, name: &str| node(number, 5, Some(made.tls("theirs", &[name])));
    assert_fails(&meet(&theirs(1, "n1"), &ours(2, "n2")).await, "UnknownIssuer");
    assert_fails(&meet(&ours(1, "n1"), &theirs(2, "n2")).await, "UnknownIssuer");
    // The dialling side would accept any certificate, and sends one of its own.
    assert_fails(&meet(&node(1, 5, without_authority()), &ours(2, "n2")).await, "UnknownIssuer");
    assert_fails(&meet(&ours(1, "n1"), &node(2, 5, without_authority())).await, "invalid peer certificate");
    // An authority that only has the same name as the cluster's authority.
    let again = Certificates::new();
    let same = |number, name: &str| node(number, 5, Some(again.tls("ours", &[name])));
    for (one, two) in [(same(1, "n1"), ours(2, "n2")), (ours(1, "n1"), same(2, "n2"))] {
        assert_fails(&meet(&one, &two).await, "signed by another authority");
    }
    // The node notices at its start that the other authority's certificate does not match the keys.
    let files = made.issue("theirs", &["n1"], Validity::for_days(1));
    let refused = PeerTls::with_authority(PeerTlsFiles { authorities: made.authority("ours"), ..files }).unwrap_err();
    assert!(matches!(refused, PeerTlsError::Rejected { .. }) && refused.to_string().contains("create-cert"));
}

#[tokio::test]
async fn a_certificate_must_name_its_node() {
    let made = Certificates::new();
    let two = node(2, 5, Some(made.tls("ours", &["n2"])));
    let one = node(1, 5, Some(made.tls("ours", &["db1"])));
    // A node that dials a host which the certificate does not name, and a node with another node's certificate.
    assert_fails(&meet(&two, &one).await, "n2");
    assert_fails(&meet(&one, &two).await, "does not name n1");
    // A member is identified by its name or host in the membership. The address that the member itself claims is
    // ignored.
    let member = |name: &str, host: &str| Some(NodeInfo { name: name.to_owned(), ..NodeInfo::at(format!("{host}:1")) });
    assert_met(meet_over(duplex(4096), &one, &two, member("db1", "elsewhere")).await);
    assert_met(meet_over(duplex(4096), &one, &two, member("", "db1")).await);
    let claims = Credentials { address: "db1:1".to_owned(), ..one };
    assert_met(meet(&claims, &two).await);
    // The first node of a cluster has to connect before the others know its address.
    assert_met(meet_over(duplex(4096), &claims, &two, Some(NodeInfo::default())).await);
    assert_fails(&meet_over(duplex(4096), &claims, &two, member("db3", "n3")).await, "does not name db3 or n3");
}

#[tokio::test]
async fn an_expired_certificate_is_rejected_by_both_sides_and_at_the_start() {
    let made = Certificates::new();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let (fresh_one, fresh_two) = (made.tls("ours", &["x1", "n1"]), made.tls("ours", &["x2", "n2"]));
    // A slow machine may need longer than a few seconds to make the certificates and to connect with them.
    let mut validities = [2, 10, 60].into_iter();
    let (last, files, one, two) = loop {
        let last = now() + validities.next().expect("a minute is enough to connect");
        let brief = |name| made.issue("ours", &[name], Validity { not_before: now() - 100, not_after: last });
        let (files, others) = (brief("n1"), brief("n2"));
        match (PeerTls::with_authority(files.clone()), PeerTls::with_authority(others)) {
            (Ok(one), Ok(two)) => {
                let met = meet(&node(1, 5, Some(one.clone())), &node(2, 5, Some(two.clone()))).await;
                if now() <= last {
                    assert_met(met);
                    break (last, files, one, two);
                }
            }
            _ => assert!(now() > last, "a certificate is rejected while it is valid"),
        }
    };
    // The test needs real time to pass, because it tests the expiry of a certificate.
    while now() <= last {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_fails(&meet(&node(1, 5, Some(one)), &node(2, 5, Some(fresh_two))).await, "xpired");
    assert_fails(&meet(&node(1, 5, Some(fresh_one)), &node(2, 5, Some(two))).await, "xpired");
    let refused = PeerTls::with_authority(files).unwrap_err().to_string();
    assert!(refused.contains("xpired"), "{refused}");
}

#[tokio::test]
async fn a_node_changes_its_certificate_and_authority_while_it_runs() {
    let made = Certificates::new();
    let files = made.issue("old", &["n1"], Validity::for_days(1));
    let one = node(1, 5, Some(PeerTls::with_authority(files.clone()).unwrap()));
    let old = node(2, 5, Some(made.tls("old", &["n2"])));
    let new = node(2, 5, Some(made.tls("new", &["n2"])));
    assert_met(meet(&one, &old).await);
    assert_fails(&meet(&one, &new).await, "UnknownIssuer");
    let renewed = made.issue("new", &["n1"], Validity::for_days(1));
    let tls = one.tls.clone().unwrap();
    fs::copy(&renewed.certificate, &files.certificate).unwrap();
    let refused = tls.reload().unwrap_err().to_string();
    assert!(refused.contains("cannot be used with"), "the key is missing yet: {refused}");
    assert_met(meet(&one, &old).await);
    fs::copy(&renewed.key, &files.key).unwrap();
    assert!(matches!(tls.reload(), Err(PeerTlsError::Rejected { .. })), "the authority is missing yet");
    fs::copy(&renewed.authorities, &files.authorities).unwrap();
    tls.reload().unwrap();
    assert_met(meet(&one, &new).await);
    assert_fails(&meet(&one, &old).await, "UnknownIssuer");
}
