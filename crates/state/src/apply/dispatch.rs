//! Applying log records: the commands of an entry run in order, their changes become one backend batch, and readers
//! see it afterwards.
//!
//! Owns: the order of these steps, and the dispatch of commands to the modules that execute them. Does not own: the
//! effect of a command.

use std::sync::atomic::Ordering;

use thalweg_types::{
    Index, LogPosition, Lsn, SpaceTime, Term, budget,
    command::{Command, Commands, FIRST_VERSION, Outcome, TimeCommand},
};

use crate::{
    apply::{commit, moves, transaction},
    clears,
    entry::{Entry, LocalOutcome, Position, check_addressable},
    error::MachineError,
    expiry::{expire, leases},
    groups,
    history::prune,
    keyspaces,
    machine::{applying::Applying, digest_view, state_machine::Machine, upgrade, verdicts},
    redis,
    refused::Refused,
    streams,
};

impl Machine {
    /// Applies one entry, and appends one outcome per command to `outcomes`. Performs all reads, as if a client of this
    /// node waited for the outcomes. If the framing of the payload is broken, one [`Outcome::Malformed`] stands for all
    /// bytes after the break.
    ///
    /// # Errors
    /// [`MachineError::AlreadyApplied`] and [`MachineError::Unaddressable`] change nothing; every other error stops the
    /// machine. On any error `outcomes` is unchanged.
    pub fn apply(&self, entry: &Entry<'_>, outcomes: &mut Vec<Outcome>) -> Result<(), MachineError> {
        self.apply_for(entry, true, outcomes)
    }

    /// Applies one entry as [`apply`](Self::apply) does. `is_awaited` is false if no client of this node waits for the
    /// outcomes. Then the reads of Redis batches are not performed, and their replies are null; rows and running hash
    /// do not depend on this.
    ///
    /// # Errors
    /// Those of [`apply`](Self::apply).
    pub fn apply_for(
        &self,
        entry: &Entry<'_>,
        is_awaited: bool,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), MachineError> {
        check_addressable(entry.payload, entry.at)?;
        let position = Position { next_lsn: entry.next_lsn, entry: Some((entry.term, entry.index, entry.time)) };
        let before = outcomes.len();
        let payload = Some((entry.payload, entry.at));
        let result = self.with_applier(&position, payload, |applying| {
            applying.is_awaited = is_awaited;
            apply_commands(applying, entry, outcomes)
        });
        if result.is_err() {
            outcomes.truncate(before);
        }
        result
    }

    /// Applies a move record, which copies bytes of this node's log to its end. The record's payload begins at `at`.
    /// The state's applied term, index and time do not change.
    pub fn apply_move(&self, payload: &[u8], at: LogPosition, next_lsn: Lsn) -> Result<LocalOutcome, MachineError> {
        check_addressable(payload, at)?;
        self.with_applier(&Position { next_lsn, entry: None }, None, |applying| moves::apply(applying, payload, at))
    }

    /// Skips a log record that does not change the state's data: advances the applied LSN. For a blank entry (one
    /// without commands), also advances the applied term, index and time.
    pub fn skip(&self, next_lsn: Lsn, entry: Option<(Term, Index, SpaceTime)>) -> Result<(), MachineError> {
        self.with_applier(&Position { next_lsn, entry }, None, |_| Ok(()))
    }

