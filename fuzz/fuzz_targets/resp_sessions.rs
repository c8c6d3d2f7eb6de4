//! A served port for Redis clients: commands of every kind with words that they know, in and out of transactions, and bytes that
//! are none, over a connection that ends its half behind them. Through parser, session, bursts, log, state, caches and broker.
//!
//! Never a panic; every answer is a reply, none says that the server failed; the connection ends. The database goes on from input
//! to input for a while, as a server's does. The scripts are made as in `server/tests/alone/redis_scripts.rs`.

#![no_main]

#[path = "../../crates/server/tests/alone/redis_script.rs"]
mod script;

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::served::{Kept, Served};
use thalweg_server::{
    Config, Server,
    config::{RespAddress, RespDatabases, Setting},
};

static SERVED: Kept = Kept::new();

fn config() -> Config {
    Config {
        resp: RespAddress::parse("127.0.0.1:0").expect("an address"),
        resp_databases: RespDatabases::parse("0=keyspace:redis,1=cache:redis,2=streams").expect("databases"),
        ..Config::default()
    }
}

fuzz_target!(|data: &[u8]| {
    let script = script::script(data);
    let start = || Served::start(config(), |_| (), Server::resp_addr);
    SERVED.input(start, |address| script::perform(address, &script));
});
