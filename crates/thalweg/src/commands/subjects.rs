//! `publish`, `subscribe`, `request`, `reply`: exchange messages with current subscribers.
//!
//! Owns: the arguments and the output of these commands, and the user's command that answers requests. Does not own:
//! the requests (`session/subjects`), or the notation of a message (`record`).

use std::{
    io::Write as _,
    ops::ControlFlow,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::{
    input,
    record::{self, RecordArgs, RecordFormat},
};
use crate::{
    args::ServerArgs,
    failure::Failure,
    render::{self, Lines},
    session::{Message, Published, Record, Session, SubscribeQuery, SubscriptionEvent},
    span::{parse_bytes, parse_span},
};

#[derive(Args, Debug)]
#[command(
    after_help = "Prints the number of messages, and of the subscriptions that got them. A subject stores nothing, so \
                  a publish without subscribers succeeds. Append messages that must not be lost to a stream.\n\n\
                  Examples:\n  thalweg publish orders.eu.created '{\"id\": 7}'\n  \
                  tail -f access.log | thalweg publish logs.web\n  \
                  thalweg publish config.changed --file config.toml --key web"
)]
pub(crate) struct Publish {
    /// Subject to publish to: tokens joined by dots
    pub subject: String,
    /// Payloads, one message each; without any, each line of stdin is a message
    pub messages: Vec<String>,
    /// Publish a whole file as one message
    #[arg(long, value_name = "FILE", conflicts_with = "messages")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub record: RecordArgs,
    /// Subject to which subscribers publish their answers
    #[arg(long, value_name = "SUBJECT")]
    pub reply: Option<String>,
    /// Maximum time to wait for subscribers whose full queues block publishers [default: 5s]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub wait: Option<Duration>,
    #[command(flatten)]
    pub place: ServerArgs,
}

pub(crate) fn publish(args: &Publish) -> Result<(), Failure> {
    let template = args.record.template()?;
    let message = |payload: Vec<u8>| Record { payload, ..template.clone() };
    let session = Session::of_server(&args.place)?;
    let send =
        |messages: &[Record]| session.publish(args.subject.as_bytes(), messages, args.reply.as_deref(), args.wait);
    if let Some(path) = &args.file {
        return show_published(send(&[message(input::file(path)?)])?, args.place.json);
    }
    if !args.messages.is_empty() {
        let messages: Vec<_> = args.messages.iter().map(|text| message(text.as_bytes().to_vec())).collect();
        return show_published(send(&messages)?, args.place.json);
    }
    let mut input = input::Lines::new();
    let mut all = Published::default();
    loop {
        let batch: Vec<_> = input.next_batch()?.into_iter().map(message).collect();
        if batch.is_empty() {
            return show_published(all, args.place.json);
        }
        let Published { messages, delivered, missed, nodes } = send(&batch)?;
        all.messages += messages;
        // The output reports the highest number of receivers of any batch.
        all.delivered = all.delivered.max(delivered);
        all.missed = all.missed.max(missed);
        all.nodes = all.nodes.max(nodes);
    }
}

fn show_published(published: Published, json: bool) -> Result<(), Failure> {
    render::print_result(&json!(published), json, || {
        let subscriptions = |n: u64| render::counted(n, "subscription", "subscriptions");
        let messages = render::counted(published.messages, "message", "messages");
        let missed = match published.missed {
            0 => String::new(),
            missed => format!("; {} had no room", subscriptions(missed)),
        };
        let nodes = match published.nodes {
            None | Some(0) => String::new(),
            Some(nodes) => format!(" and {}", render::counted(nodes, "other node", "other nodes")),
        };
        format!("ok, {messages} to {}{nodes}{missed}", subscriptions(published.delivered))
    })
}

/// Action when the queue of a subscription is full.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Publishers wait until the queue has room
    Block,
    /// New messages are dropped; the subscriber sees a gap
    DropNew,
    /// The oldest queued messages are dropped; the subscriber sees a gap
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
    after_help = "In a pattern, `*` matches one token and `>` at the end matches one or more; quote them for the shell. \
                  Prints subject and payload of each message, and on stderr the number of missed messages. Continues \
                  after a restart of the server; messages published in the meantime are missed.\n\n\
                  Examples:\n  thalweg subscribe 'orders.>'\n  thalweg subscribe 'logs.*' --payload-only | grep error\n  \
                  thalweg subscribe jobs --group workers --json"
)]
pub(crate) struct Subscribe {
    /// Pattern of subjects: * matches one token, a final > all further tokens
    pub pattern: String,
    /// Queue group: each message goes to one subscriber of the group
    #[arg(long, short, value_name = "NAME")]
    pub group: Option<String>,
    /// Action when the queue of this subscription is full
    #[arg(long, value_enum, default_value = "drop-new")]
    pub policy: Policy,
    /// Maximum number of queued messages [default: that of the server's configuration]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_messages: Option<u64>,
    /// Maximum bytes of queued messages [default: that of the server's configuration]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_bytes: Option<u64>,
    /// End after this number of messages
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub format: RecordFormat,
    #[command(flatten)]
    pub place: ServerArgs,
}

pub(crate) fn subscribe(args: &Subscribe) -> Result<(), Failure> {
    let query = SubscribeQuery {
        pattern: args.pattern.as_bytes().to_vec(),
        group: args.group.clone(),
        policy: Some(args.policy.name()),
        max_messages: args.max_messages,
        max_bytes: args.max_bytes,
    };
    let mut lines = Lines::new();
    follow(&args.place, &query, args.limit, &mut |message| {
        let (json, text) = (args.place.json.then(|| message_json(message)), || message_text(message));
        record::show(&mut lines, &args.format, json, &message.record, text)?;
        lines.flush()
    })
}

