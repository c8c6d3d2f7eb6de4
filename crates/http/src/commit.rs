//! The handler of `POST /v1/commit`: conditions and writes across keyspaces and streams, all applied or none.

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use thalweg_broker::Batch;
use thalweg_engine::{Ack, RowsOf};
use thalweg_serving::{app::App, error::ApiError, fetched::fetch_rows};
use thalweg_types::{Action, Durability, command::CommitBuilder};
use utoipa::ToSchema;

use crate::{
    body,
    call::{Answer, Call},
    describe::{Accepted, Durable, Level},
    json,
    names::Names,
    operations::{self, JsonCondition, JsonOperation, level_of, targets},
    reply,
    subjects::JsonPublish,
};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Commit)]
struct JsonCommit {
    #[serde(default)]
    conditions: Vec<JsonCondition>,
    writes: Vec<JsonOperation>,
    #[schema(value_type = Option<Durable>)]
    durability: Option<String>,
    /// Messages to publish after the writes have reached their durability level.
    #[serde(default)]
    publish: Vec<JsonPublish>,
}

impl JsonCommit {
    /// Returns the commit's durability level. Returns an error if the request is invalid, so that the commit would fail
    /// whatever data the database contains.
    fn level(&self, asked: Durability) -> Result<Durability, ApiError> {
        let level = level_of(self.durability.as_ref(), asked)?;
        if self.writes.is_empty() {
            return Err(ApiError::bad_request("bad_json", "a commit has at least one write"));
        }
        if !self.publish.is_empty() && level == Durability::None {
            let message = "a commit at level none cannot publish, because its outcome is unknown: choose another level";
            return Err(ApiError::bad_request("level_too_low", message));
        }
        Ok(level)
    }

    /// Takes the messages to publish out of the commit, and converts them to batches of the broker.
    fn with_batches(mut self) -> Result<(Self, Vec<Batch>), ApiError> {
        let publish = std::mem::take(&mut self.publish);
        Ok((self, publish.iter().map(JsonPublish::batch).collect::<Result<_, _>>()?))
    }

    fn build(&self, names: &Names) -> Result<CommitBuilder, ApiError> {
        let mut builder = CommitBuilder::new();
        for condition in &self.conditions {
            let id = names.keyspace(&condition.keyspace)?;
            condition.with(|key, expect| Ok(builder.expect(id, key, expect).map(|_| ())?))?;
        }
        self.writes.iter().try_for_each(|write| write.write(&mut builder, names))?;
        Ok(builder)
    }

    fn appends(&self) -> Vec<RequestedAppend> {
        let appends = self.writes.iter().filter_map(|write| match write {
            JsonOperation::Append { stream, producer, .. } => {
                Some(RequestedAppend { stream: stream.clone(), produced: producer.is_some() })
            }
            _ => None,
        });
        appends.collect()
    }
}

/// An append of the commit, with the data that the reply needs to describe its result.
struct RequestedAppend {
    stream: String,
    produced: bool,
}

/// Handles `POST /v1/commit`: executes a commit across keyspaces and streams.
#[utoipa::path(
    post, path = "/v1/commit", params(Level), request_body = JsonCommit,
    responses((status = 200, description = "The commit is done.", body = Object), Accepted)
)]
pub(crate) async fn commit(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    call.require_json()?;
    let asked = call.level(app)?;
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    let (sent, body): (JsonCommit, _) = body::parse(app, &call.account, body, parsed).await?;
    let level = sent.level(asked)?;
    let bytes = body.len();
    let (sent, batches) = match sent.publish.is_empty() {
        true => (sent, Vec::new()),
        false => body::work(app, &call.account, bytes, move || sent.with_batches()).await??,
    };
    let names = Names::of(app, call, targets(&sent.conditions, sent.writes.iter())).await?;
    let build = move || Ok::<_, ApiError>((sent.build(&names)?, sent.appends(), sent.conditions));
    let (commit, appends, conditions) = body::work(app, &call.account, bytes, build).await??;
    let db = call.db(app)?;
    fetch_rows(app, &call.account, &db, RowsOf::Commit(&commit)).await;
    let committed = db.commit(&commit, level);
    drop(commit);
    // Parts of the body may stay in memory: conditions, to name a failed one, or messages to publish. The body stays
    // counted as long as they do.
    let kept = (!conditions.is_empty() || !batches.is_empty()).then_some(body);
    let carried_out = async move {
        let _kept = kept;
        committed.await.map_err(|error| operations::failed(error, &conditions))
    };
    let (ack, published) = match batches.is_empty() {
        true => (carried_out.await?, None),
        false => publish_after(app, carried_out, batches).await?,
    };
    Ok(reply::acked_json(&ack, StatusCode::OK, answer(&ack, &appends, published)))
}

/// Executes a commit and then publishes its messages. Both steps run in a separate task, so they complete even if the
/// client disconnects before.
async fn publish_after(
    app: &Arc<App>,
    carried_out: impl Future<Output = Result<Ack, ApiError>> + Send + 'static,
    batches: Vec<Batch>,
) -> Result<(Ack, Option<Vec<Value>>), ApiError> {
    let app = Arc::clone(app);
    let task = tokio::spawn(async move {
        let ack = carried_out.await?;
        // If the commit is a repetition, its first attempt has published already, or the node stopped before it could.
        // So messages are delivered at most once.
        let published = (!ack.duplicate).then(|| app.views.publish_committed(&batches));
        Ok((ack, published))
    });
    task.await.unwrap_or_else(|_| {
        let message = "the commit may have been carried out: see the server's log";
        Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", Action::Stop, message))
    })
}

/// Checks that a request body is the JSON of a commit.
pub fn check(body: &[u8]) -> Result<(), ApiError> {
    parsed(body).map(|_| ())
}

/// Parses a commit. The error for an unknown operation lists the operations that a commit may contain.
fn parsed(body: &[u8]) -> Result<JsonCommit, ApiError> {
    json::parse(body).map_err(|mut error: ApiError| {
        let unknown = error.message.split_once(", expected one of `put`, ").map(|(unknown, _)| unknown.to_owned());
        if let Some(unknown) = unknown {
            error.message =
                format!("{unknown}: the writes of a commit are put, touch, delete, append, ack and nack").into();
        }
        error
    })
}

fn answer(ack: &Ack, asked: &[RequestedAppend], published: Option<Vec<Value>>) -> Value {
    // For a repeated commit, the state remembers only the appends of producers.
    let mut object = json!({});
    if ack.duplicate {
        object["duplicate"] = json!(true);
    }
    if let Some(published) = published {
        object["published"] = published.into();
    }
    object["appends"] = asked
        .iter()
        .filter(|asked| asked.produced || !ack.duplicate)
        .zip(&ack.appends)
        .map(|(asked, at)| {
            json!({ "stream": asked.stream, "first": at.first.0, "last": reply::last(at.first, at.count), "count": at.count })
        })
        .collect();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_operation_is_answered_with_those_of_a_commit() {
        let message = |body: &str| check(body.as_bytes()).unwrap_err().message.into_owned();
        let unknown = message(r#"{ "writes": [{ "op": "set", "keyspace": "k", "key": "a", "value": "1" }] }"#);
        assert!(unknown.contains("set") && unknown.contains("touch") && unknown.contains("nack"), "{unknown}");
        assert!(!unknown.contains("scan") && !unknown.contains("get"), "{unknown}");
        assert!(message("{}").contains("writes"));
    }
}
