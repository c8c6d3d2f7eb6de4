//! Bytes in JSON: as text if they are UTF-8, or as base64 in a field with the suffix `_base64` otherwise.
//!
//! For example, `"key": "a"` and `"key_base64": "/w=="` both name a key. A reader checks which of the two fields is
//! present. Base64 is the standard alphabet with padding.

use std::{borrow::Cow, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use thalweg_serving::error::ApiError;

/// Maximum number of bytes of the JSON parser's description of an error that the reply quotes.
const MAX_ERROR_BYTES: usize = 512;

/// Appends a JSON field with bytes: `"name":"text"` if they are UTF-8, `"name_base64":"..."` otherwise.
pub(crate) fn push_bytes(out: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            out.extend_from_slice(b"\":");
            push_text(out, text);
        }
        Err(_) => {
            out.extend_from_slice(b"_base64\":\"");
            let at = out.len();
            out.resize(at + bytes.len().div_ceil(3) * 4, 0);
            let written = STANDARD.encode_slice(bytes, &mut out[at..]).unwrap_or(0);
            out.truncate(at + written);
            out.push(b'"');
        }
    }
}

/// Inserts bytes into an object, in the form that [`push_bytes`] describes.
pub(crate) fn insert_bytes(object: &mut serde_json::Map<String, serde_json::Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => object.insert(format!("{name}_base64"), STANDARD.encode(bytes).into()),
    };
}

/// Appends a text as a JSON string.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing a string to memory");
}

/// Appends a JSON field with a number: `"name":number`.
pub(crate) fn push_number(out: &mut Vec<u8>, name: &str, number: u64) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    push_digits(out, number);
}

/// Appends a number in decimal digits. This is faster than the formatting of the standard library, which matters
/// because pages have numbers for each of their records and pairs.
pub(crate) fn push_digits(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Deserializes an optional field so that `null` differs from a missing field. Use with `#[serde(default)]`.
pub(crate) fn present_field<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Converts a number of seconds to a duration. `name` is the field of the request, for the error.
pub(crate) fn span_of_seconds(name: &str, seconds: f64) -> Result<Duration, ApiError> {
    Duration::try_from_secs_f64(seconds).map_err(|error| ApiError::bad_request("bad_json", format!("{name}: {error}")))
}

/// Returns the bytes of a JSON field, which the client sent as text or as base64. Returns `None` if both fields are
/// missing.
pub(crate) fn bytes_of<'a>(
    name: &'static str,
    text: Option<&'a String>,
    base64: Option<&String>,
) -> Result<Option<Cow<'a, [u8]>>, ApiError> {
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(Cow::Borrowed(text.as_bytes()))),
        (None, Some(base64)) => STANDARD.decode(base64).map(|bytes| Some(Cow::Owned(bytes))).map_err(|error| {
            ApiError::bad_request("bad_base64", format!("{name}_base64 is not standard base64 with padding: {error}"))
        }),
        (Some(_), Some(_)) => Err(ApiError::bad_request("bad_json", format!("give {name} or {name}_base64, not both"))),
    }
}

/// Returns the bytes of a JSON field as [`bytes_of`] does. A missing field is an error.
pub(crate) fn required_bytes<'a>(
    name: &'static str,
    text: Option<&'a String>,
    base64: Option<&String>,
) -> Result<Cow<'a, [u8]>, ApiError> {
    bytes_of(name, text, base64)?
        .ok_or_else(|| ApiError::bad_request("bad_json", format!("{name} or {name}_base64 is missing")))
}

/// Parses a JSON body.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        // The error quotes unknown names of fields. These may be as long as the body.
        let mut error = error.to_string();
        error.truncate(error.floor_char_boundary(MAX_ERROR_BYTES));
        ApiError::bad_request("bad_json", format!("the body is not the JSON that this route expects: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_out_in_full() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
            let mut out = Vec::new();
            push_number(&mut out, "offset", number);
            assert_eq!(out, format!("\"offset\":{number}").into_bytes());
        }
    }

    #[test]
    fn bytes_come_back_whatever_they_are() {
        for bytes in [b"".as_slice(), b"text \"\\\n\0", "é".as_bytes(), b"\xff", b"\xc3", &[0x80; 100]] {
            let mut out = b"{".to_vec();
            push_bytes(&mut out, "key", bytes);
            out.push(b'}');
            let object: serde_json::Value = serde_json::from_slice(&out).unwrap();
            let text = object["key"].as_str().map(str::to_owned);
            let base64 = object["key_base64"].as_str().map(str::to_owned);
            assert_eq!(text.is_some(), std::str::from_utf8(bytes).is_ok());
            assert_eq!(&*required_bytes("key", text.as_ref(), base64.as_ref()).unwrap(), bytes);
        }
    }
}
