//! Conversion of error replies of the API to failures of commands. The advice names commands and options instead of
//! requests.

use serde_json::Value;
use thalweg_types::Action;

use crate::{
    failure::{Exit, Failure, exit_of},
    render,
};

/// Converts an error object of the HTTP API to a failure of the command; `None` if the JSON is not an error object.
pub(super) fn refused(status: u16, body: &Value) -> Option<Failure> {
    let field = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
    let number = |name: &str| body.get(name).and_then(Value::as_u64);
    let code = field("code")?;
    let action = match field("retry").as_deref() {
        Some("retry") => Action::Retry,
        Some("fix") => Action::Fix,
        _ => Action::Stop,
    };
    let exit = if matches!(status, 404 | 410 | 416) { Exit::NotFound } else { exit_of(&code, action) };
    let message = match &*code {
        // The server's message names an HTTP header, which a user of the command does not set. So it is replaced.
        "token_missing" => {
            "changes of the cluster need its admin token, which the first node printed when it created the cluster"
                .to_owned()
        }
        _ => field("message").unwrap_or_else(|| format!("status {status}")),
    };
    let message =
        message.replace("the body is not the JSON that this route expects", "the JSON is not what is expected");
    let failure = Failure::new(exit, code, message);
    let hint = match &*failure.code {
        "no_such_stream" => Some("`thalweg streams` lists the existing streams; `thalweg append` creates one"),
        "no_such_group" => {
            Some("`thalweg groups list` lists the existing groups; `groups create` or `consume --create` creates one")
        }
        "no_such_keyspace" => Some("`thalweg keyspaces` lists the existing keyspaces"),
        "no_history" => Some("`thalweg keyspaces configure KEYSPACE --history 10` begins a history"),
        "no_digest" => Some("`thalweg state digest` computes one"),
        "token_missing" => Some("set THALWEG_ADMIN_TOKEN, or name a file with --token-file"),
        "no_leader" => Some("`thalweg cluster doctor` shows the cause if this lasts"),
        "no_such_lease" => Some("`thalweg lease list` lists the active leases; `thalweg lease grant` grants one"),
        "producer_fenced" | "sequence_gap" | "unknown_producer" | "duplicate_too_old" => {
            Some("nothing was written; `thalweg streams producers STREAM` shows the state of the producers")
        }
        _ => None,
    };
    if let Some(hint) = hint {
        return Some(failure.then(hint));
    }
    if let Some(oldest) = number("oldest") {
        return Some(failure.then(format!("begin at {oldest} or later, or read the current data")));
    }
    Some(match (status, number("start"), number("next")) {
        (410, Some(start), _) => failure.then(format!("read with `--from {start}`")),
        (416, _, Some(next)) => {
            failure.then(format!("the next record will have offset {next}; `thalweg tail` waits for it"))
        }
        (409, _, Some(_)) => {
            failure.then("nothing was written; read the records in between, then append at the next offset")
        }
        (412, ..) => failure.then(format!("nothing was written; read {} and retry", culprit(body))),
        _ => failure,
    })
}

/// Returns the key whose condition was not met, for a message. Returns "the key" if the error does not contain the key.
fn culprit(body: &Value) -> String {
    let keyspace = body.get("keyspace").and_then(Value::as_str);
    let key = body.as_object().and_then(|object| render::take_bytes(object, "key"));
    match (keyspace, key) {
        (Some(keyspace), Some(key)) => format!("{} of {keyspace}", render::one_line(&key)),
        _ => "the key".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_json_is_explained_without_routes() {
        let message = "the body is not the JSON that this route expects: missing field `writes`";
        let failure = refused(400, &json!({ "code": "bad_json", "message": message, "retry": "fix" })).unwrap();
        assert_eq!(failure.message, "the JSON is not what is expected: missing field `writes`");
    }

    #[test]
    fn a_missing_admin_token_is_explained_without_the_header_of_a_request() {
        let body = json!({ "code": "token_missing", "message": "needs Authorization: Bearer TOKEN", "retry": "fix" });
        let failure = refused(401, &body).unwrap();
        assert!(!failure.message.contains("Bearer"), "{}", failure.message);
        assert!(failure.next.is_some_and(|next| next.contains("--token-file")));
    }
}
