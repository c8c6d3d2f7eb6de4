//! A keyspace as a database of Redis clients. Each read uses one view of the state. Writes are commands of the log.
//!
//! Owns: the batches of commands into which a client's commands are divided for the log; the division of a large delete
//! into several commands; and the batches for commands that did not run because the batch before them had used up its
//! steps of work. Does not own: the execution of commands (`thalweg_redis`), the name of the keyspace
//! (`named_keyspace`), or the order of replies to a client (`burst`).
//!
//! While no keyspace has the name, reads see an empty database. The next write creates the keyspace.
//!
//! Invariants: commands keep their order across the batches of a burst. A batch is proposed again, for another
//! keyspace, only if its own keyspace was dropped and none of its commands ran.

use std::sync::{Arc, Mutex, PoisonError};

use thalweg_engine::{
    AsyncDatabase, CommandResult, Origin, PendingCommand, Purpose, ReadError, RowsOf, Wake, WriteError,
};
use thalweg_redis::{Flags, Read, Reply, StoreError, model::Model};
use thalweg_serving::fetched::RowFetcher;
use thalweg_types::{
    Durability, KeyspaceId,
    budget::Budget,
    command::{Command, Outcome as CommandOutcome, RedisBuilder},
};

use super::{
    commands::{Commands, is_mark},
    database::{Batched, Outcome, PendingOutcome, Watched},
    failure::Failure,
    gathering,
    named_keyspace::NamedKeyspace,
    value_reads::ValueLookups,
};

/// A keyspace that serves Redis clients as a database; see the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct KeyspaceDatabase {
    db: AsyncDatabase,
    keyspace: Arc<NamedKeyspace>,
    level: Durability,
}

impl KeyspaceDatabase {
    /// Returns a handle that serves a keyspace as a Redis database. Writes are acknowledged at the durability `level`,
    /// but at least at `os`. Below `os`, the outcome of a command would be unknown.
    pub(crate) fn new(db: &AsyncDatabase, keyspace: Arc<NamedKeyspace>, level: Durability) -> Self {
        Self { db: db.clone(), keyspace, level: level.max(Durability::Os) }
    }

    fn build(keyspace: KeyspaceId, commands: &Commands, watched: &[Watched]) -> Result<Built, WriteError> {
        let mut builder = RedisBuilder::with_capacity(keyspace, commands.bytes());
        for (key, version) in watched {
            builder.watch(key, *version)?;
        }
        let (mut pushed, mut brings_data) = (Ok(()), false);
        let (mut replies, mut splits) = (0, Vec::new());
        commands.each(|command, arguments| {
            if pushed.is_err() {
                return;
            }
            brings_data |= command.flags_of(arguments).contains(Flags::DENY_OOM);
            if let Some(fixed) = fixed_arguments(command.name)
                && arguments.len() - fixed > MAX_DELETED
            {
                let (fixed, deleted) = arguments.split_at(fixed);
                let parts = deleted.chunks(MAX_DELETED);
                splits.push(Split { first: replies, parts: parts.len() });
                replies += parts.len();
                pushed = parts.into_iter().try_for_each(|part| builder.push(&[fixed, part].concat()).map(|_| ()));
                return;
            }
            replies += usize::from(!is_mark(command));
            pushed = builder.push(arguments).map(|_| ());
        });
        pushed?;
        // Commands that only remove data are accepted even if the disk is full.
        let purpose = if brings_data { Purpose::Data } else { Purpose::Reclaim };
        Ok(Built { batch: builder.finish(), purpose, replies, splits })
    }

    /// Returns the steps of work that commands of a batch need for the values that they use, estimated from the sizes
    /// of these values. `None` if the estimate is not possible, or if the rows that have the sizes are not in memory.
    fn value_reads(&self, commands: &Commands) -> Option<u64> {
        let (lookups, keyspace) = (ValueLookups::of(commands)?, self.keyspace.known_id()?);
        let db = self.db.blocking();
        let keeps_history = db.keeps_history(keyspace);
        let read = || db.redis_read(keyspace, |view| lookups.steps(view, keeps_history));
        Budget::RESIDENT.perform(read).ok()?.ok()
    }

