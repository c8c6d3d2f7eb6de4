//! Maintenance in the background: expiry, retention, removal of index entries, dead letters of consumer groups,
//! flushing the state, moving live bytes, freeing log segments.
//!
//! Owns: the thread and the order of the steps in a round. The layers below report the work that is due. Changes of
//! replicated rows are proposed as commands, like those of clients, so replicas and replay agree on them. In a cluster
//! only the leader proposes them, and only in the term in which it has looked for the work. The next leader has another
//! clock, and looks for the work again. Changes that concern only this node (positions of bytes, index entries, the
//! readable part of the log) are records of its own log.
//!
//! A round is a future, so that a simulation can run it without a thread. Elsewhere a thread blocks for the future. On
//! a node alone the future is ready at once: each command is committed on the thread that runs the round.
//!
//! In a cluster, reads hide expired keys by the time of the last applied entry. The leader therefore looks at the next
//! deadline more often than once in a round, and proposes an entry once the deadline has passed.
//!
//! A log segment is freed when nothing needs it: the state has persisted past it, no watch, backup or follower needs it
//! as history, and a walk (reading its records) found no pointer into it in the state (see [`crate::mover`]).

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError, Weak, atomic::Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use thalweg_log::{Purpose, StateSpace};
use thalweg_state::{expiry::StaleCursor, machine::LocalOutcome};
use thalweg_store::BackendHealth;
use thalweg_types::{
    Durability, KeyspaceId, Lsn, StreamId, Term,
    command::{
        CommandError, HistoryFloor, MoveTarget, Outcome, encode_enforce_retention, encode_expire,
        encode_forget_producers, encode_forget_rows, encode_prune_versions, encode_sweep, groups::encode_reclaim_group,
    },
    limits::{MAX_STALE_BYTES, MAX_STALE_ROWS, RECLAIMED_PER_COMMAND},
};

use crate::{
    blocking::block_on,
    compactor::Compactor,
    error::{WriteError, refusal},
    inner::Inner,
    maintenance_counts::Maintenance,
    mover::Mover,
    quiet::Quiet,
};

/// Maximum number of streams whose retention one maintenance round checks.
const RETENTION_PER_ROUND: usize = 50_000;
/// Maximum number of expiry commands in one maintenance round.
const EXPIRES_PER_ROUND: u32 = 100;
/// Maximum number of index rows of deadlines and leases that one maintenance round checks for staleness, which takes a
/// few milliseconds.
const STALE_ROWS_PER_ROUND: u32 = 1000;
/// Maximum number of log records in one maintenance round that delete index entries of one stream.
const RECLAIMS_PER_ROUND: u32 = 100;
/// Maximum number of log records in one maintenance round that delete index entries of all streams together; other
/// streams wait for later rounds. This bounds a round to about 0.1 s after a million streams were trimmed or deleted.
const ALL_RECLAIMS_PER_ROUND: u32 = 20_000;

/// Maximum number of sweep commands (which remove hidden rows of large deletes) in one maintenance round. Together they
/// remove at most 100,000 rows per second.
const SWEEPS_PER_ROUND: u32 = 100;
const _: () = assert!(STALE_ROWS_PER_ROUND as usize <= MAX_STALE_ROWS);

/// Maximum number of prune commands, which remove former values (versions) of keys, in one maintenance round. Together
/// they remove at most 100,000 versions per second.
const PRUNES_PER_ROUND: u32 = 100;

/// Number of rounds (about half an hour) after which maintenance notes that the directory is in use. Otherwise, if a
/// node is killed after days without a write, its next open would assume that it was off for days.
const ROUNDS_PER_NOTE: u32 = 1800;
/// Number of maintenance rounds on a full disk between two flushes of the state, unless a flush frees a log segment. A
/// flush writes a small table, but only after it does the backend return the space of deleted data.
const FULL_ROUNDS_PER_FLUSH: u32 = 10;
/// Interval in which the leader of a cluster looks for passed deadlines. Members can show a key after its deadline, for
/// at most this interval plus the time of a commit. Each check reads one row.
const DEADLINE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Number of maintenance rounds after which a view of the state that a digest command has kept is dropped, if no caller
/// has taken it to compute a digest.
const DIGEST_VIEW_ROUNDS: u32 = 10;
/// Number of rounds after which a member computes the digest of a kept view of the state that no local caller has
/// taken.
const MEMBER_DIGEST_ROUNDS: u32 = 1;

