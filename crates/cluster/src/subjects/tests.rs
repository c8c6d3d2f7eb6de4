use std::{net::SocketAddr, time::Duration};

use thalweg_broker::{Batch, BrokerConfig, Budget, Link, Outbound, Pattern, Subject, SubscribeOptions, SubscriptionId};
use thalweg_serving::cluster::{ElapsedMillis, MemberReport, MemberRole, NodeAddresses, Triggers};
use thalweg_types::{
    ClusterId,
    codec::{List, RemainingBytes, ShortBytes},
};
use thalweg_wire::{
    BatchWriter, Checksum,
    peer::{Channel, Interest, MAX_BODY_BYTES, PeerFrame, PeerKind, SubjectBatch, SubjectFilter, VERSION, encode},
};
use tokio::{
    io::AsyncWriteExt,
    net::TcpListener,
    time::{Instant, sleep},
};

use super::*;
use crate::{
    frames::read_frame,
    handshake::accept,
    testing::{credentials, run},
};

/// Longest time for which a test waits.
const PATIENCE: Duration = Duration::from_secs(60);
const OWN: NodeId = NodeId(1);

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

fn member(node: NodeId, address: &str, health: MemberHealth) -> MemberReport {
    MemberReport {
        node,
        name: format!("n{node}"),
        address: address.to_owned(),
        serves: NodeAddresses::default(),
        zone: String::new(),
        version: String::new(),
        role: MemberRole::Voter,
        health,
        heard: Some(ElapsedMillis(0)),
        log_index: None,
        applied_index: None,
        lag: None,
        behind: None,
        is_full: false,
        clock_ahead_millis: None,
    }
}

fn batch(subject: &str, payload: &[u8]) -> Batch {
    let mut writer = BatchWriter::with_capacity(subject.as_bytes(), b"", payload.len()).unwrap();
    writer.push_payload(payload).unwrap();
    let shared = writer.into_shared(Checksum::Without).unwrap();
    Batch::new(Subject::parse(subject.as_bytes()).unwrap(), shared.bytes, shared.count).unwrap()
}

fn subscriber(broker: &Broker, pattern: &str) -> Link {
    let link = broker.open_link(Arc::new(|| {})).unwrap();
    let pattern = Pattern::parse(pattern.as_bytes()).unwrap();
    link.subscribe(SubscriptionId(1), pattern, &SubscribeOptions::DEFAULTS).unwrap();
    link
}

fn received(link: &Link) -> usize {
    let mut out = Vec::new();
    let _ = link.take(&mut out, Budget::UNLIMITED);
    out.iter().filter(|item| matches!(item, Outbound::Batch { .. })).count()
}

/// A tested node's exchange of messages (its mesh). The test plays the other nodes.
struct Tested {
    mesh: Mesh,
    broker: Broker,
    report: ClusterReport,
    stop: watch::Sender<bool>,
}

impl Drop for Tested {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        self.mesh.join();
    }
}

impl Tested {
    fn start() -> Self {
        let (stop, stopping) = watch::channel(false);
        let mesh = Mesh::new((*credentials(OWN, 5)).clone(), stopping);
        let broker = Broker::new(BrokerConfig { announces: true, ..BrokerConfig::DEFAULTS });
        mesh.start(&broker).unwrap();
        let triggers = Triggers { lag_entries: 1, lag_bytes: 1, stale_after: ElapsedMillis(1) };
        let report = crate::report::empty(ClusterId(9), OWN, triggers);
        Self { mesh, broker, report, stop }
    }

    /// Adds another node, played by the test, that speaks this version of the protocol.
    async fn add(&mut self, node: u64, version: u16) -> PlayedNode {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = NodeId(node);
        self.report.members.push(member(node, &listener.local_addr().unwrap().to_string(), MemberHealth::Alive));
        self.mesh.connected(&Peer { node, address: String::new(), channel: Channel::Control, version, run: None });
        self.mesh.update(&self.report);
        // The mesh closes connections from nodes that it does not know yet.
        until("the node is known", || self.mesh.stats().iter().any(|(known, _)| *known == node)).await;
        PlayedNode { node, listener }
    }

    fn set_health(&mut self, node: NodeId, health: MemberHealth) {
        self.report.members.iter_mut().filter(|member| member.node == node).for_each(|member| member.health = health);
        self.mesh.update(&self.report);
    }