    /// Proposes a batch, and returns a future with the replies to all its commands. If the batch does not run
    /// completely, the future proposes further batches. The first batch is proposed by this call itself, on the thread
    /// that serves the client.
    fn outcome(
        self,
        origin: &Origin,
        built: Built,
        value_reads: Option<u64>,
    ) -> impl Future<Output = Outcome> + Send + use<> {
        let Built { batch: command, purpose, replies: expected, splits } = built;
        let db = self.db.for_origin(&Origin { value_reads, ..origin.clone() });
        let proposer = Proposer { db, keyspace: self.keyspace, purpose, level: self.level };
        let under_way = proposer.propose(&command);
        async move {
            let mut command = command;
            let Some(mut replies) = proposer.replies(&mut command, under_way).await? else { return Ok(None) };
            let (mut expected, mut splits) = (expected, splits);
            let bytes_of = |replies: &[Reply]| replies.iter().map(Reply::content_bytes).sum::<usize>();
            let (mut ran, mut bytes) = (replies.len(), None);
            loop {
                if ran == 1
                    && replies.last().is_some_and(is_too_expensive)
                    && let Some(halves) = halved(&command)
                {
                    replies.pop();
                    split_again(&mut splits, replies.len());
                    (command, expected) = (halves, expected + 1);
                } else if replies.len() >= expected {
                    break;
                } else if *bytes.get_or_insert_with(|| bytes_of(&replies)) > MAX_BURST_REPLY_BYTES {
                    replies.resize_with(expected, || Reply::error(REPLIES_TOO_LARGE));
                    break;
                } else {
                    // Commands without a reply have changed nothing: the commands before them used up all steps of the
                    // batch. They are proposed as another batch. Each batch runs at least one command, so this ends.
                    command = rest(&command, ran);
                }
                let under_way = proposer.propose(&command);
                match proposer.replies(&mut command, under_way).await {
                    Ok(Some(more)) if !more.is_empty() => {
                        (ran, bytes) = (more.len(), bytes.map(|bytes| bytes + bytes_of(&more)));
                        replies.extend(more);
                    }
                    Ok(_) => break,
                    // The earlier commands have been carried out, so they get their replies.
                    Err(Failure(text)) => {
                        replies.resize_with(expected, || Reply::Error(text.clone()));
                        break;
                    }
                }
            }
            Ok(Some(merge(replies, &splits)))
        }
    }
}

/// Proposes the commands of one burst (commands of one client that are committed together), in one or several batches.
struct Proposer {
    db: AsyncDatabase,
    keyspace: Arc<NamedKeyspace>,
    purpose: Purpose,
    level: Durability,
}

impl Proposer {
    fn propose(&self, batch: &[u8]) -> PendingCommand {
        let under_way = self.db.propose_command(batch, self.purpose, self.level, Wake::Later);
        gathering::commit_soon(&self.db);
        under_way
    }

    /// Waits for the replies to a proposed batch. If the batch's keyspace was dropped, none of its commands ran. In
    /// this case, proposes the batch once more, for the keyspace that has the name now or for a new one.
    async fn replies(&self, batch: &mut Vec<u8>, under_way: PendingCommand) -> Outcome {
        let dropped = match under_way.await {
            Err(WriteError::NoSuchKeyspace(dropped)) => dropped,
            result => return redis_outcome(result),
        };
        let found = self.keyspace.look_up_or_create(Some(dropped)).await.map_err(|error| Failure::of(&error))?;
        *batch = for_keyspace(batch, found);
        redis_outcome(self.propose(batch).await)
    }
}

/// A batch of commands that is encoded for a proposal.
struct Built {
    batch: Vec<u8>,
    purpose: Purpose,
    /// Number of replies that the commands of the batch produce.
    replies: usize,
    /// Large deletes that the batch contains as several smaller commands, in the order of their replies.
    splits: Vec<Split>,
}

/// A large delete that is proposed as several smaller commands. This way a delete of any size is accepted, and other
/// commands can run between its parts.
struct Split {
    /// Number of replies in the batch that come before those to the parts of this delete.
    first: usize,
    parts: usize,
}

/// Number of bytes of replies at which no further batch of a burst (commands of one client) is proposed. All replies of
/// a burst stay in memory until the last one is known. The replies to one batch have at most about 100 MiB, because the
/// work of a batch is limited.
const MAX_BURST_REPLY_BYTES: usize = 32 * 1024 * 1024;

/// Error reply to a command that is not executed, because the replies to the client's commands before it are already
/// too large together.
const REPLIES_TOO_LARGE: &str = "ERR the replies of these commands would be too large together, so this one was not \
     executed: send fewer of them at a time";

/// Maximum number of keys, fields or entries that one part of a large delete removes.
const MAX_DELETED: usize = 5_000;

/// Returns the number of arguments before the list of keys, fields or entries that a command deletes, including the
/// command's name. `None` for commands without such a list.
fn fixed_arguments(name: &str) -> Option<usize> {
    match name {
        "del" | "unlink" => Some(1),
        "hdel" | "xdel" => Some(2),
        _ => None,
    }
}

