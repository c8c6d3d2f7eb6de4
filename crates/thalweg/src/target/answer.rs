//! Conversion of API errors, of a server or of the same code in this process, to failures of commands.

use serde_json::Value;
use thalweg_server::error::ApiError;
use thalweg_types::Action;

use crate::{
    failure::{Exit, Failure, exit_of},
    render,
};

/// Converts an error object of the API; `None` if the body is not one.
pub fn refused(status: u16, body: &Value) -> Option<Failure> {
    let field = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
    let number = |name: &str| body.get(name).and_then(Value::as_u64);
    let code = field("code")?;
    let action = match field("retry").as_deref() {
        Some("retry") => Action::Retry,
        Some("fix") => Action::Fix,
        _ => Action::Stop,
    };
    let exit = if matches!(status, 404 | 410 | 416) { Exit::NotFound } else { exit_of(&code, action) };
    let message = field("message").unwrap_or_else(|| format!("status {status}"));
    let failure = Failure::new(exit, code, message);
    if failure.code == "no_such_stream" {
        return Some(failure.then(super::STREAMS_HINT));
    }
    if let Some(oldest) = number("oldest") {
        return Some(failure.then(format!("go on with `--from {oldest}`, or look at what there is now")));
    }
    Some(match (status, number("start"), number("next")) {
        (410, Some(start), _) => failure.then(format!("read with `--from {start}`")),
        (416, _, Some(next)) => {
            failure.then(format!("the next record will have offset {next}; `thalweg tail` waits for it"))
        }
        (409, _, Some(_)) => {
            failure.then("read what came in between, then append at the next offset; nothing was written")
        }
        (412, ..) => failure.then(format!("read {} again and decide anew; nothing was written", culprit(body))),
        _ => failure,
    })
}

/// Returns the key whose condition was not met, if the error names it.
fn culprit(body: &Value) -> String {
    let keyspace = body.get("keyspace").and_then(Value::as_str);
    let key = body.as_object().and_then(|object| render::take_bytes(object, "key"));
    match (keyspace, key) {
        (Some(keyspace), Some(key)) => format!("{} of {keyspace}", render::one_line(&key)),
        _ => "the key".to_owned(),
    }
}

/// Converts an error of the API's own code in this process.
pub fn of_api(error: ApiError) -> Failure {
    let known = refused(error.status.as_u16(), &error.to_json(None));
    known.unwrap_or_else(|| Failure::new(exit_of(error.code, error.action), error.code, error.message))
}
