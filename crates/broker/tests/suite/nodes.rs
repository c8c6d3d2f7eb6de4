//! Several brokers as nodes of a cluster: announcements, one batch for each node, and groups over all nodes. The test
//! carries the announcements and batches from one broker to the other.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use thalweg_broker::{
    Batch, Broker, BrokerConfig, Budget, FilterError, Link, MAX_ANNOUNCED_MEMBERS, NodeBatch, NodeLink, Outbound,
    Policy, Published, SubscribeOptions, SubscriptionId, TakeResult,
};

use crate::common::{Bell, Rng, message, pattern, quiet, seeds, take};

const QUEUE_BYTES: u64 = 1 << 20;

/// A node, its links to the others, and the versions of its filters that they have.
struct Node {
    broker: Broker,
    links: BTreeMap<usize, NodeLink>,
    sent: BTreeMap<usize, u64>,
}

/// Nodes that are connected with each other.
struct Mesh(Vec<Node>);

fn new_broker() -> Broker {
    Broker::new(BrokerConfig { announces: true, ..BrokerConfig::DEFAULTS })
}

impl Mesh {
    fn new(count: usize) -> Self {
        let node = |at: usize| {
            let broker = new_broker();
            let others = (0..count).filter(|other| *other != at);
            let links = others.map(|other| (other, broker.open_node(quiet(), QUEUE_BYTES))).collect();
            Node { broker, links, sent: BTreeMap::new() }
        };
        Self((0..count).map(node).collect())
    }

    /// Sends the filters of a node that have changed to another node.
    fn announce(&mut self, from: usize, to: usize) {
        let sent = self.0[from].sent.get(&to).copied();
        let Some(changes) = self.0[from].broker.announcement(sent) else { return };
        self.0[from].sent.insert(to, changes.version);
        let filters = changes
            .filters
            .iter()
            .map(|(filter, members)| (&*filter.pattern, filter.group.as_deref().unwrap_or_default(), *members));
        self.0[to].links[&from].announced(changes.is_whole, (changes.from, changes.version), filters).unwrap();
    }

    fn announce_all(&mut self) {
        for from in 0..self.0.len() {
            (0..self.0.len()).filter(|to| *to != from).for_each(|to| self.announce(from, to));
        }
    }

    /// Passes all waiting batches on. Returns their number for each pair of nodes, and the results there.
    fn pass(&self) -> BTreeMap<(usize, usize), Vec<Published>> {
        let mut passed: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (from, node) in self.0.iter().enumerate() {
            for (to, link) in &node.links {
                for NodeBatch { batch, groups } in taken(link) {
                    let mut groups: Vec<&[u8]> = groups.iter().map(|group| &**group).collect();
                    groups.sort_unstable();
                    let published = self.0[*to].broker.publish_from_node(&batch, &groups);
                    passed.entry((from, *to)).or_default().push(published);
                }
            }
        }
        passed
    }
}

fn taken(link: &NodeLink) -> Vec<NodeBatch> {
    let mut out = Vec::new();
    assert_eq!(link.take(&mut out, Budget::UNLIMITED), TakeResult::All);
    out
}

fn subscriber(broker: &Broker, text: &str, group: Option<&str>) -> Link {
    let link = broker.open_link(quiet()).unwrap();
    let group = group.map(|group| group.as_bytes().to_vec());
    let options = SubscribeOptions { group, ..SubscribeOptions::DEFAULTS };
    link.subscribe(SubscriptionId(1), pattern(text), &options).unwrap();
    link
}

fn received(link: &Link) -> usize {
    take(link).iter().filter(|item| matches!(item, Outbound::Batch { .. })).count()
}

fn publish(broker: &Broker, text: &str) -> Published {
    broker.publish(&message(text, 0), None).unwrap()
}

#[test]
fn a_batch_goes_once_to_each_node_that_wants_it_and_no_further() {
    let mut mesh = Mesh::new(3);
    let subscribers = [
        subscriber(&mesh.0[0].broker, "a.*", None),
        subscriber(&mesh.0[1].broker, "a.b", None),
        subscriber(&mesh.0[1].broker, "a.>", None),
        subscriber(&mesh.0[2].broker, "other", None),
    ];
    mesh.announce_all();
    let published = publish(&mesh.0[0].broker, "a.b");
    assert_eq!(published, Published { delivered: 1, nodes: 1, ..Published::default() });
    let passed = mesh.pass();
    let there = Published { delivered: 2, ..Published::default() };
    assert_eq!(passed.into_iter().collect::<Vec<_>>(), [((0, 1), vec![there])]);
    assert!(mesh.pass().is_empty(), "the node does not pass it on");
    assert_eq!(subscribers.each_ref().map(received), [1, 1, 1, 0]);
    assert_eq!(publish(&mesh.0[0].broker, "nobody"), Published::default());
    assert!(!publish(&mesh.0[2].broker, "nobody").matched() && publish(&mesh.0[2].broker, "a.c").matched());
}

