//! Memory of replies that wait for clients.
//!
//! Owns: counting every reply of known size in `max_reply_bytes_in_flight`, from the end of its handler until the
//! client has read it. Does not own: replies that are made in parts (`pages`, `long_json`, `following`); these count
//! their parts.
//!
//! Invariant: the uncounted replies of a connection have fewer than [`COUNTED_REPLY_BYTES`] bytes in total. Over HTTP/1
//! a connection has one reply at a time, over HTTP/2 up to [`MAX_H2_STREAMS`].

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum_core::body::Body;
use bytes::Bytes;
use http::{Response, Version};
use http_body::{Body as _, Frame, SizeHint};
use thalweg_serving::{
    admission::{Account, Reservation, Resource, counted},
    error::ApiError,
    limits::{COUNTED_REPLY_BYTES, MAX_H2_STREAMS},
};

use crate::reply;

/// Rule by which a reply of known size counts in `max_reply_bytes_in_flight`, the limit on unsent bytes of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMemory {
    /// The request only reads, so the server rejects it if the limit on unsent bytes of replies has no room for its
    /// reply.
    Reserve,
    /// The request may have had an effect, so its reply is sent and counted even above the limit on unsent bytes of
    /// replies.
    Exceed,
    /// The handler has counted the reply already, or other clients share it.
    Counted,
}

/// Returns the size in bytes from which a reply counts in the limit on unsent bytes of replies. The size is smaller
/// over HTTP/2, because a connection can then have many replies at a time.
const fn counted_from(version: Version) -> u64 {
    match version {
        Version::HTTP_2 | Version::HTTP_3 => COUNTED_REPLY_BYTES as u64 / MAX_H2_STREAMS as u64,
        _ => COUNTED_REPLY_BYTES as u64,
    }
}

/// Returns true if a reply of this size counts in the limit on unsent bytes of replies, over this version of HTTP.
pub(crate) fn is_counted(bytes: u64, version: Version) -> bool {
    bytes >= counted_from(version)
}

/// Counts a reply of known size until the client has read it, if the reply is large. Returns an error if the request
/// only reads and the limit on unsent bytes of replies has no room.
pub(crate) fn count(
    mut response: Response<Body>,
    memory: ReplyMemory,
    version: Version,
    account: &Arc<Account>,
) -> Result<Response<Body>, ApiError> {
    let Some(bytes) = response.body().size_hint().exact() else { return Ok(response) };
    if !is_counted(bytes, version) {
        return Ok(response);
    }
    let held = match memory {
        ReplyMemory::Counted => return Ok(response),
        ReplyMemory::Reserve => account.take(Resource::ReplyBytes, bytes).ok_or_else(reply::no_room)?,
        ReplyMemory::Exceed => {
            let mut held = account.empty(Resource::ReplyBytes);
            held.count(bytes);
            held
        }
    };
    let inner = std::mem::take(response.body_mut());
    *response.body_mut() = Body::new(CountedBody { inner, held: Arc::new(held) });
    Ok(response)
}

/// Reply body of known size that counts in the limit on unsent bytes of replies, until the last of its frames is
/// dropped.
#[derive(Debug)]
struct CountedBody {
    inner: Body,
    held: Arc<Reservation>,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum_core::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(context));
        let held = |data| counted(data, Arc::clone(&self.held));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(held))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use thalweg_serving::{
        admission::{AddressKey, Admission},
        config::{ByteSize, Config},
    };

    use super::*;

    const LARGE: usize = 1 << 20;

    fn admission(limit: u64) -> (Arc<Admission>, Arc<Account>) {
        let config = Config { max_reply_bytes_in_flight: ByteSize(limit), ..Config::default() };
        let admission = Admission::new(&config);
        let account = admission.account(AddressKey::LOCAL);
        (admission, account)
    }

    fn response(bytes: usize) -> Response<Body> {
        Response::new(Body::from(vec![7; bytes]))
    }

    #[test]
    fn a_large_reply_counts_until_it_is_sent_or_dropped() {
        let (admission, account) = admission(64 << 20);
        let used = || admission.bound(Resource::ReplyBytes).used();
        let count = |bytes, version| count(response(bytes), ReplyMemory::Reserve, version, &account).unwrap();
        for (version, from) in [(Version::HTTP_11, COUNTED_REPLY_BYTES), (Version::HTTP_2, 1024)] {
            let small = count(from - 1, version);
            assert_eq!(used(), 0);
            let large = count(from, version);
            assert_eq!((used(), large.body().size_hint().exact()), (from as u64, Some(from as u64)));
            drop((small, large));
            assert_eq!(used(), 0);
        }
        let mut body = count(LARGE, Version::HTTP_11).into_body();
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else { panic!("no frame") };
        assert!(body.is_end_stream());
        drop(body);
        let mut data = frame.into_data().unwrap();
        let rest = data.split_off(10);
        drop(data);
        assert_eq!((used(), rest.len()), (LARGE as u64, LARGE - 10), "a part waits");
        drop(rest);
        assert_eq!(used(), 0);
    }

    #[test]
    fn a_read_is_refused_at_the_limit_and_a_write_is_answered() {
        let (admission, account) = admission(64 << 20);
        let used = || admission.bound(Resource::ReplyBytes).used();
        let mut held = Vec::new();
        let refused = loop {
            match count(response(LARGE), ReplyMemory::Reserve, Version::HTTP_11, &account) {
                Ok(response) => held.push(response),
                Err(error) => break error,
            }
            assert!(used() <= 64 << 20);
        };
        assert_eq!((refused.status.as_u16(), refused.code), (503, "overloaded"));
        let before = used();
        assert_eq!(before, (held.len() * LARGE) as u64);
        count(response(100), ReplyMemory::Reserve, Version::HTTP_11, &account).unwrap();
        let shared = count(response(LARGE), ReplyMemory::Counted, Version::HTTP_11, &account).unwrap();
        assert_eq!(used(), before);
        let written = count(response(LARGE), ReplyMemory::Exceed, Version::HTTP_11, &account).unwrap();
        assert_eq!(used(), before + LARGE as u64);
        drop((shared, written, held));
        assert_eq!(used(), 0);
    }
}
