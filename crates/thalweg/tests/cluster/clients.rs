//! Clients of a cluster: they find and follow the leader, continue after a failover, and name their requests in the
//! logs.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use thalweg_client::{
    Client, ClusterChange, ClusterUpdate, Delivery, Durability, Endpoint, Error, EventsFrom, Options, Position,
    PushOptions, ReadLevel, StreamPublisherOptions, Watched,
    types::{
        Offset, Revision,
        command::{CommitBuilder, Expect, groups::GroupConfig},
        record::Record,
    },
};
use tokio::runtime::Runtime;

use crate::{
    Cluster, PATIENCE, agent,
    node::{Printing, command, free_address, pause},
    until,
};

/// Number of writes of each kind. The leader is killed after a third of them.
const WRITES: u64 = 60;

impl Cluster {
    fn native(&self, number: usize) -> Endpoint {
        let line = &self.node(number).line;
        let address = line.split_whitespace().find_map(|word| word.strip_prefix("thalweg://"));
        Endpoint::tcp(address.expect("it says where native clients are served").trim_end_matches(','))
    }

    /// Returns the id of a node.
    fn id(&self, number: usize) -> u64 {
        let name = format!("n{number}");
        let members = self.members();
        let member = members.iter().find(|member| member["name"] == name.as_str()).expect("a member");
        u64::from_str_radix(member["node"].as_str().expect("an id"), 16).unwrap()
    }

    /// Stops a node, and returns its log.
    fn log_of(&mut self, number: usize) -> String {
        let node = self.take(number);
        node.signal(libc::SIGTERM);
        node.wait(PATIENCE).1
    }
}

fn options() -> Options {
    // Each key has one writer.
    Options { timeout: Some(PATIENCE), repeat_puts: true, ..Options::default() }
}

