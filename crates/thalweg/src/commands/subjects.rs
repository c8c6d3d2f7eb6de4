//! `publish`, `subscribe`, `request`, `reply`: exchange messages with current subscribers.

use std::{
    io::{BufRead, Write as _},
    ops::ControlFlow,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::stream::{STDIN_BATCH, parse_header, strip_newline};
use crate::{
    cli::RecordFormat,
    failure::Failure,
    render::{self, Lines},
    span::{parse_bytes, parse_span},
    target::{
        NewRecord, ServerPlace,
        remote::record_object,
        subjects::{self, Message, Published, SubscribeQuery, Told},
    },
};

#[derive(Args, Debug)]
#[command(
    after_help = "Prints how many messages went to how many subscriptions. Nobody subscribed is no error: a subject \
                  stores nothing. What must not be lost is appended to a stream.\n\n\
                  Examples:\n  thalweg publish orders.eu.created '{\"id\": 7}'\n  \
                  tail -f access.log | thalweg publish logs.web\n  \
                  thalweg publish config.changed --file config.toml --key web"
)]
pub struct Publish {
    /// The subject: tokens joined by dots
    pub subject: String,
    /// One message each; none reads stdin, one message a line
    pub messages: Vec<String>,
    /// Publish a whole file as one message
    #[arg(long, value_name = "FILE", conflicts_with = "messages")]
    pub file: Option<PathBuf>,
    /// The messages' key
    #[arg(long)]
    pub key: Option<String>,
    /// A header of the messages; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE")]
    pub headers: Vec<String>,
    /// The subject to which answers are to be published
    #[arg(long, value_name = "SUBJECT")]
    pub reply: Option<String>,
    /// Wait so long for subscribers that ask publishers to wait [default: 5s]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub wait: Option<Duration>,
    #[command(flatten)]
    pub place: ServerPlace,
}

pub fn publish(args: &Publish) -> Result<(), Failure> {
    let headers = args.headers.iter().map(|header| parse_header(header)).collect::<Result<Vec<_>, _>>()?;
    let message = |payload: Vec<u8>| NewRecord {
        key: args.key.as_ref().map(|key| key.as_bytes().to_vec()),
        headers: headers.clone(),
        payload,
        is_tombstone: false,
    };
    let http = args.place.http()?;
    let send = |messages: &[NewRecord]| {
        subjects::publish(&http, args.subject.as_bytes(), messages, args.reply.as_deref(), args.wait)
    };
    if let Some(path) = &args.file {
        let payload = std::fs::read(path).map_err(|error| Failure::file(path, &error))?;
        return show_published(send(&[message(payload)])?, args.place.json);
    }
    if !args.messages.is_empty() {
        let messages: Vec<_> = args.messages.iter().map(|text| message(text.as_bytes().to_vec())).collect();
        return show_published(send(&messages)?, args.place.json);
    }
    let mut input = std::io::BufReader::with_capacity(STDIN_BATCH.1, std::io::stdin());
    let mut all = Published::default();
    loop {
        let batch = next_lines(&mut input, &message)?;
        if batch.is_empty() {
            return show_published(all, args.place.json);
        }
        let Published { messages, delivered, missed } = send(&batch)?;
        all.messages += messages;
        // Reports the highest number of receivers of any batch.
        all.delivered = all.delivered.max(delivered);
        all.missed = all.missed.max(missed);
    }
}

/// Returns the lines that are ready, waiting for at least one; none at the end of the input.
fn next_lines(
    input: &mut std::io::BufReader<std::io::Stdin>,
    message: &dyn Fn(Vec<u8>) -> NewRecord,
) -> Result<Vec<NewRecord>, Failure> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(batch);
        }
        let line = strip_newline(line);
        bytes += line.len();
        batch.push(message(line));
        let more_at_hand = input.buffer().contains(&b'\n');
        if !more_at_hand || batch.len() >= STDIN_BATCH.0 || bytes >= STDIN_BATCH.1 {
            return Ok(batch);
        }
    }
}

fn show_published(published: Published, json: bool) -> Result<(), Failure> {
    let Published { messages, delivered, missed } = published;
    if json {
        return render::line(&json!({ "messages": messages, "delivered": delivered, "missed": missed }).to_string());
    }
    let plural = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut text = format!("ok, {} to {}", plural(messages, "message"), plural(delivered, "subscription"));
    if missed > 0 {
        text.push_str(&format!("; {} had no room", plural(missed, "subscription")));
    }
    render::line(&text)
}

