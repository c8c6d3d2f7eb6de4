//! Commits of proposals by the thread that holds the writer role (the right to write log entries): one entry, or
//! several with one fsync.
//!
//! Owns: the steps from proposals to answers (write, make durable, apply), and the handling of an entry that the log
//! rejects. Does not own: the role, and the choice of the proposals (`queue`).

use std::time::Duration;

use thalweg_log::{AppendError, Appended, Purpose, RecordKind};
use thalweg_state::machine::Entry;
use thalweg_types::{Durability, Index, Lsn, SpaceTime};

use super::{Role, Shared};
use crate::{
    error::ProposeError,
    pending::{Pending, payload_of, purpose_of},
    slot::{Answer, Committed},
};

/// Maximum size in bytes of the buffer for a log entry that is kept in memory between entries.
const MAX_KEPT_ENTRY_BYTES: usize = 1024 * 1024;

impl Shared {
    pub(super) fn commit_one(
        &self,
        role: &mut Role,
        framed: &[u8],
        level: Durability,
        purpose: Purpose,
    ) -> Result<Committed, ProposeError> {
        self.check_not_failed()?;
        let durability = self.commit_entry(role, framed, level, purpose)?;
        let outcome = role.outcomes.pop();
        debug_assert!(role.outcomes.is_empty() && outcome.is_some());
        Ok(Committed { durability, outcome })
    }