    /// Calls `change`, which makes the changes of one log record, and applies these changes as one batch.
    pub(crate) fn with_applier<T>(
        &self,
        position: &Position,
        payload: Option<(&[u8], LogPosition)>,
        change: impl FnOnce(&mut Applying<'_>) -> Result<T, MachineError>,
    ) -> Result<T, MachineError> {
        let mut applier = self.applier.lock().map_err(|_| MachineError::Stopped)?;
        applier.check(position)?;
        // Reset only on success: after an error, or a panic that did not poison the lock, the machine stays stopped.
        applier.stopped = true;
        let before = budget::file_reads();
        let mut applying = Applying::begin(&mut applier, self, position, payload);
        let result = change(&mut applying)?;
        applying.finish()?;
        applier.stopped = false;
        let file_reads = budget::file_reads().wrapping_sub(before);
        if file_reads > 0 {
            self.file_reads.fetch_add(file_reads, Ordering::Relaxed);
        }
        Ok(result)
    }
}

/// Runs the commands of an entry in order, and appends their outcomes.
pub(crate) fn apply_commands(
    applying: &mut Applying<'_>,
    entry: &Entry<'_>,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), MachineError> {
    applying.applier.verdict.clear();
    applying.applier.payload_at = entry.at.offset;
    let (outcomes_before, steps_before) = (outcomes.len(), applying.applier.staged.meter().used());
    let mut commands = Commands::new(entry.payload);
    for number in 0.. {
        let Some(framed) = commands.next() else { break };
        let outcome = match framed {
            Ok((command_at, bytes)) => {
                if commands.version() > FIRST_VERSION
                    && let Some(refusal) = upgrade::gate(applying, commands.version())?
                {
                    applying.finish_command(number, bytes, applying.applied.revision);
                    outcomes.push(refusal);
                    continue;
                }
                let at = LogPosition { offset: entry.at.offset + command_at as u32, ..entry.at };
                if let Some(revision) = commit::apply_blind_put(applying, bytes, at) {
                    outcomes.push(Outcome::Committed { revision, appends: Vec::new() });
                    continue;
                }
                let before = applying.applied.revision;
                let outcome = run(applying, bytes, at)?;
                applying.applier.running_hash.exclude(outcomes.len() - outcomes_before, &mut applying.applier.reads);
                applying.finish_command(number, bytes, before);
                outcome
            }
            Err(malformed) => Outcome::Malformed(malformed),
        };
        outcomes.push(outcome);
    }
    applying.applier.steps += applying.applier.staged.meter().used() - steps_before;
    applying.applier.running_hash.add_outcomes(&mut outcomes[outcomes_before..]);
    verdicts::write_rows(applying, entry);
    Ok(())
}

/// Runs one command of an entry. The command's bytes begin at position `at` in the log.
#[inline]
fn run(applying: &mut Applying<'_>, bytes: &[u8], at: LogPosition) -> Result<Outcome, MachineError> {
    applying.applier.staged.begin_command();
    let command = Command::decode(bytes);
    // Other commands are bounded by limits of their own, or end after a bounded number of steps.
    if matches!(command, Ok(Command::Commit(_) | Command::Transaction(_) | Command::Redis(_) | Command::RedisJoint(_)))
    {
        applying.applier.staged.meter().begin_budget();
    }
    let refused = match command {
        Ok(Command::Commit(commit)) => commit::apply(applying, &commit, at),
        Ok(Command::Transaction(transaction)) => transaction::apply(applying, &transaction, at),
        Ok(Command::DropKeyspace { keyspace }) => clears::apply::drop_keyspace(applying, keyspace),
        Ok(Command::Sweep { max }) => clears::apply::sweep(applying, max),
        Ok(Command::CreateKeyspace { name, config }) => keyspaces::admin::create(applying, name, config),
        Ok(Command::ConfigureKeyspace { keyspace, config }) => keyspaces::admin::configure(applying, keyspace, config),
        Ok(Command::CreateStream { name, config }) => streams::admin::create_stream(applying, name, config),
        Ok(Command::ConfigureStream { stream, config }) => streams::admin::configure_stream(applying, stream, config),
        Ok(Command::DeleteStream { stream }) => streams::admin::delete_stream(applying, stream),
        Ok(Command::TrimStream { stream, before }) => streams::admin::trim_stream(applying, stream, before),
        Ok(Command::EnforceRetention { stream, before, config }) => {
            streams::admin::enforce_retention(applying, stream, before, &config)
        }
        Ok(Command::ForgetProducers { stream, max }) => streams::admin::forget_producers(applying, stream, max),
        Ok(Command::PruneVersions { from, max }) => prune::prune(applying, from, max),
        Ok(Command::Digest { id }) => Ok(digest_view::ask(applying, id)),
        Ok(Command::RaiseVersion { to }) => upgrade::raise(applying, to).map_err(Refused::Failed),
        Ok(Command::OpenProducer { stream, id }) => streams::producing::open(applying, stream, id),
        Ok(Command::Group(command)) => groups::commands::apply(applying, command),
        Ok(Command::Redis(batch) | Command::RedisJoint(batch)) => redis::apply::apply(applying, batch, at),
        Ok(Command::Time(command)) => run_about_time(applying, &command),
        Err(malformed) => Ok(Outcome::Malformed(malformed)),
    };
    applying.applier.staged.meter().end_budget();
    match refused {
        Ok(outcome) | Err(Refused::Outcome(outcome)) => Ok(outcome),
        Err(Refused::Failed(error)) => Err(error),
    }
}

fn run_about_time(applying: &mut Applying<'_>, command: &TimeCommand<'_>) -> Result<Outcome, Refused> {
    match command {
        TimeCommand::Grant { id, ttl } => leases::grant(applying, *id, *ttl),
        TimeCommand::Keep { id } => leases::keep(applying, *id),
        TimeCommand::Revoke { id } => leases::revoke(applying, *id),
        TimeCommand::Expire { max } => expire::expire(applying, *max),
        TimeCommand::Forget { rows } => expire::forget(applying, rows),
    }
}
