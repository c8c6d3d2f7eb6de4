//! Waiting readers, compared with redis-server: the commands that wake them, their replies, and the ends of their
//! waiting. Redis clients and other clients wake them.

use crate::{
    oracle::{
        connection::{Connection, Target, encode},
        frame::Frame,
        redis_server::RedisServer,
    },
    support::{
        Node, PATIENCE,
        resp::{Resp, encode as encoded, node},
    },
    tools::args,
};

/// Commands that create a stream with a group that has read all of it, another stream, and another with that group.
const BEGIN: &[&str] = &[
    "FLUSHALL",
    "XADD s 1-1 f v",
    "XGROUP CREATE s g $",
    "XADD other 9-9 f v",
    "XADD grouped 9-9 f v",
    "XGROUP CREATE grouped g 0",
    "SET string x",
];

/// Commands with which a reader waits. The scenes pair them with commands of another client.
const GROUP: &str = "XREADGROUP GROUP g alice BLOCK 0 STREAMS s >";
const LAST: &str = "XREAD BLOCK 0 STREAMS s $";
const ALL: &str = "XREAD BLOCK 0 COUNT 2 STREAMS none s 0 1-1";

const SCENES: &[(&str, &[&str])] = &[
    (GROUP, &["XADD s 2-1 f v"]),
    (GROUP, &["DEL s"]),
    (GROUP, &["UNLINK s"]),
    (GROUP, &["SET s string"]),
    (GROUP, &["RENAME s t"]),
    (GROUP, &["RENAME string s"]),
    (GROUP, &["RENAME grouped s"]),
    (GROUP, &["COPY grouped s REPLACE"]),
    (GROUP, &["COPY other s REPLACE"]),
    (GROUP, &["COPY s t"]),
    (GROUP, &["FLUSHDB"]),
    (GROUP, &["FLUSHALL"]),
    (GROUP, &["EXPIREAT s 1"]),
    (GROUP, &["GETDEL string", "XGROUP DESTROY s g"]),
    (GROUP, &["XGROUP SETID s g 0"]),
    (GROUP, &["XGROUP CREATE s h 0", "XGROUP CREATECONSUMER s g bob", "XACK s g 1-1"]),
    (GROUP, &["XTRIM s MAXLEN 0", "XSETID s 9-9"]),
    (GROUP, &["MULTI", "XADD s 2-1 f v", "XADD s 3-1 f v", "EXEC"]),
    (GROUP, &["MULTI", "XADD s 2-1 f v", "DEL s", "EXEC"]),
    (LAST, &["XADD s 2-1 f v"]),
    (LAST, &["DEL s", "XADD s 1-1 f v", "XADD s 1-2 f v"]),
    (LAST, &["SET s string", "DEL s", "XADD s 0-5 f v"]),
    (LAST, &["RENAME other s"]),
    (LAST, &["COPY other s REPLACE"]),
    (LAST, &["XSETID s 5-5", "FLUSHALL"]),
    (LAST, &["MULTI", "XADD s 2-1 f v", "XADD s 3-1 f v", "EXEC"]),
    (LAST, &["MULTI", "XADD s 2-1 f v", "DEL s", "EXEC", "XADD s 0-5 f v"]),
    (ALL, &["XADD none 1-1 f v"]),
    (ALL, &["XADD s 2-1 f v"]),
    (ALL, &["XDEL s 1-1", "HSET none f v", "DEL none", "XADD none 5-5 f v"]),
];

/// Returns the number of a connection.
fn id(connection: &mut Connection) -> i64 {
    connection.ask(&args("CLIENT ID")).integer().expect("a number")
}

