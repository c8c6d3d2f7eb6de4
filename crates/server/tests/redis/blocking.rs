//! Reads that wait, and clients that disconnect. A client that disconnects takes no entry with it, and leaves no
//! waiting reader behind. Also bounds, timeouts, and the order of wakes.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use thalweg_server::config::Span;

use crate::support::{
    Node, PATIENCE,
    resp::{Resp, encode, node, node_with},
};

const READ: &str = "XREADGROUP GROUP g c COUNT 1 BLOCK 0 STREAMS s >";

/// Starts a client that waits, and returns once the server reports `count` blocked clients.
async fn waiting(node: &Node, watcher: &mut Resp, command: &str, count: usize) -> Resp {
    let mut client = Resp::connect(node).await;
    client.send(&encode(command)).await;
    blocked(watcher, count).await;
    client
}

async fn blocked(watcher: &mut Resp, count: usize) {
    watcher.until("INFO clients", &format!("blocked_clients:{count} ")).await;
}

/// Returns the number of other connections that `CLIENT LIST` shows as waiting.
async fn listed_as_blocked(watcher: &mut Resp) -> usize {
    watcher.call("CLIENT LIST").await.matches(" flags=b ").count()
}

/// Returns the ids of the entries in a reply.
fn ids(reply: &str) -> Vec<String> {
    let is_id = |word: &&str| {
        word.split_once('-').is_some_and(|(ms, seq)| ms.parse::<u64>().is_ok() && seq.parse::<u64>().is_ok())
    };
    reply.split(' ').filter(is_id).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_gone_before_an_entry_comes_does_not_get_it() {
    let node = node().await;
    let mut watcher = Resp::connect(&node).await;
    assert_eq!(watcher.call("XGROUP CREATE s g $ MKSTREAM").await, "+OK");
    // Each way in which a client disconnects.
    for way in 0..4 {
        let mut client = waiting(&node, &mut watcher, READ, 1).await;
        watcher.until("CLIENT LIST", " flags=b ").await;
        match way {
            0 => drop(client),
            1 => client.reset(),
            2 => {
                // The client sends no more, and would still read a reply, but gets none.
                tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
                assert_eq!(client.rest().await, "");
            }
            _ => {
                let list = watcher.call("CLIENT LIST").await;
                let line = list.lines().find(|line| line.contains(" flags=b ")).unwrap();
                let id = line.split_once("id=").unwrap().1.split(' ').next().unwrap().to_owned();
                assert_eq!(watcher.call(&format!("CLIENT KILL ID {id}")).await, ":1");
                assert_eq!(client.rest().await, "");
            }
        }
        blocked(&mut watcher, 0).await;
        assert_eq!(listed_as_blocked(&mut watcher).await, 0);
        let id = watcher.call(&format!("XADD s {}-1 f v", way + 1)).await;
        assert!(watcher.call("XPENDING s g").await.starts_with("*4 :0 "), "way {way}: it went to nobody");
        let reply = watcher.call(READ).await;
        assert_eq!(ids(&reply), [id.split(' ').nth(1).unwrap()], "way {way}: who comes gets it");
        assert_eq!(watcher.call(&format!("XACK s g {}-1", way + 1)).await, ":1");
    }
    node.stop().await;
}

/// A read that arrives together with the end of its client's input does not wait. It is answered like a read whose time
/// is up if the session sees the end first, and dropped if the read had begun to wait by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_does_not_begin_to_wait_after_the_client_has_ended_its_input() {
    let node = node().await;
    let mut watcher = Resp::connect(&node).await;
    assert_eq!(watcher.call("XGROUP CREATE s g $ MKSTREAM").await, "+OK");
    for read in [READ, "XREAD BLOCK 0 STREAMS s $"] {
        for _ in 0..20 {
            let mut client = Resp::connect(&node).await;
            client.send(&encode(read)).await;
            tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
            let rest = client.rest().await;
            assert!(["", "*-1"].contains(&rest.as_str()), "{read}: {rest}");
        }
        blocked(&mut watcher, 0).await;
    }
    watcher.call("XADD s 1-1 f v").await;
    assert!(watcher.call("XPENDING s g").await.starts_with("*4 :0 "), "it went to nobody");
    node.stop().await;
}

