//! Replies to commands, built from the commands' outcomes.
//!
//! Owns: the mapping of outcomes to frames. Does not own: the reply to a rejected command, which has the code and class
//! of the engine's error; see [`Failed::of`](crate::Failed::of).

use std::time::Duration;

use thalweg_types::{
    Durability, Offset, Revision,
    codec::{EncodeError, List},
    command::{self, AppendedAt, Outcome, groups::GroupOutcome},
};

use crate::frames::{
    Appended, Committed, Created, Done, Extended, FailedCondition, Frame, Granted, Lapsed, OperationResult,
    ProducerOpened, ScannedPair, Settled, Sought, Transacted,
};

/// Appends the reply to a [`Write`](crate::Write) that reached the level `durability`. An `outcome` of `None` means
/// that the outcome is unknown, as at level `none`. Returns false if it appended nothing. This happens for rejections,
/// which the caller reports as [`Failed`](crate::Failed), and for outcomes of commands that only nodes issue.
pub fn put_outcome(
    out: &mut Vec<u8>,
    id: u32,
    durability: Durability,
    outcome: Option<&Outcome>,
) -> Result<bool, EncodeError> {
    match outcome {
        None => committed(out, id, durability, Revision::ZERO, false, &[]),
        Some(Outcome::Committed { revision, appends }) => committed(out, id, durability, *revision, false, appends),
        Some(Outcome::Duplicate { revision, appends }) => committed(out, id, durability, *revision, true, appends),
        Some(Outcome::Transacted(done)) => transacted(out, id, durability, done),
        Some(Outcome::Producer { epoch }) => ProducerOpened { durability, epoch: *epoch }.encode(out, id),
        Some(Outcome::Keyspace { id: keyspace, created }) => created_as(out, id, durability, keyspace.0, *created),
        Some(Outcome::Stream { id: stream, created }) => created_as(out, id, durability, stream.0, *created),
        Some(Outcome::Dropped { revision }) => Done { durability, revision: *revision }.encode(out, id),
        Some(Outcome::Done) => Done { durability, revision: Revision::ZERO }.encode(out, id),
        Some(Outcome::Lease { id: lease, ttl, deadline }) => {
            Granted { durability, lease: *lease, ttl: micros(*ttl), deadline: *deadline }.encode(out, id)
        }
        Some(Outcome::Group(outcome)) => return put_group_outcome(out, id, durability, outcome),
        Some(
            Outcome::OperationFailed { .. }
            | Outcome::ConditionFailed { .. }
            | Outcome::OverStreamLimit { .. }
            | Outcome::ProducerRefused { .. }
            | Outcome::OffsetConflict { .. }
            | Outcome::NoSuchLease(_)
            | Outcome::LeaseExists(_)
            | Outcome::NoSuchKeyspace(_)
            | Outcome::NoSuchStream(_)
            | Outcome::TooMany { .. }
            | Outcome::TooExpensive { .. }
            | Outcome::CannotConfigure { .. }
            | Outcome::Malformed(_)
            | Outcome::VersionNotInForce { .. }
            | Outcome::Version { .. }
            | Outcome::Redis(_)
            | Outcome::Reclaimed { .. }
            | Outcome::Expired { .. },
        ) => return Ok(false),
    }?;
    Ok(true)
}

fn put_group_outcome(
    out: &mut Vec<u8>,
    id: u32,
    durability: Durability,
    outcome: &GroupOutcome,
) -> Result<bool, EncodeError> {
    match outcome {
        GroupOutcome::Created { id: group, created } => created_as(out, id, durability, group.0, *created),
        GroupOutcome::Done => Done { durability, revision: Revision::ZERO }.encode(out, id),
        GroupOutcome::Settled { settled, lapsed } => {
            let lapsed: Vec<_> = lapsed
                .iter()
                .map(|lapsed| {
                    let (first, count) = lapsed.run.map_or((Offset::ZERO, 0), |run| (run.first, run.count));
                    Lapsed { attempt: lapsed.attempt, first, count }
                })
                .collect();
            Settled { durability, settled: *settled, lapsed: List::Items(&lapsed) }.encode(out, id)
        }
        GroupOutcome::Extended { deadline, lapsed } => {
            Extended { durability, deadline: *deadline, lapsed: List::Items(lapsed) }.encode(out, id)
        }
        GroupOutcome::Sought { cursor } => Sought { durability, cursor: *cursor }.encode(out, id),
        GroupOutcome::Fetched(_)
        | GroupOutcome::NoSuchGroup(_)
        | GroupOutcome::AttemptLapsed { .. }
        | GroupOutcome::BadConfig { .. } => return Ok(false),
    }?;
    Ok(true)
}

