//! Datagram sizes: on the loopback, and on a path that permits less than the kernel's route.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use thalweg_transport::{Channel, Connection, Dialer, Kind, Listener};
use tokio::{net::UdpSocket, task::JoinHandle};

use crate::common::*;

/// Bytes of a datagram that fits Ethernet, less some tunnel overhead.
const NARROW: usize = 1_400;
/// Maximum bytes of a UDP datagram.
const WIDE: usize = 65_507;

/// A proxy between one client and a server. It forwards datagrams of up to `max_bytes` and drops larger ones.
struct Way {
    address: SocketAddr,
    max_bytes: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    carrying: JoinHandle<()>,
}

impl Way {
    async fn to(server: SocketAddr, max_bytes: usize) -> Self {
        let (front, back) = (UdpSocket::bind(any_port()).await.unwrap(), UdpSocket::bind(any_port()).await.unwrap());
        back.connect(server).await.unwrap();
        let address = front.local_addr().unwrap();
        let (max_bytes, lost) = (Arc::new(AtomicUsize::new(max_bytes)), Arc::new(AtomicUsize::new(0)));
        let (bound, losses) = (Arc::clone(&max_bytes), Arc::clone(&lost));
        let carrying = tokio::spawn(async move {
            let (mut there, mut back_again) = (vec![0; 1 << 16], vec![0; 1 << 16]);
            let mut client = None;
            let fits = |len: usize| {
                let fits = len <= bound.load(Ordering::Relaxed);
                losses.fetch_add(usize::from(!fits), Ordering::Relaxed);
                fits
            };
            loop {
                // The kernel drops datagrams beyond its buffer, as on any network.
                tokio::select! {
                    Ok((len, from)) = front.recv_from(&mut there) => {
                        client = Some(from);
                        if fits(len) {
                            let _ = back.try_send(&there[..len]);
                        }
                    }
                    Ok(len) = back.recv(&mut back_again) => {
                        if let (Some(client), true) = (client, fits(len)) {
                            let _ = front.try_send_to(&back_again[..len], client);
                        }
                    }
                }
            }
        });
        Self { address, max_bytes, lost, carrying }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.carrying.abort();
    }
}

type End = (Connection, Channel);

/// Connects both ends, over `way` or directly.
async fn ends(listener: &Listener, way: Option<&Way>) -> (End, End) {
    let endpoint = endpoint(Kind::Quic, way.map_or(listener.local_addr(), |way| way.address));
    let dialler = Dialer::new();
    let dialling = async {
        let (connection, mut channel) = dialler.dial(&endpoint).await.unwrap();
        send(&mut channel, b"!").await.unwrap();
        (connection, channel)
    };
    let accepting = async {
        let (connection, mut channel) = listener.accept().await.unwrap().establish().await.unwrap();
        assert_eq!(read_up_to(&mut channel, 1).await.unwrap(), b"!");
        connection.permit(1);
        (connection, channel)
    };
    soon(async { tokio::join!(dialling, accepting) }).await
}

async fn carry(from: &mut End, to: &mut End, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    let (sent, read) = soon(async { tokio::join!(send(&mut from.1, &bytes), read_up_to(&mut to.1, len)) }).await;
    sent.unwrap();
    assert!(read.unwrap() == bytes, "{len} bytes were changed on their way");
}

/// Sends a few bytes in both directions until `wanted` returns true.
async fn talk_until(client: &mut End, server: &mut End, wanted: impl Fn(&End, &End) -> bool) {
    let begun = Instant::now();
    while !wanted(client, server) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", client.0.datagram_bytes());
        carry(client, server, 100).await;
        carry(server, client, 100).await;
    }
}

fn size(end: &End) -> usize {
    end.0.datagram_bytes().unwrap().into()
}

#[tokio::test]
async fn on_the_loopback_they_become_as_large_as_udp_allows() {
    let listener = Listener::bind(any_port(), options(Kind::Quic)).await.unwrap();
    let (mut client, mut server) = ends(&listener, None).await;
    talk_until(&mut client, &mut server, |client, server| size(client).min(size(server)) == WIDE).await;
    carry(&mut client, &mut server, 8 << 20).await;
    carry(&mut server, &mut client, 8 << 20).await;
    assert_eq!(size(&client).min(size(&server)), WIDE);
}

#[tokio::test]
async fn a_way_that_takes_less_than_the_route_promises_carries_all_the_same() {
    let listener = Listener::bind(any_port(), options(Kind::Quic)).await.unwrap();
    let way = Way::to(listener.local_addr(), NARROW).await;
    let (mut client, mut server) = ends(&listener, Some(&way)).await;
    carry(&mut client, &mut server, 1 << 20).await;
    carry(&mut server, &mut client, 1 << 20).await;
    assert!(way.lost.load(Ordering::Relaxed) > 0, "nothing larger was tried");
    assert!(size(&client).max(size(&server)) <= NARROW);
}

#[tokio::test]
async fn a_way_that_becomes_narrower_carries_on() {
    let listener = Listener::bind(any_port(), options(Kind::Quic)).await.unwrap();
    let way = Way::to(listener.local_addr(), WIDE).await;
    let (mut client, mut server) = ends(&listener, Some(&way)).await;
    talk_until(&mut client, &mut server, |client, server| size(client).min(size(server)) == WIDE).await;
    way.max_bytes.store(NARROW, Ordering::Relaxed);
    carry(&mut client, &mut server, 1 << 20).await;
    carry(&mut server, &mut client, 1 << 20).await;
    assert!(size(&client).max(size(&server)) <= NARROW, "{} and {}", size(&client), size(&server));
}
