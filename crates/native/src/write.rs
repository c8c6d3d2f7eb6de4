//! Handlers of writes: encoded commands, checked and proposed without being decoded.

use std::{sync::Arc, time::Duration};

use thalweg_engine::{PendingCommand, Purpose, TransactionAck, Wake};
use thalweg_serving::{admission::Reservation, app::App};
use thalweg_types::{
    Durability, LeaseId,
    budget::{Budget, BudgetSpent},
    command::{
        Command, Outcome, TimeCommand, Transaction,
        groups::{GroupCommand, GroupOutcome},
    },
    limits::{MAX_COMMAND_STEPS, MAX_TRANSACTION_RESULT_BYTES},
};
use thalweg_wire::{ClientCommand, Level, Write, WriteAndPublish, command::AtNone, put_outcome};

use super::{
    failure::Failure,
    reads::reply_off_thread,
    replies::Replies,
    request::{Request, RequestId},
    subject_requests,
    turn::{Handled, Reply, Turn},
};

/// Handles a `write` request: proposes the client's command and replies with its outcome.
pub(crate) fn write(turn: &mut Turn<'_>, request: &Request<'_>, write: &Write<'_>) -> Result<Handled, Failure> {
    let checked = ClientCommand::check(write.command.0).map_err(|refused| Failure::of(&refused))?;
    match checked.reading_transaction() {
        Some(transaction) => {
            // At level `none` the transaction is rejected, like one that writes.
            let wanted = write.level.0.unwrap_or(turn.app.config.durability);
            checked.level(wanted).map_err(|refused| Failure::of(&refused))?;
            read(turn, request, write.command.0, &transaction)
        }
        None => Ok(match propose(turn, request, write.level, &checked)? {
            Proposed { pending, share: None } => Handled::Write(pending),
            Proposed { pending, share: Some(share) } => {
                let app = Arc::clone(turn.app);
                Handled::Unstoppable(Box::pin(async move {
                    let outcome = pending.await?;
                    share.settle(&app, outcome.1.as_ref());
                    Ok(Reply::Outcome(outcome))
                }))
            }
        }),
    }
}

/// Returns true if the payload of a `write` frame, which begins with this number of bytes of optional fields, has a
/// transaction that only reads.
pub(crate) fn only_reads(payload: &[u8], fields: u16) -> bool {
    let command = payload.get(usize::from(fields) + 1..).unwrap_or_default();
    Transaction::is_one(command)
        && ClientCommand::check(command).is_ok_and(|checked| checked.reading_transaction().is_some())
}

/// Answers a transaction that only reads, without the log.
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
/// command was carried out at its durability level. The batches are published at most once.
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
    let Proposed { pending, share } = propose(turn, request, wanted.level, &checked)?;
    let app = Arc::clone(turn.app);
    // The batches are published even if the connection is lost, so the task does not belong to the channel.
    let published = tokio::spawn(async move {
        let outcome = pending.await?;
        if let Some(share) = share {
            share.settle(&app, outcome.1.as_ref());
        }
        // The first attempt of a duplicate may have published already, and a commit is published at most once.
        if !matches!(outcome.1, Some(Outcome::Duplicate { .. })) {
            app.views.publish_committed(&batches);
        }
        Ok(outcome)
    });
    Ok(Handled::Unstoppable(Box::pin(async move {
        match published.await {
            Ok(outcome) => outcome.map(Reply::Outcome),
            Err(error) => {
                Err(Failure::new("internal", thalweg_types::Action::Stop, error.to_string()).with_unknown_effect())
            }
        }
    })))
}

/// A command that was proposed.
struct Proposed {
    pending: PendingCommand,
    /// Present if the command may change what the client holds of a bound of the database.
    share: Option<Share>,
}

/// Share of a client in a bound of the database, while a command that changes it is pending.
enum Share {
    /// The command grants a lease for this time.
    Lease(Duration, Reservation),
    /// The command revokes a lease.
    Revoked(LeaseId),
    /// The command creates a consumer group.
    Group(Reservation),
}

impl Share {
    /// Finds the share that a command may change, and reserves what it needs. Returns an error if the client already
    /// holds its share.
    fn reserve(turn: &Turn<'_>, command: &Command<'_>) -> Result<Option<Self>, Failure> {
        let (app, account, db) = (turn.app, turn.account, turn.app.db.blocking());
        Ok(match command {
            Command::CreateKeyspace { name, .. } if db.find_keyspace(name).is_none() => {
                let held = app.may_create_keyspace(account)?;
                app.created_keyspace(name, held);
                None
            }
            Command::Time(TimeCommand::Grant { ttl, .. }) => Some(Self::Lease(*ttl, app.may_grant_lease(account)?)),
            Command::Time(TimeCommand::Revoke { id }) => Some(Self::Revoked(*id)),
            Command::Group(GroupCommand::Create { stream, name, .. }) => {
                match db.stream_by_id(*stream).find_group(name) {
                    Ok(None) => Some(Self::Group(app.may_create_group(account)?)),
                    _ => None,
                }
            }
            _ => None,
        })
    }

    /// Keeps or releases the reservation, as the outcome of the command says.
    fn settle(self, app: &App, outcome: Option<&Outcome>) {
        match (self, outcome) {
            (Self::Lease(ttl, held), Some(Outcome::Lease { id, .. })) => app.granted_lease(*id, ttl, held),
            (Self::Revoked(id), Some(Outcome::Committed { .. })) => app.revoked_lease(id),
            (Self::Group(held), Some(Outcome::Group(GroupOutcome::Created { id, created: true }))) => {
                app.created_group(*id, held);
            }
            _ => {}
        }
    }
}

/// Proposes a client's command, which was checked. The channel commits its queued commands at the end of its turn.
fn propose(
    turn: &Turn<'_>,
    request: &Request<'_>,
    level: Level,
    checked: &ClientCommand<'_>,
) -> Result<Proposed, Failure> {
    let app = turn.app;
    let wanted = level.0.unwrap_or(app.config.durability);
    let level = checked.level(wanted).map_err(|refused| Failure::of(&refused))?;
    // Few commands are of this kind, so only these are decoded.
    let share = if checked.at_none == AtNone::Raised { Share::reserve(turn, &checked.command())? } else { None };
    let purpose = if checked.brings_data { Purpose::Data } else { Purpose::Reclaim };
    let name = || RequestId { trace: request.fields.trace, channel: turn.number, id: request.id }.to_string();
    let origin = app.origin(turn.account, name);
    let pending = app.db.for_origin(&origin).propose_command(checked.bytes, purpose, level, Wake::Later);
    Ok(Proposed { pending, share })
}
