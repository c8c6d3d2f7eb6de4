//! `lock`, `semaphore`, `elect`, `leader`: run a command while holding a lock, a slot or the leadership.
//!
//! Owns: the arguments, the user's command with its environment and signals, and the exit codes. Does not own: the
//! rules of locks, semaphores and elections (`thalweg_recipes`), or their requests (`session/coordination`).
//!
//! The command gets the fencing token in its environment. The lock, slot or leadership is called the *hold*. If the
//! hold is lost, this process ends the command. But ending it takes a moment, and this process may be paused before it
//! notices the loss. So work that must not overlap with the work of the next holder needs fencing.
//!
//! If this process is killed while it waits, its lease keeps its position in the queue until the TTL ends. If this
//! process is killed with SIGKILL while the command runs, the command continues without the hold.

use std::{
    ffi::OsString,
    os::unix::process::ExitStatusExt as _,
    process::{self, Child, ExitStatus},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, json};
use thalweg_recipes::{self as recipes, Acquire, Election, Hold, KeptHold, RecipeError};
use tokio::signal::unix::{SignalKind, signal};

use super::interrupt::Hangup;
use crate::{
    args::TargetArgs,
    failure::{Exit, Failure},
    render, retry,
    session::{Coordination, of_recipe},
    span::parse_span,
};

/// Interval at which the process checks that it still has the lock, slot or leadership.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time between SIGTERM and SIGKILL for a command that must end because its lock, slot or leadership is lost.
const GRACE: Duration = Duration::from_secs(5);

const AFTER_HELP: &str = "\
Environment of the command:
  THALWEG_FENCING_TOKEN  a number that is higher for each later holder. A resource that the command
                         changes should reject a token that is lower than one it has seen
  THALWEG_LOCK_KEYSPACE  and THALWEG_LOCK_KEY: a key that has this number as its revision while the
                         command holds. A transaction with that condition is a fenced write

The exit code is the command's (128 + N if signal N ended it). Otherwise:
  3  the command was not found
  4  the hold was lost while the command ran, and the command was ended
  5  not acquired in time, or the server is not reachable";

/// Options of `lock`, `semaphore` and `elect`, which run the user's command while they hold a lock, a slot or the
/// leadership.
#[derive(Args, Debug)]
pub(crate) struct HoldArgs {
    /// Time for which other clients have to wait if this process dies
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = parse_span)]
    pub ttl: Duration,
    /// Maximum time to wait, also for a server that is down at the start; 0s does not wait [default: no limit, but
    /// the command fails at once if the server is down at the start]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub wait: Option<Duration>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    #[command(flatten)]
    pub place: TargetArgs,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "thalweg lock [OPTIONS] <NAME> -- <COMMAND>...",
    after_help = format!("{AFTER_HELP}\n\nExamples:\n  thalweg lock nightly -- ./report.sh\n  \
                          thalweg lock nightly --wait 0s -- ./report.sh || echo busy")
)]
pub(crate) struct Lock {
    /// Name of the lock
    pub name: String,
    /// Name of the keyspace that stores the locks
    #[arg(long, value_name = "KEYSPACE", default_value = "locks")]
    pub keyspace: String,
    #[command(flatten)]
    pub run: HoldArgs,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "thalweg semaphore [OPTIONS] --slots <N> <NAME> -- <COMMAND>...",
    after_help = format!("{AFTER_HELP}\n\nExample:\n  thalweg semaphore downloads --slots 4 -- curl -O http://host/file")
)]
pub(crate) struct Semaphore {
    /// Name of the semaphore
    pub name: String,
    /// Maximum number of holders; every user must pass the same number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: u32,
    /// Name of the keyspace that stores the semaphores
    #[arg(long, value_name = "KEYSPACE", default_value = "semaphores")]
    pub keyspace: String,
    #[command(flatten)]
    pub run: HoldArgs,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "thalweg elect [OPTIONS] <NAME> --value <VALUE> -- <COMMAND>...",
    after_help = format!("{AFTER_HELP}\n\nExample:\n  thalweg elect scheduler --value $(hostname) -- ./scheduler")
)]
pub(crate) struct Elect {
    /// Name of the election
    pub name: String,
    /// Value that shows the leader to others
    #[arg(long, value_name = "VALUE")]
    pub value: String,
    /// Name of the keyspace that stores the elections
    #[arg(long, value_name = "KEYSPACE", default_value = "elections")]
    pub keyspace: String,
    #[command(flatten)]
    pub run: HoldArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "Prints token, tab, value.\n\nExamples:\n  thalweg leader scheduler\n  \
                        thalweg leader scheduler --follow\n\nEnds with 3 if there is no leader.")]
