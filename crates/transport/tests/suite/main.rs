//! Tests of connections and channels over TCP, TLS and QUIC.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod common;

mod channels;
mod datagrams;
mod listening;
mod quic;
