//! Handlers of writes: encoded commands, which are checked and proposed without being decoded.
//!
//! Owns: the handlers, the choice of the durability level, the reservations for objects that a command creates or
//! deletes, and the publish of messages after a commit. Does not own: writes that wait for rows from the disk
//! (`write_queue`), or the checks of a command's bytes (`ClientCommand` of the wire crate).
//!
//! Invariant: batches of messages are published only after their command was carried out, and a repeated command does
//! not publish again.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use thalweg_broker::Batch;
use thalweg_engine::{PendingCommand, Purpose, TransactionAck, Wake, WriteError};
use thalweg_serving::{
    admission::{Account, Reservation},
    app::App,
    deleting::DeleteShare,
    fetched::{FetchingRows, RowFetcher},
    finishing::Finishing,
    objects::CreatePermit,
};
use thalweg_types::{
    Durability, LeaseId,
    budget::{Budget, BudgetSpent},
    command::{
        Command, Outcome, TimeCommand, Transaction, Write as Operation,
        groups::{GroupCommand, GroupOutcome},
    },
    limits::{MAX_COMMAND_STEPS, MAX_TRANSACTION_RESULT_BYTES},
};
use thalweg_wire::{ClientCommand, Level, Write, WriteAndPublish, command::AtNone, put_outcome};

use super::{
    failure::{self, Failure},
    reads::reply_off_thread,
    replies::Replies,
    request::{Request, RequestId},
    subject_requests,
    turn::{Handled, PendingReply, Reply, Turn},
};

/// Handles a `write` request: proposes the client's command and replies with its outcome.
pub(crate) fn write(turn: &mut Turn<'_>, request: &Request<'_>, write: &Write<'_>) -> Result<Handled, Failure> {
    let checked = ClientCommand::check(write.command.0).map_err(|refused| Failure::of(&refused))?;
    match checked.reading_transaction() {
        Some(transaction) => {
            // At level `none`, this transaction is rejected like one that writes.
            level(turn.app, write.level, &checked)?;
            read(turn, request, write.command.0, &transaction)
        }
        None => {
            let level = level(turn.app, write.level, &checked)?;
            let Some(fetching) = begin_fetch(turn, &checked) else {
                return Ok(match propose(turn.app, turn.account, request.name(turn.number), level, &checked)? {
                    Proposed { pending, share: None } => Handled::Write(pending),
                    proposed => Handled::Unstoppable(settled(turn.app, proposed)),
                });
            };
            let waiting = WaitingCommand::of(turn, request, level, checked.bytes);
            let bytes = waiting.bytes();
            let propose = move || waiting.propose().map(|proposed| settled(&waiting.app, proposed));
            Ok(wait(turn, fetching, bytes, propose))
        }
    }
}

/// Returns the reply to a proposed command. When the outcome of the command is known, keeps or releases the client's
/// reservation for objects, even if the channel (a TCP connection or a QUIC stream) ends before.
fn settled(app: &Arc<App>, proposed: Proposed) -> PendingReply {
    let (app, Proposed { pending, share }) = (Arc::clone(app), proposed);
    let Some(share) = share else { return Box::pin(async move { Ok(Reply::Outcome(pending.await?)) }) };
    Box::pin(Finishing::new(async move {
        let result = pending.await;
        share.settle(&app, result.as_ref().map(|(_, outcome)| outcome.as_ref()));
        Ok::<_, Failure>(Reply::Outcome(result?))
    }))
}

/// Returns true if the payload of a `write` frame has a transaction that only reads. The payload begins with `fields`
/// bytes of optional fields.
pub(crate) fn only_reads(payload: &[u8], fields: u16) -> bool {
    let command = payload.get(usize::from(fields) + 1..).unwrap_or_default();
    Transaction::is_one(command)
        && ClientCommand::check(command).is_ok_and(|checked| checked.reading_transaction().is_some())
}

/// Answers a transaction that only reads, without writing to the log.
fn read(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    command: &[u8],
    transaction: &Transaction<'_>,
) -> Result<Handled, Failure> {
    if let Ok(ack) = turn.app.db.blocking().read_transaction(transaction, Budget::RESIDENT) {
        put(turn.out, request.id, ack??)?;
        return Ok(Handled::Replied);
    }
    let (app, command) = (Arc::clone(turn.app), command.to_vec());
    Ok(reply_off_thread(turn, request, BudgetSpent::Steps, MAX_TRANSACTION_RESULT_BYTES, move |out, id| {
        let checked = ClientCommand::check(&command).map_err(|refused| Failure::of(&refused))?;
        let Some(transaction) = checked.reading_transaction() else { return Ok(()) };
        match app.db.blocking().read_transaction(&transaction, Budget::waiting(MAX_COMMAND_STEPS)) {
            Ok(ack) => put(out, id, ack??),
            Err(_) => Err(app.db.blocking().transaction_too_expensive().into()),
        }
    }))
}

fn put(out: &mut Replies, id: u32, ack: TransactionAck) -> Result<(), Failure> {
    let (level, outcome) = (ack.durability, Outcome::Transacted(Box::new(ack.outcome)));
    out.states(level);
    out.reply_encoded(id, |out| put_outcome(out, id, level, Some(&outcome)))
}

