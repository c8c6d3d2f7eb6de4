//! Running `perf` on a process.
//!
//! Owns: the process of `perf`, its files, and its errors in words. Does not own: the text that `perf` prints
//! (`script`), or other kinds of recordings (`recording`, `alloc`).
//!
//! Invariant: dropping a recording ends `perf` and removes its files.

use std::{
    io::BufReader,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    kind::{Profile, ProfileKind},
    script::Script,
};
use crate::BenchError;

/// Number of samples of each thread per second. Each sample has several kilobytes of the thread's stack. perf states
/// the number of events that a sample represents. The number is prime, so that samples do not coincide with the timers
/// of programs.
const SAMPLES_PER_SECOND: &str = "199";
/// Bytes of the stack that perf copies with each sample. perf finds the callers in them.
const STACK_BYTES: u32 = 8192;
/// Longest wait for perf to begin. On a busy machine perf takes seconds to read the kernel's symbols.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which the state of perf is checked. perf offers no event to wait for.
const LOOK: Duration = Duration::from_millis(20);
/// Shell command that perf starts when it has begun to record. It creates the file that its argument names, and then
/// sleeps until perf ends it.
const TELL: &str = "echo begun > \"$0\" && exec sleep 86400";
/// Maximum number of attempts to begin a recording. perf ends without a message if a thread of the recorded process
/// ends while perf attaches to this process.
const ATTEMPTS: usize = 20;
/// Longest wait for perf to write its file after perf was told to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// A running `perf record` of a process. Dropping it ends perf and removes its file.
#[derive(Debug)]
pub(super) struct PerfRecording {
    kind: ProfileKind,
    child: Child,
    file: PathBuf,
    errors: PathBuf,
}

/// Result of waiting until `perf` records.
enum Wait {
    Begun,
    Ended,
    TimedOut,
}

impl PerfRecording {
    /// Checks that perf can record this kind of profile of a process. Files are written to `dir`.
    pub(super) fn check(kind: ProfileKind, process: u32, dir: &Path) -> Result<(), BenchError> {
        let file = dir.join("perf-check.data");
        attempt(|| {
            let mut command = record(kind, process, &file);
            let output = command.args(["--", "sleep", "0.05"]).stdin(Stdio::null()).output();
            let _ = std::fs::remove_file(&file);
            let output = output.map_err(|error| missing(&error))?;
            Ok(if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) })
        })?
        .map_err(|said| refused(kind, &said))
    }

    /// Begins to record a profile of a process. Files are written to `dir`.
    pub(super) fn begin(kind: ProfileKind, process: u32, dir: &Path) -> Result<Self, BenchError> {
        attempt(|| Self::try_begin(kind, process, dir))?.map_err(|said| refused(kind, &said))
    }

    /// Starts perf and waits until it records. If perf ends instead, returns its message as the inner error.
    fn try_begin(kind: ProfileKind, process: u32, dir: &Path) -> Result<Result<Self, String>, BenchError> {
        let (file, errors) = (dir.join("perf.data"), dir.join("perf.errors"));
        let log = std::fs::File::create(&errors).map_err(BenchError::files(&errors))?;
        let begun = dir.join("perf.begun");
        let _ = std::fs::remove_file(&begun);
        let mut command = record(kind, process, &file);
        command.args(["--", "sh", "-c", TELL]).arg(&begun);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut recording = Self { kind, child: child.map_err(|error| missing(&error))?, file, errors };
        match recording.wait_for(&begun) {
            Wait::Begun => {}
            Wait::Ended => return Ok(Err(std::fs::read_to_string(&recording.errors).unwrap_or_default())),
            Wait::TimedOut => return Ok(Err(format!("perf did not begin within {BEGIN_TIMEOUT:?}"))),
        }
        let _ = std::fs::remove_file(&begun);
        Ok(Ok(recording))
    }

    /// Waits until perf records. perf reports this by creating the file `begun`.
    fn wait_for(&mut self, begun: &Path) -> Wait {
        let since = Instant::now();
        while !begun.exists() {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return Wait::Ended;
            }
            if since.elapsed() > BEGIN_TIMEOUT {
                return Wait::TimedOut;
            }
            std::thread::sleep(LOOK);
        }
        Wait::Begun
    }

    /// Ends the recording and reads its stacks. Reading can take as long as the recording.
    pub(super) fn end(mut self) -> Result<Profile, BenchError> {
        let is_good = self.stop();
        let kind = self.kind;
        if !is_good {
            return Err(refused(kind, &std::fs::read_to_string(&self.errors).unwrap_or_default()));
        }
        let mut command = Command::new("perf");
        // Without `--no-inline`, perf takes minutes to find the names of inlined functions in a program of this size.
        command.args(["script", "--no-inline", "-F", "comm,tid,time,period,event,ip,sym,dso"]);
        if kind != ProfileKind::Cpu {
            command.arg("--show-switch-events");
        }
        command.arg("-i").arg(&self.file).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| missing(&error))?;
        let text = child.stdout.take().expect("the output is piped");
        let script = Script::read(BufReader::new(text), kind);
        let ended = child.wait();
        let script = script.map_err(BenchError::files(&self.file))?;
        if !ended.is_ok_and(|status| status.success()) {
            return Err(refused(kind, "perf script failed"));
        }
        let nameless = script.nameless as f64 / (script.samples as f64).max(1.0);
        Ok(Profile { kind, stacks: script.stacks, samples: script.samples, nameless })
    }

    /// Ends perf and waits until it has written its file. Returns false if perf has not written it in time.
    fn stop(&mut self) -> bool {
        if let Ok(Some(_)) = self.child.try_wait() {
            return false; // perf ended by itself
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::INT);
        }
        let begun = Instant::now();
        while begun.elapsed() < END_TIMEOUT {
            if let Ok(Some(_)) = self.child.try_wait() {
                return self.file.exists(); // its status is that of the signal
            }
            std::thread::sleep(LOOK);
        }
        false
    }
}

