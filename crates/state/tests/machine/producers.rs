//! Tests of producers: an append is applied once, even if it is sent repeatedly.

use std::collections::BTreeMap;

use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_store::Backend;
use thalweg_types::{
    KeyspaceId, Offset, Revision, StreamId,
    command::{
        self, AppendConditions, AppendedAt, CommitBuilder, Expect, ExpectedOffset, KeyspaceConfig, Outcome,
        ProducerRefusal, ProducerStamp, StreamConfig,
    },
    limits::{MAX_STREAM_PRODUCERS, PRODUCER_EVICTIONS, PRODUCER_MEMORY, PRODUCER_RESULTS},
    record::RecordBatch,
};

use crate::{
    support::{Bench, MapBackend, apply, command},
    workload::{Rng, for_seeds},
};

const KS: KeyspaceId = KeyspaceId(1);
const STREAM: StreamId = StreamId(1);
const MEMORY_MICROS: u64 = PRODUCER_MEMORY.as_micros() as u64;

fn bench() -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    let create = [
        command(|out| command::encode_create_keyspace(out, "k", &KeyspaceConfig::default()).unwrap()),
        command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap()),
    ];
    bench.run(1, &create);
    bench
}

fn batch(records: usize) -> RecordBatch {
    let mut batch = RecordBatch::new();
    (0..records).for_each(|_| batch.push_payload(b"payload").unwrap());
    batch
}

fn terms(id: &str, epoch: u32, sequence: u64) -> AppendConditions<'_> {
    AppendConditions { expected: ExpectedOffset::Any, producer: Some(ProducerStamp { id, epoch, sequence }) }
}

fn append(id: &str, epoch: u32, sequence: u64, records: usize) -> Vec<u8> {
    command(|out| command::encode_append_with(out, STREAM, &terms(id, epoch, sequence), &batch(records)).unwrap())
}

fn open(id: &str) -> Vec<u8> {
    command(|out| command::encode_open_producer(out, STREAM, id).unwrap())
}

fn refused(refusal: ProducerRefusal) -> Outcome {
    Outcome::ProducerRefused { stream: STREAM, refusal }
}

fn committed(revision: u64, first: u64, count: u32) -> Outcome {
    let appends = vec![AppendedAt { stream: STREAM, first: Offset(first), count }];
    Outcome::Committed { revision: Revision(revision), appends }
}

fn duplicate(revision: u64, first: u64, count: u32) -> Outcome {
    let appends = vec![AppendedAt { stream: STREAM, first: Offset(first), count }];
    Outcome::Duplicate { revision: Revision(revision), appends }
}

#[test]
fn a_repeated_append_gets_its_first_answer() {
    let mut bench = bench();
    let outcomes = bench.run(2, &[append("p", 0, 0, 2), append("p", 0, 0, 2), append("p", 0, 1, 1)]);
    assert_eq!(outcomes, [committed(1, 0, 2), duplicate(1, 0, 2), committed(2, 2, 1)]);
    bench.reopen();
    let outcomes = bench.run(3, &[append("p", 0, 1, 1), append("p", 0, 0, 9), append("q", 0, 0, 1)]);
    assert_eq!(outcomes, [duplicate(2, 2, 1), duplicate(1, 0, 2), committed(3, 3, 1)]);
    assert_eq!(bench.machine.stream(STREAM).unwrap().next, Offset(4));
}

#[test]
fn numbers_that_do_not_follow_are_refused() {
    let mut bench = bench();
    let outcomes =
        bench.run(2, &[append("p", 0, 1, 1), append("p", 3, 0, 1), append("p", 3, 2, 1), append("p", 2, 1, 1)]);
    let gap = refused(ProducerRefusal::SequenceGap { expected: 1 });
    let fenced = refused(ProducerRefusal::Fenced { epoch: 3 });
    assert_eq!(outcomes, [refused(ProducerRefusal::Unknown), committed(1, 0, 1), gap, fenced]);
    let restarted = bench.run(3, &[append("p", 4, 1, 1), append("p", 4, 0, 1), append("p", 3, 1, 1)]);
    let gap = refused(ProducerRefusal::SequenceGap { expected: 0 });
    assert_eq!(restarted, [gap, committed(2, 1, 1), refused(ProducerRefusal::Fenced { epoch: 4 })]);
}

