//! Writes: commands as bytes, checked and proposed as they are.

use thalweg_engine::{CommandUnderWay, Purpose, Wake};
use thalweg_wire::{ClientCommand, Level, Write};

use super::{
    failure::Failure,
    request::{Handled, Turn},
};
use crate::app::App;

/// `write`
pub fn write(turn: &Turn<'_>, write: &Write<'_>) -> Result<Handled, Failure> {
    propose(turn.app, write.level, write.command.0).map(Handled::Write)
}

/// Proposes a client's command. The channel has what it queued committed at the end of its turn.
pub fn propose(app: &App, level: Level, command: &[u8]) -> Result<CommandUnderWay, Failure> {
    let checked = ClientCommand::check(command).map_err(|refused| Failure::of(&refused))?;
    let wanted = level.0.unwrap_or(app.config.durability);
    let level = checked.level(wanted).map_err(|refused| Failure::of(&refused))?;
    let purpose = if checked.brings_data { Purpose::Data } else { Purpose::Reclaim };
    Ok(app.db.propose_command(checked.bytes, purpose, level, Wake::Later))
}
