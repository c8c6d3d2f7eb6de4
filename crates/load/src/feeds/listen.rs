//! Subscribers of a subject. They share one thread of their own while the load runs.

use std::{
    io::{self, ErrorKind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    deliveries::SubscriberLedger,
    feed::Feed,
    protocol::{Arrived, Subscription},
};
use crate::{
    BenchError,
    connection::MoreInput,
    poller::{Event, Poller},
};

/// Longest wait for the server to accept the subscriptions.
const SETUP: Duration = Duration::from_secs(10);
/// Time without a message after which the messages that have not arrived count as lost.
const QUIET: Duration = Duration::from_secs(2);
/// Longest wait for events in nanoseconds. After each wait, the thread checks if it must stop.
const WAIT: u64 = 20_000_000;

/// Handle of the thread that receives the messages of all subscribers while the load runs.
#[derive(Debug)]
pub struct Listening {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Vec<SubscriberLedger>, String>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Number of subscriptions that the server has accepted so far.
    accepted: AtomicU64,
    /// Number of messages that were received or reported as dropped, summed over all subscribers.
    messages: AtomicU64,
}

/// One subscription, and the ledger of the messages that it received.
struct Subscriber {
    subscription: Box<dyn Subscription>,
    is_accepted: bool,
    ledger: SubscriberLedger,
}

impl Listening {
    /// Opens subscriptions to the feed's subject, and waits until the server has accepted all of them. Errors name the
    /// server as `host`.
    pub fn start(host: &str, subscribers: usize, feed: &Arc<Feed>) -> Result<Self, BenchError> {
        let mut opened = Vec::new();
        for _ in 0..subscribers {
            let (subscription, ledger) = (feed.protocol.subscribe()?, SubscriberLedger::new(feed.sizes.messages));
            opened.push(Subscriber { subscription, is_accepted: false, ledger });
        }
        let (shared, feed) = (Arc::new(Shared::default()), Arc::clone(feed));
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || listen(opened, &feed, &shared)
        });
        let begun = Instant::now();
        while shared.accepted.load(Ordering::Acquire) < subscribers as u64 {
            if thread.is_finished() || begun.elapsed() > SETUP {
                shared.stop.store(true, Ordering::Release);
                let problem = thread.join().map_or_else(
                    |_| "a panic".to_owned(),
                    |ended| match ended {
                        Err(problem) => problem,
                        Ok(_) => format!("no answer within {SETUP:?}"),
                    },
                );
                return Err(BenchError::target(host)(format!("subscribing: {problem}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { shared, thread })
    }

    /// Waits until each subscriber has received `published` messages, or until no more messages arrive. Returns the
    /// ledger of each subscriber. If the subscriptions have ended early, returns the reason.
    pub fn finish(self, published: u64, subscribers: usize) -> Result<Vec<SubscriberLedger>, String> {
        let (mut seen, mut since) = (0, Instant::now());
        while seen < published * subscribers as u64 && since.elapsed() < QUIET && !self.thread.is_finished() {
            let now = self.shared.messages.load(Ordering::Acquire);
            if now > seen {
                (seen, since) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.stop.store(true, Ordering::Release);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn listen(mut all: Vec<Subscriber>, feed: &Feed, shared: &Shared) -> Result<Vec<SubscriberLedger>, String> {
    let waiting = |error: io::Error| format!("waiting: {error}");
    let poller = Poller::new().map_err(waiting)?;
    for (number, subscriber) in (0..).zip(&mut all) {
        poller.add(subscriber.subscription.connection().socket(), number).map_err(waiting)?;
    }
    let mut events: Vec<Event> = Vec::with_capacity(256);
    while !shared.stop.load(Ordering::Acquire) {
        poller.wait(&mut events, WAIT).map_err(waiting)?;
        for event in events.drain(..) {
            let number = event.data.u64() as usize;
            all[number].receive(feed, shared).map_err(|problem| format!("subscriber {number}: {problem}"))?;
        }
    }
    Ok(all.into_iter().map(|subscriber| subscriber.ledger).collect())
}

impl Subscriber {
    fn receive(&mut self, feed: &Feed, shared: &Shared) -> Result<(), String> {
        let Self { subscription, is_accepted, ledger } = self;
        loop {
            let more = match subscription.connection().receive() {
                Ok(more) => more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            subscription.take(&mut |arrived| {
                let messages = match arrived {
                    Arrived::Accepted => {
                        shared.accepted.fetch_add(u64::from(!*is_accepted), Ordering::AcqRel);
                        *is_accepted = true;
                        0
                    }
                    Arrived::Message(payload) => {
                        let message = payload.and_then(|payload| feed.message(payload));
                        match message.and_then(|message| feed.publisher(message)) {
                            Some(publisher) => ledger.take_of(publisher, message),
                            None => ledger.take(message),
                        }
                        1
                    }
                    Arrived::Gap(messages) => {
                        ledger.gap(messages);
                        messages
                    }
                };
                shared.messages.fetch_add(messages, Ordering::AcqRel);
            })?;
            // Only pongs and credit are sent, and they fit into the socket's buffer.
            subscription.connection().send().map_err(|error| error.to_string())?;
            if more == MoreInput::No {
                return Ok(());
            }
        }
    }
}
