//! Queue groups: exactly one member receives each message, and the choice of that member.

use thalweg_broker::{Broker, Link, Policy, SubscribeError, SubscribeOptions, SubscriptionId};
use thalweg_types::limits::{MAX_QUEUE_GROUP_BYTES, MAX_QUEUE_GROUP_MEMBERS};

use crate::common::{Bell, broker, message, pattern, quiet, take};

fn member(broker: &Broker, policy: Policy, max_messages: u64) -> Link {
    let link = broker.open_link(quiet()).unwrap();
    join(&link, 1, "jobs.*", policy, max_messages).unwrap();
    link
}

fn join(link: &Link, id: u64, text: &str, policy: Policy, max_messages: u64) -> Result<(), SubscribeError> {
    let options = SubscribeOptions { policy, max_messages, group: Some(b"g".to_vec()), ..SubscribeOptions::DEFAULTS };
    link.subscribe(SubscriptionId(id), pattern(text), &options)
}

#[test]
fn a_member_that_is_full_is_passed_over() {
    for policy in [Policy::DropNew, Policy::DropOld, Policy::Block, Policy::Disconnect] {
        let broker = broker();
        let members: Vec<_> = (0..4).map(|_| member(&broker, policy, 5)).collect();
        for number in 0..20 {
            assert_eq!(broker.publish(&message("jobs.x", number), None).unwrap().delivered, 1, "{policy:?} {number}");
        }
        assert!(members.iter().all(|link| link.stats().messages == 5), "all are full: {policy:?}");
        let last = broker.publish(&message("jobs.x", 20), None);
        let dropped: u64 = members.iter().map(|link| link.stats().dropped).sum();
        match policy {
            Policy::Block => assert!(last.is_err() && dropped == 0),
            Policy::DropNew => assert!(last.unwrap().missed == 1 && dropped == 1),
            Policy::DropOld => assert!(last.unwrap().delivered == 1 && dropped == 1),
            Policy::Disconnect => assert_eq!(last.unwrap().missed, 1),
        }
        let there: usize = members.iter().map(|link| take(link).len()).sum();
        let expected = match policy {
            Policy::Block => 20,
            // The item above 20 is a gap notice. With `DropOld`, the newest message also replaced the oldest.
            Policy::DropNew | Policy::DropOld => 21,
            // One of the items reports the disconnect.
            Policy::Disconnect => 16,
        };
        assert_eq!(there, expected, "{policy:?}");
    }
}

#[test]
fn a_blocked_group_is_woken_by_any_member_that_has_room() {
    for which in 0..3 {
        let broker = broker();
        let members: Vec<_> = (0..3).map(|_| member(&broker, Policy::Block, 1)).collect();
        let bell = Bell::new();
        let waiter: std::sync::Arc<dyn thalweg_broker::Notify> = bell.clone();
        for number in 0..3 {
            broker.publish(&message("jobs.x", number), Some(&waiter)).unwrap();
        }
        let before = bell.count();
        broker.publish(&message("jobs.x", 3), Some(&waiter)).unwrap_err();
        assert_eq!(take(&members[which]).len(), 1);
        assert!(bell.count() > before, "member {which}");
        broker.publish(&message("jobs.x", 3), Some(&waiter)).unwrap();
        assert_eq!(members[which].stats().messages, 1);
    }
}

#[test]
fn a_publisher_that_a_full_group_blocks_is_woken_by_a_new_member() {
    for text in ["jobs.*", "jobs.x", ">"] {
        let broker = broker();
        let full = member(&broker, Policy::Block, 1);
        let bell = Bell::new();
        let waiter: std::sync::Arc<dyn thalweg_broker::Notify> = bell.clone();
        broker.publish(&message("jobs.x", 0), Some(&waiter)).unwrap();
        broker.publish(&message("jobs.x", 1), Some(&waiter)).unwrap_err();
        let before = bell.count();
        let other = broker.open_link(quiet()).unwrap();
        join(&other, 1, text, Policy::Block, 1).unwrap();
        assert!(bell.count() > before, "{text}");
        broker.publish(&message("jobs.x", 1), Some(&waiter)).unwrap();
        assert_eq!((full.stats().messages, other.stats().messages), (1, 1), "{text}");
        let before = bell.count();
        crate::common::subscribe(&other, 2, "jobs.y");
        assert_eq!(bell.count(), before, "a subscription without a group gives no room");
    }
}

