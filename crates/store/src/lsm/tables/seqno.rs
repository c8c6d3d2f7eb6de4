//! Sequence numbers of flushes.
//!
//! Owns: the range of the sequence numbers, and the number of the first flush after an open. Does not own: the counter.
//!
//! Invariant: `FIRST <= number < EVERYTHING`, and a flush has a higher number than all tables that exist.

/// Sequence number of the first flush, far above the private counters that the LSM crate uses for its manifests.
const FIRST: u64 = 1 << 32;
/// Sequence number above those of all items, and below the values that the LSM crate's counters reject.
pub(super) const EVERYTHING: u64 = 1 << 62;

/// Returns the sequence number of the next flush, if `highest` is the highest number in the existing tables. Returns
/// `None` if the number would be out of range; only damage or a malicious table can cause this.
pub(super) fn after(highest: Option<u64>) -> Option<u64> {
    let next = highest.map_or(Some(FIRST), |highest| highest.checked_add(1))?.max(FIRST);
    (next < EVERYTHING).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_number_is_above_all_others_or_refused() {
        assert_eq!(after(None), Some(FIRST));
        assert_eq!(after(Some(3)), Some(FIRST));
        assert_eq!(after(Some(FIRST)), Some(FIRST + 1));
        assert_eq!(after(Some(EVERYTHING - 2)), Some(EVERYTHING - 1));
        for highest in [EVERYTHING - 1, EVERYTHING, u64::MAX] {
            assert_eq!(after(Some(highest)), None, "{highest}");
        }
    }
}
