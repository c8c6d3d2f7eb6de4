//! Rendezvous hashing: chooses a node for each key. If a node joins or leaves, only its own keys move.
//!
//! Owns: the weights of nodes for a key: the node with the highest weight has the key. Does not own: the list of nodes
//! (`directory`), nor their connections. Source: Thaler and Ravishankar, "Using name-based mappings to increase hit
//! rates" (1998).
//!
//! Invariants: the choice depends only on the key and on the set of node ids, not on the order of the ids. All clients
//! of a cache must make the same choice, so the function must never change. `docs/guides/rust-client.md` describes it
//! for clients in other languages.

use thalweg_types::command::groups::key_hash;

/// Returns the node that has a key: the node with the highest weight, or among nodes of equal weight the one with the
/// highest id. Returns `None` if there are no nodes. The cost is one hash of the key, and two short mixes for each
/// node.
pub(crate) fn node_for(key: &[u8], nodes: &[u64]) -> Option<u64> {
    let key = key_hash(key);
    nodes.iter().copied().max_by_key(|node| (weight(key, *node), *node))
}

/// Weight of a node for the key with this hash.
const fn weight(key: u64, node: u64) -> u64 {
    mix(key ^ mix(node))
}

/// Mixes the bits of a number: inputs that differ in one bit give outputs that differ in about half of all bits.
/// Source: the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
const fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const KEYS: u64 = 20_000;

    fn keys() -> impl Iterator<Item = Vec<u8>> {
        (0..KEYS).map(|number| format!("session:{number}").into_bytes())
    }

    /// Returns `count` different node ids. Such an id can be any 64-bit number.
    fn ids(count: u64) -> Vec<u64> {
        (1..=count).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
    }

    #[test]
    fn the_choice_is_pinned() {
        let chosen: [(&[u8], u64); 6] = [(b"", 2), (b"a", 3), (b"b", 2), (b"c", 1), (b"session-1", 3), (b"\xff\0", 1)];
        for (key, node) in chosen {
            assert_eq!(node_for(key, &[1, 2, 3]), Some(node), "{key:?}");
            assert_eq!(node_for(key, &[3, 1, 2]), Some(node), "{key:?}");
        }
        assert_eq!(weight(key_hash(b"a"), 1), 0x2770_cb32_d570_de29);
        assert_eq!((node_for(b"a", &[]), node_for(b"a", &[7])), (None, Some(7)));
    }

    #[test]
    fn each_node_gets_its_share_of_the_keys() {
        for count in 2..=7 {
            // Random ids, and small numbers, which differ only in a few bits.
            for nodes in [ids(count), (1..=count).collect()] {
                let mut shares = BTreeMap::<u64, u64>::new();
                keys().for_each(|key| *shares.entry(node_for(&key, &nodes).unwrap()).or_default() += 1);
                let mean = KEYS / count;
                assert_eq!(shares.len() as u64, count);
                assert!(shares.values().all(|share| share.abs_diff(mean) < mean / 10), "{shares:?}");
            }
        }
    }

    #[test]
    fn only_the_keys_of_a_node_that_joins_or_leaves_move() {
        for count in 1..=6 {
            let (few, many) = (ids(count), ids(count + 1));
            let joins = *many.last().unwrap();
            let mut moved = BTreeMap::<u64, u64>::new();
            for key in keys() {
                let (before, after) = (node_for(&key, &few).unwrap(), node_for(&key, &many).unwrap());
                if before != after {
                    assert_eq!(after, joins);
                    *moved.entry(before).or_default() += 1;
                }
            }
            // A new node takes an equal number of keys from each other node.
            let part = KEYS / count / (count + 1);
            assert_eq!(moved.len() as u64, count);
            assert!(moved.values().all(|moved| moved.abs_diff(part) < part / 5), "{part}: {moved:?}");
        }
    }
}
