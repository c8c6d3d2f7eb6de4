//! `consume`: acts as a member of a consumer group. Prints the delivered records, or runs a command for each.
//!
//! Owns: the fetches and pushes of one member, the user's command for each record, and the acks. Does not own: managing
//! groups and acking by hand (`groups`), or the connection to the server (`session`).
//!
//! A record is acked only after it was printed, or after its command succeeded. So however this process ends, the group
//! delivers each record that was not handled again, to this member or to another.

use std::{
    collections::BTreeMap,
    io::Write,
    ops::ControlFlow,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::record::{self, RecordFormat};
use crate::{
    args::TargetArgs,
    failure::{Exit, Failure},
    render::{self, Lines},
    retry,
    session::{Access, GroupCall, PushRequest, Session, StreamRecord},
    span::{parse_bytes, parse_span},
};

/// Maximum time that one fetch waits for records. It is short, so that the command soon notices the loss of the server.
const WAIT_AT_A_TIME: Duration = Duration::from_secs(10);
/// Time for which `--follow` and `--push` try to reach a server again, after the server was lost or if it is down at
/// the start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Choice of the time at which records are acked.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// Ack records after they were printed, or after their command succeeded
    Auto,
    /// Ack nothing; ack with `thalweg groups ack` and the attempt that is printed with each record
    None,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Prints the records that the group delivers, and ends when none is left unless --wait or --follow is given. \
                  Records that are not acked when this command ends are delivered again after the group's deadline.\n\n\
                  --exec runs the command in a shell for each record, one after the other. The command gets the payload \
                  on stdin, and RECORD_OFFSET, RECORD_KEY, RECORD_TIME_MICROS, RECORD_DELIVERIES and RECORD_ATTEMPT in \
                  the environment. Exit code 0 acks the record. Otherwise the record is returned to the group, and is \
                  delivered again after --retry-delay. The deadline is extended while the command runs.\n\n\
                  Examples:\n  thalweg consume orders --group billing\n  \
                  thalweg consume orders --group billing --follow --exec './bill'\n  \
                  thalweg consume orders --group billing --push --batch 10 | ./bill-them\n  \
                  thalweg consume orders --group billing --create --limit 1 --ack none --json\n\n\
                  Ends with 1 if a command of --exec failed."
)]
pub(crate) struct Consume {
    /// Name of the stream
    pub stream: String,
    /// Name of the consumer group
    #[arg(long, short, value_name = "NAME")]
    pub group: String,
    /// The name of this member, shown by `thalweg groups show`
    #[arg(long, short, value_name = "NAME", default_value = "default")]
    pub member: String,
    /// Create the group if it does not exist, beginning with the oldest record
    #[arg(long)]
    pub create: bool,
    /// Maximum number of records in a fetch
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub batch: u32,
    /// End after this number of records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Maximum time to wait for a record before the command ends
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "0s", conflicts_with = "follow")]
    pub wait: Duration,
    /// Wait for records without a limit; a server that is down is tried again for a minute
    #[arg(long, short)]
    pub follow: bool,
    /// Wait for records without a limit, and let the server push them; at most --batch of them are unacked at a time
    #[arg(long, conflicts_with_all = ["wait", "follow", "exec"])]
    pub push: bool,
    /// Maximum bytes of unacked records; at this number the server pauses the push
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "push")]
    pub credit_bytes: Option<u64>,
    /// Time at which records are acked
    #[arg(long, value_enum, default_value = "auto")]
    pub ack: Acks,
    /// Run this command for each record
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["payload_only", "ack"])]
    pub exec: Option<String>,
    /// Time after which a record whose command failed is delivered again
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "5s", requires = "exec")]
    pub retry_delay: Duration,
    #[command(flatten)]
    pub format: RecordFormat,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// A record that a consumer group has delivered, with the number of its deliveries.
struct Message {
    record: StreamRecord,
    deliveries: u64,
}

struct Batch {
    attempt: u64,
    messages: Vec<Message>,
}

impl Batch {
    /// Returns the offsets of the batch as ranges of consecutive records. Each range has its first and its last offset
    /// (inclusive).
    fn ranges(&self) -> Vec<[u64; 2]> {
        let mut ranges: Vec<[u64; 2]> = Vec::new();
        for Message { record, .. } in &self.messages {
            match ranges.last_mut() {
                Some([_, last]) if *last + 1 == record.offset => *last = record.offset,
                _ => ranges.push([record.offset; 2]),
            }
        }
        ranges
    }
}