    fn stats(&self, node: NodeId) -> NodeStats {
        self.mesh.stats().into_iter().find(|(other, _)| *other == node).map(|(_, stats)| stats).unwrap_or_default()
    }

    async fn until_filters(&self, node: NodeId, filters: usize) {
        until(&format!("{filters} filters"), || self.stats(node).filters == filters).await;
    }
}

/// Another node, which the test plays.
struct PlayedNode {
    node: NodeId,
    listener: TcpListener,
}

impl PlayedNode {
    /// Accepts the connection that the tested node dials.
    async fn accept(&self) -> Secured<TcpStream> {
        let (stream, _) = self.listener.accept().await.unwrap();
        let (peer, stream) = accept(stream, &credentials(self.node, 5), |_| Ok(None)).await.unwrap();
        assert_eq!((peer.node, peer.channel, peer.version), (OWN, Channel::Subjects, VERSION));
        stream
    }

    /// Opens the connection on which this played node sends, and hands it over to the tested node like the listener
    /// does.
    async fn dial(&self, tested: &Tested) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        tested.mesh.accept(self.node, Secured::Plain(theirs.unwrap().0));
        ours.unwrap()
    }

    /// Connects to the tested node as this played node, and announces filters for the patterns.
    async fn announce(&self, tested: &Tested, patterns: &[&str]) -> TcpStream {
        let mut stream = self.dial(tested).await;
        stream.write_all(&interest(true, (0, 1), patterns)).await.unwrap();
        tested.until_filters(self.node, patterns.len()).await;
        stream
    }
}

fn interest(whole: bool, (from, version): (u64, u64), patterns: &[&str]) -> Vec<u8> {
    let filters: Vec<_> = patterns
        .iter()
        .map(|pattern| SubjectFilter { pattern: ShortBytes(pattern.as_bytes()), group: ShortBytes(b""), members: 1 })
        .collect();
    let mut out = Vec::new();
    encode(&Interest { whole, from, version, filters: List::Items(&filters) }, 0, &mut out).unwrap();
    out
}

fn subject_batch(groups: &[&str], batch: &[u8]) -> Vec<u8> {
    let groups: Vec<_> = groups.iter().map(|group| ShortBytes(group.as_bytes())).collect();
    let mut out = Vec::new();
    encode(&SubjectBatch { groups: List::Items(&groups), batch: RemainingBytes(batch) }, 0, &mut out).unwrap();
    out
}

#[test]
fn filters_come_before_messages_and_messages_go_to_clients_only() {
    run(async {
        let mut tested = Tested::start();
        let client = subscriber(&tested.broker, "a.*");
        let other = tested.add(2, VERSION).await;
        let mut stream = other.accept().await;
        let first = read_frame(&mut stream, MAX_BODY_BYTES).await.unwrap().unwrap();
        assert_eq!(first.kind, Some(PeerKind::Interest));
        let all = Interest::decode_body(&first.body).unwrap();
        let patterns: Vec<_> = all.filters.iter().map(|filter| filter.pattern.0.to_vec()).collect();
        assert!(all.whole && patterns == [b"a.*"], "{all:?}");
        let mut sending = other.announce(&tested, &[">"]).await;
        let inbox = subscriber(&tested.broker, "inbox");
        assert_eq!(tested.broker.publish(&batch("ask", b"x"), None).unwrap().nodes, 1);
        let second = read_frame(&mut stream, MAX_BODY_BYTES).await.unwrap().unwrap();
        let third = read_frame(&mut stream, MAX_BODY_BYTES).await.unwrap().unwrap();
        assert_eq!((second.kind, third.kind), (Some(PeerKind::Interest), Some(PeerKind::SubjectBatch)));
        let changes = Interest::decode_body(&second.body).unwrap();
        assert_eq!((changes.whole, changes.from, changes.filters.len()), (false, all.version, 1));
        let sent = SubjectBatch::decode_body(&third.body).unwrap();
        assert_eq!(&sent.batch.0, batch("ask", b"x").encoded());
        // The other node has subscribed to all subjects, but does not get its own messages back.
        sending.write_all(&subject_batch(&[], batch("a.b", b"y").encoded())).await.unwrap();
        let mut got = 0;
        until("the message", || {
            got += received(&client);
            got > 0
        })
        .await;
        until("both messages are counted", || {
            let stats = tested.stats(other.node);
            (stats.sent, stats.received, stats.lost, stats.queued_bytes) == (1, 1, 0, 0)
        })
        .await;
        assert_eq!(received(&inbox), 0);
    });
}

