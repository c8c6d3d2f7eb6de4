//! Client commands behave alike against a server and against a directory.

use serde_json::Value;

use crate::node::{self, Node, Target};

pub(crate) fn each_place(test: impl Fn(&Target)) {
    let root = tempfile::tempdir().unwrap();
    for place in Target::both(root.path()) {
        test(&place);
    }
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn values_come_back_byte_for_byte() {
    each_place(|place| {
        let value: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        place.cli_with(&["put", "files", "blob"], &value).ok();
        assert_eq!(place.cli(&["get", "files", "blob"]).bytes, value);
        place.cli(&["put", "files", "empty", ""]).ok();
        assert_eq!(place.cli(&["get", "files", "empty"]).ok(), "");
        place.cli(&["put", "files", "00ff2f", "binary key", "--key-format", "hex"]).ok();
        assert_eq!(place.cli(&["get", "files", "00ff2f", "--key-format", "hex"]).ok(), "binary key");
        let shown = json(&place.cli(&["get", "files", "00ff2f", "--key-format", "hex", "--json"]).ok());
        assert_eq!(shown["key_base64"], "AP8v");
        assert_eq!(shown["value"], "binary key");
    });
}

#[test]
fn what_is_missing_ends_with_3_and_says_what_to_do() {
    each_place(|place| {
        place.cli(&["put", "users", "ada", "1"]).ok();
        assert!(place.cli(&["get", "users", "bob"]).fails(3).contains("thalweg scan users"));
        place.cli(&["keyspaces", "configure", "users", "--history", "3"]).ok();
        assert!(place.cli(&["history", "users", "bob"]).fails(3).contains("thalweg scan users"));
        place.cli(&["put", "users", "eve", "1"]).ok();
        assert!(place.cli(&["history", "users", "eve"]).ok().contains('1'));
        for missing in [
            &["get", "nowhere", "ada"][..],
            &["touch", "nowhere", "ada", "1h"],
            &["ttl", "nowhere", "ada"],
            &["history", "nowhere", "ada"],
        ] {
            let said = place.cli(missing).fails(3);
            assert!(said.contains("nowhere") && said.contains("`thalweg keyspaces`"), "{said}");
            assert!(!said.contains("thalweg scan"), "a scan of a missing keyspace prints nothing: {said}");
        }
        assert!(place.cli(&["read", "nowhere"]).fails(3).contains("thalweg streams"));
        assert!(place.cli(&["streams", "show", "nowhere"]).fails(3).contains("nowhere"));
        let error = json(&place.cli(&["read", "nowhere", "--json"]).fails(3));
        assert_eq!((error["exit"].as_u64(), error["retry"].as_str()), (Some(3), Some("fix")));
        let scanned = place.cli(&["scan", "nowhere"]);
        assert!(scanned.err.contains("`thalweg keyspaces`"), "{}", scanned.err);
        assert_eq!(scanned.ok(), "", "a keyspace that does not exist holds nothing");
        place.cli(&["append", "events", "a"]).ok();
        assert!(place.cli(&["read", "events", "--from", "2"]).fails(3).contains('1'));
        place.cli(&["del", "users", "bob"]).ok();
    });
}

#[test]
fn conditions_hold_or_end_with_4() {
    each_place(|place| {
        place.cli(&["put", "users", "ada", "1", "--if-absent"]).ok();
        place.cli(&["put", "users", "ada", "2", "--if-absent"]).fails(4);
        let revision =
            |key: &str| json(&place.cli(&["get", "users", key, "--json"]).ok())["revision"].as_u64().unwrap();
        let first = revision("ada").to_string();
        place.cli(&["put", "users", "ada", "2", "--if-revision", &first]).ok();
        place.cli(&["put", "users", "ada", "3", "--if-revision", &first]).fails(4);
        assert_eq!(place.cli(&["get", "users", "ada"]).ok(), "2");
        place.cli(&["del", "users", "ada", "--if-revision", &first]).fails(4);
        place.cli(&["del", "users", "ada", "--if-present"]).ok();
        place.cli(&["del", "users", "ada", "--if-present"]).fails(4);
        place.cli(&["del", "nowhere", "ada", "--if-present"]).fails(4);
        place.cli(&["append", "events", "a", "--expect", "0"]).ok();
        assert!(place.cli(&["append", "events", "a", "--expect", "0"]).fails(4).contains('1'));
        place.cli(&["append", "events", "b", "c", "--expect", "1"]).ok();
        assert_eq!(place.cli(&["read", "events", "--payload-only"]).ok(), "a\nb\nc\n");
    });
}

#[test]
fn levels_are_asked_for_and_reported() {
    each_place(|place| {
        assert!(place.cli(&["put", "k", "a", "1"]).ok().contains("durability disk"), "the default is the strongest");
        for level in ["os", "interval", "disk"] {
            let ack = json(&place.cli(&["put", "k", "a", "1", "--durability", level, "--json"]).ok());
            assert_eq!(ack["durability"], level);
            assert!(ack["revision"].is_u64());
            let ack = json(&place.cli(&["append", "s", "x", "--durability", level, "--json"]).ok());
            assert_eq!(ack["durability"], level);
        }
        let ack = json(&place.cli(&["put", "k", "a", "1", "--durability", "none", "--json"]).ok());
        assert_eq!((ack["durability"].as_str(), &ack["revision"]), (Some("none"), &Value::Null));
        assert!(place.cli(&["put", "k", "a", "1", "--durability", "paper"]).fails(2).contains("interval"));
        place.cli(&["put", "k", "a", "1", "--durability", "none", "--if-present"]).fails(2);
        assert!(place.cli(&["read", "s", "--from", "x"]).fails(2).contains("a whole number is expected"));
    });
}

#[test]
fn scans_cover_what_is_asked() {
    each_place(|place| {
        for key in ["a", "b1", "b2", "b3", "c"] {
            place.cli(&["put", "k", key, &format!("value {key}")]).ok();
        }
        let keys = |more: &[&str]| place.cli(&[&["scan", "k", "--keys-only"], more].concat()).ok().replace('\n', " ");
        assert_eq!(keys(&[]), "a b1 b2 b3 c ");
        assert_eq!(keys(&["--prefix", "b"]), "b1 b2 b3 ");
        assert_eq!(keys(&["--prefix", "b", "--limit", "2"]), "b1 b2 ");
        assert_eq!(keys(&["--start", "b2", "--end", "c"]), "b2 b3 ");
        assert_eq!(keys(&["--reverse", "--limit", "2"]), "c b3 ");
        assert_eq!(keys(&["--limit", "0"]), "");
        assert_eq!(keys(&["--start", "b2", "--end", "b2"]), "");
        assert!(place.cli(&["scan", "k", "--start", "c", "--end", "b"]).fails(2).contains("--start is behind --end"));
        assert_eq!(place.cli(&["scan", "k", "--limit", "1"]).ok(), "a\tvalue a\n");
        let first = place.cli(&["scan", "k", "--json"]).ok();
        let first = json(first.lines().next().unwrap());
        assert_eq!((first["key"].as_str(), first["value"].as_str()), (Some("a"), Some("value a")));
        assert!(place.cli(&["keyspaces"]).ok().lines().nth(1).unwrap().starts_with("k  "));
    });
}

#[test]
fn a_scan_goes_on_behind_its_cursor() {
    each_place(|place| {
        place.cli(&["keyspaces", "create", "kept", "--history", "1h"]).ok();
        for keyspace in ["kept", "plain"] {
            for key in ["a", "b", "c", "d", "e"] {
                place.cli(&["put", keyspace, key, "old"]).ok();
            }
            let (mut found, mut cursor) = (Vec::new(), None::<String>);
            loop {
                let more = cursor.iter().flat_map(|cursor| ["--cursor", cursor]).collect::<Vec<_>>();
                let page = place.cli(&[&["scan", keyspace, "--limit", "2", "--json"], &more[..]].concat()).ok();
                let lines: Vec<_> = page.lines().map(json).collect();
                found.extend(
                    lines.iter().filter_map(|line| Some((line["key"].clone(), line["value"].as_str()?.to_owned()))),
                );
                cursor = lines.last().and_then(|line| line["cursor"].as_str()).map(str::to_owned);
                if cursor.is_none() {
                    break;
                }
                place.cli(&["put", keyspace, "d", "new"]).ok();
            }
            let of_d = if keyspace == "kept" { "old" } else { "new" };
            let expected = [("a", "old"), ("b", "old"), ("c", "old"), ("d", of_d), ("e", "old")];
            assert_eq!(found, expected.map(|(key, value)| (key.into(), value.to_owned())), "{keyspace}");
        }
        let first = place.cli(&["scan", "plain", "--limit", "4", "--keys-only", "--reverse"]);
        let note = first.err;
        let cursor = note.split("--cursor ").nth(1).unwrap().trim();
        let rest = |more: &[&str]| place.cli(&[&["scan", "plain", "--cursor", cursor], more].concat());
        assert_eq!(rest(&["--keys-only", "--reverse"]).ok(), "a\n");
        assert!(rest(&["--reverse", "--prefix", "a"]).fails(2).contains("another prefix"));
        place.cli(&["scan", "plain", "--cursor", "no cursor"]).fails(2);
    });
}

#[test]
fn a_producer_that_is_opened_again_fences_the_one_before() {
    each_place(|place| {
        let open = || place.cli(&["streams", "open-producer", "pay", "till-3"]).ok().trim().to_owned();
        let send = |epoch: &str| {
            place.cli(&["append", "pay", "x", "--producer", "till-3", "--epoch", epoch, "--sequence", "0"])
        };
        let first = open();
        send(&first).ok();
        let second = open();
        assert_ne!(first, second);
        send(&first).fails(4);
        send(&second).ok();
        let opened = json(&place.cli(&["streams", "open-producer", "pay", "till-3", "--json"]).ok());
        assert_eq!((opened["id"].as_str(), opened["next_sequence"].as_u64()), (Some("till-3"), Some(0)));
        assert_eq!(place.cli(&["read", "pay", "--payload-only"]).ok(), "x\nx\n");
    });
}

#[test]
fn a_scan_of_many_pages_is_whole_and_in_order() {
    each_place(|place| {
        let pairs: String = (0..12_345).map(|n| format!("{n:08}\tvalue of {n} {}\n", "x".repeat(n % 200))).collect();
        place.cli_with(&["import", "-", "--keyspace", "many", "--format", "lines"], pairs.as_bytes()).ok();
        assert_eq!(place.cli(&["scan", "many"]).ok(), pairs);
        let reversed: String = pairs.lines().rev().map(|line| format!("{line}\n")).collect();
        assert_eq!(place.cli(&["scan", "many", "--reverse"]).ok(), reversed);
        assert_eq!(place.cli(&["scan", "many", "--limit", "9999"]).ok().lines().count(), 9_999);
    });
}

#[test]
fn records_keep_key_headers_and_order() {
    each_place(|place| {
        place.cli(&["append", "events", "paid", "--key", "order-7", "--header", "source=shop", "--header", "v=1"]).ok();
        place.cli_with(&["append", "events"], b"line one\n\nline three").ok();
        let records: Vec<_> = place.cli(&["read", "events", "--json"]).ok().lines().map(json).collect();
        let payloads: Vec<_> = records.iter().map(|record| record["payload"].as_str().unwrap()).collect();
        assert_eq!(payloads, ["paid", "line one", "", "line three"]);
        let offsets: Vec<_> = records.iter().map(|record| record["offset"].as_u64().unwrap()).collect();
        assert_eq!(offsets, [0, 1, 2, 3]);
        assert_eq!(records[0]["key"], "order-7");
        assert_eq!(records[0]["headers"], json(r#"[{"name":"source","value":"shop"},{"name":"v","value":"1"}]"#));
        assert!(records[1].get("key").is_none());
        assert_eq!(
            place.cli(&["read", "events", "--from", "1", "--limit", "2", "--payload-only"]).ok(),
            "line one\n\n"
        );
        assert_eq!(place.cli(&["read", "events", "--since", "1h"]).ok().lines().count(), 4);
        assert_eq!(place.cli(&["read", "events", "--since", "2100-01-01T00:00:00Z"]).ok(), "");
        let tailed = place.cli(&["tail", "events", "--since", "1h", "--limit", "2", "--payload-only"]).ok();
        assert_eq!(tailed, "paid\nline one\n");
        assert_eq!(
            place.cli(&["tail", "events", "--last", "2", "--limit", "2", "--payload-only"]).ok(),
            "\nline three\n"
        );
    });
}

#[test]
fn streams_are_listed_trimmed_configured_and_deleted() {
    each_place(|place| {
        place.cli_with(&["append", "events"], b"a\nb\nc\n").ok();
        let row = json(&place.cli(&["streams", "--json"]).ok());
        assert_eq!(
            (row["name"].as_str(), row["start"].as_u64(), row["next"].as_u64()),
            (Some("events"), Some(0), Some(3))
        );
        place.cli(&["streams", "trim", "events", "--before", "2"]).ok();
        assert_eq!(place.cli(&["read", "events", "--payload-only"]).ok(), "c\n");
        assert!(place.cli(&["read", "events", "--from", "0"]).fails(3).contains('2'));
        place.cli(&["streams", "configure", "events", "--max-records", "10", "--max-age", "7d"]).ok();
        let row = json(&place.cli(&["streams", "show", "events", "--json"]).ok());
        assert_eq!(
            (row["config"]["max_records"].as_u64(), row["config"]["max_age_seconds"].as_f64()),
            (Some(10), Some(604_800.0))
        );
        assert!(row["config"]["max_bytes"].is_null());
        let configured = |settings: &[&str]| {
            place.cli(&[&["streams", "configure", "events"], settings].concat()).ok();
            json(&place.cli(&["streams", "show", "events", "--json"]).ok())["config"].clone()
        };
        let config = configured(&["--max-records", "20", "--compact", "--tombstone-grace", "2h"]);
        assert_eq!(
            (config["max_records"].as_u64(), config["max_age_seconds"].as_f64()),
            (Some(20), Some(604_800.0)),
            "settings that are not named keep their values"
        );
        let config = configured(&["--max-bytes", "1MiB", "--compact"]);
        assert_eq!(config["compaction"]["tombstone_grace_seconds"].as_f64(), Some(7200.0));
        let config = configured(&["--max-age", "none", "--compact=false"]);
        assert!(config["max_age_seconds"].is_null() && config["compaction"].is_null(), "{config}");
        assert_eq!((config["max_records"].as_u64(), config["max_bytes"].as_u64()), (Some(20), Some(1 << 20)));
        place.cli(&["streams", "configure", "fresh", "--max-bytes", "1GiB"]).ok();
        assert_eq!(json(&place.cli(&["streams", "show", "fresh", "--json"]).ok())["config"]["max_bytes"], 1_u64 << 30);
        place.cli(&["streams", "delete", "events"]).ok();
        place.cli(&["read", "events"]).fails(3);
        place.cli(&["streams", "delete", "events"]).fails(3);
    });
}

#[test]
fn status_is_of_one_shape() {
    each_place(|place| {
        place.cli(&["put", "k", "a", "1"]).ok();
        let status = json(&place.cli(&["status", "--json"]).ok());
        assert_eq!(status["health"]["status"], "good");
        assert_eq!((status["durability"].as_str(), status["keyspaces"].as_u64()), (Some("disk"), Some(1)));
        let words = place.cli(&["status"]).ok();
        assert!(words.contains("health") && words.contains("  free disk ") && words.contains("iB"), "{words}");
        assert!(!words.contains('_') && !words.contains('{'), "{words}");
    });
}

#[test]
fn nobody_at_the_address_ends_with_5() {
    let refused = node::run(node::command().args(["get", "a", "b", "--server", "http://127.0.0.1:1"]), b"");
    assert!(refused.fails(5).contains("thalweg serve"));
    node::run(node::command().args(["status", "--ready", "--server", "http://127.0.0.1:1"]), b"").fails(5);
    let wrong = node::run(node::command().args(["get", "a", "b", "--server", "ftp://127.0.0.1"]), b"");
    assert!(wrong.fails(2).contains("http://HOST:PORT"));
    let missing = node::run(node::command().args(["get", "a", "b", "--data", "/nowhere/at/all"]), b"");
    missing.fails(3);
}

#[test]
fn who_was_never_there_is_not_waited_for() {
    for command in [&["subscribe", "a"][..], &["watch", "users"], &["reply", "a", "--with", "b"], &["tail", "events"]] {
        let run = node::run(node::command().args(command).args(["--server", "http://127.0.0.1:1"]), b"");
        assert!(run.fails(5).contains("thalweg serve"), "{command:?}");
    }
}

#[test]
fn an_address_that_is_wrong_is_told_as_what_it_is() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(root.path());
    let native = node.line.split_whitespace().find_map(|word| word.strip_prefix("thalweg://")).unwrap();
    let native = native.trim_end_matches(',');
    let at = |server: &str| node::run(node::command().args(["publish", "a", "b", "--server", server]), b"");
    let said = at(native).fails(5);
    assert!(said.contains("does not answer in HTTP") && said.contains("native"), "{said}");
    assert!(at(&format!("thalweg://{native}")).fails(2).contains("commands speak HTTP"));
    let said = at("http://nobody.invalid").fails(5);
    assert!(said.contains("cannot be reached") && said.contains("nothing was sent"), "{said}");
}

#[test]
fn a_name_that_is_empty_is_wrong_usage() {
    let root = tempfile::tempdir().unwrap();
    let node = Node::start(root.path());
    let nameless: [&[&str]; 8] = [
        &["publish", "", "x"],
        &["subscribe", ""],
        &["request", "", "x"],
        &["cache", "drop", ""],
        &["streams", "show", ""],
        &["watch", ""],
        &["tail", ""],
        &["groups", "show", "events", ""],
    ];
    for command in nameless {
        assert!(node.cli(command).fails(2).contains("is empty"), "{command:?}");
    }
    node.cli(&["put", "users", "", "the key without a name"]).ok();
    assert_eq!(node.cli(&["get", "users", ""]).ok(), "the key without a name");
}

#[test]
fn values_decide_as_revisions_do() {
    each_place(|place| {
        place.cli(&["put", "users", "ada", "1"]).ok();
        place.cli(&["put", "users", "ada", "2", "--if-value", "0"]).fails(4);
        place.cli(&["put", "users", "ada", "2", "--if-value", "1"]).ok();
        place.cli(&["del", "users", "ada", "--if-value", "1"]).fails(4);
        place.cli(&["del", "users", "ada", "--if-value", "2"]).ok();
        place.cli(&["get", "users", "ada"]).fails(3);
    });
}

#[test]
fn counters_say_what_they_are() {
    each_place(|place| {
        assert_eq!(place.cli(&["incr", "stats", "n"]).ok(), "1\n");
        assert_eq!(place.cli(&["incr", "stats", "n", "--by", "-5"]).ok(), "-4\n");
        assert_eq!(json(&place.cli(&["incr", "stats", "n", "--json"]).ok())["value"].as_i64(), Some(-3));
        assert_eq!(place.cli(&["get", "stats", "n"]).ok(), "-3");
        place.cli(&["put", "stats", "text", "one"]).ok();
        assert!(place.cli(&["incr", "stats", "text"]).fails(4).contains("key \"text\" in keyspace"));
    });
}

#[test]
fn transactions_answer_the_same_from_a_server_and_a_directory() {
    let transaction = r#"{"conditions": [{"keyspace": "a", "key": "k", "expect": "absent"}],
        "then": [{"op": "put", "keyspace": "a", "key": "k", "value": "v"}, {"op": "append", "stream": "s", "records": [{"payload": "r"}]}],
        "else": [{"op": "scan", "keyspace": "a"}, {"op": "get", "keyspace": "a", "key_base64": "/w=="}]}"#;
    each_place(|place| {
        let first = json(&place.cli(&["txn", transaction, "--json"]).ok());
        assert_eq!((first["succeeded"].as_bool(), first["revision"].as_u64()), (Some(true), Some(1)));
        let second = json(&place.cli_with(&["txn", "--json"], transaction.as_bytes()).ok());
        assert_eq!(second["results"][0]["items"][0]["value"], "v");
        assert_eq!(second["results"][1], serde_json::json!({"op": "get", "found": false}));
        let alone = r#"{"conditions": [{"keyspace": "a", "key": "k", "expect": "absent"}], "then": []}"#;
        assert!(place.cli(&["txn", alone]).fails(4).contains("condition 0"));
        place.cli(&["txn", "{\"then\": [{}]}"]).fails(2);
    });
}

#[test]
fn commits_answer_the_same_from_a_server_and_a_directory() {
    let commit = r#"{"conditions": [{"keyspace": "a", "key": "k", "expect": "absent"}],
        "writes": [{"op": "put", "keyspace": "a", "key": "k", "value": "v"},
                   {"op": "append", "stream": "s", "producer": {"id": "p", "epoch": 0, "sequence": 0}, "records": [{"payload": "r"}]}]}"#;
    each_place(|place| {
        let first = json(&place.cli(&["commit", commit, "--json"]).ok());
        let appends = serde_json::json!([{"stream": "s", "first": 0, "last": 0, "count": 1}]);
        assert_eq!(
            (first["revision"].as_u64(), &first["appends"], &first["durability"]),
            (Some(1), &appends, &"disk".into())
        );
        // The commit's own put makes the condition fail now; the producer's number shows that the commit has happened.
        let again = place.cli_with(&["commit"], commit.as_bytes()).ok();
        assert!(again.starts_with("ok, it happened before, ") && again.contains("\"last\":0"), "{again}");
        let stale = r#"{"conditions": [{"keyspace": "a", "key": "k", "expect": "absent"}],
            "writes": [{"op": "delete", "keyspace": "a", "key": "k"}]}"#;
        let error = place.cli(&["commit", stale]).fails(4);
        assert!(error.contains("condition 0") && error.contains("k of a"), "{error}");
        assert_eq!(place.cli(&["get", "a", "k"]).ok(), "v");
        let weak = r#"{"writes": [{"op": "put", "keyspace": "a", "key": "l", "value": ""}], "durability": "os"}"#;
        assert!(place.cli(&["commit", weak]).ok().contains("durability os"));
        for wrong in
            ["{", r#"{"writes": []}"#, r#"{"writes": [{"op": "add", "keyspace": "a", "key": "k", "delta": 1}]}"#]
        {
            place.cli(&["commit", wrong]).fails(2);
        }
    });
}

