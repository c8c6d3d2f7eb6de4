//! Detection of idle and slow connections, with timeouts that the HTTP library does not have.
//!
//! Owns: counting the bytes that a socket reads and writes ([`MonitoredSocket`]), and the check of a connection against
//! its timeouts ([`ActivityMonitor::verdict`]). The check runs a few times per timeout. It finds a connection with an
//! incomplete request head, an idle connection, and a connection whose client reads a reply too slowly. Each connection
//! has one timer; requests have none. Does not own: the timeout of a request's body, which gets a proper reply.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use thalweg_serving::{
    bulk::{BulkSeat, REPLY_BYTES},
    config::Config,
    half_open::Slot,
    limits::STATUS_HEADER_TIMEOUT,
    pace::{MinRate, Pace},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    runtime::Handle,
    time::timeout,
};

use crate::{caller::Service, waiting_parts::WaitingParts};

/// Counters of a connection's activity. The socket and the requests of the connection update them, and the check of the
/// connection's timeouts ([`ActivityMonitor`]) reads them.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    read: AtomicU64,
    written: AtomicU64,
    /// True while a write to the socket waits for the client to read.
    write_waits: AtomicBool,
    /// True if the connection speaks HTTP/2.
    http2: AtomicBool,
    /// Number of the connection's requests whose handlers are running.
    busy: AtomicU32,
    /// Number of bytes that had been read from the socket when the last handler ended. If more were read since, the
    /// head of another request has begun to arrive.
    read_at_last_end: AtomicU64,
    /// Streams of the HTTP/2 connection whose replies the client has not read completely.
    pub(crate) streams: Arc<WaitingParts>,
}

impl Activity {
    /// Returns true if the connection speaks HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.http2.load(Ordering::Relaxed)
    }
}

/// Guard that counts a request of a connection as running until the guard is dropped.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Activity>);

impl Busy {
    /// Counts a request of the connection as running from now on.
    #[must_use]
    pub(crate) fn new(activity: &Arc<Activity>) -> Self {
        activity.busy.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }

    /// Returns the activity counters of the request's connection.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.read_at_last_end.store(self.0.read.load(Ordering::Relaxed), Ordering::Relaxed);
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    /// Maximum time in which a request's head must arrive.
    pub header: Duration,
    /// Time after which an idle connection is closed.
    pub idle: Duration,
    /// Time after which an idle connection is closed while the server runs short of connections.
    pub idle_when_short: Duration,
    /// Minimum rate at which the client must read a reply.
    pub write: MinRate,
}

impl ConnectionTimeouts {
    /// Returns the connection timeouts of a server configuration.
    #[must_use]
    pub(crate) fn new(config: &Config, service: Service) -> Self {
        let header = match service {
            Service::Full => config.header_timeout.0,
            Service::StatusOnly => config.header_timeout.0.min(STATUS_HEADER_TIMEOUT),
        };
        Self {
            header,
            idle: config.idle_timeout.0,
            idle_when_short: config.idle_timeout_when_short.0,
            write: config.reply_rate(),
        }
    }

    /// Returns the interval between two checks of a connection: a quarter of the shortest timeout, at least 10 ms and
    /// at most 5 s. So a connection can exceed a timeout by at most this interval.
    #[must_use]
    pub(crate) fn tick(&self) -> Duration {
        (self.header.min(self.idle).min(self.write.window) / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }
}

/// Result of a check of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStatus {
    /// The connection may stay open.
    Active,
    /// The connection is idle. The server closes it in an orderly way.
    Idle,
    /// The connection blocks resources, for the given reason. The server cuts it.
    Stuck(&'static str),
}

/// State of the check of one connection against its timeouts: the connection's activity at the last check, and the
/// times at which the activity last changed.
#[derive(Debug)]
pub(crate) struct ActivityMonitor {
    timeouts: ConnectionTimeouts,
    read: u64,
    written: u64,
    /// Time of the last check at which the connection was active: a request was running, the server had written bytes,
    /// or bytes had arrived over HTTP/1.
    moved_at: Instant,
    /// Rate at which the client reads the reply bytes that the server has ready for it.
    writing: Pace,
    /// Time since which an incomplete request head waits for its remaining bytes; `None` if there is none.
    head_since: Option<Instant>,
}

impl ActivityMonitor {
    /// Starts watching a new connection at `now`. The connection must send its first head in time.
    #[must_use]
    pub(crate) fn new(timeouts: ConnectionTimeouts, now: Instant) -> Self {
        Self { timeouts, read: 0, written: 0, moved_at: now, writing: Pace::new(timeouts.write), head_since: Some(now) }
    }

