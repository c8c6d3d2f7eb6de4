//! The combinations of writers, batch size and durability level that the log suite measures. Each combination is called
//! a cell.

use thalweg_types::Durability;

use super::options::LogOptions;

/// One combination of parameters that the log suite measures: the number of writers, the records of a batch, the size
/// of a record, and the durability level of the appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) purpose: Purpose,
    pub(super) level: Durability,
    pub(super) writers: usize,
    pub(super) run_as: RunAs,
    pub(super) batch: usize,
    pub(super) payload: usize,
}

/// The way in which the writers of one measurement run: as threads or as async tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunAs {
    /// Each writer is a thread. It sleeps until its append is durable.
    Threads,
    /// Each writer is an async task, like the connections of a server. All tasks share one thread, which syncs the log
    /// when no task can run.
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

/// Purpose of a measured combination of parameters (a cell). Each purpose has a table of its own in the report.
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
                "published benchmark of a log, one process by batch size (another system: 11,000 / 35,000 / 60,000 / 85,000 \
                 records/s)"
            }
            Self::ManyProcesses => {
                "published benchmark of a log, by processes (another system: unbatched 11,000 / 15,000 / 18,000 / 20,000, \
                 batch 100: 60,000 / 150,000 / 220,000 / 250,000 records/s)"
            }
            Self::Required => "figures that must hold",
        }
    }
}

/// Returns all cells: those of the two tables of a published benchmark of another log (row S of docs/performance.md),
/// at every durability level, and then the cells for the checks. A cell is a combination of parameters.
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
