//! Clients over HTTP and RESP, and commands, that continue when a node fails or leaves.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStdout, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use ureq::Agent;

use crate::{
    Cluster, PATIENCE, agent, get,
    node::{command, pause, run, wait_for},
    read, until, write,
};

/// Number of writes. The leader is killed after a third of them.
const WRITES: usize = 60;
/// Pause between two looks at a state that must last for seconds.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// An event of a reply without an end, or the end of the connection.
#[derive(Debug)]
enum Received {
    Event {
        kind: String,
        id: Option<u64>,
        data: Value,
    },
    /// The connection has ended, and the client connects to the next node.
    Lost,
}

/// Follows server-sent events at one address after the other, as browsers do: it states the id of the last event that
/// it got.
fn follow(urls: Vec<String>, path: &'static str) -> Receiver<Received> {
    let (sender, received) = channel();
    std::thread::spawn(move || {
        // A reply has no end, so only the connection has a bound.
        let config = Agent::config_builder().http_status_as_error(false).timeout_connect(Some(PATIENCE));
        let agent = Agent::from(config.build());
        let mut last: Option<u64> = None;
        for url in urls.iter().cycle() {
            let mut request = agent.get(format!("{url}{path}")).header("accept", "text/event-stream");
            if let Some(last) = last {
                request = request.header("last-event-id", last.to_string());
            }
            if let Ok(reply) = request.call().map_err(drop) {
                let status = reply.status().as_u16();
                // A node without a leader refuses reads for a moment.
                assert!(matches!(status, 200 | 503), "{path}: status {status}");
                let (mut kind, mut id, mut data) = (String::new(), None, None);
                for line in BufReader::new(reply.into_body().into_reader()).lines().map_while(Result::ok) {
                    match line.split_once(": ") {
                        _ if status != 200 => {}
                        Some(("event", text)) => text.clone_into(&mut kind),
                        Some(("id", text)) => id = Some(text.parse().expect("a number")),
                        Some(("data", text)) => data = Some(serde_json::from_str(text).expect("JSON")),
                        Some(_) => {}
                        // An empty line ends an event. Comments have no data.
                        None => {
                            if let Some(data) = data.take() {
                                last = id.or(last);
                                let event = Received::Event { kind: std::mem::take(&mut kind), id: id.take(), data };
                                if sender.send(event).is_err() {
                                    return;
                                }
                            }
                        }
                    }
                }
            }
            if sender.send(Received::Lost).is_err() {
                return;
            }
            pause();
        }
    });
    received
}

/// Receives the next event that is no progress. Calls `lost` for each end of the connection before it.
fn next_event(received: &Receiver<Received>, mut lost: impl FnMut()) -> (Option<u64>, Value) {
    loop {
        match received.recv_timeout(PATIENCE).expect("the events go on") {
            Received::Lost => lost(),
            Received::Event { kind, .. } if kind == "progress" => {}
            Received::Event { kind, id, data } => {
                assert_eq!(kind, "", "{data}");
                return (id, data);
            }
        }
    }
}

/// Sends a POST to the running nodes in turn until one acknowledges it.
fn post_anywhere(cluster: &Cluster, path: &str, media: &str, body: &str) {
    let urls: Vec<_> = cluster.running().map(|(_, node)| format!("{}{path}", node.url)).collect();
    let mut urls = urls.iter().cycle();
    until("the write is acknowledged", || {
        let sent = agent().post(urls.next().expect("a node runs")).header("content-type", media).send(body);
        sent.is_ok_and(|reply| {
            let status = reply.status().as_u16();
            assert!(matches!(status, 200 | 201 | 503 | 504), "{path}: status {status}");
            status < 300
        })
    });
}

