//! Attacks by clients that have not authenticated, or have not finished a handshake.

use std::{io::Write, net::TcpStream};

use super::{Attack, PLAIN, hold, reply};
use crate::{connect, redis::encode};

/// Password of the server, which the attacker does not guess.
const PASSWORD: &[&str] = &["--resp-password", "hunter2"];

/// Passwords that are tried over many connections at the same time.
pub(crate) fn parallel_guesses() -> Attack {
    Attack {
        name: "passwords tried over 400 connections",
        threads: 4,
        flags: PASSWORD,
        // The delay of the attacker's address also holds for the first attempt of a good client behind it.
        connects_before: true,
        reaches: &["thalweg_resp_auth_failures_total"],
        run: |server, from, number, progress| {
            let mut streams: Vec<TcpStream> = Vec::new();
            for guess in 0_u64.. {
                if progress.is_over() {
                    return;
                }
                if streams.len() >= 100 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    let mut oldest = streams.remove(0);
                    let _ = oldest.set_read_timeout(Some(std::time::Duration::from_millis(1)));
                    match reply(&mut oldest) {
                        // Still waiting: the attacker goes on with its other guesses.
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                            streams.push(oldest);
                            continue;
                        }
                        answer => progress.count(answer),
                    }
                }
                let Ok(mut stream) = connect(from, server.resp) else { continue };
                let _ = stream.write_all(&encode(&format!("AUTH {number}-{guess}")));
                streams.push(stream);
            }
        },
        ..PLAIN
    }
}

/// Connections of Redis clients that never authenticate, more than may be unauthenticated.
pub(crate) fn unauthenticated_connections() -> Attack {
    Attack {
        name: "Redis clients that never authenticate",
        threads: 2,
        flags: PASSWORD,
        reaches: &["thalweg_half_open_replaced_total"],
        run: |server, from, number, progress| {
            let bytes: &[u8] = if number == 0 { b"" } else { b"*2\r\n$4\r\nAUTH\r\n$16384\r\n" };
            hold(server.resp, from, 1000, bytes, progress);
        },
        ..PLAIN
    }
}

/// Native connections that begin a handshake and never end it, more than may be half open.
pub(crate) fn half_open_sessions() -> Attack {
    Attack {
        name: "native handshakes without an end",
        reaches: &["thalweg_half_open_replaced_total"],
        // The first bytes of a hello: the header of a frame of 23 bytes, and the magic.
        run: |server, from, _, progress| {
            let hello = [&23_u32.to_le_bytes()[..], &1_u16.to_le_bytes(), &[0; 6], b"TLWG"].concat();
            hold(server.native, from, 2000, &hello, progress);
        },
        ..PLAIN
    }
}
