//! Early reads of the rows that a command will read when it is applied.
//!
//! Owns: the list of these rows. Does not own: the gate that decides if they are looked up (`fetch_gate`), or the
//! threads that wait for the disk.
//!
//! No command is committed while the thread that applies entries waits for the disk. So before a caller proposes a
//! command, it reads the command's rows with [`Database::row_fetch`]. If they are not in memory, other threads read
//! them with [`RowFetch::read`].
//!
//! Invariants:
//! * A fetch never affects an outcome. A row that leaves memory before the command is applied, or that another command
//!   replaces, is read again when the command is applied.
//! * A command causes at most [`MAX_ROWS`] lookups. The other rows of a larger command are read while it is applied, as
//!   are the rows of ranges (scans, all fields of a hash, `unchanged` conditions), of leases, of streams and of
//!   consumer groups.

use std::ops::ControlFlow;

use thalweg_state::machine::Machine;
use thalweg_types::{
    KeyspaceId,
    budget::{self, Budget, BudgetSpent},
    codec::Malformed,
    command::{Command, CommitBuilder, Condition, Expect, RedisBatch, TransactionBuilder, Write, unwrap},
    steps::{COLD_READ, READ, SHORT_READ, read_bytes},
};

use crate::{database::Database, inner::Inner};

/// Maximum number of rows that are read for a command.
const MAX_ROWS: usize = 512;
/// Number of a command's rows that one thread reads, or more if [`MAX_PARTS`] threads are too few for all rows.
const ROWS_PER_PART: usize = 16;
/// Maximum number of threads that read the rows of a command. A disk serves this many concurrent reads nearly as fast
/// as one.
const MAX_PARTS: usize = 8;
const _: () = assert!(MAX_ROWS as u64 * READ < SHORT_READ, "rows in memory are looked up within a short read");
const _: () = assert!((MAX_ROWS / MAX_PARTS) as u64 * READ < COLD_READ, "a part is a short cold read");