/// Fails the test if a future takes longer than a hang.
async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(2 * PATIENCE, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

#[test]
fn a_native_client_follows_the_leader_and_reads_at_each_level() {
    let cluster = Cluster::start(3);
    let follower = cluster.follower();
    Runtime::new().unwrap().block_on(async {
        let dead = Endpoint::tcp(free_address());
        let client = Client::connect([dead, cluster.native(follower)], options()).await.unwrap();
        let users = client.keyspace("users");
        users.create_if_missing(&Default::default()).await.unwrap();
        let members = client.members().await.unwrap();
        assert_eq!((members.members.len(), members.leader), (3, client.server().map(|server| server.node)));
        let revision = users.put(b"ada", b"1815").await.unwrap();
        for level in [ReadLevel::Linearizable, ReadLevel::Lease, ReadLevel::Stale, ReadLevel::AtLeast(revision)] {
            let found = client.read_level(level).keyspace("users").get(b"ada").await.unwrap();
            assert_eq!(found.map(|found| found.revision), Some(revision), "{level}");
        }
        // A receiver holds a record while the leadership moves.
        let orders = client.stream("orders");
        orders.create_if_missing(&Default::default()).await.unwrap();
        let group = orders.group("workers").await.unwrap();
        group.create_if_missing(Some(Offset(0)), &GroupConfig::default()).await.unwrap();
        let mut pushes = group.push(PushOptions::member("m")).await.unwrap();
        let append = async |payload: &[u8]| {
            let record = Record { payload, ..Record::default() };
            orders.append(&record).await.unwrap();
        };
        append(b"first").await;
        let held = in_time("the first record", pushes.next()).await.unwrap().expect("the push goes on");
        // The leadership moves, and the client with it.
        let next = cluster.follower();
        cluster.cli(next, &["transfer", &format!("n{next}")]).ok();
        until("the transfer is done", || cluster.leader() == next);
        let wanted = cluster.id(next);
        in_time("the client follows", async {
            while client.server().map(|server| server.node) != Some(wanted) {
                users.put(b"ada", b"1816").await.unwrap();
            }
        })
        .await;
        assert_eq!(users.get(b"ada").await.unwrap().unwrap().value, "1816");
        // The push resumes with the next record. The held one is neither lost nor delivered again.
        append(b"second").await;
        let next = in_time("the second record", pushes.next()).await.unwrap().expect("the push goes on");
        let payloads =
            |delivery: &Delivery| delivery.records.iter().map(|at| at.record.payload.to_vec()).collect::<Vec<_>>();
        assert_eq!((payloads(&held), payloads(&next)), (vec![b"first".to_vec()], vec![b"second".to_vec()]));
        assert_eq!((held.ack().await.unwrap().settled, next.ack().await.unwrap().settled), (1, 1));
        let info = group.describe().await.unwrap();
        assert_eq!((info.delivered, info.redelivered, info.acked, info.pending), (2, 0, 2, 0));
        client.close().await;
    });
}

#[test]
fn native_clients_continue_after_a_failover() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    Runtime::new().unwrap().block_on(async {
        let client = Client::connect(cluster.native(follower), options()).await.unwrap().durability(Durability::Quorum);
        let (users, orders) = (client.keyspace("users"), client.stream("orders"));
        users.create_if_missing(&Default::default()).await.unwrap();
        orders.create_if_missing(&Default::default()).await.unwrap();
        let group = orders.group("workers").await.unwrap();
        let config = GroupConfig { ack_deadline: Duration::from_secs(2), ..GroupConfig::default() };
        group.create_if_missing(Some(Offset(0)), &config).await.unwrap();

        let mut watch = users.watch(Watched::Prefix(Vec::new()), Revision(0)).await.unwrap();
        let watching = tokio::spawn(async move {
            let (mut seen, mut last) = (BTreeSet::new(), Revision(0));
            while (seen.len() as u64) < WRITES {
                for change in watch.next().await.unwrap().expect("the watch goes on").changes {
                    assert!(change.revision > last, "{} after {last}", change.revision);
                    last = change.revision;
                    seen.insert(change.key);
                }
            }
        });
        let mut tail = orders.tail(Position::Start {}).await.unwrap();
        let tailing = tokio::spawn(async move {
            for expected in 0..WRITES {
                let record = tail.next().await.unwrap().expect("the tail goes on");
                assert_eq!((record.offset, &record.payload[..]), (Offset(expected), expected.to_string().as_bytes()));
            }
        });
        let mut pushes = group.push(PushOptions::member("m")).await.unwrap();
        let consuming = tokio::spawn(async move {
            loop {
                let delivery = pushes.next().await.unwrap().expect("the push goes on");
                // An ack that happened without an answer is sent again, and then reports nothing.
                delivery.ack().await.unwrap();
            }
        });

        let publisher = orders.publisher("p", StreamPublisherOptions::default()).await.unwrap();
        let counter = client.keyspace("counter");
        counter.create_if_missing(&Default::default()).await.unwrap();
        let counter_id = counter.id().await.unwrap();
        for number in 0..WRITES {
            if number == WRITES / 3 {
                cluster.take(leader).kill();
            }
            users.put(format!("{number:04}").as_bytes(), b"v").await.unwrap();
            publisher.publish_payload(number.to_string().as_bytes()).await.unwrap();
            // A write with a condition may have happened without an answer, and the client does not repeat it then.
            let mut commit = CommitBuilder::new();
            let key = number.to_be_bytes();
            commit.expect(counter_id, &key, Expect::Absent).unwrap().put(counter_id, &key, b"v").unwrap();
            match client.commit(&commit).await {
                Ok(_) | Err(Error::OutcomeUnknown { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        in_time("the publisher", publisher.flush()).await.unwrap();
        in_time("the watch", watching).await.unwrap();
        in_time("the tail", tailing).await.unwrap();
        let acked = in_time("the group", async {
            loop {
                let info = group.describe().await.unwrap();
                if info.pending == 0 && info.lag == 0 {
                    break info.acked;
                }
                assert!(!consuming.is_finished(), "the push goes on");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        assert_eq!(acked.await, WRITES, "each record is acked once");
        consuming.abort();
        // On a busy machine the leadership can move once more. The client follows with a write.
        in_time("the client to be at the new leader", async {
            loop {
                users.put(b"last", b"v").await.unwrap();
                let members = client.members().await.unwrap();
                if members.leader.is_some() && members.leader == client.server().map(|server| server.node) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        client.close().await;
    });
}

#[test]
fn a_native_client_watches_the_cluster_across_a_failover() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let leader_id = cluster.id(leader);
    Runtime::new().unwrap().block_on(async {
        let client = Client::connect(cluster.native(follower), options()).await.unwrap();
        let mut watch = client.watch_cluster(EventsFrom::Kept).await.unwrap();
        let mut next = async || in_time("an event", watch.next()).await.unwrap().expect("the watch goes on");
        let leads = |update: &ClusterUpdate| match update {
            ClusterUpdate::Event(event) => event.change.node() == Some(leader_id),
            _ => false,
        };
        while !leads(&next().await) {}
        cluster.take(leader).kill();
        // The next node has events of its own.
        loop {
            match next().await {
                ClusterUpdate::Gap => break,
                ClusterUpdate::Event(_) => {}
                ClusterUpdate::Missed(events) => panic!("{events} events are missing"),
            }
        }
        let (mut new_leader, mut is_down) = (None, false);
        while new_leader.is_none() || !is_down {
            let ClusterUpdate::Event(event) = next().await else { continue };
            match event.change {
                ClusterChange::Leader { leader: Some(leader), .. } if leader != leader_id => new_leader = Some(leader),
                ClusterChange::Down(node) if node == leader_id => {
                    assert_eq!(event.name, Some(format!("n{leader}")));
                    is_down = true;
                }
                _ => {}
            }
        }
        assert!(watch.position().after > 0);
        client.close().await;
    });
}

#[test]
fn a_spread_cache_has_each_key_on_one_node() {
    /// Number of keys. Each of three nodes has about a third of them.
    const KEYS: u64 = 90;
    let keys = || (0..KEYS).map(|number| format!("session {number}").into_bytes());
    let mut cluster = Cluster::start(3);
    let lost = cluster.follower();
    let lost_id = cluster.id(lost);
    Runtime::new().unwrap().block_on(async {
        let client = Client::connect(cluster.native(lost), options()).await.unwrap();
        let cache = client.spread_cache("sessions");
        in_time("all puts", async {
            for key in keys() {
                // The client may not know the addresses of all nodes yet.
                while let Err(error) = cache.put(&key, &key).await {
                    assert!(matches!(error, Error::NodeAway { .. }), "{error}");
                }
            }
        })
        .await;
        let mut entries = 0;
        for (node, part) in cache.parts().await.unwrap() {
            let stats = part.stats().await.unwrap().expect("the part exists");
            assert!(stats.entries > KEYS / 9, "{} entries on {node:016x}", stats.entries);
            entries += stats.entries;
        }
        assert_eq!(entries, KEYS, "each entry is on one node");
        // Another client finds them, as long as their node runs.
        let other = Client::connect(cluster.native(cluster.leader()), options()).await.unwrap();
        let found = other.spread_cache("sessions");
        for key in keys() {
            assert_eq!(found.get(&key).await.unwrap().expect("an entry").value, key);
        }
        cluster.take(lost).kill();
        let keys: Vec<_> = keys().collect();
        let wanted: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        for (key, found) in keys.iter().zip(found.get_many(&wanted).await.unwrap()) {
            let is_lost = cache.node_of(key).await.unwrap() == Some(lost_id);
            match found {
                Ok(found) => assert!(!is_lost && found.expect("an entry").value == key),
                Err(error) => assert!(is_lost && matches!(error, Error::NodeAway { .. }), "{error}"),
            }
        }
        client.close().await;
        other.close().await;
    });
}

#[test]
fn the_leader_logs_the_names_of_forwarded_requests() {
    let mut cluster = Cluster::start_logging(3, "debug");
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let reply = agent().put(cluster.url(follower, "/v1/kv/k/a")).header("x-request-id", "job-7").send("v").unwrap();
    assert_eq!((reply.status().as_u16(), reply.headers()["x-request-id"].to_str().unwrap()), (204, "job-7"));
    assert!(cluster.redis(follower, "SET a 1\r\n").starts_with("+OK\r\n"));
    let (leaders, followers) = (cluster.log_of(leader), cluster.log_of(follower));
    let forwarded: Vec<_> = leaders.lines().filter(|line| line.contains("forwarded commands are committed")).collect();
    assert!(forwarded.iter().any(|line| line.contains("job-7")), "{leaders}");
    assert!(followers.lines().any(|line| line.contains("job-7")), "{followers}");
    // The id of the Redis client's request is in both logs.
    let of_redis = followers.lines().filter(|line| line.contains("request of a Redis client"));
    let ids = of_redis.filter_map(|line| line.split("request_id=").nth(1)?.split_whitespace().next());
    let ids: BTreeSet<_> = ids.map(|id| id.trim_matches('"').to_owned()).collect();
    let both = ids.iter().any(|id| forwarded.iter().any(|line| line.contains(&format!("request_id=\"{id}\""))));
    assert!(both, "{ids:?} in {forwarded:#?}");
}

/// The names travel beside the entries, so a member first has to ask for them.
#[test]
fn all_members_log_the_names_of_the_requests_in_the_entries_that_they_apply() {
    let cluster = Cluster::start_logging(3, "debug");
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let mut tried = 0;
    until("all members log both requests", || {
        tried += 1;
        let names = [(leader, format!("direct-{tried}")), (follower, format!("passed-on-{tried}"))];
        for (node, name) in &names {
            let url = cluster.url(*node, "/v1/kv/k/a");
            agent().put(url).header("x-request-id", name.as_str()).send("v").unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        let have_logged = || {
            (0..3).all(|node| {
                let log = cluster.node(node).log_so_far();
                let lines: Vec<_> = log.lines().filter(|line| line.contains("of these requests is applied")).collect();
                names.iter().all(|(_, name)| lines.iter().any(|line| line.contains(name)))
            })
        };
        while Instant::now() < deadline && !have_logged() {
            pause();
        }
        have_logged()
    });
}

/// `thalweg consume --push`, which prints records.
struct Consumer(Printing);

impl Consumer {
    fn start(servers: &str) -> Self {
        let mut consume = command();
        consume.args(["consume", "jobs", "--group", "workers", "--create", "--push", "--payload-only"]);
        Self(Printing::start(consume.env("THALWEG_SERVER", servers)))
    }

    /// Returns the printed records in the order in which each appeared first.
    fn distinct(&self) -> Vec<String> {
        let mut records = Vec::new();
        for record in self.0.lines() {
            if !records.contains(&record) {
                records.push(record);
            }
        }
        records
    }
}

#[test]
fn a_consumer_of_the_command_line_continues_when_the_leadership_moves() {
    let cluster = Cluster::start(3);
    let urls: Vec<_> = (0..3).map(|number| cluster.node(number).url.clone()).collect();
    let append = |payload: &str| {
        until("the append is acknowledged", || {
            cluster.node(0).cli(&["append", "jobs", payload, "--server", &urls.join(",")]).code == Some(0)
        });
    };
    append("first");
    let consumer = Consumer::start(&urls[cluster.leader()]);
    until("the record is printed", || consumer.distinct().len() == 1);
    let mut expected = vec!["first".to_owned()];
    for round in 0..2 {
        let next = cluster.follower();
        until("the leadership moves", || {
            cluster.cli(next, &["transfer", &format!("n{next}")]).code == Some(0)
                || cluster.status(next)["leads"] == true
        });
        let payload = format!("after move {round}");
        append(&payload);
        expected.push(payload);
        until("the record is printed", || consumer.distinct().len() == expected.len());
        assert_eq!(consumer.distinct(), expected, "no record is lost");
    }
    let group = || cluster.node(0).cli(&["groups", "show", "jobs", "workers", "--json"]).ok();
    let acked = || serde_json::from_str::<serde_json::Value>(&group()).is_ok_and(|group| group["acked"] == 3);
    until("all are acked", acked);
    let group: serde_json::Value = serde_json::from_str(&group()).unwrap();
    assert_eq!(group["pending"], 0, "{group}");
    // A delivery or an ack that is under way while the leadership moves can be lost. The group then delivers the record
    // again.
    let repeated = consumer.0.lines().len() - expected.len();
    assert!(group["redelivered"].as_u64().is_some_and(|count| repeated as u64 <= count && count <= 2), "{group}");
}

#[test]
fn commands_try_the_next_address() {
    let mut cluster = Cluster::start(3);
    let urls: Vec<_> = (0..3).map(|number| cluster.node(number).url.clone()).collect();
    let all = urls.join(",");
    let leader = cluster.leader();
    let alive = (leader + 1) % 3;
    cluster.node(alive).cli(&["put", "users", "ada", "1815", "--server", &all]).ok();
    cluster.take(0).kill();
    let (_, node) = cluster.running().next().expect("a node runs");
    until("a node leads again", || node.cli(&["get", "users", "ada", "--server", &all]).code == Some(0));
    let only = format!("http://{},http://{}", free_address(), free_address());
    let failed = node.cli(&["get", "users", "ada", "--server", &only]).fails(5);
    assert!(failed.contains("none of the 2 addresses can be reached"), "{failed}");
}
