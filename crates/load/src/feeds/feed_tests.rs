//! Tests of the judgement of replies about streams, groups and subjects, without sockets.

use super::*;
use crate::feeds::http::HttpFeed;
use crate::random::generator;

const SIZES: FeedSizes = FeedSizes {
    record_bytes: 40,
    batch: 2,
    read_records: 4,
    read_from: ReadFrom::Start,
    fetch_records: 4,
    message_bytes: 40,
    messages: 2,
};

fn feed(read_from: ReadFrom) -> Feed {
    let protocol = HttpFeed::new(([127, 0, 0, 1], 1).into(), "h:1", "f".to_owned(), None);
    Feed::new(Box::new(protocol), FeedSizes { read_from, ..SIZES }, 1)
}

/// Returns a feed with this number of appends of two records. They were acknowledged with consecutive offsets.
fn filled(batches: u64, read_from: ReadFrom) -> Feed {
    let feed = feed(read_from);
    for batch in 0..batches {
        let step = feed.append();
        feed.asked(step, 0);
        assert_eq!(feed.judge(step, &appended(2 * batch, 2)), Ok(FeedReply::Done(2)));
    }
    feed
}

fn read(from: u64) -> FeedStep {
    FeedStep::Read { from, floor: 6, reader: Reader::Once }
}

fn appended(first: u64, count: u64) -> Vec<u8> {
    format!("{{\"count\":{count},\"first\":{first},\"last\":{}}}", first + count - 1).into_bytes()
}

fn text(texts: &NumberedTexts, number: u64) -> Vec<u8> {
    let mut text = Vec::new();
    texts.put(number, &mut text);
    text
}

