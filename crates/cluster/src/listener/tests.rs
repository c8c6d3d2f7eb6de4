use futures_util::FutureExt;
use thalweg_types::codec::Field;
use thalweg_wire::peer::{
    COMPRESS_FROM_BYTES, Channel, HEADER_BYTES, MAX_HANDSHAKE_BYTES, Nonce, PeerFrame, Ping, Pong, Protection, encode,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout},
};

use super::*;
use crate::{
    link::{Link, Owned, Path},
    testing::{SERVER, Server, credentials, pong, run},
};

const LONG: Duration = Duration::from_secs(60);

async fn start() -> (Server, Link) {
    let server = Server::start(|_, request| std::future::ready(pong(&request)).boxed_local()).await;
    let [control] = server.links([Channel::Control]);
    (server, control)
}

async fn assert_serves(link: &Link, number: u64) {
    let pong: Pong = link.call::<_, Owned, _>(&Ping { number, heard: 0 }, Instant::now() + LONG).await.unwrap();
    assert_eq!(pong.number, number);
}

/// Sends bytes to the server, and returns all bytes that the server sends until it closes the connection.
async fn answer(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // The server may have closed the connection already.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = timeout(LONG, stream.read_to_end(&mut answer)).await.expect("the server closes the connection");
    answer
}

/// Returns the number of strangers' connections that a test can hold open. Both ends of each are in this process.
fn most_strangers() -> usize {
    const WANTED: usize = 10_000;
    const OTHER_FILES: usize = 200;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, ..limit },
    );
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    // The server holds at most twice the bound of connections open.
    let files = usize::try_from(limit).unwrap_or(usize::MAX);
    let most = files.saturating_sub(OTHER_FILES + 2 * MAX_HALF_OPEN_LINKS);
    assert!(most > 4 * MAX_HALF_OPEN_LINKS, "the limit of {files} open files is too low for this test");
    most.min(WANTED)
}

fn hello(cluster: u64, min_version: u16) -> Vec<u8> {
    let hello = Hello {
        magic: Hello::magic(),
        min_version,
        max_version: min_version,
        cluster_low: cluster,
        cluster_high: 0,
        node: NodeId(7),
        channel: Channel::Control,
        protection: Protection::Plain,
        nonce: Nonce([1; 32]),
        address: "a:1",
        software: "",
        seal: Nonce([0; 32]),
    };
    let mut out = Vec::new();
    encode(&hello, 0, &mut out).unwrap();
    credentials(NodeId(7), 5).secret.seal(&mut out[HEADER_BYTES..]);
    out
}

#[test]
fn strangers_get_a_reason_at_most_and_change_nothing() {
    run(async {
        let (server, link) = start().await;
        assert_serves(&link, 1).await;
        let code = |answer: Vec<u8>| String::from_utf8_lossy(&answer).into_owned();
        assert!(code(answer(&server, &hello(8, 1)).await).contains("cluster"), "another cluster");
        assert!(code(answer(&server, &hello(9, 99)).await).contains("version"), "another version");
        let mut unsealed = hello(9, 1);
        *unsealed.last_mut().unwrap() ^= 1;
        assert!(code(answer(&server, &unsealed).await).contains("secret"), "no secret");
        // Without the secret, a recorded hello and the server's challenge are useless.
        let mut forged = hello(9, 1);
        encode(&thalweg_wire::peer::Proof { proof: Nonce([0; 32]) }, 0, &mut forged).unwrap();
        encode(&Ping { number: 1, heard: 0 }, 1, &mut forged).unwrap();
        assert!(code(answer(&server, &forged).await).contains("secret"), "no secret");
        assert!(answer(&server, b"GET / HTTP/1.1\r\n\r\n").await.is_empty());
        assert!(answer(&server, &[0xff; 64]).await.is_empty());
        let mut too_long = hello(9, 1);
        too_long[..4].copy_from_slice(&(MAX_HANDSHAKE_BYTES as u32 + 1).to_le_bytes());
        assert!(answer(&server, &too_long).await.is_empty());
        assert_serves(&link, 2).await;
        assert_eq!(server.service.seen.borrow().len(), 2, "only the member was served");
    });
}

/// With a compressed body of 2 KB, a stranger could make the node allocate 500 KB before the stranger has proved
/// anything.
#[test]
fn a_stranger_cannot_make_the_node_decompress() {
    run(async {
        let (server, link) = start().await;
        let hello = hello(9, 1);
        let mut body = hello[HEADER_BYTES..].to_vec();
        body.resize(COMPRESS_FROM_BYTES * 8, 0);
        let compressed = lz4_flex::block::compress_prepend_size(&body);
        assert!(compressed.len() <= MAX_HANDSHAKE_BYTES);
        let mut frame = hello[..HEADER_BYTES].to_vec();
        frame[..4].copy_from_slice(&(compressed.len() as u32).to_le_bytes());
        frame[5] = 1;
        frame.extend_from_slice(&compressed);
        assert!(answer(&server, &frame).await.is_empty());
        // Even a valid hello is rejected if it is compressed.
        let compressed = lz4_flex::block::compress_prepend_size(&hello[HEADER_BYTES..]);
        let mut frame = hello[..HEADER_BYTES].to_vec();
        frame[..4].copy_from_slice(&(compressed.len() as u32).to_le_bytes());
        frame[5] = 1;
        frame.extend_from_slice(&compressed);
        assert!(answer(&server, &frame).await.is_empty());
        assert_serves(&link, 1).await;
    });
}

