//! Consumer groups compared with a model of one row per record, and replay of their records.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_types::{
    Attempt, GroupId, Offset, SpaceTime, StreamId,
    command::{
        self, CommitBuilder, Outcome, StreamConfig,
        groups::{self, Fetched, GroupConfig, GroupOrder, GroupOutcome, OffsetRun, Redelivery, Settlement, key_hash},
    },
};

use crate::{
    groups::append,
    support::{Bench, LogRecord, apply, command},
    workload::{Rng, for_seeds},
};

const STREAM: StreamId = StreamId(1);
const GROUP: GroupId = GroupId(1);
const DEADLINE: u64 = 1000;
const MAX_PENDING: u64 = 40;

/// State of a record in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The cursor has not passed the record.
    New,
    /// The record is behind another one of its key.
    Parked,
    Held {
        attempt: Attempt,
        due: u64,
    },
    Waiting {
        due: u64,
    },
    Dead,
    Done,
}

#[derive(Debug)]
struct Model {
    config: GroupConfig,
    /// State and number of deliveries of each record, by offset.
    records: Vec<(Stage, u32)>,
    keys: Vec<u64>,
    start: usize,
    cursor: usize,
    time: u64,
}

impl Model {
    fn is_pending(&self, offset: usize) -> bool {
        matches!(self.records[offset].0, Stage::Parked | Stage::Held { .. } | Stage::Waiting { .. })
    }

    fn pending(&self) -> u64 {
        (0..self.records.len()).filter(|&offset| self.is_pending(offset)).count() as u64
    }

    fn dead(&self) -> u64 {
        self.records.iter().filter(|(stage, _)| *stage == Stage::Dead).count() as u64
    }

    fn is_free(&self, offset: usize) -> bool {
        match self.records[offset].0 {
            Stage::Held { due, .. } | Stage::Waiting { due } => due <= self.time,
            _ => false,
        }
    }

    fn exhausted(&self, offset: usize) -> bool {
        self.config.max_deliveries.is_some_and(|max| self.records[offset].1 >= max)
    }

    /// Returns true if an earlier record of the same key is pending.
    fn is_blocked(&self, offset: usize) -> bool {
        let key = self.keys[offset];
        let ordered = self.config.order == GroupOrder::PerKey && key != 0;
        ordered && (0..offset).any(|other| self.keys[other] == key && self.is_pending(other))
    }

    /// Checks the deliveries of a fetch and applies them to the model.
    fn fetched(&mut self, fetched: &Fetched, max: u32, dead: &BTreeSet<usize>) {
        let offsets: Vec<(usize, u32)> = fetched
            .deliveries
            .iter()
            .flat_map(|of| (of.run.first.0..of.run.end().0).map(|offset| (offset as usize, of.deliveries)))
            .collect();
        assert!(offsets.len() <= max as usize);
        assert!(offsets.windows(2).all(|pair| pair[0].0 < pair[1].0), "deliveries ascend, without duplicates");
        // Records with the maximum number of deliveries become dead letters when a fetch reaches them, which a full
        // fetch may not do.
        for offset in 0..self.records.len() {
            if dead.contains(&offset) {
                let became = self.is_free(offset) && self.exhausted(offset);
                assert!(became || self.records[offset].0 == Stage::Dead, "{offset} is {:?}", self.records[offset]);
                self.records[offset].0 = Stage::Dead;
            }
            assert_eq!(dead.contains(&offset), self.records[offset].0 == Stage::Dead, "{offset}");
            let overlooked = self.is_free(offset) && self.exhausted(offset) && offsets.len() < max as usize;
            assert!(!overlooked, "{offset} should be dead");
        }
        let free_before = (0..self.records.len()).filter(|&at| self.is_free(at) && !self.exhausted(at)).count();
        let cursor = fetched.cursor.0 as usize;
        assert!(self.cursor <= cursor && cursor <= self.records.len());
        for offset in self.cursor..cursor {
            self.records[offset].0 = Stage::Parked;
        }
        self.cursor = cursor;
        let mut redelivered = 0;
        for &(offset, deliveries) in &offsets {
            let (stage, before) = self.records[offset];
            redelivered += usize::from(stage != Stage::Parked);
            assert!(self.is_free(offset) || stage == Stage::Parked, "{offset} was {stage:?}");
            assert!(!self.exhausted(offset), "{offset} is delivered too often");
            assert!(!self.is_blocked(offset), "{offset} is delivered before others of its key");
            assert_eq!(deliveries, before + 1, "deliveries of {offset}");
        }
        for (offset, deliveries) in offsets.iter().copied() {
            let due = self.time + DEADLINE;
            assert_eq!(fetched.deadline, SpaceTime(due));
            self.records[offset] = (Stage::Held { attempt: fetched.attempt, due }, deliveries);
        }
        if self.config.order == GroupOrder::Competing {
            let parked = self.records.iter().filter(|(stage, _)| *stage == Stage::Parked).count();
            assert_eq!(parked, 0, "all records below the cursor were delivered");
        }
        assert_eq!(redelivered.min(free_before), redelivered);
        if offsets.len() < max as usize {
            assert_eq!(redelivered, free_before, "all free records are delivered if there is room");
        }
    }

