//! `SUBSCRIBE`, `UNSUBSCRIBE` and their variants, and `PUBSUB`. Also the restrictions of a RESP2 client that has
//! subscriptions.
//!
//! Owns: these commands and their confirmations, and the delivery of queued messages into the outbox. Does not own: the
//! subscriptions of a client and their queues (`pubsub`), or long lists of names (`slices`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_redis::{
    Command, Reply,
    command::help,
    errors::{NO_REPLY_ROOM, REPLY_TOO_LARGE, wrong_subcommand},
    glob,
    wire::{Protocol, Writer},
};
use thalweg_serving::{admission::Resource, aside, limits::OWN_BODY_BYTES};
use thalweg_transport::Outbox;
use thalweg_types::{
    budget,
    limits::{MAX_REDIS_PATTERN_BYTES, MAX_REDIS_REPLY_BYTES, MAX_REDIS_VIEW_COMPARISONS, REDIS_REPLY_ITEM_BYTES},
    steps::{self, READ, ROW, SHORT_READ},
};

use super::{
    bounds::{MAX_SESSION_ARGUMENTS, PATTERN_TOO_LONG},
    ongoing::{SubscriptionChange, SubscriptionList},
    out::ReplyTarget,
    pubsub::{Delivery, Kind, PAGE_NAMES, Registry},
    session::{CommandProgress, Session},
};

/// Minimum time of a delivery of messages that counts as work of the connection. Shorter times are ignored.
const LONG_DELIVERY: Duration = Duration::from_micros(100);
/// Maximum number of channels or patterns in one command that the session handles at once. Longer lists are handled in
/// parts, so that the thread serves other clients in between.
const FEW_NAMES: usize = 64;

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
        self.change_subscriptions(SubscriptionChange::Subscribe, kind, names, out)
    }

    /// Handles `UNSUBSCRIBE`, `PUNSUBSCRIBE` and `SUNSUBSCRIBE` for the given names, or for all names of the kind.
    pub(crate) fn unsubscribe(&mut self, kind: Kind, names: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        // Earlier messages are delivered before the confirmation of the end. After it none may follow.
        if self.subscriber.deliver(self.protocol, out) == Delivery::TooSlow {
            return CommandProgress::End;
        }
        match names.is_empty() {
            false => self.change_subscriptions(SubscriptionChange::Unsubscribe, kind, names, out),
            true if self.subscriber.count(kind) == 0 => {
                self.confirm(UNSUBSCRIBED[kind as usize], None, kind, out);
                CommandProgress::Done
            }
            true => self.change_subscriptions(SubscriptionChange::UnsubscribeAll, kind, &[], out),
        }
    }

    fn change_subscriptions(
        &mut self,
        change: SubscriptionChange,
        kind: Kind,
        names: &[&[u8]],
        out: &mut Outbox,
    ) -> CommandProgress {
        let count =
            if change == SubscriptionChange::UnsubscribeAll { self.subscriber.count(kind) } else { names.len() };
        if count > FEW_NAMES && !self.is_executing {
            let bytes = names.iter().map(|name| 4 + name.len()).sum::<usize>();
            let mut held = self.account.empty(Resource::BodyBytes);
            if bytes > OWN_BODY_BYTES && !held.grow(bytes as u64) {
                return self.fail("BUSY requests use too much memory: retry later", out);
            }
            self.begin_list(SubscriptionList::new(change, kind, names, self.muted, held), out);
        } else if count > MAX_SESSION_ARGUMENTS {
            return self
                .fail(&format!("ERR at most {MAX_SESSION_ARGUMENTS} channels in a command of a transaction"), out);
        } else if change == SubscriptionChange::UnsubscribeAll {
            while let Some(name) = self.subscriber.first_name(kind) {
                self.change_subscription(change, kind, &name, out);
            }
        } else {
            names.iter().for_each(|name| self.change_subscription(change, kind, name, out));
        }
        CommandProgress::Done
    }

    /// Subscribes the client to the channel or pattern `name`, or ends its subscription to it, and confirms the change.
    pub(super) fn change_subscription(
        &mut self,
        change: SubscriptionChange,
        kind: Kind,
        name: &[u8],
        out: &mut Outbox,
    ) {
        if change != SubscriptionChange::Subscribe {
            self.subscriber.unsubscribe(&self.resp.subscriptions, kind, name);
            return self.confirm(UNSUBSCRIBED[kind as usize], Some(name), kind, out);
        }
        let client = Arc::clone(&self.registered.client);
        let (views, registry) = (&self.resp.app.views, &self.resp.subscriptions);
        match self.subscriber.subscribe(views, registry, &client, &self.account, kind, name) {
            Ok(()) => self.confirm(SUBSCRIBED[kind as usize], Some(name), kind, out),
            Err(text) => self.error(&text, out),
        }
    }

    /// Ends all subscriptions of the client. If there are many, another thread ends them, because this takes long.
    pub(super) fn end_subscriptions(&mut self) {
        let ended = self.subscriber.take_all();
        if ended.len() <= MAX_SESSION_ARGUMENTS {
            return ended.end(&self.resp.subscriptions);
        }
        let resp = Arc::clone(&self.resp);
        aside::run(move || ended.end(&resp.subscriptions));
    }

    /// Confirms a new or ended subscription to the client. The confirmation is a message and not a reply, so it is sent
    /// even if the client wants no replies.
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

    /// Moves queued messages of the client's subscriptions into its outbox. Returns true if there was progress.
    /// Disconnects a client that reads too slowly.
    pub(crate) fn deliver(&mut self, out: &mut Outbox) -> bool {
        // Comparing patterns can take as long as sending, so its time is measured if there are patterns.
        let begun = (self.subscriber.count(Kind::Pattern) > 0).then(Instant::now);
        let delivery = self.subscriber.deliver(self.protocol, out);
        self.worked += begun.map(|begun| begun.elapsed()).filter(|time| *time >= LONG_DELIVERY).unwrap_or_default();
        match delivery {
            Delivery::Nothing => false,
            Delivery::Moved => true,
            Delivery::TooSlow => {
                tracing::warn!(peer = %self.client().peer, "disconnecting a Redis subscriber that reads too slowly");
                self.end_subscriptions();
                self.is_ending = true;
                true
            }
        }
    }

    /// Handles `PUBSUB`: reports the active channels and their subscribers. If the list is long, reader threads make
    /// it.
    pub(crate) fn pubsub(&mut self, command: &Command, arguments: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        match budget::within(SHORT_READ, || report(&self.resp.subscriptions, arguments)) {
            Ok(reply) if self.has_room_for(&reply) => self.answer(&reply, out),
            Ok(_) => self.error(NO_REPLY_ROOM, out),
            Err(_) if self.is_executing => self.error(TOO_LONG_TO_EXECUTE, out),
            Err(spent) => {
                let (resp, number) = (Arc::clone(&self.resp), command.number_of(arguments));
                let arguments: Vec<Box<[u8]>> = arguments.iter().map(|argument| Box::from(*argument)).collect();
                return self.run_again(spent, number, None, out, move || {
                    let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &**argument).collect();
                    Ok(report(&resp.subscriptions, &arguments))
                });
            }
        }
        CommandProgress::Done
    }
}