#[test]
fn prefixes_and_keyspaces_go_whole() {
    each_place(|place| {
        for key in ["a/1", "a/2", "b"] {
            place.cli(&["put", "ks", key, "v"]).ok();
        }
        assert!(place.cli(&["del", "ks", "--prefix", "a/"]).ok().contains("2 keys are gone"));
        assert_eq!(place.cli(&["scan", "ks", "--keys-only"]).ok(), "b\n");
        place.cli(&["del", "ks"]).fails(2);
        place.cli(&["del", "ks", "b", "--prefix", "a"]).fails(2);
        assert!(place.cli(&["del", "nowhere", "--prefix", ""]).ok().contains("0 keys are gone"));
        place.cli(&["keyspaces", "create", "exact", "--exact-counts"]).ok();
        place.cli(&["put", "exact", "k", "v"]).ok();
        let stats = json(&place.cli(&["keyspaces", "show", "exact", "--json"]).ok());
        assert_eq!((stats["stats"]["keys"].as_u64(), stats["config"]["exact_counts"].as_bool()), (Some(1), Some(true)));
        place.cli(&["keyspaces", "configure", "ks", "--exact-counts"]).fails(2);
        place.cli(&["keyspaces", "configure", "exact", "--exact-counts=false"]).ok();
        place.cli(&["keyspaces", "drop", "exact"]).ok();
        place.cli(&["keyspaces", "show", "exact"]).fails(3);
        let listed = place.cli(&["keyspaces"]).ok();
        let listed: Vec<_> = listed.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
        assert_eq!(listed, ["keyspace", "ks"]);
    });
}