#[test]
fn a_group_on_several_nodes_gets_each_message_once_and_shares_them_by_members() {
    for seed in seeds(3) {
        let mut mesh = Mesh::new(3);
        let mut random = Rng(seed);
        let mut members = Vec::new();
        for (node, count) in [(0, 1), (1, 3), (2, 2)] {
            members.extend((0..count).map(|_| (node, subscriber(&mesh.0[node].broker, "jobs.*", Some("g")))));
        }
        // A second group, and a subscriber without one, on the same link as a member.
        let plain = subscriber(&mesh.0[1].broker, "jobs.>", None);
        let other = subscriber(&mesh.0[1].broker, "jobs.x", Some("h"));
        mesh.announce_all();
        let mut got = vec![0; members.len()];
        let count = 600;
        for _ in 0..count {
            publish(&mesh.0[random.below(3) as usize].broker, "jobs.x");
            mesh.pass();
            for (at, (_, link)) in members.iter().enumerate() {
                got[at] += received(link);
            }
        }
        assert_eq!(got.iter().sum::<usize>(), count, "seed {seed}: {got:?}");
        assert_eq!((received(&plain), received(&other)), (count, count));
        assert!(got.iter().all(|one| (count / 12..count / 3).contains(one)), "seed {seed}: {got:?}");
        // Members that have left are not chosen any more.
        members.retain(|(node, _)| *node == 2);
        mesh.announce_all();
        for _ in 0..20 {
            publish(&mesh.0[0].broker, "jobs.x");
        }
        mesh.pass();
        assert_eq!(members.iter().map(|(_, link)| received(link)).sum::<usize>(), 20);
    }
}

#[test]
fn a_reply_finds_its_way_if_the_inbox_is_announced_before_the_request() {
    let mut mesh = Mesh::new(2);
    let responder = subscriber(&mesh.0[1].broker, "ask", None);
    mesh.announce_all();
    let inbox = subscriber(&mesh.0[0].broker, "_reply.x", None);
    assert_eq!(publish(&mesh.0[0].broker, "ask").nodes, 1);
    // The driver takes batches first and sends the changes that it finds then before them.
    let batches = taken(&mesh.0[0].links[&1]);
    mesh.announce(0, 1);
    for item in &batches {
        mesh.0[1].broker.publish_from_node(&item.batch, &[]);
    }
    assert_eq!(received(&responder), 1);
    assert_eq!(publish(&mesh.0[1].broker, "_reply.x").nodes, 1);
    mesh.pass();
    assert_eq!(received(&inbox), 1);
}

#[test]
fn a_queue_for_a_node_has_a_bound_and_losses_are_counted() {
    let mut mesh = Mesh::new(2);
    let far = subscriber(&mesh.0[1].broker, "a", None);
    let far_too = subscriber(&mesh.0[1].broker, ">", None);
    let near = subscriber(&mesh.0[0].broker, "a", None);
    mesh.announce_all();
    let batch = |bytes: usize| {
        let subject = thalweg_broker::Subject::parse(b"a").unwrap();
        Batch::new(subject, vec![7; bytes].into(), 3).unwrap()
    };
    let mut lost = 0;
    for _ in 0..100 {
        let published = mesh.0[0].broker.publish(&batch(64 * 1024), None).unwrap();
        assert_eq!(published.delivered, 1, "nobody waits for a node");
        lost += u64::from(published.nodes_missed) * 3;
    }
    let stats = mesh.0[0].links[&1].stats();
    assert!(lost > 0 && stats.lost == lost && stats.queued_bytes <= QUEUE_BYTES, "{lost} {stats:?}");
    assert_eq!(mesh.0[0].broker.stats().losses, thalweg_broker::Losses::default(), "no client has missed anything");
    let passed: usize = mesh.pass().values().map(Vec::len).sum();
    assert_eq!(passed as u64 * 3 + lost, 300);
    assert_eq!((received(&near), received(&far), received(&far_too)), (100, passed, passed));
    // A request that only a full node could answer is told so.
    drop(near);
    while mesh.0[0].broker.publish_now(&batch(64 * 1024)).nodes > 0 {}
    let full = mesh.0[0].broker.publish_now(&batch(64 * 1024));
    assert!(full.matched() && !full.is_queued(), "{full:?}");
    // What waits for a node that is gone is lost.
    let before = mesh.0[0].links[&1].stats();
    mesh.0[0].links[&1].clear();
    let after = mesh.0[0].links[&1].stats();
    assert!(after.lost > before.lost && (after.filters, after.queued_bytes) == (0, 0), "{after:?}");
    assert_eq!(mesh.0[0].broker.publish_now(&batch(1)), Published::default());
}

