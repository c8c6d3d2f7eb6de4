//! Requests of tools and libraries about a server's commands, compared with redis-server where both should agree.

use crate::{
    oracle::{
        compare::Pair,
        connection::{Connection, Target},
        exhaustive::{Shape, words_on_kinds, wrong_numbers},
        frame::Frame,
        redis_server::RedisServer,
        seed,
    },
    support::resp::{Resp, node},
};

pub(crate) fn args(command: &str) -> Vec<Vec<u8>> {
    command.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Returns the commands that a server's `COMMAND` lists, including subcommands.
fn shapes(server: &mut Connection) -> Vec<Shape> {
    let mut shapes = Vec::new();
    let all = server.ask(&args("COMMAND"));
    for info in all.items() {
        let of = &info.items()[9];
        for info in std::iter::once(info).chain(of.items()) {
            let name = String::from_utf8(info.items()[0].bulk().unwrap().to_vec()).unwrap();
            let number = |at: usize| info.items()[at].integer().unwrap();
            shapes.push(Shape::new(&name, number(1), number(3), false));
        }
    }
    shapes
}

fn name(shape: &Shape) -> String {
    shape.words.join("|")
}

/// Returns the first bytes of the last four fields of a `COMMAND INFO`: categories, tips, key specifications and
/// subcommands. They tell sets from arrays.
fn kinds_of_lists(server: &mut Connection, asked: &[Vec<u8>]) -> Vec<u8> {
    let kind = |field: &Frame| match field {
        Frame::Many(kind, _) => *kind,
        other => panic!("{other:?}"),
    };
    server.ask(asked).items()[0].items()[6..].iter().map(kind).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_of_the_server_answers_wrong_numbers_and_wrong_kinds_as_redis_does() {
    let Some(redis) = RedisServer::start() else { return };
    let node = node().await;
    let seed = seed(501);
    tokio::task::block_in_place(|| {
        for protocol in [2, 3] {
            let (mut theirs, mut ours) = (redis.connect(protocol), Connection::tcp(node.resp.unwrap(), protocol));
            let (known, mut shapes) = (shapes(&mut theirs), shapes(&mut ours));
            // Commands of later versions are not compared.
            shapes.retain(|shape| known.iter().any(|known| known.words == shape.words));
            let mut pair = Pair::new(&mut theirs, &mut ours);
            assert!(wrong_numbers(&mut pair, &shapes) > 200);
            let of_keys = |shape: &Shape| thalweg_redis::find(shape.words[0].as_bytes());
            let is_of_keys =
                |shape: &Shape| of_keys(shape).is_some_and(|of| !matches!(of.run, thalweg_redis::Run::Session));
            let is_container =
                |shape: &Shape| shape.words.len() == 1 && of_keys(shape).is_some_and(|of| !of.subcommands.is_empty());
            let of_keys: Vec<_> =
                shapes.iter().filter(|shape| is_of_keys(shape) && !is_container(shape)).cloned().collect();
            words_on_kinds(&mut pair, &of_keys, 3, seed ^ u64::from(protocol));
        }
    });
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_of_commands_is_what_redis_says() {
    let Some(redis) = RedisServer::start() else { return };
    let node = node().await;
    tokio::task::block_in_place(|| {
        let (mut theirs, mut ours) = (redis.connect(2), Connection::tcp(node.resp.unwrap(), 2));
        let (known, shapes) = (shapes(&mut theirs), shapes(&mut ours));
        let mut group_of = redis.connect(2);
        let (mut theirs3, mut ours3) = (redis.connect(3), Connection::tcp(node.resp.unwrap(), 3));
        for shape in &shapes {
            let Some(known) = known.iter().find(|known| known.words == shape.words) else {
                assert!(matches!(&*name(shape), "client|no-touch" | "client|setinfo"), "{shape:?}");
                continue;
            };
            assert_eq!((shape.arity, shape.first_key), (known.arity, known.first_key), "{}", name(shape));
            let asked = args(&format!("COMMAND INFO {}", name(shape)));
            let (info, theirs) = (ours.ask(&asked), theirs.ask(&asked));
            // Compare name, arity, flags, the three numbers of keys, and categories.
            assert_eq!(info.items()[0].items()[..7], theirs.items()[0].items()[..7]);
            assert_eq!(kinds_of_lists(&mut ours3, &asked), kinds_of_lists(&mut theirs3, &asked), "{}", name(shape));
            let docs = ours.ask(&args(&format!("COMMAND DOCS {}", name(shape))));
            assert_eq!(docs.items()[0].bulk(), Some(name(shape).as_bytes()));
            let group = |docs: &Frame| {
                let fields = docs.items()[1].items();
                let at = fields.iter().position(|field| field.bulk() == Some(b"group")).unwrap();
                fields[at + 1].bulk().map(<[u8]>::to_vec)
            };
            let said = group_of.ask(&args(&format!("COMMAND DOCS {}", name(shape))));
            assert_eq!(group(&docs), group(&said), "{}", name(shape));
        }
        for command in [
            "COMMAND GETKEYS SET k v",
            "COMMAND GETKEYS MSET a 1 b 2",
            "COMMAND GETKEYS XREAD COUNT 2 STREAMS a b 0 0",
            "COMMAND GETKEYS XREADGROUP GROUP g c STREAMS a >",
            "COMMAND GETKEYS XGROUP CREATE s g 0",
            "COMMAND GETKEYS OBJECT FREQ k",
            "COMMAND GETKEYS PING",
            "COMMAND GETKEYS GET",
            "COMMAND GETKEYS nope a",
            "COMMAND GETKEYS DBSIZE x",
            "COMMAND GETKEYS PING x",
            "COMMAND GETKEYS SET k",
            "COMMAND GETKEYS SPUBLISH c m",
            "COMMAND GETKEYS SSUBSCRIBE c",
            "COMMAND GETKEYS XGROUP CREATE s",
            "COMMAND GETKEYS XGROUP HELP",
            "COMMAND GETKEYS XGROUP NOPE s",
            "COMMAND GETKEYS XREAD COUNT 2 0",
            "COMMAND GETKEYS XREAD COUNT 2 STREAMS",
            "COMMAND GETKEYS XREAD COUNT 2 STREAMS a b 0",
            "SCAN ",
            "SCAN 00",
            "SCAN 0\0x",
            "HSCAN nothing ",
            "COMMAND INFO nope",
            "COMMAND INFO nope|x",
            "COMMAND INFO get|x",
            "HELLO 2 nope",
            "HELLO 2 SETNAME",
            "OBJECT HELP",
            "WAIT 0 0",
            "WAIT 1 1",
            "WAIT -1 1",
            "WAIT x 1",
            "WAIT 1 x",
            "WAIT 1 -1",
            "ROLE",
            "MEMORY USAGE nothing",
            "MEMORY USAGE nothing SAMPLES",
            "MEMORY USAGE nothing SAMPLES -1",
            "CLIENT KILL ID x",
            "CLIENT KILL ID 0",
            "CLIENT KILL ID -1",
            "CLIENT KILL ID +1",
            "CLIENT KILL ID x ADDR",
            "CLIENT KILL TYPE nope ID",
            "CLIENT KILL nope 1 ID x",
            "CLIENT KILL ID 1000000 ADDR",
            "CLIENT KILL ID 99999999999999999999",
            "CLIENT LIST ID x",
            "CLIENT LIST ID +1",
            "CLIENT UNBLOCK x",
            "CLIENT UNBLOCK +1",
            "SELECT 99999999999",
            "SELECT 2147483647",
            "SELECT 2147483648",
            "SELECT -2147483649",
            "SELECT 9223372036854775808",
            "SELECT +0",
            "HELLO +3",
            "HELLO 03",
            "HELLO 99999999999",
            "CONFIG GET maxmemory",
            "CONFIG GET maxmemory-policy",
            "CONFIG GET MaxMemory",
            "CONFIG GET MAXMEMORY maxmemory",
            "CONFIG GET MAXMEMORY-P*",
            "CONFIG GET max\\memory",
            "CONFIG SET maxmemory 1 maxmemory 2",
            "CONFIG SET MAXMEMORY 1 maxmemory 2",
            "CONFIG SET maxmemory 1 maxmemory 2 nope 3",
            "CONFIG SET nope 1 nope 2",
            "CONFIG SET maxmemory 1 nope 2",
            "CONFIG SET databases 3",
            "CONFIG SET databases 3 databases 3",
            "CONFIG SET databases 3 nope 2",
            "CONFIG SET maxmemory 1 databases 3 maxmemory 2",
            "CONFIG SET maxmemory 1 appendonly",
            "CONFIG SET maxmemory",
            "CONFIG RESETSTAT",
        ] {
            let (expected, got) = (theirs.ask(&args(command)), ours.ask(&args(command)));
            assert_eq!(expected, got, "{command}");
        }
        for command in [
            "COMMAND LIST FILTERBY ACLCAT stream",
            "COMMAND LIST FILTERBY ACLCAT Hash",
            "COMMAND LIST FILTERBY ACLCAT transaction",
            "COMMAND LIST FILTERBY ACLCAT @stream",
            "COMMAND LIST FILTERBY ACLCAT nope",
            "COMMAND LIST FILTERBY ACLCAT",
            "COMMAND LIST FILTERBY PATTERN X*",
            "COMMAND LIST FILTERBY PATTERN *|getname",
            "COMMAND LIST FILTERBY MODULE nope",
        ] {
            let [expected, got] = [theirs.ask(&args(command)), ours.ask(&args(command))].map(|reply| reply.sorted(1));
            assert_eq!(expected, got, "{command}");
        }
        for container in ["CLIENT", "COMMAND", "CONFIG", "MEMORY", "OBJECT", "PUBSUB", "XGROUP", "XINFO"] {
            let help = ours.ask(&args(&format!("{container} HELP")));
            let first = format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
            assert_eq!(help.items()[0], Frame::Line(b'+', first.into_bytes()));
        }
    });
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_show_their_last_command_with_its_subcommand() {
    let node = node().await;
    let (mut client, mut other) = (Resp::connect(&node).await, Resp::connect(&node).await);
    // The first command of a connection shows itself, as in Redis.
    assert!(client.call("CLIENT LIST").await.contains(" cmd=client|list "));
    assert!(client.call("CLIENT INFO").await.contains(" cmd=client|info "));
    other.call("CLIENT SETNAME other").await;
    other.call("CONFIG GET port").await;
    let list = client.call("CLIENT LIST").await;
    let line = list.lines().find(|line| line.contains(" name=other ")).unwrap();
    assert!(line.contains(" cmd=config|get "), "{line}");
    assert!(client.pipeline(&["GET a", "CLIENT LIST"]).await[1].contains(" cmd=client|list "));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_show_their_subscriptions_and_the_server_counts_channels() {
    let node = node().await;
    let (mut subscriber, mut other) = (Resp::connect(&node).await, Resp::connect(&node).await);
    subscriber.call("HELLO 3").await;
    subscriber.call("CLIENT SETNAME listener").await;
    let line = async |other: &mut Resp| {
        let list = other.call("CLIENT LIST").await;
        list.lines().find(|line| line.contains("name=listener")).expect("it is in the list").to_owned()
    };
    assert!(line(&mut other).await.contains("flags=N db=0 sub=0 psub=0 ssub=0 multi=-1"));
    subscriber.pipeline(&["SUBSCRIBE a", "SUBSCRIBE b", "PSUBSCRIBE c*", "SSUBSCRIBE d"]).await;
    assert!(line(&mut other).await.contains("flags=P db=0 sub=2 psub=1 ssub=1 multi=-1"));
    assert!(other.call("CLIENT LIST TYPE pubsub").await.contains("name=listener"));
    assert!(!other.call("CLIENT LIST TYPE normal").await.contains("name=listener"));
    let stats = other.call("INFO stats").await;
    for counted in ["pubsub_channels:2", "pubsub_patterns:1", "pubsubshard_channels:1"] {
        assert!(stats.contains(counted), "{counted}: {stats}");
    }
    subscriber.pipeline(&["UNSUBSCRIBE a", "PUNSUBSCRIBE c*"]).await;
    assert!(line(&mut other).await.contains("sub=1 psub=0 ssub=1"));
    assert_eq!(other.call("CLIENT KILL TYPE pubsub").await, ":1");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_told_of_each_kind_and_grows_with_what_is_in_it() {
    let node = node().await;
    let mut client = Resp::connect(&node).await;
    let usage = async |client: &mut Resp, key: &str| -> i64 {
        let reply = client.call(&format!("MEMORY USAGE {key} SAMPLES 0")).await;
        reply.strip_prefix(':').unwrap_or_else(|| panic!("{reply}")).parse().unwrap()
    };
    let value = "v".repeat(1000);
    client.call(&format!("SET string {value}")).await;
    assert!((1000..1200).contains(&usage(&mut client, "string").await));
    for (add, key) in [("HSET hash", "hash"), ("XADD stream *", "stream")] {
        let commands: Vec<_> = (0..100).map(|at| format!("{add} field{at} {value}")).collect();
        client.pipeline(&commands.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let bytes = usage(&mut client, key).await;
        assert!((100_000..120_000).contains(&bytes), "{key}: {bytes}");
    }
    client.pipeline(&["XTRIM stream MAXLEN 0", "SELECT 1", "SET cached v"]).await;
    assert!(usage(&mut client, "cached").await < 200);
    client.call("SELECT 0").await;
    assert!(usage(&mut client, "stream").await < 300, "groups and entries that are gone take nothing");
    assert_eq!(client.call("MEMORY USAGE nothing").await, "$-1");
    node.stop().await;
}