/// Returns the reply to a read. Each record is given as its offset and its number.
fn page(feed: &Feed, records: &[(u64, u64)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (offset, number) in records {
        let payload = text(&feed.texts, *number);
        body.extend((17 + payload.len() as u32).to_le_bytes());
        body.extend(offset.to_le_bytes());
        body.extend([0; 9]);
        body.extend(payload);
    }
    body.extend([0; 20]);
    body
}

/// Returns the reply to a fetch. Each record is given as its offset, its number and its count of deliveries.
fn fetched(feed: &Feed, records: &[(u64, u64, u64)]) -> Vec<u8> {
    let message = |(offset, number, deliveries): &(u64, u64, u64)| {
        let payload = String::from_utf8(text(&feed.texts, *number)).unwrap().replace('"', "\\\"");
        format!("{{\"offset\":{offset},\"deliveries\":{deliveries},\"payload\":\"{payload}\"}}")
    };
    let messages: Vec<String> = records.iter().map(message).collect();
    format!("{{\"attempt\":5,\"messages\":[{}]}}", messages.join(",")).into_bytes()
}

#[test]
fn a_read_returns_each_acknowledged_record_once_in_order() {
    let feed = filled(3, ReadFrom::Start);
    let judged = |records: &[(u64, u64)]| feed.judge(read(0), &page(&feed, records));
    let faults = |records: &[(u64, u64)]| judged(records).unwrap_err().faults;
    assert_eq!(judged(&[(0, 0), (1, 1), (2, 2), (3, 3)]), Ok(FeedReply::Done(4)));
    assert_eq!(faults(&[(0, 0), (1, 1), (2, 2)]), FeedFaults { lost: 1, ..FeedFaults::default() }, "the end");
    assert_eq!(faults(&[(0, 0), (2, 2), (3, 3), (4, 4)]), FeedFaults { lost: 1, ..FeedFaults::default() }, "a gap");
    assert_eq!(faults(&[(0, 2), (1, 3), (2, 0), (3, 1)]).reordered, 4, "two appends changed places");
    assert_eq!(faults(&[(0, 1), (1, 0), (2, 2), (3, 3)]).reordered, 2, "within an append");
    assert_eq!(faults(&[(0, 0), (1, 1), (1, 1), (2, 2)]).reordered, 1, "one came twice in the reply");
    assert_eq!(faults(&[(0, 77), (1, 1), (2, 2), (3, 3)]).wrong, 1, "never appended");
    let mut body = page(&feed, &[(0, 0), (1, 1), (2, 2), (3, 3)]);
    body[40] ^= 1;
    assert_eq!(feed.judge(read(0), &body).unwrap_err().faults.wrong, 1);
    assert_eq!(feed.judge(read(0), b"hello").unwrap_err().faults.wrong, 1);
    let beyond = read(6);
    assert_eq!(feed.judge(beyond, &page(&feed, &[])), Ok(FeedReply::Done(0)));
    let twice = feed.judge(beyond, &page(&feed, &[(6, 4), (7, 5)])).unwrap_err();
    assert_eq!(twice.faults.duplicated, 2, "{}", twice.text);
}

#[test]
fn the_whole_stream_is_read_page_by_page() {
    let feed = filled(3, ReadFrom::Start);
    assert_eq!(feed.pages(), 3, "two and one that should be empty");
    assert_eq!(feed.page(1), FeedStep::Read { from: 4, floor: 6, reader: Reader::Whole });
    feed.judge(feed.page(0), &page(&feed, &[(0, 0), (1, 1), (2, 2), (3, 3)])).unwrap();
    assert_eq!(feed.appends.lost_records(), 2);
    feed.judge(feed.page(1), &page(&feed, &[(4, 4)])).unwrap();
    assert_eq!(feed.appends.lost_records(), 1, "a short page is a loss at the end");
    let twice = feed.judge(feed.page(2), &page(&feed, &[(8, 4)])).unwrap_err();
    assert_eq!(twice.faults, FeedFaults { duplicated: 1, ..FeedFaults::default() });
}

#[test]
fn readers_continue_where_they_stopped() {
    let mut rng = generator(1);
    let feed = filled(3, ReadFrom::Start);
    let first = feed.read(&mut rng);
    assert_eq!(first, FeedStep::Read { from: 0, floor: 6, reader: Reader::Continues });
    assert_eq!(feed.read(&mut rng), first, "another reader");
    feed.judge(first, &page(&feed, &[(0, 0), (1, 1), (2, 2), (3, 3)])).unwrap();
    assert_eq!(feed.read(&mut rng), FeedStep::Read { from: 4, floor: 6, reader: Reader::Continues });
    let tail = filled(3, ReadFrom::Tail);
    assert_eq!(tail.read(&mut rng), FeedStep::Read { from: 6, floor: 6, reader: Reader::Continues });
    let random = filled(3, ReadFrom::Random);
    assert!((0..100).all(|_| matches!(random.read(&mut rng), FeedStep::Read { from: 0..6, reader: Reader::Once, .. })));
}

#[test]
fn an_append_is_acknowledged_as_a_whole_and_in_order() {
    let feed = filled(2, ReadFrom::Start);
    let faults = |body: &[u8]| feed.judge(feed.append(), body).unwrap_err().faults;
    assert_eq!(faults(&appended(4, 1)).wrong, 1, "one record of two");
    assert_eq!(faults(&appended(0, 2)).reordered, 2, "another append lies there");
    assert_eq!(faults(b"{\"count\":2,\"first\":9,\"last\":1}").wrong, 1);
    let mut out = Vec::new();
    feed.encode(FeedStep::Append(feed.appends.begin()), &mut out);
    let body = String::from_utf8(out).unwrap().split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(body.lines().map(str::len).collect::<Vec<_>>(), [40, 40], "{body}");
}

#[test]
fn a_group_delivers_once_and_redeliveries_are_counted_apart() {
    let feed = filled(3, ReadFrom::Start);
    let judged = |records: &[(u64, u64, u64)]| feed.judge(FeedStep::Fetch, &fetched(&feed, records));
    assert_eq!(judged(&[(0, 0, 1), (1, 1, 1)]), Ok(FeedReply::Fetched { attempt: 5, records: 2 }));
    assert_eq!(judged(&[(1, 1, 2), (2, 2, 1)]), Ok(FeedReply::Fetched { attempt: 5, records: 2 }));
    assert_eq!((feed.group.delivered(), feed.group.redelivered()), (3, 1));
    assert_eq!(judged(&[(0, 0, 1)]).unwrap_err().faults.duplicated, 1);
    assert_eq!(judged(&[(4, 4, 1), (3, 3, 1)]).unwrap_err().faults.reordered, 1);
    assert_eq!(judged(&[(5, 4, 1)]).unwrap_err().faults.reordered, 1, "the record of another offset");
    assert_eq!(feed.judge(FeedStep::Fetch, b"{\"messages\":[]}"), Ok(FeedReply::Done(0)));
    let ack = FeedStep::Ack { attempt: 5, records: 2 };
    assert_eq!(feed.judge(ack, b"{\"settled\":1,\"lapsed\":[]}"), Ok(FeedReply::Done(1)));
    assert_eq!(feed.group.lapsed(), 1);
}

#[test]
fn times_count_from_the_moment_at_which_a_message_was_due() {
    let feed = feed(ReadFrom::Start);
    feed.count_times_after(0);
    let early = feed.publish();
    feed.asked(early, 0);
    feed.begun();
    let late = feed.publish();
    std::thread::sleep(std::time::Duration::from_millis(2));
    feed.asked(late, 1_000_000);
    for number in [0, 2, 3] {
        assert_eq!(feed.message(&text(&feed.messages, number)), Some(number));
    }
    assert_eq!(feed.message(&text(&feed.messages, 4)), None, "not published");
    assert_eq!(feed.message(&text(&feed.texts, 2)), None, "a record's text");
    assert_eq!(feed.judge(late, b"{\"messages\":2,\"delivered\":1,\"missed\":1}"), Ok(FeedReply::Done(2)));
    assert!(feed.judge(late, b"{\"messages\":1,\"delivered\":1,\"missed\":0}").is_err());
    assert_eq!(feed.published(), (3, 2));
    let [_, _, times] = feed.take_times();
    assert_eq!(times.count(), 1, "one publish was due in the counted time");
    assert!(times.max().as_micros() >= 1000, "{:?}", times.max());
}

#[test]
fn the_age_of_a_record_that_was_read_at_random_is_no_end_to_end_time() {
    for (read_from, counted) in [(ReadFrom::Start, 1), (ReadFrom::Tail, 1), (ReadFrom::Random, 0)] {
        let feed = feed(read_from);
        feed.count_times_after(0);
        feed.begun();
        let append = feed.append();
        feed.asked(append, 0);
        assert_eq!(feed.judge(append, &appended(0, 2)), Ok(FeedReply::Done(2)));
        let read = FeedStep::Read { from: 0, floor: 2, reader: Reader::Once };
        assert_eq!(feed.judge(read, &page(&feed, &[(0, 0), (1, 1)])), Ok(FeedReply::Done(2)));
        let [reads, ..] = feed.take_times();
        assert_eq!(reads.count(), counted, "{read_from:?}");
    }
}

#[test]
fn records_with_ids_are_found_once_in_order_and_none_is_missing() {
    let address = crate::Address::Tcp(([127, 0, 0, 1], 1).into());
    let greeting = crate::resp::client::Greeting { address, password: None, database: 0, is_resp3: false };
    let protocol = crate::feeds::RespFeed::new(greeting, "f".to_owned());
    let feed = Feed::new(Box::new(protocol), FeedSizes { batch: 1, ..SIZES }, 1);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let id = |number: u64| {
        let id = format!("{}-{number}", now + u128::from(number) / 3);
        format!("${}\r\n{id}\r\n", id.len())
    };
    let entries = |records: &[(u64, u64)]| {
        let entry = |(at, number): &(u64, u64)| {
            let text = String::from_utf8(text(&feed.texts, *number)).unwrap();
            format!("*2\r\n{}*2\r\n$7\r\npayload\r\n${}\r\n{text}\r\n", id(*at), text.len())
        };
        let all: String = records.iter().map(entry).collect();
        format!("*1\r\n*2\r\n$1\r\nf\r\n*{}\r\n{all}", records.len()).into_bytes()
    };
    for number in 0..6 {
        assert_eq!(feed.judge(feed.append(), id(2 * number).as_bytes()), Ok(FeedReply::Done(1)));
    }
    let twice = feed.judge(feed.append(), id(10).as_bytes()).unwrap_err();
    assert_eq!(twice.faults.reordered, 1, "the id of another append: {}", twice.text);
    let read = |reader| FeedStep::Read { from: 0, floor: feed.appends.end(), reader };
    let judged = |records: &[(u64, u64)]| feed.judge(read(Reader::Once), &entries(records));
    let faults = |records: &[(u64, u64)]| judged(records).unwrap_err().faults;
    assert_eq!(judged(&[(0, 0), (2, 1), (4, 2), (6, 3)]), Ok(FeedReply::Done(4)), "a full reply");
    assert_eq!(faults(&[(0, 0), (4, 2), (6, 3), (8, 4)]), FeedFaults { lost: 1, ..FeedFaults::default() });
    assert_eq!(faults(&[(0, 0), (2, 1)]).lost, 5, "the end, with the append that got another one's id");
    assert_eq!(faults(&[(2, 1), (0, 0), (4, 2), (6, 3)]).reordered, 1);
    assert_eq!(faults(&[(0, 1), (2, 0), (4, 2), (6, 3)]).duplicated, 2, "two records at other ids");
    assert_eq!(faults(&[(0, 77), (2, 1), (4, 2), (6, 3)]).wrong, 1);
    let fetch = |records: &[(u64, u64)]| feed.judge(FeedStep::Fetch, &entries(records));
    assert!(matches!(fetch(&[(0, 0), (2, 1)]), Ok(FeedReply::Fetched { records: 2, .. })));
    assert_eq!(fetch(&[(2, 1)]).unwrap_err().faults.duplicated, 1);
    assert_eq!(fetch(&[(6, 3), (4, 2)]).unwrap_err().faults.reordered, 1);
    assert_eq!((feed.group.delivered(), feed.undelivered()), (4, 3));
}