/// Appends a record with this number, once, and puts two keys with it in one commit, at least once.
fn write_both(cluster: &Cluster, number: usize) {
    let append = format!("/v1/streams/jobs/records?producer=p&sequence={number}");
    post_anywhere(cluster, &append, "application/octet-stream", &number.to_string());
    let put = |key: &str| json!({ "op": "put", "keyspace": "users", "key": format!("{key}{number}"), "value": "v" });
    let commit = json!({ "writes": [put("a"), put("b")] });
    post_anywhere(cluster, "/v1/commit", "application/json", &commit.to_string());
}

#[test]
fn event_streams_over_http_continue_on_another_node_without_loss_or_repetition() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let urls: Vec<_> = (0..3).map(|number| cluster.node(number).url.clone()).collect();
    let from = |first: usize| (0..3).map(|next| urls[(first + next) % 3].clone()).collect::<Vec<_>>();
    write_both(&cluster, 0);
    // One client of each kind loses its node, and one stays with a node that loses its leader.
    let tails = [leader, follower].map(|first| follow(from(first), "/v1/streams/jobs/records?from=start"));
    let watches = [leader, follower].map(|first| follow(from(first), "/v1/watch/users?from=0"));
    for tail in &tails {
        assert_eq!(next_event(tail, || ()).1["offset"], 0, "the client is connected");
    }
    for watch in &watches {
        assert_eq!(next_event(watch, || ()).1["key"], "a0", "the client is connected");
    }
    for number in 1..WRITES {
        if number == WRITES / 3 {
            cluster.take(leader).kill();
        }
        write_both(&cluster, number);
    }
    for (tail, loses) in tails.iter().zip([true, false]) {
        let mut lost = 0;
        for number in 1..WRITES {
            let (id, record) = next_event(tail, || lost += 1);
            assert_eq!((id, record["offset"].as_u64()), (Some(number as u64), Some(number as u64)), "{record}");
            assert_eq!(record["payload"].as_str(), Some(&*number.to_string()), "{record}");
        }
        assert!(lost > 0 || !loses, "the tail at the leader was cut off");
    }
    for (watch, loses) in watches.iter().zip([true, false]) {
        // The first change of the first commit was received above.
        let (mut lost, mut part, mut last) = (0, vec!["a0".to_owned()], 0);
        let mut seen = BTreeSet::new();
        while seen.len() < WRITES {
            let before = lost;
            let (id, change) = next_event(watch, || lost += 1);
            if lost > before {
                // What came of a commit without its end comes again.
                part.clear();
            }
            part.push(change["key"].as_str().expect("a key").to_owned());
            let Some(id) = id else { continue };
            assert!(id > last && change["revision"] == id, "{id} after {last}: {change}");
            last = id;
            let number = part[0][1..].to_owned();
            assert_eq!(part, [format!("a{number}"), format!("b{number}")], "the commit is complete");
            part.clear();
            // A commit without an answer was sent again, and then it may be there twice.
            seen.insert(number);
        }
        assert!(lost > 0 || !loses, "the watch at the leader was cut off");
    }
}

/// Connection of a Redis client.
struct Redis(BufReader<TcpStream>);

impl Redis {
    fn connect(cluster: &Cluster, number: usize) -> Self {
        let line = &cluster.node(number).line;
        let address = line.split_whitespace().find_map(|word| word.strip_prefix("redis://"));
        let address = address.expect("it says where Redis clients are served").trim_end_matches(',');
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command, and returns the first line of its reply, or the string that it is.
    fn send(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let line = self.line();
        match line.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()) {
            Some(length) => {
                let mut body = vec![0; length + 2];
                self.0.read_exact(&mut body).unwrap();
                String::from_utf8(body[..length].to_vec()).unwrap()
            }
            None => line,
        }
    }

    /// Sends a command again as long as the node knows no leader.
    fn send_until_answered(&mut self, command: &str) -> String {
        let mut answer = String::new();
        until("the command is answered", || {
            answer = self.send(command);
            !["-LOADING", "-TRYAGAIN", "-CLUSTERDOWN"].iter().any(|code| answer.starts_with(code))
        });
        answer
    }