#[test]
fn a_full_node_is_passed_over_in_a_group() {
    let mut mesh = Mesh::new(2);
    let far = subscriber(&mesh.0[1].broker, "a", Some("g"));
    let near = subscriber(&mesh.0[0].broker, "a", Some("g"));
    mesh.announce_all();
    let subject = thalweg_broker::Subject::parse(b"a").unwrap();
    let batch = Batch::new(subject, vec![7; 256 * 1024].into(), 1).unwrap();
    for number in 0..40 {
        let published = mesh.0[0].broker.publish(&batch, None).unwrap();
        assert_eq!(published.delivered + u64::from(published.nodes), 1, "{number}: {published:?}");
    }
    let far_ones: usize = mesh.pass().values().map(Vec::len).sum();
    assert_eq!(received(&far), far_ones);
    assert_eq!(received(&near) + far_ones, 40);
}

#[test]
fn a_batch_of_a_node_waits_for_no_subscriber() {
    let broker = new_broker();
    let link = broker.open_link(quiet()).unwrap();
    let options = SubscribeOptions { policy: Policy::Block, max_messages: 1, ..SubscribeOptions::DEFAULTS };
    link.subscribe(SubscriptionId(1), pattern("a"), &options).unwrap();
    assert_eq!(broker.publish_from_node(&message("a", 0), &[]).delivered, 1);
    let missed = broker.publish_from_node(&message("a", 1), &[]);
    assert_eq!(missed, Published { missed: 1, ..Published::default() });
    let stats = broker.stats();
    assert_eq!((stats.messages, stats.deliveries, stats.missed), (0, 1, 1), "it was published elsewhere");
}

#[test]
fn changes_that_do_not_fit_are_rejected() {
    let broker = new_broker();
    let link = broker.open_node(quiet(), QUEUE_BYTES);
    let filters = |all: &[(&'static str, &'static str, u32)]| {
        let bytes: Vec<_> =
            all.iter().map(|(pattern, group, members)| (pattern.as_bytes(), group.as_bytes(), *members)).collect();
        bytes.into_iter()
    };
    let version = link.announced(false, (0, 1), filters(&[]));
    assert_eq!(version, Err(FilterError::Version { from: 0, have: None }));
    link.announced(true, (0, 5), filters(&[("a", "", 1), ("b", "g", 1000), ("unknown", "", 0)])).unwrap();
    assert_eq!(link.stats().filters, 2);
    assert_eq!(broker.stats().subscriptions, 0, "those of other nodes do not count");
    assert!(matches!(link.announced(false, (4, 6), filters(&[])), Err(FilterError::Version { .. })));
    link.announced(false, (5, 6), filters(&[("a", "", 0), ("b", "g", 1), ("c.>", "", 7)])).unwrap();
    assert_eq!(link.stats().filters, 2);
    assert!(matches!(link.announced(false, (6, 7), filters(&[("a..b", "", 1)])), Err(FilterError::Pattern(_))));
    let long = "g".repeat(200).leak();
    assert_eq!(link.announced(false, (6, 7), filters(&[("a", long, 1)])), Err(FilterError::GroupName(200)));
    // A new connection begins with all filters, which replace the others.
    link.begin();
    assert!(link.announced(false, (6, 7), filters(&[])).is_err());
    link.announced(true, (0, 1), filters(&[("d", "", 1)])).unwrap();
    assert_eq!(link.stats().filters, 1);
    assert_eq!((publish(&broker, "d").nodes, publish(&broker, "c.x").nodes), (1, 0));
    assert_eq!(MAX_ANNOUNCED_MEMBERS, 32);
}

#[test]
fn the_drivers_of_nodes_are_notified_of_changes_once_until_they_read_them() {
    let broker = new_broker();
    let bell = Bell::new();
    let link = broker.open_node(Arc::clone(&bell) as _, QUEUE_BYTES);
    let version = broker.announcement(None).unwrap().version;
    let first = subscriber(&broker, "a", None);
    let second = subscriber(&broker, "b", None);
    assert_eq!(bell.calls.load(Ordering::SeqCst), 1);
    assert_eq!(broker.announcement(Some(version)).unwrap().filters.len(), 2);
    drop((first, second));
    assert_eq!(bell.calls.load(Ordering::SeqCst), 2);
    drop(link);
    // A broker alone announces nothing.
    let alone = crate::common::broker();
    let _one = subscriber(&alone, "a", None);
    assert_eq!(alone.announcement(None), None);
}
