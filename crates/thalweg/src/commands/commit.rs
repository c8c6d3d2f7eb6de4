//! `commit` and `txn`: execute commits and transactions over several keyspaces and streams. The user writes these
//! requests as JSON.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};

use super::input;
use crate::{
    args::TargetArgs,
    failure::{Exit, Failure},
    render,
    session::{Access, Session},
};

#[derive(Args, Debug)]
#[command(
    after_help = "The commit is the JSON of POST /v1/commit: `writes` (put, touch, delete, append, ack, nack), all or none, and\n\
                        optional `conditions` (as of a transaction); a server also accepts `publish`. If an append has a\n\
                        `producer`, the whole commit may be sent again without harm.\n\n\
                        Example:\n  thalweg commit '{\"writes\": [{\"op\": \"put\", \"keyspace\": \"orders\", \"key\": \"7\", \"value\": \"paid\"},\n    \
                        {\"op\": \"append\", \"stream\": \"events\", \"records\": [{\"payload\": \"order 7 paid\"}]}]}'\n\n\
                        Ends with 4 if a condition was not met, or an attempt has lapsed."
)]
pub(crate) struct Commit {
    /// The commit; `-` or no argument reads stdin
    pub commit: Option<String>,
    /// Read the commit from this file
    #[arg(long, value_name = "FILE", conflicts_with = "commit")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub place: TargetArgs,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The transaction is the JSON of POST /v1/txn. Operations: put, touch, delete, append, add, delete_prefix,\n\
                        get, scan, ack, nack. Conditions expect absent, present, or a revision, before, after, value,\n\
                        unchanged. An append of a producer belongs in a commit.\n\n\
                        Example:\n  thalweg txn '{\"conditions\": [{\"keyspace\": \"locks\", \"key\": \"job\", \"expect\": \"absent\"}],\n    \
                        \"then\": [{\"op\": \"put\", \"keyspace\": \"locks\", \"key\": \"job\", \"value\": \"me\"}],\n    \
                        \"else\": [{\"op\": \"get\", \"keyspace\": \"locks\", \"key\": \"job\"}]}'\n\n\
                        Ends with 4 if a condition was not met and `else` has no operations."
)]
pub(crate) struct Txn {
    /// The transaction; `-` or no argument reads stdin
    pub transaction: Option<String>,
    /// Read the transaction from this file
    #[arg(long, value_name = "FILE", conflicts_with = "transaction")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub place: TargetArgs,
}

fn body(typed: Option<&str>, file: Option<&PathBuf>) -> Result<Vec<u8>, Failure> {
    file.map_or_else(|| input::request(typed), |path| input::file(path))
}

pub(crate) fn commit(args: &Commit) -> Result<(), Failure> {
    let body = body(args.commit.as_deref(), args.file.as_ref())?;
    let answer = Session::with(&args.place, Access::Write, |session| session.commit(&body))?;
    render::print_result(&answer, args.place.json, || commit_text(&answer))
}

fn commit_text(answer: &Value) -> String {
    let level = answer["durability"].as_str().unwrap_or_default();
    let revision = answer["revision"].as_u64().map_or(String::new(), |revision| format!("revision {revision}, "));
    let before = if answer["duplicate"] == json!(true) { "it happened before, " } else { "" };
    let mut text = format!("ok, {before}{revision}durability {level}");
    for (op, name) in [("append", "appends"), ("publish", "published")] {
        text.extend(answer[name].as_array().into_iter().flatten().map(|result| format!("\n{op}\t{result}")));
    }
    text
}

pub(crate) fn txn(args: &Txn) -> Result<(), Failure> {
    let body = body(args.transaction.as_deref(), args.file.as_ref())?;
    let answer = Session::with(&args.place, Access::Write, |session| session.transact(&body))?;
    let nothing_done = answer["results"].as_array().is_none_or(Vec::is_empty);
    let is_refused = answer["succeeded"] == json!(false) && nothing_done;
    // The text output would look like a success. The JSON output contains the outcome and the failed condition.
    if !is_refused || args.place.json {
        render::print_result(&answer, args.place.json, || transaction_text(&answer))?;
    }
    if is_refused {
        let number = answer["failed"]["condition"].as_u64().unwrap_or_default();
        let message = format!("condition {number} was not met, and the transaction has no \"else\"");
        return Err(Failure::new(Exit::Conflict, "condition_failed", message)
            .then("nothing was written; read the keys and retry"));
    }
    Ok(())
}

fn transaction_text(answer: &Value) -> String {
    let branch = if answer["succeeded"] == json!(true) { "then" } else { "else" };
    let level = answer["durability"].as_str().unwrap_or_default();
    let mut text = format!("ok, {branch}, revision {}, durability {level}", answer["revision"]);
    for result in answer["results"].as_array().into_iter().flatten() {
        let op = result["op"].as_str().unwrap_or_default();
        let fields = result.as_object().into_iter().flatten().filter(|(name, _)| *name != "op");
        let fields: Map<String, Value> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
        let fields = if fields.is_empty() { String::new() } else { format!("\t{}", Value::Object(fields)) };
        text.push_str(&format!("\n{op}{fields}"));
    }
    text
}