    fn holds(&self, attempt: Attempt, offset: usize) -> bool {
        matches!(self.records.get(offset), Some((Stage::Held { attempt: of, due }, _)) if *of == attempt && self.time < *due)
    }

    fn held_by(&self, settlements: &[Settlement]) -> Vec<usize> {
        let mut offsets = Vec::new();
        for settlement in settlements {
            let all = 0..self.records.len();
            let named = |offset: &usize| {
                let inside = |run: &OffsetRun| run.first.0 <= *offset as u64 && (*offset as u64) < run.end().0;
                settlement.runs.is_empty() || settlement.runs.iter().any(inside)
            };
            offsets.extend(all.filter(named).filter(|&offset| self.holds(settlement.attempt, offset)));
        }
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    }

    fn nacked(&mut self, offsets: &[usize], again: Redelivery) {
        for &offset in offsets {
            self.records[offset].1 -= u32::from(again == Redelivery::Uncounted);
            self.records[offset].0 = match again {
                Redelivery::After(delay) if !self.exhausted(offset) => {
                    Stage::Waiting { due: self.time + delay.as_micros() as u64 }
                }
                Redelivery::Uncounted => Stage::Waiting { due: self.time },
                _ => Stage::Dead,
            };
        }
    }
}

struct Run {
    bench: Bench,
    model: Model,
    attempts: Vec<Attempt>,
    rng: Rng,
}

impl Run {
    fn new(seed: u64, order: GroupOrder) -> Self {
        let mut rng = Rng(seed);
        let mut bench = Bench::new(MachineOptions::default());
        let config = GroupConfig {
            order,
            ack_deadline: Duration::from_micros(DEADLINE),
            max_deliveries: (rng.below(3) > 0).then(|| 1 + rng.below(4) as u32),
            max_pending: MAX_PENDING as u32,
            dead_letters: Some("dead".into()),
        };
        let outcomes = bench.run(
            1,
            &[
                command(|out| command::encode_create_stream(out, "jobs", &StreamConfig::default()).unwrap()),
                command(|out| groups::encode_create_group(out, STREAM, "g", None, &config).unwrap()),
            ],
        );
        assert!(matches!(outcomes[1], Outcome::Group(GroupOutcome::Created { created: true, .. })));
        let model = Model { config, records: Vec::new(), keys: Vec::new(), start: 0, cursor: 0, time: 1 };
        Self { bench, model, attempts: vec![Attempt(1)], rng }
    }

    fn one(&mut self, command: Vec<u8>) -> Outcome {
        self.bench.run(self.model.time, &[command]).remove(0)
    }

    fn append(&mut self) {
        let count = 1 + self.rng.below(12);
        self.one(append(STREAM, count));
        for _ in 0..count {
            self.model.records.push((Stage::New, 0));
            let key = self.rng.below(6);
            self.model.keys.push(if key == 0 { 0 } else { key_hash(&[key as u8]) });
        }
    }

