//! Subjects and patterns made of the input, through parsing and a broker, against patterns compared one by one.
//!
//! Never a panic; what parses has the tokens it was given; who gets a message is who asked for it, once, in one copy
//! for each link, and one of each group; when all links are gone nothing is left.

#![no_main]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use thalweg_broker::{
    Batch, Broker, BrokerConfig, Budget, Link, Outbound, Pattern, Subject, SubscribeOptions, SubscriptionId, TakeResult,
};
use thalweg_fuzz::Input;

/// Link and id, pattern, group.
type Wanted = BTreeMap<(usize, u64), (Pattern, Option<Vec<u8>>)>;

fn parse(bytes: &[u8]) -> (Option<Subject>, Option<Pattern>) {
    let (subject, pattern) = (Subject::parse(bytes).ok(), Pattern::parse(bytes).ok());
    if let Some(subject) = &subject {
        assert_eq!(subject.as_bytes(), bytes);
        let literal = pattern.as_ref().expect("a subject is a pattern");
        assert!(literal.is_literal() && literal.matches(subject));
        assert_eq!(subject.tokens().collect::<Vec<_>>().join(&b'.'), bytes);
    }
    if let Some(pattern) = &pattern {
        assert_eq!(pattern.is_literal(), subject.is_some());
        assert!(!pattern.to_string().is_empty());
    }
    (subject, pattern)
}

fn publish(broker: &Broker, links: &[Link], wanted: &Wanted, subject: Subject) {
    let batch = Batch::new(subject.clone(), Bytes::from_static(b"x"), 1).expect("small");
    let published = broker.publish(&batch, None).expect("nobody blocks");
    let mut got = BTreeSet::new();
    for (at, link) in links.iter().enumerate() {
        let mut out = Vec::new();
        assert_eq!(link.take(&mut out, Budget::UNLIMITED), TakeResult::All);
        assert!(out.len() <= 1, "one copy a link");
        for item in out {
            let Outbound::Batch { subscriptions, .. } = item else { panic!("nothing is dropped") };
            subscriptions.iter().for_each(|id| assert!(got.insert((at, id.0)), "once"));
        }
    }
    assert_eq!(got.len() as u64, published.delivered);
    let mut groups = BTreeSet::new();
    let mut plain = 0;
    for (key, (_, group)) in wanted.iter().filter(|(_, (pattern, _))| pattern.matches(&subject)) {
        match group {
            None => {
                plain += 1;
                assert!(got.contains(key), "asked for");
            }
            Some(name) => {
                groups.insert(name);
            }
        }
    }
    assert!(got.iter().all(|key| wanted[key].0.matches(&subject)), "not asked for");
    for name in &groups {
        assert_eq!(got.iter().filter(|key| wanted[key].1.as_ref() == Some(name)).count(), 1, "one of a group");
    }
    assert_eq!(got.len(), plain + groups.len());
}

fuzz_target!(|data: &[u8]| {
    parse(data);
    let mut input = Input(data);
    let cached_subjects = usize::from(input.byte() % 3) * 64;
    let broker = Broker::new(BrokerConfig { seed: 1, cached_subjects, ..BrokerConfig::DEFAULTS });
    let mut links: Vec<Link> = (0..3).map(|_| broker.open_link(Arc::new(|| {})).expect("room")).collect();
    let mut wanted = Wanted::new();
    let mut id = 0;
    while !input.is_empty() {
        let (what, at) = (input.byte() % 8, usize::from(input.byte() % 3));
        let (subject, pattern) = parse(input.bytes());
        match (what, subject, pattern) {
            (0, ..) => {
                links[at] = broker.open_link(Arc::new(|| {})).expect("room");
                wanted.retain(|(of, _), _| *of != at);
            }
            (1, ..) => {
                let Some(key) = wanted.keys().find(|(of, _)| *of == at).copied() else { continue };
                links[at].unsubscribe(SubscriptionId(key.1)).expect("there");
                wanted.remove(&key);
            }
            (2..=4, _, Some(pattern)) => {
                id += 1;
                let group = (what == 2).then(|| vec![b'g', at as u8]);
                let options = SubscribeOptions { group: group.clone(), ..SubscribeOptions::DEFAULTS };
                links[at].subscribe(SubscriptionId(id), pattern.clone(), &options).expect("room");
                wanted.insert((at, id), (pattern, group));
            }
            (_, Some(subject), _) => publish(&broker, &links, &wanted, subject),
            _ => {}
        }
    }
    drop(links);
    let stats = broker.stats();
    assert_eq!((stats.links, stats.subscriptions, stats.queued_bytes), (0, 0, 0));
});
