//! A node that is opened repeatedly: after a clean close, or after its process was killed.
//!
//! Time is that of a [`ManualClock`], and there is no background thread, so a behaviour decides when time passes and
//! when maintenance runs.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tempfile::TempDir;
use thalweg_disk::RealDisk;
use thalweg_engine::{BackendKind, Database, OpenError, OpenReport, Options, types::ManualClock};

use crate::common;

/// Makes each behaviour a test on each backend: `on_every_backend!(one, another);`.
macro_rules! on_every_backend {
    ($($behaviour:ident),+ $(,)?) => {
        $(
            mod $behaviour {
                #[test]
                fn memory() {
                    crate::support::run(thalweg_engine::BackendKind::Memory, super::$behaviour);
                }

                #[test]
                fn lsm() {
                    crate::support::run(thalweg_engine::BackendKind::Lsm, super::$behaviour);
                }

                #[test]
                #[cfg(feature = "redb")]
                fn redb() {
                    crate::support::run(thalweg_engine::BackendKind::Redb, super::$behaviour);
                }

                #[test]
                #[cfg(feature = "sqlite")]
                fn sqlite() {
                    crate::support::run(thalweg_engine::BackendKind::Sqlite, super::$behaviour);
                }
            }
        )+
    };
}

/// Runs a behaviour on a new node.
pub fn run(backend: BackendKind, behaviour: fn(&mut Node)) {
    behaviour(&mut Node::new(common::small(backend)));
}

/// Way in which a node goes down and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Clean close: everything is persisted, and the log is attested.
    Clean,
    /// Kill: data in the kernel survives, but nothing was flushed or closed.
    Kill,
}

impl Restart {
    /// Both kinds of restart.
    pub const ALL: [Self; 2] = [Self::Clean, Self::Kill];
}

/// A directory, and the database that is open in it.
#[derive(Debug)]
pub struct Node {
    dir: TempDir,
    clock: Arc<ManualClock>,
    options: Options,
    db: Option<Database>,
    opened: u64,
}

impl Node {
    /// Opens a new directory. For behaviours that need other options than `common::small`, see
    /// [`restart_with`](Self::restart_with).
    pub fn new(options: Options) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut node = Self { dir, clock: common::clock(), options, db: None, opened: 0 };
        node.open();
        node
    }

    /// The open database. Handles made from it must be dropped before a restart, or the directory stays locked.
    pub fn db(&self) -> &Database {
        self.db.as_ref().expect("open")
    }

    /// Backend of the node.
    pub fn backend(&self) -> BackendKind {
        self.db().report().backend
    }

    /// Clock of the node: `advance` lets time pass, and `step_wall` sets the wall clock.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Lets time pass.
    pub fn pass(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// Closes and opens again.
    pub fn reopen(&mut self) -> &OpenReport {
        self.restart(Restart::Clean)
    }

    /// Simulates a kill of the process, as far as the files can show, and opens the directory again.
    pub fn kill(&mut self) -> &OpenReport {
        self.restart(Restart::Kill)
    }

    /// Restarts the node.
    pub fn restart(&mut self, how: Restart) -> &OpenReport {
        self.restart_with(how, |_| {})
    }

    /// Restarts the node with other options.
    pub fn restart_with(&mut self, how: Restart, change: impl FnOnce(&mut Options)) -> &OpenReport {
        self.go_down(how);
        change(&mut self.options);
        self.open();
        self.db().report()
    }

    /// Closes the node and tries to open it with other options, which must fail. Then opens it as before.
    pub fn refused(&mut self, change: impl FnOnce(&mut Options)) -> OpenError {
        self.go_down(Restart::Clean);
        let mut other = self.options.clone();
        change(&mut other);
        let error = self.try_open(other).expect_err("refused");
        self.open();
        error
    }

    /// Runs a check now, after a clean reopen, and after a kill.
    pub fn through_restarts(&mut self, check: impl Fn(&Database)) {
        check(self.db());
        for how in Restart::ALL {
            self.restart(how);
            check(self.db());
        }
    }

    fn go_down(&mut self, how: Restart) {
        let db = self.db.take().expect("open");
        match how {
            Restart::Clean => db.close().expect("closes"),
            Restart::Kill => {
                // A copy of the directory is what a killed process leaves, if no thread wrote while it was made. The
                // handle is dropped only afterwards, because the drop may tidy up. The threads of the LSM backend may
                // work for a long time, but the drop of that backend does nothing except end them.
                let is_quiet = db.report().backend != BackendKind::Lsm;
                let killed = if is_quiet {
                    let killed = copy_of_quiet(self.dir.path());
                    drop(db);
                    killed
                } else {
                    drop(db);
                    copy_of_quiet(self.dir.path())
                };
                self.dir = killed;
            }
        }
    }

    fn open(&mut self) {
        self.db = Some(self.try_open(self.options.clone()).expect("opens"));
    }

    fn try_open(&mut self, options: Options) -> Result<Database, OpenError> {
        self.opened += 1;
        let disk = Arc::new(RealDisk::open(self.dir.path()).expect("the directory is there"));
        Database::open_on(disk, self.clock.clone(), self.opened, options)
    }
}

/// Copies a directory. If a file changed during the copy, copies again.
fn copy_of_quiet(from: &Path) -> TempDir {
    const ATTEMPTS: usize = 1000;
    for _ in 0..ATTEMPTS {
        let copy = tempfile::tempdir().expect("a directory");
        let before = listing(from);
        let copied = copy_tree(from, copy.path());
        if let (Ok(before), Ok(()), Ok(after)) = (before, copied, listing(from))
            && before == after
        {
            return copy;
        }
    }
    panic!("the directory kept changing through {ATTEMPTS} copies");
}

/// Returns every file with its length and the time of its last write.
fn listing(dir: &Path) -> io::Result<BTreeMap<PathBuf, (u64, SystemTime)>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let metadata = fs::metadata(&path)?;
        if metadata.is_dir() {
            all.extend(listing(&path)?);
        }
        all.insert(path, (metadata.len(), metadata.modified()?));
    }
    Ok(all)
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().expect("named"));
        if path.is_dir() {
            fs::create_dir_all(&target)?;
            copy_tree(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}
