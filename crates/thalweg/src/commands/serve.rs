//! `serve`: the process that runs the server.
//!
//! Owns: parsing flags into settings, signals (SIGTERM and SIGINT stop the server, SIGHUP reloads), the startup line,
//! and the order of starting and stopping, also for a member that repairs its state. Does not own: the table of
//! settings from which the flags are generated (`thalweg_server::config`), log output and reloading
//! ([`reload`](super::reload)), and requests.

mod headings;
pub(super) mod link_tls;
mod listening;
mod membership;
mod repair;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thalweg_cluster::Node;
use thalweg_engine::{Create, Database, Health, OpenReport, Options, Repair};
use thalweg_server::{
    Server,
    cluster::Cluster,
    config::{AvailableMemory, Config, ConfigError, ConfigLayer, KNOBS, Knob, Layers, Resolved, example},
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use self::{
    membership::{MemberPart, OpenRole},
    repair::Repaired,
};
use super::{
    opening::open_unless_stopped,
    reload::{Log, reload_at},
    stop::Stop,
};
use crate::{
    failure::{Exit, Failure},
    heap, permissions, render,
    span::show_span,
};

const AFTER_HELP: &str = "\
Flags override the environment (THALWEG_MAX_SCANS=10), which overrides the file, which overrides the defaults.

Examples:
  thalweg serve
  thalweg serve --data /var/lib/thalweg --http 127.0.0.1:8080 --durability disk
  thalweg serve --config thalweg.toml --explain
  thalweg serve --data n1 --cluster 127.0.0.1:7072 --cluster-init
  thalweg serve --data n2 --http 127.0.0.1:7080 --cluster 127.0.0.1:7082 --join 127.0.0.1:7072
  thalweg serve --example-config > thalweg.toml";

/// Maximum duration of a stop, even if the disk or a client hangs.
const STOP_LIMIT: Duration = Duration::from_millis(9_500);

/// Parsed arguments of `serve`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Serve {
    config: Option<PathBuf>,
    mode: Mode,
    repair: bool,
    given: Vec<(&'static str, String)>,
}

/// Action that the arguments of `serve` select: run a node, explain the configuration, or print an example of it. A
/// fourth action only reads the configuration; other commands use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Run,
    Explain,
    Example,
    Read,
}

