//! Requests to the disk for the rows and values of several keys, before the first key is read.
//!
//! Owns: these requests. Does not own: the reads that follow, or the threads that wait for the disk.
//!
//! A thread that reads keys one after the other waits for each block in turn, although a disk serves many reads at a
//! time nearly as fast as one. So a caller that gets several keys first requests the blocks of all rows, and then, as
//! the rows arrive, the bytes of the values that stay in the log.
//!
//! Invariants:
//! * Requests never affect a result. A row or value that leaves memory again is read from the disk.
//! * Only threads that may wait for the disk make requests. A read on another thread ends at the first row that is not
//!   in memory, and begins again on a thread that may wait.
//! * At most [`MAX_KEYS_READ_AHEAD`] keys and [`MAX_BYTES_READ_AHEAD`] bytes of values are requested at a time.

use thalweg_types::{
    KeyspaceId, budget,
    command::{Transaction, Write},
    limits::{MAX_BYTES_READ_AHEAD, MAX_KEYS_READ_AHEAD},
};

use crate::{inner::Inner, keyspace::Keyspace};

impl Inner {
    /// Requests the rows and values of the first [`MAX_KEYS_READ_AHEAD`] keys from the disk, if this thread may wait
    /// for the disk and there are several keys. Waits for the rows, but not for the values.
    pub(crate) fn read_ahead<'k>(&self, keys: impl Iterator<Item = (KeyspaceId, &'k [u8])> + Clone) {
        if !budget::may_wait() || keys.clone().nth(1).is_none() {
            return;
        }
        let (machine, keys) = (&self.open.machine, keys.take(MAX_KEYS_READ_AHEAD));
        let view = machine.read_view();
        keys.clone().for_each(|(keyspace, key)| view.read_ahead(keyspace, key));
        let mut bytes = 0;
        for (keyspace, key) in keys {
            // An error appears again when the key is read.
            let Ok(Some(blob)) = machine.fetch_row(keyspace, key, None) else { continue };
            bytes += u64::from(blob.len);
            if bytes > MAX_BYTES_READ_AHEAD {
                return;
            }
            self.open.log.read_ahead(&blob);
        }
    }

    /// Requests the rows and values that the gets of a transaction read if the transaction's conditions hold.
    pub(crate) fn read_transaction_ahead(&self, transaction: &Transaction<'_>) {
        // An error appears again when the transaction is performed.
        let Ok([then, _]) = transaction.branches() else { return };
        self.read_ahead(then.filter_map(|operation| match operation {
            Ok(Write::Get { keyspace, key }) => Some((keyspace, key)),
            _ => None,
        }));
    }
}

impl Keyspace {
    /// Requests the values of the first [`MAX_KEYS_READ_AHEAD`] keys from the disk, so that the following gets do not
    /// wait for each read in turn. Does nothing on a thread whose reads must not wait for the disk.
    pub fn read_ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]> + Clone) {
        self.database().inner.read_ahead(keys.map(|key| (self.id(), key)));
    }
}