pub(crate) struct Leader {
    /// Name of the election
    pub name: String,
    /// Keep running and print each new leader, or `-` if there is none
    #[arg(long)]
    pub follow: bool,
    /// Name of the keyspace that stores the elections
    #[arg(long, value_name = "KEYSPACE", default_value = "elections")]
    pub keyspace: String,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn lock(args: &Lock) -> Result<(), Failure> {
    let lock = format!("lock {:?}", args.name);
    let run = &args.run;
    run_holding(run, &args.keyspace, &lock, |at, wait| {
        recipes::Lock::new(at, &args.name)?.acquire(&acquire(run, wait, ""))
    })
}

pub(crate) fn semaphore(args: &Semaphore) -> Result<(), Failure> {
    let (slots, semaphore) = (args.slots as usize, format!("semaphore {:?}", args.name));
    let run = &args.run;
    run_holding(run, &args.keyspace, &semaphore, |at, wait| {
        recipes::Semaphore::new(at, &args.name, slots)?.acquire(&acquire(run, wait, ""))
    })
}

pub(crate) fn elect(args: &Elect) -> Result<(), Failure> {
    let election = format!("election {:?}", args.name);
    let run = &args.run;
    run_holding(run, &args.keyspace, &election, |at, wait| {
        Election::new(at, &args.name)?.campaign(&acquire(run, wait, &args.value))
    })
}

fn acquire<'a>(run: &HoldArgs, wait: Option<Duration>, value: &'a str) -> Acquire<'a> {
    Acquire { ttl: run.ttl, wait, value: value.as_bytes() }
}

pub(crate) fn leader(args: &Leader) -> Result<(), Failure> {
    let at = Coordination::open(&args.place, &args.keyspace, args.place.timeout)?;
    let election = Election::new(at.clone(), &args.name).map_err(of_recipe)?;
    let shown = if args.follow { follow(&election, args.place.json) } else { show_leader(&election, args) };
    drop(election);
    shown.and(at.close())
}

fn show_leader(election: &Election<Coordination>, args: &Leader) -> Result<(), Failure> {
    match election.leader().map_err(of_recipe)? {
        Some(leader) => render::line(&leader_text(Some(&leader), args.place.json)),
        None => Err(Failure::new(Exit::NotFound, "no_leader", format!("election {:?} has no leader", args.name))
            .then("`thalweg elect` takes part; `thalweg leader --follow` waits for a leader")),
    }
}

fn follow(election: &Election<Coordination>, json: bool) -> Result<(), Failure> {
    let mut observer = election.observe();
    loop {
        match observer.next(Duration::from_secs(60)) {
            Ok(Some(leader)) => render::line(&leader_text(leader.as_ref(), json))?,
            Ok(None) => {}
            Err(RecipeError::Store(failure)) if failure.exit == Exit::Unavailable => {
                render::note(&format!("{failure}; retrying"));
                thread::sleep(Duration::from_secs(1));
            }
            Err(error) => return Err(of_recipe(error)),
        }
    }
}

fn leader_text(leader: Option<&recipes::Leader>, json: bool) -> String {
    match (leader, json) {
        (None, true) => json!({ "token": null }).to_string(),
        (None, false) => "-".to_owned(),
        (Some(leader), true) => {
            let mut object = Map::from_iter([("token".to_owned(), json!(leader.token.get()))]);
            render::insert_bytes(&mut object, "value", &leader.value);
            serde_json::Value::Object(object).to_string()
        }
        (Some(leader), false) => format!("{}\t{}", leader.token, render::one_line(&leader.value)),
    }
}

