//! Parsing of preconditions and media types in request headers.

use thalweg_types::{Revision, command::Expect};

use super::ParseError;

/// Parses the condition of a write: `If-Match: "7"` requires that the key is at revision 7, `If-Match: *` that the key
/// has a value, and `If-None-Match: *` that it has none. Returns `None` if the write is unconditional.
pub fn write_condition(
    if_match: Option<&[u8]>,
    if_none_match: Option<&[u8]>,
) -> Result<Option<Expect<'static>>, ParseError> {
    match (if_match.map(<[u8]>::trim_ascii), if_none_match.map(<[u8]>::trim_ascii)) {
        (None, None) => Ok(None),
        (Some(b"*"), None) => Ok(Some(Expect::Present)),
        (Some(tag), None) => match strong_tag(tag) {
            Some(revision) => Ok(Some(Expect::Revision(revision))),
            None => Err(ParseError::BadHeader { name: "If-Match", expected: "one revision as \"17\", or *" }),
        },
        (None, Some(b"*")) => Ok(Some(Expect::Absent)),
        (None, Some(_)) => Err(ParseError::BadHeader { name: "If-None-Match", expected: "* on a write" }),
        (Some(_), Some(_)) => Err(ParseError::BadHeader { name: "If-Match", expected: "given without If-None-Match" }),
    }
}

/// Result of the preconditions of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The preconditions hold: the reply has the value.
    Send,
    /// The client already has this revision of the value: the reply is 304 without the value.
    NotModified,
    /// The client requires another revision than the key has: the reply is 412.
    Failed,
}

/// Evaluates `If-Match` and `If-None-Match` of a read against the key's revision. Entity tags in the form of other
/// servers match nothing, as HTTP requires.
#[must_use]
pub fn read_freshness(if_match: Option<&[u8]>, if_none_match: Option<&[u8]>, actual: Revision) -> Freshness {
    let any = |list: &[u8]| {
        list.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).any(|tag| {
            let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
            tag == b"*" || strong_tag(tag) == Some(actual)
        })
    };
    match (if_match, if_none_match) {
        (Some(list), _) if !any(list) => Freshness::Failed,
        (_, Some(list)) if any(list) => Freshness::NotModified,
        _ => Freshness::Send,
    }
}

fn strong_tag(tag: &[u8]) -> Option<Revision> {
    let digits = tag.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| std::str::from_utf8(digits).ok()?.parse().ok().map(Revision)).flatten()
}

/// A media type that the API supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// `application/octet-stream`: raw bytes, or for records the length-prefixed binary format.
    Binary,
    /// `application/x-ndjson`: one JSON value per line.
    Ndjson,
    /// `application/json`.
    Json,
    /// `text/event-stream`.
    Events,
}

impl Media {
    /// Returns the text of the type in a `Content-Type` header.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Binary => "application/octet-stream",
            Self::Ndjson => "application/x-ndjson",
            Self::Json => "application/json",
            Self::Events => "text/event-stream",
        }
    }

    const ALL: [Self; 4] = [Self::Binary, Self::Ndjson, Self::Json, Self::Events];
}

/// Returns the media type of a request body, or `None` if the API does not support it. Parameters such as `charset` are
/// ignored.
#[must_use]
pub fn request_media(content_type: &[u8]) -> Option<Media> {
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    Media::ALL.into_iter().find(|media| essence.eq_ignore_ascii_case(media.name().as_bytes()))
}

/// Returns true if a `Content-Type` is that of an HTML form, which clients such as curl also send by default.
#[must_use]
pub(crate) fn is_form(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    [&b"application/x-www-form-urlencoded"[..], b"multipart/form-data"]
        .iter()
        .any(|form| essence.eq_ignore_ascii_case(form))
}

/// Selects the media type of a reply by an `Accept` header: the offer with the highest quality, and the earliest of
/// equal ones. Without a header, selects the first offer. Returns `None` if no offer is acceptable.
#[must_use]
pub fn negotiate(accept: Option<&[u8]>, offers: &[Media]) -> Option<Media> {
    let Some(accept) = accept else { return offers.first().copied() };
    let mut best: Option<(u16, Media)> = None;
    for &offer in offers {
        let quality = quality_of(accept, offer);
        if quality > best.map_or(0, |(quality, _)| quality) {
            best = Some((quality, offer));
        }
    }
    best.map(|(_, offer)| offer)
}

/// Returns the quality that an `Accept` header gives to an offered media type, in thousandths. If several ranges of the
/// header match, the most specific one determines the quality.
fn quality_of(accept: &[u8], offer: Media) -> u16 {
    let name = offer.name().as_bytes();
    let family = &name[..=name.iter().position(|&byte| byte == b'/').unwrap_or(0)];
    let mut found = (0, 0);
    for range in accept.split(|&byte| byte == b',') {
        let mut parts = range.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let essence = parts.next().unwrap_or_default();
        let specificity = if essence.eq_ignore_ascii_case(name) {
            3
        } else if essence.strip_suffix(b"*").is_some_and(|start| start.eq_ignore_ascii_case(family)) {
            2
        } else {
            u8::from(essence == b"*/*")
        };
        if specificity > found.0 {
            let quality = parts.find_map(|part| part.strip_prefix(b"q=")).map_or(1000, thousandths);
            found = (specificity, quality);
        }
    }
    found.1
}

/// Parses a decimal fraction as thousandths: `0.25` is 250. Malformed text counts as 1.
fn thousandths(text: &[u8]) -> u16 {
    let value = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f32>().ok()).unwrap_or(1.0);
    (value.clamp(0.0, 1.0) * 1000.0) as u16
}