/// State of maintenance that is kept between rounds.
#[derive(Debug, Default)]
struct Rounds {
    mover: Mover,
    compactor: Compactor,
    /// Last stream whose retention was checked. The next round continues after it; `None` begins with the first stream.
    swept: Option<StreamId>,
    /// Last stream whose index entries were removed. The next round continues after it; `None` begins with the first.
    reclaimed: Option<StreamId>,
    /// Last keyspace whose versions (former values) were pruned, after which the next round continues; `None` for none.
    pruned: Option<KeyspaceId>,
    /// Position of the search for stale index rows of deadlines and leases.
    stale: StaleCursor,
    /// LSN after the log's last record, and the time since which this LSN has not changed.
    quiet: Quiet,
    /// Id of the digest command whose view of the state is kept, and the number of rounds that have found this view.
    digest: Option<(u64, u32)>,
    /// Number of maintenance rounds so far.
    count: u32,
    /// Number of consecutive maintenance rounds that have found the disk full.
    full: u32,
}

/// First error of a maintenance round; `None` if no step has failed.
#[derive(Debug, Default)]
struct FirstError(Option<WriteError>);

impl FirstError {
    /// Returns the result of a maintenance step. If the step failed, stores the error unless there is an earlier one,
    /// and returns the default result. A step that ends because this node no longer leads has not failed: the next
    /// leader performs it.
    fn default_on_error<T: Default>(&mut self, step: Result<T, WriteError>) -> T {
        step.unwrap_or_else(|error| {
            if !matches!(error, WriteError::NotLeader { .. } | WriteError::NoLeader) {
                self.0.get_or_insert(error);
            }
            T::default()
        })
    }
}

