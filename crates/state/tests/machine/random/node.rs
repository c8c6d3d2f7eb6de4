//! A node: a machine over a backend, with its own log.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use thalweg_state::{
    blobs::Blobs,
    machine::{Machine, MachineOptions},
    portable::{self, Row},
};
use thalweg_store::{Backend, Direction};
use thalweg_types::{SpaceTime, command::Outcome};

use super::list::{Grouping, List};
use crate::support::{Log, LogRecord, Map, MapBackend, apply, apply_for, frame};

/// Opens a node's backend, repeatedly after restarts.
pub type Open = Box<dyn Fn() -> Arc<dyn Backend>>;

/// Bytes of a segment. Small, so that there are several.
const SEGMENT_BYTES: usize = 4096;

/// A machine, its backend and its log.
pub struct Node {
    open: Open,
    running: Option<(Machine, Arc<dyn Backend>)>,
    pub log: Log,
    pub options: MachineOptions,
    /// True if clients wait for the outcomes of the entries that are applied.
    pub is_awaited: bool,
    /// Outcomes of each record of the log.
    outcomes: Vec<Vec<Outcome>>,
}

/// Returns a function that opens a map which outlives its machines.
pub fn on_a_map() -> Open {
    let backend = Arc::new(MapBackend::default());
    Box::new(move || backend.clone())
}

impl Node {
    pub fn new(open: Open, options: MachineOptions) -> Self {
        Self::with_log(open, options, Log::new(SEGMENT_BYTES))
    }

    /// Creates a node over a backend that has applied the whole log, or nothing of it.
    pub fn with_log(open: Open, options: MachineOptions, log: Log) -> Self {
        let outcomes = vec![Vec::new(); log.records.len()];
        let mut node = Self { open, running: None, log, options, is_awaited: true, outcomes };
        node.run();
        node
    }

    fn run(&mut self) {
        let backend = (self.open)();
        self.running = Some((self.log.machine(backend.clone(), self.options), backend));
    }

    pub fn machine(&self) -> &Machine {
        &self.running.as_ref().expect("it runs").0
    }

    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.running.as_ref().expect("it runs").1
    }

    /// Applies a list in a grouping.
    pub fn apply_list(&mut self, list: &List, grouping: Grouping) -> Vec<Outcome> {
        let entries = list.entries(grouping);
        entries.into_iter().flat_map(|entry| self.apply(entry.time, &entry.commands)).collect()
    }

    /// Applies one entry with these commands.
    pub fn apply(&mut self, time: u64, commands: &[&[u8]]) -> Vec<Outcome> {
        let commands: Vec<_> = commands.iter().map(|command| command.to_vec()).collect();
        let record = self.log.entry(&frame(&commands), SpaceTime(time));
        self.apply_record(&record)
    }

    /// Applies a record of the log, and returns the outcomes of an entry's commands.
    pub fn apply_record(&mut self, record: &LogRecord) -> Vec<Outcome> {
        let (outcomes, _) = apply_for(self.machine(), record, self.is_awaited);
        self.outcomes.push(outcomes.clone());
        outcomes
    }

    /// Restarts the node and replays the records that the backend has lost. Their outcomes must be the same.
    pub fn restart(&mut self) {
        self.running = None;
        self.run();
        let persisted = self.machine().applied().lsn.0 as usize;
        for (at, record) in self.log.records.iter().enumerate().skip(persisted) {
            let (outcomes, _) = apply(self.machine(), record);
            assert_eq!(outcomes, self.outcomes[at], "the outcomes of a replay");
        }
    }

    /// Returns all rows.
    pub fn rows(&self) -> Map {
        let mut map = Map::new();
        let visit = &mut |key: &[u8], value: &[u8]| {
            map.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        };
        let all = (Bound::Included([0x01].as_slice()), Bound::Excluded([0xf0].as_slice()));
        self.backend().view().scan(all.0, all.1, Direction::Forward, visit).expect("it can be read");
        map
    }

    /// Returns a node with the same rows and log, whose machine has loaded its data from them.
    pub fn copy(&self) -> Self {
        let backend = MapBackend::of(self.rows(), self.backend().applied());
        Self::with_log(Box::new(move || backend.clone()), self.options, self.log.copy())
    }

    /// Returns a node that has installed a snapshot of this one: the replicated rows, and their bytes in another
    /// log.
    pub fn install(&self, options: MachineOptions) -> Self {
        let (rows, applied) = (self.rows(), self.machine().applied());
        let mut log = Log::after(SEGMENT_BYTES / 2, applied.index);
        let mut batch = thalweg_store::WriteBatch::new();
        let mut placed = portable::RelocatedBytes::default();
        for (key, row) in &rows {
            match portable::sort(key, row).expect("a row of a known kind") {
                Row::Local => {}
                Row::Plain => batch.put(&[key], &[row]),
                Row::Pointing(pointing) => {
                    let bytes = self.log.read(&pointing.blob);
                    let carrier =
                        log.moved(&portable::without_position(&pointing.blob), &pointing.owner.target(), &bytes);
                    let within = (carrier.payload.len() - bytes.len()) as u32;
                    let at = thalweg_types::LogPosition { offset: carrier.at.offset + within, ..carrier.at };
                    let pointer = placed.relocate(&pointing, at).encode();
                    let (before, after) = (&row[..pointing.at], &row[pointing.at + pointer.len()..]);
                    batch.put(&[key], &[before, &pointer, after]);
                }
            }
        }
        placed.write(&mut batch);
        portable::begin(&mut batch, &applied, b"");
        let backend = MapBackend::default();
        let lsn = log.records.last().map_or(thalweg_types::Lsn(0), |record| record.next_lsn);
        backend.apply(&batch, thalweg_store::Applied { lsn, ..applied }).expect("a map takes everything");
        let backend = Arc::new(backend);
        Self::with_log(Box::new(move || backend.clone()), options, log)
    }

    /// Describes the pointers into the log whose bytes cannot be read.
    pub fn unreadable(&self) -> Vec<String> {
        let rows = self.rows();
        let pointing = rows.iter().filter_map(|(key, row)| match portable::sort(key, row) {
            Ok(Row::Pointing(pointing)) => Some((key, pointing)),
            _ => None,
        });
        pointing
            .filter(|(_, pointing)| self.log.segments.read(&pointing.blob).is_err())
            .map(|(key, pointing)| format!("{}: {:?} cannot be read", super::describe::row(key), pointing.blob))
            .collect()
    }
}
