//! The servers of a run: Thalweg's own, Debian's redis-server with the requested persistence, or a server that runs
//! already at an address.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use super::{
    bare::BareServer,
    client::{Answer, Client, Greeting},
    options::{RespOptions, ServerChoice},
};
use crate::{
    BenchError, Progress, Scratch,
    load::Address,
    server::{Metrics, NativePort, ServerProcess, Target, free_port},
};

/// A running server that is measured.
#[derive(Debug)]
pub(super) struct Server {
    /// The server as it was named on the command line.
    pub choice: ServerChoice,
    /// Address of the server, and the password and database 0 for its connections.
    pub greeting: Greeting,
    /// Id of the server's process; `None` if it is not known or not on this machine.
    pub process: Option<u32>,
    /// Name and version that the server reports.
    pub version: String,
    own: Option<OwnedProcess>,
}

#[derive(Debug)]
enum OwnedProcess {
    Thalweg(Target),
    Redis { _process: ServerProcess },
    Bare { _server: BareServer },
}

impl Server {
    /// Starts the server. If it is one that runs already, connects to it.
    pub(super) fn connect_or_start(
        choice: &ServerChoice,
        options: &RespOptions,
        scratch: &Scratch,
        progress: &mut dyn Progress,
    ) -> Result<Self, BenchError> {
        let (address, process, own) = match choice {
            ServerChoice::Thalweg => {
                let address = free_port().map_err(BenchError::files("127.0.0.1:0"))?;
                let databases = "--resp-databases=0=keyspace:redis,1=cache:redis";
                let mut arguments = vec![format!("--resp={address}"), databases.to_owned()];
                arguments.extend(options.server_arg.iter().cloned());
                let data = scratch.fresh("thalweg")?.join("data");
                let target =
                    Target::start(options.server_binary.as_deref(), &data, NativePort::Off, &arguments, progress)?;
                (Address::Tcp(address), target.process(), Some(OwnedProcess::Thalweg(target)))
            }
            ServerChoice::RedisNone | ServerChoice::RedisAlways => {
                let address = free_port().map_err(BenchError::files("127.0.0.1:0"))?;
                let arguments: &[&str] = match choice {
                    ServerChoice::RedisNone => &["--appendonly", "no"],
                    _ => &["--appendonly", "yes", "--appendfsync", "always"],
                };
                progress.step(&format!("starting {} {}", options.redis_server.display(), arguments.join(" ")));
                let dir =
                    scratch.fresh(if *choice == ServerChoice::RedisNone { "redis-none" } else { "redis-always" })?;
                let child = start_redis(&options.redis_server, address, &dir, arguments)?;
                (Address::Tcp(address), Some(child.id()), Some(OwnedProcess::Redis { _process: child }))
            }
            ServerChoice::Bare => {
                progress.step("starting a bare server: a thread of this process");
                let dir = scratch.fresh("bare")?;
                let server = BareServer::start(&dir).map_err(BenchError::files(dir.display().to_string()))?;
                (Address::Tcp(server.address), None, Some(OwnedProcess::Bare { _server: server }))
            }
            ServerChoice::At(address) => (address.clone(), None, None),
        };
        // Servers that this process has started require no password.
        let password = options.password.clone().filter(|_| own.is_none());
        let greeting = Greeting { address, password, database: 0, is_resp3: options.resp3 };
        let mut server = Self { choice: choice.clone(), greeting, process, version: String::new(), own };
        server.ask_version()?;
        Ok(server)
    }

