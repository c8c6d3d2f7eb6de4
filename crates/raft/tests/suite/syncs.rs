//! Callbacks: their times, the number that share an fsync, and the effect of a failed fsync.

use std::sync::Arc;

use openraft::storage::RaftLogStorage;
use thalweg_disk::{
    SimDisk,
    sim::{Errno, Fault, Operation},
};
use thalweg_log::AppendError;
use thalweg_raft::{Base, StoreError, StoreOptions, SyncDriver};
use thalweg_types::{Index, SpaceId};

use crate::common::*;

#[test]
fn entries_are_readable_before_their_callback_and_durable_after_it() {
    run(async {
        let mut space_log = SpaceLog::open(&SimDisk::new(1));
        space_log.hold_syncs(true);
        let mut done = space_log.append((0..3).map(|index| entry(1, index, 100)).collect()).await.unwrap();
        assert_eq!(space_log.entries(0..3).await.len(), 3);
        assert!(outcome(&mut done).is_none() && space_log.log.durable() < space_log.log.end());
        assert_eq!(space_log.stepper.step(), 1);
        assert!(matches!(outcome(&mut done), Some(Ok(()))));
        assert_eq!(space_log.log.durable(), space_log.log.end());
    });
}

#[test]
fn spaces_share_an_fsync() {
    run(async {
        let disk = SimDisk::new(2);
        let first = SpaceLog::open(&disk);
        let queue = Arc::new(Queue::new(first.log.clone()));
        first.hold_syncs(true);
        let driver: Arc<dyn SyncDriver> = first.stepper.clone();
        let base = Base::default();
        let open = |space| {
            let (log, queue, driver) = (first.log.clone(), Arc::clone(&queue), Arc::clone(&driver));
            Store::open(log, SpaceId(space), &base, StoreOptions::default(), queue, driver).unwrap()
        };
        let mut stores: Vec<_> = (10..20).map(open).collect();
        let before = first.log.stats().syncs;
        for round in 0..3 {
            for store in &mut stores {
                let callback = openraft::storage::IOFlushed::noop();
                store.append(vec![entry(1, round, 10)], callback).await.unwrap();
            }
        }
        assert_eq!(queue.step(), 30);
        assert_eq!(first.log.stats().syncs - before, 1);
        // Each space sees its own entries only.
        for store in &stores {
            let records = store.reader().records(Index(0), Index::MAX, usize::MAX).unwrap();
            assert_eq!(records.len(), 3);
            assert!(records.iter().all(|record| record.space == records[0].space));
        }
    });
}

#[test]
fn a_failed_fsync_fails_every_callback_from_then_on() {
    run(async {
        let disk = SimDisk::new(3);
        let mut space_log = SpaceLog::open(&disk);
        space_log.hold_syncs(true);
        let mut before = space_log.append(vec![entry(1, 0, 10)]).await.unwrap();
        space_log.stepper.step();
        assert!(matches!(outcome(&mut before), Some(Ok(()))));
        let mut first = space_log.append(vec![entry(1, 1, 10)]).await.unwrap();
        let mut second = space_log.append(vec![entry(1, 2, 10)]).await.unwrap();
        disk.fail(Fault::new(Operation::Sync, 1, Errno::Io).on_path(".seg"));
        space_log.stepper.step();
        for done in [&mut first, &mut second] {
            let error = outcome(done).unwrap().unwrap_err();
            let error = error.get_ref().and_then(|inner| inner.downcast_ref::<StoreError>());
            assert!(matches!(error, Some(StoreError::Append(AppendError::Failed { .. }))), "{error:?}");
        }
        assert!(space_log.append(vec![entry(1, 3, 10)]).await.is_err());
        space_log.hold_syncs(false);
        assert!(space_log.store.save_vote(&vote(2, 1, false)).await.is_err());
        assert_eq!(space_log.vote().await, None, "a vote that was not saved is not read");
        assert_eq!(space_log.entries(0..9).await.len(), 3, "reads go on");
    });
}

#[test]
fn an_append_waits_for_a_segment_without_failing() {
    run(async {
        let disk = SimDisk::new(4);
        let mut space_log = SpaceLog::open(&disk);
        disk.fail(Fault::new(Operation::Create, 1, Errno::NoSpace).on_path(".tmp").for_good());
        let mut index = 0;
        // Fills the segments that are prepared; then the append waits.
        loop {
            let (sender, _receiver) = <Types as openraft::type_config::TypeConfigExt>::oneshot();
            let callback = openraft::storage::IOFlushed::signal(sender);
            let append = space_log.store.append(vec![entry(1, index, 20_000)], callback);
            let mut append = std::pin::pin!(append);
            index += 1;
            if futures_util::poll!(append.as_mut()).is_ready() {
                assert!(index < 100);
                continue;
            }
            disk.clear_faults();
            append.await.unwrap();
            break;
        }
        assert_eq!(space_log.entries(0..index).await.len() as u64, index);
    });
}

#[test]
fn memory_is_bounded_in_bytes_and_reads_too() {
    run(async {
        let options = StoreOptions { max_tail_bytes: 20_000, max_read_bytes: 8_000 };
        let mut space_log = SpaceLog::try_open(&SimDisk::new(5), &Base::default(), options).unwrap();
        for index in 0..500 {
            space_log.append(vec![entry(1, index, 1000)]).await.unwrap();
        }
        let stats = space_log.store.reader().stats();
        assert!(stats.cached_bytes <= 20_000 && stats.cached_entries > 10, "{stats:?}");
        assert!(stats.entries == 500 && stats.index_bytes < 1024, "{stats:?}");
        let mut reader = space_log.store.reader();
        // Reads of the file, which take longer than those of the cache, are smaller.
        for (from, count) in [(0, 2), (250, 2), (490, 8)] {
            let read = openraft::RaftLogReader::<Types>::limited_get_log_entries(&mut reader, from, 500).await.unwrap();
            let expected: Vec<_> = (from..from + count).map(|index| entry(1, index, 1000)).collect();
            assert_eq!(read, expected);
        }
        let stream = openraft::RaftLogReader::<Types>::entries_stream(&mut reader, 3..499).await;
        let streamed: Vec<_> = futures_util::StreamExt::collect::<Vec<_>>(stream).await;
        let streamed: Vec<_> = streamed.into_iter().map(Result::unwrap).collect();
        assert_eq!(streamed, (3..499).map(|index| entry(1, index, 1000)).collect::<Vec<_>>());
    });
}

#[test]
fn a_follower_that_is_far_behind_rests_between_syncs_until_it_has_caught_up() {
    let queue = Queue::new(open_log(Arc::new(SimDisk::new(7))).unwrap());
    let rests = || std::iter::from_fn(|| queue.takes_rest().then_some(())).take(1000).count();
    assert_eq!(rests(), 0);
    queue.note_far_behind(true);
    assert_eq!(rests(), 16, "they end without a further append");
    queue.note_far_behind(true);
    assert!(queue.takes_rest());
    queue.note_far_behind(false);
    assert_eq!(rests(), 0);
}