#[test]
fn producers_append_once_and_expectations_have_words() {
    each_place(|place| {
        place.cli(&["append", "pay", "a", "--expect", "none"]).ok();
        place.cli(&["append", "pay", "b", "--expect", "none"]).fails(4);
        place.cli(&["append", "pay", "b", "--expect", "some"]).fails(2);
        let send = |sequence: &'static str| {
            place.cli(&["append", "pay", "x", "y", "--producer", "till", "--sequence", sequence, "--json"])
        };
        let first = json(&send("0").ok());
        let again = json(&send("0").ok());
        assert_eq!((&again["first"], &again["last"]), (&first["first"], &first["last"]));
        assert_eq!((first["duplicate"].as_bool(), again["duplicate"].as_bool()), (Some(false), Some(true)));
        let refused = json(&send("5").fails(4));
        let message = refused["message"].as_str().unwrap();
        assert!(message.starts_with("stream \"pay\": ") && message.contains("next sequence is 1"), "{message}");
        place.cli_with(&["append", "pay", "--producer", "till", "--sequence", "1"], b"a\n").fails(2);
        place.cli(&["append", "pay", "x", "--producer", "till"]).fails(2);
        let producers = json(&place.cli(&["streams", "producers", "pay", "--json"]).ok());
        assert_eq!((producers["id"].as_str(), producers["next_sequence"].as_u64()), (Some("till"), Some(1)));
        assert_eq!(place.cli(&["read", "pay", "--last", "2", "--payload-only"]).ok(), "x\ny\n");
    });
}

