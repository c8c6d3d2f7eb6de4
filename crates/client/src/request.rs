//! Decodes the frames with which the server replies to requests.

use thalweg_wire::{DecodeError, Effect, Failed, Fields, FieldsError, Frame, Kind, SharedFrame};

use crate::error::{Error, Failure, Lost, ProtocolError};

/// Decodes the body of a frame; the caller has checked the frame's kind.
pub(crate) fn body_of<'a, F: Frame<'a>>(frame: &'a SharedFrame) -> Result<F, DecodeError> {
    let fields = usize::from(frame.header.fields);
    let malformed = |malformed| DecodeError::Malformed { kind: F::NAME, malformed };
    let Some((fields, body)) = frame.payload.split_at_checked(fields) else {
        let at = frame.payload.len();
        return Err(malformed(thalweg_types::codec::Malformed { at, expected: "optional fields" }));
    };
    Fields::decode(fields).map_err(|error| match error {
        FieldsError::Malformed(why) => malformed(why),
        FieldsError::Unknown { tag } => DecodeError::UnknownField { tag },
    })?;
    F::decode_body(body)
}

/// Decodes a reply of the expected kind, or returns the failure that the server sent instead.
pub(crate) fn reply_of<'a, F: Frame<'a>>(frame: &'a SharedFrame) -> Result<F, Error> {
    let kind = frame.header.kind;
    if kind == F::KIND as u16 {
        return Ok(body_of(frame)?);
    }
    if kind == Kind::Failed as u16 {
        return Err(failure_of(frame));
    }
    Err(Error::Protocol(ProtocolError::WrongReply { kind }))
}

/// Returns the server's reply to a request. Returns an error if the server sent a failure instead, or if the connection
/// was lost.
pub(crate) fn answer_of(came: Result<SharedFrame, Lost>) -> Result<SharedFrame, Error> {
    match came {
        Ok(frame) if frame.header.kind == Kind::Failed as u16 => Err(failure_of(&frame)),
        Ok(frame) => Ok(frame),
        Err(why) => Err(Error::Lost { why, effect: Effect::Unknown }),
    }
}

fn failure_of(frame: &SharedFrame) -> Error {
    match body_of::<Failed<'_>>(frame) {
        Ok(failed) => {
            // The body was decoded before, so the header fields are known to be present and well-formed.
            let fields = frame.payload.get(..usize::from(frame.header.fields)).unwrap_or_default();
            let fields = Fields::decode(fields).unwrap_or_default();
            Error::Failed(Box::new(Failure::of_reply(&failed, &fields)))
        }
        Err(error) => error.into(),
    }
}