    /// Watches a key and begins a transaction that increments it.
    fn begin(&mut self) {
        assert_eq!(self.send_until_answered("WATCH a"), "+OK");
        assert_eq!(self.send("MULTI"), "+OK");
        assert_eq!(self.send("INCR a"), "+QUEUED");
    }
}

#[test]
fn transactions_of_redis_clients_on_a_follower_notice_writes_on_other_nodes() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let third = 3 - leader - follower;
    let (mut here, mut there) = (Redis::connect(&cluster, follower), Redis::connect(&cluster, third));
    assert_eq!(here.send_until_answered("SET a 1"), "+OK");
    here.begin();
    assert_eq!((here.send("EXEC"), here.line()), ("*1".to_owned(), ":2".to_owned()));
    assert_eq!(here.send_until_answered("GET a"), "2");
    here.begin();
    assert_eq!(there.send_until_answered("SET a 10"), "+OK");
    assert_eq!(here.send("EXEC"), "*-1", "another node has changed the key");
    assert_eq!(here.send_until_answered("GET a"), "10");
    // The watch outlasts the leader.
    here.begin();
    cluster.take(leader).kill();
    assert_eq!(there.send_until_answered("SET a 20"), "+OK");
    let mut beside = Redis::connect(&cluster, follower);
    assert_eq!(beside.send_until_answered("GET a"), "20", "the node knows the new leader");
    assert_eq!(here.send("EXEC"), "*-1", "the key has changed under another leader");
    until("a transaction succeeds under the new leader", || {
        here.begin();
        let answer = here.send("EXEC");
        assert!(answer.starts_with('-') || answer == "*1", "{answer}");
        answer == "*1" && here.line() == ":21"
    });
    assert_eq!(there.send_until_answered("GET a"), "21");
}

/// Sends a keep-alive to the running nodes in turn until one answers, and returns the status.
fn keep_alive(cluster: &Cluster, lease: u64) -> u16 {
    let urls: Vec<_> = cluster.running().map(|(_, node)| node.url.clone()).collect();
    let mut urls = urls.iter().cycle();
    let mut status = 0;
    until("a keep-alive is answered", || {
        let url = urls.next().expect("a node runs");
        let sent = agent().post(format!("{url}/v1/leases/{lease}/keep-alive")).send_empty();
        status = sent.map_or(0, |reply| reply.status().as_u16());
        ![0, 503, 504].contains(&status)
    });
    status
}