#[test]
fn streams_are_created_with_limits_and_take_tombstones() {
    each_place(|place| {
        let create = ["streams", "create", "s", "--compact", "--tombstone-grace", "2s", "--max-record-bytes", "64"];
        let made = json(&place.cli(&[&create[..], &["--json"]].concat()).ok());
        assert_eq!(made["config"]["compaction"]["tombstone_grace_seconds"], 2.0);
        assert_eq!(made["config"]["max_record_bytes"], 64);
        place.cli(&["streams", "create", "s", "--max-age", "1h"]).ok();
        let shown = json(&place.cli(&["streams", "show", "s", "--json"]).ok());
        assert_eq!(shown["config"], made["config"], "what exists is left as it is");
        place.cli(&["append", "s", "v", "--key", "k"]).ok();
        place.cli(&["append", "s", "--key", "k", "--tombstone"]).ok();
        place.cli(&["append", "s", "--tombstone"]).fails(2);
        place.cli(&["append", "s", &"x".repeat(64)]).fails(2);
        let last = json(&place.cli(&["read", "s", "--last", "1", "--json"]).ok());
        assert_eq!((last["key"].as_str(), last["tombstone"].as_bool()), (Some("k"), Some(true)));
        let configured = json(&place.cli(&["streams", "config", "s", "--max-records", "5", "--json"]).ok());
        assert_eq!(configured["config"]["max_records"], 5);
        assert_eq!(configured["config"]["compaction"]["tombstone_grace_seconds"], 2.0);
    });
}