#[test]
fn results_are_kept_for_a_window_and_never_taken_for_another_epochs() {
    let mut bench = bench();
    let last = 2 * PRODUCER_RESULTS;
    for sequence in 0..=last {
        bench.run(2, &[append("p", 0, sequence, 1)]);
    }
    bench.reopen();
    let oldest = last + 1 - PRODUCER_RESULTS;
    let outcomes = bench.run(3, &[append("p", 0, oldest, 1), append("p", 0, oldest - 1, 1)]);
    let too_old = refused(ProducerRefusal::DuplicateTooOld { oldest });
    assert_eq!(outcomes, [duplicate(oldest + 1, oldest, 1), too_old]);
    let reborn = bench.run(4, &[open("p"), append("p", 1, 0, 1), append("p", 1, 0, 1), append("p", 1, 2, 1)]);
    let gap = refused(ProducerRefusal::SequenceGap { expected: 1 });
    let (revision, first) = (last + 2, last + 1);
    assert_eq!(
        reborn,
        [Outcome::Producer { epoch: 1 }, committed(revision, first, 1), duplicate(revision, first, 1), gap]
    );
}

#[test]
fn opening_fences_whoever_came_before() {
    let mut bench = bench();
    let outcomes =
        bench.run(2, &[open("p"), append("p", 1, 0, 1), open("p"), append("p", 1, 1, 1), append("p", 2, 0, 1)]);
    let fenced = refused(ProducerRefusal::Fenced { epoch: 2 });
    let opened = |epoch| Outcome::Producer { epoch };
    assert_eq!(outcomes, [opened(1), committed(1, 0, 1), opened(2), fenced, committed(2, 1, 1)]);
    let stray = command(|out| command::encode_open_producer(out, StreamId(9), "p").unwrap());
    assert_eq!(bench.run(3, &[stray]), [Outcome::NoSuchStream(StreamId(9))]);
    let info = bench.machine.producer(STREAM, "p").unwrap().unwrap();
    assert_eq!((info.epoch, info.next_sequence, bench.machine.producers(STREAM).unwrap()), (2, 1, vec![info]));
}

#[test]
fn a_repeated_commit_is_recognised_although_its_conditions_fail_now() {
    let mut bench = bench();
    let commit = |sequence, key: &[u8]| {
        let mut builder = CommitBuilder::new();
        builder.expect(KS, key, Expect::Absent).unwrap().put(KS, key, b"v").unwrap();
        let expected = AppendConditions { expected: Offset(0).into(), ..terms("p", 0, sequence) };
        builder.append(STREAM, Offset(0), &batch(1)).unwrap();
        builder.append_with(STREAM, &AppendConditions { expected: Offset(1).into(), ..expected }, &batch(2)).unwrap();
        builder.append_with(STREAM, &terms("p", 0, sequence + 1), &batch(1)).unwrap();
        command(|out| builder.encode(out))
    };
    let at = |first, count| AppendedAt { stream: STREAM, first: Offset(first), count };
    let first = Outcome::Committed { revision: Revision(1), appends: vec![at(0, 1), at(1, 2), at(3, 1)] };
    let again = Outcome::Duplicate { revision: Revision(1), appends: vec![at(1, 2), at(3, 1)] };
    assert_eq!(bench.run(2, &[commit(0, b"a"), commit(0, b"a")]), [first, again.clone()]);
    bench.reopen();
    let conflict = Outcome::OffsetConflict { stream: STREAM, next: Offset(4) };
    assert_eq!(
        bench.run(3, &[commit(0, b"a"), commit(2, b"b")]),
        [again, conflict],
        "a new commit is checked on its own"
    );
    let mixed = refused(ProducerRefusal::Mixed);
    assert_eq!(bench.run(4, &[commit(1, b"c")]), [mixed], "only a part of the commit was applied before");
    assert_eq!(bench.machine.applied().revision, Revision(1));
    assert_eq!(bench.machine.get(KS, b"b").unwrap(), None);
}

