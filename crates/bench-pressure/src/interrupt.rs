//! Removal of the data of an interrupted run, which may be many gigabytes.
//!
//! Owns: the reaction to SIGINT and SIGTERM while the suite runs. It kills the servers, removes their control groups
//! and the directory, and ends the process. Does not own: the removal after a run that ends normally, which dropping
//! the handles does.

use std::{
    future::poll_fn,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::{BenchError, control_group::ControlGroup};

/// Exit code after an interrupt, the one that shells use for SIGINT.
const EXIT_CODE: i32 = 130;
/// Number of attempts to remove a directory. Removing fails while killed processes have not ended yet.
const ATTEMPTS: u32 = 50;
/// Time between two attempts to remove a directory.
const PAUSE: Duration = Duration::from_millis(20);

/// Server processes, their control groups and the data directory, which an interrupt must remove. They exist while the
/// suite runs.
#[derive(Debug, Default)]
struct Leftovers {
    directory: Option<PathBuf>,
    groups: Vec<PathBuf>,
    processes: Vec<u32>,
}

static LEFTOVERS: Mutex<Leftovers> =
    Mutex::new(Leftovers { directory: None, groups: Vec::new(), processes: Vec::new() });

fn leftovers() -> MutexGuard<'static, Leftovers> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the handler of SIGINT and SIGTERM. If one of these signals comes before the returned value is dropped, the
/// handler kills the servers, removes their groups and `directory`, and ends the process.
pub(crate) fn watch(directory: &Path) -> Result<Watch, BenchError> {
    leftovers().directory = Some(directory.to_owned());
    let fail = |error: std::io::Error| BenchError::files("the handler of signals")(error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(fail)?;
    let entered = runtime.enter();
    let of = |kind| signal(kind).map_err(fail);
    let (mut interrupt, mut terminate) = (of(SignalKind::interrupt())?, of(SignalKind::terminate())?);
    drop(entered);
    std::thread::spawn(move || {
        runtime.block_on(poll_fn(|cx| match (interrupt.poll_recv(cx), terminate.poll_recv(cx)) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(()),
        }));
        remove(&mut leftovers());
        std::process::exit(EXIT_CODE);
    });
    Ok(Watch(()))
}

/// Guard of the installed handler. After it is dropped, an interrupt removes nothing.
#[derive(Debug)]
pub(crate) struct Watch(());

impl Drop for Watch {
    fn drop(&mut self) {
        *leftovers() = Leftovers::default();
    }
}

/// Records a server that has started, and its control group. An interrupt kills the server and removes the group.
pub(crate) fn started(process: u32, group: Option<&ControlGroup>) {
    let mut leftovers = leftovers();
    leftovers.processes.push(process);
    for dir in group.into_iter().flat_map(ControlGroup::directories) {
        if !leftovers.groups.iter().any(|known| known == dir) {
            leftovers.groups.push(dir.to_owned());
        }
    }
}

/// Records that a server has ended, so that an interrupt does not kill it.
pub(crate) fn ended(process: u32) {
    leftovers().processes.retain(|other| *other != process);
}

fn remove(leftovers: &mut Leftovers) {
    for process in leftovers.processes.drain(..) {
        if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    for _ in 0..ATTEMPTS {
        leftovers.groups.retain(|group| std::fs::remove_dir(group).is_err() && group.exists());
        let is_gone =
            leftovers.directory.as_ref().is_none_or(|dir| std::fs::remove_dir_all(dir).is_ok() || !dir.exists());
        if is_gone && leftovers.groups.is_empty() {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn servers_end_and_their_directory_is_removed() {
        let scratch = thalweg_lab::Scratch::below(None).unwrap();
        let directory = scratch.fresh("data").unwrap();
        std::fs::write(directory.join("file"), "x").unwrap();
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let mut leftovers = Leftovers {
            directory: Some(directory.clone()),
            groups: vec![scratch.path().join("no group")],
            processes: vec![child.id()],
        };
        remove(&mut leftovers);
        assert!(!directory.exists() && !child.wait().unwrap().success());
    }
}
