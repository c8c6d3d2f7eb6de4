//! Measures the CPU time that Redis commands on a cache cost one server thread, without sockets. The work for a
//! command: parsing the request from the received bytes, finding the command, executing it, and writing the reply. The
//! commands arrive in bursts of 16.
//!
//! `cargo run --release -p thalweg-server --example resp_cost`
//!
//! Estimates in nanoseconds for each command: taking the request 30, finding the command 15, reading the clock 25, the
//! cache 60, copying the value for a GET 30, writing the reply 10. The sum is 170 ns for a GET and 150 ns for a SET. At
//! 700,000 commands a second this is 12 % of a core.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::{hint::black_box, sync::Arc, time::Instant};

use rustix::time::{ClockId, clock_gettime};
use thalweg_broker::{Cache, CacheConfig};
use thalweg_redis::{
    Run, admit, run, run_read,
    wire::{Input, Protocol, Trust, Writer},
};
use thalweg_server::resp::cache::CacheDatabase;

const KEYS: u64 = 100_000;
const BURST: usize = 16;
const BURSTS: usize = 50_000;

fn cpu_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Returns encoded requests as a client sends them, each vector with one burst of 16 commands. The keys are random.
fn bursts(command: &str, value: &str) -> Vec<Vec<u8>> {
    let mut random = 1_u64;
    let mut one = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = format!("key:{:012}", (random >> 33) % KEYS);
        let mut words = vec![command, &key];
        words.extend((!value.is_empty()).then_some(value));
        let head = format!("*{}\r\n", words.len());
        words.iter().fold(head, |text, word| format!("{text}${}\r\n{word}\r\n", word.len()))
    };
    (0..BURSTS).map(|_| (0..BURST).map(|_| one()).collect::<String>().into_bytes()).collect()
}

fn measure(
    cached: &CacheDatabase,
    what: &str,
    bursts: &[Vec<u8>],
    act: impl Fn(&CacheDatabase, &[&[u8]], &mut Vec<u8>),
) {
    let (mut input, mut out) = (Input::new(), Vec::new());
    let begin = cpu_nanos();
    for burst in bursts {
        input.feed(burst);
        while let Some(request) = input.next(Trust::Known).expect("requests") {
            request.with(|arguments| act(cached, arguments, &mut out));
        }
        black_box(&out);
        out.clear();
    }
    println!("{what:<32} {:>6.0} ns a command", (cpu_nanos() - begin) as f64 / (bursts.len() * BURST) as f64);
}

/// Executes one command on the cache and appends its reply to `out`, as a Redis session of the server does.
fn command(cached: &CacheDatabase, arguments: &[&[u8]], out: &mut Vec<u8>) {
    let command = admit(arguments).expect("a command");
    let reply = match command.run {
        Run::Write(_) => cached.write(|store| run(store, command, arguments)),
        _ => cached.read(|read| run_read(read, command, arguments)),
    };
    Writer::new(out, Protocol::Resp2).reply(&reply.expect("it does not fail"));
}

fn main() {
    let cache = Arc::new(Cache::new(CacheConfig { max_bytes: 256 << 20, seed: 1 }).expect("large enough"));
    let began = Instant::now();
    let cached = CacheDatabase::new(cache, move || began.elapsed().into(), 1);
    println!("{KEYS} keys, bursts of {BURST}, CPU time of one thread");
    for value in ["xxx".to_owned(), "x".repeat(512)] {
        println!("values of {} bytes", value.len());
        let (sets, gets) = (bursts("SET", &value), bursts("GET", ""));
        measure(&cached, "SET, taken from the wire only", &sets, |_, arguments, _| {
            black_box(arguments);
        });
        measure(&cached, "SET, with the table", &sets, |_, arguments, _| {
            let _ = black_box(admit(arguments));
        });
        for _ in 0..2 {
            measure(&cached, "SET", &sets, command);
            measure(&cached, "GET", &gets, command);
        }
    }
}
