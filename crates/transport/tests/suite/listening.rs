//! Binding, handshakes, and rejected connections.

use std::{io::Write as _, path::Path, time::Duration};

use tempfile::TempDir;
use thalweg_transport::{
    CERTIFICATE_FILE, DialError, Dialer, Endpoint, EstablishError, Fingerprint, Identity, IdentityError, KEY_FILE,
    Kind, ListenError, ListenOptions, Listener, TcpSecurity, Trust, TrustError, Validity, looks_like_tls,
};
use thalweg_types::Classified as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::common::*;

/// Accepts and establishes one connection. Returns its outcome.
async fn outcome(listener: &Listener) -> Result<Kind, EstablishError> {
    let (connection, _channel) = listener.accept().await.unwrap().establish().await?;
    Ok(connection.kind())
}

#[tokio::test]
async fn an_address_in_use_and_one_without_a_server_are_told_apart() {
    let first = Listener::bind(any_port(), options(Kind::Quic)).await.unwrap();
    let address = first.local_addr();
    let error = Listener::bind(address, options(Kind::Quic)).await.unwrap_err();
    assert!(matches!(error, ListenError::Bind { .. }) && error.code() == "bind");
    drop(first);
    let dialer = Dialer::new();
    let error = dialer.dial(&Endpoint::tcp(address.to_string())).await.unwrap_err();
    assert!(matches!(error, DialError::Connect { .. }), "{error}");
    let error = dialer.dial(&Endpoint::tcp("without-a-port")).await.unwrap_err();
    assert_eq!(error.code(), "unknown_address");
}