/// Error reply to a `PUBSUB` within a transaction whose list of channels would take too long.
const TOO_LONG_TO_EXECUTE: &str = "ERR too expensive within a transaction: send it outside of MULTI";

/// Returns the reply to `PUBSUB`. Counts its work against the limit that the calling thread has set. If the limit is
/// reached, the reply is incomplete and must not be used.
fn report(registry: &Registry, arguments: &[&[u8]]) -> Reply {
    let (subcommand, rest) = (arguments[1].to_ascii_lowercase(), &arguments[2..]);
    match (&*subcommand, rest.len()) {
        (b"channels", 0 | 1) => names(registry, Kind::Channel, rest.first().copied()),
        (b"shardchannels", 0 | 1) => names(registry, Kind::Shard, rest.first().copied()),
        (b"numsub", _) => counts(registry, Kind::Channel, rest),
        (b"shardnumsub", _) => counts(registry, Kind::Shard, rest),
        (b"numpat", _) => Reply::Integer(registry.globs() as i64),
        (b"help", _) => help(HELP),
        _ => wrong_subcommand("PUBSUB", arguments[1]),
    }
}

/// Returns the number of clients that are subscribed to each of the channels `names`.
fn counts(registry: &Registry, kind: Kind, names: &[&[u8]]) -> Reply {
    let mut pairs = Vec::with_capacity(2 * names.len().min(PAGE_NAMES));
    for name in names {
        if budget::charge(READ).is_break() {
            break;
        }
        pairs.extend([Reply::bulk(name), Reply::Integer(registry.clients(kind, name) as i64)]);
    }
    Reply::Array(pairs)
}

/// Returns the channels or patterns to which clients have subscriptions of this kind: those that `glob` matches, or all
/// if `glob` is `None`.
fn names(registry: &Registry, kind: Kind, glob: Option<&[u8]>) -> Reply {
    if glob.is_some_and(|glob| glob.len() > MAX_REDIS_PATTERN_BYTES) {
        return Reply::error(PATTERN_TOO_LONG);
    }
    let (mut found, mut bytes, mut compared, mut after) = (Vec::new(), 0, 0, None);
    loop {
        let page = registry.names_after(kind, after.as_ref());
        for name in &page {
            let before = steps::comparisons(compared);
            let is_wanted = glob.is_none_or(|glob| glob::matches_counting(glob, name, &mut compared));
            if budget::charge(ROW + steps::comparisons(compared) - before).is_break() {
                return Reply::Null;
            }
            if compared > MAX_REDIS_VIEW_COMPARISONS {
                return Reply::error("ERR too expensive: use a shorter pattern");
            }
            if is_wanted {
                bytes += name.len() + REDIS_REPLY_ITEM_BYTES;
                found.push(Reply::bulk(name));
            }
            if bytes > MAX_REDIS_REPLY_BYTES {
                return Reply::error(REPLY_TOO_LARGE);
            }
        }
        after = page.last().map(Arc::clone);
        if page.len() < PAGE_NAMES {
            return Reply::Array(found);
        }
    }
}
