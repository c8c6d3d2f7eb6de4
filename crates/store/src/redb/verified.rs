//! Large values whose checksums scans have verified.
//!
//! Owns: [`VerifiedValues`], which keeps such values in memory, and the bound of this memory. Verifying a large value
//! takes milliseconds; a scan that passes a kept value again need not verify it. Does not own: redb's cache, from which
//! most of the values come.
//!
//! Invariant: a value that is returned without a new verification is in memory that has been kept since the
//! verification. redb may drop a page from its cache and read it from the file again, even to the same address. The
//! bytes that it reads then may be damaged.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{backend::BackendError, buffered::checked};

/// Maximum number of large values for which a view records that a scan has passed them.
const MAX_NOTED: usize = 1024;

/// Bytes of memory used by the verified values that all views of a store keep, and the limit of these bytes.
#[derive(Debug)]
pub(super) struct KeptBytes {
    /// Bytes of memory that kept values use at present. Invariant: `bytes <= max`.
    bytes: AtomicU64,
    max: u64,
}

impl KeptBytes {
    /// Creates the counter for a store whose views may keep `max` bytes in total.
    pub(super) fn new(max: u64) -> Self {
        Self { bytes: AtomicU64::new(0), max }
    }

    /// Counts the memory of another value that a view wants to keep. Returns false, and counts nothing, if the limit of
    /// this memory would be exceeded.
    fn take(&self, bytes: u64) -> bool {
        let add = |kept: u64| kept.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Large values that the scans of one view have passed; see the [module](self). `V` holds the stored bytes of one
/// value, and clones of `V` share these bytes.
pub(super) struct VerifiedValues<V: AsRef<[u8]> + Clone> {
    /// Keys of values that scans have passed, with the value if it is kept. A value is kept when a scan passes it the
    /// second time and the limit permits it, so a single scan of the whole state keeps no value.
    noted: Mutex<HashMap<Box<[u8]>, Option<V>>>,
    kept: Arc<KeptBytes>,
}

impl<V: AsRef<[u8]> + Clone> VerifiedValues<V> {
    /// Creates an empty set for a new view. The memory of kept values is counted in `kept`.
    pub(super) fn new(kept: Arc<KeptBytes>) -> Self {
        Self { noted: Mutex::default(), kept }
    }

    /// Returns the verified value of a key of the view: the kept value if there is one, otherwise `stored`, which the
    /// caller has just read.
    pub(super) fn verify(&self, key: &[u8], stored: V) -> Result<V, BackendError> {
        let kept = self.noted().get(key).cloned().flatten();
        if let Some(kept) = kept {
            return Ok(kept);
        }
        checked(key, stored.as_ref())?;
        let mut noted = self.noted();
        if let Some(place) = noted.get_mut(key) {
            if place.is_none() && self.kept.take(memory_bytes(&stored)) {
                *place = Some(stored.clone());
            }
        } else if noted.len() < MAX_NOTED {
            noted.insert(key.into(), None);
        }
        drop(noted);
        Ok(stored)
    }

    fn noted(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Option<V>>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V: AsRef<[u8]> + Clone> Drop for VerifiedValues<V> {
    fn drop(&mut self) {
        let bytes: u64 = self.noted().values().flatten().map(memory_bytes).sum();
        self.kept.give_back(bytes);
    }
}

/// Returns the memory in bytes that a value holds: its page, whose size is a power of two.
fn memory_bytes(stored: &impl AsRef<[u8]>) -> u64 {
    stored.as_ref().len() as u64 * 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffered::checksum;

    const KEY: &[u8] = b"key";

    fn stored(value: &[u8]) -> Arc<[u8]> {
        [&checksum(KEY, value)[..], value].concat().into()
    }

    fn damaged(value: &[u8]) -> Arc<[u8]> {
        let mut bytes = stored(value).to_vec();
        bytes[10] ^= 1;
        bytes.into()
    }

    #[test]
    fn only_a_value_that_is_kept_is_not_verified_again() {
        let kept = Arc::new(KeptBytes::new(1000));
        let values = VerifiedValues::new(Arc::clone(&kept));
        let bytes = || kept.bytes.load(Ordering::Relaxed);
        let read = || stored(&[7; 96]);
        values.verify(KEY, read()).unwrap();
        assert_eq!(bytes(), 0, "a value that is passed once is not kept");
        assert_eq!(values.verify(KEY, damaged(&[7; 96])).unwrap_err().to_string(), checked_error());
        let second = values.verify(KEY, read()).unwrap();
        assert_eq!(bytes(), 200);
        for again in [read(), damaged(&[7; 96])] {
            let found = values.verify(KEY, again).unwrap();
            assert!(Arc::ptr_eq(&found, &second), "what was read again is not used");
        }
        drop(values);
        assert_eq!(bytes(), 0);
    }

    fn checked_error() -> String {
        checked(KEY, &[0; 100]).unwrap_err().to_string()
    }

    #[test]
    fn without_room_each_value_is_verified() {
        let kept = Arc::new(KeptBytes::new(199));
        let values = VerifiedValues::new(Arc::clone(&kept));
        for _ in 0..3 {
            values.verify(KEY, stored(&[7; 96])).unwrap();
            assert!(values.verify(KEY, damaged(&[7; 96])).is_err());
        }
        assert_eq!(kept.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_number_of_noted_keys_has_a_bound() {
        let values = VerifiedValues::new(Arc::new(KeptBytes::new(u64::MAX)));
        for number in 0..2 * MAX_NOTED as u64 {
            let key = number.to_be_bytes();
            let stored: Arc<[u8]> = [&checksum(&key, b"value")[..], b"value"].concat().into();
            values.verify(&key, stored).unwrap();
        }
        assert_eq!(values.noted().len(), MAX_NOTED);
    }
}
