//! The check of the changes and records that subscribers received: watches of keys, and tails of the stream.
//!
//! Owns: a simple second implementation of the changes that committed commands make to keys, and the comparison of
//! these changes with those that subscribers have received. Does not own: the subscribers. This module shares no code
//! with the state machine, or with the watches, which derive the changes from the log.
//!
//! From the revision at which it begins to the revision that it has reached, a watch shows each change of its keys
//! once, in the order of revisions, and nothing else. It may leave out changes only where a node no longer had the
//! history. A new stretch (changes without a gap) begins there. A tail shows the records of the stream from the first
//! one on.
//!
//! The command of an expiry does not name the keys that it removes. It may remove any keys whose leases have ended, as
//! many as its outcome says. All watches must show the same keys.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use thalweg_types::{SpaceTime, command::Outcome};

use crate::{
    commands::{guarded_by, key_bytes},
    history::{Action, Operation},
    truth::CommittedCommand,
};

/// Prefix of all keys of the simulation.
pub const ALL_KEYS: &str = "key";

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The key was set to the value with this number.
    Put(u64),
    /// The key was deleted.
    Delete,
    /// The key was removed because its lease had ended.
    Expire,
}

/// A change that a watch has shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenChange {
    /// Revision of the commit that changed the key.
    pub revision: u64,
    /// Bytes of the changed key.
    pub key: Vec<u8>,
    /// Kind of the change: a put with its value, a delete or an expiry.
    pub change: Change,
}

/// Changes that a watch has shown without a gap between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// First revision whose changes the watch shows.
    pub from: u64,
    /// Revision that the watch has reached: it has shown all changes below this revision. `from <= next`.
    pub next: u64,
    /// Changes that the watch has shown in this stretch, in the order in which they arrived.
    pub changes: Vec<SeenChange>,
}

/// The changes that one watch has shown to a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Prefix of the keys that the watch shows.
    pub prefix: &'static str,
    /// Stretches (changes without a gap between them) in their order. A new stretch begins where the watch could not
    /// continue because the history was gone.
    pub stretches: Vec<Stretch>,
}

impl Watched {
    /// Returns the revision from which the watch continues; `None` if the watch begins anew.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        self.stretches.last().map(|stretch| stretch.next)
    }
}

/// Everything that the subscribers of a simulation have received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Changes that the watches of keys have shown, one element for each watch.
    pub watches: Vec<Watched>,
    /// Records that each tail (a subscriber to the stream) has shown, from the first one of the stream on.
    pub tails: Vec<Vec<u64>>,
    /// Number of times that a node refused to continue a watch because its history was gone.
    pub refused: usize,
}

impl Followed {
    /// Number of changes and records that the subscribers were shown.
    #[must_use]
    pub fn len(&self) -> usize {
        let changes = self.watches.iter().flat_map(|watched| &watched.stretches).map(|stretch| stretch.changes.len());
        changes.chain(self.tails.iter().map(Vec::len)).sum()
    }

