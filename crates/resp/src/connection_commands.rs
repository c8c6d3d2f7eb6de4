//! Commands about the connection (protocol version, authentication, selection of a database) and queries about the
//! server.
//!
//! Owns: the choice of the function for each of these commands, and the implementation of the short commands. The
//! longer ones have modules of their own.

use std::{
    sync::atomic::Ordering,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use thalweg_redis::{
    Command, Reply,
    errors::{NOT_AN_INTEGER, SYNTAX, hello_option},
    number::parse_integer,
    wire::{Protocol, Trust},
};
use thalweg_transport::Outbox;

use super::{
    bounds::MAX_SESSION_ARGUMENTS,
    client_commands, config_commands, introspection,
    pubsub::Kind,
    session::{CommandProgress, ReplyMode, Session},
};

const NOT_AN_INT: &str = "ERR value is out of range, value must between -2147483648 and 2147483647";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                           your configuration is correct?";
const HELLO_FIRST: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                           AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
                           version at the same time";

impl Session {
    /// Runs a command that the session implements, such as `PING`, `SELECT` or `INFO`.
    pub(super) fn session_command(
        &mut self,
        command: &Command,
        arguments: &[&[u8]],
        out: &mut Outbox,
    ) -> CommandProgress {
        let joins = matches!(
            command.name,
            "ping" | "echo" | "select" | "time" | "multi" | "exec" | "discard" | "role" | "wait"
        );
        if !joins && !self.burst.is_empty() {
            return CommandProgress::Again;
        }
        let is_about_server = matches!(command.name, "client" | "config" | "command" | "info");
        if is_about_server && arguments.len() > MAX_SESSION_ARGUMENTS {
            return self
                .fail(&format!("ERR at most {MAX_SESSION_ARGUMENTS} arguments are accepted by this command"), out);
        }
        if matches!(command.name, "auth" | "hello") && self.must_wait_to_authenticate(arguments) {
            return CommandProgress::Again;
        }
        match command.name {
            "ping" => return self.ping(arguments, out),
            "echo" => self.write_reply(out, |writer| writer.bulk(arguments[1])),
            "select" => self.select(arguments[1], out),
            "time" => self.time(out),
            "role" => {
                let parts = vec![Reply::bulk(b"master"), Reply::Integer(0), Reply::Array(Vec::new())];
                self.answer(&Reply::Array(parts), out);
            }
            "wait" => self.wait(arguments[1], arguments[2], out),
            "multi" => return self.multi(out),
            "exec" => return self.exec(out),
            "discard" => return self.discard(out),
            "watch" => return self.watch(&arguments[1..], out),
            "unwatch" => {
                self.unwatch();
                self.write_reply(out, |writer| writer.ok());
            }
            "hello" => self.hello(arguments, out),
            "auth" => self.auth(arguments, out),
            "reset" => self.reset(out),
            "quit" => {
                self.write_reply(out, |writer| writer.ok());
                return CommandProgress::End;
            }
            "subscribe" => return self.subscribe(Kind::Channel, &arguments[1..], out),
            "psubscribe" => return self.subscribe(Kind::Pattern, &arguments[1..], out),
            "ssubscribe" => return self.subscribe(Kind::Shard, &arguments[1..], out),
            "unsubscribe" => return self.unsubscribe(Kind::Channel, &arguments[1..], out),
            "punsubscribe" => return self.unsubscribe(Kind::Pattern, &arguments[1..], out),
            "sunsubscribe" => return self.unsubscribe(Kind::Shard, &arguments[1..], out),
            "publish" | "spublish" => return self.publish_alone(arguments, out),
            "pubsub" => return self.pubsub(command, arguments, out),
            "client" => return client_commands::client(self, command, arguments, out),
            "config" => config_commands::config(self, arguments, out),
            "command" => introspection::command(self, arguments, out),
            "info" => return introspection::info(self, command, arguments, out),
            other => {
                let text = format!("ERR '{other}' is not supported on this connection");
                self.error(&text, out);
            }
        }
        CommandProgress::Done
    }

    fn ping(&mut self, arguments: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        match arguments {
            [_] if self.is_subscriber_only() => self.ping_subscriber(b"", out),
            [_, text] if self.is_subscriber_only() => self.ping_subscriber(text, out),
            [_] => self.write_reply(out, |writer| writer.simple("PONG")),
            [_, text] => self.write_reply(out, |writer| writer.bulk(text)),
            _ => self.error("ERR wrong number of arguments for 'ping' command", out),
        }
        CommandProgress::Done
    }

    fn time(&mut self, out: &mut Outbox) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.write_reply(out, |writer| {
            writer.array(2);
            writer.bulk(now.as_secs().to_string().as_bytes());
            writer.bulk(now.subsec_micros().to_string().as_bytes());
        });
    }

    /// Handles `WAIT`. The server has no Redis replicas, so it replies with 0 immediately.
    fn wait(&mut self, replicas: &[u8], timeout: &[u8], out: &mut Outbox) {
        let reply = match (parse_integer(replicas), parse_integer(timeout)) {
            (None, _) => Reply::error(NOT_AN_INTEGER),
            (_, None) => Reply::error("ERR timeout is not an integer or out of range"),
            (_, Some(..0)) => Reply::error("ERR timeout is negative"),
            _ => Reply::Integer(0),
        };
        self.answer(&reply, out);
    }

    // ----- databases

    /// Returns the index of the database with this number. If there is none, returns the text of the error reply.
    pub(super) fn index_of(&self, number: &[u8]) -> Result<usize, &'static str> {
        let number = parse_integer(number).ok_or(NOT_AN_INTEGER)?;
        let number = i32::try_from(number).map_err(|_| NOT_AN_INT)?;
        let list = &self.resp.databases.list;
        let found =
            u32::try_from(number).ok().and_then(|number| list.iter().position(|database| database.number == number));
        found.ok_or("ERR DB index is out of range")
    }

    fn select(&mut self, number: &[u8], out: &mut Outbox) {
        match self.index_of(number) {
            Err(text) => self.error(text, out),
            Ok(index) => {
                self.enter_database(index);
                self.write_reply(out, |writer| writer.ok());
            }
        }
    }

    fn enter_database(&mut self, index: usize) {
        self.database = index;
        let number = self.resp.databases.list[index].number;
        self.client().database.store(number.into(), Ordering::Relaxed);
    }

    // ----- authentication and protocol version

    /// Returns true if the password belongs to the user, or if no password is configured.
    fn is_password(&self, user: &[u8], password: &[u8]) -> bool {
        let right = self.resp.app.config.resp_password.is(password);
        user == b"default" && (right || !self.resp.app.config.resp_password.is_set())
    }

    /// Checks a password. Counts a wrong password, which delays the next attempts from the client's address.
    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> bool {
        let (failures, address) = (&self.resp.auth_failures, self.account.address());
        if self.is_password(user, password) {
            if self.trust == Trust::Unknown {
                failures.succeeded(address, std::mem::take(&mut self.own_auth_failures), Instant::now());
            }
            self.trust = Trust::Known;
            return true;
        }
        let count = failures.failed(address, Instant::now());
        self.own_auth_failures = self.own_auth_failures.saturating_add(1);
        self.resp.metrics.auth_failure();
        if count.is_power_of_two() {
            tracing::warn!(%address, failures = count, "a Redis client sent a wrong password");
        }
        false
    }

    /// Returns true if the client's attempt to authenticate must wait because of earlier failures of its address. After
    /// the delay the command runs again. It waits once more if another client of the address has been faster.
    fn must_wait_to_authenticate(&mut self, arguments: &[&[u8]]) -> bool {
        let attempts = arguments[0].eq_ignore_ascii_case(b"auth")
            || arguments.iter().skip(2).any(|argument| argument.eq_ignore_ascii_case(b"auth"));
        if !attempts || self.trust == Trust::Known {
            return false;
        }
        let Err(delay) = self.resp.auth_failures.begin_check(self.account.address(), Instant::now()) else {
            return false;
        };
        self.auth_wait = Some(Box::pin(tokio::time::sleep(delay)));
        true
    }

    fn auth(&mut self, arguments: &[&[u8]], out: &mut Outbox) {
        let (user, password) = match *arguments {
            [_, _] if !self.resp.app.config.resp_password.is_set() => return self.error(NO_PASSWORD, out),
            [_, password] => (&b"default"[..], password),
            [_, user, password] => (user, password),
            _ => return self.error(SYNTAX, out),
        };
        if self.authenticate(user, password) {
            self.write_reply(out, |writer| writer.ok());
        } else {
            self.error(WRONG_PASSWORD, out);
        }
    }

    fn hello(&mut self, arguments: &[&[u8]], out: &mut Outbox) {
        let protocol = match arguments.get(1).map(|text| parse_integer(text)) {
            None => None,
            Some(Some(2)) => Some(Protocol::Resp2),
            Some(Some(3)) => Some(Protocol::Resp3),
            Some(Some(_)) => return self.error("NOPROTO unsupported protocol version", out),
            Some(None) => return self.error("ERR Protocol version is not an integer or out of range", out),
        };
        let mut options = arguments.get(2..).unwrap_or_default();
        while let Some((option, rest)) = options.split_first() {
            options = match rest {
                [user, password, rest @ ..] if option.eq_ignore_ascii_case(b"auth") => {
                    if !self.authenticate(user, password) {
                        return self.error(WRONG_PASSWORD, out);
                    }
                    rest
                }
                [name, rest @ ..] if option.eq_ignore_ascii_case(b"setname") => {
                    if !client_commands::set_name(self, name, out) {
                        return;
                    }
                    rest
                }
                _ => return self.answer(&hello_option(option), out),
            };
        }
        if self.trust == Trust::Unknown {
            return self.error(HELLO_FIRST, out);
        }
        if let Some(protocol) = protocol {
            self.speak(protocol);
        }
        let text = |text: &str| Reply::bulk(text.as_bytes());
        let fields = [
            ("server", text("redis")),
            ("version", text(introspection::REDIS_VERSION)),
            ("proto", Reply::Integer(self.protocol.number())),
            ("id", Reply::Integer(self.client().id as i64)),
            ("mode", text("standalone")),
            ("role", text("master")),
            ("modules", Reply::Array(Vec::new())),
        ];
        self.answer(&Reply::Map(fields.map(|(name, value)| (text(name), value)).into()), out);
    }

    fn speak(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        self.client().protocol.store(protocol.number() as u64, Ordering::Relaxed);
    }

    /// Handles `RESET`: returns the connection to the state of a newly opened connection.
    fn reset(&mut self, out: &mut Outbox) {
        self.end_subscriptions();
        self.end_transaction();
        self.enter_database(0);
        self.speak(Protocol::Resp2);
        (self.reply_mode, self.muted) = (ReplyMode::No, false);
        self.trust = self.resp.first_trust();
        self.client().update_names(|said| said.name.clear());
        self.write_reply(out, |writer| writer.simple("RESET"));
    }
}