/// Handles a `write and publish` request: proposes the client's command, and publishes batches of messages once the
/// command has reached its durability level. The batches are published at most once.
pub(crate) fn write_and_publish(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &WriteAndPublish<'_>,
) -> Result<Handled, Failure> {
    if wanted.level.0.unwrap_or(turn.app.config.durability) == Durability::None {
        let message = "a publish needs a commit whose outcome is known: at level `none` it is not known";
        return Err(Failure::invalid("level_too_low", message));
    }
    let batches = subject_requests::broker_batches(turn.subjects, request, wanted.batches.iter())?;
    let checked = ClientCommand::check(wanted.command.0).map_err(|refused| Failure::of(&refused))?;
    let level = level(turn.app, wanted.level, &checked)?;
    let Some(fetching) = begin_fetch(turn, &checked) else {
        let proposed = propose(turn.app, turn.account, request.name(turn.number), level, &checked)?;
        return Ok(Handled::Unstoppable(published_after(turn.app, proposed, batches)));
    };
    let waiting = WaitingCommand::of(turn, request, level, checked.bytes);
    let bytes = waiting.bytes() + wanted.batches.iter().map(<[u8]>::len).sum::<usize>();
    let propose = move || waiting.propose().map(|proposed| published_after(&waiting.app, proposed, batches));
    Ok(wait(turn, fetching, bytes, propose))
}

/// Publishes batches once a proposed command has been carried out. Returns the reply to the command.
fn published_after(app: &Arc<App>, proposed: Proposed, batches: Vec<Batch>) -> PendingReply {
    let (app, Proposed { pending, share }) = (Arc::clone(app), proposed);
    // The batches must be published even if the connection is lost, so this task does not belong to the channel.
    let published = tokio::spawn(async move {
        let result = pending.await;
        if let Some(share) = share {
            share.settle(&app, result.as_ref().map(|(_, outcome)| outcome.as_ref()));
        }
        let outcome = result?;
        // The first attempt of a repeated command may have published the batches already, and they are published at
        // most once.
        if !matches!(outcome.1, Some(Outcome::Duplicate { .. })) {
            app.views.publish_committed(&batches);
        }
        Ok(outcome)
    });
    Box::pin(async move {
        match published.await {
            Ok(outcome) => outcome.map(Reply::Outcome),
            Err(error) => {
                Err(Failure::new("internal", thalweg_types::Action::Stop, error.to_string()).with_unknown_effect())
            }
        }
    })
}

/// Begins to read the rows that a command will need when it is applied. Returns `None` if the command can be proposed
/// now.
fn begin_fetch(turn: &Turn<'_>, checked: &ClientCommand<'_>) -> Option<FetchingRows> {
    let fetcher = RowFetcher { readers: &turn.app.readers, account: turn.account, budget: turn.budget() };
    turn.writes.begin(fetcher, turn.app.db.blocking(), checked.bytes)
}

/// Queues a command with `bytes` bytes of data until the rows that it needs are read and all earlier writes of the
/// channel (a TCP connection or a QUIC stream) are proposed.
fn wait(
    turn: &mut Turn<'_>,
    fetching: FetchingRows,
    bytes: usize,
    propose: impl FnOnce() -> Result<PendingReply, Failure> + Send + 'static,
) -> Handled {
    let proposed = turn.writes.push(turn.account, fetching, bytes, Box::new(propose));
    Handled::Unstoppable(Box::pin(async move {
        // The queue is dropped only together with the channel, and then this future is dropped too.
        proposed.await.unwrap_or_else(|_| Err(failure::stopping()))?.await
    }))
}

/// A checked command of a client that waits until it can be proposed.
struct WaitingCommand {
    app: Arc<App>,
    account: Arc<Account>,
    trace: Option<Box<str>>,
    channel: u64,
    id: u32,
    level: Durability,
    command: Bytes,
}

impl WaitingCommand {
    fn of(turn: &Turn<'_>, request: &Request<'_>, level: Durability, command: &[u8]) -> Self {
        Self {
            app: Arc::clone(turn.app),
            account: Arc::clone(turn.account),
            trace: request.fields.trace.map(Box::from),
            channel: turn.number,
            id: request.id,
            level,
            command: request.share(command),
        }
    }

    /// Returns the memory in bytes of the waiting command, and of the keys of the rows that are read for it.
    fn bytes(&self) -> usize {
        2 * self.command.len()
    }

    fn propose(&self) -> Result<Proposed, Failure> {
        let checked = ClientCommand::check(&self.command).map_err(|refused| Failure::of(&refused))?;
        let name = RequestId { trace: self.trace.as_deref(), channel: self.channel, id: self.id };
        propose(&self.app, &self.account, name, self.level, &checked)
    }
}

/// A client's command that was proposed, with its reservation.
struct Proposed {
    pending: PendingCommand,
    /// Reservation for objects that the command creates or deletes; `None` if it needs none.
    share: Option<Share>,
}