impl Inner {
    /// Runs one round of maintenance. A failed step does not end the round: otherwise a step that fails in every round
    /// would keep log space from being freed. Returns the first error.
    async fn maintain(self: &Arc<Self>, rounds: &mut Rounds) -> Result<Maintenance, WriteError> {
        let mut first = FirstError::default();
        let mut done = Maintenance::default();
        first.default_on_error(self.note_joined());
        if let Some(term) = self.led_term() {
            self.change_rows(term, rounds, &mut done, &mut first).await;
        }
        done.reclaimed_entries = first.default_on_error(self.reclaim(&mut rounds.reclaimed));
        first.default_on_error(self.use_old_digest_view(&mut rounds.digest));
        first.default_on_error(rounds.compactor.round(self, &mut done));
        // A full disk may reject the flush. The next steps free space, so they run even if the flush fails.
        first.default_on_error(self.flush_and_release(rounds.mover.waits_for_state(), &mut rounds.full));
        first.default_on_error(self.rest_if_quiet(&mut rounds.quiet));
        first.default_on_error(rounds.mover.round(self, &mut done));
        first.default_on_error(self.raise_history_floor());
        rounds.count = rounds.count.wrapping_add(1);
        if rounds.count.is_multiple_of(ROUNDS_PER_NOTE) {
            self.note_last_use();
        }
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).add(&done);
        first.0.map_or(Ok(done), Err)
    }

    /// Returns the term in which this node leads; `None` on a follower.
    pub(crate) fn led_term(&self) -> Option<Term> {
        self.open.replica.leadership().led_term()
    }

    /// Proposes the changes of replicated rows that are due. The caller has determined `term`, in which this node
    /// leads, before this call looks for the changes.
    async fn change_rows(&self, term: Term, rounds: &mut Rounds, done: &mut Maintenance, first: &mut FirstError) {
        done.expired_keys = first.default_on_error(self.expire(term).await);
        done.stale_rows = first.default_on_error(self.forget_stale(term, &mut rounds.stale).await);
        done.trimmed_streams = first.default_on_error(self.enforce_retention(term, &mut rounds.swept).await);
        first.default_on_error(self.forget_producers(term).await);
        first.default_on_error(self.reclaim_groups(term).await);
        done.swept_rows = first.default_on_error(self.sweep(term).await);
        done.pruned_versions = first.default_on_error(self.prune_versions(term, &mut rounds.pruned).await);
        first.default_on_error(self.move_dead_letters(term, &mut done.dead_letters).await);
    }

    /// Removes expired keys and leases, which reads already hide, and frees their bytes. The time of the removal's log
    /// entry is after their deadlines. When the node is opened again, its clock continues from the time of the last
    /// entry, so expired keys do not reappear.
    async fn expire(&self, term: Term) -> Result<u64, WriteError> {
        if !self.is_expiry_due()? {
            return Ok(0);
        }
        let mut expired = 0;
        for _ in 0..EXPIRES_PER_ROUND {
            match self.propose_expiry(term).await? {
                Some(Outcome::Expired { keys, more, .. }) => {
                    expired += u64::from(keys);
                    if !more {
                        break;
                    }
                }
                _ => break,
            }
        }
        Ok(expired)
    }

    /// If a deadline has passed, appends a log entry whose time is after all passed deadlines. After a restart, the
    /// database's clock continues from the time of the last entry, so it cannot go back before these deadlines.
    ///
    /// A node alone calls this before it is closed. The leader of a cluster calls it regularly; a follower never does.
    pub(crate) async fn note_passed_deadlines(&self, term: Term) -> Result<(), WriteError> {
        if self.is_expiry_due()? {
            self.propose_expiry(term).await?;
        }
        Ok(())
    }

    /// Returns true if this node leads a cluster that has keys with deadlines. It then proposes a log entry after each
    /// deadline, because reads use the time of the last applied entry.
    fn proposes_time(&self) -> bool {
        let replica = &self.open.replica;
        replica.member().is_some() && replica.leads() && self.open.machine.has_deadlines()
    }

    /// Proposes a log entry with a time after the passed deadlines, if this node leads a cluster. Once the entry is
    /// applied, reads of all members hide the expired keys.
    pub(crate) async fn propose_time(&self) -> Result<(), WriteError> {
        match self.led_term().filter(|_| self.proposes_time()) {
            Some(term) => self.note_passed_deadlines(term).await,
            None => Ok(()),
        }
    }

    /// Writes the database's present time (space time) to the file that shows when the directory was last in use.
    pub(crate) fn note_last_use(&self) {
        // Reads of a member only use times of log entries.
        let time = match self.open.replica.member() {
            Some(_) => self.open.machine.applied().time,
            None => self.open.replica.now(),
        };
        // An error is ignored: the file only matters at the next open, and other writes report a failed disk.
        let _ = self.open.clock_file.save(&self.open.disk, time);
    }

    fn is_expiry_due(&self) -> Result<bool, WriteError> {
        Ok(self.open.machine.expiry_due(self.open.replica.now())?)
    }

    async fn propose_expiry(&self, term: Term) -> Result<Option<Outcome>, WriteError> {
        self.propose_removal(term, |out| encode_expire(out, RECLAIMED_PER_COMMAND)).await
    }

    /// Searches for outdated index rows of deadlines and leases, and deletes them. Such rows are left by puts that do
    /// not read the value they replace. Without this search, rows with a distant deadline would accumulate.
    async fn forget_stale(&self, term: Term, cursor: &mut StaleCursor) -> Result<u64, WriteError> {
        let rows = self.open.machine.stale_rows(cursor, STALE_ROWS_PER_ROUND)?;
        let room = MAX_STALE_BYTES.min(self.options.segment_bytes as usize / 2);
        let mut left = &rows[..];
        while !left.is_empty() {
            let (some, rest) = left.split_at(fitting(left, room));
            self.propose_removal(term, |out| encode_forget_rows(out, some.iter().map(Vec::as_slice))).await?;
            left = rest;
        }
        Ok(rows.len() as u64)
    }

    /// Trims streams as their retention requires. Checks a limited number of streams per round, and continues with the
    /// next stream in the next round. Each of `n` streams with a retention is checked every `n / RETENTION_PER_ROUND`
    /// rounds, and at most once per round.
    async fn enforce_retention(&self, term: Term, swept: &mut Option<StreamId>) -> Result<u64, WriteError> {
        let now = self.open.replica.now();
        let (due, last) = self.open.machine.retention_due_after(*swept, RETENTION_PER_ROUND, now)?;
        *swept = last;
        for trim in &due {
            let encode = |out: &mut Vec<u8>| encode_enforce_retention(out, trim.stream, trim.before, &trim.config);
            self.propose_removal(term, encode).await?;
        }
        Ok(due.len() as u64)
    }

    /// Removes index entries of trimmed and deleted batches, one stream after the other. The next round continues
    /// where this one ends, so that every stream gets its turn.
    fn reclaim(&self, last: &mut Option<StreamId>) -> Result<u64, WriteError> {
        let (mut reclaimed, mut commands) = (0, ALL_RECLAIMS_PER_ROUND);
        let (machine, most) = (&self.open.machine, commands as usize);
        let mut due = machine.reclaim_due_after(*last, most);
        let from_front = machine.reclaim_due_after(None, most - due.len()).into_iter();
        due.extend(from_front.take_while(|stream| last.is_some_and(|last| *stream <= last)));
        for stream in due {
            if commands == 0 {
                break;
            }
            *last = Some(stream);
            let of_stream = RECLAIMS_PER_ROUND.min(commands);
            for _ in 0..of_stream {
                commands -= 1;
                let reclaim = MoveTarget::Reclaimed { stream, max: RECLAIMED_PER_COMMAND };
                let LocalOutcome::SegmentForgotten { rows, more } =
                    self.open.replica.relocate(&reclaim.encode_alone())?
                else {
                    break;
                };
                reclaimed += u64::from(rows);
                if !more {
                    break;
                }
            }
        }
        Ok(reclaimed)
    }

    /// Removes the rows of producers of streams that were deleted.
    async fn forget_producers(&self, term: Term) -> Result<(), WriteError> {
        for stream in self.open.machine.former_producers_due(RECLAIMS_PER_ROUND as usize) {
            self.remove_all(term, |out| encode_forget_producers(out, stream, RECLAIMED_PER_COMMAND)).await?;
        }
        Ok(())
    }

    /// Removes the rows of deleted consumer groups, and rows of groups about records that were trimmed from their
    /// streams.
    async fn reclaim_groups(&self, term: Term) -> Result<(), WriteError> {
        for group in self.open.machine.groups_to_reclaim(RECLAIMS_PER_ROUND as usize)? {
            self.remove_all(term, |out| encode_reclaim_group(out, group, RECLAIMED_PER_COMMAND)).await?;
        }
        Ok(())
    }

    /// Proposes a command that removes data. Returns its outcome, or `None` if it was rejected.
    async fn propose_removal(
        &self,
        term: Term,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Option<Outcome>, WriteError> {
        let encode = |out: &mut Vec<u8>| {
            encode(out);
            Ok::<_, CommandError>(())
        };
        let committed = self.propose_work(term, Durability::Os, Purpose::Reclaim, encode).await?;
        Ok(committed.outcome.and_then(|outcome| refusal(outcome).ok()))
    }

    /// Repeats a command that removes a limited number of rows, until none are left or the round's limit is reached.
    async fn remove_all(&self, term: Term, encode: impl Fn(&mut Vec<u8>)) -> Result<(), WriteError> {
        for _ in 0..RECLAIMS_PER_ROUND {
            let outcome = self.propose_removal(term, &encode).await?;
            if !matches!(outcome, Some(Outcome::Reclaimed { more: true, .. })) {
                break;
            }
        }
        Ok(())
    }

    /// Raises the history floor (the oldest position from which watches can read changes) to the start of the log, and
    /// deletes rows that served only to read the freed part of the log.
    fn raise_history_floor(&self) -> Result<(), WriteError> {
        let machine = &self.open.machine;
        let begin = machine.history_begin(self.open.log.start())?;
        let begin = begin.map(|mark| HistoryFloor { revision: mark.revision, index: mark.index });
        let floor = begin.unwrap_or_default().max(machine.history_floor()?);
        for _ in 0..RECLAIMS_PER_ROUND {
            if !machine.has_history_below(floor)? {
                break;
            }
            let raise = MoveTarget::HistoryFloor { floor, max: RECLAIMED_PER_COMMAND };
            self.open.replica.relocate(&raise.encode_alone())?;
        }
        Ok(())
    }

    /// Handles a view of the state that a digest command has kept and that no caller has taken for some maintenance
    /// rounds. On a member, another member has requested the digest, so it is computed. On a node alone, the caller
    /// that requested the digest no longer waits, so the view is dropped.
    fn use_old_digest_view(self: &Arc<Self>, found: &mut Option<(u64, u32)>) -> Result<(), WriteError> {
        let machine = &self.open.machine;
        *found = machine.kept_digest_view().map(|id| match *found {
            Some((before, rounds)) if before == id => (id, rounds + 1),
            _ => (id, 1),
        });
        let Some((id, rounds)) = *found else { return Ok(()) };
        if self.open.replica.member().is_some() && rounds > MEMBER_DIGEST_ROUNDS {
            let computing = self.compute_requested_digest(id);
            return computing.map_err(|error| WriteError::StateFailed { reason: error.to_string() });
        }
        if rounds > DIGEST_VIEW_ROUNDS {
            machine.drop_digest_view();
        }
        Ok(())
    }

    async fn sweep(&self, term: Term) -> Result<u64, WriteError> {
        let mut swept = 0;
        for _ in 0..SWEEPS_PER_ROUND {
            if !self.open.machine.sweep_due() {
                break;
            }
            match self.propose_removal(term, |out| encode_sweep(out, RECLAIMED_PER_COMMAND)).await? {
                Some(Outcome::Reclaimed { entries, .. }) => swept += u64::from(entries),
                _ => break,
            }
        }
        Ok(swept)
    }

    /// Forgets versions (former values of keys) that the settings of their keyspace exclude, one keyspace after the
    /// other. The next round continues where this one ends, so that a keyspace with many such versions does not delay
    /// the others.
    async fn prune_versions(&self, term: Term, last: &mut Option<KeyspaceId>) -> Result<u64, WriteError> {
        let mut pruned = 0;
        for _ in 0..PRUNES_PER_ROUND {
            let due = self.open.machine.prune_due(*last, self.open.replica.now())?;
            let Some(keyspace) = due else { break };
            *last = Some(keyspace);
            match self.propose_removal(term, |out| encode_prune_versions(out, keyspace, RECLAIMED_PER_COMMAND)).await? {
                Some(Outcome::Reclaimed { entries, .. }) => pruned += u64::from(entries),
                _ => break,
            }
        }
        Ok(pruned)
    }

    /// Persists the state if replay would become long, and then releases the part of the log that the persisted state
    /// no longer needs.
    ///
    /// On a full disk, the state is flushed whenever a flush frees a segment. It is also flushed from time to time, so
    /// that the backend can return the space of deletes. Without these flushes no space would be freed, because the
    /// writes that usually trigger a flush are rejected.
    fn flush_and_release(&self, frees_segments: bool, full_rounds: &mut u32) -> Result<(), WriteError> {
        let backend = &self.open.backend;
        let behind = self.replay_bytes();
        let is_full = self.is_disk_full();
        *full_rounds = if is_full { *full_rounds + 1 } else { 0 };
        let frees_segments = frees_segments || behind > u64::from(self.options.segment_bytes);
        let is_turn = frees_segments || *full_rounds % FULL_ROUNDS_PER_FLUSH == 1;
        let persisted = if behind > self.options.max_replay_bytes || (is_turn && is_full) {
            backend.flush().map(|_| ())
        } else {
            backend.maintain()
        };
        self.open.log.release(backend.persisted().map_or(Lsn::ZERO, |applied| applied.lsn));
        self.note_state_space();
        if self.is_disk_full() {
            backend.reclaim_space();
        }
        Ok(persisted?)
    }

    /// Tells the log how much disk space the state needs. The log leaves this space free.
    pub(crate) fn note_state_space(&self) {
        let backend = &self.open.backend;
        self.open.log.set_state_space(StateSpace {
            needed_bytes: backend.bytes_to_persist(),
            reusable_bytes: backend.reusable_bytes(),
            is_full: matches!(backend.health(), BackendHealth::DiskFull(_)),
        });
    }
}