/// Replaces the replies to the parts of a split command by one reply: their sum, or the first error.
fn merge(replies: Vec<Reply>, splits: &[Split]) -> Vec<Reply> {
    let (mut merged, mut replies) = (Vec::with_capacity(replies.len()), replies.into_iter().enumerate().peekable());
    let mut splits = splits.iter().peekable();
    while let Some((at, reply)) = replies.next() {
        let Some(split) = splits.next_if(|split| split.first == at) else {
            merged.push(reply);
            continue;
        };
        let mut sum = reply;
        for (_, part) in std::iter::from_fn(|| replies.next_if(|(other, _)| *other < at + split.parts)) {
            sum = match (sum, part) {
                (Reply::Integer(sum), Reply::Integer(part)) => Reply::Integer(sum + part),
                (Reply::Integer(_), error) => error,
                (error, _) => error,
            };
        }
        merged.push(sum);
    }
    merged
}

/// Returns the replies in the result of a proposed batch. If one of them reports a failure of this node, writes the
/// failure to the node's log output.
fn redis_outcome(result: Result<CommandResult, WriteError>) -> Result<Option<Vec<Reply>>, Failure> {
    match result {
        Ok((_, Some(CommandOutcome::Redis(outcome)))) => {
            if let Some(failure) = outcome.as_deref().and_then(node_failure) {
                log_once(failure);
            }
            Ok(outcome)
        }
        Ok(other) => Err(Failure(format!("MISCONF the log returned an unexpected outcome: {other:?}").into())),
        Err(error) => Err(Failure::of(&error)),
    }
}

/// Returns the text of the first reply that reports a failure of this node: a value could not be read for a read that
/// follows a write in one batch. `None` if no reply reports one.
fn node_failure(replies: &[Reply]) -> Option<&str> {
    replies.iter().find_map(|reply| match reply {
        Reply::Error(text) if text.starts_with("MISCONF") => Some(&**text),
        _ => None,
    })
}

/// Writes a failure to the log output, unless it equals the failure logged last. Clients may repeat a failing request
/// for a long time.
#[cold]
fn log_once(failure: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if *last != failure {
        failure.clone_into(&mut last);
        tracing::warn!("a read behind a write of a Redis client failed: {failure}");
    }
}

/// Returns a batch with the commands of `batch` after its first `ran` commands, which have run already.
fn rest(batch: &[u8], ran: usize) -> Vec<u8> {
    match Command::decode(batch) {
        Ok(Command::Redis(batch)) => batch.rest(ran),
        _ => Vec::new(),
    }
}

/// Returns a batch with the same commands as `batch`, for the keyspace `keyspace`.
fn for_keyspace(batch: &[u8], keyspace: KeyspaceId) -> Vec<u8> {
    match Command::decode(batch) {
        Ok(Command::Redis(batch)) => batch.for_keyspace(keyspace),
        _ => Vec::new(),
    }
}

/// Returns true if the reply says that a command was rejected because it needs too many steps of work.
fn is_too_expensive(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("ERR too expensive"))
}

/// Returns a batch in which the first command is split into two commands that delete half as much each. Returns `None`
/// if this command does not delete several keys, fields or entries. Watched keys are compared again before the first
/// part. Splitting is necessary because even [`MAX_DELETED`] deletions can need too many steps of work, if keys or
/// names are very long, or if values are in a keyspace with history.
fn halved(batch: &[u8]) -> Option<Vec<u8>> {
    let Ok(Command::Redis(batch)) = Command::decode(batch) else { return None };
    let (mut commands, mut args) = (batch.commands(), Vec::new());
    if !commands.next_into(&mut args) {
        return None;
    }
    let fixed = fixed_arguments(thalweg_redis::find(args[0])?.name)?;
    let deleted = args.len().checked_sub(fixed).filter(|deleted| *deleted > 1)?;
    let mut builder = RedisBuilder::with_capacity(batch.keyspace, batch.bytes.len());
    for (key, version) in batch.watched() {
        builder.watch(key, version).ok()?;
    }
    let middle = fixed + deleted / 2;
    builder.push(&args[..middle]).ok()?;
    builder.push(&[&args[..fixed], &args[middle..]].concat()).ok()?;
    while commands.next_into(&mut args) {
        builder.push(&args).ok()?;
    }
    Some(builder.finish())
}

/// Records that a delete in the batch was split into two commands. The split delete may itself be a part of a larger
/// delete. Its reply had the position `at` among the batch's replies. Two replies now take this position.
fn split_again(splits: &mut Vec<Split>, at: usize) {
    let after = splits.partition_point(|split| split.first <= at);
    splits[after..].iter_mut().for_each(|split| split.first += 1);
    match after.checked_sub(1).map(|before| &mut splits[before]) {
        Some(split) if at < split.first + split.parts => split.parts += 1,
        _ => splits.insert(after, Split { first: at, parts: 2 }),
    }
}

