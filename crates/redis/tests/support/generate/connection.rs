//! Commands on the connection. Only for servers, in database 0.

use super::{
    super::{Rng, compare::Compare},
    Generator, Pool, Step, cased, exact,
};
use crate::args;

pub const ALL: &[Generator] = &[ping, echo, select, client, auth, hello];

fn ping(rng: &mut Rng, pool: &Pool) -> Step {
    exact(match rng.below(3) {
        0 => args!["ping"],
        1 => args!["ping", pool.value(rng)],
        _ => args!["ping", "too", "many"],
    })
}

fn echo(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["echo", pool.value(rng)])
}

/// Other databases exist only in Redis.
fn select(rng: &mut Rng, _: &Pool) -> Step {
    exact(args![
        "select",
        *rng.pick(&["0", "0", "abc", "", "-1", "01", "+0", "9999", "99999999999", "99999999999999999999"])
    ])
}

fn client(rng: &mut Rng, _: &Pool) -> Step {
    let name = *rng.pick(&["", "name", "two words", "line\nbreak", "\u{e4}", "a:b"]);
    exact(match rng.below(5) {
        0..=1 => args!["client", cased(rng, "getname")],
        2 => args!["client", cased(rng, "setname"), name],
        3 => args!["client", cased(rng, "getredir")],
        _ => args!["client", *rng.pick(&["foo", "", "foo\r\nbar", "setname"])],
    })
}

fn auth(rng: &mut Rng, _: &Pool) -> Step {
    exact(match rng.below(3) {
        0 => args!["auth", "password"],
        1 => args!["auth", "default", "whatever"],
        _ => args!["auth", "nobody", "whatever"],
    })
}

/// Most of these are rejected.
fn hello(rng: &mut Rng, _: &Pool) -> Step {
    let args = match rng.below(4) {
        0 => args!["hello", *rng.pick(&["1", "4", "abc", "", "3.0"])],
        1 => args!["hello", "2", *rng.pick(&["foo", "auth", "setname", ""])],
        2 => args!["hello", "2", "auth", "nobody", "whatever"],
        _ => args!["hello", "2", "setname", "two words"],
    };
    Step { args, compare: Compare::Greeting }
}
