//! Parsing of records that clients send: one raw payload, one payload per line, or JSON with keys and headers.

use http::{StatusCode, header};
use serde::Deserialize;
use thalweg_serving::{app::App, error::ApiError};
use thalweg_types::{
    Action,
    record::{Record, RecordBatch},
};
use utoipa::ToSchema;

use crate::{
    body::{self, HeldBody},
    call::Call,
    json::{self, bytes_of, required_bytes},
    parse::{Media, request_media},
};

/// A record or message in JSON, as clients send it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Record)]
pub(crate) struct JsonRecord {
    /// Key of the record, which is optional.
    key: Option<String>,
    key_base64: Option<String>,
    #[serde(default)]
    headers: Vec<JsonHeader>,
    payload: Option<String>,
    payload_base64: Option<String>,
    /// True if the record is a tombstone, which marks its key as deleted. A tombstone needs no payload.
    #[serde(default)]
    tombstone: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RecordHeader)]
struct JsonHeader {
    name: String,
    /// Value of the header.
    value: Option<String>,
    value_base64: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRecords {
    /// Records to append. In a request that publishes messages, this field is named `messages`.
    #[serde(alias = "messages")]
    records: Vec<JsonRecord>,
}

/// Records in the body of an append request. The body may also consist of the array only, without the object around it.
// The type only describes the body in the OpenAPI document, and only one of its two forms: some generators of clients
// make code that fails if a body is an array or an object.
#[derive(Deserialize, ToSchema)]
#[allow(dead_code, reason = "the parser decides by the first byte, which is faster")]
pub(crate) struct Records {
    records: Vec<JsonRecord>,
}

/// Messages in the body of a publish request. The body may also consist of the array only, without the object around
/// it.
#[derive(Deserialize, ToSchema)]
#[allow(dead_code, reason = "the parser decides by the first byte, which is faster")]
pub(crate) struct Messages {
    messages: Vec<JsonRecord>,
}

/// Returns the media type of a request's body; without a `Content-Type` header it is raw bytes.
pub(crate) fn media(call: &Call) -> Result<Media, ApiError> {
    let Some(given) = call.header(&header::CONTENT_TYPE) else { return Ok(Media::Binary) };
    request_media(given).filter(|media| *media != Media::Events).ok_or_else(|| {
        ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            Action::Fix,
            "Content-Type must be application/octet-stream, application/x-ndjson or application/json (curl's --data \
             sends another type unless -H sets it)",
        )
    })
}

/// Parses a body into records or messages with `parse`. JSON may be parsed on another thread, as [`body::parse`] does.
/// A single payload is parsed on the calling thread.
pub(crate) async fn parse<T: Send + 'static>(
    app: &App,
    call: &Call,
    media: Media,
    body: HeldBody,
    parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, HeldBody), ApiError> {
    match media {
        Media::Binary | Media::Events => Ok((parse(&body)?, body)),
        Media::Ndjson | Media::Json => body::parse(app, &call.account, body, parse).await,
    }
}

/// Parses a request's body into a batch of records. `key` is the key of a single raw payload. Returns an error if the
/// body has no record, or if a body of another media type has a key.
pub fn batch(media: Media, body: &[u8], key: Option<&[u8]>) -> Result<RecordBatch, ApiError> {
    if key.is_some() && media != Media::Binary {
        return Err(ApiError::bad_request(
            "bad_parameter",
            "?key= requires a raw payload: give JSON records their own keys",
        ));
    }
    let mut batch = RecordBatch::new();
    match media {
        Media::Binary | Media::Events => batch.push(&Record { key, payload: body, ..Record::default() })?,
        Media::Ndjson => push_lines(&mut batch, body)?,
        Media::Json => {
            let array = body.trim_ascii_start().first() == Some(&b'[');
            let records = if array { json::parse(body)? } else { json::parse::<JsonRecords>(body)?.records };
            push_records(&mut batch, &records)?;
        }
    }
    if batch.is_empty() {
        return Err(ApiError::bad_request("no_records", "the body has no record"));
    }
    Ok(batch)
}

/// Adds each line of the body as a payload, unchanged, and skips empty lines. Returns an error if a line is not JSON,
/// because the media type promises JSON.
fn push_lines(batch: &mut RecordBatch, body: &[u8]) -> Result<(), ApiError> {
    for (number, line) in body.split(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        serde_json::from_slice::<serde::de::IgnoredAny>(line)
            .map_err(|error| ApiError::bad_request("bad_json", format!("line {} is not JSON: {error}", number + 1)))?;
        batch.push_payload(line)?;
    }
    Ok(())
}

/// Adds the records of a JSON body to a batch.
pub(crate) fn push_records(batch: &mut RecordBatch, records: &[JsonRecord]) -> Result<(), ApiError> {
    for record in records {
        let key = bytes_of("key", record.key.as_ref(), record.key_base64.as_ref())?;
        let payload = match record.tombstone {
            true => bytes_of("payload", record.payload.as_ref(), record.payload_base64.as_ref())?.unwrap_or_default(),
            false => required_bytes("payload", record.payload.as_ref(), record.payload_base64.as_ref())?,
        };
        let mut values = Vec::with_capacity(record.headers.len());
        for header in &record.headers {
            values.push(required_bytes("value", header.value.as_ref(), header.value_base64.as_ref())?);
        }
        let headers = record.headers.iter().zip(&values).map(|(header, value)| (header.name.as_str(), &**value));
        let (key, is_tombstone) = (key.as_deref(), record.tombstone);
        batch.push(&Record { key, headers: headers.collect(), payload: &payload, is_tombstone })?;
    }
    Ok(())
}