fn committed(
    out: &mut Vec<u8>,
    id: u32,
    durability: Durability,
    revision: Revision,
    duplicate: bool,
    appends: &[AppendedAt],
) -> Result<(), EncodeError> {
    let appends: Vec<_> = appends.iter().map(appended).collect();
    Committed { durability, duplicate, revision, appends: List::Items(&appends) }.encode(out, id)
}

fn created_as(
    out: &mut Vec<u8>,
    id: u32,
    durability: Durability,
    named: u32,
    created: bool,
) -> Result<(), EncodeError> {
    Created { durability, created, id: named }.encode(out, id)
}

fn appended(at: &AppendedAt) -> Appended {
    Appended { stream: at.stream, first: at.first, count: at.count }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn transacted(
    out: &mut Vec<u8>,
    id: u32,
    durability: Durability,
    done: &command::Transacted,
) -> Result<(), EncodeError> {
    let pairs: Vec<Vec<ScannedPair<'_>>> = done.results.iter().map(scanned).collect();
    let results: Vec<_> = done.results.iter().zip(&pairs).map(|(result, pairs)| shown(result, pairs)).collect();
    let failed = done
        .failed
        .map(|failed| FailedCondition { condition: failed.condition, revision: failed.actual.unwrap_or_default() });
    Transacted { durability, wrote: done.wrote, revision: done.revision, failed, results: List::Items(&results) }
        .encode(out, id)
}

fn scanned(result: &command::OperationResult) -> Vec<ScannedPair<'_>> {
    let command::OperationResult::Scanned(page) = result else { return Vec::new() };
    page.items
        .iter()
        .map(|item| ScannedPair { revision: item.revision, key: &item.key, value: item.value.as_deref() })
        .collect()
}