    /// Checks a connection against its timeouts. The caller must call this once every [`ConnectionTimeouts::tick`].
    /// `is_short` is true while the server runs short of connections and the client's address holds more connections
    /// than one address may then hold.
    pub(crate) fn verdict(&mut self, activity: &Activity, now: Instant, is_short: bool) -> ConnectionStatus {
        let read = activity.read.load(Ordering::Relaxed);
        let written = activity.written.load(Ordering::Relaxed);
        let http2 = activity.http2.load(Ordering::Relaxed);
        let busy = activity.busy.load(Ordering::Relaxed) > 0;
        let wrote = written != self.written;
        // Bytes from an HTTP/2 client do not count as activity: such a client can send single bytes without causing a
        // write.
        if busy || wrote || (read != self.read && !http2) {
            self.moved_at = now;
        }
        if activity.write_waits.load(Ordering::Relaxed) {
            self.writing.moved(written - self.written);
            self.writing.waits(now);
        } else {
            self.writing.done();
        }
        (self.read, self.written) = (read, written);
        let owes_head = written == 0 || (!http2 && read != activity.read_at_last_end.load(Ordering::Relaxed));
        self.head_since = match self.head_since {
            _ if busy || wrote || !owes_head => None,
            since => Some(since.unwrap_or(now)),
        };
        let waited = |since: Instant| now.saturating_duration_since(since);
        if self.writing.is_too_slow(now) || activity.streams.is_overdue(now) {
            return ConnectionStatus::Stuck("the client does not read the reply");
        }
        if self.head_since.is_some_and(|since| waited(since) >= self.timeouts.header) {
            return ConnectionStatus::Stuck("the head of the request did not arrive in time");
        }
        let idle = if is_short { self.timeouts.idle.min(self.timeouts.idle_when_short) } else { self.timeouts.idle };
        if waited(self.moved_at) >= idle {
            return ConnectionStatus::Idle;
        }
        ConnectionStatus::Active
    }
}

/// Time for which the server still reads from a connection that it has closed. Otherwise a client that is still sending
/// would get a reset instead of the reply.
const LINGER: Duration = Duration::from_millis(500);

/// Maximum number of bytes in one write to the socket, if more than [`REPLY_BYTES`] wait to be sent to the client.
const MAX_WRITE_BYTES: usize = 128 * 1024;

/// A socket that counts the bytes it reads and writes, and that still reads for a short time after it is closed. If
/// more than [`REPLY_BYTES`] bytes wait to be sent, they are [bulk output](thalweg_serving::bulk): connections take
/// turns in sending it.
#[derive(Debug)]
pub(crate) struct MonitoredSocket {
    /// The wrapped socket; `None` only while the wrapper is being dropped.
    inner: Option<TcpStream>,
    activity: Arc<Activity>,
    peer_closed: bool,
    /// The connection's slot in the limit `max_connections`. It is held until the socket is closed completely.
    held: Option<Arc<Slot>>,
    bulk: BulkSeat,
}

impl MonitoredSocket {
    /// Wraps a socket. Its bytes are counted in `activity`.
    #[must_use]
    pub(crate) fn new(inner: TcpStream, activity: Arc<Activity>, held: Arc<Slot>, bulk: BulkSeat) -> Self {
        Self { inner: Some(inner), activity, peer_closed: false, held: Some(held), bulk }
    }

