//! `SUBSCRIBE`, `UNSUBSCRIBE` and their variants, `PUBSUB`, and the commands allowed to a subscriber that speaks
//! RESP2.

use std::sync::Arc;

use thalweg_redis::{
    Command, Reply,
    command::help,
    errors::wrong_subcommand,
    wire::{Protocol, Writer},
};
use thalweg_transport::Outbox;

use super::{
    out::ReplyTarget,
    pubsub::{Delivery, Kind},
    session::{CommandProgress, Session},
};

/// Reply to `PUBSUB HELP`.
const HELP: &[&str] = &[
    "PUBSUB <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CHANNELS [<pattern>]",
    "    Return the currently active channels matching a <pattern> (default: '*').",
    "NUMPAT",
    "    Return number of subscriptions to patterns.",
    "NUMSUB [<channel> ...]",
    "    Return the number of subscribers for the specified channels, excluding",
    "    pattern subscriptions(default: no channels).",
    "SHARDCHANNELS [<pattern>]",
    "    Return the currently active shard level channels matching a <pattern> (default: '*').",
    "SHARDNUMSUB [<shardchannel> ...]",
    "    Return the number of subscribers for the specified shard level channel(s)",
];

/// Type of the message that confirms a new subscription, by the [`Kind`] of the subscription.
const SUBSCRIBED: [&str; Kind::COUNT] = ["subscribe", "psubscribe", "ssubscribe"];
/// Type of the message that confirms the end of a subscription, by the [`Kind`] of the subscription.
const UNSUBSCRIBED: [&str; Kind::COUNT] = ["unsubscribe", "punsubscribe", "sunsubscribe"];

/// Returns true if a RESP2 client that has subscriptions may send the command.
fn is_for_subscribers(name: &str) -> bool {
    matches!(name, "ping" | "quit" | "reset") || SUBSCRIBED.contains(&name) || UNSUBSCRIBED.contains(&name)
}

impl Session {
    /// Returns true if the client uses RESP2 and has subscriptions. Such a client may send only a few commands,
    /// because it would mistake other replies for messages.
    pub(crate) fn is_subscriber_only(&self) -> bool {
        self.protocol == Protocol::Resp2 && self.subscriber.is_subscribed()
    }

    /// Rejects a command that a RESP2 client with subscriptions must not send. Returns `None` for commands that the
    /// client may send.
    pub(crate) fn refuse_subscriber(
        &mut self,
        command: &Command,
        arguments: &[&[u8]],
        out: &mut Outbox,
    ) -> Option<CommandProgress> {
        if is_for_subscribers(command.name) {
            return None;
        }
        let name = match command.subcommand(arguments) {
            Ok(Some(subcommand)) => subcommand.name,
            _ => command.name,
        };
        let text = format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
             this context"
        );
        Some(self.refuse(&text, out))
    }

    /// Answers a `PING` of a RESP2 subscriber in the format of a message.
    pub(crate) fn ping_subscriber(&mut self, text: &[u8], out: &mut Outbox) {
        self.write_reply(out, |writer| {
            writer.array(2);
            writer.bulk(b"pong");
            writer.bulk(text);
        });
    }

    /// Handles `SUBSCRIBE`, `PSUBSCRIBE` and `SSUBSCRIBE`: subscribes to each name and confirms it.
    pub(crate) fn subscribe(&mut self, kind: Kind, names: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        for name in names {
            let client = Arc::clone(&self.registered.client);
            let (views, registry) = (&self.resp.app.views, &self.resp.subscriptions);
            match self.subscriber.subscribe(views, registry, &client, &self.account, kind, name) {
                Ok(()) => self.confirm(SUBSCRIBED[kind as usize], Some(name), kind, out),
                Err(text) => self.error(&text, out),
            }
        }
        CommandProgress::Done
    }

    /// Handles `UNSUBSCRIBE`, `PUNSUBSCRIBE` and `SUNSUBSCRIBE` for the given names, or for all names of the kind.
    pub(crate) fn unsubscribe(&mut self, kind: Kind, names: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        // Earlier messages are delivered before the confirmation, after which none may follow.
        if self.subscriber.deliver(self.protocol, out) == Delivery::TooSlow {
            return CommandProgress::End;
        }
        let all = if names.is_empty() { self.subscriber.names(kind) } else { Vec::new() };
        let all: Vec<&[u8]> = if names.is_empty() { all.iter().map(|name| &**name).collect() } else { names.to_vec() };
        for name in &all {
            self.subscriber.unsubscribe(&self.resp.subscriptions, kind, name);
            self.confirm(UNSUBSCRIBED[kind as usize], Some(name), kind, out);
        }
        if all.is_empty() {
            self.confirm(UNSUBSCRIBED[kind as usize], None, kind, out);
        }
        CommandProgress::Done
    }

    /// Confirms a new or ended subscription to the client. The confirmation is a message and no reply, so it is
    /// sent even if the client wants no replies.
    fn confirm(&mut self, what: &str, name: Option<&[u8]>, kind: Kind, out: &mut Outbox) {
        let mut writer = Writer::new(ReplyTarget::Outbox(out), self.protocol);
        writer.push(3);
        writer.bulk(what.as_bytes());
        match name {
            Some(name) => writer.bulk(name),
            None => writer.null(),
        }
        writer.integer(self.subscriber.counted_with(kind) as i64);
    }

    /// Moves queued messages of the client's subscriptions into its outbox. Returns true if there was progress. A
    /// client that reads too slowly is disconnected.
    pub(crate) fn deliver(&mut self, out: &mut Outbox) -> bool {
        match self.subscriber.deliver(self.protocol, out) {
            Delivery::Nothing => false,
            Delivery::Moved => true,
            Delivery::TooSlow => {
                tracing::warn!(peer = %self.client().peer, "disconnecting a Redis subscriber that reads too slowly");
                self.subscriber.clear(&self.resp.subscriptions);
                self.is_ending = true;
                true
            }
        }
    }

    /// Handles `PUBSUB`: reports the active channels and their subscribers.
    pub(crate) fn pubsub(&mut self, arguments: &[&[u8]], out: &mut Outbox) {
        let (subcommand, rest) = (arguments[1].to_ascii_lowercase(), &arguments[2..]);
        let registry = &self.resp.subscriptions;
        let counts = |kind| {
            let pairs =
                rest.iter().flat_map(|name| [Reply::bulk(name), Reply::Integer(registry.clients(kind, name) as i64)]);
            Reply::Array(pairs.collect())
        };
        let names = |kind| {
            let found = registry.names(kind, rest.first().copied());
            Reply::Array(found.iter().map(|name| Reply::bulk(name)).collect())
        };
        let reply = match (&*subcommand, rest.len()) {
            (b"channels", 0 | 1) => names(Kind::Channel),
            (b"shardchannels", 0 | 1) => names(Kind::Shard),
            (b"numsub", _) => counts(Kind::Channel),
            (b"shardnumsub", _) => counts(Kind::Shard),
            (b"numpat", _) => Reply::Integer(registry.globs() as i64),
            (b"help", _) => help(HELP),
            _ => wrong_subcommand("PUBSUB", arguments[1]),
        };
        self.answer(&reply, out);
    }
}