    /// Returns true if the subscribers were shown nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Changes of one revision, each by its key.
type Changes = BTreeMap<Vec<u8>, Change>;

/// Keys that watches have shown as expired, by revision.
type Expired = BTreeMap<u64, BTreeSet<Vec<u8>>>;

/// Checks the changes and records that subscribers have received against the committed commands and the records of the
/// stream. Returns descriptions of findings that are impossible in a correct cluster.
#[must_use]
pub fn check(
    operations: &[Operation],
    commands: &[CommittedCommand],
    stream: &[u64],
    followed: &Followed,
) -> Vec<String> {
    let expired = expired(&followed.watches);
    let actions: HashMap<&Bytes, &Action> =
        operations.iter().map(|operation| (&operation.command, &operation.action)).collect();
    let mut replay = Replay::new(&expired);
    for command in commands {
        replay.carry_out(actions.get(&command.command).copied(), command);
    }
    let Replay { made, counts, mut violations, .. } = replay;
    for (number, watched) in followed.watches.iter().enumerate() {
        for stretch in &watched.stretches {
            let checked = check_stretch(watched.prefix, stretch, &made).and_then(|()| {
                if watched.prefix == ALL_KEYS { check_counts(stretch, &expired, &counts) } else { Ok(()) }
            });
            if let Err(text) = checked {
                violations.push(format!("watch {number} of {:?}: {text}", watched.prefix));
            }
        }
    }
    for (number, records) in followed.tails.iter().enumerate() {
        let differs = records.iter().zip(stream).position(|(seen, record)| seen != record);
        let beyond = (records.len() > stream.len()).then_some(stream.len());
        if let Some(at) = differs.or(beyond) {
            let (seen, record) = (records.get(at), stream.get(at));
            violations.push(format!("tail {number} shows {seen:?} at offset {at}, and the stream has {record:?}"));
        }
    }
    violations
}

fn expired(watches: &[Watched]) -> Expired {
    let mut expired = Expired::new();
    for change in watches.iter().flat_map(|watched| &watched.stretches).flat_map(|stretch| &stretch.changes) {
        if change.change == Change::Expire {
            expired.entry(change.revision).or_default().insert(change.key.clone());
        }
    }
    expired
}

/// Replay of the committed commands, which keeps only the data that determines the changes that watches show.
struct Replay<'a> {
    /// Keys that watches have shown as expired.
    expired: &'a Expired,
    /// Revision of the last replayed command that increased the revision.
    revision: u64,
    /// End of each lease that was neither revoked nor granted again, by the id of the lease.
    leases: BTreeMap<u64, SpaceTime>,
    /// Lease of each key that is not removed yet, even if it has expired; `None` for a key without a lease.
    keys: BTreeMap<Vec<u8>, Option<u64>>,
    made: BTreeMap<u64, Changes>,
    /// Number of keys that the expiry command with each revision has removed.
    counts: BTreeMap<u64, usize>,
    violations: Vec<String>,
}

