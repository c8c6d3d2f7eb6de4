//! `cluster`: shows the members of a cluster, and changes them.
//!
//! Owns: the arguments, and the tables of the output. Does not own: the diagnosis of `cluster doctor`
//! ([`diagnosis`](super::diagnosis)).

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use thalweg_cluster::{Authority, CertificateFiles, Existing, IdentityError, Validity};
use thalweg_server::cluster::{CREDENTIALS_FILE, Credentials};

use super::{
    diagnosis::{Node, Severity, diagnose},
    log,
    repair::repair,
};
use crate::{
    args::ServerArgs,
    failure::{Exit, Failure},
    render::{self, Lines, count},
    retry::while_failing,
    session::{EventsFrom, Session},
    span::{show_span, show_time},
};

/// Environment variable from which the admin token is read.
const TOKEN_VARIABLE: &str = "THALWEG_ADMIN_TOKEN";
/// Maximum time for which `cluster doctor` waits for the answer of each node.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

const AFTER_HELP: &str = "\
Changes need the admin token, which the first node printed when it created the cluster: set THALWEG_ADMIN_TOKEN, or name
a file with --token-file. Members are named by their name or their id.

Examples:
  thalweg cluster members
  thalweg cluster doctor
  thalweg cluster join-token --token-file admin.token
  THALWEG_ADMIN_TOKEN=... thalweg cluster remove db3
  thalweg cluster watch --json";

/// Options of `cluster`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP, arg_required_else_help = true, subcommand_required = true)]
pub(crate) struct ClusterCommand {
    #[command(subcommand)]
    pub action: ClusterAction,
}