/// A certificate and its key in PEM form, valid from one year to another.
fn certificate(from: i32, to: i32) -> (String, String) {
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
    let key = rcgen::KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn a_chain_is_valid_while_all_of_it_is() {
    const Y2001: i64 = 978_307_200;
    const Y2040: i64 = 2_208_988_800;
    const Y2060: i64 = 2_840_140_800;
    let directory = TempDir::new().unwrap();
    let (chain, key) = (directory.path().join("chain.pem"), directory.path().join("key.pem"));
    let (own, private) = certificate(2001, 2060);
    std::fs::write(&key, private).unwrap();
    std::fs::write(&chain, &own).unwrap();
    let identity = Identity::from_pem_files(&chain, &key).unwrap();
    assert_eq!(identity.validity(), Some(Validity { not_before: Y2001, not_after: Y2060 }));
    std::fs::write(&chain, own + &certificate(1999, 2040).0).unwrap();
    identity.replace(&Identity::from_pem_files(&chain, &key).unwrap());
    assert_eq!(identity.validity(), Some(Validity { not_before: Y2001, not_after: Y2040 }));
}

#[tokio::test]
async fn encryption_without_a_certificate_is_refused() {
    for kind in [Kind::Tls, Kind::Quic] {
        let mut options = options(kind);
        options.identity = None;
        let error = Listener::bind(any_port(), options).await.unwrap_err();
        assert!(matches!(error, ListenError::NoCertificate), "{error}");
    }
    let mut many = options(Kind::Quic);
    many.quic_sockets = 65;
    assert!(matches!(Listener::bind(any_port(), many).await, Err(ListenError::TooManySockets { sockets: 65 })));
}

#[tokio::test]
async fn one_port_serves_tcp_and_quic() {
    let listener = Listener::bind(any_port(), options(Kind::Quic)).await.unwrap();
    for kind in [Kind::Tcp, Kind::Quic, Kind::Tcp] {
        let (client, server) = connect(&listener, &Dialer::new(), kind).await;
        assert_eq!((client.0.kind(), server.0.kind()), (kind, kind));
    }
    assert!(listener.udp_buffer_bytes().unwrap() > 0);
}

#[tokio::test]
async fn a_silent_peer_is_given_up_and_holds_up_nobody() {
    let mut options = options(Kind::Tls);
    // Enough for a good handshake on a machine that stands still meanwhile.
    options.handshake_timeout = Duration::from_secs(5);
    let listener = Listener::bind(any_port(), options).await.unwrap();
    let mut silent = TcpStream::connect(listener.local_addr()).await.unwrap();
    let slow = listener.accept().await.unwrap().establish();
    let dialer = Dialer::new();
    let (error, _) = soon(async { tokio::join!(slow, connect(&listener, &dialer, Kind::Tls)) }).await;
    let error = error.unwrap_err();
    assert!(matches!(error, EstablishError::TimedOut(_)) && error.code() == "handshake_timeout");
    assert_eq!(soon(silent.read(&mut [0; 16])).await.unwrap(), 0, "its connection was closed");
}

#[tokio::test]
async fn a_quic_client_that_opens_no_channel_is_given_up() {
    let mut options = options(Kind::Quic);
    // Enough for a good handshake on a machine that stands still meanwhile.
    options.handshake_timeout = Duration::from_secs(5);
    let listener = Listener::bind(any_port(), options).await.unwrap();
    let dialer = Dialer::new();
    let endpoint = endpoint(Kind::Quic, listener.local_addr());
    // The client opens a channel, but the server does not see it before the first write.
    let both = async { tokio::join!(dialer.dial(&endpoint), outcome(&listener)) };
    let (dialled, outcome) = soon(both).await;
    assert!(matches!(outcome, Err(EstablishError::TimedOut(_))));
    let (connection, _channel) = dialled.unwrap();
    soon(connection.closed()).await;
}

#[tokio::test]
async fn plain_bytes_where_tls_is_wanted_are_told_as_such() {
    let listener = Listener::bind(any_port(), options(Kind::Tls)).await.unwrap();
    let mut plain = TcpStream::connect(listener.local_addr()).await.unwrap();
    plain.write_all(b"\x20\x00\x00\x00\x01\x00\x00\x00TLWG and what else a hello has in it").await.unwrap();
    assert!(matches!(soon(outcome(&listener)).await, Err(EstablishError::NotTls)));
    let mut answer = Vec::new();
    let _ = soon(plain.read_to_end(&mut answer)).await;
    assert!(answer.is_empty() || looks_like_tls(&answer), "{answer:?}");
}

#[tokio::test]
async fn tls_where_none_is_spoken_is_told_as_such() {
    let listener = Listener::bind(any_port(), ListenOptions::default()).await.unwrap();
    let dialer = Dialer::new();
    let endpoint = endpoint(Kind::Tls, listener.local_addr());
    let server = async {
        let (_connection, mut channel) = listener.accept().await.unwrap().establish().await.unwrap();
        let hello = read_up_to(&mut channel, 3).await.unwrap();
        assert!(looks_like_tls(&hello));
        send(&mut channel, b"this is no TLS").await.unwrap();
        // Closes only after the client has: closing with unread bytes would reset data that the client should
        // read.
        let _ = read_all(&mut channel).await;
    };
    let (dialled, ()) = soon(async { tokio::join!(dialer.dial(&endpoint), server) }).await;
    let error = dialled.unwrap_err();
    assert!(matches!(error, DialError::Tls { .. }), "{error:?}");
}

#[tokio::test]
async fn another_protocol_over_tls_is_refused() {
    use std::sync::Arc;
    let listener = Listener::bind(any_port(), options(Kind::Tls)).await.unwrap();
    let mut roots = rustls::RootCertStore::empty();
    let directory = TempDir::new().unwrap();
    Identity::development(directory.path(), [127, 0, 0, 1].into()).unwrap();
    let pem = std::fs::read(directory.path().join(CERTIFICATE_FILE)).unwrap();
    use rustls::pki_types::pem::PemObject as _;
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(listener.local_addr()).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let connecting = connector.connect("localhost".try_into().unwrap(), stream);
    let (client, server) = soon(async { tokio::join!(connecting, outcome(&listener)) }).await;
    assert!(client.is_err());
    assert!(matches!(server, Err(EstablishError::OtherProtocol)), "{server:?}");
}

#[tokio::test]
async fn only_the_pinned_certificate_is_trusted() {
    let other: Fingerprint = "00".repeat(32).parse().unwrap();
    for kind in [Kind::Tls, Kind::Quic] {
        let listener = Listener::bind(any_port(), options(kind)).await.unwrap();
        let address = listener.local_addr().to_string();
        let trust = Trust::fingerprint(other);
        let endpoint = if kind == Kind::Tls { Endpoint::tls(address, trust) } else { Endpoint::quic(address, trust) };
        let dialer = Dialer::new();
        let (dialled, accepted) = soon(async { tokio::join!(dialer.dial(&endpoint), outcome(&listener)) }).await;
        let error = dialled.unwrap_err();
        assert!(matches!(error, DialError::Untrusted { .. }) && error.code() == "untrusted_server", "{error:?}");
        assert!(accepted.is_err());
    }
}

#[tokio::test]
async fn a_certificate_file_is_trusted_for_its_names_only() {
    let directory = TempDir::new().unwrap();
    let identity = Identity::development(directory.path(), [127, 0, 0, 1].into()).unwrap();
    let trust = Trust::pem_file(&directory.path().join(CERTIFICATE_FILE)).unwrap();
    for kind in [Kind::Tls, Kind::Quic] {
        let mut options = options(kind);
        options.identity = Some(identity.clone());
        let listener = Listener::bind(any_port(), options).await.unwrap();
        let port = listener.local_addr().port();
        let make = |address: String| match kind {
            Kind::Tls => Endpoint::tls(address, trust.clone()),
            _ => Endpoint::quic(address, trust.clone()),
        };
        let good = [make(format!("127.0.0.1:{port}")), make(format!("127.0.0.1:{port}")).server_name("localhost")];
        for endpoint in good {
            let dialler = Dialer::new();
            let dialling = async {
                let (connection, mut channel) = dialler.dial(&endpoint).await.unwrap();
                send(&mut channel, b"x").await.unwrap();
                (connection, channel)
            };
            let (_client, accepted) = soon(async { tokio::join!(dialling, outcome(&listener)) }).await;
            assert_eq!(accepted.unwrap(), kind);
        }
        let bad = make(format!("127.0.0.1:{port}")).server_name("example.org");
        let dialer = Dialer::new();
        let (dialled, _) = soon(async { tokio::join!(dialer.dial(&bad), outcome(&listener)) }).await;
        assert!(matches!(dialled, Err(DialError::Untrusted { .. })), "{dialled:?}");
        let none = Dialer::new().dial(&make(format!("127.0.0.1:{port}")).server_name("not a name")).await;
        assert!(matches!(none, Err(DialError::ServerName { .. })));
    }
}

#[tokio::test]
async fn a_development_certificate_is_made_once_and_kept_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TempDir::new().unwrap();
    let first = Identity::development(directory.path(), [10, 0, 0, 1].into()).unwrap();
    let again = Identity::development(directory.path(), [10, 0, 0, 1].into()).unwrap();
    assert_eq!(first.fingerprint(), again.fingerprint());
    let mode = std::fs::metadata(directory.path().join(KEY_FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // After a crash between the key and the certificate, the next start generates a new pair.
    std::fs::remove_file(directory.path().join(CERTIFICATE_FILE)).unwrap();
    let anew = Identity::development(directory.path(), [10, 0, 0, 1].into()).unwrap();
    assert_ne!(first.fingerprint(), anew.fingerprint());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "nothing unfinished is left");
}

fn write(path: &Path, text: &str) {
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn certificate_files_that_are_wrong_are_told_by_name() {
    let directory = TempDir::new().unwrap();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    for path in [&one, &two] {
        std::fs::create_dir(path).unwrap();
        Identity::development(path, [127, 0, 0, 1].into()).unwrap();
    }
    let (certificate, key) = (one.join(CERTIFICATE_FILE), one.join(KEY_FILE));
    let load = |certificate: &Path, key: &Path| Identity::from_pem_files(certificate, key).unwrap_err();

    let missing = load(&directory.path().join("none.pem"), &key);
    assert!(matches!(missing, IdentityError::File { .. }) && missing.to_string().contains("none.pem"));
    let swapped = load(&key, &certificate);
    assert!(matches!(&swapped, IdentityError::Pem { expected: "a certificate", .. }), "{swapped}");
    let no_key = load(&certificate, &certificate);
    assert!(matches!(&no_key, IdentityError::Pem { expected: "a private key", .. }), "{no_key}");
    let others_key = load(&certificate, &two.join(KEY_FILE));
    assert!(matches!(&others_key, IdentityError::Unusable { .. }), "{others_key}");
    assert_eq!(others_key.code(), "certificate_key");

    let garbage = directory.path().join("garbage.pem");
    write(&garbage, "-----BEGIN CERTIFICATE-----\nthis is not base64!\n-----END CERTIFICATE-----\n");
    assert!(matches!(load(&garbage, &key), IdentityError::Pem { .. }));
    write(&garbage, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert!(matches!(load(&garbage, &key), IdentityError::Unusable { .. }));
    let large = directory.path().join("large.pem");
    write(&large, &"x".repeat(1024 * 1024 + 1));
    assert!(matches!(load(&large, &key), IdentityError::TooLarge { length: 1_048_577, .. }));
    // A pipe states no length.
    let pipe = directory.path().join("pipe.pem");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let endless = std::thread::spawn({
        let pipe = pipe.clone();
        // The reader closes the pipe before the end.
        move || std::fs::write(pipe, "x".repeat(4 * 1024 * 1024)).is_err()
    });
    assert!(matches!(load(&pipe, &key), IdentityError::TooLarge { length: 1_048_577, .. }));
    assert!(endless.join().unwrap(), "only as much as a PEM file may have was read");
    assert!(matches!(Trust::pem_file(&large), Err(TrustError::File(_))));
    write(&garbage, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert!(matches!(Trust::pem_file(&garbage), Err(TrustError::Authorities { .. })));
}

#[test]
fn fingerprints_are_read_as_they_are_shown() {
    let shown = IDENTITY.fingerprint().to_string();
    assert_eq!(shown.parse::<Fingerprint>().unwrap(), IDENTITY.fingerprint());
    let with_colons: Vec<String> =
        shown.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair).to_uppercase()).collect();
    assert_eq!(with_colons.join(":").parse::<Fingerprint>().unwrap(), IDENTITY.fingerprint());
    let wrong =
        ["", "00", &shown[1..], &format!("{shown}0"), &format!("{shown}00"), &shown.replace(&shown[..1], "g"), "ü"];
    for text in wrong {
        let error = text.parse::<Fingerprint>().unwrap_err();
        assert_eq!(error.code(), "invalid_fingerprint", "{text:?}");
    }
}

#[tokio::test]
async fn tls_is_asked_for_by_the_options_alone() {
    let mut with_certificate = ListenOptions::default();
    with_certificate.identity = Some(IDENTITY.clone());
    assert_eq!(with_certificate.tcp, TcpSecurity::Plain);
    let listener = Listener::bind(any_port(), with_certificate).await.unwrap();
    connect(&listener, &Dialer::new(), Kind::Tcp).await;
    assert_eq!(listener.udp_buffer_bytes(), None);
}
