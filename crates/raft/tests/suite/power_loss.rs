//! Power loss at every operation of a workload of appends, votes, truncations and purges.
//!
//! After each loss the log must be that after a prefix of the writes, which contains all confirmed ones. So votes never
//! go back, and no void entry is read.

use openraft::storage::RaftLogStorage;
use thalweg_disk::SimDisk;
use thalweg_raft::{Base, StoreOptions};

use crate::common::*;

#[derive(Default)]
struct Confirmed {
    ops: Vec<Op>,
    /// Number of writes that are confirmed, with all before them.
    confirmed: usize,
}

impl Confirmed {
    /// Performs a write whose durability is confirmed when the call returns, or when the callback has come.
    async fn perform(&mut self, space_log: &mut SpaceLog, op: Op) -> Option<()> {
        self.ops.push(op.clone());
        let is_truncation = matches!(op, Op::Truncate(_));
        match space_log.perform(&op).await.ok()? {
            Some(mut done) => match outcome(&mut done) {
                Some(done) => done.ok()?,
                None => return Some(()),
            },
            None if is_truncation => return Some(()),
            None => {}
        }
        self.confirmed = self.ops.len();
        Some(())
    }

    async fn append(
        &mut self,
        space_log: &mut SpaceLog,
        term: u64,
        range: std::ops::Range<u64>,
        len: usize,
    ) -> Option<()> {
        self.perform(space_log, Op::Append(range.map(|index| entry(term, index, len)).collect())).await
    }
}

async fn workload(disk: &SimDisk, confirmed: &mut Confirmed) -> Option<()> {
    let mut space_log = SpaceLog::try_open(disk, &Base::default(), StoreOptions::default())?;
    let space_log = &mut space_log;
    confirmed.perform(space_log, Op::Vote(vote(1, 1, true))).await?;
    confirmed.append(space_log, 1, 0..3, 300).await?;
    space_log.hold_syncs(true);
    confirmed.append(space_log, 1, 3..6, 200).await?;
    confirmed.append(space_log, 1, 6..7, 9000).await?;
    space_log.hold_syncs(false);
    confirmed.perform(space_log, Op::Truncate(5)).await?;
    confirmed.perform(space_log, Op::Vote(vote(2, 2, false))).await?;
    confirmed.append(space_log, 2, 5..9, 5000).await?;
    confirmed.perform(space_log, Op::Purge(log_id(1, 1))).await?;
    confirmed.perform(space_log, Op::Truncate(6)).await?;
    confirmed.perform(space_log, Op::Truncate(5)).await?;
    confirmed.append(space_log, 3, 5..7, 20_000).await?;
    confirmed.perform(space_log, Op::Vote(vote(3, 1, true))).await?;
    space_log.hold_syncs(true);
    confirmed.append(space_log, 3, 7..9, 10_000).await?;
    confirmed.perform(space_log, Op::Truncate(8)).await?;
    confirmed.append(space_log, 4, 8..10, 1000).await?;
    space_log.hold_syncs(false);
    confirmed.perform(space_log, Op::Purge(log_id(3, 6))).await?;
    confirmed.perform(space_log, Op::Vote(vote(4, 3, true))).await
}

#[test]
fn what_was_confirmed_is_there_after_a_power_loss_at_every_operation() {
    let (mut finished, mut undecided, mut lost) = (0, 0, 0);
    for crash in 0.. {
        let disk = SimDisk::new(crash);
        disk.power_off_after(crash);
        let mut confirmed = Confirmed::default();
        finished += u32::from(run(workload(&disk, &mut confirmed)).is_some());
        for seed in 0..6 {
            let context =
                format!("crash after {crash}, loss {seed}, {} of {:?}", confirmed.confirmed, confirmed.ops.len());
            let found = disk.power_loss(seed * 1000 + crash);
            let mut space_log = SpaceLog::open(&found);
            let content = run(Content::of(&mut space_log));
            let is_after = |count: &usize| Content::after(&confirmed.ops[..*count]) == content;
            let after = (confirmed.confirmed..=confirmed.ops.len()).rev().find(is_after);
            let Some(after) = after else { panic!("{context}: {content:#?}") };
            undecided += u32::from(after > confirmed.confirmed);
            lost += u32::from(after < confirmed.ops.len());
            // The space goes on: its next entries follow, and survive.
            let next = content.last().map_or(0, |last| last.index + 1);
            run(async {
                let op = Op::Append(vec![entry(9, next, 100)]);
                let mut done = space_log.perform(&op).await.unwrap().unwrap();
                assert!(outcome(&mut done).unwrap().is_ok());
                drop(space_log);
                let mut space_log = SpaceLog::open(&found.power_loss(seed));
                let mut expected = content;
                expected.apply(&op);
                assert_eq!(Content::of(&mut space_log).await, expected, "{context}");
                assert!(space_log.store.get_log_reader().await.last().is_some());
            });
        }
        if finished == 4 {
            assert!(crash > 30, "the workload has only {crash} operations");
            break;
        }
    }
    assert!(undecided > 0 && lost > 0, "{undecided} undecided, {lost} lost");
}