impl KeyspaceDatabase {
    fn propose_in(
        &self,
        keyspace: KeyspaceId,
        origin: &Origin,
        fetcher: RowFetcher<'_>,
        commands: &Commands,
        watched: &[Watched],
    ) -> PendingOutcome {
        let built = match Self::build(keyspace, commands, watched) {
            Ok(built) => built,
            Err(error) => return Box::pin(std::future::ready(Err(Failure::of(&error)))),
        };
        let Some(fetching) = fetcher.begin(self.db.blocking(), RowsOf::Command(&built.batch)) else {
            return Box::pin(self.clone().outcome(origin, built, self.value_reads(commands)));
        };
        let (this, origin, commands) = (self.clone(), origin.clone(), commands.clone());
        Box::pin(async move {
            fetching.done().await;
            let value_reads = this.value_reads(&commands);
            drop(commands);
            this.outcome(&origin, built, value_reads).await
        })
    }
}

/// Maximum number of times that one read looks up the keyspace again because it was dropped. After that the read sees
/// an empty database, as the database was between a drop and the creation of the next keyspace.
const MAX_DROPS: usize = 4;

impl Batched for KeyspaceDatabase {
    fn read(&self, act: &mut dyn FnMut(&dyn Read) -> Result<(), StoreError>) -> Result<(), Failure> {
        let mut keyspace = self.keyspace.known_id();
        for _ in 0..MAX_DROPS {
            let Some(id) = keyspace else { break };
            match self.db.blocking().redis_read(id, |read| act(read)) {
                Err(ReadError::NoSuchKeyspace(_)) => keyspace = self.keyspace.look_up(),
                read => return read.map_err(|error| Failure::of(&error)),
            }
        }
        act(&Model::default()).map_err(Failure::from)
    }

    fn keyspace(&self) -> Option<KeyspaceId> {
        self.keyspace.known_id()
    }

    fn propose(
        &self,
        origin: &Origin,
        fetcher: RowFetcher<'_>,
        commands: &Commands,
        watched: &[Watched],
    ) -> PendingOutcome {
        if let Some(keyspace) = self.keyspace.known_id() {
            return self.propose_in(keyspace, origin, fetcher, commands, watched);
        }
        let (this, origin, budget) = (self.clone(), origin.clone(), fetcher.budget);
        let (readers, account) = (Arc::clone(fetcher.readers), Arc::clone(fetcher.account));
        let (commands, watched) = (commands.clone(), watched.to_vec());
        Box::pin(async move {
            let keyspace = this.keyspace.look_up_or_create(None).await.map_err(|error| Failure::of(&error))?;
            let fetcher = RowFetcher { readers: &readers, account: &account, budget };
            let proposed = this.propose_in(keyspace, &origin, fetcher, &commands, &watched);
            proposed.await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_part_of_a_delete_becomes_two_parts() {
        let shown = |splits: &[Split]| splits.iter().map(|split| (split.first, split.parts)).collect::<Vec<_>>();
        let mut splits = vec![Split { first: 1, parts: 3 }, Split { first: 6, parts: 2 }];
        split_again(&mut splits, 3);
        assert_eq!(shown(&splits), [(1, 4), (7, 2)]);
        split_again(&mut splits, 5);
        assert_eq!(shown(&splits), [(1, 4), (5, 2), (8, 2)]);
        split_again(&mut splits, 0);
        assert_eq!(shown(&splits), [(0, 2), (2, 4), (6, 2), (9, 2)]);
    }

    #[test]
    fn a_failure_of_the_node_among_the_replies_is_found() {
        let replies = [Reply::Ok, Reply::error("WRONGTYPE"), Reply::error("MISCONF a"), Reply::error("MISCONF b")];
        assert_eq!(node_failure(&replies), Some("MISCONF a"));
        assert_eq!(node_failure(&replies[..2]), None, "errors of clients are not logged");
    }

    #[test]
    fn replies_to_the_parts_of_a_delete_are_added() {
        let number = Reply::Integer;
        let splits = [Split { first: 1, parts: 3 }, Split { first: 4, parts: 2 }, Split { first: 7, parts: 2 }];
        let error = Reply::error("WRONGTYPE");
        let replies = vec![
            Reply::Ok,
            number(1),
            number(2),
            number(3),
            number(4),
            number(5),
            Reply::Null,
            error.clone(),
            number(6),
            number(7),
        ];
        assert_eq!(merge(replies, &splits), [Reply::Ok, number(6), number(9), Reply::Null, error, number(7)]);
        assert_eq!(merge(vec![Reply::Ok], &[]), [Reply::Ok]);
    }
}
