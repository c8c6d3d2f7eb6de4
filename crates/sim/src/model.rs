//! The model: a simple second implementation of each operation, for one copy of the data and one client.
//!
//! Owns: the outcome that an operation must have after all operations before it. Does not own: the order of the
//! operations (`oracle`), or their bytes (`commands`). The model shares no code with the state machine that it checks.
//!
//! Rules of the model, in addition to those of reads and writes:
//! - revisions rise, so fencing tokens rise, and a guarded write never follows a guarded write with a higher token;
//! - the stream has no gaps, and a repeated append of a producer is not appended again;
//! - a record is delivered to one member at a time; it is delivered again only after its deadline or a nack, and never
//!   after an ack; new records are delivered in order and without gaps.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_types::{
    SpaceTime,
    command::{
        Outcome,
        groups::{Fetched, GroupOutcome},
    },
};

use crate::{
    commands::{ACK_DEADLINE, guarded_by},
    history::{Action, Key},
};

/// The data that the cluster should have, according to the replayed operations.
#[derive(Debug, Default)]
pub struct Model {
    values: BTreeMap<Key, Value>,
    /// Time to live of each lease, and the end of the lease by the members' common clock (space time).
    leases: BTreeMap<u64, (std::time::Duration, SpaceTime)>,
    stream: Vec<u64>,
    /// Offsets of the appends of each producer. The index of an offset in its list is the sequence number of the
    /// append.
    producers: BTreeMap<u64, Vec<u64>>,
    group: Group,
    /// Revision of the last change that the model has carried out.
    revision: u64,
    /// Highest fencing token with which each guarded resource (the key that a lock guards) was written.
    tokens: BTreeMap<Key, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Value {
    number: u64,
    revision: u64,
    lease: Option<u64>,
}

/// The state that the consumer group should have, according to the replayed operations.
#[derive(Debug, Default)]
struct Group {
    /// Offset of the first record that was never delivered.
    cursor: u64,
    /// Records that were delivered and not acked, by offset. Each has the number of its last delivery attempt (`None`
    /// after a nack), and the time from which the group may deliver it again.
    pending: BTreeMap<u64, (Option<u64>, SpaceTime)>,
    last_attempt: u64,
}

fn mismatch(expected: impl std::fmt::Debug, found: &Outcome) -> Result<(), String> {
    Err(format!("its outcome must be {expected:?}, and is {found:?}"))
}

impl Model {
    /// Returns the values that the keys should have; `None` for a key that should not exist.
    #[must_use]
    pub fn read(&self, keys: &[Key]) -> Vec<Option<u64>> {
        keys.iter().map(|key| self.values.get(key).map(|value| value.number)).collect()
    }

    /// Returns the records that the stream should contain, in order.
    #[must_use]
    pub fn stream(&self) -> &[u64] {
        &self.stream
    }

    /// Returns the offsets of the records that were not acked.
    #[must_use]
    pub fn unacked(&self) -> Vec<u64> {
        let new = self.group.cursor..self.stream.len() as u64;
        self.group.pending.keys().copied().chain(new).collect()
    }

    fn is_lease_live(&self, lease: u64, time: SpaceTime) -> bool {
        self.leases.get(&lease).is_some_and(|(_, end)| *end > time)
    }

    fn live(&self, key: Key, time: SpaceTime) -> Option<Value> {
        let value = self.values.get(&key).copied()?;
        value.lease.is_none_or(|lease| self.is_lease_live(lease, time)).then_some(value)
    }

    /// Checks that the revision of a change is above the revision of the previous change, and stores it.
    fn change(&mut self, revision: u64) -> Result<u64, String> {
        let before = std::mem::replace(&mut self.revision, revision);
        if revision > before { Ok(revision) } else { Err(format!("its revision {revision} follows {before}")) }
    }

    fn set(&mut self, key: Key, number: Option<u64>, revision: u64, lease: Option<u64>) {
        match number {
            Some(number) => self.values.insert(key, Value { number, revision, lease }),
            None => self.values.remove(&key),
        };
    }

