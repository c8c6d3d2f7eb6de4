//! Applying one record: what is gathered while its commands run, and how that becomes one batch.
//!
//! Commands of an entry see those before them, just as if each had an entry of its own: rows through what is staged
//! (`staged`), and the tables in memory as the commands before left them. An entry of blind puts and deletes reads
//! nothing and allocates nothing but room in the batch. Several writes of one key stay several changes of the batch, of
//! which the last wins, but for those that are put in place of the one before ([`Staged::put_in_place`]).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, MutexGuard, atomic::Ordering},
};

use bytes::Bytes;
use thalweg_store::Applied;
use thalweg_types::{
    BlobRef, Index, KeyspaceId, LogPosition, Lsn, Offset, Revision, SpaceTime, StreamId, Term,
    command::{Command, Commands, FIRST_VERSION, HistoryFloor, Outcome, TimeCommand},
    record::Malformed,
};

use crate::{
    catalog::{KeyspaceKinds, KeyspaceRow, KeyspaceTable, Meta},
    clears::{ClearChanges, ClearTable},
    counts::Counts,
    groups::GroupTable,
    history::VerdictBuilder,
    inline_floor::InlineFloor,
    keyspaces::Sight,
    liveness::{BlobKind, LivenessChanges},
    machine::{
        Entry, Machine, MachineError, admin, clearing, commit,
        consumers::{self, Claims},
        digest_view, expire, history, keyspace_admin, leases, lock,
        producers::{self, CheckedProducers},
        prune, read, redis,
        running_hash::RunningHash,
        savepoint::UndoList,
        staged::Staged,
        transaction, upgrade, write,
    },
    streams::Head,
    versions::HistoryRow,
};

/// Largest payload: bounds the batch that is made of it.
const MAX_PAYLOAD_BYTES: usize = 1 << 30;

/// Rows that one command may reclaim: bounds the batch and the time that readers of the log wait for the next entry.
pub(crate) const MAX_RECLAIM_ENTRIES: u32 = 10_000;

/// Where a record stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) next_lsn: Lsn,
    /// Of an entry; `None` for a node-local record.
    pub(crate) entry: Option<(Term, Index, SpaceTime)>,
}

/// Pointers are offsets of 32 bits within a segment.
pub(crate) fn check_addressable(payload: &[u8], at: LogPosition) -> Result<(), MachineError> {
    let end = u64::from(at.offset) + payload.len() as u64;
    if payload.len() > MAX_PAYLOAD_BYTES || end > u64::from(u32::MAX) {
        return Err(MachineError::Unaddressable { offset: at.offset, len: payload.len() });
    }
    Ok(())
}

/// What the applying thread keeps between records.
#[derive(Debug)]
pub(crate) struct Applier {
    /// What the record changes, and where reads find it.
    pub(crate) staged: Staged,
    /// How to take back the current command.
    pub(crate) undo: UndoList,
    /// As the commands so far left it.
    pub(crate) meta: Meta,
    /// As the backend holds it; `None` before the first record.
    stored_meta: Option<Meta>,
    pub(crate) applied: Applied,
    pub(crate) inline_floor: InlineFloor,
    /// Streams that live, and deleted ones of which producers are still to be removed; as the commands so far left them.
    pub(crate) stream_count: usize,
    /// Rows of keyspaces, those of dropped ones that wait to be swept and of the current record included.
    pub(crate) keyspace_count: usize,
    /// As the commands so far left them.
    pub(crate) kinds: KeyspaceKinds,
    /// Leases, those that have ended and wait to be removed and of the current record included.
    pub(crate) lease_count: usize,
    pub(crate) stopped: bool,
    pub(crate) pending: Pending,
    pub(crate) liveness: LivenessChanges,
    /// As the commands so far left it.
    pub(crate) clears: Arc<ClearTable>,
    /// As the commands so far left them.
    pub(crate) counts: BTreeMap<KeyspaceId, Counts>,
    pub(crate) verdict: VerdictBuilder,
    pub(crate) history_floor: HistoryFloor,
    /// Of keyspaces that keep, or have kept, versions; as the commands so far left them.
    pub(crate) histories: BTreeMap<KeyspaceId, HistoryRow>,
    /// Where in its segment the payload of the current entry begins.
    pub(crate) payload_at: u32,
    running_hash: RunningHash,
    /// By the current record.
    pub(crate) digest_wanted: Option<u64>,
    scratch: Vec<u8>,
}

