//! Deliveries compared with a model that matches every pattern with every subject.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_broker::{Broker, BrokerConfig, Link, Outbound, Pattern, SubscribeOptions, SubscriptionId};

use crate::common::{Rng, broker, message, pattern, quiet, received, seeds, subject, subscribe, take};

const TOKENS: &[&str] = &["a", "b", "c", "a*", "\u{0}"];

fn random_subject(rng: &mut Rng) -> String {
    let count = 1 + rng.below(4);
    (0..count).map(|_| rng.pick(TOKENS)).collect::<Vec<_>>().join(".")
}

fn random_pattern(rng: &mut Rng) -> String {
    let count = 1 + rng.below(4);
    let mut tokens: Vec<&str> = (0..count).map(|_| if rng.below(4) == 0 { "*" } else { rng.pick(TOKENS) }).collect();
    if rng.below(4) == 0 {
        *tokens.last_mut().unwrap() = ">";
    }
    tokens.join(".")
}

/// Pattern and queue group of a subscription.
type Wanted = (Pattern, Option<Vec<u8>>);

struct Model {
    links: Vec<Link>,
    /// Subscriptions by link index and id.
    subscriptions: BTreeMap<(usize, u64), Wanted>,
    next_id: u64,
}

impl Model {
    fn change(&mut self, rng: &mut Rng, broker: &Broker) {
        let link = rng.below(self.links.len() as u64) as usize;
        match rng.below(20) {
            0 => {
                self.links[link] = broker.open_link(quiet()).unwrap();
                self.subscriptions.retain(|(of, _), _| *of != link);
            }
            1..=7 if !self.subscriptions.is_empty() => {
                let keys: Vec<_> = self.subscriptions.keys().copied().collect();
                let key = rng.pick(&keys);
                self.links[key.0].unsubscribe(SubscriptionId(key.1)).unwrap();
                self.subscriptions.remove(&key);
            }
            _ => {
                self.next_id += 1;
                let text = if rng.below(2) == 0 { random_subject(rng) } else { random_pattern(rng) };
                let group = (rng.below(3) == 0).then(|| vec![b'g', rng.below(3) as u8]);
                let options = SubscribeOptions { group: group.clone(), ..SubscribeOptions::DEFAULTS };
                let made = pattern(&text);
                self.links[link].subscribe(SubscriptionId(self.next_id), made.clone(), &options).unwrap();
                self.subscriptions.insert((link, self.next_id), (made, group));
            }
        }
    }

    fn publish(&self, rng: &mut Rng, broker: &Broker, number: u64, seed: u64) {
        let text = random_subject(rng);
        let to = subject(&text);
        let published = broker.publish(&message(&text, number), None).unwrap();
        let mut plain = BTreeSet::new();
        let mut groups: BTreeMap<&[u8], BTreeSet<(usize, u64)>> = BTreeMap::new();
        for (key, (_, group)) in self.subscriptions.iter().filter(|(_, (pattern, _))| pattern.matches(&to)) {
            match group {
                None => assert!(plain.insert(*key)),
                Some(name) => assert!(groups.entry(name).or_default().insert(*key)),
            }
        }
        assert_eq!(published.delivered, (plain.len() + groups.len()) as u64, "seed {seed}: {text}");
        let mut got = BTreeSet::new();
        for (at, link) in self.links.iter().enumerate() {
            let out = take(link);
            assert!(out.len() <= 1, "seed {seed}: a link gets one copy for all its subscriptions: {out:?}");
            for (id, _) in received(&out) {
                assert!(got.insert((at, id)), "seed {seed}: {text} twice for {at}/{id}");
            }
        }
        for key in &plain {
            assert!(got.remove(key), "seed {seed}: {text} is missing for {key:?}");
        }
        for (name, members) in groups {
            let chosen = members.iter().filter(|member| got.remove(member)).count();
            assert_eq!(chosen, 1, "seed {seed}: {text} for group {name:?}");
        }
        assert!(got.is_empty(), "seed {seed}: {text} was delivered without a matching subscription: {got:?}");
    }
}