/// A write that the caller will propose. A [`RowFetch`] reads its rows before the proposal.
#[derive(Clone, Copy, Debug)]
pub enum RowsOf<'a> {
    /// An encoded command that the caller will propose.
    Command(&'a [u8]),
    /// A commit that the caller will propose.
    Commit(&'a CommitBuilder),
    /// A transaction that the caller will propose.
    Transaction(&'a TransactionBuilder),
    /// A put or a delete of a key without conditions or deadline. Its effect depends on the key's row only in keyspaces
    /// with certain settings.
    Write(KeyspaceId, &'a [u8]),
    /// A write of one key whose effect always depends on the key's row, for example a put with a condition.
    Key(KeyspaceId, &'a [u8]),
}

/// Use that a command makes of a value that is stored in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueUse {
    /// The command does not read the value.
    None,
    /// The command reads the value if it has this length in bytes.
    OfLength(usize),
    /// The command reads the value, whatever its length.
    Whole,
}

/// Row of a key that a command reads and, with `part`, the row of a part (such as a field) of the key's collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row<K> {
    keyspace: KeyspaceId,
    key: K,
    part: Option<K>,
    value: ValueUse,
}

impl<K: AsRef<[u8]>> Row<K> {
    /// Reads the row. Errors are ignored, because the thread that applies the command finds and reports them.
    fn read(&self, inner: &Inner) {
        if budget::charge(READ).is_break() {
            return;
        }
        let part = self.part.as_ref().map(AsRef::as_ref);
        let Ok(Some(blob)) = inner.open.machine.fetch_row(self.keyspace, self.key.as_ref(), part) else { return };
        let is_read = match self.value {
            ValueUse::None => false,
            ValueUse::OfLength(len) => blob.len as usize == len,
            ValueUse::Whole => true,
        };
        if is_read && budget::charge(read_bytes(blob.len as usize)).is_continue() {
            let _ = inner.open.log.read_blob(&blob);
        }
    }
}

/// Rows of a command that are not in memory, and that other threads must read before the command is proposed.
#[derive(Debug)]
pub struct RowFetch {
    db: Database,
    spent: BudgetSpent,
    rows: Vec<Row<Box<[u8]>>>,
}

impl Database {
    /// Reads the rows that writes will read when they are applied, within `budget`. Returns `None` if the rows were in
    /// memory, or if no lookup was made because the rows of recent commands were in memory. The caller then proposes
    /// the writes. Otherwise a thread that may wait for the disk first [reads](RowFetch::read) the rows.
    #[must_use]
    pub fn row_fetch(&self, budget: Budget, of: RowsOf<'_>) -> Option<RowFetch> {
        if !self.inner.fetch_gate.is_open(&self.inner.open.machine) {
            return None;
        }
        self.row_fetch_now(budget, of)
    }

    fn row_fetch_now(&self, budget: Budget, of: RowsOf<'_>) -> Option<RowFetch> {
        let (inner, mut encoded) = (&*self.inner, Vec::new());
        let of = match of {
            RowsOf::Commit(commit) => {
                commit.encode(&mut encoded);
                RowsOf::Command(&encoded)
            }
            RowsOf::Transaction(transaction) => {
                // An error appears when the transaction is proposed.
                transaction.encode(&mut encoded).ok()?;
                RowsOf::Command(&encoded)
            }
            of => of,
        };
        let before = budget::file_reads();
        let read = || {
            visit(&inner.open.machine, of, &mut |row| {
                row.read(inner);
                if budget::is_spent() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        };
        let read = budget.perform(read);
        inner.fetch_gate.note(budget::file_reads() != before);
        let spent = read.err()?;
        let mut rows = Vec::new();
        visit(&inner.open.machine, of, &mut |row| {
            let Row { keyspace, key, part, value } = row;
            rows.push(Row { keyspace, key: key.into(), part: part.map(Into::into), value });
            ControlFlow::Continue(())
        });
        Some(RowFetch { db: self.clone(), spent, rows })
    }
}

impl RowFetch {
    /// Returns the reason why the proposing thread did not read the rows itself: too much work, or a wait for the disk.
    #[must_use]
    pub fn spent(&self) -> BudgetSpent {
        self.spent
    }

    /// Divides the rows among several fetches, so that several threads read from the disk at a time.
    #[must_use]
    pub fn split(mut self) -> Vec<Self> {
        let parts = self.rows.len().div_ceil(ROWS_PER_PART).clamp(1, MAX_PARTS);
        let rows_per_part = self.rows.len().div_ceil(parts);
        let mut split = Vec::with_capacity(parts);
        while self.rows.len() > rows_per_part {
            let rows = self.rows.split_off(self.rows.len() - rows_per_part);
            split.push(Self { db: self.db.clone(), spent: self.spent, rows });
        }
        split.push(self);
        split
    }

    /// Reads the rows, within the limit on work of the calling thread, if it has one. Errors are ignored, because they
    /// appear again when the command is applied.
    pub fn read(&self) {
        for row in &self.rows {
            row.read(&self.db.inner);
            if budget::is_spent() {
                return;
            }
        }
    }
}

/// Callback that gets each row that a command reads. If it returns `Break`, the visit ends.
type Visit<'v, 'a> = dyn FnMut(Row<&'a [u8]>) -> ControlFlow<()> + 'v;

/// Visits the first [`MAX_ROWS`] rows that writes read. Bytes that do not decode as a command have no rows.
fn visit<'a>(machine: &Machine, of: RowsOf<'a>, visit: &mut Visit<'_, 'a>) {
    let mut left = MAX_ROWS;
    let mut rows = Rows {
        machine,
        replaced: None,
        visit: &mut |row| {
            left = left.checked_sub(1).map_or(ControlFlow::Break(()), ControlFlow::Continue)?;
            visit(row)
        },
    };
    let _ = match of {
        RowsOf::Command(command) => rows.of_command(command),
        // The caller has encoded commits and transactions, so these do not occur here.
        RowsOf::Commit(_) | RowsOf::Transaction(_) => ControlFlow::Continue(()),
        RowsOf::Write(keyspace, key) => rows.replaced(keyspace, key),
        RowsOf::Key(keyspace, key) => rows.row(keyspace, key, ValueUse::None),
    };
}

struct Rows<'r, 'v, 'a> {
    machine: &'r Machine,
    /// Keyspace of the last unconditional write; true if such writes in it read the row they replace. `None` at first.
    replaced: Option<(KeyspaceId, bool)>,
    visit: &'r mut Visit<'v, 'a>,
}

impl<'a> Rows<'_, '_, 'a> {
    fn row(&mut self, keyspace: KeyspaceId, key: &'a [u8], value: ValueUse) -> ControlFlow<()> {
        (self.visit)(Row { keyspace, key, part: None, value })
    }

    /// Visits the row that an unconditional write replaces, if the keyspace's settings make the write read it.
    fn replaced(&mut self, keyspace: KeyspaceId, key: &'a [u8]) -> ControlFlow<()> {
        let is_read = match self.replaced {
            Some((known, is_read)) if known == keyspace => is_read,
            _ => self.machine.keyspace(keyspace).is_some_and(|row| !row.config.is_plain()),
        };
        self.replaced = Some((keyspace, is_read));
        if is_read { self.row(keyspace, key, ValueUse::None) } else { ControlFlow::Continue(()) }
    }

    fn of_command(&mut self, command: &'a [u8]) -> ControlFlow<()> {
        match Command::decode(unwrap(command).bytes) {
            Ok(Command::Redis(batch)) => self.of_redis(&batch),
            Ok(Command::Commit(commit)) => {
                self.conditions(commit.conditions())?;
                commit.writes().into_iter().flatten().flatten().try_for_each(|write| self.write(write))
            }
            Ok(Command::Transaction(transaction)) => {
                self.conditions(transaction.conditions())?;
                let branches = transaction.branches().into_iter().flatten();
                branches.flatten().flatten().try_for_each(|write| self.write(write))
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn conditions(
        &mut self,
        mut conditions: impl Iterator<Item = Result<Condition<'a>, Malformed>>,
    ) -> ControlFlow<()> {
        conditions.try_for_each(|condition| match condition {
            Ok(Condition { expect: Expect::Any | Expect::Unchanged(_), .. }) | Err(_) => ControlFlow::Continue(()),
            Ok(Condition { keyspace, key, expect: Expect::Value(value) }) => {
                self.row(keyspace, key, ValueUse::OfLength(value.len()))
            }
            Ok(Condition { keyspace, key, .. }) => self.row(keyspace, key, ValueUse::None),
        })
    }

    fn write(&mut self, write: Write<'a>) -> ControlFlow<()> {
        match write {
            Write::Put { keyspace, key, .. } | Write::Delete { keyspace, key } => self.replaced(keyspace, key),
            Write::PutUntil { keyspace, key, .. } | Write::Touch { keyspace, key, .. } => {
                self.row(keyspace, key, ValueUse::None)
            }
            Write::Add { keyspace, key, .. } | Write::Get { keyspace, key } => self.row(keyspace, key, ValueUse::Whole),
            Write::Append { .. } | Write::DeletePrefix { .. } | Write::Scan { .. } | Write::Settle(_) => {
                ControlFlow::Continue(())
            }
        }
    }

    fn of_redis(&mut self, batch: &RedisBatch<'a>) -> ControlFlow<()> {
        let keyspace = batch.keyspace;
        batch.watched().try_for_each(|(key, _)| self.row(keyspace, key, ValueUse::None))?;
        let (mut commands, mut args) = (batch.commands(), Vec::new());
        while commands.next_into(&mut args) {
            let known = thalweg_redis::find(args[0]).filter(|command| command.takes(args.len()));
            let Some(command) = known else { continue };
            let parts = parts_of(command.name, &args);
            if let (Some(&key), Some(_)) = (args.get(1), parts.clone().next()) {
                for part in parts {
                    (self.visit)(Row { keyspace, key, part: Some(part), value: ValueUse::None })?;
                }
                continue;
            }
            let value = value_use(command.name, &args);
            command.keys_of(&args).try_for_each(|key| self.row(keyspace, key, value))?;
        }
        ControlFlow::Continue(())
    }
}

/// Returns the fields of a hash that a Redis command names.
fn parts_of<'a, 'k>(name: &str, args: &'a [&'k [u8]]) -> impl Iterator<Item = &'k [u8]> + Clone + use<'a, 'k> {
    let (fields, step): (&[&[u8]], _) = match name {
        "hset" | "hmset" => (args.get(2..).unwrap_or_default(), 2),
        "hsetnx" | "hincrby" | "hincrbyfloat" | "hget" | "hexists" | "hstrlen" => {
            (args.get(2..3).unwrap_or_default(), 1)
        }
        "hdel" | "hmget" => (args.get(2..).unwrap_or_default(), 1),
        _ => (&[], 1),
    };
    fields.iter().step_by(step).copied()
}

/// Returns how a Redis command uses the values of its keys.
fn value_use(name: &str, args: &[&[u8]]) -> ValueUse {
    match name {
        "get" | "getset" | "getdel" | "getex" | "mget" | "getrange" | "substr" | "append" | "setrange" | "rename"
        | "renamenx" | "copy" => ValueUse::Whole,
        "set" if args.iter().skip(3).any(|arg| is_get(arg)) => ValueUse::Whole,
        _ => ValueUse::None,
    }
}

/// Returns true if an argument of `SET` is the option `GET`. A zero byte ends an option, as in Redis.
fn is_get(argument: &[u8]) -> bool {
    argument.split(|byte| *byte == 0).next().is_some_and(|option| option.eq_ignore_ascii_case(b"get"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use thalweg_types::command::{Deadline, KeyspaceConfig, RedisBuilder};

    use super::*;
    use crate::{
        fetch_gate::{FetchGate, OPEN_COMMANDS},
        options::{BackendKind, Options},
    };

    fn open() -> (tempfile::TempDir, Database, [KeyspaceId; 2]) {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { backend: Some(BackendKind::Memory), ..Options::default() };
        let db = Database::open(dir.path(), options).unwrap();
        let config = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
        let counted = db.create_keyspace("counted", &config).unwrap().0;
        let keyspaces = [db.keyspace("plain").unwrap().id(), counted.id()];
        (dir, db, keyspaces)
    }

    /// Returns the rows that a write reads, as texts of keys and fields, with the use of each value.
    fn rows(db: &Database, of: RowsOf<'_>) -> Vec<(String, ValueUse)> {
        let mut rows = Vec::new();
        visit(&db.inner.open.machine, of, &mut |row| {
            let name = [Some(row.key), row.part].into_iter().flatten().map(String::from_utf8_lossy);
            rows.push((name.collect::<Vec<_>>().join("/"), row.value));
            ControlFlow::Continue(())
        });
        rows
    }

    fn names(rows: &[(String, ValueUse)]) -> Vec<&str> {
        rows.iter().map(|(name, _)| &**name).collect()
    }

    #[test]
    fn rows_of_redis_commands_are_watched_keys_keys_and_fields() {
        let (_dir, db, [plain, _]) = open();
        let mut batch = RedisBuilder::new(plain);
        batch.watch(b"w", 7).unwrap();
        let commands: [&[&[u8]]; 9] = [
            &[b"SET", b"a", b"v"],
            &[b"set", b"b", b"v", b"GET"],
            &[b"mset", b"c", b"1", b"d", b"2"],
            &[b"multi"],
            &[b"hset", b"h", b"f", b"1", b"g", b"2"],
            &[b"hdel", b"h", b"i", b"j"],
            &[b"exec"],
            &[b"hgetall", b"k"],
            &[b"append", b"l", b"v"],
        ];
        for command in commands {
            batch.push(command).unwrap();
        }
        let batch = batch.finish();
        let found = rows(&db, RowsOf::Command(&batch));
        assert_eq!(names(&found), ["w", "a", "b", "c", "d", "h/f", "h/g", "h/i", "h/j", "k", "l"]);
        let whole = found.iter().filter(|(_, value)| *value == ValueUse::Whole).cloned().collect::<Vec<_>>();
        assert_eq!(names(&whole), ["b", "l"]);
    }

    #[test]
    fn rows_of_commits_and_transactions_are_those_that_apply_reads() {
        let (_dir, db, [plain, counted]) = open();
        let mut commit = CommitBuilder::new();
        commit.expect(plain, b"absent", Expect::Absent).unwrap();
        commit.expect(plain, b"value", Expect::Value(b"four")).unwrap();
        commit.expect(plain, b"any", Expect::Any).unwrap();
        commit.put(plain, b"blind", b"v").unwrap().delete(plain, b"blind").unwrap();
        commit.put(counted, b"counted", b"v").unwrap().delete(counted, b"gone").unwrap();
        commit.put_until(plain, b"until", b"v", Deadline::Never, None).unwrap();
        commit.touch(plain, b"touched", Deadline::Never).unwrap();
        let found = rows(&db, RowsOf::Commit(&commit));
        assert!(found.is_empty(), "the caller encodes it");
        let mut encoded = Vec::new();
        commit.encode(&mut encoded);
        let found = rows(&db, RowsOf::Command(&encoded));
        assert_eq!(names(&found), ["absent", "value", "counted", "gone", "until", "touched"]);
        assert_eq!(found[1].1, ValueUse::OfLength(4));

        let mut transaction = TransactionBuilder::new();
        transaction.expect(plain, b"if", Expect::Present).unwrap();
        transaction.then().get(plain, b"then").unwrap().put(plain, b"blind", b"v").unwrap();
        transaction.otherwise().add(plain, b"else", 1).unwrap();
        let mut encoded = Vec::new();
        transaction.encode(&mut encoded).unwrap();
        assert_eq!(names(&rows(&db, RowsOf::Command(&encoded))), ["if", "then", "else"]);
        assert!(rows(&db, RowsOf::Transaction(&transaction)).is_empty(), "the caller encodes it");
        let fetch = db.row_fetch_now(Budget::resident(1), RowsOf::Transaction(&transaction)).unwrap();
        assert_eq!(fetch.rows.iter().map(|row| &*row.key).collect::<Vec<_>>(), [&b"if"[..], b"then", b"else"]);
        assert_eq!(names(&rows(&db, RowsOf::Write(counted, b"k"))), ["k"]);
        assert!(rows(&db, RowsOf::Write(plain, b"k")).is_empty());
        assert_eq!(names(&rows(&db, RowsOf::Key(plain, b"k"))), ["k"]);
        assert!(rows(&db, RowsOf::Command(b"no command")).is_empty());
    }

    #[test]
    fn a_large_command_has_a_bounded_number_of_rows_which_are_divided_among_threads() {
        let (_dir, db, [_, counted]) = open();
        let mut commit = CommitBuilder::new();
        for number in 0..2 * MAX_ROWS as u32 {
            commit.put(counted, &number.to_be_bytes(), b"v").unwrap();
        }
        let mut encoded = Vec::new();
        commit.encode(&mut encoded);
        assert_eq!(rows(&db, RowsOf::Command(&encoded)).len(), MAX_ROWS);
        // A budget without steps leaves the rows to other threads.
        let sizes = |rows: usize| {
            let mut fetch = db.row_fetch_now(Budget::resident(1), RowsOf::Command(&encoded)).unwrap();
            assert_eq!(fetch.spent(), BudgetSpent::Steps);
            fetch.rows.truncate(rows);
            fetch.split().iter().map(|part| part.rows.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(MAX_ROWS), [MAX_ROWS / MAX_PARTS; MAX_PARTS]);
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(ROWS_PER_PART + 1).iter().sum::<usize>(), ROWS_PER_PART + 1);
        assert!(db.row_fetch_now(Budget::RESIDENT, RowsOf::Command(&encoded)).is_none(), "all is in memory");
    }

    #[test]
    fn the_gate_opens_at_reads_of_files_and_closes_after_commands_without_them() {
        let (_dir, db, _) = open();
        let machine = &db.inner.open.machine;
        assert!(!FetchGate::new(false).is_open(machine));
        let gate = FetchGate::new(true);
        for _ in 0..OPEN_COMMANDS {
            assert!(gate.is_open(machine));
            gate.note(false);
        }
        assert!(!gate.is_open(machine));
        gate.note(false);
        assert!(!gate.is_open(machine), "it stays closed");
        gate.note(true);
        gate.note(false);
        assert!(gate.is_open(machine), "a fetch has read a file");
        let gate = FetchGate { seen: AtomicU64::new(1), left: AtomicU32::new(0) };
        assert!(gate.is_open(machine), "the applying thread has read files since");
    }
}