fn shown<'a>(result: &'a command::OperationResult, pairs: &'a [ScannedPair<'a>]) -> OperationResult<'a> {
    use command::OperationResult as Of;
    match result {
        Of::Put => OperationResult::Put {},
        Of::Deleted { existed } => OperationResult::Deleted { existed: *existed },
        Of::Appended(at) => OperationResult::Appended { at: appended(at) },
        Of::Added { value } => OperationResult::Added { value: *value },
        Of::Touched { existed } => OperationResult::Touched { existed: *existed },
        Of::PrefixDeleted { keys } => OperationResult::PrefixDeleted { keys: *keys },
        Of::Settled { records } => OperationResult::Settled { records: *records },
        Of::Got(Some(got)) => OperationResult::Got { revision: got.revision, value: &got.value },
        Of::Got(None) => OperationResult::Got { revision: Revision::ZERO, value: &[] },
        Of::Scanned(page) => OperationResult::Scanned { after: page.after.as_deref(), pairs: List::Items(pairs) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decoder, ServerFrame};
    use bytes::Bytes;
    use thalweg_types::{
        Attempt, GroupId, KeyspaceId, LeaseId, SpaceTime, StreamId,
        codec::Malformed,
        command::{ReadValue, ScanPage, ScannedItem, groups::OffsetRun},
    };

    /// Encodes the reply to an outcome and returns it as text; `None` if there is no reply.
    fn reply(outcome: Option<&Outcome>) -> Option<String> {
        let mut out = Vec::new();
        if !put_outcome(&mut out, 7, Durability::Disk, outcome).unwrap() {
            assert!(out.is_empty());
            return None;
        }
        let mut decoder = Decoder::new();
        decoder.feed(&out);
        let envelope = ServerFrame::decode(decoder.next_borrowed().unwrap().unwrap()).unwrap();
        assert_eq!(envelope.id, 7);
        Some(format!("{:?}", envelope.frame).replace("durability: Disk, ", ""))
    }

    #[test]
    fn every_outcome_has_its_reply() {
        let at = AppendedAt { stream: StreamId(2), first: Offset(40), count: 3 };
        let (revision, appends) = (Revision(9), vec![at]);
        let group = |outcome| Outcome::Group(outcome);
        let lapsed = |run| command::groups::Lapsed { attempt: Attempt(5), run };
        let run = OffsetRun { first: Offset(6), count: 2 };
        for (outcome, wanted) in [
            (
                Outcome::Committed { revision, appends: appends.clone() },
                "Committed(Committed { duplicate: false, revision: Revision(9), \
                 appends: [Appended { stream: StreamId(2), first: Offset(40), count: 3 }] })",
            ),
            (
                Outcome::Duplicate { revision, appends: Vec::new() },
                "Committed(Committed { duplicate: true, revision: Revision(9), appends: [] })",
            ),
            (Outcome::Producer { epoch: 4 }, "ProducerOpened(ProducerOpened { epoch: 4 })"),
            (Outcome::Keyspace { id: KeyspaceId(3), created: true }, "Created(Created { created: true, id: 3 })"),
            (Outcome::Stream { id: StreamId(3), created: false }, "Created(Created { created: false, id: 3 })"),
            (
                group(GroupOutcome::Created { id: GroupId(3), created: true }),
                "Created(Created { created: true, id: 3 })",
            ),
            (Outcome::Dropped { revision }, "Done(Done { revision: Revision(9) })"),
            (Outcome::Done, "Done(Done { revision: Revision(0) })"),
            (group(GroupOutcome::Done), "Done(Done { revision: Revision(0) })"),
            (
                Outcome::Lease { id: LeaseId(1), ttl: Duration::from_millis(2), deadline: SpaceTime(3) },
                "Granted(Granted { lease: LeaseId(1), ttl: 2000, deadline: SpaceTime(3) })",
            ),
            (
                group(GroupOutcome::Settled { settled: 8, lapsed: vec![lapsed(None), lapsed(Some(run))] }),
                "Settled(Settled { settled: 8, lapsed: [Lapsed { attempt: Attempt(5), first: Offset(0), count: 0 }, \
                 Lapsed { attempt: Attempt(5), first: Offset(6), count: 2 }] })",
            ),
            (
                group(GroupOutcome::Extended { deadline: SpaceTime(3), lapsed: vec![Attempt(5)] }),
                "Extended(Extended { deadline: SpaceTime(3), lapsed: [Attempt(5)] })",
            ),
            (group(GroupOutcome::Sought { cursor: Offset(6) }), "Sought(Sought { cursor: Offset(6) })"),
        ] {
            assert_eq!(reply(Some(&outcome)).as_deref(), Some(wanted));
        }
        let unknown = "Committed(Committed { duplicate: false, revision: Revision(0), appends: [] })";
        assert_eq!(reply(None).as_deref(), Some(unknown), "the outcome at level none");
    }

    #[test]
    fn a_transaction_tells_all_its_results() {
        use command::OperationResult as Of;
        let bytes = Bytes::from_static;
        let item = |key, value| ScannedItem { key: bytes(key), revision: Revision(1), value };
        let page = ScanPage { items: vec![item(b"a", Some(bytes(b"1"))), item(b"b", None)], after: Some(bytes(b"b")) };
        let results = vec![
            Of::Put,
            Of::Deleted { existed: true },
            Of::Appended(AppendedAt { stream: StreamId(2), first: Offset(40), count: 3 }),
            Of::Added { value: -7 },
            Of::Touched { existed: false },
            Of::PrefixDeleted { keys: None },
            Of::Settled { records: 6 },
            Of::Got(Some(ReadValue { revision: Revision(3), value: bytes(b"v") })),
            Of::Got(None),
            Of::Scanned(page),
        ];
        let failed = Some(command::FailedCondition { condition: 1, actual: None });
        let done = command::Transacted { failed, revision: Revision(9), wrote: true, results };
        let shown = reply(Some(&Outcome::Transacted(Box::new(done)))).unwrap();
        assert_eq!(
            shown,
            "Transacted(Transacted { wrote: true, revision: Revision(9), \
             failed: Some(FailedCondition { condition: 1, revision: Revision(0) }), results: [Put, \
             Deleted { existed: true }, Appended { at: Appended { stream: StreamId(2), first: Offset(40), count: 3 } }, \
             Added { value: -7 }, Touched { existed: false }, PrefixDeleted { keys: None }, Settled { records: 6 }, \
             Got { revision: Revision(3), value: [118] }, Got { revision: Revision(0), value: [] }, \
             Scanned { after: Some([98]), pairs: [ScannedPair { revision: Revision(1), key: [97], value: Some([49]) }, \
             ScannedPair { revision: Revision(1), key: [98], value: None }] }] })"
        );
    }

    #[test]
    fn refusals_and_maintenance_have_none() {
        for outcome in [
            Outcome::ConditionFailed { condition: 0, actual: None },
            Outcome::NoSuchStream(StreamId(1)),
            Outcome::Malformed(Malformed { at: 0, expected: "x" }),
            Outcome::Expired { keys: 1, rows: 1, more: false },
            Outcome::Group(GroupOutcome::NoSuchGroup(GroupId(1))),
        ] {
            assert_eq!(reply(Some(&outcome)), None, "{outcome:?}");
        }
    }
}