/// Options that give the admin token of a cluster.
#[derive(Args, Clone, Debug)]
pub(crate) struct TokenArgs {
    /// Read the admin token from this file [env: THALWEG_ADMIN_TOKEN is the token itself]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// Returns the admin token that the user has given; `None` if the user has given none.
    pub(crate) fn token(&self) -> Result<Option<String>, Failure> {
        if let Some(path) = &self.token_file {
            let text = fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
            return Ok(Some(text.trim().to_owned()));
        }
        Ok(std::env::var(TOKEN_VARIABLE).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
    }
}

/// Actions on a cluster.
#[derive(Subcommand, Debug)]
pub(crate) enum ClusterAction {
    /// Print the cluster as one node sees it: leader, term, positions
    Status {
        #[command(flatten)]
        place: ServerArgs,
    },
    /// List the members with their roles, health and lag
    Members {
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Print the token with which a new node joins; it is a secret
    JoinToken {
        #[command(flatten)]
        token: TokenArgs,
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Make a learner a voter; a voter stays one
    Promote {
        /// Name or id of the learner
        node: String,
        #[command(flatten)]
        token: TokenArgs,
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Remove a member for good, such as one that has failed
    #[command(
        after_help = "The node's id is never used again. To replace a failed node, remove it, and start a new one with an empty\n\
                            directory and --join. --force removes a member even if the remaining voters that are alive are no\n\
                            majority: the cluster then has no leader until more of them are back. A script that may repeat the\n\
                            command names the node by its id: a node that was removed before is no error then.\n\n\
                            Example:\n  thalweg cluster remove db3"
    )]
    Remove {
        /// Name or id of the member
        node: String,
        /// Remove the member even if the remaining voters that are alive are no majority
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        token: TokenArgs,
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Remove the node that the command reaches from its cluster
    Leave {
        /// Name or id of the node; any other node refuses the request
        #[arg(long)]
        node: Option<String>,
        /// Leave even if the remaining voters that are alive are no majority
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        token: TokenArgs,
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Stop the node that the command reaches, as SIGTERM does; it stays a member
    Shutdown {
        /// Name or id of the node; any other node refuses the request
        #[arg(long)]
        node: Option<String>,
        #[command(flatten)]
        token: TokenArgs,
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Transfer leadership to another voter
    Transfer {
        /// Name or id of the new leader [default: the voter with the least lag]
        node: Option<String>,
        #[command(flatten)]
        token: TokenArgs,
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Compare the states of the members by their digests; ends with 1 if they differ, with 5 if one is missing
    Digest {
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Print events of the cluster as they happen, as one node sees them
    #[command(
        visible_alias = "events",
        after_help = "Events: leader, joined, promoted, removed, alive, suspect, down, lagging, stale, caught_up. Only the leader reports\n\
                            lagging and stale. A node keeps its last 1024 events until it stops.\n\n\
                            Examples:\n  thalweg cluster watch\n  thalweg cluster events --past --json"
    )]
    Watch {
        /// Show past events first
        #[arg(long)]
        past: bool,
        /// End after this number of events
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Find out what is wrong, and what to do; ends with 1 if there is a problem
    Doctor {
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Give a stopped member the state of another one, if its own is damaged or differs
    #[command(
        after_help = "Copies a snapshot of the member at --server into the directory, checks it, and puts it in the place of the state.\n\
                            The node keeps its id, its votes and its log. If its log or its state cannot be opened, replace the node: remove\n\
                            it, and start a new one with an empty directory and --join. The directory needs room for the new state and\n\
                            the snapshot. An interrupted repair changes nothing and can be repeated.\n\n\
                            Example:\n  thalweg cluster repair --data ./data --server http://10.0.0.2:7070"
    )]
    Repair {
        /// Directory of the member; no server may use it
        #[arg(long, value_name = "DIR", default_value = "thalweg-data")]
        data: PathBuf,
        #[command(flatten)]
        place: ServerArgs,
    },
    /// Create a certificate authority for the links between the nodes of a cluster
    #[command(
        after_help = "Writes cluster-ca.pem, which each node needs, and cluster-ca-key.pem, which only create-cert needs: keep it\n\
                            away from the nodes. Without an authority, nodes know each other by the secret in the join token alone.\n\n\
                            Examples:\n  thalweg cluster create-ca --to certs\n  \
                            thalweg cluster create-cert db1 10.0.0.1 --ca certs --to certs"
    )]
    CreateCa {
        /// Directory for the two files
        #[arg(long, value_name = "DIR", default_value = ".")]
        to: PathBuf,
        /// Name of the authority, for people [default: a name that no other authority has]
        #[arg(long)]
        name: Option<String>,
        /// Days for which the authority is valid
        #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a certificate for one node, signed by the authority of the cluster
    #[command(
        after_help = "NAMES are the host or IP address at which the other nodes reach the node (its --advertise, or --cluster), and\n\
                            its --node-name, by which the others know it when its address changes. Writes NAME.pem and NAME-key.pem\n\
                            for the first name. The node uses them as cluster_certificate and cluster_key, with cluster_ca. To renew a\n\
                            certificate, replace the files and send the node SIGHUP.\n\n\
                            Examples:\n  thalweg cluster create-cert db1 db1.example.net 10.0.0.1\n  \
                            thalweg cluster create-cert db1 10.0.0.1 --replace"
    )]
    CreateCert {
        /// Names of the node: its node name, host names, IP addresses
        #[arg(required = true)]
        names: Vec<String>,
        /// Directory with the certificate and the key of the authority
        #[arg(long, value_name = "DIR", default_value = ".")]
        ca: PathBuf,
        /// Directory for the two files of the node
        #[arg(long, value_name = "DIR", default_value = ".")]
        to: PathBuf,
        /// Days for which the certificate is valid
        #[arg(long, default_value_t = 397, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
        /// Replace files of an earlier certificate
        #[arg(long)]
        replace: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create the join token and the admin token of a new cluster, for nodes that found it together
    #[command(
        after_help = "The admin token goes to stdout's second line, and is stored nowhere. Give the join token to each node as\n\
                            THALWEG_JOIN_TOKEN.\n\nExample:\n  thalweg cluster create-token"
    )]
    CreateToken {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the admin token in the directory of a stopped member
    #[command(
        after_help = "For a lost token, or one that others may know. Each member checks tokens by the file CLUSTER of its own directory:\n\
                            copy the new one to the others while they are stopped.\n\n\
                            Example:\n  thalweg cluster new-admin-token --data ./data"
    )]
    NewAdminToken {
        /// Directory of the member; no server may use it
        #[arg(long, value_name = "DIR", default_value = "thalweg-data")]
        data: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs `cluster`.
pub(crate) fn run(args: &ClusterCommand) -> Result<(), Failure> {
    match &args.action {
        ClusterAction::Status { place } => {
            let status = Session::of_server(place)?.cluster("status")?;
            render::print_result(&status, place.json, || status_text(&status))
        }
        ClusterAction::Members { place } => members(place),
        ClusterAction::JoinToken { token, place } => {
            let reply = change("join-token", &json!({}), token, place)?;
            render::print_result(&reply, place.json, || text(&reply["token"]))
        }
        ClusterAction::Promote { node, token, place } => {
            let reply = change("promote", &json!({ "node": node }), token, place)?;
            let was_voter = reply["was_voter"] == true;
            done(&json!({ "promoted": node, "was_voter": was_voter }), place, || {
                format!("{node} is a voter{}", if was_voter { " already" } else { "" })
            })
        }
        ClusterAction::Remove { node, force, token, place } => {
            let reply = change("remove", &json!({ "node": node, "force": force }), token, place)?;
            let was_removed = reply["already_removed"] == true;
            done(&json!({ "removed": node, "already_removed": was_removed }), place, || {
                let when = if was_removed { "was removed before" } else { "is no member any more" };
                format!("{node} {when}; stop it if it still runs")
            })
        }
        ClusterAction::Leave { node, force, token, place } => {
            check_one("leave", node.as_deref(), place)?;
            change("leave", &json!({ "node": node, "force": force }), token, place)?;
            done(&json!({ "left": true }), place, || "the node is no member any more; stop it".to_owned())
        }
        ClusterAction::Shutdown { node, token, place } => {
            check_one("shutdown", node.as_deref(), place)?;
            let body = node.as_ref().map_or_else(|| json!({}), |node| json!({ "node": node }));
            let reply = change("shutdown", &body, token, place)?;
            done(&reply, place, || format!("{} stops", text(&reply["node"])))
        }
        ClusterAction::Transfer { node, token, place } => {
            let body = node.as_ref().map_or_else(|| json!({}), |node| json!({ "to": node }));
            let reply = change("transfer", &body, token, place)?;
            // A server of an earlier version states only the id of the leader, not its name.
            let leader = reply["leader_name"].as_str().filter(|name| !name.is_empty());
            done(&reply, place, || format!("{} leads", leader.map_or_else(|| text(&reply["leader"]), str::to_owned)))
        }
        ClusterAction::Digest { place } => digest(place),
        ClusterAction::Watch { past, limit, place } => watch(*past, *limit, place),
        ClusterAction::Doctor { place } => doctor(place),
        ClusterAction::Repair { data, place } => repair(data, place),
        ClusterAction::CreateCa { to, name, days, json } => {
            fs::create_dir_all(to).map_err(|error| Failure::file(to, &error))?;
            let files = CertificateFiles::of_authority(to);
            Authority::create(&files, name.as_deref(), Validity::for_days(*days))
                .map_err(|error| Failure::of(&error))?;
            created(&files, *json)
        }
        ClusterAction::CreateCert { names, ca, to, days, replace, json } => {
            let authority = Authority::read(&CertificateFiles::of_authority(ca)).map_err(|error| {
                Failure::of(&error)
                    .then("create an authority with `thalweg cluster create-ca`, or name its directory with --ca")
            })?;
            fs::create_dir_all(to).map_err(|error| Failure::file(to, &error))?;
            let files = CertificateFiles::of_node(to, &names[0]);
            let existing = if *replace { Existing::Replace } else { Existing::Keep };
            let issued = authority.issue(&files, names, Validity::for_days(*days), existing);
            issued.map_err(|error| match error {
                error @ IdentityError::Exists { .. } => {
                    Failure::of(&error).then("renew the certificate with --replace")
                }
                error => Failure::of(&error),
            })?;
            created(&files, *json)
        }
        ClusterAction::CreateToken { json } => {
            let (credentials, admin) = Credentials::random().map_err(|error| Failure::of(&error))?;
            let tokens = json!({ "join_token": credentials.join_token(), "admin_token": admin.reveal() });
            render::print_result(&tokens, *json, || {
                format!("join token:   {}\nadmin token:  {}", credentials.join_token(), admin.reveal())
            })
        }
        ClusterAction::NewAdminToken { data, json } => new_admin_token(data, *json),
    }
}

/// Replaces the admin token in the directory of a stopped member.
fn new_admin_token(data: &Path, json: bool) -> Result<(), Failure> {
    let read = Credentials::of_directory(data).map_err(|error| Failure::of(&error))?;
    let mut credentials = read.ok_or_else(|| {
        let message = format!("{} has no file {CREDENTIALS_FILE}: it is no member of a cluster", data.display());
        Failure::new(Exit::NotFound, "not_clustered", message)
    })?;
    // The directory is locked, because a running server keeps the hash of the former token in memory and would reject
    // the new one.
    let _lock = log::open(data).map_err(|failure| match &*failure.code {
        "locked" => failure.then("stop the server of this directory first"),
        _ => failure,
    })?;
    let admin = credentials.replace_admin().map_err(|error| Failure::of(&error))?;
    credentials.write(data).map_err(|error| Failure::of(&error))?;
    render::print_result(&json!({ "admin_token": admin.reveal() }), json, || admin.reveal().to_owned())
}

/// Prints the names of the certificate and key files that the command has created.
fn created(files: &CertificateFiles, json: bool) -> Result<(), Failure> {
    let (certificate, key) = (files.certificate.display().to_string(), files.key.display().to_string());
    let object = json!({ "certificate": certificate, "key": key });
    render::print_result(&object, json, || format!("certificate:  {certificate}\nprivate key:  {key}"))
}

/// Time for which the command repeats a change of the members while the cluster elects a leader or completes another
/// change.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns true if the command can repeat its change of the members after this failure. If there was no leader, the
/// change has not happened, or the next leader completes it. If another change was in progress, the command's change
/// has not happened.
fn is_transient(failure: &Failure) -> bool {
    matches!(&*failure.code, "not_leader" | "no_leader" | "change_in_progress")
}

/// Rejects a request that concerns only the node that answers it, if the user has given several addresses and no node.
/// If the first address could not be reached, the command would send the request to another node, which would execute
/// it.
fn check_one(what: &str, node: Option<&str>, place: &ServerArgs) -> Result<(), Failure> {
    if node.is_some() || !place.url().contains(',') {
        return Ok(());
    }
    let message = format!("`{what}` is for the node that answers, and several servers are named");
    Err(Failure::usage(message).then("name one server with --server, or the node with --node"))
}

/// Requests a change of the members. Repeats the request while there is no leader, leadership moves, or another change
/// is in progress.
fn change(what: &str, body: &Value, token: &TokenArgs, place: &ServerArgs) -> Result<Value, Failure> {
    let (token, mut attempts) = (token.token()?, 0);
    while_failing(PATIENCE, is_transient, || {
        attempts += 1;
        match Session::of_server(place)?.change_cluster(what, body, token.as_deref()) {
            Err(failure) if failure.exit == Exit::NotFound && what == "remove" && attempts > 1 => Ok(Value::Null),
            changed => changed,
        }
    })
}

fn done(object: &Value, place: &ServerArgs, shown: impl FnOnce() -> String) -> Result<(), Failure> {
    render::print_result(object, place.json, shown)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(is_so) => if *is_so { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), count),
        other => other.to_string(),
    }
}