    /// Writes from the start of `data`. `waiting` is the number of bytes, including `data`, that are queued for the
    /// client. If it exceeds [`REPLY_BYTES`], the write is bulk output, and waits until the connection has a turn to
    /// send bulk output.
    fn write_front(&mut self, context: &mut Context<'_>, data: &[u8], waiting: usize) -> Poll<io::Result<usize>> {
        if waiting <= REPLY_BYTES {
            let result = self.socket().poll_write(context, data);
            self.record_write(&result);
            return result;
        }
        if !self.bulk.may_send(context) {
            // The flag for a slow client keeps its value from the last attempt to write. Otherwise a client that does
            // not read would count as a new slow client in each round.
            return Poll::Pending;
        }
        let result = self.socket().poll_write(context, &data[..data.len().min(MAX_WRITE_BYTES)]);
        self.wrote_bulk(&result, waiting);
        result
    }

    fn wrote_bulk(&mut self, result: &Poll<io::Result<usize>>, waiting: usize) {
        self.record_write(result);
        match result {
            Poll::Ready(Ok(written)) => {
                self.bulk.sent(*written);
                if waiting - written <= REPLY_BYTES {
                    self.bulk.rest();
                }
            }
            Poll::Ready(Err(_)) | Poll::Pending => self.bulk.rest(),
        }
    }

    fn socket(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.inner.as_mut().expect("taken only when dropped"))
    }

    fn record_write(&self, result: &Poll<io::Result<usize>>) {
        match result {
            Poll::Ready(Ok(bytes)) => {
                self.activity.written.fetch_add(*bytes as u64, Ordering::Relaxed);
                self.activity.write_waits.store(false, Ordering::Relaxed);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.activity.write_waits.store(true, Ordering::Relaxed),
        }
    }
}

impl Drop for MonitoredSocket {
    fn drop(&mut self) {
        let (Some(stream), Ok(runtime)) = (self.inner.take(), Handle::try_current()) else { return };
        if !self.peer_closed {
            runtime.spawn(linger(stream, self.held.take()));
        }
    }
}

/// Closes a connection without losing its last reply. If a socket is closed while it holds unread bytes, the kernel
/// resets the connection, and the client may lose a reply that it has not read. So this function sends the end of the
/// stream, and then reads and discards bytes for [`LINGER`].
async fn linger(mut stream: TcpStream, _held: Option<Arc<Slot>>) {
    let drain = async {
        let mut scratch = [0_u8; 4096];
        stream.shutdown().await?;
        while stream.read(&mut scratch).await? > 0 {}
        io::Result::Ok(())
    };
    // The connection ends in either case, so the result does not matter.
    let _ = timeout(LINGER, drain).await;
}

impl AsyncRead for MonitoredSocket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = self.socket().poll_read(context, buf);
        let bytes = buf.filled().len() - before;
        if bytes > 0 && self.activity.read.fetch_add(bytes as u64, Ordering::Relaxed) == 0 {
            let http2 = buf.filled()[before..].starts_with(b"PRI");
            self.activity.http2.store(http2, Ordering::Relaxed);
        }
        self.peer_closed |= bytes == 0 && buf.remaining() > 0 && result.is_ready();
        result
    }
}

