//! Runs one channel: one ordered stream of frames between client and server. A task for each channel reads frames and
//! passes them to their receivers, writes the frames of callers, and keeps the connection alive.
//!
//! Owns: the task, and the order of its steps. Does not own the tables of requests and subscriptions (`link`), nor the
//! steps after the connection is lost (`pool`).
//!
//! The task runs in turns; each wake-up causes one. In a turn the task reads all available bytes and passes the frames
//! on. Then it writes the frames that callers have staged in the meantime. If several requests are in progress, other
//! callers are likely to stage more frames. The task then yields once to all tasks that are ready to run, so that their
//! requests share one write.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use thalweg_types::Action;
use thalweg_wire::{
    Batch, Changes, ClusterEvents, Deliver, Dropped, Ended, Failed, Fields, Goodbye, Kind, List, Permit, Ping, Pong,
    Pushed, Reason, RecordRun, SharedFrame, Tailed,
    handshake::{KeepAlive, KeepAliveAction, goodbye},
    session::{Route, RouteError},
};
use tokio::time::{Sleep, sleep};

use crate::{
    error::{Failure, Lost},
    link::{Io, Link, Waiter},
    mailbox::Item,
    request::body_of,
};

/// Maximum number of reads from the socket in one turn (one poll) of the task of a channel (a TCP connection or a QUIC
/// stream), after which other tasks run.
const READS_PER_TURN: usize = 16;

/// Longest time for writing the goodbye and all staged frames when a channel (a TCP connection or a QUIC stream) is
/// closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

enum TurnEnd {
    /// The task lets other tasks run before it writes, so that their frames share one write.
    Yield,
    End(Lost),
}

struct Task {
    link: Arc<Link>,
    alive: KeepAlive,
    began: Instant,
    silence: Pin<Box<Sleep>>,
    has_yielded: bool,
}

/// Runs the channel (a TCP connection or a QUIC stream) until its connection is lost. The caller must then notify the
/// callers that wait for replies.
pub(crate) async fn run(link: Arc<Link>, keep_alive: Duration) -> Lost {
    let mut task = Task {
        alive: KeepAlive::new(keep_alive, Duration::ZERO),
        began: Instant::now(),
        silence: Box::pin(sleep(keep_alive)),
        has_yielded: false,
        link,
    };
    let lost = loop {
        match poll_fn(|cx| task.turn(cx)).await {
            TurnEnd::Yield => tokio::task::yield_now().await,
            TurnEnd::End(lost) => break lost,
        }
    };
    task.close(&lost).await;
    lost
}