fn status_text(status: &Value) -> String {
    let rows = status.as_object().into_iter().flatten();
    let rows = rows.map(|(name, value)| vec![name.replace('_', " "), text(value)]);
    render::table(&["figure", "value"], rows)
}

/// Returns the members as the API lists them. Adds to each member its lag from the API's list of replicas.
fn merged(session: &Session) -> Result<Vec<Value>, Failure> {
    let (members, replicas) = (session.cluster("members")?, session.cluster("replicas")?);
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let replicas = list(&replicas, "replicas");
    let mut merged = list(&members, "members");
    for member in &mut merged {
        let Some(replica) = replicas.iter().find(|replica| replica["node"] == member["node"]) else { continue };
        for name in ["status", "offset", "applied_index", "lag_entries", "lag_bytes", "behind_millis"] {
            member[name] = replica[name].clone();
        }
    }
    Ok(merged)
}

fn members(place: &ServerArgs) -> Result<(), Failure> {
    let merged = merged(&Session::of_server(place)?)?;
    render::print_result(&json!({ "members": merged }), place.json, || members_text(&merged))
}

fn members_text(members: &[Value]) -> String {
    let row = |member: &Value| {
        let role = if member["leads"] == true { "leader".to_owned() } else { text(&member["role"]) };
        let lag = match (member["lag_entries"].as_u64(), member["lag_bytes"].as_u64()) {
            (Some(entries), Some(bytes)) => {
                format!("{}, {}", render::counted(entries, "entry", "entries"), render::bytes(bytes))
            }
            (Some(entries), None) => render::counted(entries, "entry", "entries"),
            _ => "-".to_owned(),
        };
        let heard = member["heard_millis"]
            .as_u64()
            .map_or("never".to_owned(), |millis| format!("{} ago", show_span(Duration::from_millis(millis))));
        let mut cells = vec![text(&member["name"]), text(&member["node"]), role, text(&member["status"]), lag, heard];
        cells.extend(["address", "zone", "version"].map(|name| text(&member[name])));
        cells
    };
    let header = ["name", "id", "role", "status", "lag", "heard", "address", "zone", "version"];
    render::table(&header, members.iter().map(row))
}

