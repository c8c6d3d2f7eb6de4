//! `docs/redis.md` names every command of redis-server 7.0: with its differences, or as absent.

use std::{collections::BTreeSet, path::Path};

use thalweg_redis::table::{find, find_full};

use crate::{
    args,
    support::{connection::Target as _, redis_server::RedisServer},
};

/// Names of the commands and subcommands of redis-server 7.0, as its `COMMAND LIST` returns them.
const NAMES: &str = include_str!("../support/commands-7.0.txt");

#[test]
fn every_command_of_redis_is_documented_as_present_or_absent() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/redis.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (present, absent) = text.split_once("\n## Absent commands\n").expect("a section of absent commands");
    let quoted = |name: &str| format!("`{}`", name.to_uppercase().replace('|', " "));
    for name in NAMES.lines() {
        let (container, subcommand) = name.split_once('|').unwrap_or((name, ""));
        match (find(container.as_bytes()), subcommand) {
            (None, "") => assert!(absent.contains(&quoted(name)), "{name} is not among the absent commands"),
            // The container is among the absent commands.
            (None, _) => {}
            (Some(_), "") => {
                assert!(present.contains(&quoted(name)), "{name} is not documented");
                assert!(!absent.contains(&quoted(name)), "{name} is not absent");
            }
            (Some(_), _) => {
                let is_there = find_full(name.as_bytes()).is_some();
                assert_eq!(absent.contains(&quoted(name)), !is_there, "{name}");
                let is_named = [subcommand, name].iter().any(|name| present.contains(&quoted(name)));
                assert!(!is_there || is_named, "{name} is not documented");
            }
        }
    }
}

#[test]
fn the_names_of_commands_are_those_of_redis() {
    let Some(server) = RedisServer::start() else { return };
    let list = server.connect(2).ask(&args!["COMMAND", "LIST"]);
    let theirs: BTreeSet<_> =
        list.items().iter().map(|name| String::from_utf8(name.bulk().unwrap().to_vec()).unwrap()).collect();
    assert_eq!(theirs, NAMES.lines().map(str::to_owned).collect());
}
