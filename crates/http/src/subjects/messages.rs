//! Conversion between JSON or raw bodies and the batches of the broker.

use serde::Deserialize;
use thalweg_broker::{Batch, Subject};
use thalweg_serving::error::ApiError;
use thalweg_types::record::{RecordBatch, Records};
use thalweg_wire::{self as wire, BatchWriter, Checksum, Message};
use utoipa::ToSchema;

use crate::{
    batch::{self, JsonRecord, push_records},
    json::required_bytes,
    parse::Media,
    record_json::{JsonOutput, push_content},
};

/// Encodes a request's body as a batch of messages.
pub(super) fn encode(
    subject: &Subject,
    reply_to: Option<&Subject>,
    media: Media,
    body: &[u8],
    key: Option<&[u8]>,
) -> Result<Batch, ApiError> {
    if media == Media::Binary && key.is_none() {
        let mut writer = writer(subject, reply_to, body.len() + 8)?;
        writer.push_payload(body)?;
        return finish(subject, writer);
    }
    of_records(subject, reply_to, &batch::batch(media, body, key)?)
}

fn of_records(subject: &Subject, reply_to: Option<&Subject>, records: &RecordBatch) -> Result<Batch, ApiError> {
    let mut writer = writer(subject, reply_to, records.bytes().len())?;
    for record in Records::new(records.bytes()) {
        writer.push(&record.expect("just made"))?;
    }
    finish(subject, writer)
}

fn writer(subject: &Subject, reply_to: Option<&Subject>, bytes: usize) -> Result<BatchWriter, ApiError> {
    let reply_to = reply_to.map(Subject::as_bytes).unwrap_or_default();
    let made = BatchWriter::with_capacity(subject.as_bytes(), reply_to, bytes);
    Ok(made.expect("subjects are shorter than what the format holds"))
}

fn finish(subject: &Subject, writer: BatchWriter) -> Result<Batch, ApiError> {
    let shared = writer.into_shared(Checksum::Without);
    let shared = shared.ok_or_else(|| ApiError::bad_request("no_records", "the body has no message"))?;
    Ok(Batch::new(subject.clone(), shared.bytes, shared.count)?)
}

/// Messages to one subject that are published with a commit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Publish)]
pub(crate) struct JsonPublish {
    subject: Option<String>,
    subject_base64: Option<String>,
    messages: Vec<JsonRecord>,
}

impl JsonPublish {
    /// Converts the messages of a commit to a batch of the broker.
    pub(crate) fn batch(&self) -> Result<Batch, ApiError> {
        let subject = required_bytes("subject", self.subject.as_ref(), self.subject_base64.as_ref())?;
        let mut records = RecordBatch::new();
        push_records(&mut records, &self.messages)?;
        of_records(&Subject::parse(&subject)?, None, &records)
    }
}

/// Appends a message as a JSON object.
pub(super) fn push_message(out: &mut impl JsonOutput, batch: &wire::Batch<'_>, message: &Message<'_>) {
    out.json().push(b'{');
    out.push_bytes("subject", batch.subject());
    if !batch.reply().is_empty() {
        out.json().push(b',');
        out.push_bytes("reply", batch.reply());
    }
    push_content(out, message.key, message.headers.iter(), message.payload, message.is_tombstone);
    out.json().push(b'}');
}