/// Acquires a lock, a slot or the leadership, runs the user's command, and releases the lock, slot or leadership. Ends
/// the process with the exit code of the command. `what` is the word for the lock, slot or leadership in messages.
fn run_holding(
    run: &HoldArgs,
    keyspace: &str,
    what: &str,
    acquire: impl FnOnce(Coordination, Option<Duration>) -> Result<Hold<Coordination>, RecipeError<Failure>>,
) -> Result<(), Failure> {
    let began = Instant::now();
    let at = open(run, keyspace)?;
    let left = run.wait.map(|wait| wait.saturating_sub(began.elapsed()));
    let held = acquire(at.clone(), left).map_err(|error| match error {
        RecipeError::TimedOut { .. } => {
            let failure = of_recipe(error);
            Failure { message: format!("{what} is {}", failure.message), ..failure }
        }
        error => of_recipe(error),
    })?;
    let kept = held.keep();
    let ran = run_command(&kept, keyspace, &run.command);
    if let Err(error) = kept.release()
        && ran.is_ok()
    {
        render::note(&format!("not released, so others wait until the TTL ends: {}", of_recipe(error)));
    }
    let closed = at.close();
    let status = ran?;
    closed?;
    match status.code().or_else(|| status.signal().map(|signal| 128 + signal)) {
        Some(0) => Ok(()),
        code => process::exit(code.unwrap_or(i32::from(Exit::Failed.code()))),
    }
}

/// Opens the node. With `--wait`, tries again while the node is not available, until the wait is over. Without
/// `--wait`, fails immediately: otherwise the command would wait forever because of a mistyped address.
fn open(run: &HoldArgs, keyspace: &str) -> Result<Coordination, Failure> {
    let open = || Coordination::open(&run.place, keyspace, run.ttl);
    match run.wait {
        Some(wait) => retry::while_unavailable(wait, open),
        None => open(),
    }
}

/// Event that occurs while the user's command runs.
enum Event {
    Ended(std::io::Result<ExitStatus>),
    /// This process has received a signal. It passes the signal on to the user's command.
    Received(Signal),
}

fn run_command(kept: &KeptHold<Coordination>, keyspace: &str, command: &[OsString]) -> Result<ExitStatus, Failure> {
    let (send, events) = channel();
    forward_signals(send.clone())?;
    let (program, arguments) = command.split_first().expect("the parser requires a command");
    let child = process::Command::new(program)
        .args(arguments)
        .env("THALWEG_FENCING_TOKEN", kept.token().to_string())
        .env("THALWEG_LOCK_KEYSPACE", keyspace)
        .env("THALWEG_LOCK_KEY", String::from_utf8_lossy(kept.key()).as_ref())
        .spawn()
        .map_err(|error| Failure::file(program.as_ref(), &error))?;
    let pid = Pid::from_child(&child);
    wait_for(child, send);
    while !kept.is_lost() {
        match events.recv_timeout(LOOK_EVERY) {
            Ok(Event::Ended(status)) => return Ok(status?),
            Ok(Event::Received(signal)) => send_signal(pid, signal),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    end(pid, &events);
    let message = format!("the hold with token {} was lost, and the command was ended", kept.token());
    Err(Failure::new(Exit::Conflict, "lease_lost", message)
        .then("another client may hold it already; check what the command has done before you run it again"))
}

/// Ends the user's command with SIGTERM. Sends SIGKILL if the command still runs after [`GRACE`].
fn end(pid: Pid, events: &Receiver<Event>) {
    send_signal(pid, Signal::TERM);
    let ended = |patience| loop {
        match events.recv_timeout(patience) {
            Ok(Event::Ended(_)) | Err(RecvTimeoutError::Disconnected) => return true,
            Ok(Event::Received(_)) => {}
            Err(RecvTimeoutError::Timeout) => return false,
        }
    };
    if !ended(GRACE) {
        send_signal(pid, Signal::KILL);
        ended(GRACE);
    }
}

/// Sends a signal to a process. Errors are ignored, because a process that has already ended needs no signal.
fn send_signal(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

fn wait_for(mut child: Child, send: Sender<Event>) {
    thread::spawn(move || {
        let _ = send.send(Event::Ended(child.wait()));
    });
}

/// Passes SIGTERM and SIGHUP on to the user's command from now on. The terminal itself sends SIGINT to both processes.
/// The command decides how it handles a signal. This process does not end by these signals: it waits until the command
/// ends, and then releases the lock, slot or leadership. Otherwise a command that survives a SIGHUP would continue
/// without the lock.
fn forward_signals(send: Sender<Event>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = Hangup::register()?;
    drop(entered);
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let received = tokio::select! {
                    _ = terminate.recv() => Signal::TERM,
                    () = hangup.received() => Signal::HUP,
                    _ = interrupt.recv() => continue,
                };
                if send.send(Event::Received(received)).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}