impl<'a> Replay<'a> {
    fn new(expired: &'a Expired) -> Self {
        Self {
            expired,
            revision: 0,
            leases: BTreeMap::new(),
            keys: BTreeMap::new(),
            made: BTreeMap::new(),
            counts: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// Replays a committed command. `action` is the client's operation; `None` for a command that is not from a client.
    fn carry_out(&mut self, action: Option<&Action>, command: &CommittedCommand) {
        match (&command.outcome, action) {
            (Outcome::Committed { revision, .. }, action) => {
                self.revision = revision.0;
                let changes = action.map(|action| self.changes(action)).unwrap_or_default();
                self.made.insert(revision.0, changes);
            }
            (Outcome::Expired { keys: 1.., .. }, None) => self.expire(command),
            (Outcome::Lease { id, deadline, .. }, _) => _ = self.leases.insert(id.0, *deadline),
            _ => {}
        }
    }

    /// Replays a client's operation, and returns the changes of keys that it makes.
    fn changes(&mut self, action: &Action) -> Changes {
        let changes: Vec<(Vec<u8>, Change, Option<u64>)> = match action {
            Action::Write { put, .. } => {
                let change = |value: &Option<u64>| value.map_or(Change::Delete, Change::Put);
                put.iter().map(|(key, value)| (key_bytes(*key), change(value), None)).collect()
            }
            Action::Acquire { lock, lease, owner } => vec![(key_bytes(*lock), Change::Put(*owner), Some(*lease))],
            Action::Guarded { lock, value, .. } => vec![(key_bytes(guarded_by(*lock)), Change::Put(*value), None)],
            Action::Release { lock, .. } => vec![(key_bytes(*lock), Change::Delete, None)],
            Action::Revoke { lease } => {
                self.leases.remove(lease);
                let attached = self.keys.iter().filter(|(_, of)| **of == Some(*lease));
                attached.map(|(key, _)| (key.clone(), Change::Expire, None)).collect()
            }
            _ => Vec::new(),
        };
        for (key, change, lease) in &changes {
            match change {
                Change::Put(_) => self.keys.insert(key.clone(), *lease),
                Change::Delete | Change::Expire => self.keys.remove(key),
            };
        }
        changes.into_iter().map(|(key, change, _)| (key, change)).collect()
    }

    /// Replays a command that has removed the keys of ended leases.
    fn expire(&mut self, command: &CommittedCommand) {
        let Outcome::Expired { keys: count, .. } = &command.outcome else { return };
        self.revision += 1;
        let (revision, time) = (self.revision, command.time);
        let shown = self.expired.get(&revision).cloned().unwrap_or_default();
        self.counts.insert(revision, *count as usize);
        for key in &shown {
            let lease = self.keys.remove(key).flatten();
            let end = lease.and_then(|lease| self.leases.get(&lease)).copied();
            if end.is_none_or(|end| end > time) {
                let key = String::from_utf8_lossy(key);
                let text = format!("at revision {revision} {key} expires at {time}, and its lease ends at {end:?}");
                self.violations.push(text);
            }
        }
        self.made.insert(revision, shown.into_iter().map(|key| (key, Change::Expire)).collect());
    }
}

/// Checks that a watch shows each change of its keys once, in order, and nothing else.
fn check_stretch(prefix: &str, stretch: &Stretch, made: &BTreeMap<u64, Changes>) -> Result<(), String> {
    let Stretch { from, next, changes } = stretch;
    if let Some(pair) = changes.windows(2).find(|pair| pair[0].revision > pair[1].revision) {
        return Err(format!("{:?} follows {:?}", pair[1], pair[0]));
    }
    let mut seen: Vec<&SeenChange> = changes.iter().collect();
    // A commit may show its changes in any order, so both sides are sorted.
    seen.sort();
    let expected = made.range(*from..*next).flat_map(|(revision, changes)| {
        let watched = changes.iter().filter(|(key, _)| key.starts_with(prefix.as_bytes()));
        watched.map(|(key, change)| SeenChange { revision: *revision, key: key.clone(), change: *change })
    });
    let mut seen = seen.into_iter();
    for expected in expected {
        match seen.next() {
            Some(seen) if *seen == expected => {}
            seen => return Err(format!("from revision {from} to {next}, {expected:?} is next, and it shows {seen:?}")),
        }
    }
    match seen.next() {
        Some(seen) => Err(format!("from revision {from} to {next}, it shows {seen:?}, which is no change")),
        None => Ok(()),
    }
}

/// Checks a watch of all keys. For each command that removes the keys of ended leases, the watch must show as many
/// expired keys as the command has removed.
fn check_counts(stretch: &Stretch, expired: &Expired, counts: &BTreeMap<u64, usize>) -> Result<(), String> {
    for (revision, count) in counts.range(stretch.from..stretch.next) {
        let shown = expired.get(revision).map_or(0, BTreeSet::len);
        if shown != *count {
            return Err(format!("{count} keys expire at revision {revision}, and {shown} are shown"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thalweg_types::{LeaseId, Revision, command::AppendedAt};

    use super::*;
    use crate::history::End;

    /// Returns a history with one command of each kind, each committed once.
    fn history() -> (Vec<Operation>, Vec<CommittedCommand>) {
        let ttl = Duration::from_secs(1);
        let committed =
            |revision| Outcome::Committed { revision: Revision(revision), appends: Vec::<AppendedAt>::new() };
        let lease = |deadline| Outcome::Lease { id: LeaseId(7), ttl, deadline: SpaceTime(deadline) };
        let write = |key, value, number| Action::Write { expect: Vec::new(), put: vec![(key, value)], number };
        let steps = [
            (Some(write(1, Some(10), 1)), committed(3)),
            (Some(Action::Grant { lease: 7, ttl }), lease(100)),
            (Some(Action::Acquire { lock: 200, lease: 7, owner: 20 }), committed(4)),
            (Some(write(2, Some(11), 2)), Outcome::ConditionFailed { condition: 0, actual: None }),
            (Some(write(1, None, 3)), committed(5)),
            (None, Outcome::Expired { keys: 1, rows: 1, more: false }),
            (Some(write(2, Some(12), 4)), committed(7)),
        ];
        let (mut operations, mut commands) = (Vec::new(), Vec::new());
        for (index, (action, outcome)) in (1..).zip(steps) {
            let command = Bytes::from(vec![index as u8]);
            if let Some(action) = action {
                operations.push(Operation { action, begin: index, end: End::Unknown, command: command.clone() });
            }
            commands.push(CommittedCommand { index, time: SpaceTime(20 * index), command, outcome });
        }
        (operations, commands)
    }

    fn seen(revision: u64, key: u64, change: Change) -> SeenChange {
        SeenChange { revision, key: key_bytes(key), change }
    }

    /// Returns the number of violations that the check finds in a watch with these changes.
    fn of_watch(prefix: &'static str, from: u64, next: u64, changes: &[SeenChange]) -> usize {
        let (operations, commands) = history();
        let stretches = vec![Stretch { from, next, changes: changes.to_vec() }];
        let followed = Followed { watches: vec![Watched { prefix, stretches }], ..Followed::default() };
        check(&operations, &commands, &[], &followed).len()
    }

    #[test]
    fn a_watch_shows_each_change_once_and_no_other() {
        let all = [
            seen(3, 1, Change::Put(10)),
            seen(4, 200, Change::Put(20)),
            seen(5, 1, Change::Delete),
            seen(6, 200, Change::Expire),
            seen(7, 2, Change::Put(12)),
        ];
        assert_eq!(of_watch(ALL_KEYS, 1, 8, &all), 0);
        assert_eq!(of_watch(ALL_KEYS, 4, 7, &all[1..4]), 0, "a part of them");
        assert_eq!(of_watch("key1", 1, 8, &[all[0].clone(), all[2].clone()]), 0, "another prefix");
        for at in 0..all.len() {
            let mut missing = all.to_vec();
            missing.remove(at);
            assert_ne!(of_watch(ALL_KEYS, 1, 8, &missing), 0, "{at} is missing");
            let mut repeated = all.to_vec();
            repeated.insert(at, all[at].clone());
            assert_ne!(of_watch(ALL_KEYS, 1, 8, &repeated), 0, "{at} is shown twice");
            let mut late = all.to_vec();
            late.swap(at, (at + 1) % all.len());
            assert_ne!(of_watch(ALL_KEYS, 1, 8, &late), 0, "{at} is out of order");
        }
        assert_ne!(of_watch(ALL_KEYS, 1, 5, &all), 0, "it is beyond its position");
        assert_ne!(of_watch("key2", 7, 8, &[seen(7, 2, Change::Put(11))]), 0, "the refused write is shown");
    }

    #[test]
    fn a_key_expires_only_after_its_lease() {
        let (operations, mut commands) = history();
        let changes = vec![seen(6, 200, Change::Expire)];
        let watched = Watched { prefix: "key2", stretches: vec![Stretch { from: 6, next: 7, changes }] };
        let followed = Followed { watches: vec![watched], ..Followed::default() };
        assert_eq!(check(&operations, &commands, &[], &followed).len(), 0);
        commands[5].time = SpaceTime(99);
        assert_eq!(check(&operations, &commands, &[], &followed).len(), 1, "the lease lives until 100");
    }

    #[test]
    fn a_tail_shows_the_beginning_of_the_stream() {
        let violations = |tail: &[u64]| {
            let followed = Followed { tails: vec![tail.to_vec()], ..Followed::default() };
            check(&[], &[], &[5, 6, 7], &followed).len()
        };
        assert_eq!([violations(&[]), violations(&[5, 6]), violations(&[5, 6, 7])], [0, 0, 0]);
        assert_eq!([violations(&[5, 7]), violations(&[6]), violations(&[5, 6, 7, 8])], [1, 1, 1]);
    }
}
