//! Subjects over all nodes: messages, queue groups, requests and replies, and the restart of a node.

use std::sync::{Arc, OnceLock};

use thalweg_broker::{
    Batch, Broker, BrokerConfig, Budget, Link, Outbound, Pattern, Subject, SubscribeOptions, SubscriptionId,
};
use thalweg_serving::cluster::ClusterHandle;
use thalweg_wire::{BatchWriter, Checksum};

use crate::cluster::{TestCluster, TestNode, wait_until};

/// Brokers of the nodes of a cluster, in the order of the nodes.
struct Subjects {
    cluster: TestCluster,
    brokers: Vec<Broker>,
}

fn begin(node: &TestNode) -> Broker {
    let broker = Broker::new(BrokerConfig { announces: true, ..BrokerConfig::DEFAULTS });
    node.node.carry_subjects(&broker);
    broker
}

impl Subjects {
    fn start(count: usize) -> Self {
        let cluster = TestCluster::start(count);
        let brokers = cluster.nodes.iter().map(begin).collect();
        Self { cluster, brokers }
    }

    /// Waits until each node has as many filters of each other node as this function says for that node.
    fn wait_for_filters(&self, filters: impl Fn(usize) -> usize) {
        let ids: Vec<_> = self.cluster.nodes.iter().map(TestNode::id).collect();
        wait_until("the nodes know the filters of each other", || {
            self.cluster.nodes.iter().enumerate().all(|(at, node)| {
                let stats = node.node.subject_stats();
                let has = |other: usize| {
                    let found = stats.iter().find(|(id, _)| *id == ids[other]);
                    found.is_some_and(|(_, stats)| stats.filters == filters(other))
                };
                (0..ids.len()).filter(|other| *other != at).all(has)
            })
        });
    }
}

fn batch(subject: &str, reply: &str, payload: &[u8]) -> Batch {
    let mut writer = BatchWriter::with_capacity(subject.as_bytes(), reply.as_bytes(), payload.len()).unwrap();
    writer.push_payload(payload).unwrap();
    let shared = writer.into_shared(Checksum::Without).unwrap();
    Batch::new(Subject::parse(subject.as_bytes()).unwrap(), shared.bytes, shared.count).unwrap()
}

/// A subscriber that keeps what it receives.
struct Subscriber {
    link: Link,
    got: Vec<Batch>,
}

impl Subscriber {
    fn new(broker: &Broker, pattern: &str, group: &str) -> Self {
        let link = broker.open_link(Arc::new(|| {})).unwrap();
        let group = (!group.is_empty()).then(|| group.as_bytes().to_vec());
        let options = SubscribeOptions { group, ..SubscribeOptions::DEFAULTS };
        link.subscribe(SubscriptionId(1), Pattern::parse(pattern.as_bytes()).unwrap(), &options).unwrap();
        Self { link, got: Vec::new() }
    }

    fn receive(&mut self) -> usize {
        let mut out = Vec::new();
        let _ = self.link.take(&mut out, Budget::UNLIMITED);
        self.got.extend(out.into_iter().filter_map(|item| match item {
            Outbound::Batch { batch, .. } => Some(batch),
            _ => None,
        }));
        self.got.len()
    }

    fn wait_for(&mut self, count: usize) {
        wait_until(&format!("{count} batches"), || self.receive() >= count);
        assert_eq!(self.got.len(), count);
    }

    fn payloads(&self) -> Vec<Vec<u8>> {
        let payload = |batch: &Batch| {
            let batch = thalweg_wire::Batch::decode(batch.encoded()).unwrap();
            batch.messages().next().unwrap().unwrap().payload.to_vec()
        };
        self.got.iter().map(payload).collect()
    }
}

#[test]
fn messages_and_groups_reach_subscribers_on_all_nodes() {
    let subjects = Subjects::start(3);
    let brokers = &subjects.brokers;
    let mut all: Vec<_> = brokers.iter().map(|broker| Subscriber::new(broker, "a.>", "")).collect();
    let mut literal = Subscriber::new(&brokers[1], "a.b", "");
    let mut members: Vec<_> = brokers.iter().map(|broker| Subscriber::new(broker, "a.*", "g")).collect();
    subjects.wait_for_filters(|node| if node == 1 { 3 } else { 2 });
    const EACH: usize = 100;
    for (at, broker) in brokers.iter().enumerate() {
        for number in 0..EACH {
            let published = broker.publish(&batch("a.b", "", &[at as u8, number as u8]), None).unwrap();
            assert_eq!((published.missed, published.nodes_missed), (0, 0));
            assert_eq!(published.nodes, 2, "once to each node");
        }
        // Ends the messages of this node in each queue.
        broker.publish(&batch("a.end.end", "", b"--"), None).unwrap();
    }
    for subscriber in &mut all {
        subscriber.wait_for(3 * (EACH + 1));
        for at in 0..3 {
            let of_node: Vec<_> = subscriber.payloads().into_iter().filter(|payload| payload[0] == at).collect();
            assert!(of_node.is_sorted() && of_node.len() == EACH, "messages of one node arrive in order, each once");
        }
    }
    literal.wait_for(3 * EACH);
    // Everything that was sent has arrived, because the last message of each node has.
    let shares: Vec<_> = members.iter_mut().map(Subscriber::receive).collect();
    assert_eq!(shares.iter().sum::<usize>(), 3 * EACH, "{shares:?}");
    assert!(shares.iter().all(|share| *share > EACH / 4), "{shares:?}");
    wait_until("all messages are counted", || {
        let mut stats = subjects.cluster.nodes.iter().flat_map(|node| node.node.subject_stats());
        let each = EACH as u64 + 1;
        stats.all(|(_, stats)| (stats.sent, stats.lost, stats.received) == (each, 0, each))
    });
    drop((all, literal, members));
    subjects.wait_for_filters(|_| 0);
    assert!(!brokers[0].publish_now(&batch("a.b", "", b"no")).matched());
}