impl Drop for PerfRecording {
    fn drop(&mut self) {
        // If perf were killed, the process that it has started would remain and sleep for a day.
        self.stop();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_file(&self.errors);
    }
}

/// Calls `begin`, which starts perf, and repeats the call while perf ends without a message. If perf does not start,
/// returns its last message as the inner error.
fn attempt<T>(begin: impl Fn() -> Result<Result<T, String>, BenchError>) -> Result<Result<T, String>, BenchError> {
    for _ in 1..ATTEMPTS {
        let begun = begin()?;
        if !begun.as_ref().is_err_and(|said| said.trim().is_empty()) {
            return Ok(begun);
        }
    }
    begin()
}

fn record(kind: ProfileKind, process: u32, file: &Path) -> Command {
    let mut command = Command::new("perf");
    command.args(["record", "--quiet", "--pid", &process.to_string(), "--output"]).arg(file);
    command.arg("--call-graph").arg(format!("dwarf,{STACK_BYTES}"));
    if kind == ProfileKind::Cpu {
        // The event is a clock. Virtual machines do not have the processor's counters.
        command.args(["--event", "cpu-clock"]);
    } else {
        command.args(["--event", "sched:sched_switch", "--switch-events"]);
    }
    command.args(["-F", SAMPLES_PER_SECOND]);
    command
}

fn missing(error: &std::io::Error) -> BenchError {
    let message = if error.kind() == std::io::ErrorKind::NotFound {
        "perf is not installed: install it (package linux-perf on Debian, linux-tools on Ubuntu, perf elsewhere), or leave \
         --profile out"
            .to_owned()
    } else {
        format!("perf cannot be started: {error}")
    };
    BenchError::Profile { message }
}