fn digest(place: &ServerArgs) -> Result<(), Failure> {
    let digest = Session::of_server(place)?.cluster_digest()?;
    let members = digest["members"].as_array().cloned().unwrap_or_default();
    let missing = members.iter().filter(|member| !member["digest"].is_string()).count();
    render::print_result(&digest, place.json, || {
        let row = |member: &Value| vec![text(&member["name"]), text(&member["digest"]), text(&member["missing"])];
        let table = render::table(&["name", "digest", "missing"], members.iter().map(row));
        let verdict = match (digest["equal"] == true, missing) {
            (true, 0) => "equal".to_owned(),
            (true, missing) => format!("equal, but {missing} of {} are missing", members.len()),
            (false, _) => "DIFFERENT".to_owned(),
        };
        format!("{table}\nindex {}: {verdict}", text(&digest["index"]))
    })?;
    if digest["equal"] == true && missing > 0 {
        let message = format!("{missing} of {} members have no digest", members.len());
        return Err(Failure::new(Exit::Unavailable, "digests_missing", message)
            .then("bring them back, and compare again; the others are equal"));
    }
    if digest["equal"] == true {
        return Ok(());
    }
    let failure = Failure::new(Exit::Failed, "digests_differ", "the states of the members differ");
    Err(failure.then("`thalweg state digest` on each node shows the kind of rows that differ; keep the directories"))
}