#[test]
fn agrees_with_a_naive_matcher() {
    for (seed, cached_subjects) in seeds(12).into_iter().flat_map(|seed| [0, 64, 65_536].map(|cached| (seed, cached))) {
        println!("seed {seed}, {cached_subjects} cached");
        let mut rng = Rng(seed);
        let broker = Broker::new(BrokerConfig { seed, cached_subjects, ..BrokerConfig::DEFAULTS });
        let links = (0..5).map(|_| broker.open_link(quiet()).unwrap()).collect();
        let mut model = Model { links, subscriptions: BTreeMap::new(), next_id: 0 };
        for number in 0..1500 {
            if rng.below(3) == 0 {
                model.change(&mut rng, &broker);
            }
            model.publish(&mut rng, &broker, number, seed);
        }
        assert_eq!(broker.stats().subscriptions, model.subscriptions.len());
        assert!(broker.stats().cached_subjects <= cached_subjects.next_multiple_of(64));
        drop(model);
        let stats = broker.stats();
        assert_eq!((stats.subscriptions, stats.links, stats.queued_bytes), (0, 0, 0));
        assert_eq!(stats.subjects, stats.cached_subjects, "only cached subjects may be left");
    }
}

#[test]
fn remembered_matches_follow_every_change() {
    let broker = broker();
    let link = broker.open_link(quiet()).unwrap();
    let count = |to: &str| broker.publish(&message(to, 0), None).unwrap().delivered;
    for _ in 0..4 {
        assert_eq!(count("a.b"), 0, "the lookup finds no subscription, and then the cache does");
    }
    subscribe(&link, 1, "a.*");
    assert_eq!(count("a.b"), 1);
    subscribe(&link, 2, "a.b");
    assert_eq!(count("a.b"), 2);
    subscribe(&link, 3, ">");
    assert_eq!(count("a.b"), 3);
    link.unsubscribe(SubscriptionId(1)).unwrap();
    assert_eq!(count("a.b"), 2);
    link.unsubscribe(SubscriptionId(2)).unwrap();
    assert_eq!(count("a.b"), 1);
    link.unsubscribe(SubscriptionId(3)).unwrap();
    assert_eq!(count("a.b"), 0);
}

#[test]
fn what_is_remembered_is_bounded_and_needs_a_second_publish() {
    let broker = Broker::new(BrokerConfig { seed: 3, cached_subjects: 640, ..BrokerConfig::DEFAULTS });
    let link = broker.open_link(quiet()).unwrap();
    subscribe(&link, 1, "inbox.>");
    for number in 0..5000 {
        broker.publish(&message(&format!("inbox.{number}"), number), None).unwrap();
    }
    assert_eq!(broker.stats().subjects, 0, "subjects used once must not be cached");
    for number in 0..5000 {
        let to = format!("inbox.{number}");
        for _ in 0..3 {
            broker.publish(&message(&to, number), None).unwrap();
        }
    }
    let stats = broker.stats();
    assert_eq!((stats.cached_subjects, stats.subjects), (640, 640));
    assert_eq!(take(&link).len(), 20_000);
}

#[test]
fn a_subject_with_very_many_subscriptions() {
    let broker = broker();
    let links: Vec<_> = (0..300).map(|_| broker.open_link(quiet()).unwrap()).collect();
    for (id, link) in links.iter().enumerate() {
        subscribe(link, id as u64, "a");
        subscribe(link, 1000 + id as u64, "*");
    }
    assert_eq!(broker.publish(&message("a", 1), None).unwrap().delivered, 600);
    for (id, link) in links.iter().enumerate().rev() {
        let out = take(link);
        let [Outbound::Batch { subscriptions, .. }] = &*out else { panic!("not one copy: {out:?}") };
        assert_eq!(subscriptions.len(), 2);
        link.unsubscribe(SubscriptionId(id as u64)).unwrap();
    }
    assert_eq!(broker.publish(&message("a", 2), None).unwrap().delivered, 300);
}