/// Resets the state, and makes the reader wait.
fn begin(reader: &mut Connection, other: &mut Connection, command: &str) {
    BEGIN.iter().for_each(|command| drop(other.ask(&args(command))));
    let mut bytes = Vec::new();
    encode(&args(command), &mut bytes);
    reader.send(&bytes);
    let waits = |shown: &Frame| shown.bulk().is_some_and(|shown| String::from_utf8_lossy(shown).contains("flags=b"));
    let begun = std::time::Instant::now();
    while !waits(&other.ask(&args("CLIENT LIST"))) {
        assert!(begun.elapsed() < PATIENCE, "{command} does not wait");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Runs commands of another client, and returns the reader's reply. A reader that still waits is unblocked, and the
/// result is `None`.
fn scene(reader: &mut Connection, other: &mut Connection, commands: &[&str], wakes: Option<bool>) -> Option<Frame> {
    let number = id_of_reader(other);
    commands.iter().for_each(|command| drop(other.ask(&args(command))));
    // Redis has finished its work when it answers. Our reader is unblocked only if Redis's reader waited on.
    if wakes != Some(true) {
        let stopped = other.ask(&args(&format!("CLIENT UNBLOCK {number}"))).integer();
        if stopped == Some(1) {
            let reply = reader.receive();
            assert!(matches!(reply, Frame::Many(_, None) | Frame::Line(b'_', _)), "{reply:?}");
            return None;
        }
    }
    Some(reader.receive())
}

/// Returns the number of the waiting client, found by its flag.
fn id_of_reader(other: &mut Connection) -> String {
    let list = other.ask(&args("CLIENT LIST"));
    let list = String::from_utf8_lossy(list.bulk().expect("a list")).into_owned();
    let line = list.lines().find(|line| line.contains("flags=b")).expect("one that waits");
    let (_, from_id) = line.split_once("id=").expect("its number");
    from_id.split(' ').next().expect("a number").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_wait_get_what_they_get_from_redis() {
    let Some(redis) = RedisServer::start() else { return };
    let node = node().await;
    tokio::task::block_in_place(|| {
        for protocol in [2, 3] {
            let (mut theirs, mut their_other) = (redis.connect(protocol), redis.connect(protocol));
            let mut ours = Connection::tcp(node.resp.unwrap(), protocol);
            let mut our_other = Connection::tcp(node.resp.unwrap(), protocol);
            assert!(id(&mut theirs) > 0 && id(&mut ours) > 0);
            let mut woken = 0;
            for (command, meanwhile) in SCENES {
                begin(&mut theirs, &mut their_other, command);
                begin(&mut ours, &mut our_other, command);
                let expected = scene(&mut theirs, &mut their_other, meanwhile, None);
                let got = scene(&mut ours, &mut our_other, meanwhile, Some(expected.is_some()));
                assert_eq!(expected, got, "{command} and {meanwhile:?}");
                woken += usize::from(expected.is_some());
            }
            assert!(woken > 15 && woken < SCENES.len(), "{woken}");
        }
    });
    node.stop().await;
}

async fn waits(node: &Node, command: &str) -> (Resp, Resp) {
    let (mut reader, mut other) = (Resp::connect(node).await, Resp::connect(node).await);
    reader.send(&encoded(command)).await;
    other.until("CLIENT LIST", "flags=b").await;
    (reader, other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_groups_reader_hears_that_others_took_its_stream() {
    let node = node().await;
    let gone = "-UNBLOCKED the stream key no longer exists";
    for how in ["put", "delete", "end"] {
        let mut other = Resp::connect(&node).await;
        other.pipeline(&["DEL s", "XADD s 1-1 f v", "XGROUP CREATE s g $"]).await;
        let (mut reader, mut other) = waits(&node, GROUP).await;
        match how {
            "put" => assert!(node.put("/v1/kv/redis/s", b"string").await.status < 300),
            "delete" => assert!(node.call("DELETE", "/v1/kv/redis/s", &[], b"").await.status < 300),
            _ => assert_eq!(other.call("PEXPIRE s 50").await, ":1"),
        }
        assert_eq!(reader.reply().await, gone, "{how}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_can_be_told_to_stop() {
    let node = node().await;
    let number = |list: String| {
        let line = list.split("id=").find(|line| line.contains("flags=b")).expect("one that waits");
        line.split(' ').next().unwrap().to_owned()
    };
    for (how, reply) in [("", "*-1"), (" TIMEOUT", "*-1"), (" error", "-UNBLOCKED client unblocked via CLIENT UNBLOCK")]
    {
        let (mut reader, mut other) = waits(&node, "XREAD BLOCK 0 STREAMS s $").await;
        let id = number(other.call("CLIENT LIST").await);
        assert_eq!(other.call(&format!("CLIENT UNBLOCK {id}{how}")).await, ":1");
        assert_eq!(reader.reply().await, reply);
        assert_eq!(other.call(&format!("CLIENT UNBLOCK {id}")).await, ":0", "it waits no more");
        assert_eq!(reader.call("PING").await, "+PONG");
    }
    let mut client = Resp::connect(&node).await;
    for (command, reply) in [
        ("CLIENT UNBLOCK 999999", ":0"),
        ("CLIENT UNBLOCK -1", ":0"),
        ("CLIENT UNBLOCK x", "-ERR value is not an integer or out of range"),
        ("CLIENT UNBLOCK 1 FOO", "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        (
            "CLIENT UNBLOCK 1 ERROR x",
            "-ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP.",
        ),
    ] {
        assert_eq!(client.call(command).await, reply, "{command}");
    }
    node.stop().await;
}