#[test]
fn a_watch_tells_changes_from_a_revision_on() {
    each_place(|place| {
        place.cli(&["put", "users", "ada", "1"]).ok();
        place.cli(&["put", "users", "bob", "2"]).ok();
        place.cli(&["del", "users", "ada"]).ok();
        let all = place.cli(&["watch", "users", "--from", "1", "--limit", "3"]).ok();
        assert_eq!(all, "1\tput\tada\t1\n2\tput\tbob\t2\n3\tdelete\tada\n");
        let one = json(&place.cli(&["watch", "users", "--key", "ada", "--from", "2", "--limit", "1", "--json"]).ok());
        assert_eq!((&one["revision"], &one["change"], &one["key"]), (&3.into(), &"delete".into(), &"ada".into()));
        let puts =
            ["a", "b"].map(|key| serde_json::json!({"op": "put", "keyspace": "users", "key": key, "value": "1"}));
        place.cli(&["commit", &serde_json::json!({ "writes": puts }).to_string()]).ok();
        let pair = place.cli(&["watch", "users", "--from", "4", "--limit", "2", "--json"]).ok();
        let last: Vec<_> = pair.lines().map(|line| json(line)["last"].clone()).collect();
        assert_eq!(last, [Value::Null, true.into()], "the end of the commit is marked");
        assert!(place.cli(&["watch", "nowhere"]).fails(3).contains("nowhere"));
        assert!(place.cli(&["watch", "users", "--from", "99"]).fails(3).contains("next one is 5"));
    });
}