    fn fetch(&mut self) {
        let max = 1 + self.rng.below(12) as u32;
        let window = self.model.cursor.saturating_sub(self.rng.below(3) as usize);
        let keys = match self.model.config.order {
            GroupOrder::Competing => &[],
            GroupOrder::PerKey => &self.model.keys[window..],
        };
        let member = ["a", "b", "c"][self.rng.below(3) as usize];
        let fetch = command(|out| groups::encode_fetch(out, GROUP, max, Offset(window as u64), keys, member).unwrap());
        match self.one(fetch) {
            Outcome::Group(GroupOutcome::Fetched(fetched)) => {
                let dead = self.dead();
                self.model.fetched(&fetched, max, &dead);
                if !fetched.deliveries.is_empty() {
                    self.attempts.push(fetched.attempt);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the machine's dead letters.
    fn dead(&self) -> BTreeSet<usize> {
        let (mut dead, mut after) = (BTreeSet::new(), None);
        while let Some(letter) = self.bench.machine.dead_letters(GROUP, after).unwrap() {
            after = Some(letter.attempt);
            let offsets = letter.records.iter().flat_map(|of| of.run.first.0..of.run.end().0);
            offsets.for_each(|offset| assert!(dead.insert(offset as usize), "{offset} is dead twice"));
        }
        dead
    }

    fn settlements(&mut self) -> Vec<Settlement> {
        (0..1 + self.rng.below(2))
            .map(|_| {
                let recent = self.rng.below(4).min(self.attempts.len() as u64 - 1) as usize;
                let attempt = self.attempts[self.attempts.len() - 1 - recent];
                let held = (0..self.model.records.len()).filter(|&offset| self.model.holds(attempt, offset));
                let mut runs: Vec<_> = held.map(|offset| OffsetRun::one(Offset(offset as u64))).collect();
                if self.rng.below(3) == 0 {
                    return Settlement::all(attempt);
                }
                runs.retain(|_| self.rng.below(2) == 0);
                if runs.is_empty() || self.rng.below(4) == 0 {
                    let first = Offset(self.rng.below(self.model.records.len() as u64 + 3));
                    runs.push(OffsetRun { first, count: 1 + self.rng.below(5) as u32 });
                }
                Settlement { attempt, runs }
            })
            .collect()
    }

    fn settle(&mut self) {
        let settlements = self.settlements();
        let held = self.model.held_by(&settlements);
        let nack = self.rng.below(2) == 0;
        let again = match self.rng.below(6) {
            0 => Redelivery::Never,
            1 => Redelivery::Uncounted,
            delay => Redelivery::After(Duration::from_micros((delay - 2) * 300)),
        };
        let outcome = if nack {
            self.one(command(|out| groups::encode_nack(out, GROUP, again, "no", &settlements).unwrap()))
        } else {
            self.one(command(|out| groups::encode_ack(out, GROUP, &settlements).unwrap()))
        };
        let Outcome::Group(GroupOutcome::Settled { settled, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(settled as usize, held.len(), "{settlements:?}");
        if nack {
            self.model.nacked(&held, again);
        } else {
            held.iter().for_each(|&offset| self.model.records[offset].0 = Stage::Done);
        }
    }

    /// Runs a commit, which acks all records that it names or none.
    fn commit(&mut self) {
        let settlements = self.settlements();
        let held = self.model.held_by(&settlements);
        let named: u64 = settlements.iter().flat_map(|of| &of.runs).map(|run| u64::from(run.count)).sum();
        let mut commit = CommitBuilder::new();
        commit.ack(GROUP, &settlements).unwrap();
        let outcome = self.one(command(|out| commit.encode(out)));
        let whole = |of: &Settlement| of.runs.is_empty();
        if matches!(outcome, Outcome::Committed { .. }) {
            if !settlements.iter().any(whole) {
                assert_eq!(held.len() as u64, named, "a commit settles all records that it names");
            }
            held.iter().for_each(|&offset| self.model.records[offset].0 = Stage::Done);
        } else {
            assert!(matches!(outcome, Outcome::Group(GroupOutcome::AttemptLapsed { .. })), "{outcome:?}");
            let simple = settlements.len() == 1 && !whole(&settlements[0]);
            assert!(!simple || (held.len() as u64) < named, "rejected although all records were held: {settlements:?}");
        }
    }

    fn rest(&mut self) {
        match self.rng.below(20) {
            0 => {
                let to = self.rng.below(self.model.records.len() as u64 + 1) as usize;
                self.one(command(|out| groups::encode_seek(out, GROUP, Some(Offset(to as u64)))));
                let to = to.max(self.model.start);
                for (offset, record) in self.model.records.iter_mut().enumerate() {
                    if record.0 != Stage::Dead {
                        *record = if offset < to { (Stage::Done, 0) } else { (Stage::New, 0) };
                    }
                }
                // A record that is dead and is delivered again after the seek would need two rows. The model has
                // one row each, so it is buried first.
                self.model.cursor = to;
                self.bury();
                (to..self.model.records.len()).for_each(|offset| self.model.records[offset] = (Stage::New, 0));
            }
            1 => {
                let before = self.model.start + self.rng.below(8) as usize;
                let before = before.min(self.model.records.len());
                self.one(command(|out| command::encode_trim_stream(out, STREAM, Offset(before as u64))));
                self.model.records[..before].iter_mut().for_each(|record| record.0 = Stage::Done);
                self.model.start = before.max(self.model.start);
                self.model.cursor = self.model.cursor.max(before);
            }
            2 => {
                let attempt = self.attempts[self.attempts.len() - 1];
                let by = Duration::from_micros(500);
                self.one(command(|out| groups::encode_extend(out, GROUP, by, &[attempt]).unwrap()));
                for offset in 0..self.model.records.len() {
                    if self.model.holds(attempt, offset) {
                        self.model.records[offset].0 = Stage::Held { attempt, due: self.model.time + 500 };
                    }
                }
            }
            3 => {
                let info = |run: &Self| run.bench.machine.group(GROUP, SpaceTime(run.model.time)).unwrap();
                let before = info(self);
                self.bench.reopen();
                assert_eq!(info(self), before);
            }
            4 | 5 => self.bury(),
            _ => self.model.time += self.rng.below(600),
        }
    }

    fn bury(&mut self) {
        while let Some(letter) = self.bench.machine.dead_letters(GROUP, None).unwrap() {
            for of in &letter.records {
                for offset in of.run.first.0..of.run.end().0 {
                    let record = &mut self.model.records[offset as usize];
                    assert!(matches!(record.0, Stage::Dead | Stage::New), "{offset} is {record:?}");
                    record.0 = Stage::Done;
                }
            }
            let outcome = self.one(command(|out| {
                groups::encode_ack(out, GROUP, &[Settlement::all(letter.attempt)]).unwrap();
            }));
            assert!(matches!(outcome, Outcome::Group(GroupOutcome::Settled { settled: 1.., .. })));
        }
    }

    fn compare(&self) {
        let info = self.bench.machine.group(GROUP, SpaceTime(self.model.time)).unwrap().unwrap();
        let model = &self.model;
        assert_eq!(info.cursor.0 as usize, model.cursor);
        assert_eq!((info.pending, info.dying), (model.pending(), model.dead()));
        let in_flight =
            model.records.iter().filter(|(stage, _)| matches!(stage, Stage::Held { due, .. } if model.time < *due));
        assert_eq!(info.in_flight, in_flight.count() as u64);
        let parked = model.records.iter().filter(|(stage, _)| *stage == Stage::Parked);
        assert_eq!(info.parked, parked.count() as u64);
        assert_eq!(info.members.iter().map(|member| member.in_flight).sum::<u64>(), info.in_flight);
        assert!(info.pending + info.dying <= MAX_PENDING);
        let floor = (0..model.cursor).find(|&offset| model.is_pending(offset));
        assert_eq!(info.floor.0 as usize, floor.unwrap_or(model.cursor));
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0 => self.append(),
            1..=3 => self.fetch(),
            4..=6 => self.settle(),
            7 => self.commit(),
            _ => self.rest(),
        }
        self.compare();
    }
}

#[test]
fn deliveries_are_what_the_model_allows() {
    for order in [GroupOrder::Competing, GroupOrder::PerKey] {
        for_seeds(40, |seed| {
            let mut run = Run::new(seed, order);
            (0..400).for_each(|_| run.step());
        });
    }
}

#[test]
fn every_record_is_settled_in_the_end() {
    for order in [GroupOrder::Competing, GroupOrder::PerKey] {
        for_seeds(20, |seed| {
            let mut run = Run::new(seed, order);
            (0..200).for_each(|_| run.step());
            for _ in 0..1000 {
                run.model.time += DEADLINE;
                run.fetch();
                let attempt = *run.attempts.last().unwrap();
                run.one(command(|out| groups::encode_ack(out, GROUP, &[Settlement::all(attempt)]).unwrap()));
                for offset in 0..run.model.records.len() {
                    if run.model.holds(attempt, offset) {
                        run.model.records[offset].0 = Stage::Done;
                    }
                }
                run.bury();
            }
            let info = run.bench.machine.group(GROUP, SpaceTime(run.model.time)).unwrap().unwrap();
            assert_eq!((info.pending, info.dying), (0, 0));
            assert_eq!(info.floor.0 as usize, run.model.records.len());
        });
    }
}

#[test]
fn replay_gives_the_same_rows_however_often_it_is_broken_off() {
    for order in [GroupOrder::Competing, GroupOrder::PerKey] {
        for_seeds(10, |seed| {
            let mut run = Run::new(seed, order);
            (0..300).for_each(|_| run.step());
            let expected = run.bench.backend.dump();
            let replay = Bench::new(MachineOptions::default());
            let mut machine = replay.machine;
            let mut backend = replay.backend;
            for (number, record) in run.bench.log.records.iter().enumerate() {
                apply(&machine, record);
                if number % 37 == 5 {
                    backend = backend.copy();
                    machine = Machine::open(backend.clone(), MachineOptions::default()).unwrap();
                }
            }
            assert_eq!(backend.dump(), expected);
            let now = SpaceTime(run.model.time);
            assert_eq!(machine.group(GROUP, now).unwrap(), run.bench.machine.group(GROUP, now).unwrap());
        });
    }
}

#[test]
fn commands_in_one_entry_do_what_they_do_in_many() {
    for_seeds(10, |seed| {
        let mut run = Run::new(seed, GroupOrder::Competing);
        (0..200).for_each(|_| run.step());
        let mut bench = Bench::new(MachineOptions::default());
        let mut group: Vec<&LogRecord> = Vec::new();
        let time_of = |record: &LogRecord| match record.kind {
            crate::support::Kind::Entry { time, .. } => time,
            _ => SpaceTime(0),
        };
        for record in &run.bench.log.records {
            if group.first().is_some_and(|first| time_of(first) != time_of(record)) {
                flush(&mut bench, &mut group, time_of);
            }
            group.push(record);
        }
        flush(&mut bench, &mut group, time_of);
        let now = SpaceTime(run.model.time);
        assert_eq!(bench.machine.group(GROUP, now).unwrap(), run.bench.machine.group(GROUP, now).unwrap());
        let rows = |bench: &Bench| -> BTreeMap<_, _> {
            bench.backend.dump().into_iter().filter(|(key, _)| matches!(key[0], 0x0e | 0x0f | 0x14)).collect()
        };
        assert_eq!(rows(&bench), rows(&run.bench));
    });
}

fn flush(bench: &mut Bench, group: &mut Vec<&LogRecord>, time_of: impl Fn(&LogRecord) -> SpaceTime) {
    let Some(first) = group.first() else { return };
    let time = time_of(first);
    let payload: Vec<u8> = group.drain(..).flat_map(|record| record.payload.clone()).collect();
    let record = bench.log.entry(&payload, time);
    apply(&bench.machine, &record);
}
