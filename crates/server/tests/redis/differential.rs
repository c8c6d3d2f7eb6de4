//! Redis's own server is the oracle for a whole server: the same random commands go over sockets to both, one by one,
//! in bursts, in transactions of several clients, and in RESP2 and RESP3. The support of `thalweg-redis`'s tests
//! defines permitted differences.

use crate::{
    args,
    oracle::{
        compare::{Pair, contents_are_alike},
        connection::{Connection, Target},
        frame::Frame,
        generate::{Generator, Mix, connection, hashes, keys, streams, strings},
        histories,
        redis_server::RedisServer,
        seed,
    },
    support::{Node, resp::node},
};

/// Connections to both servers, in the same database.
struct Both<'n> {
    redis: RedisServer,
    node: &'n Node,
    database: u32,
}

impl Both<'_> {
    fn select(&self, mut connection: Connection) -> Connection {
        let selected = connection.ask(&args!["SELECT", self.database.to_string()]);
        assert_eq!(selected, Frame::Line(b'+', b"OK".to_vec()));
        connection
    }

    fn redis(&self, protocol: u8) -> Connection {
        self.select(self.redis.connect(protocol))
    }

    fn ours(&self, protocol: u8) -> Connection {
        self.select(Connection::tcp(self.node.resp.expect("it serves Redis clients"), protocol))
    }

    /// Compares both servers. `queued` has the commands that transactions may hold.
    fn compare(&self, families: &[&[Generator]], queued: &[&[Generator]], seed: u64) {
        let (mix, queued) = (Mix::new(families), Mix::new(queued));
        for protocol in [2, 3] {
            let (mut redis, mut ours) = (self.redis(protocol), self.ours(protocol));
            Pair::new(&mut redis, &mut ours).run(&mix, seed, 2000);
            self.contents(seed, "one by one");
            histories::pipelines(&mut redis, &mut ours, &mix, seed, 100);
            self.contents(seed, "in bursts");
            let clients = |connect: &dyn Fn(u8) -> Connection| (0..3).map(|_| connect(protocol)).collect::<Vec<_>>();
            let (theirs, mine) = (clients(&|protocol| self.redis(protocol)), clients(&|protocol| self.ours(protocol)));
            let seen = histories::transactions(theirs, mine, &queued, seed, 2500);
            assert!(seen.done > 10 && seen.watched_changed > 5 && seen.spoilt > 5, "{seen:?}");
            self.contents(seed, "in transactions");
        }
    }

    fn contents(&self, seed: u64, when: &str) {
        contents_are_alike(&mut self.redis(2), &mut self.ours(2), &format!("seed {seed}, {when}"));
    }
}

/// Compares both servers in a database, if Redis is installed. Other threads serve the node in the meantime.
async fn compared(database: u32, families: &[&[Generator]], queued: &[&[Generator]], default_seed: u64) {
    let Some(redis) = RedisServer::start() else { return };
    let node = node().await;
    let seed = seed(default_seed);
    tokio::task::block_in_place(|| Both { redis, node: &node, database }.compare(families, queued, seed));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_database_answers_as_redis_answers() {
    let stored = [strings::ALL, keys::ALL, hashes::ALL, streams::ALL];
    // A transaction has a single database here; see docs/redis.md.
    let all: Vec<_> = stored.into_iter().chain([connection::ALL]).collect();
    compared(0, &all, &stored, 401).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_answers_as_redis_answers() {
    let stored = [strings::ALL, keys::ALL];
    compared(1, &stored, &stored, 402).await;
}