#[test]
fn the_default_lifetime_of_a_keyspace_is_lifted() {
    each_place(|place| {
        place.cli(&["keyspaces", "create", "k", "--default-ttl", "1h"]).ok();
        place.cli(&["keyspaces", "configure", "k", "--history", "3"]).ok();
        place.cli(&["put", "k", "a", "1"]).ok();
        assert_ne!(place.cli(&["ttl", "k", "a"]).ok(), "forever\n", "another setting leaves it as it was");
        place.cli(&["keyspaces", "configure", "k", "--default-ttl", "none"]).ok();
        place.cli(&["put", "k", "a", "2"]).ok();
        assert_eq!(place.cli(&["ttl", "k", "a"]).ok(), "forever\n");
    });
}

#[test]
fn keys_end_and_are_touched() {
    each_place(|place| {
        place.cli(&["put", "s", "a", "1", "--ttl", "1h"]).ok();
        let life = json(&place.cli(&["ttl", "s", "a", "--json"]).ok());
        let left = life["remaining_seconds"].as_f64().unwrap();
        assert!(left > 3000.0 && left <= 3600.0, "{life}");
        assert_eq!((life["revision"].as_u64(), life["lease"].is_null()), (Some(1), true));
        assert_eq!(place.cli(&["touch", "s", "a", "2d"]).ok(), "ok\n");
        assert!(place.cli(&["ttl", "s", "a"]).ok().starts_with("1 d 23 h"));
        place.cli(&["put", "s", "a", "2", "--ttl", "keep", "--if-value", "1"]).ok();
        assert!(place.cli(&["ttl", "s", "a"]).ok().starts_with("1 d 23 h"));
        place.cli(&["touch", "s", "a", "never"]).ok();
        assert_eq!(place.cli(&["ttl", "s", "a"]).ok(), "forever\n");
        place.cli(&["put", "s", "a", "3", "--ttl", "1h", "--if-revision", "1"]).fails(4);
        assert!(place.cli(&["ttl", "s", "b"]).fails(3).contains("thalweg scan"));
        place.cli(&["touch", "s", "b", "1s"]).fails(3);
        place.cli(&["touch", "s", "a", "keep"]).fails(2);
        place.cli(&["put", "s", "a", "3", "--ttl", "soon"]).fails(2);
    });
}

