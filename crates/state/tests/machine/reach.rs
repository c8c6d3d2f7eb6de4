//! Tests that random lists of commands reach all cases, because a property proves nothing about cases that no list
//! reaches.

use std::collections::BTreeMap;

use thalweg_state::machine::MachineOptions;
use thalweg_types::command::{Command, Outcome, Write};

use crate::{
    groupings::list,
    random::{
        Puts,
        list::Grouping,
        node::{Node, on_a_map},
    },
};

const OPTIONS: MachineOptions = MachineOptions { inline_value_bytes: 128 };
const MAX_LISTS: u64 = 6_000;

/// Cases that must be reached.
const WANTED: &[&str] = &[
    "Commit: Committed",
    "Commit: ConditionFailed",
    "Commit: Duplicate",
    "Commit: ProducerRefused",
    "ConfigureKeyspace: Done",
    "ConfigureStream: Done",
    "CreateKeyspace: Keyspace",
    "CreateStream: Stream",
    "DeleteStream: Done",
    "DropKeyspace: Dropped",
    "Group Configure: Done",
    "Group Create: Created",
    "Group Delete: Done",
    "Group Extend: Extended",
    "Group Fetch: Fetched",
    "Group Seek: Sought",
    "Group Reclaim: NoSuchGroup",
    "Group Reclaim: Reclaimed",
    "Group Settle: Settled",
    "OpenProducer: Producer",
    "PruneVersions: Reclaimed",
    "Redis: Redis",
    "Sweep: Reclaimed",
    "Time Expire: Expired",
    "Time Forget: Expired",
    "Time Grant: Lease",
    "Time Keep: Lease",
    "Time Revoke: Committed",
    "Transaction: Transacted",
    "Transaction: OperationFailed",
    "TrimStream: Done",
    "a deleted prefix with former deletes",
    "a watched key that had changed",
    "commit Append",
    "commit Delete",
    "commit Put",
    "commit PutUntil",
    "commit Settle",
    "commit Touch",
    "malformed",
    "transaction Add",
    "transaction Append",
    "transaction Delete",
    "transaction DeletePrefix",
    "transaction Get",
    "transaction Put",
    "transaction PutUntil",
    "transaction Scan",
    "transaction Settle",
    "transaction Touch",
    "value of form 0",
    "value of form 1",
    "value of form 2",
    "value of form 3",
    "value of form 4",
    "value of form 5",
    "row 06",
    "row 07",
    "row 08",
    "row 09",
    "row 0a",
    "row 0b",
    "row 0c",
    "row 0d",
    "row 0e",
    "row 0f",
    "row 11",
    "row 12 00",
    "row 12 01",
    "row 12 02",
    "row 13",
    "row 14",
    "row 15",
];

/// The cases reached, and the number of times.
#[derive(Debug, Default)]
struct Reached(BTreeMap<String, u64>);

impl Reached {
    fn add(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    /// Returns the first word of a value's debug form, which is the name of its variant.
    fn variant(value: &impl std::fmt::Debug) -> String {
        let text = format!("{value:?}");
        text.split(|char: char| !char.is_alphanumeric()).next().unwrap_or_default().to_owned()
    }

    fn command(&mut self, bytes: &[u8], outcome: &Outcome) {
        let Ok(command) = Command::decode(bytes) else { return self.add("malformed") };
        let name = match &command {
            Command::Group(command) => format!("Group {}", Self::variant(command)),
            Command::Time(command) => format!("Time {}", Self::variant(command)),
            command => Self::variant(command),
        };
        let came = match (&command, outcome) {
            (Command::Group(_), Outcome::Group(outcome)) => Self::variant(outcome),
            (_, outcome) => Self::variant(outcome),
        };
        self.add(format!("{name}: {came}"));
        if let (Command::Commit(commit), Outcome::Committed { .. }) = (&command, outcome) {
            commit.writes().into_iter().flatten().flatten().for_each(|write| self.write("commit", &write));
        }
        if let (Command::Transaction(transaction), Outcome::Transacted(done)) = (&command, outcome)
            && let Ok([then, otherwise]) = transaction.branches()
        {
            let branch = if done.failed.is_none() { then } else { otherwise };
            branch.flatten().for_each(|write| self.write("transaction", &write));
        }
        if *outcome == Outcome::Redis(None) {
            self.add("a watched key that had changed");
        }
        if let (Command::Redis(batch), Outcome::Redis(Some(_))) = (&command, outcome) {
            let (mut commands, mut args) = (batch.commands(), Vec::new());
            while commands.next_into(&mut args) {
                self.add(format!("redis {}", String::from_utf8_lossy(args[0])));
            }
        }
    }

    fn write(&mut self, of: &str, write: &Write<'_>) {
        self.add(format!("{of} {}", Self::variant(write)));
    }
}

#[test]
fn lists_reach_every_command_and_every_kind_of_row() {
    let mut reached = Reached::default();
    for seed in 1..=MAX_LISTS {
        let list = list(seed, Puts::Anywhere);
        let mut node = Node::new(on_a_map(), OPTIONS);
        let outcomes = node.apply_list(&list, Grouping::Alone);
        list.0.iter().zip(&outcomes).for_each(|(step, outcome)| reached.command(&step.command, outcome));
        for (key, row) in node.rows() {
            let kind = if key[0] == 0x12 { format!("row 12 {:02x}", key[1]) } else { format!("row {:02x}", key[0]) };
            reached.add(kind);
            if key[0] == 0x10 {
                reached.add(format!("value of form {}", row[0]));
            }
            if key[0] == 0x06 && row[8] & 2 != 0 {
                reached.add("a deleted prefix with former deletes");
            }
        }
        if WANTED.iter().all(|what| reached.0.contains_key(*what)) {
            return;
        }
    }
    let missed: Vec<_> = WANTED.iter().filter(|what| !reached.0.contains_key(**what)).collect();
    panic!("{missed:?} are not among {:#?}", reached.0);
}
