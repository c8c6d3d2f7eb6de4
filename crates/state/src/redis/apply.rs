//! Redis commands that write, executed when their log entry is applied. All commands of a batch run in order and share
//! one revision.
//!
//! Owns: running the Redis commands that one command of the log contains over the keys as changed so far (`store`), and
//! turning their changes into rows. Does not own: the effect of a Redis command, which is defined in `thalweg-redis`.
//!
//! Reads outside of transactions have no effect except their replies: they are charged to a budget of their own, their
//! random choices depend on the revision and their number in the batch, and the running hash does not contain their
//! replies. So they are performed only where a client waits for them, not in replay and on followers. Batches of
//! earlier builds are the exception: their reads count like writes.
//!
//! Each command is applied completely or not at all: a rejected command is rolled back, and later commands continue.
//! The commands between the marks `MULTI` and `EXEC` are a transaction. The marks get no replies.
//!
//! The steps of a batch have a bound, see `meter`. A command or a transaction that exceeds it is rolled back and ends
//! the batch. If it was the first one of the batch, it is rejected; otherwise the outcome has replies only for the
//! commands before it, and the proposer proposes the others again. So the rejection of a command does not depend on
//! other commands that the client pipelines with it.
//!
//! All changes of the batch to one key count as one change, with the batch's revision. Watches and histories see this
//! change, and the Redis command `WATCH` uses the revision as the key's version. A new deadline is a change for `WATCH`
//! but not for watches, as with touches. In a keyspace with history, a new deadline does not change the revision, so
//! that a value never is a version of itself.

use thalweg_redis::{Run, admit, run};
use thalweg_types::{
    KeyspaceId, LogPosition,
    codec::Malformed,
    command::{GroupMark, Outcome, RedisBatch, RedisCommands, group_mark},
    limits::MAX_KEY_BYTES,
    reply::Reply,
};

use crate::{
    keys::{DATA_PREFIX_LEN, data_prefix},
    keyspaces::{catalog::KeyspaceKind, live::live_head},
    machine::{applying::Applying, state_machine::Machine},
    redis::{
        errors::failure,
        store::{RedisStore, TOO_EXPENSIVE},
    },
    refused::Refused,
};

/// Runs a batch of Redis commands. The batch's bytes begin at position `at` in the log.
pub(crate) fn apply(applying: &mut Applying<'_>, batch: RedisBatch<'_>, at: LogPosition) -> Result<Outcome, Refused> {
    let keyspace = batch.keyspace;
    if applying.applier.kinds.of(keyspace) == KeyspaceKind::Missing {
        return Err(Refused::Outcome(Outcome::NoSuchKeyspace(keyspace)));
    }
    if has_changed(applying, &batch)? {
        return Ok(Outcome::Redis(None));
    }
    let mut store = RedisStore::new(applying, batch, at);
    let mut replies = Vec::with_capacity(batch.len());
    let (mut commands, mut args) = (batch.commands(), Vec::new());
    let mut ahead = commands.clone();
    // Number of replies before the current transaction; `None` outside of transactions.
    let mut group = None;
    for number in 0_u32.. {
        if !commands.next_into(&mut args) {
            break;
        }
        if number.is_multiple_of(WARMED) && batch.len() > 1 {
            warm(store.applying.machine, batch.keyspace, &mut ahead);
        }
        match group_mark(&args) {
            Some(GroupMark::Begin) if group.is_none() => {
                store.begin_group();
                group = Some(replies.len());
                continue;
            }
            Some(GroupMark::End) if group.is_some() => {
                store.keep_group();
                group = None;
                continue;
            }
            _ => {}
        }
        if let Some(reply) = store.set(&args)? {
            replies.push(reply);
            continue;
        }
        let admitted = admit(&args);
        if let Ok(command) = &admitted
            && matches!(command.run, Run::Read(_))
            && batch.reads_apart
            && group.is_none()
        {
            store.applying.applier.reads.push(replies.len());
            replies.push(store.read_apart(command, &args, number)?);
            continue;
        }
        store.begin(&args);
        let reply = match &admitted {
            Ok(command) => run(&mut store, command, &args).map_err(failure)?,
            Err(reply) => reply.clone(),
        };
        let reply = store.within_bounds(reply);
        if store.check_steps().is_err() {
            store.undo();
            store.undo_group();
            end_early(&mut replies, group, &mut commands);
            break;
        }
        match reply {
            Reply::Error(_) => store.undo(),
            _ => {
                store.keep();
                if let Ok(command) = admitted {
                    let Applying { machine, applier, .. } = &mut *store.applying;
                    machine.growth.note(&mut applier.grown, command, &args);
                }
            }
        }
        replies.push(reply);
    }
    store.keep_group();
    store.end();
    Ok(Outcome::Redis(Some(replies)))
}

/// Ends a batch at a command that has used up the steps of the batch, after its changes and those of its transaction
/// were rolled back. `group` is the number of replies before its transaction. If this command or transaction is the
/// first of the batch, it is rejected with an error. Otherwise it gets no reply, and neither do the commands after it:
/// the proposer proposes them again in a new batch with a full budget of steps.
fn end_early(replies: &mut Vec<Reply>, group: Option<usize>, rest: &mut RedisCommands<'_>) {
    let before = group.unwrap_or(replies.len());
    let ran = replies.len() - before + 1;
    replies.truncate(before);
    if before > 0 {
        return;
    }
    let mut rejected = ran;
    let mut args = Vec::new();
    while group.is_some() && rest.next_into(&mut args) && group_mark(&args) != Some(GroupMark::End) {
        rejected += 1;
    }
    replies.resize_with(rejected, || Reply::error(TOO_EXPENSIVE));
}

/// Number of Redis commands whose keys are prefetched together.
const WARMED: u32 = 16;

/// Passes the keys of the next Redis commands to the backend, which prefetches their rows. Only keys that are the
/// first argument of their command and short are passed.
fn warm<'a>(machine: &Machine, keyspace: KeyspaceId, ahead: &mut RedisCommands<'a>) {
    const BYTES: usize = 64;
    let prefix = data_prefix(keyspace);
    let (mut full, mut lens, mut count) = ([[0; BYTES]; WARMED as usize], [0; WARMED as usize], 0);
    let mut last: &[u8] = &[];
    for _ in 0..WARMED {
        let Some(key) = ahead.next_key() else { break };
        if key.len() > BYTES - DATA_PREFIX_LEN || key == last {
            continue;
        }
        full[count][..DATA_PREFIX_LEN].copy_from_slice(&prefix);
        full[count][DATA_PREFIX_LEN..][..key.len()].copy_from_slice(key);
        lens[count] = DATA_PREFIX_LEN + key.len();
        (last, count) = (key, count + 1);
    }
    if count > 1 {
        let keys: [&[u8]; WARMED as usize] = std::array::from_fn(|at| &full[at][..lens[at]]);
        machine.backend.warm(&keys[..count]);
    }
}

/// Returns true if a key that the client watches with `WATCH` has another version than when the client began to watch
/// it.
fn has_changed(applying: &Applying<'_>, batch: &RedisBatch<'_>) -> Result<bool, Refused> {
    for (key, version) in batch.watched() {
        if key.len() > MAX_KEY_BYTES {
            return Err(Malformed { at: 0, expected: "key within the limit" }.into());
        }
        if live_head(applying, batch.keyspace, key)?.map_or(0, |live| live.revision.0) != version {
            return Ok(true);
        }
    }
    Ok(false)
}