impl AsyncWrite for MonitoredSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.write_front(context, data, data.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let waiting: usize = parts.iter().map(|part| part.len()).sum();
        let mut fitting = 0;
        let fits = |part: &&io::IoSlice<'_>| {
            fitting += part.len();
            fitting <= MAX_WRITE_BYTES
        };
        let count = parts.iter().take_while(fits).count();
        if count <= 1 {
            // Chooses the first part that is not empty. An empty write would mean the end of the connection.
            let first = parts.iter().find(|part| !part.is_empty()).map_or(&[][..], |part| part);
            return self.write_front(context, first, waiting);
        }
        if waiting > REPLY_BYTES && !self.bulk.may_send(context) {
            return Poll::Pending;
        }
        let result = self.socket().poll_write_vectored(context, &parts[..count]);
        if waiting > REPLY_BYTES {
            self.wrote_bulk(&result, waiting);
        } else {
            self.record_write(&result);
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_takes_a_trickle_is_cut() {
        let activity = Arc::new(Activity::default());
        one_request(&activity);
        activity.write_waits.store(true, Ordering::Relaxed);
        let busy = Busy::new(&activity);
        let trickle = |activity: &Activity, _| {
            activity.written.fetch_add(100, Ordering::Relaxed);
        };
        let stuck = ConnectionStatus::Stuck("the client does not read the reply");
        assert_eq!(seconds_until_verdict(&activity, trickle), (30, stuck));
        let enough = |activity: &Activity, _| {
            activity.written.fetch_add(3000, Ordering::Relaxed);
        };
        assert_eq!(seconds_until_verdict(&activity, enough).1, ConnectionStatus::Active);
        drop(busy);
    }

    const PATIENCE: ConnectionTimeouts = ConnectionTimeouts {
        header: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        idle_when_short: Duration::from_secs(10),
        write: MinRate { window: Duration::from_secs(30), bytes: 30_000 },
    };

    /// Checks a connection every two seconds until the verdict is not `Active`. Returns the time in seconds and the
    /// verdict.
    fn seconds_until_verdict(activity: &Activity, mut each: impl FnMut(&Activity, u64)) -> (u64, ConnectionStatus) {
        let start = Instant::now();
        let mut watch = ActivityMonitor::new(PATIENCE, start);
        for second in (0..1000).step_by(2) {
            each(activity, second);
            let verdict = watch.verdict(activity, start + Duration::from_secs(second), false);
            if verdict != ConnectionStatus::Active {
                return (second, verdict);
            }
        }
        (1000, ConnectionStatus::Active)
    }

    fn one_request(activity: &Arc<Activity>) {
        activity.read.fetch_add(100, Ordering::Relaxed);
        drop(Busy::new(activity));
        activity.written.fetch_add(100, Ordering::Relaxed);
    }

    #[test]
    fn silence_and_trickle_from_the_start_are_cut_at_the_head_bound() {
        let stuck = ConnectionStatus::Stuck("the head of the request did not arrive in time");
        assert_eq!(seconds_until_verdict(&Activity::default(), |_, _| ()), (10, stuck));
        let trickle = |activity: &Activity, _| {
            activity.read.fetch_add(1, Ordering::Relaxed);
        };
        assert_eq!(seconds_until_verdict(&Activity::default(), trickle), (10, stuck));
    }

    #[test]
    fn a_trickling_second_head_is_cut_and_silence_after_a_request_is_idle() {
        let activity = Arc::new(Activity::default());
        one_request(&activity);
        assert_eq!(seconds_until_verdict(&activity, |_, _| ()), (76, ConnectionStatus::Idle));
        let trickle = |activity: &Activity, _| {
            activity.read.fetch_add(1, Ordering::Relaxed);
        };
        let (after, verdict) = seconds_until_verdict(&activity, trickle);
        assert!((10..=14).contains(&after) && matches!(verdict, ConnectionStatus::Stuck(_)), "{after} {verdict:?}");
    }

    #[test]
    fn a_busy_or_streaming_connection_is_left_alone() {
        let activity = Arc::new(Activity::default());
        let busy = Busy::new(&activity);
        assert_eq!(seconds_until_verdict(&activity, |_, _| ()).1, ConnectionStatus::Active);
        drop(busy);
        let streaming = |activity: &Activity, second: u64| {
            if second.is_multiple_of(16) {
                activity.written.fetch_add(10, Ordering::Relaxed);
            }
        };
        assert_eq!(seconds_until_verdict(&activity, streaming).1, ConnectionStatus::Active);
    }

    #[test]
    fn a_client_that_takes_nothing_is_cut() {
        let activity = Arc::new(Activity::default());
        one_request(&activity);
        activity.write_waits.store(true, Ordering::Relaxed);
        let busy = Busy::new(&activity);
        let (after, verdict) = seconds_until_verdict(&activity, |_, _| ());
        assert_eq!((after, verdict), (30, ConnectionStatus::Stuck("the client does not read the reply")));
        drop(busy);
    }
}
