//! The reply to `/metrics`, made within bounded memory and processor time.
//!
//! Owns: encoding the metrics as text, and the texts that clients have not read yet. Does not own: the metrics.
//!
//! The server answers `/metrics` even when it is full, so these replies must use little memory and time. As long as the
//! node has time left for it ([`Credit`]), it encodes a new text for each request. If this text is large, it counts in
//! `max_reply_bytes_in_flight` until the client has read it. If no time is left, or if this limit has no room, several
//! requests get the same text. A shared text is at most [`MAX_AGE`] old, unless clients are still reading
//! [`MAX_SHARED`] earlier ones.
//!
//! Invariants: apart from small replies, at most [`MAX_SHARED`] uncounted texts are in memory. Texts for single
//! requests take at most one in [`ENCODING_SHARE`] of a processor's time. At most one shared text is made in each
//! [`MAX_AGE`].

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Version;
use prometheus_client::{encoding::text, registry::Registry};
use thalweg_serving::admission::{Account, Resource, counted};

use crate::reply_memory::is_counted;

/// Maximum age of a shared text (metrics as text that several requests get). A request that finds an older one makes a
/// new text.
const MAX_AGE: Duration = Duration::from_millis(100);
/// Maximum number of shared texts (metrics as text that several requests get) in memory.
const MAX_SHARED: usize = 8;

/// Divisor of the elapsed time: a tenth of the time of one processor may be spent on encoding the metrics for single
/// requests.
const ENCODING_SHARE: u32 = 10;
/// Maximum processor time that the node saves up for encoding the metrics for single requests, and can then spend
/// without a pause.
const MAX_CREDIT: Duration = Duration::from_millis(500);

/// Processor time that the node may still spend on encoding the metrics for single requests. A tenth (`1 /
/// ENCODING_SHARE`) of the elapsed time is added to it, up to [`MAX_CREDIT`].
#[derive(Debug)]
struct Credit {
    /// Remaining processor time in nanoseconds; negative after an encoding that took more time than was left.
    left: i64,
    /// Time at which a share of the elapsed time was last added to the remaining time; `None` before the first request.
    at: Option<Instant>,
}

impl Default for Credit {
    fn default() -> Self {
        Self { left: nanos(MAX_CREDIT), at: None }
    }
}

impl Credit {
    fn is_left(&mut self, now: Instant) -> bool {
        let passed = self.at.replace(now).map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.left = self.left.saturating_add(nanos(passed / ENCODING_SHARE)).min(nanos(MAX_CREDIT));
        self.left > 0
    }

    fn spend(&mut self, took: Duration) {
        self.left = self.left.saturating_sub(nanos(took));
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// The page with all metrics of the server.
#[derive(Debug)]
pub(crate) struct MetricsPage {
    registry: Registry,
    shared: Mutex<Shared>,
}

/// Texts of the metrics that several requests share. A request gets such a text if no processor time or memory is left
/// for a text of its own.
#[derive(Debug, Default)]
struct Shared {
    newest: Option<(Instant, Bytes)>,
    /// Counter of the shared texts in memory: each of them holds one reference, and this field holds one.
    in_memory: Arc<()>,
    credit: Credit,
}

impl Shared {
    /// Returns the newest shared text, or a new one. Calls `make` for a new text if the newest is older than
    /// [`MAX_AGE`] and fewer than [`MAX_SHARED`] texts are in memory.
    fn text(&mut self, make: impl FnOnce() -> Bytes, now: Instant) -> Bytes {
        if let Some((made, newest)) = &self.newest
            && (now.saturating_duration_since(*made) < MAX_AGE || Arc::strong_count(&self.in_memory) > MAX_SHARED)
        {
            return newest.clone();
        }
        // Dropped before the count, so that this text does not count if no client reads it any more.
        self.newest = None;
        let text = counted(make(), Arc::clone(&self.in_memory));
        self.newest = Some((now, text.clone()));
        text
    }
}

impl MetricsPage {
    /// Creates the page for the metrics in `registry`.
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, shared: Mutex::default() }
    }

