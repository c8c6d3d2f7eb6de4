//! Handlers of writes: encoded commands, checked and proposed without being decoded.

use std::sync::Arc;

use thalweg_engine::{PendingCommand, Purpose, Wake};
use thalweg_types::{
    Durability,
    command::{Command, Outcome},
};
use thalweg_wire::{ClientCommand, Level, Write, WriteAndPublish, command::AtNone};

use super::{
    failure::Failure,
    request::Request,
    subject_requests,
    turn::{Handled, Reply, Turn},
};

/// Handles a `write` request: proposes the client's command and replies with its outcome.
pub(crate) fn write(turn: &Turn<'_>, write: &Write<'_>) -> Result<Handled, Failure> {
    propose(turn, write.level, write.command.0).map(Handled::Write)
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
        return Err(Failure::invalid("outcome_unknown", message));
    }
    let batches = subject_requests::broker_batches(turn.subjects, request, wanted.batches.iter())?;
    let write = propose(turn, wanted.level, wanted.command.0)?;
    let app = Arc::clone(turn.app);
    // The batches are published even if the connection is lost, so the task does not belong to the channel.
    let published = tokio::spawn(async move {
        let carried = write.await?;
        // The first attempt of a duplicate may have published already, and a commit is published at most once.
        if !matches!(carried.1, Some(Outcome::Duplicate { .. })) {
            app.views.publish_committed(&batches);
        }
        Ok(carried)
    });
    Ok(Handled::Unstoppable(Box::pin(async move {
        match published.await {
            Ok(carried) => carried.map(Reply::Outcome),
            Err(error) => {
                Err(Failure::new("internal", thalweg_types::Action::Stop, error.to_string()).with_unknown_effect())
            }
        }
    })))
}

/// Checks a client's command and proposes it. The channel commits its queued commands at the end of its turn.
fn propose(turn: &Turn<'_>, level: Level, command: &[u8]) -> Result<PendingCommand, Failure> {
    let app = turn.app;
    let checked = ClientCommand::check(command).map_err(|refused| Failure::of(&refused))?;
    let wanted = level.0.unwrap_or(app.config.durability);
    let level = checked.level(wanted).map_err(|refused| Failure::of(&refused))?;
    // Few commands are of this kind, so only these are decoded.
    if checked.at_none == AtNone::Raised
        && let Command::CreateKeyspace { name, .. } = checked.command()
        && app.db.blocking().find_keyspace(name).is_none()
    {
        let held = app.may_create_keyspace(turn.account)?;
        app.created_keyspace(name, held);
    }
    let purpose = if checked.brings_data { Purpose::Data } else { Purpose::Reclaim };
    Ok(app.db.for_client(turn.account.client()).propose_command(checked.bytes, purpose, level, Wake::Later))
}
