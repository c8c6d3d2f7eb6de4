//! A served native port: frames of every kind, with bodies that the input changes, over a connection that ends its half behind
//! them. Through decoder, dispatch, handlers, engine, broker and caches.
//!
//! Never a panic; every answer is a frame of a server; nothing fails as `internal`; the connection ends. The database goes on from input
//! to input for a while, as a server's does. The frames are made as in `server/tests/alone/native_scripts.rs`.

#![no_main]

#[path = "../../crates/server/tests/alone/native_script.rs"]
mod script;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use thalweg_engine::Database;
use thalweg_fuzz::served::{Kept, Served};
use thalweg_server::{Config, Server};
use thalweg_types::command::StreamConfig;

static SAMPLES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(script::samples);
static SERVED: Kept = Kept::new();

fn fill(db: &Database) {
    for name in ["a", "b", "c"] {
        db.keyspace(name).expect("a name");
        db.create_stream(name, &StreamConfig::default()).expect("a name");
    }
}

fuzz_target!(|data: &[u8]| {
    let script = script::script(&SAMPLES, data);
    let start = || Served::start(Config::default(), fill, Server::native_addr);
    SERVED.input(start, |address| script::perform(address, &script));
});