/// Subscribes to a pattern of subjects and calls `each` with every message. Ends after `limit` messages.
fn follow(
    place: &ServerArgs,
    query: &SubscribeQuery,
    limit: Option<u64>,
    each: &mut dyn FnMut(&Message) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut left = limit;
    if left == Some(0) {
        return Ok(());
    }
    Session::of_server(place)?.subscribe(query, &mut |event| {
        match event {
            SubscriptionEvent::Subscribed => {
                render::note(&format!("subscribed to {}", render::one_line(&query.pattern)));
            }
            SubscriptionEvent::Gap(messages) => {
                let missed = render::counted(messages, "message was", "messages were");
                render::note(&format!("{missed} missed here: this subscriber was too slow"));
            }
            SubscriptionEvent::Message(message) => {
                each(message)?;
                left = left.map(|left| left - 1);
            }
        }
        Ok(if left == Some(0) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })
}

fn message_text(message: &Message) -> String {
    format!("{}\t{}", render::one_line(&message.subject), record::text(&message.record))
}

/// Formats a message as JSON, as the HTTP API does.
fn message_json(message: &Message) -> Value {
    let mut object = Map::new();
    render::insert_bytes(&mut object, "subject", &message.subject);
    if let Some(reply) = &message.reply {
        render::insert_bytes(&mut object, "reply", reply);
    }
    object.extend(message.record.object());
    Value::Object(object)
}

#[derive(Args, Debug)]
#[command(
    after_help = "Prints the first answer, byte for byte. Ends with 5 if the subject has no responder, or no answer arrives in time.\n\n\
                  Examples:\n  thalweg request sums '1 + 1'\n  thalweg request images.resize --wait 30s < a.png > b.png"
)]
pub(crate) struct Request {
    /// Subject of the request: tokens joined by dots
    pub subject: String,
    /// Message to publish; `-` or no argument reads stdin
    pub message: Option<String>,
    #[command(flatten)]
    pub record: RecordArgs,
    /// Maximum time to wait for an answer
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "5s")]
    pub wait: Duration,
    #[command(flatten)]
    pub raw: render::RawArgs,
    #[command(flatten)]
    pub place: ServerArgs,
}

pub(crate) fn request(args: &Request) -> Result<(), Failure> {
    let message = Record { payload: input::value(args.message.as_deref())?, ..args.record.template()? };
    // The timeout of the connection is set longer than the wait for the answer.
    let place =
        ServerArgs { timeout: args.place.timeout.max(args.wait + Duration::from_secs(5)), ..args.place.clone() };
    let answer = Session::of_server(&place)?.request(args.subject.as_bytes(), message, args.wait)?;
    if args.place.json {
        return render::line(&message_json(&answer).to_string());
    }
    render::data(&answer.record.payload, args.raw)
}

#[derive(Args, Debug)]
#[command(
    group(ArgGroup::new("answer").required(true).args(["exec", "with"])),
    after_help = "--exec runs the command in a shell for each request, one after the other. The command gets the payload \
                  on stdin, and MESSAGE_SUBJECT and MESSAGE_KEY in the environment; its output is the answer. If it \
                  fails, there is no answer. Several responders of one subject share the work with --group.\n\n\
                  Examples:\n  thalweg reply sums --exec bc\n  thalweg reply health --with ok --group nodes"
)]
pub(crate) struct Reply {
    /// Pattern of subjects: * matches one token, a final > all further tokens
    pub pattern: String,
    /// Answer with the output of this command
    #[arg(long, value_name = "COMMAND")]
    pub exec: Option<String>,
    /// Answer every request with this text
    #[arg(long, value_name = "TEXT")]
    pub with: Option<String>,
    /// Queue group: each request goes to one responder of the group
    #[arg(long, short, value_name = "NAME")]
    pub group: Option<String>,
    /// End after this number of requests
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub place: ServerArgs,
}

pub(crate) fn reply(args: &Reply) -> Result<(), Failure> {
    let query = SubscribeQuery {
        pattern: args.pattern.as_bytes().to_vec(),
        group: args.group.clone(),
        ..SubscribeQuery::default()
    };
    let session = Session::of_server(&args.place)?;
    follow(&args.place, &query, args.limit, &mut |message| {
        let Some(reply_to) = &message.reply else {
            render::note(&format!("a message to {} does not ask for an answer", render::one_line(&message.subject)));
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
        let answer = Record { payload: answer, ..Record::default() };
        session.publish(reply_to, &[answer], None, None).map(drop)
    })
}

/// Runs a command that gets a message on stdin. Returns the output of the command.
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
            // An error of the write is ignored, because a command need not read its stdin.
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
        let record = Record { key: Some(b"k".to_vec()), payload: b"3 4".to_vec(), ..Record::default() };
        let message = Message { subject: b"sums.a".to_vec(), reply: None, record };
        let command = "read a b; echo $MESSAGE_SUBJECT $MESSAGE_KEY $((a + b))";
        assert_eq!(run_command(command, &message).unwrap().unwrap(), b"sums.a k 7\n");
        assert_eq!(run_command("exit 3", &message).unwrap().unwrap_err().code(), Some(3));
    }

    #[test]
    fn messages_are_shown_with_all_that_they_have() {
        let record = Record {
            key: Some(b"k".to_vec()),
            headers: vec![("h".into(), b"v".to_vec())],
            payload: b"\xff".to_vec(),
            is_tombstone: false,
        };
        let message = Message { subject: b"a".to_vec(), reply: Some(b"r".to_vec()), record };
        let shown = message_json(&message);
        let wanted = json!({"subject": "a", "reply": "r", "key": "k", "headers": [{"name": "h", "value": "v"}],
            "payload_base64": "/w=="});
        assert_eq!(shown, wanted);
    }
}
