//! Commands other than reads that could keep a serving thread busy: each is bounded, executed in slices, or executed by
//! another thread.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use crate::{
    limits::roomy,
    support::{
        Node,
        resp::{Resp, encode, fill, node_with_one_thread as node},
    },
};

/// Sends `request` for each client, which has as many replies as `replies`. Returns the number of answers that another
/// client of the same thread gets until all of them have arrived, and the last reply of each client.
async fn answers_meanwhile(
    node: &Node,
    clients: Vec<Resp>,
    request: &[u8],
    replies: usize,
) -> (usize, Vec<(Resp, String)>) {
    let mut good = Resp::connect(node).await;
    assert_eq!(good.call("PING").await, "+PONG");
    let (left, mut greedy) = (Arc::new(AtomicUsize::new(clients.len())), Vec::new());
    for mut client in clients {
        client.send(request).await;
        let left = Arc::clone(&left);
        greedy.push(tokio::spawn(async move {
            let mut last = String::new();
            for _ in 0..replies {
                last = client.reply().await;
            }
            left.fetch_sub(1, SeqCst);
            (client, last)
        }));
    }
    let mut answers = 0;
    while left.load(SeqCst) > 0 {
        assert_eq!(good.call("PING").await, "+PONG");
        answers += 1;
    }
    let mut done = Vec::new();
    for client in greedy {
        done.push(client.await.unwrap());
    }
    (answers, done)
}

