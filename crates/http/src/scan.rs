//! Scans of a keyspace as streamed replies, in the three formats of the routes that scan.
//!
//! Owns: the handler of `/v1/kv/{keyspace}`, the state of a scan in progress, and the formats. Does not own: the
//! division of a reply into pages and their sending (`pages`), or the encoding of a cursor (`key_history`).
//!
//! Invariant: the durability level in the reply's head is determined after the view was taken, so it is valid for all
//! pairs.

use std::sync::Arc;

use axum_core::body::Body;
use bytes::Bytes;
use thalweg_engine::{Entry, Keyspace, KeyspaceIter, Order, ReadError, ScanRange, Values};
use thalweg_serving::{
    admission::{Account, Reservation, Resource},
    app::App,
    error::ApiError,
    limits::{INLINE_SCAN_ITEMS, SCAN_PAGE_BYTES, SCAN_PAGE_ITEMS},
};
use thalweg_types::{Durability, Revision};

use crate::{
    call::{Answer, Call},
    describe::{Durable, KeyspacePath, NDJSON},
    json::{push_bytes, push_number, push_text},
    key_history,
    pages::{self, FirstPageThread, Framing, Page, PageSource},
    parse::{Media, ParseError, ScanQuery, name_segment},
    reply,
};

/// Format of the pairs in the reply to a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One JSON object per line. The last line has the cursor at which the client can resume the scan.
    Ndjson(Values),
    /// One JSON object for all pairs: `{"items": [...], "count": n}`.
    Object,
    /// One chunk per pair: key, line feed, value.
    Chunks,
}

/// Handles `GET /v1/kv/{keyspace}`: lists pairs of key and value of a keyspace.
#[utoipa::path(
    get, path = "/v1/kv/{keyspace}", params(KeyspacePath, ScanQuery),
    responses((status = 200,
            description = "One KeyValue per line. The last line has `count` and, if there are more pairs, `cursor`.",
            body = String, content_type = NDJSON,
        headers(("Thalweg-Durability" = Durable, description = "Level of the pairs."))))
)]
pub(crate) async fn keyspace(app: &Arc<App>, call: &Call) -> Answer {
    let query = ScanQuery::parse(call.head.uri.query())?;
    let name = name_segment(call.path_after("/v1/kv/"))?;
    let keyspace = app.find_keyspace(&name)?;
    let shape = Shape::Ndjson(if query.keys_only { Values::Omit } else { Values::Include });
    let (body, level) = body(app, &call.account, Some(&keyspace), query, shape).await?;
    Ok(reply::shown(Media::Ndjson, body, level))
}

/// Creates the reply body of a scan. Also returns the durability level of the data that the scan shows. A missing
/// keyspace counts as empty.
pub(crate) async fn body(
    app: &Arc<App>,
    account: &Arc<Account>,
    keyspace: Option<&Keyspace>,
    query: ScanQuery,
    shape: Shape,
) -> Result<(Body, Durability), ApiError> {
    if query.limit == Some(0) {
        return Err(ParseError::BadParameter { name: "limit", expected: "at least 1" }.into());
    }
    let held = account
        .take(Resource::Scans, 1)
        .ok_or_else(|| ApiError::overloaded("too many scans at a time: retry later"))?;
    let limit = query.limit;
    let (start, end) = query.bounds();
    let range = ScanRange {
        prefix: query.prefix,
        start,
        end,
        order: if query.reverse { Order::Descending } else { Order::Ascending },
        // One additional pair is requested, to learn if further pairs exist.
        limit: limit.map(|limit| limit.saturating_add(1)),
        values: if query.keys_only { Values::Omit } else { Values::Include },
    };
    let iter = keyspace.map(|keyspace| begin(keyspace, range, query.revision, query.cursor)).transpose()?;
    // The view is fixed now, so a durability level that is determined now is valid for all of it.
    let level = app.db.blocking().visible_durability();
    let first = if limit.is_some_and(|limit| limit <= INLINE_SCAN_ITEMS) {
        FirstPageThread::Inline
    } else {
        FirstPageThread::Blocking
    };
    let source = Scan {
        first: iter.clone().filter(|_| first == FirstPageThread::Inline),
        iter,
        shape,
        limit,
        level,
        count: 0,
        last_key: Bytes::new(),
        begun: false,
        held,
        sent: (0, Bytes::new()),
        app: Arc::clone(app),
    };
    let framing = if shape == Shape::Chunks { Framing::Chunks } else { Framing::Any };
    Ok((pages::body(source, first, framing).await?, level))
}