impl Task {
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<TurnEnd> {
        let link = self.link.clone();
        let closing = link.begin_turn(cx);
        let mut guard = link.lock_io();
        let Some(io) = guard.as_mut() else { return Poll::Ready(TurnEnd::End(Lost::Closed)) };
        if closing {
            return Poll::Ready(TurnEnd::End(Lost::ByClient));
        }
        if let Err(lost) = self.read(io, cx) {
            return Poll::Ready(TurnEnd::End(lost));
        }
        if let Err(lost) = self.keep_alive(cx) {
            return Poll::Ready(TurnEnd::End(lost));
        }
        if !self.has_yielded && link.should_gather() {
            self.has_yielded = true;
            return Poll::Ready(TurnEnd::Yield);
        }
        self.has_yielded = false;
        match link.flush(io, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(TurnEnd::End(error.into())),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn read(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Result<(), Lost> {
        for _ in 0..READS_PER_TURN {
            match io.channel.poll_read(cx, io.decoder.buffer()) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Ready(Ok(0)) => return Err(Lost::Closed),
                Poll::Ready(Ok(_)) => {}
            }
            self.alive.record_receipt(self.now());
            while let Some(frame) = io.decoder.next_shared()? {
                route_to_receiver(&self.link, frame)?;
            }
        }
        cx.waker().wake_by_ref(); // the socket may have more bytes
        Ok(())
    }

    fn keep_alive(&mut self, cx: &mut Context<'_>) -> Result<(), Lost> {
        while self.silence.as_mut().poll(cx).is_ready() {
            let now = self.now();
            let wait = match self.alive.due_action(now) {
                KeepAliveAction::PeerLost => return Err(Lost::Silent),
                KeepAliveAction::Ping => {
                    // The link numbers its own pings from 1, so the answer to this ping, number 0, wakes no caller.
                    self.link.stage_control(&Ping { token: 0 });
                    self.alive.sent(now);
                    continue;
                }
                KeepAliveAction::Wait(wait) => wait,
            };
            self.silence.as_mut().reset(tokio::time::Instant::now() + wait);
        }
        Ok(())
    }

    /// Sends a goodbye to the server and writes all staged frames, for at most [`CLOSE_TIMEOUT`].
    async fn close(&self, lost: &Lost) {
        let message;
        let frame = match lost {
            Lost::ByClient => goodbye(Reason::Done, Action::Fix, "the client is done"),
            Lost::Silent => goodbye(Reason::Silent, Action::Retry, "the client heard nothing for too long"),
            Lost::Protocol(error) => {
                message = error.to_string();
                goodbye(Reason::Protocol, Action::Fix, &message)
            }
            Lost::Broken { .. } | Lost::Closed | Lost::Moved | Lost::Goodbye { .. } => return,
        };
        self.link.stage_control(&frame);
        let link = &self.link;
        let written = poll_fn(|cx| {
            let mut guard = link.lock_io();
            let Some(io) = guard.as_mut() else { return Poll::Ready(()) };
            match link.flush(io, cx) {
                Poll::Ready(Ok(())) => io.channel.poll_close(cx).map(|_| ()),
                Poll::Ready(Err(_)) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            }
        });
        // If the time is not sufficient, the connection ends without a goodbye.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, written).await;
    }
}

/// Passes a frame that the channel (a TCP connection or a QUIC stream) has received to the request or subscription that
/// waits for it.
fn route_to_receiver(link: &Link, frame: SharedFrame) -> Result<(), Lost> {
    let Some(kind) = Kind::from_code(frame.header.kind) else { return Ok(()) }; // from a newer server
    if kind == Kind::Deliver {
        return deliver(link, &frame);
    }
    let counts = counted(kind, &frame)?;
    let handed = link.with_session(|session| {
        let id = frame.header.id;
        match session.route(kind, id)? {
            Route::Reply(Waiter::Reply(waiter)) => drop(waiter.send(Ok(frame))),
            Route::Reply(Waiter::Subscription(mailbox)) => {
                let failed: Failed<'_> = body_of(&frame)?;
                mailbox.push(Item::Ended(Box::new(Failure::of_reply(&failed, &Fields::default()))));
            }
            Route::Begun(Waiter::Subscription(mailbox)) => mailbox.push(Item::Begun(frame)),
            Route::Ended(Waiter::Subscription(mailbox)) => {
                let ended: Ended<'_> = body_of(&frame)?;
                mailbox.push(Item::Ended(Box::new(Failure::of_end(&ended))));
            }
            Route::Push(_) => match counts {
                Some(counts) => {
                    let waiter = if counts.messages > 0 {
                        session.delivered(id, counts.messages, counts.bytes)?
                    } else {
                        match session.route(kind, id)? {
                            Route::Push(waiter) => waiter,
                            _ => return Err(RouteError::Unexpected { kind, id }.into()),
                        }
                    };
                    if let Waiter::Subscription(mailbox) = waiter {
                        mailbox.push(Item::Frame(frame, counts));
                    }
                }
                None => {
                    let Dropped { messages } = body_of(&frame)?;
                    if let Route::Push(Waiter::Subscription(mailbox)) = session.route(kind, id)? {
                        mailbox.push(Item::Dropped(messages));
                    }
                }
            },
            Route::Channel => return Ok(Some(frame)),
            Route::FailureWithoutId => return Ok(Some(frame)),
            // `route` never returns these two for a request: a request gets no start of a subscription and no pushed
            // frames.
            Route::Begun(Waiter::Reply(_)) | Route::Ended(Waiter::Reply(_)) => {
                return Err(RouteError::Unexpected { kind, id }.into());
            }
        }
        Ok::<_, Lost>(None)
    });
    match handed {
        Some(Ok(Some(frame))) => connection(link, kind, &frame),
        Some(Err(lost)) => Err(lost),
        Some(Ok(None)) | None => Ok(()),
    }
}

/// Processes a received frame that concerns the connection, such as a ping or a goodbye.
fn connection(link: &Link, kind: Kind, frame: &SharedFrame) -> Result<(), Lost> {
    match kind {
        Kind::Ping => {
            let Ping { token } = body_of(frame)?;
            link.stage_control(&Pong { token });
        }
        Kind::Pong => link.handle_pong(body_of::<Pong>(frame)?.token),
        Kind::Failed => link.count_failure_without_id(),
        Kind::Goodbye => {
            let Goodbye { reason, class, message, .. } = body_of(frame)?;
            return Err(Lost::Goodbye { reason, class, message: message.to_owned() });
        }
        _ => return Err(RouteError::Unexpected { kind, id: frame.header.id }.into()),
    }
    Ok(())
}

/// Passes a received batch of messages to each subscription of this channel (a TCP connection or a QUIC stream) that
/// the server names in the frame. The subscriptions share the bytes of the batch.
fn deliver(link: &Link, frame: &SharedFrame) -> Result<(), Lost> {
    let Deliver { subscriptions, batch } = body_of(frame)?;
    let count = u64::from(Batch::decode(batch.0)?.count());
    let (bytes, len) = (frame.share(batch.0), batch.0.len() as u64);
    let handed = link.with_session(|session| {
        for id in subscriptions.iter() {
            match session.delivered(id, count, len)? {
                Waiter::Subscription(mailbox) => mailbox.push(Item::Batch(bytes.clone())),
                Waiter::Reply(_) => return Err(RouteError::Unexpected { kind: Kind::Deliver, id }.into()),
            }
        }
        Ok(())
    });
    handed.unwrap_or(Ok(()))
}

/// Returns the numbers of messages and bytes that a pushed frame takes from the credit of its subscription; `None` for
/// kinds of frames that take no credit.
fn counted(kind: Kind, frame: &SharedFrame) -> Result<Option<Permit>, Lost> {
    Ok(Some(match kind {
        Kind::Tailed => count_runs(&body_of::<Tailed<'_>>(frame)?.runs),
        Kind::Pushed => {
            let mut sum = Permit { messages: 0, bytes: 0 };
            for part in body_of::<Pushed<'_>>(frame)?.parts.iter() {
                let part = count_runs(&part.runs);
                sum.messages += part.messages;
                sum.bytes += part.bytes;
            }
            sum
        }
        Kind::Changes => {
            let changes = body_of::<Changes<'_>>(frame)?.changes;
            let bytes = changes.iter().map(|change| (change.key.len() + change.value.len()) as u64).sum();
            Permit { messages: changes.len() as u64, bytes }
        }
        Kind::ClusterEvents => {
            let events = body_of::<ClusterEvents<'_>>(frame)?.events;
            let bytes = events.iter().map(|event| (event.event.len() + event.name.len()) as u64).sum();
            Permit { messages: events.len() as u64, bytes }
        }
        _ => return Ok(None),
    }))
}

fn count_runs(runs: &List<'_, RecordRun<'_>>) -> Permit {
    let mut sum = Permit { messages: 0, bytes: 0 };
    for run in runs.iter() {
        sum.messages += u64::from(run.count);
        sum.bytes += run.records.len() as u64;
    }
    sum
}