/// Clients wait and disconnect while others write. Each entry is delivered once. An entry delivered to a client that
/// has disconnected is pending for it, so that it can be claimed; the others stay for the next reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_delivered_once_beside_clients_that_vanish() {
    const ENTRIES: usize = 150;
    let node = node().await;
    let mut watcher = Resp::connect(&node).await;
    assert_eq!(watcher.call("XGROUP CREATE s g $ MKSTREAM").await, "+OK");
    let mut readers = Vec::new();
    for reader in 0..6_u64 {
        let address = node.resp.unwrap();
        readers.push(tokio::spawn(async move {
            let (mut got, mut at) = (Vec::new(), 0);
            loop {
                let mut client = Resp::to(address).await;
                loop {
                    at += 1;
                    let command = format!("XREADGROUP GROUP g {reader} COUNT 1 BLOCK 0 STREAMS s >");
                    client.send(&encode(&command)).await;
                    if (at + reader) % 5 == 0 {
                        // The client disconnects, perhaps with an entry on its way.
                        if at % 2 == 0 {
                            client.reset();
                        }
                        break;
                    }
                    let reply = client.reply().await;
                    if reply.contains("$3 end") {
                        return got;
                    }
                    let ids = ids(&reply);
                    assert_eq!(ids.len(), 1, "{reply}");
                    assert_eq!(client.call(&format!("XACK s g {}", ids[0])).await, ":1");
                    got.extend(ids);
                }
            }
        }));
    }
    let mut all = BTreeSet::new();
    for number in 0..ENTRIES {
        let id = watcher.call(&format!("XADD s * n {number}")).await;
        all.insert(id.split(' ').nth(1).unwrap().to_owned());
    }
    // Every entry is delivered, because there is always another reader.
    watcher.until("XINFO GROUPS s", "$3 lag :0").await;
    // Waiting readers now get an entry that ends them. If one disconnects with it, the next reader gets one.
    let mut got = Vec::new();
    for reader in readers {
        while !reader.is_finished() {
            watcher.call("XADD s * what end").await;
        }
        got.extend(reader.await.unwrap());
    }
    blocked(&mut watcher, 0).await;
    assert_eq!(listed_as_blocked(&mut watcher).await, 0);
    // Entries without an ack are pending once, and can be claimed.
    let mut claimed = Vec::new();
    let mut cursor = "0-0".to_owned();
    loop {
        let reply = watcher.call(&format!("XAUTOCLAIM s g survivor 0 {cursor} COUNT 50 JUSTID")).await;
        let mut ids = ids(&reply);
        cursor = ids.remove(0);
        claimed.extend(ids.into_iter().filter(|id| all.contains(id)));
        if cursor == "0-0" {
            break;
        }
    }
    let lost = claimed.len();
    got.extend(claimed);
    let distinct: BTreeSet<_> = got.iter().cloned().collect();
    assert_eq!((got.len(), distinct.len()), (ENTRIES, ENTRIES), "each once");
    assert_eq!(distinct, all);
    eprintln!("{lost} of {ENTRIES} entries went to clients that vanished, and were claimed");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_of_a_group_wakes_all_and_goes_to_one_and_a_stream_s_to_all() {
    let node = node().await;
    let mut watcher = Resp::connect(&node).await;
    assert_eq!(watcher.call("XGROUP CREATE s g $ MKSTREAM").await, "+OK");
    let mut members = Vec::new();
    for member in 0..5 {
        let command = format!("XREADGROUP GROUP g {member} COUNT 1 BLOCK 0 STREAMS s >");
        members.push(waiting(&node, &mut watcher, &command, member + 1).await);
    }
    let mut readers = Vec::new();
    for reader in 0..5 {
        readers.push(waiting(&node, &mut watcher, "XREAD BLOCK 0 STREAMS other s $ $", 6 + reader).await);
    }
    // Entries of one commit: each member gets one.
    let adds = ["XADD s 1-1 f v", "XADD s 1-2 f v", "XADD s 1-3 f v", "XADD s 1-4 f v", "XADD s 1-5 f v"];
    assert_eq!(watcher.pipeline(&adds).await.len(), 5);
    let mut given = BTreeSet::new();
    for member in &mut members {
        let reply = member.reply().await;
        let ids = ids(&reply);
        assert_eq!(ids.len(), 1, "{reply}");
        given.extend(ids);
    }
    assert_eq!(given.len(), 5, "{given:?}");
    for reader in &mut readers {
        assert_eq!(ids(&reader.reply().await), ["1-1", "1-2", "1-3", "1-4", "1-5"]);
    }
    blocked(&mut watcher, 0).await;
    // All clients can execute other commands now.
    for client in members.iter_mut().chain(&mut readers) {
        assert_eq!(client.call("PING").await, "+PONG");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_when_its_time_is_up_whatever_wakes_it_meanwhile() {
    let node = node().await;
    let (mut watcher, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(watcher.call("XGROUP CREATE s g $ MKSTREAM").await, "+OK");
    for command in ["XREAD BLOCK 150 STREAMS s $", "XREADGROUP GROUP g c BLOCK 150 STREAMS s >"] {
        let begun = Instant::now();
        assert_eq!(client.call(command).await, "*-1");
        assert!(begun.elapsed() >= Duration::from_millis(150), "{:?}", begun.elapsed());
    }
    // The key changes all the time, but no change is for this reader.
    let begun = Instant::now();
    client.send(&encode("XREAD BLOCK 300 STREAMS s 1000-0")).await;
    let mut writer = Resp::connect(&node).await;
    let writing = tokio::spawn(async move {
        let mut changes = 0;
        while begun.elapsed() < Duration::from_millis(300) {
            writer.call("XADD s MAXLEN 10 500-* f v").await;
            changes += 1;
        }
        changes
    });
    let (reply, changes) = (client.reply().await, writing.await.unwrap());
    assert_eq!(reply, "*-1");
    assert!(begun.elapsed() >= Duration::from_millis(300) && changes > 0, "{:?}, {changes}", begun.elapsed());
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    blocked(&mut watcher, 0).await;
    for (command, error) in [
        ("XREAD BLOCK -1 STREAMS s $", "-ERR timeout is negative"),
        ("XREAD BLOCK x STREAMS s $", "-ERR timeout is not an integer or out of range"),
    ] {
        assert_eq!(client.call(command).await, error);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_pipelined_behind_a_wait_is_done_after_it_in_order() {
    let node = node().await;
    let mut watcher = Resp::connect(&node).await;
    let mut client = Resp::connect(&node).await;
    let commands = [
        "SET a 1",
        "XREAD BLOCK 0 STREAMS s $",
        "INCR a",
        "MULTI",
        "INCR a",
        "EXEC",
        "XREAD BLOCK 1 STREAMS s $",
        "GET a",
    ];
    client.send(&commands.iter().flat_map(|command| encode(command)).collect::<Vec<_>>()).await;
    blocked(&mut watcher, 1).await;
    assert_eq!(watcher.call("GET a").await, "$1 1", "what stands before it is done, and nothing behind it");
    assert_eq!(client.reply().await, "+OK");
    // A client that sends a lot while it waits is read only up to a bound, and is not cut.
    let mut more = Vec::new();
    (0..20_000).for_each(|_| more.extend(encode("INCR b")));
    let sending = async {
        tokio::io::AsyncWriteExt::write_all(&mut client.stream, &more).await.unwrap();
    };
    let waking = async {
        assert_eq!(watcher.call("XADD s 1-1 f v").await, "$3 1-1");
    };
    tokio::join!(sending, waking);
    assert_eq!(client.reply().await, "*1 *2 $1 s *1 *2 $3 1-1 *2 $1 f $1 v");
    for reply in [":2", "+OK", "+QUEUED", "*1 :3", "*-1", "$1 3"] {
        assert_eq!(client.reply().await, reply);
    }
    for number in 1..=20_000 {
        assert_eq!(client.reply().await, format!(":{number}"));
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_have_a_bound_and_who_vanishes_makes_room() {
    let node = node_with(|config| config.max_tails = 3).await;
    let mut watcher = Resp::connect(&node).await;
    let command = "XREAD BLOCK 0 STREAMS s $";
    let mut clients = Vec::new();
    for count in 1..=3 {
        clients.push(waiting(&node, &mut watcher, command, count).await);
    }
    assert_eq!(watcher.call(command).await, "-BUSY too many reads that wait: retry later");
    assert_eq!(watcher.call("XREAD STREAMS s $").await, "*-1", "one that does not wait needs no place");
    clients.pop().unwrap().reset();
    blocked(&mut watcher, 2).await;
    clients.push(waiting(&node, &mut watcher, command, 3).await);
    drop(clients);
    blocked(&mut watcher, 0).await;
    for round in 0..3 {
        clients = Vec::new();
        for count in 1..=3 {
            clients.push(waiting(&node, &mut watcher, command, count).await);
        }
        assert_eq!(watcher.call(&format!("XADD s {}-1 f v", round + 1)).await, format!("$3 {}-1", round + 1));
        for client in &mut clients {
            assert!(client.reply().await.starts_with("*1 "));
        }
        blocked(&mut watcher, 0).await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_lets_nobody_wait() {
    let node = node_with(|config| config.drain_timeout = Span(Duration::from_secs(8))).await;
    let mut watcher = Resp::connect(&node).await;
    let mut client = waiting(&node, &mut watcher, "XREAD BLOCK 0 STREAMS s $", 1).await;
    let begun = Instant::now();
    let (rest, ()) = tokio::join!(client.rest(), node.stop());
    assert_eq!(rest, "");
    assert!(begun.elapsed() < Duration::from_secs(8), "nobody was waited for: {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_for_a_bounded_number_of_streams() {
    let node = node().await;
    let (mut reader, mut writer) = (Resp::connect(&node).await, Resp::connect(&node).await);
    let read =
        |streams: usize, how: &str| format!("XREAD {how}STREAMS{}{}", " s".repeat(streams), " $".repeat(streams));
    let refused = "-ERR a blocking read waits for at most 256 streams";
    assert_eq!(reader.call(&read(257, "BLOCK 0 ")).await, refused);
    assert_eq!(reader.call(&read(257, "")).await, "*-1", "a read that does not wait");
    let keys = format!("block{}", " s".repeat(256));
    assert_eq!(reader.call(&format!("XREAD STREAMS {keys}{}", " $".repeat(257))).await, "*-1", "block is a key");
    reader.send(&encode(&read(256, "BLOCK 0 "))).await;
    blocked(&mut writer, 1).await;
    writer.call("XADD s 1-1 f v").await;
    assert!(reader.reply().await.starts_with("*256 "));
    node.stop().await;
}