#[test]
fn a_node_that_does_not_read_loses_messages_and_slows_nobody() {
    run(async {
        let mut tested = Tested::start();
        let (slow, fast) = (tested.add(2, VERSION).await, tested.add(3, VERSION).await);
        let _unread = slow.accept().await;
        let mut stream = fast.accept().await;
        let sending = [slow.announce(&tested, &["a"]).await, fast.announce(&tested, &["a"]).await];
        let client = subscriber(&tested.broker, "a");
        let message = batch("a", &[7; 1024 * 1024]);
        let mut count = 0;
        while tested.stats(slow.node).lost == 0 {
            count += 1;
            assert!(count < 1000, "the queue has a bound");
            let published = tested.broker.publish(&message, None).unwrap();
            assert_eq!(published.delivered, 1);
            assert_eq!(published.nodes + published.nodes_missed, 2);
            assert_eq!(received(&client), 1);
            loop {
                let frame = read_frame(&mut stream, MAX_BODY_BYTES).await.unwrap().unwrap();
                if frame.kind == Some(PeerKind::SubjectBatch) {
                    break;
                }
            }
        }
        let (slow_stats, fast_stats) = (tested.stats(slow.node), tested.stats(fast.node));
        assert!(slow_stats.queued_bytes <= MAX_NODE_QUEUE_BYTES, "{slow_stats:?}");
        assert_eq!((slow_stats.lost, fast_stats.lost), (1, 0));
        // A node that is down gets no messages, and the messages that wait for it are dropped.
        tested.set_health(slow.node, MemberHealth::Down);
        tested.until_filters(slow.node, 0).await;
        assert_eq!(tested.broker.publish(&message, None).unwrap().nodes, 1);
        until("all messages are counted", || {
            let stats = tested.stats(slow.node);
            (stats.queued_bytes, stats.sent + stats.lost) == (0, count)
        })
        .await;
        drop(sending);
        tested.until_filters(fast.node, 0).await;
    });
}

#[test]
fn broken_frames_end_the_connection_and_the_next_one_works() {
    run(async {
        let mut tested = Tested::start();
        let other = tested.add(2, VERSION).await;
        let client = subscriber(&tested.broker, ">");
        let good = batch("a", b"x");
        let mut wrong_sum = good.encoded().to_vec();
        wrong_sum[0] ^= 1;
        let mut cut = good.encoded().to_vec();
        cut.pop();
        let garbage = [
            vec![0xff; 64],
            interest(false, (7, 8), &["b"]),
            interest(true, (0, 1), &["b..c"]),
            subject_batch(&["g", "g", "unknown"], b"short"),
            subject_batch(&[], &wrong_sum),
            subject_batch(&[], &cut),
            subject_batch(&[], &batch("a", b"x").encoded()[..9]),
            interest(true, (0, 1), &["b"])[..20].to_vec(),
        ];
        for bytes in garbage {
            let mut stream = other.announce(&tested, &["a"]).await;
            // The tested node may have closed the connection in the meantime.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            // When a node's connection ends, its filters are dropped.
            tested.until_filters(other.node, 0).await;
        }
        let mut stream = other.announce(&tested, &["a"]).await;
        // A kind of frame from a later version is ignored.
        let mut unknown = subject_batch(&[], good.encoded());
        unknown[4] = 250;
        let frames = [unknown, subject_batch(&["unknown", "unknown"], good.encoded())].concat();
        stream.write_all(&frames).await.unwrap();
        let mut got = 0;
        until("the message", || {
            got += received(&client);
            got > 0
        })
        .await;
        assert_eq!((got, tested.stats(other.node).received), (1, 1));
    });
}

#[test]
fn a_node_without_the_channel_is_not_dialled() {
    run(async {
        let mut tested = Tested::start();
        let old = tested.add(2, 1).await;
        let new = tested.add(3, VERSION).await;
        let _stream = new.accept().await;
        let dialled = tokio::time::timeout(Duration::from_millis(50), old.listener.accept()).await;
        assert!(dialled.is_err(), "nobody dials it");
        // The node is restarted with a newer version.
        let (address, channel) = (String::new(), Channel::Control);
        tested.mesh.connected(&Peer { node: old.node, address, channel, version: 2, run: None });
        tested.mesh.update(&tested.report);
        old.accept().await;
    });
}