fn watch(past: bool, limit: Option<u64>, place: &ServerArgs) -> Result<(), Failure> {
    if limit == Some(0) {
        return Ok(());
    }
    let (mut lines, mut left) = (Lines::new(), limit);
    let begin = if past { EventsFrom::Kept } else { EventsFrom::Now };
    Session::of_server(place)?.cluster_events(begin, &mut |event| {
        lines.line(&if place.json { Value::Object(event.clone()).to_string() } else { event_text(event) })?;
        lines.flush()?;
        left = left.map(|left| left - 1);
        Ok(if left == Some(0) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })
}

/// Formats an event as one line: its time, its kind, and the node that it is about.
fn event_text(event: &Map<String, Value>) -> String {
    let field = |name: &str| event.get(name).unwrap_or(&Value::Null);
    if let Some(missed) = field("gap").as_u64() {
        return format!("{} missed", render::counted(missed, "event", "events"));
    }
    let name = match field("name") {
        Value::Null => field("node"),
        name => name,
    };
    let term = field("term").as_u64().map_or(String::new(), |term| format!("\tterm {term}"));
    let time = field("unix_micros").as_u64().map_or("-".to_owned(), show_time);
    format!("{time}\t{}\t{}{term}", text(field("event")), text(name))
}

fn doctor(place: &ServerArgs) -> Result<(), Failure> {
    let session = Session::of_server(place)?;
    let status = session.cluster("status")?;
    let (members, nodes) = (merged(&session)?, session.cluster("nodes")?);
    let ask = |node: &Value| Node {
        name: text(&node["name"]),
        http: node["http"].as_str().map(str::to_owned),
        answer: match node["http"].as_str() {
            Some(address) => Session::status_of_node(address, NODE_TIMEOUT).map_err(|failure| failure.message),
            None => Err("its address is unknown".to_owned()),
        },
    };
    let nodes: Vec<_> = nodes["nodes"].as_array().into_iter().flatten().map(ask).collect();
    let findings = diagnose(&status, &members, &nodes);
    let problems = findings.iter().filter(|finding| finding.severity == Severity::Problem).count();
    let listed = findings.iter().map(|finding| {
        json!({ "severity": finding.severity.name(), "code": finding.code, "message": finding.message, "next": finding.next })
    });
    let object = json!({ "findings": listed.collect::<Vec<_>>(), "problems": problems });
    render::print_result(&object, place.json, || {
        if findings.is_empty() {
            return format!("good: {}", render::counted(members.len() as u64, "member", "members"));
        }
        let shown = |finding: &super::diagnosis::Finding| {
            format!("{}: {}\n  {}", finding.severity.name(), finding.message, finding.next)
        };
        findings.iter().map(shown).collect::<Vec<_>>().join("\n")
    })?;
    if problems == 0 {
        return Ok(());
    }
    let message = render::counted(problems as u64, "problem", "problems");
    Err(Failure::new(Exit::Failed, "cluster_problems", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_leaves_or_stops_is_named_if_several_could_answer() {
        let at =
            |server: &str| ServerArgs { server: Some(server.to_owned()), timeout: Duration::from_secs(1), json: false };
        let (one, two) = (at("http://a:1"), at("http://a:1,http://b:1"));
        assert!(check_one("leave", None, &one).is_ok() && check_one("leave", Some("a"), &two).is_ok());
        let refused = check_one("leave", None, &two).unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.to_string().contains("--node"), "{refused}");
    }

    #[test]
    fn a_change_beside_another_one_is_repeated() {
        let failure = |code: &'static str| Failure::new(Exit::Unavailable, code, "failed");
        assert!(["not_leader", "no_leader", "change_in_progress"].into_iter().all(|code| is_transient(&failure(code))));
        assert!(!is_transient(&failure("outcome_unknown")), "it may have happened");
    }

    #[test]
    fn members_are_one_row_each() {
        let members = [
            json!({ "name": "db1", "node": "0000000000000001", "role": "voter", "leads": true, "status": "alive",
                    "lag_entries": 0, "lag_bytes": 0, "heard_millis": 0, "address": "h:1", "zone": "", "version": "0.1" }),
            json!({ "name": "db2", "node": "0000000000000002", "role": "learner", "status": "lagging",
                    "lag_entries": 12_000, "lag_bytes": 1 << 20, "heard_millis": null, "address": "h:2" }),
        ];
        let shown = members_text(&members);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert!(lines[1].contains("leader") && lines[1].contains("0 entries"), "{shown}");
        assert!(lines[2].contains("learner") && lines[2].contains("12,000 entries, 1.00 MiB"), "{shown}");
        assert!(lines[2].contains("never"), "{shown}");
    }

    #[test]
    fn events_are_one_line_each() {
        let event = |value: Value| event_text(value.as_object().unwrap());
        let leader =
            json!({ "sequence": 2, "unix_micros": 0, "event": "leader", "node": "01", "name": "db2", "term": 6 });
        assert!(event(leader).ends_with("\tleader\tdb2\tterm 6"));
        assert!(event(json!({ "unix_micros": 0, "event": "leader", "node": null, "term": 6 })).contains("leader\t-"));
        assert_eq!(event(json!({ "gap": 3 })), "3 events missed");
    }
}