pub(crate) fn run(args: &Consume) -> Result<(), Failure> {
    let access = if args.create { Access::Write } else { Access::Read };
    let failed = Session::with(&args.place, access, |session| {
        // With these options the command may run as a service, which may start before its server.
        let patience = if args.follow || args.push { PATIENCE } else { Duration::ZERO };
        let deadline = retry::while_unavailable(patience, || deadline(args, session))?;
        let member = Member { args, session, deadline };
        if args.push { member.take_pushed().map(|()| 0) } else { member.consume() }
    })?;
    match failed {
        0 => Ok(()),
        failed => {
            let message = format!("the command failed {}", render::counted(failed, "time", "times"));
            Err(Failure::new(Exit::Failed, "exec_failed", message)
                .then("its records are delivered again, until their deliveries reach --max-deliveries of the group"))
        }
    }
}

/// Returns the time within which a member of the consumer group must ack a record. Creates the group if the user has
/// requested this.
fn deadline(args: &Consume, session: &Session) -> Result<Duration, Failure> {
    let group = if args.create {
        session.group(GroupCall::Create, &args.stream, &args.group, &json!({}))?
    } else {
        session.group(GroupCall::Get, &args.stream, &args.group, &Value::Null)?
    };
    let seconds = group["config"]["ack_deadline_seconds"].as_f64().unwrap_or(30.0);
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(30)))
}

struct Member<'a> {
    args: &'a Consume,
    session: &'a Session,
    deadline: Duration,
}