    /// Commits the proposals `taken` to the log, and returns one answer for each proposal, in order.
    pub(super) fn commit_many(&self, role: &mut Role, taken: &[Pending]) -> Vec<Answer> {
        if taken.is_empty() {
            return Vec::new();
        }
        if let Some(reason) = self.failure.get() {
            return taken.iter().map(|_| Err(ProposeError::State(reason.clone()))).collect();
        }
        if let [one] = taken {
            // The frame of a single command is the entry; nothing needs to be assembled.
            return vec![self.commit_one(role, one.command.bytes(), one.level, one.purpose)];
        }
        match self.commit_all(role, taken, purpose_of(taken)) {
            Ok(answers) => answers,
            // The log has rejected the whole entry and written nothing. On a full disk the log rejects new data, but
            // commands that free space must not fail because of it. Commands that are too large together may fit one by
            // one. So the commands are committed one by one.
            Err(ProposeError::Append(AppendError::DiskFull { .. } | AppendError::TooLarge { .. })) => taken
                .iter()
                .map(|pending| self.commit_one(role, pending.command.bytes(), pending.level, pending.purpose))
                .collect(),
            Err(error) => taken.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Commits several log entries with one fsync. Entry `n` ends before proposal `ends[n]`. All entries are written,
    /// then made durable, then applied one after the other. Appends to `steps` the number of steps (units of work) that
    /// each applied entry took.
    pub(super) fn commit_entries(
        &self,
        role: &mut Role,
        taken: &[Pending],
        ends: &[usize],
        steps: &mut Vec<u64>,
    ) -> Vec<Answer> {
        if let Some(reason) = self.failure.get() {
            return taken.iter().map(|_| Err(ProposeError::State(reason.clone()))).collect();
        }
        let level = taken.iter().map(|pending| pending.level).max().unwrap_or_default();
        // Reads must not pass the timestamp of an entry that is written but not applied yet. The clock is frozen even
        // without deadlines, because an earlier entry of the batch may set the first one.
        let (time, frozen) = self.clock.stamp_frozen();
        let (stages, mut waited) = (&self.counts.stages, Duration::ZERO);
        let timed = stages.begin_write(role.timed.take(), level, &self.clock);
        let (mut written, mut begin, mut answers) =
            (Vec::with_capacity(ends.len()), 0, Vec::with_capacity(taken.len()));
        for (number, &end) in ends.iter().enumerate() {
            let payload = payload_of(&taken[begin..end]);
            let purpose = purpose_of(&taken[begin..end]);
            let index = Index(role.next.0 + number as u64);
            // The fsync of the last entry also covers the entries before it.
            let own = if end == taken.len() { level } else { level.min(Durability::Os) };
            match self.append(RecordKind::Entry, self.term, index, time, &payload, own, purpose) {
                Ok(appended) => {
                    waited += appended.waited;
                    written.push((payload, appended));
                }
                Err(_) => break,
            }
            begin = end;
        }
        if let Some((_, last)) = written.last()
            && begin < taken.len()
        {
            let from = self.clock.monotonic();
            if let Err(error) = self.make_durable(last.next, level) {
                return taken.iter().map(|_| Err(error.clone())).collect();
            }
            waited += self.clock.monotonic().saturating_sub(from);
        }
        let timed = stages.end_write(timed, waited, &self.clock);
        for (payload, appended) in &written {
            let (index, before) = (role.next, self.machine.work());
            role.outcomes.clear();
            match self.apply_entry(role, (index, time), payload, appended) {
                Ok(()) => {
                    let durability = level.max(Durability::Os);
                    let committed = |outcome| Ok(Committed { durability, outcome: Some(outcome) });
                    answers.extend(role.outcomes.drain(..).map(committed));
                    steps.extend(before.and_then(|before| Ok(self.machine.work()? - before)));
                }
                Err(error) => {
                    answers.extend((answers.len()..taken.len()).map(|_| Err(error.clone())));
                    return answers;
                }
            }
        }
        stages.end_apply(timed, &self.clock);
        drop(frozen);
        // The log has rejected an entry and written none of its bytes. The remaining entries are committed one by one:
        // on a full disk, for example, commands that free space must not fail because the log rejects new data.
        let rest = ends.iter().filter(|end| **end > begin);
        let mut from = begin;
        for &end in rest {
            answers.extend(self.commit_many(role, &taken[from..end]));
            from = end;
        }
        answers
    }

    /// Waits until the log records below `next` have reached the durability level `level`.
    fn make_durable(&self, next: Lsn, level: Durability) -> Result<(), ProposeError> {
        if level.waits_for_sync() {
            self.log.sync_through(next)?;
        } else if level == Durability::Interval {
            self.log.request_sync();
        }
        Ok(())
    }

    fn commit_all(&self, role: &mut Role, taken: &[Pending], purpose: Purpose) -> Result<Vec<Answer>, ProposeError> {
        let level = taken.iter().map(|pending| pending.level).max().unwrap_or_default();
        let mut entry = std::mem::take(&mut role.entry);
        entry.clear();
        taken.iter().for_each(|pending| entry.extend_from_slice(pending.command.bytes()));
        let committed = self.commit_entry(role, &entry, level, purpose);
        if entry.capacity() <= MAX_KEPT_ENTRY_BYTES {
            role.entry = entry;
        }
        let durability = committed?;
        debug_assert_eq!(role.outcomes.len(), taken.len());
        let answer = |outcome| Ok(Committed { durability, outcome: Some(outcome) });
        Ok(role.outcomes.drain(..).map(answer).collect())
    }

    /// Writes one log entry, waits until it has reached its durability level, and applies it to the state. Stores one
    /// outcome for each command in `role`.
    pub(super) fn commit_entry(
        &self,
        role: &mut Role,
        payload: &[u8],
        level: Durability,
        purpose: Purpose,
    ) -> Result<Durability, ProposeError> {
        role.outcomes.clear();
        let index = role.next;
        let (time, _frozen) = self.stamp();
        let stages = &self.counts.stages;
        let timed = stages.begin_write(role.timed.take(), level, &self.clock);
        let appended = self.append(RecordKind::Entry, self.term, index, time, payload, level, purpose)?;
        let timed = stages.end_write(timed, appended.waited, &self.clock);
        self.apply_entry(role, (index, time), payload, &appended)?;
        stages.end_apply(timed, &self.clock);
        Ok(level.max(Durability::Os))
    }

    /// Applies a log entry that has reached its durability level. Stores one outcome for each command in `role`.
    // Without `always` the compiler does not inline this function into its two callers, at a cost of about 40
    // instructions for each put.
    #[inline(always)]
    fn apply_entry(
        &self,
        role: &mut Role,
        (index, time): (Index, SpaceTime),
        payload: &[u8],
        appended: &Appended,
    ) -> Result<(), ProposeError> {
        let entry = Entry { term: self.term, index, time, payload, at: appended.payload_at, next_lsn: appended.next };
        let applied = self.machine.apply(&entry, &mut role.outcomes);
        applied.map_err(|error| self.fail(&error.to_string()))?;
        role.next = index.next();
        self.counts.count(role.outcomes.len() as u64);
        if let Some(observer) = self.observer.get() {
            observer.applied(&role.outcomes);
        }
        Ok(())
    }
}