    /// Returns the address of the server's TCP port; `None` if the server has a Unix socket.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self.greeting.address {
            Address::Tcp(address) => Some(address),
            Address::Unix(_) => None,
        }
    }

    /// Returns the address and password of the server, with this database.
    pub(super) fn greeting(&self, database: u32) -> Greeting {
        Greeting { database, ..self.greeting.clone() }
    }

    /// Reads all metrics of a Thalweg server that the benchmark started; `None` for other servers.
    pub(super) fn metrics(&self) -> Option<Metrics> {
        match self.own.as_ref()? {
            OwnedProcess::Thalweg(target) => target.metrics(),
            OwnedProcess::Redis { .. } | OwnedProcess::Bare { .. } => None,
        }
    }

    /// Returns the name of one of the server's databases, for reports.
    pub(super) fn name(&self, database: u32) -> String {
        format!("{} db {database}", self.choice)
    }

    /// Describes the durability of writes to one of the server's databases.
    pub(super) fn durability(&self, database: u32) -> Result<String, BenchError> {
        match (&self.choice, database) {
            (ServerChoice::Thalweg, 0) => Ok("disk: synced before it is answered".to_owned()),
            (ServerChoice::Thalweg, 1) => Ok("none: a cache in memory".to_owned()),
            (ServerChoice::Bare, _) => {
                Ok("one write and one fdatasync before the requests that arrived together are answered".to_owned())
            }
            _ => asked_durability(&mut Client::open(&self.greeting(database))?),
        }
    }

    fn ask_version(&mut self) -> Result<(), BenchError> {
        let mut client = Client::open(&self.greeting)?;
        client.done(&[b"PING"])?;
        let info = match client.ask(&[b"INFO", b"server"])? {
            Answer::Error(_) => String::new(),
            answer => answer.text(),
        };
        let version = ["thalweg_version", "valkey_version", "redis_version"]
            .iter()
            .find_map(|name| Some(format!("{} {}", name.trim_end_matches("_version"), field(&info, name)?)));
        self.version = match (&self.choice, &self.own) {
            (_, Some(OwnedProcess::Thalweg(target))) => format!("thalweg {}", target.build()),
            (ServerChoice::Bare, _) => "a bare server".to_owned(),
            _ => version.unwrap_or_else(|| "a server that does not report its version".to_owned()),
        };
        let is_here = match &self.greeting.address {
            Address::Tcp(address) => address.ip().is_loopback(),
            Address::Unix(_) => true,
        };
        if self.process.is_none() && is_here {
            self.process = field(&info, "process_id").and_then(|id| id.parse().ok());
        }
        client.leave();
        Ok(())
    }
}

fn field(info: &str, name: &str) -> Option<String> {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Asks the server for its durability settings with CONFIG. If the server rejects CONFIG, asks with INFO.
pub(crate) fn asked_durability(client: &mut Client) -> Result<String, BenchError> {
    let mut setting = |name: &str| -> Result<Option<String>, BenchError> {
        Ok(match client.ask(&[b"CONFIG", b"GET", name.as_bytes()])? {
            Answer::List(parts) => parts.get(1).map(Answer::text),
            _ => None,
        })
    };
    let (appendonly, appendfsync, save) = (setting("appendonly")?, setting("appendfsync")?, setting("save")?);
    Ok(match (appendonly.as_deref(), appendfsync, save) {
        (Some("yes"), Some(sync), _) => format!("appendonly yes, appendfsync {sync}"),
        (Some("no"), _, Some(save)) if save.is_empty() => "none: appendonly no, save ''".to_owned(),
        (Some("no"), _, save) => format!("snapshots only: appendonly no, save {:?}", save.unwrap_or_default()),
        _ => match client.ask(&[b"INFO", b"persistence"])? {
            Answer::Text(info) => field(&String::from_utf8_lossy(&info), "aof_enabled").map_or_else(
                || "unknown: it does not say".to_owned(),
                |on| format!("aof_enabled {on}, CONFIG refused"),
            ),
            _ => "unknown: it does not say".to_owned(),
        },
    })
}

fn start_redis(
    binary: &Path,
    address: SocketAddr,
    dir: &Path,
    arguments: &[&str],
) -> Result<ServerProcess, BenchError> {
    let mut command = Command::new(binary);
    command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
    command.args(["--save", "", "--daemonize", "no", "--dir"]).arg(dir).args(arguments).stderr(Stdio::null());
    let greeting = Greeting { address: Address::Tcp(address), password: None, database: 0, is_resp3: false };
    let is_ready = || Client::open(&greeting).and_then(|mut client| client.done(&[b"PING"])).is_ok();
    let remedy = "install redis-server, or leave that --server out";
    ServerProcess::start(&mut command, remedy, is_ready).map_err(BenchError::target(binary.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_info_are_found_by_their_whole_name() {
        let info = "# Server\r\nredis_version_x:1\r\nredis_version:7.0.15\r\nprocess_id:12\r\n";
        assert_eq!(field(info, "redis_version").as_deref(), Some("7.0.15"));
        assert_eq!(field(info, "process").as_deref(), None);
    }
}
