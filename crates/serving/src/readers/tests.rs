use std::{
    net::IpAddr,
    sync::mpsc::{Receiver, Sender, channel},
};

use thalweg_types::{budget, steps::SHORT_READ};

use super::*;
use crate::{
    admission::{AddressKey, Admission},
    config::Config,
};

fn address(last: u8) -> AddressKey {
    AddressKey::of(IpAddr::from([127, 0, 0, last]))
}

/// Creates a read that reports when it begins, and ends when the test sends to the returned sender.
fn held(begun: &Sender<&'static str>, name: &'static str) -> (impl FnMut() -> &'static str + use<>, Sender<()>) {
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
    // This read completes although the other address requested eleven reads earlier, and one of them still runs.
    assert_eq!(readers.run(&other, 1, || "other").await, Ok("other"));
    assert_eq!(readers.figures(ReadKind::Long).queued, 10);
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
    assert_eq!(readers.figures(ReadKind::Long).queued, 1, "no bytes are free");
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
    assert_eq!(readers.figures(ReadKind::Long).queued, 1);
    drop(dropped);
    assert_eq!(readers.figures(ReadKind::Long).queued, 0);
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

/// Simulates the first attempt of a read that needs the disk.
fn cold() -> bool {
    budget::read_file(|| None::<()>, || ()).is_ok()
}

#[tokio::test]
async fn many_reads_wait_for_the_disk_at_a_time_and_long_ones_go_on() {
    const READS: usize = 8;
    let admission = Admission::new(&Config::default());
    let (one, other) = (admission.account(address(1)), admission.account(address(2)));
    let readers = Readers::bounded(2, READS + 1, 1 << 20);
    let (begun, begins) = channel();
    let mut releases = Vec::new();
    let mut waiting = Vec::new();
    for _ in 0..READS {
        let (mut read, release) = held(&begun, "cold");
        waiting.push(readers.run_again(BudgetSpent::Disk, &one, 0, move || (cold(), read())));
        releases.push(release);
    }
    // All reads have begun, on more threads than there are for long reads.
    (0..READS).for_each(|_| assert_eq!(begins.recv().unwrap(), "cold"));
    let last = readers.run_again(BudgetSpent::Disk, &one, 0, cold);
    assert_eq!(readers.figures(ReadKind::Cold).queued, 1, "one thread is left for another address");
    assert_eq!(readers.run_again(BudgetSpent::Disk, &other, 0, cold).await, Ok(true));
    assert_eq!(readers.run_again(BudgetSpent::Steps, &one, 0, || "long").await, Ok("long"));
    drop(releases);
    for read in waiting {
        assert_eq!(read.await, Ok((true, "cold")));
    }
    assert_eq!(last.await, Ok(true));
    let [long, cold] = ReadKind::ALL.map(|kind| readers.figures(kind));
    assert_eq!((long.done, cold.done, cold.queued), (1, READS as u64 + 2, 0));
    assert!(cold.micros > 0);
    readers.stop();
}

#[tokio::test]
async fn a_cold_read_that_takes_long_continues_where_long_reads_are_made() {
    let admission = Admission::new(&Config::default());
    let account = admission.account(address(1));
    let readers = Readers::new(2);
    let mut calls = 0;
    let read = move || {
        calls += 1;
        let name = thread::current().name().map(str::to_owned);
        let is_cut = budget::charge(2 * SHORT_READ).is_break();
        (calls, is_cut, name)
    };
    let (calls, is_cut, name) = readers.run_again(BudgetSpent::Disk, &account, 1, read).await.unwrap();
    assert_eq!((calls, is_cut, name.as_deref()), (2, false, Some("thalweg-read")));
    let panicked = readers.run_again(BudgetSpent::Disk, &account, 1, || -> u8 { panic!("a read panics") });
    assert_eq!(panicked.await, Err(ReaderError::Panicked));
    readers.stop();
}

#[tokio::test]
async fn stopped_readers_answer_cold_reads_with_an_error_and_finish_those_that_wait_for_the_disk() {
    let admission = Admission::new(&Config::default());
    let account = admission.account(address(1));
    let readers = Arc::new(Readers::new(1));
    let (begun, begins) = channel();
    let (mut read, release) = held(&begun, "cold");
    let mut is_long = false;
    let running = readers.run_again(BudgetSpent::Disk, &account, 0, move || {
        let name = if is_long { "long" } else { read() };
        is_long = true;
        let _ = budget::charge(2 * SHORT_READ);
        name
    });
    assert_eq!(begins.recv().unwrap(), "cold");
    let queued = readers.run_again(BudgetSpent::Disk, &account, 0, cold);
    let dropped = readers.run_again(BudgetSpent::Disk, &account, 0, || unreachable!("its future is dropped"));
    assert_eq!(readers.figures(ReadKind::Cold).queued, 2);
    drop(dropped);
    assert_eq!(readers.figures(ReadKind::Cold).queued, 1);
    let stopping = thread::spawn({
        let readers = Arc::clone(&readers);
        move || readers.stop()
    });
    assert_eq!(queued.await, Err(ReaderError::Stopping));
    drop(release);
    assert_eq!(running.await, Err(ReaderError::Stopping), "it would continue as a long read");
    stopping.join().unwrap();
    assert_eq!(readers.run_again(BudgetSpent::Disk, &account, 0, cold).await, Err(ReaderError::Stopping));
}