/// Returns the number of first rows that have at most `max_bytes` bytes together; 1 if the first row is larger.
fn fitting(rows: &[Vec<u8>], max_bytes: usize) -> usize {
    let sums = rows.iter().scan(0, |sum, row| {
        *sum += row.len() + size_of::<u32>();
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= max_bytes).count().max(1)
}

/// Thread that runs a maintenance round every interval, until the thread is stopped or the database is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    inner: Weak<Inner>,
    signal: Arc<(Mutex<bool>, Condvar)>,
    /// State of maintenance that is kept between rounds; `None` while an async round uses it.
    rounds: Arc<Mutex<Option<Rounds>>>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Starts the maintenance thread. With an interval of zero there is no thread, and rounds run only on request.
    pub(crate) fn start(inner: Weak<Inner>, interval: Duration) -> Self {
        let signal = Arc::new((Mutex::new(false), Condvar::new()));
        let rounds = Arc::new(Mutex::new(Some(Rounds::default())));
        let handle = (!interval.is_zero()).then(|| {
            let (inner, signal, rounds) = (inner.clone(), signal.clone(), rounds.clone());
            let run = move || {
                let mut last_round = Instant::now();
                let mut pause = interval;
                while !wait(&signal, pause) {
                    let Some(inner) = inner.upgrade() else { return };
                    if last_round.elapsed() >= interval {
                        let round = run_round(&inner, &rounds);
                        inner.record_maintenance(round.as_ref().err());
                        last_round = Instant::now();
                    } else {
                        // The next round reports an error.
                        let _ = block_on(inner.propose_time());
                    }
                    let left = interval.saturating_sub(last_round.elapsed());
                    pause = if inner.proposes_time() { left.min(DEADLINE_CHECK_INTERVAL) } else { left };
                }
            };
            thread::Builder::new()
                .name("thalweg-maintain".to_owned())
                .spawn(run)
                .expect("the system can start a thread")
        });
        Self { inner, signal, rounds, handle: Mutex::new(handle) }
    }

    /// Runs a maintenance round on the caller's thread. Waits first for a round that is in progress.
    pub(crate) fn run_round(&self, inner: &Arc<Inner>) -> Result<Maintenance, WriteError> {
        run_round(inner, &self.rounds)
    }

    /// Runs a maintenance round as a future. Does nothing while another round is in progress.
    pub(crate) async fn run_round_async(&self, inner: &Arc<Inner>) -> Result<Maintenance, WriteError> {
        let Some(mut taken) = TakenRounds::take(&self.rounds) else { return Ok(Maintenance::default()) };
        inner.maintain(&mut taken.rounds).await
    }

    /// Ends the maintenance thread after its present round, and waits for the thread.
    pub(crate) fn stop(&self) {
        *self.signal.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.1.notify_all();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle {
            // A panic of the round was already printed, and nothing has to be undone.
            let _ = handle.join();
        }
    }
}