#[test]
fn the_less_busy_get_more() {
    let broker = broker();
    let (busy, idle) = (member(&broker, Policy::DropNew, 10_000), member(&broker, Policy::DropNew, 10_000));
    busy.subscribe(SubscriptionId(2), pattern("noise"), &SubscribeOptions::DEFAULTS).unwrap();
    for number in 0..1000 {
        broker.publish(&message("noise", number), None).unwrap();
    }
    for number in 0..400 {
        broker.publish(&message("jobs.x", number), None).unwrap();
    }
    let got = idle.stats().messages;
    assert!(got >= 250, "of 400 messages, both are compared in half of the cases and one alone in a quarter: {got}");
    assert!(got < 400, "the busier member must get some messages: {got}");
}

#[test]
fn members_come_and_go_midway() {
    let broker = broker();
    let mut members: Vec<_> = (0..3).map(|_| member(&broker, Policy::DropNew, 1000)).collect();
    let mut got = 0;
    for number in 0..300 {
        if number % 10 == 9 {
            let gone = members.remove(0);
            got += take(&gone).len();
            drop(gone);
            members.push(member(&broker, Policy::DropNew, 1000));
        }
        assert_eq!(broker.publish(&message("jobs.x", number), None).unwrap().delivered, 1);
    }
    got += members.iter().map(|link| take(link).len()).sum::<usize>();
    assert_eq!(got, 300, "each once");
    drop(members);
    assert!(!broker.publish(&message("jobs.x", 0), None).unwrap().matched());
}

#[test]
fn one_group_over_several_patterns_and_beside_plain_subscriptions() {
    let broker = broker();
    let link = broker.open_link(quiet()).unwrap();
    join(&link, 1, "jobs.*", Policy::DropNew, 100).unwrap();
    join(&link, 2, "jobs.x", Policy::DropNew, 100).unwrap();
    join(&link, 3, ">", Policy::DropNew, 100).unwrap();
    crate::common::subscribe(&link, 4, "jobs.>");
    for number in 0..30 {
        let published = broker.publish(&message("jobs.x", number), None).unwrap();
        assert_eq!(published.delivered, 2, "the plain subscription, and one of three members");
        let out = take(&link);
        assert_eq!(out.len(), 1, "the link gets one copy: {out:?}");
        let ids: Vec<_> = crate::common::received(&out).into_iter().map(|(id, _)| id).collect();
        assert!(ids.contains(&4) && ids.len() == 2, "{ids:?}");
    }
}

#[test]
fn bounds_of_groups() {
    let broker = broker();
    let link = broker.open_link(quiet()).unwrap();
    for bytes in [0, MAX_QUEUE_GROUP_BYTES + 1] {
        let options = SubscribeOptions { group: Some(vec![b'g'; bytes]), ..SubscribeOptions::DEFAULTS };
        let refused = link.subscribe(SubscriptionId(1), pattern("a"), &options);
        assert_eq!(refused, Err(SubscribeError::GroupName { bytes }));
    }
    for (text, base) in [("a", 0), ("*", 1_000_000)] {
        for id in 0..MAX_QUEUE_GROUP_MEMBERS as u64 {
            join(&link, base + id, text, Policy::DropNew, 1).unwrap();
        }
        let one_more = join(&link, base + 500_000, text, Policy::DropNew, 1);
        assert_eq!(one_more, Err(SubscribeError::GroupFull));
        link.unsubscribe(SubscriptionId(base)).unwrap();
        join(&link, base + 500_000, text, Policy::DropNew, 1).unwrap();
    }
    assert_eq!(broker.stats().subscriptions, 2 * MAX_QUEUE_GROUP_MEMBERS);
}
