//! A cache that is spread over scripted nodes: places of keys, members that come, go and are away.

use std::{collections::BTreeMap, time::Duration};

use thalweg_client::{Action, CacheTtl, Classified, Client, Effect, Error, Options, SpreadCache};

use crate::{
    cluster::Cluster,
    peer::{connected, quick},
};

const KEYS: usize = 200;

fn keys() -> Vec<Vec<u8>> {
    (0..KEYS).map(|number| format!("key {number}").into_bytes()).collect()
}

/// Options with which the client soon learns of new members.
fn refreshed() -> Options {
    Options { refresh: Duration::from_millis(10), ..quick() }
}

async fn node_of(cache: &SpreadCache, key: &[u8]) -> u64 {
    cache.node_of(key).await.unwrap().expect("there are members")
}

/// Returns the member of each key.
async fn places(cache: &SpreadCache) -> BTreeMap<Vec<u8>, u64> {
    let mut places = BTreeMap::new();
    for key in keys() {
        places.insert(key.clone(), node_of(cache, &key).await);
    }
    places
}

/// Waits until the client knows this number of members.
async fn until_members(cache: &SpreadCache, count: usize) {
    let known = async {
        while cache.parts().await.unwrap().len() != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), known).await.expect("the client learns the members");
}

#[tokio::test]
async fn each_key_has_its_entry_on_one_member_and_only_the_keys_of_a_new_one_move() {
    let cluster = Cluster::new(3).await;
    cluster.set_members(2);
    let client = Client::connect(cluster.endpoint(1), refreshed()).await.unwrap();
    let cache = client.spread_cache("c");
    let before = places(&cache).await;
    let all = keys();
    let (first, rest) = all.split_at(KEYS / 2);
    for key in first {
        cache.put(key, key).await.unwrap();
    }
    let pairs: Vec<_> = rest.iter().map(|key| (&key[..], &key[..])).collect();
    cache.put_many(&pairs, CacheTtl::Never {}).await.unwrap();
    for node in 1..=3 {
        let expected: Vec<_> = before.iter().filter(|(_, at)| **at == node).map(|(key, _)| key.clone()).collect();
        assert_eq!(cluster.node(node).cached.keys(), expected);
        assert_eq!(expected.is_empty(), node == 3, "both members have keys");
    }

    cluster.set_members(3);
    until_members(&cache, 3).await;
    let after = places(&cache).await;
    for (key, node) in &after {
        let moved = before[key] != *node;
        assert!(!moved || *node == 3, "{key:?} moves to {node}");
        // An entry that stays is found, and one that moves is missing.
        assert_eq!(cache.get(key).await.unwrap().is_none(), moved);
    }
    assert!(after.values().any(|node| *node == 3));

    // Another client finds the entries at the same places.
    let other = Client::connect(cluster.endpoint(2), refreshed()).await.unwrap().spread_cache("c");
    assert_eq!(places(&other).await, after);
    let wanted = all.clone();
    let reading = tokio::spawn(async move {
        let wanted: Vec<_> = wanted.iter().map(Vec::as_slice).collect();
        other.get_many(&wanted).await.unwrap()
    });
    for (key, found) in all.iter().zip(reading.await.unwrap()) {
        let found = found.unwrap().map(|found| found.value.to_vec());
        assert_eq!(found.as_ref(), (before[key] == after[key]).then_some(key), "the order is that of the keys");
    }

    // When the member leaves, its keys return.
    cluster.set_members(2);
    until_members(&cache, 2).await;
    assert_eq!(places(&cache).await, before);
    cache.clear().await.unwrap();
    assert!([1, 2].iter().all(|node| cluster.node(*node).cached.keys().is_empty()));
    client.close().await;
    assert!(matches!(cache.get(b"key").await, Err(Error::Closed)));
}

#[tokio::test]
async fn the_keys_of_a_member_that_is_away_fail_and_the_others_do_not() {
    let cluster = Cluster::new(3).await;
    let client = Client::connect(cluster.endpoint(1), refreshed()).await.unwrap();
    let cache = client.spread_cache("c");
    for key in keys() {
        cache.put(&key, &key).await.unwrap();
    }
    let before = places(&cache).await;
    cluster.kill(3).await;
    let mut failed = 0;
    for (key, node) in &before {
        match cache.get(key).await {
            Ok(found) => assert_eq!((found.unwrap().value, *node == 3), (key.clone().into(), false)),
            Err(error) => {
                assert!(matches!(&error, Error::NodeAway { node: 3, .. }), "{error}");
                assert_eq!((*node, error.action(), error.effect()), (3, Action::Retry, Effect::Nothing));
                failed += 1;
                // Each failure takes some retries.
                if failed == 3 {
                    break;
                }
            }
        }
    }
    assert_eq!(failed, 3);
    let wanted: Vec<_> = before.keys().map(Vec::as_slice).collect();
    for (node, found) in before.values().zip(cache.get_many(&wanted).await.unwrap()) {
        assert_eq!(found.is_err(), *node == 3);
    }
    let own: Vec<_> = before.iter().filter(|(_, node)| **node == 3).map(|(key, _)| (&key[..], &b"v"[..])).collect();
    assert!(matches!(cache.put_many(&own, CacheTtl::Never {}).await, Err(Error::NodeAway { node: 3, .. })));
    assert_eq!(places(&cache).await, before, "no key moves");
}

#[tokio::test]
async fn a_server_without_a_cluster_has_all_keys() {
    let (_server, client, mut peer) = connected().await;
    let cache = client.spread_cache("c");
    assert_eq!(cache.node_of(b"a").await.unwrap(), None);
    let served = crate::cached::Cached::default();
    let serving = async {
        while let Some(frame) = peer.next().await {
            let envelope = thalweg_wire::ClientFrame::decode(frame.raw()).unwrap();
            served.answer(&mut peer, envelope.id, &envelope.frame).await;
        }
    };
    let using = async {
        cache.put(b"a", b"1").await.unwrap();
        assert_eq!(cache.get(b"a").await.unwrap().unwrap().value, "1");
        assert_eq!(cache.parts().await.unwrap().len(), 1);
    };
    tokio::select! {
        () = serving => panic!("the connection ends"),
        () = using => {}
    }
    assert_eq!(served.keys(), [b"a".to_vec()]);
}