/// What the current record changes beside keys.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Rows as changed; `None` is removed.
    pub(crate) keyspaces: BTreeMap<KeyspaceId, Option<KeyspaceRow>>,
    /// Heads as changed; `None` is removed.
    pub(crate) heads: BTreeMap<StreamId, Option<Head>>,
    /// Live streams created by this record.
    pub(crate) stream_names: HashMap<Arc<str>, StreamId>,
    /// Next offsets while a commit is checked.
    pub(crate) next_offsets: HashMap<StreamId, Offset>,
    /// What the current commit acks and nacks.
    pub(crate) claims: Claims,
    /// Producers as the commit being checked will leave them.
    pub(crate) producers: CheckedProducers,
    pub(crate) clears: ClearChanges,
    /// Keyspaces whose exact counts change.
    pub(crate) counted: BTreeSet<KeyspaceId>,
}

impl Applier {
    pub(crate) fn new(
        stored_meta: Option<Meta>,
        applied: Applied,
        stream_count: usize,
        keyspaces: &KeyspaceTable,
        lease_count: usize,
    ) -> Self {
        Self {
            staged: Staged::default(),
            undo: UndoList::default(),
            meta: stored_meta.unwrap_or_default(),
            stored_meta,
            applied,
            inline_floor: InlineFloor::default(),
            stream_count,
            keyspace_count: keyspaces.len(),
            kinds: keyspaces.kinds(),
            lease_count,
            stopped: false,
            pending: Pending::default(),
            liveness: LivenessChanges::default(),
            clears: Arc::default(),
            counts: BTreeMap::new(),
            verdict: VerdictBuilder::default(),
            history_floor: HistoryFloor::default(),
            histories: BTreeMap::new(),
            payload_at: 0,
            running_hash: RunningHash::default(),
            digest_wanted: None,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn check(&self, position: &Position) -> Result<(), MachineError> {
        if self.stopped {
            return Err(MachineError::Stopped);
        }
        if position.next_lsn <= self.applied.lsn {
            return Err(MachineError::AlreadyApplied { next_lsn: position.next_lsn, applied: self.applied.lsn });
        }
        Ok(())
    }
}

/// A record being applied.
pub(crate) struct Applying<'m> {
    pub(crate) applier: &'m mut Applier,
    pub(crate) machine: &'m Machine,
    /// What will be applied when it is done.
    pub(crate) applied: Applied,
    /// Of an entry.
    payload: Option<(&'m [u8], LogPosition)>,
    /// Locked by the first command that is about consumer groups.
    groups: Option<MutexGuard<'m, GroupTable>>,
}

impl<'m> Applying<'m> {
    pub(crate) fn begin(
        applier: &'m mut Applier,
        machine: &'m Machine,
        position: &Position,
        payload: Option<(&'m [u8], LogPosition)>,
    ) -> Self {
        let mut applied = Applied { lsn: position.next_lsn, ..applier.applied };
        if let Some((term, index, time)) = position.entry {
            applied.term = term;
            applied.index = index;
            applied.time = applied.time.max(time);
            applier.running_hash.begin_entry(&applied);
        } else {
            applier.running_hash.begin_local();
        }
        applier.staged.clear();
        for generation in machine.take_forgotten() {
            applier.liveness.forget(generation);
        }
        Self { applier, machine, applied, payload, groups: None }
    }

    /// Reads a value that stays in the log. One of this very entry need not be readable there yet.
    pub(crate) fn read_blob(&self, blob: &BlobRef) -> Result<Bytes, MachineError> {
        let own = self.payload.filter(|(_, at)| at.generation == blob.generation).and_then(|(payload, at)| {
            let from = blob.offset.checked_sub(at.offset)? as usize;
            payload.get(from..)?.get(..blob.len as usize)
        });
        match own {
            Some(bytes) => Ok(Bytes::copy_from_slice(bytes)),
            None => Ok(self.machine.blobs.read(blob)?),
        }
    }

    /// A stream's head as earlier commands left it, deleted markers included.
    pub(crate) fn head(&mut self, stream: StreamId) -> Option<&mut Head> {
        if !self.applier.pending.heads.contains_key(&stream) {
            let head = read(&self.machine.published.streams).get(stream).cloned()?;
            self.applier.pending.heads.insert(stream, Some(head));
        }
        self.applier.pending.heads.get_mut(&stream)?.as_mut()
    }

    pub(crate) fn live_head(&mut self, stream: StreamId) -> Option<&mut Head> {
        self.head(stream).filter(|head| head.is_live())
    }

    /// A live stream's name, start and next offset, for those who do not change it.
    pub(crate) fn stream_bounds(&self, stream: StreamId) -> Option<(Arc<str>, Offset, Offset)> {
        let bounds = |head: &Head| head.is_live().then(|| (head.name.clone(), head.start, head.next));
        match self.applier.pending.heads.get(&stream) {
            Some(head) => head.as_ref().and_then(bounds),
            None => read(&self.machine.published.streams).get(stream).and_then(bounds),
        }
    }

    /// The consumer groups as earlier commands left them.
    pub(crate) fn groups(&mut self) -> &mut GroupTable {
        let machine = self.machine;
        self.groups.get_or_insert_with(|| {
            let mut table = lock(&machine.groups);
            table.applying = true;
            table
        })
    }

    pub(crate) fn raise(&mut self, kind: BlobKind, blob: &BlobRef) {
        self.note_liveness(blob.generation);
        self.applier.liveness.raise(kind, blob, &read(&self.machine.published.liveness));
    }

    pub(crate) fn lower(&mut self, kind: BlobKind, blob: &BlobRef) {
        self.note_liveness(blob.generation);
        self.applier.liveness.lower(kind, blob, &read(&self.machine.published.liveness));
    }

    pub(crate) fn use_revision(&mut self) -> Revision {
        self.applied.revision = self.applied.revision.next();
        self.applied.revision
    }

    /// Which rows of a keyspace count.
    #[inline]
    pub(crate) fn sight(&self, keyspace: KeyspaceId) -> Sight<'_> {
        Sight { clears: self.applier.clears.of(keyspace), as_of: Revision::MAX }
    }

    /// Hands everything to the backend as one batch, then shows it to readers. Deleted prefixes are shown
    /// before it: a reader goes by them once its view has the revision.
    pub(crate) fn finish(mut self) -> Result<(), MachineError> {
        let Applier {
            staged,
            pending,
            liveness,
            meta,
            stored_meta,
            applied,
            scratch,
            clears,
            counts,
            running_hash,
            digest_wanted,
            inline_floor,
            ..
        } = self.applier;
        let batch = staged.batch();
        if *stored_meta != Some(*meta) {
            meta.write(batch);
        }
        for (&id, head) in &pending.heads {
            match head {
                Some(head) => head.write(id, batch, scratch),
                None => batch.delete(&[&crate::keys::stream_head(id)]),
            }
        }
        for id in &pending.counted {
            match counts.get(id) {
                Some(counts) => counts.write(*id, batch),
                None => batch.delete(&[&crate::keys::counts_row(*id)]),
            }
        }
        if let Some(groups) = &mut self.groups {
            groups.write(batch);
        }
        liveness.write(batch);
        inline_floor.write_once(batch);
        let published = &self.machine.published;
        // Before anything of the record can be seen: a reader that has seen some of it finds the bound raised.
        published.visible.store(self.applied.lsn.0, Ordering::Release);
        if !pending.clears.is_empty() {
            let before = read(&published.clears).clone();
            published.show_clears(Arc::new(before.with_added(&pending.clears)));
        }
        self.applied.running_hash = running_hash.finish(self.applied.running_hash, &pending.heads, batch)?;
        self.machine.backend.apply(batch, self.applied)?;
        if stored_meta.is_none_or(|stored| stored.version != meta.version) {
            self.machine.show_version(meta.version);
        }
        if let Some(id) = digest_wanted.take() {
            self.machine.keep_digest_view(id);
        }
        *stored_meta = Some(*meta);
        *applied = self.applied;
        if !pending.clears.is_empty() {
            pending.clears.clear();
            published.show_clears(clears.clone());
        }
        if !pending.counted.is_empty() {
            pending.counted.clear();
            write(&published.counts).clone_from(counts);
        }
        if !pending.keyspaces.is_empty() {
            let mut keyspaces = write(&published.keyspaces);
            for (id, row) in std::mem::take(&mut pending.keyspaces) {
                keyspaces.set(id, row);
            }
        }
        if !pending.heads.is_empty() {
            write(&published.streams).publish(&mut pending.heads);
        }
        if !liveness.is_empty() {
            write(&published.liveness).publish(liveness);
        }
        pending.stream_names.clear();
        pending.producers.clear();
        *write(&published.applied) = self.applied;
        if let Some(mut groups) = self.groups {
            groups.applying = false;
            if !groups.woken.is_empty() {
                self.machine.groups_woken.store(true, Ordering::Release);
            }
        }
        Ok(())
    }
}

/// Runs the commands of an entry in order.
pub(crate) fn apply_commands(
    applying: &mut Applying<'_>,
    entry: &Entry<'_>,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), MachineError> {
    applying.applier.verdict.clear();
    applying.applier.payload_at = entry.at.offset;
    let before = outcomes.len();
    let mut commands = Commands::new(entry.payload);
    for number in 0.. {
        let Some(framed) = commands.next() else { break };
        let outcome = match framed {
            Ok((command_at, bytes)) => {
                if commands.version() > FIRST_VERSION
                    && let Some(refusal) = upgrade::gate(applying, commands.version())?
                {
                    applying.judge(number, bytes, applying.applied.revision);
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
                applying.judge(number, bytes, before);
                outcome
            }
            Err(malformed) => Outcome::Malformed(malformed),
        };
        outcomes.push(outcome);
    }
    applying.applier.running_hash.add_outcomes(&outcomes[before..]);
    history::write_rows(applying, entry);
    Ok(())
}

/// Runs one command, whose bytes begin at `at` in the log.
#[inline]
fn run(applying: &mut Applying<'_>, bytes: &[u8], at: LogPosition) -> Result<Outcome, MachineError> {
    let refused = match Command::decode(bytes) {
        Ok(Command::Commit(commit)) => commit::apply(applying, &commit, at),
        Ok(Command::Transaction(transaction)) => transaction::apply(applying, &transaction, at),
        Ok(Command::DropKeyspace { keyspace }) => clearing::drop_keyspace(applying, keyspace),
        Ok(Command::Sweep { max }) => clearing::sweep(applying, max),
        Ok(Command::CreateKeyspace { name, config }) => keyspace_admin::create(applying, name, config),
        Ok(Command::ConfigureKeyspace { keyspace, config }) => keyspace_admin::configure(applying, keyspace, config),
        Ok(Command::CreateStream { name, config }) => admin::create_stream(applying, name, config),
        Ok(Command::ConfigureStream { stream, config }) => admin::configure_stream(applying, stream, config),
        Ok(Command::DeleteStream { stream }) => admin::delete_stream(applying, stream),
        Ok(Command::TrimStream { stream, before }) => admin::trim_stream(applying, stream, before),
        Ok(Command::ForgetProducers { stream, max }) => admin::forget_producers(applying, stream, max),
        Ok(Command::PruneVersions { from, max }) => prune::prune(applying, from, max),
        Ok(Command::Digest { id }) => Ok(digest_view::ask(applying, id)),
        Ok(Command::RaiseVersion { to }) => upgrade::raise(applying, to).map_err(Refused::Failed),
        Ok(Command::OpenProducer { stream, id }) => producers::open(applying, stream, id),
        Ok(Command::Group(command)) => consumers::apply(applying, command),
        Ok(Command::Redis(commands)) => redis::apply(applying, commands, at),
        Ok(Command::Time(command)) => run_about_time(applying, &command),
        Err(malformed) => Ok(Outcome::Malformed(malformed)),
    };
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

/// Why a command did nothing: for a reason that its sender learns, or because the state failed.
#[derive(Debug)]
pub(crate) enum Refused {
    Outcome(Outcome),
    Failed(MachineError),
}

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Self {
        Self::Outcome(Outcome::Malformed(malformed))
    }
}

impl<E: Into<MachineError>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