/// A responder, which answers each request when its broker notifies it.
#[derive(Default)]
struct Responder {
    link: OnceLock<Link>,
}

impl Responder {
    fn start(broker: &Broker, subject: &str) -> Arc<Self> {
        let responder = Arc::new(Self::default());
        let (notified, answering) = (Arc::downgrade(&responder), broker.clone());
        let notify = move || {
            if let Some(responder) = notified.upgrade() {
                responder.answer(&answering);
            }
        };
        let link = broker.open_link(Arc::new(notify)).unwrap();
        let pattern = Pattern::parse(subject.as_bytes()).unwrap();
        link.subscribe(SubscriptionId(1), pattern, &SubscribeOptions::DEFAULTS).unwrap();
        responder.link.set(link).unwrap();
        responder
    }

    /// Publishes the answers on the thread that has delivered the requests.
    fn answer(&self, broker: &Broker) {
        let (Some(link), mut out) = (self.link.get(), Vec::new()) else { return };
        let _ = link.take(&mut out, Budget::UNLIMITED);
        for item in out {
            let Outbound::Batch { batch: asked, .. } = item else { continue };
            let reply = thalweg_wire::Batch::decode(asked.encoded()).unwrap().reply().to_vec();
            broker.publish_now(&batch(std::str::from_utf8(&reply).unwrap(), "", b"ok"));
        }
    }
}

#[test]
fn a_reply_finds_an_inbox_that_was_made_just_before_the_request() {
    let subjects = Subjects::start(2);
    let _responder = Responder::start(&subjects.brokers[1], "ask");
    subjects.wait_for_filters(|node| node);
    for number in 0..200 {
        let reply = format!("_reply.{number}");
        let mut inbox = Subscriber::new(&subjects.brokers[0], &reply, "");
        let published = subjects.brokers[0].publish(&batch("ask", &reply, b"??"), None).unwrap();
        assert_eq!((published.delivered, published.nodes), (0, 1));
        inbox.wait_for(1);
        assert_eq!(inbox.payloads(), [b"ok"]);
    }
}

#[test]
fn filters_come_back_when_a_node_has_restarted() {
    let mut subjects = Subjects::start(3);
    let mut first = Subscriber::new(&subjects.brokers[0], "a", "");
    let second = Subscriber::new(&subjects.brokers[1], "a", "");
    subjects.wait_for_filters(|node| usize::from(node < 2));
    let (path, options) = subjects.cluster.nodes.remove(1).stop();
    drop((second, subjects.brokers.remove(1)));
    let others = |subjects: &Subjects| {
        let filters = |node: &TestNode| node.node.subject_stats().iter().map(|(_, stats)| stats.filters).sum::<usize>();
        (filters(&subjects.cluster.nodes[0]), filters(&subjects.cluster.nodes[1]))
    };
    wait_until("the filters of the node are forgotten", || others(&subjects) == (0, 1));
    let has = |subscriber: &Subscriber, payload: &[u8]| subscriber.payloads().iter().any(|other| other == payload);
    // Delivery is at most once: a message is lost if its connection ends, which happens on a busy machine.
    wait_until("a message of the other node", || {
        assert_eq!(subjects.brokers[1].publish_now(&batch("a", "", b"1.")).nodes, 1);
        first.receive();
        has(&first, b"1.")
    });
    subjects.cluster.restart(path, options);
    subjects.brokers.push(begin(&subjects.cluster.nodes[2]));
    let mut again = Subscriber::new(&subjects.brokers[2], "a", "");
    subjects.wait_for_filters(|node| usize::from(node != 1));
    wait_until("messages of both nodes", || {
        assert_eq!(subjects.brokers[1].publish_now(&batch("a", "", b"2.")).nodes, 2);
        assert_eq!(subjects.brokers[2].publish_now(&batch("a", "", b"3.")).nodes, 1);
        first.receive();
        again.receive();
        [&first, &again].iter().all(|subscriber| has(subscriber, b"2.") && has(subscriber, b"3."))
    });
}