/// Strangers hold many connections open and send nothing, half a frame, or a recorded hello. The node closes the oldest
/// ones, and still accepts and serves members. The test opens 10,000 connections, or as many as the limit of open files
/// permits.
#[test]
fn half_open_connections_are_bounded_and_members_get_in() {
    const KINDS: usize = 3;
    let strangers_now = most_strangers();
    run(async {
        let (server, link) = start().await;
        assert_serves(&link, 1).await;
        let hello = hello(9, 1);
        let mut strangers = Vec::new();
        for number in 0..strangers_now {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let sent = [&b""[..], &hello[..20], &hello][number % KINDS];
            let _ = stream.write_all(sent).await;
            strangers.push(stream);
            if number % 1000 == 0 {
                assert_serves(&link, 2 + number as u64).await;
            }
        }
        let newcomer =
            Link::new(credentials(NodeId(3), 5), SERVER, server.address.to_string(), Channel::Control, Path::default());
        assert_serves(&newcomer, 1).await;
        // Waits until the server has closed all but the newest connections, which shows that it has accepted all of
        // them. The bound applies twice: before the hello, and after it.
        for stream in &mut strangers[..strangers_now - KINDS * MAX_HALF_OPEN_LINKS] {
            let mut rest = Vec::new();
            let read = timeout(LONG, stream.read_to_end(&mut rest)).await.expect("the oldest are given up");
            assert!(rest.len() < 256, "a challenge at most, and not {rest:?}, {read:?}");
        }
        assert_serves(&link, 1_000_000).await;
    });
}

/// A data directory was copied, so a second process has the id of a connected member.
#[test]
fn a_second_process_with_the_id_of_a_member_is_rejected_until_the_first_has_ended() {
    run(async {
        let (server, link) = start().await;
        assert_serves(&link, 1).await;
        let own = credentials(NodeId(1), 5);
        let copy = Rc::new(Credentials { run: PeerRun([2; 16]), ..(*own).clone() });
        let dial = || async {
            let stream = TcpStream::connect(server.address).await.unwrap();
            crate::handshake::dial(stream, &copy, Channel::Control, Some(SERVER), "").await.map(drop)
        };
        let rejected = dial().await;
        assert!(matches!(&rejected, Err(HandshakeError::Rejected { code, .. }) if code == COPY), "{rejected:?}");
        assert_serves(&link, 2).await;
        // The end of another connection of the first process changes nothing.
        let stream = TcpStream::connect(server.address).await.unwrap();
        drop(crate::handshake::dial(stream, &own, Channel::Appends, Some(SERVER), "").await.unwrap());
        let rejected = dial().await;
        assert!(matches!(&rejected, Err(HandshakeError::Rejected { code, .. }) if code == COPY), "{rejected:?}");
        drop(link);
        // The server notices the end of the connection after some time.
        let accepted = async {
            while dial().await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, accepted).await.expect("the first process has ended");
    });
}

#[test]
fn garbage_behind_a_handshake_ends_only_its_connection() {
    run(async {
        let (server, link) = start().await;
        assert_serves(&link, 1).await;
        for garbage in [&[0xff_u8; 64][..], &[0, 0, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 9]] {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let own = credentials(NodeId(4), 5);
            crate::handshake::dial(&mut stream, &own, Channel::Proposals, Some(SERVER), "").await.unwrap();
            stream.write_all(garbage).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut rest = Vec::new();
            let _ = timeout(LONG, stream.read_to_end(&mut rest)).await.expect("the server closes the connection");
        }
        assert_serves(&link, 2).await;
    });
}

#[test]
fn a_handshake_costs_less_memory_than_promised() {
    let stream_and_future = {
        let (near, mut far) = tokio::io::duplex(16);
        drop(near);
        let own = credentials(SERVER, 5);
        let future = accept(&mut far, &own, |_| Ok(None));
        size_of_val(&future)
    };
    // The future contains the states of both frames. Apart from it, only a frame's body and the transcript take memory.
    assert!(stream_and_future + MAX_HANDSHAKE_BYTES < 4096, "{stream_and_future} bytes");
    let mut hello_body = Vec::new();
    let longest = "x".repeat(700);
    let hello =
        Hello { address: &longest, software: &longest, ..Hello::decode_body(&hello(9, 1)[HEADER_BYTES..]).unwrap() };
    hello.put(&mut hello_body).unwrap();
    assert!(hello_body.len() < MAX_HANDSHAKE_BYTES);
}