impl Args for Serve {
    fn augment_args(command: Command) -> Command {
        let own = [
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Read the configuration from this TOML file; --explain lists its keys"),
            Arg::new("explain").long("explain").action(ArgAction::SetTrue).help(
                "Print every value, its source, and the sum of the memory bounds, and end",
            ),
            Arg::new("example-config")
                .long("example-config")
                .action(ArgAction::SetTrue)
                .help("Print a configuration file with every key and its default, and end"),
            Arg::new("repair")
                .long("repair")
                .action(ArgAction::SetTrue)
                .help("Truncate a corrupt log at the damage, keep the state, and report the loss, instead of refusing to start"),
        ];
        headings::in_order().fold(command.after_help(AFTER_HELP).args(own), |command, (heading, knob)| {
            command.arg(flag(knob).help_heading(heading))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Creates the command-line flag for a setting. Its help text shows the default from the table of settings, which is
/// also the default that is applied.
fn flag(knob: &Knob) -> Arg {
    let default = Config::default().get(knob.name).unwrap_or_default();
    let help = format!("{} [default: {default}]", knob.help.trim());
    let arg = Arg::new(knob.name).long(knob.name.replace('_', "-")).help(help).value_name(knob.value_name);
    if default == "false" {
        arg.action(ArgAction::Set).num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        arg.action(ArgAction::Set)
    }
}

impl FromArgMatches for Serve {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut serve = Self::default();
        serve.update_from_arg_matches(matches)?;
        Ok(serve)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        self.repair = matches.get_flag("repair");
        self.mode = match (matches.get_flag("explain"), matches.get_flag("example-config")) {
            (true, _) => Mode::Explain,
            (_, true) => Mode::Example,
            _ => Mode::Run,
        };
        let typed = KNOBS.iter().filter_map(|knob| Some((knob.name, matches.get_one::<String>(knob.name)?.clone())));
        self.given = typed.collect();
        Ok(())
    }
}

impl Serve {
    /// Creates the arguments with which another command reads the configuration of a node. `data` is the node's
    /// directory, and `config` the configuration file; each is optional.
    pub(super) fn on(data: Option<&Path>, config: Option<&Path>) -> Self {
        let given = data.map(|data| ("data", data.to_string_lossy().into_owned()));
        let (config, given) = (config.map(Path::to_owned), given.into_iter().collect());
        Self { config, given, mode: Mode::Read, repair: false }
    }

    /// Merges the settings from the flags, the environment, the configuration file and the defaults.
    pub(super) fn resolve(&self) -> Result<Resolved, ConfigError> {
        let mut flags = ConfigLayer::default();
        for (name, text) in &self.given {
            flags.set(name, text)?;
        }
        let mut layers = Layers::new().flags(flags);
        if let Some(path) = &self.config {
            layers = layers.file(path)?;
        }
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        // Only the start of a server uses the join token. An operator may have exported it in the shell, and other
        // commands must still work there.
        let is_for_us = |name: &str| self.mode != Mode::Read || name != "THALWEG_JOIN_TOKEN";
        let variables = variables.filter(|(name, _)| is_for_us(name));
        layers
            .environment(variables.map(|(name, value)| (name, value.to_string_lossy().into_owned())))?
            .resolve_within(AvailableMemory::of_this_process())
            .map(|resolved| resolved.within_open_files(getrlimit(Resource::Nofile).maximum))
    }
}

/// Runs a node until a signal stops it. If the arguments request this, only prints the configuration.
pub(crate) fn run(args: &Serve) -> Result<(), Failure> {
    if args.mode == Mode::Example {
        return render::out(example(&Config::default()).as_bytes());
    }
    let resolve = || args.resolve().map_err(|error| Failure::of(&error));
    if args.mode == Mode::Explain {
        return render::out(resolve()?.explain().as_bytes());
    }
    let (runtime, hangup) = start_threads()?;
    let resolved = resolve()?;
    let log = Log::to_stderr(&resolved.config);
    let part = membership::decide(&resolved.config)?;
    // The directory is checked before the warnings. They contain commands for the directory, which would be wrong for a
    // directory of another program.
    membership::check_directory(&part, &resolved.config.data)?;
    // The permissions are checked before the server creates the directory.
    for warning in permissions::warnings(&resolved).into_iter().chain(resolved.warnings()) {
        tracing::warn!("{warning}");
    }
    permissions::only_for_the_owner();
    raise_file_limit();
    // From here on SIGTERM and SIGINT do not end the process at once.
    let mut stop = {
        let _context = runtime.enter();
        Stop::new()?
    };
    let member = match &part {
        OpenRole::Alone => None,
        OpenRole::Member(member) => {
            membership::keep(member, &resolved.config.data)?;
            // The admin token is shown now. The directory has only its hash, so a start that fails later must not lose
            // the token.
            if let Some(admin) = &member.admin {
                let _ = writeln!(io::stdout(), "admin token: {}", admin.reveal());
            }
            Some((member.identity, member.credentials.cluster))
        }
    };
    let options = options(&resolved, args.repair);
    let open = |stop: &mut Stop| open_unless_stopped(&runtime, &resolved.config.data, options.clone(), member, stop);
    let opened = open(&mut stop).inspect_err(|_| membership::take_back(&part, &resolved.config.data));
    let Some(mut database) = opened? else { return Ok(()) };
    if let Some(member) = part.member() {
        let repaired = repair::if_due(&runtime, &resolved.config, member, &database, &mut stop)?;
        if repaired != Repaired::Unchanged {
            database.close().map_err(|error| Failure::of(&error))?;
            drop(database);
            let again = if repaired == Repaired::Done { open(&mut stop)? } else { None };
            let Some(opened) = again else { return Ok(()) };
            database = opened;
        }
    }
    let served = start_member(&part, &resolved.config, &database).and_then(|node| {
        let member = node.as_ref().zip(part.member());
        let served = runtime.block_on(serve(args, &resolved.config, &database, member, stop, hangup, log));
        if let Some(node) = node {
            // Normally the server has already stopped the member. If the server could not start, this call stops it.
            node.shut_down();
        }
        served
    });
    runtime.shutdown_timeout(Duration::from_millis(200));
    match served {
        Ok(ServerEnd::Stopped) => Ok(()),
        Ok(ServerEnd::RepairDue) => repair::start_again(),
        Err(failure) => {
            // The server did not close the database, so it is closed here. An error is ignored: acknowledged writes are
            // safe either way.
            let _ = database.close();
            Err(failure)
        }
    }
}

/// Starts the server's threads and registers for SIGHUP. From now on a SIGHUP does not end the process. One that arrives
/// during the start is handled when the server runs.
fn start_threads() -> io::Result<(Runtime, Signal)> {
    // The first thread already uses the heap, so the advice about the heap comes before it.
    heap::permit_huge_pages();
    let runtime = Builder::new_multi_thread().enable_all().thread_name("thalweg").build()?;
    let hangup = {
        let _context = runtime.enter();
        signal(SignalKind::hangup())?
    };
    Ok((runtime, hangup))
}

/// Reason for which a server has ended without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerEnd {
    /// A signal has stopped the server.
    Stopped,
    /// The server has stopped so that the member can get the state of another member.
    RepairDue,
}

/// Raises the limit on open files. Each segment, table and connection needs a file descriptor. Many systems start
/// processes with a limit of 1,024, but let a process raise its own limit.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, current = limit.current, "could not raise the limit on open files");
    }
}

fn options(resolved: &Resolved, repair: bool) -> Options {
    let repair = if repair { Repair::CutAtCorruption } else { Repair::Refuse };
    Options { create: Create::IfMissing, repair, ..resolved.engine_options() }
}