#[test]
fn leases_are_granted_shown_kept_and_revoked() {
    each_place(|place| {
        let id = place.cli(&["lease", "grant", "1h"]).ok().trim().to_owned();
        place.cli(&["put", "m", "a", "1", "--lease", &id]).ok();
        place.cli(&["put", "m", "b", "1", "--lease", &id, "--if-value", "x"]).fails(4);
        place.cli(&["put", "m", "00ff", "1", "--key-format", "hex", "--lease", &id, "--ttl", "2h"]).ok();
        let shown = json(&place.cli(&["lease", "show", &id, "--json"]).ok());
        assert_eq!(shown["keys"][0]["key_base64"], "AP8=");
        assert_eq!((shown["keys"][1]["key"].as_str(), shown["ttl_seconds"].as_f64()), (Some("a"), Some(3600.0)));
        let words = place.cli(&["lease", "show", &id]).ok();
        assert!(words.lines().any(|line| line.split_whitespace().eq(["m", "a"])), "{words}");
        assert_eq!(json(&place.cli(&["ttl", "m", "a", "--json"]).ok())["lease"].to_string(), id);
        assert!(place.cli(&["lease", "keep-alive", &id]).ok().contains("1 h 0 m"));
        let chosen = json(&place.cli(&["lease", "grant", "10s", "--id", "7", "--json"]).ok());
        assert_eq!((chosen["id"].as_u64(), chosen["ttl_seconds"].as_f64()), (Some(7), Some(10.0)));
        place.cli(&["lease", "grant", "10s", "--id", "7"]).fails(2);
        let listed = place.cli(&["lease", "list", "--json"]).ok();
        assert_eq!(listed.lines().map(|line| json(line)["id"].to_string()).collect::<Vec<_>>(), [id.as_str(), "7"]);
        place.cli(&["lease", "revoke", &id]).ok();
        place.cli(&["get", "m", "a"]).fails(3);
        for action in ["show", "keep-alive", "revoke"] {
            assert!(place.cli(&["lease", action, &id]).fails(3).contains("lease grant"));
        }
        place.cli(&["put", "m", "a", "1", "--lease", &id]).fails(3);
        place.cli(&["lease", "grant", "1ms"]).fails(2);
    });
}