/// Begins a scan at its start, or at a cursor.
fn begin(
    keyspace: &Keyspace,
    range: ScanRange,
    revision: Option<u64>,
    cursor: Option<Vec<u8>>,
) -> Result<KeyspaceIter, ApiError> {
    let revision = revision.map(Revision);
    let Some(cursor) = cursor else {
        return match revision {
            Some(revision) => Ok(keyspace.iter_at(range, revision)?),
            None => Ok(keyspace.iter(range)),
        };
    };
    let cursor = key_history::cursor_of(&cursor)?;
    if revision.is_some() && revision != cursor.revision() {
        return Err(
            ParseError::BadParameter { name: "revision", expected: "the revision of the cursor, or left out" }.into()
        );
    }
    Ok(keyspace.resume(range, &cursor)?)
}

/// A scan that is in progress.
struct Scan {
    iter: Option<KeyspaceIter>,
    /// Copy of the iterator at the start of the scan, from which another thread may make the first page again. `None`
    /// if such a repetition cannot happen, or if the keyspace does not exist.
    first: Option<KeyspaceIter>,
    shape: Shape,
    limit: Option<u64>,
    level: Durability,
    count: u64,
    last_key: Bytes,
    begun: bool,
    held: Reservation,
    /// Number of pairs sent, and the last key sent. Does not include the page that is being made.
    sent: (u64, Bytes),
    app: Arc<App>,
}

/// Content of the scanned range after the last pair that was sent: more pairs, or none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remainder {
    None,
    Some,
}

impl Scan {
    fn push_pair(&mut self, out: &mut Vec<u8>, key: &Bytes, entry: &Entry) {
        match self.shape {
            Shape::Chunks => {
                out.extend_from_slice(key);
                out.push(b'\n');
                out.extend_from_slice(&entry.value);
            }
            Shape::Ndjson(values) => {
                push_object(out, key, entry, values);
                out.push(b'\n');
            }
            Shape::Object => {
                if self.count > 0 {
                    out.push(b',');
                }
                push_object(out, key, entry, Values::Include);
            }
        }
        self.count += 1;
        self.last_key.clone_from(key);
    }

    fn push_end(&self, out: &mut Vec<u8>, rest: Remainder) -> Result<(), ApiError> {
        match self.shape {
            Shape::Chunks => return Ok(()),
            Shape::Ndjson(_) => out.push(b'{'),
            Shape::Object => out.extend_from_slice(b"],"),
        }
        push_number(out, "count", self.count);
        out.extend_from_slice(b",\"durability\":");
        push_text(out, self.level.name());
        if let Some(iter) = &self.iter {
            out.push(b',');
            push_number(out, "revision", iter.revision().0);
        }
        if rest == Remainder::Some
            && let Some(cursor) = self.cursor()?
        {
            out.extend_from_slice(b",\"cursor\":");
            push_text(out, &cursor);
        }
        out.extend_from_slice(b"}\n");
        Ok(())
    }

    /// Returns error 503 if the limit on unsent bytes of replies has no room for the next value. Does not read the
    /// value.
    fn check_room(&self) -> Result<(), ApiError> {
        let account = self.held.account();
        if matches!(self.shape, Shape::Ndjson(Values::Omit)) || !account.is_short_of_reply_room() {
            return Ok(());
        }
        let next = self.iter.as_ref().map(KeyspaceIter::next_value_bytes).transpose()?.flatten();
        if account.may_hold_reply(next.unwrap_or(0)) { Ok(()) } else { Err(reply::no_room()) }
    }