/// Starts the consensus of a cluster member. Returns `None` for a node that runs alone, or if the configuration has no
/// address for other nodes.
fn start_member(part: &OpenRole, config: &Config, database: &Database) -> Result<Option<Node>, Failure> {
    let Some(member) = part.member() else { return Ok(None) };
    membership::check(member, database)?;
    let Some(options) = membership::node_options(config, member, database.report().node) else { return Ok(None) };
    Node::start(database, member.credentials.cluster, options).map(Some).map_err(|error| listening::of_node(&error))
}

/// Runs a server over the database until a signal or an administrator stops it. The server itself then stops the member
/// and closes the database.
async fn serve(
    args: &Serve,
    config: &Config,
    database: &Database,
    member: Option<(&Node, &MemberPart)>,
    mut stop: Stop,
    hangup: Signal,
    log: Log,
) -> Result<ServerEnd, Failure> {
    let cluster = member.map(|(node, part)| Cluster {
        handle: Arc::new(node.clone()),
        credentials: Arc::new(part.credentials.clone()),
        stop_requested: Arc::default(),
    });
    let stop_requested = cluster.as_ref().map(|cluster| Arc::clone(&cluster.stop_requested));
    let server = Server::bind_member(config.clone(), database, cluster).await;
    let server = server.map_err(|error| listening::of_server(&error))?;
    let again = args.clone();
    let links = member.and_then(|(node, _)| node.tls().cloned());
    tokio::spawn(reload_at(hangup, config.clone(), (server.certificate(), links), log, move || again.resolve()));
    // Nobody may read stdout. The node must keep running in this case, so an error is ignored.
    let _ = writeln!(io::stdout(), "{}", startup_line(&server, config, database.report()));
    if let Some(fingerprint) = server.fingerprint() {
        let _ = writeln!(io::stdout(), "native certificate: SHA-256 {fingerprint}");
    }
    if let Health::DiskFull { free_bytes } = database.health() {
        let reserve_bytes = config.reserve_bytes.0;
        tracing::warn!(free_bytes, reserve_bytes, "free disk space is below reserve_bytes: new data is rejected");
    }
    let mut ended = ServerEnd::Stopped;
    let stopped = async {
        let repair_is_due = async {
            match member {
                Some((node, _)) => node.repair_is_due().await,
                None => std::future::pending().await,
            }
        };
        let requested = async {
            match stop_requested {
                Some(stop_requested) => stop_requested.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signal = stop.signalled() => tracing::info!(signal, "stopping on a signal"),
            () = requested => tracing::info!("stopping on a request of an administrator"),
            () = repair_is_due => {
                tracing::warn!("stopping to repair the state: the node restarts without an operator");
                ended = ServerEnd::RepairDue;
            }
        }
        give_up_after(STOP_LIMIT);
    };
    server.run(stopped).await.map_err(|error| Failure::of(&error))?;
    // If a signal has arrived meanwhile, the process ends and does not start the repaired node.
    let is_signalled =
        ended == ServerEnd::RepairDue && tokio::time::timeout(Duration::ZERO, stop.signalled()).await.is_ok();
    Ok(if is_signalled { ServerEnd::Stopped } else { ended })
}

/// Ends the process if the server has not stopped within `limit`. A stop that hangs because of a dead disk must not
/// block a supervisor that restarts the node. Acknowledged writes are safe.
fn give_up_after(limit: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        tracing::error!("not stopped after {limit:?}: ending the process; the next start recovers");
        std::process::exit(i32::from(Exit::Failed.code()));
    });
}

/// Returns the startup line. It reports how the node was opened, and the addresses at which it listens.
fn startup_line(server: &Server, config: &Config, report: &OpenReport) -> String {
    let found = if report.created {
        "new".to_owned()
    } else if report.clean {
        format!("closed cleanly, opened in {}", show_span(report.took))
    } else {
        let torn = match report.cut_bytes {
            0 => String::new(),
            bytes => format!(", {} of a torn end removed", render::bytes(bytes)),
        };
        format!(
            "recovered in {}: {} ({}) replayed{torn}",
            show_span(report.took),
            render::counted(report.replayed_records, "record", "records"),
            render::bytes(report.replayed_bytes),
        )
    };
    let repaired = report.repaired.as_ref().map_or(String::new(), |what| format!(", repaired: {what}"));
    let address = server.local_addr();
    let native = server.native_addr().map_or(String::new(), |native| format!(" and thalweg://{native}"));
    let resp = server.resp_addr().map_or(String::new(), |resp| format!(" and redis://{resp}"));
    let durability = config.acknowledged();
    let cluster = match (config.cluster.address(), report.cluster) {
        (Some(at), Some(cluster)) => format!(", in cluster {cluster} at {at}"),
        _ => String::new(),
    };
    format!(
        "thalweg {} on http://{address}{native}{resp}, data in {} ({}), durability {durability}{cluster}, {found}{repaired}",
        env!("CARGO_PKG_VERSION"),
        config.data.display(),
        report.backend.name(),
    )
}