/// Makes the error for a profile that perf did not record. `said` is the text that perf printed.
fn refused(kind: ProfileKind, said: &str) -> BenchError {
    let remedy = if kind == ProfileKind::Cpu {
        "run as the server's user with kernel.perf_event_paranoid at 2 or lower (sysctl), or as root"
    } else {
        "scheduler events need root or CAP_PERFMON, and a mounted tracefs (/sys/kernel/tracing)"
    };
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).take(2).collect();
    BenchError::Profile { message: format!("perf recorded nothing ({}): {remedy}", said.join(" ")) }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;
    use crate::{Scratch, report::skip::skip};

    /// Records a profile of this process while `work` runs on threads. Returns `None`, and prints the reason, if perf
    /// cannot record.
    fn profiled(test: &str, kind: ProfileKind, work: impl Fn() + Send + Sync) -> Option<Profile> {
        let scratch = Scratch::below(None).unwrap();
        let process = std::process::id();
        if let Err(error) = PerfRecording::check(kind, process, scratch.path()) {
            skip(test, &error.to_string());
            return None;
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        work();
                    }
                });
            }
            let profile = PerfRecording::begin(kind, process, scratch.path()).map(|recording| {
                std::thread::sleep(Duration::from_millis(1500));
                recording.end()
            });
            // The threads must end before the test reports a failure, because the scope waits for them.
            stop.store(true, Ordering::Relaxed);
            assert!(!scratch.path().join("perf.data").exists(), "the file is removed");
            Some(profile.unwrap().unwrap())
        })
    }

    #[inline(never)]
    fn burn_for_the_profile() {
        for number in 0..2_000_000_u64 {
            std::hint::black_box(number);
        }
    }

    #[test]
    fn a_busy_function_is_found_by_its_name() {
        let Some(profile) = profiled("a_busy_function_is_found_by_its_name", ProfileKind::Cpu, burn_for_the_profile)
        else {
            return;
        };
        assert!(profile.samples > 5, "{}", profile.samples);
        let functions = profile.stacks.functions(20);
        let found = functions.iter().find(|(name, ..)| name.contains("burn_for_the_profile"));
        let (_, _, whole) = found.unwrap_or_else(|| panic!("{functions:?}"));
        assert!(*whole > 0.3 * profile.stacks.root().weight, "{functions:?}");
    }

    #[test]
    fn waiting_for_a_lock_is_found() {
        let lock = Arc::new(Mutex::new(0_u64));
        let work = || {
            let mut count = lock.lock().unwrap();
            *count += 1;
            std::thread::sleep(Duration::from_millis(1));
        };
        let Some(profile) = profiled("waiting_for_a_lock_is_found", ProfileKind::Lock, work) else { return };
        let functions = profile.stacks.functions(50);
        assert!(profile.stacks.root().weight > 0.05, "{functions:?}");
        assert!(functions.iter().any(|(name, ..)| name.contains("lock_contended")), "{functions:?}");
    }

    #[test]
    fn a_dropped_recording_leaves_no_process() {
        let (scratch, process) = (Scratch::below(None).unwrap(), std::process::id());
        if let Err(error) = PerfRecording::check(ProfileKind::Cpu, process, scratch.path()) {
            return skip("a_dropped_recording_leaves_no_process", &error.to_string());
        }
        let recording = PerfRecording::begin(ProfileKind::Cpu, process, scratch.path()).unwrap();
        let perf = recording.child.id();
        let started = std::fs::read_to_string(format!("/proc/{perf}/task/{perf}/children")).unwrap_or_default();
        drop(recording);
        // A process that has ended stays as a zombie until its parent waits for it.
        let lives = |id: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, state)| !state.trim_start().starts_with(['Z', 'X']))
        };
        let begun = Instant::now();
        while started.split_whitespace().any(lives) {
            assert!(begun.elapsed() < END_TIMEOUT, "{started} still live");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn a_process_that_does_not_exist_is_an_error_with_a_remedy() {
        let scratch = Scratch::below(None).unwrap();
        let error = PerfRecording::check(ProfileKind::Cpu, u32::MAX / 2, scratch.path()).unwrap_err();
        assert!(matches!(error, BenchError::Profile { .. }), "{error}");
        assert!(error.to_string().contains("perf"), "{error}");
    }
}
