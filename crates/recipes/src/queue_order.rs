//! Order of the contenders that hold or wait, computed from a list of their keys, without any request to the
//! database.

use thalweg_types::{LeaseId, Revision};

use crate::coordinator::Contender;

/// Number of hexadecimal digits of the lease id in a contender's key.
const LEASE_DIGITS: usize = 16;

/// Prefix of the keys of all contenders for the lock, semaphore or election with this name.
pub(crate) fn prefix_of(name: &str) -> Vec<u8> {
    format!("{name}/").into_bytes()
}

/// Key of the contender with this lease, for the lock, semaphore or election with this name.
pub(crate) fn key_of(name: &str, lease: LeaseId) -> Vec<u8> {
    format!("{name}/{:0LEASE_DIGITS$x}", lease.0).into_bytes()
}

/// Returns true if `key`, which begins with `prefix`, belongs to a contender for the lock, semaphore or election with
/// this prefix. Keys of a longer name can begin with the same bytes.
fn is_contender(prefix: &[u8], key: &[u8]) -> bool {
    let lease = key.strip_prefix(prefix).unwrap_or_default();
    lease.len() == LEASE_DIGITS && lease.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Removes keys that do not belong to contenders from the list, and sorts the contenders by position in the queue.
pub(crate) fn in_order(prefix: &[u8], mut listed: Vec<Contender>) -> Vec<Contender> {
    listed.retain(|contender| is_contender(prefix, &contender.key));
    listed.sort_unstable_by_key(|contender| contender.revision);
    listed
}

/// Returns the contenders before the one with this key; `None` if the list does not contain this key.
pub(crate) fn ahead_of(mut in_order: Vec<Contender>, key: &[u8], revision: Revision) -> Option<Vec<Contender>> {
    let at = in_order.iter().position(|contender| contender.key == key && contender.revision == revision)?;
    in_order.truncate(at);
    Some(in_order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_revision_is_first_whatever_the_keys_are() {
        let contender = |key: Vec<u8>, revision| Contender { key, revision: Revision(revision) };
        let of = |lease, revision| contender(key_of("a", LeaseId(lease)), revision);
        let longer = contender(key_of("a/b", LeaseId(1)), 1);
        let foreign = contender(b"a/ABCDEFABCDEFABCD".to_vec(), 2);
        let listed = vec![longer, of(1, 30), of(2, 10), foreign, of(u64::MAX, 20)];
        let order = in_order(&prefix_of("a"), listed);
        assert_eq!(order, [of(2, 10), of(u64::MAX, 20), of(1, 30)]);
        let ahead = |lease, revision| ahead_of(order.clone(), &of(lease, 0).key, Revision(revision));
        assert_eq!(ahead(2, 10), Some(vec![]));
        assert_eq!(ahead(1, 30), Some(vec![of(2, 10), of(u64::MAX, 20)]));
        assert_eq!((ahead(1, 31), ahead(3, 30)), (None, None));
    }
}