/// Reservation in the server's limits for objects that a client's command creates or deletes. Held while the command is
/// pending.
enum Share {
    /// The command creates a keyspace with this name.
    Keyspace(String, Reservation),
    /// The command grants a lease that lives for this time.
    Lease(Duration, CreatePermit),
    /// The command revokes the lease with this id, so that the lease's reservation can be released.
    Revoked(LeaseId),
    /// The command creates a stream, for which this permission is held.
    Stream(CreatePermit),
    /// The command creates a consumer group, for which this permission is held.
    Group(CreatePermit),
    /// The command deletes keys by prefix, or a keyspace.
    Deletes(DeleteShare),
}

impl Share {
    /// Reserves the objects that a command creates or deletes, in the limits on objects of the client's address.
    /// Returns `None` for commands that create and delete none. Returns an error if the address may hold no more.
    fn reserve(app: &Arc<App>, account: &Arc<Account>, command: &Command<'_>) -> Result<Option<Self>, Failure> {
        let db = app.db.blocking();
        Ok(match command {
            Command::CreateKeyspace { name, .. } if db.find_keyspace(name).is_none() => {
                Some(Self::Keyspace((*name).to_owned(), app.may_create_keyspace(account)?))
            }
            Command::CreateStream { name, .. } if db.find_stream(name).is_none() => {
                Some(Self::Stream(app.may_create_stream(account)?))
            }
            Command::Time(TimeCommand::Grant { ttl, .. }) => Some(Self::Lease(*ttl, app.may_grant_lease(account)?)),
            Command::Time(TimeCommand::Revoke { id }) => Some(Self::Revoked(*id)),
            Command::Group(GroupCommand::Create { stream, name, .. }) => {
                match db.stream_by_id(*stream).find_group(name) {
                    Ok(None) => Some(Self::Group(app.may_create_group(account)?)),
                    _ => None,
                }
            }
            Command::DropKeyspace { keyspace } => app.may_delete(account, [(*keyspace, 0)])?.map(Self::Deletes),
            Command::Transaction(transaction) => {
                let operations = transaction.branches().into_iter().flatten().flatten();
                let prefixes = operations.filter_map(|operation| match operation {
                    Ok(Operation::DeletePrefix { keyspace, prefix }) => Some((keyspace, prefix.len())),
                    _ => None,
                });
                app.may_delete(account, prefixes)?.map(Self::Deletes)
            }
            _ => None,
        })
    }

    /// Keeps or releases the reservation, depending on the result of the command. The outcome in `result` is `None` if
    /// the command ended without one.
    fn settle(self, app: &App, result: Result<Option<&Outcome>, &WriteError>) {
        match (self, result) {
            (Self::Keyspace(name, held), Ok(Some(Outcome::Keyspace { created: true, .. }))) => {
                app.created_keyspace(&name, held);
            }
            (Self::Lease(ttl, permit), Ok(Some(Outcome::Lease { id, .. }))) => app.granted_lease(*id, ttl, permit),
            (Self::Stream(permit), Ok(Some(Outcome::Stream { id, created: true }))) => app.created_stream(*id, permit),
            (Self::Revoked(id), Ok(Some(Outcome::Committed { .. }))) => app.revoked_lease(id),
            (Self::Group(permit), Ok(Some(Outcome::Group(GroupOutcome::Created { id, created: true })))) => {
                app.created_group(*id, permit);
            }
            (Self::Deletes(share), Ok(Some(outcome))) => {
                share.settle(Ok(match outcome {
                    Outcome::Dropped { revision } => Some(*revision),
                    Outcome::Transacted(done) => done.wrote.then_some(done.revision),
                    _ => None,
                }));
            }
            (Self::Deletes(share), Err(error)) => share.settle(Err(error)),
            _ => {}
        }
    }
}

/// Returns the durability level at which a client's command is proposed: the level that the request states, or the
/// configured one, raised if the command needs a higher level. Returns a failure if the level is too low for a command
/// whose level is not raised.
fn level(app: &App, wanted: Level, checked: &ClientCommand<'_>) -> Result<Durability, Failure> {
    checked.level(wanted.0.unwrap_or(app.config.durability)).map_err(|refused| Failure::of(&refused))
}

/// Proposes a checked command of a client, for the request with this name. The channel commits its queued commands once
/// its task has handled the received frames.
fn propose(
    app: &Arc<App>,
    account: &Arc<Account>,
    name: RequestId<'_>,
    level: Durability,
    checked: &ClientCommand<'_>,
) -> Result<Proposed, Failure> {
    // Few commands change a share, so only these are decoded.
    let may_share = checked.at_none == AtNone::Raised || checked.deletes_prefixes;
    let share = if may_share { Share::reserve(app, account, &checked.command())? } else { None };
    let purpose = if checked.brings_data { Purpose::Data } else { Purpose::Reclaim };
    let origin = app.origin(account, || name.to_string());
    let pending = app.db.for_origin(&origin).propose_command(checked.bytes, purpose, level, Wake::Later);
    Ok(Proposed { pending, share })
}