    /// Returns the cursor after the last pair that was encoded.
    fn cursor(&self) -> Result<Option<String>, ReadError> {
        let cursor = self.iter.as_ref().map(|iter| iter.cursor(&self.last_key)).transpose()?;
        Ok(cursor.as_ref().map(key_history::cursor_text))
    }
}

fn push_object(out: &mut Vec<u8>, key: &[u8], entry: &Entry, values: Values) {
    out.push(b'{');
    push_bytes(out, "key", key);
    if values == Values::Include {
        out.push(b',');
        push_bytes(out, "value", &entry.value);
    }
    out.push(b',');
    push_number(out, "revision", entry.revision.0);
    out.push(b'}');
}

impl PageSource for Scan {
    fn page(&mut self) -> Result<Page, ApiError> {
        let mut out = Vec::with_capacity(4096);
        let mut cuts = Vec::new();
        if self.shape == Shape::Object && !self.begun {
            out.extend_from_slice(b"{\"items\":[");
        }
        self.begun = true;
        self.check_room()?;
        self.sent = (self.count, self.last_key.clone());
        let mut end = None;
        while end.is_none() && out.len() < SCAN_PAGE_BYTES && cuts.len() < SCAN_PAGE_ITEMS {
            end = self.gather(&mut out, &mut cuts)?;
        }
        if let Some(rest) = end {
            self.push_end(&mut out, rest)?;
        }
        Ok(Page { frames: self.frames(out, &cuts), last: end.is_some() })
    }

    fn reader(&self) -> (&Arc<App>, &Arc<Account>) {
        (&self.app, self.held.account())
    }

    fn restart(&mut self) {
        (self.count, self.last_key, self.begun) = (0, Bytes::new(), false);
        self.iter.clone_from(&self.first);
    }

    fn failure(&mut self, error: &ApiError) -> Option<Bytes> {
        // The position of a failed page is undone, so that a client that resumes gets its pairs again.
        (self.count, self.last_key) = self.sent.clone();
        matches!(self.shape, Shape::Ndjson(_)).then(|| {
            let mut line = serde_json::json!({ "error": error.to_json(None), "count": self.count });
            if self.count > 0
                && let Ok(Some(cursor)) = self.cursor()
            {
                line["cursor"] = cursor.into();
            }
            Bytes::from(format!("{line}\n"))
        })
    }
}

impl Scan {
    /// Encodes some pairs into `out`, and adds the end position of each pair to `cuts`. Returns `None` if the scan
    /// continues. If the scan ends here, returns whether the range has more pairs after it.
    fn gather(&mut self, out: &mut Vec<u8>, cuts: &mut Vec<usize>) -> Result<Option<Remainder>, ApiError> {
        let pairs = match &mut self.iter {
            Some(iter) => iter.next_page(SCAN_PAGE_ITEMS, SCAN_PAGE_BYTES)?,
            None => Vec::new(),
        };
        for (key, entry) in &pairs {
            if Some(self.count) == self.limit {
                return Ok(Some(Remainder::Some));
            }
            self.push_pair(out, key, entry);
            cuts.push(out.len());
        }
        Ok(pairs.is_empty().then_some(Remainder::None))
    }

    fn frames(&self, out: Vec<u8>, cuts: &[usize]) -> Vec<Bytes> {
        let mut rest = pages::gathered(out);
        if self.shape != Shape::Chunks {
            return if rest.is_empty() { Vec::new() } else { vec![rest] };
        }
        let mut before = 0;
        cuts.iter()
            .map(|&cut| {
                let pair = rest.split_to(cut - before);
                before = cut;
                pair
            })
            .collect()
    }
}
