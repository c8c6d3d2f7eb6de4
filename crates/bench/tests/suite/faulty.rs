//! Servers that lose, repeat, swap or garble messages: a run against one is never good.

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    thread,
};

use thalweg_bench::{
    Quiet, Report,
    pubsub::{self, PubsubOptions},
    report::Verdict,
};
use thalweg_transport::{Channel, ListenOptions, Listener, Outbox};
use thalweg_types::{Durability, NodeId};
use thalweg_wire::{
    ClientFrame, Decoder, Frame as _, Subscribed, batch::put_deliver_prefix, handshake::ServerParameters,
};
use tokio::{runtime::Builder, sync::mpsc};

use crate::common::options;

/// Fault of a server, at the tenth batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Loses,
    Repeats,
    Swaps,
    Garbles,
}

const AT: usize = 10;

/// Subscribers by the subscription's id.
type Subscribers = Mutex<Vec<(u32, mpsc::UnboundedSender<Vec<u8>>)>>;

struct Hub {
    fault: Fault,
    batches: AtomicUsize,
    held: Mutex<Option<Vec<u8>>>,
    subscribers: Subscribers,
}

impl Hub {
    fn publish(&self, batch: &[u8]) {
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        let mut batch = batch.to_vec();
        if let Some(held) = self.held.lock().unwrap().take() {
            self.send(&batch);
            return self.send(&held);
        }
        match self.fault {
            Fault::Loses if number == AT => return,
            Fault::Repeats if number == AT => self.send(&batch),
            Fault::Swaps if number == AT => {
                *self.held.lock().unwrap() = Some(batch);
                return;
            }
            Fault::Garbles if number == AT => *batch.last_mut().unwrap() ^= 1,
            _ => {}
        }
        self.send(&batch);
    }

    fn send(&self, batch: &[u8]) {
        for (id, subscriber) in &*self.subscribers.lock().unwrap() {
            let mut frame = Vec::new();
            put_deliver_prefix(&mut frame, [*id].into_iter(), batch.len()).unwrap();
            frame.extend_from_slice(batch);
            let _ = subscriber.send(frame);
        }
    }

    fn answer(&self, raw: thalweg_wire::RawFrame<'_>, out: &mut Vec<u8>, own: &mpsc::UnboundedSender<Vec<u8>>) {
        let envelope = ClientFrame::decode(raw).unwrap();
        match envelope.frame {
            ClientFrame::Hello(hello) => {
                let terms = ServerParameters {
                    max_frame_bytes: 1 << 20,
                    keep_alive: std::time::Duration::from_secs(10),
                    max_requests: 100,
                    max_subscriptions: 100,
                    durability: Durability::Disk,
                    node: NodeId(1),
                    run: 1,
                    server: "faulty",
                    features: &[],
                    spaces: &[],
                };
                terms.welcome(&terms.accept(&hello).unwrap()).encode(out, 0).unwrap();
            }
            ClientFrame::Subscribe(_) => {
                Subscribed { queue_messages: 1, queue_bytes: 1 }.encode(out, envelope.id).unwrap();
                self.subscribers.lock().unwrap().push((envelope.id, own.clone()));
            }
            ClientFrame::Publish(publish) => publish.batches.iter().for_each(|batch| self.publish(batch)),
            _ => {} // credit and pings
        }
    }
}

async fn serve(mut channel: Channel, hub: Arc<Hub>) {
    let (mut decoder, mut outbox) = (Decoder::new(), Outbox::new());
    let (own, mut pushed) = mpsc::unbounded_channel::<Vec<u8>>();
    decoder.set_max_bytes(1 << 20);
    poll_fn(|cx| {
        loop {
            while let Poll::Ready(Some(frame)) = pushed.poll_recv(cx) {
                outbox.buffer().extend_from_slice(&frame);
            }
            let read = channel.poll_read(cx, decoder.buffer());
            match read {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => {
                    while let Some(raw) = decoder.next_borrowed().unwrap() {
                        hub.answer(raw, outbox.buffer(), &own);
                    }
                }
                Poll::Pending => {}
            }
            while !outbox.is_empty() {
                match channel.poll_write(cx, &mut outbox) {
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => break,
                }
            }
            if read.is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// A server with a fault, for as long as the test's process runs.
fn start(fault: Fault) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(async {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await.unwrap();
            tell.send(listener.local_addr()).unwrap();
            let hub =
                Hub { fault, batches: AtomicUsize::new(0), held: Mutex::default(), subscribers: Mutex::default() };
            let hub = Arc::new(hub);
            loop {
                let Ok(incoming) = listener.accept().await else { continue };
                let hub = Arc::clone(&hub);
                tokio::spawn(async move {
                    if let Ok((_connection, channel)) = incoming.establish().await {
                        serve(channel, hub).await;
                    }
                });
            }
        });
    });
    told.recv().unwrap()
}

fn run(fault: Fault) -> Report {
    let load = "--rate 4000 --batch 2 --fan-out 2 --duration 200ms --warmup 10ms --rounds 1 --give-up 300ms";
    let flags = format!("--target {} {load} --bare 0 --max-lag 10s", start(fault));
    pubsub::run(&options::<PubsubOptions>(&flags), &mut Quiet).unwrap()
}

#[test]
fn a_right_server_is_good() {
    // A busy machine can answer one short schedule late.
    let is_good = || run(Fault::None).verdict() == Verdict::Met;
    assert!((0..5).any(|_| is_good()), "{}", run(Fault::None).to_text());
}

#[test]
fn a_wrong_one_never_is() {
    for (fault, part) in [
        (Fault::Loses, "missing"),
        (Fault::Repeats, "twice or out of order"),
        (Fault::Swaps, "twice or out of order"),
        (Fault::Garbles, "with wrong content"),
    ] {
        let report = run(fault);
        let check = &report.checks[0];
        assert_eq!(check.verdict, Verdict::Missed, "{fault:?}: {}", report.to_text());
        assert!(check.measured.contains(part), "{fault:?}: {}", check.measured);
    }
}