#[test]
fn a_directory_ends_what_a_server_follows_and_rejects_what_needs_a_server() {
    let root = tempfile::tempdir().unwrap();
    let place = Target::Directory(root.path().join("data"));
    place.cli(&["put", "users", "ada", "1"]).ok();
    let watched = place.cli(&["watch", "users", "--from", "1"]);
    assert!(watched.err.contains("no other process can write"), "{}", watched.err);
    assert_eq!(watched.ok(), "1\tput\tada\t1\n");
    for no_changes in [&["watch", "users"][..], &["watch", "users", "--key", "bob", "--from", "1"]] {
        assert_eq!(place.cli(no_changes).ok(), "");
    }
    place.cli(&["append", "events", "a", "b"]).ok();
    let tailed = place.cli(&["tail", "events", "--from", "0", "--payload-only"]);
    assert!(tailed.err.contains("no other process can append"), "{}", tailed.err);
    assert_eq!(tailed.ok(), "a\nb\n");
    let publishing = r#"{"writes": [{"op": "put", "keyspace": "users", "key": "ada", "value": "2"}],
        "publish": [{"subject": "changed", "messages": [{"payload": "ada"}]}]}"#;
    assert!(place.cli(&["commit", publishing]).fails(2).contains("no subjects"));
    assert_eq!(place.cli(&["get", "users", "ada"]).ok(), "1");
    place.cli(&["state", "digest", "--last"]).fails(2);
    place.cli(&["groups", "create", "events", "g"]).ok();
    assert!(place.cli(&["consume", "events", "--group", "g", "--push"]).fails(2).contains("--push"));
}

#[test]
fn the_same_words_manage_everything_and_earlier_words_work_still() {
    each_place(|place| {
        place.cli(&["keyspaces", "create", "k"]).ok();
        place.cli(&["streams", "create", "s"]).ok();
        place.cli(&["groups", "create", "s", "g"]).ok();
        for show in ["show", "stats"] {
            for of in [&["keyspaces", show, "k"][..], &["streams", show, "s"], &["groups", show, "s", "g"]] {
                let shown = place.cli(of).ok();
                assert!(shown.lines().count() == 2 && shown.contains(of[0].trim_end_matches('s')), "{shown}");
            }
        }
        for configure in ["configure", "config"] {
            place.cli(&["keyspaces", configure, "k", "--default-ttl", "1h"]).ok();
            place.cli(&["streams", configure, "s", "--max-age", "1h"]).ok();
            place.cli(&["groups", configure, "s", "g", "--max-pending", "10"]).ok();
        }
        for drop in ["drop", "delete"] {
            for of in [&["groups", drop, "s", "g"][..], &["streams", drop, "s"], &["keyspaces", drop, "k"]] {
                assert!(place.cli(of).ok().contains("gone"));
            }
            place.cli(&["keyspaces", "create", "k"]).ok();
            place.cli(&["streams", "create", "s"]).ok();
            place.cli(&["groups", "create", "s", "g"]).ok();
        }
        for list in ["keyspaces", "streams", "groups"] {
            let listed = place.cli(&[list]).ok();
            assert!(listed.lines().next().unwrap().contains(list.trim_end_matches('s')), "{listed}");
            assert_eq!(place.cli(&[list, "list"]).ok(), listed);
        }
    });
}

#[test]
fn a_transaction_that_does_nothing_does_not_print_ok() {
    each_place(|place| {
        let put = r#"{"op": "put", "keyspace": "k", "key": "a", "value": "1"}"#;
        let absent = r#"{"keyspace": "k", "key": "a", "expect": "absent"}"#;
        let transaction = format!(r#"{{"conditions": [{absent}], "then": [{put}]}}"#);
        assert!(place.cli(&["txn", &transaction]).ok().starts_with("ok, then"));
        let refused = place.cli(&["txn", &transaction]);
        assert_eq!(refused.out, "");
        assert!(refused.fails(4).contains("condition 0 was not met"));
        let refused = place.cli(&["txn", &transaction, "--json"]);
        assert_eq!(json(&refused.out)["succeeded"], false);
        assert_eq!(json(&refused.fails(4))["code"], "condition_failed");
    });
}
