use std::{
    net::IpAddr,
    sync::mpsc::{Receiver, Sender, channel},
};

use super::*;
use crate::{
    admission::{AddressKey, Admission},
    config::Config,
};

fn address(last: u8) -> AddressKey {
    AddressKey::of(IpAddr::from([127, 0, 0, last]))
}

/// A read that tells when it has begun, and ends when the test lets it.
fn held(begun: &Sender<&'static str>, name: &'static str) -> (impl FnOnce() -> &'static str + use<>, Sender<()>) {
    let (release, released): (Sender<()>, Receiver<()>) = channel();
    let begun = begun.clone();
    let read = move || {
        begun.send(name).unwrap();
        let _ = released.recv();
        name
    };
    (read, release)
}

#[tokio::test]
async fn reads_of_one_address_leave_a_thread_to_others() {
    let admission = Admission::new(&Config::default());
    let (many, other) = (admission.account(address(1)), admission.account(address(2)));
    let readers = Readers::new(2);
    let (begun, begins) = channel();
    let (first, release) = held(&begun, "first");
    let first = readers.run(&many, 1, first);
    assert_eq!(begins.recv().unwrap(), "first");
    let waiting: Vec<_> = (0..10).map(|_| readers.run(&many, 1, || "later")).collect();
    // Completes although eleven reads of the other address came first, and one of them still runs.
    assert_eq!(readers.run(&other, 1, || "other").await, Ok("other"));
    assert_eq!(readers.queued(), 10);
    drop(release);
    assert_eq!(first.await, Ok("first"));
    for read in waiting {
        assert_eq!(read.await, Ok("later"));
    }
    readers.stop();
}

#[tokio::test]
async fn the_bytes_of_running_reads_are_bounded() {
    let admission = Admission::new(&Config::default());
    let (one, other) = (admission.account(address(1)), admission.account(address(2)));
    let readers = Readers::new(4);
    let (begun, begins) = channel();
    let (large, release) = held(&begun, "large");
    let large = readers.run(&one, usize::MAX, large);
    assert_eq!(begins.recv().unwrap(), "large");
    let small = readers.run(&other, 1, || "small");
    assert_eq!(readers.queued(), 1, "no bytes are free");
    drop(release);
    assert_eq!((large.await, small.await), (Ok("large"), Ok("small")));
}

#[tokio::test]
async fn a_read_whose_future_is_dropped_leaves_the_queue() {
    let admission = Admission::new(&Config::default());
    let account = admission.account(address(1));
    let readers = Readers::new(2);
    let (begun, begins) = channel();
    let (first, release) = held(&begun, "first");
    let first = readers.run(&account, 1, first);
    assert_eq!(begins.recv().unwrap(), "first");
    let dropped = readers.run(&account, 1, || unreachable!("its future is dropped"));
    assert_eq!(readers.queued(), 1);
    drop(dropped);
    assert_eq!(readers.queued(), 0);
    drop(release);
    assert_eq!(first.await, Ok("first"));
}

#[tokio::test]
async fn a_panic_is_an_error_and_the_thread_goes_on() {
    let admission = Admission::new(&Config::default());
    let account = admission.account(address(1));
    let readers = Readers::new(1);
    let panicked = readers.run(&account, 1, || -> u8 { panic!("a read panics") });
    assert_eq!(panicked.await, Err(ReaderError::Panicked));
    assert_eq!(readers.run(&account, 1, || 7).await, Ok(7));
}

#[tokio::test]
async fn stopped_readers_reject_reads_and_their_threads_have_ended() {
    let admission = Admission::new(&Config::default());
    let account = admission.account(address(1));
    let readers = Arc::new(Readers::new(2));
    let (begun, begins) = channel();
    let (first, release) = held(&begun, "first");
    let first = readers.run(&account, 1, first);
    assert_eq!(begins.recv().unwrap(), "first");
    let queued = readers.run(&account, 1, || "queued");
    let stopping = thread::spawn({
        let readers = Arc::clone(&readers);
        move || readers.stop()
    });
    assert_eq!(queued.await, Err(ReaderError::Stopping));
    drop(release);
    assert_eq!(first.await, Ok("first"), "a read that has begun ends");
    stopping.join().unwrap();
    assert_eq!(readers.run(&account, 1, || "late").await, Err(ReaderError::Stopping));
}
