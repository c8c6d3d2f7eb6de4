//! The cells of the log suite, and the figures that must hold.

use thalweg_types::Durability;

use super::options::LogOptions;

/// One cell: a number of writers append batches of a number of records, each at a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) purpose: Purpose,
    pub(super) level: Durability,
    pub(super) writers: usize,
    pub(super) run_as: RunAs,
    pub(super) batch: usize,
    pub(super) payload: usize,
}

/// Kind of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunAs {
    /// A thread that sleeps until its append is durable.
    Threads,
    /// A task; all share one worker, which syncs when no task of it can run. What a server's connections are.
    Tasks,
}

impl RunAs {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Tasks => "tasks",
        }
    }
}

/// The table that a cell belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    OneProcess,
    ManyProcesses,
    Required,
}

impl Purpose {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::OneProcess => {
                "row S, one process by batch size (published: 11,000 / 35,000 / 60,000 / 85,000 records/s)"
            }
            Self::ManyProcesses => {
                "row S, by processes (published: unbatched 11,000 / 15,000 / 18,000 / 20,000, \
                 batch 100: 60,000 / 150,000 / 220,000 / 250,000 records/s)"
            }
            Self::Required => "figures that must hold",
        }
    }
}

/// All cells: row S's tables at every level, then those that are checked.
pub(super) fn all(options: &LogOptions) -> Vec<Cell> {
    let mut cells = Vec::new();
    if !options.only_checks {
        for &level in &options.durability {
            let cell = |purpose, writers, batch| Cell {
                purpose,
                level,
                writers,
                run_as: RunAs::Threads,
                batch,
                payload: options.payload,
            };
            cells.extend(options.batches.iter().map(|&batch| cell(Purpose::OneProcess, 1, batch)));
            for batch in [1, 100] {
                cells.extend(options.processes.iter().map(|&writers| cell(Purpose::ManyProcesses, writers, batch)));
            }
        }
    }
    let required = [
        (1, RunAs::Threads, 1, 100),
        (1, RunAs::Threads, 1, 1024),
        (64, RunAs::Threads, 1, 1024),
        (64, RunAs::Tasks, 1, 1024),
        (1, RunAs::Threads, 1024, 1024),
        (1, RunAs::Threads, 1, 1 << 20),
    ];
    if options.durability.contains(&Durability::Disk) {
        cells.extend(required.map(|(writers, run_as, batch, payload)| Cell {
            purpose: Purpose::Required,
            level: Durability::Disk,
            writers,
            run_as,
            batch,
            payload,
        }));
    }
    cells
}