async fn clients(node: &Node, count: usize, prepare: &[String]) -> Vec<Resp> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = Resp::connect_from(node, 2).await;
        for command in prepare {
            let reply = client.call(command).await;
            assert!(!reply.starts_with('-'), "{reply}");
        }
        clients.push(client);
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_watched_keys_of_another_database_are_compared_before_exec() {
    const WATCHED: usize = 16_000;
    let node = node().await;
    fill(&node, "1", WATCHED).await;
    let mut prepare = vec!["SELECT 1".to_owned()];
    for from in (0..WATCHED).step_by(4000) {
        let keys: String = (from..from + 4000).map(|key| format!(" key:{key:06}")).collect();
        prepare.push(format!("WATCH{keys}"));
    }
    prepare.push("SELECT 0".to_owned());
    let reading = [&prepare[..], &["MULTI".to_owned(), "PING".to_owned()]].concat();
    let greedy = clients(&node, 8, &reading).await;
    let (answers, done) = answers_meanwhile(&node, greedy, &encode("EXEC"), 1).await;
    assert!(done.iter().all(|(_, reply)| reply == "*1 +PONG"), "{}", done[0].1);
    prepare.extend(["MULTI", "SET mine 1", "GET mine"].map(str::to_owned));
    let [mut writing] = <[Resp; 1]>::try_from(clients(&node, 1, &prepare).await).ok().unwrap();
    assert_eq!(writing.pipeline(&["EXEC", "GET mine"]).await, ["*2 +OK $1 1", "$1 1"]);
    eprintln!("{answers} answers beside 8 transactions with {WATCHED} watched keys");
    // A key that has changed is found, and the commands of the client keep their order.
    let [mut client] = <[Resp; 1]>::try_from(clients(&node, 1, &prepare).await).ok().unwrap();
    let mut other = Resp::connect(&node).await;
    assert_eq!(other.pipeline(&["SELECT 1", "SET key:015999 w"]).await, ["+OK", "+OK"]);
    assert_eq!(client.pipeline(&["EXEC", "GET mine", "PING"]).await, ["*-1", "$1 1", "+PONG"]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_writes_of_a_cache_are_made_in_parts_beside_other_clients() {
    const KEYS: usize = 60_000;
    let node = node().await;
    let select = ["SELECT 1".to_owned()];
    let keys: String = (0..KEYS).map(|key| format!(" key:{key:06}")).collect();
    let pairs: String = (0..KEYS).map(|key| format!(" key:{key:06} v")).collect();
    for (command, expected) in [(format!("MSET{pairs}"), "+OK"), (format!("DEL{keys}"), ":")] {
        let greedy = clients(&node, 6, &select).await;
        let (answers, done) = answers_meanwhile(&node, greedy, &encode(&command), 1).await;
        assert!(done.iter().all(|(_, reply)| reply.starts_with(expected)), "{}", done[0].1);
        eprintln!("{answers} answers beside 6 commands {}", &command[..4]);
        // Only one of the deletes finds keys, so they do not take long.
        assert!(answers >= 60 || command.starts_with("DEL"), "{answers} answers");
    }
    let mut client = Resp::connect(&node).await;
    // The deletes of all clients together have removed each key once, and what follows has its place.
    let script = ["SELECT 1", &format!("MSET{pairs}"), "DBSIZE", &format!("DEL{keys} none"), "DBSIZE", "FLUSHDB"];
    let replies = client.pipeline(&script).await;
    assert_eq!(replies, ["+OK", "+OK", &format!(":{KEYS}"), &format!(":{KEYS}"), ":0", "+OK"]);
    let refused = client.call(&format!("MSETNX{pairs}")).await;
    assert!(refused.starts_with("-ERR too expensive"), "{refused}");
    assert_eq!(client.call("DBSIZE").await, ":0");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_a_cache_has_a_bound_of_work() {
    let node = node().await;
    fill(&node, "1", 20_000).await;
    let mut client = Resp::connect(&node).await;
    let mut script = vec!["SELECT 1".to_owned(), "MULTI".to_owned(), "SET before 1".to_owned()];
    script.extend(std::iter::repeat_n("KEYS no*such".to_owned(), 60));
    script.extend(["SET after 1", "EXEC", "EXISTS before after"].map(str::to_owned));
    let script: Vec<&str> = script.iter().map(String::as_str).collect();
    let replies = client.pipeline(&script).await;
    let executed = &replies[replies.len() - 2];
    assert!(executed.starts_with("*62 +OK *0 ") && executed.contains("-ERR too expensive"), "{executed:.200}");
    assert_eq!(replies.last().unwrap(), ":1", "what exceeds the bound is not executed");
    // Transactions of ordinary commands are not affected.
    let mut many = vec!["MULTI"];
    many.extend(["INCR n"; 8000]);
    many.push("EXEC");
    let replies = client.pipeline(&many).await;
    assert!(replies.last().unwrap().ends_with(" :8000"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_channels_are_made_by_the_readers() {
    const CHANNELS: usize = 30_000;
    let node = node().await;
    let mut subscriber = Resp::connect(&node).await;
    assert!(subscriber.call("HELLO 3").await.starts_with('%'));
    for from in (0..CHANNELS).step_by(1000) {
        let names: String = (from..from + 1000).map(|name| format!(" channel:{name:06}")).collect();
        subscriber.send(&encode(&format!("SUBSCRIBE{names}"))).await;
        for _ in 0..1000 {
            assert!(subscriber.reply().await.starts_with(">3 $9 subscribe"));
        }
    }
    let names: String = (0..CHANNELS).map(|name| format!(" channel:{name:06}")).collect();
    for (command, expected) in [
        ("PUBSUB CHANNELS *no*such*channel*".to_owned(), "*0".to_owned()),
        ("PUBSUB CHANNELS channel:00001*".to_owned(), "*10 $14 channel:000010".to_owned()),
        (format!("PUBSUB NUMSUB{names}"), format!("*{} $14 channel:000000 :1", 2 * CHANNELS)),
    ] {
        let greedy = clients(&node, 6, &[]).await;
        // A long request is received once.
        let times = if command.len() > 1000 { 1 } else { 20 };
        let repeated = encode(&command).repeat(times);
        let (answers, done) = answers_meanwhile(&node, greedy, &repeated, times).await;
        assert!(done.iter().all(|(_, reply)| reply.starts_with(&expected)), "{:.100}", done[0].1);
        eprintln!("{answers} answers beside {} commands {:.20}", 6 * times, command);
        assert!(answers >= 12 * times, "{answers} answers");
    }
    // Inside of a transaction there is no other thread for them.
    let mut client = Resp::connect(&node).await;
    let replies =
        client.pipeline(&["MULTI", "PUBSUB CHANNELS *no*such*", "PUBSUB NUMSUB channel:000001", "EXEC"]).await;
    let executed = &replies[3];
    assert!(
        executed.starts_with("*2 -ERR too expensive") && executed.ends_with("*2 $14 channel:000001 :1"),
        "{executed}"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_patterns_of_subscribers_do_not_stop_publishers() {
    const PATTERNS: usize = 300;
    const MESSAGES: usize = 20;
    let node = node().await;
    let mut subscriber = Resp::connect_from(&node, 2).await;
    assert!(subscriber.call("HELLO 3").await.starts_with('%'));
    // About a hundred thousand comparisons with the name of the channel, and no match.
    let long = "a".repeat(500);
    for number in 0..PATTERNS {
        let pattern = format!("*{}b{number}", &long[..250]);
        assert!(subscriber.call(&format!("PSUBSCRIBE {pattern}")).await.starts_with(">3 "));
    }
    assert!(subscriber.call("PSUBSCRIBE aaaa*").await.starts_with(">3 $10 psubscribe $5 aaaa*"));
    // Each message is compared with all patterns, for its receivers and again for the subscriber.
    let mut publisher = Resp::connect_from(&node, 3).await;
    let channels: Vec<String> = (0..MESSAGES).map(|number| format!("{long}{number}")).collect();
    let published: Vec<u8> = channels.iter().flat_map(|channel| encode(&format!("PUBLISH {channel} m"))).collect();
    publisher.send(&published).await;
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    let receiving = tokio::spawn(async move {
        for channel in channels {
            let expected = format!(">4 $8 pmessage $5 aaaa* ${} {channel} $1 m", channel.len());
            assert_eq!(subscriber.reply().await, expected);
            count.fetch_add(1, SeqCst);
        }
    });
    let (mut good, mut answers) = (Resp::connect(&node).await, 0);
    while received.load(SeqCst) < MESSAGES {
        assert_eq!(good.call("PING").await, "+PONG");
        answers += 1;
    }
    receiving.await.unwrap();
    eprintln!("{answers} answers beside {MESSAGES} messages that are compared with {PATTERNS} patterns");
    assert!(answers >= 5 * MESSAGES, "{answers} answers");
    for _ in 0..MESSAGES {
        assert!(publisher.reply().await.starts_with(':'));
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_a_long_transaction_are_written_in_slices() {
    let node = node().await;
    let mut greedy = clients(&node, 2, &[]).await;
    for client in &mut greedy {
        client.send(&encode("CLIENT REPLY OFF")).await;
    }
    let mut request = encode("MULTI");
    request.extend(encode("COMMAND DOCS").repeat(1500));
    request.extend([encode("EXEC"), encode("CLIENT REPLY ON")].concat());
    let (answers, done) = answers_meanwhile(&node, greedy, &request, 1).await;
    assert!(done.iter().all(|(_, reply)| reply == "+OK"));
    eprintln!("{answers} answers beside 2 transactions of 1500 COMMAND DOCS");
    assert!(answers >= 20, "{answers} answers");
    // Replies that are written in slices are one reply, whatever the client has subscribed to.
    let mut client = Resp::connect(&node).await;
    assert!(client.call("HELLO 3").await.starts_with('%'));
    assert!(client.call("SUBSCRIBE c").await.starts_with(">3 "));
    let mut publisher = Resp::connect(&node).await;
    let mut script = vec!["MULTI", "SET a 1"];
    script.extend(["COMMAND COUNT"; 3000]);
    script.push("EXEC");
    client.send(&script.iter().flat_map(|command| encode(command)).collect::<Vec<_>>()).await;
    for _ in 0..200 {
        assert_eq!(publisher.call("PUBLISH c m").await, ":1");
    }
    let (mut messages, mut executed) = (0, String::new());
    while messages < 200 || executed.is_empty() {
        match client.reply().await {
            reply if reply.starts_with(">3 $7 message") => messages += 1,
            reply if reply.starts_with("*3001 +OK :") => executed = reply,
            reply => assert!(reply == "+OK" || reply == "+QUEUED", "{reply:.100}"),
        }
    }
    assert_eq!(executed.matches(" :").count(), 3000);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_of_subscriptions_are_made_and_ended_in_slices() {
    const NAMES: usize = 40_000;
    let node = node().await;
    let names: String = (0..NAMES).map(|name| format!(" c:{name}")).collect();
    let mut good = Resp::connect(&node).await;
    let last = format!("PUBSUB NUMSUB c:{}", NAMES - 1);
    let mut subscribers = clients(&node, 2, &["HELLO 3".to_owned()]).await;
    let ends = |name: usize, left: usize| format!("c:{name}\r\n:{left}\r\n");
    let subscribe = format!("SUBSCRIBE{names}");
    let script =
        [(subscribe.clone(), 2, ends(NAMES - 1, NAMES)), (format!("UNSUBSCRIBE c:x{names}"), 0, ends(NAMES - 1, 0))];
    for (request, subscribed, end) in script {
        // A client reads its confirmations, so that the server goes on.
        let mut reading = Vec::new();
        for mut client in subscribers {
            client.send(&encode(&request)).await;
            let end = end.clone();
            reading.push(tokio::spawn(async move {
                client.discard_until(&end).await;
                client
            }));
        }
        let mut answers = 0;
        while !good.call(&last).await.ends_with(&format!(" :{subscribed}")) {
            answers += 1;
        }
        eprintln!("{answers} answers beside 2 clients with {NAMES} channels: {request:.12}");
        assert!(answers >= 20, "{answers} answers");
        subscribers = Vec::new();
        for client in reading {
            subscribers.push(client.await.unwrap());
        }
    }
    // All subscriptions end together, and those of a client that disconnects.
    for mut client in subscribers {
        client.send(&encode(&subscribe)).await;
        client.discard_until(&ends(NAMES - 1, NAMES)).await;
        client.send(&encode("UNSUBSCRIBE")).await;
        client.discard_until(&ends(9999, 0)).await;
        assert_eq!(client.call("PING").await, "+PONG");
        client.send(&encode(&subscribe)).await;
        client.discard_until(&ends(NAMES - 1, NAMES)).await;
    }
    good.until("PUBSUB CHANNELS", "*0").await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_about_the_server_have_a_bound_of_arguments() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    for command in ["COMMAND INFO", "COMMAND DOCS", "CONFIG GET", "INFO", "CLIENT LIST ID", "COMMAND GETKEYS MGET"] {
        let reply = client.call(&format!("{command}{}", " 1".repeat(5000))).await;
        assert_eq!(reply, "-ERR at most 1024 arguments are accepted by this command", "{command}");
    }
    let pattern = "[a".repeat(5000);
    for command in ["CONFIG GET", "COMMAND LIST FILTERBY PATTERN", "PUBSUB CHANNELS"] {
        let reply = client.call(&format!("{command} {pattern}")).await;
        assert_eq!(reply, "-ERR patterns are at most 4096 bytes long", "{command}");
    }
    assert!(client.call("COMMAND INFO get set").await.starts_with("*2 *10 "));
    node.stop().await;
}

/// A transaction of a single delete is executed like the delete alone, even after `WATCH`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_one_delete_is_never_too_expensive() {
    const KEYS: usize = 12_000;
    let node = roomy(|_| ()).await;
    // Names so long that even a part of the delete takes too many steps.
    let name = |key: usize| format!("{key:06}{}", "n".repeat(1100));
    let mut client = Resp::connect(&node).await;
    for from in (0..KEYS).step_by(500) {
        let pairs: Vec<String> = (from..from + 500).map(|key| format!("{} v", name(key))).collect();
        assert_eq!(client.call(&format!("MSET {}", pairs.join(" "))).await, "+OK");
    }
    let keys: Vec<String> = (0..KEYS).map(name).collect();
    let delete = format!("DEL {}", keys.join(" "));
    // A key that has changed prevents it.
    let mut other = Resp::connect(&node).await;
    assert_eq!(client.pipeline(&["WATCH w", "MULTI"]).await, ["+OK", "+OK"]);
    assert_eq!(other.call("SET w 1").await, "+OK");
    assert_eq!(client.pipeline(&[&delete, "EXEC", "DBSIZE"]).await, ["+QUEUED", "*-1", &format!(":{}", KEYS + 1)]);
    let script = ["WATCH w", "MULTI", &delete, "EXEC", "DBSIZE"];
    let replies = client.pipeline(&script).await;
    assert_eq!(replies, ["+OK", "+OK", "+QUEUED", &format!("*1 :{KEYS}"), ":1"]);
    node.stop().await;
}
