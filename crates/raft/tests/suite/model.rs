//! Seeded sequences of writes and reads compared with a list, with reopens, crashes and freed segments in between.

use thalweg_disk::SimDisk;
use thalweg_raft::{Base, RaftLogId, StoreOptions};
use thalweg_replica::Vote;
use thalweg_state::membership::LogId;
use thalweg_types::{Index, NodeId, SpaceTime, Term};

use crate::common::*;

struct Run {
    rng: Rng,
    disk: SimDisk,
    space_log: SpaceLog,
    base: Base,
    /// Content at the last time that the state had passed everything, and the writes since.
    start: Content,
    ops: Vec<Op>,
    confirmed: usize,
    callbacks: Vec<(usize, Done)>,
    term: u64,
}

fn options(rng: &mut Rng) -> StoreOptions {
    StoreOptions { max_tail_bytes: [0, 3000, 1 << 20][rng.below(3) as usize], max_read_bytes: 4000 }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let disk = SimDisk::new(seed);
        let space_log = SpaceLog::try_open(&disk, &Base::default(), options(&mut rng)).unwrap();
        let (start, ops, callbacks) = (Content::default(), Vec::new(), Vec::new());
        Self { rng, disk, space_log, base: Base::default(), start, ops, confirmed: 0, callbacks, term: 1 }
    }

    fn content(&self, count: usize) -> Content {
        let mut content = self.start.clone();
        self.ops[..count].iter().for_each(|op| content.apply(op));
        content
    }

    fn now(&self) -> Content {
        self.content(self.ops.len())
    }

    async fn perform(&mut self, op: Op) {
        self.ops.push(op.clone());
        match self.space_log.perform(&op).await.unwrap() {
            Some(done) => self.callbacks.push((self.ops.len(), done)),
            None if matches!(op, Op::Truncate(_)) => {}
            None => self.confirmed = self.ops.len(),
        }
        self.collect();
    }

    fn collect(&mut self) {
        for (count, mut done) in std::mem::take(&mut self.callbacks) {
            match outcome(&mut done) {
                Some(result) => {
                    result.unwrap();
                    self.confirmed = self.confirmed.max(count);
                }
                None => self.callbacks.push((count, done)),
            }
        }
    }

    async fn write(&mut self) {
        let content = self.now();
        let first = content.purged.map_or(0, |id| id.index + 1);
        let next = content.last().map_or(0, |last| last.index + 1);
        match self.rng.below(20) {
            0..13 => {
                let count = 1 + self.rng.below(6);
                let len = [10, 100, 900, 6000][self.rng.below(4) as usize];
                let entries = (next..next + count).map(|index| entry(self.term, index, len)).collect();
                self.perform(Op::Append(entries)).await;
            }
            13..16 if next > first => {
                self.term += 1;
                let from = first + self.rng.below(next - first + 1);
                // openraft truncates to replace entries, so the range is not empty.
                self.perform(Op::Truncate(from.min(next - 1))).await;
            }
            16 if next > first => {
                let at = self.rng.below(next - first);
                self.space_log.hold_syncs(false);
                self.perform(Op::Purge(content.entries[at as usize].log_id)).await;
            }
            _ => {
                self.term += 1;
                let vote = vote(self.term, 1 + self.rng.below(3), self.rng.below(2) == 0);
                self.space_log.hold_syncs(false);
                self.perform(Op::Vote(vote)).await;
            }
        }
    }

    async fn check(&mut self) {
        let expected = self.now();
        assert_eq!(Content::of(&mut self.space_log).await, expected);
        let Some(last) = expected.last() else { return };
        let (from, to) = (self.rng.below(last.index + 2), self.rng.below(last.index + 2));
        let within: Vec<_> =
            expected.entries.iter().filter(|entry| (from..to).contains(&entry.log_id.index)).cloned().collect();
        let mut reader = self.space_log.store.reader();
        assert_eq!(self.space_log.entries(from..to).await, within);
        let some = openraft::RaftLogReader::<Types>::limited_get_log_entries(&mut reader, from, to).await.unwrap();
        assert!(some == within[..some.len()] && some.is_empty() == within.is_empty());
        for entry in &expected.entries {
            let id: RaftLogId = entry.log_id;
            let record = &reader.records(Index(id.index), Index(id.index + 1), 0).unwrap()[0];
            assert_eq!((record.term.0, record.index.0), (id.leader_id.term, id.index));
        }
        if let (Some(first), Some(last)) = (expected.entries.first(), expected.entries.last()) {
            let range = first.log_id..=last.log_id;
            let found = openraft::RaftLogReader::<Types>::get_key_log_ids(&mut reader, range).await.unwrap();
            let mut ends: Vec<RaftLogId> = Vec::new();
            for entry in &expected.entries {
                ends.pop_if(|end| end.leader_id == entry.log_id.leader_id);
                ends.push(entry.log_id);
            }
            assert_eq!(found, ends);
        }
    }

    /// Frees segments with purged entries, as maintenance does after the state has persisted all.
    fn free(&mut self) {
        let content = self.now();
        let Some(purged) = content.purged else { return };
        self.space_log.log.sync().unwrap();
        let id = LogId { term: Term(purged.leader_id.term), index: Index(purged.index) };
        let vote = content.vote.map(|vote| Vote {
            term: Term(vote.leader_id.term),
            node: NodeId(vote.leader_id.voted_for),
            committed: vote.committed,
        });
        let lsn = self.space_log.log.end();
        self.base = Base { vote, purged: Some(id), applied: Some(id), time: SpaceTime(0), lsn };
        (self.start, self.confirmed) = (content, 0);
        self.ops.clear();
        self.space_log.stepper.step();
        self.callbacks.clear();
        self.space_log.log.release(lsn);
        for segment in self.space_log.log.freeable(SpaceTime(u64::MAX)) {
            let mut records = self.space_log.log.segment_records(segment.generation).unwrap().map(Result::unwrap);
            let is_needed = records.any(|record| record.kind.has_index() && record.index > id.index);
            if is_needed {
                return;
            }
            self.space_log.log.free(segment.generation).unwrap();
        }
    }

    async fn reopen(&mut self) {
        let (disk, survives) = match self.rng.below(3) {
            0 => (self.disk.kill_process(), self.ops.len()),
            1 => {
                self.space_log.log.close().unwrap();
                (self.disk.kill_process(), self.ops.len())
            }
            _ => (self.disk.power_loss(self.rng.next()), self.confirmed),
        };
        let options = options(&mut self.rng);
        self.space_log = SpaceLog::try_open(&disk, &self.base, options).unwrap();
        self.disk = disk;
        let content = Content::of(&mut self.space_log).await;
        let found = (survives..=self.ops.len()).rev().find(|count| self.content(*count) == content);
        let Some(found) = found else { panic!("{survives} of {}: {content:#?}", self.ops.len()) };
        self.ops.truncate(found);
        // What an open has found is durable.
        self.confirmed = found;
        self.callbacks.clear();
        self.term += 1;
    }
}

async fn run_seed(seed: u64) {
    let mut run = Run::new(seed);
    for _ in 0..120 {
        match run.rng.below(100) {
            0..80 => run.write().await,
            80..84 => {
                let hold = run.rng.below(2) == 0;
                run.space_log.hold_syncs(hold);
            }
            84..88 => {
                run.space_log.stepper.step();
                run.collect();
            }
            88..93 => run.check().await,
            93..96 => run.free(),
            _ => run.reopen().await,
        }
    }
    run.check().await;
}

#[test]
fn many_operations_agree_with_a_list() {
    for seed in 1..=60 {
        eprintln!("seed {seed}");
        run(run_seed(seed));
    }
}