    /// Carries out an operation on the model. `time` is the time of the operation's log entry, by the members' common
    /// clock. Returns an error if `outcome` is not the outcome that the operation must have.
    pub fn apply(&mut self, action: &Action, time: SpaceTime, outcome: &Outcome) -> Result<(), String> {
        match action {
            Action::Read { .. } => Err("a read is no command".to_owned()),
            Action::Write { expect, put, .. } => {
                let holds = expect.iter().all(|(key, value)| self.live(*key, time).map(|live| live.number) == *value);
                self.commit(holds, outcome, |model, revision| {
                    put.iter().for_each(|(key, value)| model.set(*key, *value, revision, None));
                    Ok(())
                })
            }
            Action::Append { record, stamp: None } => self.append(*record, outcome).map(drop),
            Action::Append { record, stamp: Some((producer, sequence)) } => {
                self.append_once(*record, *producer, *sequence, outcome)
            }
            Action::Grant { lease, ttl } => {
                self.leases.insert(*lease, (*ttl, time.plus(*ttl)));
                self.expect_lease(*lease, outcome)
            }
            Action::Keep { lease } => {
                if !self.is_lease_live(*lease, time) {
                    return self.expect_no_lease(outcome);
                }
                if let Some((ttl, end)) = self.leases.get_mut(lease) {
                    *end = time.plus(*ttl).max(*end);
                }
                self.expect_lease(*lease, outcome)
            }
            Action::Revoke { lease } => {
                if !self.is_lease_live(*lease, time) {
                    return self.expect_no_lease(outcome);
                }
                self.leases.remove(lease);
                self.commit(true, outcome, |_, _| Ok(()))
            }
            Action::Acquire { lock, lease, owner } => {
                if !self.is_lease_live(*lease, time) && matches!(outcome, Outcome::NoSuchLease(_)) {
                    return Ok(());
                }
                let is_free = self.live(*lock, time).is_none();
                self.commit(is_free, outcome, |model, revision| {
                    model.set(*lock, Some(*owner), revision, Some(*lease));
                    if model.is_lease_live(*lease, time) { Ok(()) } else { Err("its lease has ended".to_owned()) }
                })
            }
            Action::Guarded { lock, token, value } => {
                let holds = self.live(*lock, time).is_some_and(|live| live.revision == *token);
                self.commit(holds, outcome, |model, revision| {
                    model.set(guarded_by(*lock), Some(*value), revision, None);
                    let before = model.tokens.insert(*lock, *token).unwrap_or(0);
                    if before <= *token { Ok(()) } else { Err(format!("its token {token} follows {before}")) }
                })
            }
            Action::Release { lock, token } => {
                let holds = self.live(*lock, time).is_some_and(|live| live.revision == *token);
                self.commit(holds, outcome, |model, revision| {
                    model.set(*lock, None, revision, None);
                    Ok(())
                })
            }
            Action::Fetch { max, .. } => match outcome {
                Outcome::Group(GroupOutcome::Fetched(fetched)) => {
                    self.group.fetch(u64::from(*max), fetched, time, self.stream.len() as u64)
                }
                other => mismatch("fetched", other),
            },
            Action::Ack { attempt, offsets } => self.settle(*attempt, offsets, time, None, outcome),
            Action::Nack { attempt, offsets, delay } => {
                self.settle(*attempt, offsets, time, Some(time.plus(*delay)), outcome)
            }
        }
    }

