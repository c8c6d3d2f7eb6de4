//! Reads of old entries on another thread, ahead of the appends to a follower.

use std::{
    future::{pending, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use futures_util::FutureExt;
use openraft::{RaftLogReader, storage::RaftLogStorage};
use thalweg_disk::SimDisk;
use thalweg_raft::{Base, EntryRead, LogReader, RaftEntry, StoreOptions};

use crate::common::*;

const OPTIONS: StoreOptions = StoreOptions { max_tail_bytes: 20_000, max_read_bytes: 8_000 };

async fn limited(reader: &mut LogReader, from: u64, to: u64) -> Vec<RaftEntry> {
    RaftLogReader::<Types>::limited_get_log_entries(reader, from, to).await.unwrap()
}

/// Returns entries of 1000 bytes.
fn entries(term: u64, indexes: std::ops::Range<u64>) -> Vec<RaftEntry> {
    indexes.map(|index| entry(term, index, 1000)).collect()
}

/// Opens a log and appends 100 entries.
async fn space_log_of_100(disk: &SimDisk) -> SpaceLog {
    let mut space_log = SpaceLog::try_open(disk, &Base::default(), OPTIONS).unwrap();
    for one in entries(1, 0..100) {
        space_log.append(vec![one]).await.unwrap();
    }
    space_log
}

/// Returns a log of 100 entries, with a reader whose reads elsewhere are counted.
async fn log_of_100() -> (SpaceLog, LogReader, Arc<AtomicU64>) {
    let space_log = space_log_of_100(&SimDisk::new(6)).await;
    let (reader, reads) = (space_log.store.reader(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&reads);
    reader.read_old_entries_elsewhere(move |read| {
        counted.fetch_add(1, Relaxed);
        ready(read()).boxed_local()
    });
    (space_log, reader, reads)
}

#[test]
fn one_read_on_another_thread_serves_several_appends() {
    run(async {
        let (_space_log, mut reader, reads) = log_of_100().await;
        for from in (0..16).step_by(2) {
            assert_eq!(limited(&mut reader, from, 100).await, entries(1, from..from + 2));
        }
        assert_eq!(reads.load(Relaxed), 1);
        assert_eq!(limited(&mut reader, 16, 17).await, entries(1, 16..17), "below the end of the range");
        assert_eq!(limited(&mut reader, 17, 100).await, entries(1, 17..19));
        assert_eq!(reads.load(Relaxed), 2);
        assert_eq!(limited(&mut reader, 3, 100).await, entries(1, 3..5), "openraft starts again");
        assert_eq!(limited(&mut reader.clone(), 5, 100).await, entries(1, 5..7), "another follower");
        assert_eq!(reads.load(Relaxed), 4);
        let newest = limited(&mut reader, 95, 100).await;
        assert_eq!((newest, reads.load(Relaxed)), (entries(1, 95..100), 4), "in memory");
    });
}

#[test]
fn entries_that_were_read_ahead_are_void_after_a_truncation() {
    run(async {
        let (mut space_log, mut reader, reads) = log_of_100().await;
        assert_eq!(limited(&mut reader, 3, 100).await, entries(1, 3..5));
        space_log.store.truncate_after(Some(log_id(1, 9))).await.unwrap();
        for one in entries(2, 10..100) {
            space_log.append(vec![one]).await.unwrap();
        }
        for from in [5, 7] {
            assert_eq!(limited(&mut reader, from, 100).await, entries(1, from..from + 2));
        }
        let both = [entries(1, 9..10), entries(2, 10..11)].concat();
        assert_eq!((limited(&mut reader, 9, 100).await, reads.load(Relaxed)), (both, 2));
    });
}

/// A thread with a low priority can begin it long after the node has stopped, and the directory must open again.
#[test]
fn a_read_that_has_not_begun_on_another_thread_keeps_no_log_open() {
    run(async {
        let disk = SimDisk::new(8);
        let space_log = space_log_of_100(&disk).await;
        let (mut reader, queued) = (space_log.store.reader(), Arc::new(Mutex::new(None::<EntryRead>)));
        let queue = Arc::clone(&queued);
        reader.read_old_entries_elsewhere(move |read| {
            *queue.lock().unwrap() = Some(read);
            pending().boxed_local()
        });
        assert!(limited(&mut reader, 3, 100).now_or_never().is_none());
        drop((space_log, reader));
        assert!(SpaceLog::try_open(&disk, &Base::default(), OPTIONS).is_some());
        let read = queued.lock().unwrap().take().expect("it was passed on");
        assert_eq!(read().unwrap(), entries(1, 3..19));
    });
}
