//! `top`: shows the figures of a running node, and refreshes them.
//!
//! Owns: the arguments, the readings of a server, and two loops: one for a terminal and one for a pipe. Does not own:
//! the computation ([`view`]), the lines ([`screen`]) and the terminal ([`terminal`]).
//!
//! A separate thread reads the figures from the server. So a server that does not answer does not delay the handling of
//! keys.

mod metrics;
mod screen;
mod terminal;
mod view;

use std::{
    io::{self, IsTerminal as _},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError},
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Value, json};

pub(super) use self::metrics::Metrics;
use self::{
    screen::Line,
    terminal::{Key, Terminal},
    view::{Reading, View},
};
use super::interrupt::Interrupt;
use crate::{
    args::ServerArgs,
    failure::Failure,
    render,
    session::Session,
    span::{parse_span, show_span},
};

const AFTER_HELP: &str = "\
On a terminal the figures fill the screen: q quits, the space bar refreshes. Elsewhere, and with --once or --json, they are
printed as text or as one JSON object a line. Rates and latencies are those of the interval before; latencies are the upper
bounds of histogram buckets, too high by a third at most, those of fsyncs by up to half.

Examples:
  thalweg top
  thalweg top --server db1:7070 --interval 5s
  thalweg top --once
  thalweg top --json --interval 10s >> figures.ndjson";

/// Shortest interval between two readings of the server's metrics that the user may choose. Reading the metrics of a
/// server with many groups takes some milliseconds of the server's processor time.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the command checks keys, signals and the size of the terminal.
const TICK: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Top {
    /// Time between two readings, at least 100ms
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = parse_span)]
    interval: Duration,
    /// Print the figures of one interval, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    place: ServerArgs,
}

pub(crate) fn run(args: &Top) -> Result<(), Failure> {
    if args.interval < MIN_INTERVAL {
        return Err(
            Failure::usage(format!("--interval {} is too short", show_span(args.interval))).then("use 100ms or more")
        );
    }
    if args.once || args.place.json || !io::stdout().is_terminal() {
        return print(args);
    }
    let interrupt = Interrupt::register()?;
    let mut readings = Readings::begin(&args.place)?;
    // The first reading is made before the screen is set up. If the address is wrong, the failure can still be printed
    // normally.
    let first = readings.wait(&interrupt)?;
    let terminal = Terminal::take()?;
    watch(args, &terminal, &interrupt, &mut readings, first)
}

/// Prints the figures after each interval, until a signal arrives or the reader of the output closes it.
fn print(args: &Top) -> Result<(), Failure> {
    let session = Session::of_server(&args.place)?;
    let mut before = read(&session)?;
    loop {
        let next = before.at + args.interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let now = read(&session)?;
        let view = View::of(Some(&before), &now);
        render::print_result(&json!(view), args.place.json, || {
            let lines = screen::lines(&view);
            lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
        })?;
        if args.once {
            return Ok(());
        }
        if !args.place.json {
            render::line("")?;
        }
        before = now;
    }
}

/// Shows the figures on a terminal until the user presses a key to quit, or a signal arrives.
fn watch(
    args: &Top,
    terminal: &Terminal,
    interrupt: &Interrupt,
    readings: &mut Readings,
    first: Reading,
) -> Result<(), Failure> {
    let mut due = first.at + args.interval;
    let mut lines = screen::lines(&View::of(None, &first));
    let (mut last, mut shown_size) = (first, None);
    loop {
        let size = terminal.size();
        // Draws only after a change of the figures (which resets `shown_size`) or of the terminal's size.
        if shown_size != Some(size) {
            terminal.show(&lines, size)?;
            shown_size = Some(size);
        }
        match terminal.key(TICK)? {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Refresh) => due = Instant::now(),
            None => {}
        }
        if interrupt.arrived() {
            return Ok(());
        }
        if Instant::now() >= due {
            readings.request();
        }
        match readings.poll()? {
            None => continue,
            Some(Ok(now)) => {
                lines = screen::lines(&View::of(Some(&last), &now));
                last = now;
            }
            // The figures of the last successful reading stay on the screen, below the failure.
            Some(Err(failure)) => {
                let is_repeated = lines.first().is_some_and(|line| line.text.starts_with(FAILURE));
                let text = format!("{FAILURE}{}", render::one_line(failure.message.as_bytes()));
                lines.splice(..usize::from(is_repeated), [Line { text, is_heading: true }]);
            }
        }
        due = Instant::now() + args.interval;
        shown_size = None;
    }
}

/// Beginning of the line that reports that the figures of the server could not be read.
const FAILURE: &str = "no answer: ";

/// Reads the status, the metrics and the cluster's members from a server.
fn read(session: &Session) -> Result<Reading, Failure> {
    let status = session.status()?;
    let members = if status["cluster"].is_object() {
        match session.cluster("members")?["members"].take() {
            Value::Array(members) => Some(members),
            _ => Some(Vec::new()),
        }
    } else {
        None
    };
    let metrics = session.metrics()?;
    Ok(Reading { at: Instant::now(), metrics: Metrics::parse(&metrics), status, members })
}

/// Handle of a thread that reads the figures of a server on request, one request at a time.
struct Readings {
    requests: Sender<()>,
    results: Receiver<Result<Reading, Failure>>,
    is_requested: bool,
}

impl Readings {
    /// Starts the thread that reads the server's figures, and makes the first request to it.
    fn begin(place: &ServerArgs) -> Result<Self, Failure> {
        let (requests, requested) = mpsc::channel::<()>();
        let (send, results) = mpsc::channel();
        let session = Session::of_server(place)?;
        std::thread::Builder::new().name("readings".to_owned()).spawn(move || {
            while requested.recv().is_ok() {
                if send.send(read(&session)).is_err() {
                    return;
                }
            }
        })?;
        let mut readings = Self { requests, results, is_requested: false };
        readings.request();
        Ok(readings)
    }

    /// Requests the server's figures from the thread, unless a request is in progress.
    fn request(&mut self) {
        if !self.is_requested {
            // If the thread has ended, `poll` reports the failure, so an error is ignored here.
            let _ = self.requests.send(());
            self.is_requested = true;
        }
    }

    /// Returns the result of the requested reading; `None` if it has not arrived. Fails if the thread that reads has
    /// ended. This happens only after a panic, before whose message the terminal gets its former mode back.
    fn poll(&mut self) -> Result<Option<Result<Reading, Failure>>, Failure> {
        match self.results.try_recv() {
            Ok(result) => {
                self.is_requested = false;
                Ok(Some(result))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone()),
        }
    }

    /// Waits until the thread has read the requested figures of the server. Fails if a signal arrives first.
    fn wait(&mut self, interrupt: &Interrupt) -> Result<Reading, Failure> {
        loop {
            match self.results.recv_timeout(TICK) {
                Ok(result) => {
                    self.is_requested = false;
                    return result;
                }
                Err(RecvTimeoutError::Timeout) if interrupt.arrived() => return Err(Interrupt::failure()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
    }
}

fn gone() -> Failure {
    Failure::new(crate::failure::Exit::Failed, "readings", "the thread that reads the figures has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_thread_ends_the_command() {
        let (requests, _requested) = mpsc::channel();
        let (send, results) = mpsc::channel();
        let mut readings = Readings { requests, results, is_requested: true };
        assert!(matches!(readings.poll(), Ok(None)));
        send.send(Err(gone())).unwrap();
        assert!(matches!(readings.poll(), Ok(Some(Err(_)))), "a failed reading ends nothing");
        drop(send);
        assert!(readings.poll().is_err());
    }
}