/// What happens when a subscriber does not keep up.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Publishers wait
    Block,
    /// What comes is dropped, and told
    DropNew,
    /// What has waited longest is dropped, and told
    DropOld,
    /// The subscription ends
    Disconnect,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::DropNew => "drop_new",
            Self::DropOld => "drop_old",
            Self::Disconnect => "disconnect",
        }
    }
}

#[derive(Args, Debug)]
#[command(
    after_help = "`*` stands for any one token of a subject, `>` at the end for one or more: quote them. Prints subject \
                  and payload of each message; when messages were missed, says so on stderr. Goes on when the server \
                  comes back; what was published meanwhile is missed.\n\n\
                  Examples:\n  thalweg subscribe 'orders.>'\n  thalweg subscribe 'logs.*' --payload-only | grep error\n  \
                  thalweg subscribe jobs --group workers --json"
)]
pub struct Subscribe {
    /// The pattern
    pub pattern: String,
    /// Share the messages with the others of this queue group: each goes to one of them
    #[arg(long, short, value_name = "NAME")]
    pub group: Option<String>,
    /// What happens when this does not keep up
    #[arg(long, value_enum, default_value = "drop-new")]
    pub policy: Policy,
    /// Messages that may wait for this [default: as the server is configured]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_messages: Option<u64>,
    /// Bytes that may wait for this [default: as the server is configured]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_bytes: Option<u64>,
    /// End after so many messages
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub format: RecordFormat,
    #[command(flatten)]
    pub place: ServerPlace,
}

pub fn subscribe(args: &Subscribe) -> Result<(), Failure> {
    let query = SubscribeQuery {
        pattern: args.pattern.as_bytes().to_vec(),
        group: args.group.clone(),
        policy: Some(args.policy.name()),
        max_messages: args.max_messages,
        max_bytes: args.max_bytes,
    };
    let mut lines = Lines::new();
    follow(&args.place, &query, args.limit, &mut |message| {
        show(&mut lines, message, &args.format, args.place.json)?;
        lines.flush()
    })
}

/// Calls `each` with every message, up to `limit` messages.
fn follow(
    place: &ServerPlace,
    query: &SubscribeQuery,
    limit: Option<u64>,
    each: &mut dyn FnMut(&Message) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut left = limit;
    if left == Some(0) {
        return Ok(());
    }
    subjects::subscribe(&place.http()?, query, &mut |told| {
        match told {
            Told::Subscribed => render::note(&format!("subscribed to {}", render::one_line(&query.pattern))),
            Told::Gap(messages) => render::note(&format!("{messages} messages were missed here: this did not keep up")),
            Told::Message(message) => {
                each(message)?;
                left = left.map(|left| left - 1);
            }
        }
        Ok(if left == Some(0) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })
}

fn show(lines: &mut Lines, message: &Message, format: &RecordFormat, json: bool) -> Result<(), Failure> {
    if json {
        return lines.line(&message_json(message));
    }
    if format.payload_only {
        lines.bytes(&message.record.payload)?;
        return lines.line("");
    }
    let mut text = format!("{}\t", render::one_line(&message.subject));
    if let Some(key) = &message.record.key {
        text.push_str(&format!("[{}] ", render::one_line(key)));
    }
    for (name, value) in &message.record.headers {
        text.push_str(&format!("{name}={} ", render::one_line(value)));
    }
    text.push_str(&render::one_line(&message.record.payload));
    lines.line(&text)
}

/// Formats a message as one JSON object, like the API.
fn message_json(message: &Message) -> String {
    let mut object = Map::new();
    render::insert_bytes(&mut object, "subject", &message.subject);
    if let Some(reply) = &message.reply {
        render::insert_bytes(&mut object, "reply", reply);
    }
    object.extend(record_object(&message.record));
    Value::Object(object).to_string()
}

#[derive(Args, Debug)]
#[command(
    after_help = "Prints the first answer, byte for byte. Ends with 5 if nobody answers the subject, or none in time.\n\n\
                  Examples:\n  thalweg request sums '1 + 1'\n  thalweg request images.resize --wait 30s < a.png > b.png"
)]
pub struct Request {
    /// The subject
    pub subject: String,
    /// The message; `-` or nothing reads stdin
    pub message: Option<String>,
    /// The message's key
    #[arg(long)]
    pub key: Option<String>,
    /// A header of the message; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE")]
    pub headers: Vec<String>,
    /// Wait so long for an answer
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "5s")]
    pub wait: Duration,
    #[command(flatten)]
    pub place: ServerPlace,
}