#[test]
fn a_lease_that_is_kept_alive_outlasts_a_failover_and_its_keys_end_with_it() {
    const TTL: Duration = Duration::from_secs(5);
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let grant = json!({ "ttl_seconds": TTL.as_secs() }).to_string();
    let mut lease = Value::Null;
    until("a lease is granted", || {
        let request = agent().post(cluster.url(follower, "/v1/leases")).header("content-type", "application/json");
        let Ok(mut reply) = request.send(&grant) else { return false };
        lease = serde_json::from_str(&reply.body_mut().read_to_string().unwrap()).unwrap_or_default();
        reply.status() == 201
    });
    let lease = lease["id"].as_u64().expect("an id");
    write(&cluster.url(follower, &format!("/v1/kv/leased/key?lease={lease}")), "v");
    assert_eq!(keep_alive(&cluster, lease), 200);
    let killed = Instant::now();
    cluster.take(leader).kill();
    // For longer than the lease would last without the keep-alives.
    while killed.elapsed() < TTL * 3 / 2 {
        assert_eq!(keep_alive(&cluster, lease), 200, "after {:?}", killed.elapsed());
        for (number, _) in cluster.running() {
            let (status, _) = read(&cluster.url(number, "/v1/kv/leased/key"), &[]);
            assert_eq!(status, 200, "the key is there on node {number}, {:?} after the kill", killed.elapsed());
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    for (number, _) in cluster.running() {
        let url = cluster.url(number, "/v1/kv/leased/key");
        until("the key ends with its lease", || get(&url, &[]).is_some_and(|(status, _)| status == 404));
    }
    assert_eq!(keep_alive(&cluster, lease), 404);
}

/// A command that holds a lock until its stdin is closed; killed when dropped.
struct Holder {
    child: Child,
    _out: BufReader<ChildStdout>,
    token: u64,
}

impl Holder {
    /// Starts the command, and waits until it has the lock.
    fn start(servers: &str) -> Self {
        let mut lock = command();
        lock.args(["lock", "job", "--ttl", "8s", "--wait", "60s", "--"]);
        lock.args(["sh", "-c", "echo $THALWEG_FENCING_TOKEN; read line; true"]).env("THALWEG_SERVER", servers);
        let mut child = lock.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let token = line.trim().parse().unwrap_or_else(|_| panic!("no token: {line:?}"));
        Self { child, _out: out, token }
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Lets the command end, and returns its exit code.
    fn finish(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        wait_for(&mut self.child, PATIENCE).expect("it ends in time").code()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_lock_is_held_across_a_failover_and_goes_to_one_other_then() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    // The holder uses the leader, until it is killed.
    let urls: Vec<_> = (0..3).map(|next| cluster.node((leader + next) % 3).url.clone()).collect();
    let servers = urls.join(",");
    let mut holder = Holder::start(&servers);
    let killed = Instant::now();
    cluster.take(leader).kill();
    let others = urls[1..].join(",");
    let try_lock = || {
        let mut lock = command();
        run(lock.args(["lock", "job", "--wait", "0s", "--", "true"]).env("THALWEG_SERVER", &others), b"")
    };
    // For longer than the lock's lease would last without its keep-alives.
    while killed.elapsed() < Duration::from_secs(10) {
        assert_ne!(try_lock().code, Some(0), "the lock is held, {:?} after the kill", killed.elapsed());
        assert!(holder.is_running(), "the holder lost it within {:?}", killed.elapsed());
        std::thread::sleep(BETWEEN_LOOKS);
    }
    let token = holder.token;
    assert_eq!(holder.finish(), Some(0));
    let next = Holder::start(&others);
    assert!(next.token > token, "{} after {token}", next.token);
    assert_eq!(next.finish(), Some(0));
}

#[test]
fn followers_and_leaders_leave_and_the_last_voter_does_not() {
    let mut cluster = Cluster::start(3);
    let names =
        |cluster: &Cluster| cluster.members().into_iter().map(|member| member["name"].clone()).collect::<Vec<_>>();
    write(&cluster.url(0, "/v1/kv/k/0"), "0");
    let follower = cluster.follower();
    assert!(cluster.node(follower).cli(&["cluster", "leave"]).fails(2).contains("admin token"));
    cluster.cli(follower, &["leave"]).ok();
    cluster.take(follower).kill();
    until("the follower is no member", || cluster.members().len() == 2);
    assert!(!names(&cluster).contains(&json!(format!("n{follower}"))));
    cluster.until_voters(2);
    let leader = cluster.leader();
    write(&cluster.url(leader, "/v1/kv/k/1"), "1");
    // The leader hands over to the other node first.
    cluster.cli(leader, &["leave"]).ok();
    cluster.take(leader).kill();
    until("the leader is no member", || cluster.members().len() == 1);
    let last = cluster.leader();
    write(&cluster.url(last, "/v1/kv/k/2"), "2");
    for key in 0..3 {
        assert_eq!(read(&cluster.url(last, &format!("/v1/kv/k/{key}")), &[]), (200, key.to_string().into_bytes()));
    }
    assert_ne!(cluster.cli(last, &["leave"]).code, Some(0), "the last voter stays");
    assert_eq!(cluster.members().len(), 1);
    write(&cluster.url(last, "/v1/kv/k/3"), "3");
}