/// State of maintenance between rounds, taken out of its lock for an async round, and returned when this ends.
struct TakenRounds<'a> {
    slot: &'a Mutex<Option<Rounds>>,
    rounds: Rounds,
}

impl<'a> TakenRounds<'a> {
    /// Takes the state of maintenance out of its lock; `None` if another round is in progress.
    fn take(slot: &'a Mutex<Option<Rounds>>) -> Option<Self> {
        let rounds = slot.try_lock().ok()?.take()?;
        Some(Self { slot, rounds })
    }
}

impl Drop for TakenRounds<'_> {
    fn drop(&mut self) {
        let rounds = std::mem::take(&mut self.rounds);
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(rounds);
    }
}

fn run_round(inner: &Arc<Inner>, rounds: &Mutex<Option<Rounds>>) -> Result<Maintenance, WriteError> {
    let mut rounds = rounds.lock().unwrap_or_else(PoisonError::into_inner);
    block_on(inner.maintain(rounds.get_or_insert_default()))
}

/// Stops the maintenance thread. The handles of a database share this value, so it is dropped with the last handle.
impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
        if let Some(inner) = self.inner.upgrade() {
            inner.is_released.store(true, Ordering::Release);
        }
    }
}

/// Waits until the next maintenance round is due. Returns true if the thread has to stop.
fn wait(signal: &(Mutex<bool>, Condvar), interval: Duration) -> bool {
    let stopped = signal.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = signal.1.wait_timeout_while(stopped, interval, |stopped| !*stopped);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}