pub fn request(args: &Request) -> Result<(), Failure> {
    let headers = args.headers.iter().map(|header| parse_header(header)).collect::<Result<Vec<_>, _>>()?;
    let payload = super::kv::bytes_or_stdin(args.message.as_deref())?;
    let key = args.key.as_ref().map(|key| key.as_bytes().to_vec());
    let message = NewRecord { key, headers, payload, is_tombstone: false };
    // The connection's timeout must be longer than the wait.
    let place =
        ServerPlace { timeout: args.place.timeout.max(args.wait + Duration::from_secs(5)), ..args.place.clone() };
    let answer = subjects::ask(&place.http()?, args.subject.as_bytes(), message, args.wait)?;
    if args.place.json { render::line(&message_json(&answer)) } else { render::out(&answer.record.payload) }
}

#[derive(Args, Debug)]
#[command(
    after_help = "--exec runs the command in a shell for each request, one after the other: the payload on stdin, and \
                  MESSAGE_SUBJECT and MESSAGE_KEY in the environment; what it prints is the answer. If it fails, \
                  nothing is answered. Several that answer one subject share the work with --group.\n\n\
                  Examples:\n  thalweg reply sums --exec bc\n  thalweg reply health --with ok --group nodes"
)]
pub struct Reply {
    /// The pattern
    pub pattern: String,
    /// Answer with what this command prints
    #[arg(long, value_name = "COMMAND", required_unless_present = "with", conflicts_with = "with")]
    pub exec: Option<String>,
    /// Answer always with this
    #[arg(long, value_name = "TEXT")]
    pub with: Option<String>,
    /// Share the requests with the others of this queue group: each goes to one of them
    #[arg(long, short, value_name = "NAME")]
    pub group: Option<String>,
    /// End after so many requests
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub place: ServerPlace,
}

pub fn reply(args: &Reply) -> Result<(), Failure> {
    let query = SubscribeQuery {
        pattern: args.pattern.as_bytes().to_vec(),
        group: args.group.clone(),
        ..SubscribeQuery::default()
    };
    let http = args.place.http()?;
    follow(&args.place, &query, args.limit, &mut |message| {
        let Some(reply_to) = &message.reply else {
            render::note(&format!("a message to {} wants no answer", render::one_line(&message.subject)));
            return Ok(());
        };
        let answer = match (&args.exec, &args.with) {
            (Some(command), _) => match run_command(command, message)? {
                Ok(answer) => answer,
                Err(status) => {
                    render::note(&format!("no answer: the command ended with {status}"));
                    return Ok(());
                }
            },
            (None, with) => with.clone().unwrap_or_default().into_bytes(),
        };
        let answer = NewRecord { payload: answer, ..NewRecord::default() };
        subjects::publish(&http, reply_to, &[answer], None, None).map(drop)
    })
}

/// Runs a command with a message on stdin. Returns its output.
fn run_command(command: &str, message: &Message) -> Result<Result<Vec<u8>, std::process::ExitStatus>, Failure> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("MESSAGE_SUBJECT", render::one_line(&message.subject)).env_remove("MESSAGE_KEY");
    if let Some(key) = &message.record.key {
        shell.env("MESSAGE_KEY", render::one_line(key));
    }
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdin = child.stdin.take();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command need not read its stdin.
            stdin.map(|mut stdin| stdin.write_all(&message.record.payload))
        });
        let output = child.wait_with_output()?;
        Ok(if output.status.success() { Ok(output.stdout) } else { Err(output.status) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_given_the_message_and_what_it_prints_is_the_answer() {
        let record = NewRecord { key: Some(b"k".to_vec()), payload: b"3 4".to_vec(), ..NewRecord::default() };
        let message = Message { subject: b"sums.a".to_vec(), reply: None, record };
        let command = "read a b; echo $MESSAGE_SUBJECT $MESSAGE_KEY $((a + b))";
        assert_eq!(run_command(command, &message).unwrap().unwrap(), b"sums.a k 7\n");
        assert_eq!(run_command("exit 3", &message).unwrap().unwrap_err().code(), Some(3));
    }

    #[test]
    fn messages_are_shown_with_all_that_they_have() {
        let record = NewRecord {
            key: Some(b"k".to_vec()),
            headers: vec![("h".into(), b"v".to_vec())],
            payload: b"\xff".to_vec(),
            is_tombstone: false,
        };
        let message = Message { subject: b"a".to_vec(), reply: Some(b"r".to_vec()), record };
        let shown: Value = serde_json::from_str(&message_json(&message)).unwrap();
        let wanted = json!({"subject": "a", "reply": "r", "key": "k", "headers": [{"name": "h", "value": "v"}],
            "payload_base64": "/w=="});
        assert_eq!(shown, wanted);
    }
}
