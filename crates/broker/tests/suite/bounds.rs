//! Full tables: a typed error, no effect, and room again afterwards.

use thalweg_broker::{
    Broker, BrokerConfig, Credit, SubscribeError, SubscribeOptions, SubscriptionId, TooManyLinks, UnknownSubscription,
};

use crate::common::{pattern, quiet, subscribe};

#[test]
fn subscriptions_of_one_link() {
    let broker = Broker::new(BrokerConfig { max_link_subscriptions: 2, ..BrokerConfig::DEFAULTS });
    assert_eq!(BrokerConfig::DEFAULTS.max_link_subscriptions, thalweg_types::limits::MAX_LINK_SUBSCRIPTIONS);
    let (one, two) = (broker.open_link(quiet()).unwrap(), broker.open_link(quiet()).unwrap());
    subscribe(&one, 1, "a");
    subscribe(&one, 2, "a.*");
    let more = || one.subscribe(SubscriptionId(3), pattern("b"), &SubscribeOptions::DEFAULTS);
    assert_eq!(more(), Err(SubscribeError::TooManyOnLink { max: 2 }));
    subscribe(&two, 3, "b");
    assert_eq!(broker.stats().subscriptions, 3, "rejected ones do not count; each link has its own limit");
    one.unsubscribe(SubscriptionId(1)).unwrap();
    assert_eq!(more(), Ok(()));
}

#[test]
fn links_and_subscriptions() {
    let broker = Broker::new(BrokerConfig { max_links: 2, max_subscriptions: 3, ..BrokerConfig::DEFAULTS });
    let one = broker.open_link(quiet()).unwrap();
    let two = broker.open_link(quiet()).unwrap();
    assert_eq!(broker.open_link(quiet()).unwrap_err(), TooManyLinks { max: 2 });
    subscribe(&one, 1, "a");
    subscribe(&one, 2, "*");
    subscribe(&two, 1, "a");
    let refused = two.subscribe(SubscriptionId(2), pattern("b"), &SubscribeOptions::DEFAULTS);
    assert_eq!(refused, Err(SubscribeError::TooMany { max: 3 }));
    drop(one);
    subscribe(&two, 2, "b");
    let twice = two.subscribe(SubscriptionId(2), pattern("c"), &SubscribeOptions::DEFAULTS);
    assert_eq!(twice, Err(SubscribeError::DuplicateId(SubscriptionId(2))));
    let three = broker.open_link(quiet()).unwrap();
    assert_eq!((broker.stats().links, broker.stats().subscriptions), (2, 2), "rejected ones do not count");
    drop(three);
}

#[test]
fn what_is_not_there_is_said() {
    let broker = crate::common::broker();
    let link = broker.open_link(quiet()).unwrap();
    let unknown = Err(UnknownSubscription(SubscriptionId(9)));
    assert_eq!(link.unsubscribe(SubscriptionId(9)), unknown);
    assert_eq!(link.grant(SubscriptionId(9), Credit::UNLIMITED), unknown);
    assert_eq!(link.queue_stats(SubscriptionId(9)), None);
    let none = SubscribeOptions { max_messages: 0, ..SubscribeOptions::DEFAULTS };
    assert_eq!(link.subscribe(SubscriptionId(1), pattern("a"), &none), Err(SubscribeError::NoQueue));
}
