//! Signals that end a command. Before they end, some commands must restore a terminal's mode or remove a file.
//!
//! Without this module, the default action of a signal would end the process immediately. A process that was started
//! with SIGHUP ignored, as with `nohup`, still ignores SIGHUP: a handler would undo this, in the process and in its
//! children.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Exit, Failure};

/// Flag that SIGINT, SIGTERM and SIGHUP set.
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Registers for SIGINT, SIGTERM and SIGHUP. From now on these signals only set the flag, and the command must
    /// check it.
    pub(super) fn register() -> Result<Self, Failure> {
        let flag = Self(Arc::new(AtomicBool::new(false)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (mut interrupt, mut terminate, mut hangup) = {
            let _context = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, Hangup::register()?)
        };
        let set = flag.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    () = hangup.received() => {}
                }
            });
            set.0.store(true, Ordering::Relaxed);
        })?;
        Ok(flag)
    }

    /// Returns true once one of the registered signals has arrived.
    pub(super) fn arrived(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the failure of a command that a signal has ended.
    pub(super) fn failure() -> Failure {
        Failure::new(Exit::Failed, "interrupted", "interrupted by a signal")
    }
}

/// Receiver of SIGHUP. It receives nothing if the process was started with SIGHUP ignored.
#[derive(Debug)]
pub(super) struct Hangup(Option<Signal>);

impl Hangup {
    /// Registers for SIGHUP. Must be called within a tokio runtime.
    pub(super) fn register() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let received = if is_hangup_ignored(&status) { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self(received))
    }

    /// Waits for SIGHUP. Waits forever if the process ignores SIGHUP.
    pub(super) async fn received(&mut self) {
        match &mut self.0 {
            Some(hangup) => {
                hangup.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

/// Returns true if this text of `/proc/PID/status` says that the process ignores SIGHUP (signal number 1).
fn is_hangup_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_recognised() {
        assert!(is_hangup_ignored("Name:\tthalweg\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n"));
        assert!(!is_hangup_ignored("Name:\tthalweg\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!is_hangup_ignored(""));
    }
}