#[test]
fn a_producer_that_was_silent_too_long_is_unknown() {
    let mut bench = bench();
    bench.run(2, &[append("p", 5, 0, 1), append("p", 5, 1, 1)]);
    assert_eq!(bench.run(2 + MEMORY_MICROS, &[append("p", 5, 1, 1)]), [duplicate(2, 1, 1)], "just in time");
    let late = bench.run(3 + MEMORY_MICROS, &[append("p", 5, 1, 1), append("p", 5, 2, 1), append("p", 5, 0, 1)]);
    let unknown = refused(ProducerRefusal::Unknown);
    assert_eq!(late, [unknown.clone(), unknown, committed(3, 2, 1)], "a forgotten producer can restart at 0");
    let mut other = self::bench();
    other.run(2, &[append("p", 5, 0, 1)]);
    assert_eq!(
        other.run(9 * MEMORY_MICROS, &[open("p")]),
        [Outcome::Producer { epoch: 6 }],
        "instances with an old epoch stay fenced"
    );
}

#[test]
fn an_instance_that_is_fenced_stays_fenced_while_the_stream_has_the_row_of_its_producer() {
    let mut bench = bench();
    bench.run(2, &[append("p", 0, 0, 1), open("p"), append("p", 1, 0, 1)]);
    let fenced = refused(ProducerRefusal::Fenced { epoch: 1 });
    let late = 9 * MEMORY_MICROS;
    // The fenced instance learns that its producer is unknown, and begins again.
    let outcomes = bench.run(late, &[append("p", 0, 1, 1), append("p", 0, 0, 1), append("p", 1, 1, 1)]);
    assert_eq!(outcomes, [fenced.clone(), fenced.clone(), refused(ProducerRefusal::Unknown)]);
    bench.reopen();
    assert_eq!(bench.run(late, &[append("p", 1, 0, 1), append("p", 0, 0, 1)]), [committed(3, 2, 1), fenced]);
}

#[test]
fn those_silent_longest_are_evicted_with_all_their_rows() {
    let mut bench = bench();
    let name = |number: u32| format!("p{number:05}");
    bench.run(2, &[append(&name(0), 0, 0, 1), append(&name(0), 0, 1, 1)]);
    for number in 1..MAX_STREAM_PRODUCERS {
        bench.run(u64::from(number) + 2, &[append(&name(number), 0, 0, 1)]);
    }
    let rows = |bench: &Bench| bench.backend.dump().keys().filter(|key| key[0] == 0x0d).count();
    assert_eq!(rows(&bench), 2 * MAX_STREAM_PRODUCERS as usize + 1);
    bench.run(5000, &[append(&name(0), 0, 2, 1)]);
    let outcomes = bench.run(5001, &[append("new", 0, 0, 1), append(&name(1), 0, 1, 1), append(&name(0), 0, 3, 1)]);
    assert_eq!(outcomes[1], refused(ProducerRefusal::Unknown), "the producer that was silent longest is evicted");
    assert!(matches!(outcomes[2], Outcome::Committed { .. }));
    let left = MAX_STREAM_PRODUCERS as usize + 1 - PRODUCER_EVICTIONS;
    assert_eq!(bench.machine.producers(STREAM).unwrap().len(), left);
    assert_eq!(rows(&bench), 2 * left + 3);
    // Many new producers in one entry, which evicts some that it has added itself.
    let many: Vec<_> = (0..2 * MAX_STREAM_PRODUCERS).map(|number| append(&format!("m{number:05}"), 0, 0, 1)).collect();
    assert!(bench.run(6000, &many).iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })));
    let count = bench.machine.producers(STREAM).unwrap().len();
    assert!(count <= MAX_STREAM_PRODUCERS as usize, "{count}");
    assert_eq!(rows(&bench), 2 * count);
}

/// Encodes one commit of several appends.
fn commit(stamps: &[(&str, u64)]) -> Vec<u8> {
    let mut builder = CommitBuilder::new();
    for (id, sequence) in stamps {
        builder.append_with(STREAM, &terms(id, 0, *sequence), &batch(1)).unwrap();
    }
    command(|out| builder.encode(out))
}

/// Creates a stream with the maximum number of producers, the first of them with five appends. All have the same
/// last time.
fn full() -> Bench {
    let mut bench = bench();
    (0..5).for_each(|sequence| _ = bench.run(2, &[append("a", 0, sequence, 1)]));
    for number in 1..MAX_STREAM_PRODUCERS {
        bench.run(2, &[append(&format!("p{number:05}"), 0, 0, 1)]);
    }
    bench
}