impl Member<'_> {
    /// Fetches and handles records until the limit is reached or no record arrives in time. Returns the number of
    /// records for which the user's command failed.
    fn consume(&self) -> Result<u64, Failure> {
        let (mut lines, mut left, mut failed) = (Lines::new(), self.args.limit.unwrap_or(u64::MAX), 0);
        let mut until = Instant::now() + self.args.wait;
        while left > 0 {
            let batch = self.fetch(left, until)?;
            if batch.messages.is_empty() {
                if self.args.follow || Instant::now() < until {
                    continue;
                }
                break;
            }
            left -= (batch.messages.len() as u64).min(left);
            match &self.args.exec {
                Some(command) => failed += self.exec(command, &batch)?,
                None => self.show(&mut lines, &batch)?,
            }
            until = Instant::now() + self.args.wait;
        }
        Ok(failed)
    }

    /// Prints the records that the server pushes. Continues after restarts of the server, and after its cluster has
    /// elected another leader.
    fn take_pushed(&self) -> Result<(), Failure> {
        let (mut lines, mut left, mut lost_at) = (Lines::new(), self.args.limit.unwrap_or(u64::MAX), None);
        while left > 0 {
            let ask = PushRequest {
                member: &self.args.member,
                credit_records: self.args.batch,
                credit_bytes: self.args.credit_bytes,
                limit: self.args.limit.map(|_| left),
            };
            let pushed = self.session.push(&self.args.stream, &self.args.group, &ask, &mut |records| {
                lost_at = None;
                let messages = records.iter().map(pushed_message).collect::<Option<Vec<_>>>().ok_or_else(not_ours)?;
                left -= (messages.len() as u64).min(left);
                for batch in batches(messages) {
                    self.show(&mut lines, &batch)?;
                }
                Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            let lost = match pushed {
                Err(failure) if failure.exit != Exit::Unavailable => return Err(failure),
                pushed => pushed,
            };
            let since = *lost_at.get_or_insert_with(Instant::now);
            if left > 0 && since.elapsed() > PATIENCE {
                return lost;
            }
            thread::sleep(retry::PAUSE.min(Duration::from_millis(left)));
        }
        Ok(())
    }

    fn call(&self, call: GroupCall, body: &Value) -> Result<Value, Failure> {
        self.session.group(call, &self.args.stream, &self.args.group, body)
    }

    /// Fetches records of the consumer group once, at most `left` of them, and waits for them until `until` at most.
    /// With `--follow`, tries again while the server restarts.
    fn fetch(&self, left: u64, until: Instant) -> Result<Batch, Failure> {
        let wait = if self.args.follow { WAIT_AT_A_TIME } else { until.saturating_duration_since(Instant::now()) };
        let body = json!({
            "member": self.args.member,
            "max_records": u64::from(self.args.batch).min(left),
            "wait_seconds": wait.min(WAIT_AT_A_TIME).min(self.args.place.timeout / 2).as_secs_f64(),
        });
        let patience = if self.args.follow { PATIENCE } else { Duration::ZERO };
        let answer = retry::while_unavailable(patience, || self.call(GroupCall::Fetch, &body))?;
        batch_of(&answer).ok_or_else(not_ours)
    }

    fn show(&self, lines: &mut Lines, batch: &Batch) -> Result<(), Failure> {
        for Message { record, deliveries } in &batch.messages {
            let object = self.args.place.json.then(|| {
                let mut object = record.object();
                object.insert("attempt".into(), json!(batch.attempt));
                object.insert("deliveries".into(), json!(deliveries));
                Value::Object(object)
            });
            record::show(lines, &self.args.format, object, &record.record, || match self.args.ack {
                Acks::None => format!("{}\t{}", batch.attempt, record::stream_text(record)),
                Acks::Auto => record::stream_text(record),
            })?;
        }
        // Records are acked only after they were printed, so the output is flushed first.
        lines.flush()?;
        if self.args.ack == Acks::Auto {
            let done = json!([{ "attempt": batch.attempt, "ranges": batch.ranges() }]);
            self.settle(GroupCall::Ack, &json!({ "attempts": done }))?;
        }
        Ok(())
    }

    /// Runs the user's command for each record of a batch. Returns the number of records for which the command failed.
    fn exec(&self, command: &str, batch: &Batch) -> Result<u64, Failure> {
        let mut failed = 0;
        for message in &batch.messages {
            let offset = message.record.offset;
            let one = json!([{ "attempt": batch.attempt, "ranges": [[offset, offset]] }]);
            let keep = || {
                let by = self.deadline.as_secs_f64();
                // An error is ignored. If the server is back before the deadline, a later call extends the deadline;
                // otherwise the group delivers the record again.
                let _ = self.call(GroupCall::Extend, &json!({ "attempts": [batch.attempt], "by_seconds": by }));
            };
            let status = run_command(command, batch.attempt, message, self.deadline / 3, &keep)?;
            if status.success() {
                self.settle(GroupCall::Ack, &json!({ "attempts": one }))?;
                continue;
            }
            failed += 1;
            render::note(&format!("offset {offset}: the command ended with {status}"));
            let delay = self.args.retry_delay.as_secs_f64();
            let reason = format!("its command ended with {status}");
            self.settle(GroupCall::Nack, &json!({ "attempts": one, "delay_seconds": delay, "reason": reason }))?;
        }
        Ok(failed)
    }

    /// Acks or nacks records. With `--follow` and `--push`, tries again while the server is not available, for example
    /// while a cluster elects a leader. Until their deadline the records stay with this member, even if another node
    /// becomes the leader.
    fn settle(&self, call: GroupCall, body: &Value) -> Result<(), Failure> {
        let goes_on = self.args.follow || self.args.push;
        let patience = if goes_on { PATIENCE.min(self.deadline) } else { Duration::ZERO };
        let settled = match retry::while_unavailable(patience, || self.call(call, body)) {
            Err(failure) if failure.exit == Exit::Unavailable && goes_on => {
                render::note("the server is not reachable; records without an ack are delivered again");
                return Ok(());
            }
            settled => settled?,
        };
        if settled["lapsed"].as_array().is_some_and(|lapsed| !lapsed.is_empty()) {
            let what = &settled["lapsed"];
            render::note(&format!("the deadline has passed, so these are delivered again: {what}"));
        }
        Ok(())
    }
}

fn not_ours() -> Failure {
    Failure::new(Exit::Failed, "not_thalweg", "the reply is not from a Thalweg server")
        .then("check --server or THALWEG_SERVER, and that server and command have the same version")
}

fn batch_of(answer: &Value) -> Option<Batch> {
    let message = |value: &Value| {
        let record = StreamRecord::of(value.as_object()?)?;
        Some(Message { record, deliveries: value["deliveries"].as_u64()? })
    };
    let messages = answer["messages"].as_array()?.iter().map(message).collect::<Option<Vec<_>>>()?;
    let attempt = if messages.is_empty() { 0 } else { answer["attempt"].as_u64()? };
    Some(Batch { attempt, messages })
}

/// Parses a pushed record. Returns the number of the delivery attempt and the record.
fn pushed_message(object: &Map<String, Value>) -> Option<(u64, Message)> {
    let message = Message { record: StreamRecord::of(object)?, deliveries: object.get("deliveries")?.as_u64()? };
    Some((object.get("attempt")?.as_u64()?, message))
}

/// Groups consecutive pushed records that belong to the same delivery attempt.
fn batches(messages: Vec<(u64, Message)>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (attempt, message) in messages {
        match batches.last_mut() {
            Some(batch) if batch.attempt == attempt => batch.messages.push(message),
            _ => batches.push(Batch { attempt, messages: vec![message] }),
        }
    }
    batches
}

/// Returns the environment variables for the command that handles a record. Leaves out a key that is not valid in an
/// environment.
fn variables(attempt: u64, message: &Message) -> BTreeMap<&'static str, String> {
    let Message { record, deliveries } = message;
    let mut variables = BTreeMap::from([
        ("RECORD_OFFSET", record.offset.to_string()),
        ("RECORD_TIME_MICROS", record.time.to_string()),
        ("RECORD_DELIVERIES", deliveries.to_string()),
        ("RECORD_ATTEMPT", attempt.to_string()),
    ]);
    let key = record.record.key.clone().and_then(|key| String::from_utf8(key).ok()).filter(|key| !key.contains('\0'));
    if let Some(key) = key {
        variables.insert("RECORD_KEY", key);
    }
    variables
}