    /// Returns the metrics as text for a request of the client of `account`: a new text if time and memory permit it,
    /// otherwise a shared one.
    pub(crate) fn text(&self, account: &Arc<Account>, version: Version) -> Bytes {
        let begun = Instant::now();
        if !self.shared().credit.is_left(begun) {
            return self.shared().text(|| self.encode(), begun);
        }
        let text = self.encode();
        self.shared().credit.spend(begun.elapsed());
        if !is_counted(text.len() as u64, version) {
            return text;
        }
        match account.take_quietly(Resource::ReplyBytes, text.len() as u64) {
            Some(held) => counted(text, held),
            None => self.shared().text(|| text, begun),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn encode(&self) -> Bytes {
        let mut out = String::with_capacity(16 * 1024);
        if text::encode(&mut out, &self.registry).is_err() {
            tracing::warn!("metrics could not be encoded");
        }
        out.shrink_to_fit();
        out.into()
    }
}

#[cfg(test)]
mod tests {
    use thalweg_serving::{
        admission::{AddressKey, Admission},
        config::{ByteSize, Config},
    };

    use super::*;

    #[test]
    fn texts_without_room_are_few_and_shared() {
        let (mut shared, begun) = (Shared::default(), Instant::now());
        let at = |millis: u64| begun + Duration::from_millis(millis);
        let mut text =
            |content: &'static str, millis| shared.text(|| Bytes::from_static(content.as_bytes()), at(millis));
        let mut unread = vec![text("0", 0)];
        assert_eq!(text("new", 99), "0");
        for made in 1..MAX_SHARED as u64 {
            unread.push(text("new", 100 * made));
            assert_eq!(unread[made as usize], "new");
        }
        let most = 100 * MAX_SHARED as u64;
        assert_eq!(text("newest", most), "new", "clients read all texts that may be in memory");
        unread.remove(0);
        assert_eq!(text("newest", most), "newest");
        drop(unread);
        assert_eq!(text("later", most + 100), "later");
    }

    #[test]
    fn making_texts_takes_a_tenth_of_a_processor() {
        let (mut credit, begun) = (Credit::default(), Instant::now());
        assert!(credit.is_left(begun));
        credit.spend(MAX_CREDIT);
        assert!(!credit.is_left(begun));
        let (mut spent, each) = (Duration::ZERO, Duration::from_millis(5));
        for millis in 1..=10_000 {
            if credit.is_left(begun + Duration::from_millis(millis)) {
                credit.spend(each);
                spent += each;
            }
        }
        let share = spent.as_secs_f64() / 10.0;
        assert!((0.09..0.11).contains(&share), "{share}");
        assert!(credit.is_left(begun + Duration::from_secs(3600)) && credit.left == nanos(MAX_CREDIT));
    }

    #[test]
    fn a_text_is_new_while_the_limit_has_room_for_it() {
        let limit = 24 << 20;
        let admission = Admission::new(&Config { max_reply_bytes_in_flight: ByteSize(limit), ..Config::default() });
        let [greedy, other] = [1, 2].map(|last| admission.account(AddressKey::of([127, 0, 0, last].into())));
        let mut registry = Registry::default();
        for number in 0..100 {
            let counter = prometheus_client::metrics::counter::Counter::<u64>::default();
            registry.register(format!("counter_{number}"), "A counter that makes the text long", counter);
        }
        let page = MetricsPage::new(registry);
        let used = || admission.bound(Resource::ReplyBytes).used();
        drop(page.text(&greedy, Version::HTTP_2));
        assert_eq!(used(), 0);
        let unread = page.text(&greedy, Version::HTTP_2);
        assert_eq!(used(), unread.len() as u64);
        assert_eq!((page.text(&greedy, Version::HTTP_11).len(), used()), (unread.len(), unread.len() as u64));
        let mut all = greedy.empty(Resource::ReplyBytes);
        while all.grow(1000) {}
        let before = used();
        let shared = [page.text(&greedy, Version::HTTP_2), page.text(&greedy, Version::HTTP_2)];
        assert_eq!((used(), shared[0].as_ptr()), (before, shared[1].as_ptr()), "one text for both");
        let own = page.text(&other, Version::HTTP_2);
        assert_eq!(used(), before + own.len() as u64, "another address has room");
    }
}