    /// Checks the outcome of a commit, and carries it out if its conditions hold.
    fn commit(
        &mut self,
        holds: bool,
        outcome: &Outcome,
        change: impl FnOnce(&mut Self, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        match outcome {
            Outcome::Committed { revision, .. } if holds => {
                let revision = self.change(revision.0)?;
                change(self, revision)
            }
            Outcome::ConditionFailed { .. } if !holds => Ok(()),
            other => mismatch(if holds { "committed" } else { "condition failed" }, other),
        }
    }

    fn append(&mut self, record: u64, outcome: &Outcome) -> Result<u64, String> {
        let offset = self.stream.len() as u64;
        self.stream.push(record);
        match outcome {
            Outcome::Committed { revision, appends } if appends.len() == 1 && appends[0].first.0 == offset => {
                self.change(revision.0)?;
                Ok(offset)
            }
            other => mismatch(format!("appended at offset {offset}"), other).map(|()| offset),
        }
    }

    fn append_once(&mut self, record: u64, producer: u64, sequence: u64, outcome: &Outcome) -> Result<(), String> {
        let offsets = self.producers.entry(producer).or_default();
        if let Some(offset) = offsets.get(sequence as usize).copied() {
            return match outcome {
                Outcome::Duplicate { appends, .. } if appends.len() == 1 && appends[0].first.0 == offset => Ok(()),
                other => mismatch(format!("a duplicate of the append at offset {offset}"), other),
            };
        }
        if sequence != offsets.len() as u64 {
            return Err(format!("the producer's append {} is missing", offsets.len()));
        }
        let offset = self.append(record, outcome)?;
        self.producers.entry(producer).or_default().push(offset);
        Ok(())
    }

    fn expect_lease(&self, lease: u64, outcome: &Outcome) -> Result<(), String> {
        let end = self.leases.get(&lease).map(|(_, end)| *end);
        match outcome {
            Outcome::Lease { id, deadline, .. } if id.0 == lease && Some(*deadline) == end => Ok(()),
            other => mismatch(format!("lease {lease} until {end:?}"), other),
        }
    }

    fn expect_no_lease(&self, outcome: &Outcome) -> Result<(), String> {
        if matches!(outcome, Outcome::NoSuchLease(_)) { Ok(()) } else { mismatch("no such lease", outcome) }
    }

    fn settle(
        &mut self,
        attempt: u64,
        offsets: &[u64],
        time: SpaceTime,
        again: Option<SpaceTime>,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let mut expected = 0;
        for offset in offsets {
            let held = self.group.pending.get(offset).is_some_and(|(by, due)| *by == Some(attempt) && *due > time);
            if held {
                expected += 1;
                match again {
                    Some(again) => self.group.pending.insert(*offset, (None, again)),
                    None => self.group.pending.remove(offset),
                };
            }
        }
        match outcome {
            Outcome::Group(GroupOutcome::Settled { settled, .. }) if *settled == expected => Ok(()),
            other => mismatch(format!("{expected} settled"), other),
        }
    }
}

impl Group {
    fn fetch(&mut self, max: u64, fetched: &Fetched, time: SpaceTime, end: u64) -> Result<(), String> {
        let delivered: BTreeSet<u64> =
            fetched.deliveries.iter().flat_map(|run| run.run.first.0..run.run.end().0).collect();
        let mut due: BTreeSet<u64> =
            self.pending.iter().filter(|(_, (_, due))| *due <= time).map(|(offset, _)| *offset).collect();
        let cursor = self.cursor;
        for offset in &delivered {
            if *offset >= end {
                return Err(format!("it delivers record {offset}, and the stream ends at {end}"));
            }
            if *offset == self.cursor {
                self.cursor += 1;
            } else if *offset > self.cursor {
                return Err(format!("it delivers record {offset} and leaves out record {}", self.cursor));
            } else if !due.remove(offset) {
                let state = self.pending.get(offset);
                return Err(format!("it delivers record {offset}, which is acked or held: {state:?}"));
            }
        }
        let could = due.len() as u64 + (end - self.cursor);
        if (delivered.len() as u64) < max && could > 0 {
            return Err(format!("it delivers {} records, and could deliver {could} more", delivered.len()));
        }
        if self.cursor > cursor && !due.is_empty() {
            return Err(format!("it delivers new records, and not {due:?}, which are due"));
        }
        if delivered.is_empty() {
            return Ok(());
        }
        let attempt = fetched.attempt.0;
        if attempt <= self.last_attempt {
            return Err(format!("its attempt {attempt} follows {}", self.last_attempt));
        }
        self.last_attempt = attempt;
        let deadline = time.plus(ACK_DEADLINE);
        self.pending.extend(delivered.into_iter().map(|offset| (offset, (Some(attempt), deadline))));
        Ok(())
    }
}
