//! Reading of request bodies that are parsed as one JSON value.
//!
//! Does not own: the limit on body bytes (`body`), or JSON whose bytes a handler keeps after parsing, such as long
//! transactions.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use thalweg_serving::{app::App, error::ApiError};

use crate::{body, call::Call};

/// Reads an optional body; `None` if the body is empty. An empty body needs no content type.
pub(crate) async fn optional<T>(app: &Arc<App>, call: &mut Call) -> Result<Option<T>, ApiError>
where
    T: DeserializeOwned + Send + 'static,
{
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    if body.is_empty() {
        return Ok(None);
    }
    call.require_json()?;
    body::parsed(app, &call.account, body).await.map(Some)
}

/// Reads an optional body; returns the default value if the body is empty.
pub(crate) async fn or_default<T>(app: &Arc<App>, call: &mut Call) -> Result<T, ApiError>
where
    T: DeserializeOwned + Default + Send + 'static,
{
    Ok(optional(app, call).await?.unwrap_or_default())
}

/// Reads a required body. Returns an error if it is empty or invalid.
pub(crate) async fn required<T>(app: &Arc<App>, call: &mut Call) -> Result<T, ApiError>
where
    T: DeserializeOwned + Send + 'static,
{
    call.require_json()?;
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    body::parsed(app, &call.account, body).await
}