#[test]
fn a_commit_evicts_no_producer_that_it_names() {
    for stamps in [&[("new", 0), ("a", 5)][..], &[("a", 5), ("new", 0), ("a", 6)]] {
        let mut bench = full();
        let outcomes = bench.run(3, &[commit(stamps), append("a", 0, 4, 1), commit(stamps)]);
        assert!(matches!(outcomes[0], Outcome::Committed { .. }), "{:?}", outcomes[0]);
        assert_eq!(outcomes[1], duplicate(5, 4, 1), "its earlier append is still known");
        assert!(matches!(outcomes[2], Outcome::Duplicate { .. }), "{:?}", outcomes[2]);
        let left = MAX_STREAM_PRODUCERS as usize + 1 - PRODUCER_EVICTIONS;
        assert_eq!(bench.machine.producers(STREAM).unwrap().len(), left);
    }
}

#[test]
fn what_an_earlier_command_named_is_evicted_in_every_grouping() {
    let other = commit(&[("a", 5), ("p00001", 1)]);
    let evicts = [open("b"), append("c", 0, 0, 1)];
    let rows = evicts.map(|last| {
        let [mut together, mut alone] = [full(), full()];
        together.run(2, &[other.clone(), last.clone()]);
        alone.run(2, std::slice::from_ref(&other));
        alone.run(2, &[last]);
        let rows = |bench: &Bench| {
            let dump = bench.backend.dump();
            dump.into_iter().filter(|(key, _)| key[0] == 0x0d).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(rows(&together), rows(&alone));
        together.machine.producer(STREAM, "a").unwrap()
    });
    assert_eq!(rows, [None, None]);
}

#[test]
fn a_commit_names_as_many_producers_as_a_stream_remembers() {
    let mut bench = full();
    let ids: Vec<_> = (0..=MAX_STREAM_PRODUCERS).map(|number| format!("m{number:05}")).collect();
    let stamps: Vec<_> = ids.iter().map(|id| (id.as_str(), 0)).collect();
    let limit = MAX_STREAM_PRODUCERS as usize;
    let too_many = Outcome::TooMany { what: "producers of a stream in one commit", limit };
    assert_eq!(bench.run(3, &[commit(&stamps)]), [too_many]);
    let outcomes = bench.run(3, &[commit(&stamps[1..]), commit(&stamps[1..])]);
    assert!(matches!(outcomes[0], Outcome::Committed { .. }) && matches!(outcomes[1], Outcome::Duplicate { .. }));
    assert_eq!(bench.machine.producers(STREAM).unwrap().len(), limit);
}

#[test]
fn an_append_whose_result_is_missing_is_refused_as_one_too_old() {
    let mut bench = bench();
    (0..3).for_each(|sequence| _ = bench.run(2, &[append("p", 0, sequence, 1)]));
    let mut map = bench.backend.dump();
    map.retain(|key, _| key[0] != 0x0d || key[5] != 1 || key.last() != Some(&1));
    bench.backend = MapBackend::of(map, bench.backend.applied());
    bench.machine = bench.log.machine(bench.backend.clone(), bench.options);
    let outcomes = bench.run(3, &[append("p", 0, 1, 1), append("p", 0, 2, 1), append("p", 0, 3, 1)]);
    let too_old = refused(ProducerRefusal::DuplicateTooOld { oldest: 2 });
    assert_eq!(outcomes, [too_old, duplicate(3, 2, 1), committed(4, 3, 1)]);
}

#[test]
fn a_deleted_streams_producers_go_in_steps() {
    let mut bench = bench();
    for number in 0..10 {
        bench.run(2, &[append(&format!("p{number}"), 0, 0, 1)]);
    }
    let delete = command(|out| command::encode_delete_stream(out, STREAM));
    let forget = |max| command(|out| command::encode_forget_producers(out, STREAM, max));
    let none = Outcome::NoSuchStream(STREAM);
    assert_eq!(bench.run(3, &[forget(7)])[0], none, "it lives");
    let gone = |entries, more| Outcome::Reclaimed { entries, more };
    let outcomes = bench.run(4, &[append("last", 0, 0, 1), delete, forget(3)]);
    assert_eq!(outcomes[2], gone(3, true), "11 heads and 11 results, including those of the same entry");
    assert_eq!(bench.machine.reclaim_due(), [], "its index entries are already deleted");
    assert_eq!(bench.machine.former_producers_due(9), [STREAM]);
    bench.reopen();
    assert_eq!(bench.run(5, &[forget(7), forget(0)]), [gone(7, true), gone(0, true)]);
    assert_eq!(bench.run(6, &[forget(7), forget(7), forget(7)]), [gone(7, true), gone(5, false), none]);
    assert_eq!(bench.machine.former_producers_due(9), []);
    assert!(bench.backend.dump().keys().all(|key| !matches!(key[0], 0x03 | 0x0d | 0x11)));
}

/// Revision, first offset and count of each append of an epoch.
type Results = Vec<(u64, u64, u32)>;

/// A straightforward model of the rules. Times stay within the period of memory.
#[derive(Default)]
struct Model {
    producers: BTreeMap<String, (u32, Results)>,
    next: u64,
    revision: u64,
}

impl Model {
    fn append(&mut self, id: &str, epoch: u32, sequence: u64, count: u32) -> Outcome {
        match self.producers.get(id) {
            None if sequence > 0 => return refused(ProducerRefusal::Unknown),
            Some((known, _)) if epoch < *known => return refused(ProducerRefusal::Fenced { epoch: *known }),
            Some((known, _)) if epoch > *known && sequence > 0 => {
                return refused(ProducerRefusal::SequenceGap { expected: 0 });
            }
            Some((known, results)) if epoch == *known && sequence > results.len() as u64 => {
                return refused(ProducerRefusal::SequenceGap { expected: results.len() as u64 });
            }
            Some((known, results)) if epoch == *known && sequence < results.len() as u64 => {
                let oldest = (results.len() as u64).saturating_sub(PRODUCER_RESULTS);
                let (revision, first, count) = results[sequence as usize];
                let kept = sequence >= oldest;
                let too_old = refused(ProducerRefusal::DuplicateTooOld { oldest });
                return if kept { duplicate(revision, first, count) } else { too_old };
            }
            _ => {}
        }
        self.revision += 1;
        let entry = self.producers.entry(id.to_owned()).or_default();
        if entry.0 != epoch {
            *entry = (epoch, Vec::new());
        }
        entry.1.push((self.revision, self.next, count));
        self.next += u64::from(count);
        committed(self.revision, self.next - u64::from(count), count)
    }

    fn open(&mut self, id: &str) -> Outcome {
        let epoch = self.producers.get(id).map_or(1, |(epoch, _)| epoch + 1);
        self.producers.insert(id.to_owned(), (epoch, Vec::new()));
        Outcome::Producer { epoch }
    }
}

#[test]
fn producers_follow_a_plain_model_over_reopens_and_replay() {
    for_seeds(20, |seed| {
        let mut rng = Rng(seed);
        let mut bench = bench();
        let (mut model, mut longest) = (Model::default(), 0);
        for time in 2..400 {
            let mut commands = Vec::new();
            let mut expected = Vec::new();
            for _ in 0..rng.below(5) {
                let id = ["a", "ab", "b"][rng.below(3) as usize];
                let (epoch, next) = model.producers.get(id).map_or((0, 0), |(epoch, all)| (*epoch, all.len() as u64));
                if rng.below(300) == 0 {
                    commands.push(open(id));
                    expected.push(model.open(id));
                    continue;
                }
                let epoch = match rng.below(100) {
                    0 => epoch + 1,
                    1 => epoch.saturating_sub(1),
                    _ => epoch,
                };
                let sequence = match rng.below(10) {
                    0 => rng.below(next + 3),
                    1..4 => next.saturating_sub(rng.below(4)),
                    _ => next,
                };
                let count = 1 + rng.below(3) as u32;
                longest = longest.max(sequence);
                commands.push(append(id, epoch, sequence, count as usize));
                expected.push(model.append(id, epoch, sequence, count));
            }
            assert_eq!(bench.run(time, &commands), expected);
            if rng.below(30) == 0 {
                bench.reopen();
            }
        }
        assert!(longest > PRODUCER_RESULTS, "the window of results has moved");
        let replayed = MapBackend::of(Default::default(), None);
        let machine = Machine::open(replayed.clone(), bench.options).unwrap();
        bench.log.records.iter().for_each(|record| _ = apply(&machine, record));
        assert_eq!((replayed.dump(), replayed.applied()), (bench.backend.dump(), bench.backend.applied()));
    });
}