/// Runs a command in a shell. Calls `keep` each time that the interval `every` has passed while the command runs.
fn run_command(
    command: &str,
    attempt: u64,
    message: &Message,
    every: Duration,
    keep: &dyn Fn(),
) -> Result<ExitStatus, Failure> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env_remove("RECORD_KEY").envs(variables(attempt, message)).stdin(Stdio::piped());
    let mut child = shell.spawn()?;
    let stdin = child.stdin.take();
    thread::scope(|scope| {
        scope.spawn(move || {
            // An error of the write is ignored, because a command need not read its stdin.
            stdin.map(|mut stdin| stdin.write_all(&message.record.record.payload))
        });
        let (ended, end) = mpsc::channel();
        scope.spawn(move || ended.send(child.wait()));
        loop {
            match end.recv_timeout(every.max(Duration::from_millis(10))) {
                Ok(status) => return Ok(status?),
                Err(RecvTimeoutError::Timeout) => keep(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(Exit::Failed, "exec", "waiting for the command failed"));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Record;

    fn message(key: &[u8], payload: &[u8]) -> Message {
        let record = Record { key: Some(key.to_vec()), payload: payload.to_vec(), ..Record::default() };
        let record = StreamRecord { offset: 7, record, ..StreamRecord::default() };
        Message { record, deliveries: 2 }
    }

    #[test]
    fn a_command_gets_its_record_and_is_kept_alive() {
        let kept = std::cell::Cell::new(0);
        let keep = || kept.set(kept.get() + 1);
        let command = "test \"$(cat)\" = payload && test $RECORD_OFFSET-$RECORD_KEY-$RECORD_DELIVERIES = 7-k-2";
        let long = Duration::from_secs(60);
        assert!(run_command(command, 1, &message(b"k", b"payload"), long, &keep).unwrap().success());
        assert!(!run_command("exit 3", 1, &message(b"k", &[0; 1 << 20]), long, &keep).unwrap().success());
        assert_eq!(kept.get(), 0);
        // On a machine that stalls, a short command may end before the first check. So longer commands are tried too.
        for command in ["sleep 0.1", "sleep 1", "sleep 10"] {
            run_command(command, 1, &message(b"k", b""), Duration::from_millis(20), &keep).unwrap();
            if kept.get() > 0 {
                return;
            }
        }
        panic!("it is not kept alive");
    }

    #[test]
    fn what_is_pushed_is_acked_by_attempt_and_runs_of_offsets() {
        let at = |offset| {
            let record = StreamRecord { offset, ..StreamRecord::default() };
            Message { record, deliveries: 1 }
        };
        let pushed = [(7, 1), (7, 2), (7, 4), (8, 5), (7, 6)].map(|(attempt, offset)| (attempt, at(offset)));
        let found: Vec<_> = batches(pushed.into()).iter().map(|batch| (batch.attempt, batch.ranges())).collect();
        assert_eq!(found, [(7, vec![[1, 2], [4, 4]]), (8, vec![[5, 5]]), (7, vec![[6, 6]])]);
    }

    #[test]
    fn keys_that_no_environment_can_hold_are_left_out() {
        assert_eq!(variables(1, &message(b"a b", b"")).get("RECORD_KEY").map(String::as_str), Some("a b"));
        assert_eq!(variables(1, &message(b"a\0b", b"")).get("RECORD_KEY"), None);
        assert_eq!(variables(1, &message(b"\xff", b"")).get("RECORD_KEY"), None);
    }

    #[test]
    fn answers_that_make_no_sense_are_none() {
        assert!(batch_of(&json!({ "messages": [] })).is_some());
        assert!(pushed_message(json!({ "offset": 1, "payload": "", "deliveries": 1 }).as_object().unwrap()).is_none());
        for bad in [json!({}), json!({ "messages": [{}] }), json!({ "messages": [{ "offset": 1, "payload": "" }] })] {
            assert!(batch_of(&bad).is_none(), "{bad}");
        }
    }
}
